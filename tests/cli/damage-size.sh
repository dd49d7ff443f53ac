# Files that are sound to a byte and absurd in size, or claim to be: each ends in one line, within memory
# that a small file's reading has to spare (a limit on the address space; the programs and their threads
# take about half of it).
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
sound="$drawn/qwen2-moe-a"
dir=$tmp/large

fresh() {
    rm -rf "$dir"
    mkdir "$dir"
    cp "$sound"/*.json "$sound"/*.safetensors "$dir"
}
bounded() { # MIB COMMAND...: its address space is bounded
    mib=$1
    shift
    # shellcheck disable=SC2016 # for the inner shell
    run sh -c 'ulimit -v "$1"; shift; exec "$@"' sh $((mib * 1024)) "$@"
}
quantize() { # MIB
    bounded "$1" "$bin/moe-quantize" -q -t 1 --experts 4 -o "$tmp/x.moe" "$dir"
}
# So many MiB of "{},".
empties() {
    yes '{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},' |
        head -c $(($1 * 1048576 / 94 * 94)) | tr -d '\n'
}

bounded 400 "$bin/moe-quantize" --version
if [ "$code" != 0 ]; then
    skip "files of absurd size" "the address space cannot be bounded (a sanitizer reserves most of it)"
    finish
fi

# ---- An index whose bulk does not matter ----
fresh
quantize 400
expect_exit 0 "the checkpoint is sound within the limit"
index=model.safetensors.index.json
{ printf '{"of no use": ['; empties 60; printf '{}],\n'; tail -c +2 "$sound/$index"; } >"$dir/$index"
quantize 400
expect_exit 0 "60 MiB of {} under a key of no use in the index"
{ printf '{"of no use": ['; empties 60; printf '{}\n'; tail -c +2 "$sound/$index"; } >"$dir/$index"
quantize 400
error_line 3 "moe-quantize: *$index: line 3 column 3: ',' or ']' was expected*" "... that is damaged"

# ---- What becomes a tree of values ----
small() { # FILE MIB: so many MiB of {} in front of its members
    fresh
    { printf '{"of no use": ['; empties "$2"; printf '{}],'; tail -c +2 "$sound/$1"; } >"$dir/$1"
    quantize 400
    error_line 3 "moe-quantize: *$1: its values would take * of memory, more than the * that they may" \
        "$2 MiB of {} in $1"
}
small config.json 12
small tokenizer_config.json 48
small tokenizer.json 48

finish
