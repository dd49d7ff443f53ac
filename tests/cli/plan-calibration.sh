# moe-plan --calibration: what a bit map found goes into plans, and only that.
. tests/cli/lib.sh
plan="$bin/moe-plan"
two=$tmp/two.moe
"$bin/moe-quantize" -q --method rtn -o "$two" --experts 4,2 "$checkpoint"
"$bin/moe-quantize" -q --method rtn -o "$tmp/one.moe" --experts 4 "$checkpoint"
memory=$(($(smallest_memory "$plan" "$two") + 4))
head -c 3000 tests/data/math.valid.txt >"$tmp/text" # plans take as long as their trace
"$bin/moe-profile" -q "$two" --text "$tmp/text" --max-tokens 32 -o "$tmp/s.yaml" \
    --trace "$tmp/t.trace"
model=$("$bin/moe-profile" --show "$tmp/t.trace" --json |
    sed -n 's/.*"source_fingerprint": "\([0-9a-f]*\)".*/\1/p')

# A map of 4 and 2 bits: T1 0.5, T2 0.97, p 10%.
loss() { # TOKENS NLL_PERCENT
    echo "{documents: 3, tokens: $1, nats_per_token: 2.02, reference_nats_per_token: 2.0," \
        "nll_percent: $2, nll_error_percent: 0.25, top1_points: 3.5, top1_error_points: 0.5}"
}
map() { # MODEL HOBBIT_PERCENT FATE_PERCENT LOW
    cat <<MAP
format: moe-map
version: 1
source_fingerprint: "$1"
pack_fingerprint: "0123456789abcdef"
dense_bits: 8
max_document_tokens: 256
shape: {moe_layers: 12, experts: 32, experts_per_token: 4, model_layers: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}
variants: ["4", "$4"]
metric: nll
tolerance_percent: 2
texts:
  - {name: math.calib.txt, documents: 3, tokens: 4321, hash: "00000000000000aa", check: false}
  - {name: other.txt, documents: 1, tokens: 99, hash: "00000000000000bb", check: true}
fate:
  share: 0.1
  high: "4"
  low: "$4"
  loss: $(loss 4321 "$3")
hobbit:
  t1: 0.5
  t2: 0.97
  high_share: 0.5
  low_share: 0.45
  skipped_share: 0.05
  high: "4"
  low: "$4"
  loss: $(loss 4321 "$2")
  weights: {lru: 0.125, lfu: 0.5, lhu: 0.25, fld: 0.125}
  low_pool_share: 0.05
  penalty_per_activation: 0.3
  default_penalty_per_activation: 0.4
MAP
}
map "$model" 1.25 0.75 2 >"$tmp/map.yaml"

make_plan() { # ARGUMENTS...
    run "$plan" "$two" --memory "${memory}M" --max-tokens 120 --layer-seconds 2e-4 \
        --link-rate 200MB/s --trace "$tmp/t.trace" "$@"
}

# Strategies take what the map has for them.
make_plan -q --strategy hobbit --calibration "$tmp/map.yaml" -o "$tmp/hobbit.yaml"
expect_exit 0 "hobbit with a map"
for part in "on-miss: load-low:0.5" "skip-below: 3%" "low-pool: 5%" \
    "cache-weights: 0.125,0.5,0.25,0.125" "calibration: $tmp/map.yaml" \
    "calibration_texts: math.calib.txt"; do
    check "... has $part" sh -c "tr -d '\"' <'$tmp/hobbit.yaml' | grep -q '^ *$part\$'"
done
check "... and what was measured" grep -q \
    'part: on-miss, tokens: 4321, nll_percent: 1.25, nll_error_percent: 0.25, top1_points: 3.5' \
    "$tmp/hobbit.yaml"
run "$plan" --explain "$tmp/hobbit.yaml"
tr -s ' \n' ' ' <"$out" >"$tmp/words"
check "... which the explanation tells" matches "$tmp/words" \
    "*Inexact: what the model says may change through --on-miss: at worst +1.25% (+-0.25) nats/token, 3.5% other top tokens. Measured on 4321 tokens of math.calib.txt*"
check "... on two screens and a half" [ "$(wc -l <"$out")" -le 120 ]
run "$plan" --explain "$tmp/hobbit.yaml" --json
expect_stdout_like '*"losses":\[{"part":"on-miss"*' "... and the JSON"
make_plan -q --strategy fate --calibration "$tmp/map.yaml" -o "$tmp/fate.yaml"
check "fate's share" grep -q 'prefill: "\{0,1\}hybrid:10%' "$tmp/fate.yaml"
check "... and its loss" grep -q 'part: prefill, tokens: 4321, nll_percent: 0.75' "$tmp/fate.yaml"
make_plan -q --strategy hobbit --calibration "$tmp/map.yaml" --on-miss load-low:0.3 \
    --cache-weights 1,0,0,0 -o "$tmp/named.yaml"
check "what the user names stays" sh -c \
    "grep -q 'load-low:0.3' '$tmp/named.yaml' && grep -q 'cache-weights: .*1,0,0,0' '$tmp/named.yaml'"
check "... nobody measured that" sh -c "! grep -q '^losses:' '$tmp/named.yaml'"
make_plan -q --strategy hobbit --calibration "$tmp/map.yaml" --on-miss load-low:0.8 -o "$tmp/named.yaml"
check "what approximates less is within what was measured" grep -q 'nll_percent: 1.25' "$tmp/named.yaml"
make_plan -q --strategy lru --calibration "$tmp/map.yaml" -o "$tmp/lru.yaml"
check "an exact row loses nothing" sh -c \
    "grep -q 'calibration: .*map.yaml' '$tmp/lru.yaml' && ! grep -q '^losses:' '$tmp/lru.yaml'"

# moe-run follows, and --exact forbids.
run "$bin/moe-run" -q "$two" --plan "$tmp/hobbit.yaml" --memory "${memory}M" -p "One and" -n 8 \
    --temp 0 --stats-json "$tmp/stats.json"
expect_exit 0 "moe-run follows the plan"
check "... at low precision, too" grep -q '"low_precision": [1-9]' "$tmp/stats.json"
run "$bin/moe-run" -q "$two" --plan "$tmp/hobbit.yaml" --exact -p "One and" -n 8
error_line 2 "moe-run: *--exact forbids*--on-miss load-low:0.5*" "... which --exact forbids"

# auto approximates as far as was measured, and no further.
make_plan -q --calibration "$tmp/map.yaml" -o "$tmp/auto.yaml"
expect_exit 0 "auto with a map"
check "... may take a low precision" grep -q 'load-low:0.5' "$tmp/auto.yaml"
check "... and says what that loses" grep -q 'part: on-miss, tokens: 4321' "$tmp/auto.yaml"
make_plan -q -o "$tmp/without.yaml"
check "... nothing of the kind without one" sh -c "! grep -q 'load-low\|hybrid' '$tmp/without.yaml'"
make_plan -q --calibration "$tmp/map.yaml" --exact -o "$tmp/exact.yaml"
check "... or with --exact" sh -c "! grep -q 'load-low\|hybrid' '$tmp/exact.yaml'"
speed() { sed -n '/^expected:/,/^[a-z]*:$/s/ *decode_tokens_per_second: //p' "$1" | head -1; }
check "... and it is no slower for it" awk -v a="$(speed "$tmp/auto.yaml")" \
    -v b="$(speed "$tmp/without.yaml")" 'BEGIN { exit !(a > 0 && a >= b) }'
map "$model" 2.5 0.75 2 >"$tmp/worse.yaml"
make_plan -q --calibration "$tmp/worse.yaml" -o "$tmp/auto.yaml"
check "not above the tolerance" sh -c "! grep -q 'load-low' '$tmp/auto.yaml'"

# Within a tolerance it loads less: by ways that the map measured in caches like the plan's.
make_plan -q --calibration "$tmp/map.yaml" --tolerance 1% -o "$tmp/x"
error_line 2 "moe-plan: $tmp/map.yaml: does not say what loading less loses*(moe-calibrate --expert-memory SIZE measures it)" \
    "a map without such measurements"
savings() { # MAP LOSS SIZE...
    cat "$1" && echo "savings:" && loss=$2 && shift 2
    for size; do
        echo "  - {cache_bytes: $size, low: \"2\", exact_bytes_per_token: 900000, ways: [" \
            "{strategy: lru+skip-below=0.2, bytes_per_token: 600000, changed_share: 0.2, loss: $(loss 77 "$loss")}," \
            "{strategy: lru+skip-below=0.4, bytes_per_token: 300000, changed_share: 0.4, loss: $(loss 77 9)}]}"
    done
}
savings "$tmp/map.yaml" 0.9 500000 1000000 2000000 4000000 >"$tmp/savings.yaml"
make_plan -q --calibration "$tmp/savings.yaml" --tolerance 1% -o "$tmp/tolerant.yaml"
expect_exit 0 "a tolerance"
check "... is used by what is within it" sh -c \
    "grep -q 'skip-below: \"\{0,1\}20%' '$tmp/tolerant.yaml' && ! grep -q 'load-low\|hybrid' '$tmp/tolerant.yaml'"
check "... and faster" awk -v a="$(speed "$tmp/tolerant.yaml")" -v b="$(speed "$tmp/exact.yaml")" 'BEGIN { exit !(a > 1.02 * b) }'
run "$plan" --explain "$tmp/tolerant.yaml"
tr -s ' \n' ' ' <"$out" >"$tmp/words"
check "... which is explained as inexact" matches "$tmp/words" \
    "*Inexact: what the model says may change through --skip-below: +0.9% (+-0.25) nats/token*where --tolerance allowed 1%. Measured on 77 tokens of math.calib.txt*"
run "$bin/moe-run" -q "$two" --plan "$tmp/tolerant.yaml" --memory "${memory}M" -p "One and" -n 8 --temp 0 --stats-json "$tmp/stats.json"
expect_exit 0 "moe-run follows it"
check "... and its statistics name it inexact" grep -q '"why": "--skip-below 20%"' "$tmp/stats.json"
run "$bin/moe-run" -q "$two" --plan "$tmp/tolerant.yaml" --exact -p "One and" -n 8
error_line 2 "moe-run: *--exact forbids*--skip-below 20%*" "... but not with --exact"
sed "s/ways: \[ *{\(.*\)}}, *{/ways: [{\1}, check: $(loss 99 0.95 | sed 's/documents: 3/documents: 1/')}, {/" \
    "$tmp/savings.yaml" >"$tmp/checked.yaml"
make_plan -q --calibration "$tmp/checked.yaml" --tolerance 1% -o "$tmp/checked.plan"
run "$plan" --explain "$tmp/checked.plan"
tr -s ' \n' ' ' <"$out" >"$tmp/words"
check "... and by the checks, of one document, where they lose more" matches "$tmp/words" \
    "*through --skip-below: +0.95% (error unknown) nats/token*Measured on 99 tokens of other.txt. *"
run "$bin/moe-calibrate" --show "$tmp/checked.yaml"
expect_stdout_like "* on checks *0.95% unknown *3.50 unknown  lru+skip-below=0.2*" "... also in the map"
make_plan -q --calibration "$tmp/savings.yaml" --tolerance 0.5% -o "$tmp/less.yaml"
check "what loses more is not used" [ "$(grep -c 'skip-below\|^losses' "$tmp/less.yaml")" = 0 ]
savings "$tmp/map.yaml" 0.9 99000000 >"$tmp/far.yaml"
make_plan --calibration "$tmp/far.yaml" --tolerance 1% -o "$tmp/less.yaml"
expect_stderr_like "*nothing is approximated: no way to load less within the tolerance is faster here ($tmp/far.yaml measured caches of 94.41 MiB; the plan's has *" \
    "nor what was measured in another cache"
for args in "--exact" "--strategy fate"; do
    # shellcheck disable=SC2086
    make_plan --calibration "$tmp/savings.yaml" --tolerance 1% $args -o "$tmp/x"
    error_line 2 "moe-plan: options --tolerance and ${args%% *} exclude each other*" "--tolerance with $args"
done
make_plan --calibration "$tmp/savings.yaml" --tolerance 1% --cache lru -o "$tmp/x"
error_line 2 "moe-plan: option --tolerance: it chooses the strategy's parts, none may be given" "... or a part"

# Maps that do not fit.
map "0123456789abcdef" 1.25 0.75 2 >"$tmp/other.yaml"
make_plan --calibration "$tmp/other.yaml"
error_line 2 "moe-plan: $tmp/other.yaml: a bit map of another model (0123456789abcdef*" \
    "another model's map"
map "$model" 1.25 0.75 3 >"$tmp/three.yaml"
make_plan --strategy hobbit --calibration "$tmp/three.yaml"
expect_exit 2 "precisions that the pack has not, named"
expect_stderr_like "*$tmp/three.yaml: the map has thresholds for --on-miss for experts at '4' and, lower, at '3'*moe-plan: the map has no*" \
    "... are refused"
make_plan --calibration "$tmp/three.yaml" -o "$tmp/auto.yaml"
expect_exit 0 "... and left out by auto"
expect_stderr_like "*$tmp/three.yaml: the map has thresholds for --on-miss*share for --prefill*" "... saying so"
run "$plan" "$tmp/one.moe" --memory "${memory}M" --max-tokens 120 --layer-seconds 2e-4 \
    --link-rate 200MB/s --trace "$tmp/t.trace" --calibration "$tmp/map.yaml" -o "$tmp/auto.yaml"
expect_exit 0 "a pack of one precision"
make_plan --calibration "$tmp/s.yaml"
error_line 3 "moe-plan: $tmp/s.yaml: *" "no map"
run "$plan" --shape "$checkpoint/config.json" --memory 60M --calibration "$tmp/map.yaml"
error_line 2 "moe-plan: options --calibration and --shape exclude each other*" "a shape is no model"
run "$plan" --simulate "$tmp/t.trace" --calibration "$tmp/map.yaml"
error_line 2 "moe-plan: options --simulate and --calibration exclude each other*" "nor is a table a plan"
finish
