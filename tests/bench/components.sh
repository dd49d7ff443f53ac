#!/bin/sh
# What a token's time is made of, predicted by a plan and measured by the run that follows it: each component
# (moe-plan(5), expected; moe-run-stats(5)), of decoded tokens and of prompts, and their ratio.
#
#   tests/bench/components.sh                   the bundled model and a widened one, under six minutes
#   PACKS="a.moe b.moe" BUDGETS="0.3 0.6" tests/bench/components.sh
#
# BUDGETS: shares of the experts that fit, the rest of the budget is what the model needs besides. Plans are made
# on the calibration texts; runs compute documents of the validation texts, a third of each as a prompt, after
# documents that only fill the caches (the difference of two runs counts). Runs are in a memory control group
# of little more than the budget where there is one to be had (as root), and experts are read past the
# page cache, so that the disk is the disk. Needs jq, a quiet machine, and the widened pack that
# `tests/bench/strategies.sh models` makes (left out where it is not there).
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
bin=$BUILD/bin
work=${WORK:-$BUILD/bench/components}
wide=${WIDE:-$BUILD/bench/strategies/42.moe}
texts=${TEXTS:-tests/data}
strategy=${STRATEGY:-lru}
tokens=${DOCUMENT_TOKENS:-96}
documents=${DOCUMENTS:-12} # of each text
batch=${BATCH:-32}
mkdir -p "$work"

fail() {
    echo "components.sh: $*" >&2
    exit 1
}
command -v jq >/dev/null || fail "jq is needed (apt-get install jq)"
if [ -z "${PACKS:-}" ]; then
    [ -e "$work/tiny.moe" ] || "$bin/moe-quantize" -q --experts 4 -o "$work/tiny.moe" "${BUILD:-build}/models/tiny-moe"
    PACKS=$work/tiny.moe
    [ ! -e "$wide" ] || PACKS="$PACKS $wide"
fi

# ---- A control group ----

group=
for parent in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    [ -z "$group" ] && mkdir "$parent/moe-components-$$" 2>/dev/null && group=$parent/moe-components-$$
done
trap '[ -z "$group" ] || rmdir "$group"' EXIT
limit() { # BYTES
    for file in memory.limit_in_bytes memory.max; do
        if [ -n "$group" ] && [ -e "$group/$file" ]; then echo "$1" >"$group/$file" && return; fi
    done
    return 0
}
grouped() { # COMMAND... in the group
    sh -c '[ -z "$0" ] || echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$@"
}

# ---- Texts: the first documents of each, then more of them ----

some() { # N FILE...
    n=$1
    shift
    for file; do
        awk -v n="$n" '{ print } /^<\|endoftext\|>$/ && ++seen == n { exit }' "$file"
    done
}
warm=$work/warm.txt
whole=$work/whole.txt
some 2 "$texts"/*.valid.txt >"$warm"
{ cat "$warm"; some "$documents" "$texts"/*.valid.txt; } >"$whole"

# ---- One pack ----

plan() { # OPTION...: of $pack, for what the runs do
    "$bin/moe-plan" -q "$pack" --context "$tokens" --batch "$batch" --trace "$work/$name.trace" \
        --device-profile "$work/$name.device" "$@"
}

# Perplexity needs the logits of many rows at once, which a plan for answers does not book: they are added.
run() { # PLAN TEXT JSON
    grouped "$bin/moe-run" -q "$pack" --plan "$1" --memory $((budget + scores)) --perplexity "$2" \
        --max-doc-tokens "$tokens" --max-windows 1 --prompt-share 34% --stats-json "$3" >/dev/null
}

# Prints a table of one phase: seconds of a token, predicted and measured, and their ratio.
compare() { # PHASE PREFIX PLAN.json WARM.json WHOLE.json
    jq -rn --arg phase "$1" --arg prefix "$2" --slurpfile plan "$3" --slurpfile warm "$4" --slurpfile whole "$5" '
        def more(key): $whole[0][$phase][key] - $warm[0][$phase][key];
        def row(name; predicted; measured):
            [name, predicted, measured, (if measured > 0 then predicted / measured else 0 end)];
        $plan[0].plan.expected as $e | more("tokens") as $n | more("loads") as $loads |
        ($e[$prefix + "handling_seconds"] // 0) as $handling |
        [["computing", "compute_seconds", "compute_s"], ["handling", "handling_seconds", "handling_s"],
         ["waiting for loads", "stall_seconds", "stall_s"], ["waiting for the host", "host_seconds", "host_wait_s"]]
        | map(row(.[0]; 1e3 * ($e[$prefix + .[1]] // 0); 1e3 * more(.[2]) / $n)) +
          [row("together"; 1e3 / $e[$phase + "_tokens_per_second"]; 1e3 * more("seconds") / $n)] +
          (if $phase == "decode" then
              [row("loads"; $e.loads_per_token // 0; $loads / $n),
               row("handling a load"; 1e3 * $handling / ([$e.loads_per_token // 0, 1e-9] | max);
                   1e3 * more("handling_s") / ([$loads, 1] | max)),
               row("found, %"; 100 * $e.hit_rate;
                   100 * (more("cache_hits") + more("prefetch_hits")) / more("expert_activations"))]
           else [] end)
        | map(select(.[1] > 0 or .[2] > 0)) | .[] | @tsv' |
        awk -F '\t' -v phase="$1" '{ printf "%-8s %-22s %12.3f %12.3f %8.2f\n", phase, $1, $2, $3, $4 }'
}

for pack in $PACKS; do
    name=$(basename "$pack" .moe)
    [ -e "$work/$name.trace" ] || "$bin/moe-profile" -q "$pack" --text "$texts/stories.calib.txt" \
        --text "$texts/math.calib.txt" --text "$texts/code.calib.txt" --max-tokens "$tokens" --max-windows 1 --prompt-share 34% \
        --shard 1/8 -o "$work/$name.stats" --trace "$work/$name.trace"
    "$bin/moe-profile" -q --device "$pack" -o "$work/$name.device"
    vocabulary=$("$bin/moe-quantize" --list "$pack" --json | jq .model.vocab)
    scores=$((4 * (vocabulary + 64) * batch))
    for share in ${BUDGETS:-0.25 0.5 0.75}; do
        # The smallest budget and a share of the experts. The context is what the documents need: the runner
        # gives experts what a shorter one leaves over, and would find more of them than the plan says.
        plan --memory 64G --strategy resident -o "$work/all.yaml"
        "$bin/moe-plan" --explain "$work/all.yaml" --json >"$work/all.json"
        budget=$(jq --argjson share "$share" \
            '.plan.memory | (.program_bytes + .dense_bytes + .kv_bytes + .work_bytes + $share * .all_experts_bytes) |
            floor' "$work/all.json")
        plan --memory "$budget" --strategy "$strategy" -o "$work/plan.yaml"
        "$bin/moe-plan" --explain "$work/plan.yaml" --json >"$work/plan.json"
        limit $((budget + budget / 10 + (64 << 20)))
        run "$work/plan.yaml" "$warm" "$work/warm.json"
        run "$work/plan.yaml" "$whole" "$work/whole.json"
        limit -1 2>/dev/null || limit max
        printf '\n%s, %s, %s of the experts in %d MB\n%-8s %-22s %12s %12s %8s\n' "$name" "$strategy" "$share" \
            $((budget / 1000000)) phase "ms a token" predicted measured ratio
        jq -r '.plan | if .expected.decode_error then "         +- \(.expected.decode_error * 100 /
            .expected.decode_tokens_per_second | round)% by the text" else empty end' "$work/plan.json"
        compare decode "" "$work/plan.json" "$work/warm.json" "$work/whole.json"
        compare prefill prefill_ "$work/plan.json" "$work/warm.json" "$work/whole.json"
    done
done
