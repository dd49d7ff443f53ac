# moe-run --draft: the same answers as without, and the figures of drafts.
. tests/cli/lib.sh
pack
json=$tmp/stats.json
moe() { run "$bin/moe-run" -t 1 "$tiny" --stats-json "$json" "$@"; }
asked='def add(a, b):
    return a + b

def sub(a, b):
    return a - b

def mul(a, b):
'
same() { # WHAT OPTION...: with drafts and without
    what=$1
    shift
    moe -p "$asked" "$@"
    cp "$out" "$tmp/plain"
    tokens=$(figure generated_tokens)
    moe -p "$asked" "$@" --draft ngram
    expect_exit 0 "$what: exit 0"
    check "... the same text" cmp -s "$out" "$tmp/plain"
    check "... as many tokens" [ "$(figure generated_tokens)" = "$tokens" ]
}
same "greedy" -n 40 --temp 0 --ignore-eos
check "... some were drafted" some drafted_tokens
check "... some of them right" some accepted_tokens
check "... not all" [ "$(figure accepted_tokens)" -lt "$(figure drafted_tokens)" ]
decoded=$(sed -n '/^  "decode"/,/}/s/^    "tokens": \([0-9]*\).*/\1/p' "$json")
check "... decoded tokens are the answer's, but for the last" [ "$decoded" = $(($(figure generated_tokens) - 1)) ]
moe -p "$asked" -n 40 --temp 0 --ignore-eos --draft ngram --stats
expect_stderr_like "*drafts   * tokens drafted, *% of them right*" "... which --stats says"
same "drawn" -n 30 --seed 3 --repeat-penalty 1.1 --ignore-eos
same "drawn by mirostat, with DRY" -n 30 --seed 3 --mirostat 2 --dry-multiplier 0.8 --ignore-eos
same "drawn by XTC, not too soon" -n 30 --seed 4 --xtc-probability 0.5 --typical 0.9 --min-tokens 25
same "within a budget" -n 40 --seed 3 --ignore-eos --memory \
    "$(($(smallest_memory "$bin/moe-run" -t 1 "$tiny" -p "$asked" --strategy lru) + 2))M" --strategy lru --exact
check "... experts were loaded" some loads
check "... some were drafted" some drafted_tokens
same "up to a full context" -c 60 --temp 0 --ignore-eos
same "up to a stop text" -n 60 --temp 0 --stop 'return'
same "with a shifted context" -c 48 -n 50 --temp 0 --ignore-eos --context-shift
printf 'root ::= ("ab" | "ba")+\n' >"$tmp/g.gbnf"
same "with a grammar" -n 40 --seed 5 --grammar "$tmp/g.gbnf"
check "... some were right" some accepted_tokens
same "in passes of two rows" -n 30 --temp 0 --ignore-eos --batch 2
same "in passes of one row" -n 20 --temp 0 --ignore-eos --batch 1
check "... nothing is drafted" [ -z "$(figure drafted_tokens)" ]
expect_stderr_like "*--batch 1: nothing is drafted*" "... which is said"

# Side by side: each answer is the same, and a request may do without.
requests=$tmp/requests
for i in 1 2 3 4 5; do
    printf '{"custom_id": "%s", "prompt": "a b c d, a b c d, a b", "temperature": 0.%s, "seed": %s, "max_tokens": 2%s, "ignore_eos": true, "draft": %s}\n' \
        $i $i $i $i "$([ $i = 2 ] && echo false || echo true)"
done >"$requests"
run "$bin/moe-run" -t 1 -q "$tiny" --requests "$requests"
expect_exit 0 "requests"
answers "$out" >"$tmp/plain"
check "... nothing is drafted" [ "$(grep -c prediction_tokens "$out")" = 0 ]
run "$bin/moe-run" -t 1 -q "$tiny" --requests "$requests" --draft ngram --sequences 3
expect_exit 0 "... with drafts"
answers "$out" >"$tmp/drafted"
check "... the same answers" cmp -s "$tmp/plain" "$tmp/drafted"
check "... some of them drafted" grep -q '"accepted_prediction_tokens":[1-9]' "$out"
check "... one without" sh -c "! grep '\"custom_id\":\"2\"' '$out' | grep -q prediction_tokens"

run "$bin/moe-run" "$tiny" -p x --draft ngram --beams 2
error_line 2 "*--beams and --draft exclude each other*" "drafts with beams"
run "$bin/moe-run" "$tiny" -p x --draft eagle
error_line 2 "*--draft*" "a drafter that there is not"
finish
