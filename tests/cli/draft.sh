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

run "$bin/moe-run" "$tiny" -p x --draft ngram --beams 2
error_line 2 "*--draft and --beams exclude each other*" "drafts with beams"
run "$bin/moe-run" "$tiny" -p x --draft eagle
error_line 2 "*--draft*" "a drafter that there is not"
finish
