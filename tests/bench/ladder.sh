#!/bin/sh
# The quality ladder: what each method and bitwidth costs, in bytes and in quality.
#
#   tests/bench/ladder.sh [CHECKPOINT [TEXT...]]
#
# For each rung: bytes of the pack, nats per token over all texts together, how much that is above
# the 16-bit pack, how often the most likely next token is the 16-bit pack's, and how often it is the text's ("right"). "Experts
# alone": the routed experts have the bits named and everything else 16, as in Fate's table 2 and EdgeMoE's figure 6;
# "dense too": the dense part has the same bits. Groups of 64, or of GROUP for methods that have groups (linear: one scale a row); routers stay at
# 16 bits. METHODS, BITS: hqq rtn linear, 8 4d8 4 3 2 unless set; with ALONE=1 only the rungs of experts alone.
set -eu
bin=${BIN:-build/bin}
checkpoint=${1:-${BUILD:-build}/models/tiny-moe}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- tests/data/stories.valid.txt tests/data/math.valid.txt tests/data/code.valid.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

# measure NAME PACK: the logs of all texts, one after the other, in $work/NAME.log
measure() {
    : >"$work/$1.log"
    for text in "$texts"/*; do
        "$bin/moe-run" -q "$2" --perplexity "$text" --token-log "$work/one.log" >/dev/null
        cat "$work/one.log" >>"$work/$1.log"
    done
}

# The texts' own tokens, those that are predicted, in $work/ids: each document's but for what the tokenizer puts before it.
tokens_of_texts() {
    added=$("$bin/moe-run" -q "$work/base.moe" --ids= | wc -w)
    for text in "$texts"/*; do
        rm -rf "$work/documents"
        mkdir "$work/documents"
        awk -v to="$work/documents/" '/^<\|endoftext\|>$/ { n++; next }
            { file = to sprintf("%06d", n)
              if (file != last) close(last)
              printf "%s%s", file == last ? "\n" : "", $0 >file
              last = file }' "$text"
        for document in "$work/documents"/*; do
            "$bin/moe-run" -q "$work/base.moe" --ids="$(cat "$document")" | tr ' ' '\n' | tail -n +$((added + 1))
        done
    done >"$work/ids"
    [ "$(wc -l <"$work/ids")" -eq "$(wc -l <"$work/base.log")" ] ||
        { echo "ladder.sh: the texts' tokens are not those that are predicted" >&2; exit 1; }
}

rung() { # NAME METHOD EXPERTS DENSE
    "$bin/moe-quantize" -q --method "$2" ${GROUP:+--group "$GROUP"} --experts "$3" --dense "$4" -o "$work/p.moe" "$checkpoint"
    measure "$1" "$work/p.moe"
    bytes=$(wc -c <"$work/p.moe")
    paste -d ' ' "$work/base.log" "$work/$1.log" "$work/ids" | awk -v name="$1" -v bytes="$bytes" '
        { base += $1; nll += $3; same += $2 == $4; right += $4 == $5; n++ }
        END { printf "| %-25s | %6.2f MB | %.4f | %+7.2f%% | %6.2f%% | %6.2f%% |\n", name, bytes / 1e6, nll / n,
              100 * (nll / base - 1), 100 * same / n, 100 * right / n }'
}

texts=$work/texts
mkdir "$texts"
for text in "$@"; do cp "$text" "$texts/"; done
"$bin/moe-quantize" -q --experts 16 --dense 16 -o "$work/base.moe" "$checkpoint"
measure base "$work/base.moe"
tokens_of_texts
printf '%s predicted tokens of %s texts\n\n' "$(wc -l <"$work/base.log")" "$#"
echo '| rung                      |      pack | nats   |   loss   | top-1   |  right  |'
echo '| ------------------------- | --------- | ------ | -------- | ------- | ------- |'
rung 16 rtn 16 16
for method in ${METHODS:-hqq rtn linear}; do
    for bits in ${BITS:-8 4d8 4 3 2}; do
        rung "$method $bits, experts alone" "$method" "$bits" 16
        [ "${ALONE:-}" = 1 ] || rung "$method $bits, dense too" "$method" "$bits" "${bits%d8}"
    done
done
[ "${ALONE:-}" = 1 ] || rung "hqq 4, dense 8 (default)" hqq 4 8
