# moe-serve over HTTP: every route and error, answers equal to moe-run's, streams equal to whole answers,
# keys, origins, limits, cancelling, closing.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
pack
got=$tmp/got   # the body of the last answer
head=$tmp/head # ... and what stood before it
story='Once upon a time'

serve() { listen "$bin/moe-serve" "$tiny" "$@"; }
# Ends it; $code.
end() { # SIGNAL
    kill -"$1" "$server"
    code=0
    wait "$server" || code=$?
}
# One request; $out: what became of it.
ask() { # PATH OPTION...
    rm -f "$got" "$head"
    path=$1
    shift
    run "$load" -p "$port" -P "$path" -o "$got" -D "$head" "$@"
}
post() { # PATH JSON OPTION...
    printf '%s' "$2" >"$tmp/body"
    path=$1
    shift 2
    ask "$path" -f "$tmp/body" "$@"
}
is() { # STATUS NAME
    check "$2" grep -q "^begun=1 s$1=1 whole=1 " "$out"
}
says() { # GLOB NAME
    check "$2" matches "$got" "$1"
}
has_header() { # PATTERN NAME
    check "$2" grep -qi "^$1" "$head"
}
# The texts of a stream's first choice, or of a whole answer, without what JSON put around them.
texts() {
    grep -o "\"$1\": *\"\([^\"\\\\]\|\\\\.\)*\"" "$got" | sed 's/^[^:]*: *"//; s/"$//' | tr -d '\n' |
        sed 's/\\"/"/g; s/\\n/\n/g; s/\\u000a/\n/g'
}
metric() { served "$1"; }
wait_until() { # NAME WANTED: of a metric
    for pause in 0.1 0.1 0.2 0.5 1 2 4 8 16; do
        [ "$(metric "$1")" != "$2" ] || return 0
        sleep "$pause"
    done
    return 1
}

serve --template-file tests/data/chatml.jinja || exit 1

# ---- Routes ----

ask /health
is 200 "/health"
says '{"status":"ok"}' "... is well"
ask /v1/models
is 200 "/v1/models"
says '*"object":*"list"*"id":*"tiny"*"object":*"model"*' "... names the model"
says '*"sampling":{"temperature":{"value":0.8,"from":"model"},"top_k":{"value":40,"from":"default"}*' "... and how it draws"
says '*"context_length":512,"max_model_len":512,*"n_ctx_train":512,*"n_params":[1-9]*' "... and how long its texts may be"
ask /v1/models/org%2Fother
is 404 "/v1/models/{id} of a name that is not listed"
says "*the model 'org/other' is not served here; these are: tiny*\"code\":\"model_not_found\"*" "... says so"
ask /v1/models/tiny
says '{"id":"tiny","object":"model",*"root":"tiny","context_length":512,*' "... and of one that is"
ask /
is 200 "/"
has_header "content-type: text/html" "... is a page"
has_header "content-security-policy: default-src 'none'; script-src 'nonce-" "... with a policy"
nonce=$(sed -n "s/.*script-src 'nonce-\([0-9a-f]*\)'.*/\1/p" "$head")
check "... whose number is the page's, and new each time" sh -c \
    "grep -q 'nonce=\"$nonce\"' '$got' && ! grep -q NONCE-OF '$got' &&
     '$load' -p $port -D '$tmp/other' >/dev/null && ! grep -q '$nonce' '$tmp/other'"
check "... and names nothing elsewhere" sh -c "! grep -Eq '(src|href)=\"?(https?:)?//' '$got'"
check "... and makes no markup of texts" sh -c "! grep -Eq 'innerHTML|outerHTML|insertAdjacentHTML|document.write|eval\(' '$got'"
ask / -X HEAD
check "HEAD gets the head alone" sh -c "grep -q '^begun=1 s200=1 whole=1' '$out' && [ ! -s '$got' ]"

# ---- Answers ----

run "$bin/moe-run" -t 1 "$tiny" -p "$story" -n 24 --temp 0
cp "$out" "$tmp/alone"
post /v1/completions "{\"prompt\": \"$story\", \"max_tokens\": 24, \"temperature\": 0}"
is 200 "a completion"
texts text >"$tmp/whole"
check "... is what moe-run says" cmp "$tmp/whole" "$tmp/alone"
says '*"finish_reason":*"length"*"usage":*"prompt_tokens":*5,*"completion_tokens":*24,*' "... with its figures"
post /v1/completions "{\"prompt\": [997, 804, 259, 534], \"max_tokens\": 24, \"temperature\": 0}"
is 200 "a completion of ids"
post /v1/completions "{\"prompt\": \"$story\", \"max_tokens\": 24, \"temperature\": 0, \"stream\": true, \"stream_options\": {\"include_usage\": true}}"
is 200 "a stream"
has_header "content-type: text/event-stream" "... of events"
texts text >"$tmp/streamed"
check "... is the whole answer" cmp "$tmp/streamed" "$tmp/alone"
check "... ends with the figures and [DONE]" sh -c \
    "tail -n 4 '$got' | head -n 1 | grep -q '\"completion_tokens\": *24' && tail -n 2 '$got' | grep -q '^data: \[DONE\]$'"
check "... comes in pieces" [ "$(grep -c '^data: ' "$got")" -gt 20 ]

run "$bin/moe-run" -t 1 "$tiny" -p "$story" -n 30 --temp 0.9 --top-p 0.9 --top-k 0 --min-p 0 --seed 7 --repeat-penalty 1
cp "$out" "$tmp/alone"
post /v1/completions "{\"prompt\": \"$story\", \"max_tokens\": 30, \"temperature\": 0.9, \"top_p\": 0.9, \"top_k\": 0, \"min_p\": 0, \"seed\": 7}"
texts text >"$tmp/whole"
check "a seed gives what moe-run says with it" cmp "$tmp/whole" "$tmp/alone"
run "$bin/moe-run" -t 1 "$tiny" -p "$story" -n 30 --seed 7
cp "$out" "$tmp/alone"
post /v1/completions "{\"prompt\": \"$story\", \"max_tokens\": 30, \"seed\": 7}"
texts text >"$tmp/whole"
check "... also where both leave the sampling to the model" cmp "$tmp/whole" "$tmp/alone"
post /v1/completions "{\"prompt\": \"$story\", \"max_tokens\": 30, \"seed\": 7, \"temperature\": 0.8, \"top_p\": 0.95, \"top_k\": 40, \"min_p\": 0.05}"
texts text >"$tmp/named"
check "... whose values these are" cmp "$tmp/named" "$tmp/alone"

run "$bin/moe-run" -t 1 "$tiny" --template-file tests/data/chatml.jinja --system Short. -p "$story" -n 16 --temp 0
cp "$out" "$tmp/alone"
chat="\"messages\": [{\"role\": \"system\", \"content\": \"Short.\"}, {\"role\": \"user\", \"content\": \"$story\"}], \"max_tokens\": 16, \"temperature\": 0"
post /v1/chat/completions "{$chat}"
is 200 "a chat"
texts content >"$tmp/whole"
check "... is what moe-run says" cmp "$tmp/whole" "$tmp/alone"
post /v1/chat/completions "{$chat, \"stream\": true}"
texts content >"$tmp/streamed"
check "... and so is its stream" cmp "$tmp/streamed" "$tmp/alone"

word=$(tr -d '\n' <"$tmp/streamed" | cut -d ' ' -f 3)
post /v1/completions "{\"prompt\": \"$story\", \"max_tokens\": 40, \"temperature\": 0, \"stop\": [\"zebra\", \" girl\"]}"
says '*"finish_reason":*"stop"*' "a stop text ends an answer"
check "... before it" sh -c "! grep -q girl '$got'"
post /v1/completions "{\"prompt\": \"$story\", \"max_tokens\": 8, \"temperature\": 0.9, \"seed\": 3, \"n\": 3}"
check "n answers" [ "$(grep -o '"index": *[0-9]*' "$got" | sort -u | wc -l)" = 3 ]
post /v1/completions "{\"prompt\": \"$story\", \"max_tokens\": 8, \"temperature\": 0.9, \"seed\": 3, \"n\": 3, \"stream\": true}"
check "n streams in one" [ "$(grep -o '"index": *[0-9]*' "$got" | sort -u | wc -l)" = 3 ]
post /v1/chat/completions "{$chat, \"logprobs\": true, \"top_logprobs\": 2}"
says '*"logprobs":*"content":*"token":*"logprob":*"top_logprobs":*' "logprobs of a chat"
post /v1/completions "{\"prompt\": \"$story\", \"max_tokens\": 4, \"temperature\": 0, \"logprobs\": 1}"
says '*"logprobs":*"tokens":*"token_logprobs":*' "logprobs of a completion"
printf '%s' "$story and $story" >"$tmp/measured"
post /v1/completions "{\"prompt\": [[7], \"$(cat "$tmp/measured")\"], \"max_tokens\": 0, \"echo\": true, \"logprobs\": 0}"
sed 's/.*"index":1//;s/.*"token_logprobs":\[null,//;s/\].*//' "$tmp/got" | tr ',' '\n' |
    awk '{ sum -= $1 } END { printf "nll %.4f nats/token, %d tokens", sum / NR, NR }' >"$tmp/nll"
run "$bin/moe-run" "$tiny" --perplexity "$tmp/measured"
check "echo with logprobs measures a prompt as --perplexity does" grep -qF "$(cat "$tmp/nll")" "$out"

# ---- Refusals ----

error_is() { # STATUS GLOB NAME
    is "$1" "$3"
    says "{\"error\":*\"message\":*$2*\"type\":*" "... says why: $2"
}
ask /nothing
error_is 404 "/nothing" "a path that is not there"
ask /v1/completions
error_is 405 "POST" "GET where POST is meant"
has_header "allow: POST" "... with what is allowed"
post /health '{}'
error_is 405 "GET" "POST where GET is meant"
post /v1/completions '{"prompt": '
error_is 400 "line 1" "half an object"
post /v1/completions '{"prompt": "x", "max_tokens": "many"}'
error_is 400 "max_tokens" "a wrong type"
printf '{"prompt": "\377\376"}' >"$tmp/body"
ask /v1/completions -f "$tmp/body"
error_is 400 "0xff" "invalid UTF-8"
post /v1/completions '{"prompt": "x", "model": "gpt-9", "max_tokens": 1}'
is 200 "one pack answers for any model"
says '*"model":*"gpt-9"*' "... by the name that was asked for"
post /v1/chat/completions '{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}'
error_is 400 "tools" "what is not done here"
awk 'BEGIN { printf "{\"prompt\": \""; for (i = 0; i < 3000; i++) printf "once upon "; printf "\"}" }' >"$tmp/body"
ask /v1/completions -f "$tmp/body"
error_is 400 "context" "a prompt beyond the context"
says '*"the prompt of at least [0-9]* tokens does not fit the context of [0-9]* (*"code":"context_length_exceeded"*' "... with both numbers"
sed 's/"}$/", "stream": true}/' "$tmp/body" >"$tmp/body2"
ask /v1/completions -f "$tmp/body2"
error_is 400 "context" "... also where a stream was wanted"
head -c 5000000 /dev/zero | tr '\0' x >"$tmp/body"
ask /v1/completions -f "$tmp/body"
error_is 413 "larger than 4" "a body too large"
head -c 5000000 /dev/zero | tr '\0' x >"$tmp/raw"
{ printf 'GET / HTTP/1.1\r\nHost: localhost\r\nA: '; cat "$tmp/raw"; } >"$tmp/headers"
run "$load" -p "$port" -w "$tmp/headers"
check "headers too large" grep -Eq 's431=1|closed=1' "$out"
check "the server is still there" sh -c "'$load' -p $port -P /health | grep -q s200=1"

# ---- Pages of others ----

ask /health -H "Host: evil.example"
error_is 403 "evil.example" "a foreign name for this machine"
post /v1/completions "{\"prompt\": \"x\", \"max_tokens\": 1}" -H "Origin: http://evil.example"
error_is 403 "evil.example" "a page of another origin"
post /v1/completions "{\"prompt\": \"x\", \"max_tokens\": 1}" -H "Origin: http://127.0.0.1:$port"
is 200 "the server's own page"
check "... needs no leave" sh -c "! grep -qi access-control '$head'"
ask /v1/completions -X OPTIONS -H "Origin: http://evil.example" -H "Access-Control-Request-Method: POST"
error_is 403 "evil.example" "a page of another origin that asks first"

# ---- Figures ----

ask /metrics
is 200 "/metrics"
check "... as Prometheus reads them" awk -f tests/cli/prometheus.awk "$got"
check "... which counts answers" [ "$(metric generated_tokens_total)" -gt 100 ]
check "no sequence is left running" wait_until choices_running 0
check "no bytes are left in buffers" [ "$(metric http_buffered_bytes)" = 0 ]

some_run() { # waits until answers are being computed
    for pause in 0 0 0 0 0 0.1 0.1 0.2 0.5 1 2 4; do
        sleep "$pause"
        [ "$(metric choices_running)" = 0 ] || return 0
    done
    return 1
}

# ---- Clients that leave ----

# With many choices answers last long enough on fast machines.
endless="{\"prompt\": \"$story\", \"max_tokens\": 480, \"temperature\": 0.9, \"ignore_eos\": true"
before=$(metric choices_total)
post /v1/completions "$endless, \"n\": 8, \"stream\": true}" -d 600
check "a client leaves a stream" grep -q " left=1 " "$out"
check "... and its answer is cancelled" wait_until 'choices_running' 0
cancelled=$(metric http_clients_gone_total)
check "... and counted" [ "$cancelled" -ge 1 ]
post /v1/completions "$endless, \"n\": 64}" -T 0.2
check "a client leaves before its answer" grep -q "open=1" "$out"
check "... which is cancelled too" wait_until 'choices_running' 0
check "every choice has ended" [ "$(metric choices_total)" = $((before + 72)) ]

# ---- The end ----

# Long enough to be seen under way, short enough for a sanitizer on a busy machine.
printf '%s, "n": 2}' "$endless" | sed 's/"max_tokens": 480/"max_tokens": 160/' >"$tmp/body"
under_way() { # one that ended before it was seen is followed by another
    for _ in $(seq 50); do
        "$load" -p "$port" -P /v1/completions -f "$tmp/body" >"$tmp/asked" &
        asker=$!
        while kill -0 "$asker" 2>/dev/null; do
            [ "$(metric choices_running)" = 0 ] || return 0
        done
    done
    return 1
}
check "an answer is under way" under_way
end TERM
check "SIGTERM ends it" [ "$code" = 0 ]
wait "$asker"
check "... after the answer under way" grep -q 's200=1 whole=1' "$tmp/asked"
expect_nothing() { [ ! -s "$tmp/served" ] && [ "$(grep -vc "may not open more files" "$tmp/log")" = 1 ]; }
check "... without a word" expect_nothing

# ---- Keys, allowed pages, limits ----

printf '# keys\nsk-first\nsk-second\n' >"$tmp/keys"
run "$bin/moe-serve" "$tiny" --port 0 --api-key-file "$tmp/keys"
error_line 1 "moe-serve: $tmp/keys: others may read or change these keys: *" "keys that others can read"
chmod 600 "$tmp/keys"
serve --api-key-file "$tmp/keys" --allow-origin http://pages.example --max-body 64K --max-queue 2 --sequences 1 \
    --request-timeout 1 --grace 0.2 --any-model-name || exit 1
ask /v1/models/org%2Fother -H "Authorization: Bearer sk-first"
says '{"id":"org/other",*"root":"tiny",*' "with --any-model-name every name is a model's"
ask /v1/models
error_is 401 "key" "no key"
has_header "www-authenticate: Bearer" "... says how"
ask /v1/models -H "Authorization: Bearer sk-firs"
error_is 401 "key" "a wrong key"
ask /v1/models -H "Authorization: Bearer sk-second "
is 200 "a right one, without the blanks behind it"
ask /metrics
is 401 "/metrics wants one"
ask /health
is 200 "/health wants none"
ask /
is 200 "the page wants none"
key="Authorization: Bearer sk-first"
ask /v1/completions -X OPTIONS -H "Origin: http://pages.example" -H "Access-Control-Request-Method: POST" \
    -H "Access-Control-Request-Headers: authorization, content-type"
check "an allowed page asks first" grep -q "^begun=1 s204=1 whole=1" "$out"
has_header "access-control-allow-origin: http://pages.example" "... and may"
has_header "access-control-allow-headers: authorization, content-type" "... with its headers"
post /v1/completions '{"prompt": "x", "max_tokens": 1}' -H "Origin: http://pages.example" -H "$key"
is 200 "an allowed page asks"
has_header "access-control-allow-origin: http://pages.example" "... and may read the answer"
has_header "vary: Origin" "... which caches keep apart"
head -c 70000 /dev/zero | tr '\0' x >"$tmp/body"
ask /v1/completions -f "$tmp/body" -H "$key"
error_is 413 "64" "a smaller limit for bodies"
printf '%s, "n": 4}' "$endless" >"$tmp/body"
run "$load" -p "$port" -P /v1/completions -n 6 -f "$tmp/body" -H "$key" -D "$head" -o "$got"
check "a full queue refuses" sh -c "grep -q 's200=2 s429=4 whole=6' '$out'"
metric() { served "$1" -H "$key"; }
printf '%s, "n": 100}' "$endless" >"$tmp/many"
"$load" -p "$port" -P /v1/completions -n 2 -T 600 -f "$tmp/many" -H "$key" >/dev/null &
filler=$!
for pause in 0.1 0.1 0.2 0.5 1 2 4 8 16; do # until both are there, with a hundred answers each
    [ "$(metric choices_waiting)" -lt 150 ] || break
    sleep "$pause"
done
post /v1/completions '{"prompt": "x", "max_tokens": 1}' -H "$key"
error_is 429 "queue" "... in words"
has_header "retry-after: [0-9]" "... and when to come back"
kill "$filler"
wait "$filler"
half='POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n'
printf '%b%s\r\n\r\nhalf' "$half" "$key" >"$tmp/half"
run "$load" -p "$port" -w "$tmp/half" -T 20
check "half a request is not waited for" grep -q "closed=1 .*open=0" "$out"
check "... and counted" [ "$(metric http_late_total)" -ge 1 ]
printf '%b\r\nhalf' "$half" >"$tmp/half"
run "$load" -p "$port" -w "$tmp/half" -T 20
check "... and has its answer where it is refused" grep -q "s401=1 whole=1 .*open=0" "$out"
printf '%s, "n": 64}' "$endless" >"$tmp/body"
"$load" -p "$port" -P /v1/completions -f "$tmp/body" -H "$key" >"$tmp/stopped" &
asker=$!
some_run
end INT
check "SIGINT ends it" [ "$code" = 0 ]
wait "$asker"
check "an answer too long for the grace is stopped" grep -Eq 's503=1|closed=1' "$tmp/stopped"
check "... which is noted" grep -q '1 answers were not finished' "$tmp/log"

# ---- --exact ----

# The stand-in's server forgets to refuse; experts are kept at 4 bits of 8 then.
many=$tmp/many.moe
"$bin/moe-quantize" -q --experts 8,4 --method rtn -o "$many" "$checkpoint" || exit 1
smallest=$(smallest_memory "$bin/moe-serve" "$many" --strategy fate)
listen "$BUILD/tests/tools/serve_unchecked" "$many" --memory "${smallest}M" --strategy fate --exact --stats-json "$json" || exit 1
post /v1/completions '{"prompt": "The cat", "max_tokens": 3}'
is 200 "a request of a server that is not exact"
check "... which /metrics tells" [ "$(served inexact_total)" -gt 0 ]
check "... as what" grep -q '^moe_inexact_total{change="low_precision"} [1-9]' "$tmp/metrics"
check "... with every kind of change" [ "$(grep -c '^moe_inexact_total{change=' "$tmp/metrics")" = 7 ]
check "... and what allowed it" grep -q '^moe_inexact_allowed{by="--cache-bits 4.*"} 1$' "$tmp/metrics"
end TERM
check "--exact is checked at the end" [ "$code" = 4 ]
check "... in words" grep -q 'moe-serve: option --exact did not hold: of [0-9]* activations [1-9][0-9]* at low precision$' "$tmp/log"
check "... the statistics say so, too" grep -q '^    "as_done": false' "$json"
check "... and why" grep -q '^    "why": "--cache-bits 4, experts kept at .4. where the pack has .8.' "$json"
listen "$bin/moe-serve" "$many" --exact --stats-json "$json" || exit 1
post /v1/completions '{"prompt": "The cat", "max_tokens": 3}'
check "one that is exact has counted nothing" [ "$(served inexact_total)" = 0 ]
check "... and is asked to be" [ "$(served exact_required)" = 1 ]
end TERM
check "... and ends well" [ "$code" = 0 ]
check "... as asked and done" [ "$(grep -c '^    "\(required\|as_asked\|as_done\)": true' "$json")" = 3 ]
run "$bin/moe-serve" "$many" --strategy hobbit --exact
error_line 2 "moe-serve: option --exact forbids*--skip-below*" "--exact refuses what may change results"

# ---- What it does not begin with ----

: >"$tmp/empty"
chmod 600 "$tmp/empty"
run "$bin/moe-serve" "$tiny" --port 0 --api-key-file "$tmp/empty"
error_line 3 "moe-serve: $tmp/empty: has no key*" "a file without keys"
run "$bin/moe-serve" "$tiny" --listen nowhere
error_line 2 "moe-serve: 'nowhere' is not an address*" "no address"
run "$bin/moe-serve" "$tiny" --allow-origin pages.example
error_line 2 "moe-serve: option --allow-origin: 'pages.example' is none of*" "no origin"
run "$bin/moe-serve" "$tiny" --alias gpt=none
error_line 2 "moe-serve: the alias 'gpt=none': there is no model 'none'" "an alias of no model"
serve --strict-names --alias gpt-4o --alias best=tiny || exit 1
post /v1/completions '{"prompt": "x", "model": "gpt-9"}'
error_is 404 "the model 'gpt-9' is not served here; these are: tiny, gpt-4o, best" "--strict-names refuses other names"
says '*"param":"model","code":"model_not_found"*' "... by a code"
post /v1/completions '{"prompt": "x", "model": "tiny", "max_tokens": 1}'
is 200 "... and takes its own"
post /v1/completions '{"prompt": "x", "model": "gpt-4o", "max_tokens": 1}'
is 200 "... and an alias"
says '*"model":"gpt-4o"*' "... by which it answers"
ask /v1/models
says '*"id":"tiny"*"id":"gpt-4o"*"root":"tiny"*"id":"best"*"last_id":"best"}' "... and which is listed"
ask /v1/models/gpt-9
error_is 404 "the model 'gpt-9' is not served here; these are: tiny, gpt-4o, best" "a model that is not there"
run "$bin/moe-serve" "$tiny" --port "$port"
error_line 1 "moe-serve: 127.0.0.1, port $port: cannot listen there: *" "a port in use"
post /v1/chat/completions '{"messages": [{"role": "user", "content": "x"}]}'
is 400 "a conversation with a model without a chat template"
says '*"the model *tiny* has no chat template*"code":*"no_chat_template"*' "... is told by a code"
kill -TERM "$server"
kill -TERM "$server"
wait "$server"
finish
