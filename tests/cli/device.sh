# moe-profile --device: a profile of this machine, measured, read back, shown; and damaged ones.
. tests/cli/lib.sh
run "$bin/moe-profile" --device
error_line 2 'moe-profile: no output given*' "no output"
run "$bin/moe-profile" --device a b -o "$tmp/x"
error_line 2 'moe-profile: --device takes one pack at most*' "two packs"
run "$bin/moe-profile" --dir "$tmp" --text a b -o "$tmp/x"
error_line 2 'moe-profile: option --dir goes with --device*' "--dir without --device"
run "$bin/moe-profile" --device "$tmp/none.moe" -o "$tmp/x"
error_line 1 "moe-profile: $tmp/none.moe*" "a pack that is not there"
run "$bin/moe-profile" --device --dir "$tmp/none" -o "$tmp/x"
error_line 1 "moe-profile: $tmp/none: cannot make a scratch file*" "a directory that is not there"
check "... leaves no profile" [ ! -e "$tmp/x" ]

pack
run "$bin/moe-profile" --device "$tiny" -o "$tmp/device.yaml"
expect_exit 0 "a profile with a pack"
check "... quietly" [ ! -s "$err" ]
for key in 'format: moe-device' '  memory_bytes_per_second: ' '  cores: ' '  latency_seconds: ' \
    '    - in_flight: 1$' '    - in_flight: 8$' '  source_fingerprint: ' '  head_seconds: ' \
    '  far_positions: 512' '  far_attention_seconds: ' '  loading_slowdown: ' '  late_seconds: ' \
    '  bursts:' '    - loads: 8' '  handling:' '    - bytes: 4096' \
    '    - rows: 1$' '    - rows: 8$' '    - rows: 64$' '      attention_seconds: ' \
    '      router_seconds: ' '      shared_seconds: ' '      expert_seconds:$' '        "4": '; do
    check "... has $key" grep -q "^$key" "$tmp/device.yaml"
done
check "... and no dense layer, which the model has not" \
    sh -c "! grep -q dense_seconds '$tmp/device.yaml'"
# Every figure that was measured has 5 runs or more, and lies above zero between its ends.
check "... figures between their ends" awk '
    /value: .*runs: / {
        n++
        match($0, /value: [^,]*/); value = substr($0, RSTART + 7, RLENGTH - 7) + 0
        match($0, /min: [^,]*/); least = substr($0, RSTART + 5, RLENGTH - 5) + 0
        match($0, /max: [^,]*/); most = substr($0, RSTART + 5, RLENGTH - 5) + 0
        match($0, /runs: [0-9]*/); runs = substr($0, RSTART + 6, RLENGTH - 6) + 0
        if (!(least > 0 && least <= value && value <= most && most < 1e15 && runs >= 5)) bad = 1
    }
    END { exit bad || n < 42 || n > 45 }' "$tmp/device.yaml"
run "$bin/moe-profile" --show "$tmp/device.yaml"
expect_exit 0 "--show"
check "... names the parts" sh -c "grep -q '^Host' '$out' && grep -q '^Storage' '$out' &&
    grep -q 'an expert at 4' '$out' && grep -q '^A layer for 64 tokens' '$out'"
check "... fits 100 columns" sh -c "! grep -q '.\{101\}' '$out'"
run "$bin/moe-profile" --show --json "$tmp/device.yaml"
expect_stdout_like '{"format":"moe-device",*"batches":\[*"expert_seconds":{"4":{*}\]}}' "--json"

mkdir "$tmp/dir"
run "$bin/moe-profile" --device --dir "$tmp/dir" -o "$tmp/plain.yaml"
expect_exit 0 "a profile without a pack"
check "... reads 4 MiB at a time" grep -q '^  read_bytes: 4194304$' "$tmp/plain.yaml"
check "... says where from" grep -q 'a scratch file' "$tmp/plain.yaml"
check "... has no model" sh -c "! grep -q '^model:' '$tmp/plain.yaml'"
check "... leaves nothing in the directory" [ -z "$(ls -A "$tmp/dir")" ]

# Interrupted: nothing is left.
"$bin/moe-profile" --device --dir "$tmp/dir" "$tiny" -o "$tmp/stopped.yaml" >"$out" 2>"$err" &
pid=$!
until_catches "$pid" 2
kill -INT "$pid" 2>/dev/null
code=0
wait "$pid" || code=$?
error_line 1 'moe-profile: stopped' "SIGINT ends it"
check "... with no profile" [ ! -e "$tmp/stopped.yaml" ]
check "... and nothing in the directory" [ -z "$(ls -A "$tmp/dir")" ]

for profile in profiles/*.yaml; do
    run "$bin/moe-profile" --show "$profile"
    expect_exit 0 "--show $profile"
done

# Damage.
sed 's/^host:/speed: 1\nhost:/' "$tmp/device.yaml" >"$tmp/unknown.yaml"
run "$bin/moe-profile" --show "$tmp/unknown.yaml"
error_line 3 "moe-profile: $tmp/unknown.yaml: line 6 column *: unknown key 'speed'" "an unknown key"
sed 's/^version: 1/version: 9/' "$tmp/device.yaml" >"$tmp/newer.yaml"
run "$bin/moe-profile" --show "$tmp/newer.yaml"
error_line 3 "moe-profile: $tmp/newer.yaml: moe-device version 9*" "a newer version"
sed 's/cores: .*/cores: 0/' "$tmp/device.yaml" >"$tmp/zero.yaml"
run "$bin/moe-profile" --show "$tmp/zero.yaml"
error_line 3 "moe-profile: $tmp/zero.yaml: line *: 'cores' must be above zero*" "a zero"
sed -n '/head_seconds/{s/, min.*//p;q;};p' "$tmp/device.yaml" >"$tmp/cut.yaml"
run "$bin/moe-profile" --show "$tmp/cut.yaml"
error_line 3 "moe-profile: $tmp/cut.yaml: line *" "a profile cut short"
finish
