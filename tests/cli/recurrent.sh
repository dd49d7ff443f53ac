# moe-run and moe-serve on a model with recurrent states: the same answers in any batch, side by side, behind a small
# cache; how a text goes on, what is refused, what is measured.
. tests/cli/lib.sh
next=$tmp/next.moe
"$bin/moe-quantize" -q -t 1 --experts 32 --dense 32 -o "$next" "$drawn/qwen3-next-a"
moe() { run "$bin/moe-run" -t 1 "$next" "$@"; }
story='It was a dark and stormy night, and so on, and on, until'

moe -p "$story" --temp 0 -n 24 --ignore-eos
check "an answer" [ -s "$out" ]
cp "$out" "$tmp/alone"
moe -p "$story" --temp 0 -n 24 --ignore-eos --batch 5
check "small passes: the same" cmp -s "$out" "$tmp/alone"
least=$(smallest_memory "$bin/moe-run" -t 1 "$next" -p "$story" -c 96)
moe -p "$story" --temp 0 -n 24 --ignore-eos -c 96 --memory "${least}M" --stats-json "$json"
check "the smallest memory: the same" cmp -s "$out" "$tmp/alone"
check "... within it" [ "$(figure peak_rss_bytes)" -le "$(figure memory_budget_bytes)" ]
moe -p "$story" -n 12 --beams 3
expect_exit 0 "--beams"
moe -p "$story" -n 90 --temp 0 --ignore-eos -c 64 --context-shift --stats-json "$json"
check "--context-shift" [ "$(figure generated_tokens)" = 90 ]

moe -p "$story" --temp 0 -n 24 --ignore-eos --draft ngram --stats-json "$json"
check "--draft: the same" cmp -s "$out" "$tmp/alone"

# Kept on disk: all of the prompt but its last token, and with its states.
kept() { moe --temp 0 -n 24 --ignore-eos --prompt-cache "$tmp/cache" --stats-json "$json" "$@"; }
kept -p "$story"
check "--prompt-cache: the same" cmp -s "$out" "$tmp/alone"
prompt=$(figure prompt_tokens)
kept -p "$story" --batch 5 --draft ngram
check "... again, the same" cmp -s "$out" "$tmp/alone"
check "... of which one token was computed" [ "$(figure prompt_tokens) $(figure loaded_tokens)" = "1 $((prompt - 1))" ]
moe -p "$story the end" --temp 0 -n 24 --ignore-eos
cp "$out" "$tmp/longer"
kept -p "$story the end"
check "... a longer prompt: its answer" cmp -s "$out" "$tmp/longer"
check "... from where the file ends" [ "$(figure loaded_tokens)" = "$((prompt - 1))" ]
cp "$tmp/cache" "$tmp/longest"
kept -p "$story"
check "... the shorter one again: its answer" cmp -s "$out" "$tmp/alone"
check "... computed anew" none loaded_tokens
expect_stderr_like "*moe-run: $tmp/cache: holds a longer prompt, *it stays as it is*" "... which says so"
check "... and the longer file stays" cmp -s "$tmp/cache" "$tmp/longest"
kept -c 42 -p "$story"
check "... also where it is too long for the context" cmp -s "$tmp/cache" "$tmp/longest"
kept -p "No such thing"
check "... and gives way to another prompt" [ "$(wc -c <"$tmp/cache")" -lt "$(wc -c <"$tmp/longest")" ]

# The same of a model whose layers compress, with groups that are open.
v4=$tmp/v4.moe
"$bin/moe-quantize" -q -t 1 --experts 32 --dense 32 -o "$v4" "$drawn/deepseek-v4-a"
v4() { run "$bin/moe-run" -t 1 "$v4" --temp 0 -n 24 --ignore-eos --stats-json "$json" "$@"; }
v4 -p "$story"
cp "$out" "$tmp/alone.v4"
v4 -p "$story" --prompt-cache "$tmp/cache.v4"
check "entries: --prompt-cache: the same" cmp -s "$out" "$tmp/alone.v4"
v4 -p "$story" --prompt-cache "$tmp/cache.v4" -c 100 --batch 3 --draft ngram
check "... again, the same" cmp -s "$out" "$tmp/alone.v4"
check "... of which one token was computed" [ "$(figure prompt_tokens)" = 1 ]
printf X | dd of="$tmp/cache.v4" bs=1 seek=$(($(wc -c <"$tmp/cache.v4") - 20)) conv=notrunc 2>/dev/null
v4 -p "$story" --prompt-cache "$tmp/cache.v4"
error_line 3 "moe-run: $tmp/cache.v4: the context file is damaged: a checksum of its entries is wrong" "... a damaged one"

# Side by side, texts that begin alike: every answer as alone.
for i in 1 2 3 4 5 6; do
    printf '{"custom_id": "p%s", "prompt": "%s %s", "temperature": 0, "max_tokens": 20, "ignore_eos": true}\n' $i "$story" $i
done >"$tmp/requests"
answers() { # FILE OPTION...
    to=$1
    shift
    run "$bin/moe-run" -q -t 1 "$next" --requests "$tmp/requests" "$@"
    sed -n 's/.*"custom_id":\("[^"]*"\).*"choices":\(.*\),"usage".*/\1 \2/p' "$out" | sort >"$to"
    taken=$(grep -c '"cached_tokens":57' "$out")
}
answers "$tmp/one" --sequences 1
check "--requests answers them" [ "$(wc -l <"$tmp/one")" = 6 ]
check "... computing what they share once" [ "$taken" = 5 ]
answers "$tmp/others" --sequences 4 --batch 7
check "... four at a time: the same" cmp -s "$tmp/one" "$tmp/others"
check "... also once" [ "$taken" = 5 ]
answers "$tmp/others" --sequences 6 --expert-memory 100K
check "... six, behind a small cache: the same" cmp -s "$tmp/one" "$tmp/others"

# With a template that opens answers otherwise than it writes them later.
cp -r "$drawn/qwen3-next-a" "$tmp/chat"
sed -i 's/"max_position_embeddings": 256/"max_position_embeddings": 1024/' "$tmp/chat/config.json"
cat >"$tmp/chat/chat_template.jinja" <<'END'
{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}{% if add_generation_prompt %}[assistant]<think>{% endif %}
END
"$bin/moe-quantize" -q -t 1 --experts 32 --dense 32 -o "$tmp/chat.moe" "$tmp/chat"
listen "$bin/moe-serve" "$tmp/chat.moe" --cache-dir "$tmp/kept" || exit 1
printf '{"prompt": "%s", "temperature": 0, "max_tokens": 24, "ignore_eos": true}' "$story" >"$tmp/body"
for i in 1 2; do
    run "$load" -p "$port" -P /v1/completions -f "$tmp/body" -o "$tmp/got$i"
    sed -i 's/.*"choices"/"choices"/; s/"usage".*//' "$tmp/got$i"
done
check "moe-serve" grep -q '"finish_reason":"length"' "$tmp/got1"
check "... again: the same" cmp -s "$tmp/got1" "$tmp/got2"
# A chat goes on from where its turns end: what is computed again are the few tokens that open an answer.
: >"$tmp/turns"
before=0
for turn in 1 2 3 4; do
    if [ $turn = 4 ]; then # with another server, by files
        kill -TERM "$server"
        wait "$server" 2>/dev/null
        listen "$bin/moe-serve" "$tmp/chat.moe" --cache-dir "$tmp/kept" || exit 1
    fi
    printf '%s{"role": "user", "content": "%s %s"}' "$(cat "$tmp/turns")" "$story" $turn >"$tmp/turns"
    printf '{"messages": [%s], "temperature": 0, "max_tokens": 24}' \
        "$(cat "$tmp/turns")" >"$tmp/body"
    run "$load" -p "$port" -P /v1/chat/completions -f "$tmp/body" -o "$tmp/got"
    printf ', {"role": "assistant", "content": "A quiet answer."}, ' >>"$tmp/turns"
    prompt=$(grep -o '"prompt_tokens":[0-9]*' "$tmp/got" | cut -d: -f2)
    cached=$(grep -o '"cached_tokens":[0-9]*' "$tmp/got" | cut -d: -f2)
    echo "# turn $turn: $prompt tokens, $cached of them cached"
    [ $turn = 1 ] || check "... turn $turn computes its own tokens" [ "$cached" -ge $((before - 8)) ]
    before=$prompt
done
kill -TERM "$server"
wait "$server" 2>/dev/null

# Measuring.
moe --bench --prompt-tokens 24 -n 4
expect_stdout_like 'tokens/s of 5 runs *prefill * 24 *decode * 4 *' "--bench"
printf '%s\n' "$story" >"$tmp/text"
run "$bin/moe-profile" -q -t 1 "$next" --text "$tmp/text" -o "$tmp/stats" --trace "$tmp/trace"
expect_exit 0 "moe-profile"
run "$bin/moe-plan" -t 1 "$next" --memory 64M --stats "$tmp/stats" --trace "$tmp/trace" \
    --device-profile profiles/apple-m2.yaml -o "$tmp/plan"
expect_exit 0 "moe-plan"
{
    cat profiles/rtx4090.yaml
    printf '%s\n' 'storage:' '  bytes_per_second: 600e6'
} >"$tmp/gpu.yaml"
run "$bin/moe-plan" -q "$next" --device cuda --device-profile "$tmp/gpu.yaml" --memory 64M --gpu-memory 64M
expect_exit 0 "a plan for a GPU"
moe -p "$story" --temp 0 -n 24 --ignore-eos --plan "$tmp/plan"
check "--plan: the same" cmp -s "$out" "$tmp/alone"
"$bin/moe-quantize" -q -t 1 --experts 8,4 --dense 8 --group 32 -o "$tmp/two.moe" "$drawn/qwen3-next-a"
run "$bin/moe-calibrate" -q -t 1 "$tmp/two.moe" --text "$tmp/text" --tolerance 10 -o "$tmp/map"
expect_exit 0 "moe-calibrate"
finish
