#!/bin/sh
# What each way to keep keys and values costs: nats per token of a text, cut into windows, and attention's processor time.
# BUILD=build sh tests/bench/kv.sh [PACK TEXT [TOKENS WINDOWS]]; by default the bundled model on tests/data.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
pack
model=${1:-$tiny} text=${2:-tests/data/stories.valid.txt} tokens=${3:-256} windows=${4:-}
for kind in f32 f16 q8 f16,q8 q8,q4 f16,q4 q4,f16 q4; do
    run "$bin/moe-run" "$model" --perplexity "$text" --max-doc-tokens "$tokens" ${windows:+--max-windows "$windows"} \
        --kv $kind --json
    echo "$kind $(cat "$out")"
done
"$BUILD/tests/bench/bench_kv"
