#!/bin/sh
# A model that is not here, rehearsed: Qwen3-30B-A3B at 4 bits (17 GB of drawn weights), following what it once
# chose, within 2, 4, 6 and 8 GB: tokens/s, bytes a token, the share of the disk's bandwidth, and what moe-plan
# says of the same tokens, with the ratio of the two (above 1: the run was faster); then what a token's time is
# made of, measured and planned.
#
#   TRACE=qwen3-30b-a3b.trace tests/bench/rehearse.sh [trace]
#
# The trace is by moe-profile, or a routing trace of another engine (moe-trace(5) names the formats), which is
# imported. It is not part of this repository. The pack is made once, in DIR ($BUILD/bench/rehearse), or is PACK;
# that takes as long as the disk needs for 17 GB, and the same room. Every row runs in a memory control group
# (v1 or v2) of its budget where one can be made, which takes the right to do so; else the budget alone holds.
# TOKENS (92) of the trace are followed, its prompts included; BUDGETS, STRATEGIES, SHAPE, BITS and DEVICE (a
# profile by moe-profile --device PACK) may be set. A virtual machine's disk and memory change within minutes, so
# all rows are run ROUNDS (3) times in turn; without DEVICE the machine is measured anew for each budget of a
# round; and the table holds medians, with the slowest and the fastest run. With the defaults it takes 12 minutes
# where the disk reads 3 GB/s. Nothing else should use the disk or the processor meanwhile.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
trace=${1:-${TRACE:-}}
shape=${SHAPE:-profiles/shapes/qwen3-30b-a3b.json}
bits=${BITS:-4}
dir=${DIR:-$BUILD/bench/rehearse}
pack=${PACK:-$dir/$(basename "$shape" .json)-$bits.moe}
tokens=${TOKENS:-92}
budgets=${BUDGETS:-2G 4G 6G 8G}
strategies=${STRATEGIES:-lru lru+cache=lrfu lru+cache=learned prefetch+assume-prediction=80%}
device=${DEVICE:-}
rounds=${ROUNDS:-3}
[ -n "$trace" ] || { echo "usage: tests/bench/rehearse.sh TRACE" >&2; exit 2; }

mkdir -p "$dir"
if [ "$(head -c 4 "$trace")" != MOET ]; then
    "$BUILD/bin/moe-profile" -q --import "$trace" -o "$dir/imported.trace"
    trace=$dir/imported.trace
fi
[ -f "$pack" ] || "$BUILD/bin/moe-quantize" --synthesize "$shape" --experts "$bits" -o "$pack"

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
# All ticks of the processors so far, and those that a virtual machine's host kept.
ticks() { awk '/^cpu / { for (i = 2; i <= 9; i++) all += $i; print all, $9; exit }' /proc/stat; }
bytes_of() { echo "$1" | awk '{ n = $1 + 0; u = $1; gsub(/[0-9.]/, "", u)
    printf "%.0f\n", n * (u ~ /^G/ ? 1073741824 : u ~ /^M/ ? 1048576 : 1) }'; }

# What the disk gives at most, over the numbers of reads in flight.
most_of_disk() {
    awk '/^storage:/ { here = 1; next } /^[a-z]/ { here = 0 }
        here && /bytes_per_second: / { sub(/.*value: /, ""); if ($1 + 0 > most) most = $1 + 0 } END { print most }' "$profile"
}

# One row: strategy, budget, round, tokens/s, bytes a token, hit rate, planned tokens/s, the disk's most bytes/s,
# tokens, then seconds measured and planned of computing, handling loads, and waiting for them, and what part of
# its processors' time this machine was refused by its host (steal), percent.
row() { # STRATEGY BUDGET ROUND
    enter_group "$(bytes_of "$2")"
    before=$(ticks)
    if ! in_group "$BUILD/bin/moe-run" "$pack" --bench --follow "$trace" -n "$tokens" -c "$tokens" --memory "$2" \
        --strategy "$1" --stats-json "$dir/stats.json" -q >"$dir/out" 2>"$dir/err"; then
        echo "$1, $2: $(tail -n 1 "$dir/err")" >&2
        leave_group
        return
    fi
    leave_group
    taken=$(echo "$before $(ticks)" | awk '{ print 100 * ($4 - $2) / ($3 - $1) }')
    "$BUILD/bin/moe-plan" --simulate "$trace" "$pack" --memory "$2" --strategy "$1" -c "$tokens" \
        --max-tokens "$tokens" --device-profile "$profile" --json -q >"$dir/simulated.json"
    echo "$1 $2 $3 $(decode tokens_per_s) $(decode bytes_per_token) $(decode hit_rate)" \
        "$(simulated decode_tokens_per_s) $disk" "$(decode tokens)" \
        "$(decode compute_s) $(simulated compute_s)" "$(decode handling_s) $(simulated handling_s)" \
        "$(decode stall_s) $(simulated stall_s)" "$taken"
}
: >"$dir/rows"
round=0
while [ "$((round += 1))" -le "$rounds" ]; do
    for budget in $budgets; do
        profile=${device:-$dir/device.yaml}
        [ -n "$device" ] || "$BUILD/bin/moe-profile" -q --device "$pack" -o "$profile"
        disk=$(most_of_disk)
        for strategy in $strategies; do
            row "$strategy" "$budget" "$round" | tee -a "$dir/rows" >&2
        done
    done
done

# shellcheck disable=SC2016 # awk expands it
sort='function sort(a, n,   i, j, x) {
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && a[j - 1] > a[j]; j--) { x = a[j]; a[j] = a[j - 1]; a[j - 1] = x }
    }
    function median(a, n) { sort(a, n); return (a[int((n + 1) / 2)] + a[int(n / 2) + 1]) / 2 }
    '
printf '\n%-32s %6s %9s %15s %9s %7s %13s %9s %6s\n' strategy memory tokens/s '(of all rounds)' MB/token hits \
    'disk, GB/s' planned ratio
for budget in $budgets; do
    for strategy in $strategies; do
        awk -v strategy="$strategy" -v budget="$budget" "$sort"'
            $1 == strategy && $2 == budget { n++; rate[n] = $4 + 0; bytes = $5; hits = $6; plan[n] = $7 + 0; disk[n] = $8 + 0 }
            END {
                if (!n) exit
                r = median(rate, n); p = median(plan, n); d = median(disk, n)
                printf "%-32s %6s %9.2f %15s %9.1f %6.1f%% %13s %9.2f %6.2f\n", strategy, budget, r,
                    sprintf("%.2f to %.2f", rate[1], rate[n]), bytes / 1e6, 100 * hits,
                    sprintf("%.0f%% of %.1f", 100 * r * bytes / d, d / 1e9), p, r / p
            }' "$dir/rows"
    done
done

printf '\n%-32s %6s %22s %22s %22s %10s\n' 'ms of a token, measured/planned' memory computing 'handling loads' waiting \
    'host took'
for budget in $budgets; do
    for strategy in $strategies; do
        awk -v strategy="$strategy" -v budget="$budget" "$sort"'
            function of_rounds(of,   i, a) {
                for (i = 1; i <= n; i++)
                    a[i] = 1e3 * value[of, i]
                return median(a, n)
            }
            function pair(of,   measured, planned) {
                measured = of_rounds(of)
                planned = of_rounds(of + 1)
                return sprintf("%.1f / %.1f = %.2f", measured, planned, planned > 0 ? measured / planned : 0)
            }
            $1 == strategy && $2 == budget {
                n++
                for (i = 10; i <= 15; i++)
                    value[i, n] = $i / $9
                value[16, n] = $16 / 1e3
            }
            END {
                if (n)
                    printf "%-32s %6s %22s %22s %22s %9.1f%%\n", strategy, budget, pair(10), pair(12), pair(14), of_rounds(16)
            }' "$dir/rows"
    done
done
