# moe-pipeline: from a checkpoint to a planned run, again with what is missing or changed, and what it refuses.
. tests/cli/lib.sh
cut=$tmp/cut # tasks are judged here, not models
"$BUILD/tests/tools/widen" --layers 3 "$checkpoint" "$cut"
head -c 600 tests/data/math.calib.txt >"$tmp/calib.txt"
head -c 700 tests/data/math.valid.txt >"$tmp/valid.txt"
o="$tmp/a b" # a directory with a space in its name
pipeline() { run "$bin/moe-pipeline" -o "$o" "$@"; }
made_again() { # TASKS: in any order; with "run?" that may be among them or not
    made=$(sed -n 's/.*: \([a-z:0-9]*\) took .*/\1/p' "$err")
    case $1 in *' run?') made=$(echo "$made" | grep -vx run) ;; esac
    [ "$(echo "$made" | sort)" = "$(echo "${1% run?}" | tr ' ' '\n' | sort)" ]
}
begin() { pipeline "$cut" --text "$tmp/calib.txt" --check "$tmp/valid.txt" --max-tokens 32 "$@"; }

begin --bits 4 --memory 20M --shards 3 --dry-run
expect_exit 0 "--dry-run"
expect_stdout_like "# quantize: 1 of 1 to do*moe-quantize*# profile: 3 of 3 to do*--shard 3/3*moe-plan*moe-run*" "... prints the commands"
check "... and makes nothing" [ ! -e "$o" ]
begin --bits 4 --memory 20M --shards 3 --jobs 2
expect_exit 0 "a pipeline runs"
expect_stdout_like "Plan for model.moe in 20M: strategy [a-z]*Expected * tokens/s*measured*moe-run*--plan*" "... and says the strategy, and what was expected and measured"
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
expect_stderr_like "*statistics.yaml is missing: statistics made again*run.json is missing: run made again*" "... is named"
check "... and made again with the shard that it needs, and nothing else" made_again "profile:2 statistics run"
check "... the same bytes" cmp "$o/statistics.yaml" "$tmp/before"
rm "$o/shards/trace-3" "$o/plan.yaml"
pipeline
expect_stderr_like "moe-pipeline: plan.yaml is missing: plan made again*" "a lost plan"
check "... is made again without a lost shard, which was merged" made_again "plan run?" # which is for the same plan, or for another
# From here on plans have one strategy, which takes less time.
pipeline --memory 21M --device-profile "$o/device.yaml" --strategy lru
expect_exit 0 "another budget"
expect_stderr_like "moe-pipeline: option --memory is 21M, was 20M*: plan, run made again*" "... is named"
check "... the plan and the run are made again" made_again "plan run"
expect_stdout_like "Plan for model.moe in 21M: strategy lru*" "... for it, with the strategy that was asked for"

# What was read is the same, changed, more or gone.
touch "$tmp/calib.txt" "$tmp/valid.txt"
pipeline
expect_stderr_lines 0 "files with another time and the same bytes are the same"
head -c 600 tests/data/code.calib.txt >"$tmp/b.txt"
pipeline --text "$tmp/calib.txt" --text "$tmp/b.txt"
expect_stderr_like "moe-pipeline: b.txt is new: profile, statistics, trace, plan, run made again*" "one more text"
check "... is measured by itself, after the lost shard" made_again "profile:3 profile:4 profile:5 profile:6 statistics trace plan run?"
run "$bin/moe-profile" -q "$o/model.moe" --text "$tmp/b.txt" --max-tokens 32 -o "$tmp/s.b.yaml" --trace "$tmp/t.b.trace"
"$bin/moe-profile" --merge "$tmp/s.yaml" "$tmp/s.b.yaml" -o "$tmp/s.both.yaml"
"$bin/moe-profile" --merge "$tmp/t.trace" "$tmp/t.b.trace" -o "$tmp/t.both.trace"
check "... and added to the others" sh -c "cmp '$tmp/s.both.yaml' '$o/statistics.yaml' && cmp '$tmp/t.both.trace' '$o/text.trace'"
head -c 900 tests/data/code.calib.txt >"$tmp/b.txt"
pipeline --dry-run
expect_stdout_like "# b.txt changed: profile, statistics, trace, plan, run made again*--text $tmp/b.txt*" "a text that grew: --dry-run says so"
pipeline
check "... and it alone is measured again" made_again "profile:4 profile:5 profile:6 statistics trace plan run?"
head -c 800 tests/data/math.valid.txt >"$tmp/valid.txt"
pipeline
expect_stderr_like "moe-pipeline: valid.txt changed: run made again*" "another text to judge by"
check "... is judged by, and no more" made_again "run"
cp "$o/device.yaml" "$tmp/other.yaml"
pipeline --device-profile "$tmp/other.yaml"
expect_stderr_lines 0 "the same profile of a machine under another name"
sed -i 's/^name: .*/name: another/' "$tmp/other.yaml"
pipeline
expect_stderr_like "moe-pipeline: other.yaml changed: plan, run made again*" "another profile of a machine"
rm "$tmp/b.txt"
pipeline -q
expect_exit 0 "a text that is gone is not missed"
pipeline --max-tokens 33
error_line 1 "moe-pipeline: --text $tmp/b.txt: there is no such file, or it cannot be read" "... until it is to be read"
sed -i 's/"tokens_per_s": .*/"tokens_per_s": 1,/; s/"stall_s": .*/"stall_s": 999,/' "$o/run.json"
pipeline
expect_stdout_like "*measured 1.0*Slower than expected, most of all by reading experts: * a token instead of *other.yaml*" \
    "a run much slower than its plan comes with a reason"
want=$(cat "$out")
mkdir "$tmp/watched"
printf '#!/bin/sh\n[ "${LC_ALL:-}${LC_NUMERIC:-}" = C ] || : >"%s"\nexec "%s" "$@"\n' "$tmp/commas" "$(command -v awk)" >"$tmp/watched/awk"
chmod +x "$tmp/watched/awk"
run env PATH="$tmp/watched:$PATH" LC_ALL=de_DE.UTF-8 "$bin/moe-pipeline" -o "$o"
expect_stdout "$want" "in a language whose numbers have commas it says the same"
check "... as awk is told" [ ! -e "$tmp/commas" ]

# What takes long says how far it is.
mkdir "$tmp/slow"
ln -s "$(realpath "$bin")"/* "$tmp/slow"
rm "$tmp/slow/moe-plan"
{
    printf '#!/bin/sh\necho "moe-plan: searching: 12%%, 3 min left" >&2\n'
    printf 'for _ in $(seq 600); do grep -q searching "%s" && break; sleep 0.1; done\n' "$err" # until that was passed on
    printf 'exec "%s" "$@"\n' "$(realpath "$bin")/moe-plan"
} >"$tmp/slow/moe-plan"
chmod +x "$tmp/slow/moe-plan"
rm "$o/plan.yaml"
run "$tmp/slow/moe-pipeline" -o "$o"
expect_stderr_like "*plan made again*moe-pipeline: plan: searching: 12%, 3 min left*plan took * s*" "a stage that takes long says how far it is"
check "... and nothing of the pipeline is left" sh -c "! pgrep -f '$tmp/[s]low/moe-pipeline'"
check "... nor what it slept by" [ -z "$(pgrep -P 1 -x sleep | while read -r pid; do
    [ "$(readlink "/proc/$pid/cwd")" != "$PWD" ] || tr '\0' ' ' <"/proc/$pid/cmdline" | grep -x 'sleep [58] '; done)" ]

# A pipeline that was killed while a stage runs: the next waits for that, and goes on.
o=$tmp/killed
pipeline_in_background() { exec "$bin/moe-pipeline" -o "$o" "$@"; }
cat tests/data/*.calib.txt >"$tmp/long.txt" # long to measure, not to plan
pipeline_in_background "$cut" --text "$tmp/long.txt" --max-tokens 64 --bits 4 --memory 20M --strategy lru --device-profile "$tmp/other.yaml" -q >/dev/null 2>&1 &
killed=$!
for pause in $(seq 6000); do
    [ ! -e "$o/shards/statistics-1.yaml.part" ] || break
    sleep 0.01
done
kill -9 "$killed"
wait "$killed" 2>/dev/null
pipeline --memory 22M
expect_exit 0 "a pipeline after one that was killed"
expect_stderr_like "moe-pipeline: the moe-pipeline before this one (pid $killed) is gone, but what it started still works: pid * (moe-profile); waiting for it*" \
    "... says who still works"
check "... waits for it, and goes on" made_again "statistics trace plan run"
"$bin/moe-pipeline" -o "$o" --memory 23M >/dev/null 2>"$tmp/first" &
first=$!
for pause in $(seq 100); do
    [ "$(cat "$o/lock")" != "$first" ] || break
    sleep 0.1
done
pipeline
error_line 1 "moe-pipeline: $o: another moe-pipeline works on it (pid $first)" "two pipelines at a time"
wait "$first"
o="$tmp/a b"

# Another model in its place.
cp -r "$cut" "$tmp/model"
o=$tmp/moved
pipeline "$tmp/model" --text "$tmp/calib.txt" --max-tokens 32 --bits 4 --memory 20M --strategy lru --device-profile "$tmp/other.yaml" -q
sed -i 's/"rms_norm_eps": .*/"rms_norm_eps": 1e-4,/' "$tmp/model/config.json"
pipeline
expect_stderr_like "moe-pipeline: config.json changed: quantize, profile, statistics, trace, plan, run made again*" "a changed checkpoint"
check "... is quantized again, and all after it" made_again "quantize profile:1 statistics trace plan run"
if [ "$(id -u)" != 0 ]; then # root reads all
    chmod 000 "$tmp/model/config.json" "$tmp/calib.txt"
    pipeline -q
    error_line 1 "moe-pipeline: $tmp/model/config.json: there is no such file, or it cannot be read" "a file of the checkpoint that cannot be read"
    check "... leaves the pack" [ -s "$o/model.moe" ]
    chmod 644 "$tmp/model/config.json"
    pipeline -q
    error_line 1 "moe-pipeline: --text $tmp/calib.txt: there is no such file, or it cannot be read" "a text that cannot be read"
    chmod 644 "$tmp/calib.txt"
    chmod a-w "$o/lock"
    pipeline -q
    error_line 1 "moe-pipeline: $o/lock: cannot be written" "a directory of another user"
    chmod u+w "$o/lock"
    pipeline
    expect_stderr_lines 0 "with their rights back they are the same"
fi
rm -r "$tmp/model"
pipeline
expect_exit 0 "a checkpoint that went after it was quantized is not missed"
expect_stderr_lines 0 "... nothing is done"
o="$tmp/a b"
cp "$o/options" "$tmp/options"
pipeline --bits 4,2
error_line 2 "*was begun with --bits 4, not --bits 4,2: name another directory*" "other bits in the same directory"
echo 'x;touch gone' >"$o/options"
pipeline
error_line 3 "*/options: 'x;touch' is none of its options*" "damaged options"
check "... which are not run" [ ! -e gone ]

o=$tmp/mixed
begin --bits 4,2 --memory 20M --importance proxy -q --device-profile "$tmp/a b/device.yaml" --dry-run
expect_stdout_like "*moe-calibrate*--importance proxy*--tolerance 2%*moe-quantize*--map*" "bits are chosen"
begin --bits 4,2 --memory 1M --strategy lru --importance proxy -q --device-profile "$tmp/a b/device.yaml"
expect_exit 4 "a budget too small is the planner's error"
expect_stderr_like "moe-pipeline: plan: moe-plan: *the smallest that works is*" "... in its words"
check "... with a mixed pack before it" [ -s "$o/model.moe" ]
cp "$o/map.yaml" "$tmp/map.yaml"
rm "$o/map.yaml"
pipeline --memory 20M
expect_stderr_like "*map.yaml is missing: choose made again*" "a lost map"
check "... is made again" cmp "$o/map.yaml" "$tmp/map.yaml"
pipeline --tolerance 9%
expect_stderr_like "moe-pipeline: option --tolerance is 9%, was 2%: choose, mix, plan, run made again*" "another tolerance"
o=$tmp/none
pipeline "$tmp/nothing" --text "$tmp/calib.txt" --memory 20M
expect_exit 1 "a checkpoint that is not there"
expect_stderr_like "moe-pipeline: $tmp/nothing: there is no such file*" "... is named"
pipeline "$cut" --text "$tmp/calib.txt" --text "$tmp/no.txt" --memory 20M
error_line 1 "moe-pipeline: --text $tmp/no.txt: there is no such file*" "a text that is not there is noticed at once"
check "... before anything is made" [ ! -e "$o" ]
for word in "memory 4X" "memory 0" "task-memory 3Z" "tolerance abc" "strategy x" "bits 5x" "max-tokens 1"; do
    pipeline "$cut" --text "$tmp/calib.txt" --memory 20M "--${word% *}" "${word#* }"
    error_line 2 "moe-pipeline: option --${word% *}: '${word#* }' is not a * (see moe-pipeline --help)" "--$word is noticed at once"
done
: >"$tmp/empty.txt"
pipeline "$cut" --text "$tmp/calib.txt" --text "$tmp/empty.txt" --memory 20M
error_line 3 "moe-pipeline: --text $tmp/empty.txt: is empty" "an empty text"
pipeline "$cut" --text "$tmp/calib.txt" --check "$tmp" --memory 20M
error_line 3 "moe-pipeline: --check $tmp: is a directory, a file was expected" "a directory to judge by"
check "... before anything is made" [ ! -e "$o" ]
cp "$tmp/calib.txt" "$tmp/copy.txt"
pipeline "$cut" --text "$tmp/calib.txt" --text "$tmp/copy.txt" --memory 20M
error_line 2 "moe-pipeline: --text $tmp/copy.txt: is the same text as $tmp/calib.txt, name one of them *" "one text twice"
pipeline --text "$tmp/calib.txt"
error_line 2 "*give one checkpoint or pack*" "... nothing of it is kept"
run "$bin/moe-pipeline" "$cut" --memory 1G --text x
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
PATH="$tmp/path" begin --bits 4 --memory 20M --strategy lru --shards 4 --jobs 2 --threads 1 --device-profile "$tmp/a b/device.yaml"
expect_exit 0 "two jobs without GNU parallel"
check "... which it does not find" sh -c "! PATH='$tmp/path' command -v parallel >/dev/null"
check "... take each task once" [ "$(grep -c 'profile:. took' "$err")" = 4 ]
check "... for the same bytes" sh -c "cmp '$o/statistics.yaml' '$tmp/s.yaml' && cmp '$o/text.trace' '$tmp/t.trace'"
check "... and all have its threads, the plan and the run as well" sh -c "! grep -h '^[$] moe-' '$o'/log/profile-* '$o'/log/plan '$o'/log/run | grep -qv -e ' -t 1 '"
rm "$o/shards/trace-3" "$o/text.trace" "$o/plan.yaml" "$o/run.json"
PATH="$tmp/path" pipeline --jobs 2
expect_exit 0 "a lost shard, likewise"
check "... is made again alone" [ "$(grep -c 'profile:. took' "$err")" = 1 ]
o=$tmp/failing
echo >"$tmp/no.txt"
PATH="$tmp/path" pipeline "$cut" --text "$tmp/calib.txt" --text "$tmp/no.txt" --memory 20M --bits 4 --shards 2 --jobs 2 \
    --device-profile "$tmp/a b/device.yaml"
expect_exit 3 "a task that fails beside another"
expect_stderr_like "*moe-pipeline: profile:?: moe-profile: *no.txt*" "... is named"

# Pairs, for a model with an encoder; importances of the experts that decide alone.
head -n 8 tests/data/pairs.calib.jsonl >"$tmp/c.jsonl"
head -n 4 tests/data/pairs.valid.jsonl >"$tmp/v.jsonl"
o=$tmp/pairs
pipeline "$models/tiny-switch" --pairs "$tmp/c.jsonl" --check "$tmp/v.jsonl" --max-tokens 32 --bits 4,2 --memory 40M \
    --tolerance 50% --importance adaptive --strategy lru --device-profile "$tmp/a b/device.yaml"
expect_exit 0 "pairs"
check "... are measured" grep -q "moe-profile.*--pairs" "$o/log/profile-1"
check "... and judged by" grep -q "moe-run.*v.jsonl" "$o/log/run"
check "... with importances that say what was measured" grep -q "adaptive: {measured: " "$o/map.yaml"
o=$tmp/neither
pipeline "$models/tiny-switch" --text "$tmp/calib.txt" --pairs "$tmp/c.jsonl" --memory 40M
error_line 2 "*--text and --pairs exclude each other*" "pairs and texts"

pack
run "$bin/moe-run" "$tiny" --plan "$tmp/a b/plan.yaml" -p 'x' -n 1 --strategy lru
error_line 2 "moe-run: options --plan and --strategy exclude each other*" "a plan and a strategy"
"$bin/moe-quantize" -q --method rtn --experts 8 -o "$tmp/other.moe" "$cut"
run "$bin/moe-run" "$tmp/other.moe" --plan "$tmp/a b/plan.yaml" -p 'x' -n 1
error_line 3 "moe-run: the plan was made for another pack, model.moe, *" "another pack's plan"
cp "$tmp/calib.txt" "$tmp/c\\ta.txt"
o=$tmp/single
pipeline "$tmp/other.moe" --text "$tmp/c\\ta.txt" --memory 40M --dry-run
expect_exit 0 "a pack of one bitwidth"
check "... has nothing to choose" sh -c '! grep -q calibrate "$1"' sh "$out"
check "... and a text whose name has a backslash keeps it" grep -qF -- "--text '$tmp/c\\ta.txt'" "$out"
finish
