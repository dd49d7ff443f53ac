# moe-serve's answers told apart: calls of tools and thoughts, whole and in streams.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
pack
got=$tmp/got
post() { # PATH JSON
    printf '%s' "$2" >"$tmp/body"
    run "$load" -p "$port" -P "$1" -o "$got" -D "$tmp/head" -f "$tmp/body"
}
says() { # GLOB NAME
    check "$2" matches "$got" "$1"
}
lacks() { # FILE TEXT
    ! grep -qF "$2" "$1"
}

listen "$bin/moe-serve" "$tiny" --template-file tests/data/calls.jinja || exit 1

tools='"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":
{"days":{"type":"integer","minimum":1,"maximum":9}},"required":["days"],"additionalProperties":false}}},
{"type":"function","function":{"name":"find","parameters":{"type":"object","properties":{"path":{"enum":["a","b"]}},
"required":["path"],"additionalProperties":false}}}]'
chat='"messages":[{"role":"user","content":"What now?"}],"temperature":0,"max_tokens":120'
one='"tool_choice":{"type":"function","function":{"name":"find"}},"parallel_tool_calls":false'

post /v1/chat/completions "{$chat,$tools,\"tool_choice\":\"required\",\"parallel_tool_calls\":false}"
says '*"content":null,"tool_calls":\[{"id":"call_*","type":"function","function":{"name":"*","arguments":"{*}"}}\],*"finish_reason":"tool_calls"*' \
    "a call that must come comes apart from the content"
post /v1/chat/completions "{$chat,$tools,$one}"
says '*"name":"find","arguments":"{\\"path\\": \\"[ab]\\"}"}}\]*' "the function is the one that was named, its arguments follow the schema"
post /v1/chat/completions "{$chat,$tools,$one,\"stream\":true}"
says '*"delta":{"role":"assistant","content":null,"tool_calls":\[{"index":0,"id":"call_*"name":"find","arguments":""}}\]}*' \
    "a stream has the name first"
says '*"tool_calls":\[{"index":0,"function":{"arguments":"{"}}\]}*"finish_reason":"tool_calls"*DONE*' "... and then the arguments as they come"
post /v1/chat/completions "{$chat,$tools,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"other\"}}}"
says "*'tool_choice' names 'other', which is none of the 'tools'*" "a function that is no tool is refused"
post /v1/chat/completions "{$chat,\"tool_choice\":\"required\"}"
says "*'tool_choice' wants a call, but there are no 'tools'*" "a call without tools is refused"

# An answer that was begun goes on.
said() { sed -n 's/.*"content":"\(.*\)","refusal.*/\1/p' "$got"; } # as JSON has it
asked='"messages":[{"role":"user","content":"What now?"}'
post /v1/chat/completions "{$asked],\"temperature\":0,\"max_tokens\":24}"
whole=$(said)
post /v1/chat/completions "{$asked],\"temperature\":0,\"max_tokens\":9}"
begun=$(said)
post /v1/chat/completions "{$asked,{\"role\":\"assistant\",\"content\":\"$begun\"}],\"temperature\":0,\"max_tokens\":15,\"continue_final_message\":true}"
check "an answer that was begun goes on as by itself" [ -n "$begun" -a "$begun$(said)" = "$whole" ]
post /v1/messages "{$asked,{\"role\":\"assistant\",\"content\":\"$begun\"}],\"temperature\":0,\"max_tokens\":15}"
check "... in Messages without being asked to" sh -c 'test "$1" = "$2"' sh "$begun$(sed -n 's/.*"text":"\(.*\)"}\],"stop_reason.*/\1/p' "$got")" "$whole"
post /v1/chat/completions "{$asked],\"continue_final_message\":true}"
says "*'continue_final_message' needs an assistant's text as the last message*" "... which is the last message"
post /v1/chat/completions "{$asked,{\"role\":\"assistant\",\"content\":\"{\"}],\"continue_final_message\":true,\"response_format\":{\"type\":\"json_object\"}}"
says "*cannot be held to a format or grammar*" "... and held to nothing"

strange() { # SCHEMA GLOB NAME: of the second tool
    post /v1/chat/completions "{$chat,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},
{\"type\":\"function\",\"function\":{\"name\":\"strange\",\"parameters\":$1}}],\"tool_choice\":\"required\"}"
    says "*the parameters of 'strange': $2*" "$3"
}
strange '{"type":"object","not":{}}' '#: no value is allowed here' "what a tool's schema has wrong is said of the tool"
strange '{"type":"object","properties":{"n":{"$ref":"#"}},"required":["n"]}' 'a $ref leads back to itself at once or always, *' \
    "... also where a call could never end"

post /v1/chat/completions "{$chat,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"list\",\"parameters\":{\"type\":\"array\"}}}]}"
says "*the parameters of 'list' must be an object, which their 'type' leaves out*" "... or its arguments were no object"
post /v1/chat/completions "{$chat,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"wide\",\"strict\":true,\"parameters\":
{\"type\":\"object\",\"properties\":{\"n\":{\"oneOf\":[{\"type\":\"integer\",\"multipleOf\":3},{\"type\":\"integer\",\"multipleOf\":5}]}},\"required\":[\"n\"],
\"additionalProperties\":false}}}],\"tool_choice\":\"required\"}"
check "what is kept of a tool's schema in a wider sense is said" \
    grep -q "^[Xx]-[Mm]oe-[Ii]gnored: schema the parameters of 'wide': #/properties/n/oneOf: kept as anyOf" "$tmp/head"
post /v1/chat/completions "{$asked],\"temperature\":0,\"max_tokens\":12,$tools,$one}"
says '*"content":"<tool_call>*"finish_reason":"length","warnings":\["a call is cut off: its text is content"\]*' \
    "a call that a limit cuts off before its name is told"

# Answers written by a grammar: what a model would say.
says_so() { # TEXT: as GBNF writes it
    post /v1/chat/completions "{$chat,$tools,\"grammar\":\"root ::= \\\"$1\\\"\"}"
}
says_so 'Let me look.\\n<tool_call>\\n{\\\"name\\\": \\\"find\\\", \\\"arguments\\\": {\\\"path\\\": 7}}\\n</tool_call>'
says '*"content":"Let me look.","tool_calls":\[{*"name":"find","arguments":"{\\"path\\": 7}"*"finish_reason":"tool_calls"*' \
    "content and call come apart"
says_so 'Hm <tool_call>\\n{\\\"name\\\": \\\"find\\\", \\\"arguments\\\": {path}}\\n</tool_call>'
says '*"content":"Hm\\u000a\\u000a<tool_call>*{path}*"finish_reason":"stop","warnings":\["the call of '"'find'"' is malformed: its text is content"\]*' \
    "a malformed call is content, and the choice says so"
says_so '<tool_call>\\n{\\\"name\\\": \\\"none\\\", \\\"arguments\\\": {}}\\n</tool_call>'
says '*"content":"<tool_call>*none*"finish_reason":"stop"}*' "what calls no tool is content"
# ---- Messages and Responses ----

schema='{"type":"object","properties":{"path":{"enum":["a","b"]}},"required":["path"],"additionalProperties":false}'
post /v1/messages '{"max_tokens":80,"temperature":0,"system":"Be short.","messages":[{"role":"user","content":"Hi"},
{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"tool_use","id":"toolu_1","name":"find","input":{"path":"a"}}]},
{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"tool_reference","tool_name":"find"}]},{"type":"text","text":"and?"}]},
{"role":"system","content":"Be shorter."}],
"tools":[{"name":"find","input_schema":'"$schema"'}],"tool_choice":{"type":"tool","name":"find"}}'
says '{"id":"msg_*","type":"message","role":"assistant",*"content":\[{"type":"tool_use","id":"toolu_*","name":"find","input":{"path": "[ab]"}}\],"stop_reason":"tool_use",*"output_tokens":*' \
    "Messages answer with a call"
post /v1/messages '{"temperature":0,"max_tokens":2,"stream":true,"messages":[{"role":"user","content":[{"type":"text","text":"Once"}]}]}'
says '*event: message_start*"input_tokens":[1-9]*"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}*"type":"text_delta","text":*event: content_block_stop*"stop_reason":"max_tokens"*event: message_stop*' \
    "... and stream their events"
post /v1/messages '{"temperature":0,"max_tokens":40,"stop_sequences":["zebra","##"],"messages":[{"role":"user","content":"Once"}],"user":"me"}'
says '*"stop_reason":"stop_sequence","stop_sequence":"##",*' "... and say which stop sequence ended them"
check "... and a header says which keys had no effect" grep -qi '^x-moe-ignored: user' "$tmp/head"
post /v1/messages '{"messages":[{"role":"user","content":"Hi"}]}'
says '{"type":"error","error":{"type":"invalid_request_error","message":"*max_tokens*is missing"}}' "... and refuse in their own form"
post /v1/messages '{"max_tokens":8,"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}'
says '*block of type '"'image'"'*' "... and name a block that cannot be read"
post /v1/responses '{"temperature":0,"instructions":"Be short.","max_output_tokens":80,"tools":[{"type":"function","name":"find","parameters":'"$schema"'}],
"tool_choice":{"type":"function","name":"find"},"input":[{"role":"user","content":[{"type":"input_text","text":"Hi"}]},
{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},{"type":"function_call","call_id":"c1","name":"find","arguments":"{}"},
{"type":"function_call_output","call_id":"c1","output":"found"}]}'
says '{"id":"resp_*","object":"response",*"status":"completed",*"output":\[{"id":"fc_*","type":"function_call","call_id":"call_*","name":"find","arguments":"{\\"path\\": \\"[ab]\\"}","status":"completed"}\]*' \
    "Responses answer with a call"
says '*"instructions":"Be short.","max_output_tokens":80,*"temperature":0,*"tool_choice":{"type":"function","name":"find"},"tools":\[{"type":"function","name":"find",*' \
    "... and give back what was asked"
cut='{"temperature":0,"input":"Once","max_output_tokens":32,"tool_choice":"required","tools":[{"type":"function","name":"find","parameters":'"$schema"'}]'
post /v1/responses "$cut}"
says '*"output":\[{"id":"msg_*","type":"message",*"text":"<tool_call>*"status":"incomplete"}\],"error"*' "a call that is cut off is text"
post /v1/responses "$cut,\"stream\":true}"
says '*"type":"response.incomplete",*"output":\[{"id":"fc_*","name":"find","arguments":"{\\"path\\":","status":"incomplete"}\],"error"*' \
    "... and in a stream, which has begun it, no call that is complete"
post /v1/responses '{"temperature":0,"input":"Once","max_output_tokens":2,"stream":true}'
says '*event: response.created*"sequence_number":0*event: response.output_item.added*event: response.output_text.delta*event: response.output_text.done*event: response.incomplete*"reason":"max_output_tokens"*' \
    "... and stream their events"

# ---- Thoughts: of a template that opens them, and takes them out of later prompts ----

first=$server
printf '%s' "{% for m in messages %}<|im_start|>{{ m.role }}
{{ (m.content or '').split('</think>')[-1] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}" >"$tmp/thinks.jinja"
calls_port=$port
listen "$bin/moe-serve" "$tiny" --template-file "$tmp/thinks.jinja" || exit 1
asked='"temperature":0,"max_tokens":60,"grammar":"root ::= \"Done.\""'
hi='"messages":[{"role":"user","content":"Once"}]'
post /v1/chat/completions "{$hi,$asked,\"thinking_budget\":5}"
says '*"reasoning_content":"?*","content":"Done.",*"finish_reason":"stop"*"completion_tokens":1[0-9],*' \
    "a thought ends with its tokens, and the grammar holds what follows it"
cp "$got" "$tmp/budget"
post /v1/chat/completions "{$hi,$asked,\"thinking_budget\":5,\"stream\":true}"
says '*"delta":{*"reasoning_content":"*"delta":{"content":"D*."*"finish_reason":"stop"*' "... in a stream"
post /v1/chat/completions "{$hi,$asked,\"enable_thinking\":false}"
says '*"message":{"role":"assistant","content":"Done.",*' "a thought that nobody wants ends at once"
post /v1/chat/completions "{$hi,\"temperature\":0,\"max_tokens\":60,\"thinking_budget\":3,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":$schema}}}"
says '*"reasoning_content":"?*","content":"{*path*","refusal"*' "... and a schema's answer is no thought"
post /v1/messages "{$hi,$asked,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":5}}"
says '*"content":\[{"type":"thinking","thinking":"?*","signature":"unsigned"},{"type":"text","text":"Done."}\],"stop_reason":"end_turn"*' \
    "Messages have thoughts"
post /v1/messages "{$hi,$asked,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":5},\"stream\":true}"
says '*"content_block":{"type":"thinking"*"type":"thinking_delta","thinking":"*"delta":{"type":"signature_delta","signature":"unsigned"}}*content_block_stop*"index":1,"content_block":{"type":"text"*"text_delta","text":"D*' \
    "... in their streams"
post /v1/messages "{$hi,$asked,\"thinking\":{\"type\":\"disabled\"}}"
says '*"content":\[{"type":"text","text":"Done."}\]*' "... or none"
asked='"temperature":0,"max_output_tokens":60,"grammar":"root ::= \"Done.\"","thinking_budget_tokens":5'
post /v1/responses "{\"input\":\"Once\",$asked}"
says '*"output":\[{"id":"rs_*","type":"reasoning","summary":\[\],"content":\[{"type":"reasoning_text","text":"?*"}\],"status":"completed"},{"id":"msg_*"type":"output_text","text":"Done."*' \
    "Responses have them"
post /v1/responses "{\"input\":\"Once\",$asked,\"stream\":true}"
says '*event: response.reasoning_text.delta*event: response.reasoning_text.done*event: response.output_text.delta*event: response.completed*' \
    "... in their streams"
post /api/chat "{\"model\":\"m\",$hi,\"stream\":false,\"options\":{\"temperature\":0,\"num_predict\":60},\"grammar\":\"root ::= \\\"Done.\\\"\",\"thinking_budget_tokens\":5}"
says '*"message":{"role":"assistant","content":"Done.","thinking":"?*"}*' "Ollama's chats too"
kill "$server"
wait "$server"

# ---- A thought that ends in one way before a content, in another before a call, and with a stop text ----

printf '%s' "{% if tools %}{{ tools|tojson }}
{% endif %}{% for m in messages %}<s>{{ m.role }}{% if m.reasoning_content %}<hm>{{ m.reasoning_content }}<e><s>assistant{% endif %}
{%- if m.tool_calls %}<call>{{ m.tool_calls[0].function.name }}:{{ m.tool_calls[0].function.arguments|tojson }}
{%- else %}<say>{{ m.content }}{% endif %}<e>{% endfor %}{% if add_generation_prompt %}<s>assistant<hm>{% endif %}" >"$tmp/ends.jinja"
listen "$bin/moe-serve" "$tiny" --template-file "$tmp/ends.jinja" || exit 1
asked="$hi,\"temperature\":0,\"max_tokens\":60"
find='"tools":[{"type":"function","function":{"name":"find","parameters":{"type":"object","properties":{"path":{"type":"string","maxLength":5}},"required":["path"]}}}]'
yes='"grammar":"root ::= \"yes\""'
post /v1/chat/completions "{$asked,\"thinking_budget\":4,$yes}"
says '*"reasoning_content":"?*","content":"yes",*"finish_reason":"stop"*' "a grammar follows the end before a content"
for stop in '<s>' assistant 'e><s' '<say>' '<e><s>assistant<say>X'; do
    post /v1/chat/completions "{$asked,\"thinking_budget\":4,$yes,\"stop\":[\"$stop\"]}"
    says '*"reasoning_content":"?*","content":"yes",*"finish_reason":"stop"*' "... and no stop text is found in that end: $stop"
done
post /v1/chat/completions "{$hi,\"temperature\":0,\"max_tokens\":600,\"thinking_budget\":482,\"ignore_eos\":true}"
check "an end that the context has no room for is not begun" lacks "$got" '<e>'
post /v1/chat/completions "{$asked,\"thinking_budget\":4}"
says '*"reasoning_content":"?*","content":"?*",*"completion_tokens":60,*' "a stop text that begins the end does not end the answer"
check "... and nothing of it is left in the answer" lacks "$got" 'assistant<'
for thinks in '"thinking_budget":4' '"enable_thinking":false'; do
    post /v1/chat/completions "{$asked,$thinks,\"tool_choice\":\"required\",$find}"
    says '*"tool_calls":\[{*"name":"find","arguments":"{*"finish_reason":"tool_calls"*' "a call follows its own end: $thinks"
done
post /v1/chat/completions "{$asked,\"thinking_budget\":4,$find}"
says '*"reasoning_content":"?*","content":"?*' "where either may follow it is written as far as they are the same"
check "... and nothing of that is left in the answer" lacks "$got" '<s>assistant'
post /v1/chat/completions "{$hi,\"max_tokens\":6,\"enable_thinking\":false}"
says '*"content":"",*"finish_reason":"length"*"completion_tokens":0,*' "an end that does not fit is not begun"
post /v1/chat/completions "{$asked,\"thinking_budget\":4,\"grammar\":\"root ::= \\\"\\\"\"}"
says '*"reasoning_content":"?*","content":"",*"finish_reason":"stop"*' "an empty grammar waits for the thought"
post /v1/chat/completions "{$asked,\"enable_thinking\":false,\"min_tokens\":50,\"logit_bias\":{\"4093\":100}}"
says '*"finish_reason":"stop"*"completion_tokens":50,*' "as many tokens as must come do also behind it"
kill "$server"
wait "$server"
server=$first port=$calls_port

# ---- Other APIs: what they have beside answers ----

post /v1/messages/count_tokens '{"system":"Be short.","messages":[{"role":"user","content":"Hi"}]}'
says '{"input_tokens":2[0-9]}' "Messages are counted"
post /tokenize '{"content":"Once upon a time"}'
says '{"count":4,"max_model_len":512,"tokens":\[997,804,259,534\]}' "/tokenize as llama.cpp has it"
post /tokenize '{"prompt":"Once \u00e9","return_token_strs":true,"model":"x"}'
says '{"count":5,*"tokens":\[4093,997,*"token_strs":\["<|endoftext|>","Once"," *' "... and as vLLM has it"
post /detokenize '{"tokens":[997,804,259,534]}'
says '{"content":"Once upon a time","prompt":"Once upon a time"}' "/detokenize gives the text back"
post /detokenize '{"tokens":[997,99999]}'
says "*'tokens\[1\]' is not a token's id*" "... of ids that there are"
post /completion '{"prompt":"Once upon a","n_predict":1,"temperature":0}'
says '{"index":0,"content":" time","tokens":\[\],"id_slot":0,"stop":true,"model":"tiny","tokens_predicted":1,"tokens_evaluated":[1-9]*"stop_type":"limit","stopping_word":"","timings":{"prompt_n":*"predicted_per_second":*}}' \
    "/completion as llama.cpp has it"
post /completion '{"prompt":"Once upon a","n_predict":1,"temperature":0,"stream":true,"response_fields":["content","timings/predicted_n","x/y"],"t_max_predict_ms":9}'
says 'data: {"index":0,"content":" time","tokens":\[\],"id_slot":0,"stop":false}??data: {"content":"","timings/predicted_n":1}*' \
    "... in a stream, whose end has the fields that were asked for"
check "... and says what had no effect" grep -qi '^x-moe-ignored: t_max_predict_ms' "$tmp/head"
post /completion '{"prompt":"x","response_fields":["content",3]}'
says "*'response_fields\[1\]' is not a text*" "... and takes paths as its fields"
post /completion '{"prompt":"x","n_predict":-5}'
says "*'n_predict' is -5, expected -1 or -2, for no limit, or 0 to 4294967295*" "... and numbers of tokens that llama.cpp has"
post /infill '{"input_prefix":"a","input_suffix":"b"}'
says '*the model has no tokens to fill in the middle*' "/infill needs a model that can"
post /tokenize '{"content":"a","prompt":"b"}'
says "*one of 'content', 'prompt' and 'messages'*" "... and /tokenize takes one text"
run "$load" -p "$port" -P /props -o "$got"
says '{"default_generation_settings":{"n_ctx":512,"params":{"temperature":0.8,"top_k":40,"top_p":0.95,*"mirostat":0,*}},"total_slots":8,"model_alias":"tiny",*"chat_template":"{% if tools %}*' "/props as llama.cpp has it"

post /api/chat '{"model":"m","messages":[{"role":"user","content":"Once"}],"options":{"num_predict":2,"temperature":0,"num_gpu":9},"keep_alive":"5m"}'
says '{"model":"m","created_at":"20*Z","message":{"role":"assistant","content":"*"},"done":false}*"done":true,"done_reason":"length",*"eval_count":2,*' "Ollama's chats stream"
check "... as JSON lines" grep -qi '^content-type: application/x-ndjson' "$tmp/head"
check "... and say which options had no effect" grep -qi '^x-moe-ignored: keep_alive, options.num_gpu' "$tmp/head"
post /api/chat '{"model":"m","stream":false,"messages":[{"role":"user","content":"Once","images":["aGk="]}]}'
says "{\"error\":\"*'messages\[0\].images': only texts can be read\"}*" "... refuse images in their own form"
post /api/generate '{"model":"m","prompt":"Once upon a","raw":true,"stream":false,"options":{"num_predict":1,"temperature":0}}'
says '*"response":" time","done":true,*' "... and continue texts as they are"
# ---- What clients ask for when they start ----

get() { run "$load" -p "$port" -P "$1" -D "$tmp/head" -o "$got"; }
run "$load" -p "$port" -P / -X HEAD -D "$tmp/head" -o "$got"
check "Ollama's clients look whether a server is there" grep -q '^HTTP/1.1 200' "$tmp/head"
get /api/version
says '{"version":"0.*"*' "... ask for its version"
get /api/ps
says '{"models":\[{"name":"tiny",*"expires_at":"2100-*"context_length":512}\]}' "... for what is loaded"
post /api/pull '{"model":"tiny"}'
says "{\"error\":\"'/api/pull' is not supported by this server: its models are those that it was started with\"}*" \
    "... and are told what there is not, in their own form"
get /api/none
says "{\"error\":\"there is nothing at '/api/none'\"}*" "... at any of their paths"
get /v1/messages/batches
says '{"type":"error","error":{"type":"not_found_error","message":"there is nothing at *"}}' "... as Anthropic's are"
get /slots
says '\[{"id":0,"n_ctx":512,"is_processing":false},*{"id":7,"n_ctx":512,"is_processing":false}\]' "llama.cpp's clients see what is free"
get /metrics
check "... and count by its names" grep -q '^llamacpp:tokens_predicted_total [1-9]' "$got"
get /api/v0/models
says '{"object":"list","data":\[{"id":"tiny",*"type":"llm",*"state":"loaded","max_context_length":512,*"capabilities":\["tool_use"\]}\]}' \
    "LM Studio's clients list models"
post /api/v0/chat/completions '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":0}'
says '{"id":"chatcmpl-*' "... and chat with them"
get /api/v0/responses/none
says "*the response 'none' is not kept here*" "... and find all of OpenAI's routes below theirs"
post /v1/responses/resp_x/cancel '{}'
says "*responses are not computed in the background, so none can be cancelled*" "a response is not cancelled"
post /v1/messages '{"max_tokens":3,"messages":[{"role":"user","content":[]}]}'
says "*'messages\[0\].content' is empty*" "an empty message is told by its place"
post /v1/messages '{"max_tokens":3,"messages":[{"role":"user","content":null}]}'
says "*'messages\[0\].content' is missing*" "... so is one without content"
post /v1/completions '{"prompt":"Once","max_tokens":1,"stop_token_ids":[99999]}'
says "*'stop_token_ids' names token 99999: the model has *" "a token that the model has not ends no answer"
get '/v1/responses/none/input_items?order=up'
says "*'order' is 'up', expected asc or desc*" "an order that there is not is refused"
post /chat/completions '{"messages":[]}'
says "*there is nothing at '/chat/completions'; did you mean '/v1/chat/completions'?*" "a base URL that lacks a part is noticed"
get /v1/v1/models
says "*there is nothing at '/v1/v1/models'; did you mean '/v1/models'?*" "... or has one twice"

run "$load" -p "$port" -P /api/tags -o "$got"
says '{"models":\[{"name":"tiny",*"size":[1-9]*"details":{*"format":"moe",*"parameter_size":"17.5M","quantization_level":"Q4"*' "... list models"
check "... by digests of 64 digits that do not begin with zeros" grep -qE '"digest":"[1-9a-f][0-9a-f]{63}"' "$got"
post /api/show '{"model":"tiny"}'
says '*"parameters":"num_ctx 512",*"model_info":{*.context_length":512,*"capabilities":\["completion","tools"\],*' "... and say what a model can"


post /v1/embeddings '{"input":["A cat","A cat"],"model":"m","user":"me"}'
says '{"object":"list","data":\[{"object":"embedding","index":0,"embedding":\[*\]},{*"index":1,*"model":"m","usage":{"prompt_tokens":6,"total_tokens":6}}' "texts become vectors"
check "... of length 1" awk 'match($0, /\[-?[0-9][^\]]*\]/) {
    n = split(substr($0, RSTART + 1, RLENGTH - 2), x, ",")
    for (i = 1; i <= n; i++) sum += x[i] * x[i] }
    END { exit !(n == 192 && sum > 0.999999 && sum < 1.000001) }' "$got"
post /v1/embeddings '{"input":"x","dimensions":193}'
says "*'dimensions' is 193, but the model's states have 192*" "... of as many numbers as there are"
post /v1/embeddings '{"input":"x","dimensions":1e9}'
says "*'dimensions' is 1000000000, but the model's states have 192*" "... however the number is written"
post /v1/embeddings '{"input":["x",""]}'
says "*'input\[1\]' is empty*" "... and an empty text has none"

# ---- Conversations that do not fit ----

turns() { # FROM TO: items of a conversation
    awk -v i="$1" -v to="$2" 'BEGIN { for (; i < to; i++)
        printf("{\"role\":\"user\",\"content\":\"question %d about cats\"},{\"role\":\"assistant\",\"content\":\"answer %d\"},", i, i) }'
}
calls() { # FROM TO: calls and their results
    awk -v i="$1" -v to="$2" 'BEGIN { for (; i < to; i++)
        printf(",{\"type\":\"function_call\",\"call_id\":\"c%d\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c%d\",\"output\":\"%d\"}", i, i, i) }'
}
left_out() { sed -n 's/^[Xx]-[Mm]oe-[Ll]eft-[Oo]ut: \([0-9]*\).*/\1/p' "$tmp/head"; }
said() { sed 's/.*"output":\(.*\),"error".*/\1/; s/"id":"[^"]*"//g' "$got"; }
rest='{"role":"user","content":"And now?"}],"instructions":"Be short.","temperature":0,"max_output_tokens":3'
post /v1/responses '{"input":['"$(turns 0 40)$rest}"
says '*"the prompt of at least * does not fit*' "a conversation that is too long is refused"
post /v1/responses '{"input":['"$(turns 0 40)$rest"',"truncation":"auto"}'
said >"$tmp/auto"
n=$(left_out)
says '*"truncation":"auto","warnings":\["the conversation and its answer do not fit the context: its '"$n"' oldest messages are left out"\]*' \
    "... or loses its oldest turns, as it says"
post /v1/responses '{"input":['"$(turns $((n / 2)) 40)$rest"',"truncation":"auto"}'
said >"$tmp/end"
check "... and is answered as its end is, of which nothing is left out" [ -s "$tmp/auto" -a "$n" -gt 0 -a -z "$(left_out)" ]
check "... by the same text" cmp "$tmp/auto" "$tmp/end"
post /v1/responses '{"input":['"$(turns $((n / 2 - 1)) 40)$rest"',"truncation":"auto"}'
check "... as few as help" [ "$(left_out)" = 2 ]
post /v1/responses '{"input":['"$(turns $((n / 2)) 40)$(echo "$rest" | sed 's/output_tokens":3/output_tokens":60/')"',"truncation":"auto"}'
check "... and more where the answer needs their room" [ "$(left_out)" -ge 2 ]
long() { # WORDS: a conversation whose last question is long
    awk -v n="$1" -v turns="$(turns 0 20)" 'BEGIN { printf("[%s{\"role\":\"user\",\"content\":\"", turns)
        while (n-- > 0) printf("cat ")
        print "\"}],\"temperature\":0,\"truncation\":\"auto\"}" }'
}
post /v1/responses '{"input":'"$(long 410)"
check "a question that fits by itself, though without much room, is answered so" [ "$(left_out)" = 40 ]
says '*"input_tokens":4[0-9][0-9],*' "... within the context"
post /v1/responses '{"input":'"$(long 600)"
says '*"the last question and the system texts are too long even without what is before and behind them: the prompt of *' \
    "... and one that does not fit is told apart"
ask='[{"role":"user","content":"Do it."}'
rest='],"temperature":0,"max_output_tokens":3,"truncation":"auto","tools":[{"type":"function","name":"f"}]}'
post /v1/responses '{"input":'"$ask$(calls 0 60)$rest"
said >"$tmp/auto"
n=$(left_out)
post /v1/responses '{"input":'"$ask$(calls $((n / 2)) 60)$rest"
said >"$tmp/end"
check "calls are left out with their results, and the question is not" [ "$n" -gt 0 -a -z "$(left_out)" ]
check "... which is answered" cmp "$tmp/auto" "$tmp/end"
post /api/chat '{"model":"m","stream":false,"options":{"num_predict":3},"truncate":true,"messages":['"$(turns 0 40)"'{"role":"user","content":"?"}]}'
check "Ollama's clients ask for it in their way" [ "$(left_out)" -gt 0 ]

# ---- Kept responses ----

post /v1/responses '{"input":[{"role":"user","content":"Once"},{"type":"item_reference","id":"msg_1"}]}'
says "*'input': there is no item 'msg_1' here (any more): send *" "an item that is not kept is told"
post /v1/responses '{"input":"Once","previous_response_id":"resp_1"}'
says "*'previous_response_id': there is no response 'resp_1' here (any more): send *" "a response that is not kept is told"
post /v1/responses '{"temperature":0,"instructions":"Be short.","input":"Once","max_output_tokens":4}'
id=$(sed 's/.*"id":"\(resp_[0-9a-f]*\)".*/\1/' "$got")
cp "$got" "$tmp/first"
post /v1/responses '{"input":[{"role":"user","content":"Once"},{"type":"item_reference","id":"'"$id"'"}]}'
says "*'input': there is no item '$id' here (any more): send *" "a response is no item of itself"
cp "$tmp/first" "$got"
answered=$(sed 's/.*"output_text","text":"\([^"]*\)".*/\1/' "$got")
cp "$got" "$tmp/first"
run "$load" -p "$port" -P "/v1/responses/$id" -o "$got"
check "a response can be read again" cmp "$got" "$tmp/first"
post /v1/responses '{"temperature":0,"input":"And?","max_output_tokens":4,"previous_response_id":"'"$id"'"}'
says '*"previous_response_id":"'"$id"'",*' "... and gone on from"
cp "$got" "$tmp/second_whole"
sed 's/"id":"[^"]*"//g; s/"created_at":[0-9]*//; s/"previous_response_id":[^,]*//; s/"cached_tokens":[0-9]*//' "$got" >"$tmp/second"
post /v1/responses '{"temperature":0,"input":[{"role":"user","content":"Once"},{"role":"assistant","content":"'"$answered"'"},{"role":"user","content":"And?"}],"max_output_tokens":4}'
sed 's/"id":"[^"]*"//g; s/"created_at":[0-9]*//; s/"previous_response_id":[^,]*//; s/"cached_tokens":[0-9]*//' "$got" >"$tmp/whole"
check "... which is the same as sending the whole conversation" cmp "$tmp/second" "$tmp/whole"
item=$(sed 's/.*"id":"\(msg_[0-9a-f]*\)".*/\1/' "$tmp/first")
post /v1/responses '{"temperature":0,"input":[{"role":"user","content":"Once"},{"type":"item_reference","id":"'"$item"'"},{"role":"user","content":"And?"}],"max_output_tokens":4}'
sed 's/"id":"[^"]*"//g; s/"created_at":[0-9]*//; s/"previous_response_id":[^,]*//; s/"cached_tokens":[0-9]*//' "$got" >"$tmp/referred"
check "... and as referring to its item" cmp "$tmp/referred" "$tmp/whole"
run "$load" -p "$port" -P "/v1/responses/$id/input_items" -o "$got"
says '{"object":"list","data":\[{"type":"message","role":"user","content":\[{"type":"input_text","text":"Once"}\],"id":"msg_*_0","status":"completed"}\],"first_id":"msg_*_0","last_id":"msg_*_0","has_more":false}' \
    "... and what it answers be listed"
id2=$(sed -n 's/.*"id":"\(resp_[0-9a-f]*\)".*/\1/p' "$tmp/second_whole")
run "$load" -p "$port" -P "/v1/responses/$id2/input_items?limit=2" -o "$got"
says '{"object":"list","data":\[{"type":"message","role":"user",*"And?"*_2",*{"type":"message","role":"assistant","content":\[{"type":"output_text","text":"*_1",*\],"first_id":"msg_*_2","last_id":"msg_*_1","has_more":true}' \
    "... the whole conversation, the latest first, a page at a time"
run "$load" -p "$port" -P "/v1/responses/$id2/input_items?order=asc&after=$(sed 's/.*"last_id":"\([^"]*\)".*/\1/' "$got")" -o "$got"
says '{"object":"list","data":\[{"type":"message","role":"user",*"And?"*_2",*\],*"has_more":false}' "... and on from an item"
run "$load" -p "$port" -P "/v1/responses/$id2/input_items?after=x" -o "$got"
says '*the response has no item *x*' "... that there is"
run "$load" -p "$port" -P "/v1/responses/$id" -X DELETE -o "$got"
says '{"id":"'"$id"'","object":"response","deleted":true}*' "... and forgotten"
run "$load" -p "$port" -P "/v1/responses/$id" -o "$got"
says "*the response '$id' is not kept here*" "... for good"
post /v1/responses '{"temperature":0,"store":false,"input":"Once","max_output_tokens":2,"stream":true}'
id=$(sed -n 's/.*"id":"\(resp_[0-9a-f]*\)".*/\1/p' "$got" | head -n 1)
run "$load" -p "$port" -P "/v1/responses/$id" -o "$got"
says "*the response '*' is not kept here*" "what is not to be stored is not kept"
# DRY over HTTP draws what moe-run's options draw, and something else than without it.
run "$bin/moe-run" -q -t 1 "$tiny" -p 'one two one two one two' -n 30 --temp 0 --dry-multiplier 4 --dry-allowed-length 1
text=$(cat "$out")
prompt='{"temperature":0,"max_tokens":30,"prompt":"one two one two one two"'
post /v1/completions "$prompt"',"dry_multiplier":4,"dry_allowed_length":1}'
says "*\"text\":\"$text\"*" "DRY over HTTP"
post /v1/completions "$prompt"'}'
check "... is what makes the difference" lacks "$got" "$text"
kill "$server"
wait "$server"
finish
