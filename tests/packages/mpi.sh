#!/bin/sh
# Ranks of a real MPI on this machine: the same tokens as one process, within a budget each; another pack, a damaged
# one and a missing one are refused in one line; and whichever rank is killed at whatever moment, everything ends soon
# and nothing is left. `make check-mpi` installs Open MPI and calls this. MPI_KILLS=N: how many are killed (50).
# A sanitized build (BUILD=build-asan) finds libmoe-mpi.so by LD_LIBRARY_PATH, and Open MPI leaks: ASAN_OPTIONS=detect_leaks=0.
. tests/cli/lib.sh
command -v mpirun >/dev/null || { echo "Bail out! no mpirun: apt-get install openmpi-bin"; exit 1; }
[ -f "$BUILD/lib/moe-toolkit/libmoe-mpi.so" ] || { echo "Bail out! built without MPI"; exit 1; }
pack
as_root=
[ "$(id -u)" != 0 ] || as_root=--allow-run-as-root
# Open MPI keeps its session where TMPDIR says, and its sockets have short names.
TMPDIR=/tmp
export TMPDIR
ranks() { # N COMMAND...
    n=$1
    shift
    run timeout 120 mpirun $as_root --oversubscribe --bind-to none -n "$n" "$@"
    # mpirun says in a dozen lines that a rank failed, and there may be a note that cores are few.
    said=$(grep '^moe-' "$err" | grep -v ' core' | tee "$tmp/said" | wc -l)
}
prompt='Once upon a time, there was a little girl named Lily. She had a red ball and she liked to'
figure() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" "$tmp/stats" | head -n 1; }
# Sanitizers have memory of their own beside a budget, in MiB.
more=0
! grep -q __asan_init "$bin/moe-run" || more=30
head -c 2500 tests/data/stories.valid.txt >"$tmp/long.txt"
head -c 4000 tests/data/math.valid.txt >"$tmp/math.txt"

# ---- The same tokens ----

run "$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 --strategy resident
want=$(cat "$out")
run "$bin/moe-run" "$tiny" --raw -f "$tmp/long.txt" -n 20 --temp 0 --strategy resident
want_long=$(cat "$out")
run "$bin/moe-run" "$tiny" --perplexity "$tmp/math.txt"
want_loss=$(cat "$out")
"$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 >"$tmp/bytes" 2>"$err"
for n in 1 2 3 4; do
    ranks $n "$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 -t 1
    check "$n ranks: the bytes of one process whose output is redirected" cmp -s "$tmp/bytes" "$out"
    expect_stdout "$want" "$n ranks: the tokens of one process"
    ranks $n "$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 -t 1 --expert-memory 1M --strategy lru
    expect_stdout "$want" "$n ranks that read their experts from disk: the same"
    ranks $n "$bin/moe-run" "$tiny" --raw -f "$tmp/long.txt" -n 20 --temp 0 -t 1 --expert-memory 2M
    expect_stdout "$want_long" "$n ranks, a long prompt: the same"
done
ranks 3 "$bin/moe-run" "$tiny" --perplexity "$tmp/math.txt" -t 1
expect_stdout "$want_loss" "3 ranks: the same perplexity"
ranks 4 "$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 -t 1 --memory $((56 + more))M --stats --stats-json "$tmp/stats"
expect_stdout "$want" "4 ranks in $((56 + more)) MiB each: the same"
expect_stderr_like "*ranks *of the activations on 3 others*rank 1 *rank 2 *rank 3 *" "... and a line for each"
check "... which keep the budget" [ "$more" != 0 -o -z "$(sed -n 's/.*"peak_rss_bytes": *\([0-9]*\).*/\1/p' "$tmp/stats" |
    awk '$1 > 56 * 1048576')" ]
check "... whose activations are rank 0's" [ "$(figure elsewhere)" = "$(sed -n \
    's/^    {"rank".*"expert_activations": *\([0-9]*\).*/\1/p' "$tmp/stats" | awk '{ n += $1 } END { print n }')" ]
"$bin/moe-profile" -q "$tiny" --text tests/data/math.calib.txt --max-tokens 200 -o "$tmp/statistics.yaml"
ranks 3 "$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 -t 1 --statistics "$tmp/statistics.yaml" \
    --stats-json "$tmp/stats"
expect_stdout "$want" "3 ranks, half of the experts on two: the same"
check "... which both count" [ "$(sed -n 's/^    {"rank".*"experts": *\([0-9]*\).*/\1/p' "$tmp/stats" |
    awk '{ n += $1 } END { print n }')" = 384 ]

# ---- Budgets that differ ----

shares() { # BYTES BYTES BYTES, of experts: how many each rank has
    with() { echo "$bin/moe-run $tiny -p Once -n 20 --temp 0 -t 1 --stats-json $tmp/stats --expert-memory $1"; }
    # shellcheck disable=SC2046 # words
    ranks 1 $(with "$1") : -n 1 $(with "$2") : -n 1 $(with "$3")
    sed -n 's/^    {"rank".*"experts": *\([0-9]*\).*/\1/p' "$tmp/stats" |
        awk '{ n[NR] = $1 } END { print 384 - n[1] - n[2], n[1], n[2] }'
}
run "$bin/moe-run" "$tiny" -p Once -n 20 --temp 0 --strategy resident
want_once=$(cat "$out")
shares=$(shares 1M 2M 4M)
expect_stdout "$want_once" "ranks of three budgets: the tokens of one process"
check "... too small for all experts: in proportion to them ($shares)" [ "$shares" = "55 110 219" ]
shares=$(shares 1M 16M 4M)
check "... with room for all: equal parts, as far as each has room ($shares)" [ "$(echo "$shares" |
    awk '{ print ($1 > 40 && $1 < 55) + ($2 < $3 + 5 && $3 < $2 + 5) }')" = 2 ]

# ---- The smallest budget ----

for what in experts attention layers; do
    share=
    [ $what = experts ] || share=--share-$what
    with() { echo "$bin/moe-run $tiny -p Once -n 20 --temp 0 -t 1 $share $options --memory $1M"; }
    for options in '' '-c 256' '--expert-memory 6M' '--strategy resident'; do
        for n in 2 3; do
            # shellcheck disable=SC2046 # words
            ranks $n $(with $((10 + more)))
            least=$(sed -n 's/.*smallest that works is .*--memory \([0-9]*\)M.*/\1/p' "$tmp/said")
            # shellcheck disable=SC2046 # words
            ranks $n $(with $((least - 1)))
            check "$n ranks that share out $what${options:+, $options}: less than the smallest budget that works ($least MiB) is refused" [ "$code" = 4 ]
            check "... with the same smallest one" grep -q -e "--memory ${least}M" "$tmp/said"
            # shellcheck disable=SC2046 # words
            ranks $n $(with "$least")
            expect_stdout "$want_once" "... and with it the tokens are those of one process"
            [ -z "$options" ] || continue
            printf '%s\n' 'format: moe-machines' 'version: 1' 'network: {latency_seconds: 50e-6, bytes_per_second: 1e9}' \
                'machines:' "- {name: a, memory: $((least + 1))M, count: $n, memory_bytes_per_second: 2e10, storage_bytes_per_second: 2e9}" \
                >"$tmp/hosts.yaml"
            # shellcheck disable=SC2086 # an option or none
            run "$bin/moe-plan" -q "$tiny" --machines "$tmp/hosts.yaml" $share --no-outlook --max-tokens 40
            check "... and moe-plan --machines agrees, to a MiB" [ "$code" = 0 ]
        done
    done
    options=
    # shellcheck disable=SC2046 # words
    ranks 1 $(with $((100 + more))) : -n 1 $(with $((36 + more)))
    expect_stdout "$want_once" "... and where rank 0 has room for larger passes than the other"
done

# ---- Attention, or whole layers, on several ranks ----

for what in attention layers; do
    of=
    [ $what = layers ] || of='attention of '
    for n in 2 4; do
        ranks $n "$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 -t 1 --share-$what --stats
        expect_stdout "$want" "$n ranks that share out $what: the tokens of one process"
        expect_stderr_like "*rank 1 * experts, $of$((12 / n)) layers with *" "... and where they are"
        ranks $n "$bin/moe-run" "$tiny" --raw -f "$tmp/long.txt" -n 20 --temp 0 -t 1 --share-$what --expert-memory 1M
        expect_stdout "$want_long" "$n ranks that do, a long prompt: the same"
    done
    ranks 3 "$bin/moe-run" "$tiny" --perplexity "$tmp/math.txt" -t 1 --share-$what
    expect_stdout "$want_loss" "3 ranks that do: the same perplexity"
    ranks 4 "$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 -t 1 --share-$what --strategy prefetch --expert-memory 600K
    expect_stdout "$want" "4 ranks that do, and read experts ahead: the same"
done
ranks 4 "$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 -t 1 --share-layers --stats-json "$tmp/stats"
check "layers: a message for a pass, and a few" [ "$(sed -n 's/^    {"rank".*"messages": *\([0-9]*\).*/\1/p' "$tmp/stats" |
    awk '$1 > 50' | wc -l)" = 0 ]
check "... whose activations are rank 0's" [ "$(figure elsewhere)" = "$(sed -n \
    's/^    {"rank".*"expert_activations": *\([0-9]*\).*/\1/p' "$tmp/stats" | awk '{ n += $1 } END { print n }')" ]
check "... and from the first of the others to the last, which hands nothing on" [ "$(sed -n \
    's/^    {"rank".*"messages_on": *\([0-9]*\), "bytes_on": *\([0-9]*\).*/\1 \2/p' "$tmp/stats" |
    awk '{ printf "%d%d", ($1 >= 40), ($2 > 40 * 1000) }')" = 111100 ]
ranks 13 "$bin/moe-run" "$tiny" -p "$prompt" -n 4 -t 1 --share-layers
check "more ranks than layers: one line" [ "$said" = 1 ]
check "... that says how many there can be" grep -q 'its layers can be those of 12 ranks, not of 13' "$tmp/said"
run "$bin/moe-run" "$tiny" -p "$prompt" -n 20 --beams 16 --kv f32
want_beams=$(cat "$out")
memory=$((60 + more))M # too little for 16 texts in one process
ranks 4 "$bin/moe-run" "$tiny" -p "$prompt" -n 20 --beams 16 --kv f32 -t 1 --memory $memory
check "contexts that rank 0 has no room for: refused" grep -q 'smallest that works is' "$tmp/said"
for what in attention layers; do
    ranks 4 "$bin/moe-run" "$tiny" -p "$prompt" -n 20 --beams 16 --kv f32 -t 1 --memory $memory --share-$what \
        --stats-json "$tmp/stats"
    expect_stdout "$want_beams" "... and that four ranks that share out $what have room for: the answer of one process"
    check "... within the budget" [ "$more" != 0 -o -z "$(sed -n 's/.*"peak_rss_bytes": *\([0-9]*\).*/\1/p' "$tmp/stats" |
        awk '$1 > 60 * 1048576')" ]
done

# ---- Threads ----

cores=$(nproc)
for n in 1 2; do
    ranks $n "$bin/moe-run" "$tiny" -p "$prompt" -n 4 --temp 0 --stats-json "$tmp/stats"
    each=$((cores / n > 1 ? cores / n : 1))
    check "$n ranks on $cores cores: $each threads each" [ "$(figure threads)" = $each ]
done
ranks 2 "$bin/moe-run" "$tiny" -p "$prompt" -n 4 --temp 0 -t $cores
[ "$cores" = 1 ] ||
    check "more threads than cores: said" [ "$(grep -c 'threads of each of 2 ranks' "$err")" = 1 ]

# ---- A server ----

for options in '' --share-attention --share-layers; do
    mpirun $as_root --oversubscribe --bind-to none -n 3 "$bin/moe-serve" "$tiny" --port 0 $options >"$tmp/log" 2>&1 </dev/null &
    job=$!
    until grep -q 'listening at' "$tmp/log" || ! kill -0 $job 2>/dev/null; do sleep 0.1; done
    port=$(sed -n 's/.*listening at http.*:\([0-9]*\).*/\1/p' "$tmp/log")
    printf '{"prompt": "%s", "max_tokens": 40, "temperature": 0}' "$prompt" >"$tmp/body"
    run "$load" -p "$port" -X POST -P /v1/completions -H 'Content-Type: application/json' -f "$tmp/body" -o "$tmp/answer"
    check "a server of 3 ranks${options:+ that share out ${options#--share-}} answers with the tokens of one process" \
        grep -qF "$(echo "$want" | head -n 1 | tail -c 40 | sed 's/"/\\"/g')" "$tmp/answer"
    check "... and counts what each other rank was asked for" [ "$(served rank_messages_total)" -ge 40 ]
    [ "$options" != --share-layers ] ||
        check "... and handed on" grep -q '^moe_rank_handed_on_messages_total{rank="1",host=".*"} [1-9]' "$tmp/metrics"
    check "... by rank" [ "$(grep -c '^moe_rank_experts{rank="[12]",host=".*"} 128$' "$tmp/metrics")" = 2 ]
    kill $job
    wait $job 2>/dev/null
done

# ---- What is refused ----

ranks 2 "$bin/moe-run" "$tiny" -p "$prompt" -n 4 --memory 2M
check "a budget below the floor: one line" [ "$said" = 1 ]
check "... that says the smallest" grep -q 'smallest that works is' "$tmp/said"
check "... exit 4" [ "$code" = 4 ]
fits="$bin/moe-run $tiny -p Once -n 4 -t 1 --memory $((80 + more))M"
# shellcheck disable=SC2086 # words
ranks 1 $fits : -n 1 "$bin/moe-run" "$tiny" -p Once -n 4 -t 1 --memory 2M : -n 1 $fits
check "a budget that is too small on one of three ranks: one line, exit 4" [ "$said$code" = 14 ]
check "... and all end in order" [ "$(grep -c MPI_ABORT "$err")" = 0 ]
once="$bin/moe-run $tiny -p Once -n 4 -t 1"
differ() { # OPTIONS-OF-RANK-0 OPTIONS-OF-RANK-1 MESSAGE
    # shellcheck disable=SC2086 # words
    ranks 1 $once $1 : -n 1 $once $2
    check "'$1' on rank 0 and '$2' on rank 1: one line" [ "$said" = 1 ]
    check "... that names both" grep -q "^moe-run: rank 1 on .*$3" "$tmp/said"
    check "... and all end in order" [ "$(grep -c MPI_ABORT "$err")" = 0 ]
}
differ '--strategy lru' '--strategy prefetch' 'was started with --strategy prefetch, rank 0 with --strategy lru'
differ --share-layers '' 'was started without --share-layers, rank 0 with --share-layers'
differ "--spread $tmp/new" '' 'was started without --spread, rank 0 with --spread'
differ '' "--spread $tmp/new" 'was started with --spread, rank 0 without --spread'
differ '' '--draft ngram' 'was started with --draft ngram, rank 0 without --draft'
differ '--draft ngram' '' 'was started without --draft, rank 0 with --draft ngram'
"$bin/moe-plan" -q "$tiny" --expert-memory 6M --max-tokens 60 --device-profile profiles/apple-m2.yaml -o "$tmp/plan.yaml"
differ '' "--plan $tmp/plan.yaml" 'several ranks do not go with --plan'
ranks 2 "$bin/moe-run" "$tiny" --no-such-option
check "a wrong option: one line" [ "$said" = 1 ]
check "... exit 2" [ "$code" = 2 ]
unmet() { # WHAT MESSAGE COMMAND... of rank 1
    what=$1 message=$2
    shift 2
    # shellcheck disable=SC2086 # words
    ranks 1 $once : -n 1 "$@" : -n 1 $once
    check "$what on one of three ranks: one line" [ "$said" = 1 ]
    check "... that says so" grep -q "^moe-run: rank 1 on .*: $message" "$tmp/said"
    check "... exit 2" [ "$code" = 2 ]
}
# shellcheck disable=SC2086 # words
unmet "a wrong option" "unknown option '--no-such-option'" $once --no-such-option
unmet "--ids" "it was started to print something and end" "$bin/moe-run" "$tiny" --ids hello
# shellcheck disable=SC2086 # words
unmet "--help" "it was started to print something and end" $once --help
# shellcheck disable=SC2086 # words
ranks 1 $once --help : -n 1 $once
check "--help on rank 0 only: it is printed, and all end" grep -q '^Usage: moe-run' "$out"
ranks 2 "$bin/moe-run" "$tiny" --ids hello
check "--ids on both: printed once" [ "$(wc -l <"$out")" = 1 ]
began=$(date +%s)
# shellcheck disable=SC2086 # words
ranks 1 $once : -n 1 true
check "a rank that is another program: given up after a minute" [ $(($(date +%s) - began)) -lt 75 ]
check "... with one line" [ "$said" = 1 ]
check "... that says so" grep -q '^moe-run: rank 0 has waited 60 s for the others' "$tmp/said"
check "... exit not 0" [ "$code" != 0 ]
ranks 2 "$bin/moe-profile" -q --device -o "$tmp/no/hosts.yaml" --no-such-option
check "moe-profile, a wrong option: one line" [ "$said" = 1 ]
mkdir "$tmp/hosts"
ranks 2 "$bin/moe-profile" --device -t 1 --dir "$tmp" -o "$tmp/hosts/hosts.yaml"
check "moe-profile --device, 2 ranks of one machine: each has half of its memory" [ "$(sed -n \
    's/.*memory: "\([0-9]*\)M".*/\1/p' "$tmp/hosts/hosts.yaml" | awk -v whole="$(awk '/MemTotal/ { print $2 / 1024 * 0.9 }' /proc/meminfo)" \
    '$1 > whole * 0.45 && $1 < whole * 0.55' | wc -l)" = 2 ]
check "... which a note says" grep -q "^moe-profile: 2 ranks are on " "$err"
ranks 2 "$bin/moe-run" "$tiny" -p "$prompt" --strategy hobbit --expert-memory 1M
check "a strategy that is not exact: one line" [ "$said" = 1 ]
check "... exit 2, as of one process" [ "$code" = 2 ]
# Each rank has a directory of its own, as on machines of their own.
mkdir "$tmp/0" "$tmp/1" "$tmp/2"
ln "$tiny" "$tmp/0/my.moe" 2>/dev/null || cp "$tiny" "$tmp/0/my.moe"
cp "$tmp/0/my.moe" "$tmp/1/my.moe"
cat >"$tmp/own.sh" <<'END'
#!/bin/sh
cd "$OWN/$OMPI_COMM_WORLD_RANK" || exit 1
exec "$@"
END
chmod 755 "$tmp/own.sh"
OWN=$tmp
export OWN
program=$(cd "$bin" && pwd)/moe-run
own() { ranks 3 "$tmp/own.sh" "$program" my.moe -p "$prompt" -n 40 --temp 0 -t 1 "$@"; }
own
check "a rank without the file: one line" [ "$said" = 1 ]
check "... that names the rank and the file" grep -q '^moe-run: rank 2 on .*my\.moe' "$tmp/said"
"$bin/moe-quantize" -q -o "$tmp/2/my.moe" --experts 8 "$checkpoint"
own
check "a rank with another pack: one line" [ "$said" = 1 ]
check "... that says so" grep -q '^moe-run: rank 2 on .* has another pack than rank 0' "$tmp/said"
size=$(wc -c <"$tiny")
{ head -c $((size / 2)) "$tiny"; head -c $((size - size / 2)) /dev/zero; } >"$tmp/2/my.moe"
own
check "a rank with a damaged pack: one line" [ "$said" = 1 ]
check "... that names the rank" grep -q '^moe-run: rank 2 on ' "$tmp/said"
check "... exit not 0" [ "$code" != 0 ]
cp "$tiny" "$tmp/2/my.moe"
own
expect_stdout "$want" "three machines' files: the tokens of one process"

# ---- Files that come from rank 0 ----

rm "$tmp/1/my.moe" "$tmp/2/my.moe"
own --spread parts
expect_stdout "$want" "parts of rank 0's pack: the tokens of one process"
blocks() { set -- $(ls -s "$tmp/$1/parts/my.moe"); echo "$1"; }
check "... of less than half of it" [ $(($(blocks 1) * 2048)) -lt "$size" ]
cp "$tmp/1/parts/my.moe" "$tmp/part"
own --spread parts
expect_stdout "$want" "... again: the same"
check "... which writes nothing" cmp -s "$tmp/1/parts/my.moe" "$tmp/part"
rm "$tmp/2/parts/my.moe.have"
dd if=/dev/zero of="$tmp/2/parts/my.moe" bs=4096 seek=100 count=2500 conv=notrunc 2>/dev/null
own --spread parts
expect_stdout "$want" "... of which some were lost: the same"
echo 'something else' >"$tmp/2/parts/my.moe"
own --spread parts
check "another file there: one line" [ "$said" = 1 ]
check "... that names it" grep -q "^moe-run: rank 2 on .*parts/my.moe is no part of rank 0's" "$tmp/said"
rm "$tmp/1/parts/"* "$tmp/2/parts/"*
own --spread parts --memory 2M
check "a budget that is too small leaves no file" [ -z "$(ls "$tmp/1/parts" "$tmp/2/parts" | grep moe)" ]
own --spread my.moe/parts
check "a directory that cannot be made: one line" [ "$said" = 1 ]
check "... that names it" grep -q '^moe-run: rank [12] on .*my.moe/parts: cannot be made' "$tmp/said"
cp "$tmp/0/my.moe" "$tmp/1/my.moe"
cp "$tmp/0/my.moe" "$tmp/2/my.moe"

# ---- Kills ----

# Processes of this test: they have its directory in their environment.
environment_of() { { tr '\0' '\n' <"/proc/$1/environ"; } 2>/dev/null; }
left_over() {
    for pid in $(pgrep -x moe-run); do
        environment_of "$pid" | grep -qx "OWN=$tmp" && echo "$pid"
    done
}
rank_of() { environment_of "$1" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p'; }
hung=0 orphans=0 wrong=0 early=0
kills=${MPI_KILLS:-50}
for i in $(seq "$kills"); do
    shares=
    [ $((i / 3 % 2)) = 0 ] || shares=--share-layers
    # shellcheck disable=SC2086 # an option or none
    timeout -k 5 60 mpirun $as_root --oversubscribe --bind-to none -n 3 "$tmp/own.sh" "$program" my.moe -p "$prompt" \
        -n 3900 --temp 0 -t 1 --ignore-eos --expert-memory 1M $shares >"$out" 2>"$err" </dev/null &
    job=$!
    victim=
    while [ -z "$victim" ] && kill -0 $job 2>/dev/null; do
        for pid in $(left_over); do
            [ "$(rank_of "$pid")" != $((i % 3)) ] || victim=$pid
        done
    done
    # While they meet, load, read the prompt, answer.
    sleep "$((i % 4)).$((i * 37 % 100 + 100))"
    struck=$(date +%s)
    kill -9 "$victim" 2>/dev/null || early=$((early + 1))
    code=0
    wait $job || code=$?
    [ $(($(date +%s) - struck)) -lt 30 ] || hung=$((hung + 1))
    [ "$code" != 0 ] || wrong=$((wrong + 1))
    for tick in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "$(left_over)" ] || break
        sleep 0.2
    done
    [ -z "$(left_over)" ] || orphans=$((orphans + 1))
done
check "$kills kills of ranks in turn: all end within 30 s" [ $hung = 0 ]
check "... nothing is left running" [ $orphans = 0 ]
echo "# $early had ended by themselves; of all, mpirun said of $wrong that they went well"
finish
