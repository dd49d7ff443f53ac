# Honest clients of moe-serve beside hostile ones. HONEST clients (200), each from an address of its own, ask on and on
# for HOSTILE_SECONDS (3600): in turn alone and beside HOSTILE (50) whose attacks are drawn, from ATTACKERS addresses
# (10), with what the others leave of the processor; HOSTILE_SEED draws others. Wanted, in the middle of all turns: the
# honest ones' answers are right and take at most twice as long (the median and 95 of 100), /health takes less than
# 50 ms (99 of 100; HOSTILE_HEALTH on a busy machine), the process stays within --memory, also in a control group of
# that size where there is one, and no descriptor is left.
# shellcheck shell=sh disable=SC2154,SC2046 # the variables are lib.sh's; what `of` prints is one word
. tests/cli/lib.sh
pack
seconds=${HOSTILE_SECONDS:-3600}
turn=${HOSTILE_TURN:-15}
honest=${HONEST:-200}
hostile=${HOSTILE:-50}
attackers=${ATTACKERS:-10}
memory=${HOSTILE_MEMORY:-192}
most_health=${HOSTILE_HEALTH:-50}
random=${HOSTILE_SEED:-1}

of() { sed -n "s/.* $1=\([0-9]*\).*/\1/p" "$2" | awk '{ sum += $1 } END { print sum + 0 }'; }                             # KEY FILE
middle() { sed -n "s/.* $1=\([0-9]*\).*/\1/p" "$2" | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; } # KEY FILE
draw() { # N: $drawn below N
    random=$(((random * 1103515245 + 12345) % 2147483648))
    drawn=$((random / 65536 % $1))
}
descriptors() { find "/proc/$server/fd" -mindepth 1 | wc -l; }
peak() { awk '/^VmHWM/ { print int($2 / 1024) }' "/proc/$server/status"; }

# ---- What is sent ----

printf '{"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}' >"$tmp/ask"
printf 'GET /health HTTP/1.1\r\nHost: local' >"$tmp/half"
long=$(awk 'BEGIN { for (i = 0; i < 4000; i++) printf "once upon " }')
printf '{"prompt": "x", "max_tokens": 400, "ignore_eos": true, "n": 128, "stream": true}' >"$tmp/many"
printf '{"prompt": "x", "max_tokens": 400, "ignore_eos": true, "stream": true, "logprobs": 20}' >"$tmp/stream"
printf '{"messages": [{"role": "user", "content": "%s"}], "n": 128}' "$long" >"$tmp/history"
printf '{"prompt": "x", "grammar": "root ::= %s"}' "$(awk 'BEGIN { for (i = 0; i < 4000; i++) printf "\\\"\\\"{131072} " }')" >"$tmp/grammar"
awk 'function nested(d) { return d == 0 ? "{\"type\":\"string\"}" : "{\"type\":\"object\",\"properties\":{\"a\":" nested(d - 1) "},\"required\":[" required "]}" }
    BEGIN { for (i = 0; i < 40; i++) required = required (i ? "," : "") "\"a\""
        s = nested(5); printf "{\"prompt\":\"x\",\"json_schema\":{\"oneOf\":[%s,%s]}}", s, s }' >"$tmp/schema"
{
    printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n'
    head -c 3999999 /dev/zero | tr '\0' ' '
} >"$tmp/upload"
head -c 100000 /dev/urandom >"$tmp/noise"
printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n' >"$tmp/smuggle"

attack() { # FIRST ADDRESS, UNTIL: one hostile client after another, each for a few seconds
    while [ "$(date +%s)" -lt "$2" ]; do
        draw 10
        case $drawn in
        0) set -- "$1" "$2" -w "$tmp/half" -n 40 ;;
        1) set -- "$1" "$2" -w "$tmp/upload" -n 5 ;;
        2) set -- "$1" "$2" -P /v1/completions -f "$tmp/many" -n 4 ;;
        3) set -- "$1" "$2" -P /v1/completions -f "$tmp/stream" -n 4 -t 20 ;;
        4) set -- "$1" "$2" -P /v1/chat/completions -f "$tmp/history" -n 2 -r 20 ;;
        5) set -- "$1" "$2" -P /v1/completions -f "$tmp/grammar" -n 2 -r 20 ;;
        6) set -- "$1" "$2" -P /v1/completions -f "$tmp/schema" -n 2 -r 20 ;;
        7) set -- "$1" "$2" -w "$tmp/noise" -n 4 -r 20 ;;
        8) set -- "$1" "$2" -w "$tmp/smuggle" -n 4 -r 20 ;;
        9) set -- "$1" "$2" -P /v1/completions -f "$tmp/stream" -n 4 -r 5 -d 700 ;;
        esac
        from=$1 until=$2
        shift 2
        draw 4
        nice -n 19 "$load" -p "$port" -A -S "$from" -T $((1 + drawn)) "$@" >/dev/null 2>&1
        set -- "$from" "$until"
    done
}

ask_honestly() { # SECONDS OUT
    "$load" -p "$port" -P /v1/completions -S 127.1.0.1 -n "$honest" -r 1000000 -f "$tmp/ask" -e "$tmp/expected" -l -T "$1" >"$2"
}
ask_health() { # UNTIL OUT: a moment between two
    while [ "$(date +%s)" -lt "$1" ]; do
        "$load" -p "$port" -S 127.2.0.1 -P /health -r 3 -l -T 10 >>"$2"
        sleep 0.2
    done
}

run "$bin/moe-run" -t 1 "$tiny" -p 'Once upon a time' -n 8 --temp 0
printf '"text":"%s' "$(head -c 20 "$out")" >"$tmp/expected"
grouped=env
make_control_group $((memory << 20)) || echo "# there is no control group here: the server runs outside one"
printf '#!/bin/sh\nexec "%s" "%s/moe-serve" "$@"\n' "$grouped" "$bin" >"$tmp/server"
chmod +x "$tmp/server"
listen "$tmp/server" "$tiny" --memory "${memory}M" --template-file tests/data/chatml.jinja --request-timeout 10 || exit 1
before=$(descriptors)
ask_honestly 2 "$tmp/first"
round=0
while [ $((round * 2 * turn)) -lt "$seconds" ]; do
    ask_honestly "$turn" "$tmp/one"
    cat "$tmp/one" >>"$tmp/alone"
    until=$(($(date +%s) + turn))
    attacks=
    for i in $(seq "$hostile"); do
        random=$((random + i + round))
        attack "127.3.0.$((i % attackers + 1))" "$until" &
        attacks="$attacks $!"
    done
    ask_health "$until" "$tmp/health" &
    attacks="$attacks $!"
    ask_honestly "$turn" "$tmp/one"
    cat "$tmp/one" >>"$tmp/beside"
    # shellcheck disable=SC2086 # a list
    wait $attacks
    round=$((round + 1))
done
for way in alone beside; do sed "s/^/# $way: /" "$tmp/$way"; done
awk '{ for (i = 1; i <= NF; i++) if (split($i, p, "=") == 2 && p[1] == "max") print p[2] }' "$tmp/health" | sort -n >"$tmp/sorted"
slowest=$(awk '{ all[NR] = $1 } END { print int(all[int(NR * 0.99) > 0 ? int(NR * 0.99) : 1]) }' "$tmp/sorted")
echo "# /health: asked $(wc -l <"$tmp/sorted") times three; 99 of 100 within $slowest ms, at most $(tail -n 1 "$tmp/sorted") ms"
check "honest clients got answers: $(of expected "$tmp/beside")" [ "$(of expected "$tmp/beside")" -gt 0 ]
check "... all of them right" [ "$(of expected "$tmp/beside")" = "$(of s200 "$tmp/beside")" ]
refused=$(($(of whole "$tmp/beside") - $(of s200 "$tmp/beside")))
check "... refused were $refused, less than one of 1000" [ $((refused * 1000)) -le "$(of whole "$tmp/beside")" ]
for figure in p50 p95; do
    beside=$(middle $figure "$tmp/beside")
    without=$(middle $figure "$tmp/alone")
    check "... in $beside ms beside $without alone ($figure)" [ "$beside" -le $((2 * without)) ]
done
check "/health answers in $slowest ms" [ "$slowest" -le "$most_health" ]
check "memory: $(peak) MiB at most of $memory" [ "$(peak)" -le "$memory" ]
for pause in 1 2 4 8 16 32; do
    [ "$(served choices_running)" = 0 ] && [ "$(descriptors)" -le $((before + 1)) ] && break
    sleep "$pause"
done
check "descriptors: $before before, $(descriptors) after" [ "$(descriptors)" -le "$before" ]
check "nothing is left running" [ "$(served choices_running)" = 0 ]
check "... nor in the buffers" [ "$(served http_buffered_bytes)" = 0 ]
kill -TERM "$server"
code=0
wait "$server" || code=$?
check "it ends as it should" [ "$code" = 0 ]
if [ "$grouped" != env ]; then
    end_control_group
    check "its control group of $memory MiB killed nothing" [ "$killed" = 0 ]
fi
grep -v 'listening at' "$tmp/log" | sed 's/^/# /'
finish
