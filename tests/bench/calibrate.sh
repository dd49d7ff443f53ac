#!/bin/sh
# Bit maps of the bundled model: tolerances of 0.5 to 10%, chosen on the calibration texts, judged on
# the validation texts, beside uniform packs and beside 20 random maps of equal bytes (EdgeMoE table II's
# form); maps of one domain's text on the others (table IV's form); Fate fig. 10 and HOBBIT fig. 3b.
#
#     tests/bench/calibrate.sh [WORK]
#
# MODEL: a directory of another one. TEXTS: directory of {stories,math,code}.{calib,valid}.txt, tests/data unless set. BITS: of the pack,
# 8,4,2 unless set. METHOD: of the pack, hqq unless set; linear is EdgeMoE's, one scale for each output
# channel. The pack's dense part has 8 bits, DENSE unless set. DOCUMENTS: of each text, all unless set.
# SHUFFLES: random maps beside each, 20 unless set; 0: none. TOLERANCES: beside 1%, "0.5 2 5 10" unless set.
# CURVES=0: without those of Fate and HOBBIT.
# Three quarters of an hour on 2 cores; what WORK has already is not made again.
set -eu
cd "$(dirname "$0")/../.."
method=${METHOD:-hqq}
shuffles=${SHUFFLES:-20}
work=${1:-build/bench-calibrate$([ "$method" = hqq ] || echo "-$method")}
texts=${TEXTS:-tests/data}
model=${MODEL:-${BUILD:-build}/models/tiny-moe}
tolerances=${TOLERANCES-0.5 2 5 10}
bin=${BUILD:-build}/bin
mkdir -p "$work"
domains="stories math code"
if [ -n "${DOCUMENTS:-}" ]; then # only so many of each, to see that it works
    for t in "$texts"/*.calib.txt "$texts"/*.valid.txt; do
        awk -v n="$DOCUMENTS" '/^<\|endoftext\|>$/ { k++ } k < n' "$t" >"$work/$(basename "$t")"
    done
    texts=$work
fi
calib=$(for d in $domains; do printf -- '--text %s ' "$texts/$d.calib.txt"; done)
check=$(for d in $domains; do printf -- '--check %s ' "$texts/$d.valid.txt"; done)
# shellcheck disable=SC2086,SC2046 # lists of options
[ -e "$work/all.moe" ] ||
    "$bin/moe-quantize" -q --method "$method" $([ "$method" != gptq ] || echo "$calib") \
        --experts "${BITS:-8,4,2}" --dense "${DENSE:-8}" -o "$work/all.moe" "$model"

calibrate() { # MAP OPTION...
    map=$work/$1
    shift
    # A map whose tolerance does not hold on the checks is there, and the tables say so.
    [ -e "$map" ] || "$bin/moe-calibrate" -q "$work/all.moe" --resume "$@" -o "$map" || [ -s "$map" ]
}

# shellcheck disable=SC2086 # lists of options
{
    start=$(date +%s)
    calibrate 1.yaml $calib $check --tolerance 1% $([ "${CURVES:-1}" = 1 ] || echo --without fate --without hobbit)
    echo "importance of all experts, choice, curves: $(($(date +%s) - start)) s"
    for p in $tolerances; do
        calibrate $p.yaml $calib $check --tolerance $p% --from "$work/1.yaml" --without fate \
            --without hobbit
    done
}

echo
"$bin/moe-calibrate" --show "$work/1.yaml"
echo
echo "| pack | bytes | loss, calib | loss, valid | $shuffles shuffles on valid: mean, lowest to highest | map better, clearly |"
echo "|---|---|---|---|---|---|"
# The figures of --show: bytes after the colon, losses after "on the texts" and "on checks".
for p in 1 $tolerances; do
    "$bin/moe-calibrate" --show "$work/$p.yaml" | awk -v p="$p" '
        /^Choice/ { sub(/.*: /, ""); sub(/, experts.*/, ""); bytes = $0 }
        /^  on the texts/ { calib = $4 " (" $6 ")" }
        /^  on checks/ { valid = $3 " (" $5 ")" }
        END { printf "| map, %s%% | %s | %s | %s ", p, bytes, calib, valid }'
    [ "$shuffles" != 0 ] || { echo "| | |" && continue; }
    # shellcheck disable=SC2046
    "${BUILD:-build}/tests/bench/bench_maps" "$work/all.moe" "$work/$p.yaml" "$shuffles" \
        $(for d in $domains; do echo "$texts/$d.valid.txt"; done) | tail -n 1 |
        awk '{ printf "| %+.2f%%, %+.2f%% to %+.2f%% | %d of %d, %d |\n", $3, $4, $5, $6, $8, $7 }'
done

echo
echo "A map of one domain's text (2%, importances estimated) on the others:"
echo "| chosen on | stories | math | code |"
echo "|---|---|---|---|"
for d in $domains; do
    # shellcheck disable=SC2086
    calibrate "$d.yaml" --text "$texts/$d.calib.txt" $check --importance proxy --tolerance 2% --without fate \
        --without hobbit
    "$bin/moe-calibrate" --show "$work/$d.yaml" | awk -v d="$d" '
        /valid.txt .*\(check\)/ { row = row " | " $4 " (" $6 ")" }
        END { print "| " d row " |" }'
done
