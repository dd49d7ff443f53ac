#!/bin/sh
# Bytes of experts against loss: what each way of rounding them costs, all other matrices at 16 bits.
#
#   tests/bench/expert_bytes.sh [CHECKPOINT [FILE.gguf...]]
#
# METHODS (blocks hqq gptq best) round the checkpoint's experts to BITS (4 3 2; blocks to 5 and 6, too, best to 5 and 1), and best to MEANS of bits
# (moe-quantize --bits); gptq and best see CALIB, texts to choose on. Peers are folders with llama-quantize: LLAMA and IK
# round a GGUF file of the checkpoint (write_gguf; the bundled model, the second one) to LLAMA_TYPES and IK_TYPES, with an
# importance matrix of CALIB by IMATRIX, a llama-imatrix; NO_MATRIX=1: without. FILE.gguf are files made otherwise. All
# are run in place. Judged by TEXTS that nothing was chosen on, by other people where they lie beside the project: nats a
# token and how much that is above the 16 bits, the Kullback-Leibler divergence from the 16 bits' predictions, each with
# its standard error over all tokens, and how often the most likely token is the same. Bits a weight count scales and
# padding of layouts.
#
# DEFAULTS=1 compares what is done without any text: the default of moe-quantize at 8, 6, 5, 4, 3, 2 bits and iq4_xs, and best without
# texts beside llama-quantize without a matrix, then how their divergences are at the bits of each of its types. It
# wants a WORK of its own: peers' files that a matrix made have the same names.
#
# A CHECKPOINT without experts (DENSE=1) is a GGUF file that is the source itself: best gets TARGETS, sizes of packs
# (moe-quantize --target), peers round the file again, and what is counted is all weights.
#
# THREADS: all cores. WORK keeps packs, files and logs, so that a run that was ended goes on. The last thing printed is a
# figure: bits a weight to the right, divergence upwards; each method has a letter.
set -eu
cd "$(dirname "$0")/../.."
bin=${BIN:-build/bin}
checkpoint=${1:-build/models/tiny-moe}
[ $# -eq 0 ] || shift
real=${MOE_REAL_TEXTS:-../shared/data/real}
calib=${CALIB:-$(echo tests/data/*.calib.txt)}
texts=${TEXTS:-$(ls "$real"/*.valid.txt 2>/dev/null || echo tests/data/*.valid.txt)}
threads=${THREADS:-$(nproc)}
dense=${DENSE:-}
if [ -n "${DEFAULTS:-}" ]; then
    METHODS=${METHODS-default best} MEANS= TARGETS= NO_MATRIX=1 IMATRIX=
    LLAMA_TYPES=${LLAMA_TYPES-q2_k q2_k_s iq3_xxs q3_k_s iq3_s iq4_xs iq4_nl q4_0 q4_k_s q5_0 q5_k_s q6_k q8_0}
    calib=
fi
work=${WORK:-}
[ -n "$work" ] || { work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT INT TERM; }
mkdir -p "$work"
with_texts=
for text in $calib; do with_texts="$with_texts --text $text"; done
[ -n "$calib" ] || with_texts='--text none'
: >"$work/points"

measure() { # NAME MODEL: a row; of "16" what the others are compared with
    if [ ! -e "$work/$1.log" ]; then
        : >"$work/all.log"
        for text in $texts; do
            logits=$work/$(basename "$text").logits
            against="--against $logits"
            [ "$1" != 16 ] || against="--logits $logits"
            # shellcheck disable=SC2086
            "$bin/moe-run" -q -t "$threads" "$2" --perplexity "$text" --token-log "$work/one.log" $against >/dev/null
            cat "$work/one.log" >>"$work/all.log"
        done
        mv "$work/all.log" "$work/$1.log"
    fi
    "$bin/moe-quantize" --list --json "$2" >"$work/list.json"
    from='"variants"'
    [ -z "$dense" ] || from='"dense": {'
    bits=$(sed -n "/$from/,\$ s/.*\"bits_per_weight\": \([0-9.]*\).*/\1/p" "$work/list.json" | head -n 1)
    bytes=$(sed -n "/$from/,\$ s/.*\"memory_bytes\": \([0-9]*\).*/\1/p" "$work/list.json" | head -n 1)
    paste -d ' ' "$work/16.log" "$work/$1.log" | awk -v name="$1" -v bits="$bits" -v bytes="$bytes" -v to="$work/points" '
        function error(squares, mean) { return sqrt((squares / n - mean * mean) / n) }
        { base += $1; nll += $3; same += $2 == $4; d = $3 - $1; squares += d * d; kl += $5; kls += $5 * $5; n++ }
        END { mean = (nll - base) / n; kl /= n
              printf "| %-14s | %5.2f | %8.3f | %.4f | %+7.2f | %5.2f | %.5f | %.5f | %6.2f |\n", name, bits, bytes / 1e6,
                  nll / n, 100 * mean / (base / n), 100 * error(squares, mean) / (base / n), kl, error(kls, kl), 100 * same / n
              if (kl > 0)
                  print name, bits, kl >>to }'
}

pack() { # NAME OPTION...: the pack's path
    pack=$work/$1.moe
    shift
    # shellcheck disable=SC2086
    [ -e "$pack" ] || "$bin/moe-quantize" -q -t "$threads" $([ -n "$dense" ] || echo --dense 16) "$@" -o "$pack" "$checkpoint"
}

peers() { # FOLDER PREFIX TYPE...: measures the source by each type
    folder=$1
    prefix=$2
    shift 2
    for type in "$@"; do
        file=$work/$prefix$type.gguf
        set --
        [ -n "${NO_MATRIX:-}" ] || set -- --imatrix "$work/imatrix.dat"
        [ -n "$dense" ] || set -- "$@" --token-embedding-type f16 --output-tensor-type f16
        case $dense$prefix in # --pure of ik_llama.cpp comes before rules for other matrices
        ik-) set -- "$@" --custom-q "attn=f16,exps=$type" ;;
        '') set -- "$@" --pure --tensor-type attn=f16 ;;
        esac
        [ -e "$file" ] || LD_LIBRARY_PATH=$folder "$folder/llama-quantize" --allow-requantize "$@" "$source" "$file" \
            "$type" "$threads" >"$work/$prefix$type.out" 2>&1 || { echo "| $prefix$type: refused" && rm -f "$file" && continue; }
        measure "$prefix$type" "$file"
    done
}

source=$checkpoint
if [ -z "$dense" ]; then
    pack 16 --experts 16
    source=$work/f16.gguf
    [ -z "${LLAMA:-}${IK:-}" ] || [ -e "$source" ] || build/tests/tools/write_gguf "$checkpoint" "$source" >/dev/null
else
    pack=$checkpoint
fi
if [ -n "${IMATRIX:-}" ] && [ ! -e "$work/imatrix.dat" ]; then
    # shellcheck disable=SC2086
    cat $calib >"$work/calib.txt"
    "$IMATRIX" -m "$source" -f "$work/calib.txt" -o "$work/imatrix.dat" -c 256 -t "$threads" --parse-special --no-ppl --output-format dat \
        >"$work/imatrix.out" 2>&1
fi
echo '| weights        |  bits |       MB | nats   |  loss % |    +- | diverg. |      +- | top-1  |'
echo '| -------------- | ----- | -------- | ------ | ------- | ----- | ------- | ------- | ------ |'
measure 16 "$pack"
for method in ${METHODS-blocks hqq gptq best}; do
    texts_of=$with_texts
    more=
    by="--method $method"
    case $method in
    default) texts_of= && by= && more='8 6 5 iq4_xs' ;;
    blocks) texts_of= && more='6 5 iq4_xs' ;;
    hqq | rtn | linear) texts_of= ;;
    best) more='5 1' ;;
    esac
    for bits in ${BITS:-4 3 2} $more; do
        # shellcheck disable=SC2086
        pack "$method-$bits" $by --experts "$bits" $texts_of
        measure "$method-$bits" "$pack"
    done
done
for mean in ${MEANS-3.5 3 2.5}; do
    # shellcheck disable=SC2086
    pack "best-mean-$mean" --method best --bits "$mean" $with_texts
    measure "best-mean-$mean" "$pack"
done
for size in ${TARGETS:-}; do
    # shellcheck disable=SC2086
    pack "best-$size" --method best --target "$size" $with_texts
    measure "best-$size" "$pack"
done
# shellcheck disable=SC2086
[ -z "${LLAMA:-}" ] || peers "$LLAMA" "" ${LLAMA_TYPES:-iq1_m iq2_xxs iq2_xs iq2_s q2_k iq3_xxs iq3_s q3_k_s iq4_xs q4_k_s q5_k_s q6_k}
# shellcheck disable=SC2086
[ -z "${IK:-}" ] || peers "$IK" ik- ${IK_TYPES:-iq2_kt iq3_kt iq4_kt}
for file in "$@"; do
    measure "$(basename "$file" .gguf)" "$file"
done

# The default beside each of the peers' types, at the same bits: by its own points, on lines of the divergence's logarithm.
[ -z "${DEFAULTS:-}" ] || awk '
    /^(default|best)-/ { way = $1; sub(/-.*/, "", way); n[way]++; x[way, n[way]] = $2; y[way, n[way]] = log($3); next }
    { name[++peers] = $1; bits[peers] = $2; kl[peers] = $3 }
    function at(way, b,   i, low, high) { # between the nearest points to both sides
        for (i = 1; i <= n[way]; i++) {
            if (x[way, i] <= b && (!low || x[way, i] > x[way, low])) low = i
            if (x[way, i] >= b && (!high || x[way, i] < x[way, high])) high = i
        }
        if (!low || !high) return "-"
        if (x[way, low] == x[way, high]) return sprintf("%.5f", exp(y[way, low]))
        return sprintf("%.5f", exp(y[way, low] + (y[way, high] - y[way, low]) * (b - x[way, low]) / (x[way, high] - x[way, low])))
    }
    END {
        printf "\n| without texts |  bits | diverg. | default |  of it | best    |\n| ------------- | ----- | ------- | ------- | ------ | ------- |\n"
        for (i = 1; i <= peers; i++) {
            ours = at("default", bits[i])
            printf "| %-13s | %5.2f | %.5f | %7s | %6s | %7s |\n", name[i], bits[i], kl[i], ours,
                ours == "-" ? "-" : sprintf("%.0f%%", 100 * ours / kl[i]), at("best", bits[i])
        }
    }' "$work/points"

# The figure: a logarithm of the divergence, 1 to 7 bits. A letter for each method, of peers p (llama.cpp) and i (ik).
awk -v height=28 -v width=96 '
    { y[NR] = log($3) / log(10); x[NR] = $2
      mark[NR] = $1 ~ /^(blocks|default)/ ? "b" : $1 ~ /^hqq/ ? "h" : $1 ~ /^gptq/ ? "g" : $1 ~ /^best/ ? "B" : $1 ~ /^ik-/ ? "i" : "p"
      if (NR == 1 || y[NR] < low) low = y[NR]
      if (NR == 1 || y[NR] > high) high = y[NR] }
    END {
        if (NR == 0 || high <= low) exit
        for (i = 1; i <= NR; i++)
            if (x[i] >= 1 && x[i] < 7)
                at[int((high - y[i]) / (high - low) * height + 0.5), int((x[i] - 1) / 6 * width)] = mark[i]
        print ""
        for (row = 0; row <= height; row++) {
            line = sprintf("%8.5f |", 10 ^ (high - row * (high - low) / height))
            for (col = 0; col < width; col++)
                line = line ((row, col) in at ? at[row, col] : " ")
            sub(/ +$/, "", line)
            print line
        }
        printf "         +"
        for (col = 0; col < width; col++) printf col % 16 ? "-" : "+"
        printf "\n          "
        for (bits = 1; bits < 7; bits++) printf "%-16d", bits
        print "bits a weight\n          divergence, nats: B best, b blocks, g gptq, h hqq, p llama.cpp, i ik_llama.cpp"
    }' "$work/points"
