#!/bin/sh
# make bench: every benchmark, on a model widened from the bundled one, in one run.
#
#   HIDDEN=8 FF=16 tests/bench/run.sh     a 1.2 GB pack at 4 bits (needs 5 GB of disk in $BUILD)
#
# Defaults are half of that in both directions: 0.3 GB, a few minutes.
set -eu
BUILD=${BUILD:-build}
hidden=${HIDDEN:-4}
ff=${FF:-8}
tools=$BUILD/tests
dir=$BUILD/bench/$hidden-$ff
text=tests/data/stories.valid.txt
# What moe-run sets for itself: a short spin at the end of parallel loops.
mkdir -p "$dir"
if [ ! -f "$dir/4.moe" ]; then
    "$tools/tools/widen" --hidden "$hidden" --ff "$ff" "${BUILD:-build}/models/tiny-moe" "$dir/model"
    for bits in 4 8; do
        "$BUILD/bin/moe-quantize" -q --method rtn --experts $bits -o "$dir/$bits.moe" "$dir/model"
    done
    rm -r "$dir/model"
fi
echo "== kernels against the machine's limits"
"$tools/bench/bench_kernels"
echo "== models against the machine's limits"
for bits in 4 8; do "$tools/bench/bench_model" "$dir/$bits.moe"; done
echo "== disk"
"$tools/bench/bench_disk" "$dir" "${DISK:-1G}" || echo "bench_disk: not measured here"
echo "== experts that do not fit: cache of two tokens' demand"
echo '| mode          | demand |  loads | tokens/s |    hits | MB/token | stall  | GB/s  |'
for mode in resident lru lfu arc random ondemand; do
    "$tools/bench/bench_offload" "$dir/8.moe" "$text" mode=$mode demand=2 rate=256M
done
echo "== quality"
tests/bench/ladder.sh
