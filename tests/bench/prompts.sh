#!/bin/sh
# A plan is no slower than none at prompts of any length, and as fast as it says: README's widened pack within BUDGETS, loads
# held to RATE ("": as the disk reads); prompts of about 20, 100 and 350 tokens, 48 tokens of answer, with the budget's plan and
# without one, in turn, PROMPTS_ROUNDS times (3), each round with a text of another kind. Prints, as means of the rounds, seconds
# to the first token and of the whole answer, MB read, and the ratio of whole seconds. Then decoded tokens/s as planned and as
# measured: first answers are those runs; later ones are documents of the validation texts, one after the other; "of these texts"
# is what the plan's clock says of the same (--lockstep), so that how texts differ is told from how time does.
# PROMPTS_TOKENS=N makes the plans with --prompt-tokens N. A minute or two for each budget; nothing else should run.
# BUDGETS="100M 140M 200M 240M" RATE=300M BUILD=build sh tests/bench/prompts.sh
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
rounds=${PROMPTS_ROUNDS:-3}
budgets=${BUDGETS:-100M 140M 200M 240M}
link=${RATE-300M}
wide=$tmp/wide.moe
"$BUILD/tests/tools/widen" --hidden 4 --ff 8 "${BUILD:-build}/models/tiny-moe" "$tmp/wide" &&
    "$bin/moe-quantize" -q -o "$wide" "$tmp/wide" && rm -r "$tmp/wide" &&
    "$bin/moe-profile" -q "$wide" --text tests/data/stories.calib.txt --text tests/data/math.calib.txt \
        --text tests/data/code.calib.txt --max-tokens 96 --max-windows 1 --prompt-share 34% --shard 1/8 \
        -o "$tmp/s.yaml" --trace "$tmp/t.trace" &&
    "$bin/moe-profile" -q --device "$wide" -o "$tmp/device.yaml" || exit 1
for budget in $budgets; do
    "$bin/moe-plan" -q "$wide" --memory "$budget" --stats "$tmp/s.yaml" --trace "$tmp/t.trace" \
        --device-profile "$tmp/device.yaml" ${link:+--link-rate "$link"} \
        ${PROMPTS_TOKENS:+--prompt-tokens "$PROMPTS_TOKENS"} -o "$tmp/$budget.yaml" || exit 1
done
measure() { # OPTION...: statistics to $json
    run "$bin/moe-run" "$wide" --stats-json "$json" ${link:+--link-rate "$link"} "$@"
    [ "$code" = 0 ] || { cat "$err"; exit 1; }
}
once() { # NAME PROMPT OPTION...: appends seconds to the first token and of the whole, MB, seconds of decoding
    name=$1 prompt=$2
    shift 2
    measure --raw -f "$prompt" -n 48 --ignore-eos --temp 0 "$@"
    echo "$(figure ttft_s) $(figure decode_tokens_per_s) $(figure bytes_read)" |
        awk '{ print $1, $1 + 47 / $2, $3 / 1e6, 47 / $2 }' >>"$tmp/$name"
}
for kind in stories math code; do
    awk '{ print } /^<\|endoftext\|>$/ && ++n == 2 { exit }' "tests/data/$kind.valid.txt" >>"$tmp/later.txt"
    for n in 20 100 350; do # as many bytes as have about n tokens
        bytes=$((n * 3))
        for _ in 1 2 3; do
            head -c "$bytes" "tests/data/$kind.valid.txt" >"$tmp/$kind-$n.txt"
            run "$bin/moe-run" "$wide" --raw -f "$tmp/$kind-$n.txt" -n 1 --stats-json "$json"
            bytes=$((bytes * n / $(figure prompt_tokens)))
        done
    done
done
for round in $(seq "$rounds"); do
    kind=$(echo stories math code | cut -d ' ' -f $((round % 3 + 1)))
    for budget in $budgets; do
        for n in 20 100 350; do
            once "plan-$budget-$n" "$tmp/$kind-$n.txt" --plan "$tmp/$budget.yaml"
            once "none-$budget-$n" "$tmp/$kind-$n.txt" --memory "$budget"
        done
    done
done
echo "| memory, prompt | plan: first token, s | whole, s | MB | none: first token, s | whole, s | MB | plan : none |"
echo "|---|---|---|---|---|---|---|---|"
for budget in $budgets; do
    for n in 20 100 350; do
        paste "$tmp/plan-$budget-$n" "$tmp/none-$budget-$n" | awk -v row="$budget, $n" '
            { for (i = 1; i <= 8; i++) sum[i] += $i }
            END { printf "| %s | %.2f | %.2f | %.0f | %.2f | %.2f | %.0f | %.2f |\n", row, sum[1] / NR, sum[2] / NR,
                  sum[3] / NR, sum[5] / NR, sum[6] / NR, sum[7] / NR, sum[2] / sum[6] }'
    done
done
said() { # SECTION of the plan: tokens/s
    sed -n "/^$1:/,/^[a-z]/s/^  decode_tokens_per_second: *//p" "$tmp/$budget.yaml"
}
speeds() { # PLANNED FILE...: planned, of these texts, measured; their ratio. Files begin with seconds of decoding
    awk -v planned="$1" '
        FILENAME ~ /clock/ { expected += $1; next }
        { seconds += $1; tokens += $2 }
        END { printf "%.1f | %.1f | %.1f | %.2f |", planned, tokens / expected, tokens / seconds, expected / seconds }' \
        "$2" "$3"
}
later() { # NAME OPTION...: the documents one after the other
    name=$1
    shift
    measure -q --perplexity "$tmp/later.txt" --max-doc-tokens 96 --max-windows 1 --prompt-share 34% "$@"
    sed -n '/^  "decode"/,/}/s/^    "\(tokens\|seconds\)": *\([0-9.]*\).*/\2/p' "$json" |
        awk '{ n = seconds; seconds = $1 } END { print seconds, n }' >"$tmp/$name"
}
echo "| memory | first answers: planned | of these texts | measured | : texts | later: planned | of these | measured | : texts |"
echo "|---|---|---|---|---|---|---|---|---|"
for budget in $budgets; do
    for n in 20 100 350; do
        for kind in stories math code; do
            once "clock-$budget-$n" "$tmp/$kind-$n.txt" --plan "$tmp/$budget.yaml" --lockstep
        done
    done
    later "later-$budget" --plan "$tmp/$budget.yaml"
    later "later-clock-$budget" --plan "$tmp/$budget.yaml" --lockstep
    for n in 20 100 350; do
        awk '{ print $4, 47 }' "$tmp/plan-$budget-$n" >>"$tmp/first-$budget"
        awk -v rounds="$rounds" '{ print $4 * rounds / 3 }' "$tmp/clock-$budget-$n" >>"$tmp/first-clock-$budget"
    done
    first=$(said expected_first)
    echo "| $budget | $(speeds "${first:-$(said expected)}" "$tmp/first-clock-$budget" "$tmp/first-$budget")" \
        "$(speeds "$(said expected)" "$tmp/later-clock-$budget" "$tmp/later-$budget")"
done
