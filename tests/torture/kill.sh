# kill -9 at KILLS (100) moments of each program that writes, spread over the time of an undisturbed run
# and shifted by chance (KILL_SEED, 1); then the same command, with --resume where there is one. Each
# time an output is absent, the old one or complete, never half; in the end every file is, byte by byte,
# that of the undisturbed run, and nothing else is left. Of moe-run that is so of the token log alone:
# statistics and timelines hold times and are only checked to be whole; plans hold what the process
# takes, so their text is compared without its numbers.
. tests/cli/lib.sh
pack
kills=${KILLS:-100}
seed=${KILL_SEED:-1}
"$bin/moe-quantize" -q --experts 4,2 -o "$tmp/two.moe" "$checkpoint" || exit 1
head -c 6000 tests/data/math.valid.txt >"$tmp/text"
head -c 100 tests/data/math.valid.txt >"$tmp/short"
"$bin/moe-profile" -q "$tiny" --text "$tmp/text" -o "$tmp/s.yaml" --trace "$tmp/t.trace" || exit 1
work=$tmp/work
whole=$tmp/whole

now() { date +%s%N; }
names() { find "$1" -mindepth 1 -printf '%P\n' | sort | tr '\n' ' '; }

# Whether a file may be there: the old one, that of the undisturbed run, or one that is whole.
is_sound() { # FILE
    [ ! -e "$work/$1" ] || is_whole "$1" || [ "$(head -c 4 "$work/$1")" = old ]
}
ends_with() { [ "$(tail -c 2 "$1" | tr -d '\n')" = "$2" ]; } # FILE CHARACTER
words() { sed 's/[0-9][0-9.e+-]*//g' "$1"; }
is_whole() { # FILE
    case $1 in
    *.timed.json) ends_with "$work/$1" '}' ;;
    *.timed.events) ends_with "$work/$1" ']' ;;
    *.plan) [ "$(words "$work/$1")" = "$(words "$whole/$1")" ] ;;
    *) cmp -s "$work/$1" "$whole/$1" ;;
    esac
}

# attack NAME RESUME "OUTPUT..." COMMAND...: the command writes the outputs in its directory.
attack() {
    what=$1 resume=$2 outputs=$3
    shift 3
    rm -rf "$work" "$whole"
    mkdir "$work" "$work/tmp"
    begun=$(now)
    TMPDIR=$work/tmp run "$@"
    took=$((($(now) - begun) / 1000))
    [ "$code" = 0 ] || { result 1 "$what: undisturbed"; return; }
    mv "$work" "$whole"
    half=0 differ=0 left=0 killed=0 parts=0
    for i in $(seq "$kills"); do
        rm -rf "$work"
        mkdir "$work" "$work/tmp"
        for file in $outputs; do [ $((i % 2)) = 0 ] || echo old >"$work/$file"; done
        TMPDIR=$work/tmp "$@" >"$out" 2>"$err" </dev/null &
        pid=$!
        sleep "$(awk -v i="$i" -v n="$kills" -v us="$took" -v seed="$seed" 'BEGIN {
            srand(seed * 1000 + i); printf "%.6f", (i - rand()) / n * us / 1e6 }')"
        kill -9 "$pid" 2>/dev/null
        code=0
        wait "$pid" 2>/dev/null || code=$?
        [ "$code" != 137 ] || killed=$((killed + 1))
        for file in $outputs; do
            is_sound "$file" || { half=$((half + 1)); echo "# half: $what $i $file"; }
        done
        [ -z "$(find "$work" -name '*.part')" ] || parts=$((parts + 1))
        # shellcheck disable=SC2086 # may be empty
        TMPDIR=$work/tmp run "$@" $resume
        for file in $outputs; do
            if [ "$code" != 0 ] || [ ! -e "$work/$file" ] || ! is_whole "$file"; then
                differ=$((differ + 1))
                echo "# differs: $what $i $file, exit $code: $(head -c 200 "$err")"
            fi
        done
        [ "$(names "$work")" = "$(names "$whole")" ] || { left=$((left + 1)); echo "# left: $what $i: $(names "$work")"; }
    done
    check "$what: $kills moments of $((took / 1000)) ms, $killed killed, $parts with a part; $half half, $differ differ, $left left over" \
        [ "$half$differ$left" = 000 ]
}

attack "moe-quantize of a checkpoint" "" x.moe "$bin/moe-quantize" -q -t 1 "$checkpoint" -o "$work/x.moe"
attack "moe-quantize of a pack" "" x.moe "$bin/moe-quantize" -q -t 1 --zstd 3 "$tmp/two.moe" -o "$work/x.moe"
attack "moe-quantize by gptq" "" x.moe "$bin/moe-quantize" -q -t 1 --method gptq --text "$tmp/short" \
    --experts 4 "$checkpoint" -o "$work/x.moe"
attack moe-profile --resume "s.yaml" "$bin/moe-profile" -q -t 1 "$tiny" --text "$tmp/text" \
    --max-tokens 32 --max-windows 1 -o "$work/s.yaml"
attack "moe-profile --trace" --resume "s.yaml t.trace" "$bin/moe-profile" -q -t 1 "$tiny" \
    --text "$tmp/text" --max-tokens 32 --max-windows 1 -o "$work/s.yaml" --trace "$work/t.trace"
attack moe-calibrate --resume map.yaml "$bin/moe-calibrate" -q -t 1 "$tmp/two.moe" --text "$tmp/short" \
    --max-tokens 4 --max-windows 1 --without fate --without hobbit --tolerance 1000% -o "$work/map.yaml"
attack moe-plan "" x.plan "$bin/moe-plan" -q -t 1 "$tiny" --expert-memory 6M --trace "$tmp/t.trace" \
    --strategy lru --device-profile profiles/apple-m2.yaml -o "$work/x.plan"
attack moe-run "" "x.timed.json x.timed.events x.log" "$bin/moe-run" -q -t 1 "$tiny" --perplexity \
    "$tmp/text" --stats-json "$work/x.timed.json" --trace-events "$work/x.timed.events" \
    --token-log "$work/x.log"
kills=$(((kills + 9) / 10)) # seconds each
attack "moe-plan with a drawn trace" "" x.plan "$bin/moe-plan" -q -t 1 "$tiny" --expert-memory 6M \
    --strategy lru --max-tokens 64 --device-profile profiles/apple-m2.yaml -o "$work/x.plan"
finish
