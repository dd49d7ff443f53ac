#!/bin/sh
# EdgeMoE's experiments on a Switch Transformers model: paths, predictions, eviction, and its figures 11
# and 18 at the link rates of an SSD, an SD card and a hard disk. Of the claims in CLAIMS.md these are E1,
# E2, E6, E7 and E8 on top-1 routing.
#
#     tests/bench/edgemoe.sh [WORK]
#
# MODEL: directory of a checkpoint, build/models/tiny-switch unless set. CALIB, VALID: pairs as JSON lines
# {"source", "target"}, tests/data/pairs.calib.jsonl and pairs.valid.jsonl unless set. HIDDEN, FF: how often its units are
# repeated for the runs that are timed, 4 and 4 unless set (HIDDEN a power of four: tests/tools/widen.c).
# BUFFER: experts in EdgeMoE's and STI's buffers, 10 unless set. WORK: build/bench/edgemoe unless set; what
# it has already is not made again. PARTS: which are printed, of paths, eviction and figures: all unless set.
# MEASURE=0: the figures as they are simulated alone, which no other work on the machine changes.
#
# Rates of loads, bytes a second:
#   ssd  550M  Samsung 860 EVO, as the paper gives it (IV-A)
#   sd    40M  SanDisk Ultra microSDXC behind the Raspberry Pi 4's slot, which moves at most 50 MB/s (DDR50);
#              the paper gives none
#   hdd   50M  MOVE SPEED YSUTSJ-64G2S, as the paper gives it
# Measured with the widened model at these rates; simulated as on the paper's boards, with experts as large as
# its own (Switch base, FP32: 19 MB), so that a load is cut into as many pieces, and layers as long as on-demand
# loading says they take: it makes a token 3.2 to 3.9 times slower on the Jetson TX2 (SSD), 3.3 to 3.8 times on
# the Raspberry Pi 4B (SD card) (II-B), with 6 loads for 12 layers of the decoder, which are 6.8 and 92 ms each. Every layer of
# the bundled model's decoder has experts: one stands for two of theirs, one of which has none.
# "as fig. 18": loads of quantized experts slower, so that on the TX2 with the SSD on-demand loading at 4 bits takes what the
# paper's figure 18 has, 0.392 of 0.789 s: in a seventh of the bytes more than a seventh of the time, by what it does not say.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
bin=$build/bin
work=${1:-$build/bench/edgemoe}
model=${MODEL:-${BUILD:-build}/models/tiny-switch}
calib=${CALIB:-tests/data/pairs.calib.jsonl}
valid=${VALID:-tests/data/pairs.valid.jsonl}
buffer=${BUFFER:-10}
parts=${PARTS:-paths,eviction,figures}
mkdir -p "$work"

[ -e "$model/config.json" ] || { echo "$0: no model at $model: MODEL names one" >&2; exit 2; }
[ -e "$calib" ] && [ -e "$valid" ] || { echo "$0: no pairs: CALIB and VALID name them" >&2; exit 2; }

wants() { # PART
    case ",$parts," in *",$1,"*) ;; *) return 1 ;; esac
}

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
if wants paths; then
    echo "E1, E2: paths through the decoder's layers, experts predicted (profile of the validation pairs)"
    grep -A 2 "Rank-1 paths" "$work/valid.txt"
    grep -E "^ +path" "$work/valid.txt" || true
fi

if wants eviction; then
    echo
    echo "E7: hits of decoded tokens by policy and size of the buffer, in tokens' demand (simulated)"
    base=edgemoe+predict=none+prefetch=none
    policies=$(for p in edgemoe edgemoe-literal lru lfu fifo random lrfu; do printf '%s+cache=%s,' $base $p; done)
    "$bin/moe-plan" -q --simulate "$work/valid.trace" "$work/full.moe" --stats "$work/calib.yaml" \
        --strategy "${policies%,}" --memory 0.5x,1x,2x,4x --layer-seconds 1e-3 --link-rate 100M
fi
wants figures || exit 0

# ---- Figures 11 and 18 ----

if [ "${MEASURE:-1}" = 1 ] && [ ! -e "$work/wide/config.json" ]; then
    rm -rf "$work/wide.part"
    "$build/tests/tools/widen" --hidden "${HIDDEN:-4}" --ff "${FF:-4}" "$model" "$work/wide.part"
    mv "$work/wide.part" "$work/wide"
fi
if [ "${MEASURE:-1}" = 1 ]; then
    for bits in 16 8 4; do pack wide-$bits "$work/wide" $bits; done
    [ -e "$work/wide.yaml" ] ||
        "$bin/moe-profile" -q "$work/wide-16.moe" --pairs "$calib" -o "$work/wide.yaml"
fi

# Rows of the figure: name, bits, strategy. IO-EXP keeps no experts (figure 10); EdgeMoE's parts follow in
# the order of figure 18. STI has the buffer that EdgeMoE has.
rows="io-free:16:resident
io-qfree:8:resident
io-exp:16:ondemand
io-qexp:4:ondemand
sti:4:sti+buffer=$buffer
+preloading:4:ondemand+predict=path+prefetch=until-router
+preloading-87:4:ondemand+predict=path+prefetch=until-router+assume-prediction=87%
+no-buffer:4:edgemoe+predict=none+prefetch=none+buffer=$buffer
edgemoe:4:edgemoe+buffer=$buffer
edgemoe-87:4:edgemoe+assume-prediction=87%+buffer=$buffer"

measure() { # ROW RATE: seconds for a token of the targets, computed one by one
    name=${1%%:*} rest=${1#*:}
    [ "${MEASURE:-1}" = 1 ] || { printf -- - && return; }
    case $rest in *assume-prediction*) printf -- - && return ;; esac # only a trace knows what comes next
    out=$work/run-$name-$2.json
    [ -s "$out" ] ||
        "$bin/moe-run" -q "$work/wide-${rest%%:*}.moe" --perplexity "$work/few.jsonl" --prompt-share 0 \
            --strategy "${rest#*:}" --statistics "$work/wide.yaml" --link-rate "$2" --pack-in-ram \
            --stats-json "$out" >/dev/null
    sed -n 's/^ *"decode_tokens_per_s": *\([0-9.]*\),$/\1/p' "$out" | awk '{ printf "%.5f", 1 / $1 }'
}

head -n "${PAIRS:-8}" "$valid" >"$work/few.jsonl"
# The model with matrices of Switch base's sizes.
jq '. + {d_model: 768, d_ff: 3072, d_kv: 64, num_heads: 12, vocab_size: 32128,
    moe_shape: {name: "tiny-switch, its experts as large as those of Switch base"}}' "$model/config.json" >"$work/shape.json"
layers=$(awk '/moe_layers:/ { print $2 }' "$work/valid.yaml")
demand=$(awk "BEGIN { print $buffer / $layers }")x # one expert a layer, the encoder's among them

# simulate ROW BOARD RATE LAYER [SLOWER]: seconds for a token, of them computing, simulated; loads of 4 bits so many times slower.
simulate() {
    rest=${1#*:} strategy=${1##*:}
    strategy=${strategy%+buffer=*}
    case $strategy in
    resident) memory=100% ;;
    *) memory=$demand ;;
    esac
    # At 16 bits over half the link: FP32's loads.
    case ${rest%%:*} in
    16) slower=2 ;;
    *) slower=${5:-1} ;;
    esac
    "$bin/moe-plan" -q --simulate "$work/valid.trace" --shape "$work/shape.json" --stats "$work/calib.yaml" \
        --device-profile "profiles/$2.yaml" --experts "${rest%%:*}" --dense 16 --strategy "$strategy" --memory "$memory" \
        --layer-seconds "$4" --max-tokens 4096 --link-rate "$(awk "BEGIN { printf \"%d\", $3 / $slower }")" --json |
        jq -r '.[0] | "\(.decode_s / .decode_tokens) \(.compute_s / .decode_tokens)"'
}
on_devices() { # ROW [SLOWER]
    for device in "jetson-tx2 550e6 13.6e-3" "raspberry-pi-4b 40e6 184e-3" "jetson-tx2 50e6 13.6e-3"; do
        # shellcheck disable=SC2086
        printf '%14.4f' "$(simulate "$1" $device ${2:-} | cut -d' ' -f1)"
    done
}
# How many times slower loads of 4 bits are, by figure 18.
slower=$({ simulate io-exp:16:ondemand jetson-tx2 550e6 13.6e-3 && simulate io-qexp:4:ondemand jetson-tx2 550e6 13.6e-3; } |
    awk 'NR == 1 { plain = $1 } NR == 2 { printf "%.4f", (0.392 / 0.789 * plain - $2) / ($1 - $2) }')

echo
echo "E6, E8: seconds for an output token"
echo "as fig. 18: loads of 4 bits $slower times slower"
printf '%-14s%14s%14s%14s%14s%14s%14s%14s%14s%14s\n' "" "550 MB/s" "40 MB/s" "50 MB/s" "TX2, SSD" "Pi, SD card" "TX2, HDD" \
    "... fig. 18" "... fig. 18" "... fig. 18"
echo "$rows" | while read -r row; do
    printf '%-14s' "${row%%:*}"
    for rate in 550M 40M 50M; do printf '%14s' "$(measure "$row" $rate)"; done
    echo "$(on_devices "$row")$(on_devices "$row" "$slower")"
done
