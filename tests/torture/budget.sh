# Budgets: every strategy, with prompts to 3,000 tokens on a model with a context of 4,096, under budgets from
# its floor up, each in a control group of exactly the budget and without swap. None may be killed, each
# stays below its budget by its own account, and what approximated nothing gives the tokens of resident.
#
# BUDGET_PROMPTS: numbers of tokens; BUDGET_MORE: MiB above the floor; BUDGET_NEW: tokens to generate.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
prompts=${BUDGET_PROMPTS:-30 700 3000}
more=${BUDGET_MORE:-0 2 8}
new=${BUDGET_NEW:-24}
can_control_groups || {
    skip "budgets" "no control group can be made here"
    finish
}

# The bundled model's weights in a context that it was not trained for: what it says need not make sense.
mkdir "$tmp/long"
cp "$checkpoint"/* "$tmp/long/"
sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 4096/' \
    "$checkpoint/config.json" >"$tmp/long/config.json"
long=$tmp/long.moe
"$bin/moe-quantize" -q --experts 4,2 -o "$long" "$tmp/long" || exit 1
stats=$tmp/stats.yaml
"$bin/moe-profile" -q "$long" --text tests/data/math.calib.txt --max-tokens 128 --max-windows 1 -o "$stats" || exit 1

# A prompt of N tokens: the words of the texts, as many as give so many.
sed '/^<|endoftext|>$/d' tests/data/stories.valid.txt tests/data/code.valid.txt >"$tmp/words"
make_prompt() { # N FILE
    bytes=$(($1 * 3))
    for turn in 1 2 3 4 5 6; do
        head -c "$bytes" "$tmp/words" >"$2"
        got=$("$bin/moe-run" "$long" --ids "$(cat "$2")" | wc -w)
        bytes=$((bytes * $1 / got))
    done
}

# The test device's host memory is a copy of the pack, which the budget does not count (moe-run(1)).
copy() {
    case $strategy in
    host | daop) wc -c <"$long" ;;
    *) echo 0 ;;
    esac
}

ask() { # as control_group, with a prompt in $prompt and a strategy in $strategy
    limit_bytes=$1
    shift
    device=
    case $strategy in host | daop) device="--device test:2,500MB/s" ;; esac
    [ "$limit_bytes" = none ] || limit_bytes=$((limit_bytes + $(copy)))
    # shellcheck disable=SC2086 # words
    set -- "$bin/moe-run" "$long" -f "$prompt" --raw -n "$new" --temp 0 --ignore-eos --stats-json "$json" \
        --strategy "$strategy" --statistics "$stats" $device "$@"
    if [ "$limit_bytes" = none ]; then run "$@"; else control_group "$limit_bytes" "$@"; fi
}

strategies=$("$bin/moe-run" --strategy help | sed -n '/^Strategies:/,/^Parts:/s/^  \([a-z][a-z-]*\) .*/\1/p')
check "there are strategies" [ "$(echo "$strategies" | wc -l)" -ge 13 ]
runs=0
for n in $prompts; do
    prompt=$tmp/prompt-$n
    make_prompt "$n" "$prompt"
    strategy=resident
    ask none
    want=$(cat "$out")
    check "$n tokens, resident: an answer to $(figure prompt_tokens)" [ -n "$want" ]
    for strategy in $strategies; do
        ask none --memory 1M
        floor=$(sed -n 's/.*the smallest that works is .*--memory \([0-9]*\)M.*/\1/p' "$err")
        check "$strategy, $n tokens: a floor of ${floor:-none} MiB" [ -n "$floor" ]
        for above in $more; do
            rm -f "$json"
            ask $(((${floor:-0} + above) << 20)) --memory $((${floor:-0} + above))M
            row="$strategy, $n tokens, floor + $above MiB"
            runs=$((runs + 1))
            check "$row: is not killed" [ "$killed" = 0 ]
            expect_exit 0 "$row: ends"
            [ "$code" = 0 ] || continue
            peak=$(($(figure peak_rss_bytes) - $(copy)))
            check "$row: peak $((peak >> 10)) KiB of $(((floor + above) << 10))" \
                [ "$peak" -le $(((floor + above) << 20)) ]
            if none low_precision && none substituted && none skipped && none precalculated; then
                expect_stdout "$want" "$row: the tokens of resident"
            fi
        done
    done
done
check "$runs runs in control groups" [ "$runs" -gt 0 ]
finish
