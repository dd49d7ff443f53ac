#!/bin/sh
# Cache policies over cache sizes and links, one table for each set of texts, from one run:
#
#   tests/bench/policies.sh PACK [LOADS [DEMANDS]]
#
# Loads cost LOADS times a layer's computation (default: 0.25 1 4 16), the cache holds DEMANDS times
# what one token visits (0.5 1 2 4 6). Texts are the generated ones of tests/data, in equal parts,
# and, where REAL names a directory, the *.valid.txt there. Use a pack widened until a layer takes
# about a millisecond (tests/tools/widen --hidden 16 --ff 32, 4 bits: 1.9 ms, 4.8 GB).
#
# A slow link makes slow cells: there fewer tokens are fed (TOKENS="warm:measured" sets them for all
# cells). Links that no disk here can be are served from a copy of the pack in memory; the last column
# says what rate was reached while anything was read, as memory has its limits, too. ondemand keeps
# nothing, so that it has one row for each link.
set -eu
bench=${BUILD:-build}/tests/bench/bench_offload
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}"
pack=$1
all_loads=${2:-0.25 1 4 16}
demands=${3:-0.5 1 2 4 6}

join() { echo "$*" | tr ' ' ','; }

# cell TEXTS LOADS MODE DEMAND
cell() {
    case $2 in
    0.25 | 1) counts=${TOKENS:-16:24} ram=1 ;;
    4) counts=${TOKENS:-12:16} ram=0 ;;
    *) counts=${TOKENS:-8:6} ram=0 ;;
    esac
    "$bench" "$pack" "$1" mode="$3" demand="$4" loads="$2" layer="$layer" ram=$ram \
        warm="${counts%:*}" tokens="${counts#*:}"
}

table() { # NAME TEXTS
    echo "== $1"
    resident=$("$bench" "$pack" "$2" mode=resident warm=12 tokens=24)
    layer=$(echo "$resident" | sed -n 's/^layer=//p')
    echo '| policy        | demand |  loads | tokens/s |    hits | MB/token | stall  | GB/s  |'
    echo '| ------------- | ------ | ------ | -------- | ------- | -------- | ------ | ----- |'
    echo "$resident" | grep -v layer=
    for loads in $all_loads; do
        for demand in $demands; do
            for mode in lru lfu arc random; do cell "$2" "$loads" $mode "$demand"; done
        done
        cell "$2" "$loads" ondemand 1
    done
    echo "one layer's computation with all experts in memory: $layer s"
}

table generated "$(join tests/data/*.valid.txt)"
if [ -n "${REAL:-}" ]; then table real "$(join "$REAL"/*.valid.txt)"; fi
