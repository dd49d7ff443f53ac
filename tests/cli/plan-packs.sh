# moe-plan over several packs: which is chosen by the loss that is tolerated and the memory there is, and
# why the others are not.
. tests/cli/lib.sh
if ! (ulimit -v 409600 && "$bin/moe-plan" --version >/dev/null 2>&1); then
    skip "the choice among packs" "a sanitizer's memory grows from one plan to the next"
    finish
fi
pack
plan="$bin/moe-plan"
machine="--layer-seconds 2e-4 --link-rate 20MB/s --max-tokens 60 --strategy lru"
for bits in 8 2; do
    "$bin/moe-quantize" -q --experts $bits --dense $bits -o "$tmp/$bits.moe" "$checkpoint"
done
least=$(smallest_memory "$plan" "$tmp/8.moe")
memory=$((least + 6))

choose() { # ARGUMENTS...
    # shellcheck disable=SC2086 # words
    run "$plan" -q "$tmp/8.moe=0.5%" "$tmp/2.moe=20%" --memory "${memory}M" $machine -o "$tmp/plan.yaml" "$@"
}
# shellcheck disable=SC2154 # set by run
chosen() { # NAME PACK
    expect_exit 0 "$1"
    check "... with its plan" grep -q "$2" "$tmp/plan.yaml"
}
choose --loss 30%
chosen "the fastest within the loss" 2.moe
expect_stdout_like "*8.moe: loses 0.5%, * tokens/s: slower*2.moe: loses 20%, *: chosen, the fastest*" \
    "... and why the other is not"
choose --loss 1%
chosen "a small loss excludes the fastest" 8.moe
expect_stdout_like "*8.moe: *chosen, the fastest within*2.moe: *loses more than 1%*" "... it says so"
choose --loss 0.1%
chosen "none loses so little: the least" 8.moe
expect_stdout_like "*chosen, the smallest loss*2.moe: *: loses more*" "... it says so"
choose
chosen "without a loss: the least" 8.moe
memory=$(smallest_memory "$plan" "$tmp/2.moe")
check "the small pack works in less" [ "$memory" -lt "$least" ]
choose --loss 1%
chosen "what does not fit is not chosen" 2.moe
expect_stdout_like "*8.moe: loses 0.5%, does not fit: *2.moe: *the smallest loss that fits*" "... and why"
memory=1
choose --loss 1%
error_line 4 "moe-plan: none of the packs fits*" "none fits"
run "$plan" "$tmp/8.moe=1%" "$tmp/2.moe" --memory 40M $machine
error_line 2 "moe-plan: $tmp/2.moe: what it loses is not said*" "a loss that is not said"
run "$plan" "$tmp/8.moe" --memory 40M --loss 1% $machine
error_line 2 "moe-plan: option --loss chooses*" "--loss of one pack"
finish
