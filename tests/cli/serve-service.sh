# moe-serve as a service: a local socket, one that a service manager gives, what that is told, the access log, how the
# installed programs are hardened, behind nginx.
# NGINX_PROGRAM: nginx, where it is elsewhere.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
pack
socket=$tmp/socket
log=$tmp/access
manager=$BUILD/tests/tools/service_manager
nginx=${NGINX_PROGRAM:-nginx}

wait_for() { # COMMAND...
    for pause in 0.1 0.1 0.2 0.5 1 2 4 8 16; do
        "$@" 2>/dev/null && return 0
        sleep "$pause"
    done
    return 1
}
serve() { # SOCKET OPTION...
    at=$1
    shift
    : >"$tmp/log" # what is waited for may stand there of another server
    "$bin/moe-serve" -t 1 "$tiny" --listen "unix:$at" "$@" >"$tmp/served" 2>"$tmp/log" </dev/null &
    server=$!
    wait_for grep -q 'listening at' "$tmp/log"
}
stop() {
    kill -TERM "$server"
    code=0
    wait "$server" || code=$?
}
health() { "$load" -U "$1" -P /health | grep -q ' s200=1 '; } # SOCKET

# ---- A local socket ----

serve "$socket" --access-log "$log" || exit 1
check "it says where it listens" grep -q "moe-serve: listening at unix:$socket\$" "$tmp/log"
check "a local socket answers" health "$socket"
check "... whatever it is called" sh -c "'$load' -U '$socket' -P /health -H 'Host: any.example' | grep -q ' s200=1 '"
check "... to its user alone" [ "$(stat -c %a "$socket")" = 600 ]
run "$bin/moe-serve" "$tiny" --listen "unix:$socket"
error_line 1 "moe-serve: unix:$socket: cannot listen there: *" "... while it is served"
kill -KILL "$server"
wait "$server" 2>/dev/null
check "a killed server leaves it" [ -S "$socket" ]
serve "$socket" --access-log "$log" --socket-mode 660 || exit 1
check "... and the next one takes its place" health "$socket"
check "... with another mode" [ "$(stat -c %a "$socket")" = 660 ]
printf '{"prompt": "SECRET", "max_tokens": 3, "ignore_eos": true}' >"$tmp/body"
"$load" -U "$socket" -P /v1/completions -f "$tmp/body" -o "$tmp/answer" >/dev/null
"$load" -U "$socket" -P /SECRET >/dev/null
stop
check "it ends" [ "$code" = 0 ]
check "... and takes its socket away" [ ! -e "$socket" ]

# ---- The access log ----

check "the log has a line for each request" [ "$(grep -c '^{"time":"20[0-9-]*T[0-9:.]*Z","client":"user [0-9]*",.*}$' "$log")" = 5 ]
check "... which says how it went" grep -q '"method":"POST","path":"/v1/completions","status":200,"received_bytes":[0-9]*,"sent_bytes":[0-9]*,"seconds":[0-9.]*,"left":false,"model":"tiny","prompt_tokens":[0-9]*,"tokens":3,"first_token_seconds":[0-9.]*}$' "$log"
check "... also what was not found" grep -q '"path":"other","status":404' "$log"
check "... and nothing of what was said" sh -c "! grep -q SECRET '$log'"
run "$bin/moe-serve" "$tiny" --port 0 --access-log "$tmp/none/x"
error_line 1 "moe-serve: $tmp/none/x: cannot open: *" "a log that cannot be written"

# ---- A service manager ----

mkfifo "$tmp/fifo"
"$manager" "$socket" "$bin/moe-serve" -t 1 "$tiny" --access-log "$tmp/fifo" >"$tmp/told" 2>"$tmp/log" </dev/null &
service=$!
check "a service manager is told when it is ready" wait_for grep -q '^READY=1$' "$tmp/told"
check "... and the socket that it gave answers" health "$socket"
check "... who reads the log from a named pipe may come later" sh -c "timeout 9 head -n 1 '$tmp/fifo' | grep -q '\"path\":\"/health\"'"
kill -TERM "$(pgrep -P "$service")"
code=0
wait "$service" || code=$?
check "... it ends" [ "$code" = 0 ]
check "... which the manager is told, too" grep -q '^STOPPING=1$' "$tmp/told"
check "... and leaves the socket to it" [ -S "$socket" ]
unit=$BUILD/tree/lib/systemd/system/moe-serve@.service
check "the unit is installed" grep -q "^ExecStart=/.*/bin/moe-serve " "$unit"
if systemd-analyze security --offline=yes "$unit" >"$out" 2>/dev/null; then
    check "... and lets the service do little" grep -q 'Overall exposure level.*: [0-2]\.' "$out"
else
    echo "# no systemd-analyze that looks at files: the unit is not judged"
fi

# ---- How programs are built ----

hardened() { # PROGRAM
    readelf -W -h -l -d --dyn-syms "$1" >"$tmp/elf" && grep -q 'Type: *DYN' "$tmp/elf" && grep -q GNU_RELRO "$tmp/elf" &&
        grep -q 'FLAGS.*BIND_NOW\|FLAGS_1.*NOW' "$tmp/elf" && grep -q 'FLAGS_1.*PIE' "$tmp/elf" &&
        ! grep -q 'GNU_STACK.*E *0x' "$tmp/elf" || return
    grep -q __asan_init "$tmp/elf" || { grep -q __stack_chk_fail "$tmp/elf" && grep -q '__[a-z]*_chk@' "$tmp/elf"; }
}
for program in calibrate plan profile quantize run serve; do
    check "moe-$program is hardened" hardened "$BUILD/tree/bin/moe-$program"
done

# ---- Behind nginx ----

if "$nginx" -v 2>/dev/null && openssl version >/dev/null 2>&1 && curl --version >/dev/null 2>&1; then
    serve "$tmp/a" && a=$server && serve "$tmp/b" && b=$server || exit 1
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=models.example.com -keyout "$tmp/key" -out "$tmp/pem" 2>/dev/null
    for front in $(seq 18600 18700); do
        {
            [ "$(id -u)" != 0 ] || echo "user $(id -un);" # of others a warning
            echo "daemon off; pid $tmp/pid; error_log $tmp/nginx.log; worker_processes 1; events {} http { access_log off;"
            for dir in client_body proxy fastcgi uwsgi scgi; do echo "${dir}_temp_path $tmp/$dir;"; done
            sed -n '/^upstream moe {/,/^\.Ed/p' man/moe-serve.1 | sed "/^\.Ed/d; s|/run/moe-serve/\(.\).socket|$tmp/\1|; s|443|127.0.0.1:$front|; s|/etc/ssl/models\.|$tmp/|"
            echo '}'
        } >"$tmp/conf"
        "$nginx" -t -q -c "$tmp/conf" 2>"$tmp/test" && break
        grep -q 'in use' "$tmp/test" || break
    done
    cp "$tmp/test" "$err"
    check "nginx takes the manual's example" [ ! -s "$tmp/test" ]
    "$nginx" -c "$tmp/conf" 2>/dev/null &
    proxy=$!
    ask() { path=$1; shift; curl -s -k --max-time 60 --resolve "models.example.com:$front:127.0.0.1" "https://models.example.com:$front$path" "$@"; }
    wait_for ask /health -o "$out"
    check "... and answers through it" grep -q '"status":"ok"' "$out"
    ask /v1/completions -N -d '{"prompt": "x", "max_tokens": 200, "ignore_eos": true, "stream": true}' >"$out"
    check "... streams, too" sh -c "tail -n 2 '$out' | grep -q '\[DONE\]'"
    kill -TERM "$a"
    wait "$a"
    for _ in 1 2 3 4; do ask /v1/completions -d '{"prompt": "x", "max_tokens": 1}' -w '%{http_code}\n' -o "$tmp/answer"; done >"$tmp/codes" 2>&1
    check "... and without one of its servers" [ "$(grep -c 200 "$tmp/codes")" = 4 ]
    kill "$proxy" "$b"
    wait "$proxy" "$b"
else
    echo "# no nginx, openssl or curl: the manual's example is not tried"
fi
finish
