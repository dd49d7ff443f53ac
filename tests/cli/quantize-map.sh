# moe-quantize --map: packs of a map, the map's picture, maps that do not fit; and that such packs run.
. tests/cli/lib.sh
quantize=$bin/moe-quantize
all=$tmp/all.moe
"$quantize" -q -o "$all" --method rtn --experts 8,4,2 "$checkpoint"
source=$("$quantize" --list "$all" | sed -n 's/.*source \([0-9a-f]*\)$/\1/p')

# A map of the bundled model: expert e of layer l has the word (l + e) modulo their number.
map() { # FILE WORDS
    awk -v words="$2" -v source="$source" 'BEGIN {
        n = split(words, word, " ")
        print "format: moe-map\nversion: 1\nsource_fingerprint: \"" source "\""
        print "pack_fingerprint: \"0000000000000001\"\ndense_bits: 8\nmax_document_tokens: 256"
        print "shape:\n  moe_layers: 12\n  experts: 32\n  experts_per_token: 4"
        print "  model_layers: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]"
        print "variants: [\"8\", \"4\", \"2\"]\nmetric: nll\ntolerance_percent: 2\nchoice:"
        print "  dense_bits: 8\n  expert_bytes: 0\n  dense_bytes: 0\n  expected_percent: 0\n  layers:"
        for (l = 0; l < 12; l++) {
            line = "    - ["
            for (e = 0; e < 32; e++)
                line = line (e ? ", " : "") "\"" word[(l + e) % n + 1] "\""
            print line "]"
        }
    }' >"$1"
}
map "$tmp/mixed.yaml" "8 4 2 2"
map "$tmp/four.yaml" "4"

run "$quantize" -o "$tmp/mixed.moe" --experts map,2 --map "$tmp/mixed.yaml" "$all"
expect_exit 0 "a pack by a map, and another variant beside it"
expect_stderr_like "*: 12 layers, 384 experts at a map's bits (*) and 2 bits (*" "... says so"
run "$quantize" --verify "$tmp/mixed.moe"
expect_exit 0 "... and is sound"
run "$quantize" --list "$tmp/mixed.moe"
expect_stdout_like '*experts map *rtn * 384 *4.00*
     0  84228422 84228422 84228422 84228422
     1  42284228 42284228 42284228 42284228
*
  bits  8: 96 experts, 4: 96 experts, 2: 192 experts*' "--list draws the map"
check "... without colour" sh -c "! grep -q '$(printf '\033')' '$out'"
check "... and its table has 80 columns" sh -c "! sed '1,/^\$/d' '$out' | grep -q '.\{81\}'"
if command -v script >/dev/null; then
    escape=$(printf '\033')
    coloured() { script -qec "env $1 TERM=xterm $quantize --list $tmp/mixed.moe" /dev/null </dev/null | grep -cF "${escape}[30;48;5;"; }
    check "... on a terminal in colours" [ "$(coloured '-u NO_COLOR')" -gt 11 ]
    check "... but not with NO_COLOR" [ "$(coloured NO_COLOR=1)" = 0 ]
fi
run "$quantize" --list --json "$tmp/mixed.moe"
check "--list --json has it" sh -c "tr -d ' \n' <'$out' |
    grep -q '\"map\":\[{\"layer\":0,\"bits\":\[\"8\",\"4\",\"2\",\"2\",\"8\"'"
run "$quantize" -q -o "$tmp/direct.moe" --method rtn --map "$tmp/mixed.yaml" "$checkpoint"
run "$quantize" -q -o "$tmp/alone.moe" --experts map "$tmp/mixed.moe"
check "the map alone, from the checkpoint and from that pack" cmp -s "$tmp/direct.moe" "$tmp/alone.moe"

# A map that names methods: what a checkpoint's experts are rounded by, unless --method says another.
named() { sed "s/^metric: nll/methods: [$1]\nexpert_group: $2\nmetric: nll/" "$tmp/mixed.yaml" >"$tmp/named.yaml"; }
named '"rtn", "rtn", "rtn"' 64
run "$quantize" -o "$tmp/named.moe" --map "$tmp/named.yaml" "$checkpoint"
expect_exit 0 "a checkpoint by a map that names its method"
expect_stderr_like "*: rounded by rtn, by which $tmp/named.yaml was made; --method names another*" "... says so"
check "... is the pack of that method" cmp -s "$tmp/named.moe" "$tmp/direct.moe"
named '"rtn", "rtn", "rtn"' 32
"$quantize" -q -o "$tmp/named.moe" --map "$tmp/named.yaml" "$checkpoint"
"$quantize" -q -o "$tmp/groups.moe" --method rtn --group 32 --map "$tmp/mixed.yaml" "$checkpoint"
check "... and of its groups" cmp -s "$tmp/named.moe" "$tmp/groups.moe"
run "$quantize" -o "$tmp/named.moe" --method hqq --map "$tmp/named.yaml" "$checkpoint"
check "... --method names another" sh -c "! grep -q 'rounded by' '$err'"
run "$quantize" --list "$tmp/named.moe"
expect_stdout_like '*experts map *hqq *' "... which experts have"
run "$quantize" -o "$tmp/named.moe" --map "$tmp/named.yaml" "$all"
check "... of a pack that has the experts nothing is rounded, nor said" sh -c "! grep -q 'rounded by' '$err'"
named '"copy", "rtn", "rtn"' 64
run "$quantize" -o "$tmp/named.moe" --map "$tmp/named.yaml" "$checkpoint"
expect_exit 0 "what was not rounded names no method"
named '"rtn", "hqq", "hqq"' 64
run "$quantize" -o "$tmp/x.moe" --map "$tmp/named.yaml" "$checkpoint"
error_line 2 "moe-quantize: $tmp/named.yaml: not all that it chose was rounded by one method*" "several methods"
run "$quantize" -o "$tmp/named.moe" --map "$tmp/named.yaml" "$all"
expect_exit 0 "... which a pack's own experts do not need"
sed 's/"4"/"iq2_kt"/g; s/"2"/"q2_k"/g' "$tmp/named.yaml" >"$tmp/types.yaml"
run "$quantize" -o "$tmp/types.moe" --map "$tmp/types.yaml" "$checkpoint"
expect_exit 0 "... nor types, which name their own"
run "$quantize" --list "$tmp/types.moe"
expect_stdout_like '*experts map *mixed *' "... two of them are mixed"
expect_stdout_like '*8: * experts, *iq2_kt: * experts, 2: * experts*' "... and told apart"
check "... nor say" sh -c "! grep -q 'rounded by' '$err'"
named '"gptq", "gptq", "gptq"' 64
run "$quantize" -o "$tmp/x.moe" --map "$tmp/named.yaml" "$checkpoint"
error_line 2 "moe-quantize: $tmp/named.yaml: its experts were rounded by gptq: *" "gptq wants texts"
named '"rtn", "rtn"' 64
run "$quantize" -o "$tmp/x.moe" --map "$tmp/named.yaml" "$all"
expect_exit 3 "a method for each variant"
"$quantize" -q -o "$tmp/older.moe" --map "$tmp/mixed.yaml" "$checkpoint"
"$quantize" -q -o "$tmp/blocks.moe" --method blocks --map "$tmp/mixed.yaml" "$checkpoint"
check "an older map: blocks" cmp -s "$tmp/older.moe" "$tmp/blocks.moe"

sed 's/^  dense_bits: 8/  dense_bits: 4/' "$tmp/mixed.yaml" >"$tmp/dense.yaml"
dense() { # ARGUMENTS...
    "$quantize" -q -o "$tmp/dense.moe" --map "$tmp/dense.yaml" "$@" "$all"
    "$quantize" --list -v "$tmp/dense.moe" | awk '$1 == "embed" { print $2 }'
}
check "its bits of the dense part" [ "$(dense)" = q4 ]
check "... unless --dense says others" [ "$(dense --dense 8)" = q8 ]
sed 's/^  dense_bits: 4/  dense_bits: 6\n  dense_type: q6_k/' "$tmp/dense.yaml" >"$tmp/type.yaml"
for from in "$all" "$checkpoint"; do
    run "$quantize" -o "$tmp/type.moe" --map "$tmp/type.yaml" "$from"
    check "its type of the dense part" sh -c "'$quantize' --list -v '$tmp/type.moe' | grep -q '^  embed *q6_k '"
    check "... without a word on it" sh -c "! grep -q 'dense part' '$err'"
done
run "$quantize" -o "$tmp/type.moe" --map "$tmp/type.yaml" --dense 8 "$all"
expect_stderr_like "*type.moe: a dense part at 8, as --dense says; $tmp/type.yaml chose q6_k for it, and its losses are of that*" \
    "... unless --dense says others, which is said"
run "$quantize" -o "$tmp/type.moe" --map "$tmp/type.yaml" --dense q6_k "$all"
check "... but not if it says the same" sh -c "! grep -q 'dense part' '$err'"
sed 's/^  dense_type: .*/  dense_type: iq2_xxs/' "$tmp/type.yaml" >"$tmp/x.yaml"
run "$quantize" -o "$tmp/x.moe" --map "$tmp/x.yaml" "$all"
error_line 3 "moe-quantize: $tmp/x.yaml: line * column 15: 'iq2_xxs' is no type of 6 bits" "a type that is not written"

# Running them.
tokens() { # PACK ARGUMENTS...
    pack=$1
    shift
    run "$bin/moe-run" -t 1 "$pack" -p "Once upon a time" -n 24 --temp 0 "$@"
}
"$quantize" -q -o "$tmp/four.moe" --map "$tmp/four.yaml" "$all"
"$quantize" -q -o "$tmp/uniform.moe" --experts 4 "$all"
tokens "$tmp/uniform.moe"
expected=$(cat "$out")
tokens "$tmp/four.moe"
expect_stdout "$expected" "all experts at 4 bits: the text of the uniform pack"
tokens "$tmp/mixed.moe" --strategy resident
expected=$(cat "$out")
check "a mixed pack runs" [ "$code" = 0 ] && check "... and says something" [ -n "$expected" ]
memory=$(smallest_memory "$bin/moe-run" "$tmp/mixed.moe")
for strategy in ondemand lru prefetch; do
    tokens "$tmp/mixed.moe" --strategy $strategy --memory "${memory}M"
    expect_stdout "$expected" "the same in ${memory} MiB with $strategy"
done
tokens "$tmp/mixed.moe" --strategy hobbit --expert-memory 2M --stats-json "$tmp/stats.json"
expect_exit 0 "hobbit takes the uniform variant for its lower precision"
check "... now and then" sh -c "! grep -q '\"low_precision\": 0,' '$tmp/stats.json'"

# Maps for several tolerances: each runs as the pack of it alone, and the memory decides where it can.
sed 's/^tolerance_percent: 2/tolerance_percent: 5/' "$tmp/four.yaml" >"$tmp/four5.yaml"
run "$quantize" -q -o "$tmp/several.moe" --map "$tmp/four5.yaml" --map "$tmp/mixed.yaml" "$all"
expect_exit 0 "a pack with two maps"
run "$quantize" --list "$tmp/several.moe"
expect_stdout_like '*map for a tolerance of 2% of the nats: experts of 8.62 MiB, +0.00% on its texts
  map for a tolerance of 5% of the nats: experts of 9.00 MiB, *' "... lists them"
for map in four5 mixed; do
    sed 's/^tolerance_percent/tolerance_points/; s/^metric: nll/metric: top1/; s/expected_percent/expected_points/' "$tmp/$map.yaml" \
        >"$tmp/$map-points.yaml"
done
run "$quantize" -q -o "$tmp/copy.moe" --map "$tmp/four5-points.yaml" --map "$tmp/mixed-points.yaml" "$all"
run "$quantize" --list "$tmp/copy.moe"
expect_stdout_like '*map for a tolerance of 2 points: experts of 8.62 MiB, +* points on its texts
  map for a tolerance of 5 points: *' "... also of maps whose tolerances are in points"
run "$bin/moe-plan" -q "$tmp/copy.moe" --tolerance 5% --expert-memory 2M --max-tokens 40 --layer-seconds 2e-4 --link-rate 200M \
    -o "$tmp/points.plan"
run "$bin/moe-plan" --explain "$tmp/points.plan"
tr -s ' \n' ' ' <"$out" >"$tmp/line"
check "... in plans" grep -q 'map for a tolerance of 5 points, which lost +[0-9.]* points on its texts' "$tmp/line"
tokens "$tmp/copy.moe" --plan "$tmp/points.plan" --stats-json "$tmp/points.json"
check "... in statistics" grep -q '"expert_map_unit": "points"' "$tmp/points.json"
run "$quantize" -q -o "$tmp/copy.moe" "$tmp/several.moe"
check "... which a copy keeps" cmp -s "$tmp/several.moe" "$tmp/copy.moe"
tokens "$tmp/all.moe"
best=$(cat "$out")
tokens "$tmp/several.moe"
expect_stdout "$best" "without a tolerance: its best precision"
tokens "$tmp/several.moe" --tolerance 2% --memory 512M
expect_stdout "$best" "... and where that fits"
expect_stderr_like "*--tolerance 2%: all experts fit at their best precision*" "... says so"
for strategy in ondemand hobbit; do
    tokens "$tmp/mixed.moe" --strategy $strategy --expert-memory 2M
    expected=$(cat "$out")
    tokens "$tmp/several.moe" --tolerance 2% --strategy $strategy --expert-memory 2M
    expect_stdout "$expected" "a tolerance of the first map, $strategy: as the pack of that map"
done
expect_stderr_like "*map for a tolerance of 2% of the nats: experts of 8.62 MiB*" "... says so"
tokens "$tmp/several.moe" --tolerance 2% --expert-memory 2M --stats-json "$tmp/several.json"
check "... and so do the statistics" grep -q '"expert_map_tolerance": 2' "$tmp/several.json"
check "... in percent" grep -q '"expert_map_unit": "percent"' "$tmp/several.json"
run "$bin/moe-plan" "$tmp/several.moe" --tolerance 2% --expert-memory 2M --max-tokens 40 --layer-seconds 2e-4 --link-rate 200M \
    -o "$tmp/several.plan"
expect_stderr_like "*map for a tolerance of 2%*" "a plan with a tolerance says so"
fingerprint=$("$bin/moe-quantize" --list "$tmp/several.moe" | sed -n 's/.*, source //p')
printf '%s\n' 'format: moe-device' 'version: 1' 'name: "a machine"' 'host:' '  memory_bytes_per_second: 10e9' 'storage:' \
    '  bytes_per_second: 200e6' 'model:' "  source_fingerprint: \"$fingerprint\"" '  layers: 12' '  moe_layers: 12' \
    '  experts_per_token: 4' '  positions: 64' '  head_seconds: 1e-4' '  variants:' '    - name: "8"' '      bytes: 49152' \
    '    - name: "2"' '      bytes: 24576' '  batches:' '    - rows: 1' '      attention_seconds: 1e-5' \
    '      router_seconds: 1e-6' '      shared_seconds: 1e-6' '      combine_seconds: 1e-6' '      expert_rows: 1' \
    '      expert_seconds:' '        "8": 8e-6' '        "2": 2e-6' >"$tmp/machine.yaml"
run "$bin/moe-plan" "$tmp/several.moe" --tolerance 2% --expert-memory 2M --max-tokens 40 --device-profile "$tmp/machine.yaml" \
    -o "$tmp/measured.plan"
expect_exit 0 "... also on a machine that was measured with the pack, whose experts have no map there"
tokens "$tmp/mixed.moe" --strategy ondemand --expert-memory 2M
expected=$(cat "$out")
tokens "$tmp/several.moe" --plan "$tmp/several.plan"
expect_stdout "$expected" "... and a run of it takes the same map"
# One pack, three budgets: the map for the smaller tolerance, for the larger one, none.
map "$tmp/small.yaml" "8 4"
map "$tmp/large.yaml" "4 2"
sed -i 's/^tolerance_percent: 2/tolerance_percent: 5/' "$tmp/large.yaml"
"$quantize" -q -o "$tmp/sizes.moe" --map "$tmp/small.yaml" --map "$tmp/large.yaml" "$all"
for budget in 40M 14M:2 8M:5; do
    run "$bin/moe-plan" -q "$tmp/sizes.moe" --tolerance 5% --expert-memory "${budget%:*}" --max-tokens 40 --layer-seconds 2e-4 \
        --link-rate 200M -o "$tmp/sizes.plan"
    run "$bin/moe-plan" --explain "$tmp/sizes.plan"
    tr -s ' \n' ' ' <"$out" >"$tmp/line"
    case $budget in
    *:*) check "--explain says which map ${budget%:*} takes" \
        grep -q "Experts have the precisions of the pack's map for a tolerance of ${budget#*:}% of the nats, which" "$tmp/line" ;;
    *) check "... and that $budget takes none" sh -c "grep -q 'Experts are stored at 8 bits' '$out'" ;;
    esac
    run "$bin/moe-run" -q "$tmp/sizes.moe" -p "Once" -n 4 --temp 0 --tolerance 5% --expert-memory "${budget%:*}" --stats-json "$tmp/sizes.json"
    # Half the memory is planned with the map that moe-run takes there: of 14 MB the other one, of 8 MB the same.
    check "... with what half the memory takes" [ "$(sed -n 's/.*times: 0.5, precision: "\([^"]*\)".*/\1/p' "$tmp/sizes.plan")" = \
        "$([ "$budget" = 14M:2 ] && echo 'map for 5%')" ]
    check "... as moe-run does" [ "$(sed -n 's/.*"expert_map_tolerance": \([0-9]*\).*/\1/p' "$tmp/sizes.json")" = "$(echo "$budget" | sed -n 's/.*://p')" ]
done
# What is in pages takes more than its bytes: a memory just below that of all experts takes a map.
for memory in 17M: 16400K:2 12800K:5; do
    run "$bin/moe-run" -q "$tmp/sizes.moe" -p "Once" -n 1 --temp 0 --tolerance 5% --expert-memory "${memory%:*}" --stats-json "$tmp/sizes.json"
    check "all experts fit into ${memory%:*}" grep -q '"cache_slots": 0' "$tmp/sizes.json"
    check "... by the map for '${memory#*:}'" [ "$(sed -n 's/.*"expert_map_tolerance": \([0-9]*\).*/\1/p' "$tmp/sizes.json")" = "${memory#*:}" ]
done
tokens "$tmp/several.moe" --tolerance 1% --expert-memory 2M
expect_stdout "$best" "a tolerance below all maps'"
expect_stderr_like "*the pack's first map is for 2% of the nats*" "... says so"
printf '{"custom_id":"a","url":"/v1/completions","body":{"prompt":"Once","max_tokens":4,"temperature":0,"logprobs":1}}\n' >"$tmp/r.jsonl"
probabilities() { "$bin/moe-serve" -q "$@" --memory 64M --requests "$tmp/r.jsonl" -o - | sed 's/.*"token_logprobs":\([^]]*\).*/\1/'; }
check "moe-serve takes it too" [ "$(probabilities "$tmp/several.moe" --tolerance 2%)" = "$(probabilities "$tmp/mixed.moe")" ]
check "... and another one" [ "$(probabilities "$tmp/several.moe" --tolerance 5%)" = "$(probabilities "$tmp/four.moe")" ]
tokens "$tmp/all.moe" --tolerance 1%
error_line 2 "moe-run: $tmp/all.moe: has no maps for tolerances*" "a tolerance without maps"

# What does not fit.
refused() { # CODE GLOB NAME ARGUMENTS...
    status=$1 glob=$2 name=$3
    shift 3
    run "$quantize" -q -o "$tmp/no.moe" "$@"
    error_line "$status" "moe-quantize: $glob" "$name"
    check "... and nothing is left" [ ! -e "$tmp/no.moe" ]
}
sed 's/^source_fingerprint:.*/source_fingerprint: "00000000000000aa"/' "$tmp/mixed.yaml" >"$tmp/other.yaml"
sed '/^choice:/,$d' "$tmp/mixed.yaml" >"$tmp/none.yaml"
sed 's/"4"/"map"/g' "$tmp/mixed.yaml" >"$tmp/odd.yaml"
for of in "$all" "$checkpoint"; do
    refused 3 "$tmp/other.yaml: made for another model *" "a map of another model" --map "$tmp/other.yaml" "$of"
done
echo 'Once upon a time' >"$tmp/line"
refused 3 "$tmp/other.yaml: made for another model (source 00000000000000aa, this one's is *); *" "... of a checkpoint with texts" \
    --method best --text "$tmp/line" --map "$tmp/other.yaml" "$checkpoint"
check "... names no file without a name" sh -c "! grep -q /proc/ '$err'"
run "$quantize" -o "$tmp/narrow.moe" --experts iq4_xs,q6_k "$all"
expect_stderr_like '*narrow.moe: rows of 192 columns are too narrow for iq4_xs: they have 4 bits by hqq*' "a type that rows have no room for"
run "$quantize" -o "$tmp/narrow.moe" --experts q6_k "$all"
check "... of one that they have room for nothing is said" sh -c "! grep -q 'too narrow' '$err'"
run "$quantize" -o "$tmp/narrow.moe" --dense iq4_xs "$all"
expect_stderr_like '*narrow.moe: rows of 192 columns are too narrow for iq4_xs: *' "... the dense part, too"
gptq="--method gptq --text $tmp/line --experts map"
# shellcheck disable=SC2086
"$quantize" -q -o "$tmp/aware.moe" $gptq --map "$tmp/four.yaml" "$all"
# shellcheck disable=SC2086
run "$quantize" -q -o "$tmp/again.moe" $gptq "$tmp/aware.moe"
expect_exit 0 "a map that is gptq's already is copied"
# shellcheck disable=SC2086
refused 2 "$tmp/alone.moe: its best variant is 'map', method gptq needs a better one *" "... that is not is made of nothing" $gptq "$tmp/alone.moe"
refused 3 "$tmp/none.yaml: has importances but no choice of variants*" "a map without a choice" --map "$tmp/none.yaml" "$all"
refused 3 "$tmp/odd.yaml: *'map', which is neither a bitwidth nor a type*" "a map of variants that are no bits" --map "$tmp/odd.yaml" "$all"
refused 3 "$all: *" "a pack for a map" --map "$all" "$all"
refused 1 "$tmp/nowhere: *" "a map that is not there" --map "$tmp/nowhere" "$all"
refused 2 "*do not name 'map'*" "a map that no variant takes" --map "$tmp/mixed.yaml" --experts 4 "$all"
refused 2 "*no map is given*" "a variant without its map" --experts map "$checkpoint"
for of in "$tmp/mixed.yaml:$tmp/mixed.yaml: is for a tolerance of 2, as $tmp/mixed.yaml is" "$tmp/dense.yaml:$tmp/dense.yaml: gives the dense part 4 bits*"; do
    refused 2 "${of#*:}" "two maps: ${of#*: }" --map "$tmp/mixed.yaml" --map "${of%%:*}" "$all"
done
refused 3 "$tmp/mixed.yaml: chooses the variant '8' for layer 0 expert 0, which*" "two maps of bits that are not there" \
    --map "$tmp/mixed.yaml" --map "$tmp/four5.yaml" "$tmp/uniform.moe"
refused 2 "several maps go into a copy of a pack*" "two maps of a checkpoint" --map "$tmp/mixed.yaml" --map "$tmp/four5.yaml" "$checkpoint"
run "$quantize" --list --map "$tmp/mixed.yaml" "$all"
error_line 2 "moe-quantize: options --list and --map exclude each other*" "--list with a map"
finish
