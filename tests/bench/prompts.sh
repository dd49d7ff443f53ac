#!/bin/sh
# A plan is no slower than none at prompts of any length, and as fast as it says: README's widened pack within BUDGETS, loads
# held to RATE ("": as the disk reads); prompts of about 20, 100 and 350 tokens, 48 tokens of answer, with the budget's plan and
# without one, in turn, PROMPTS_ROUNDS times (3), each round with a text of another kind. The machine is measured again before
# each budget. Prints, as means of the rounds, seconds to the first token and of the whole answer, MB read, and the ratio of whole
# seconds. Then decoded tokens/s as planned and as measured: first answers are those runs; later ones are documents of the
# validation texts, one after the other; "of these texts" is what the plan's clock says of the same (--lockstep), so that how texts
# differ is told from how time does. Last what a decoded token of first answers is made of, ms by the clock / measured, and of the
# measured those in which other programs had the processor (displaced_s).
# PROMPTS_TOKENS=N makes the plans with --prompt-tokens N. PROMPTS_KEEP=DIR: pack, statistics and trace are made there once.
# Two to four minutes for each budget; nothing else should run.
# BUDGETS="100M 140M 200M 240M" RATE=300M BUILD=build sh tests/bench/prompts.sh
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
rounds=${PROMPTS_ROUNDS:-3}
budgets=${BUDGETS:-100M 140M 200M 240M}
link=${RATE-300M}
keep=${PROMPTS_KEEP:-$tmp}
wide=$keep/wide.moe
if [ ! -e "$keep/t.trace" ]; then
    "$BUILD/tests/tools/widen" --hidden 4 --ff 8 "${BUILD:-build}/models/tiny-moe" "$tmp/wide" &&
        "$bin/moe-quantize" -q -o "$wide" "$tmp/wide" && rm -r "$tmp/wide" &&
        "$bin/moe-profile" -q "$wide" --text tests/data/stories.calib.txt --text tests/data/math.calib.txt \
            --text tests/data/code.calib.txt --max-tokens 96 --max-windows 1 --prompt-share 34% --shard 1/8 \
            -o "$keep/s.yaml" --trace "$keep/t.trace" || exit 1
fi
measure() { # OPTION...: statistics to $json
    run "$bin/moe-run" "$wide" --stats-json "$json" ${link:+--link-rate "$link"} "$@"
    [ "$code" = 0 ] || { cat "$err"; exit 1; }
}
# Seconds of decoding, computing, handling, waiting, without a processor, and tokens, of the statistics.
decoding() {
    awk -F '[:,]' '
        /^  "decode"/ { on = 1 } /^  }/ { on = 0 }
        on { gsub(/[ "]/, "", $1); n[$1] = $2 + 0 }
        END { print n["seconds"], n["compute_s"], n["handling_s"], n["stall_s"], n["displaced_s"], n["tokens"] }' "$json"
}
once() { # NAME PROMPT OPTION...: appends seconds to the first token and of the whole, MB, and what decoding took
    name=$1 prompt=$2
    shift 2
    measure --raw -f "$prompt" -n 48 --ignore-eos --temp 0 "$@"
    echo "$(figure ttft_s) $(figure decode_tokens_per_s) $(figure bytes_read) $(decoding)" |
        awk '{ $2 = $1 + 47 / $2; $3 /= 1e6; print }' >>"$tmp/$name"
}
for kind in stories math code; do
    awk '{ print } /^<\|endoftext\|>$/ && ++n == 8 { exit }' "tests/data/$kind.valid.txt" >>"$tmp/later.txt"
    for n in 20 100 350; do # as many bytes as have about n tokens
        bytes=$((n * 3))
        for _ in 1 2 3; do
            head -c "$bytes" "tests/data/$kind.valid.txt" >"$tmp/$kind-$n.txt"
            run "$bin/moe-run" "${BUILD:-build}/models/tiny-moe" --raw -f "$tmp/$kind-$n.txt" -n 1 --stats-json "$json"
            bytes=$((bytes * n / $(figure prompt_tokens)))
        done
    done
done
said() { # SECTION of the plan: tokens/s
    sed -n "/^$1:/,/^[a-z]/s/^  decode_tokens_per_second: *//p" "$tmp/$budget.yaml"
}
speeds() { # PLANNED CLOCK MEASURED, files of what decoding took: planned, of these texts, measured; their ratio
    awk -v planned="$1" '
        FILENAME ~ /clock/ { expected += $1; of += $6; next }
        { seconds += $1; tokens += $6 }
        END { printf "%.1f | %.1f | %.1f | %.2f |", planned, of / expected, tokens / seconds, expected / of * tokens / seconds }' \
        "$2" "$3"
}
parts() { # CLOCK MEASURED: each part of a token, by the clock / measured, ms
    awk '
        FILENAME ~ /clock/ { for (i = 2; i <= 6; i++) clock[i] += $i; next }
        { for (i = 2; i <= 6; i++) sum[i] += $i }
        END { for (i = 2; i <= 4; i++) printf " %.2f / %.2f |", 1e3 * clock[i] / clock[6], 1e3 * sum[i] / sum[6]
              printf " %.2f |\n", 1e3 * sum[5] / sum[6] }' "$1" "$2"
}
later() { # NAME OPTION...: the documents one after the other
    name=$1
    shift
    measure -q --perplexity "$tmp/later.txt" --max-doc-tokens 96 --max-windows 1 --prompt-share 34% "$@"
    decoding >"$tmp/$name"
}
for budget in $budgets; do
    "$bin/moe-profile" -q --device "$wide" -o "$tmp/device.yaml" &&
        "$bin/moe-plan" -q "$wide" --memory "$budget" --stats "$keep/s.yaml" --trace "$keep/t.trace" \
            --device-profile "$tmp/device.yaml" ${link:+--link-rate "$link"} \
            ${PROMPTS_TOKENS:+--prompt-tokens "$PROMPTS_TOKENS"} -o "$tmp/$budget.yaml" || exit 1
    for round in $(seq "$rounds"); do
        kind=$(echo stories math code | cut -d ' ' -f $((round % 3 + 1)))
        for n in 20 100 350; do
            once "plan-$n" "$tmp/$kind-$n.txt" --plan "$tmp/$budget.yaml"
            once "none-$n" "$tmp/$kind-$n.txt" --memory "$budget"
            once clock "$tmp/$kind-$n.txt" --plan "$tmp/$budget.yaml" --lockstep
        done
    done
    for n in 20 100 350; do
        paste -d ' ' "$tmp/plan-$n" "$tmp/none-$n" | awk -v row="$budget, $n" '
            { for (i = 1; i <= 12; i++) sum[i] += $i }
            END { printf "| %s | %.2f | %.2f | %.0f | %.2f | %.2f | %.0f | %.2f |\n", row, sum[1] / NR, sum[2] / NR,
                  sum[3] / NR, sum[10] / NR, sum[11] / NR, sum[12] / NR, sum[2] / sum[11] }' >>"$tmp/table"
    done
    cut -d ' ' -f 4- "$tmp/clock" >"$tmp/first-clock"
    cat "$tmp/plan-20" "$tmp/plan-100" "$tmp/plan-350" | cut -d ' ' -f 4- >"$tmp/first"
    later later --plan "$tmp/$budget.yaml"
    later later-clock --plan "$tmp/$budget.yaml" --lockstep
    first=$(said expected_first)
    echo "| $budget | $(speeds "${first:-$(said expected)}" "$tmp/first-clock" "$tmp/first")" \
        "$(speeds "$(said expected)" "$tmp/later-clock" "$tmp/later")" >>"$tmp/speeds"
    echo "| $budget | first |$(parts "$tmp/first-clock" "$tmp/first")" >>"$tmp/parts"
    echo "| $budget | later |$(parts "$tmp/later-clock" "$tmp/later")" >>"$tmp/parts"
    rm "$tmp/clock" "$tmp"/plan-* "$tmp"/none-*
done
echo "| memory, prompt | plan: first token, s | whole, s | MB | none: first token, s | whole, s | MB | plan : none |"
echo "|---|---|---|---|---|---|---|---|"
cat "$tmp/table"
echo "| memory | first answers: planned | of these texts | measured | : texts | later: planned | of these | measured | : texts |"
echo "|---|---|---|---|---|---|---|---|---|"
cat "$tmp/speeds"
echo "| memory | answers | computing | handling loads | waiting | other programs |"
echo "|---|---|---|---|---|---|"
cat "$tmp/parts"
