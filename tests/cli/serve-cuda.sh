# moe-serve with executors on a GPU that the processor plays (tests/shim): answers are those of executors on the
# processor, within the GPU's memory; loads from main memory and from disk are counted apart; and where there is
# no GPU one sentence says so.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
shim=$BUILD/shim/bin/moe-serve
coe=$tmp/collection.yaml
requests=$tmp/requests.jsonl
{
    printf 'format: moe-coe\nversion: 1\nexperts:\n'
    for bits in 2 3 4 8; do
        printf '  - {name: m%d, pack: m%d.moe, probability: 0.%d}\n' $bits $bits $((9 - bits))
    done
    echo routes:
    for bits in 2 3 4 8; do
        printf '  - {field: kind, equals: k%d, expert: m%d}\n' $bits $bits
    done
} >"$coe"
for bits in 2 3 4 8; do
    "$bin/moe-quantize" -q --experts $bits --method rtn -o "$tmp/m$bits.moe" "$drawn/qwen3-moe-a" || exit 1
    for i in 1 2 3; do
        echo "{\"id\": \"$i-$bits\", \"prompt\": \"Once $i\", \"max_tokens\": 3, \"seed\": $i," \
            "\"temperature\": 0.9, \"logprobs\": 2, \"ignore_eos\": true, \"metadata\": {\"kind\": \"k$bits\"}}"
    done
done >"$requests"

program=$bin/moe-serve
serve() { # OPTION...
    run "$program" -q -t 2 -c 64 --coe "$coe" --requests "$requests" --stats-json "$json" "$@"
}
answers() { # all but what the clock and the order of ending decide
    sed 's/"\(request_\)*id": *"[^"]*"//g; s/"created": *[0-9]*//; s/"cached_tokens": *[0-9]*//' "$1" | sort
}
same() {
    answers "$out" >"$tmp/these"
    cmp -s "$tmp/these" "$tmp/want"
}
all_of() { # KEY: of all executors
    sed -n "s/.*\"device\":.*\"$1\": *\([0-9]*\).*/\1/p" "$json" | awk '{ n += $1 } END { print n + 0 }'
}

serve
expect_exit 0 "the processor, to compare with"
answers "$out" >"$tmp/want"
check "... answers" [ "$(grep -c '"choices"' "$tmp/want")" = 12 ]
serve --gpu-memory 1G
error_line 2 "moe-serve: option --gpu-memory goes with executors on cuda*" "memory of no GPU is a mistake"
if [ -z "$(find "$BUILD/kernels" -name '*.cu.o' 2>/dev/null)" ]; then
    for list in cuda:2 cpu:1,cuda:3; do
        serve --executors $list
        error_line 1 'moe-serve: executors on cuda: this program was built without CUDA' "$list without CUDA"
    done
    serve --device auto
    check "--device auto does without" same
fi
if [ ! -x "$shim" ]; then
    skip "executors on a GPU" "$shim is not built (make shim-programs)"
    finish
fi

program=$shim
MOE_SHIM_DEVICES=0
export MOE_SHIM_DEVICES
serve --executors cpu:1,cuda:3
error_line 1 'moe-serve: executors on cuda: no CUDA device: *' "no device"
serve --device auto
check "... which --device auto does without" same
unset MOE_SHIM_DEVICES
serve --executors cuda:1 --device cuda:3
error_line 1 'moe-serve: executors on cuda: no CUDA device 3: *' "--device says which"

for list in cuda:1 cuda:3 cpu:1,cuda:2; do
    serve --executors $list
    check "$list: the processor's answers" same
    check "... of so many executors" [ "$(grep -c '"device":' "$json")" -ge "${list##*:}" ]
    check "... four packs are in main memory" [ "$(figure host_tier_models)" = 4 ]
done
check "... one executor is on the processor" [ "$(grep -c '"device": *"cpu"' "$json")" = 1 ]
serve --device cuda --schedule arrange --evict lru
check "--device cuda is one executor there" same

serve --executors cpu:1 --kv q8
expect_exit 0 "--kv q8"
check "... is named as what may change results" grep -q '"why": "--kv q8"' "$json"
check "... and counted" grep -q '"kv_rows": [1-9]' "$json"
serve --executors cpu:1,cuda:1 --kv f16,q8
error_line 2 'moe-serve: option --kv f16,q8: a GPU keeps keys and values as f32, f16, q8, q4 or q8,q4*' "pairs that executors on a GPU have not"
serve --executors cpu:1 --kv q8 --exact
error_line 2 'moe-serve: option --exact forbids what may change results: --kv q8*' "... nor with --exact"

# One model has room on the GPU at a time; nothing is read twice, for all packs stay in main memory.
serve --executors cuda:1 --gpu-memory 1K
error_line 4 "moe-serve: a budget of * on the GPU is too small: the smallest that works is *--gpu-memory *" \
    "too little of the GPU"
least=$(sed -n 's/.*--gpu-memory \([0-9]*\)M.*/\1/p' "$err")
check "... which names the least" [ "${least:-0}" -gt 0 ]
MOE_SHIM_MEMORY=$((least << 20)) # the device has no more
export MOE_SHIM_MEMORY
serve --executors cuda:1 --gpu-memory "${least}M" --schedule fcfs --no-prefetch
check "the least of the GPU: the processor's answers" same
check "... its budget is said" [ "$(figure gpu_memory_bytes)" = $((least << 20)) ]
check "... models are loaded" [ "$(all_of loads)" -ge 4 ]
unset MOE_SHIM_MEMORY
sizes=$(cat "$tmp"/m?.moe | wc -c)
check "... and read no more than once" [ "$(all_of bytes_read)" -le "$sizes" ]

# Measured there, and served as planned with that: an executor for each, and a tier in main memory.
costs=$tmp/costs
has() { grep -q -- "$1" "$costs"; }
run "$BUILD/shim/bin/moe-profile" -q --coe "$coe" --prompt-tokens 3 --answer-tokens 2 --max-batch 2 -t 1 -o "$costs"
expect_exit 0 "moe-profile --coe measures a GPU, too"
check "... which has memory of its own" has 'name: cuda, memory_bytes: [1-9]'
check "... experts cost there, from disk and from main memory" \
    [ "$(grep -c 'processor: cuda, per_request.* load_seconds: 0\.0.*load_from_host_seconds: 0\.0' "$costs")" = 4 ]
check "... on the processor from disk" [ "$(grep 'processor: cpu, .*per_request' "$costs" | grep -vc load_from_host)" -ge 4 ]
run "$BUILD/shim/bin/moe-profile" -q --coe "$coe" --prompt-tokens 3 --answer-tokens 2 --gpu-memory 100K -o "$costs.2"
error_line 4 "moe-profile: expert 'm2': *on the GPU is too small*" "... within --gpu-memory"
for list in cuda:2 cuda:2,cpu:1; do
    run "$bin/moe-plan" -q --coe "$coe" --costs "$costs" --executors $list --memory 100M --device-memory 60M \
        -o "$tmp/plan"
    expect_exit 0 "moe-plan --coe plans for $list"
    check "... with packs above the disk" grep -q '^host_bytes: [1-9]' "$tmp/plan"
    serve --plan "$tmp/plan" --costs "$costs" --memory 100M
    check "... as it is served: the processor's answers" same
    [ $list = cuda:2 ] || continue # beside the processor the shim is slow, and so gets little
    check "... by two executors" [ "$(grep -c '"device":' "$json")" = 2 ]
    check "... with packs in main memory" [ "$(figure host_tier_models)" = 4 ]
done
check "... by three executors" [ "$(grep -c '"device":' "$json")" = 3 ]
grep -v cuda "$costs" >"$costs.2"
run "$bin/moe-plan" -q --coe "$coe" --costs "$costs.2" --executors cuda:2,cpu:1
error_line 2 "moe-plan: 2 executors on 'cuda': the costs have no such processor *" "... and not without costs of it"
serve --executors cuda:1 --costs "$costs.2"
error_line 2 "moe-serve: the costs have no processor 'cuda'" "nor is it served"

# Main memory without room above the disk.
serve --executors cuda:1 --memory 1M
error_line 4 "moe-serve: a budget of * is too small: the smallest that works is *--memory *" "too little main memory"
least=$(sed -n 's/.*--memory \([0-9]*\)M.*/\1/p' "$err")
serve --executors cuda:1 --memory "${least}M"
check "the least main memory: the processor's answers" same

# A GPU that fails is lost to the process: the server executes itself anew, at the same socket.
printf '{"prompt": "Once", "max_tokens": 8, "temperature": 0, "ignore_eos": true}' >"$tmp/body"
ask() { # OPTION...: what it answers, without what is each one's own
    "$load" -p "$port" -P /v1/completions -f "$tmp/body" -o "$tmp/got" "$@" >/dev/null
    sed 's/.*"choices"//; s/"usage".*//' "$tmp/got"
}
MOE_SHIM_FAIL=cudaLaunchKernel:300
export MOE_SHIM_FAIL
for at in 127.0.0.1 "unix:$tmp/socket"; do
    listen "$shim" "$tmp/m8.moe" --device cuda -c 64 --listen "$at"
    [ "$at" = 127.0.0.1 ] && set -- || set -- -U "$tmp/socket"
    ask "$@" >"$tmp/first"
    for i in $(seq 100); do
        ask "$@" >"$tmp/next"
        grep -q error "$tmp/got" && break
    done
    check "$at: a GPU that fails is an error" grep -q 'CUDA device 0 failed' "$tmp/got"
    for pause in 0.1 0.2 0.5 1 2 4 8 16; do
        [ "$(grep -c 'listening at' "$tmp/log")" -lt 2 ] || break
        sleep $pause
    done
    check "... and said" grep -q 'begins anew' "$tmp/log"
    check "... the next answer is that of before" [ "$(ask "$@")" = "$(cat "$tmp/first")" ]
    kill "$server"
    wait "$server"
    check "... from the same process, which ends as ever" [ $? = 0 ]
done
unset MOE_SHIM_FAIL
finish
