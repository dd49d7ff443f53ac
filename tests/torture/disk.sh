# Disks that fail, stall, crawl and vanish, under moe-run with prefetching strategies, by io_uring and by
# threads in pread, and under the programs that read packs and checkpoints. Each run must give the right
# tokens, or the right tokens so far and one line that says why; never other tokens, never a hang.
#
# The disk is tests/tools/bad_disk (FUSE: needs /dev/fuse and libfuse3): no network file system can be
# mounted everywhere, so latency, files without O_DIRECT and changing attributes stand in for one. A real
# disk is slowed by control group v1 where there is one. DISK_RUNS (2) runs for each strategy and way of
# reading in each row.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
runs=${DISK_RUNS:-2}
run env FAULT_RUNS=30000 "$BUILD/tests/unit/test_loader_faults"
expect_exit 0 "30,000 random runs of the loader with faults"
bad=$BUILD/tests/tools/bad_disk
if [ ! -x "$bad" ] || [ ! -w /dev/fuse ] || ! command -v fusermount3 >/dev/null; then
    skip "disks with faults" "no FUSE"
    finish
fi
mkdir "$tmp/disk" "$tmp/bad" "$tmp/made"
control=$tmp/control
: >"$control"
two=$tmp/disk/two.moe
"$bin/moe-quantize" -q --experts 4,2 --method rtn -o "$two" "$checkpoint" || exit 1
cp -r "$checkpoint" "$tmp/disk/checkpoint"
awk '/^<\|endoftext\|>$/ { n++ } n < 12 { print }' tests/data/stories.calib.txt >"$tmp/text"
stats=$tmp/stats.yaml
"$bin/moe-profile" -q "$two" --text "$tmp/text" --max-tokens 96 --max-windows 1 -o "$stats" || exit 1

# The control file is replaced whole: a read of it finds the old words or the new ones.
set_disk() {
    echo "$*" >"$control.new"
    mv "$control.new" "$control"
}
insert_disk() {
    set_disk
    "$bad" "$tmp/disk" "$tmp/bad" "$control" >"$tmp/bad.log" 2>&1 &
    disk=$!
    tries=0
    until [ -e "$tmp/bad/two.moe" ] || [ "$tries" = 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
}
remove_disk() {
    set_disk
    fusermount3 -uz "$tmp/bad" 2>/dev/null
    kill "$disk" 2>/dev/null
    wait "$disk" 2>/dev/null
}
trap 'remove_disk; rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM HUP # a mount must not remain
insert_disk
check "the disk is there" [ -e "$tmp/bad/two.moe" ]

prompt='Once upon a time, there was a little girl named Lily. She had a red ball and she liked to'
ask() { # STRATEGY WITH-OPTIONS OPTION...
    # shellcheck disable=SC2086 # words are meant
    timeout -k 5 "${LIMIT:-60}" $way "$bin/moe-run" -t 1 "$@" --expert-memory 2M --statistics "$stats" \
        -p "$prompt" -n 12 --temp 0 --ignore-eos --stats-json "$json"
}
way=
run ask "$two" --strategy resident
want=$tmp/want
cp "$out" "$want"
check "... and says something" [ -s "$want" ]

# Where all experts fit, a token waits for those that it needs.
set_disk latency 0.02
run timeout 60 "$bin/moe-run" -t 1 "$tmp/bad/two.moe" --strategy resident -p Once -n 1 --temp 0 --stats-json "$json"
check "resident: the first token is there" [ "$code" = 0 ]
check "... after what it needs" some bytes_read
check "... before all experts" [ "$(figure bytes_read)" -lt $(($(figure resident_expert_bytes_max) / 2)) ]
set_disk

# What each exact strategy needs to be one.
rows='lru
prefetch
edgemoe
eap --exact
fate --exact
moe-offloading
moe-infinity
hobbit --exact --without on-miss,skip-below
daop --exact --without precalculate,degrade --device test:4,500MB/s'

# What a run came to: right, failed (as it may), or wrong. The text so far must be a beginning of the
# right one.
judge() {
    if [ "$code" = 0 ]; then
        cmp -s "$out" "$want" && [ ! -s "$err" ] && adds_up && echo right && return
    elif [ "$code" = 1 ] || [ "$code" = 3 ]; then
        head -c "$(wc -c <"$out")" "$want" | cmp -s - "$out" && [ "$(wc -l <"$err")" = 1 ] &&
            matches "$err" 'moe-run: *two.moe: *' && echo "failed$code" && return
    fi
    echo "wrong: $way $strategy: exit $code; $(head -c 200 "$err" | tr '\n' '|')"
}

# All strategies, both ways, several times, under one kind of fault.
tally() { # NAME RIGHT-AT-LEAST|errors|any CONTROL...
    name=$1 wanted=$2
    shift 2
    : >"$tmp/verdicts"
    n=0
    while [ "$n" -lt "$runs" ]; do
        n=$((n + 1))
        for way in "" "$BUILD/tests/tools/no_uring"; do
            echo "$rows" | while IFS= read -r strategy; do
                set_disk "$@"
                rm -f "$json"
                # shellcheck disable=SC2086 # words are meant
                run ask "$tmp/bad/two.moe" --strategy $strategy
                judge >>"$tmp/verdicts"
            done
        done
    done
    set_disk
    right=$(grep -c '^right' "$tmp/verdicts")
    input=$(grep -c '^failed1' "$tmp/verdicts")
    damaged=$(grep -c '^failed3' "$tmp/verdicts")
    wrong=$(grep -c '^wrong' "$tmp/verdicts")
    grep '^wrong' "$tmp/verdicts" | head -5 | sed 's/^/# /'
    good=false
    case $wanted in
    right) [ "$input$damaged" = 00 ] && good=true ;;
    errors) [ "$right$damaged" = 00 ] && good=true ;;
    any) [ "$damaged" = 0 ] && good=true ;;
    esac
    [ "$wrong" = 0 ] || good=false
    check "$name: $(wc -l <"$tmp/verdicts") runs: $right right, $input with an error, $((damaged + wrong)) otherwise" $good
}

tally "a sound disk" right
tally "1 read of 1000 fails" right error 1000
tally "1 read of 100 fails" any error 100
tally "1 read of 10 fails" any error 10
tally "every read fails after 20" errors error 1 after 20
tally "every read fails after 100" errors error 1 after 100
tally "1 read of 50 fails with ENODATA" any error 50 errno 61
tally "1 read of 20 is interrupted" right error 20 errno 4
tally "1 read of 20 is refused for now" right error 20 errno 11 after 40
tally "1 read of 20 is short" right short 20
tally "1 read of 2 is short" any short 2
tally "1 read of 200 takes 0.2 s" right stall 200 seconds 0.2
tally "each read takes 2 ms" right latency 0.002
tally "no O_DIRECT" right nodirect 1
tally "no O_DIRECT, 1 read of 100 fails" any nodirect 1 error 100
tally "attributes that change all the time" right restless 1 latency 0.001
tally "the device goes after 60 reads" errors error 1 errno 19 after 60

# ---- Stalls ----------------------------------------------------------------------------------------

seconds_now() { date +%s; }
# Stalls for ever, at the Nth read or once the answer has begun; a signal must end it.
stalled() { # SIGNAL EXIT WITHIN COMMAND...
    signal=$1 wanted=$2 within=$3
    shift 3
    : >"$out"
    if [ -n "$after" ]; then
        set_disk stall 1 seconds -1 after "$after"
    else
        set_disk latency 0.002
    fi
    "$@" >"$out" 2>"$err" </dev/null &
    pid=$!
    while [ -z "$after" ] && [ ! -s "$out" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
    [ -n "$after" ] || set_disk stall 1 seconds -1
    sleep 2
    began=$(seconds_now)
    kill -0 "$pid" 2>/dev/null || echo "# it did not stall"
    kill -s "$signal" "$pid" 2>/dev/null
    (sleep $((within + 10)); kill -s KILL "$pid" 2>/dev/null) &
    watch=$!
    code=0
    wait "$pid" || code=$?
    took=$(($(seconds_now) - began))
    kill "$watch" 2>/dev/null
    set_disk
    verdict=false
    [ "$code" = "$wanted" ] && [ "$took" -le "$within" ] && verdict=true
    check "a stalled disk: SIG$signal ends $(basename "$1") $tag: exit $code after $took s" $verdict
}
after=
for way in "" "$BUILD/tests/tools/no_uring"; do
    for strategy in lru "fate --exact" moe-offloading; do
        for signal in INT TERM; do
            wanted=1
            [ "$signal" = INT ] || wanted=143
            tag="($strategy${way:+, pread})"
            # shellcheck disable=SC2086 # words are meant
            stalled $signal $wanted 8 $way "$bin/moe-run" -t 1 "$tmp/bad/two.moe" --strategy $strategy \
                --expert-memory 2M -p "$prompt" -n 100 --temp 0 --ignore-eos
        done
    done
done
if command -v script >/dev/null; then
    # Typed into a terminal, where the conversation is not given up unasked.
    set_disk latency 0.002
    {
        sleep 3
        echo 'Once upon'
        sleep 2
        set_disk stall 1 seconds -1
        sleep 1
        printf '\003'
        sleep 7
        printf '\003'
        sleep 1
    } | script -qec "$bin/moe-run -t 1 $tmp/bad/two.moe --strategy lru --expert-memory 2M -n 400 \
        --ignore-eos" /dev/null >"$out" 2>"$err"
    code=$?
    set_disk
    check "... a conversation says that Ctrl-C again leaves: exit $code" matches "$out" '*Ctrl-C again leaves*'
fi
after=5
tag="--verify"
stalled TERM 143 8 "$bin/moe-quantize" --verify "$tmp/bad/two.moe"
tag="converting"
stalled TERM 1 66 "$bin/moe-quantize" -q -o "$tmp/made/x.moe" "$tmp/bad/checkpoint"
rm -f "$tmp/made"/*

# ---- Slow ------------------------------------------------------------------------------------------

LIMIT=120
for way in "" "$BUILD/tests/tools/no_uring"; do
    for strategy in lru "fate --exact"; do
        set_disk rate 1000000 after 0
        # shellcheck disable=SC2086 # words are meant
        run ask "$tmp/bad/two.moe" --strategy $strategy
        check "1 MB/s: $strategy${way:+, pread}: $(judge)" [ "$(judge)" = right ]
    done
done
way=
group=/sys/fs/cgroup/blkio/moe-disk-$$
device=$(lsblk -no MAJ:MIN "$(df --output=source "$tmp" | tail -n 1)" 2>/dev/null | head -n 1 | tr -d ' ')
if [ -n "$device" ] && mkdir "$group" 2>/dev/null; then
    if echo "$device 1000000" >"$group/blkio.throttle.read_bps_device" 2>/dev/null; then
        strategy=lru
        began=$(seconds_now)
        # shellcheck disable=SC2016 # the inner shell's
        way="sh -c 'echo \$\$ >$group/cgroup.procs && exec \"\$@\"' sh"
        run eval "timeout 120 $way $bin/moe-run -t 1 $two --strategy lru --expert-memory 2M --statistics $stats \
            -p '$prompt' -n 12 --temp 0 --ignore-eos --stats-json $json"
        check "a real disk at 1 MB/s: $(judge), $(($(seconds_now) - began)) s" [ "$(judge)" = right ]
        way=
    else
        check "a real disk at 1 MB/s # SKIP it cannot be slowed" true
    fi
    rmdir "$group"
else
    check "a real disk at 1 MB/s # SKIP no control group v1 of disks" true
fi
unset LIMIT

set_disk rate 1000000
began=$(seconds_now)
run timeout 300 "$bin/moe-profile" -q --device "$tmp/bad/two.moe" -o "$tmp/device.yaml"
took=$(($(seconds_now) - began))
expect_exit 0 "moe-profile --device on a disk of 1 MB/s: $took s"
run "$bin/moe-profile" --show "$tmp/device.yaml"
shown=$(grep -m 1 '1 at a time' "$out" | tr -s ' ')
check "... measures it:$shown" matches "$out" '* 1 at a time *[01].[0-9] MB/s *'
set_disk error 50 after 20
run timeout 120 "$bin/moe-profile" -q --device "$tmp/bad/two.moe" -o "$tmp/device.yaml"
check "moe-profile --device on a failing disk ends: exit $code" [ "$code" -le 1 ]
set_disk nowrite 1
run timeout 120 "$bin/moe-profile" -q --device --dir "$tmp/bad" -o "$tmp/other.yaml"
error_line 1 'moe-profile: *cannot write a scratch file*' "a disk whose writes take nothing"

# ---- Converting ------------------------------------------------------------------------------------

left=0 odd=0 n=0
for after in 0 1 2 3 5 8 13 21 34 55; do
    for how in "error 1" "error 1 errno 19" "error 3" "short 2"; do
        # shellcheck disable=SC2086 # words are meant
        set_disk $how after $after
        run timeout 120 "$bin/moe-quantize" -q -o "$tmp/made/x.moe" "$tmp/bad/checkpoint"
        n=$((n + 1))
        if [ "$code" = 0 ]; then
            rm -f "$tmp/made/x.moe"
        elif [ "$code" != 1 ] || [ "$(wc -l <"$err")" != 1 ]; then
            odd=$((odd + 1))
            echo "# $how after $after: exit $code: $(head -c 200 "$err")"
        fi
        [ -z "$(ls -A "$tmp/made")" ] || left=$((left + 1))
        rm -rf "$tmp/made"
        mkdir "$tmp/made"
    done
done
check "a checkpoint that cannot be read: $n runs: $odd with other than one line, $left left something" \
    [ "$odd$left" = 00 ]

# ---- The file changes, or goes ---------------------------------------------------------------------

# While the answer is being written, CHANGE is done to the pack; VERDICT must be what comes of it (any: right or
# an error).
meanwhile() { # NAME CHANGE VERDICT
    cp "$two" "$tmp/disk/now.moe"
    set_disk latency 0.004
    rm -f "$json"
    : >"$out"
    "$bin/moe-run" -t 1 "$tmp/bad/now.moe" --strategy "fate" --exact --expert-memory 2M --statistics "$stats" \
        -p "$prompt" -n 12 --temp 0 --ignore-eos --stats-json "$json" >"$out" 2>"$err" </dev/null &
    pid=$!
    while [ ! -s "$out" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
    $2
    (sleep 60; kill -s KILL "$pid" 2>/dev/null) &
    watch=$!
    code=0
    wait "$pid" || code=$?
    kill "$watch" 2>/dev/null
    sed -i 's/now\.moe/two.moe/' "$err"
    strategy=$1
    verdict=$(judge)
    case $3 in any) check "$1: $verdict" [ "${verdict%%:*}" != wrong ] ;; *) check "$1: $verdict" [ "$verdict" = "$3" ] ;; esac
}
cut() { truncate -s 1000000 "$tmp/disk/now.moe"; }
replace() { cp "$two" "$tmp/disk/other" && mv "$tmp/disk/other" "$tmp/disk/now.moe"; }
overwrite() { dd if=/dev/urandom of="$tmp/disk/now.moe" bs=65536 seek=30 count=200 conv=notrunc 2>/dev/null; }
remove() { rm "$tmp/disk/now.moe"; }
unmount() { fusermount3 -uz "$tmp/bad"; }
crash() { kill -s KILL "$disk"; }
meanwhile "a pack cut off while it runs" cut any
meanwhile "... overwritten" overwrite any
meanwhile "... replaced by another file" replace right
meanwhile "... removed" remove right
meanwhile "... its disk unmounted" unmount right
remove_disk
insert_disk
meanwhile "... its disk gone" crash failed1
finish
