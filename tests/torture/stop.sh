# Ctrl-Z at the prompt and fg, STOP_ROUNDS (60) times, of a moe-run that gets the processor only when nobody
# else wants it: the shell has the terminal back long before the program notices that it is stopped. It
# must not take a key that is meant for the shell, and after fg its prompt is there again.
# Half a minute.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
rounds=${STOP_ROUNDS:-60}
for needed in tmux bash chrt taskset; do
    if ! command -v "$needed" >/dev/null; then
        echo "ok 1 - Ctrl-Z and fg, $rounds times # SKIP no $needed"
        echo "1..1"
        exit 0
    fi
done
pack
unset XDG_STATE_HOME NO_COLOR
keys() { terminal send-keys -t moe "$@"; }
last_line() {
    terminal capture-pane -p -J -t moe 2>/dev/null | grep -v '^ *$' | tail -n 1 | sed 's/ *$//'
}
wait_for() { # LAST-LINE SECONDS
    tries=0
    until [ "$(last_line)" = "$1" ]; do
        tries=$((tries + 1))
        need_terminal
        [ "$tries" -lt $(($2 * 20)) ] || return 1
        sleep 0.05
    done
}
busy=
trap 'terminal kill-server 2>/dev/null; [ -z "$busy" ] || kill "$busy"; rm -rf "$tmp"' EXIT

# One processor, the last that there is, for the program and its competitor.
last=$(taskset -cp $$ | sed 's/.*[-, ]//')
cat >"$tmp/start" <<END
exec taskset -c $last chrt -i 0 $bin/moe-run -t 1 -c 192 $tiny
END
terminal new-session -d -s moe -x 100 -y 40 \
    "HOME=$tmp LC_ALL=C.UTF-8 PS1=shell: exec bash --noprofile --norc -i"
wait_for shell: 30
keys -l "sh $tmp/start"
keys Enter
check "it prompts" wait_for '>' 60
taskset -c "$last" sh -c 'while :; do :; done' &
busy=$!
n=0 stopped=0 lost=0 shown=0
while [ "$n" -lt "$rounds" ] && [ "$shown" = "$n" ]; do
    n=$((n + 1))
    keys C-z
    wait_for shell: 30 && stopped=$((stopped + 1))
    keys -R # or a prompt from before would do
    keys -l fg
    keys Enter
    wait_for '>' 30 && shown=$((shown + 1))
    ! terminal capture-pane -p -J -t moe | grep -q 'not found' || lost=$((lost + 1))
done
check "$n rounds of $rounds: stopped $stopped times, $lost keys lost to the program, the prompt there again $shown times" \
    [ "$stopped" = "$rounds" -a "$lost" = 0 -a "$shown" = "$rounds" ]
kill "$busy"
busy=
keys C-d
check "... and the shell has the terminal in the end" wait_for shell: 30
finish
