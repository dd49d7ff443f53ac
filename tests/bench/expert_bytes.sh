#!/bin/sh
# Bytes of experts against loss: what each way of rounding them costs, all other matrices at 16 bits.
#
#   tests/bench/expert_bytes.sh [CHECKPOINT [FILE.gguf...]]
#
# METHODS (hqq gptq best) round the checkpoint's experts to BITS (4 3 2; best to 1, too), and best to MEANS of bits
# (moe-quantize --bits); gptq and best see CALIB, texts to choose on. FILE.gguf is the same model by another program's
# quantizer, run in place. Judged by TEXTS that nothing was chosen on: nats a token, how much that is above the 16 bits,
# the standard error of this over all tokens, and how often the most likely token is the same. Bits a weight count
# scales and padding of layouts. THREADS: all cores. WORK keeps packs and logs, so that a run that was ended goes on.
set -eu
cd "$(dirname "$0")/../.."
bin=${BIN:-build/bin}
checkpoint=${1:-build/models/tiny-moe}
[ $# -eq 0 ] || shift
calib=${CALIB:-$(echo tests/data/*.calib.txt)}
texts=${TEXTS:-$(echo tests/data/*.valid.txt)}
threads=${THREADS:-$(nproc)}
work=${WORK:-}
[ -n "$work" ] || { work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT INT TERM; }
mkdir -p "$work"
with_texts=
for text in $calib; do with_texts="$with_texts --text $text"; done

measure() { # NAME MODEL: a row
    if [ ! -e "$work/$1.log" ]; then
        : >"$work/all.log"
        for text in $texts; do
            "$bin/moe-run" -q -t "$threads" "$2" --perplexity "$text" --token-log "$work/one.log" >/dev/null
            cat "$work/one.log" >>"$work/all.log"
        done
        mv "$work/all.log" "$work/$1.log"
    fi
    "$bin/moe-quantize" --list --json "$2" >"$work/list.json"
    bits=$(sed -n '/"variants"/,$ s/.*"bits_per_weight": \([0-9.]*\).*/\1/p' "$work/list.json" | head -n 1)
    bytes=$(sed -n '/"variants"/,$ s/.*"memory_bytes": \([0-9]*\).*/\1/p' "$work/list.json" | head -n 1)
    paste -d ' ' "$work/16.log" "$work/$1.log" | awk -v name="$1" -v bits="$bits" -v bytes="$bytes" '
        { base += $1; nll += $3; same += $2 == $4; d = $3 - $1; squares += d * d; n++ }
        END { mean = (nll - base) / n
              printf "| %-14s | %5.2f | %8.3f | %.4f | %+7.2f | %5.2f | %6.2f |\n", name, bits, bytes / 1e6, nll / n,
                  100 * mean / (base / n), 100 * sqrt((squares / n - mean * mean) / n) / (base / n), 100 * same / n }'
}

pack() { # NAME OPTION...: the pack's path
    pack=$work/$1.moe
    shift
    [ -e "$pack" ] || "$bin/moe-quantize" -q -t "$threads" --dense 16 "$@" -o "$pack" "$checkpoint"
}

pack 16 --experts 16
echo '| experts        |  bits |       MB | nats   |  loss % |    +- | top-1  |'
echo '| -------------- | ----- | -------- | ------ | ------- | ----- | ------ |'
measure 16 "$pack"
for method in ${METHODS:-hqq gptq best}; do
    for bits in ${BITS:-4 3 2} $([ "$method" != best ] || echo 1); do
        # shellcheck disable=SC2086
        pack "$method-$bits" --method "$method" --experts "$bits" $([ "$method" = hqq ] || echo $with_texts)
        measure "$method-$bits" "$pack"
    done
done
for mean in ${MEANS:-3.5 3 2.5}; do
    # shellcheck disable=SC2086
    pack "best-mean-$mean" --method best --bits "$mean" $with_texts
    measure "best-mean-$mean" "$pack"
done
for file in "$@"; do
    measure "$(basename "$file" .gguf)" "$file"
done
