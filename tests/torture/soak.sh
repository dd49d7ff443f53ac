# A soak of SOAK_MINUTES (120): conversations in terminals under budgets just above the floor, each with
# a strategy of its own. They go round and round: a fixed answer, a context filled to its end and
# refused, commands, an answer interrupted by SIGINT and by Ctrl-C, the window's size changed, the
# program stopped and continued (SIGSTOP; Ctrl-Z and fg). Between them short processes of the other
# programs run. SAMPLES (120) times over the whole, each conversation's memory, descriptors and threads
# and the temporary files of all are written to $BUILD/soak.samples.
# Memory is flat when the most of anonymous memory in the last tenth of the time is at most SLACK KiB
# (256: the C library's own coming and going) above that of the second; descriptors and threads do
# not change after the first tenth, but for one descriptor while the history is written. SOAK_PAUSE (1): seconds between two inputs, so that the machine is
# left to others. SIGUSR1 and the like mean nothing to the programs and are not sent.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
minutes=${SOAK_MINUTES:-120}
n_samples=${SAMPLES:-120}
slack=${SLACK:-256}
pause=${SOAK_PAUSE:-1}
samples=$BUILD/soak.samples
if ! command -v tmux >/dev/null || ! command -v bash >/dev/null; then
    echo "ok 1 - conversations for $minutes minutes # SKIP no tmux or no bash"
    echo "1..1"
    exit 0
fi
mkdir -p "$tmp/all" "$tmp/short" "$tmp/temporary"
export TMPDIR="$tmp/temporary" LC_ALL=C.UTF-8
unset XDG_STATE_HOME NO_COLOR
interval=$((minutes * 60 / n_samples))
[ "$interval" -ge 1 ] || interval=1
start=$(date +%s)
end=$((start + minutes * 60))

"$bin/moe-quantize" -q -o "$tmp/all/one.moe" "$checkpoint"
"$bin/moe-quantize" -q -o "$tmp/all/three.moe" --experts 8,4,2 "$checkpoint"
head -c 3000 tests/data/stories.calib.txt >"$tmp/all/text"
"$bin/moe-profile" -q "$tmp/all/one.moe" --text "$tmp/all/text" --max-tokens 64 --max-windows 1 -o "$tmp/all/stats"

# ---- A conversation ------------------------------------------------------------------------------
# In a directory $dir of its own, which holds: tmux's socket, start (what the terminal runs), pid,
# answers (what the program wrote to its standard output), left (its exit status), and what it counts.

terminal() { SHELL=/bin/sh tmux -S "$dir/tmux" -f /dev/null "$@"; }
keys() { terminal send-keys -t moe "$@"; }
last_line() {
    terminal capture-pane -p -J -t moe 2>/dev/null | grep -v '^ *$' | tail -n 1 | sed 's/ *$//'
}
# Up to two minutes: the machine may be busy.
wait_for() { # COMMAND...
    tries=0
    while ! "$@"; do
        tries=$((tries + 1))
        if [ "$tries" = 400 ] || ! has_terminal; then
            echo "waited in vain for: $*, last line '$(last_line)'" >>"$dir/trouble"
            return 1
        fi
        sleep 0.3
    done
}
last_line_is() { [ "$(last_line)" = "$1" ]; }
last_line_ends() { case $(last_line) in *"$1") ;; *) false ;; esac; }
prompts() { wait_for last_line_is '>'; }
# With an empty screen before it, so that every line on it is of this input.
say() { # TEXT: a line, and Enter
    keys -R
    terminal clear-history -t moe
    keys -l "$1"
    wait_for last_line_ends "$1" || return 1
    keys Enter
    said=$((said + 1))
}
ask() { # TEXT: and waits for the next prompt
    say "$1" && prompts && sleep "$pause"
}
alive() { kill -0 "$pid" 2>/dev/null; }
screen_has() { terminal capture-pane -p -J -S - -t moe | grep -q -- "$1"; }
count() { # NAME: one more of it
    echo >>"$dir/$1"
}

# The same question with the same seed in an empty context: what is answered, in answer.NUMBER.
fixed_answer() {
    ask /reset && ask '/set temp 0.8' && ask '/set n 60' && ask '/set seed 7' || return 1
    before=$(wc -c <"$dir/answers")
    ask 'Once upon a time there was a little dragon' || return 1
    round=$((round + 1))
    tail -c "+$((before + 1))" "$dir/answers" >"$dir/answer.$round"
}
fill_context() {
    ask '/set n 100000' || return 1
    while :; do
        ask "Then the $round. thing happened, and the little dragon said:" || return 1
        ! screen_has 'context of .* is full' || break
    done
    count fills
    ask /continue || return 1
    ask 'And then?' || return 1 # refused
    ask /reset
}
commands() {
    for line in /help /stats /memory /strategy '/set top-k 40' '/set min-p 0.02' '/set top-p 0.9' \
        '/set repeat-penalty 1.1' '/set temp warm' /set '/nonsense' "/system Round $round is a story." \
        /system 'A question in two lines \'; do
        case $line in
        *\\) say "$line" && wait_for last_line_is . && ask 'and its second' || return 1 ;;
        *) ask "$line" || return 1 ;;
        esac
    done
    ask '/system -' && ask '/set top-k 0' && ask '/set min-p 0' && ask '/set top-p 1' &&
        ask '/set repeat-penalty 1'
}
# An answer without an end, and what happens to it.
interrupted() { # COMMAND...: that ends it
    ask /reset && ask '/set n 100000' && say 'Tell me of the sea' || return 1
    sleep 0.2
    "$@"
    prompts && count interrupts && sleep "$pause"
}
stopped() { # and continued
    ask /reset && say 'Tell me of the mountains' || return 1
    kill -STOP "$pid"
    terminal resize-window -t moe -x 70 -y 20
    sleep 1
    kill -CONT "$pid"
    terminal resize-window -t moe -x 100 -y 40
    prompts && ask /reset && say 'Tell me of the woods' || return 1
    keys C-z # as a rule in the midst of the answer
    wait_for last_line_ends 'shell:' || return 1
    keys -l fg
    keys Enter
    sleep 1
    # At its prompt the program waits in silence: a line makes it show.
    ask '/set temp 0.8' && count stops && sleep "$pause"
}
converse() { # NAME PIPE|TERMINAL PACK OPTION...
    name=$1 where=$2 pack=$3
    shift 3
    dir=$tmp/$name
    said=0 round=0
    mkdir "$dir"
    mkfifo "$dir/pipe"
    : >"$dir/answers"
    [ "$where" = terminal ] || cat "$dir/pipe" >"$dir/answers" &
    to=/dev/tty
    [ "$where" = terminal ] || to=$dir/pipe
    cat >"$dir/start" <<END
trap : INT # Ctrl-C is for the program
sh -c 'echo \$\$ >$dir/pid; exec $bin/moe-run -t 1 --ignore-eos -c 192 $* $pack >$to'
echo \$? >$dir/left
END
    terminal new-session -d -s moe -x 100 -y 40 \
        "HOME=$dir PS1=shell: exec bash --noprofile --norc -i"
    wait_for last_line_ends 'shell:'
    keys -l "sh $dir/start"
    keys Enter
    prompts
    read -r pid <"$dir/pid"
    while [ "$(date +%s)" -lt "$end" ] && alive; do
        fixed_answer && fill_context && commands && interrupted kill -INT "$pid" &&
            interrupted keys C-c && stopped || break
        count rounds
    done
    ! alive || fixed_answer || :
    touch "$dir/ended"
    say /quit
    wait_for test -e "$dir/left"
    terminal kill-server
    echo "$said" >"$dir/said"
}

# ---- Short processes -----------------------------------------------------------------------------

short_once() { # the files it leaves are the same each time
    rm -rf "$tmp/short"
    mkdir "$tmp/short"
    small=$tmp/short/small.moe
    {
        "$bin/moe-quantize" -q -t 1 -o "$small" --experts 4,2 "$drawn/olmoe-a" &&
            "$bin/moe-quantize" --list "$small" &&
            "$bin/moe-quantize" -q -t 1 -o "$tmp/short/again.moe" --experts 2 "$small" &&
            "$bin/moe-profile" -q -t 1 "$small" --text tests/README.md --max-tokens 64 --max-windows 1 --shard 1/30 \
                --trace "$tmp/short/trace" -o "$tmp/short/stats" &&
            "$bin/moe-plan" -q -t 1 "$tmp/all/one.moe" --memory 22M -c 192 --stats "$tmp/all/stats" \
                --device-profile profiles/apple-m2.yaml --max-tokens 64 --strategy lru \
                -o "$tmp/short/plan" &&
            printf 'Once upon a time' | "$bin/moe-run" -t 1 "$tmp/all/one.moe" --seed 7 -n 30 --memory 22M \
                -c 192
    } >"$tmp/short/said" 2>"$tmp/short/errors" || failed=$((failed + 1))
}
short() {
    short_once
    rm -f "$tmp/short/plan" "$tmp/short/errors" # these say how large the program was
    n_short=$((n_short + 1))
    [ -e "$tmp/first" ] || cp -r "$tmp/short" "$tmp/first"
    diff -rq "$tmp/first" "$tmp/short" >>"$samples.other" || other=$((other + 1))
}

# ---- Samples -------------------------------------------------------------------------------------

sample() {
    now=$(($(date +%s) - start))
    for name in $names; do
        [ ! -e "$tmp/$name/ended" ] || continue
        read -r pid <"$tmp/$name/pid" || continue
        awk -v seconds="$now" -v name="$name" -v fds="$(ls "/proc/$pid/fd" | wc -l)" \
            -v files="$(find "$tmp/temporary" "$tmp/all" -type f | wc -l)" \
            '{ figure[$1] = $2 }
             END { print seconds, name, figure["VmRSS:"], figure["RssAnon:"], fds, figure["Threads:"], files }' \
            "/proc/$pid/status" 2>/dev/null >>"$samples"
    done
}
# COLUMN: the most and least of it from the share FROM to the share TO of the time.
most() { # NAME COLUMN FROM TO
    awk -v name="$1" -v column="$2" -v from="$(($3 * minutes * 60 / 100))" \
        -v to="$(($4 * minutes * 60 / 100))" \
        '$2 == name && $1 >= from && $1 <= to && $column > most { most = $column } END { print most + 0 }' \
        "$samples"
}
least() {
    awk -v name="$1" -v column="$2" -v from="$(($3 * minutes * 60 / 100))" \
        -v to="$(($4 * minutes * 60 / 100))" \
        '$2 == name && $1 >= from && $1 <= to && (!n++ || $column < least) { least = $column }
         END { print least + 0 }' "$samples"
}

names="lru fate daop hobbit prefetch"
one=$tmp/all/one.moe
converse lru pipe "$one" --strategy lru --memory 22M &
converse fate pipe "$one" --strategy fate --memory 22M &
converse daop pipe "$one" --strategy daop --device test:2,100M --statistics "$tmp/all/stats" \
    --expert-memory 3M &
converse hobbit pipe "$tmp/all/three.moe" --strategy hobbit --memory 22M &
converse prefetch terminal "$one" --strategy prefetch --memory 22M &
echo "# seconds name VmRSS RssAnon descriptors threads files" >"$samples"
: >"$samples.other"
n_short=0 other=0 failed=0
sleep 5
while [ "$(date +%s)" -lt "$end" ]; do
    sample
    short
    rest=$((start + ($(date +%s) - start) / interval * interval + interval - $(date +%s)))
    sleep "$rest"
done
sample
wait

lines() { if [ -e "$1" ]; then wc -l <"$1"; else echo 0; fi; }
same_answers() {
    [ "$(lines "$tmp/$1/rounds")" -gt 0 ] && [ -s "$tmp/$1/answer.1" ] || return 1
    for answer in "$tmp/$1"/answer.*; do
        cmp -s "$answer" "$tmp/$1/answer.1" || return 1
    done
}
for talk in $names; do
    dir=$tmp/$talk
    sed 's/^/# /' "$dir/trouble" 2>/dev/null
    early=$(most "$talk" 4 10 20) late=$(most "$talk" 4 90 100)
    check "$talk: anonymous memory $early KiB in the second tenth of $minutes minutes, $late in the last" \
        [ "$late" -gt 0 -a "$late" -le $((early + slack)) ]
    fds=$(least "$talk" 5 10 20) threads=$(most "$talk" 6 10 100)
    check "$talk: $fds descriptors, $threads threads all the time" \
        [ "$fds" -gt 0 -a "$fds" = "$(least "$talk" 5 90 100)" -a \
        "$(most "$talk" 5 10 100)" -le $((fds + 1)) -a "$threads" = "$(least "$talk" 6 10 100)" ]
    check "$talk: $(cat "$dir/said") inputs, $(lines "$dir/rounds") rounds, $(lines "$dir/fills") contexts filled, $(lines "$dir/interrupts") answers interrupted, $(lines "$dir/stops") stops; left with 0" \
        [ "$(cat "$dir/left" 2>/dev/null)" = 0 -a ! -e "$dir/trouble" ]
    case $talk in lru | fate)
        check "$talk: the same answer to the same seed, $(ls "$dir"/answer.* | wc -l) times" \
            same_answers "$talk"
        ;;
    esac
done
files=$(most lru 7 0 100)
check "no temporary file but the $files made first" [ "$files" = "$(least lru 7 0 100)" ]
check "$n_short rounds of six short processes, $failed failed, $other with other outputs" \
    [ "$n_short" -gt 0 -a "$failed" = 0 -a "$other" = 0 ]
finish
