# moe-run with grammars and schemas on the bundled model: answers that follow them, what they cost, what
# is refused.
. tests/cli/lib.sh
pack
moe() { run "$bin/moe-run" -t 1 "$tiny" -p 'Once upon a time' "$@"; }

printf 'root ::= "yes" | "no" | "may" [b]"e"\n' >"$tmp/g"
moe --grammar "$tmp/g" --temp 0 --stats-json "$tmp/stats"
expect_exit 0 "--grammar exits with 0"
check "the answer is one of three" grep -qxE 'yes|no|maybe' "$out"
check "--stats-json counts masks" grep -q '"grammar_masks": [1-9]' "$tmp/stats"
moe --grammar "$tmp/g" --seed 5 --temp 2 --stats
cp "$out" "$tmp/first"
check "--stats says what it cost" grep -q '^grammar  .* ms a token beside the model' "$err"
moe --grammar "$tmp/g" --seed 5 --temp 2
check "the same seed, the same answer" cmp -s "$out" "$tmp/first"

schema='{"properties": {"ok": {"type": "boolean"}, "n": {"minimum": 1, "maximum": 12, "type": "integer"}},
    "required": ["ok", "n"]}'
printf '%s' "$schema" >"$tmp/schema"
moe --json-schema "$tmp/schema" --temp 0
check "greedy JSON of a schema" sh -c "tr -d ' \n\t' <'$out' | grep -qxE '\{\"ok\":(true|false),\"n\":([1-9]|1[0-2])\}'"
echo '{"oneOf": [{"type": "integer", "multipleOf": 35, "minimum": 1}, {"type": "number", "minimum": 4, "maximum": 5}]}' >"$tmp/one"
moe --json-schema "$tmp/one" --temp 0
check "an answer of one of two kinds of numbers" grep -qxE '[0-9]*[05]|[45](\.[0-9]*)?' "$out"
expect_stderr_like "*one: #/oneOf: kept as anyOf: 0 and 1 may both take a value*" "... which may be both, as is said"
moe --json-object --seed 3 -n 100
check "--json-object begins an object" grep -q '^{' "$out"
printf '{"prompt": "a", "max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": {"schema": %s}}}\n' \
    "$(printf '%s' "$schema" | tr '\n' ' ')" >"$tmp/requests"
printf '%s\n' '{"prompt": "a", "max_tokens": 1, "grammar": "root ::= [a-z]{30}"}' \
    '{"prompt": "a", "grammar": "root ::= x"}' >>"$tmp/requests"
run "$bin/moe-run" -t 1 "$tiny" --requests "$tmp/requests" -o "$tmp/results"
check "a request's schema" grep -q '"text":"{.*\\"ok\\".*"finish_reason":"stop"' "$tmp/results"
check "an answer that is cut off says so" grep -q '"finish_reason":"length"' "$tmp/results"
check "a request's grammar is refused by its place" grep -q "line 1, column 10: the rule 'x' is not defined" "$tmp/results"

# A thought that the template opens, which a parenthesis ends, comes first.
cat >"$tmp/thinks.jinja" <<'END'
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}[hm]{{ m.reasoning_content }}){% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
[hm]{% endif %}
END
echo '[{"role": "user", "content": "Once upon a time"}]' >"$tmp/messages"
run "$bin/moe-run" -t 1 "$tiny" --messages "$tmp/messages" --template-file "$tmp/thinks.jinja" --grammar "$tmp/g" --temp 0
check "a grammar holds what follows a thought" grep -qxE 'yes|no|maybe' "$out"
expect_stderr_like "*thought: ?*" "... which is not part of the document"
# No token that ends the thought goes on with what the grammar does not have: " text" would.
sed -i 's/})/}te/' "$tmp/thinks.jinja"
echo '[{"role": "user", "content": "Once"}]' >"$tmp/messages"
run "$bin/moe-run" -t 1 "$tiny" --messages "$tmp/messages" --template-file "$tmp/thinks.jinja" --grammar "$tmp/g" --temp 0 -n 30
expect_exit 0 "a token that ends a thought and breaks the grammar is not drawn"

printf 'root ::= root "a"\n' >"$tmp/left"
moe --grammar "$tmp/left"
expect_exit 3 "left recursion"
expect_stderr_like "*'root' is left-recursive*" "... is named"
moe --grammar "$tmp/g" --beams 2
expect_exit 2 "no grammar with beams"
moe --grammar "$tmp/g" --json-object
expect_exit 2 "one grammar at most"
finish
