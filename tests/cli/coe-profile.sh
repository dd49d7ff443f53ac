# moe-profile --coe: the costs of a collection of small packs of two shapes, usage from sample requests, and what
# is refused.
# shellcheck shell=sh disable=SC2154,SC1091,SC2034 # the variables are lib.sh's
. tests/cli/lib.sh
c=$tmp/c
derive "$c" --experts 3 --checks 1 --requests 20 --tokens 4
derive "$tmp/four" --experts 1 --bits 4
mv "$tmp/four/c000.moe" "$c/c001.moe"
costs=$tmp/costs.yaml
profile() { run "$bin/moe-profile" --coe "$c/collection.yaml" -o "$costs" --max-batch 4 "$@"; }
has() { grep -q -- "$1" "$costs"; }
of() { sed -n "s/^  - {architecture: $1, processor: cpu.*[ {]$2: \([^,}]*\).*/\1/p" "$costs" | tail -n 1; } # of one thread
above() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && a + 0 > b + 0) }'; }

profile --requests "$c/requests.jsonl" -v -t 2
expect_exit 0 "a collection is measured"
expect_stderr_like "*qwen2_moe-12x32-8 on cpu, a team of 2: * s a request and * s a batch, up to * side by side; loaded in *" "-v says what came of it"
check "packs of two shapes are two architectures" [ "$(sed -n '/^architectures:/,/^costs:/p' "$costs" | grep -c name:)" = 2 ]
check "one of them for three experts" has "name: qwen2_moe-12x32-8, source: \"pack of 'c000' for 3 experts; requests of [0-9]* tokens, answers of 4\""
check "c001 is of the other" has 'name: c001, architecture: qwen2_moe-12x32-4,'
for one in qwen2_moe-12x32-8 qwen2_moe-12x32-4; do
    for key in per_request_seconds load_seconds expert_bytes request_bytes max_batch; do
        check "$one: $key is above 0" above "$(of $one $key)" 0
    done
    check "$one: at most as many side by side as were tried" above 5 "$(of $one max_batch)"
    for team in 1 2; do
        check "$one: costs of teams of $team" has "architecture: $one, processor: cpu, threads: $team, per_request_seconds"
        check "$one: their batches of 1 and 2 are in the file" [ "$(grep -c "architecture: $one, processor: cpu, threads: $team, requests: [12]," "$costs")" = 2 ]
    done
done
check "the processor has two threads" has "{name: cpu, threads: 2}"
run "$bin/moe-plan" --coe "$c/collection.yaml" --costs "$costs" --executors cpu:2
expect_stdout_like "*   threads*  2 on cpu * 1*" "a plan divides them"
check "8 bits take more memory than 4" above "$(of qwen2_moe-12x32-8 expert_bytes)" "$(of qwen2_moe-12x32-4 expert_bytes)"
size=$(wc -c <"$c/c000.moe")
check "about as much as the pack" above "$(of qwen2_moe-12x32-8 expert_bytes)" $((size * 9 / 10))
n=$(grep -c '"c000"' "$c/requests.jsonl")
check "usage is counted" has "name: c000, architecture: qwen2_moe-12x32-8, probability: $(awk -v n="$n" 'BEGIN { print n / 20 }')}"
check "also of who follows" has "name: d000, .*probability: $(awk -v n="$n" 'BEGIN { print n / 20 }')}"

# Rules that look at results: as often as the expert alone passes.
derive "$tmp/passes" --experts 2 --checks 1 --requests 16 --tokens 5 --passes '[aeiou]$'
passes=0
asked=$(grep -c '"c000"' "$tmp/passes/requests.jsonl")
sed -n 's/.*"prompt":"\(.*\)","max_tokens.*"c000".*/\1/p' "$tmp/passes/requests.jsonl" >"$tmp/prompts"
check "prompts are found again" [ "$(grep -c . "$tmp/prompts")" = "$asked" ]
while read -r prompt; do
    "$bin/moe-run" -q "$tmp/passes/c000.moe" -p "$prompt" --raw -n 5 --temp 0 </dev/null >"$out" 2>"$err"
    ! grep -q '[aeiou]$' "$out" || passes=$((passes + 1))
done <"$tmp/prompts"
run "$bin/moe-profile" --coe "$tmp/passes/collection.yaml" --requests "$tmp/passes/requests.jsonl" --max-batch 1 -o "$costs"
expect_exit 0 "samples are answered where rules look at results"
check "$passes of $asked answers of c000 pass" has "name: d000, .*probability: $(awk -v n="$passes" 'BEGIN { print n / 16 }')}"
check "some do" [ "$passes" -gt 0 ]
check "some do not" [ "$passes" -lt "$asked" ]

profile --prompt-tokens 5 --answer-tokens 3
expect_exit 0 "without samples"
expect_stderr_lines 0 "nothing is missing, as the collection has quantities"
check "lengths are those given" has "requests of 5 tokens, answers of 3\""
check "usage is left to the collection" [ "$(grep -c probability "$costs")" = 0 ]

sed 's/, quantity: [0-9]*//' "$c/collection.yaml" >"$c/unsure.yaml"
run "$bin/moe-profile" --coe "$c/unsure.yaml" -o "$costs" --max-batch 1 --answer-tokens 1
expect_stderr_like "*how often 4 of 4 experts are used is not known: give --requests*" "unknown usage is said"
sed 's/moe}/moe, architecture: same}/' "$c/collection.yaml" >"$c/same.yaml"
rm -f "$costs"
run "$bin/moe-profile" --coe "$c/same.yaml" -o "$costs"
error_line 3 "*'c000' and 'c001' are of one architecture, 'same', but of different shapes*" "one name for two shapes is refused"
check "nothing is written" [ ! -e "$costs" ]
sed 's/pack: c002/pack: gone/' "$c/collection.yaml" >"$c/gone.yaml"
run "$bin/moe-profile" --coe "$c/gone.yaml" -o "$costs"
error_line 1 "*expert 'c002': *gone.moe*" "a missing pack is named"
head -c 100 "$c/c002.moe" >"$c/gone.moe"
run "$bin/moe-profile" --coe "$c/gone.yaml" -o "$costs"
error_line 3 "*expert 'c002': *gone.moe*" "a damaged pack is named"
sed 's/after: c000/after: c009/' "$c/collection.yaml" >"$c/bad.yaml"
run "$bin/moe-profile" --coe "$c/bad.yaml" -o "$costs"
error_line 3 "*bad.yaml:*'c009' is none of the experts*" "a damaged collection is refused with its place"
profile --memory 20M
error_line 4 "*expert 'c000': *the smallest that works is *" "too little memory is refused"
profile --prompt-tokens 600
error_line 2 "*expert 'c000': a context of *" "longer than the context is refused"
{ cat "$c/requests.jsonl"; echo '{"prompt": "x", "metadata": {"component": "c777"}}'; } >"$tmp/bad.jsonl"
profile --requests "$tmp/bad.jsonl"
error_line 3 "*bad.jsonl: line 21: no rule takes this request*" "a request that nobody takes is refused"
run "$bin/moe-profile" --coe "$c/collection.yaml" "$c/c000.moe" -o "$costs"
expect_exit 2 "a pack beside the collection is refused"
run "$bin/moe-profile" --device --requests "$c/requests.jsonl" -o "$costs"
expect_exit 2 "samples without a collection are refused"
"$bin/moe-profile" --coe "$c/collection.yaml" -o "$costs" --answer-tokens 400 >"$out" 2>"$err" </dev/null &
pid=$!
until_catches $pid 2
kill -INT $pid
code=0
wait $pid || code=$?
check "Ctrl-C ends it" [ "$code" = 1 ]
check "without an output" [ ! -e "$costs" ]
finish
