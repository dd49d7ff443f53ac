#!/bin/sh
# Cache policies over cache sizes and links, one table from one run:
#
#   tests/bench/policies.sh PACK TEXT [LOADS [DEMANDS]]
#
# Loads cost LOADS times a layer's computation (default: 0.25 1 4 16), the cache holds DEMANDS times
# what one token visits (0.5 1 2 4 6). Use a pack widened until a layer takes a millisecond.
set -eu
bench=${BUILD:-build}/tests/bench/bench_offload
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}"
echo '| policy        | demand |  loads | tokens/s |    hits | MB/token | stall  | GB/s  |'
echo '| ------------- | ------ | ------ | -------- | ------- | -------- | ------ | ----- |'
for loads in ${3:-0.25 1 4 16}; do
    for demand in ${4:-0.5 1 2 4 6}; do
        for mode in lru lfu arc random ondemand; do
            "$bench" "$1" "$2" mode=$mode demand="$demand" loads="$loads" ram=1 \
                warm="${WARM:-16}" tokens="${TOKENS:-24}"
        done
    done
done
