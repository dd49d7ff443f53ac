# The trained model with an encoder says what transformers computed with its weights (its reference.json, where the
# logits are; here the texts), whatever computes it.
. tests/cli/lib.sh
model=$tmp/tiny-switch.moe
run "$bin/moe-quantize" "$models/tiny-switch" -o "$model" --experts 16 --dense 16
expect_exit 0 "moe-quantize takes tiny-switch"

says() { # SOURCE ANSWER OPTION...
    source=$1
    answer=$2
    shift 2
    run "$bin/moe-run" -t 1 "$model" -p "$source" -n 48 --temp 0 "$@"
    expect_exit 0 "'$source' $*"
    expect_stdout "$answer" "'$source' $*: the reference's answer"
}
says 'sum: 3 + 97' '100'
says 'sum: 9 + 4' '10'
says 'last: They picked some flowers.' 'They saw many toys.'
says 'lower: AND LET THE KNIGHT PASS.' 'and the light. the fappender'
says 'sort: so choice' 'coot so warm soice so'
says 'sort: sea feet flowers thee' 'flowers the string feet' --cpu scalar
says 'sum: 3 + 97' '100' --batch 1 --strategy sti

# Over HTTP: the same answers, whole and streamed; what there is to be said of chats.
listen "$bin/moe-serve" "$model" || exit 1
post() { # PATH JSON NAME PATTERN
    printf '%s' "$2" >"$tmp/body"
    run "$load" -p "$port" -P "$1" -f "$tmp/body" -o "$tmp/got"
    check "$3" matches "$tmp/got" "$4"
}
post /v1/completions '{"prompt": "sum: 3 + 97", "temperature": 0}' "a completion" \
    '*"text":"100",*"finish_reason":"stop"*"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,*'
post /v1/completions '{"prompt": "last: They picked some flowers.", "temperature": 0, "stream": true,
    "stream_options": {"include_usage": true}}' "... streamed" '*"completion_tokens":*data: \[DONE\]*'
check "... says the same" [ "$(sed -n 's/.*"text":"\([^"]*\)".*/\1/p' "$tmp/got" | tr -d '\n')" = \
    'They saw many toys.' ]
post /v1/completions '{"prompt": "sum: 9 + 4", "temperature": 0, "n": 3}' "... three of them" \
    '*"text":"10",*"text":"10",*"text":"10",*'
for stream in false true; do
    post /v1/chat/completions '{"stream": '$stream', "messages": [{"role": "user", "content": "x"}]}' "no chat" \
        '{"error":{"message":"the model * request a text completion instead","type":"invalid_request_error",*}}'
done
post /v1/completions '{"prompt": "x", "prefix_text": "y"}' "nor a prefix" \
    '{"error":{"message":"the model sees no prefix as a whole: *","type":"invalid_request_error",*}}'
run "$load" -p "$port" -P /v1/models -o "$tmp/got"
check "/v1/models lists it" matches "$tmp/got" '*"id":"tiny-switch","object":"model",*'
check "/metrics counts sources and answers" [ "$(served prompt_tokens_total)" -gt 20 ]
kill -TERM "$server"
wait "$server"
finish
