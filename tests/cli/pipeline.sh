# moe-pipeline: from a checkpoint to a planned run, again with what is missing or changed, and what it refuses.
. tests/cli/lib.sh
head -c 1500 tests/data/math.calib.txt >"$tmp/calib.txt"
head -c 2000 tests/data/math.valid.txt >"$tmp/valid.txt"
o="$tmp/a b" # a directory with a space in its name
pipeline() { run "$bin/moe-pipeline" -o "$o" "$@"; }
begin() { pipeline "$checkpoint" --text "$tmp/calib.txt" --check "$tmp/valid.txt" --max-tokens 32 "$@"; }

begin --bits 4 --memory 26M --shards 3 --dry-run
expect_exit 0 "--dry-run"
expect_stdout_like "# quantize: 1 of 1 to do*moe-quantize*# profile: 3 of 3 to do*--shard 3/3*moe-plan*moe-run*" "... prints the commands"
check "... and makes nothing" [ ! -e "$o" ]
begin --bits 4 --memory 26M --shards 3 --jobs 2
expect_exit 0 "a pipeline runs"
expect_stdout_like "Plan for model.moe in 26.00 MiB*Expected * tokens/s*measured*moe-run*--plan*" "... and says what was expected and measured"
expect_stderr_like "*moe-pipeline: * of *: profile:* took * s*" "... and how far it is"
for file in model.moe statistics.yaml text.trace device.yaml plan.yaml run.json options; do
    check "$file is there" [ -s "$o/$file" ]
done
check "its plan is made for its pack" grep -q "name: model.moe" "$o/plan.yaml"
run "$bin/moe-run" "$o/model.moe" --plan "$o/plan.yaml" -p 'Once upon a time' -n 20 --temp 0
expect_exit 0 "the plan runs again"
first=$(cat "$out")
run "$bin/moe-run" "$o/model.moe" -p 'Once upon a time' -n 20 --temp 0
expect_stdout "$first" "with the tokens of a run without a plan"
run "$bin/moe-profile" -q "$o/model.moe" --text "$tmp/calib.txt" --max-tokens 32 -o "$tmp/s.yaml" --trace "$tmp/t.trace"
check "shards make the bytes of one run" sh -c "cmp '$tmp/s.yaml' '$o/statistics.yaml' && cmp '$tmp/t.trace' '$o/text.trace'"

pipeline
expect_exit 0 "with everything there"
expect_stderr_lines 0 "... nothing is done"
cp "$o/statistics.yaml" "$tmp/before"
rm "$o/shards/trace-2" "$o/statistics.yaml" "$o/run.json"
pipeline
expect_exit 0 "a lost result"
check "... is made again, and nothing that it does not need" [ "$(grep -c 'took' "$err")" = 1 ]
rm "$o/plan.yaml" "$o/run.json"
pipeline --device-profile "$o/device.yaml"
expect_exit 0 "a lost shard that a lost plan needs"
check "... is made again, with all after it" [ "$(grep -c 'took' "$err")" = 4 ]
check "... the same bytes" cmp "$o/statistics.yaml" "$tmp/before"
pipeline --memory 25M
expect_exit 0 "another budget"
check "... the plan and the run are made again" [ "$(grep -c 'took' "$err")" = 2 ]
expect_stdout_like "Plan for model.moe in 25.00 MiB*" "... for it"
pipeline --bits 4,2
error_line 2 "*was begun with --bits 4, not --bits 4,2: name another directory*" "other bits in the same directory"
mv "$o/options" "$tmp/options"
echo 'x;touch gone' >"$o/options"
pipeline
error_line 3 "*/options: 'x;touch' is none of its options*" "damaged options"
check "... which are not run" [ ! -e gone ]

o=$tmp/mixed
begin --bits 4,2 --memory 26M --importance proxy -q --device-profile "$tmp/a b/device.yaml" --dry-run
expect_stdout_like "*moe-calibrate*--importance proxy*--tolerance 2%*moe-quantize*--map*" "bits are chosen"
begin --bits 4,2 --memory 1M --importance proxy -q --device-profile "$tmp/a b/device.yaml"
expect_exit 4 "a budget too small is the planner's error"
expect_stderr_like "moe-pipeline: plan: moe-plan: *the smallest that works is*" "... in its words"
check "... with a mixed pack before it" [ -s "$o/model.moe" ]
o=$tmp/none
pipeline "$tmp/nothing" --text "$tmp/calib.txt" --memory 26M
expect_exit 1 "a checkpoint that is not there"
expect_stderr_like "moe-pipeline: quantize: moe-quantize: *nothing*" "... is named"
run "$bin/moe-pipeline" "$checkpoint" --memory 1G --text x
error_line 2 "moe-pipeline: no directory given*" "no directory"
o=$tmp/other
pipeline --slurm
error_line 2 "*give one checkpoint or pack*" "nothing to begin with"

# Without GNU parallel: a PATH that has all other programs.
mkdir "$tmp/path"
echo "$PATH" | tr : '\n' | while IFS= read -r place; do
    find "$place/" -mindepth 1 -maxdepth 1 ! -name parallel -exec ln -s -t "$tmp/path" {} + 2>/dev/null # the first of a name
done
o=$tmp/plain
PATH="$tmp/path" begin --bits 4 --memory 26M --shards 4 --jobs 2 --threads 1 --device-profile "$tmp/a b/device.yaml"
expect_exit 0 "two jobs without GNU parallel"
check "... which it does not find" sh -c "! PATH='$tmp/path' command -v parallel >/dev/null"
check "... take each task once" [ "$(grep -c 'profile:. took' "$err")" = 4 ]
check "... for the same bytes" sh -c "cmp '$o/statistics.yaml' '$tmp/s.yaml' && cmp '$o/text.trace' '$tmp/t.trace'"
check "... and all have its threads, the plan and the run as well" sh -c "! grep -h 'moe-.* -q' '$o'/log/profile-* '$o'/log/plan '$o'/log/run | grep -qv -e ' -t 1 '"
rm "$o/shards/trace-3" "$o/text.trace" "$o/plan.yaml" "$o/run.json"
PATH="$tmp/path" pipeline --jobs 2
expect_exit 0 "a lost shard, likewise"
check "... is made again alone" [ "$(grep -c 'profile:. took' "$err")" = 1 ]
o=$tmp/failing
PATH="$tmp/path" pipeline "$checkpoint" --text "$tmp/calib.txt" --text "$tmp/no.txt" --memory 26M --bits 4 --shards 2 --jobs 2 \
    --device-profile "$tmp/a b/device.yaml"
expect_exit 1 "a task that fails beside another"
expect_stderr_like "*moe-pipeline: profile:?: moe-profile: *no.txt*" "... is named"

# Pairs, for a model with an encoder; importances of the experts that decide alone.
head -n 8 tests/data/pairs.calib.jsonl >"$tmp/c.jsonl"
head -n 4 tests/data/pairs.valid.jsonl >"$tmp/v.jsonl"
o=$tmp/pairs
pipeline tests/models/tiny-switch --pairs "$tmp/c.jsonl" --check "$tmp/v.jsonl" --max-tokens 32 --bits 4,2 --memory 40M \
    --tolerance 50% --importance adaptive --device-profile "$tmp/a b/device.yaml"
expect_exit 0 "pairs"
check "... are measured" grep -q "moe-profile.*--pairs" "$o/log/profile-1"
check "... and judged by" grep -q "moe-run.*v.jsonl" "$o/log/run"
check "... with importances that say what was measured" grep -q "adaptive: {measured: " "$o/map.yaml"
o=$tmp/neither
pipeline tests/models/tiny-switch --text "$tmp/calib.txt" --pairs "$tmp/c.jsonl" --memory 40M
error_line 2 "*--text and --pairs exclude each other*" "pairs and texts"

pack
run "$bin/moe-run" "$tiny" --plan "$tmp/a b/plan.yaml" -p 'x' -n 1 --strategy lru
error_line 2 "moe-run: option --plan: *" "a plan and a strategy"
"$bin/moe-quantize" -q --experts 8 -o "$tmp/other.moe" "$checkpoint"
run "$bin/moe-run" "$tmp/other.moe" --plan "$tmp/a b/plan.yaml" -p 'x' -n 1
error_line 3 "moe-run: the plan was made for another pack, model.moe, *" "another pack's plan"
finish
