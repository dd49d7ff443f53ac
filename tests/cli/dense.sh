# A dense model, which has no experts: nothing that the programs say of it speaks of any.
. tests/cli/lib.sh
dense=$tmp/dense.moe
"$bin/moe-quantize" -q -o "$dense" "$drawn/llama" || exit 1
speaks_of_none() { # NAME FILE...
    name=$1
    shift
    said=$(grep -iE 'experts?|hit rate|activation|prefetch|loads|strategy' "$@" | head -n 3)
    check "$name: nothing about experts${said:+ ($said)}" [ -z "$said" ]
}
run "$bin/moe-run" "$dense" --raw -p 'a b c' -n 4 --ignore-eos --stats
expect_exit 0 "it runs"
speaks_of_none "moe-run --stats" "$err"
check "... but its memory and speed" sh -c "grep -q '^memory .* of the process' '$err' && grep -q 'tokens/s' '$err'"
run "$bin/moe-run" "$dense" --bench -n 2 --prompt-tokens 4
expect_exit 0 "it is timed"
speaks_of_none "moe-run --bench" "$out" "$err"
run "$bin/moe-run" "$dense" --bench -n 2 --prompt-tokens 4 --json
speaks_of_none "moe-run --bench --json" "$out"
if command -v script >/dev/null; then
    printf '/strategy\n/quit\n' | script -qec "$bin/moe-run '$dense'" /dev/null | grep -v '/strategy' >"$out"
    expect_stdout_like "*a dense model: all of it stays in memory*" "its prompt knows it"
    speaks_of_none "the prompt's greeting, and its /strategy" "$out"
else
    skip "its prompt" "no script"
fi
run "$bin/moe-quantize" --list "$dense"
speaks_of_none "moe-quantize --list" "$out"
run "$bin/moe-plan" --explain "$dense"
expect_exit 0 "moe-plan --explain"
speaks_of_none "what it says" "$out"
expect_stdout_like "*a dense model of * layers*The smallest budget that works is*moe-run $dense" "... says what it takes"
least=$(sed -n 's/.*(--memory \([0-9]*\)M).*/\1/p' "$out")
run "$bin/moe-plan" --explain "$dense" --json
check "... as JSON" sh -c "grep -q '\"smallest_bytes\": *[1-9]' '$out' && ! grep -q expert '$out'"
run "$bin/moe-profile" --device "$dense" --dir "$tmp" -o "$tmp/device.yaml"
expect_exit 0 "moe-profile --device"
run "$bin/moe-profile" --show "$tmp/device.yaml"
expect_stdout_like "*A layer for 1 token*attention*dense feed-forward*" "... times its layers"
sed '/^Storage/,/^$/d' "$out" >"$tmp/model" # the disk reads loads of any size
speaks_of_none "moe-profile --show" "$tmp/model"
run "$bin/moe-plan" --explain "$tmp/device.yaml"
expect_stdout_like "This is a device profile*" "moe-plan --explain of it"
sed '/^Storage/,/^$/d' "$out" >"$tmp/model"
speaks_of_none "what it says" "$tmp/model"
run "$bin/moe-run" "$dense" --memory "${least}M" -t 1 --raw -p 'a b c' -n 2
expect_exit 0 "that budget works"
run "$bin/moe-calibrate" "$dense" --text tests/data/math.calib.txt -o "$tmp/map.yaml"
error_line 2 "moe-calibrate: $dense: a model without experts has no bits of experts to choose" "no bits to choose"
listen "$bin/moe-serve" "$dense" --name dense
curl -s "$url/v1/completions" -d '{"prompt": "a b c", "max_tokens": 4}' >"$tmp/answer" || exit 1
curl -s "$url/metrics" >"$tmp/metrics"
check "a server answers" grep -q '"choices"' "$tmp/answer"
check "its metrics: nothing about experts" sh -c "! grep -iE 'experts?_|[^-]experts? |activation' '$tmp/metrics'"
check "... but tokens" grep -q '^moe_generated_tokens_total [1-9]' "$tmp/metrics"
kill "$server"
wait "$server" 2>/dev/null
finish
