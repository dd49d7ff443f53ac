#!/bin/sh
# Models of today beside llama.cpp, by their shapes: the same sizes and bits, weights drawn on both sides.
#
#   LLAMA=DIR tests/bench/peer_shapes.sh profiles/shapes/qwen3.6-35b-a3b.json
#
# DIR holds llama-bench and its libraries. A pack by moe-quantize --synthesize and a GGUF file by
# tests/bench/shape_gguf.py (PYTHON with the gguf package and numpy) are made in WORK ($BUILD/bench/shapes) and used
# again; both together take 40 GB of disk for 35B. Then in turn, ROUNDS (3) times: answers of TOKENS (32) tokens with
# everything in memory, and within MEMORY (8G), a control group of as much for either; llama.cpp as it runs by itself,
# weights mapped, and without rearranging them (--repack 0), which alone can leave pages on disk. The first run of
# each, which fills the page cache, does not count. Routers are drawn: experts are chosen without habits, so hits and
# rates within the budget are the least to expect of both. Nothing else should run; making control groups takes the
# right to do so.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
shape=$1
work=${WORK:-$BUILD/bench/shapes}
memory=${MEMORY:-8G}
tokens=${TOKENS:-32}
name=$(basename "$shape" .json)
mkdir -p "$work"
[ -e "$work/$name.moe" ] || "$BUILD/bin/moe-quantize" -q --synthesize "$shape" --experts 4 -o "$work/$name.moe"
[ -e "$work/$name.gguf" ] || "${PYTHON:-python3}" tests/bench/shape_gguf.py --ggml "$LLAMA/libggml-base.so" \
    "$shape" "$work/$name.gguf"
root=/sys/fs/cgroup/memory
limit=memory.limit_in_bytes
[ -d "$root" ] || { root=/sys/fs/cgroup; limit=memory.max; }
group=$root/moe-peers.$$
mkdir "$group"
trap 'rmdir "$group"' EXIT
echo "$memory" >"$group/$limit"
within() { sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh "$group" "$@"; }
ours() { # [WITHIN] OPTION...
    "$@" --bench --json -q -n "$tokens" --prompt-tokens 64 2>/dev/null |
        sed 's/.*"prefill_tokens_per_s": {"median": \([0-9.]*\).*"decode_tokens_per_s": {"median": \([0-9.]*\).*/\1 \2/'
}
theirs() { "$@" -m "$work/$name.gguf" -t "$(nproc)" -p 64 -n "$tokens" -r 1 -o csv 2>/dev/null |
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next } { gsub(/"/, ""); printf "%s ", $at["avg_ts"] }'; }
round=-1
while [ "$((round += 1))" -le "${ROUNDS:-3}" ]; do
    for row in ${ROWS:-ours-all ours-within llama llama-mapped llama-within}; do
        case $row in
        ours-all) figures=$(ours "$BUILD/bin/moe-run" "$work/$name.moe") ;;
        ours-within) figures=$(ours within "$BUILD/bin/moe-run" "$work/$name.moe" --memory "$memory") ;;
        llama) figures=$(theirs "$LLAMA/llama-bench") ;;
        llama-mapped) figures=$(theirs "$LLAMA/llama-bench" --repack 0) ;;
        llama-within)
            # Pages that are there already would be charged to nobody.
            dd if=/dev/null of="$work/$name.gguf" oflag=nocache conv=notrunc count=0 2>/dev/null
            figures=$(theirs within "$LLAMA/llama-bench" --repack 0)
            ;;
        esac
        [ "$round" -eq 0 ] || echo "$name $row $round prompt, answer tokens/s: $figures"
    done
done
