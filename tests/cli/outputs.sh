# Outputs of every program: those that cannot be written are refused before the work; a full disk, a
# limit on file sizes or a directory in the way is one error line, leaves the old file and loses nothing
# that was measured.
. tests/cli/lib.sh
pack
sample=$tmp/sample
head -c 1500 tests/data/math.valid.txt >"$sample"

# Tried first: the inputs are not there either, and what is said is about the output.
: >"$tmp/no-directory"
while read -r option command; do
    for where in none/x no-directory/x in-the-way; do
        mkdir -p "$tmp/in-the-way"
        # shellcheck disable=SC2086 # words are meant
        run "$bin"/$command --$option "$tmp/$where" </dev/null
        error_line 1 "${command%% *}: $tmp/$where: *" "${command%% *} --$option $where is refused first"
    done
done <<END
output moe-quantize none
output moe-profile none --text none
trace moe-profile none --text none -o $tmp/x
output moe-profile --merge none
output moe-profile --import none
output moe-profile --device none
output moe-calibrate none --text none
output moe-calibrate --merge none
output moe-plan none --memory 30M
stats-json moe-run none
trace-events moe-run none
token-log moe-run none --perplexity none
logits moe-run none --perplexity none
output moe-run none --requests none
output moe-serve none --requests none
END
rmdir "$tmp/in-the-way"
run "$bin/moe-profile" "$tiny" --text "$sample" -o /dev/null
error_line 1 "moe-profile: /dev/null: is not a regular file*" "a device is no output"
run "$bin/moe-profile" "$tiny" --text "$sample" -o "$tmp/x" --trace "$tmp/x"
error_line 2 "moe-profile: options --output and --trace name the same file*" "nor one file two"
run "$bin/moe-quantize" "$checkpoint" -o -
error_line 2 "moe-quantize: option --output: is not written in one go, as standard output is; name a file*" "a pack does not go to standard output"
check "nothing was made" [ ! -e "$tmp/x" ]
check "... nor a file -" [ ! -e - ]

# Every output where nothing can be written: what was there stays, and nothing beside it.
disk=$tmp/full
mkdir "$disk"
"$bin/moe-quantize" -q -t 1 --method rtn --experts 4,2 -o "$tmp/two.moe" "$checkpoint" || exit 1
"$bin/moe-profile" -q -t 1 "$tiny" --text "$sample" -o "$tmp/s.yaml" --trace "$tmp/t.trace" || exit 1
printf '# route_trace v1\n# model=m.gguf arch=x n_layer=1 n_expert=8 n_expert_used=1\n# layer=0 expert_bytes=1000 dense_bytes=5\nturn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n0,0,0,0,0,5,0.75,0,1000\n' >"$tmp/r.csv"
commands() {
    cat <<END
output moe-quantize -q -t 1 $checkpoint
output moe-quantize -q -t 1 --zstd 1 $tiny
output moe-profile -q -t 1 $tiny --text $sample
trace moe-profile -q -t 1 $tiny --text $sample -o $tmp/x
output moe-profile -q --merge $tmp/s.yaml
output moe-profile -q --merge $tmp/t.trace
output moe-calibrate -q -t 1 $tmp/two.moe --text $sample --max-tokens 16 --max-windows 1 --importance proxy --without fate --without hobbit --tolerance 1000%
output moe-plan -q $tiny --expert-memory 6M --strategy lru --trace $tmp/t.trace --device-profile $PWD/profiles/apple-m2.yaml
stats-json moe-run -t 1 $tiny -p One -n 2
trace-events moe-run -t 1 $tiny -p One -n 2
token-log moe-run -t 1 $tiny --perplexity $sample
logits moe-run -t 1 $tiny --perplexity $sample --max-windows 1
END
}
nothing_fits() { # NAME WHY SHELL-PREFIX
    commands >"$tmp/commands"
    while read -r option command; do
        if [ -z "$disk" ]; then
            skip "${command%% *} --$option, $1: one error line" "$2"
            skip "... and the old file" "$2"
            continue
        fi
        echo old >"$disk/x"
        code=0
        sh -c "$3 exec $bin/$command --$option $disk/x" >"$out" 2>"$err" </dev/null || code=$?
        check "${command%% *} --$option, $1: one error line" \
            sh -c "[ $code = 1 ] && [ \$(wc -l <'$err') = 1 ] && grep -q '^${command%% *}: $disk/x.*: $2\$' '$err'"
        check "... and the old file" [ "$(ls "$disk"):$(cat "$disk/x")" = x:old ]
        rm -f "$tmp/x" "$tmp/x.part"
    done <"$tmp/commands"
}
nothing_fits "a limit on file sizes" "File too large" "ulimit -f 1;"
if small_disk 8k; then
    echo old >"$disk/x"
    dd if=/dev/zero of="$disk/.full" bs=4096 count=1 2>/dev/null
    nothing_fits "a full disk" "No space left on device" ""
else
    disk=
    nothing_fits "a full disk" "none can be mounted here" ""
fi

# A directory that comes into the way of a finished file: what was measured is kept, and --resume ends
# with the files of an undisturbed run.
head -c 6000 tests/data/math.valid.txt >"$tmp/long"
head -c 100 tests/data/math.valid.txt >"$tmp/short"
profile() { "$bin/moe-profile" -q -t 1 "$tiny" --text "$tmp/long" --max-tokens 32 "$@"; }
calibrate() {
    "$bin/moe-calibrate" -q -t 1 "$tmp/two.moe" --text "$tmp/short" --max-tokens 24 --max-windows 1 --without fate \
        --without hobbit --tolerance 1000% "$@"
}
# Makes the directory as soon as $work/x.part is there; begins again where the command was faster.
in_the_way() { # DIRECTORY COMMAND...
    blocker=$1
    shift
    for try in 1 2 3 4 5 6 7 8 9 10; do
        rm -rf "$work"
        mkdir "$work"
        "$@" >"$out" 2>"$err" </dev/null &
        pid=$!
        until [ -e "$work/x.part" ] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
        mkdir "$blocker" 2>/dev/null && made=1 || made=0
        code=0
        wait "$pid" || code=$?
        [ "$made" = 0 ] || break
    done
}
work=$tmp/work
profile -o "$tmp/whole" --trace "$tmp/whole.trace" || exit 1
for blocked in x x.trace; do
    in_the_way "$work/$blocked" profile -o "$work/x" --trace "$work/x.trace"
    error_line 1 "moe-profile: $work/$blocked: *" \
        "moe-profile: a directory in the way of $blocked"
    check "... the part is kept" [ -s "$work/x.part" ]
    rmdir "$work/$blocked"
    run profile -o "$work/x" --trace "$work/x.trace" --resume
    expect_exit 0 "... --resume"
    check "... gives the statistics of one run" cmp "$tmp/whole" "$work/x"
    check "... and its trace" cmp "$tmp/whole.trace" "$work/x.trace"
    check "... and leaves nothing else" [ "$(ls "$work" | tr '\n' ' ')" = "x x.trace " ]
done
calibrate -o "$tmp/whole.map" || exit 1
in_the_way "$work/x" calibrate -o "$work/x"
error_line 1 "moe-calibrate: $work/x: *" \
    "moe-calibrate: a directory in the way"
check "... the part is kept" [ -s "$work/x.part" ]
rmdir "$work/x"
run calibrate -o "$work/x" --resume
expect_exit 0 "... --resume"
check "... gives the map of one run" cmp "$tmp/whole.map" "$work/x"
check "... and leaves nothing else" [ "$(ls "$work")" = x ]

# Links are followed, by a trace and its part as well.
rm -rf "$work"
mkdir "$work" "$work/elsewhere"
ln -s elsewhere/t "$work/x.trace"
ln -s elsewhere/s "$work/x"
run profile -o "$work/x" --trace "$work/x.trace"
check "links as outputs stay" sh -c "[ -L '$work/x' ] && [ -L '$work/x.trace' ]"
check "... and their targets are written" cmp "$tmp/whole.trace" "$work/elsewhere/t"
check "... both" cmp "$tmp/whole" "$work/elsewhere/s"

# What is written in one go goes straight into pipes, devices and what is open already.
one() { "$bin/moe-run" -t 1 "$tiny" -p One -n 2 --temp 0 "$@"; }
one >"$tmp/answer" 2>"$err" || exit 1
code=0
one --stats-json - >"$out" 2>"$err" || code=$?
expect_exit 0 "--stats-json -"
check "... comes after the answer" [ "$(head -c "$(wc -c <"$tmp/answer")" "$out")" = "$(cat "$tmp/answer")" ]
json=$out
check "... as the object of a file" [ "$(figure generated_tokens)" = 2 ]
mkfifo "$tmp/pipe"
cat "$tmp/pipe" >"$tmp/got" &
code=0
one --trace-events "$tmp/pipe" >"$out" 2>"$err" || code=$?
wait $!
expect_exit 0 "--trace-events into a pipe"
check "... which gets all of it" sh -c "head -c 1 '$tmp/got' | grep -qF '[' && tail -n 1 '$tmp/got' | grep -qF ']'"
check "... and stays one" [ -p "$tmp/pipe" ]
echo before >"$tmp/log"
code=0
one --stats-json /dev/stderr >"$out" 2>>"$tmp/log" || code=$?
expect_exit 0 "--stats-json /dev/stderr"
json=$tmp/log
check "... goes on after what is there" sh -c "head -n 1 '$tmp/log' | grep -qx before"
check "... " [ "$(figure generated_tokens)" = 2 ]
code=0
one --stats-json /dev/fd/5 5>"$tmp/five" >"$out" 2>"$err" || code=$?
check "--stats-json /dev/fd/5" grep -q generated_tokens "$tmp/five"
run "$bin/moe-run" none --stats-json /dev/fd/9
error_line 1 "moe-run: /dev/fd/9: cannot open for writing: Bad file descriptor" "a descriptor that is none, first"
run one --stats-json /dev/full
check "a full device is one error line" sh -c \
    "[ $code = 1 ] && [ \$(wc -l <'$err') = 1 ] && grep -q '/dev/full: cannot write: No space left' '$err'"
run "$bin/moe-plan" "$tiny" --expert-memory 6M --max-tokens 60 --device-profile profiles/apple-m2.yaml -o -
expect_stdout_like '*format: moe-plan*' "moe-plan -o -"

# What is read is not replaced by what is written, however it is named.
cp "$tiny" "$tmp/kept.moe"
kept() { # PROGRAM OPTION...
    program=$1
    shift
    run "$bin/$program" -q "$tmp/kept.moe" "$@"
    error_line 2 "$program: *kept.moe: would be overwritten, but is the input; choose another output*" "$program $1"
    check "... the input is as it was" cmp "$tiny" "$tmp/kept.moe"
}
kept moe-run -p One -n 1 --stats-json "$tmp/kept.moe"
kept moe-run -p One -n 1 --trace-events="$tmp/./kept.moe"
kept moe-serve --requests /dev/null --stats-json "$tmp/kept.moe"
kept moe-plan --memory 100M --device-profile profiles/apple-m2.yaml -o "$tmp/kept.moe"
kept moe-profile --text README.md -o "$tmp/kept.moe"
kept moe-calibrate --text README.md -o"$tmp/kept.moe"
kept moe-quantize --experts 2 -o "$tmp/kept.moe"
run "$bin/moe-plan" "$tiny" --memory 23M --device-profile profiles/apple-m2.yaml --trace "$tmp/whole.trace" --max-tokens 1 \
    -o "$tmp/plan.yaml"
error_line 2 "moe-plan: *decodes no token*--max-tokens*" "a trace too short to judge strategies by"
finish
