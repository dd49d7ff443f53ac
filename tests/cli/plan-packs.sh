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
    "$bin/moe-quantize" -q --method rtn --experts $bits --dense $bits -o "$tmp/$bits.moe" "$checkpoint"
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

# What a bit map measured: a pack that follows it, and uniform ones, each with the map's dense part.
"$bin/moe-quantize" -q --method rtn --experts 8,2 --dense 8 -o "$tmp/all.moe" "$checkpoint"
awk '/^<\|endoftext\|>$/ { exit } { print }' tests/data/math.calib.txt >"$tmp/text"
run "$bin/moe-calibrate" -q "$tmp/all.moe" --text "$tmp/text" --max-tokens 24 --max-windows 1 --importance proxy --tolerance 20% \
    --without fate --without hobbit -o "$tmp/map.yaml"
expect_exit 0 "a bit map"
"$bin/moe-quantize" -q --map "$tmp/map.yaml" -o "$tmp/mixed.moe" "$tmp/all.moe"
"$bin/moe-quantize" -q --experts 2 -o "$tmp/low.moe" "$tmp/all.moe"
loss_of() { # SECTION: its nats, as the choice prints them
    "$bin/moe-calibrate" --show --json "$tmp/map.yaml" |
        sed -n "s/.*$1[^}]*\"nll_percent\":\([0-9.e+-]*\),.*/\1/p" | awk '{ printf "%.3g", $1 }'
}
mixed=$(loss_of '"choice":{[^{]*"loss"') low=$(loss_of '"experts":"2","dense_bits":8')
memory=$((least + 6))
# shellcheck disable=SC2086 # words
run "$plan" -q "$tmp/mixed.moe=$tmp/map.yaml" "$tmp/low.moe=$tmp/map.yaml" --loss 20% --memory "${memory}M" $machine \
    -o "$tmp/plan.yaml"
chosen "within the map's tolerance its choice" mixed.moe
expect_stdout_like "*mixed.moe: loses $mixed%, *: chosen, the fastest*low.moe: loses $low%, *: loses more than 20%*" \
    "... with the losses that the map measured"
# shellcheck disable=SC2086
run "$plan" "$tmp/2.moe=$tmp/map.yaml" "$tmp/8.moe=1%" --memory "${memory}M" $machine
error_line 2 "moe-plan: $tmp/2.moe: the map says nothing of experts at '2' with a dense part of 2 bits" \
    "a dense part that the map did not measure"
{ cat "$tmp/map.yaml" | sed 's/^metric: nll$/&\njudge: rouge2/; s/_percent: 20$/_points: 20/'; } >"$tmp/judged.yaml"
# shellcheck disable=SC2086
run "$plan" "$tmp/8.moe=$tmp/judged.yaml" "$tmp/low.moe=1%" --memory "${memory}M" $machine
error_line 2 "moe-plan: $tmp/low.moe: what it loses is in nats, what $tmp/8.moe loses in rouge2" \
    "losses in different measures"
"$bin/moe-quantize" -q --method rtn --experts 8 -o "$tmp/switch.moe" "$models/tiny-switch"
# shellcheck disable=SC2086
run "$plan" "$tmp/switch.moe=$tmp/map.yaml" "$tmp/8.moe=1%" --memory "${memory}M" $machine
error_line 2 "moe-plan: $tmp/switch.moe: the map is of another model" "a map of another model"
# shellcheck disable=SC2086
run "$plan" "$tmp/8.moe=$tmp/text" "$tmp/low.moe=1%" --memory "${memory}M" $machine
error_line 3 "moe-plan: $tmp/text: *" "a map that is none"

run "$plan" "$tmp/8.moe=1%" "$tmp/2.moe" --memory 40M $machine
error_line 2 "moe-plan: $tmp/2.moe: its loss is not given*" "a loss that is not said"
run "$plan" "$tmp/8.moe" --memory 40M --loss 1% $machine
error_line 2 "moe-plan: option --loss chooses*" "--loss of one pack"
finish
