# The example pipeline from checkpoint to a planned run.
. tests/cli/lib.sh
export BUILD
head -c 6000 tests/data/math.calib.txt >"$tmp/calib.txt"
head -c 3000 tests/data/math.valid.txt >"$tmp/valid.txt"
run env CALIB="$tmp/calib.txt" VALID="$tmp/valid.txt" sh tests/pipeline.sh "$checkpoint" "" "$tmp/out"
expect_exit 0 "the pipeline runs"
expect_stdout_like "quantize *profile-text *profile-machine *plan *Plan for model.moe in *run *expected *tokens/s*measured *" "every step has its time"
for file in model.moe statistics.yaml calib.trace device.yaml plan.yaml; do
    check "$file is there" [ -s "$tmp/out/$file" ]
done
check "its plan is made for its pack" grep -q "name: model.moe" "$tmp/out/plan.yaml"
run "$bin/moe-run" "$tmp/out/model.moe" --plan "$tmp/out/plan.yaml" -p 'Once upon a time' -n 20 --temp 0
expect_exit 0 "the plan runs again"
first=$(cat "$out")
run "$bin/moe-run" "$tmp/out/model.moe" -p 'Once upon a time' -n 20 --temp 0
expect_stdout "$first" "with the tokens of a run without a plan"
pack
run "$bin/moe-run" "$tiny" --plan "$tmp/out/plan.yaml" -p 'x' -n 1 --strategy lru
error_line 2 "moe-run: option --plan: *" "a plan and a strategy"
"$bin/moe-quantize" -q --experts 8 -o "$tmp/other.moe" "$checkpoint"
run "$bin/moe-run" "$tmp/other.moe" --plan "$tmp/out/plan.yaml" -p 'x' -n 1
error_line 3 "moe-run: the plan was made for another pack, model.moe, *" "another pack's plan"
finish
