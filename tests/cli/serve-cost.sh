# moe-serve while clients send what would take long to read: refused at once with a sentence, /health answers meanwhile,
# memory stays within its limit, and a signal ends the server.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
pack
got=$tmp/got
post() { # BODY OPTION...
    body=$1
    shift
    run "$load" -p "$port" -P /v1/completions -o "$got" -f "$body" -T 20 "$@"
}
repeat() { # PATTERN TIMES: a % in it is the number
    awk -v pattern="$1" -v n="$2" 'BEGIN {
        m = split(pattern, part, "%")
        for (i = 0; i < n; i++) {
            printf "%s", part[1]
            for (k = 2; k <= m; k++) printf "%d%s", i, part[k]
        }
    }'
}
schema() { # NAME: standard input becomes a request's schema
    {
        printf '{"prompt":"a","max_tokens":1,"response_format":{"type":"json_schema","json_schema":{"schema":'
        cat
        printf '}}}'
    } >"$tmp/$1"
}
nested() { # MINIMUM
    repeat '{"type":"object","properties":{"a":' 5
    printf '{"type":"string","minLength":%d}' "$1"
    repeat "},\"required\":[$(repeat '"a",' 200)\"a\"]}" 5
}
{
    printf '{"oneOf":['
    nested 0
    printf ,
    nested 1
    printf ']}'
} | schema alternatives
{
    printf '{"type":"string","allOf":[{}'
    repeat ',{"k%":1}' 3000
    printf ']}'
} | schema unknown
{
    printf '{"type":"string","pattern":"'
    repeat '\\\\S' 400000
    printf '"}'
} | schema pattern
{
    repeat '{"type":"object","properties":{"a":' 40
    printf true
    repeat '},"anyOf":[{"properties":{"a":{"maxLength":5}}},{"properties":{"a":{"maxLength":6}}}]}' 40
} | schema doubling
grammar() { # NAME PATTERN TIMES: after a beginning
    printf '{"prompt":"a","max_tokens":1,"grammar":"root ::= \\"a\\"' >"$tmp/$1"
    repeat "$2" "$3" >>"$tmp/$1"
    printf '"}' >>"$tmp/$1"
}
grammar undone ' (\\"a\\"{100000}){0}' 3000
grammar nothing ' \\"\\"{131072}' 4000
grammar ways ' | \\"%\\"' 5000
printf '{"n":128,"prompt":"' >"$tmp/long"
repeat 'word ' 60000 >>"$tmp/long"
printf '"}' >>"$tmp/long"

listen "$bin/moe-serve" "$tiny" --memory 256M || exit 1
tried() { # NAME GLOB TITLE
    "$load" -p "$port" -P /v1/completions -f "$tmp/$1" -n 4 -T 20 >"$tmp/all" 2>&1 </dev/null &
    others=$!
    run "$load" -p "$port" -P /health -r 20 -T 10
    check "$1: /health answers 20 times meanwhile" grep -q 's200=20' "$out"
    wait "$others"
    post "$tmp/$1"
    check "... $3" matches "$got" "$2"
}
tried alternatives '*"choices"*' "required again and again is held, as anyOf"
tried unknown '*"choices"*' "unknown keywords cost nothing"
tried pattern '*reading it takes more than * of memory*' "a long pattern is refused"
tried doubling '*reading it takes more than *' "alternatives that multiply are refused"
tried undone '*reading it takes more than * steps*' "so is what is repeated in vain"
tried nothing '*"choices"*' "nothing is nothing, however often"
tried ways '*ways open where an answer begins*' "and too many ways to begin"
check "... whose code is not that of a long prompt" matches "$got" '*"code":null*'
tried long '*does not fit the context*"code":"context_length_exceeded"*' "a long prompt for 128 choices is refused"
part() { # BEFORE TIMES CHARACTER AFTER
    printf '%s' "$1"
    head -c "$2" /dev/zero | tr '\0' "$3"
    printf '%s' "$4"
}
part '{"prompt":"' 1500000 a '"}' >"$tmp/word"
post "$tmp/word"
check "so is a word that takes more memory than may be taken" matches "$got" '*longest word has 1500000, takes more than 4096 KiB*'
part '{"echo":true,"n":128,"prompt":"' 1500000 ' ' '"}' >"$tmp/echo"
post "$tmp/echo"
check "... and its echo before 128 answers" matches "$got" "*'echo' of 128 choices*"
peak=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$server/status")
check "memory has stayed within its limit: $peak KiB" [ "$peak" -lt 262144 ]

"$load" -p "$port" -P /v1/completions -f "$tmp/undone" -n 200 -T 20 >"$tmp/all" 2>&1 </dev/null &
others=$!
sleep 0.2
began=$(date +%s)
kill "$server"
code=0
wait "$server" || code=$?
check "a signal ends the server while 200 such requests wait" [ $(($(date +%s) - began)) -le 30 ]
wait "$others"

# With room for larger requests: what ids stand for.
listen "$bin/moe-serve" "$tiny" --memory 8G || exit 1
{
    printf '{"tokens":[2175'
    repeat ,2175 100000
    printf ']}'
} >"$tmp/ids"
post "$tmp/ids" -P /detokenize
check "the text of ids ends at 2 MiB" matches "$got" "*the text of 'tokens' takes more than 2 MiB*"
part '{"with_pieces":true,"content":"' 1300000 a '"}' >"$tmp/word"
post "$tmp/word" -P /tokenize
check "a reply of ids and pieces at 4 MiB" matches "$got" '*tokens take more than 4 MiB in the reply*'
kill "$server"
wait "$server" || code=$?
finish
