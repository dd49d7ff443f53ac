#!/bin/sh
# --kv: each way to keep keys and values gives one answer however it is computed, takes the bytes that plans say, is named by
# statistics, and has context files of its own, of which damaged ones end in one line.
. tests/cli/lib.sh
pack
start='Once upon a time there was a girl who had a dog.'
ask() { run "$bin/moe-run" -t 1 "$tiny" -p "$start" -n 8 --temp 0 --stats-json "$json" "$@"; }
planned() { run "$bin/moe-plan" -q "$tiny" --memory 64M -c 512 --strategy lru --device-profile profiles/raspberry-pi-4b.yaml -o "$tmp/plan.yaml" "$@"; }
kv_bytes() { sed -n '/^memory:/,/^[a-z]/s/^  kv_bytes: //p' "$tmp/plan.yaml"; }

ask
expect_exit 0 "without --kv"
cp "$out" "$tmp/default"
check "... is f16" [ "$(figure kv)" = f16 ]
planned --kv f32
whole=$(kv_bytes)
planned --kv q8,q4
check "a plan with q8,q4 has 13 of 64 bits" [ "$(kv_bytes)" = $((whole * 13 / 64)) ]
cp "$tmp/plan.yaml" "$tmp/codes.yaml"
for kind in f32 q8,q4; do
    ask --kv $kind --strategy resident
    expect_exit 0 "--kv $kind"
    cp "$out" "$tmp/want"
    check "... the statistics name it" grep -q "\"kv\": \"$kind\"" "$json"
    ask --kv $kind --strategy lru --expert-memory 6M --batch 5 -t 2 --cpu scalar
    check "... the same answer in other passes, by plain C" cmp -s "$out" "$tmp/want"
    case $kind in
    *q*)
        check "... as what may change results" grep -q "\"why\": \"--kv $kind\"" "$json"
        check "... and did" grep -q '"as_done": false' "$json"
        ask --kv $kind --exact
        error_line 2 "moe-run: option --exact forbids what may change results: --kv $kind*" "... --exact forbids it"
        ;;
    *)
        ask --kv $kind --exact
        check "... --exact takes it" cmp -s "$out" "$tmp/want"
        ;;
    esac
    rm -f "$tmp/cache"
    ask --kv $kind --prompt-cache "$tmp/cache"
    ask --kv $kind --prompt-cache "$tmp/cache" -c 64
    check "... its context file gives the answer" cmp -s "$out" "$tmp/want"
    check "... without computing the prompt" some loaded_tokens
    ask --prompt-cache "$tmp/cache"
    error_line 2 "moe-run: $tmp/cache: its keys and values are kept as $kind, and here as f16 (--kv $kind)*" "... another kind refuses it"
    for at in 17 $(($(wc -c <"$tmp/cache") / 2)); do
        cp "$tmp/cache" "$tmp/damaged"
        printf '\377' | dd of="$tmp/damaged" bs=1 seek=$at conv=notrunc 2>/dev/null
        ask --kv $kind --prompt-cache "$tmp/damaged"
        error_line 3 "moe-run: $tmp/damaged: the context file is damaged*" "... damaged at $at"
    done
done
run "$bin/moe-plan" --explain "$tmp/codes.yaml"
expect_stdout_like '*context of 512 tokens as q8,q4*' "a plan is explained so"
ask --plan "$tmp/codes.yaml"
check "... and runs so" grep -q '"kv": "q8,q4"' "$json"
ask --plan "$tmp/codes.yaml" --exact
error_line 2 'moe-run: option --exact forbids what may change results: the plan has *--kv q8,q4 (*' "... but not exactly"
run "$bin/moe-plan" -q "$tiny" --memory 64M --kv q8 --exact
error_line 2 'moe-plan: option --exact forbids what may change results: --kv q8*' "nor is it planned so"
ask --kv q8_0,q4_0
check "llama.cpp's names are taken" grep -q '"kv": "q8,q4"' "$json"
ask --kv f16_0
error_line 2 "moe-run: option --kv: 'f16_0' is not f32, f16, q8 or q4*" "... but no others"
ask --kv q8,q4,q4
error_line 2 "moe-run: option --kv: 'q8,q4,q4' is not f32, f16, q8 or q4*" "no such kind"
finish
