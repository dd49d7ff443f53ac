#!/bin/sh
# More memory is never slower, and a plan never worse than none: 20 budgets of the bundled model, each run with its
# plan and without one, in turn, MONOTONE_ROUNDS times (9). Prints medians of decoded tokens/s and hits, and the plan's rate
# beside the other run's of the same minute, and beside that of the budget below: medians of the rounds' ratios, which what
# slows the machine for seconds leaves alone. Counts budgets that are slower than the one below by more than MONOTONE_NOISE
# percent (10), and plans slower than no plan by as much. It takes 5 minutes or so; nothing else should run.
# BUILD=build sh tests/bench/monotone.sh
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
pack
rounds=${MONOTONE_ROUNDS:-9}
noise=${MONOTONE_NOISE:-10}
"$bin/moe-profile" -q "$tiny" --text tests/data/stories.calib.txt --max-tokens 512 --max-windows 1 -o "$tmp/s.yaml" \
    --trace "$tmp/t.trace" || exit 1
"$bin/moe-profile" -q --device "$tiny" -o "$tmp/device.yaml" || exit 1
least=$(smallest_memory "$bin/moe-plan" "$tiny")
budgets=$(awk -v from="$least" 'BEGIN { for (i = 0; i < 20; i++) printf "%d ", (from * 1024 + i * 512) }') # KiB
for budget in $budgets; do
    "$bin/moe-plan" -q "$tiny" --memory "${budget}K" --max-tokens 1024 --stats "$tmp/s.yaml" \
        --trace "$tmp/t.trace" --device-profile "$tmp/device.yaml" -o "$tmp/$budget.yaml" || exit 1
done
once() { # NAME OPTION...: appends tokens/s and hits
    name=$1
    shift
    run "$bin/moe-run" "$tiny" -p 'Once upon a time' -n 200 --ignore-eos --seed 7 --stats-json "$json" "$@"
    [ "$code" = 0 ] || { cat "$err"; exit 1; }
    hits=$(($(figure cache_hits) + $(figure prefetch_hits)))
    rate=$(figure decode_tokens_per_s)
    echo "${rate:-0} $hits $(figure expert_activations)" >>"$tmp/$name"
}
for _ in $(seq "$rounds"); do
    for budget in $budgets; do
        once "plan-$budget" --plan "$tmp/$budget.yaml"
        once "none-$budget" --memory "${budget}K"
    done
done
median() { sort -n "$tmp/$1" | awk '{ rate[NR] = $1; hits += $2; all += $3 }
    END { printf "%.1f %.1f", rate[int((NR + 1) / 2)], 100 * hits / all }'; }
ratio() { # NAME OTHER: the median of the rounds' ratios of tokens/s
    paste "$tmp/$1" "$tmp/$2" | awk '$4 > 0 { print $1 / $4 }' | sort -n |
        awk '{ r[NR] = $1 } END { printf "%.3f", NR ? r[int((NR + 1) / 2)] : 0 }'
}
echo "| budget, KiB | plan, tokens/s | hits, % | predicted | no plan, tokens/s | hits, % | plan : none | : budget below |"
echo "|---|---|---|---|---|---|---|---|"
below=
for budget in $budgets; do
    # of a first answer, which each run is; of all in memory there is but one figure
    said=$(sed -n '/^expected/,/^[l-z]/s/^  decode_tokens_per_second: *//p' "$tmp/$budget.yaml" | tail -n 1)
    echo "$budget $(median "plan-$budget") $said $(median "none-$budget") $(ratio "plan-$budget" "none-$budget")" \
        "$(ratio "plan-$budget" "plan-${below:-$budget}") $(ratio "none-$budget" "none-${below:-$budget}")"
    below=$budget
done | awk -v noise="$noise" '
    { printf "| %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f |\n", $1, $2, $3, $4, $5, $6, $7, $8
      least = 1 - noise / 100; slower += $8 < least || $9 < least; worse += $7 < least }
    END { printf "%d budgets slower than the one below, %d plans slower than no plan\n", slower, worse }'
