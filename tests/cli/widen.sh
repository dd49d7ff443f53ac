# tests/tools/widen: a wider model of both stacks says what its source says.
# shellcheck shell=sh disable=SC2154,SC1091,SC2034 # the variables are lib.sh's
. tests/cli/lib.sh

widen=$BUILD/tests/tools/widen

# says PACK: tokens drawn for a source, which show the size of the logits as well as their order.
says() {
    "$bin/moe-run" -t 1 "$1" -p 'one two three' -n 24 --temp 1 --seed 2 2>/dev/null
}

# same CHECKPOINT OPTION...: the checkpoint widened so answers as it does.
same() {
    fixture=$1
    shift
    rm -rf "$tmp/widened"
    run "$widen" "$@" "$fixture" "$tmp/widened"
    expect_exit 0 "$fixture $*"
    "$bin/moe-quantize" -q -o "$tmp/small.moe" --experts 32 --dense 32 "$fixture"
    "$bin/moe-quantize" -q -o "$tmp/wide.moe" --experts 32 --dense 32 "$tmp/widened"
    says "$tmp/small.moe" >"$tmp/small"
    says "$tmp/wide.moe" >"$tmp/wide"
    check "... says something" [ -s "$tmp/small" ]
    check "... and what its source says" cmp -s "$tmp/small" "$tmp/wide"
}
same "$drawn/switch-a" --hidden 2 --ff 4
same "$drawn/switch-b" --hidden 4 --ff 2 --heads 2
same "$models/tiny-switch" --hidden 4 --ff 4

run "$widen" --layers 2 "$checkpoint" "$tmp/short"
expect_exit 0 "its first layers"
check "... are a model" "$bin/moe-quantize" -q -o "$tmp/short.moe" --method rtn --experts 4 "$tmp/short"
run "$widen" --layers 13 "$checkpoint" "$tmp/more"
error_line 2 'widen: *has fewer layers than --layers asks for' "more layers than there are"
run "$widen" --hidden 2 "$drawn/switch-b" "$tmp/tied"
error_line 2 'widen: *its head is its embedding: --hidden must be a power of four' "a tied head by two"
run "$widen" --hidden 2 "$drawn/mixtral-a" "$tmp/other"
error_line 1 'widen: *not the config of a qwen2_moe or switch_transformers model' "another family"
finish
