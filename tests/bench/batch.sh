#!/bin/sh
# Decoding 1, 2, 4, 8 and 16 sequences side by side, on the same weights: here with all experts in memory,
# here with a cache of a quarter of the pack, and in llama.cpp's llama-batched-bench.
#
#   PEER=DIR tests/bench/batch.sh
#
# PEER is the directory with llama-batched-bench; without it only what is here is measured. It is built from
# llama-cpp-python's source distribution, which holds llama.cpp:
#
#   pip download --no-deps --no-binary :all: llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz
#   cmake -S llama_cpp_python-*/vendor/llama.cpp -B llama -G Ninja -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF \
#       -DBUILD_SHARED_LIBS=OFF && ninja -C llama llama-batched-bench        # PEER=llama/bin
#
# The bundled model is widened, written as GGUF (Q4_0) and a pack is made of that very file, as in peer.py, whose
# files are used again. THREADS (all), TOKENS (64) and PROMPT (32) a sequence, ROUNDS (3) of the peer, CELL (8x16)
# and EXPERT_MIB may be set. bench_batch.c says what its columns mean. Needs 3 GB of disk and of memory, a quiet
# machine, and some minutes.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
threads=${THREADS:-$(nproc)}
tokens=${TOKENS:-64}
prompt=${PROMPT:-32}
cell=${CELL:-8x16}
dir=${DIR:-$BUILD/bench/peer}
gguf=$dir/$cell-q4_0.gguf
pack=$dir/$cell-q4_0.moe

mkdir -p "$dir"
if [ ! -f "$gguf" ]; then
    hidden=${cell%x*}
    "$BUILD/tests/tools/widen" --hidden "$hidden" --heads "$hidden" --ff "${cell#*x}" "${BUILD:-build}/models/tiny-moe" \
        "$dir/wide"
    "$BUILD/tests/tools/write_gguf" --type q4_0 "$dir/wide" "$gguf.part"
    rm -r "$dir/wide"
    mv "$gguf.part" "$gguf"
fi
[ -f "$pack" ] || "$BUILD/bin/moe-quantize" -q --experts 4 --dense 4 -o "$pack" "$gguf"
experts=${EXPERT_MIB:-$(($(wc -c <"$pack") / 4 / 1048576))}

"$BUILD/tests/bench/bench_batch" "$pack" "$threads" "$experts" "$tokens" "$prompt" \
    tests/data/stories.valid.txt tests/data/math.valid.txt tests/data/code.valid.txt

[ -n "${PEER:-}" ] || exit 0
echo
echo "$gguf, llama-batched-bench, $threads threads, all in memory, median of ${ROUNDS:-3}"
echo "sequences  tokens/s"
round=0
while [ "$round" -lt "${ROUNDS:-3}" ]; do
    "$PEER/llama-batched-bench" -m "$gguf" -c $(((tokens + prompt) * 16)) -b 512 -ub 512 -npp "$prompt" \
        -ntg "$tokens" -npl 1,2,4,8,16 -t "$threads" -tb "$threads" -ngl 0 2>/dev/null
    round=$((round + 1))
done | awk -F '|' '
    $4 + 0 > 0 { n[$4 + 0]++; rate[$4 + 0, n[$4 + 0]] = $9 + 0 }   # | PP | TG | B | N_KV | T_PP | S_PP | T_TG | S_TG |
    END {
        for (b = 1; b <= 16; b *= 2) {
            for (i = 1; i <= n[b]; i++)
                for (k = i + 1; k <= n[b]; k++)
                    if (rate[b, k] < rate[b, i]) { x = rate[b, i]; rate[b, i] = rate[b, k]; rate[b, k] = x }
            if (n[b])
                printf "%9d %9.1f\n", b, rate[b, int((n[b] + 1) / 2)]
        }
    }'
