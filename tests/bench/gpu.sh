#!/bin/sh
# make bench-gpu: a GPU against its own limits, then tokens/s of a model of about 14 GB by the share
# of its experts in the GPU's memory (bench_gpu.c). Without a GPU it says so and ends.
#
#   BENCH_DIR=/somewhere/large make bench-gpu    makes the model there, once: 32 GB of checkpoint,
#                                                gone afterwards, and the pack
#   HIDDEN=8 FF=16 BENCH_DIR=... make bench-gpu  a smaller one, of 2 GB (needs 6 GB of disk)
#
# Without BENCH_DIR, or without room there, the model is left out. BENCH names another bench_gpu.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
bench=${BENCH:-$BUILD/tests/bench/bench_gpu}
hidden=${HIDDEN:-16}
ff=${FF:-64}

if [ -z "${BENCH:-}" ] && ! why=$("$BUILD/tests/tools/gpu_here"); then
    echo "nothing is measured: $why"
    exit 0
fi

# Makes $1/42.moe and $1/stats.yaml.
make_model() {
    if [ ! -f "$1/42.moe" ]; then
        need=$((hidden * ff * 48)) # MiB, the checkpoint included: 50 GB for 16 times 64
        room=$(df -Pm "$1" | awk 'NR == 2 { print $4 }')
        if [ "$room" -lt "$need" ]; then
            echo "no model: $1 has room for $room MiB, its making takes $need" >&2
            return 1
        fi
        "$BUILD/tests/tools/widen" --hidden "$hidden" --ff "$ff" "${BUILD:-build}/models/tiny-moe" \
            "$1/model" || return 1
        "$BUILD/bin/moe-quantize" -q --method rtn --experts 4,2 -o "$1/42.moe" "$1/model" ||
            return 1
        rm -r "$1/model"
    fi
    # The widened model routes as the bundled one does.
    [ -f "$1/stats.yaml" ] || "$BUILD/bin/moe-profile" -q "$1/42.moe" --max-tokens 96 --max-windows 1 \
        --text tests/data/stories.calib.txt -o "$1/stats.yaml"
}

if [ -z "${BENCH_DIR:-}" ]; then
    echo "no model: BENCH_DIR names no directory for it" >&2
    exec "$bench"
fi
dir=$BENCH_DIR/$hidden-$ff
mkdir -p "$dir"
make_model "$dir" || exec "$bench"
exec "$bench" "$dir/42.moe" --statistics "$dir/stats.yaml" --text tests/data/stories.valid.txt
