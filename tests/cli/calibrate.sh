# moe-calibrate: what scripts rely on. The same file whatever the threads, shards and interruptions;
# what a map says is what moe-run --kv f32 then measures on the pack made from it.
. tests/cli/lib.sh
run "$bin/moe-calibrate" --help
expect_exit 0 "--help exits with 0"
check "--help fits 80 columns" sh -c "! grep -q '.\{81\}' '$out'"
run "$bin/moe-calibrate"
error_line 2 'moe-calibrate: nothing to do*(see moe-calibrate --help)' "nothing to do"
pack
run "$bin/moe-calibrate" "$tiny" --text tests/data/math.calib.txt
error_line 2 'moe-calibrate: no output given*' "no output"
run "$bin/moe-calibrate" "$tiny" --text tests/data/math.calib.txt -o "$tmp/x" --tolerance 20
error_line 2 "moe-calibrate: option --tolerance: '20' is not*" "a tolerance of 2000%"
run "$bin/moe-calibrate" "$tiny" --text tests/data/math.calib.txt -o "$tmp/x" --dense 7
error_line 2 "moe-calibrate: option --dense: '7' is not a list*, q6_k, *, iq3_kt *" "seven bits"
run "$bin/moe-calibrate" "$tiny" --text tests/data/math.calib.txt -o "$tmp/x"
error_line 2 "moe-calibrate: $tiny: has experts at 4 bits only*moe-quantize --experts*" "one variant"
check "... leaves no file" [ ! -e "$tmp/x" ]

# A pack of three bitwidths of six layers; texts of a few documents.
cut=$tmp/cut
"$BUILD/tests/tools/widen" --layers 6 "$checkpoint" "$cut"
head_of() { awk -v n="$2" '/^<\|endoftext\|>$/ { k++ } k < n' "tests/data/$1.txt"; }
"$bin/moe-quantize" -q --method rtn --experts 8,4,2 -o "$tmp/all.moe" "$cut" || exit 1
head_of math.calib 2 >"$tmp/two.txt"
run "$bin/moe-calibrate" "$tmp/all.moe" --text "$tmp/two.txt" -o "$tmp/x" --dense 5 --tolerance 1%
error_line 2 "moe-calibrate: $tmp/all.moe: its dense part cannot be rounded to 5 bits by rtn in groups of 64*" "five bits of rtn"
run "$bin/moe-calibrate" "$tmp/all.moe" --text "$tmp/two.txt" -o "$tmp/five" --dense 5 --method blocks --tolerance 1% \
    --without fate,hobbit
expect_exit 0 "... which blocks have"
run "$bin/moe-calibrate" --show "$tmp/five"
expect_stdout_like '*experts 8 * dense 5 *' "... and are measured at"
rm -f "$tmp/x" "$tmp/five"
head_of math.calib 3 >"$tmp/math.txt"
head_of code.calib 1 >"$tmp/code.txt"
head_of math.valid 3 >"$tmp/check.txt"
calibrate() {
    "$bin/moe-calibrate" -q "$tmp/all.moe" --text "$tmp/math.txt" --text "$tmp/code.txt" \
        --max-tokens 12 --max-windows 1 "$@"
}
run "$bin/moe-calibrate" "$tmp/all.moe" --text "$tmp/none" -o "$tmp/x"
error_line 1 "moe-calibrate: $tmp/none*" "a text that is not there"
: >"$tmp/empty"
run "$bin/moe-calibrate" "$tmp/all.moe" --text "$tmp/empty" -o "$tmp/x"
error_line 3 "moe-calibrate: $tmp/empty: has no text to predict" "an empty text"
run calibrate --dense 16 -o "$tmp/x"
error_line 2 "moe-calibrate: $tmp/all.moe: the dense part has 8 bits, 16 cannot be made of them" \
    "more dense bits than there are"

# What it would take is told beforehand; these texts are so short that all of their documents are tried.
told() { sed -n "s/^  \"$1\": \([0-9.]*\),\{0,1\}\$/\1/p" "$out"; }
run calibrate --dry-run
expect_exit 0 "--dry-run, without an output"
expect_stdout_like "documents 4, with * tokens*at least *experts   192*a pass *4 of them were tried*passes*last  *" \
    "... says what it would take"
run calibrate --dry-run --json
whole=$(told passes_importances)
least=$(told memory_least)
run calibrate --dry-run --json --expert-memory 1M,2M --without bits
check "ways to load less are counted, and no importances where none are measured" \
    [ "$(told passes_importances) $(told passes_savings_most)" = "0 68" ]
check "... with their time" awk -v all="$(told seconds_savings_most)" 'BEGIN { exit !(all > 0) }'
run calibrate --dry-run --routing-tolerance 1% --routing-cache 1M --without bits
expect_stdout_like "*routing   up to * s (8.0 passes, a token at a time): how far to prefer cached experts*" "so are those of routing towards the cache"
run calibrate --dry-run --json --shard 1/2 -o "$tmp/x"
check "half of the experts take between half of the passes and all of them" \
    awk -v w="$whole" -v h="$(told passes_importances)" 'BEGIN { exit !(w > 10 && h > w / 2 && h < w) }'
check "... and no file is made" [ ! -e "$tmp/x" ]
run calibrate --dry-run --json --memory "$((least - (4 << 20)))"
expect_exit 4 "a budget that is too small for it"
run "$bin/moe-calibrate" --show --dry-run "$tmp/x"
error_line 2 "moe-calibrate: options --show and --dry-run exclude each other*" "--dry-run of something else"

run calibrate -t 1 --tolerance 3% --dense 8,4 --check "$tmp/check.txt" -o "$tmp/one.yaml"
error_line 4 "moe-calibrate: $tmp/one.yaml: the tolerance of 3% does not hold on the checks: *for prompts at low precision: *" \
    "a calibration, whose choices do not hold on the checks"
check "no partial file is left" [ ! -e "$tmp/one.yaml.part" ]
run calibrate --from "$tmp/one.yaml" --dry-run --json
check "with the importances there is nothing to measure" [ "$(told experts_known) $(told passes_importances)" = "192 0" ]
# Two threads measure the importances of the shards below; here they search with those of one.
run calibrate -t 2 --from "$tmp/one.yaml" --tolerance 3% --dense 8,4 --check "$tmp/check.txt" -o "$tmp/two.yaml"
check "two threads give the same file" cmp "$tmp/one.yaml" "$tmp/two.yaml"
run "$bin/moe-calibrate" --show "$tmp/one.yaml"
expect_stdout_like '*Uniform bitwidths*Importance, measured*Choice for a tolerance of 3%*Prompts:*Misses: T1*' \
    "--show tells all parts"
check "... in plain characters" sh -c "! LC_ALL=C grep -q '[^ -~]' '$out'"
run "$bin/moe-calibrate" --show --json "$tmp/one.yaml"
expect_stdout_like '*"format":"moe-map"*"importances"*"choice"*' "--json has them too"
run "$bin/moe-calibrate" --show "$tiny"
expect_exit 3 "a pack is no map"
head -c 3000 "$tmp/one.yaml" >"$tmp/cut.yaml"
run "$bin/moe-calibrate" --show "$tmp/cut.yaml"
expect_exit 3 "a map that is cut off"

# The choice is what moe-run measures on the pack that follows it: the texts' nats, in sum.
figure() { "$bin/moe-calibrate" --show --json "$1" | sed -n "s/.*\"choice\":{[^{]*\"loss\":{[^}]*\"nats_per_token\":\([0-9.e+-]*\).*/\1/p"; }
run "$bin/moe-quantize" -q --map "$tmp/one.yaml" -o "$tmp/mixed.moe" "$tmp/all.moe"
expect_exit 0 "a pack that follows it"
nats() { "$bin/moe-run" "$1" --kv f32 --perplexity "$2" --max-doc-tokens 12 --max-windows 1 --json; }
{ nats "$tmp/mixed.moe" "$tmp/math.txt"; nats "$tmp/mixed.moe" "$tmp/code.txt"; } >"$tmp/nats"
measured=$(sed 's/.*"nll": \([0-9.]*\), "tokens": \([0-9]*\),.*/\1 \2/' "$tmp/nats" |
    awk '{ s += $1 * $2; n += $2 } END { printf "%.5f", s / n }')
said=$(figure "$tmp/one.yaml")
check "the pack's nats are the map's ($said)" \
    awk "BEGIN { exit !(\"$said\" != \"\" && $measured - ${said:-0} < 2e-5 && ${said:-0} - $measured < 2e-5) }"

check "the map names the methods of the pack's variants" grep -q '^methods: \[rtn, rtn, rtn\]$' "$tmp/one.yaml"
check "... and their group" grep -q '^expert_group: 64$' "$tmp/one.yaml"
check "the map names the method of its dense part, the pack's" grep -q '^dense_method: rtn$' "$tmp/one.yaml"

# The dense part is rounded by the method named, or by the pack's, and so is the pack that follows.
nats_of() { # PACK: of both texts
    { nats "$1" "$tmp/math.txt"; nats "$1" "$tmp/code.txt"; } |
        sed 's/.*"nll": \([0-9.]*\), "tokens": \([0-9]*\),.*/\1 \2/' |
        awk '{ s += $1 * $2; n += $2 } END { printf "%.5f", s / n }'
}
quickly="--importance proxy --without fate --without hobbit --tolerance 500% --dense 3"
# shellcheck disable=SC2086 # a list of options
run calibrate $quickly --method linear -o "$tmp/linear.yaml"
check "a method is named" grep -q '^dense_method: linear$' "$tmp/linear.yaml"
"$bin/moe-quantize" -q --map "$tmp/linear.yaml" -o "$tmp/linear.moe" "$tmp/all.moe"
said=$(figure "$tmp/linear.yaml") measured=$(nats_of "$tmp/linear.moe")
check "... and costs what the map says ($said)" \
    awk "BEGIN { exit !(\"$said\" != \"\" && ($measured - ${said:-0}) ^ 2 < 4e-10) }"
aware="--method gptq --text $tmp/math.txt --text $tmp/code.txt --max-tokens 12 --max-windows 1"
# shellcheck disable=SC2086
"$bin/moe-quantize" -q $aware --experts 8,4,2 -o "$tmp/aware.moe" "$cut" || exit 1
# shellcheck disable=SC2086
run "$bin/moe-calibrate" -q "$tmp/aware.moe" --text "$tmp/math.txt" --text "$tmp/code.txt" \
    --max-tokens 12 --max-windows 1 $quickly -o "$tmp/aware.yaml"
check "gptq is a pack's own method" grep -q '^dense_method: gptq$' "$tmp/aware.yaml"
# shellcheck disable=SC2086
"$bin/moe-quantize" -q --map "$tmp/aware.yaml" $aware -o "$tmp/aware3.moe" "$tmp/aware.moe"
said=$(figure "$tmp/aware.yaml") measured=$(nats_of "$tmp/aware3.moe")
check "... and costs what the map says ($said)" \
    awk "BEGIN { exit !(\"$said\" != \"\" && ($measured - ${said:-0}) ^ 2 < 4e-10) }"
run "$bin/moe-quantize" -q --map "$tmp/aware.yaml" -o "$tmp/x" "$tmp/aware.moe"
error_line 2 "moe-quantize: $tmp/aware.yaml: its dense part was rounded by gptq*" "gptq wants its texts"
run calibrate --method linear -o "$tmp/x"
error_line 2 "moe-calibrate: option --method needs --dense*" "a method without bits"
# Types of it compete with bitwidths, and the map keeps the one that won, also for a checkpoint.
run calibrate $quickly,q6_k,iq3_kt -o "$tmp/type.yaml"
run "$bin/moe-calibrate" --show "$tmp/type.yaml"
expect_stdout_like '*experts 8 * dense 3 *experts 8 * dense q6_k *experts 8 * dense iq3_kt *Choice *, dense iq3_kt
*' "types of the dense part are measured, and the smallest wins"
"$bin/moe-quantize" -q --map "$tmp/type.yaml" -o "$tmp/type.moe" "$tmp/all.moe"
said=$(figure "$tmp/type.yaml") measured=$(nats_of "$tmp/type.moe")
check "... and costs what the map says ($said)" \
    awk "BEGIN { exit !(\"$said\" != \"\" && ($measured - ${said:-0}) ^ 2 < 4e-10) }"
"$bin/moe-quantize" -q --method rtn --experts 8,4,2 --dense q6_k -o "$tmp/six.moe" "$cut"
run "$bin/moe-calibrate" -q "$tmp/six.moe" --text "$tmp/math.txt" --max-tokens 12 --max-windows 1 --importance proxy \
    --without fate,hobbit --tolerance 500% -o "$tmp/six.yaml"
check "the type of the pack's own" sh -c "grep -A 1 '^  dense_bits: 6' '$tmp/six.yaml' | grep -q '^  dense_type: q6_k'"
"$bin/moe-quantize" -q --map "$tmp/six.yaml" -o "$tmp/type.moe" "$cut"
check "... is that of a pack made of the checkpoint" sh -c "'$bin/moe-quantize' --list -v '$tmp/type.moe' | grep -q '^  embed *q6_k '"

# Of a dense part of several types, a GGUF file's, what has fewer bits than are tried stays, when it is measured and then.
"$bin/moe-quantize" -q --experts 4,2 -o "$tmp/types.moe" tests/fixtures/gguf/mixtral.gguf
for with in "" "--dense 5 --method blocks"; do
    # shellcheck disable=SC2086
    run "$bin/moe-calibrate" -q "$tmp/types.moe" --text "$tmp/math.txt" --max-tokens 12 --max-windows 1 --importance proxy \
        --without fate,hobbit --tolerance 500% $with -o "$tmp/types.yaml"
    run "$bin/moe-quantize" -q --map "$tmp/types.yaml" -o "$tmp/x.moe" "$tmp/types.moe"
    check "a dense part of several types${with:+, $with}: its map is followed" [ "$code" = 0 ]
    said=$(figure "$tmp/types.yaml") measured=$(nats "$tmp/x.moe" "$tmp/math.txt" | sed 's/.*"nll": \([0-9.]*\),.*/\1/')
    check "... and costs what the map says ($said)" \
        awk "BEGIN { exit !(\"$said\" != \"\" && ($measured - ${said:-0}) ^ 2 < 4e-10) }"
    check "... with matrices of fewer bits as they are" sh -c "'$bin/moe-quantize' --list -v '$tmp/x.moe' | grep -q '^  embed *q4_0 '"
done
run "$bin/moe-quantize" -q --map "$tmp/types.yaml" --dense 5 -o "$tmp/x.moe" "$tmp/types.moe"
error_line 2 "moe-quantize: $tmp/types.moe: tensor 'embed' has 4 bits, 5 cannot be made of them; *" "... unless --dense names these bits"

# So are the losses of Fate's p and HOBBIT's thresholds those of moe-run's own strategies: nothing
# cached, so that every activation follows them.
"$bin/moe-quantize" -q --experts 4,2 -o "$tmp/two.moe" "$tmp/all.moe" || exit 1
member() { # SECTION MEMBER: a number of --json
    "$bin/moe-calibrate" --show --json "$tmp/one.yaml" |
        sed -n "s/.*\"$1\":{\(.*\)/\1/p" | sed -n "s/[^}]*\"$2\":\([0-9.e+-]*\).*/\1/p"
}
weighted() { # OPTION...: nats per token of both texts
    for text in "$tmp/math.txt" "$tmp/code.txt"; do
        "$bin/moe-run" "$tmp/two.moe" --kv f32 --strategy ondemand "$@" --perplexity "$text" \
            --max-doc-tokens 12 --max-windows 1 --json
    done | sed 's/.*"nll": \([0-9.]*\), "tokens": \([0-9]*\),.*/\1 \2/' |
        awk '{ s += $1 * $2; n += $2 } END { printf "%.5f", s / n }'
}
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && (a - b) ^ 2 < 4e-10) }'; }
p=$(member fate share)
check "fate's share p ($p) costs what moe-run measures" \
    near "$(weighted --prefill "hybrid:$p")" "$(member fate nats_per_token)"
t1=$(member hobbit t1)
t2=$(member hobbit t2)
set -- --on-miss "load-low:$t1" --prompt-share 0
[ "$t2" = 1 ] || set -- "$@" --skip-below "$(awk -v t2="$t2" 'BEGIN { print 1 - t2 }')"
check "hobbit's thresholds ($t1, $t2) cost what moe-run measures" \
    near "$(weighted "$@")" "$(member hobbit nats_per_token)"

# With statistics and a trace: weights of the cache that are no worse than its own.
"$bin/moe-profile" -q "$tmp/all.moe" --text "$tmp/math.txt" --max-tokens 12 --max-windows 1 -o "$tmp/stats.yaml" \
    --trace "$tmp/trace" || exit 1
run calibrate --importance proxy --without fate --stats "$tmp/stats.yaml" --trace "$tmp/trace" \
    -o "$tmp/weighed.yaml"
expect_exit 0 "a calibration with statistics and a trace"
run "$bin/moe-calibrate" --show "$tmp/weighed.yaml"
check "... finds weights" awk '
    /weights lru/ { found = $(NF - 3) <= $NF } # "a miss penalty of X instead of Y"
    END { exit !found }' "$out"

# Shards put together, and an interrupted run that is resumed, have the importances of one run.
importances() { sed -n '/^importances:/,/^[a-z]/{/^ /p;}' "$1"; }
seq 3 | xargs -P 2 -I SHARD "$bin/moe-calibrate" -q -t 2 "$tmp/all.moe" --text "$tmp/math.txt" \
    --text "$tmp/code.txt" --max-tokens 12 --max-windows 1 --tolerance 3% --shard SHARD/3 -o "$tmp/part.SHARD.yaml"
run "$bin/moe-calibrate" -q --merge "$tmp"/part.*.yaml -o "$tmp/merged.yaml"
expect_exit 0 "shards are merged"
importances "$tmp/one.yaml" >"$tmp/of.one"
importances "$tmp/merged.yaml" >"$tmp/of.merged"
check "... into the importances of one run" cmp "$tmp/of.one" "$tmp/of.merged"
check "... which are there" [ -s "$tmp/of.one" ]
merge() { "$bin/moe-calibrate" -q --merge "$@"; }
run merge "$tmp/part.1.yaml" "$tmp/part.1.yaml" "$tmp/part.2.yaml" "$tmp/part.3.yaml" -o "$tmp/x"
error_line 2 "moe-calibrate: $tmp/part.1.yaml: would count twice*" "a shard that occurs twice"
run merge "$tmp/part.3.yaml" "$tmp/part.2.yaml" -o "$tmp/x"
error_line 2 'moe-calibrate: shard 1 of 3 is missing (--partial *' "a shard that is missing"
run merge --partial "$tmp/part.3.yaml" "$tmp/part.2.yaml" -o "$tmp/some.yaml"
expect_exit 0 "--partial merges what is there"
run merge "$tmp/some.yaml" "$tmp/part.1.yaml" -o "$tmp/again.yaml"
check "... which is merged further" cmp "$tmp/merged.yaml" "$tmp/again.yaml"
run merge "$tmp/some.yaml" "$tmp/part.3.yaml" --partial -o "$tmp/x"
error_line 2 "*: would count twice: shard 3 of 3 is there already" "... but no shard of it again"
run merge "$tmp/merged.yaml" "$tmp/again.yaml" -o "$tmp/x"
error_line 2 "*: would count twice: all of it is there already" "a whole twice"
run calibrate --tolerance 3% --shard -o "$tmp/task.yaml"
error_line 2 "moe-calibrate: option --shard without a value is for a task of a Slurm job array: *" "--shard alone is for job arrays"
run calibrate --shard 1/2 --tolerance 3% -o "$tmp/half.yaml"
run merge "$tmp/half.yaml" "$tmp/part.3.yaml" -o "$tmp/x"
error_line 2 "*: was cut into 3 shards, those before into 2" "another N"
cp "$tmp/part.2.yaml" "$tmp/wrong.yaml.part"
run calibrate --shard 1/3 --resume --tolerance 3% -o "$tmp/wrong.yaml"
error_line 2 "*wrong.yaml.part: was left by another shard (shard 2 of 3)*" "another shard's partial file"
run calibrate --shard 2/3 --from "$tmp/merged.yaml" --tolerance 3% -o "$tmp/of2.yaml"
check "a shard takes only its own from a map" cmp "$tmp/part.2.yaml" "$tmp/of2.yaml"
grep -v '^  shards:' "$tmp/part.1.yaml" >"$tmp/silent.yaml"
run merge "$tmp/silent.yaml" "$tmp/some.yaml" -o "$tmp/x"
error_line 3 "moe-calibrate: $tmp/silent.yaml: line * column *: 'shards' is missing" "a map that does not say its shard"
run calibrate --from "$tmp/one.yaml" --tolerance 3% --without fate --without hobbit \
    -o "$tmp/large.yaml"
expect_exit 0 "a calibration from importances"
run calibrate --from "$tmp/merged.yaml" --tolerance 3% --without fate --without hobbit \
    -o "$tmp/from.yaml"
check "... is the same from those of shards" cmp "$tmp/large.yaml" "$tmp/from.yaml"
run "$bin/moe-calibrate" "$tmp/all.moe" --text "$tmp/math.txt" --from "$tmp/merged.yaml" -o "$tmp/x"
expect_exit 2 "importances of other texts are refused"
interrupt "$tmp/stopped.yaml.part" "$bin/moe-calibrate" -t 1 --cpu scalar "$tmp/all.moe" \
    --text "$tmp/math.txt" --text "$tmp/code.txt" --max-tokens 12 --max-windows 1 --tolerance 3% --without fate \
    --without hobbit -o "$tmp/stopped.yaml"
expect_exit 1 "SIGINT ends it"
expect_stderr_like '*has the importances*--resume continues from there; *ways to load less, begins anew*stopped*' "... and says how to go on"
check "... without a map" [ ! -e "$tmp/stopped.yaml" ]
run calibrate --resume --tolerance 3% --without fate --without hobbit -o "$tmp/stopped.yaml"
check "--resume gives the file of one run" cmp "$tmp/large.yaml" "$tmp/stopped.yaml"
check "... and removes the partial one" [ ! -e "$tmp/stopped.yaml.part" ]

# Measured where it decides: the same file whatever the threads and interruptions, with measurements of the
# full search, and a share that is kept.
adaptive() { calibrate --importance adaptive --measured 10% --tolerance 3% --without fate --without hobbit "$@"; }
run adaptive -t 1 -o "$tmp/adaptive.yaml"
expect_exit 0 "adaptive importances"
check "the map says how many were measured" grep -q '^  adaptive: {measured: [0-9]*, estimated: [0-9]*, could_change: ' "$tmp/adaptive.yaml"
run "$bin/moe-calibrate" --show "$tmp/adaptive.yaml"
expect_stdout_like '*measured where it decides:*measured, * estimated within a factor of*' "... and --show does"
run adaptive -t 2 --from "$tmp/merged.yaml" -o "$tmp/again.yaml"
check "they are those of the full search, on two threads" cmp "$tmp/adaptive.yaml" "$tmp/again.yaml"
interrupt "$tmp/astop.yaml.part" "$bin/moe-calibrate" -t 1 --cpu scalar "$tmp/all.moe" --text "$tmp/math.txt" --text "$tmp/code.txt" \
    --max-tokens 12 --max-windows 1 --importance adaptive --measured 10% --tolerance 3% --without fate --without hobbit -o "$tmp/astop.yaml"
run adaptive --resume -o "$tmp/astop.yaml"
check "an interrupted one that is resumed has the same file" cmp "$tmp/adaptive.yaml" "$tmp/astop.yaml"
run adaptive --shard 1/2 -o "$tmp/x"
error_line 2 "*--shard is for --importance exact: which experts *" "no shards of it"
run calibrate --measured 10% -o "$tmp/x"
error_line 2 "*--measured is for --importance adaptive*" "a share of the full search"

# Experts that do not fit are read layer by layer.
floor=$(smallest_memory calibrate -o "$tmp/x")
check "too small a memory is refused with the least that works" [ -n "$floor" ]
run calibrate --memory "$((${floor:-0} + 4))M" --from "$tmp/merged.yaml" --tolerance 3% \
    --without fate --without hobbit -o "$tmp/small.yaml"
expect_exit 0 "a small memory"
check "... gives the same file" cmp "$tmp/small.yaml" "$tmp/large.yaml"
run calibrate --tolerance 0% --from "$tmp/merged.yaml" --without fate --without hobbit -o "$tmp/none.yaml"
check "no tolerance at all is met or refused" [ "$code" = 0 ] || [ "$code" = 4 ]

# Cache-aware routing: what the map says of its lambda is what moe-run measures with it.
run calibrate --routing-tolerance 3% -o "$tmp/x"
error_line 2 'moe-calibrate: option --routing-tolerance needs --routing-cache*' "a tolerance without a cache"
head_of math.calib 1 >"$tmp/one.txt"
routing() {
    "$bin/moe-calibrate" -q "$tmp/all.moe" --text "$tmp/one.txt" --max-tokens 12 --max-windows 1 --importance proxy \
        --without fate --without hobbit --tolerance 500% --routing-cache 4M "$@"
}
run routing --routing-tolerance 5% -o "$tmp/routing.yaml"
expect_exit 0 "a lambda for a tolerance"
run "$bin/moe-calibrate" --show "$tmp/routing.yaml"
expect_stdout_like '*Routing for a tolerance of 5%: experts in a cache of 4.00 MiB are preferred by *' "--show tells it"
said=$("$bin/moe-calibrate" --show --json "$tmp/routing.yaml" |
    sed -n 's/.*"routing":{[^{]*"loss":{[^}]*"nats_per_token":\([0-9.e+-]*\).*/\1/p')
aware() {
    "$bin/moe-run" "$tmp/all.moe" --kv f32 --perplexity "$tmp/one.txt" --max-doc-tokens 12 --max-windows 1 --prompt-share 0 --json \
        --expert-memory 4M "$@"
}
measured=$(aware --strategy lru+prefer-cached --calibration "$tmp/routing.yaml" --stats-json "$tmp/routing.json" |
    sed 's/.*"nll": \([0-9.]*\),.*/\1/')
check "moe-run has the map's nats ($said)" \
    awk "BEGIN { exit !(\"$said\" != \"\" && $measured - ${said:-0} < 2e-6 && ${said:-0} - $measured < 2e-6) }"
check "... and counts what was replaced" grep -q '"substituted": [1-9]' "$tmp/routing.json"
check "... under its name" grep -q '"why": "--prefer-cached ' "$tmp/routing.json"
run aware --strategy lru+prefer-cached=0.1:4
error_line 2 "moe-run: option --prefer-cached: its strongest 4 experts stay*nothing is left to change" \
    "a preference that cannot change anything"
run aware --prefer-cached auto --calibration "$tmp/one.yaml"
error_line 2 "moe-run: option --prefer-cached auto: no bit map says how much*" "a map without a lambda"
# Ways to load less: what the map says one loses and loads is what moe-run measures.
run calibrate --expert-memory 4M,1M -o "$tmp/x"
error_line 2 "moe-calibrate: option --expert-memory: '4M,1M' is not a list of up to 4 rising sizes*" "sizes that fall"
run calibrate --without bits,all -o "$tmp/x"
error_line 2 'moe-calibrate: --without takes bits, fate or hobbit*' "nothing that can be left out"
run "$bin/moe-calibrate" "$tmp/all.moe" --text "$tmp/one.txt" --max-tokens 12 --max-windows 1 --tolerance 500% \
    --without bits,fate,hobbit --expert-memory 1M,4M -o "$tmp/savings.yaml"
expect_exit 0 "ways to load less"
expect_stderr_like '*savings.yaml: what loading less loses, in 2 caches*' "... and nothing else"
run "$bin/moe-calibrate" --show "$tmp/savings.yaml"
expect_stdout_like '*Loading less, in a cache of 1.00 MiB (* a token are loaded where nothing*lru+skip-below=20%*Loading less, in a cache of 4.00 MiB*' \
    "--show tells them"
check "five kinds of ways were tried in each" [ "$(grep -c 'lru+skip-below=15%+prefer-cached=0.2$\|lru+prefer-cached=0.2$\|lru+skip-below=20%$\|load-low:0.8$\|load-low:0.8+skip' "$out")" -ge 10 ]
way() { # MEMBER: of the first cache's lru+skip-below=0.2
    "$bin/moe-calibrate" --show --json "$tmp/savings.yaml" |
        sed 's/.*"savings":\[//' | tr '{' '\n' | grep -A 1 '"strategy":"lru+skip-below=20%"' | head -n 2 | tr -d '\n' |
        sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p"
}
measured=$("$bin/moe-run" "$tmp/all.moe" --kv f32 --perplexity "$tmp/one.txt" --max-doc-tokens 12 --max-windows 1 --prompt-share 0 \
    --json --expert-memory 1M --strategy lru+skip-below=20% --stats-json "$tmp/skip.json" | sed 's/.*"nll": \([0-9.]*\),.*/\1/')
said=$(way nats_per_token)
check "moe-run has the map's nats ($said) of skipping" \
    awk "BEGIN { exit !(\"$said\" != \"\" && $measured - ${said:-0} < 2e-6 && ${said:-0} - $measured < 2e-6) }"
check "... and its bytes a token" grep -q "\"bytes_per_token\": $(printf '%.0f' "$(way bytes_per_token)")" "$tmp/skip.json"

# A tolerance that holds on the texts and not on the checks: said first, with what would, and exit 4.
first() { awk '/^<\|endoftext\|>$/ { if (++n == 6) exit } { print }' "$1"; }
first tests/data/math.calib.txt >"$tmp/choose.txt"
first tests/data/math.valid.txt >"$tmp/judge.txt"
"$bin/moe-quantize" -q --experts 8,4,2 -o "$tmp/checked.moe" "$checkpoint"
checked() { "$bin/moe-calibrate" -t 2 "$tmp/checked.moe" --text "$tmp/choose.txt" --check "$tmp/judge.txt" --max-tokens 32 --max-windows 1 \
    --importance proxy --without fate --without hobbit -o "$tmp/checked.yaml" "$@"; }
run checked --tolerance 3%
expect_exit 4 "a tolerance that does not hold on the checks"
expect_stderr_like "*moe-calibrate: $tmp/checked.yaml: the tolerance of 3% does not hold on the checks: +*% there, +*% on the texts; choose on more texts like the checks, or with --tolerance *%, whose choice loses *% there
moe-calibrate: $tmp/checked.yaml: * instead of *" "... is said first, with what would hold"
check "... and the map is written" grep -q '^tolerance_percent: 3$' "$tmp/checked.yaml"
run "$bin/moe-calibrate" --show "$tmp/checked.yaml"
expect_stdout_like "*Choice for a tolerance of 3%*The tolerance does not hold on the checks.*" "... and says so, too"
run checked -q --tolerance 3%
error_line 4 "moe-calibrate: $tmp/checked.yaml: the tolerance of 3% does not hold*" "-q says that alone"
smaller=$(sed -n 's/.*or with --tolerance \([0-9.]*%\), whose.*/\1/p' "$err")
run checked -q --tolerance "$smaller"
run "$bin/moe-calibrate" --show "$tmp/checked.yaml"
check "the tolerance that was named ($smaller) chooses what is within 3% on the checks: $(sed -n 's/^  on checks *\([^ ]*\).*/\1/p' "$out")" \
    [ "$(sed -n 's/^  on checks *+\([0-9]*\)\..*/\1/p' "$out")" -lt 3 ]
# A size instead of a tolerance, among all that best rounds to: the pack has no more bytes, and less loss with more of them.
"$BUILD/tests/tools/widen" --layers 1 "$checkpoint" "$tmp/one"
"$bin/moe-quantize" -q --method best --text none --experts 4,3d4,2,1 -o "$tmp/ladder.moe" "$tmp/one" || exit 1
for bits in 4 2; do "$bin/moe-quantize" -q --experts $bits -o "$tmp/$bits.moe" "$tmp/ladder.moe"; done
most=$(wc -c <"$tmp/4.moe")
least=$(wc -c <"$tmp/2.moe") # rows of 64 make those of 1 bit larger
loss() { "$bin/moe-calibrate" --show --json "$1" | tr -d '\n ' | sed 's/.*"choice"//' | grep -o '"nll_percent":[-0-9.e]*' | head -n 1 | cut -d: -f2; }
for kind in exact proxy; do
    for part in 1 2; do
        size=$((least + (most - least) * part / 3))
        run "$bin/moe-calibrate" "$tmp/ladder.moe" --text "$tmp/math.txt" --max-tokens 12 --importance $kind --target $size \
            -o "$tmp/target.$part.yaml"
        expect_exit 0 "--target, importance $kind, $part of 3 parts of what there is to give"
        "$bin/moe-quantize" -q --map "$tmp/target.$part.yaml" -o "$tmp/target.moe" "$tmp/ladder.moe"
        takes=$(wc -c <"$tmp/target.moe")
        check "... is met from below, by little" sh -c "[ $takes -le $size ] && [ $takes -gt $((size - 65536)) ]"
        run "$bin/moe-run" -q -t 1 --temp 0 -n 4 -p Once "$tmp/target.moe"
        expect_exit 0 "... and runs"
    done
    # shellcheck disable=SC2016 # awk's
    check "... and more bytes lose less" awk -v a="$(loss "$tmp/target.1.yaml")" -v b="$(loss "$tmp/target.2.yaml")" 'BEGIN { exit !(a > b) }'
done
"$bin/moe-quantize" -q --experts 2 --dense 4 -o "$tmp/2.moe" "$tmp/ladder.moe"
size=$(($(wc -c <"$tmp/2.moe") + (most - least) / 2))
run "$bin/moe-calibrate" -q "$tmp/ladder.moe" --text "$tmp/math.txt" --max-tokens 12 --importance proxy --dense 4 --target $size \
    -o "$tmp/target.yaml"
"$bin/moe-quantize" -q --map "$tmp/target.yaml" -o "$tmp/target.moe" "$tmp/ladder.moe"
takes=$(wc -c <"$tmp/target.moe")
check "... by as little where the dense part is rounded, too" sh -c "[ $takes -le $size ] && [ $takes -gt $((size - 65536)) ]"
run "$bin/moe-calibrate" "$tmp/ladder.moe" --text "$tmp/math.txt" --max-tokens 12 --target $((least - 8192)) -o "$tmp/x"
error_line 4 "moe-calibrate: a pack takes * at least, more than the * of --target" "a size that the fewest bits exceed"
run "$bin/moe-calibrate" "$tmp/ladder.moe" --text "$tmp/math.txt" --max-tokens 12 --target $((least - 8192)) --dry-run
error_line 4 "moe-calibrate: a pack takes * at least, more than the * of --target" "... is refused before anything is measured"
named=$(sed -n 's/.* takes \([0-9.]*\) MiB at least.*/\1M/p' "$err")
run "$bin/moe-calibrate" "$tmp/ladder.moe" --text "$tmp/math.txt" --max-tokens 12 --importance proxy --target "$named" -o "$tmp/x.yaml"
expect_exit 0 "... and the one that was named, $named"
run "$bin/moe-calibrate" --show "$tmp/x.yaml"
said='Choice for a pack of at most [0-9.]* MiB: '
check "--show says the size, and no tolerance" sh -c "grep -q '^$said' '$out' && ! grep -qi tolerance '$out'"
run "$bin/moe-plan" --explain "$tmp/x.yaml"
check "... as does moe-plan --explain" sh -c "grep -q '^$said' '$out' && ! grep -qi tolerance '$out'"
run "$bin/moe-calibrate" --show --json "$tmp/x.yaml"
check "... and --json" grep -q '"target_bytes": *[1-9]' "$out"
run "$bin/moe-calibrate" "$tmp/ladder.moe" --text "$tmp/math.txt" --max-tokens 12 --importance proxy --metric top1 --without fate \
    --without hobbit --target $((least + (most - least) / 3)) -o "$tmp/x.yaml"
# shellcheck disable=SC2016 # awk's
check "changed tokens are shared out by estimates: an expert's share of what all lose at its bitwidth" awk '
    function list(of) { gsub(/^[^[]*\[|\].*$/, "", of); gsub(/"/, "", of); return split(of, item, /, */) }
    /^  - experts:/ { rung = $3; gsub(/"/, "", rung) }
    /^    loss:/ && rung { sub(/.*top1_points: /, ""); points[rung] = $0 + 0; rung = "" }
    /^      nats:/ { n = list($0); for (i = 1; i <= n; i++) { nats[i] = item[i]; sum += item[i] } }
    /^  expected_points:/ { said = $2 }
    /^choice:/ { choice = 1 }
    /^    - \[/ && choice && list($0) == n { for (i = 1; i <= n; i++) { used[item[i]]++; expected += points[item[i]] * nats[i] / sum } }
    END { exit !(used["3d4"] && used["2"] && said > 0 && (said - expected) ^ 2 < 1e-12) }' "$tmp/x.yaml"
# A layer that drafts has every precision in the pack, and keeps one beside a map.
head -c 600 "$tmp/math.txt" >"$tmp/few.txt"
"$bin/moe-quantize" -q --experts 8,4,2 -o "$tmp/ahead.moe" "$drawn/ahead-deepseek"
run "$bin/moe-calibrate" -q "$tmp/ahead.moe" --text "$tmp/few.txt" --max-windows 1 --target 9K -o "$tmp/x"
size=$(sed -n 's/.* takes \([0-9]*\)\.[0-9]* KiB at least.*/\1/p' "$err")
run "$bin/moe-calibrate" -q "$tmp/ahead.moe" --text "$tmp/few.txt" --max-windows 1 --target "${size}K" -o "$tmp/ahead.yaml"
expect_exit 0 "the least of a model that drafts, $size KiB"
"$bin/moe-quantize" -q --map "$tmp/ahead.yaml" -o "$tmp/target.moe" "$tmp/ahead.moe"
takes=$(($(wc -c <"$tmp/target.moe") / 1024))
check "... is what it takes: $takes KiB" sh -c "[ $takes -le $size ] && [ $takes -gt $((size - 64)) ]"
run "$bin/moe-calibrate" "$tmp/ladder.moe" --text "$tmp/math.txt" --target 1M --tolerance 1% -o "$tmp/x"
error_line 2 "moe-calibrate: options --t* and --t* exclude each other*" "a size and a tolerance"
finish
