#!/bin/sh
# From a checkpoint to a planned run, each step with its time: quantize, profile the text and the
# machine, plan, explain, run; at the end what was expected beside what was measured.
#
#   tests/pipeline.sh [CHECKPOINT [MEMORY [OUT]]]
#
# CHECKPOINT: a Hugging Face directory or a GGUF file (default: the bundled model); MEMORY: for the
# whole process (default: halfway from the smallest budget that works to everything in
# memory); OUT: where the files go (default: a directory that is removed at the end).
# CALIB and VALID name texts to plan with and to judge by (default: the bundled ones), BUILD the
# build directory.
set -eu
cd "$(dirname "$0")/.."
bin=${BUILD:-build}/bin
checkpoint=${1:-tests/models/tiny-moe}
calib=${CALIB:-tests/data/stories.calib.txt tests/data/math.calib.txt tests/data/code.calib.txt}
valid=${VALID:-tests/data/math.valid.txt}
if [ $# -ge 3 ]; then
    out=$3
    mkdir -p "$out"
else
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi

step() { # NAME COMMAND...
    name=$1
    shift
    began=$(date +%s.%N)
    "$@"
    echo "$began $(date +%s.%N) $name" | awk '{ printf "%-28s %6.2f s\n", $3, $2 - $1 }'
}

number() { # FILE KEY: of a JSON object, the first of that name
    grep -o "\"$2\": *[-0-9.e+]*" "$1" | head -n 1 | sed 's/.*: *//'
}

texts=
for text in $calib; do texts="$texts --text $text"; done

step quantize "$bin/moe-quantize" -q -o "$out/model.moe" "$checkpoint"
# shellcheck disable=SC2086 # words are meant
step profile-text "$bin/moe-profile" -q "$out/model.moe" $texts --max-tokens 128 \
    -o "$out/statistics.yaml" --trace "$out/calib.trace"
step profile-machine "$bin/moe-profile" -q --device "$out/model.moe" -o "$out/device.yaml"

memory=${2:-}
if [ -z "$memory" ]; then
    "$bin/moe-plan" --explain "$out/model.moe" --json >"$out/pack.json"
    least=$(number "$out/pack.json" smallest_bytes)
    all=$(number "$out/pack.json" all_in_memory_bytes)
    memory=$(((least + all) / 2))
fi
step plan "$bin/moe-plan" -q "$out/model.moe" --memory "$memory" --stats "$out/statistics.yaml" \
    --trace "$out/calib.trace" --device-profile "$out/device.yaml" -o "$out/plan.yaml"
"$bin/moe-plan" --explain "$out/plan.yaml" >"$out/plan.txt"
sed -n 1,4p "$out/plan.txt"
step run "$bin/moe-run" -q "$out/model.moe" --plan "$out/plan.yaml" --perplexity "$valid" \
    --prompt-share 50% --stats-json "$out/run.json"

"$bin/moe-plan" --explain "$out/plan.yaml" --json >"$out/plan.json"
printf 'expected %.1f tokens/s, %.1f%% of experts found; measured %.1f, %.1f%%\n' \
    "$(number "$out/plan.json" decode_tokens_per_second)" \
    "$(number "$out/plan.json" hit_rate | awk '{ print 100 * $1 }')" \
    "$(number "$out/run.json" decode_tokens_per_s)" \
    "$(sed 's/.*"decode": *{//' "$out/run.json" | tr -d '\n' | grep -o '"hit_rate": *[0-9.]*' |
        head -n 1 | sed 's/.*: *//' | awk '{ print 100 * $1 }')"
