# moe-quantize: what scripts rely on.
. tests/cli/lib.sh
run "$bin/moe-quantize" --help
expect_exit 0 "--help exits with 0"
expect_stdout_like 'Usage: moe-quantize *--experts*Examples:*' "--help shows usage and options"
check "--help fits 80 columns" sh -c "! grep -q '.\{81\}' '$out'"
run "$bin/moe-quantize" --version
expect_stdout_like 'moe-quantize (moe-toolkit) *' "--version"
run "$bin/moe-quantize"
error_line 2 'moe-quantize: *(see moe-quantize --help)' "no checkpoint"
run "$bin/moe-quantize" --experts 7 "$checkpoint"
error_line 2 "moe-quantize: option --experts: '7' *" "bits that do not exist"
for option in --experts --dense; do
    run "$bin/moe-quantize" $option iq2_xxs "$checkpoint"
    error_line 2 "moe-quantize: option $option: 'iq2_xxs' is not *, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs, iq4_ks, iq5_ks, iq1_kt, iq2_kt, iq3_kt *" \
        "$option: types there are, beside one that is not written"
done
run "$bin/moe-quantize" --method hqq --experts 6 "$checkpoint"
error_line 2 "moe-quantize: method hqq does not round to 6 bits; method blocks does" "bits that only one method has"
run "$bin/moe-quantize" --group x "$checkpoint"
error_line 2 "moe-quantize: option --group: 'x' *" "a group that is no number"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method blocks --group 96 "$checkpoint"
error_line 2 "moe-quantize: 8 bits in groups of 96 with method blocks cannot be stored (groups are *)" "groups that cannot be"
run "$bin/moe-quantize" -o "$tmp/x.moe" --dense 16 --experts iq4_xs --group 96 "$checkpoint"
error_line 2 "moe-quantize: 4 bits in groups of 96 with method hqq cannot be stored (groups are *)" "... of a type in narrow rows"
run "$bin/moe-quantize" -o "$tmp/x.moe" "$tmp/none"
error_line 1 "moe-quantize: $tmp/none*" "a checkpoint that is not there"
run "$bin/moe-quantize" "$tmp/none"
error_line 1 "moe-quantize: $tmp/none: cannot open: No such file or directory" "... nor with a default output"
run "$bin/moe-quantize" Makefile
error_line 3 "moe-quantize: Makefile: not a checkpoint or an expert pack*" "neither a checkpoint nor a pack"
mkdir "$tmp/empty"
run "$bin/moe-quantize" -o "$tmp/x.moe" "$tmp/empty"
check "a directory without checkpoint fails" [ "$code" != 0 ]
expect_stderr_lines 1 "... with one line"
check "... and leaves nothing" [ ! -e "$tmp/x.moe" ]

pack
run "$bin/moe-quantize" --verify "$tiny"
expect_exit 0 "--verify of a sound pack"
run "$bin/moe-quantize" --list "$tiny"
expect_exit 0 "--list"
check "--list tells layers and experts" sh -c "grep -q 12 '$out' && grep -q 32 '$out'"
run "$bin/moe-quantize" --list --json "$tiny"
expect_stdout_like '{*}' "--list --json is an object"
check "its bytes in the file add up to the file, but for a directory and the tokenizer" awk -v size="$(wc -c <"$tiny")" '
    /"file_bytes"/ { gsub(/[^0-9]/, ""); if (n++) sum += $0; else whole = $0 }
    END { exit !(whole == size && sum < size && sum > size - 262144) }' "$out"
run "$bin/moe-quantize" -q -o "$tmp/again.moe" "$checkpoint"
check "the same checkpoint gives the same pack" cmp -s "$tiny" "$tmp/again.moe"
run "$bin/moe-quantize" -q -o "$tmp/two.moe" --experts 4,2 "$checkpoint"
expect_exit 0 "two variants"
run "$bin/moe-quantize" -q -o "$tmp/four.moe" --experts 4 "$tmp/two.moe"
expect_exit 0 "a subset of them"
"$bin/moe-run" -t 1 "$tiny" -p Once -n 16 --temp 0 >"$tmp/a" 2>/dev/null
"$bin/moe-run" -t 1 "$tmp/four.moe" -p Once -n 16 --temp 0 >"$tmp/b" 2>/dev/null
check "re-packed without loss: the same text" cmp -s "$tmp/a" "$tmp/b"
run "$bin/moe-quantize" -q -o "$tmp/no/such/dir.moe" "$checkpoint"
error_line 1 "moe-quantize: $tmp/no/such/dir.moe*" "an output that cannot be written"

# A line feed in a name breaks no line.
odd_name=$(printf '%s/a\nb' "$tmp")
cp -r "$drawn/deepseek" "$odd_name"
run "$bin/moe-quantize" -o "$odd_name.moe" "$odd_name"
expect_stderr_like "$tmp/a?b.moe: 3 layers, *" "a name with a line feed"
expect_stderr_lines 1 "... is one line"
for how in --list --verify; do
    run "$bin/moe-quantize" $how "$odd_name.moe"
    check "... of $how, too" sh -c "head -n 1 '$out' | grep -q '/a?b.moe: [O3]'"
done
rm -r "$odd_name" "$odd_name.moe"

# Error-aware rounding.
calib=tests/data/math.calib.txt
small="$drawn/deepseek"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method gptq "$small"
error_line 2 'moe-quantize: --method gptq needs texts*' "method gptq without --text"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method rtn --text $calib "$small"
error_line 2 'moe-quantize: --text goes with --method best or gptq*' "--text with another method"
run "$bin/moe-quantize" -o "$tmp/x.moe" --max-tokens 8 "$small"
error_line 2 'moe-quantize: option --max-tokens needs --text*' "--max-tokens without --text"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method gptq --text "$tmp/none" "$small"
error_line 1 "moe-quantize: $tmp/none: *" "a text that is not there"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method gptq --text $calib "$drawn/switch-b"
error_line 3 'moe-quantize: *inputs of matrices are measured in models without an encoder*' "gptq and an encoder"
check "... leaves nothing" [ ! -e "$tmp/x.moe" ]

# Bits that only blocks have, in rows that are narrower than these.
run "$bin/moe-quantize" -q -o "$tmp/five.moe" --experts 5,4 --dense 6 "$small"
expect_exit 0 "5 and 6 bits by default"
run "$bin/moe-quantize" --list -v "$tmp/five.moe"
check "... are blocks in packs" grep -q ' q6_k ' "$out"
run "$bin/moe-run" -q -t 1 --temp 0 -n 4 -p Once "$tmp/five.moe"
expect_exit 0 "... and run"

# Method best, with and without texts.
run "$bin/moe-quantize" -o "$tmp/one.moe" --method best --experts 5,3,1 --text none "$small"
expect_exit 0 "method best without texts, at 1 bit too"
expect_stderr_like '*: rows of * columns take more at 1 bit than at 2; --experts 2 is smaller *' "... which narrow rows are worse off with"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --experts 5,3,2 --text none "$small"
check "... but not with others" sh -c "! grep -q 'columns take' '$err'"
run "$bin/moe-quantize" --list "$tmp/one.moe"
check "... is trellis in packs" grep -q '^  experts 1 *trellis ' "$out"
run "$bin/moe-run" -q -t 1 --temp 0 -n 4 -p Once "$tmp/one.moe"
expect_exit 0 "... and runs"
run "$bin/moe-quantize" -q -o "$tmp/x.moe" --experts 1 "$tmp/one.moe"
expect_exit 0 "... and is copied whatever the method"
rm -f "$tmp/x.moe"
run "$bin/moe-quantize" -o "$tmp/x.moe" --experts 1 "$small"
error_line 2 'moe-quantize: method blocks does not round to 1 bit; method best does' "1 bit by another method"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --bits 3 --text none "$small"
error_line 2 'moe-quantize: --bits shares bits out by texts; leave out --text none*' "--bits with --text none"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --text none --max-tokens 8 "$small"
error_line 2 'moe-quantize: --max-tokens cuts texts; leave it out with --text none*' "--max-tokens of no text"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --text none --text $calib "$small"
error_line 2 'moe-quantize: --text none is for no texts at all; *' "none among texts"

# Without a text best takes those that come with it, in the order of the build; where the model cannot run over them, it
# goes on without and says why.
run "$bin/moe-quantize" -o "$tmp/bundled.moe" --method best --experts 5,3,1 "$small"
expect_stderr_like '*inputs of 32[0-9]* tokens of the bundled texts: stories, sums, code*' "best without a text takes the bundled ones"
check "... which changes what it rounds to" sh -c "! cmp -s '$tmp/one.moe' '$tmp/bundled.moe'"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --experts 3,1 "$tmp/one.moe"
check "... but not where all is copied" sh -c "[ $code = 0 ] && ! grep -q 'inputs of' '$err'"
run "$bin/moe-quantize" -q -o "$tmp/y.moe" --experts 3,1 "$tmp/one.moe"
check "... whose bytes are those by any method" cmp -s "$tmp/x.moe" "$tmp/y.moe"
run "$bin/moe-quantize" -o "$tmp/named.moe" --method best --experts 5,3,1 --text tests/data/stories.calib.txt \
    --text tests/data/math.calib.txt --text tests/data/code.calib.txt "$small"
expect_stderr_like '*%) of the texts were left out, in * documents: at most 32768 are taken, evenly from all windows*' "too much of texts is left out"
check "... and nothing by --max-windows" sh -c "! grep -q max-windows '$err'"
check "... as if they had been named" cmp -s "$tmp/bundled.moe" "$tmp/named.moe"
run "$bin/moe-quantize" -q -o "$tmp/x.moe" --method best --bits 9 "$small"
expect_exit 0 "... which serve --bits"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best "$drawn/switch-b"
expect_stderr_like '*x.moe: rounded without the bundled texts: */switch-b: inputs of matrices are measured *' \
    "... where the model has an encoder it goes on without"
run "$bin/moe-quantize" -q -o "$tmp/y.moe" --method best --text none "$drawn/switch-b"
check "... which is what --text none makes" cmp -s "$tmp/x.moe" "$tmp/y.moe"
rm -f "$tmp/x.moe"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --bits 3 "$drawn/switch-b"
error_line 3 "moe-quantize: $drawn/switch-b: inputs of matrices *; --bits shares bits out by texts; --experts BITS --text none *" \
    "... but for --bits"
mkdir "$tmp/endless" # no token ends a text
cp "$drawn"/qwen2-moe-a/*.json "$drawn"/qwen2-moe-a/*.safetensors "$tmp/endless"
sed -i '/"eos_token_id"/d' "$tmp/endless/config.json" "$tmp/endless/generation_config.json"
echo '{}' >"$tmp/endless/tokenizer_config.json"
sed -i 's/<|endoftext|>/<|other|>/' "$tmp/endless/tokenizer.json"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --target 1M "$tmp/endless"
error_line 2 "moe-quantize: $tmp/endless: the bundled texts: * no end-of-text token; --target shares *; --experts BITS --dense BITS --text none *" \
    "... and --target, where no token ends a text"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --resume "$tmp/endless"
error_line 2 "moe-quantize: $tmp/endless: the bundled texts: *; --text none does without texts, and without --resume, --shard and --join" \
    "... and --resume"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method gptq --text $calib "$tmp/endless"
error_line 2 "moe-quantize: $tmp/endless: $calib: *; --method best --text none does without texts" "... and texts that are named"
check "... leaves nothing" [ ! -e "$tmp/x.moe" ]
run "$bin/moe-quantize" -q -o "$tmp/eight.moe" --experts 8,2 "$small"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --experts 8,3,2 "$tmp/eight.moe"
expect_exit 0 "... of a pack what it has stays"
run "$bin/moe-quantize" --list "$tmp/x.moe"
check "... and only the rest is rounded" sh -c "grep -q '^  experts 8 *blocks ' '$out' && grep -q '^  experts 3 *trellis ' '$out'"
rm -f "$tmp/x.moe"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method gptq --bits 3 --text $calib "$small"
error_line 2 'moe-quantize: --bits goes with --method best*' "--bits with another method"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --bits 3 --experts 3 --text $calib "$small"
error_line 2 'moe-quantize: --bits chooses the bits of each expert; leave out --experts*' "--bits with --experts"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --bits 3 --text $calib --max-tokens 8 --max-windows 1 "$small"
error_line 2 'moe-quantize: *: its experts take * bits a weight at least, 3.00 are asked for' "--bits that are too few"
check "... leaves nothing" [ ! -e "$tmp/x.moe" ]
# What has no experts is refused before its weights or any text are read.
mkdir "$tmp/dense"
cp "$drawn/olmo2/config.json" "$tmp/dense"
"$bin/moe-quantize" -q -o "$tmp/dense.moe" "$drawn/olmo2" || exit 1
: >"$tmp/short" # no text at all
for source in "$tmp/dense" "$tmp/dense.moe"; do
    for with in '--bits 3' '--target 1M --dense 4' '--shard 1/2 --dense 4' '--join 2 --dense 4'; do
        case $with in
        --bits*) says='--target SIZE shares them among all matrices, --dense BITS *' ;;
        --target*) says='leave out --dense*' ;;
        *) says="leave out ${with%% *} (--resume *" ;;
        esac
        # shellcheck disable=SC2086
        run "$bin/moe-quantize" -o "$tmp/x.moe" --method best $with --text "$tmp/short" "$source"
        error_line 2 "moe-quantize: $source: has no experts to *; $says" "$with without experts: ${source##*/}"
    done
done
awk '/^\.Bd/ { on = seen++ == 0; next } /^\.Ed/ { on = 0 } on' man/moe-map.5 >"$tmp/a.yaml"
for source in "$tmp/dense" "$tmp/dense.moe"; do
    run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --map "$tmp/a.yaml" --text "$tmp/short" "$source"
    error_line 3 "moe-quantize: $tmp/a.yaml: made for a model with experts, which $source has not; --dense BITS *" "--map without experts: ${source##*/}"
done
run "$bin/moe-quantize" -o "$tmp/x.moe" --shard 1/2 --dense 4 "$tmp/dense.moe"
error_line 2 "moe-quantize: $tmp/dense.moe: has no experts to round in parts; leave out --shard *" "--shard without experts or texts"
run "$bin/moe-quantize" -o "$tmp/x.moe" --experts 3 "$tmp/dense.moe"
error_line 2 "moe-quantize: $tmp/dense.moe: has no experts to choose variants of; --dense BITS *" "--experts of a pack without any"
check "... none of which leaves anything" sh -c "! ls $tmp/x.moe* 2>/dev/null"
few="--text $calib --max-tokens 2 --max-windows 1"
# shellcheck disable=SC2086
run "$bin/moe-quantize" -q -t 2 -o "$tmp/x.moe" --method best --target 1M $few "$small"
expect_exit 0 "--target"
check "... is met from below" [ "$(wc -c <"$tmp/x.moe")" -le 1048576 ]
rm -f "$tmp/x.moe"
echo 'Once upon a time' >"$tmp/line" # all experts are seen too rarely, and are looked at twice
run "$bin/moe-quantize" -t 2 -o "$tmp/x.moe" --method best --target 1G --text "$tmp/line" "$small"
expect_stderr_like '*; 14 experts were seen in fewer than 32 *' "--target by a text of a line notes each expert once"
# shellcheck disable=SC2086
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --target 10K $few "$small"
error_line 2 'moe-quantize: *: takes * at least, more than the 10.00 KiB of --target' "--target that is too small"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method hqq --target 1M --text $calib "$small"
error_line 2 'moe-quantize: --target goes with --method best*' "--target with another method"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --target 1M --zstd 3 "$small"
error_line 2 'moe-quantize: --target counts what is not compressed; leave out --zstd*' "--target with --zstd"
for with in --map --experts; do
    run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --target 1M $with 4 "$small"
    error_line 2 "moe-quantize: --target chooses the bits of each expert; leave out $with*" "--target with $with"
done
run "$bin/moe-quantize" -t 2 -o "$tmp/x.moe" --method best --experts 3 --max-tokens 32 --max-windows 1 --text $calib "$small"
expect_stderr_like '*%) of the texts were left out, in [1-9]* documents: --max-windows N takes more of each*' "what --max-windows leaves out is said"
check "... and nothing of 32768" sh -c "! grep -q 32768 '$err'"

# Layers that are visited several times, or once.
for loop in a b; do # names of transformers' classes, and as published
    mkdir "$tmp/once-$loop"
    cp "$drawn/inkling2-loop-$loop"/*.json "$drawn/inkling2-loop-$loop"/*.safetensors "$tmp/once-$loop"
    sed 's/"loop_num_passes": [0-9]*/"loop_num_passes": 1/' "$drawn/inkling2-loop-$loop/config.json" >"$tmp/once-$loop/config.json"
    run "$bin/moe-quantize" -q -o "$tmp/once.moe" "$tmp/once-$loop"
    expect_exit 0 "inkling2-loop-$loop with layers that are visited once needs no messages from visit to visit"
done

# Two stacks.
run "$bin/moe-quantize" -q -o "$tmp/stacks.moe" --experts 4d8 "$drawn/switch-c"
expect_exit 0 "a model with an encoder"
run "$bin/moe-quantize" --list -v "$tmp/stacks.moe"
check "--list counts its stacks" grep -q '2 + 5 layers (encoder + decoder), hidden 26' "$out"
check "... and those with experts" grep -q '8 in each of 0 + 2 layers' "$out"
check "... and says where a tensor is" grep -q '^  layers.3.cross.norm .* decoder 1$' "$out"
run "$bin/moe-quantize" --list -v --json "$tmp/stacks.moe"
check "... as JSON, too" sh -c "grep -q '\"stack\": \"encoder\"' '$out' && grep -q '\"n_moe_encoder_layers\": 0' '$out'"
mkdir "$tmp/aware"
gptq="--method gptq --text $calib --max-tokens 2 --max-windows 1 --experts 4,2 --dense 4"
# shellcheck disable=SC2086
run "$bin/moe-quantize" -v -t 2 -o "$tmp/aware/a.moe" $gptq "$small"
expect_exit 0 "method gptq"
expect_stderr_like '*inputs of * tokens; * rounded as without texts: layer *output error of experts at 4: 0.*' \
    "... says what it knew and what it gained"

# Layers that share what an earlier one chose: it is run again for each of them, and is not looked at.
run "$bin/moe-quantize" -q -t 1 --method best --experts 3 --text "$tmp/line" -o "$tmp/shared.moe" "$BUILD/fixtures/glm5-b"
expect_exit 0 "inputs of layers that share a choice of positions"
rm -f "$tmp/shared.moe"

run "$bin/moe-quantize" -t 1 --experts 3 -o "$tmp/shared.moe" "$BUILD/fixtures/llama"
expect_stderr_like '*: a model without experts, for which --experts changes nothing*' "--experts of a model that has none"
rm -f "$tmp/shared.moe"

# The same by shards, one cut off and one damaged, and from what a run that was ended had kept.
for shard in 1/2 2/2 1/1; do
    # shellcheck disable=SC2086
    run "$bin/moe-quantize" -t 1 -o "$tmp/aware/b.moe" $gptq --shard $shard "$small"
    expect_stderr_like "*$tmp/aware/b.moe.*-of-*: * weights of experts, * s; *--join * makes the pack" "--shard $shard"
done
check "... makes no pack" [ "$(ls "$tmp/aware" | tr '\n' ' ')" = "a.moe b.moe.1-of-1 b.moe.1-of-2 b.moe.2-of-2 " ]
truncate -s -1000 "$tmp/aware/b.moe.2-of-2"
printf '\377' | dd of="$tmp/aware/b.moe.1-of-2" bs=1 seek=37 conv=notrunc 2>/dev/null # of how rare the first expert is
# shellcheck disable=SC2086
run "$bin/moe-quantize" -t 1 -o "$tmp/aware/b.moe" $gptq --join 2 "$small"
expect_stderr_like "*b.moe: * copies of experts were in no shard, or damaged there: rounded here*" "--join says what was missing"
check "--join: the same options give the same bytes" cmp -s "$tmp/aware/a.moe" "$tmp/aware/b.moe"
head -c 24 "$tmp/aware/b.moe.1-of-1" >"$tmp/aware/b.moe.kept"
# shellcheck disable=SC2086
run "$bin/moe-quantize" -q -t 1 -o "$tmp/aware/b.moe" $gptq --group 32 --resume "$small"
expect_exit 0 "what has kept nothing yet stops no other options"
head -c 3000 "$tmp/aware/b.moe.1-of-1" >"$tmp/aware/b.moe.kept"
for less in "--experts 4" "--group 32"; do
    # shellcheck disable=SC2086
    run "$bin/moe-quantize" -q -t 1 -o "$tmp/aware/b.moe" $gptq $less --resume "$small"
    error_line 2 "moe-quantize: $tmp/aware/b.moe.kept: was kept by a conversion of *" "--resume with $less instead"
done
"$bin/moe-quantize" -q -t 1 --experts 8 --dense 8 -o "$tmp/other.moe" "$small"
# shellcheck disable=SC2086
run "$bin/moe-quantize" -q -t 1 -o "$tmp/aware/b.moe" $gptq --resume "$tmp/other.moe"
error_line 2 "moe-quantize: $tmp/aware/b.moe.kept: was kept by a conversion of *" "--resume with another pack of the same checkpoint"
rm -f "$tmp/other.moe"
cp "$tmp/aware/b.moe.kept" "$tmp/kept"
for at in 12 0; do # of the version, of the magic
    printf '\377' | dd of="$tmp/aware/b.moe.kept" bs=1 seek=$at conv=notrunc 2>/dev/null
    # shellcheck disable=SC2086
    run "$bin/moe-quantize" -q -t 1 -o "$tmp/aware/b.moe" $gptq --resume "$small"
    error_line 3 "moe-quantize: $tmp/aware/b.moe.kept: *; remove it to begin again" "--resume from a file changed at byte $at"
    [ $at = 0 ] || expect_stderr_like "*: was kept by another version of moe-quantize, *" "... that another version kept"
done
: >"$tmp/aware/b.moe.kept"
# shellcheck disable=SC2086
run "$bin/moe-quantize" -q -t 1 -o "$tmp/aware/b.moe" $gptq --resume "$small"
error_line 3 "moe-quantize: $tmp/aware/b.moe.kept: *; remove it to begin again" "--resume from an empty file"
mv "$tmp/kept" "$tmp/aware/b.moe.kept"
# shellcheck disable=SC2086
run "$bin/moe-quantize" -q -t 1 -o "$tmp/aware/b.moe" $gptq --resume "$small"
check "--resume, too" cmp -s "$tmp/aware/a.moe" "$tmp/aware/b.moe"
ln -s "$tmp/elsewhere" "$tmp/aware/b.moe.kept"
# shellcheck disable=SC2086
run "$bin/moe-quantize" -q -t 1 -o "$tmp/aware/b.moe" $gptq --resume "$small"
check "... which removes its file where a link leads, too" [ "$(find "$tmp" -name elsewhere -o -name 'b.moe.kept')" = "" ]
# Killed where nobody chose: in the dense part, and later. The pack that comes out in the end is that of a run of one go.
long="-t 1 --method best --experts 8 --dense 3 --text $tmp/line"
# shellcheck disable=SC2086
run "$bin/moe-quantize" -q -o "$tmp/whole.moe" $long "$checkpoint"
killed=0
had=24
for i in 1 2 3 4 5 6; do
    # shellcheck disable=SC2086
    "$bin/moe-quantize" -q -o "$tmp/killed.moe" $long --resume "$checkpoint" 2>/dev/null &
    pid=$!
    # At the ith it has something more, at any moment.
    while kill -0 "$pid" 2>/dev/null && [ "$(wc -c <"$tmp/killed.moe.kept" 2>/dev/null || echo 0)" -le "$had" ]; do sleep 0.01; done
    kill -9 "$pid" 2>/dev/null && killed=$((killed + 1))
    wait "$pid" 2>/dev/null || :
    [ -e "$tmp/killed.moe.kept" ] || break
    had=$(wc -c <"$tmp/killed.moe.kept")
done
check "--resume: killed a few times" [ "$killed" -ge 3 ]
# shellcheck disable=SC2086
run "$bin/moe-quantize" -o "$tmp/killed.moe" $long --resume "$checkpoint"
expect_stderr_like '*: * copies of experts and [1-9]* other matrices were there already*' "... matrices of the dense part are kept, too"
check "... and it is the pack of a run of one go" cmp -s "$tmp/whole.moe" "$tmp/killed.moe"
check "... that leaves nothing" [ ! -e "$tmp/killed.moe.kept" ]
rm -f "$tmp/whole.moe" "$tmp/killed.moe"
rm -f "$tmp"/aware/b.moe.*-of-*
check "... and nothing else is left" [ "$(ls "$tmp/aware" | tr '\n' ' ')" = "a.moe b.moe " ]
run "$bin/moe-quantize" -o "$tmp/x.moe" --shard 3/2 "$small"
error_line 2 "moe-quantize: option --shard: '3/2' is not a part of up to 64, *" "a shard that there is not"
run "$bin/moe-quantize" -o "$tmp/x.moe" --resume "$small"
error_line 2 'moe-quantize: --resume, --shard and --join are for packs, and for checkpoints with texts: --method best takes them' \
    "--resume of a checkpoint without texts"
run "$bin/moe-quantize" -o "$tmp/x.moe" --method best --text none --resume "$small"
error_line 2 'moe-quantize: --resume, *: leave out --text none' "... by best with --text none"
run "$bin/moe-quantize" -o "$tmp/aware/c.moe" --method gptq --text $calib --experts 4 "$tmp/aware/a.moe"
expect_exit 0 "a variant that is gptq's already is copied"
run "$bin/moe-quantize" -o "$tmp/aware/c.moe" --method gptq --text $calib --experts 4 "$tiny"
error_line 2 "moe-quantize: */*.moe: its best variant is '4', method gptq needs a better one *" \
    "a pack that has no more bits to begin with"

# What Python writes, older names and buffers make no difference.
odd=$tmp/odd
mkdir "$odd"
cp "$drawn"/qwen2-moe-a/*.json "$drawn"/qwen2-moe-a/*.safetensors "$odd"
run "$bin/moe-quantize" -q -t 1 -o "$tmp/even.moe" "$odd"
with_config() { # EXPRESSION: converts with a config.json changed so
    sed -E "$1" "$drawn/qwen2-moe-a/config.json" >"$odd/config.json"
    run "$bin/moe-quantize" -q -t 1 -o "$tmp/odd/odd.moe" "$odd"
}
same_pack() { # NAME
    expect_exit 0 "$1" && check "... which changes nothing" cmp -s "$odd/odd.moe" "$tmp/even.moe"
}
with_config 's/^( *)"vocab_size"/\1"a": NaN, "b": [-Infinity, Infinity], "vocab_size"/'
same_pack "numbers that JSON has not, where nobody reads them"
with_config 's/"hidden_act": "silu"/"hidden_act": "swish"/'
same_pack "silu by its older name"
with_config 's/("rms_norm_eps":) [^,]*/\1 NaN/'
error_line 3 "moe-quantize: $odd/config.json: 'rms_norm_eps' is NaN, a number was expected" \
    "a number that JSON has not, where it is read"
with_config '/"max_position_embeddings"/d'
expect_exit 0 "no context length"
run "$bin/moe-quantize" --list "$odd/odd.moe"
expect_stdout_like "*context 32768*" "... is the family's"

# A tokenizer that knows more than the model: a text without these tokens is no worse for it.
cp "$drawn/qwen2-moe-a/config.json" "$odd"
more='{"id": 260, "content": "<|far|>", "single_word": false, "lstrip": false, "rstrip": false,
    "normalized": false, "special": false},'
awk -v more="$more" '{ print } /"added_tokens": \[/ { print more }' \
    "$drawn/qwen2-moe-a/tokenizer.json" >"$odd/tokenizer.json"
run "$bin/moe-quantize" -q -t 1 -o "$odd/odd.moe" "$odd"
expect_exit 0 "a tokenizer larger than the vocabulary"
run "$bin/moe-run" -t 1 "$tmp/even.moe" -p "Once upon" -n 8 --temp 0 --ignore-eos
cp "$out" "$tmp/answer"
run "$bin/moe-run" -t 1 "$odd/odd.moe" -p "Once upon" -n 8 --temp 0 --ignore-eos
check "... answers as without it" cmp -s "$out" "$tmp/answer"
run "$bin/moe-run" -t 1 "$odd/odd.moe" -p "Once <|far|> upon" -n 8
error_line 3 "moe-run: $odd/odd.moe: the text has token 260, and the model embeds only 260 *" \
    "... but for a text with a token that the model has not"
echo "Once upon a time <|far|>" >"$tmp/far.txt"
run "$bin/moe-run" -t 1 "$odd/odd.moe" --perplexity "$tmp/far.txt"
error_line 3 "moe-run: $odd/odd.moe: the text has token 260, and the model embeds only 260 *" \
    "... also where it is only to be predicted"

# Stopped in the middle, when it has the output open: nothing is left of that, the old output stays.
mkdir "$tmp/stop"
# nohup has SIGHUP ignored, which the program keeps and a shell cannot change.
hup="env --default-signal=HUP"
$hup true 2>/dev/null || hup=
signals="TERM HUP"
# shellcheck disable=SC2016 # the inner shell's
if $hup sh -c 'kill -s HUP $$' 2>/dev/null; then
    skip "SIGHUP ends it" "it is ignored here"
    signals=TERM
fi
for signal in $signals; do
    echo old >"$tmp/stop/x.moe"
    $hup "$bin/moe-quantize" -q -t 1 --cpu scalar -o "$tmp/stop/x.moe" "$checkpoint" >"$out" 2>"$err" &
    pid=$!
    case $signal in HUP) until_catches "$pid" 1 ;; *) until_catches "$pid" 15 ;; esac
    kill -s "$signal" "$pid"
    code=0
    wait "$pid" || code=$?
    error_line 1 'moe-quantize: */x.moe: stopped; nothing was written' "SIG$signal ends it with a line"
    check "... nothing is left over" [ "$(ls "$tmp/stop")" = x.moe ]
    check "... and the old file is as it was" [ "$(cat "$tmp/stop/x.moe")" = old ]
done
finish
