#!/bin/sh
# Hits of every cache policy beside the optimum's, and what a policy takes of the processor:
#
#   tests/bench/caches.sh [TRACE...]
#
# on the bundled model's validation texts and on traces of other models (moe-profile --import makes them of other
# engines' files), at 0.5 to 8 tokens' demand. Hits are the same on every machine; the microseconds want a quiet one.
# Then the same of each text's documents alone, from an empty cache, where nothing is known, and with what was learnt of the
# calibration text of its kind; how well past tokens' votes predict; and what knowing the next choices would add.
# Prints tables for CACHES.md. TRACES and the pack lie in WORK (build/bench/caches).
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
work=${WORK:-$BUILD/bench/caches}
mkdir -p "$work"
pack=$work/tiny4.moe
[ -e "$pack" ] || "$BUILD/bin/moe-quantize" -q -o "$pack" --experts 4 "${BUILD:-build}/models/tiny-moe"
for text in stories math code; do
    trace=$work/$text.trace
    [ -e "$trace" ] || "$BUILD/bin/moe-profile" -q "$pack" --text "tests/data/$text.valid.txt" \
        --trace "$trace" -o "$work/$text.yaml"
    set -- "$@" "$trace"
done
for trace; do
    table=$work/$(basename "$trace" .trace).txt
    [ -e "$table" ] ||
        nice "$BUILD/tests/tools/replay_trace" --cost --capacity 0.5x,1x,2x,4x,8x "$trace" >"$table"
    tables="${tables:-} $table"
done
# shellcheck disable=SC2086 # a list of files
awk '
    FNR == 1 { n_tables++; name = FILENAME; sub(/.*\//, "", name); sub(/\.txt$/, "", name)
        print "\n" name ", % of a decoded token\047s experts found\n"
        print "| policy | 0.5 | 1 | 2 | 4 | 8 | us a token |\n|---|---|---|---|---|---|---|"; next }
    FNR == 2 { next }
    {
        printf "| %s |", $1
        for (i = 2; i <= 6; i++) printf " %.1f |", $i
        printf " %s |\n", (NF > 6 ? $7 : "-")
        if (!($1 in seen)) { order[++n] = $1; seen[$1] = 1 }
        for (i = 2; i <= 6; i++) hits[$1, n_tables, i] = $i
    }
    END {
        print "\nOver lrfu, in points: the mean of all cells, the worst, the best\n"
        print "| policy | mean | worst | best |\n|---|---|---|---|"
        for (p = 1; p <= n; p++) {
            sum = 0; worst = 1e9; best = -1e9
            for (t = 1; t <= n_tables; t++) for (i = 2; i <= 6; i++) {
                d = hits[order[p], t, i] - hits["lrfu", t, i]
                sum += d
                if (d < worst) worst = d
                if (d > best) best = d
            }
            printf "| %s | %+.2f | %+.2f | %+.2f |\n", order[p], sum / (5 * n_tables), worst, best
        }
    }' $tables
for text in stories math code; do
    calib=$work/$text.calib.trace
    [ -e "$calib" ] || "$BUILD/bin/moe-profile" -q "$pack" --text "tests/data/$text.calib.txt" \
        --trace "$calib" -o "$work/$text.calib.yaml"
    [ -e "$work/$text.learnt" ] || "$BUILD/bin/moe-profile" -q --learn "$calib" -o "$work/$text.learnt"
    for known in "" "--learn $work/$text.learnt"; do
        # shellcheck disable=SC2086 # an option and its value, or nothing
        nice "$BUILD/tests/tools/replay_trace" --cold --policy learned --capacity 0.5x,1x,2x,4x $known "$work/$text.trace" |
            awk -v text="$text" -v known="${known:+, with what was learnt}" \
                '$1 == "learned" { printf "\n%s, cold%s: %s %s %s %s\n", text, known, $2, $3, $4, $5 }'
    done
done
for trace; do
    echo
    nice "$BUILD/tests/tools/replay_trace" --predict "$trace"
done
# What choices known in advance would add: the next 1, 2, 4, 8 of each layer.
for trace; do
    for n in 1 2 4 8; do
        nice "$BUILD/tests/tools/replay_trace" --policy learned --capacity 0.5x,1x,2x,4x --exact $n "$trace" |
            awk -v n=$n -v trace="$(basename "$trace" .trace)" \
                '$1 == "learned" { printf "%s, %d known: %s %s %s %s\n", trace, n, $2, $3, $4, $5 }'
    done
done
