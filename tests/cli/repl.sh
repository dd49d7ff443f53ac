# The interactive prompt, typed into a real terminal (tmux): streaming, commands, Ctrl-C, leaving.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
if ! command -v tmux >/dev/null; then
    echo "ok 1 - the interactive prompt in a terminal # SKIP no tmux"
    echo "1..1"
    exit 0
fi
pack
screen=$tmp/screen
# A server of our own, so that no session or configuration of the user is touched; a new one for each
# terminal, since one that is ending may still take a session and end with it.
terminals=0
terminal() { tmux -S "$tmp/tmux.$terminals" -f /dev/null "$@"; }
trap 'terminal kill-server 2>/dev/null; rm -rf "$tmp"' EXIT

keys() { terminal send-keys -t moe "$@"; }
look() { terminal capture-pane -p -J -S - -t moe >"$screen" 2>/dev/null; }
# Waits, up to 30 s, until the command succeeds on $screen: all lines since the terminal was opened.
wait_for() {
    tries=0
    while [ "$tries" -lt 300 ]; do
        if look && "$@"; then return 0; fi
        tries=$((tries + 1))
        sleep 0.1
    done
    tail -n 30 "$screen" | sed 's/^/# /'
    return 1
}
has() { [ "$(grep -Ec -- "$1" "$screen")" -ge "${2:-1}" ]; }
shows() { wait_for has "$@"; } # PATTERN [TIMES]
last_line() { grep -v '^ *$' "$screen" | tail -n 1 | sed 's/ *$//'; }
last_line_ends() { case $(last_line) in *"$1") ;; *) false ;; esac; }
# Enter comes when the line is there: until then the last line may be the prompt for it, which
# `prompts` would take for the next.
type_line() {
    keys -l "$1"
    wait_for last_line_ends "$1"
    keys Enter
}
last_line_is() { [ "$(last_line)" = "$1" ]; }
prompts() { wait_for last_line_is '>'; }
# Words in the answer to a line, as far as it has come: lines below the one that was typed.
answers() { sed -n "/^> $1/,\$p" "$screen" | sed 1d | grep -q '[a-z][a-z]'; }

open_terminal() { # OPTION...
    terminal kill-server 2>/dev/null
    terminals=$((terminals + 1))
    cat >"$tmp/start" <<EOF
trap : INT # Ctrl-C is for the program
unset XDG_STATE_HOME NO_COLOR
export HOME=$tmp LC_ALL=C.UTF-8
$bin/moe-run -t 1 --seed 7 $* $tiny
echo "left with \$?"
exec sleep 1000
EOF
    code=0
    terminal new-session -d -s moe -x 100 -y 40 sh "$tmp/start" >"$out" 2>"$err" || code=$?
}
footer='[0-9.]+ tok/s, [0-9.]+ s to first token'

open_terminal -n 24 --ignore-eos
check "it starts in a terminal" [ "$code" = 0 ]
check "it says what to do" shows 'press Enter; /help lists the commands, Ctrl-D leaves'
check "... and what was opened" has '12 layers'
check "... and prompts" prompts
type_line 'Once upon a time'
check "an answer ends with a footer" shows "$footer"
check "... below its text" answers 'Once upon a time'
check "... says that -n stopped it" has '/continue resumes'
check "... and the prompt is back" prompts
type_line ''
check "an empty line continues the answer" shows "$footer" 2
check "... to the prompt" prompts
type_line '/help'
check "/help lists the commands" shows '^/reset .*forget'
check "... all of them" has '^/(help|stats|memory|strategy|system|file|set|stop|continue|reset|quit) ' 11
prompts
type_line '/stats'
check "/stats adds up both answers" shows '48 generated'
prompts
type_line '/memory'
check "/memory tells" shows 'process .* at its peak'
prompts
type_line '/set temp 0'
prompts
type_line '/set'
check "/set sets and shows" shows '^temp +0 '
prompts
type_line '/set temp warm'
check "/set refuses what is no number" shows "'warm' is not a value of temp"
prompts
type_line '/nonsense'
check "an unknown command is named" shows '^unknown command /nonsense; /help lists them'
prompts
type_line '/strategy'
check "/strategy tells" shows '^resident$'
prompts
type_line '/reset'
check "/reset empties the context" shows 'the context is empty'
prompts
type_line 'One line \'
check "a backslash asks for more" wait_for last_line_is '.'
type_line 'and another'
check "... and both are asked" shows "$footer" 3
check "... at once" prompts
keys Up
check "Up brings the last input back" shows '^> One line' 2
keys C-c
check "Ctrl-C drops what was typed" shows '\^C$'
prompts
keys C-d
check "Ctrl-D leaves with 0" shows 'left with 0'

open_terminal --cpu scalar --ignore-eos --temp 0
prompts
type_line 'Once upon a time'
# Long enough an answer that the key comes into it: plain C, up to the context's end.
check "words stream" wait_for answers 'Once upon a time'
keys C-c
check "Ctrl-C ends the answer with its footer" shows "$footer"
check "... before its time" sh -c "! grep -q 'context of .* is full' '$screen'"
check "... and the prompt is back" prompts
type_line '/set n 5'
prompts
type_line ''
check "... for more" shows "$footer" 2
prompts
keys C-c
check "Ctrl-C at an empty prompt says how to leave" shows 'Ctrl-C again'
prompts
keys C-c
check "... and leaves when pressed again, with 0" shows 'left with 0'

# Stopped at the prompt, and again in the foreground.
if command -v bash >/dev/null; then
    open_terminal -n 3
    prompts
    keys C-d
    shows 'left with 0'
    sed -i '/^echo/,$d' "$tmp/start"
    terminal kill-server
    terminals=$((terminals + 1))
    terminal new-session -d -s moe -x 100 -y 40 "PS1=shell: exec bash --noprofile --norc -i"
    wait_for last_line_is shell:
    type_line "sh $tmp/start"
    check "it prompts in an interactive shell" prompts
    keys -l '/he'
    wait_for last_line_is '> /he'
    keys C-z
    check "Ctrl-Z gives the terminal back" wait_for last_line_is shell:
    type_line fg
    check "fg shows the prompt with what was typed" wait_for last_line_is '> /he'
    type_line 'lp'
    check "... which is edited as before" shows '^/reset .*forget'
    check "... and shown once" sh -c "! grep -q 'lplp\|/help/help' '$screen'"
    prompts
    keys C-d
    check "... and left for the shell" wait_for last_line_is shell:
fi

open_terminal -n 3
prompts
type_line '/quit'
check "/quit leaves with 0" shows 'left with 0'
check "the history is kept" grep -q 'One.*line' "$tmp/.local/state/moe-toolkit/history"

# A random model whose tokens are single bytes answers with control characters.
"$bin/moe-quantize" -q -t 1 -o "$tmp/noise.moe" tests/fixtures/qwen2-moe-a
tiny=$tmp/noise.moe
open_terminal -n 100 --temp 1 --ignore-eos
prompts
type_line 'Once upon'
check "control characters of an answer are shown" shows '<1[0-9A-F]>'
check "... and the footer comes" shows "$footer"
check "... and the prompt" prompts
keys C-d
check "... and it leaves with 0" shows 'left with 0'
finish
