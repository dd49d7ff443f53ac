# moe-run and moe-serve on a model whose texts begin with a prefix that is seen as a whole: prefix and text behind it,
# side by side, in little memory, what is measured, what is refused. The answers are those of the fixture's
# reference.json (greedy), in bytes.
. tests/cli/lib.sh
gptsan=$tmp/gptsan.moe
"$bin/moe-quantize" -q -t 1 --experts 32 --dense 32 -o "$gptsan" "$drawn/gptsan-a"
moe() { run "$bin/moe-run" -t 1 "$gptsan" "$@"; }
says() { # NAME OCTAL
    # shellcheck disable=SC2059 # the format is the text
    printf "$2" >"$tmp/expected"
    check "$1" cmp -s "$out" "$tmp/expected"
}
university=$(printf '\345\244\247\345\255\246')                # ... in the letters of today
old=$(printf '\345\244\247\345\255\270')                       # 大學
cat=$(printf '\345\220\276\350\274\251\343\201\257\347\214\253\343\201\247\343\201\202\343\202\213\360\237\220\257\343\200\202')
keio=$(printf '\345\256\237\343\201\257\346\205\266\345\277\234(\346\205\266\346\207\211)%s\345\207\272\350\272\253' "$university")

moe -p "$old" --temp 0 -n 8 --ignore-eos
says "a prompt is the prefix" 'e\217\341\170\141\264\307\200\353'
moe -p "$keio" --prefix-text "$cat" --temp 0 -n 8 --ignore-eos
says "a text behind a prefix" '\174\300\236\341\113\230\265\310'
cp "$out" "$tmp/behind"
moe -p '' --prefix-text "$old" --temp 0 -n 8 --ignore-eos
says "an empty text behind a prefix" 'e\217\341\170\141\264\307\200\353'
moe -p "$old" --prefix-text '' --temp 0 -n 8 --ignore-eos
check "a text without a prefix is another" sh -c "[ $code = 0 ] && [ -s '$out' ] && ! cmp -s '$out' '$tmp/expected'"
least=$(smallest_memory "$bin/moe-run" -t 1 "$gptsan" -p "$keio" -c 64)
moe -p "$keio" --prefix-text "$cat" --temp 0 -n 8 --ignore-eos -c 64 --batch 1 --memory "${least}M"
check "little memory, small passes: the same" cmp -s "$out" "$tmp/behind"

# Side by side: every answer as alone.
long=$(printf '%060d' 0)
for i in 1 2 3 4 5 6; do
    printf '{"custom_id": "p%s", "prompt": "%s the %s", "temperature": 0, "max_tokens": 24, "ignore_eos": true}\n' $i "$keio" $i
    printf '{"custom_id": "q%s", "prompt": "%s", "prefix_text": "%s%s", "max_tokens": 9, "seed": 7}\n' $i "$keio" "$cat" $i
done >"$tmp/requests"
printf '{"custom_id": "long", "prompt": "%s%s%s", "max_tokens": 2}\n' "$long" "$long" "$long" >>"$tmp/requests"
answers() { # FILE OPTION...
    to=$1
    shift
    run "$bin/moe-run" -q -t 1 "$gptsan" --requests "$tmp/requests" "$@"
    sed -n 's/.*"custom_id":\("[^"]*"\).*"choices":\(.*\)}}.*/\1 \2/p' "$out" | sort >"$to"
}
answers "$tmp/alone" --sequences 1
expect_exit 0 "--requests"
check "... answers them" [ "$(wc -l <"$tmp/alone")" = 12 ]
check "... but one that is too long, by the sentence of one alone" \
    grep -q 'the prompt of 182 tokens does not fit the context of 128' "$out"
answers "$tmp/others" --sequences 5 --batch 1
check "... five at a time: the same" cmp -s "$tmp/alone" "$tmp/others"
answers "$tmp/others" --sequences 12 --expert-memory 10K
check "... twelve, behind a small cache: the same" cmp -s "$tmp/alone" "$tmp/others"
moe -p "$long$long$long"
error_line 4 "moe-run: the prompt of 182 tokens does not fit the context of 128 (the model's own is 128)" "alone: the same sentence"

# A server says the same.
listen "$bin/moe-serve" "$gptsan" || exit 1
printf '{"prompt": "%s", "prefix_text": "%s", "temperature": 0, "max_tokens": 8, "ignore_eos": true, "logprobs": 0}' \
    "$keio" "$cat" >"$tmp/body"
run "$load" -p "$port" -P /v1/completions -f "$tmp/body" -o "$tmp/got"
check "moe-serve" grep -q '"usage":{"prompt_tokens":21,"completion_tokens":8,"total_tokens":29,' "$tmp/got"
check "... with the answer's bytes" sh -c \
    "sed 's/.*\"tokens\":\[//; s/\].*//' '$tmp/got' | grep -q '^\"|\",\"bytes:..xc0\",\"bytes:..x9e\",\"bytes:..xe1\",\"K\",\"bytes:..x98\",\"bytes:..xb5\",\"bytes:..xc8\"$'"
kill -TERM "$server"
wait "$server" 2>/dev/null

# Measuring.
moe --bench --prompt-tokens 24 -n 4
expect_stdout_like 'tokens/s of 5 runs *prefill * 24 *decode * 4 *' "--bench"
printf '%s\n' "$keio" >"$tmp/text"
moe --perplexity "$tmp/text"
expect_stdout_like 'nll * nats/token, 12 tokens, 1 documents' "--perplexity"
for option in "--perplexity $tmp/text" --bench '--ids x' --encode '--template-file tests/data/chatml.jinja' "--requests $tmp/requests"; do
    # shellcheck disable=SC2086 # a word or two
    moe --prefix-text x $option
    error_line 2 "moe-run: options --*prefix-text* exclude each other *" "--prefix-text ${option%% *}"
done
pack
run "$bin/moe-run" -t 1 "$tiny" -p x --prefix-text y
error_line 2 "moe-run: $tiny: option --prefix-text is for models that see a prefix as a whole" "a model without one"
echo '{"prompt": "x", "prefix_text": "y"}' >"$tmp/requests"
run "$bin/moe-run" -q -t 1 "$tiny" --requests "$tmp/requests"
check "... in requests" grep -q 'the model sees no prefix as a whole: put it before the text itself' "$out"
finish
