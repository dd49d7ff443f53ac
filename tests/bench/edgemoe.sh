#!/bin/sh
# EdgeMoE's experiments on a Switch Transformers model: paths, predictions, eviction, and its figures 11
# and 18 at the link rates of an SSD, an SD card and a hard disk. Of the claims in CLAIMS.md these are E1,
# E2, E6, E7 and E8 on top-1 routing.
#
#     tests/bench/edgemoe.sh [WORK]
#
# MODEL: directory of a checkpoint, tests/models/tiny-switch unless set. CALIB, VALID: pairs as JSON lines
# {"source", "target"}, tests/data/pairs.calib.jsonl and pairs.valid.jsonl unless set. HIDDEN, FF: how often its units are
# repeated for the runs that are timed, 4 and 4 unless set (HIDDEN a power of four: tests/tools/widen.c).
# BUFFER: experts in EdgeMoE's and STI's buffers, 10 unless set. WORK: build/bench/edgemoe unless set; what
# it has already is not made again.
#
# Rates of loads, bytes a second:
#   ssd  550M  Samsung 860 EVO, as the paper gives it (IV-A)
#   sd    40M  SanDisk Ultra microSDXC behind the Raspberry Pi 4's slot, which moves at most 50 MB/s (DDR50);
#              the paper gives none
#   hdd   50M  MOVE SPEED YSUTSJ-64G2S, as the paper gives it
# The paper's experts are 19 MB (Switch base, FP32); those of a small model load faster, so that each rate
# is also tried divided by how much smaller they are: the loads then take as long as the paper's.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
bin=$build/bin
work=${1:-$build/bench/edgemoe}
model=${MODEL:-tests/models/tiny-switch}
calib=${CALIB:-tests/data/pairs.calib.jsonl}
valid=${VALID:-tests/data/pairs.valid.jsonl}
buffer=${BUFFER:-10}
paper_expert=18874368 # bytes: two matrices of 768 x 3072, FP32
mkdir -p "$work"

[ -e "$model/config.json" ] || { echo "$0: no model at $model: MODEL names one" >&2; exit 2; }
[ -e "$calib" ] && [ -e "$valid" ] || { echo "$0: no pairs: CALIB and VALID name them" >&2; exit 2; }

pack() { # NAME CHECKPOINT BITS
    [ -e "$work/$1.moe" ] ||
        "$bin/moe-quantize" -q --method linear --experts "$3" --dense 16 -o "$work/$1.moe" "$2"
}

# ---- What the model does ----

pack full "$model" 16
[ -e "$work/calib.yaml" ] || "$bin/moe-profile" -q "$work/full.moe" --pairs "$calib" -o "$work/calib.yaml"
[ -e "$work/valid.yaml" ] ||
    "$bin/moe-profile" -q "$work/full.moe" --pairs "$valid" --path-stats "$work/calib.yaml" \
        --trace "$work/valid.trace" -o "$work/valid.yaml"
"$bin/moe-profile" --show "$work/valid.yaml" >"$work/valid.txt"
echo "E1, E2: paths through the decoder's layers, experts predicted (profile of the validation pairs)"
grep -A 2 "Rank-1 paths" "$work/valid.txt"
grep -E "^ +path" "$work/valid.txt" || true

echo
echo "E7: hits of decoded tokens by policy and size of the buffer, in tokens' demand (simulated)"
base=edgemoe+predict=none+prefetch=none
policies=$(for p in edgemoe edgemoe-literal lru lfu fifo random lrfu; do printf '%s+cache=%s,' $base $p; done)
"$bin/moe-plan" -q --simulate "$work/valid.trace" "$work/full.moe" --stats "$work/calib.yaml" \
    --strategy "${policies%,}" --memory 0.5x,1x,2x,4x --layer-seconds 1e-3 --link-rate 100M

# ---- Figures 11 and 18 ----

if [ ! -e "$work/wide/config.json" ]; then
    "$build/tests/tools/widen" --hidden "${HIDDEN:-4}" --ff "${FF:-4}" "$model" "$work/wide"
fi
pack wide-full "$work/wide" 16
pack wide-8 "$work/wide" 8
pack wide-4 "$work/wide" 4
[ -e "$work/wide.yaml" ] ||
    "$bin/moe-profile" -q "$work/wide-full.moe" --pairs "$calib" -o "$work/wide.yaml"

# Rows of the figure: name, pack, strategy. IO-EXP keeps no experts (figure 10); EdgeMoE's parts follow in
# the order of figure 18. STI has the buffer that EdgeMoE has.
rows="io-free:wide-full:resident
io-qfree:wide-8:resident
io-exp:wide-full:ondemand
io-qexp:wide-4:ondemand
sti:wide-4:sti+buffer=$buffer
+preloading:wide-4:ondemand+predict=path+prefetch=until-router
edgemoe:wide-4:edgemoe+buffer=$buffer"

measure() { # ROW RATE: seconds for a token of the targets, computed one by one
    name=${1%%:*} rest=${1#*:}
    out=$work/run-$name-$2.json
    [ -s "$out" ] ||
        "$bin/moe-run" -q "$work/${rest%%:*}.moe" --perplexity "$work/few.jsonl" --prompt-share 0 \
            --strategy "${rest#*:}" --statistics "$work/wide.yaml" --link-rate "$2" --pack-in-ram \
            --stats-json "$out" >/dev/null
    sed -n 's/^ *"decode_tokens_per_s": *\([0-9.]*\),$/\1/p' "$out" | awk '{ printf "%.5f", 1 / $1 }'
}

head -n "${PAIRS:-8}" "$valid" >"$work/few.jsonl"
expert=$("$bin/moe-plan" --explain "$work/wide-full.moe" --json |
    awk -F'[:,]' '{ for (i = 1; i < NF; i++) {
        if ($i ~ /"moe_layers"/) layers = $(i + 1)
        if ($i ~ /"experts"/ && !experts) experts = $(i + 1)
        if ($i ~ /"all_expert_bytes"/) all = $(i + 1) } }
        END { print int(all / layers / experts) }')
echo
echo "E6, E8: seconds for an output token (measured; rehearsed link)"
printf '%-14s' ""
for rate in 550 40 50; do printf '%14s' "$rate MB/s"; done
for rate in 550 40 50; do printf '%14s' "as of $rate"; done
echo
echo "$rows" | while read -r row; do
    printf '%-14s' "${row%%:*}"
    for rate in 550M 40M 50M; do printf '%14s' "$(measure "$row" $rate)"; done
    for rate in 550 40 50; do
        scaled=$(awk "BEGIN { printf \"%d\", $rate * 1e6 * $expert / $paper_expert }")
        printf '%14s' "$(measure "$row" "$scaled")"
    done
    echo
done
