#!/bin/sh
# Drafts (moe-run --draft ngram, mtp): tokens/s and MB a decoded token with and without them, and the share of
# drafted tokens that was right, with everything in memory and with a quarter of the experts; the answers must be
# the same. Texts of three kinds are continued; code repeats itself the most.
#
#   tests/bench/draft.sh [PACK]    (the bundled model widened, made in $BUILD/bench/draft)
#
# HOW ("ngram"): what drafts, perhaps "ngram mtp" for a pack with a layer that drafts. The bundled model has none;
# train_draft.py trains one, widened by tests/tools/widen --hidden 4 --ff 8 and converted by moe-quantize.
# ROUNDS (3) of each in turn, medians; TOKENS (200) of an answer. Two minutes on a quiet machine.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
bin=$BUILD/bin
dir=$BUILD/bench/draft
rounds=${ROUNDS:-3}
tokens=${TOKENS:-200}
hows=${HOW:-ngram}
mkdir -p "$dir"
pack=${1:-$dir/wide.moe}
if [ ! -f "$pack" ]; then
    "$BUILD/tests/tools/widen" --hidden 4 --ff 8 "${BUILD:-build}/models/tiny-moe" "$dir/wide"
    "$bin/moe-quantize" -q -o "$pack" "$dir/wide"
fi
"$bin/moe-plan" --explain "$pack" --json >"$dir/pack.json"
number() { grep -o "\"$1\": *[0-9]*" "$dir/pack.json" | head -n 1 | sed 's/.*: *//'; }
all=$(number all_in_memory_bytes)
least=$(number smallest_bytes)
quarter=$((least + (all - least) / 4))
for kind in stories math code; do head -c 700 "tests/data/$kind.valid.txt" >"$dir/$kind.txt"; done

figure() { sed -n "s/^  \"$1\": *\([^,]*\).*/\1/p" "$dir/stats.json"; }
once() { # KIND MEMORY HOW
    "$bin/moe-run" "$pack" -q -f "$dir/$1.txt" -n "$tokens" --ignore-eos --temp 0 --memory "$2" --draft "$3" \
        --stats-json "$dir/stats.json" >"$dir/$1-$2-$3"
    drafted=$(figure drafted_tokens)
    right=$(figure accepted_tokens)
    echo "$1 $2 $3 $(figure decode_tokens_per_s) $(figure bytes_per_token) ${drafted:-0} ${right:-0}" >>"$dir/rows"
}
: >"$dir/rows"
for round in $(seq "$rounds"); do
    for memory in $((all + (64 << 20))) "$quarter"; do
        for kind in stories math code; do
            once "$kind" "$memory" none
            for how in $hows; do
                once "$kind" "$memory" "$how"
                cmp -s "$dir/$kind-$memory-none" "$dir/$kind-$memory-$how" ||
                    { echo "round $round: $kind in $memory bytes, $how: another answer" >&2; exit 1; }
            done
        done
    done
done
echo "| text | memory | drafts | tokens/s | MB/token | drafted | right |"
echo "|---|---|---|---|---|---|---|"
sort -k 1,3 -k 4,4n "$dir/rows" | awk -v rounds="$rounds" -v quarter="$quarter" '
    { key = $1 " " $2 " " $3; speed[key, ++n[key]] = $4; mb[key] = $5 / 1e6; drafted[key] = $6; right[key] = $7 }
    END { for (key in n) {
        split(key, of, " ")
        printf "| %s | %s | %s | %.1f | %.1f | %d | %s |\n", of[1], (of[2] == quarter ? "a quarter" : "all"), of[3],
            speed[key, int((rounds + 1) / 2)], mb[key], drafted[key],
            (drafted[key] ? sprintf("%.0f%%", 100 * right[key] / drafted[key]) : "") } }' | sort
