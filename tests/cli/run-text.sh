# moe-run on the bundled model: continuations, their ends, what must not change them, the figures.
. tests/cli/lib.sh
pack
moe() { run "$bin/moe-run" -t 1 "$tiny" "$@"; }
story='Once upon a time'

moe -p "$story" -n 24 --temp 0
expect_exit 0 "-p exits with 0"
expect_stderr_lines 0 "-p is silent on stderr"
check "-p writes a continuation" [ -s "$out" ]
check "-p does not repeat the prompt" sh -c "! grep -q '^$story' '$out'"
cp "$out" "$tmp/greedy"
run "$bin/moe-run" -t 2 "$tiny" -p "$story" -n 24 --temp 0 --batch 1
check "two threads and rows one by one: the same text" cmp -s "$out" "$tmp/greedy"
moe --cpu scalar -p "$story" -n 24 --temp 0 --exact --strategy resident
check "plain C: the same text" cmp -s "$out" "$tmp/greedy"
printf '%s' "$story" >"$tmp/prompt"
moe -f "$tmp/prompt" -n 24 --temp 0
check "-f: the same text" cmp -s "$out" "$tmp/greedy"
code=0
"$bin/moe-run" -t 1 "$tiny" -n 24 --temp 0 <"$tmp/prompt" >"$out" 2>"$err" || code=$?
check "standard input: the same text" cmp -s "$out" "$tmp/greedy"
code=0
"$bin/moe-run" -t 1 "$tiny" -f - -n 24 --temp 0 <"$tmp/prompt" >"$out" 2>"$err" || code=$?
check "-f -: the same text" cmp -s "$out" "$tmp/greedy"

moe -p "$story" -n 40 --seed 7
cp "$out" "$tmp/seed7"
moe -p "$story" -n 40 --seed 7
check "the same seed, the same text" cmp -s "$out" "$tmp/seed7"
moe -p "$story" -n 40 --seed 8
check "another seed, another text" sh -c "! cmp -s '$out' '$tmp/seed7'"
moe -v -p "$story" -n 1
expect_stderr_like "*moe-run: seed [0-9]*" "-v prints the seed"
moe -p "$story" -n 24 --top-k 1
check "top-k 1 is greedy" cmp -s "$out" "$tmp/greedy"

moe -p "$story" -n 0
expect_exit 0 "-n 0"
check "-n 0 writes nothing" [ ! -s "$out" ]
word=$(tr -d '\n' <"$tmp/greedy" | cut -d ' ' -f 4)
moe -p "$story" -n 24 --temp 0 --stop 'no such text' --stop "$word"
expect_exit 0 "--stop exits with 0"
check "--stop: the text ends before it" sh -c \
    "! grep -qF '$word' '$out' && [ -s '$out' ] && [ \$(wc -c <'$out') -lt \$(wc -c <'$tmp/greedy') ]"
moe -p "$story" -c 12 --temp 0
expect_exit 0 "a full context is no error"
expect_stderr_like 'moe-run: the context of 12 tokens is full*' "a full context is noted"
moe -p "$story" -c 12 -n 40 --temp 0 --ignore-eos --logprobs 0 --context-shift --stats
check "--context-shift: the answer goes on" [ "$(wc -l <"$out")" = 40 ]
expect_stderr_like '*moe-run: the context was full: its oldest * tokens were dropped*shifted  the context * times*' "... which is said and counted"
moe -p x --context-shift --exact
error_line 2 'moe-run: option --exact: --context-shift may change results*' "... and is not exact"
moe -q -p "$story" -c 12 --temp 0
expect_stderr_lines 0 "... but not with -q"
moe -p "$story $story $story" -c 8
error_line 4 'moe-run: the prompt of * tokens does not fit the context of 8 (-c 512 would hold it)' "a prompt too long"
moe -p x -c 100000
error_line 2 'moe-run: a context of 100000: * has 512 positions' "a context too long"

# Log probabilities: a line of JSON for each token, whose texts are the answer.
moe -p "$story" -n 24 --temp 0 --logprobs 3
expect_exit 0 "--logprobs 3"
check "... a line for each token" [ "$(wc -l <"$out")" = 24 ]
check "... with three likeliest" sh -c "! grep -v '\"top_logprobs\":\[{\"token\":[^{]*{\"token\":[^{]*{\"token\":[^{]*]}\$' '$out'"
sed 's/^{"token":"\([^{]*\)","logprob":.*/\1/' "$out" | tr -d '\n' >"$tmp/tokens"
check "... and the text of the answer" [ "$(printf '%b\n' "$(cat "$tmp/tokens")")" = "$(cat "$tmp/greedy")" ]
greedy='{"token":\(.*\),"logprob":\(.*\),"bytes":.*"top_logprobs":\[{"token":\1,"logprob":\2,"bytes"'
check "... of which greedy took the likeliest" [ "$(grep -c "^$greedy" "$out")" = 24 ]
moe -p "$story" -n 3 --logprobs 0
expect_stdout_like '*"top_logprobs":\[\]}*' "--logprobs 0: the token's own alone"
moe -p x --logprobs 21
error_line 2 "moe-run: option --logprobs: '21' is not a whole number from 0 to 20 *" "too many likeliest"
moe -p x --logprobs 1 --beams 2
error_line 2 "moe-run: options --beams and --logprobs exclude each other *" "log probabilities of beams"
printf 'a\0b' >"$tmp/nul"
moe -f "$tmp/nul"
error_line 3 'moe-run: the prompt is not text*' "a prompt with NUL bytes"
moe -p x --template-file "$tmp/none"
error_line 1 "moe-run: $tmp/none: *" "no template there"
printf '{%% for m in messages %%}{{ m.content' >"$tmp/damaged"
moe -p x --template-file "$tmp/damaged"
error_line 3 "moe-run: $tmp/damaged, line 1, column *(--raw continues *--template-file FILE takes *)" "a damaged template"
printf "{{ raise_exception('Only \\'user\\' here') }}" >"$tmp/refusing"
moe -p x --template-file "$tmp/refusing"
error_line 2 "moe-run: $tmp/refusing, line 1, column 19: the template refuses this: Only 'user' here" "a refusal"
printf '%s' '{% set x = namespace(t="abcdefgh") %}{% for i in range(99999) %}{% set x.t = x.t + x.t %}{% endfor %}' >"$tmp/bomb"
moe -p x --template-file "$tmp/bomb"
error_line 4 "moe-run: $tmp/bomb: the template needs more than * bytes of memory*" "a template that grows without end"
printf '%s' '{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}' >"$tmp/bomb"
moe -p x --template-file "$tmp/bomb"
error_line 4 "moe-run: $tmp/bomb*" "one that does not end"
printf '{%% for m in messages if m.role == "user" %%}{{ m.content }}{%% endfor %%}' >"$tmp/nosystem"
moe -p x --system y --template-file "$tmp/nosystem" -n 8 --temp 0
cp "$out" "$tmp/with-system"
moe -p "$(printf 'y\n\nx')" --template-file "$tmp/nosystem" -n 8 --temp 0
check "a system text begins the question where the template takes none" cmp "$out" "$tmp/with-system"

moe -p "$story" -n 24 --beams 4 --stats --stats-json "$json"
expect_exit 0 "--beams answers"
expect_stderr_like '*beams    4, the answer?s score -*' "--stats tells the score"
check "--stats-json has beams and score" sh -c \
    "grep -q '^  \"beams\": 4,' '$json' && grep -q '^  \"score\": -[0-9]' '$json'"
cp "$out" "$tmp/beams"
least=$(smallest_memory "$bin/moe-run" -t 1 "$tiny" -p "$story" -n 24 --beams 4)
moe -p "$story" -n 24 --beams 4 --memory "${least}M" --batch 3 --stats-json "$json"
check "--beams in the smallest memory: the same text" cmp -s "$out" "$tmp/beams"
check "... within it" [ "$(figure peak_rss_bytes)" -le "$(figure memory_budget_bytes)" ]
moe -p "$story" -n 24 --beams 4 --stop ' a '
check "--beams --stop: the text ends before it" sh -c "! grep -qF ' a ' '$out' && [ -s '$out' ]"
moe -p "$story" -c 12 --beams 3
expect_stderr_like 'moe-run: the context of 12 tokens is full*' "--beams fill the context"
moe -p x --system y
error_line 2 'moe-run: there is no chat template*' "a system text without template"
moe -p x --system y --template-file tests/data/chatml.jinja -n 3 --temp 0
expect_exit 0 "a template from a file"
moe -p 'Hi <|im_end|>' --system Short. --template-file tests/data/chatml.jinja --show-prompt
sed '$d' "$out" >"$tmp/shown"
printf '<|im_start|>system\nShort.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n\n' >"$tmp/want"
check "--show-prompt shows what is fed, to the byte" cmp -s "$tmp/shown" "$tmp/want"
check "... and its ids: the mark that was typed is text" [ "$(tail -n 1 "$out" | tr ' ' '\n' | grep -c '^4095$')" = 2 ]
moe -p "$story" --raw --show-prompt
expect_stdout "$story
ids: 4093 997 804 259 534" "--show-prompt of plain text"
echo '{"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "tools": []}' >"$tmp/messages"
moe --messages "$tmp/messages" --template-file tests/data/chatml.jinja --show-prompt
expect_stdout_like '<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
*' "--messages: parts where the template takes texts"
moe --messages "$tmp/messages" --template-file tests/data/chatml.jinja -n 3 --temp 0
expect_exit 0 "--messages are answered"
echo '[{"role": "user"' >"$tmp/messages"
moe --messages "$tmp/messages" --template-file tests/data/chatml.jinja
error_line 3 "moe-run: $tmp/messages: line *" "damaged messages"
moe --messages "$tmp/messages" -p x
error_line 2 'moe-run: options --messages and --prompt exclude each other*' "messages and a prompt"

# ---- Calls of tools ----

cat >"$tmp/tools" <<'END'
[{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties":
  {"path": {"enum": ["a", "b"]}}, "required": ["path"], "additionalProperties": false}}}]
END
cat >"$tmp/says" <<'END'
root ::= "See. <tool_call>\n{\"name\": \"find\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>"
END
calling="--template-file tests/data/calls.jinja --tools $tmp/tools --temp 0"
moe -p x $calling --grammar "$tmp/says"
expect_stdout 'See.

-> find({"path": "a"})' "--tools: text and calls are shown apart"
moe -p x $calling --tool-choice find -n 60 --json
expect_stdout_like '{"message": {"role": "assistant", "content": "", "tool_calls": \[{"id": "call00100", "type": "function", "function": {"name": "find", "arguments": "{\\"path\\": \\"[ab]\\"}"}}\]}, "finish_reason": "tool_calls"}' \
    "--json: an answer as a message, its call held to the schema"
printf '[{"role": "user", "content": "x"}, %s, {"role": "tool", "content": "found", "tool_call_id": "call00100"}]' \
    "$(sed 's/^{"message": //;s/, "finish_reason.*//' "$out")" >"$tmp/messages"
moe --messages "$tmp/messages" $calling --show-prompt
expect_stdout_like '*"arguments": {"path": "*"}}
</tool_call><|im_end|>
<|im_start|>tool
found<|im_end|>*' "... which joins the messages"
# Calls that are messages of another role begin with what ends an answer.
cat >"$tmp/roles.jinja" <<'END'
{% if tools %}functions<|role|>
{{ tools|tojson }}<|sep|>

{% endif %}{% for m in messages %}{{ m.role }}<|role|>
{{ m.content }}<|sep|>

{% if m.tool_calls %}function call<|role|>
{"name": "{{ m.tool_calls[0].function.name }}", "arguments": {{ m.tool_calls[0].function.arguments|tojson }}}<|sep|>

{% endif %}{% endfor %}{% if add_generation_prompt %}assistant<|role|>
{% endif %}
END
roles="--template-file $tmp/roles.jinja --tools $tmp/tools --temp 0"
echo 'root ::= "Hm<|sep|>\n\nfunction call<|role|>\n{\"name\": \"find\", \"arguments\": {\"path\": \"a\"}}"' >"$tmp/says"
moe -p x $roles --grammar "$tmp/says"
expect_stdout 'Hm

-> find({"path": "a"})' "a call behind what ends an answer"
moe -p x --template-file "$tmp/roles.jinja" --temp 0 --grammar "$tmp/says"
expect_stdout 'Hm' "... is none without tools"
echo 'root ::= "Hm<|sep|>\n\nuser<|role|>\nmore"' >"$tmp/says"
moe -p x $roles --grammar "$tmp/says"
expect_stdout 'Hm' "... and what is no call ends there"
moe -p x $roles --tool-choice find -n 60 --json
expect_stdout_like '*"tool_calls": \[{*"name": "find", "arguments": "{\\"path\\": \\"[ab]\\"}"}}\]}, "finish_reason": "tool_calls"}' \
    "... and one that must come does"
# A thought that the template opens ends with a bracket, which the model writes.
cat >"$tmp/thinks.jinja" <<'END'
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}[hm]{{ m.reasoning_content }}){% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
[hm]{% endif %}
END
moe -p "$story" --template-file "$tmp/thinks.jinja" --temp 0 -n 20
expect_stdout_like "thought: [!)]*1

[!)]*" "-p tells a thought from what follows it"
expect_stderr_lines 0 "... without a word beside them"
moe -p "$story" --template-file "$tmp/thinks.jinja" --temp 0 -n 4
expect_stdout_like "thought: ?*" "... and from nothing"
expect_stderr_like "*the answer ended within its thought*" "... which it says"
# A thought that the template opens and nobody wants is closed before a call that must come.
sed 's/^{{ m.content }}/{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n<\/think>\n\n{% endif %}&/
s/^{% endif %}$/<think>\n&/' tests/data/calls.jinja >"$tmp/thinks.jinja"
echo '{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"enable_thinking": false}}' >"$tmp/messages"
moe --messages "$tmp/messages" --template-file "$tmp/thinks.jinja" --tools "$tmp/tools" --temp 0 --tool-choice find -n 60 --json
expect_stdout_like '{"message": {*"tool_calls": \[{*"finish_reason": "tool_calls"}' "an opened thought is closed where none is wanted"
moe -p x $calling --tool-choice other
error_line 2 "moe-run: option --tool-choice: 'other' is none of the tools*" "a tool that is none"
echo '[{"name": 1}]' >"$tmp/tools"
run "$bin/moe-run" "$tmp/none.moe" -p x $calling # before the model is looked for
error_line 3 "moe-run: $tmp/tools: 'tools\[0\].function.name' is not 1 to 128 bytes without quotes*" "damaged tools"
moe -p ''  -n 3 --temp 0
expect_exit 0 "an empty prompt"

moe --ids "$story"
expect_stdout "4093 997 804 259 534" "--ids prints the ids, those that the tokenizer adds included"
moe --ids ''
expect_stdout "4093" "--ids of nothing"
moe --raw -p "$story" --show-prompt
check "... those that a plain text is continued from" [ "$(tail -n 1 "$out")" = "ids: 4093 997 804 259 534" ]

# The tokenizer's files say whether a text begins with a token, not whether there is such a token.
mkdir "$tmp/plain"
cp "$checkpoint"/*.json "$checkpoint"/*.safetensors "$tmp/plain"
sed 's/"bos_token"/"add_bos_token": false, "bos_token"/' "$checkpoint/tokenizer_config.json" >"$tmp/plain/tokenizer_config.json"
"$bin/moe-quantize" -q -o "$tmp/plain.moe" --experts 4 "$tmp/plain"
run "$bin/moe-run" "$tmp/plain.moe" --ids "$story"
expect_stdout "997 804 259 534" "add_bos_token false: --ids"
run "$bin/moe-run" "$tmp/plain.moe" --raw -p "$story" --show-prompt
check "... a plain text" [ "$(tail -n 1 "$out")" = "ids: 997 804 259 534" ]
printf '{"prompt": "%s", "max_tokens": 1}\n' "$story" >"$tmp/request"
run "$bin/moe-run" "$tmp/plain.moe" --requests "$tmp/request"
expect_stdout_like '*"prompt_tokens":4,*' "... a request"
moe --requests "$tmp/request"
expect_stdout_like '*"prompt_tokens":5,*' "... and with it"

moe -p "$story" -n 5 --ignore-eos --stats --stats-json "$tmp/stats.json"
expect_stderr_like 'strategy resident on cpu*tokens/s*hit rate 100*' "--stats tells"
for key in prompt_tokens generated_tokens ttft_s prefill_tokens_per_s decode_tokens_per_s \
    expert_activations cache_hits prefetch_hits prefetch_late misses host_computed precalculated \
    skipped low_precision substituted hit_rate prefetch_accuracy prefetch_wasted_bytes loads \
    bytes_read bytes_per_token stall_s compute_s evictions resident_expert_bytes_max \
    peak_rss_bytes memory_budget_bytes strategy device; do
    grep -q "^  \"$key\": " "$tmp/stats.json" || echo "$key"
done >"$tmp/missing"
check "--stats-json has the documented keys" [ ! -s "$tmp/missing" ]
# Five rows of prompt (the text's beginning and 4 ids), 4 of decode, 12 layers, 4 experts each.
check "--stats-json counts activations" grep -q '^  "expert_activations": 432,' "$tmp/stats.json"
check "... and they are all hits" grep -q '^  "cache_hits": 432,' "$tmp/stats.json"
moe -p x -n 1 --stats-json "$tmp"
error_line_status=$code
check "--stats-json into a directory fails" [ "$error_line_status" = 1 ]

moe --bench --prompt-tokens 16 -n 4
expect_stdout_like 'tokens/s of 5 runs *prefill * 16 *decode * 4 *' "--bench prints a table"
moe --bench --prompt-tokens 16 -n 4 --json -p "$story"
expect_stdout_like '{"prefill_tokens": 16,*"runs": 5}' "--bench --json"
moe --bench --prompt-tokens 16 -n 4 --bench-runs 2 --json
expect_stdout_like '*"runs": 2}' "--bench-runs"
moe --bench --prompt-tokens 600
error_line 2 'moe-run: a context of 664: *' "a bench beyond the context"

if [ -w /dev/full ]; then
    code=0
    "$bin/moe-run" -t 1 "$tiny" -p "$story" -n 5 >/dev/full 2>"$err" || code=$?
    : >"$out"
    error_line 1 'moe-run: standard output: No space left on device' "a full disk"
fi
# The reader ends before the first word.
{ "$bin/moe-run" -t 1 "$tiny" -p "$story" --ignore-eos 2>"$err"; echo $? >"$tmp/code"; } | :
code=$(cat "$tmp/code")
: >"$out"
error_line 1 'moe-run: standard output: Broken pipe' "a closed pipe"

: >"$out"
"$bin/moe-run" -t 1 --cpu scalar "$tiny" -p "$story" --ignore-eos >"$out" 2>"$err" &
pid=$!
while [ ! -s "$out" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
kill -INT "$pid"
code=0
wait "$pid" || code=$?
# A shell without job control starts background processes with SIGINT ignored; then it just ends.
check "an interrupt ends the answer cleanly" sh -c "[ $code = 1 ] || [ $code = 0 ]"

# LongRoPE: the text's length chooses the factors, not the room that there is (256: the original
# context).
"$bin/moe-quantize" -q -t 1 --experts 32 --dense 32 -o "$tmp/long.moe" "$drawn/phimoe-short"
run "$bin/moe-run" -t 1 "$tmp/long.moe" -p "Once upon a time" -n 24 --temp 0 --ignore-eos -c 256
cp "$out" "$tmp/short"
run "$bin/moe-run" -t 1 "$tmp/long.moe" -p "Once upon a time" -n 24 --temp 0 --ignore-eos -c 257
check "a LongRoPE model answers alike in longer contexts" cmp "$out" "$tmp/short"
run "$bin/moe-run" -t 1 "$tmp/long.moe" -p "Once upon a time" -n 300 --temp 0 --ignore-eos -c 400
cp "$out" "$tmp/short"
run "$bin/moe-run" -t 1 "$tmp/long.moe" -p "Once upon a time" -n 300 --temp 0 --ignore-eos -c 400 \
    --batch 3 --strategy ondemand
check "... and beyond its original context in any batches" cmp "$out" "$tmp/short"
run "$bin/moe-run" "$tiny" -q -p x -n 1 --logit-bias 4095+1 --logit-bias 4096-1
error_line 2 "moe-run: option --logit-bias names token 4096: the model has 4096*" "a bias of a token that there is not"
run "$bin/moe-run" "$tiny" -q -p x -n 1 --stop-token-id 99999
error_line 2 "moe-run: option --stop-token-id names token 99999: the model has 4096*" "... nor does one end the answer"
# At the prompt /set does what these options do, and a list that is wrong changes nothing. Token 13 comes in this answer.
if command -v script >/dev/null; then
    asked() { run "$bin/moe-run" "$tiny" -q -n 12 --temp 0 -p 'Once upon a time' "$@"; }
    for how in "logit-bias 13-inf" "min-tokens 11" "stop-token-id none"; do
        case $how in *none) asked ;; *) asked --stop-token-id 13 "--${how% *}" "${how#* }" ;; esac
        cp "$out" "$tmp/want"
        printf '/set %s\n/set logit-bias 4096+1\n/set stop-token-id 1,x\nOnce upon a time\n/quit\n' "$how" |
            script -qec "$bin/moe-run -t 1 $tiny -q -n 12 --temp 0 --stop-token-id 13" /dev/null >"$out"
        check "/set $how:$(cat "$tmp/want")" grep -qF "$(cat "$tmp/want")" "$out"
    done
    asked --stop-token-id 13
    check "... without which the answer is another" sh -c "! grep -qF \"\$(cat '$tmp/want')\" '$out'"
else
    skip "/set with tokens" "no script"
fi
finish
