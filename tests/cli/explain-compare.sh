# moe-plan --explain of every kind of file, and --compare of a plan with another and with its run.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
pack
plan="$bin/moe-plan"
says() { check "... $1" grep -qF -e "$2" "$out"; }

head -c 3000 tests/data/math.valid.txt >"$tmp/text" # plans take as long as their trace
"$bin/moe-profile" -q -t 1 "$tiny" --text "$tmp/text" --max-tokens 32 -o "$tmp/s.yaml" --trace "$tmp/t.trace"
memory=$(($(smallest_memory "$plan" "$tiny") + 7))M
make_plan() { # FILE RATE
    "$plan" -q "$tiny" --memory "$memory" --trace "$tmp/t.trace" --stats "$tmp/s.yaml" --layer-seconds 2e-4 --link-rate "$2" \
        --strategy lru --max-tokens 300 -o "$1"
}
make_plan "$tmp/a.yaml" 300MB/s
make_plan "$tmp/b.yaml" 100MB/s

# Files that the programs hand each other.
run "$plan" --explain "$tmp/t.trace"
expect_exit 0 "a trace is explained"
says "with what a cache can count on" "The busiest quarter of a layer's experts"
check "... and a map, a line a layer" [ "$(grep -c '^ *[0-9]* |.*|$' "$out")" = 12 ]
check "... in 80 columns" [ "$(awk 'length > n { n = length } END { print n }' "$out")" -le 80 ]
cp "$out" "$tmp/text"
run "$plan" --explain "$tmp/t.trace" --json
expect_stdout_like '{"trace": {*"skew": *"use": \[\[*}' "as JSON"
run "$plan" --explain "$tmp/s.yaml"
check "statistics have the same map: they counted the same" \
    [ "$(grep '^ *[0-9]* |' "$out")" = "$(grep '^ *[0-9]* |' "$tmp/text")" ]
run "$plan" --explain tests/fuzz/corpus/map/full-nll
expect_exit 0 "a bit map is explained"
says "what it is" "This is a bit map: what a model loses"
run "$plan" --explain tests/fuzz/corpus/map/full-nll --json
expect_stdout_like '{*"moe-map"*}' "as JSON"
run "$plan" --explain profiles/a6000.yaml
expect_exit 0 "a device profile is explained"
says "what nobody measured" "was stated, not measured"
run "$plan" --explain profiles/a6000.yaml --json
expect_stdout_like '{*"moe-device"*}' "as JSON"

# Two plans.
run "$plan" --explain "$tmp/a.yaml" --compare "$tmp/b.yaml"
expect_exit 0 "two plans are compared"
says "what was given otherwise" "link                     300.0 MB/s  ->  100.0 MB/s"
says "who is slower" "slower than the first."
says "where" "What differs most in a token's time is waiting for loads:"
run "$plan" --explain "$tmp/a.yaml" --compare "$tmp/a.yaml" --json
expect_stdout_like '{*"second": "plan"*"change": 0*' "a plan and itself as JSON"

# A plan and its run.
"$bin/moe-run" -t 1 "$tiny" --plan "$tmp/a.yaml" -p 'Once upon' -n 16 --ignore-eos --temp 0 --stats-json "$json" \
    >/dev/null 2>&1
run "$plan" --explain "$tmp/a.yaml" --compare "$json"
expect_exit 0 "a plan and its run are compared"
says "figure by figure" "What a token takes                  planned     measured        change"
for name in computing "waiting for loads" "experts found in memory" "loaded for a token"; do
    says "$name" "$name"
done
says "too few tokens" "The run decoded 15 tokens: too few"
check "... which followed it" [ "$(grep -c "did not follow" "$out")" = 0 ]
says "what was planned" "Planned is a first answer"
says "prompts of other lengths" "Prompts do not compare: the plan's have"
measured=$(awk '/"decode": \{/ { on = 1 } on && /"tokens_per_s"/ { printf "%.1f", $2; exit }' "$json")
check "... with what the run measured" grep -q "tokens/s of an answer .* $measured " "$out"
run "$plan" --explain "$tmp/a.yaml" --compare "$json" --json
expect_stdout_like '{*"second": "run"*"same_plan": true*"decode": *"stall_s": *' "as JSON"

# ... which did not follow it: whatever the plan decides is compared.
cp "$json" "$tmp/followed.json"
"$bin/moe-run" -t 1 "$tiny" --plan "$tmp/a.yaml" --batch 8 -c 100 --kv f32 -p 'Once upon' -n 4 --ignore-eos --temp 0 \
    --stats-json "$json" >/dev/null 2>&1
run "$plan" --explain "$tmp/a.yaml" --compare "$json"
expect_exit 0 "a run with other settings"
for line in "batches of a prompt      $(sed -n 's/^  batch_tokens: //p' "$tmp/a.yaml")  ->  8" \
    "context                  $(sed -n 's/^  context_tokens: //p' "$tmp/a.yaml")  ->  100" \
    "keys and values          f16  ->  f32" "The run had other settings: it did not follow this plan."; do
    says "names it: $line" "$line"
done
cp "$tmp/followed.json" "$json"

# What does not go together.
run "$plan" --explain "$json"
error_line 2 "moe-plan: $json: *--compare*" "figures of a run alone"
run "$plan" --compare "$tmp/a.yaml"
error_line 2 "moe-plan: option --compare goes with --explain*" "nothing to compare with"
run "$plan" --explain "$tmp/t.trace" --compare "$tmp/a.yaml"
error_line 3 "moe-plan: $tmp/t.trace: not a plan: --compare*" "what is compared is a plan"
run "$plan" --explain "$tmp/a.yaml" --compare "$tmp/s.yaml"
error_line 3 "moe-plan: $tmp/s.yaml: neither a plan nor*--stats-json*" "... with a plan or a run"
printf MOEL >"$tmp/learnt"
run "$plan" --explain "$tmp/learnt"
error_line 3 "moe-plan: $tmp/learnt: the file of what was learnt is damaged: it is cut off*" "a cut file of what a cache has learnt"
head -c 300 "$json" >"$tmp/cut"
run "$plan" --explain "$tmp/a.yaml" --compare "$tmp/cut"
error_line 3 "moe-plan: $tmp/cut: *" "a cut run"
run "$plan" --explain "$tmp/a.yaml" --compare "$tmp/none"
error_line 1 "moe-plan: $tmp/none: *" "a missing one"
: >"$tmp/empty"
for file in "$tmp/empty" tests/data/math.valid.txt; do
    run "$plan" --explain "$file"
    error_line 3 "moe-plan: $file: neither a plan, *" "a file of no kind"
done

# As wide as is asked for, where that is no terminal.
for columns in 60 100; do
    for other in "$tmp/b.yaml" "$json"; do
        COLUMNS=$columns run "$plan" --explain "$tmp/a.yaml" --compare "$other"
        check "a comparison in $columns columns" [ "$(awk 'length > n { n = length } END { print n }' "$out")" -le "$columns" ]
        check "... each figure in a line" grep -q '^  tokens/s of an answer .* [-+][.0-9]*%$' "$out"
    done
done
COLUMNS=60 run "$plan" --explain "$tmp/a.yaml"
check "a plan in 60 columns" [ "$(awk 'length > n { n = length } END { print n }' "$out")" -le 60 ]
check "... each layer in a line" [ "$(grep -c '^  [0-9]*  *[0-9.]*%  .*  #*$' "$out")" = 12 ]
finish
