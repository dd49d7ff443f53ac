# moe-run --draft mtp, HEAD: a layer of the model drafts, or a head in a file of its own; the same answers as without.
. tests/cli/lib.sh
json=$tmp/stats.json
moe() { run "$bin/moe-run" -t 1 "$pack" --raw --stats-json "$json" "$@"; }
asked='One day'
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
    head=$drawn/eagle3-a/model.gguf
    block=$drawn/dflash-a/model.gguf
    [ $fixture = ahead-deepseek ] || head=$drawn/eagle3-b block=$drawn/dflash-b
    follow=$drawn/dspark-a/model.gguf
    [ $fixture = ahead-deepseek ] || follow=$block
    hows="ngram $head $block $follow mtp"
    same "greedy" -n 60 --temp 0 --ignore-eos
    check "... some were drafted" some drafted_tokens
    check "... some of them right" some accepted_tokens
    check "... not all" [ "$(figure accepted_tokens)" -lt "$(figure drafted_tokens)" ]
    decoded=$(sed -n '/^  "decode"/,/}/s/^    "tokens": \([0-9]*\).*/\1/p' "$json")
    check "... decoded tokens are the answer's, but for the last" [ "$decoded" = $(($(figure generated_tokens) - 1)) ]
    same "drawn" -n 40 --seed 3 --temp 0.3 --ignore-eos
    hows="$head $block $follow mtp"
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
    for how in $hows; do
        run "$bin/moe-serve" -t 1 "$pack" --requests "$tmp/requests" --draft "$how" --sequences 3 --memory 40M --stats-json "$json"
        expect_exit 0 "side by side, $how: exit 0"
        answers "$out" >"$tmp/drafted"
        check "... the same answers" cmp -s "$tmp/plain" "$tmp/drafted"
        check "... some were drafted" some drafted_tokens
        case $how in *.gguf | *dflash*) ;; *) check "... some of them right" some accepted_tokens ;; esac
        check "... within the memory" [ "$(figure peak_rss_bytes)" -le $((40 << 20)) ]
    done
done

# Contexts are those of the model alone: made with drafts, used without.
pack=$tmp/ahead-deepseek.moe
run "$bin/moe-run" -t 1 "$pack" --raw -p "$asked" -n 30 --temp 0 --ignore-eos
cp "$out" "$tmp/plain"
for how in mtp none "$drawn/eagle3-a" "$drawn/eagle3-c" "$drawn/eagle3-e" "$drawn/dflash-a" mtp; do
    moe -p "$asked" -n 30 --temp 0 --ignore-eos --draft "$how" --prompt-cache "$tmp/context"
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

# Heads: in place, as packs, and what they do not fit.
run "$bin/moe-quantize" -t 1 -q --dense 8 -o "$tmp/head.moe" "$drawn/eagle3-b"
expect_exit 0 "a head's pack"
run "$bin/moe-quantize" -t 1 -q --dense 4 -o "$tmp/small.moe" "$tmp/head.moe"
expect_exit 0 "... packed again"
pack=$tmp/ahead-qwen3-next.moe
hows="$drawn/eagle3-f $drawn/eagle3-b $tmp/small.moe $tmp/head.moe"
same "by a head" -n 60 --temp 0 --ignore-eos
check "... some of its tokens are right" some accepted_tokens
same "with keys of 8 bits" -n 40 --temp 0 --ignore-eos --kv q8
run "$bin/moe-plan" -t 1 "$pack" --memory 40M --strategy lru+alloc=per-layer --draft "$tmp/head.moe" -o "$tmp/head.yaml"
expect_exit 0 "a plan with a head"
moe -p "$asked" -n 30 --temp 0 --ignore-eos
cp "$out" "$tmp/plain"
moe -p "$asked" -n 30 --temp 0 --ignore-eos --draft "$tmp/head.moe" --plan "$tmp/head.yaml"
expect_exit 0 "... a run under it"
check "... the same text" cmp -s "$out" "$tmp/plain"

# A head of one token, for a model that repeats it: whole blocks are right.
mkdir "$tmp/one"
hidden=$(sed -n 's/.*"hidden_size": \([0-9]*\).*/\1/p' "$drawn/qwen3-moe-b/config.json")
sed "s/\"hidden_size\": 42/\"hidden_size\": $hidden, \"draft_vocab_size\": 1/; s/\"block_size\": 4/\"block_size\": 16/
s/: 2$/: 1/; s/   2$/  1/" "$drawn/dflash-d/config.json" >"$tmp/one/config.json"
sed "s/x84/x$((2 * hidden))/; s/42/$hidden/g; 2a I64 1 d2t normal 0 45
2a BF16 1x$hidden lm_head.weight normal 1 0" "$drawn/dflash-d/drawn.txt" >"$tmp/one/drawn.txt"
"$BUILD/tests/tools/draw_fixture" "$tmp/one/drawn.txt" "$tmp/one"
pack=$drawn/qwen3-moe-b
asked=x
hows=$tmp/one
same "a head that is right" -n 60 --temp 0 --ignore-eos
check "... several tokens at a time, as drafts of one are half of an answer" [ "$(figure accepted_tokens)" -ge 40 ]
check "... and never given up" [ "$(figure stopped_drafts)" = 0 ]
asked='One day'

mkdir "$tmp/kept"
cp -r "$tmp/one" "$tmp/head.moe" "$tmp/ahead-qwen3-next.moe" "$tmp/kept"
cp "$drawn/dflash-a/model.gguf" "$tmp/kept/block.gguf"
cp "$drawn/qwen3-moe-a/model.gguf" "$tmp/kept/model.gguf"
run "$bin/moe-run" --list "$tmp/kept"
check "--list says which of them are heads" [ "$(sed -n 's/  *.* (no model.*--draft)$//p' "$out" | tr '\n' ' ')" = "block head one " ]
check "... beside the models" [ "$(grep -vc 'no model' "$out")" = 2 ]

# One that is always wrong is given up, in each answer anew.
pack=$tmp/ahead-deepseek.moe
for hows in "$drawn/eagle3-a" "$drawn/dflash-a" "$drawn/dspark-a"; do
    same "a head that is wrong" -n 60 --temp 0 --ignore-eos --stats
    expect_stderr_like "*drafts   * tokens drafted, 0.0% of them right; too few in 1 of 1 answers*" "... --stats says that it stopped"
    check "... after five drafts, the first of two tokens" [ "$(figure drafted_tokens)" = 6 ]
done
run "$bin/moe-serve" -t 1 "$pack" --requests "$tmp/requests" --draft "$hows" --stats-json "$json"
check "... in each of four requests" [ "$(figure stopped_drafts)" = 4 ]
pack=$tmp/ahead-qwen3-next.moe
run "$bin/moe-run" "$pack" -p x --draft "$drawn/eagle3-a"
error_line 3 "*eagle3-a: drafts for another model than *: one of a width of 42*" "a head of another model"
run "$bin/moe-run" "$pack" -p x --draft "$pack"
error_line 3 "*is a model, and no head that drafts*" "a model as a head"
run "$bin/moe-run" "$tmp/head.moe" -p x
error_line 3 "*is a head that only drafts*" "a head as a model"
run "$bin/moe-run" "$pack" -p x --draft "$tmp/nothing"
error_line 2 "*--draft*is not none, ngram, mtp or the file of a head that drafts*" "no such file"
mkdir "$tmp/damaged"
cp "$drawn"/eagle3-a/* "$tmp/damaged"
refused() { # SCRIPT FILE SENTENCE WHAT: eagle3-a with a file of its that sed has changed
    sed "$1" "$drawn/eagle3-a/$2" >"$tmp/damaged/$2"
    sed -i '/^file model.gguf/,$d' "$tmp/damaged/drawn.txt"
    "$BUILD/tests/tools/draw_fixture" "$tmp/damaged/drawn.txt" "$tmp/damaged"
    run "$bin/moe-run" "$tmp/ahead-deepseek.moe" -p x --draft "$tmp/damaged"
    error_line 3 "$3" "$4"
    cp "$drawn/eagle3-a/$2" "$tmp/damaged/$2"
}
refused '/"eagle_aux/,/\]/d' config.json "*damaged: does not say which layers*has too few*: 2" \
    "a head that does not say what it reads, for a model of two layers"
refused '/^I64 100 d2t digits /s/digits 0*N*Q*/normal 0 -7/' drawn.txt "*tensor 'd2t' makes -7 of token 0*" "a token below 0"
refused '/lm_head/d' drawn.txt "*is missing ('lm_head.weight')*" "a head without its output"
sed '/^I64 100 d2t digits /s/NNQ/QNN/; /^file model.gguf/,$d' "$drawn/eagle3-a/drawn.txt" >"$tmp/damaged/drawn.txt"
"$BUILD/tests/tools/draw_fixture" "$tmp/damaged/drawn.txt" "$tmp/damaged"
run "$bin/moe-run" "$tmp/ahead-deepseek.moe" -p x --draft "$tmp/damaged"
error_line 3 "*tensor 'd*' makes * of token 79 of the head*rise*" "a head whose tokens do not rise"
head -c 20000 "$drawn/eagle3-a/model.safetensors" >"$tmp/damaged/model.safetensors"
run "$bin/moe-run" "$tmp/ahead-deepseek.moe" -p x --draft "$tmp/damaged"
expect_exit 3 "a head whose file ends early"
finish
