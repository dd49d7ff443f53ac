# moe-calibrate on pairs of a source and a target: the same file whatever the threads and shards, what the map
# says is what moe-run measures on the pack made from it, and damaged pairs are named.
. tests/cli/lib.sh
all=$tmp/all.moe
"$bin/moe-quantize" -q --method linear --experts 4,2 --dense 16 -o "$all" "$models/tiny-switch" || exit 1
sed -n '7p;57p;107p;157p;207p;257p' tests/data/pairs.calib.jsonl >"$tmp/calib.jsonl"
sed -n '3p;103p;203p' tests/data/pairs.valid.jsonl >"$tmp/valid.jsonl"
calibrate() { "$bin/moe-calibrate" -q "$all" --pairs "$tmp/calib.jsonl" --tolerance 0.5% "$@"; }

run calibrate -t 1 --check "$tmp/valid.jsonl" -o "$tmp/one.yaml"
error_line 4 "*the tolerance of 0.5% does not hold on the checks: *" "a calibration on pairs, which does not hold on the checks"
run calibrate -t 2 --check "$tmp/valid.jsonl" -o "$tmp/two.yaml"
check "two threads give the same file" cmp "$tmp/one.yaml" "$tmp/two.yaml"
check "experts of both stacks are weighed" \
    grep -q '^  model_layers: \[1, 3, 4, 5, 6, 7\]$' "$tmp/one.yaml"
for i in 1 2; do calibrate -t 1 --shard $i/2 -o "$tmp/part$i.yaml"; done
run "$bin/moe-calibrate" -q --merge "$tmp/part2.yaml" "$tmp/part1.yaml" -o "$tmp/merged.yaml"
expect_exit 0 "shards are merged"
run calibrate --from "$tmp/merged.yaml" --check "$tmp/valid.jsonl" -o "$tmp/from.yaml"
check "... and their importances give the same file" cmp "$tmp/one.yaml" "$tmp/from.yaml"
floor=$(smallest_memory calibrate --check "$tmp/valid.jsonl" -o "$tmp/x")
run calibrate --from "$tmp/merged.yaml" --check "$tmp/valid.jsonl" --memory "${floor}M" -o "$tmp/small.yaml"
error_line 4 "*does not hold on the checks*" "the smallest memory that works, ${floor} MiB, works"
check "... and gives the same file" cmp "$tmp/one.yaml" "$tmp/small.yaml"

said() { # SECTION
    "$bin/moe-calibrate" --show --json "$tmp/one.yaml" |
        sed -n "s/.*\"$1\":{[^{]*\"loss\":{[^}]*\"nats_per_token\":\([0-9.e+-]*\).*/\1/p"
}
score() { "$bin/moe-run" --kv f32 --perplexity "$tmp/calib.jsonl" --json "$@"; }
nats() { score "$@" | sed 's/.*"nll": \([0-9.]*\),.*/\1/'; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && (a - b) ^ 2 < 1e-12) }'; }
run "$bin/moe-quantize" -q --map "$tmp/one.yaml" -o "$tmp/mixed.moe" "$all"
expect_exit 0 "a pack that follows the map"
check "... costs what the map says" near "$(nats "$tmp/mixed.moe")" "$(said choice)"
half=$("$bin/moe-calibrate" --show --json "$tmp/one.yaml" |
    sed -n 's/.*"share":0.5,"unpopular":{[^}]*"nats_per_token":\([0-9.]*\).*/\1/p')
check "... and so do prompts with half of the unpopular experts low" \
    near "$(nats "$all" --strategy ondemand --prefill hybrid:0.5)" "$half"
run "$bin/moe-run" -q "$tmp/mixed.moe" -p "sum: 9 + 4" -n 6 --temp 0
expect_exit 0 "... and answers"

# Judged by answers: what the map says of a uniform bitwidth, of its choice and of prompts is what moe-run finds.
run calibrate --judge rouge2 --from "$tmp/merged.yaml" -o "$tmp/judged.yaml"
expect_exit 0 "a calibration judged by answers"
check "... whose map says so" grep -q '^judge: rouge2$' "$tmp/judged.yaml"
check "... with a tolerance in points" grep -q '^tolerance_points: 0.5$' "$tmp/judged.yaml"
run "$bin/moe-calibrate" --show "$tmp/judged.yaml"
expect_stdout_like "*Rouge-2 less*Choice for a tolerance of 0.5 points of Rouge-2:*" "... --show names the judge"
points() { # SECTION: Rouge-2 of it
    "$bin/moe-calibrate" --show --json "$tmp/judged.yaml" |
        sed -n "s/.*$1[^}]*\"reference_rouge2\":\([0-9.]*\),\"rouge2_points\":\([0-9.e-]*\),.*/\1 \2/p" |
        awk '{ printf "%.6f", $1 - $2 / 100 }'
}
answers() { score "$@" --judge rouge2 | sed 's/.*"rouge2": \([0-9.]*\),.*/\1/'; }
"$bin/moe-quantize" -q --experts 2 -o "$tmp/low.moe" "$all"
"$bin/moe-quantize" -q --map "$tmp/judged.yaml" -o "$tmp/judged.moe" "$all"
close() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && (a - b) ^ 2 < 4e-12) }'; }
check "... the answers of all experts at 2 bits" close "$(answers "$tmp/low.moe")" "$(points '"experts":"2"')"
check "... of its choice" close "$(answers "$tmp/judged.moe")" "$(points '"choice":{[^{]*"loss"')"
check "... of prompts with half of the unpopular experts low" close \
    "$(answers "$all" --strategy ondemand --prefill hybrid:0.5)" "$(points '"share":0.5,"unpopular"')"
# Points of few answers rise and fall from step to step: where all experts at 2 bits are within the tolerance, no
# step before them counts.
sed -n 40,47p tests/data/pairs.calib.jsonl >"$tmp/noisy.jsonl"
run "$bin/moe-calibrate" -q "$all" --pairs "$tmp/noisy.jsonl" --judge rouge2 --tolerance 0% --importance proxy \
    --without fate --without hobbit -o "$tmp/noisy.yaml"
run "$bin/moe-calibrate" --show "$tmp/noisy.yaml"
expect_stdout_like "*2: 2 bits by *, 96 experts*" "the fewest bytes within a noisy tolerance"
run "$bin/moe-calibrate" -q "$all" --text "$tmp/calib.jsonl" --judge accuracy -o "$tmp/x"
error_line 2 "moe-calibrate: option --judge needs --pairs*" "a judge of texts"

refuse() { # LINES NAME GLOB
    printf '%s\n' "$1" >"$tmp/bad.jsonl"
    run "$bin/moe-calibrate" -q "$all" --pairs "$tmp/bad.jsonl" -o "$tmp/x"
    error_line 3 "moe-calibrate: $tmp/bad.jsonl: $3" "$2"
}
good='{"source": "sum: 9 + 4", "target": "13"}'
refuse "$good
{\"source\": \"sum: 1 + 1\"}" "a pair without a target" "pair 2*needs a \"target\"*"
refuse "$good
{\"source\": \"sum" "a pair that is cut off" "pair 2*"
refuse "sum: 9 + 4" "a text" "pair 1*"
refuse "" "no pair" "has no pair to predict"
run calibrate --check "$tmp/bad.jsonl" -o "$tmp/x"
error_line 3 "moe-calibrate: $tmp/bad.jsonl: has no pair to predict" "... to check on"
run "$bin/moe-calibrate" -q "$all" --text tests/data/math.calib.txt -o "$tmp/x"
error_line 2 "moe-calibrate: $all: has an encoder: it takes pairs (--pairs FILE)" "texts for a model with an encoder"
pack
run "$bin/moe-calibrate" -q "$tiny" --pairs "$tmp/calib.jsonl" -o "$tmp/x"
error_line 2 "moe-calibrate: $tiny: has no encoder: it takes texts (--text FILE)" "pairs for one without"
run "$bin/moe-calibrate" -q "$all" --pairs "$tmp/calib.jsonl" --text "$tmp/calib.jsonl" -o "$tmp/x"
error_line 2 "moe-calibrate: options --text and --pairs exclude each other*" "texts and pairs"
check "no map is left of these" [ ! -e "$tmp/x" ]
finish
