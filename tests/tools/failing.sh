# What alloc.sh and writes.sh of tests/torture share: the jobs, and what must hold when one of their
# calls fails by itself (fail_calls.c).
#
#   jobs_of_programs      calls attempt NAME for each job; it calls
#   tries SETTING MOST    the job with SETTING=N, for at most MOST of its $count N, and at most for
#                         TRY_SECONDS (30); one TAP line. SETTING: a variable, others set before it
#
# For each N either the job ends with 0 and exactly what it leaves undisturbed, or with 1, one line on
# stderr that matches $says, and less than that: whole files of several outputs, NAME.part to
# --resume from, what $old says stood there before, on stdout at most a beginning. $allowed: what a library says that ends the program by
# itself; $theirs: libraries that crash when a call of their own fails. A job whose outputs are measured, or depend on when loads arrive (`varies`), must leave files of
# the same names. At the prompt (`prompt`) an answer that failed is said, and the program goes on.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's and the scripts'
ulimit -c 0
bin=$(cd "$bin" && pwd)
library=$(cd "$BUILD/tests/tools" && pwd)/fail_calls.so
fixtures=$PWD/tests/fixtures
drawn=$(cd "$drawn" && pwd)
profiles=$PWD/profiles
in=$tmp/in
old=
mkdir -p "$in"

# ---- One run -------------------------------------------------------------------------------------

# In $w/run as the working directory, so that outputs are named alike wherever it is. The command is in
# $w/command, one word a line.
once() { # SETTING...
    rm -rf "$w/run" "$w/where"
    mkdir "$w/run"
    for name in $names; do
        [ -z "$old" ] || echo "$old" >"$w/run/$name"
    done
    code=0
    (
        cd "$w/run" || exit 99
        for word in $job_words; do set -- "$@" "$word"; done
        # At the prompt there are a shell and script(1) between, which are to be left alone.
        preload=LD_PRELOAD
        [ "$kind" != prompt ] || preload=FAIL_LIBRARY
        HOME=$w exec timeout -k 1 "$limit" env FAIL_WHERE="$w/where" "$preload=$library" "$@"
    ) >"$w/out" 2>"$w/err" </dev/null || code=$?
}
is_prefix() { head -c "$(wc -c <"$1")" "$2" | cmp -s - "$1"; }
# Whether the last call that failed was made by a library of $theirs: nothing of ours lies between, but
# what it calls of others may.
is_theirs() {
    [ -n "$theirs" ] && awk -v theirs="$theirs" '
        /fail_calls\.so/ { found = known = 0; next }
        known || /libc\.so|libtinfo/ { next }
        { known = 1; found = $0 ~ theirs }
        END { exit !found }' "$w/where"
}
is_old() { [ -n "$old" ] && [ "$(head -c 20 "$1" | tr -d "\0")" = "$old" ]; }
any_old() {
    for file in $names; do ! is_old "$w/run/$file" || return 0; done
    return 1
}
same_outputs() {
    case $kind in
    same) diff -r "$w/run" "$tmp/ref/run" >/dev/null && cmp -s "$w/out" "$tmp/ref/out" ;;
    prompt) cmp -s "$w/run/answers" "$tmp/ref/run/answers" ;;
    varies) [ "$(ls -A "$w/run")" = "$names" ] && ! any_old ;;
    esac
}
# Of the files that are there without a NAME.part.
left_whole() {
    for file in "$w"/run/*; do
        case $file in */\* | *.part) continue ;; esac
        [ -e "$tmp/ref/run/${file##*/}" ] || return 1
        ! is_old "$file" || continue
        [ "$kind" = varies ] || cmp -s "$file" "$tmp/ref/run/${file##*/}" || return 1
    done
    [ -z "$(ls -A "$w/run" | grep '^\.')" ]
}
judge() { # prints: kind, blank, why
    line='(silent)'
    [ ! -s "$w/err" ] || IFS= read -r line <"$w/err"
    if [ "$code" = 0 ] && same_outputs; then
        echo "survived"
    elif [ "$code" -lt 2 ] && [ "$kind" = prompt ] && grep -Eq "$says" "$w/out"; then
        echo "failed"
    elif [ -n "$allowed" ] && cat "$w/err" "$w/out" | grep -Eq "$allowed"; then
        echo "library"
    elif [ "$code" -gt 128 ] && is_theirs; then
        echo "library"
    elif [ "$code" != 1 ]; then
        echo "wrong exit $code: $line"
    elif [ "$(wc -l <"$w/err")" != 1 ]; then
        echo "wrong $(wc -l <"$w/err") lines: $(tr '\n' '|' <"$w/err")"
    elif ! grep -Eq "$says" "$w/err"; then
        echo "wrong message: $line"
    elif [ -n "$names" ] && same_outputs; then
        echo "wrong end: all is there"
    elif ! left_whole; then
        echo "wrong left behind: $(ls -A "$w/run" | tr '\n' ' ')"
    elif [ "$kind" = same ] && ! is_prefix "$w/out" "$tmp/ref/out"; then
        echo "wrong output"
    else
        echo "failed"
    fi
}

# ---- All of a job --------------------------------------------------------------------------------

# Which calls to let fail: all, or the first and the last hundred and evenly between.
numbers() { # COUNT MOST
    awk -v count="$1" -v most="$2" 'BEGIN {
        edge = most >= 400 ? 100 : int(most / 4)
        for (i = 1; i <= count; i++)
            if (count <= most || i <= edge || i > count - edge ||
                int(i * (most - 2 * edge) / count) != int((i - 1) * (most - 2 * edge) / count))
                print i
    }'
}
worker() { # W SETTING
    w=$tmp/w$1
    mkdir -p "$w"
    awk -v mine="$1" 'NR % 2 == mine' "$tmp/numbers" | while read -r n; do
        # shellcheck disable=SC2086 # several settings
        once $2=$n
        echo "$n $(judge)"
    done >"$w/said"
}
tries() { # SETTING MOST
    affordable=$((${TRY_SECONDS:-30} * 2000 / milliseconds + 1))
    numbers "$count" $(($2 < affordable ? $2 : affordable)) >"$tmp/numbers"
    worker 0 "$1" &
    worker 1 "$1"
    wait
    cat "$tmp/w0/said" "$tmp/w1/said" >"$tmp/said"
    awk '{ n[$2]++ } END { print n["failed"] + 0, n["survived"] + 0, n["library"] + 0, n["wrong"] + 0 }' \
        "$tmp/said" >"$tmp/kinds"
    read -r n_failed n_survived n_library n_wrong <"$tmp/kinds"
    more=
    [ "$n_library" = 0 ] || more=", $n_library ended by a library"
    check "$job, $1: $(wc -l <"$tmp/numbers") of $count: $n_failed ended in an error, $n_survived done all the same$more, $n_wrong wrong" \
        [ "$n_wrong" = 0 -a $((n_failed + n_survived)) -gt 0 ]
    awk '$2 == "wrong" {
             n = $1; sub(/^[0-9]+ wrong /, ""); text = $0; gsub(/[0-9]+/, "N", text)
             if (!times[text]++) first[text] = n ": " $0
         }
         END { for (text in times) print "# " times[text] " times, first " first[text] }' "$tmp/said"
}

job() { # NAME KIND COMMAND...
    job=$1 kind=$2
    shift 2
    case " ${ALLOC_JOBS:-$job} " in *" $job "*) ;; *) return ;; esac
    job_words=$*
    w=$tmp/ref
    mkdir -p "$w"
    limit=60 names=
    began=$(date +%s%N)
    once FAIL_COUNT="$tmp/counts"
    milliseconds=$((($(date +%s%N) - began) / 1000000 + 1))
    limit=$((milliseconds / 20 + 10)) # seconds: what takes that long hangs
    names=$(ls -A "$w/run")
    cp "$w/out" "$out"
    cp "$w/err" "$err"
    if [ "$code" != 0 ]; then
        check "$job: the job itself" false
        return
    fi
    read -r n_allocations n_writes <"$tmp/counts"
    : >"$out"
    attempt
}

make_inputs() {
    printf 'One day a dog ran.\n<|endoftext|>\nA cat sat here.\n' >"$in/text"
    printf 'The sun was up.\n' >"$in/check"
    head -n 2 tests/data/pairs.calib.jsonl >"$in/pairs"
    printf '/set temp 0\nhello\n/stats\n/system be short\nhello\n/quit\n' >"$in/lines"
    cat >"$in/prompt" <<END
script -qec 'exec env LD_PRELOAD=\$FAIL_LIBRARY $bin/moe-run -q -t 1 --seed 7 -n 4 $in/all.moe >answers' \
    /dev/null <$in/lines
END
    quiet="-q -t 1"
    # shellcheck disable=SC2086 # options are meant
    {
        "$bin/moe-quantize" $quiet -o "$in/all.moe" --experts 8,4,2 "$drawn/olmoe-a" &&
            "$bin/moe-quantize" $quiet -o "$in/switch.moe" --experts 4,2 "${BUILD:-build}/models/tiny-switch" &&
            for i in 1 2; do
                "$bin/moe-profile" $quiet "$in/all.moe" --text "$in/text" --max-tokens 16 --shard $i/2 \
                    --trace "$in/trace$i" -o "$in/stats$i"
                "$bin/moe-calibrate" $quiet "$in/all.moe" --text "$in/text" --max-tokens 8 --shard $i/2 \
                    -o "$in/map$i"
            done &&
            "$bin/moe-profile" $quiet --merge "$in/stats1" "$in/stats2" -o "$in/stats" &&
            "$bin/moe-profile" $quiet --merge "$in/trace1" "$in/trace2" -o "$in/trace" &&
            "$bin/moe-calibrate" $quiet "$in/all.moe" --text "$in/text" --max-tokens 8 -o "$in/map" &&
            "$bin/moe-plan" $quiet "$in/all.moe" --memory 20M -c 64 --trace "$in/trace" \
                --device-profile "$profiles/apple-m2.yaml" -o "$in/plan"
    } || {
        echo "Bail out! the inputs cannot be made"
        exit 1
    }
}

quantize() {
    name=$1
    shift
    job "quantize-$name" same "$bin/moe-quantize" -q -t 1 "$@"
}
profile() {
    name=$1
    shift
    job "profile-$name" same "$bin/moe-profile" -q -t 1 "$@"
}
calibrate() {
    name=$1
    shift
    job "calibrate-$name" same "$bin/moe-calibrate" -q -t 1 "$@"
}
plan() {
    name=$1 how=$2
    shift 2
    job "plan-$name" "$how" "$bin/moe-plan" -q -t 1 "$@"
}
moe_run() {
    name=$1 how=$2
    shift 2
    job "run-$name" "$how" "$bin/moe-run" -q -t 1 --seed 7 "$in/all.moe" "$@"
}

jobs_of_programs() {
    make_inputs
    quantize checkpoint -o o.moe --experts 8,4 "$drawn/olmoe-a"
    quantize quantized -o o.moe "$drawn/gpt-oss-a"
    quantize gguf -o o.moe "$drawn/olmoe-a/model.gguf"
    quantize gguf-quantized -o o.moe "$fixtures/gguf/qwen2moe.gguf"
    quantize gptq -o o.moe --experts 2 --method gptq --text "$in/text" --max-tokens 16 "$drawn/olmoe-a"
    quantize again -o o.moe --experts 2 --zstd 3 "$in/all.moe"
    quantize map -o o.moe --map "$in/map" "$in/all.moe"
    quantize list --list "$in/all.moe"
    quantize list-json --list --json "$in/all.moe"
    quantize verify --verify "$in/all.moe"

    profile text "$in/all.moe" --text "$in/text" --max-tokens 16 --trace trace -o stats
    profile merge-statistics --merge "$in/stats1" "$in/stats2" -o stats
    profile merge-traces --merge "$in/trace1" "$in/trace2" -o trace
    profile show-statistics --show "$in/stats"
    profile show-trace --show --json "$in/trace"
    profile show-device --show --json "$profiles/rtx4090.yaml"
    job profile-device varies "$bin/moe-profile" -q -t 1 --device "$in/all.moe" -o device

    calibrate exact "$in/all.moe" --text "$in/text" --check "$in/check" --max-tokens 8 -o map
    calibrate proxy "$in/all.moe" --text "$in/text" --check "$in/check" --max-tokens 8 -o map \
        --importance proxy --dense 8,4 --stats "$in/stats" --trace "$in/trace"
    calibrate pairs "$in/switch.moe" --pairs "$in/pairs" --check "$in/pairs" --max-tokens 8 -o map \
        --importance proxy --judge rouge2
    calibrate merge --merge "$in/map1" "$in/map2" -o map
    calibrate show --show "$in/map"

    plan all varies "$in/all.moe" --memory 20M -c 64 --stats "$in/stats" --trace "$in/trace" \
        --calibration "$in/map" --device-profile "$profiles/apple-m2.yaml" -o plan
    plan explain same --explain "$in/plan"
    plan explain-statistics same --explain "$in/stats"
    plan explain-pack varies --explain "$in/all.moe"
    plan simulate same --simulate "$in/trace" "$in/all.moe" --strategy lru,fate,hobbit --memory 50%,2x \
        --layer-seconds 0.001 --link-rate 100M --json
    plan shape varies --shape "$fixtures/olmoe-a/config.json" --memory 40M --strategy lru --max-tokens 64 \
        --device-profile "$profiles/apple-m2.yaml" -o plan

    moe_run resident same -p hello -n 8
    moe_run fate same -p hello -n 8 --strategy fate --expert-memory 50K
    moe_run hobbit varies -p hello -n 8 --strategy hobbit --expert-memory 50K
    moe_run moe-infinity same -p hello -n 8 --strategy moe-infinity --expert-memory 50K \
        --statistics "$in/stats"
    moe_run daop same -p hello -n 8 --strategy daop --expert-memory 50K --device test:2,100M \
        --statistics "$in/stats"
    moe_run planned same -p hello -n 8 --plan "$in/plan"
    moe_run file same -f "$in/text" -n 8 --raw --stop cat
    moe_run statistics varies -p hello -n 8 --strategy lru --expert-memory 50K --stats-json json \
        --trace-events events
    moe_run perplexity same --perplexity "$in/text" --token-log log --logits logits
    moe_run bench varies --bench --prompt-tokens 8 -n 4
    job run-ids same "$bin/moe-run" -q "$in/all.moe" --ids hello
    if command -v script >/dev/null; then
        job run-prompt prompt sh "$in/prompt"
    fi
}
