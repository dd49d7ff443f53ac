# moe-profile: what scripts rely on. Shards and resuming give the very file of one run.
. tests/cli/lib.sh
run "$bin/moe-profile" --help
expect_exit 0 "--help exits with 0"
check "--help fits 80 columns" sh -c "! grep -q '.\{81\}' '$out'"
run "$bin/moe-profile"
error_line 2 'moe-profile: nothing to do*(see moe-profile --help)' "nothing to do"
pack
run "$bin/moe-profile" "$tiny" --text tests/data/math.calib.txt
error_line 2 'moe-profile: no output given*' "no output"
run "$bin/moe-profile" "$tiny" --text tests/data/math.calib.txt -o "$tmp/x" --shard 3/2
error_line 2 "moe-profile: option --shard: '3/2' is not a shard*" "a shard beyond the last"
run "$bin/moe-profile" "$tiny" --text "$tmp/none" -o "$tmp/x"
error_line 1 "moe-profile: $tmp/none*" "a text that is not there"
check "... leaves no file" [ ! -e "$tmp/x" ]
: >"$tmp/empty"
run "$bin/moe-profile" "$tiny" --text "$tmp/empty" -o "$tmp/x"
error_line 3 "moe-profile: $tmp/empty: has no text to profile" "an empty text"
run "$bin/moe-profile" "$tiny" --text tests/data/math.calib.txt --text "$tmp/empty" -o "$tmp/x"
error_line 3 "moe-profile: $tmp/empty: has no text to profile" "... beside another one"

# A text of 10 documents in windows of 48 tokens, in 7 shards side by side, as the man page's recipe does it.
awk '/^<\|endoftext\|>$/ { n++ } n < 5 { print }' tests/data/math.valid.txt >"$tmp/a.txt"
awk '/^<\|endoftext\|>$/ { n++ } n < 5 { print }' tests/data/stories.valid.txt >"$tmp/b.txt"
tokens_of() { "$bin/moe-profile" --show --json "$1" | sed 's/.*"tokens":\([0-9]*\),"moe_layers.*/\1/'; }
peak() { sed -n 's/.*peak of the process \([0-9]*\) bytes.*/\1/p' "$err"; }
loudly() { "$bin/moe-profile" -t 1 "$tiny" --text "$tmp/a.txt" --text "$tmp/b.txt" --max-tokens 48 "$@"; }
profile() { loudly -q "$@"; }
run profile -o "$tmp/whole.yaml"
expect_exit 0 "a text is profiled"
check "quietly" [ ! -s "$err" ]
check "no partial file is left" [ ! -e "$tmp/whole.yaml.part" ]
seq 7 | xargs -P 2 -I SHARD "$bin/moe-profile" -q -t 1 "$tiny" --text "$tmp/a.txt" --text "$tmp/b.txt" \
    --max-tokens 48 --shard SHARD/7 -o "$tmp/part.SHARD.yaml"
check "no token of a long document is left out" [ "$(tokens_of "$tmp/whole.yaml")" = 1845 ]
run "$bin/moe-profile" "$tiny" --text "$tmp/a.txt" --text "$tmp/b.txt" --max-tokens 48 --max-windows 1 -o "$tmp/first.yaml"
expect_stderr_like "moe-profile: 1333 of 1803 tokens (73.9%) of the texts were left out, in 10 documents: --max-windows N takes more of each" \
    "--max-windows 1 says in numbers what it leaves out"
check "... and has one window of each document" grep -q "^ *documents: 10$" "$tmp/first.yaml"
run "$bin/moe-profile" --merge "$tmp"/part.*.yaml -o "$tmp/merged.yaml"
expect_exit 0 "shards are merged"
check "... into the file of one run" cmp "$tmp/whole.yaml" "$tmp/merged.yaml"
merge() { "$bin/moe-profile" --merge "$@"; }
part() { for i; do printf '%s ' "$tmp/part.$i.yaml"; done; }
run merge "$tmp"/part.*.yaml "$tmp/part.3.yaml" -o "$tmp/x"
error_line 2 "moe-profile: $tmp/part.3.yaml: would count twice*" "a shard that occurs twice"
# shellcheck disable=SC2046 # several names are meant
run merge $(part 7 2 4 1) -o "$tmp/x"
error_line 2 'moe-profile: shards 3, 5, 6 of 7 are missing (--partial *' "shards that are missing"
check "... leave no file" [ ! -e "$tmp/x" ]
# shellcheck disable=SC2046
run merge --partial $(part 7 2 4 1) -o "$tmp/some.yaml"
expect_exit 0 "--partial merges what is there"
run "$bin/moe-profile" --show "$tmp/some.yaml"
expect_stdout_like '*
Holds shards 1, 2, 4, 7 of 7 of * documents*' "... and says so"
# shellcheck disable=SC2046
run merge $(part 6 5) "$tmp/some.yaml" "$tmp/part.3.yaml" -o "$tmp/again.yaml"
check "what is merged in part is merged further" cmp "$tmp/whole.yaml" "$tmp/again.yaml"
run merge "$tmp/some.yaml" "$tmp/part.4.yaml" --partial -o "$tmp/x"
error_line 2 "*: would count twice: shard 4 of 7 is there already" "... but no shard of it again"
run merge "$tmp/whole.yaml" "$tmp/again.yaml" -o "$tmp/x"
error_line 2 "moe-profile: $tmp/again.yaml: would count twice: all of it*" "the same texts twice"
slurm() { # ID COUNT MIN MAX
    SLURM_ARRAY_TASK_ID=$1 SLURM_ARRAY_TASK_COUNT=$2 SLURM_ARRAY_TASK_MIN=$3 SLURM_ARRAY_TASK_MAX=$4 \
        profile --shard -o "$tmp/task.yaml"
}
run slurm 12 7 10 16
check "--shard alone is the place in a job array" cmp "$tmp/task.yaml" "$tmp/part.3.yaml"
run slurm 3 2 1 3
error_line 2 "moe-profile: option --shard without a value is for a job array without gaps: *" "... which has no gaps"
run profile --shard 2/3 -o "$tmp/third.yaml"
run merge "$tmp/part.1.yaml" "$tmp/third.yaml" -o "$tmp/x"
error_line 2 "moe-profile: $tmp/third.yaml: was cut into 3 shards, those before into 7" "another N"
run profile --shard 30/30 -o "$tmp/none.yaml"
expect_exit 0 "a shard without documents"
run merge "$tmp/none.yaml" -o "$tmp/x"
error_line 2 'moe-profile: shards 1-29 of 30 are missing*' "... is one of the shards"
swapped() {
    "$bin/moe-profile" -q -t 1 "$tiny" --text "$tmp/b.txt" --text "$tmp/a.txt" --max-tokens 48 "$@"
}
run swapped --shard 2/7 -o "$tmp/swapped.yaml"
run merge "$tmp/part.1.yaml" "$tmp/swapped.yaml" -o "$tmp/x"
error_line 2 "*: was made from other texts than*, or the same in another order*" "texts in another order"
run profile --path-stats "$tmp/whole.yaml" --shard 2/7 -o "$tmp/paths.yaml"
run merge "$tmp/part.1.yaml" "$tmp/paths.yaml" -o "$tmp/x"
error_line 2 "*: was made from the texts of $tmp/part.1.yaml with other options" "another --path-stats"
"$bin/moe-quantize" -q --method rtn -o "$tmp/other.moe" --experts 8 "$checkpoint"
run "$bin/moe-profile" -q -t 1 "$tmp/other.moe" --text "$tmp/a.txt" --text "$tmp/b.txt" \
    --max-tokens 48 --shard 2/7 -o "$tmp/pack.yaml"
run merge "$tmp/part.1.yaml" "$tmp/pack.yaml" -o "$tmp/x"
error_line 2 "*: was made from the texts of $tmp/part.1.yaml with another pack" "another pack"

# Whole runs over different texts add up, whatever the order; shards of them do not.
only() { text=$1; shift; "$bin/moe-profile" -q "$tiny" --text "$text" --max-tokens 48 "$@"; }
run only "$tmp/a.txt" -o "$tmp/a.yaml"
run only "$tmp/b.txt" -o "$tmp/b.yaml"
run only "$tmp/b.txt" --shard 1/2 -o "$tmp/b1.yaml"
run merge "$tmp/a.yaml" "$tmp/b.yaml" -o "$tmp/ab.yaml"
expect_exit 0 "statistics of different texts add up"
run merge "$tmp/b.yaml" "$tmp/a.yaml" -o "$tmp/ba.yaml"
check "... in any order" cmp "$tmp/ab.yaml" "$tmp/ba.yaml"
check "... to the totals of one run" \
    [ "$(sed -n '/^totals/,/^layers/p' "$tmp/whole.yaml")" = "$(sed -n '/^totals/,/^layers/p' "$tmp/ab.yaml")" ]
run merge "$tmp/ab.yaml" "$tmp/a.yaml" -o "$tmp/x"
error_line 2 "*: would count twice*" "... and know which they are"
run merge --partial "$tmp/a.yaml" "$tmp/b1.yaml" -o "$tmp/x"
error_line 2 "moe-profile: $tmp/b1.yaml: is a shard of other texts than $tmp/a.yaml*" "shards do not"
sed '/^origins:/,/shards:/d' "$tmp/a.yaml" >"$tmp/silent.yaml"
run merge "$tmp/b.yaml" "$tmp/silent.yaml" -o "$tmp/x"
error_line 3 "moe-profile: $tmp/silent.yaml: line * column *: 'origins' is missing" "a file that does not say what it holds"
sed 's/held: \[4\]/held: [4, 4]/' "$tmp/part.4.yaml" >"$tmp/twice.yaml"
run "$bin/moe-profile" --show "$tmp/twice.yaml"
error_line 3 "moe-profile: $tmp/twice.yaml: line * column *: 'held' must be rising" "a damaged list of shards"
run merge "$tmp/a.yaml" -o "$tmp/x" --resume --partial --show
error_line 2 "*exclude each other*" "two things at once"
run "$bin/moe-profile" --show "$tmp/a.yaml" --partial
error_line 2 "moe-profile: options --show and --partial exclude each other*" "--partial alone"
run profile -t 2 -o "$tmp/threads.yaml"
check "two threads give the same file" cmp "$tmp/whole.yaml" "$tmp/threads.yaml"
floor=$(smallest_memory profile -o "$tmp/x")
check "too small a memory is refused with the least that works" [ -n "$floor" ]
budget=$((floor + 6))
run loudly -v --memory "${budget}M" -o "$tmp/small.yaml"
check "a small memory gives the same file" cmp "$tmp/whole.yaml" "$tmp/small.yaml"
check "... and the peak stays below it" [ "$(peak)" -le $((budget << 20)) ]
run "$bin/moe-profile" -q "$tiny" --text "$tmp/a.txt" --max-tokens 64 -o "$tmp/other.yaml"
run "$bin/moe-profile" --merge "$tmp/whole.yaml" "$tmp/other.yaml" -o "$tmp/x"
error_line 2 "moe-profile: $tmp/other.yaml: statistics with other settings*" "other settings are not merged"

# Interrupted by SIGINT: what is done is kept, --resume goes on. Scalar code is slow enough to be
# interrupted in time, and gives the same numbers.
head -c 4000 tests/data/code.valid.txt | cat "$tmp/a.txt" - >"$tmp/long.txt"
long() { "$bin/moe-profile" -q "$tiny" --text "$tmp/long.txt" --max-tokens 32 "$@"; }
run "$bin/moe-profile" -q -t 2 "$tiny" --text "$tmp/long.txt" --max-tokens 32 -o "$tmp/long.yaml"
expect_exit 0 "a longer text"
interrupt "$tmp/stopped.yaml.part" "$bin/moe-profile" -t 1 --cpu scalar "$tiny" \
    --text "$tmp/long.txt" --max-tokens 32 -o "$tmp/stopped.yaml"
expect_exit 1 "SIGINT ends it"
check "... with what is done in a partial file" [ -s "$tmp/stopped.yaml.part" ]
check "... and no statistics" [ ! -e "$tmp/stopped.yaml" ]
cp "$tmp/stopped.yaml.part" "$tmp/stopped.part"
expect_stderr_like '*--resume continues from there*stopped*' "... and says how to go on"
run long --resume -o "$tmp/stopped.yaml"
expect_exit 0 "--resume"
check "... gives the file of one run" cmp "$tmp/long.yaml" "$tmp/stopped.yaml"
check "... and removes the partial file" [ ! -e "$tmp/stopped.yaml.part" ]
cp "$tmp/whole.yaml" "$tmp/wrong.yaml.part"
run "$bin/moe-profile" -q "$tiny" --text "$tmp/b.txt" --text "$tmp/long.txt" \
    --max-tokens 48 --resume -o "$tmp/wrong.yaml"
error_line 2 "moe-profile: $tmp/wrong.yaml.part: was made from other texts*" "another text's partial file"
cp "$tmp/part.2.yaml" "$tmp/wrong.yaml.part"
run profile --shard 3/7 --resume -o "$tmp/wrong.yaml"
error_line 2 "moe-profile: $tmp/wrong.yaml.part: was made from another shard*" "another shard's"
cp "$tmp/stopped.part" "$tmp/left.yaml"
run merge "$tmp/left.yaml" --partial -o "$tmp/x"
error_line 2 "moe-profile: $tmp/left.yaml: was left by an interrupted run*" "a partial file is not merged"

run "$bin/moe-profile" --show "$tmp/whole.yaml"
expect_exit 0 "--show"
check "... names documents, tokens and predictors" \
    sh -c "grep -q '42 documents' '$out' && grep -q 'gate-1' '$out' && grep -q residual-3 '$out'"
check "... says what tokens predict" grep -q '^  token  *[0-9]' "$out"
check "... fits 100 columns" sh -c "! grep -q '.\{101\}' '$out'"
run "$bin/moe-profile" --show --json "$tmp/whole.yaml"
expect_stdout_like '{"documents":42,"tokens":1845,*"layers":\[*\]}' "--json is an object"
run profile --path-stats "$tmp/long.yaml" -o "$tmp/paths.yaml"
run "$bin/moe-profile" --show "$tmp/paths.yaml"
check "--path-stats adds path predictions" grep -q 'path-rank1  *[0-9]' "$out"

# Damage.
head -c 5000 "$tmp/whole.yaml" >"$tmp/cut.yaml"
run "$bin/moe-profile" --show "$tmp/cut.yaml"
error_line 3 "moe-profile: $tmp/cut.yaml: *" "statistics cut short"
sed 's/^version: 1/version: 9/' "$tmp/whole.yaml" >"$tmp/newer.yaml"
run "$bin/moe-profile" --show "$tmp/newer.yaml"
error_line 3 "moe-profile: $tmp/newer.yaml: moe-stats version 9*" "statistics of a newer version"
sed 's/^totals:/surprise: 1\ntotals:/' "$tmp/whole.yaml" >"$tmp/unknown.yaml"
run "$bin/moe-profile" --show "$tmp/unknown.yaml"
error_line 3 "moe-profile: $tmp/unknown.yaml: line *: unknown key 'surprise'" "an unknown key"
run "$bin/moe-profile" --show "$tiny"
error_line 3 "moe-profile: $tiny: *" "a pack is no statistics"
finish
