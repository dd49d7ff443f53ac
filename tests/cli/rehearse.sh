#!/bin/sh
# A model that is not here, rehearsed: packs of drawn weights, what they are called, what is refused.
. tests/cli/lib.sh
shape=$checkpoint/config.json
drawn=$tmp/drawn.moe
words='its weights were drawn by moe-quantize --synthesize'

run "$bin/moe-quantize" --synthesize "$shape" -o "$drawn"
expect_exit 0 "a description becomes a pack"
expect_stderr_like '*384 experts at 4 bits*drawn weights*' "... and is called what it is"
run "$bin/moe-quantize" --verify "$drawn"
expect_exit 0 "its checksums hold"
run "$bin/moe-quantize" --list "$drawn"
expect_stdout_like '*weights    drawn by --synthesize*drawn *' "a list says that its weights were drawn"
run "$bin/moe-quantize" --list --json "$drawn"
expect_stdout_like '*"synthesized": true*' "... and as JSON"
run "$bin/moe-plan" --explain "$drawn"
expect_stdout_like '*Its weights were drawn*' "moe-plan says so"
run "$bin/moe-plan" "$drawn" --memory 70M --device-profile profiles/apple-m2.yaml -o "$tmp/plan.yaml"
expect_exit 0 "it can be planned for"
check "a plan says so" grep -q 'drawn.moe (drawn weights)' "$tmp/plan.yaml"
run "$bin/moe-run" "$drawn" --bench -n 4 --prompt-tokens 8 --stats --stats-json "$json"
expect_exit 0 "it can be measured"
expect_stderr_like '*weights  drawn*' "statistics say so"
check "... and as JSON" grep -q '"synthesized": true' "$json"

run "$bin/moe-run" "$drawn" -p hello -n 4
error_line 2 "*$words*--bench*" "moe-run writes no text"
run "$bin/moe-run" "$drawn" --show-prompt -p hello
error_line 2 "*$words*" "... nor a prompt"
run "$bin/moe-run" "$drawn" --perplexity tests/data/stories.valid.txt
error_line 2 "*$words*" "... nor judges one"
run "$bin/moe-profile" "$drawn" --text tests/data/stories.valid.txt -o "$tmp/s.yaml"
error_line 2 "*$words*" "moe-profile measures no text"
run "$bin/moe-calibrate" "$drawn" --text tests/data/stories.valid.txt -o "$tmp/m.yaml"
error_line 2 "*$words*" "nor does moe-calibrate"

# Sizes are those of a conversion, whatever the format: of all that a list has, and of experts where a small fixture
# (whose routers have 32 bits) is rounded to trellises, which takes long.
sizes() {
    "$bin/moe-quantize" --list "$1" | awk '/^  (dense|experts) .*iB$/ { print $1, $2, $(NF - 5), $(NF - 3), $(NF - 1) }'
    "$bin/moe-quantize" --list --json "$1" | grep '"dense": ["0-9]' # as it was asked for
}
for format in '--dense 8' '--experts iq4_xs,2 --dense q6_k' '--method linear --experts 4,2' '--method best --experts 5,3' \
    '--experts iq2_kt' '--experts 16 --dense 16'; do
    case $format in *best* | *kt*) model=$BUILD/fixtures/qwen2-moe-a of=^experts ;; *) model=$checkpoint of= ;; esac
    # shellcheck disable=SC2086 # several words
    "$bin/moe-quantize" -q --synthesize "$model/config.json" $format -o "$tmp/likewise.moe"
    # shellcheck disable=SC2086
    "$bin/moe-quantize" -q "$model" $format --text none -o "$tmp/rounded.moe"
    check "drawn weights have the sizes of rounded ones: $format" \
        [ "$(sizes "$tmp/likewise.moe" | grep "$of")" = "$(sizes "$tmp/rounded.moe" | grep "$of")" ]
done
check "... as a list has them" [ "$(sizes "$tmp/rounded.moe" | wc -w)" = 12 ]
run "$bin/moe-quantize" --synthesize "$shape" --method best --experts 1 -o "$tmp/likewise.moe"
expect_stderr_like '*: rows of * columns take more at 1 bit than at 2; *' "narrow rows are spoken of"
run "$bin/moe-quantize" --synthesize tests/fixtures/eagle3-a/config.json -o "$tmp/x.moe"
error_line 3 '*eagle3-a/config.json: describes a head that only drafts*' "a head is not drawn"
run "$bin/moe-quantize" --synthesize "$shape" --no-mtp -o "$tmp/x.moe"
error_line 2 '*--no-mtp*' "nor is a layer that drafts, to be left out"
run "$bin/moe-quantize" --synthesize "$shape" --sparse -o "$tmp/sparse.moe"
expect_stderr_like '*drawn weights (sparse)*' "sparse is said"
check "... and takes less room" [ "$(du -k "$tmp/sparse.moe" | cut -f1)" -lt \
    "$(($(du -k "$drawn" | cut -f1) / 2))" ]
run "$bin/moe-quantize" --synthesize "$shape" --zstd 3 -o "$tmp/x.moe"
error_line 2 '*--synthesize and --zstd exclude each other*' "drawn weights are not compressed"
run "$bin/moe-quantize" --sparse "$checkpoint" -o "$tmp/x.moe"
error_line 2 '*--sparse goes with --synthesize*' "a checkpoint is not sparse"
run "$bin/moe-quantize" --synthesize "$shape" "$checkpoint"
error_line 2 '*takes a description*' "a description and a checkpoint are too much"
head -c 200 "$shape" >"$tmp/cut.json"
run "$bin/moe-quantize" --synthesize "$tmp/cut.json" -o "$tmp/x.moe"
error_line 3 "*$tmp/cut.json*" "a damaged description is named"
check "nothing is left of it" [ ! -e "$tmp/x.moe" ]

# ---- Following a trace ----
cat >"$tmp/r.csv" <<'EOF'
# route_trace v1
# model=x arch=qwen3moe n_layer=12 n_expert=32 n_expert_used=3
EOF
awk 'BEGIN {
    for (l = 0; l < 12; l++) print "# layer=" l " expert_bytes=20736 dense_bytes=1000"
    print "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"
    for (t = 0; t < 24; t++) for (l = 0; l < 12; l++) for (s = 0; s < 3; s++)
        print "0," (t < 8 ? 0 : 1) "," t "," l "," s "," (t * 7 + l * 5 + s * 11) % 32 "," 0.5 - s / 10 ",0,20736"
}' >>"$tmp/r.csv"
run "$bin/moe-profile" --import "$tmp/r.csv" -o "$tmp/r.trace"
expect_exit 0 "a trace of another engine is imported"
follow() { run "$bin/moe-run" "$drawn" --bench --follow "$tmp/r.trace" --expert-memory 1M "$@"; }
follow --strategy lru --stats --stats-json "$json"
expect_exit 0 "it is followed"
expect_stderr_like '*its tokens choose 3 experts where *drawn.moe has 4:*' "... with as many experts as it chose"
expect_stdout_like '*following r.trace*prefill*8 *decode*16 *' "... its prompts, too"
expect_stderr_like "*followed r.trace: its choices*exact    no: --follow*" "... statistics say so"
check "... and as JSON" grep -q '"followed": "r.trace"' "$json"
check "tokens choose as many experts as the trace's" [ "$(figure expert_activations)" -gt 0 ]
check "each activation is counted once" adds_up
followed=$(figure cache_hits),$(figure misses)
follow --strategy lru -t 1 --no-checksums --stats-json "$json"
check "hits repeat" [ "$(figure cache_hits),$(figure misses)" = "$followed" ]
run "$bin/moe-plan" --simulate "$tmp/r.trace" "$drawn" --memory 30M \
    --strategy lru,prefetch+assume-prediction=100% --device-profile profiles/apple-m2.yaml
expect_stdout_like '*lru*prefetch+assume-prediction=100%*' "moe-plan simulates it on the same pack"
cp "$out" "$tmp/named"
run "$bin/moe-plan" --simulate "$tmp/r.trace" "$drawn" --memory 30M \
    --strategy lru,prefetch --assume-prediction 100% --device-profile profiles/apple-m2.yaml
check "... as an option, of those that predict" cmp "$out" "$tmp/named"
run "$bin/moe-plan" --simulate "$tmp/r.trace" "$drawn" --strategy lru --assume-prediction 80% --link-rate 1GB/s
error_line 2 '*none of the strategies predicts*' "... of which there must be one"
follow --strategy prefetch --assume-prediction 100% --stats-json "$json"
check "a sure prediction is right" [ "$(figure predicted_right)" = "$(figure predicted)" ]
check "... and there is one" some predicted
follow -q --strategy prefetch
error_line 2 '*no predictions by gate*--assume-prediction*' "a strategy that predicts needs an assumption"
run "$bin/moe-run" "$drawn" --bench --strategy prefetch --assume-prediction 80% --expert-memory 1M
error_line 2 '*--assume-prediction*--follow*' "an assumption needs a trace"
follow --exact
error_line 2 '*--exact*no text*' "nothing exact follows a trace"
run "$bin/moe-run" "$drawn" --follow "$tmp/r.trace"
error_line 2 '*goes with --bench*' "what follows a trace is measured"
follow -p hello
error_line 2 '*--follow and --prompt exclude each other*' "prompts are the trace's"
run "$bin/moe-quantize" --synthesize tests/fixtures/olmoe-a/config.json -o "$tmp/o.moe"
run "$bin/moe-run" "$tmp/o.moe" --bench --follow "$tmp/r.trace"
error_line 2 "*r.trace: a trace of 12 layers of 32 experts; *cannot follow*" "another model cannot follow it"
head -c $(($(wc -c <"$tmp/r.trace") / 2)) "$tmp/r.trace" >"$tmp/cut.trace"
run "$bin/moe-run" "$drawn" --bench --follow "$tmp/cut.trace"
error_line 3 "*cut.trace*" "a damaged trace is named"
pack
run "$bin/moe-run" "$tiny" --bench --follow "$tmp/r.trace" --stats
expect_stderr_like '*followed r.trace*' "a model that is there follows it as well"
finish
