# The interactive prompt by key strokes, in a real terminal (tmux) with an interactive shell: streaming, commands,
# pasting, Tab, type-ahead, Ctrl-C, Ctrl-Z and fg, resizing, leaving.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
if ! command -v tmux >/dev/null; then
    echo "ok 1 - the interactive prompt in a terminal # SKIP no tmux"
    echo "1..1"
    exit 0
fi
pack
screen=$tmp/screen
trap 'end_terminal; rm -rf "$tmp"' EXIT

keys() { terminal send-keys -t moe "$@"; }
look() { terminal capture-pane -p -J -S - -t moe >"$screen" 2>/dev/null; }
# Waits, up to a minute, until the command succeeds on $screen: all lines since the program was started.
wait_for() {
    tries=0
    while [ "$tries" -lt 1200 ]; do
        if look && "$@"; then return 0; fi
        need_terminal
        tries=$((tries + 1))
        sleep 0.05
    done
    tail -n 30 "$screen" | sed 's/^/# /'
    return 1
}
count() { grep -Ec -- "$1" "$screen"; }
has() { [ "$(count "$1")" -ge "${2:-1}" ]; }
has_no() { [ "$(count "$1")" = 0 ]; }
once() { [ "$(count "$1")" = 1 ]; }
shows() { wait_for has "$@"; } # PATTERN [TIMES]
last_line() { grep -v '^ *$' "$screen" | tail -n 1 | sed 's/ *$//'; }
last_line_ends() { case $(last_line) in *"$1") ;; *) false ;; esac; }
last_line_is() { [ "$(last_line)" = "$1" ]; }
prompts() { wait_for last_line_is '>'; }
# Enter comes when the line is there: until then the last line may be the prompt for it, which
# `prompts` would take for the next.
type_text() {
    keys -l "$1"
    wait_for last_line_ends "$1"
}
type_line() {
    type_text "$1"
    keys Enter
}
paste_text() { # TEXT, in the format of printf
    # shellcheck disable=SC2059 # a format is meant
    printf "$1" >"$tmp/clip"
    terminal load-buffer "$tmp/clip"
    terminal paste-buffer -p -d -t moe
}
# Words in the answer to a line, as far as it has come: lines below the one that was typed.
answers() { sed -n "/^> *$1/,\$p" "$screen" | sed 1d | grep -q '[a-z][a-z]'; }

# The shell has no editor of its own that would put the terminal right.
terminal new-session -d -s moe -x 120 -y 40 \
    "env -u XDG_STATE_HOME -u NO_COLOR -u ENV HOME='$tmp' LC_ALL=C.UTF-8 PS1=shell: sh -i" >"$out" 2>"$err"
check "there is a terminal with a shell" wait_for last_line_is shell: || finish
# The shell's own child, whose number is in $tmp/pid.
start() { # OPTION...
    cat >"$tmp/start" <<EOF
echo \$\$ >"$tmp/pid"
exec $bin/moe-run -t 1 --seed 7 $* $tiny
EOF
    wait_for last_line_is shell:
    keys -l "clear; sh $tmp/start"
    wait_for last_line_ends "/start"
    keys Enter
    # What stood there before goes with the line that started this.
    wait_for has_no '/start$'
    terminal clear-history -t moe
}
left_with() { # STATUS
    wait_for last_line_is shell:
    type_line 'echo left with $?'
    shows "^left with $1\$"
}
footer='[0-9.]+ tok/s, [0-9.]+ s to first token'

start -n 24 --ignore-eos
check "it says what to do" shows 'press Enter; /help lists the commands, Ctrl-D leaves'
check "... and what was opened" shows 'tiny\.moe: .*12 layers, .* experts'
check "... and prompts" prompts
check "... and is dim besides" sh -c "tmux -S '$tmp/tmux' capture-pane -p -e -t moe | grep -q '\[2m'"
paste_text '/help me\nwith three\n  lines\n'
check "pasted lines stand in the line" wait_for last_line_is '  lines'
check "... and are not sent by themselves" has_no "$footer"
type_text ' and more'
keys Enter
check "... but by Enter, as one message" shows "$footer"
check "... which is no command" has_no '^/reset'
check "... to the prompt" prompts
type_line 'Once upon a time'
check "an answer ends with a footer" shows "$footer" 2
check "... below its text" answers 'Once upon a time'
check "... says that -n stopped it" has '/continue resumes'
check "... and nothing of reading, where nothing was read" has_no ' hits'
check "... and the prompt is back" prompts
type_line ''
check "an empty line continues the answer" shows "$footer" 3
check "... to the prompt" prompts
type_line '/stats'
check "/stats adds up the answers" shows '72 generated'
prompts
type_line '/memory'
check "/memory tells" shows 'at its peak'
sums() {
    sed -n '/ = .* MiB, /p' "$screen" | tr -s ' +=' '\n' | awk '
        /^MiB/ { exit }
        /^[0-9.]+$/ { n++; sum += before; before = $0 }
        END { exit !(n == 6 && sum - before < 0.05 && before - sum < 0.05) }'
}
check "... in parts that add up" sums
case $BUILD in # a sanitizer's memory grows
*san*) ;;
*)
    peak_fits() {
        sed -n 's/.* = \([0-9.]*\) MiB, .*/\1/p; s/.* now, \([0-9.]*\) MiB at its peak.*/\1/p' "$screen" |
            awk 'NR == 1 { sum = $1 } NR == 2 { peak = $1 } END { exit !(NR == 2 && peak > 0 && peak <= sum) }'
    }
    check "... and are not less than the process took" peak_fits
    ;;
esac
prompts
type_line '/set temp 0'
check "/set confirms" shows '^temp is 0$'
prompts
type_line '/set temp'
check "... shows a value and its range" shows '^temp +0 +\(0 to 100;'
prompts
type_line '/set top-p'
check "... the model's own where none was set" shows "^top-p +0.95 +\(the model's, 0 to 1"
prompts
type_line '/set min-p'
check "... and the default where it has none" shows '^min-p +0.05 +\(default, 0 to 1'
prompts
type_line '/set'
check "... and all of them" shows '^n +24 +\('
prompts
type_line '/set temp warm'
check "... refuses what is no value, and says the range" shows "'warm' is not a value of temp: 0 to 100"
prompts
type_line '/set tmp 1'
check "... and asks back" shows "unknown setting 'tmp'; did you mean temp"
prompts
type_line '/set temperature 1'
check "... what other programs call it" shows "unknown setting 'temperature'; did you mean temp"
prompts
type_line '/set top_k 1'
check "... and with other marks" shows "unknown setting 'top_k'; did you mean top-k"
prompts
type_line '/show'
check "/show names the model" shows '^model +.*tiny.moe: qwen2_moe$'
check "... its weights" has '^weights +12 layers, .* bits/weight'
check "... its template" has '^template +none: plain continuation$'
check "... the context" has '^context +[0-9]+ of 512 tokens in use'
check "... memory" has '^memory +[0-9.]+ MiB of .* in use'
check "... and sampling, with who says so" has \
    "^sampling temp 0 \(asked for\)\$"
prompts
type_line '/clear'
check "other programs' commands: ours" shows '^unknown command /clear; did you mean /reset'
prompts
type_line '/rest'
check "an unknown command: the nearest" shows '^unknown command /rest; did you mean /reset'
prompts
type_line '/nonsense'
check "... if there is one" shows '^unknown command /nonsense; /help lists them'
prompts
type_line '/strategy'
check "/strategy tells" shows '^resident$'
prompts

keys -l /me
keys Tab
check "Tab completes a command" wait_for last_line_is '> /memory'
keys C-c
check "Ctrl-C clears the line" shows '^> /memory \^C'
prompts
keys -l '/set repeat-p'
keys Tab
check "Tab completes a setting" wait_for last_line_is '> /set repeat-penalty'
keys C-u
prompts
keys -l '/st'
keys Tab
check "Tab lists what there is" shows '^stats +stop +strategy'
check "... and shows the line again" wait_for last_line_is '> /st'
keys C-u
prompts
seq -s ' ' 1 90 >"$tmp/some words.txt"
keys -l "/file $tmp/some"
keys Tab
check "Tab completes a file's name" wait_for last_line_ends '/some words.txt'
keys Enter
check "/file says what joins the message" shows 'words\.txt: .*joins your next message'
prompts
type_line 'Once upon a time'
shows "$footer" 4
prompts
type_line '/memory'
check "... which has its text" shows '[123][0-9][0-9] of 512 tokens'
prompts
type_line '/file none.txt'
check "... or why it does not" shows 'none\.txt: cannot open'
prompts
seq -s ' ' 1 900 >"$tmp/long.txt"
type_line "/file $tmp/long.txt"
check "... as one too long: both numbers, and what would hold it" shows \
    'long\.txt: the prompt of at least [0-9]+ tokens does not fit the context of 512'
prompts
type_line '/stop named'
check "/stop adds a stop text" shows "^'named'"
prompts
type_line '/reset'
check "/reset empties the context" shows 'the context is empty'
prompts
type_line 'Once upon a time,'
check "... which ends an answer" shows "$footer" 5
check "... before it" sh -c "! sed -n '/^> Once upon a time,/,\$p' '$screen' | grep -q named"
prompts
type_line '/help'
check "/help lists the commands" shows '^/reset .*forget'
check "... all of them" has '^/(help|stats|memory|strategy|system|file|set|stop|continue|undo|retry|save|load|reset|quit) ' 15
prompts
type_line 'One line \'
check "a backslash asks for more" wait_for last_line_is '.'
type_line 'and another'
check "... and both are asked" shows "$footer" 6
check "... at once" prompts
type_line '"""'
wait_for last_line_is '.'
type_line '/quit'
wait_for last_line_is '.'
type_line '"""'
check 'what stands between """ is text' shows "$footer" 7
prompts
keys Up Up
check "Up brings the last inputs back" shows '^> One line' 2
keys C-c
prompts
keys C-d
check "Ctrl-D leaves with 0" left_with 0
wait_for last_line_is shell:
type_line 'cat -v'
paste_text 'a plain paste'
check "... whose pastes are not marked" wait_for last_line_is 'a plain paste'
keys Enter C-d

start --cpu scalar --ignore-eos --temp 0
prompts
type_line 'Once upon a time'
# Long enough an answer that keys come into it: plain C, up to the context's end.
check "words stream" wait_for answers 'Once upon a time'
keys -l 'typed ahead'
keys C-c
check "Ctrl-C ends the answer with its footer" shows "$footer"
check "... and says so" has '^\(stopped\)$'
check "... before its time" has_no 'context of .* is full'
check "what was typed meanwhile waits for the next line" wait_for last_line_is '> typed ahead'
check "... and was not shown before" once 'typed ahead'
keys C-u
prompts
type_line ''
wait_for answers '$'
keys C-z
check "Ctrl-Z stops an answer" wait_for last_line_is shell:
type_line 'echo the terminal is y""ours'
check "... and gives the terminal back" shows '^the terminal is yours'
wait_for last_line_is shell:
type_line 'fg'
keys -l '/set n 5'
keys Enter
sleep 0.1
keys C-c
check "fg goes on with it, and a line typed ahead is taken" shows '^n is 5'
check "... once it has been stopped" shows "$footer" 2
prompts
type_line ''
check "... as after Ctrl-C" shows "$footer" 3
prompts
keys C-c
check "Ctrl-C at an empty prompt says how to leave" shows 'Ctrl-C again'
prompts
keys C-c
check "... and leaves when pressed again, with 0" left_with 0

start -n 3 --no-checksums
prompts
type_text '/he'
keys C-z
check "Ctrl-Z gives the terminal back" wait_for last_line_is shell:
type_line fg
check "fg shows the prompt with what was typed" wait_for last_line_is '> /he'
type_line 'lp'
check "... which is edited as before" shows '^/reset .*forget'
check "... and shown once" sh -c "! grep -q 'lplp\|/help/help' '$screen'"
prompts
keys -l 'resize this, a line of many short words that goes on and on until it has come to the end of what it is to say'
wait_for has 'is to say$'
tty=$(terminal display-message -p -t moe '#{pane_tty}')
resized() { [ "$(stty size <"$tty")" = "40 $width" ] && once 'resize this'; }
for width in 70 50 100 33 120; do
    terminal resize-window -t moe -x "$width"
    wait_for resized
    keys -l . # comes after the signal
    check "a window of $width columns shows the line once" wait_for has ' say\.+$'
    check "... and is edited as before" once 'resize this'
done
keys C-a
keys C-c
check "Ctrl-C in the middle leaves all of it" shows '^> resize this.* is to say\.{5}\^C$'
check "... above the next prompt" prompts
kill -TERM "$(cat "$tmp/pid")"
check "a signal ends it" left_with 143
wait_for last_line_is shell:
type_line 'echo and the terminal is y""ours'
check "... and the terminal is given back" shows '^and the terminal is yours'
check "the history is kept" grep -q 'One.*line' "$tmp/.local/state/moe-toolkit/history"

# Slow reads: a bar while the prompt is read.
start -n 3 --strategy lru --expert-memory 2M --link-rate 3M --batch 8
prompts
type_line 'Once upon a time there was a little girl who liked to play in the park with all of her friends and a dog'
check "a long prompt has a bar" shows '^reading the prompt \[#*\.*\] +[0-9]+%'
check "... and then an answer, below which reads are told" shows "$footer, [0-9]+% hits, .*/token read"
check "... and no bar" has_no 'reading the prompt'
prompts
type_line '/quit'
check "/quit leaves with 0" left_with 0

# Calls of tools.
echo '[{"name": "find", "parameters": {"type": "object", "properties": {"path": {"enum": ["a", "b"]}},
    "required": ["path"], "additionalProperties": false}}]' >"$tmp/tools"
start -n 60 --template-file tests/data/calls.jinja --tools "$tmp/tools" --tool-choice required --temp 0
prompts
type_line '/result none'
check "/result without a call" shows 'no call of a tool without a result'
prompts
type_line 'Find it'
check "a call is shown" shows '-> find\(\{"path": "[ab]"\}\)'
prompts
type_line '/result there'
check "/result answers it" shows '-> find\(\{"path": "[ab]"\}\)' 2
prompts
type_line '/quit'
check "/quit leaves with 0" left_with 0

# Turns: taken back, asked again, kept in a file; and a full context.
cat >"$tmp/chatml" <<'END'
{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
END
start -n 4 --ignore-eos --template-file "$tmp/chatml"
prompts
type_line '/undo'
check "/undo with nothing said" shows 'there is no question to take back'
prompts
type_line 'One day'
check "a question" shows "$footer"
prompts
type_line '/retry'
check "/retry asks it again" shows "$footer" 2
prompts
type_line "/save $tmp/kept"
check "/save keeps it" shows 'saved [0-9]+ tokens'
prompts
type_line '/undo'
check "/undo takes it back" shows 'its answer are gone'
prompts
type_line ''
check "... so that there is nothing to continue" shows 'nothing to continue'
prompts
type_line "/load $tmp/kept"
check "/load goes on with it" shows 'loaded [0-9]+ tokens'
prompts
type_line ''
check "... where it was" shows "$footer" 3
prompts
type_line "/load $tiny"
check "/load of another file says so" shows 'is not a context file'
prompts
keys C-d
start -c 40 -n 60 --ignore-eos --template-file "$tmp/chatml"
prompts
type_line 'One day'
check "a full context offers to drop the oldest turns" shows 'drop the oldest turns from now on\? \[y/n\]'
keys -l y
keys Enter
check "... and goes on" shows '[0-9]+ tokens were dropped'
check "... to the answer's end" shows "$footer"
prompts
type_line 'And then there was another one'
check "... from then on" shows "$footer" 2
check "... without asking" has '\[y/n\]' 1
check "... nothing is refused" sh -c "! grep -q 'does not fit' '$screen'"
prompts
keys C-d

# What cannot fit is said without a question; a line that is no answer to one is the next input.
long='one two three four five six seven eight nine ten eleven twelve'
start -c 60 -n 8 --ignore-eos --template-file "$tmp/chatml"
prompts
type_line 'One day'
check "a first turn" shows "$footer"
prompts
paste_text "$long $long $long $long"
keys Enter
check "a message that can never fit: both numbers, and what would hold it" shows \
    'the prompt of [0-9]+ tokens does not fit the context of 60 \(-c 512 would hold it\)'
check "... without a question" has_no '\[y/n\]'
prompts
type_line 'And then'
check "... and the next line is answered" shows "$footer" 2
prompts
type_line "$long"
check "one that fits alone: a question" shows 'drop the oldest turns from now on\? \[y/n\]'
type_line '/show'
check "... a line that is neither yes nor no is the next input" shows '^context +[0-9]+ of 60 tokens in use'
prompts
keys C-d
start -c 60 -n 100 --ignore-eos
prompts
type_line 'One day'
check "an answer fills the context: a question" shows 'drop the oldest turns from now on\? \[y/n\]'
keys n
keys Enter
check "... and its end" shows "$footer"
prompts
type_line '/show'
check "... and no more than that is in use" shows '^context +60 of 60 tokens in use'
prompts
keys C-d

# What a thought has taken of the length is no part of what a grammar holds.
sed 's/^{% endif %}$/<think>\n&/
s/^{{ m.content }}/{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n<\/think>\n\n{% endif %}&/' tests/data/calls.jinja >"$tmp/thinks.jinja"
echo 'root ::= "yes"' >"$tmp/yes"
start -n 8 --temp 0 --template-file "$tmp/thinks.jinja" --grammar "$tmp/yes"
prompts
type_line 'Once'
check "a thought is cut" shows "$footer"
prompts
type_line '/continue'
check "... and goes on before a grammar" shows "$footer" 2
check "... as a thought" has_no 'does not follow its grammar'
prompts
keys C-d

# A random model whose tokens are single bytes answers with control characters.
"$bin/moe-quantize" -q -t 1 -o "$tmp/noise.moe" "$drawn/qwen2-moe-a"
tiny=$tmp/noise.moe
start -n 100 --temp 1 --ignore-eos
prompts
type_line 'Once upon'
check "control characters of an answer are shown" shows '<1[0-9A-F]>'
check "... and the footer comes" shows "$footer"
check "... and the prompt" prompts
keys C-d
check "... and it leaves with 0" left_with 0
finish
