# Damaged checkpoints, one by one: one line, exit 3, and an older output as it was. The small
# checkpoint of tests/fixtures, three shards, is broken in one place at a time.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
sound="$drawn/qwen2-moe-a"
dir=$tmp/damaged
shard=model-00002-of-00003.safetensors

fresh() {
    rm -rf "$dir"
    mkdir "$dir"
    cp "$sound"/*.json "$sound"/*.safetensors "$dir"
}
# The command fails with the status, one line that names the program, and leaves the old file, and
# nothing beside it.
refused() { # NAME [STATUS]
    echo old >"$tmp/x.moe"
    run "$bin/moe-quantize" -q -t 1 -o "$tmp/x.moe" "$dir"
    if [ "$(cat "$tmp/x.moe")" != old ] || [ "$(ls "$tmp"/x.moe*)" != "$tmp/x.moe" ]; then
        result 1 "$1: the old output is lost, or something is left over"
        return
    fi
    error_line "${2:-3}" "moe-quantize: *" "$1"
}
cut_file() { # FILE BYTES
    head -c "$2" "$sound/$1" >"$dir/$1"
}
# Replaces an extended expression in a file, JSON headers included (the same number of bytes).
edit() { # FILE EXPRESSION
    LC_ALL=C sed -E "$2" "$sound/$1" >"$dir/$1"
    if cmp -s "$dir/$1" "$sound/$1"; then result 1 "$1 has nothing like $2"; fi
}
header() { # LENGTH_IN_ESCAPES JSON: a shard of a header alone
    # shellcheck disable=SC2059 # escapes are meant
    { printf "$1"; printf '%s' "$2"; } >"$dir/$shard"
}

fresh
run "$bin/moe-quantize" -q -t 1 -o "$tmp/sound.moe" "$dir"
expect_exit 0 "the checkpoint is sound"

# Where a file may end: before, in and after the header's length, in the header, in the data.
bytes=$(wc -c <"$sound/$shard")
for n in 0 1 7 8 9 100 4000 $((bytes / 2)) $((bytes - 1)); do
    fresh
    cut_file "$shard" "$n"
    refused "a shard cut to $n bytes"
done
for file in config.json tokenizer.json tokenizer_config.json model.safetensors.index.json; do
    bytes=$(wc -c <"$sound/$file")
    for n in 0 1 $((bytes / 3)) $((bytes / 2)) $((bytes - 3)); do
        fresh
        cut_file "$file" "$n"
        refused "$file cut to $n bytes"
    done
    fresh
    rm "$dir/$file"
    mkdir "$dir/$file"
    run "$bin/moe-quantize" -q -t 1 -o "$tmp/x.moe" "$dir"
    check "a directory for $file is one line" sh -c \
        "{ [ $code = 1 ] || [ $code = 3 ]; } && [ \$(wc -l <'$err') = 1 ]"
    check "... and no output" [ "$(cat "$tmp/x.moe")" = old ]
done

fresh
rm "$dir/config.json"
run "$bin/moe-quantize" -q -o "$tmp/x.moe" "$dir"
check "no config.json is one line" sh -c \
    "{ [ $code = 1 ] || [ $code = 3 ]; } && [ \$(wc -l <'$err') = 1 ]"
fresh
rm "$dir/$shard"
run "$bin/moe-quantize" -q -o "$tmp/x.moe" "$dir"
check "a missing shard is one line" sh -c \
    "{ [ $code = 1 ] || [ $code = 3 ]; } && [ \$(wc -l <'$err') = 1 ]"

# Headers.
fresh
header '\377\377\377\377\377\377\377\377' '{}'
refused "a header of 2^64 - 1 bytes"
header '\377\377\377\377\0\0\0\0' '{}'
refused "a header of 4 GiB"
header '\0\0\0\0\0\0\0\0' ''
refused "a header of 0 bytes"
header '\2\0\0\0\0\0\0\0' '{}'
refused "a shard without tensors"
header '\2\0\0\0\0\0\0\0' '[]'
refused "a header that is a list"
header '\4\0\0\0\0\0\0\0' '{"a"'
refused "a header that is no JSON"
one='{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
header '\155\0\0\0\0\0\0\0' "${one}data"
refused "a tensor twice"
edit "$shard" 's/"F32"/"I8"/'
refused "a header whose length no longer fits"
for to in I32 XXX F64; do
    edit "$shard" "s/\"F32\"/\"$to\"/"
    refused "a tensor of type $to"
done
edit "$shard" 's/("shape": *\[)[0-9]/\19/'
refused "a shape that does not fit its bytes"
edit "$shard" 's/("data_offsets": *\[[0-9]+, *)[0-9]/\19/'
refused "offsets that do not fit"
edit "$shard" 's/_proj/_porj/'
refused "a tensor that is missing, and one too many"
fresh
edit model.safetensors.index.json 's/_proj/_porj/'
refused "an index that names what is not there"
edit model.safetensors.index.json 's/00002-of-00003/00009-of-00003/'
refused "an index that names a file that is not there" 1
fresh
edit model.safetensors.index.json 's|model-00002-of-00003.safetensors|../../../../etc/passwd|'
refused "an index that leaves the directory"

# The configuration.
fresh
for change in 's/"model_type": *"[^"]*"/"model_type": "bert"/' \
    's/"hidden_size": *[0-9]+/"hidden_size": 0/' 's/"hidden_size": *[0-9]+/"hidden_size": -1/' \
    's/"hidden_size": *[0-9]+/"hidden_size": 4000000000000/' \
    's/"hidden_size": *[0-9]+/"hidden_size": "64"/' \
    's/"num_experts": *[0-9]+/"num_experts": 99999999/' \
    's/"num_experts_per_tok": *[0-9]+/"num_experts_per_tok": 1000/' \
    's/"num_hidden_layers": *[0-9]+/"num_hidden_layers": 1000000/' \
    's/"num_attention_heads": *[0-9]+/"num_attention_heads": 7/' \
    's/"vocab_size": *[0-9]+/"vocab_size": 1/'; do
    edit config.json "$change"
    refused "config.json: $change"
done
edit config.json 's/"hidden_size"/"hidden_size": 1, "hidden_size"/'
refused "config.json: a key twice"

rm -f "$dir"/*.safetensors "$dir/model.safetensors.index.json"
edit config.json 's/"model_type": *"[^"]*"/"model_type": "bert"/'
refused "a model that is not known, without weights"
check "... is named first" matches "$err" "*model type 'bert' is not implemented*"

# Weights that are no numbers: the last four bytes of a shard are those of model.norm.weight.
fresh
norm=model-00003-of-00003.safetensors
bytes=$(wc -c <"$sound/$norm")
{ head -c $((bytes - 4)) "$sound/$norm"; printf '\0\0\300\177'; } >"$dir/$norm"
refused "a norm that is not a number"
check "... says where" matches "$err" "*'model.norm.weight': the weight at 47 is not a number*"
{ head -c $((bytes - 4)) "$sound/$norm"; printf '\0\0\200\377'; } >"$dir/$norm"
refused "a norm that is infinite"

# The tokenizer.
fresh
for change in 's/"type": *"BPE"/"type": "Unigram"/' 's/"vocab": *\{/"vocab": {"a": -1, /' \
    's/"merges": *\[/"merges": [17, /' 's/"merges": *\[/"merges": ["no such"], "x": [/' \
    's/"id": *[0-9]+/"id": 99999999/'; do
    edit tokenizer.json "$change"
    refused "tokenizer.json: $change"
done

# Files and directories that are something else.
for file in config.json $shard Makefile; do
    [ "$file" = Makefile ] || cp "$sound/$file" "$tmp/file"
    [ "$file" = Makefile ] && cp Makefile "$tmp/file"
    run "$bin/moe-quantize" -q -o "$tmp/x.moe" "$tmp/file"
    error_line 3 "moe-quantize: $tmp/file: *" "$file for a directory or pack"
done
: >"$tmp/file"
run "$bin/moe-quantize" -q -o "$tmp/x.moe" "$tmp/file"
error_line 3 "moe-quantize: $tmp/file: *" "an empty file for a pack"
run "$bin/moe-quantize" --list "$sound"
expect_exit 0 "a checkpoint is listed as what it would be"
mkdir "$tmp/taken.moe"
run "$bin/moe-quantize" -q -o "$tmp/taken.moe" "$sound"
error_line 1 "moe-quantize: $tmp/taken.moe: *" "a directory where the output should be"

# No space left, by a limit on file sizes and by a file system of 64 KiB.
not_written() { # WHY NAME
    error_line 1 "moe-quantize: $disk/x.moe*: $1" "$2"
    check "... leaves the old file" [ "$(cat "$disk/x.moe")" = old ]
    check "... and nothing else" [ "$(ls "$disk")" = x.moe ]
}
disk=$tmp/small
mkdir "$disk"
echo old >"$disk/x.moe"
run sh -c "ulimit -f 8; exec '$bin/moe-quantize' -q -o '$disk/x.moe' '$sound'"
not_written "File too large" "a limit on file sizes"
if small_disk 64k; then
    echo old >"$disk/x.moe"
    run "$bin/moe-quantize" -q -o "$disk/x.moe" "$sound"
    not_written "No space left on device" "a full file system"
else
    for name in "a full file system" "... leaves the old file" "... and nothing else"; do skip "$name" "none can be mounted here"; done
fi

fresh
chmod 000 "$dir/config.json"
ordinary "$bin/moe-quantize" -q -o "$tmp/x.moe" "$dir"
error_line 1 "moe-quantize: *config.json: *Permission denied" "an unreadable config.json"
fresh
chmod 500 "$dir"
ordinary "$bin/moe-quantize" -q -o "$dir/x.moe" "$dir"
error_line 1 "moe-quantize: $dir/x.moe: *Permission denied" "a directory one may not write to"
chmod 700 "$dir"
cp "$tmp/sound.moe" "$tmp/locked.moe"
chmod 000 "$tmp/locked.moe"
ordinary "$bin/moe-run" "$tmp/locked.moe" -p x
error_line 1 "moe-run: $tmp/locked.moe: *Permission denied" "an unreadable pack"
finish
