#!/bin/sh
# make bench-strategies: every strategy side by side, and the papers' ablations, on
# a model widened from the bundled one until a layer takes a millisecond. See bench_strategies.c for
# the columns. Loads come from memory at the rate named, so that the ratio of a load to a layer's
# computation is what the table says.
#
#   SECONDS_PER_STRATEGY=3 ROUNDS=1 tests/bench/strategies.sh [grid] [test-device] [ablations] [prompts]
#                                                        [plans] [daop] [models] [link]
#
# Needs 8 GB of disk in $BUILD/bench and 4 GB of memory; the first four parts, which run when
# none is named, take about an hour and a half. `plans` (1.5 seconds a
# strategy in 3 rounds, about as long) is the grid with predicted figures and with auto, and sums up how
# right these were. `daop` rehearses that paper's machine, `models` only makes what the others run.
# `link` is simulated, on the bundled model itself: about two minutes, of any machine.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
bench=${BENCH:-$BUILD/tests/bench/bench_strategies}
dir=${DIR:-$BUILD/bench/strategies}
seconds=${SECONDS_PER_STRATEGY:-3}
rounds=${ROUNDS:-1}
texts=${TEXTS:-tests/data/stories.valid.txt,tests/data/math.valid.txt,tests/data/code.valid.txt}
# What moe-run sets for itself: a short spin at the end of parallel loops.
[ $# -gt 0 ] || set -- grid test-device ablations prompts

mkdir -p "$dir"
if [ "$*" != link ] && [ ! -f "$dir/82.moe" ]; then
    "$BUILD/tests/tools/widen" --hidden 8 --ff 16 "${BUILD:-build}/models/tiny-moe" "$dir/model"
    for bits in 4,2 8,2; do
        "$BUILD/bin/moe-quantize" -q --method "${METHOD:-rtn}" --experts $bits \
            -o "$dir/$(echo $bits | tr -d ,).moe" "$dir/model"
    done
    rm -r "$dir/model"
fi
profile() { # [OPTION]...
    "$BUILD/bin/moe-profile" -q "$dir/42.moe" --text tests/data/stories.calib.txt \
        --text tests/data/math.calib.txt --text tests/data/code.calib.txt "$@"
}
profile_device() {
    [ -f "$dir/device.yaml" ] ||
        "$BUILD/bin/moe-profile" -q --device "$dir/42.moe" -o "$dir/device.yaml"
}
# Statistics of the calibration texts: the widened model routes as the bundled one does.
[ "$*" = link ] || [ -f "$dir/stats.yaml" ] || profile --max-tokens 96 --max-windows 1 -o "$dir/stats.yaml"

run() { # PACK [option=value]...
    pack=$dir/$1
    shift
    "$bench" "$pack" "$dir/stats.yaml" "$texts" seconds="$seconds" rounds="$rounds" "$@"
}
plain=resident,ondemand,lru,host,eap,edgemoe,fate,hobbit,prefetch
# What runs on a test device: the same, on-demand with the experts pinned that daop pins, and daop.
beside=$plain,lru+cache=pinned+alloc=frequency+init=frequency,hobbit+on-miss=compute-host\;load-low,daop

for part; do
    case $part in
    grid)
        echo "== 4,2 bits"
        run 42.moe strategies=$plain demand=0.5,1,2,4,6 loads=0.25,1 prompt=16 decode=32
        run 42.moe strategies=$plain demand=0.5,1,2,4,6 loads=4,16 prompt=8 decode=16
        echo "== 8,2 bits"
        run 82.moe strategies=$plain demand=1,2,4 loads=1,4 prompt=8 decode=16
        ;;
    test-device)
        echo "== a device 6 times as fast as its host, 4,2 bits"
        run 42.moe strategies=$beside speed=6 demand=0.5,1,2,4,6 loads=0.25,1,4 prompt=8 decode=16
        run 42.moe strategies=$beside speed=6 demand=2,4,6 loads=16 prompt=8 decode=16
        ;;
    ablations)
        echo "== Fate, fig. 14: prefetching, then caching, then quantization"
        run 82.moe strategies=ondemand,ondemand+predict=gate-next+prefetch=percentile:75\;slack,fate+prefill=popularity \
            demand=2 loads=0.5,1,4 prompt=8 decode=16
        run 42.moe strategies=ondemand,fate demand=3.5 loads=0.28,0.56,2.2 prompt=8 decode=16
        echo "== Fate, fig. 13: on-demand, EAP and Fate over budgets"
        run 42.moe strategies=ondemand,eap,fate demand=1,2,3,4,5,6,7 loads=0.5 prompt=8 decode=32
        echo "== Fate: each part off"
        run 42.moe strategies=fate,fate+predict=none+prefetch=none,fate+cache=lru,fate+cache=none,fate+alloc=per-layer,fate+alloc=global,fate+prefill=popularity,fate+prefill=routed-order,fate+prefetch=percentile:75,fate+predict=gate-residual \
            demand=2,4 loads=0.5 prompt=32 decode=32
        echo "== HOBBIT, fig. 16 to 18: dynamic loading, depth, policies, records; each part off"
        run 42.moe strategies=hobbit,hobbit+on-miss=load+skip-below=0,hobbit+skip-below=0,hobbit+predict=none+prefetch=none,hobbit+predict=gate-ahead:1,hobbit+predict=gate-ahead:2,hobbit+predict=gate-ahead:4,hobbit+protect=off,hobbit+cache=random,hobbit+cache=lru,hobbit+cache=lfu,hobbit+cache=lrfu,hobbit+keep-records=on,hobbit+cache=lfu+keep-records=on \
            demand=2,4 loads=0.5,4 prompt=16 decode=32
        echo "== HOBBIT, fig. 16: dynamic loading where the host computes what is missing"
        run 42.moe strategies=hobbit+on-miss=compute-host\;load-low,hobbit+on-miss=compute-host,hobbit+on-miss=compute-host+skip-below=0 \
            speed=6 demand=2,4 loads=0.5,4 prompt=16 decode=32
        echo "== EdgeMoE, fig. 18 and 16: quantization, preloading, buffer; sizes"
        run 82.moe strategies=ondemand,ondemand+predict=path+prefetch=until-router,edgemoe demand=2 loads=1,4 prompt=8 decode=16
        run 42.moe strategies=ondemand,ondemand+predict=path+prefetch=until-router,edgemoe demand=2 loads=0.56,2.2 prompt=8 decode=16
        run 42.moe strategies=edgemoe,edgemoe+predict=none+prefetch=none,edgemoe+cache=lru,edgemoe+cache=edgemoe-literal,edgemoe+init=layerwise,edgemoe+predict=keys demand=0.25,0.5,1,2,4,6 loads=1 prompt=8 decode=32
        ;;
    prompts)
        # The documents of the texts have at most some 230 tokens: they are joined. The model has 512
        # positions: the longest prompt leaves room for what is decoded after it.
        echo "== Fate, fig. 11: prompts of 128, 256 and 507 tokens (128, 256 and 512 there)"
        for n in 128 256 507; do
            run 42.moe strategies=ondemand,lru,eap,fate,fate+prefill=popularity,prefetch demand=2,4 loads=0.5,2 prompt=$n decode=4 join=1
        done
        ;;
    daop)
        # Table I: an expert's migration takes as long as 32 blocks on the device (39.87 and 1.24 ms),
        # a block on the host as 6.47 of them (8.02 ms). There documents are of 256 tokens and 256 or
        # 512 more; the texts here have 224 to share. 3.75 and 2 tokens' demand are 46.9% and 25% of
        # the bundled model's experts.
        profile_device
        echo "== DAOP, table I, without a GPU: a load from storage against a layer of the processor"
        "$BUILD/bin/moe-profile" --show "$dir/device.yaml" | grep 'loading an expert'
        pinned=lru+cache=pinned+alloc=frequency+init=frequency
        echo "== DAOP, fig. 9: on-demand and host with the experts pinned that daop pins"
        for tokens in "prompt=112 decode=112" "prompt=75 decode=149"; do
            run 42.moe strategies=resident,$pinned,$pinned+on-miss=compute-host,host,daop,daop+degrade-most=1,daop+degrade=off \
                speed=6.47 loads=32 demand=3.75 $tokens
        done
        echo "== DAOP, fig. 10: 25, 37.5, 50 and 62.5% of the experts on the device"
        run 42.moe strategies=resident,$pinned+on-miss=compute-host,host,daop,daop+degrade-most=1 \
            speed=6.47 loads=32 demand=2,3,4,5 prompt=112 decode=112
        ;;
    plans)
        # Documents of the calibration texts cut as those of the grid are: 16 + 32 tokens.
        [ -f "$dir/calib.trace" ] || profile --max-tokens 48 --max-windows 1 --prompt-share 34% \
            -o "$dir/calib.yaml" --trace "$dir/calib.trace"
        profile_device
        echo "== plans, 4,2 bits: predicted and measured; auto"
        n=0
        # Strategies that wait for the link nearly all the time do the same in every round.
        for cells in "loads=0.25,1 prompt=16 decode=32" "loads=4 prompt=8 decode=16" \
            "loads=16 prompt=8 decode=16 rounds=1"; do
            n=$((n + 1))
            run 42.moe strategies=$plain,fate+prefill=popularity demand=0.5,1,2,4,6 \
                seconds="${SECONDS_PER_STRATEGY:-1.5}" rounds="${ROUNDS:-3}" $cells \
                device="$dir/device.yaml" calib="$dir/calib.trace" >"$dir/plans$n.txt"
            cat "$dir/plans$n.txt"
        done
        awk -f tests/bench/judge_plans.awk "$dir/plans1.txt" "$dir/plans2.txt" "$dir/plans3.txt"
        ;;
    models) ;; # made above
    link)
        small=$dir/small.moe
        [ -f "$small" ] || "$BUILD/bin/moe-quantize" -q --experts 4,2 -o "$small" "${BUILD:-build}/models/tiny-moe"
        [ -f "$dir/small.yaml" ] || "$BUILD/bin/moe-profile" -q "$small" --text tests/data/stories.calib.txt \
            --text tests/data/math.calib.txt --text tests/data/code.calib.txt -o "$dir/small.yaml"
        # shellcheck disable=SC2046
        [ -f "$dir/small.trace" ] || "$BUILD/bin/moe-profile" -q "$small" \
            $(echo "$texts" | sed 's/^/--text /; s/,/ --text /g') --trace "$dir/small.trace" -o "$dir/small.valid.yaml"
        echo "== a constant link, 4,2 bits, layers of 1 ms: tokens/s decoded in 1, 2 and 4 tokens' demand"
        on_link() { # LOAD STRATEGIES BESIDE [OPTION]...: rows, with what stands beside their names
            load=$1 strategies=$2 beside=$3
            shift 3
            "$BUILD/bin/moe-plan" -q --simulate "$dir/small.trace" "$small" --stats "$dir/small.yaml" --strategy "$strategies" "$@" \
                --memory 1x,2x,4x --layer-seconds 1e-3 --load-seconds "${load}e-3" --max-tokens "${TOKENS:-6000}" --json |
                jq -r --arg load "$load" --arg beside "$beside" '.[] | "\(.strategy)\($beside)\t\($load)\t\(.decode_tokens_per_s)"'
        }
        for loads in 0.25 0.5 1 2 4; do
            on_link $loads "${LINK_STRATEGIES:-ondemand,sti,lru,host,eap,edgemoe,moe-infinity,moe-offloading,adapmoe,fate,hobbit,prefetch}" ""
            # A device behind a link of its own: an expert's 24,576 bytes at 4 bits in the same time.
            [ -n "${LINK_STRATEGIES:-}" ] || on_link $loads host,daop ", beside a device" \
                --device "test:6.47,$(awk "BEGIN { printf \"%d\", 24576e3 / $loads }")"
        done | awk -F'\t' '{ if (!($1 in n)) order[++m] = $1; if (!($2 in seen)) { seen[$2] = 1; loads[++l] = $2 }
                n[$1]++; cell[$1, $2] = cell[$1, $2] (cell[$1, $2] ? ", " : "") sprintf("%.1f", $3) }
            END { printf "| a load / a layer |"; for (j = 1; j <= l; j++) printf " %s |", loads[j]
                printf "\n|---|"; for (j = 1; j <= l; j++) printf "---|"
                for (i = 1; i <= m; i++) { printf "\n| %s |", order[i]
                    for (j = 1; j <= l; j++) printf " %s |", cell[order[i], loads[j]] }
                print "" }'
        ;;
    *)
        echo "strategies.sh: no part '$part'" >&2
        exit 2
        ;;
    esac
done
