#!/bin/sh
# Decoding beside other work: tokens/s of the bundled model widened as in README, with everything in memory and in less
# than half of it, while 0, 1 and 2 other processes keep processors busy.
#
#   [BASE=another-build/bin] tests/bench/neighbour.sh
#
# ROUNDS (5) in turn, with BASE each beside the other build; medians, with the slowest and the fastest. Nothing else should
# run. Every answer is compared.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
work=${WORK:-$BUILD/bench/neighbour}
tokens=${TOKENS:-200}
mkdir -p "$work"
if [ ! -e "$work/wide.moe" ]; then
    "$BUILD/tests/tools/widen" --hidden 4 --ff 8 "${BUILD:-build}/models/tiny-moe" "$work/wide"
    "$BUILD/bin/moe-quantize" -q -o "$work/wide.moe" "$work/wide"
fi
busy=
quieten() {
    # shellcheck disable=SC2086 # the numbers are words
    [ -z "$busy" ] || kill $busy 2>/dev/null || :
    busy=
}
trap quieten EXIT
: >"$work/rows"
rm -f "$work/answer"
for neighbours in ${NEIGHBOURS:-0 1 2}; do
    for _ in $(seq "$neighbours"); do
        sh -c 'while :; do :; done' &
        busy="$busy $!"
    done
    for _ in $(seq "${ROUNDS:-5}"); do
        for row in "resident 400M" "lru 140M" "prefetch 140M"; do
            for bin in $BUILD/bin ${BASE:-}; do
                "$bin/moe-run" "$work/wide.moe" -q -p 'Once upon a time' -n "$tokens" --ignore-eos --seed 7 \
                    --memory "${row#* }" --strategy "${row% *}" --stats-json "$work/stats.json" >"$work/out"
                [ -e "$work/answer" ] || cp "$work/out" "$work/answer"
                cmp -s "$work/out" "$work/answer" || echo "another answer: $bin, $row" >&2
                speed=$(sed -n '/^  "decode": {/,/^  }/s/^    "tokens_per_s": *\([^,]*\).*/\1/p' "$work/stats.json")
                echo "$neighbours ${row% *} $bin $speed" >>"$work/rows"
            done
        done
    done
    quieten
done
sort -k1,1n -k2,2 -k3,3 -k4,4n "$work/rows" | awk '
    function show() { if (n) printf "%s busy, %-9s %-24s %7.1f tokens/s (%.1f to %.1f)\n", row[1], row[2], row[3],
        (v[int((n + 1) / 2)] + v[int(n / 2) + 1]) / 2, v[1], v[n] }
    { key = $1 " " $2 " " $3; if (key != last) { show(); n = 0; last = key; split(key, row, " ") } v[++n] = $4 }
    END { show() }'
