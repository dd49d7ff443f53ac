# --exact holds, whichever way a strategy comes to a run: as an option, by a plan, by a plan that was
# changed by hand; and where it does not hold in what was done, the run says so and fails.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
many=$tmp/many.moe
"$bin/moe-quantize" -q --experts 8,4,2 --method rtn -o "$many" "$checkpoint" || exit 1

awk '/^<\|endoftext\|>$/ { n++ } n < 6 { print }' tests/data/stories.calib.txt >"$tmp/text"
"$bin/moe-profile" -q "$many" --text "$tmp/text" --max-tokens 48 --max-windows 1 -o "$tmp/stats.yaml" \
    --trace "$tmp/t.trace" || exit 1

prompt='Once upon a time, there was a little girl named Lily. She had a red ball and she liked to'
ask() { run "$bin/moe-run" "$many" -p "$prompt" -n 8 --temp 0 --stats-json "$json" "$@"; }
plan() { # FILE OPTION...
    file=$1
    shift
    run "$bin/moe-plan" -q "$many" --trace "$tmp/t.trace" --layer-seconds 2e-4 \
        --link-rate 600MB/s -o "$file" "$@"
}
exact() { # KEY VALUE of the statistics' object "exact"
    sed -n '/^  "exact": {/,/^  }/s/^    "'"$1"'": *\(.*[^,]\),*$/\1/p' "$json" | grep -qx -- "$2"
}
all_low() { [ "$(figure low_precision)" = "$(figure expert_activations)" ]; }
forbids='moe-run: option --exact forbids what may change results:'

ask --strategy resident
want=$(cat "$out")
check "resident is exact as asked" exact as_asked true
check "... and as done" exact as_done true
check "... which nobody had required" exact required false
ask --strategy resident --exact
check "... unless somebody does" exact required true

# ---- Bits of the cache ---------------------------------------------------------------------------

# A plan that keeps 4 bits of 8 has no other part that may change results.
kept=$tmp/kept.yaml
plan "$kept" --expert-memory 4M --strategy fate+prefill=popularity
expect_exit 0 "a plan that keeps experts at 4 bits"
check "... and says so" grep -q 'precision: "4"' "$kept"
ask --plan "$kept"
check "... all that it computes is at low precision" all_low
check "... which is not exact as asked" exact as_asked false
check "... nor as done" exact as_done false
check "... for a reason" exact why "\"--cache-bits 4, experts kept at '4' where the pack has '8'\""
for way in "" "--bench --prompt-tokens 4 -n 2" "--perplexity $tmp/text" \
    "--lockstep" "--memory 100M" "--device test:4,1G"; do
    # shellcheck disable=SC2086 # words are meant
    run "$bin/moe-run" "$many" --plan "$kept" --exact $way
    error_line 2 "$forbids the plan has --cache-bits 4, experts kept at '4' where the pack has '8' (moe-plan --exact makes one without)" \
        "--exact refuses the plan${way:+ with $way}"
done
run "$bin/moe-plan" --explain "$kept"
check "--explain says that it may change what the model says" \
    sh -c "tr -s ' \n' '  ' <'$out' | grep -q \"This may change what the model says: --cache-bits 4, experts kept at '4' where the pack has '8'\""
run "$bin/moe-plan" --explain "$kept" --json
check "... also as JSON" grep -q '"exact": {"as_asked": false, "why": "--cache-bits 4' "$out"

# Nothing but the variant counts: without the part, or without the list of variants, too.
grep -v 'cache-bits' "$kept" >"$tmp/silent.yaml"
run "$bin/moe-run" "$many" --plan "$tmp/silent.yaml" --exact
error_line 2 "$forbids the plan has experts kept at '4' where the pack has '8' (moe-plan*" \
    "--exact refuses a plan that keeps low bits without the part"
run "$bin/moe-plan" --explain "$tmp/silent.yaml"
check "... and --explain says why" grep -q "experts kept at '4'" "$out"
awk '/^[a-z]/ { skip = /^times:/ } !skip { print }' "$kept" >"$tmp/brief.yaml"
run "$bin/moe-run" "$many" --plan "$tmp/brief.yaml" --exact
error_line 2 "$forbids the plan has --cache-bits 4*" "--exact refuses one without times"
run "$bin/moe-plan" --explain "$tmp/brief.yaml"
check "... and --explain says why" grep -q "experts kept at '4'" "$out"

# What --exact plans is exact, and so is what needs no bits.
plan "$tmp/exact.yaml" --expert-memory 4M --strategy fate+prefill=popularity --exact
check "moe-plan --exact keeps the best" grep -q 'precision: "8"' "$tmp/exact.yaml"
ask --plan "$tmp/exact.yaml" --exact
expect_stdout "$want" "... and its plan runs with --exact: the same tokens"
check "... exact as asked" exact as_asked true
check "... and as done" exact as_done true
run "$bin/moe-plan" --explain "$tmp/exact.yaml"
check "... and says that nothing changes" \
    sh -c "tr -s ' \n' '  ' <'$out' | grep -q 'None of this changes what the model says'"
plan "$tmp/roomy.yaml" --memory 200M --strategy fate+prefill=popularity
ask --plan "$tmp/roomy.yaml" --exact
expect_stdout "$want" "with room for all at 8 bits the plan that may keep 4 is exact"
ask --strategy fate --expert-memory 4M --exact -v
expect_stdout "$want" "fate as an option does without: the same tokens"
expect_stderr_like '*strategy fate: *--exact*' "... and says so"
check "... exact as asked" exact as_asked true
ask --strategy fate --expert-memory 4M
check "without --exact it is not" exact as_done false

# ---- Other parts, by plans -----------------------------------------------------------------------

for strategy in "fate" "lru+on-miss=load-low:0" "lru+on-miss=emergency" "lru+skip-below=50%" \
    "hobbit"; do
    plan "$tmp/plan.yaml" --expert-memory 2M --strategy "$strategy"
    expect_exit 0 "a plan of $strategy"
    run "$bin/moe-run" "$many" --plan "$tmp/plan.yaml" --exact
    error_line 2 "$forbids the plan has --*(moe-plan --exact makes one without)" \
        "... which --exact refuses"
    run "$bin/moe-plan" --explain "$tmp/plan.yaml"
    check "... and which says that it may change what the model says" \
        sh -c "tr -s ' \n' '  ' <'$out' | grep -q 'This may change what the model says: --'"
done

# Parts alone, of no strategy of the table, are followed all the same.
plan "$tmp/plan.yaml" --expert-memory 2M --strategy lru+on-miss=emergency
grep -v '^  row:' "$tmp/plan.yaml" >"$tmp/parts.yaml"
ask --plan "$tmp/parts.yaml"
check "a plan of parts alone is followed" [ "$(figure strategy)" = none ]
check "... as they are" [ "$(figure parts)" = "--cache lru --on-miss emergency" ]
check "... and is not exact" exact as_done false
run "$bin/moe-run" "$many" --plan "$tmp/parts.yaml" --exact
error_line 2 "$forbids the plan has --on-miss emergency (moe-plan*" "... which --exact refuses"

# ---- As done -------------------------------------------------------------------------------------

# The stand-in's engine forgets to refuse: the counts still tell.
unchecked=$BUILD/tests/tools/run_unchecked
for way in "-p x -n 2" "--bench --prompt-tokens 4 -n 1" \
    "--perplexity tests/data/stories.valid.txt --max-doc-tokens 8 --max-windows 1"; do
    # shellcheck disable=SC2086 # words are meant
    run "$unchecked" -q "$many" --plan "$kept" --exact $way
    expect_exit 4 "what was done is checked, too: $way"
    expect_stderr_lines 1 "... with one line"
    expect_stderr_like "moe-run: option --exact did not hold: of * activations [1-9]* at low precision" \
        "... that names the counts"
    # shellcheck disable=SC2086 # words are meant
    run "$unchecked" -q "$many" --plan "$tmp/exact.yaml" --exact $way
    expect_exit 0 "... and nothing is amiss with an exact plan"
done
: >"$out"
"$unchecked" -q "$many" --plan "$kept" --exact -p x --ignore-eos >"$out" 2>"$err" &
pid=$!
while [ ! -s "$out" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
kill -INT "$pid"
code=0
wait "$pid" || code=$?
expect_exit 4 "Ctrl-C does not keep it from being checked"
expect_stderr_lines 1 "... with one line"
finish
