#!/bin/sh
# A model that is not here, rehearsed: Qwen3-30B-A3B at 4 bits (17 GB of drawn weights), following what it once
# chose, within 2, 4, 6 and 8 GB: tokens/s, bytes a token, the share of the disk's bandwidth, and what moe-plan
# says of the same tokens, with the ratio of the two (above 1: the run was faster).
#
#   TRACE=qwen3-30b-a3b.trace tests/bench/rehearse.sh [trace]
#
# The trace is by moe-profile, or a routing trace of another engine (moe-trace(5) names the formats), which is
# imported. It is not part of this repository. The pack is made once, in DIR ($BUILD/bench/rehearse), or is PACK;
# that takes as long as the disk needs for 17 GB, and the same room. Every row runs in a memory control group
# (v1 or v2) of its budget where one can be made, which takes the right to do so; else the budget alone holds.
# TOKENS (44) of the trace are followed, its prompts included; BUDGETS, STRATEGIES, SHAPE, BITS and DEVICE (a
# profile by moe-profile --device PACK) may be set. With the defaults it takes under 12 minutes where the disk
# reads 0.8 GB/s. Nothing else should use the disk or the processor meanwhile.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
trace=${1:-${TRACE:-}}
shape=${SHAPE:-profiles/shapes/qwen3-30b-a3b.json}
bits=${BITS:-4}
dir=${DIR:-$BUILD/bench/rehearse}
pack=${PACK:-$dir/$(basename "$shape" .json)-$bits.moe}
tokens=${TOKENS:-44}
budgets=${BUDGETS:-2G 4G 6G 8G}
strategies=${STRATEGIES:-lru lru+cache=lrfu lru+cache=learned prefetch+assume-prediction=80%}
device=${DEVICE:-$dir/device.yaml}
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}"
[ -n "$trace" ] || { echo "usage: tests/bench/rehearse.sh TRACE" >&2; exit 2; }

mkdir -p "$dir"
if [ "$(head -c 4 "$trace")" != MOET ]; then
    "$BUILD/bin/moe-profile" -q --import "$trace" -o "$dir/imported.trace"
    trace=$dir/imported.trace
fi
[ -f "$pack" ] || "$BUILD/bin/moe-quantize" --synthesize "$shape" --experts "$bits" -o "$pack"
[ -f "$device" ] || "$BUILD/bin/moe-profile" -q --device "$pack" -o "$device"

# A control group of so many bytes, in $group; none where none can be made.
group=
enter_group() { # BYTES
    group=
    for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
        [ -d "$root" ] && mkdir "$root/moe-rehearse.$$" 2>/dev/null || continue
        group=$root/moe-rehearse.$$
        for limit in memory.limit_in_bytes memory.max; do
            [ ! -f "$group/$limit" ] || { echo "$1" >"$group/$limit"; } 2>/dev/null && [ -f "$group/$limit" ] && return
        done
        rmdir "$group"
        group=
    done
}
leave_group() {
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || :
    group=
}
trap leave_group EXIT
in_group() { # COMMAND...
    # shellcheck disable=SC2016 # the shell inside expands it
    sh -c 'group=$1; shift; [ -z "$group" ] || echo $$ >"$group/cgroup.procs"; exec "$@"' sh "$group" "$@"
}

# A member of the decode phase of a --stats-json; a member of moe-plan --simulate --json.
decode() { sed -n '/^  "decode": {/,/^  }/s/^    "'"$1"'": *\([^,]*\).*/\1/p' "$dir/stats.json"; }
simulated() { sed -n 's/.*"'"$1"'": *\([^,}]*\).*/\1/p' "$dir/simulated.json" | head -n 1; }
bytes_of() { echo "$1" | awk '{ n = $1 + 0; u = $1; gsub(/[0-9.]/, "", u)
    printf "%.0f\n", n * (u ~ /^G/ ? 1073741824 : u ~ /^M/ ? 1048576 : 1) }'; }

# What the disk gives at most, over the numbers of reads in flight.
disk=$(awk '/^storage:/ { here = 1; next } /^[a-z]/ { here = 0 }
    here && /bytes_per_second: / { sub(/.*value: /, ""); if ($1 + 0 > most) most = $1 + 0 } END { print most }' "$device")
echo "disk: $(awk "BEGIN { printf \"%.0f\", $disk / 1e6 }") MB/s at most, by $device"
printf '%-32s %7s %9s %9s %9s %7s %9s %7s\n' strategy memory tokens/s MB/token hits disk planned ratio
for budget in $budgets; do
    for strategy in $strategies; do
        printf '%-32s %7s' "$strategy" "$budget"
        enter_group "$(bytes_of "$budget")"
        if ! in_group "$BUILD/bin/moe-run" "$pack" --bench --follow "$trace" -n "$tokens" -c "$tokens" --memory "$budget" \
            --strategy "$strategy" --stats-json "$dir/stats.json" -q >"$dir/out" 2>"$dir/err"; then
            echo "  $(tail -n 1 "$dir/err")"
            leave_group
            continue
        fi
        leave_group
        "$BUILD/bin/moe-plan" --simulate "$trace" "$pack" --memory "$budget" --strategy "$strategy" \
            -c "$tokens" --max-tokens "$tokens" --device-profile "$device" --json -q >"$dir/simulated.json" 2>"$dir/err" || :
        awk -v rate="$(decode tokens_per_s)" -v bytes="$(decode bytes_per_token)" -v hits="$(decode hit_rate)" \
            -v disk="$disk" -v plan="$(simulated decode_tokens_per_s)" 'BEGIN {
                share = disk > 0 ? sprintf("%.0f%%", 100 * rate * bytes / disk) : "-"
                ratio = plan > 0 ? sprintf("%.2f", rate / plan) : "-"
                plan = plan > 0 ? sprintf("%.3f", plan) : "-"
                printf " %9.3f %9.1f %8.1f%% %7s %9s %7s\n", rate, bytes / 1e6, 100 * hits, share, plan, ratio }'
    done
done
