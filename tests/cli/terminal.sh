# What a terminal is given: control characters that come from a model or a file are shown, not sent; where
# the output is no terminal its bytes are as they are. And outputs that are full for a while, or for ever.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
# A random model whose tokens are single bytes says anything.
noise=$tmp/noise.moe
"$bin/moe-quantize" -q -t 1 -o "$noise" "$drawn/qwen2-moe-a" || exit 1
# In the background it is the program itself, which signals then reach.
talk() { exec "$bin/moe-run" -t 1 "$noise" -p 'Once upon' -n 200 --temp 1 --top-k 0 --top-p 1 --min-p 0 --seed 6 --ignore-eos; }
(talk) >"$tmp/bytes"
sent() { # FILE: control characters in it beside tab, newline and what a terminal makes of newlines
    LC_ALL=C tr -d '\11\12\15\40-\176\200-\377' <"$1" | wc -c
}
says() { grep -qF -- "$1" "$out"; }
talk | cat >"$tmp/piped"
check "an answer in a pipe is its bytes" cmp -s "$tmp/bytes" "$tmp/piped"
check "... of which many are control characters" [ "$(sent "$tmp/bytes")" -gt 10 ]

if command -v script >/dev/null; then
    # The terminal's output is in $out, with standard error in it.
    on_terminal() { # COMMAND
        code=0
        script -qec "$1" /dev/null >"$out" 2>"$err" </dev/null || code=$?
    }
    escape=$(printf '\033')
    on_terminal "$bin/moe-run -t 1 $noise -p 'Once upon' -n 200 --temp 1 --top-k 0 --top-p 1 --min-p 0 --seed 6 --ignore-eos --kv f32"
    expect_exit 0 "an answer on a terminal"
    check "... sends no control characters" [ "$(sent "$out")" = 0 ]
    check "... but shows them" says '<1B>'
    check "... and bytes that are no text" says '<F7>'
    check "... and whole characters that two tokens bring" says 'ʀ'
    on_terminal "$bin/moe-run -t 1 $noise -p 'Once upon' -n 1 --temp 1 --top-k 0 --top-p 1 --min-p 0 --seed 6 --ignore-eos --stop x"
    check "... and the last of all bytes" [ "$(tr -d '\r\n' <"$out")" = '^' ]

    on_terminal "stty -onlcr; export OMPI_COMM_WORLD_SIZE=1; $bin/moe-run -t 1 $noise -p 'Once upon' -n 200 --temp 1 --top-k 0 --top-p 1 --min-p 0 --seed 6 --ignore-eos"
    check "the terminal that mpirun gives to a process: the bytes as they are" cmp -s "$tmp/bytes" "$out"

    echo '{{ messages[0].content }}' >"$tmp/template"
    spoken="$bin/moe-run -t 1 $noise -p 'Once upon' -n 200 --temp 1 --top-k 0 --top-p 1 --min-p 0 --seed 10 --ignore-eos --json --template-file $tmp/template"
    on_terminal "$spoken"
    expect_exit 0 "an answer as JSON on a terminal"
    check "... has escapes of JSON" grep -q '\\u007f' "$out"
    check "... not the terminal's" [ "$(grep -c '<[0-9A-F][0-9A-F]>' "$out")" = 0 ]

    csi=$(printf '\302\233') # the control sequence introducer by itself
    odd="$tmp/x${escape}[31m${csi}2J.moe"
    cp "$noise" "$odd"
    on_terminal "$bin/moe-quantize --verify '$odd'"
    expect_exit 0 "a file whose name has control characters"
    check "... which are shown" says 'x<1B>[31m<9B>2J.moe: OK'
    run "$bin/moe-quantize" --verify "$odd"
    check "... and not changed in a pipe" says "$odd: OK"
    on_terminal "$bin/moe-run '$odd.not' -p x"
    expect_exit 1 "an error line with such a name"
    check "... has none" [ "$(sent "$out")" = 0 ]
    check "... nor those of two bytes" says '<9B>2J.moe.not: cannot open'
    cp -r "$drawn/qwen2-moe-a" "$tmp/odd"
    sed 's/"model_type": *"[^"]*"/"model_type": "x\\u001b]0;y\\u0007"/' "$drawn/qwen2-moe-a/config.json" \
        >"$tmp/odd/config.json"
    on_terminal "$bin/moe-quantize -o '$tmp/odd.moe' '$tmp/odd'"
    expect_exit 3 "a model type with control characters is refused"
    check "... in a line without them" [ "$(sent "$out")" = 0 ]

    # What is drawn for people is as wide as the terminal.
    pack
    head -c 1500 tests/data/stories.calib.txt >"$tmp/text"
    run "$bin/moe-profile" -q --text "$tmp/text" -o "$tmp/stats" --trace "$tmp/trace" "$tiny"
    expect_exit 0 "statistics to draw"
    full=tests/fuzz/corpus/plan/full
    cp tests/fuzz/corpus/map/full-nll "$tmp/map"
    drawn() { # COLUMNS: the widest line
        on_terminal "stty cols $1; export LC_ALL=C.UTF-8; for program in $bin/moe-*; do \$program --help; done;
            $bin/moe-run --strategy help; $bin/moe-profile --show $tmp/stats; $bin/moe-plan --explain $tmp/stats;
            $bin/moe-plan --explain $tiny; $bin/moe-plan --explain $tmp/trace; $bin/moe-plan --explain $tmp/map;
            $bin/moe-plan --explain profiles/jetson-agx-orin.yaml; $bin/moe-plan --explain $full;
            $bin/moe-plan --explain $full --compare tests/fuzz/corpus/plan/fate; $bin/moe-quantize --list $tiny; $bin/moe-run $tiny -p x -n 1 --stats"
        sed "s/$escape\[[0-9;]*m//g" "$out" | tr -d '\r' | LC_ALL=C.UTF-8 wc -L
    }
    for columns in 60 72 100 160; do
        widest=$(drawn $columns)
        check "at $columns columns no line is wider: $widest" [ "$widest" -le $columns -a "$widest" -gt 50 ]
    done
    check "... and bars and maps take what there is" [ "$widest" -gt 100 ]
    "$bin/moe-profile" --show "$tmp/stats" >"$tmp/piped"
    check "a pipe: neither sequences nor blocks" [ "$(sent "$tmp/piped")$(tr -d '\0-\177' <"$tmp/piped" | wc -c)" = 00 ]
else
    skip "control characters on a terminal" "no script"
fi

# A pipe without room: non-blocking, as a shell's other programs may have made it, until it is read.
# Until $pid sleeps and stays so: there is nothing left to do but to wait for the pipe.
until_it_waits() {
    looks=0
    until_catches "$pid" 2
    while [ "$looks" -lt 4 ] && kill -0 "$pid" 2>/dev/null; do
        if grep -q '^State:.S' "/proc/$pid/status"; then looks=$((looks + 1)); else looks=0; fi
        sleep 0.05
    done
}
full_pipe() {
    rm -f "$tmp/pipe"
    mkfifo "$tmp/pipe"
    exec 3<>"$tmp/pipe"
    dd if=/dev/zero bs=4096 count=1000 oflag="$1" 2>/dev/null >&3
}
if dd if=/dev/null oflag=nonblock 2>/dev/null; then
    full_pipe nonblock
    talk >&3 2>"$err" &
    pid=$!
    until_it_waits
    dd bs=4096 count=16 2>/dev/null <"$tmp/pipe" >/dev/null
    code=0
    wait "$pid" || code=$?
    expect_exit 0 "a pipe that is full for a while"
    expect_stderr_lines 0 "... is waited for"
    dd bs=4096 count=1 2>/dev/null <"$tmp/pipe" >"$out"
    check "... and gets every byte" cmp -s "$out" "$tmp/bytes"
    full_pipe nonblock
    talk >&3 2>"$err" &
    pid=$!
    until_it_waits
    kill -INT "$pid"
    code=0
    wait "$pid" || code=$?
    : >"$out"
    error_line 1 'moe-run: stopped without waiting any longer for *' "one Ctrl-C ends a write that does not"
    exec 3>&-
else
    skip "a pipe that is full for a while" "dd cannot fill one"
fi
# Long work says how far it is, also to a file; not with -q.
pack
cat tests/data/*.txt tests/data/*.txt tests/data/*.txt >"$tmp/long.txt"
long_work() { # NAME OPTION...: in the background
    name=$1
    shift
    exec "$bin/moe-profile" -t 1 --cpu scalar "$tiny" --text "$tmp/long.txt" --max-tokens 16 -o "$tmp/$name.yaml" "$@" 2>"$tmp/$name"
}
began=$(date +%s)
long_work loud &
loud=$!
long_work quiet -q &
quiet=$!
until_catches "$loud" 2
until_catches "$quiet" 2
sleep 0.2 # their work has begun
kill -STOP "$loud" "$quiet" # for five seconds, for they need not compute meanwhile
sleep 5
kill -CONT "$loud" "$quiet"
for pause in $(seq 300); do
    [ ! -s "$tmp/loud" ] || break
    sleep 0.1
done
sleep 1 # the quiet one would say it by now
kill -INT "$loud" "$quiet"
wait
took=$(($(date +%s) - began))
sed -nE "/$progress_line/p" "$tmp/loud" >"$progress"
check "after five seconds a line says how far it is: $(head -n 1 "$progress")" grep -q '^moe-profile: [a-z ]*: [0-9]*%' "$progress"
check "... no more than a line in five seconds" [ "$(wc -l <"$progress")" -le $((took / 5)) ]
check "-q says nothing of it" [ -z "$(sed -nE "/$progress_line/p" "$tmp/quiet")" ]
finish
