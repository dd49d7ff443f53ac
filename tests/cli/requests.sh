#!/bin/sh
# moe-run --requests: each answer is that of moe-run alone; bad lines harm no others; what is killed or
# interrupted is gone on with, so that each request has one result; a slow pipe holds up nothing.
. tests/cli/lib.sh
pack
requests=$tmp/requests
results=$tmp/results

# The text of the answer to the request of that id in the file, as JSON has it.
text_of() { # ID FILE
    sed -n "s/.*\"custom_id\":\"$1\",.*\"text\":\"\(.*\)\",\"index\":.*/\1/p" "$2"
}
content_of() { # ID FILE
    sed -n "s/.*\"custom_id\":\"$1\",.*\"content\":\"\(.*\)\",\"refusal\":.*/\1/p" "$2"
}
# Standard input as JSON has it, with END behind it.
as_json() { { cat; echo END; } | sed 's/\\/\\\\/g; s/"/\\"/g' | awk '{ printf "%s%s", (NR > 1 ? "\\u000a" : ""), $0 }'; }
# Results in order, without what another run has otherwise.
comparable() {
    sort "$1" | sed 's/\(chat\)*cmpl-[0-9a-f]*/ID/g; s/"created":[0-9]*//; s/"cached_tokens":[0-9]*//'
}
# Ids of all results, each once.
ids_of() { sed 's/.*"custom_id":"*\([^",]*\).*/\1/' "$1" | sort; }
whole_lines() { [ ! -s "$1" ] || [ "$(tail -c 1 "$1" | od -An -c | tr -d ' ')" = '\n' ]; }

# ---- Answers are those of moe-run alone ----

prompt() {
    case $(($1 % 4)) in
    0) echo "Once upon a time" ;;
    1) echo "The cat, $1" ;;
    2) echo "1 + $1 =" ;;
    3) echo "def f($1):" ;;
    esac
}
# How text $1 is drawn, as options and as keys of requests.
drawn() {
    case $1 in
    1) echo "--presence-penalty 1.5 --frequency-penalty 0.3 --repeat-last-n -1" ;;
    2) echo "--dry-multiplier 2 --dry-allowed-length 1 --dry-sequence-breaker a" ;;
    3) echo "--mirostat 2 --mirostat-ent 3 --mirostat-lr 0.2" ;;
    4) echo "--min-tokens 25 --stop-token-id 13" ;;
    5) echo "--typical 0.9 --xtc-probability 0.5 --xtc-threshold 0.2" ;;
    6) echo "--logit-bias 263-inf --logit-bias 13+2.5" ;;
    7) echo "--dynatemp-range 0.5 --dynatemp-exp 2 --top-n-sigma 1.5 --top-k 0" ;;
    esac
}
drawn_keys() {
    case $1 in
    2) echo ', "dry_multiplier": 2, "dry_allowed_length": 1, "dry_sequence_breakers": ["a"]' ;;
    4) echo ', "min_tokens": 25, "stop_token_ids": [13]' ;;
    6) echo ', "logit_bias": {"263": false, "13": 2.5}' ;;
    *) drawn "$1" | sed 's/--\([a-z-]*\) \([0-9.-]*\)/, "\1": \2/g; :a; s/\("[a-z_]*\)-\([a-z-]*":\)/\1_\2/; ta
        s/mirostat_ent/mirostat_tau/; s/mirostat_lr/mirostat_eta/; s/typical/typical_p/; s/dynatemp_exp/&onent/' ;;
    esac
}
: >"$requests"
for i in 0 1 2 3 4 5 6 7; do
    temp=$((i % 2))
    echo "{\"custom_id\": \"t$i\", \"prompt\": \"$(prompt $i)\", \"temperature\": $temp, \"seed\": $i, \"max_tokens\": $((5 + 6 * i))$(drawn_keys $i)}" >>"$requests"
    echo "{\"custom_id\": \"c$i\", \"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"}, {\"role\": \"user\", \"content\": \"$(prompt $i)\"}], \"temperature\": $temp, \"seed\": $i, \"max_tokens\": 9}" >>"$requests"
done
run "$bin/moe-run" "$tiny" --requests "$requests" --sequences 5 --template-file tests/data/chatml.jinja
expect_exit 0 "requests are served"
cp "$out" "$tmp/all"
for i in 0 1 2 3 4 5 6 7; do
    temp=$((i % 2))
    # shellcheck disable=SC2046
    alone=$("$bin/moe-run" "$tiny" -p "$(prompt $i)" --temp $temp --seed $i -n $((5 + 6 * i)) $(drawn $i) | as_json)
    check "text $i (temperature $temp $(drawn $i)) is that of moe-run alone" \
        [ "$(text_of t$i "$tmp/all")END" = "$alone" ]
    alone=$("$bin/moe-run" "$tiny" --system "Be kind." -p "$(prompt $i)" --temp $temp --seed $i -n 9 \
        --template-file tests/data/chatml.jinja | as_json)
    check "chat $i is, too" [ "$(content_of c$i "$tmp/all")END" = "$alone" ]
done
comparable "$tmp/all" >"$tmp/sorted"
smallest=$(smallest_memory "$bin/moe-run" "$tiny" --requests "$requests" --sequences 1)
run "$bin/moe-run" "$tiny" --requests "$requests" --template-file tests/data/chatml.jinja --memory "${smallest}M"
expect_exit 0 "... within the smallest memory"
comparable "$out" >"$tmp/small"
check "... with the same results" cmp -s "$tmp/sorted" "$tmp/small"
run "$bin/moe-serve" "$tiny" --requests "$requests" --template-file tests/data/chatml.jinja -o -
expect_exit 0 "moe-serve serves them, too"
check "... on standard output, where -o - says so" [ ! -e ./- ]
cp "$out" "$results"
comparable "$results" >"$tmp/served"
check "... with the same results" cmp -s "$tmp/sorted" "$tmp/served"

# ---- What is drawn, and where answers end ----

# The end of text is token 4093 of the bundled model, " there" and " was" are tokens 481 and 321.
once='"prompt": "Once upon a time", "temperature": 0, "max_tokens": 6'
{
    echo "{\"custom_id\": \"free\", $once}"
    echo "{\"custom_id\": \"never\", $once, \"logit_bias\": [[\" there\", false]]}"
    echo "{\"custom_id\": \"stopped\", $once, \"stop_token_ids\": [321]}"
    echo "{\"custom_id\": \"least\", $once, \"min_tokens\": 3, \"stop\": \"the\", \"logit_bias\": {\"4093\": 100}}"
    echo "{\"custom_id\": \"short\", $once, \"logit_bias\": {\"4093\": 100}}"
    echo "{\"custom_id\": \"none\", $once, \"logit_bias\": {\"99999\": 1}}"
    drawn='"prompt": "Once upon", "seed": 3, "temperature": 1, "max_tokens": 12'
    echo "{\"custom_id\": \"four\", $drawn, \"n\": 4, \"logprobs\": 0}"
    echo "{\"custom_id\": \"best\", $drawn, \"n\": 2, \"best_of\": 4}"
} >"$tmp/ends"
run "$bin/moe-run" "$tiny" --requests "$tmp/ends"
check "an answer has its tokens" [ "$(text_of free "$out")" = ", there was a little girl" ]
check "... but not those that are never drawn" [ "$(text_of never "$out" | grep -c there)" = 0 ]
check "... up to a token that ends it" [ "$(text_of stopped "$out")" = ", there" ]
check "... which is what ended it" grep -q '"custom_id":"stopped".*"finish_reason":"stop"' "$out"
check "... at the end of text" [ "$(grep -c '"short".*"text":"".*"finish_reason":"stop"' "$out")" = 1 ]
check "... not before the least tokens, whatever would end it" [ "$(text_of least "$out")" = ", there was" ]
check "biases of tokens that the model does not have are refused" \
    grep -q '"custom_id":"none".*names token 99999: the model has' "$out"
# Mean log probabilities, 0 where there are none, and texts of a result's answers.
means_of() { # ID FILE
    awk -v id="\"custom_id\":\"$1\"" 'index($0, id) {
        n = split($0, answers, "\"text\":\"")
        for (i = 2; i <= n; i++) {
            mean = 0
            if (at = index(answers[i], "\"token_logprobs\":[")) {
                k = split(substr(answers[i], at + 18), numbers, /[],]/)
                for (j = 1; j <= k && numbers[j] ~ /^-?[0-9.e-]+$/; j++)
                    mean += numbers[j]
                mean /= j - 1
            }
            print mean "\t" substr(answers[i], 1, index(answers[i], "\",\"index\":") - 1)
        }
    }' "$2"
}
means_of four "$out" | sort -gr | sed 's/[^\t]*\t//; 2q' >"$tmp/likeliest"
means_of best "$out" | sed 's/[^\t]*\t//' >"$tmp/best"
check "the best of several answers are the likeliest by token, the best first" cmp "$tmp/likeliest" "$tmp/best"

# ---- Echoed prompts ----

echo '{"custom_id": "echo", "prompt": "Once upon", "echo": true, "logprobs": 0, "max_tokens": 2, "temperature": 0}' >"$tmp/echo"
run "$bin/moe-run" "$tiny" --requests "$tmp/echo"
check "tokens lie where the text has them, and what begins a text is none of it" \
    grep -q '"tokens":\["<|endoftext|>","Once"," upon",.*"text_offset":\[0,0,4,9,11\]' "$out"

# ---- Between two texts ----

pack_with_marks
once=$(sed -n 's/.*"Once": *\([0-9]*\).*/\1/p' "$checkpoint/tokenizer.json")
he=$(sed -n 's/.*"he": *\([0-9]*\).*/\1/p' "$checkpoint/tokenizer.json")
{
    echo '{"custom_id": "between", "prompt": "Once", "suffix": "he", "max_tokens": 8, "temperature": 0, "ignore_eos": true}'
    echo '{"custom_id": "written", "prompt": [4093, 4093, '"$once"', 4094, '"$he"', 4095], "max_tokens": 8, "temperature": 0, "ignore_eos": true}'
} >"$tmp/between"
run "$bin/moe-run" "$marked" --requests "$tmp/between"
check "a suffix is written behind its mark" grep -q '"between".*"prompt_tokens":6,' "$out"
check "... as whoever writes the marks has it" [ "$(text_of between "$out")" = "$(text_of written "$out")" ]
run "$bin/moe-run" "$tiny" --requests "$tmp/between"
check "a model without marks refuses it" \
    grep -q '"between".*the model has no tokens to fill in the middle' "$out"

# ---- Collections ----

cat >"$tmp/coe.yaml" <<END
format: moe-coe
version: 1
experts:
  - {name: chat, pack: $(realpath "$tiny")}
  - {name: code, pack: $(realpath "$tiny")}
routes:
  - {field: topic, equals: code, expert: code}
  - {expert: chat}
END
{
    echo '{"custom_id": "ruled", "prompt": "Once", "max_tokens": 2, "metadata": {"topic": "code"}}'
    echo '{"custom_id": "other", "prompt": "Once", "max_tokens": 2}'
    echo '{"custom_id": "named", "prompt": "Once", "max_tokens": 2, "model": "code"}'
} >"$tmp/routed"
run "$bin/moe-serve" --coe "$tmp/coe.yaml" --requests "$tmp/routed"
check "requests go where metadata and names send them" \
    [ "$(sed 's/.*"custom_id":"\([^"]*\)".*"model":"\([^"]*\)".*/\1=\2/' "$out" | sort | tr '\n' ' ')" = \
    "named=code other=chat ruled=code " ]

# ---- Bad lines ----

{
    echo '{"custom_id": "good", "prompt": "Once", "max_tokens": 3}'
    echo '{"custom_id": "hot", "prompt": "Once", "temperature": 5}'
    printf '{"custom_id": "bytes", "prompt": "\377\376"}\n'
    echo '{"custom_id": "cut", "prompt": "On'
    printf '{"custom_id": "nul", "prompt": "a\\u0000b"}\n'
    head -c 1000 /dev/zero | tr '\0' '['
    echo
    echo
    echo '{"custom_id": "tools", "prompt": "Once", "tools": [1]}'
    echo '{"custom_id": "long", "prompt": ['"$(awk 'BEGIN { for (i = 0; i < 6000; i++) printf "1," }')"'1]}'
    printf '{"custom_id": "end", "prompt": "Once", "max_tokens": 3}'
} >"$tmp/bad"
run "$bin/moe-run" "$tiny" --requests "$tmp/bad"
expect_exit 0 "bad lines are no failure"
expect_stderr_like 'moe-run: 7 of 9 requests got an error*' "... and are counted"
check "good ones among them are answered" [ "$(grep -c '"error":null' "$out")" = 2 ]
check "... and bad ones refused, by their ids" \
    [ "$(grep '"response":null' "$out" | sed 's/.*"custom_id":"*\([^",]*\).*/\1/' | sort | tr '\n' ' ')" = \
    "bytes cut hot long nul null tools " ]
check "what is no UTF-8 goes out as such no more" sh -c "! grep -q '$(printf '\377')' '$out'"

# ---- Slow pipes ----

mkfifo "$tmp/pipe"
"$bin/moe-run" "$tiny" --requests "$tmp/pipe" -o "$tmp/slow" 2>"$err" &
pid=$!
exec 3>"$tmp/pipe"
printf '{"custom_id": "first", "prompt": "Once", "max_tokens": 5}\n{"custom_id": "second"' >&3
for _ in $(seq 600); do
    [ ! -s "$tmp/slow" ] || break
    sleep 0.1
done
check "an answer is there while half of the next request is not" [ "$(ids_of "$tmp/slow")" = first ]
printf ', "prompt": "Once", "max_tokens": 5}' >&3
exec 3>&-
code=0
wait $pid || code=$?
expect_exit 0 "the pipe's end is the end"
check "... and the last line needs no newline" [ "$(ids_of "$tmp/slow" | tr '\n' ' ')" = "first second " ]
check "standard input is one" [ "$(head -n 1 "$requests" | "$bin/moe-run" "$tiny" --requests - | wc -l)" = 1 ]

# ---- Going on after kill -9 and Ctrl-C ----

for i in $(seq 100 139); do
    echo "{\"custom_id\": \"k$i\", \"prompt\": \"$(prompt "$i")\", \"temperature\": $((i % 2)), \"seed\": $i, \"max_tokens\": 40, \"ignore_eos\": true}"
done >"$tmp/many"
run "$bin/moe-run" "$tiny" --requests "$tmp/many"
texts() { sed 's/.*"custom_id":\("[^"]*"\).*"text":\(.*\),"index".*/\1 \2/' "$1" | sort; }
texts "$out" >"$tmp/want"
rm -f "$results"
killed=0
for pause in 0.1 0.2 0.3 0.4 0.6 0.8 1 1.2; do
    "$bin/moe-run" "$tiny" --requests "$tmp/many" -o "$results" --resume 2>"$err" &
    pid=$!
    sleep $pause
    kill -9 $pid 2>/dev/null && killed=$((killed + 1))
    wait $pid 2>/dev/null
    [ ! -s "$results" ] || [ "$(wc -l <"$results")" -lt 40 ] || break
done
check "runs were killed ($killed)" [ $killed -gt 0 ]
printf '{"id":"batch_req_39","custom_id":"k13' >>"$results" # as if the last had been writing
run "$bin/moe-run" "$tiny" --requests "$tmp/many" -o "$results" --resume
expect_exit 0 "the next goes on to the end"
texts "$results" >"$tmp/got"
check "each request has one result, that of a run that was not killed" cmp -s "$tmp/want" "$tmp/got"
before=$(cksum <"$results")
run "$bin/moe-run" "$tiny" --requests "$tmp/many" -o "$results" --resume
check "a further run adds nothing" [ "$code-$(cksum <"$results")" = "0-$before" ]
rm -f "$results"
"$bin/moe-run" "$tiny" --requests "$tmp/many" -o "$results" 2>"$err" >"$out" &
pid=$!
for _ in $(seq 600); do
    [ ! -s "$results" ] || break
    sleep 0.1
done
kill -INT $pid 2>/dev/null
code=0
wait $pid || code=$?
if [ $code = 0 ]; then
    skip "Ctrl-C ends it" "it had ended before"
else
    error_line 1 "moe-run: interrupted; --resume serves*" "Ctrl-C ends it"
fi
check "... with whole results" whole_lines "$results"
run "$bin/moe-run" "$tiny" --requests "$tmp/many" -o "$results" --resume
texts "$results" >"$tmp/got"
check "... and is gone on with" cmp -s "$tmp/want" "$tmp/got"

# ---- A damaged model ----

size=$(wc -c <"$tiny")
cp "$tiny" "$tmp/damaged.moe"
dd if=/dev/zero of="$tmp/damaged.moe" bs=1024 seek=$((size / 2560)) count=$((size / 3413)) conv=notrunc 2>"$err" # experts
printf '%s\n' '{"custom_id": "a", "prompt": "The cat", "max_tokens": 3}' '{"custom_id": "b"}' >"$tmp/two"
run "$bin/moe-run" "$tmp/damaged.moe" --requests "$tmp/two"
expect_exit 1 "requests that the model fails are no success"
expect_stderr_like "*moe-run: 1 of 2 requests failed: *damaged*" "... which is said"
check "... and are errors of the server on standard output" grep -q '"custom_id":"a","response":null,.*"type":"server_error"' "$out"
rm -f "$results"
run "$bin/moe-run" "$tmp/damaged.moe" --requests "$tmp/two" -o "$results"
expect_exit 1 "... with an output, too"
expect_stderr_like "*moe-run: 1 of 2 requests failed, and --resume serves them again: *damaged*" "... which says how to go on"
check "... and has refusals only" [ "$(ids_of "$results")" = b ]
run "$bin/moe-run" "$tiny" --requests "$tmp/two" -o "$results" --resume
expect_exit 0 "--resume with the model whole serves them"
check "... and nothing twice" [ "$(ids_of "$results" | tr '\n' ' ')" = "a b " ]

# ---- --exact: as asked, and as done ----

many=$tmp/many.moe
"$bin/moe-quantize" -q --experts 8,4 --method rtn -o "$many" "$checkpoint" || exit 1
printf '%s\n' '{"custom_id": "a", "prompt": "The cat", "max_tokens": 3}' \
    '{"custom_id": "b", "prompt": "x", "max_tokens": 2, "n": 2}' '{"custom_id": "c"}' >"$tmp/three"
unchecked=$BUILD/tests/tools/run_unchecked # whose server forgets to refuse
low="--expert-memory 1M --strategy lru --cache-bits 4"
run "$bin/moe-run" "$many" --requests "$tmp/three" --exact --strategy hobbit
error_line 2 "moe-run: option --exact forbids what may change results: --on-miss load-low*" "--exact refuses what may change results"
# shellcheck disable=SC2086 # words
run "$unchecked" -q "$many" --requests "$tmp/three" --exact $low
expect_exit 4 "... and checks what was done"
expect_stderr_like "*moe-run: option --exact did not hold: of [1-9]* activations [1-9]* at low precision" "... in moe-run's words"
for id in a b; do
    check "... result $id says so" grep -q '"custom_id":"'$id'".*"error":null,"inexact":{"activations":[0-9]*,"low_precision":[1-9][0-9]*,"skipped":0,' "$out"
done
check "... an error does not" [ "$(grep -c '"custom_id":"c","response":null,.*inexact' "$out")" = 0 ]
# shellcheck disable=SC2086
run "$bin/moe-run" -q "$many" --requests "$tmp/three" $low
expect_exit 0 "without --exact it may be so"
check "... which results say all the same" [ "$(grep -c '"inexact":{' "$out")" = 2 ]
run "$unchecked" -q "$many" --requests "$tmp/three" --exact
expect_exit 0 "nothing is amiss where all is exact"
check "... and results say nothing of it" [ "$(grep -c inexact "$out")" = 0 ]

# ---- Outputs and options ----

run "$bin/moe-run" "$tiny" --requests "$tmp/many" -o "$results"
error_line 2 "moe-run: $results: exists; --resume serves*" "results that are there are left alone"
run "$bin/moe-run" "$tiny" --requests "$requests" -o "$results" --resume
error_line 2 "moe-run: $results: *other requests*" "... and not gone on with for other requests"
run "$bin/moe-run" "$tiny" --requests "$tmp/none" -o "$tmp/new"
error_line 1 "moe-run: $tmp/none: *" "requests that are not there are named"
check "... and no output is made" [ ! -e "$tmp/new" ]
run "$bin/moe-run" "$tiny" --requests "$requests" -p Once
error_line 2 "moe-run: options --requests and --prompt exclude each other*" "-p does not go with it"
run "$bin/moe-run" "$tiny" --requests "$requests" --resume
error_line 2 "moe-run: option --resume needs --output*" "--resume needs an output"
run "$bin/moe-run" "$tiny" -o "$tmp/new"
error_line 2 "moe-run: option --output needs --requests*" "-o goes with --requests"
run "$bin/moe-run" "$tiny" --sequences 2 -p Once
error_line 2 "moe-run: option --sequences goes with --requests*" "--sequences, too"
run sh -c "'$bin/moe-run' '$tiny' --requests '$tmp/many' >/dev/full"
error_line 1 "moe-run: standard output: *" "a full output ends it"
finish
