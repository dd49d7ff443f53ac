# moe-profile's traces: beside the statistics, continued, imported, shown.
. tests/cli/lib.sh
pack
awk '/^<\|endoftext\|>$/ { n++ } n < 8 { print }' tests/data/math.valid.txt >"$tmp/a.txt"
profile() { "$bin/moe-profile" -q "$tiny" --text "$tmp/a.txt" --max-tokens 64 --max-windows 1 "$@"; }
run profile -o "$tmp/plain.yaml"
expect_exit 0 "a text is profiled"
run profile -o "$tmp/s.yaml" --trace "$tmp/a.trace"
expect_exit 0 "... and traced"
check "the statistics are the same" cmp "$tmp/plain.yaml" "$tmp/s.yaml"
check "no part is left" [ ! -e "$tmp/a.trace.part" ]
small() { "$bin/moe-profile" -v -t 1 "$tiny" --text "$tmp/a.txt" --max-tokens 64 --max-windows 1 -o "$tmp/s.yaml" "$@"; }
peak() { sed -n 's/.*peak of the process \([0-9]*\) bytes.*/\1/p' "$err"; }
without=$(smallest_memory small)
floor=$(smallest_memory small --trace "$tmp/b.trace" --trace-keep 32)
check "a trace takes more memory" [ "$floor" -gt "$without" ]
run small --trace "$tmp/b.trace" --memory "${floor}M"
check "one thread in the least memory gives the same trace" cmp "$tmp/a.trace" "$tmp/b.trace"
for more in 0 4; do
    run small --trace "$tmp/b.trace" --trace-keep 32 --memory "$((floor + more))M"
    expect_exit 0 "the least memory and $more MiB suffice for the largest trace"
    check "... and the peak stays below it" [ "$(peak)" -le $(((floor + more) << 20)) ]
done
run "$bin/moe-profile" --show "$tmp/a.trace"
expect_stdout_like "Trace of * tokens (* of prompts, * decoded) in 8 sequences
*: 12 MoE layers, 32 experts, 4 per token
*variant 4: 20.25 KiB
Scores of the best 8 experts by the router, gate-1, *, residual-3
* bytes per token" "--show says what is in it"
cp "$tmp/a.trace" "$tmp/damaged.trace"
printf x | dd of="$tmp/damaged.trace" bs=1 seek=$(($(wc -c <"$tmp/a.trace") - 40)) conv=notrunc 2>"$tmp/dd"
run "$bin/moe-profile" --show "$tmp/damaged.trace"
error_line 3 "moe-profile: $tmp/damaged.trace: *" "a damaged frame is found"
run "$bin/moe-profile" --show --json "$tmp/a.trace"
expect_stdout_like '{"sequences": 8, "tokens": *"keep": 8,*"gate-2"*' "... and for scripts"
run profile -o "$tmp/s.yaml" --trace "$tmp/b.trace" --trace-keep 0
run "$bin/moe-profile" --show "$tmp/b.trace"
expect_stdout_like '*Choices and weights only*' "--trace-keep 0 keeps choices only"
run profile -o "$tmp/s.yaml" --trace "$tmp/b.trace" --trace-keep 99 --shard 20/20
expect_exit 0 "a shard without documents"
run "$bin/moe-profile" --show "$tmp/b.trace"
expect_stdout_like 'Trace of 0 tokens*Scores of the best 32 experts*' "... has a trace without tokens"

# What a cache learns of traces, for later runs.
learns() { run "$bin/moe-profile" --learn "$@"; }
hits() { # MOE-RUN OPTION...
    run "$bin/moe-run" -t 1 "$tiny" -n 40 --temp 0 --memory 20M --strategy lru+cache=learned --stats-json "$json" \
        -p "Question: How many apples" "$@"
    figure cache_hits
}
learnt=$tmp/$(printf 'é%.0s' $(seq 35))a.learnt # longer than 64 bytes, which end within a character
learns "$tmp/a.trace" "$tmp/a.trace" -o "$learnt"
expect_exit 0 "a cache learns of traces"
without=$(hits)
cp "$out" "$tmp/answer"
with=$(hits --learn "$learnt")
check "a run that goes on from it finds more ($without, $with)" [ "$with" -gt "$without" ]
check "... and says the same" cmp -s "$out" "$tmp/answer"
check "... which statistics name" grep -qF "\"learnt\": \"$learnt\"" "$json"
planned() { # MOE-PLAN OPTION...: hits of a plan
    "$bin/moe-plan" -q "$tiny" --memory 20M --strategy lru+cache=learned --trace "$tmp/a.trace" --layer-seconds 2e-4 \
        --link-rate 200MB/s -o "$tmp/learnt.yaml" "$@"
    sed -n 's/^  hit_rate: //p' "$tmp/learnt.yaml" | head -1
}
check "a plan for such runs expects more" awk -v a="$(planned)" -v b="$(planned --learn "$learnt")" \
    'BEGIN { exit !(a > 0 && b > a) }'
check "... and names what the cache knows" grep -q '^  learnt: .*a.learnt' "$tmp/learnt.yaml"
run "$bin/moe-plan" --explain "$tmp/learnt.yaml" --compare "$json" --json
check "... as the run does" grep -q '"learnt (--learn)": \[".*a.learnt, .* tokens", ".*a.learnt, .* tokens"\]' "$out"
run "$bin/moe-plan" --explain "$tmp/learnt.yaml"
expect_stdout_like "*begins*empty, but knows*of * tokens (--learn*)*" "... to a person, too"
run "$bin/moe-profile" --show "$learnt"
tokens=$(sed -n 's/^learnt  *from \([0-9]*\) tokens.*/\1/p' "$out")
expect_stdout_like "$learnt: what a cache has learnt*model    *, 12 layers of 32 experts, 4 a token*size     *KiB*" \
    "what was learnt is shown"
check "... with the tokens of that run as well ($tokens)" [ "${tokens:-0}" -gt "$(figure learnt_tokens)" ]
run "$bin/moe-plan" --explain "$learnt" --json
expect_stdout_like "*\"format\": \"moe-learn\"*\"tokens\": $tokens,*" "... and for scripts"
for show in moe-profile\ --show moe-plan\ --explain; do
    run "$bin/"$show "$learnt" --html "$tmp/x.html"
    error_line 2 "${show%% *}: $learnt: what a cache has learnt has no page: leave out --html" "... and has no page"
done
learns "$tmp/a.trace" "$tmp/a.txt" -o "$tmp/x.learnt"
error_line 3 "moe-profile: $tmp/a.txt: *" "what is no trace"
check "... leaves no file" [ ! -e "$tmp/x.learnt" ]

# Traces of shards merge into the trace of one run, in any order and in several steps.
for i in 1 2 3; do
    profile --shard $i/3 -o "$tmp/s$i.yaml" --trace "$tmp/s$i.trace"
done
merge() { "$bin/moe-profile" --merge "$@"; }
run merge "$tmp/s3.trace" "$tmp/s1.trace" "$tmp/s2.trace" -o "$tmp/merged.trace"
expect_exit 0 "traces of shards are merged"
check "... into the trace of one run" cmp "$tmp/a.trace" "$tmp/merged.trace"
run merge "$tmp/s3.trace" "$tmp/s1.trace" -o "$tmp/x.trace"
error_line 2 'moe-profile: shard 2 of 3 is missing (--partial *' "one that is missing"
run merge --partial "$tmp/s3.trace" "$tmp/s1.trace" -o "$tmp/some.trace"
expect_exit 0 "--partial merges what is there"
run "$bin/moe-profile" --show "$tmp/some.trace"
expect_stdout_like '*
Holds shards 1, 3 of 3 of 8 documents*' "... and says so"
run "$bin/moe-profile" --show --json "$tmp/some.trace"
expect_stdout_like '*"shards": {"of": 3, "held": \[1, 3\]}*' "... to scripts, too"
run merge "$tmp/s2.trace" "$tmp/some.trace" -o "$tmp/again.trace"
check "... and is merged further" cmp "$tmp/a.trace" "$tmp/again.trace"
run merge "$tmp/some.trace" "$tmp/s1.trace" -o "$tmp/x.trace"
error_line 2 "moe-profile: $tmp/s1.trace: would count twice*" "... but no shard of it again"
run merge "$tmp/a.trace" "$tmp/a.trace" -o "$tmp/x.trace"
error_line 2 "moe-profile: $tmp/a.trace: would count twice: all of it*" "the same trace twice"
run merge "$tmp/s1.trace" "$tmp/s2.yaml" -o "$tmp/x.trace"
error_line 2 "moe-profile: --merge takes statistics or traces, not both*" "a trace and statistics"
run merge "$tmp/s1.trace" "$tmp/b.trace" -o "$tmp/x.trace"
error_line 2 "moe-profile: $tmp/b.trace: is of another model than $tmp/s1.trace, or has other scores*" "other scores"
check "nothing is left of them" [ ! -e "$tmp/x.trace" ]

# A stopped run's trace goes on where it was stopped.
head -c 9000 tests/data/math.valid.txt >"$tmp/long.txt"
run "$bin/moe-profile" -q "$tiny" --text "$tmp/long.txt" --max-tokens 24 --max-windows 1 -o "$tmp/long.yaml" --trace "$tmp/long.trace"
expect_exit 0 "a longer text"
interrupt "$tmp/stopped.trace.part" "$bin/moe-profile" -t 1 --cpu scalar "$tiny" \
    --text "$tmp/long.txt" --max-tokens 24 --max-windows 1 -o "$tmp/stopped.yaml" --trace "$tmp/stopped.trace"
expect_exit 1 "SIGINT ends it"
check "... with a part of the trace" [ -s "$tmp/stopped.trace.part" ]
check "... and no trace" [ ! -e "$tmp/stopped.trace" ]
resume() { "$bin/moe-profile" -q "$tiny" --text "$tmp/long.txt" --max-tokens 24 --max-windows 1 -o "$tmp/stopped.yaml" --resume "$@"; }
mv "$tmp/stopped.trace.part" "$tmp/kept"
run resume --trace "$tmp/stopped.trace"
error_line 2 "moe-profile: $tmp/stopped.trace.part: is missing*" "a missing part is said"
cp "$tmp/a.trace" "$tmp/stopped.trace.part"
run resume --trace "$tmp/stopped.trace"
error_line 2 "moe-profile: $tmp/stopped.trace.part: was made from other texts*" "another's part is refused"
cp "$tmp/stopped.yaml.part" "$tmp/kept.stats"
cp "$tmp/long.trace" "$tmp/stopped.trace.part"
run resume --trace "$tmp/stopped.trace"
expect_exit 0 "one that went further than the statistics is cut back"
check "... and gives the trace of one run" cmp "$tmp/long.trace" "$tmp/stopped.trace"
rm "$tmp/stopped.trace"
head -c 20000 "$tmp/kept" >"$tmp/stopped.trace.part"
cp "$tmp/kept.stats" "$tmp/stopped.yaml.part"
run resume --trace "$tmp/stopped.trace"
expect_exit 3 "one that is cut off before what the statistics hold is refused"
check "... and the statistics' part is kept" cmp "$tmp/kept.stats" "$tmp/stopped.yaml.part"
cp "$tmp/kept" "$tmp/stopped.trace.part"
run resume --trace "$tmp/stopped.trace"
expect_exit 0 "--resume"
check "... gives the trace of one run" cmp "$tmp/long.trace" "$tmp/stopped.trace"
check "... and its statistics" cmp "$tmp/long.yaml" "$tmp/stopped.yaml"
check "... and leaves no part" [ ! -e "$tmp/stopped.trace.part" ]

# Killed when the trace was in its place and the statistics were not, or both but their part was left.
for last in trace both; do
    cp "$tmp/long.trace" "$tmp/stopped.trace"
    cp "$tmp/long.yaml" "$tmp/stopped.yaml.part"
    [ $last = both ] || rm "$tmp/stopped.yaml"
    run resume --trace "$tmp/stopped.trace"
    expect_exit 0 "killed at the end, with $last in place: --resume"
    check "... gives the trace of one run" cmp "$tmp/long.trace" "$tmp/stopped.trace"
    check "... and its statistics" cmp "$tmp/long.yaml" "$tmp/stopped.yaml"
    check "... and leaves no part" [ ! -e "$tmp/stopped.yaml.part" ]
done

cat >"$tmp/r.csv" <<'END'
# route_trace v1
# model=m.gguf arch=x n_layer=2 n_expert=8 n_expert_used=2
# layer=0 expert_bytes=1000 dense_bytes=5
# layer=1 expert_bytes=2000 dense_bytes=5
turn,phase,step,layer,slot,expert,weight,residency,expert_bytes
0,0,0,0,0,5,0.75,0,1000
0,0,0,0,1,2,0.25,0,1000
0,0,0,1,0,7,0.5,0,2000
0,0,0,1,1,0,0.5,0,2000
0,1,1,0,0,5,0.75,1,0
0,1,1,0,1,3,0.25,0,1000
END
run "$bin/moe-profile" --import "$tmp/r.csv" -o "$tmp/r.trace"
expect_exit 0 "a CSV is imported"
run merge "$tmp/r.trace" -o "$tmp/x.trace"
error_line 2 "moe-profile: $tmp/r.trace: is imported and does not say which texts*" "... and cannot be merged"
run "$bin/moe-profile" --show "$tmp/r.trace"
expect_stdout_like 'Trace of 2 tokens (1 of prompts, 1 decoded) in 1 sequence
Imported: 2 MoE layers, 8 experts, 2 per token
*1000 B to 1.95 KiB*' "... and shown"
echo '0,1,1,0,1,3,0.25,0,1000' >>"$tmp/r.csv"
run "$bin/moe-profile" --import "$tmp/r.csv" -o "$tmp/x.trace"
error_line 3 "moe-profile: $tmp/r.csv: line 12: contradicts a line before it" "a wrong row is named"
check "... and nothing is written" [ ! -e "$tmp/x.trace" ]
echo '{"tok": 1, "layers": [[0, 3], [1, 2]]}' >"$tmp/r.jsonl"
run "$bin/moe-profile" --import "$tmp/r.jsonl" -o "$tmp/r.trace"
expect_exit 0 "JSON lines are imported"
run "$bin/moe-profile" --import "$tmp/a.txt" -o "$tmp/x.trace"
error_line 3 "moe-profile: $tmp/a.txt: not a routing trace*" "another file is refused"

head -c 5000 "$tmp/a.trace" >"$tmp/cut.trace"
run "$bin/moe-profile" --show "$tmp/cut.trace"
error_line 3 "moe-profile: $tmp/cut.trace: has 5000 of * bytes (cut off)" "a trace that is cut off"
run "$bin/moe-profile" --import "$tmp/r.csv"
error_line 2 'moe-profile: no output given*' "--import needs an output"
run "$bin/moe-profile" --show "$tmp/a.trace" --trace "$tmp/x"
error_line 2 'moe-profile: options --show and --trace exclude each other*' "--trace needs a text"
finish
