#!/bin/sh
# A plan is no slower than none at prompts of any length: README's widened pack within 140 MiB, as this machine reads it and
# with loads held to 300 MB/s; prompts of about 20, 100 and 350 tokens, 48 tokens of answer, each run with its plan and without
# one, in turn, PROMPTS_ROUNDS times (5). Prints medians: tokens/s of prompt and answer, and seconds of both together, and
# the median of the rounds' ratios of these seconds, which what slows the machine for a while leaves alone.
# PROMPTS_TOKENS=N makes the plans with --prompt-tokens N. It takes 4 minutes or so; nothing else should run.
# BUILD=build sh tests/bench/prompts.sh
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
rounds=${PROMPTS_ROUNDS:-5}
budget=140M
wide=$tmp/wide.moe
"$BUILD/tests/tools/widen" --hidden 4 --ff 8 "${BUILD:-build}/models/tiny-moe" "$tmp/wide" &&
    "$bin/moe-quantize" -q -o "$wide" "$tmp/wide" && rm -r "$tmp/wide" &&
    "$bin/moe-profile" -q "$wide" --text tests/data/stories.calib.txt --text tests/data/math.calib.txt \
        --text tests/data/code.calib.txt --max-tokens 96 --prompt-share 34% --shard 1/8 -o "$tmp/s.yaml" \
        --trace "$tmp/t.trace" &&
    "$bin/moe-profile" -q --device "$wide" -o "$tmp/device.yaml" || exit 1
for link in "" 300M; do
    "$bin/moe-plan" -q "$wide" --memory "$budget" --stats "$tmp/s.yaml" --trace "$tmp/t.trace" \
        --device-profile "$tmp/device.yaml" ${link:+--link-rate "$link"} \
        ${PROMPTS_TOKENS:+--prompt-tokens "$PROMPTS_TOKENS"} -o "$tmp/plan$link.yaml" || exit 1
    grep -E '^  batch_tokens' "$tmp/plan$link.yaml"
done
once() { # NAME PROMPT LINK OPTION...: appends what it took
    name=$1 prompt=$2 link=$3
    shift 3
    run "$bin/moe-run" "$wide" --raw -f "$prompt" -n 48 --ignore-eos --temp 0 --stats-json "$json" \
        ${link:+--link-rate "$link"} "$@"
    [ "$code" = 0 ] || { cat "$err"; exit 1; }
    echo "$(figure prompt_tokens) $(figure prefill_tokens_per_s) $(figure decode_tokens_per_s)" >>"$tmp/$name"
}
for n in 20 100 350; do # as many bytes as have about n tokens
    bytes=$((n * 3))
    for _ in 1 2 3; do
        head -c "$bytes" tests/data/stories.valid.txt >"$tmp/$n.txt"
        run "$bin/moe-run" "$wide" --raw -f "$tmp/$n.txt" -n 1 --stats-json "$json"
        bytes=$((bytes * n / $(figure prompt_tokens)))
    done
done
for _ in $(seq "$rounds"); do
    for link in "" 300M; do
        for n in 20 100 350; do
            once "plan-$n-$link" "$tmp/$n.txt" "$link" --plan "$tmp/plan$link.yaml"
            once "none-$n-$link" "$tmp/$n.txt" "$link" --memory "$budget"
        done
    done
done
column() { awk -v c="$2" '{ print c == 4 ? $1 / $2 + 48 / $3 : $c }' "$tmp/$1" | sort -n |
    awk -v f="$3" '{ x[NR] = $1 } END { printf f, x[int((NR + 1) / 2)] }'; }
echo "| loads, prompt | plan: prompt, tokens/s | answer | both, s | none: prompt | answer | both, s | plan : none, s |"
echo "|---|---|---|---|---|---|---|---|"
for link in "" 300M; do
    for n in 20 100 350; do
        plan=plan-$n-$link none=none-$n-$link
        ratio=$(paste "$tmp/$plan" "$tmp/$none" | awk '{ print ($1 / $2 + 48 / $3) / ($4 / $5 + 48 / $6) }' |
            sort -n | awk '{ r[NR] = $1 } END { printf "%.2f", r[int((NR + 1) / 2)] }')
        echo "| ${link:-the disk}, $(column "$plan" 1 %d) |" \
            "$(column "$plan" 2 %.0f) | $(column "$plan" 3 %.1f) | $(column "$plan" 4 %.2f) |" \
            "$(column "$none" 2 %.0f) | $(column "$none" 3 %.1f) | $(column "$none" 4 %.2f) | $ratio |"
    done
done
