# moe-plan --explain: every figure of the text computed independently from the plan, and from
# what moe-profile and moe-quantize say about statistics and packs.
. tests/cli/lib.sh
pack
plan="$bin/moe-plan"

squeeze() { tr -s ' \n' ' '; }
number() { sed -n "s/.*\"$1\": *\\([-+.0-9e]*\\).*/\\1/p"; }

# Every fragment that the awk program makes of the plan stands in its explanation.
recomputed() { # PLAN NAME
    run "$plan" --explain "$1"
    expect_exit 0 "$2 is explained"
    squeeze <"$out" >"$tmp/text"
    awk -f tests/cli/plan-explain.awk "$1" | tr -s ' ' >"$tmp/fragments"
    missing=
    while IFS= read -r fragment; do
        grep -qF -e "$fragment" "$tmp/text" || missing="$missing|$fragment"
    done <"$tmp/fragments"
    check "its figures follow from the plan (missing: ${missing:-none})" [ -z "$missing" ]
    check "... many of them" [ "$(wc -l <"$tmp/fragments")" -ge "${3:-20}" ]
    check "two screens, and its alternatives" [ "$(wc -l <"$out")" -le "$(grep -q '^What if' "$out" && echo 120 || echo 100)" ]
    check "80 columns" [ "$(awk 'length > n { n = length } END { print n + 0 }' "$out")" -le 80 ]
}

# Bounds in JSON: they add up, and the largest is named.
bounds() { # PLAN
    run "$plan" --explain "$1" --json
    expect_exit 0 "as JSON"
    awk -v total="$(number total_seconds <"$out")" -v a="$(number computation_seconds <"$out")" \
        -v b="$(number link_seconds <"$tmp/bounds")" -v c="$(number prediction_seconds <"$out")" '
        BEGIN { exit !(total >= 0 && (a + b + c - total) ^ 2 <= (1e-9 * total) ^ 2) }'
}

for row in full fate lru resident shape; do
    recomputed "tests/fuzz/corpus/plan/$row" "the plan '$row'" 1
    run "$plan" --explain "tests/fuzz/corpus/plan/$row" --json
    sed 's/.*"bounds"//' "$out" >"$tmp/bounds"
    check "the parts of a token's time add up" bounds "tests/fuzz/corpus/plan/$row"
done
sed '/loads_over_bus/d; s/^  head_seconds/  load_piece_seconds: 9.5e-06\n&/' tests/fuzz/corpus/plan/full >"$tmp/disk.yaml"
recomputed "$tmp/disk.yaml" "a plan whose disk takes time beside the bytes" 1
# A changed figure is noticed.
sed 's/stall_seconds: 0.03/stall_seconds: 0.04/' tests/fuzz/corpus/plan/full >"$tmp/changed.yaml"
"$plan" --explain tests/fuzz/corpus/plan/full | squeeze >"$tmp/text"
awk -f tests/cli/plan-explain.awk "$tmp/changed.yaml" | tr -s ' ' >"$tmp/fragments"
check "another plan's figures are not in it" sh -c \
    "! grep -qF -e \"\$(grep 'waits for the [bd]' '$tmp/fragments')\" '$tmp/text'"

# Statistics, against moe-profile --show --json.
head -c 3000 tests/data/math.valid.txt >"$tmp/text" # plans take as long as their trace
"$bin/moe-profile" -q "$tiny" --text "$tmp/text" --max-tokens 32 -o "$tmp/s.yaml" \
    --trace "$tmp/t.trace"
"$bin/moe-profile" --show --json "$tmp/s.yaml" >"$tmp/shown"
run "$plan" --explain "$tmp/s.yaml"
expect_exit 0 "statistics are explained"
squeeze <"$out" >"$tmp/text"
all=$(sed 's/.*"all"://; s/"layers":.*//' "$tmp/shown")
figure() { echo "$all" | sed -n "s/.*\"$1\":\\([-.0-9e+]*\\).*/\\1/p"; }
says() { check "... $1" grep -qF -e "$2" "$tmp/text"; }
percent() { awk -v x="$1" 'BEGIN { printf "%.1f%%", 100 * x }'; }
skew=$(echo "$all" | sed 's/{"skew":\([.0-9]*\).*/\1/')
says "how uneven use is" "does $(percent "$skew") of its work over all texts, $(percent "$(figure document_skew)") within"
says "what is used again" "experts $(percent "$(figure active)") were also used by the token before it; by chance it would be 12.5%"
says "what counts for the placement" "the rest of each text counts"
says "prompts and the rest" "agree by $(awk -v x="$(sed 's/.*"prompt_to_rest":\([.0-9]*\).*/\1/' "$tmp/shown")" 'BEGIN { printf "%.3f", x }')"
for predictor in previous gate-1 gate-2 gate-3 attention attention-1 residual-1 residual-3; do
    in_k=$(echo "$all" | sed "s/.*\"$predictor\":{\"top1\":[^}]*\"in_k\":\\([.0-9]*\\).*/\\1/")
    quarter=$(echo "$all" | sed "s/.*\"$predictor\":{\"top1\":[^}]*\"in_p75\":\\([.0-9]*\\).*/\\1/")
    says "predictor $predictor" "$predictor $(percent "$in_k") $(percent "$quarter")"
done
run "$plan" --explain "$tmp/s.yaml" --json
expect_stdout_like "{\"texts\": *\"skew\": $skew, *\"boundary\": *}" "as JSON"

# Plans of the bundled model: one with loads, one in which everything is in memory.
memory=$(($(smallest_memory "$plan" "$tiny") + 7))M
machine="--layer-seconds 2e-4 --link-rate 600MB/s"
# shellcheck disable=SC2086 # options
"$plan" -q "$tiny" --memory "$memory" --stats "$tmp/s.yaml" --trace "$tmp/t.trace" $machine \
    --strategy fate --max-tokens 400 -o "$tmp/fate.yaml"
recomputed "$tmp/fate.yaml" "a plan with loads" 35
run grep -c 'times_stated: true' "$tmp/fate.yaml"
expect_stdout_like "1" "a stated time of a layer is in the plan"
run grep -c times-from-bandwidth "$tmp/fate.yaml"
expect_stdout_like "0" "and no doubt of bandwidth beside it"
# shellcheck disable=SC2086
"$plan" -q "$tiny" --memory 100M --trace "$tmp/t.trace" $machine --strategy resident \
    --max-tokens 400 -o "$tmp/resident.yaml"
recomputed "$tmp/resident.yaml" "a resident plan" 12

# A pack, against moe-quantize --list and the budget that moe-run refuses.
run "$plan" --explain "$tiny" --json
expect_exit 0 "a pack is explained as JSON"
cp "$out" "$tmp/pack.json"
"$bin/moe-quantize" --list --json "$tiny" >"$tmp/listed"
check "the experts' bytes are those of the list" \
    grep -q "\"memory_bytes\": *$(number bytes <"$tmp/pack.json")[,}]" "$tmp/listed"
token=$(number token_bytes <"$tmp/pack.json")
all=$(number all_expert_bytes <"$tmp/pack.json")
check "a token visits 4 of 32 experts" [ $((token * 8)) = "$all" ]
run "$plan" --explain "$tiny"
squeeze <"$out" >"$tmp/text"
says "what a token visits" "A token visits 48 experts: $(awk -v t="$token" -v a="$all" \
    'BEGIN { printf "%.2f MiB of %.2f MiB, 12.5%%", t / 2^20, a / 2^20 }')"
says "... and what its experts take in all" "384 experts at 4 bits (4.50 with scales): $(awk -v a="$all" \
    'BEGIN { printf "%.2f MiB in whole pages, %.2f KiB each", a / 2^20, a / 384 / 1024 }')"
smallest=$(sed -n 's/.*(--memory \([0-9]*\)M).*/\1/p' "$tmp/text")
run "$bin/moe-run" "$tiny" --memory "${smallest}M" -t 1 --strategy ondemand -p Once -n 2 --temp 0
expect_exit 0 "the smallest budget works"
run "$bin/moe-run" "$tiny" --memory "$((smallest - 4))M" -t 1 --strategy ondemand -p Once -n 2
expect_exit 4 "4 MiB less does not"
"$bin/moe-quantize" -q -o "$tmp/loop.moe" "$drawn/inkling2-loop-a"
run "$plan" --explain "$tmp/loop.moe"
squeeze <"$out" >"$tmp/text"
says "layers are not their visits" "a model of 5 layers in 9 visits; 5 of them have 6 experts (blocks of weights); a token uses 3 of them in each visit."
says "... whose experts may be the same" "A token visits at most 27 experts:"
"$bin/moe-profile" -q "$tmp/loop.moe" --text tests/data/math.valid.txt --max-tokens 8 -o "$tmp/loop.yaml" --trace "$tmp/loop.trace"
run "$plan" --explain "$tmp/loop.trace"
squeeze <"$out" >"$tmp/text"
says "... nor are a trace's" "5 MoE layers in 9 visits, 6 experts, 3 per token and visit"
run "$bin/moe-run" "$tmp/loop.moe" -p a -n 2 --ignore-eos --stats
squeeze <"$err" >"$tmp/text"
says "... nor does a run say more" "one token visits at most "

# Damaged and other files.
run "$plan" --explain "$tmp/none"
error_line 1 "moe-plan: $tmp/none: *" "a missing file"
head -c 200 tests/fuzz/corpus/plan/full >"$tmp/cut.yaml"
run "$plan" --explain "$tmp/cut.yaml"
error_line 3 "moe-plan: $tmp/cut.yaml: *" "a cut plan"
head -c 3000 "$tmp/t.trace" >"$tmp/cut.trace"
run "$plan" --explain "$tmp/cut.trace"
error_line 3 "moe-plan: $tmp/cut.trace: *" "a cut trace"
run "$plan" --explain README.md
error_line 3 "moe-plan: README.md: *" "a file of another kind"
run "$plan" --explain "$tmp/s.yaml" --memory 1G
error_line 2 "moe-plan: options --explain and --memory exclude each other*" "options that do not belong"
finish
