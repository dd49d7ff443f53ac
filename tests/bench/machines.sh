#!/bin/sh
# What 1, 2, 4, 8 machines (and a rack of 32) of several memories and networks make of models, simulated by
# moe-plan --machines: answer tokens/s, as a table of Markdown. Machines and models that nobody here has; the page behind
# the figures is moe-ranks(7), What it gives.
#
# A cell has the three of them, slowest first; "-": the model does not fit.
#
#   [MACHINES='1 2 4 8 32'] [MEMORIES='16G 32G 64G'] tests/bench/machines.sh profiles/shapes/qwen3-30b-a3b.json ...
#
# Each machine reads memory at 60 GB/s and a disk at 3 GB/s, as small computers of today. Networks: gigabit Ethernet with
# 150 us to a message, 2.5 gigabit with 100, 10 gigabit with 50. Routing is drawn, as the bundled model's.
set -eu
cd "$(dirname "$0")/../.."
plan=${BUILD:-build}/bin/moe-plan
hosts=$(mktemp)
trap 'rm -f "$hosts"' EXIT
speed() { # SHAPE MACHINES MEMORY LATENCY BYTES_PER_SECOND
    printf '%s\n' 'format: moe-machines' 'version: 1' \
        "network: {latency_seconds: $4, bytes_per_second: $5, handling_seconds: 5e-6}" 'machines:' \
        "- {name: a, memory: $3, memory_bytes_per_second: 60e9, storage_bytes_per_second: 3e9, count: $2}" >"$hosts"
    "$plan" -q --shape "$1" --machines "$hosts" -c 4096 --max-tokens "${TOKENS:-70}" --no-outlook --json 2>/dev/null |
        sed -n 's/^  "decode_tokens_per_s": \([0-9.e+-]*\).*/\1/p' | awk '{ printf "%.3g", $1 } END { if (!NR) print "-" }'
}
numbers=${MACHINES:-1 2 4 8 32}
echo "| model, memory of each |$(printf ' %s |' $numbers)"
echo "|---|$(printf -- '--:|%.0s' $numbers)"
for shape in "$@"; do
    for memory in ${MEMORIES:-16G 32G 64G}; do
        row="| $(basename "$shape" .json), $memory |"
        for n in $numbers; do
            row="$row $(speed "$shape" "$n" "$memory" 150e-6 1.17e8)"
            [ "$n" = 1 ] || row="$row / $(speed "$shape" "$n" "$memory" 100e-6 2.93e8) / $(speed "$shape" "$n" "$memory" 50e-6 1.17e9)"
            row="$row |"
        done
        echo "$row"
    done
done
