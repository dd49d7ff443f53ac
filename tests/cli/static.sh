# Layers that choose their experts by the token, from a checkpoint to a simulation: what is known when a token is
# comes before its layer, and changes no answer.
. tests/cli/lib.sh
static=$BUILD/tests/tools/make_static
mkdir "$tmp/some" "$tmp/switch"
run "$static" "$drawn/qwen3-moe-a" '[0, 2]' "$tmp/some"
expect_exit 0 "a checkpoint with tables in the place of routers"
run "$bin/moe-quantize" -t 1 --experts 8 --dense 16 -o "$tmp/some.moe" "$tmp/some"
expect_exit 0 "... becomes a pack"
run "$bin/moe-quantize" --list "$tmp/some.moe"
expect_stdout_like '*3 used per token*in 2 layers chosen by the token*' "... that says so"
moe() { run "$bin/moe-run" -t 1 "$tmp/some.moe" -p "ab cd" -n 24 --temp 0 --ignore-eos "$@"; }
moe --strategy resident
expect_exit 0 "it answers"
cp "$out" "$tmp/resident"
for strategy in lru prefetch fate; do
    for memory in 30K 80K; do
        moe --strategy "$strategy" --expert-memory "$memory" --exact --stats --stats-json "$json"
        check "$strategy with $memory: the same answer" cmp -s "$out" "$tmp/resident"
    done
done
expect_stderr_like '*known    * activations from their tokens, before the router ran, * prefetches*' "--stats tells what was known"
check "... and --stats-json" some known
check "... of two layers in three" [ $((3 * $(figure known))) -eq $((2 * $(figure expert_activations))) ]
moe --strategy lru --expert-memory 80K --stats-json "$json"
check "a strategy without predictions preloads nothing" sh -c "! grep -q known '$json'"

head -c 2000 tests/data/stories.valid.txt >"$tmp/text"
run "$bin/moe-profile" -q -t 1 "$tmp/some.moe" --text "$tmp/text" --max-tokens 64 --max-windows 1 -o "$tmp/s.yaml" --trace "$tmp/t"
expect_exit 0 "it is profiled and traced"
run "$bin/moe-profile" --show "$tmp/t"
expect_stdout_like '*Of these, 2 layers choose experts by the token*' "the trace knows the layers"
moe --strategy edgemoe --statistics "$tmp/s.yaml" --expert-memory 80K --exact
check "edgemoe with these statistics: the same answer" cmp -s "$out" "$tmp/resident"
run "$bin/moe-plan" --simulate "$tmp/t" "$tmp/some.moe" --strategy edgemoe --stats "$tmp/s.yaml" --memory 25%,50% \
    --layer-seconds 0.001 --link-rate 1M --json
expect_stdout_like '*"known": *' "a simulation preloads"

run "$static" "$drawn/switch-a" '"encoder"' "$tmp/switch"
run "$bin/moe-quantize" -q -t 1 --experts 32 --dense 32 -o "$tmp/switch.moe" "$tmp/switch"
expect_exit 0 "an encoder may have them"
run "$bin/moe-run" -t 1 "$tmp/switch.moe" -p "ab" -n 8 --temp 0 --ignore-eos
cp "$out" "$tmp/resident"
run "$bin/moe-run" -t 1 "$tmp/switch.moe" -p "ab" -n 8 --temp 0 --ignore-eos --strategy prefetch --expert-memory 100K
check "... and answers the same" cmp -s "$out" "$tmp/resident"

sed 's/\[0, 2\]/[0, 9]/' "$tmp/some/config.json" >"$tmp/config" && mv "$tmp/config" "$tmp/some/config.json"
run "$bin/moe-quantize" -q -o "$tmp/x.moe" "$tmp/some"
error_line 3 "*config.json: 'static_routing' names no layer at item 1*" "a layer that is not there"
finish
