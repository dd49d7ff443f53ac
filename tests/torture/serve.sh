# moe-serve among clients that misbehave, CLIENTS (1000) at once and ROUNDS (4) times over: many that ask,
# slow readers, half-sent requests, headers of 10 MB, bodies that are no UTF-8, no JSON or cut off, bytes
# that are no HTTP, clients that leave in the middle of a stream or before its beginning. Meanwhile two
# others ask on and on, and must get what the model says alone. Between the second round and the last
# neither descriptors nor memory may grow (SLACK KiB, 2048). At the end a slow reader is cut off where
# buffers are small, and every sequence is free.
# SERVER: the program ($BUILD/bin/moe-serve), which may be built with sanitizers: what they say is a
# failure, whatever else holds (SLACK=200000 with the address sanitizer, which keeps what was freed).
# COLLECTION=1: three models on two executors, whose memory has room for one each: the crowd asks one, those who
# leave another, and the two that behave the third.
# PATIENCE (300): seconds that clients wait for answers; programs with sanitizers want more.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
pack
clients=${CLIENTS:-1000}
rounds=${ROUNDS:-4}
slack=${SLACK:-2048}
patience=${PATIENCE:-300}
served_by=${SERVER:-$bin/moe-serve}
ulimit -n "$(ulimit -H -n)"

crowd='' leavers='' third='' # models that are named
if [ -n "${COLLECTION:-}" ]; then
    crowd='"model": "a", ' leavers='"model": "b", ' third='"model": "c", '
    {
        printf 'format: moe-coe\nversion: 1\nexperts:\n'
        for name in a b c; do printf '  - {name: %s, pack: %s.moe}\n' $name $name; done
        printf 'routes:\n  - {field: prompt, matches: "^A", expert: b}\n  - {field: prompt, matches: "^B", expert: c}\n'
        printf '  - {expert: a}\n'
    } >"$tmp/collection.yaml"
    for name in a b c; do cp "$tiny" "$tmp/$name.moe"; done
fi
serve() {
    if [ -z "${COLLECTION:-}" ]; then
        listen "$served_by" "$tiny" --request-timeout 3 "$@"
        return
    fi
    set -- --coe "$tmp/collection.yaml" --executors cpu:2 --request-timeout 3 --patience 1 -c 512 "$@"
    listen "$served_by" "$@" --memory "$(smallest_memory "$served_by" "$@")M"
}
end() {
    kill -TERM "$server"
    code=0
    wait "$server" || code=$?
    check "the server ends well" [ "$code" = 0 ]
    check "... without a word of sanitizers" sh -c "! grep -Eq 'Sanitizer|runtime error' '$tmp/log'"
}
metric() { served "$1" -T 100; }
wait_for_none() { # METRIC
    for pause in 0 0.1 0.2 0.5 1 2 4 8 16 32; do
        sleep "$pause"
        [ "$(metric "$1")" != 0 ] || return 0
    done
    return 1
}
resident() { sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\).*/\1/p' "/proc/$server/status"; }
descriptors() { find "/proc/$server/fd" -type l 2>/dev/null | wc -l; }
of() { # KEY: a figure of http_load's line
    sed -n "s/.* $1=\([0-9]*\).*/\1/p" "$out" | grep . || echo 0
}
post() { # CLIENTS BODY OPTION...
    n=$1
    body=$2
    shift 2
    run "$load" -p "$port" -P /v1/completions -n "$n" -f "$body" "$@"
}

# ---- What is sent ----

story='Once upon a time'
run "$bin/moe-run" -t 1 "$tiny" -p "$story" -n 8 --temp 0
printf '"text":"%s"' "$(cat "$out")" >"$tmp/expected"
for who in crowd third; do
    eval "model=\$$who"
    # shellcheck disable=SC2154 # eval sets it
    printf '{%s"prompt": "%s", "max_tokens": 8, "temperature": 0}' "$model" "$story" >"$tmp/$who"
done
endless="{$leavers\"prompt\": \"$story\", \"max_tokens\": 480, \"temperature\": 1, \"ignore_eos\": true, \"stream\": true"
printf '%s}' "$endless" >"$tmp/long"
printf '%s, "n": 32}' "$endless" >"$tmp/broad"
printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"prompt": ' >"$tmp/half"
{
    printf 'GET /health HTTP/1.1\r\nHost: localhost\r\nX: '
    head -c 10000000 /dev/zero | tr '\0' x
    printf '\r\n\r\n'
} >"$tmp/headers"
for i in 1 2 3 4 5 6 7 8; do
    head -c $((i * 700)) /dev/urandom >"$tmp/noise.$i"
    { printf '{"prompt": "'; head -c 300 /dev/urandom | tr -d '"\\'; printf '"}'; } >"$tmp/bytes.$i"
    head -c $((i * 8)) "$tmp/long" >"$tmp/cut.$i"
done
head -c 100000 /dev/zero | tr '\0' '[' >"$tmp/deep.1"

# ---- One round: a line for each kind ----

# Two clients that behave, beside the command; their answers are counted in $tmp/witness.
beside() { # COMMAND...
    "$load" -p "$port" -P /v1/completions -n 2 -r 15 -f "$tmp/third" -e "$tmp/expected" -T "$patience" >"$tmp/witness" &
    witness=$!
    "$@"
    wait "$witness"
}
unharmed() { # NAME
    check "$1; the answers of others are unharmed" grep -q '^begun=30 s200=30 whole=30 expected=30 ' "$tmp/witness"
}
garbage() {
    refused=0
    asked=0
    for body in "$tmp"/bytes.* "$tmp"/cut.* "$tmp"/deep.*; do
        post 5 "$body"
        asked=$((asked + 5))
        refused=$((refused + $(of s400)))
    done
}
noise() {
    answered=0
    for raw in "$tmp"/noise.*; do
        run "$load" -p "$port" -w "$raw" -n 5
        answered=$((answered + $(of s400) + $(of s431) + $(of closed)))
    done
}
round() {
    beside post "$clients" "$tmp/crowd" -e "$tmp/expected" -T "$patience"
    unharmed "$(of expected) of $clients asked at once and got the answer"
    check "... all of them" [ "$(of expected)" = "$clients" ]
    beside post $((clients / 10)) "$tmp/long" -t 20 -T 4
    unharmed "$(of open) read 200 bytes a second for 4 s, then left"
    beside run "$load" -p "$port" -w "$tmp/half" -n $((clients / 5)) -T 60
    unharmed "$(of closed) of $((clients / 5)) that sent half a request were closed"
    check "... all of them" [ "$(of closed)" = $((clients / 5)) ]
    beside run "$load" -p "$port" -w "$tmp/headers" -n $((clients / 50)) -T 60
    unharmed "$(of s431) of $((clients / 50)) with headers of 10 MB got 431, $(of closed) were closed"
    beside garbage
    unharmed "$refused of $asked bodies without sense got 400"
    check "... all of them" [ "$refused" = "$asked" ]
    beside noise
    unharmed "$answered of 40 that spoke no HTTP got 400 or were closed"
    check "... all of them" [ "$answered" = 40 ]
    beside post $((clients / 5)) "$tmp/long" -d 700 -T "$patience"
    unharmed "$(of left) of $((clients / 5)) left in the middle of a stream"
    beside post $((clients / 5)) "$tmp/broad" -T 0.3
    unharmed "$(of open) left before an answer"
    check "every sequence is free again" wait_for_none choices_running
    check "... and every buffer" wait_for_none http_buffered_bytes
}

serve --max-queue $((clients * 2)) --max-connections $((clients * 2)) || exit 1
for i in $(seq "$rounds"); do
    round
    echo "# round $i: $(resident) KiB, $(descriptors) descriptors"
    [ "$i" != 2 ] || before="$(resident) $(descriptors)"
done
sleep 1
after="$(resident) $(descriptors)"
check "memory: ${before% *} KiB after the second round, ${after% *} after $rounds" \
    [ "${after% *}" -le $((${before% *} + slack)) ]
check "descriptors: ${before#* } after the second round, ${after#* } after $rounds" [ "${after#* }" -le "${before#* }" ]
end

serve --http-buffers 128K --sequences 32 || exit 1
"$load" -p "$port" -P /v1/completions -f "$tmp/broad" -t 20 -T 900 >"$tmp/slow" &
slow=$!
cut_off() {
    for pause in 1 2 4 8 16 32 64 128 256 "$patience"; do
        [ "$(metric http_clients_cut_total)" != 1 ] || return 0
        sleep "$pause"
    done
    return 1
}
check "a slow reader of 32 answers is cut off at 32 KiB" cut_off
kill "$slow"
wait "$slow"
check "... and its answers are cancelled" wait_for_none choices_running
post 1 "$tmp/crowd" -e "$tmp/expected"
check "... and others go on" [ "$(of expected)" = 1 ]
end
finish
