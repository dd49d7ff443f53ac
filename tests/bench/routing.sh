#!/bin/sh
# What loading less than routers ask for loses and saves. First every way that moe-calibrate knows, in caches of
# SIZES, chosen on calibration texts and checked on others; beside them DAOP's replacement, which it leaves out. Then
# what moe-plan --tolerance makes of these for the larger cache and a link of RATE, run on the texts of the check:
# nats over the exact plan's, bytes and tokens a second.
#
#   MODEL=build/models/tiny-moe DOCUMENTS=4 SIZES=1.2M,2.4M RATE=100MB/s tests/bench/routing.sh      minutes
#
# Losses and bytes of the first table depend on neither machine nor load: nothing there is predicted. Those of plans that
# prefetch do, a little.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
bin=${BIN:-$BUILD/bin}
MODEL=${MODEL:-$BUILD/models/tiny-moe}
SIZES=${SIZES:-1.2M,2.4M}
RATE=${RATE:-100MB/s}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

some() { # KIND: the first documents of each text
    for text in stories math code; do
        awk -v n="${DOCUMENTS:-4}" '/^<\|endoftext\|>$/ { k++ } k < n' "tests/data/$text.$1.txt"
        echo '<|endoftext|>'
    done
}
some calib >"$dir/calib.txt"
some valid >"$dir/valid.txt"
"$bin/moe-quantize" -q --experts 4,2 -o "$dir/42.moe" "$MODEL"
"$bin/moe-calibrate" -q "$dir/42.moe" --text "$dir/calib.txt" --check "$dir/valid.txt" --expert-memory "$SIZES" \
    --without bits,fate,hobbit -o "$dir/map.yaml"
"$bin/moe-calibrate" --show "$dir/map.yaml"

# run OPTION...: the texts of the check decoded token by token; sets nats, and of statistics MB, shares, tokens a second.
run() {
    nats=$("$bin/moe-run" -q "$dir/42.moe" --kv f32 --perplexity "$dir/valid.txt" --prompt-share 0 --json \
        --stats-json "$dir/stats.json" "$@" | sed 's/.*"nll": \([0-9.]*\),.*/\1/')
    # shellcheck disable=SC2046
    set -- $(awk -F'[:,]' '
        { gsub(/[ "]/, "", $1); if (!($1 in n)) n[$1] = $2 }
        /"decode"/ { decoding = 1 } decoding && /"tokens_per_s"/ && !speed { speed = $2 + 0 }
        END { a = n["expert_activations"] / 100
              printf "%.4f %.1f %.1f\n", n["bytes_per_token"] / 1e6,
                  (n["low_precision"] + n["skipped"] + n["substituted"] + n["precalculated"]) / a, speed }' "$dir/stats.json")
    mb=$1 changed=$2 speed=$3
}
over() { awk -v a="$nats" -v b="$1" 'BEGIN { printf "%+.2f%%", 100 * (a / b - 1) }'; }

"$bin/moe-profile" -q "$dir/42.moe" --text "$dir/calib.txt" --max-tokens 32 --max-windows 4 -o "$dir/stats.yaml" \
    --trace "$dir/trace"
largest=${SIZES##*,}
run --strategy lru --expert-memory "$largest"
exact=$nats
printf '\nDAOP in %s\n' "$largest"
for most in 0 1; do
    run --strategy "daop+degrade-most=$most" --statistics "$dir/stats.yaml" --device test:4,2GB/s \
        --expert-memory "$largest"
    echo "degrade-most=$most: loses $(over "$exact"), changes $changed%"
done

printf '\nPlans for %s at %s\n%-10s %9s %9s %9s %10s %10s  %s\n' "$largest" "$RATE" tolerance loss MB/token changed \
    tokens/s planned strategy
plan() { # TOLERANCE OPTION...
    tolerance=$1
    shift
    "$bin/moe-plan" -q "$dir/42.moe" --expert-memory "$largest" --stats "$dir/stats.yaml" --trace "$dir/trace" \
        --device-profile "$dir/device.yaml" --link-rate "$RATE" -o "$dir/plan.yaml" "$@"
    run --plan "$dir/plan.yaml" --link-rate "$RATE"
    [ "$tolerance" != none ] || exact=$nats
    printf '%-10s %9s %9s %8s%% %10s %10.1f  %s\n' "$tolerance" "$(over "$exact")" "$mb" "$changed" "$speed" \
        "$(sed -n 's/^  decode_tokens_per_second: //p' "$dir/plan.yaml" | head -1)" \
        "$("$bin/moe-plan" --explain "$dir/plan.yaml" | sed -n '/spells it/,$p' | sed '1d' | tr -d ' \n')"
}
"$bin/moe-profile" -q --device "$dir/42.moe" -o "$dir/device.yaml"
plan none
for tolerance in 0.5% 1% 2%; do
    plan $tolerance --calibration "$dir/map.yaml" --tolerance $tolerance
done
