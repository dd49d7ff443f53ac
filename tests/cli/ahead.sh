# moe-run --draft mtp: a layer of the model drafts; the same answers as without.
. tests/cli/lib.sh
json=$tmp/stats.json
moe() { run "$bin/moe-run" -t 1 "$pack" --raw --stats-json "$json" "$@"; }
asked='Once upon a time there was'
same() { # WHAT OPTION...: with drafts and without
    what=$1
    shift
    moe -p "$asked" "$@"
    expect_exit 0 "$what: without, exit 0"
    cp "$out" "$tmp/plain"
    tokens=$(figure generated_tokens)
    for how in $hows; do
        moe -p "$asked" "$@" --draft "$how"
        expect_exit 0 "$what: $how, exit 0"
        check "... the same text" cmp -s "$out" "$tmp/plain"
        check "... as many tokens" [ "$(figure generated_tokens)" = "$tokens" ]
    done
}
for fixture in ahead-deepseek ahead-qwen3-next; do
    pack=$tmp/$fixture.moe
    run "$bin/moe-quantize" -t 1 -q --experts 32 --dense 32 -o "$pack" "$drawn/$fixture"
    expect_exit 0 "$fixture: a pack"
    run "$bin/moe-quantize" --list "$pack"
    check "... with a layer that drafts" grep -qa "drafts (MTP)" "$out"
    hows="ngram mtp"
    same "greedy" -n 60 --temp 0 --ignore-eos
    check "... some were drafted" some drafted_tokens
    check "... some of them right" some accepted_tokens
    check "... not all" [ "$(figure accepted_tokens)" -lt "$(figure drafted_tokens)" ]
    decoded=$(sed -n '/^  "decode"/,/}/s/^    "tokens": \([0-9]*\).*/\1/p' "$json")
    check "... decoded tokens are the answer's, but for the last" [ "$decoded" = $(($(figure generated_tokens) - 1)) ]
    same "drawn" -n 40 --seed 3 --temp 0.3 --ignore-eos
    hows=mtp
    same "within a budget" -n 40 --temp 0 --ignore-eos --strategy lru --exact --expert-memory 60K
    check "... experts were loaded" some loads
    same "in passes of two rows" -n 30 --temp 0 --ignore-eos --batch 2
    same "in passes of one row" -n 20 --temp 0 --ignore-eos --batch 1
    check "... nothing is drafted" [ -z "$(figure drafted_tokens)" ]
    same "up to a full context" -c 60 --temp 0 --ignore-eos
    same "with a shifted context" -c 48 -n 50 --temp 0 --ignore-eos --context-shift
    for i in 1 2 3 4; do
        printf '{"custom_id": "%s", "prompt": "%s", "temperature": 0, "max_tokens": 3%s, "ignore_eos": true}\n' $i "$asked $i" $i
    done >"$tmp/requests"
    run "$bin/moe-serve" -t 1 "$pack" --requests "$tmp/requests"
    answers "$out" >"$tmp/plain"
    run "$bin/moe-serve" -t 1 "$pack" --requests "$tmp/requests" --draft mtp --sequences 3 --memory 40M --stats-json "$json"
    expect_exit 0 "side by side: exit 0"
    answers "$out" >"$tmp/drafted"
    check "... the same answers" cmp -s "$tmp/plain" "$tmp/drafted"
    check "... some were drafted" some drafted_tokens
    check "... some of them right" some accepted_tokens
    check "... within the memory" [ "$(figure peak_rss_bytes)" -le $((40 << 20)) ]
done

# Contexts are those of the model alone: made with drafts, used without.
pack=$tmp/ahead-deepseek.moe
run "$bin/moe-run" -t 1 "$pack" --raw -p "$asked" -n 30 --temp 0 --ignore-eos
cp "$out" "$tmp/plain"
for how in mtp none mtp; do
    moe -p "$asked" -n 30 --temp 0 --ignore-eos --draft $how --prompt-cache "$tmp/context"
    check "a prompt's context, $how: the same text" cmp -s "$out" "$tmp/plain"
done

run "$bin/moe-quantize" -t 1 -q --no-mtp -o "$tmp/without.moe" "$pack"
expect_exit 0 "packed again without"
check "... a smaller file" [ "$(wc -c <"$tmp/without.moe")" -lt "$(wc -c <"$pack")" ]
run "$bin/moe-run" "$tmp/without.moe" -p x --draft mtp
error_line 3 "*without.moe: has no layer that drafts (MTP)*" "--draft mtp without such a layer"
run "$bin/moe-serve" "$tmp/without.moe" --requests "$tmp/requests" --draft mtp
error_line 3 "*without.moe: has no layer that drafts (MTP)*" "moe-serve --draft mtp without such a layer"
run "$bin/moe-run" "$pack" -p x --draft mtp --device test:2,1G
error_line 2 "*a layer that drafts (MTP) is computed only on the processor*" "--draft mtp beside a device"

# Plans: one that counts the layer, by what is measured here, and one that has to make room for it.
for how in none mtp; do
    set -- --strategy lru+alloc=global
    [ $how = mtp ] || set -- --strategy lru+alloc=per-layer --device-profile profiles/apple-m2.yaml
    run "$bin/moe-plan" -t 1 "$pack" --memory 40M "$@" --draft $how -o "$tmp/$how.yaml"
    expect_exit 0 "a plan, --draft $how"
    moe -p "$asked" -n 30 --temp 0 --ignore-eos --draft mtp --plan "$tmp/$how.yaml"
    expect_exit 0 "... --draft mtp under it"
    check "... the same text" cmp -s "$out" "$tmp/plain"
    check "... some were drafted" some drafted_tokens
    check "... experts were loaded" some loads
    check "... within its memory" [ "$(figure peak_rss_bytes)" -le $((40 << 20)) ]
done
dense() { sed -n 's/^ *dense_bytes: *//p' "$1"; }
check "the layer's weights are counted" [ "$(dense "$tmp/mtp.yaml")" -gt "$(dense "$tmp/none.yaml")" ]
run "$bin/moe-plan" -t 1 "$tmp/without.moe" --memory 40M --draft mtp
error_line 3 "*without.moe: has no layer that drafts (MTP)*" "moe-plan --draft mtp without such a layer"
finish
