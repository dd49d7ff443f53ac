# Strategies on the bundled model: every one runs with what it needs, on the CPU and on the test
# device, gives the text of resident where it is exact, and keeps its budget; what cannot run is refused
# with the reason.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
pack # one precision: $tiny
two=$tmp/two.moe
"$bin/moe-quantize" -q --experts 4,2 --method rtn -o "$two" "$checkpoint" || exit 1
text=$tmp/text
awk '/^<\|endoftext\|>$/ { n++ } n < 12 { print }' tests/data/stories.calib.txt >"$text"
stats=$tmp/stats.yaml
trace=$tmp/trace
machine="--layer-seconds 1e-3 --link-rate 1GB/s"
"$bin/moe-profile" -q "$two" --text "$text" --max-tokens 96 --max-windows 1 -o "$stats" --trace "$trace" || exit 1

prompt='Once upon a time, there was a little girl named Lily. She had a red ball and she liked to'
ask() { run "$bin/moe-run" "$two" -p "$prompt" -n 12 --temp 0 --stats-json "$json" "$@"; }
names() { [ "$(figure strategy)" = "$1" ] && [ "$(figure device)" = "$2" ]; }

run "$bin/moe-run" --strategy help
for strategy in resident ondemand lru host eap edgemoe fate hobbit daop; do
    check "--strategy help lists $strategy" grep -q "^  $strategy " "$out"
done

ask --strategy resident
expect_exit 0 "resident"
want=$(cat "$out")
check "... says something" [ -n "$want" ]

# ---- Strategies ----------------------------------------------------------------------------------

exact() { # ROW OPTION...: the tokens of resident, and nothing approximated
    strategy=$1
    shift
    ask --strategy "$strategy" --expert-memory 2M --statistics "$stats" "$@"
    expect_stdout "$want" "$strategy${*:+ $*}: the same tokens"
    check "... activations add up" adds_up
    for kind in low_precision substituted skipped precalculated; do
        check "... no $kind" none $kind
    done
}
for strategy in ondemand lru edgemoe host; do
    exact "$strategy"
    check "... the statistics name it" names "$strategy" cpu
    exact "$strategy" --device test:4,500MB/s
    check "... the statistics name it and its device" names "$strategy" test
done
check "the host computed on the test device" some host_computed
for strategy in eap fate; do
    exact $strategy --exact
    exact $strategy --exact --device test:4,500MB/s
    check "$strategy had predicted" some predicted_right
done
exact hobbit --exact --without on-miss,skip-below
exact daop --exact --without precalculate,degrade --device test:1,500MB/s
exact resident --device test:4,500MB/s

inexact() { # ROW KIND OPTION...: it runs, and counts KIND
    strategy=$1 kind=$2
    shift 2
    ask --strategy "$strategy" --expert-memory 2M --statistics "$stats" "$@"
    expect_exit 0 "$strategy${*:+ $*}"
    check "... says something" [ -s "$out" ]
    check "... activations add up" adds_up
    check "... some $kind" some "$kind"
}
for device in cpu test:4,500MB/s; do
    inexact fate low_precision --device $device
    inexact eap low_precision --device $device
    inexact hobbit low_precision --device $device
    inexact lru low_precision --on-miss emergency --device $device
done
inexact hobbit host_computed --on-miss compute-host --device test:4,500MB/s
inexact hobbit host_computed --on-miss compute-host,load-low --device test:4,500MB/s
check "... some at the low precision" some low_precision
inexact daop precalculated --device test:4,500MB/s
check "... some substituted" some substituted
check "... the statistics name it" names daop test
ask --strategy daop --statistics "$stats" --device test:4,500MB/s
expect_stdout "$want" "daop with all experts on the device: the same tokens"
check "... none substituted" none substituted
for key in prompt_tokens generated_tokens ttft_s prefill_tokens_per_s decode_tokens_per_s \
    expert_activations cache_hits prefetch_hits prefetch_late misses host_computed precalculated \
    skipped low_precision substituted hit_rate prefetch_accuracy prefetch_wasted_bytes loads \
    bytes_read bytes_per_token stall_s compute_s evictions resident_expert_bytes_max \
    peak_rss_bytes memory_budget_bytes strategy device; do
    check "--stats-json has $key" [ -n "$(figure $key)" ]
done

# ---- Shallow layers ------------------------------------------------------------------------------

# Of how many layers all experts are kept: what the statistics say, in every program, or else an eighth
# of the 12 layers.
matches_text() { # TEXT GLOB
    # shellcheck disable=SC2254 # a pattern is meant
    case $1 in $2) return 0 ;; *) return 1 ;; esac
}
words() { sed -n "s/^ *\"$1\": \"\(.*\)\",\{0,1\}$/\1/p" "$json"; }
# Statistics as of a model whose third and fourth layer are harder to predict than these: half as many
# of the experts found.
hard=$tmp/hard.yaml
awk '/^ *gate-1:/ && ++n > 2 && n < 5 { split($0, at, ", "); sub(at[3], int(at[3] / 2)) } { print }' \
    "$stats" >"$hard"
"$bin/moe-plan" -q "$two" --expert-memory 2M --strategy fate --stats "$hard" --trace "$trace" $machine \
    -o "$tmp/fate.yaml" || exit 1
found=shallow:$(sed -n 's/^ *by_accuracy: //p' "$tmp/fate.yaml")
check "the statistics tell shallow layers from others" [ "$found" != shallow: ]
check "... and do not agree with the default" [ "$found" = shallow:4 ]
check "a plan goes by them" grep -q "^ *alloc: \"$found\"$" "$tmp/fate.yaml"
run "$bin/moe-plan" --explain "$tmp/fate.yaml"
said=$(tr -s ' \n' ' ' <"$out")
check "... and says so" matches_text "$said" "*first 4 layers, *(from statistics)*+alloc=$found*"
for options in "--strategy fate --expert-memory 2M --statistics $hard" \
    "--strategy eap --expert-memory 2M --statistics $hard" \
    "--strategy lru+alloc=shallow --expert-memory 2M --statistics $hard" "--plan $tmp/fate.yaml"; do
    # shellcheck disable=SC2086 # several words
    ask $options --stats
    check "${options%% "$tmp"*}: $found" [ "$(words alloc)" = "$found" ]
    check "... from statistics" [ "$(words boundary_from)" = "from statistics" ]
    check "... --stats says so" grep -q "$found (from statistics)" "$err"
done
ask --strategy fate --expert-memory 2M
check "fate without statistics: an eighth" [ "$(words alloc)" = shallow:2 ]
check "... and says so" [ "$(words boundary_from)" = "an eighth: no statistics" ]
ask --strategy fate --alloc shallow:3 --statistics "$hard" --expert-memory 2M
check "a number that is named" [ "$(words alloc)$(words boundary_from)" = shallow:3 ]
for strategy in fate eap; do
    run "$bin/moe-plan" --simulate "$trace" "$two" --strategy $strategy --stats "$hard" --memory 2x \
        $machine --json
    check "$strategy simulated: $found" grep -q "\"alloc\": *\"$found\"" "$out"
done

# ---- Thresholds ----------------------------------------------------------------------------------

# By the histogram of scores in the statistics: where 67% of all activations, the best of each token with
# them, are at most, and where 97% are (HOBBIT 3.2); Mixtral's without statistics; in every program.
thresholds=$(awk '/experts_per_token:/ { k = $2 }
    /score_histogram:/ { gsub(/.*\[|\].*/, ""); n = split($0, at, ","); for (i = 1; i <= n; i++) { of[i] += at[i]; all += at[i] } }
    function score(share, sum, i) { for (i = 1; i < n; i++) { sum += of[i]; if (sum >= (share * k - 1) / (k - 1) * all) break }
        return i / n }
    END { printf("load-low:%g skip-below %g%%", score(0.67), 100 - 100 * score(0.97)) }' "$stats")
parts_are() { # as --stats-json has them
    matches_text "$(words parts) " "*--on-miss ${1% skip*} --skip-below ${1#*skip-below } *"
}
check "the scores split otherwise than Mixtral's" [ "$thresholds" != "load-low:0.6 skip-below 10%" ]
"$bin/moe-plan" -q "$two" --expert-memory 2M --strategy hobbit --stats "$stats" --trace "$trace" $machine \
    -o "$tmp/hobbit.yaml" || exit 1
check "a plan has hobbit's thresholds from the scores" grep -q "thresholds_from: \"*statistics" "$tmp/hobbit.yaml"
run "$bin/moe-plan" --explain "$tmp/hobbit.yaml"
check "... and says so" matches_text "$(tr -s ' \n' ' ' <"$out")" "*These thresholds: from the scores in statistics.*"
for options in "--strategy hobbit --expert-memory 2M --statistics $stats" "--plan $tmp/hobbit.yaml" \
    "--strategy lru+on-miss=load-low+skip-below=auto --expert-memory 2M --statistics $stats"; do
    # shellcheck disable=SC2086 # several words
    ask $options --stats
    check "${options%% "$tmp"*}: $thresholds" parts_are "$thresholds"
    check "... from the scores" [ "$(words thresholds_from)" = "from the scores in statistics" ]
    check "... --stats says so" grep -q "thresholds from the scores in statistics" "$err"
done
ask --strategy hobbit --expert-memory 2M --stats
check "hobbit without statistics: Mixtral's" parts_are "load-low:0.6 skip-below 10%"
check "... and says so" [ "$(words thresholds_from)" = "Mixtral's: no statistics have scores" ]
ask --strategy hobbit --skip-below 5% --statistics "$stats" --expert-memory 2M
check "T2 that is named stays" parts_are "${thresholds% skip*} skip-below 5%"
ask --strategy hobbit --on-miss load-low:0.5 --skip-below 5% --statistics "$stats" --expert-memory 2M
check "both named" parts_are "load-low:0.5 skip-below 5%"
check "... nothing decided" [ -z "$(words thresholds_from)" ]
simulated() { # STRATEGY [OPTION...]: its thresholds and what decided them; activations that it skips, bytes a token
    run "$bin/moe-plan" --simulate "$trace" "$two" --strategy "$@" --memory 1x $machine --json
    for key in on_miss skip_below thresholds_from skipped bytes_per_token; do
        sed -n "s/.*\"$key\": *\"*\([^\",]*\).*/\1/p" "$out"
    done | paste -sd' '
}
by_scores=$(simulated hobbit --stats "$stats")
named=$(simulated "hobbit+on-miss=${thresholds% skip*}+skip-below=${thresholds#*skip-below }" --stats "$stats")
mixtrals=$(simulated hobbit)
check "simulated: $thresholds" matches_text "$by_scores" "${thresholds% skip*} ${thresholds#*skip-below } from *"
check "... as with these numbers" [ "${by_scores#*statistics }" = "$named" ]
check "... otherwise than with Mixtral's" [ "${by_scores#*statistics }" != "${mixtrals#*scores }" ]
check "... and says so" matches_text "$by_scores$mixtrals" "*from the scores in statistics *Mixtral's: no statistics have scores *"

# ---- Refusals ------------------------------------------------------------------------------------

refused() { # STATUS GLOB NAME PACK OPTION...
    status=$1 glob=$2 name=$3
    shift 3
    run "$bin/moe-run" -p x "$@"
    error_line "$status" "moe-run: $glob" "refused: $name"
}
refused 2 "strategy hobbit uses a lower precision, and $tiny has none below '4'*" \
    "hobbit on a pack of one precision" "$tiny" --strategy hobbit
refused 2 'strategy lru uses a lower precision*' "emergency on a pack of one precision" \
    "$tiny" --on-miss emergency
for strategy in eap edgemoe host daop; do
    refused 2 "strategy $strategy has --*, which goes by what experts do: it needs statistics*" \
        "$strategy without statistics" "$two" --strategy $strategy --device test:4,1G
done
refused 2 'strategy daop computes experts beside the device: the plain CPU has nothing beside it*' \
    "daop on the plain CPU" "$two" --strategy daop --statistics "$stats"
refused 2 'strategy lru computes experts beside the device*' "compute-host on the plain CPU" \
    "$two" --on-miss compute-host
refused 2 'option --exact forbids *--on-miss load-low*' "hobbit with --exact" \
    "$two" --strategy hobbit --exact
refused 2 'option --exact forbids *--precalculate*' "daop with --exact" \
    "$two" --strategy daop --exact --statistics "$stats" --device test:4,1G
refused 2 'option --exact forbids *--prefill hybrid*' "fate's hybrid prefill, named, with --exact" \
    "$two" --strategy fate --prefill hybrid --exact
refused 2 "$two: no variant '3'*" "a low precision that the pack has not" \
    "$two" --strategy hobbit --low 3

sed 's/source_fingerprint: "./source_fingerprint: "'"$(
    grep -q 'source_fingerprint: "0' "$stats" && echo 1 || echo 0
)/" "$stats" >"$tmp/other.yaml"
refused 2 "the statistics are of another model than $two" "statistics of another model" \
    "$two" --strategy edgemoe --statistics "$tmp/other.yaml"
head -c "$(($(wc -c <"$stats") / 2))" "$stats" >"$tmp/cut.yaml"
refused 3 "$tmp/cut.yaml: *" "damaged statistics" \
    "$two" --strategy edgemoe --statistics "$tmp/cut.yaml"
refused 1 "$tmp/none.yaml: *" "statistics that are not there" \
    "$two" --strategy edgemoe --statistics "$tmp/none.yaml"
"$bin/moe-quantize" -q --zstd 1 -o "$tmp/zstd.moe" "$two" || exit 1
refused 3 "$tmp/zstd.moe: compressed experts cannot be computed where they lie*" \
    "a compressed pack on the test device" "$tmp/zstd.moe" --strategy lru --device test:4,1G
refused 3 "$checkpoint: experts of a checkpoint cannot be computed where they lie: * needs a pack *" \
    "a checkpoint on the test device" "$checkpoint" --strategy lru --device test:4,1G

# ---- Budgets -------------------------------------------------------------------------------------

for strategy in fate hobbit edgemoe; do
    floor=$(smallest_memory "$bin/moe-run" "$two" -p x --strategy $strategy --statistics "$stats")
    check "$strategy: too small a memory is refused with the least that works" [ -n "$floor" ]
    for more in 2 6; do
        ask --strategy $strategy --statistics "$stats" --memory "$((floor + more))M"
        expect_exit 0 "$strategy: floor + $more MiB"
        check "... its peak stays below" \
            [ "$(figure peak_rss_bytes)" -le $(((floor + more) << 20)) ]
    done
done

# Kept at 2 bits where memory is short, every expert counts as low: also those computed early.
all_low() { [ "$(figure low_precision)" = "$(figure expert_activations)" ]; }
for strategy in lru daop; do
    set -- --strategy $strategy --cache-bits 2 --statistics "$stats" --device test:4,1G
    floor=$(smallest_memory "$bin/moe-run" "$two" -p x "$@")
    ask "$@" --memory "$((floor + 2))M"
    expect_exit 0 "$strategy: kept at 2 bits"
    check "... all of it is counted as low precision" all_low
    ask "$@" --memory "$((floor + 2))M" --exact --without precalculate,degrade
    expect_stdout "$want" "$strategy: kept at the best with --exact"
done

# ---- The prompt ----------------------------------------------------------------------------------

if command -v tmux >/dev/null; then
    trap 'end_terminal; rm -rf "$tmp"' EXIT
    terminal new-session -d -s moe -x 100 -y 40 "$bin/moe-run '$two' --strategy fate -n 3; sleep 99"
    shows() { # PATTERN, within 30 s
        tries=0
        until terminal capture-pane -p -S - -t moe >"$tmp/screen" 2>/dev/null &&
            grep -q -- "$1" "$tmp/screen"; do
            tries=$((tries + 1))
            need_terminal
            [ "$tries" -lt 300 ] || return 1
            sleep 0.1
        done
    }
    check "the prompt opens with a row" shows '^>'
    terminal send-keys -t moe '/strategy' Enter
    check "/strategy names the strategy" shows '^fate$'
    check "... and its parts" shows '^--predict gate-next --prefetch percentile:75,slack'
else
    tests=$((tests + 1))
    echo "ok $tests - /strategy at the prompt # SKIP no tmux"
fi
finish
