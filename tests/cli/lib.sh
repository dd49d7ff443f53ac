# Helpers of the command-line tests; a test sources this, checks, and ends with `finish`.
#
#   run COMMAND...            runs it; then $code, the files $out and $err, and $progress: what it said of how far it
#                             was, which depends on the machine
#   expect_exit N             ... DESCRIPTION follows in each
#   expect_stdout TEXT        exactly (without the last newline); expect_stdout_like: a case pattern
#   expect_stderr_like GLOB   and expect_stderr_lines N
#   error_line N GLOB NAME    exit N, nothing on stdout, one line on stderr that matches
#   check NAME COMMAND...     the command succeeds
#   smallest_memory COMMAND...   prints the MiB of the smallest --memory that the command names
#   interrupt FILE COMMAND...    runs it until FILE is there after a SIGINT; $code as of run
#   until_catches PID NUMBER   waits until that process catches the signal, or has ended
#   ordinary COMMAND...       runs it without root's rights to every file
#   small_disk SIZE           a file system of SIZE bytes, $disk; fails where there can be none
#   figure KEY                prints a total of the --stats-json in $json; some KEY, none KEY: whether
#                             it is above 0, is 0; adds_up: whether the kinds of activations do
# $bin: the programs. $tmp: a scratch directory. pack: makes the bundled model's pack once, $tiny.
#   pack_with_marks: one of it, $marked, whose special tokens are called what others call those to fill in the middle
# listen PROGRAM PACK OPTION...: starts a server in the background: $server, $url, $port, what it says in $tmp/log;
#   served NAME OPTION...: a figure of /metrics, summed over labels (OPTION: of $load, tests/tools/http_load.c)
# derive DIR OPTION...: makes a collection of different packs of it, with requests (tests/tools/derive.c)
# terminal COMMAND...: a command to a tmux server of the test's own, so that no session or configuration of the user is
#   touched; the session is named moe, and end_terminal ends it; need_terminal, in every loop that waits for the screen,
#   ends a test whose terminal is gone
# shellcheck shell=sh
set -u
unset COLUMNS # as wide as files are by themselves
export LC_ALL=C # numbers have points, and names the order of their bytes
BUILD=${BUILD:-build}
bin=$BUILD/bin
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
# What killed programs and browsers leave goes with it.
TMPDIR=$tmp
export TMPDIR
out=$tmp/stdout
err=$tmp/stderr
progress=$tmp/progress
progress_line='^moe-[a-z]*: [a-z '"'"'-]*: [0-9]+(%(, .* left)?)?$'
json=$tmp/json
models=$BUILD/models # the bundled ones, unpacked
checkpoint=$models/tiny-moe
drawn=$BUILD/fixtures # checkpoints whose weights are drawn (tests/fixtures/*/drawn.txt)
load=$BUILD/tests/tools/http_load
tests=0
failures=0
# The prompt's history belongs to whoever runs the tests.
export XDG_STATE_HOME="$tmp/state"

# The shell that starts what runs in the terminal is not the user's: that of nobody runs nothing.
terminal() { SHELL=/bin/sh tmux -S "$tmp/tmux" -f /dev/null "$@"; }
has_terminal() { terminal has-session -t moe 2>/dev/null; }
end_terminal() { terminal kill-server 2>/dev/null; }
need_terminal() {
    has_terminal && return
    check "the terminal is there until the test ends it" false
    finish
}

result() { # STATUS NAME
    tests=$((tests + 1))
    if [ "$1" = 0 ]; then
        echo "ok $tests - $2"
        return 0
    fi
    failures=$((failures + 1))
    echo "not ok $tests - $2"
    echo "# exit ${code:-?}; stdout: $(head -c 300 "$out" 2>/dev/null | tr '\n' '|')"
    echo "# stderr: $(head -c 600 "$err" 2>/dev/null | tr '\n' '|')"
    return 1
}

run() {
    code=0
    "$@" >"$out" 2>"$err" </dev/null || code=$?
    : >"$progress"
    [ ! -s "$err" ] || {
        sed -nE "/$progress_line/p" "$err" >"$progress"
        sed -i -E "/$progress_line/d" "$err"
    }
}

ordinary() {
    if [ "$(id -u)" = 0 ]; then set -- setpriv --bounding-set=-all "$@"; fi
    run "$@"
}

check() {
    name=$1
    shift
    if "$@"; then result 0 "$name"; else result 1 "$name"; fi
}

matches() { # FILE GLOB
    text=$(cat "$1")
    # shellcheck disable=SC2254 # a pattern is meant
    case $text in $2) return 0 ;; *) return 1 ;; esac
}

expect_exit() { check "$2" [ "$code" = "$1" ]; }
expect_stdout() { check "$2" [ "$(cat "$out")" = "$1" ]; }
expect_stdout_like() { check "$2" matches "$out" "$1"; }
expect_stderr_like() { check "$2" matches "$err" "$1"; }
expect_stderr_lines() { check "$2" [ "$(wc -l <"$err")" = "$1" ]; }

error_line() {
    if [ "$code" = "$1" ] && [ ! -s "$out" ] && [ "$(wc -l <"$err")" = 1 ] && matches "$err" "$2"
    then
        result 0 "$3"
    else
        result 1 "$3"
    fi
}

# Totals are indented by two blanks, those of a phase by four.
figure() { sed -n "s/^  \"$1\": *\"*\([^\",]*\).*/\1/p" "$json"; }
# Results of --requests in order, without what another run has otherwise.
answers() { sed 's/"response":{.*"choices":/"choices":/; s/,"usage":.*//' "$1" | sort; } # FILE
some() { [ "$(figure "$1")" -gt 0 ]; } # KEY
none() { [ "$(figure "$1")" = 0 ]; }
adds_up() {
    sum=0
    for key in cache_hits prefetch_hits prefetch_late misses host_computed precalculated skipped; do
        sum=$((sum + $(figure $key)))
    done
    [ "$sum" -gt 0 ] && [ "$sum" = "$(figure expert_activations)" ]
}

# The pack is kept between runs and made again when the program or the model is newer.
pack() {
    tiny=$BUILD/tests/cli/tiny.moe
    if [ -f "$tiny" ] && [ -z "$(find "$checkpoint" "$bin/moe-quantize" -newer "$tiny")" ]; then
        return
    fi
    mkdir -p "$(dirname "$tiny")"
    if ! "$bin/moe-quantize" -q -o "$tiny" "$checkpoint"; then
        echo "Bail out! moe-quantize cannot make the bundled model's pack"
        exit 1
    fi
}

derive() { # DIR OPTION...
    derived=$1
    shift
    if ! "$BUILD/tests/tools/derive" "$@" "$checkpoint" "$derived"; then
        echo "Bail out! derive cannot make the collection"
        exit 1
    fi
}

listen() { # PROGRAM PACK OPTION...
    : >"$tmp/log"
    program=$1
    shift
    "$program" -t 1 --port 0 "$@" >"$tmp/served" 2>"$tmp/log" </dev/null &
    server=$!
    for pause in 0.1 0.2 0.5 1 2 4 8 16 32; do
        url=$(sed -n 's/.*listening at //p' "$tmp/log")
        port=${url##*:}
        [ -z "$url" ] || return 0
        sleep "$pause"
    done
    cat "$tmp/log" >&2
    return 1
}

pack_with_marks() {
    mkdir "$tmp/marked"
    marked=$tmp/marked.moe
    for file in "$checkpoint"/*; do
        case $file in
        *.json) sed 's/<|endoftext|>/<fim_prefix>/g; s/<|im_start|>/<fim_suffix>/g; s/<|im_end|>/<fim_middle>/g' "$file" \
            >"$tmp/marked/${file##*/}" ;;
        *) ln -s "$(realpath "$file")" "$tmp/marked" ;;
        esac
    done
    run "$bin/moe-quantize" -q -o "$marked" "$tmp/marked"
}

served() { # NAME OPTION...
    figure=$1
    shift
    "$load" -p "$port" -P /metrics -o "$tmp/metrics" "$@" >/dev/null
    awk -v name="moe_$figure" '{ split($1, parts, "{") } parts[1] == name { sum += $2 } END { print sum + 0 }' "$tmp/metrics"
}

smallest_memory() {
    "$@" --memory 1M 2>&1 >/dev/null | sed -n 's/.*the smallest that works is .*--memory \([0-9]*\)M.*/\1/p'
}

# How long the command computes until FILE is there depends on the machine: interrupted too early, it is started
# again and has half as much time again, so that fast machines are not past the end. The time is the processor's,
# which other work does not change.
interrupt() {
    left=$1
    shift
    for ticks in 5 8 12 18 27 40 60 90 135 200 300 450 700 1100 1600; do
        "$@" >"$out" 2>"$err" </dev/null &
        pid=$!
        while kill -0 "$pid" 2>/dev/null; do
            used=$(sed -E 's/.*\) //' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f 12,13 | tr ' ' +)
            [ "$((${used:-0}))" -lt "$ticks" ] || break
            sleep 0.01
        done
        kill -INT "$pid" 2>/dev/null
        code=0
        wait "$pid" || code=$?
        [ "$code" != 1 ] || [ -e "$left" ] || continue
        break
    done
}

until_catches() { # PID NUMBER
    while kill -0 "$1" 2>/dev/null; do
        caught=$(sed -n 's/^SigCgt:[^0-9a-f]*//p' "/proc/$1/status" 2>/dev/null)
        [ $((0x${caught:-0} >> ($2 - 1) & 1)) = 0 ] || return
        sleep 0.02
    done
}

# Root mounts it; an ordinary user does in a namespace of a process that waits, and finds it under that.
small_disk() { # SIZE
    disk=$tmp/disk
    mkdir "$disk"
    if mount -t tmpfs -o "size=$1" none "$disk" 2>/dev/null; then
        trap 'umount "$disk"; rm -rf "$tmp"' EXIT
        return
    fi
    mkfifo "$tmp/mounted"
    # shellcheck disable=SC2016 # for the inner shell
    { unshare -rm sh -c 'mount -t tmpfs -o "size=$0" none "$1" && echo yes >"$2" && exec sleep 600' "$1" "$disk" "$tmp/mounted" ||
        echo no >"$tmp/mounted"; } 2>/dev/null &
    read -r mounted <"$tmp/mounted"
    [ "$mounted" = yes ] || return 1
    holder=$(ps -o pid= --ppid $! | tr -d ' ')
    # In this order: the one who waits for the holder finds nobody to say "no" to.
    trap 'rm -rf "$tmp"; kill "$holder"' EXIT
    disk=/proc/$holder/root$disk
}

skip() { # NAME REASON
    tests=$((tests + 1))
    echo "ok $tests - $1 # SKIP $2"
}

# Where memory is limited by version 1 of control groups or by version 2: the directory and the files of
# the limit, of the limit with swap and of what was killed.
find_control_groups() {
    groups=none
    for root in /sys/fs/cgroup/memory /sys/fs/cgroup/unified /sys/fs/cgroup; do
        group=$root/moe-test-$$
        mkdir "$group" 2>/dev/null || continue
        if [ -w "$group/memory.limit_in_bytes" ]; then
            groups=$root limit=memory.limit_in_bytes swap=memory.memsw.limit_in_bytes
            kills=memory.oom_control
        elif [ -w "$group/memory.max" ]; then
            groups=$root limit=memory.max swap=memory.swap.max kills=memory.events
        fi
        rmdir "$group"
        [ "$groups" = none ] || break
    done
}

can_control_groups() {
    [ -n "${groups:-}" ] || find_control_groups
    [ "$groups" != none ]
}

make_control_group() { # BYTES: $group, and $grouped, a command that runs others in it
    can_control_groups || return 1
    group=$groups/moe-test-$$
    mkdir "$group" || return 1
    echo "$1" >"$group/$limit"
    case $swap in
    memory.swap.max) echo 0 >"$group/$swap" 2>/dev/null ;;
    *)
        echo 0 >"$group/memory.swappiness"
        echo "$1" >"$group/$swap" 2>/dev/null
        ;;
    esac
    grouped=$tmp/grouped
    printf '#!/bin/sh\necho $$ >"%s/cgroup.procs" && exec "$@"\n' "$group" >"$grouped"
    chmod +x "$grouped"
}

end_control_group() { # $killed: how many of its processes were, for their memory
    killed=$(sed -n 's/^oom_kill //p' "$group/$kills")
    # What it was charged for may take a moment to go.
    for pause in 0 0.1 1 5; do
        sleep "$pause"
        rmdir "$group" 2>/dev/null && return
    done
}

control_group() { # BYTES COMMAND...
    make_control_group "$1" || return 1
    shift
    run "$grouped" "$@"
    end_control_group
}

finish() {
    echo "1..$tests"
    [ "$failures" = 0 ]
    exit
}
