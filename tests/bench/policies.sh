#!/bin/sh
# Cache policies over cache sizes and links, one table from one run:
#
#   tests/bench/policies.sh PACK TEXT [LOADS [DEMANDS]]
#
# Loads cost LOADS times a layer's computation (default: 0.25 1 4 16), the cache holds DEMANDS times
# what one token visits (0.5 1 2 4 6); WARM tokens (16) come first, TOKENS (24) are measured. Loads are
# served from a copy in memory at the link's rate. Use a pack widened until a layer takes about a
# millisecond.
set -eu
bench=${BUILD:-build}/tests/bench/bench_offload
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}"
echo '| policy        | demand |  loads | tokens/s |    hits | MB/token | stall  | GB/s  |'
echo '| ------------- | ------ | ------ | -------- | ------- | -------- | ------ | ----- |'
"$bench" "$1" "$2" mode=resident >"${TMPDIR:-/tmp}/resident.$$"
grep -v layer= "${TMPDIR:-/tmp}/resident.$$"
layer=$(sed -n 's/^layer=//p' "${TMPDIR:-/tmp}/resident.$$")
rm -f "${TMPDIR:-/tmp}/resident.$$"
for loads in ${3:-0.25 1 4 16}; do
    for demand in ${4:-0.5 1 2 4 6}; do
        for mode in lru lfu arc random ondemand; do
            "$bench" "$1" "$2" mode=$mode demand="$demand" loads="$loads" layer="$layer" ram=1 \
                warm="${WARM:-16}" tokens="${TOKENS:-24}"
        done
    done
done
echo
echo "one layer's computation with all experts in memory: $layer s"
