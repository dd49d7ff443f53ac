# A whole loop with a tool by each API of moe-serve, and by moe-run: the question, the model's own call of the tool, its
# result, and the answer that reads it. The model says what a table tells it (tests/tools/make_script.c), and nothing
# holds it to that.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
got=$tmp/got
post() { # PATH JSON
    printf '%s' "$2" >"$tmp/body"
    run "$load" -p "$port" -P "$1" -o "$got" -f "$tmp/body"
}
says() { # GLOB NAME
    check "$2" matches "$got" "$1"
}

cat >"$tmp/script" <<'END'
[["What is in a?<|im_end|>\n<|im_start|>assistant\n",
  "I look.\n<tool_call>\n{\"name\": \"find\", \"arguments\": {\"path\": \"a\"}}\n</tool_call><|im_end|>"],
 ["<|im_start|>tool\n7 words<|im_end|>\n<|im_start|>assistant\n", "There are 7 words, S\u00e3o.<|im_end|>"],
 ["And b?<|im_end|>\n<|im_start|>assistant\n",
  "<tool_call>\n{\"name\": \"find\", \"arguments\": {\"path\": \"b\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"find\", \"arguments\": {\"path\": \"c\"}}\n</tool_call><|im_end|>"],
 ["<|im_start|>tool\n2 words<|im_end|>\n<|im_start|>assistant\n", "Two.<|im_end|>"]]
END
mkdir "$tmp/model"
run "$BUILD/tests/tools/make_script" "$checkpoint" "$tmp/script" "$tmp/model"
expect_exit 0 "a model is made of a table"
listen "$bin/moe-serve" "$tmp/model" -t 1 --template-file tests/data/calls.jinja --name m || exit 1

schema='{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}'
ask='{"role":"user","content":"What is in a?"}'

# ---- Chat completions ----

tools='"tools":[{"type":"function","function":{"name":"find","parameters":'$schema'}}]'
post /v1/chat/completions "{\"messages\":[$ask],$tools}"
says '*"content":"I look.","tool_calls":\[{"id":"call_*","type":"function","function":{"name":"find","arguments":"{\\"path\\": \\"a\\"}"}}\],*"finish_reason":"tool_calls"*' \
    "chat completions: the model calls the tool"
message=$(sed 's/.*"message":\({.*}\),"logprobs.*/\1/; s/.*"message":\({.*}\),"finish_reason.*/\1/' "$got")
id=$(sed 's/.*"id":"\(call_[0-9a-f]*\)".*/\1/' "$got")
loop="$ask,$message,{\"role\":\"tool\",\"tool_call_id\":\"$id\",\"content\":\"7 words\"}"
post /v1/chat/completions "{\"messages\":[$loop],$tools}"
says '*"content":"There are 7 words, São.",*"finish_reason":"stop"*' "... and reads its result"
post /v1/chat/completions "{\"messages\":[$loop,{\"role\":\"assistant\",\"content\":\"There are 7 words, São.\"},{\"role\":\"user\",\"content\":\"And b?\"}],$tools,\"stream\":true}"
says '*"tool_calls":\[{"index":0,"id":*"name":"find"*"tool_calls":\[{"index":1,"id":*"name":"find"*"finish_reason":"tool_calls"*DONE*' \
    "... and calls it twice in a later turn, in a stream"

# Where the limit falls into the second call, the first is a call, and nothing of the other is text.
tools_of_messages='"tools":[{"name":"find","input_schema":'$schema'}]'
tools_of_responses='"tools":[{"type":"function","name":"find","parameters":'$schema'}]'
b='{"role":"user","content":"And b?"}'
cut=0 shown=0
for n in 28 34 40 46 52 58; do
    post /v1/chat/completions "{\"messages\":[$b],$tools,\"max_tokens\":$n}"
    matches "$got" '*"content":null,"tool_calls":\[{"id":*"}}\],"refusal":null},*"finish_reason":"length"*' && cut=$((cut + 1))
    post /v1/messages "{\"messages\":[$b],$tools_of_messages,\"max_tokens\":$n}"
    matches "$got" '*"content":\[{"type":"tool_use",*}}\],"stop_reason":"max_tokens"*' && cut=$((cut + 1))
    post /v1/responses "{\"input\":[$b],$tools_of_responses,\"max_output_tokens\":$n}"
    matches "$got" '*"output":\[{"id":"fc_*"status":"completed"}\],"error":null,*' && cut=$((cut + 1))
    post /api/chat "{\"model\":\"m\",\"stream\":false,\"messages\":[$b],$tools,\"options\":{\"num_predict\":$n}}"
    matches "$got" '*"content":"","tool_calls":\[{*}}}\]},*"done_reason":"length"*' && cut=$((cut + 1))
    grep -q 'tool_call>' "$got" && shown=$((shown + 1))
done
check "a second call that is cut off is no text, wherever it is cut" [ "$cut" = 24 -a "$shown" = 0 ]

# ---- Messages ----

tools='"max_tokens":99,"tools":[{"name":"find","input_schema":'$schema'}]'
post /v1/messages "{\"messages\":[$ask],$tools}"
says '*"content":\[{"type":"text","text":"I look."},{"type":"tool_use","id":"toolu_*","name":"find","input":{"path": *"a"}}\],"stop_reason":"tool_use"*' \
    "Messages: the model calls the tool"
blocks=$(sed 's/.*"content":\(\[.*\]\),"stop_reason.*/\1/' "$got")
id=$(sed 's/.*"id":"\(toolu_[0-9a-f]*\)".*/\1/' "$got")
loop="$ask,{\"role\":\"assistant\",\"content\":$blocks},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"$id\",\"content\":\"7 words\"}]}"
post /v1/messages "{\"messages\":[$loop],$tools}"
says '*{"type":"text","text":"There are 7 words, São."}*"stop_reason":"end_turn"*' "... and reads its result"
post /v1/messages "{\"messages\":[$loop],$tools,\"stream\":true}"
says '*"text_delta"*"stop_reason":"end_turn"*message_stop*' "... in a stream"

# ---- Responses ----

tools='"tools":[{"type":"function","name":"find","parameters":'$schema'}]'
post /v1/responses "{\"input\":\"What is in a?\",$tools}"
says '*"type":"output_text","text":"I look."*"type":"function_call","call_id":"call_*","name":"find","arguments":"{\\"path\\": \\"a\\"}"*"status":"completed"*' \
    "Responses: the model calls the tool"
before=$(sed 's/.*"id":"\(resp_[0-9a-f]*\)".*/\1/' "$got")
id=$(sed 's/.*"call_id":"\(call_[0-9a-f]*\)".*/\1/' "$got")
items=$(grep -o '"id":"\(msg\|fc\)_[0-9a-f]*"' "$got" | sed 's/.*/{"type":"item_reference",&},/' | tr -d '\n')
result="{\"type\":\"function_call_output\",\"call_id\":\"$id\",\"output\":\"7 words\"}"
post /v1/responses "{\"previous_response_id\":\"$before\",\"input\":[$result],$tools}"
says '*"type":"output_text","text":"There are 7 words, São."*' "... and reads its result"
post /v1/responses "{\"input\":[$ask,$items$result],$tools}"
says '*"type":"output_text","text":"There are 7 words, São."*' "... also where items are referred to"
post /v1/responses "{\"input\":\"What is in a?\",$tools,\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[]}}"
says '*"text":"I look.*<tool_call>*"status":"completed"*' "... a tool that is not allowed is not called"

# ---- Ollama's API ----

tools='"stream":false,"tools":[{"type":"function","function":{"name":"find","parameters":'$schema'}}]'
post /api/chat "{\"model\":\"m\",\"messages\":[$ask],$tools}"
says '*"tool_calls":\[{"id":"call_*","function":{*"name":"find","arguments":{"path": *"a"}}}\]*' "Ollama's chat: the model calls the tool"
message=$(sed 's/.*"message":\({.*}\),"done.*/\1/' "$got")
post /api/chat "{\"model\":\"m\",\"messages\":[$ask,$message,{\"role\":\"tool\",\"content\":\"7 words\"}],$tools}"
says '*"content":"There are 7 words, São."*' "... and reads its result"
kill "$server"
wait "$server"

# ---- moe-run ----

tools='"tools":[{"type":"function","function":{"name":"find","parameters":'$schema'}}]'
echo "{\"messages\":[$ask],$tools}" >"$tmp/messages"
run "$bin/moe-run" -t 1 "$tmp/model" --messages "$tmp/messages" --template-file tests/data/calls.jinja --json
expect_stdout_like '{"message": {*"content": "I look.", *"tool_calls": \[{*"find"*}, "finish_reason": "tool_calls"}' "moe-run: the model calls the tool"
message=$(sed 's/.*"message": \({.*}\), "finish_reason.*/\1/' "$out")
id=$(sed 's/.*"id": "\([^"]*\)".*/\1/' "$out")
echo "{\"messages\":[$ask,$message,{\"role\":\"tool\",\"tool_call_id\":\"$id\",\"content\":\"7 words\"}],$tools}" >"$tmp/messages"
run "$bin/moe-run" -t 1 "$tmp/model" --messages "$tmp/messages" --template-file tests/data/calls.jinja
expect_stdout "There are 7 words, São." "... and reads its result"

# ---- An answer of several messages ----

cat >"$tmp/script" <<'END'
[["What is in a?<|end|><|start|>assistant",
  "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>By find.<|end|><|start|>assistant<|channel|>commentary to=functions.find <|constrain|>json<|message|>{\"path\": \"a\"}"],
 ["7 words<|end|><|start|>assistant", "<|channel|>final<|message|>There are 7 words."]]
END
mkdir "$tmp/marked" "$tmp/channels"
cp "$checkpoint"/* "$tmp/marked"
sed -i 's/<|im_end|>/<|channel|>/g; s/<|im_start|>/<|start|>/g' "$tmp/marked"/tokenizer*.json # marks that are tokens
run "$BUILD/tests/tools/make_script" "$tmp/marked" "$tmp/script" "$tmp/channels"
expect_exit 0 "a model of channels is made"
listen "$bin/moe-serve" "$tmp/channels" -t 1 --template-file tests/data/channels.jinja --name m || exit 1
tools='"tools":[{"type":"function","function":{"name":"find","parameters":'$schema'}}]'
post /v1/chat/completions "{\"messages\":[$ask],$tools}"
says '*"reasoning_content":"Hm.\\u000a\\u000aBy find.","content":"I look.","tool_calls":*"name":"find","arguments":"{\\"path\\": \\"a\\"}"*"finish_reason":"tool_calls"*' \
    "chat completions: thoughts, what is said before a call, and the call"
message=$(sed 's/.*"message":\({.*}\),"logprobs.*/\1/' "$got")
id=$(sed 's/.*"id":"\(call_[0-9a-f]*\)".*/\1/' "$got")
post /v1/chat/completions "{\"messages\":[$ask,$message,{\"role\":\"tool\",\"tool_call_id\":\"$id\",\"content\":\"7 words\"}],$tools}"
says '*"content":"There are 7 words.",*' "... which the template takes back in its form"
post /v1/chat/completions "{\"messages\":[$ask],$tools,\"tool_choice\":\"required\",\"max_tokens\":200}"
says '*"reasoning_content":"Hm.\\u000a\\u000aBy find.","content":"I look.","tool_calls":*"name":"find",*"finish_reason":"tool_calls"*' \
    "... also where a call must come"
post /v1/chat/completions "{\"messages\":[$ask],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"find\",\"strict\":true,\"parameters\":
{\"type\":\"object\",\"properties\":{\"path\":{\"enum\":[\"zebra\"]}},\"required\":[\"path\"]}}}]}"
says '*"content":"I look.","tool_calls":*"name":"find","arguments":"{*\\"zebra\\"*}"*' "... and one that may come keeps to its schema"
post /v1/chat/completions "{\"messages\":[$ask],$tools,\"thinking_budget\":1,\"max_tokens\":120}"
says '*"reasoning_content":"H","content":""*"finish_reason":"stop"*' "... a thought is ended, and no mark of it shown"
post /v1/chat/completions "{\"messages\":[$ask],\"response_format\":{\"type\":\"json_object\"},\"max_tokens\":120}"
says '*"content":"{*"finish_reason":"*' "... an object that must come"
tools='"max_tokens":199,"tools":[{"name":"find","input_schema":'$schema'}]'
post /v1/messages "{\"messages\":[$ask],$tools}"
says '*"content":\[{"type":"thinking","thinking":"Hm.","signature":*},{"type":"text","text":"I look."},{"type":"thinking","thinking":"By find.",*},{"type":"tool_use"*\],"stop_reason":"tool_use"*' \
    "Messages: each in its place"
blocks=$(sed 's/.*"content":\(\[.*\]\),"stop_reason.*/\1/' "$got")
id=$(sed 's/.*"id":"\(toolu_[0-9a-f]*\)".*/\1/' "$got")
post /v1/messages "{\"messages\":[$ask,{\"role\":\"assistant\",\"content\":$blocks},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"$id\",\"content\":\"7 words\"}]}],$tools,\"stream\":true}"
says '*"text_delta","text":"There*message_stop*' "... and back"
tools='"tools":[{"type":"function","name":"find","parameters":'$schema'}]'
post /v1/responses "{\"input\":\"What is in a?\",$tools,\"stream\":true}"
says '*"output":\[{*"type":"reasoning"*"text":"Hm."*"type":"message"*"text":"I look."*"type":"reasoning"*"text":"By find."*"type":"function_call"*\]*' \
    "Responses: each in its place"
kill "$server"
wait "$server"
echo "{\"messages\":[$ask]}" >"$tmp/messages"
run "$bin/moe-run" -t 1 "$tmp/channels" --messages "$tmp/messages" --template-file tests/data/channels.jinja --json -n 12
expect_stderr_like "*the answer ended within its thought*" "moe-run: an answer that ends within its thought says so"
if command -v script >/dev/null; then
    run script -qec "$bin/moe-run -t 1 $tmp/channels -p 'What is in a?' --template-file tests/data/channels.jinja -n 12 --temp 0" /dev/null
    check "... on a terminal in a line of its own" grep -q '^moe-run: the answer ended within its thought' "$out"
else
    skip "the end of a thought on a terminal" "no script"
fi
run "$bin/moe-run" -t 1 "$tmp/channels" -p 'What is in a?' --template-file tests/data/channels.jinja --temp 0
expect_stdout_like 'thought: Hm.

I look.

thought: By find.*' "... -p shows each part behind an empty line"
run "$bin/moe-run" -t 1 "$tmp/channels" -p '7 words' --template-file tests/data/channels.jinja --temp 0
expect_stdout 'There are 7 words.' "... and no mark of an answer without a thought"
finish
