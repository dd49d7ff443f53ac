# moe-run on a model with an encoder: sources, beams, embeddings, little memory, what is refused. The
# texts are those of the second and third source of the fixture's reference.json, in bytes.
. tests/cli/lib.sh
switch=$tmp/switch.moe
"$bin/moe-quantize" -q -t 1 --experts 32 --dense 32 -o "$switch" "$drawn/switch-b"
moe() { run "$bin/moe-run" -t 1 "$switch" "$@"; }
says() { # NAME OCTAL
    # shellcheck disable=SC2059 # the format is the text
    printf "$2" >"$tmp/expected"
    check "$1" cmp -s "$out" "$tmp/expected"
}
printf '\233' >"$tmp/second"
printf '\016\3476\027q\020' >"$tmp/third"

moe -f "$tmp/second" --temp 0 -n 32 --ignore-eos --stats --stats-json "$json"
says "greedy tokens are the reference's" '\105\132\301\132\374\023\023\023\374\023\206\023\023\023\023\023\023\206\206\206\206'
expect_stderr_like '*encode        2 tokens in *prefill       0 tokens *; 2 prompt tokens, 32 generated*' \
    "--stats tells of encoder and decoder"
check "--stats-json has them apart" sh -c "grep -q '^  \"encode\": {' '$json' && grep -q '^  \"prompt_tokens\": 2,' '$json'"
moe -f "$tmp/second" --temp 0 -n 32
says "an answer ends by itself" '\105\132\301\132\374\023\023\023\374\023'
cp "$out" "$tmp/greedy"
code=0
"$bin/moe-run" -t 2 "$switch" --temp 0 -n 32 --batch 1 <"$tmp/second" >"$out" 2>"$err" || code=$?
check "standard input, two threads, small passes: the same" cmp -s "$out" "$tmp/greedy"
moe -f "$tmp/second" --temp 0.9 --seed 3 -n 20 --ignore-eos
cp "$out" "$tmp/drawn"
moe -f "$tmp/second" --temp 0.9 --seed 3 -n 20 --ignore-eos
check "the same seed, the same answer" sh -c "[ -s '$out' ] && cmp -s '$out' '$tmp/drawn'"
printf '\374' >"$tmp/stop"
moe -f "$tmp/second" --temp 0 -n 32 --stop "$(cat "$tmp/stop")"
says "--stop" '\105\132\301\132'

moe -f "$tmp/second" --beams 2 -n 16
says "two beams" '\057\104\132\151\023\176\104\132\132\132\104\104\023\023'
moe -f "$tmp/second" --beams 4 -n 16 --stats-json "$json"
says "four beams" '\057\104\132\151\023\176\104\132\132\132\104\104\023\104\104\023'
check "--stats-json has their score" sh -c "grep -q '^  \"beams\": 4,' '$json' && grep -q '^  \"score\": -' '$json'"
moe -f "$tmp/second" --beams 4 -n 16 --length-penalty 0 --early-stopping never
says "... where shorter texts win, the empty one" ''
moe -f "$tmp/third" --beams 4 -n 16 --length-penalty 0 --early-stopping never
says "... or one that ends" '\117\103\103\053\053\053\313\103\305'
moe -f "$tmp/third" --beams 4 -n 16 --early-stopping yes
says "... and longer ones win" '\117\103\103\053\053\053\151\313\117\117\117\117\117\117\117\117'

least=$(smallest_memory "$bin/moe-run" -t 1 "$switch" -f "$tmp/second" -c 64)
moe -f "$tmp/second" --temp 0 -n 32 -c 64 --memory "${least}M" --stats-json "$json"
check "the smallest memory: the same answer" cmp -s "$out" "$tmp/greedy"
check "... within it" [ "$(figure peak_rss_bytes)" -le "$(figure memory_budget_bytes)" ]
for strategy in ondemand prefetch lru; do
    moe -f "$tmp/second" --temp 0 -n 32 --strategy "$strategy" --expert-memory 100K --exact
    check "strategy $strategy: the same answer" cmp -s "$out" "$tmp/greedy"
done

# Embeddings: the mean of the third source's, from its reference.
awk '/"sources"/ { n = split($0, source, "\"pooled\":"); split(source[4], list, /[][]/); print list[2] }' \
    "$drawn/switch-b/reference.json" >"$tmp/pooled"
moe --kv f32 -f "$tmp/third" --encode
expect_exit 0 "--encode"
expect_stdout_like '{"tokens": 7, "pooling": "mean", "embedding": \[*\]}' "... writes a line"
check "... that is the reference's mean" awk '
    { gsub(/.*\[|\].*/, ""); n[NR] = split($0, x, /, */); for (i = 1; i <= n[NR]; i++) v[NR, i] = x[i] }
    END {
        for (i = 1; i <= n[1]; i++) {
            d = v[1, i] - v[2, i]
            bad = bad || d > 2e-4 || d < -2e-4
        }
        exit bad || n[1] < 8 || n[1] != n[2]
    }' "$tmp/pooled" "$out"
cp "$out" "$tmp/mean"
moe --kv f32 -f "$tmp/third" --encode --memory "${least}M" -c 64
check "... in little memory as well" cmp -s "$out" "$tmp/mean"
{ cat "$tmp/third"; printf '\n\n'; cat "$tmp/third"; } >"$tmp/lines"
moe --kv f32 -f "$tmp/lines" --encode
check "--encode: a line for each line" [ "$(wc -l <"$out")" = 3 ]
check "... in their order" sh -c "sed -n 1p '$out' | cmp -s - '$tmp/mean' && sed -n 3p '$out' | cmp -s - '$tmp/mean'"
check "... also for an empty one" sh -c "sed -n 2p '$out' | grep -q '^{\"tokens\": 1, '"
moe --kv f32 -p "a b" --encode --pooling first
expect_stdout_like '{"tokens": 4, "pooling": "first", *' "--pooling"

# Requests: completions are answers to sources; there is no chat.
{
    for k in 1 2 3 4 5; do
        printf '{"custom_id": "%s", "prompt": "text %s", "temperature": 0, "max_tokens": 9}\n' $k $k
    done
    echo '{"custom_id": "chat", "messages": [{"role": "user", "content": "x"}]}'
} >"$tmp/requests"
run "$bin/moe-run" -q -t 1 "$switch" --requests "$tmp/requests" --sequences 2 -c 64
expect_exit 0 "--requests"
check "... answers each" [ "$(grep -c '"status_code":200' "$out")" = 5 ]
check "... in tokens of sources and answers" [ "$(grep -c '"prompt_tokens":7,' "$out")" = 5 ]
check "... but no chat" grep -q 'has no chat template: request a text completion instead' "$out"
run "$bin/moe-run" -q -t 1 "$switch" --requests "$tmp/requests" --template-file tests/data/chatml.jinja -c 64
check "... whatever template is named" grep -q 'encoder reads a source by itself, and no chat: ask' "$out"

# A bench: the source, then the answer's tokens.
moe --bench --prompt-tokens 24 -n 4 --stats-json "$json"
expect_stdout_like 'tokens/s of 5 runs *encode * 24 *decode * 4 *' "--bench tells of encoder and decoder"
check "... six times, a warm-up included" sh -c \
    "grep -A1 '\"encode\": {' '$json' | grep -q '\"tokens\": 144,' && grep -A1 '\"decode\": {' '$json' | grep -q '\"tokens\": 24,'"
moe --bench --prompt-tokens 24 -n 4 -f "$tmp/third" --json
expect_stdout_like '{"encode_tokens": 24, "encode_tokens_per_s": {*"decode_tokens": 4,*"runs": 5}' "--bench --json"
moe --bench --prompt-tokens 100 -n 4 -c 64
error_line 2 'moe-run: 100 prompt tokens and 4 more do not fit the context of 64' "a bench beyond the context"

# A translator: the languages of source and answer, by their tokens.
nllb=$tmp/nllb.moe
"$bin/moe-quantize" -q -t 1 --experts 32 --dense 32 -o "$nllb" "$drawn/nllb-a"
translate() { run "$bin/moe-run" -t 1 "$nllb" -p 'the thing' "$@"; }
translate --show-prompt
expect_stdout_like '*ids: 260 7 5 80 8 79 2' "a source begins with the tokenizer's language"
translate --show-prompt --from fra_Latn
expect_stdout_like '*ids: 261 7 5 80 8 79 2' "--from"
translate --temp 0 -n 12 --ignore-eos
cp "$out" "$tmp/free"
translate --temp 0 -n 12 --ignore-eos --to zho_Hans
check "--to changes the answer" sh -c "[ -s '$out' ] && ! cmp -s '$out' '$tmp/free'"
cp "$out" "$tmp/chinese"
for language in deu_Latn zho_Hans; do
    printf '{"prompt": "the thing", "target_language": "%s", "temperature": 0, "max_tokens": 12, "ignore_eos": true}\n' $language
done >"$tmp/requests"
run "$bin/moe-run" -q -t 1 "$nllb" --requests "$tmp/requests" --sequences 2
check "target_language of requests: the same" sh -c \
    "[ \$(grep -c '\"status_code\":200' '$out') = 2 ] && grep -q '\"text\":\"$(cat "$tmp/chinese")\"' '$out'"
translate --to chinese
error_line 2 "moe-run: the model has no language 'chinese': *" "a language that there is not"
# The model's own language of answers (forced_bos_token_id), in place and in a pack.
forced=$tmp/forced
cp -r "$drawn/nllb-a" "$forced"
printf '{"forced_bos_token_id": 262}' >"$forced/generation_config.json"
"$bin/moe-quantize" -q -t 1 --experts 32 --dense 32 -o "$forced.moe" "$forced"
printf '{"prompt": %s, "temperature": 0, "max_tokens": 12, "ignore_eos": true}\n' \
    '"the thing"' '[260, 7, 5, 80, 8, 79, 2]' >"$tmp/requests"
for model in "$forced" "$forced.moe"; do
    run "$bin/moe-run" -t 1 "$model" -p 'the thing' --temp 0 -n 12 --ignore-eos
    check "${model##*/}: an answer begins as the model's files say" cmp -s "$out" "$tmp/chinese"
    run "$bin/moe-run" -q -t 1 "$model" --requests "$tmp/requests"
    check "... of requests, by texts and by tokens" sh -c \
        "[ \$(grep -cF '\"text\":\"$(cat "$tmp/chinese")\"' '$out') = 2 ]"
done
run "$bin/moe-run" -t 1 "$forced.moe" -p 'the thing' --temp 0 -n 12 --ignore-eos --to deu_Latn
check "... --to decides" sh -c "[ -s '$out' ] && ! cmp -s '$out' '$tmp/chinese'"
# Answers that are judged begin in the language of their targets.
"$bin/moe-quantize" -q -t 1 --experts 8,4 --dense 32 -o "$tmp/two.moe" "$drawn/nllb-a"
for language in zho_Hans deu_Latn; do
    text=$("$bin/moe-run" -q -t 1 "$tmp/two.moe" -p 'the thing' --temp 0 -n 40 --to $language)
    printf '{"source": "the thing", "target": "%s", "target_language": "%s"}\n' "$text" $language
done >"$tmp/pairs"
run "$bin/moe-run" -q -t 1 "$tmp/two.moe" --perplexity "$tmp/pairs" --judge accuracy --json
expect_stdout_like '*"accuracy": 1.000000,*' "answers that are judged begin in their target's language"
run "$bin/moe-calibrate" -q -t 1 "$tmp/two.moe" --pairs "$tmp/pairs" --judge accuracy -o "$tmp/judged.yaml"
run "$bin/moe-calibrate" --show --json "$tmp/judged.yaml"
expect_stdout_like '*"reference_accuracy":1,*' "... of a calibration, too"
translate --from '</s>'
error_line 2 "moe-run: the model has no language '</s>': *" "a special token is no language"
moe -p x --from eng_Latn
error_line 3 "moe-run: the model's texts begin with no language: *" "a language of a model that has none"

long=$(printf '%080d' 0)
moe -p "$long" -c 64
error_line 4 'moe-run: the source of 81 tokens does not fit the context of 64' "a source too long"
printf 'a\n%s\n' "$long" >"$tmp/lines"
run "$bin/moe-run" -q -t 1 "$switch" -f "$tmp/lines" --encode -c 64
check "--encode: a line too long is named" sh -c \
    "[ $code = 4 ] && [ \$(wc -l <'$out') = 1 ] && grep -q '^moe-run: line 2: the source of 81 tokens does not fit the context of 64$' '$err'"
for option in '--system x' '--template-file tests/data/chatml.jinja'; do
    # shellcheck disable=SC2086 # a word or two
    moe $option
    error_line 2 "moe-run: $switch: option ${option%% *} is not for models with an encoder, *" "$option"
done
moe --perplexity "$tmp/lines"
error_line 3 "moe-run: $tmp/lines: pair 1: *" "--perplexity of what are no pairs"
pack
run "$bin/moe-run" -t 1 "$tiny" -p x --encode
error_line 2 "moe-run: $tiny: the model has no encoder: option --encode needs one that has" \
    "--encode without an encoder"
run "$bin/moe-run" a.moe --pooling last
error_line 2 "moe-run: option --pooling goes with --encode *" "--pooling alone"
run "$bin/moe-run" a.moe --encode --top-k 3
error_line 2 "moe-run: options --encode and --top-k exclude each other *" "--encode draws nothing"
finish
