# A plan for a GPU, made without one by a profile that describes it, and run on a GPU that the processor plays
# (tests/shim): the slots that the GPU's budget gives, both budgets kept, the answer that there is without a plan.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
gpu=$BUILD/shim/bin/moe-run
plan=$bin/moe-plan
pack
gpu_profile() { # LINE...: a profile with a GPU, and with a host of so many bytes where a line says so
    printf '%s\n' 'format: moe-device' 'version: 1' 'name: "a machine"' 'host:' \
        '  memory_bytes_per_second: 20e9' "$@" 'accelerator:' '  name: "a GPU"' \
        '  memory_bytes_per_second: 1000e9' '  link_bytes_per_second: 32e9' '  link_piece_seconds: 5e-6' \
        '  launch_seconds: 4e-6' '  trip_seconds: 2e-5'
}
gpu_profile 'storage:' '  bytes_per_second: 600e6' >"$tmp/gpu.yaml"
gpu_profile >"$tmp/no-storage.yaml"
planned() { # PROFILE OPTION...
    profile=$tmp/$1.yaml
    shift
    run "$plan" -q "$tiny" -c 64 --max-tokens 60 --device-profile "$profile" -o "$tmp/plan.yaml" "$@"
}

least=$(smallest_memory "$plan" -q "$tiny" -c 64 --strategy lru --device cuda --gpu-memory 6M \
    --device-profile "$tmp/gpu.yaml" -o "$tmp/none.yaml")
host=$((${least:-14} + 10))

# ---- Command lines -------------------------------------------------------------------------------

planned gpu --device cuda --memory ${host}M
error_line 2 'moe-plan: option --device: *takes --gpu-memory SIZE, and --memory SIZE*' "a GPU's plan without its budget"
planned gpu --device cuda --gpu-memory 8M --expert-memory 1M
error_line 2 'moe-plan: option --device: *takes --gpu-memory SIZE, and --memory SIZE*' "... without the host's"
planned gpu --memory ${host}M --gpu-memory 8M
error_line 2 'moe-plan: option --gpu-memory goes with a MODEL and --device cuda*' "a GPU's budget without a GPU"
planned gpu --device cuda --memory ${host}M --gpu-memory 1M
error_line 4 'moe-plan: *a budget of 1.00 MiB on the GPU is too small*--gpu-memory *' "too little of a GPU"
planned gpu --device cuda --memory 1M --gpu-memory 8M
error_line 4 'moe-plan: *a budget of 1.00 MiB is too small*--memory *' "too little of the host"
planned no-storage --device cuda --memory ${host}M --gpu-memory 8M
error_line 2 'moe-plan: device profile *: no rate of storage*' "a profile without storage"
printf '%s\n' 'format: moe-device' 'version: 1' 'name: "a machine"' 'host:' '  memory_bytes_per_second: 20e9' \
    'storage:' '  bytes_per_second: 600e6' >"$tmp/cpu.yaml"
planned cpu --device cuda --memory ${host}M --gpu-memory 8M
error_line 2 "moe-plan: device profile *: no GPU with memory of its own*" "a profile without a GPU"

# ---- The plan ------------------------------------------------------------------------------------

member() { sed -n "/^$1:/,/^[a-z]/s/^  $2: //p" "$tmp/plan.yaml"; } # SECTION KEY
planned gpu --strategy prefetch --device cuda --memory ${host}M --gpu-memory 8M
expect_exit 0 "a plan for a GPU"
check "... of the GPU's budget" [ "$(member memory total_bytes)" = $((8 << 20)) ]
check "... and the host's" [ "$(member host_memory total_bytes)" = $((host << 20)) ]
check "... loading over its link" [ "$(member times load_bytes_per_second)" = 3.2e+10 ]
check "... with storage behind the host" [ "$(member times storage_bytes_per_second)" = 6e+08 ]
check "... of times that were not measured on it" [ "$(member evidence times_measured)" = "" ]
cp "$tmp/plan.yaml" "$tmp/first.yaml"
planned gpu --strategy prefetch --device cuda --memory ${host}M --gpu-memory 8M
check "... the same twice" cmp -s "$tmp/plan.yaml" "$tmp/first.yaml"
planned gpu --strategy prefetch --device cuda --memory ${host}M --gpu-memory 8M --kv f32
check "--kv f32: twice the KV cache" [ "$(member memory kv_bytes)" = $((2 * $(sed -n '/^memory:/,/^[a-z]/s/^  kv_bytes: //p' "$tmp/first.yaml"))) ]
check "... which the plan names" [ "$(member memory kv)" = f32 ]
cp "$tmp/plan.yaml" "$tmp/f32.yaml"
run "$plan" --explain "$tmp/f32.yaml"
expect_stdout_like '*context of 64 tokens as f32*' "... and is explained so"
planned gpu --strategy prefetch --device cuda --memory ${host}M --gpu-memory 8M --kv q8,q4
check "--kv q8,q4: 13 of 64 bits" [ "$(member memory kv_bytes)" = $(($(sed -n '/^memory:/,/^[a-z]/s/^  kv_bytes: //p' "$tmp/f32.yaml") * 13 / 64)) ]
planned gpu --device cuda --memory ${host}M --gpu-memory 8M --kv f16,q8
error_line 2 'moe-plan: option --kv f16,q8: a GPU keeps keys and values as f32, f16, q8, q4 or q8,q4*' "--kv f16,q8: a GPU has not"
planned gpu --device cuda --memory ${host}M --gpu-memory 8M --kv f32
check "... a strategy is sought as without" [ "$(member memory kv)" = f32 ]
sed 's/^  kv: f32/  kv: q7/' "$tmp/f32.yaml" >"$tmp/other.yaml"
sed 's/^  kv: f32/  kv: f16,q8/' "$tmp/f32.yaml" >"$tmp/codes.yaml"
rate() { planned gpu --strategy lru --device cuda --memory "$1" --gpu-memory 6M && member expected decode_tokens_per_second; }
run "$plan" --explain "$tmp/first.yaml"
expect_stdout_like "*brought*from main memory*tiny.moe in 8.00 MiB of a GPU and $host.? MiB of*main memory, on *
Where the GPU's memory goes
*
Where main memory goes
*5.0 us for each*comes from the disk first*(600.0 MB/s)*Launching a layer's*8.0 us*" "... and is explained so"
little=$(rate ${least}M) much=$(rate ${host}M)
check "less of the host: slower, experts come from storage (${little:-none} and ${much:-none} tokens/s)" \
    awk "BEGIN { exit !(${little:-2} < 0.8 * ${much:-1}) }"
run "$bin/moe-run" "$tiny" -p Once -n 2 --plan "$tmp/first.yaml"
error_line 2 'moe-run: the plan is for a GPU: it takes --device cuda*' "the processor does not run it"
sed '/^host_memory:/,/^[a-z]/s/experts_bytes: .*/experts_bytes: 99999999/' "$tmp/first.yaml" >"$tmp/bad.yaml"
run "$plan" --explain "$tmp/bad.yaml"
error_line 3 'moe-plan: *bad.yaml: line *: the parts have * bytes, the total '$((host << 20))'*' "parts above the host's total"

# ---- The table -----------------------------------------------------------------------------------

run "$bin/moe-profile" -q "$tiny" --text tests/data/stories.calib.txt --max-tokens 60 --max-windows 1 -o "$tmp/s.yaml" --trace "$tmp/t.trace"
simulated() { # OPTION...
    run "$plan" -q --simulate "$tmp/t.trace" "$tiny" -c 64 --device cuda --device-profile "$tmp/gpu.yaml" "$@"
}
listed() { sed -n 's/.*"'"$1"'": \([^,}]*\).*/\1/p' "$out" | tr '\n' ' '; }
simulated --strategy lru --memory ${host}M --gpu-memory 6M,8M --json
expect_exit 0 "strategies simulated on a GPU"
check "... at the sizes of its memory" [ "$(listed memory_bytes)" = "$((6 << 20)) $((8 << 20)) " ]
check "... before the host's" [ "$(listed host_memory_bytes)" = "$((host << 20)) $((host << 20)) " ]
slots=$(listed slots) rates=$(listed decode_tokens_per_s)
check "more of the GPU, more slots and speed (${slots:-none}: ${rates:-none})" \
    awk "BEGIN { split(\"$slots\", s); split(\"$rates\", r); exit !(s[1] > 0 && s[2] > s[1] && r[2] > r[1]) }"
simulated --strategy lru --memory $((least + 1))M --gpu-memory 8M --json
check "less of the host, slower: $(listed decode_tokens_per_s)" \
    awk "BEGIN { split(\"$rates\", r); exit !($(listed decode_tokens_per_s) < 0.9 * r[2]) }"
simulated --strategy lru --memory ${host}M --gpu-memory 1M
error_line 4 'moe-plan: *a budget of 1.00 MiB on the GPU is too small*' "too little of a GPU to simulate"
simulated --strategy lru --memory ${host}M --gpu-memory 10%
error_line 2 "moe-plan: option --gpu-memory: '10%' is not a size*" "a share of experts on a GPU"
simulated --strategy lru --gpu-memory 8M
error_line 2 'moe-plan: option --device: *takes --gpu-memory SIZE, and --memory SIZE*' "a table without the host's budget"

# ---- A GPU that is here --------------------------------------------------------------------------

# What the shim's GPU takes means nothing; that each figure is there, and that a plan is made of them, does.
if [ -x "$BUILD/shim/bin/moe-profile" ]; then
    run env MOE_SHIM_DEVICES=1 "$BUILD/shim/bin/moe-profile" -q --device --dir "$tmp" -o "$tmp/here.yaml"
    expect_exit 0 "a machine with a GPU is measured"
    for name in memory_bytes_per_second link_bytes_per_second link_piece_seconds launch_seconds trip_seconds; do
        measured=$(sed -n "/^accelerator:/,/^[a-z]/s/^  $name: {value: \([^,]*\), .*runs: 9}/\1/p" "$tmp/here.yaml")
        check "... $name: ${measured:-none}" awk "BEGIN { exit !(${measured:-0} > 0) }"
    done
    planned here --strategy lru --device cuda --memory ${host}M --gpu-memory 6M
    expect_exit 0 "... and planned for"
    check "... over the link that was measured" [ "$(member times load_bytes_per_second)" = \
        "$(sed -n 's/^  link_bytes_per_second: {value: \([^,]*\),.*/\1/p' "$tmp/here.yaml")" ]
    planned here --strategy lru --memory ${host}M
    check "the processor's plan takes the disk" [ "$(member times load_bytes_per_second)" != \
        "$(sed -n 's/^  link_bytes_per_second: {value: \([^,]*\),.*/\1/p' "$tmp/here.yaml")" ]
else
    skip "a machine with a GPU is measured" "no shim in this build (make shim-programs)"
fi

# ---- The run -------------------------------------------------------------------------------------

if [ ! -x "$gpu" ]; then
    result 0 "moe-run on a GPU # SKIP $gpu is not built (make shim-programs)"
    finish
fi
ask() { run "$gpu" "$tiny" -p Once -n 4 --temp 0 --raw --ignore-eos --device cuda --stats-json "$json" "$@"; }
# The device's memory is the process's here, and its kernels are part of the program. Sanitizers have memory of their
# own beside it.
kernels=$(($(wc -c <"$gpu") - $(wc -c <"$bin/moe-run")))
keeps() { # MIB
    grep -q __asan_init "$gpu" || [ $(($(figure peak_rss_bytes) - $(figure gpu_memory_bytes) - kernels)) -le $(($1 << 20)) ]
}
ask -c 64
cp "$out" "$tmp/want"
ask --plan "$tmp/first.yaml"
expect_exit 0 "the plan on a GPU"
check "... gives the answer that there is without" cmp -s "$out" "$tmp/want"
check "... in the GPU's budget" [ "$(figure gpu_memory_budget_bytes)" = $((8 << 20)) ]
check "... which it keeps" [ "$(figure gpu_memory_bytes)" -le $((8 << 20)) ]
check "... and the host's" keeps $host
check "... by the plan's strategy" [ "$(figure strategy)" = prefetch ]

ask --plan "$tmp/f32.yaml"
expect_exit 0 "a plan with --kv f32"
check "... keeps keys and values so" [ "$(figure kv)" = f32 ]
ask --plan "$tmp/f32.yaml" --kv f16
check "... unless told otherwise" [ "$(figure kv)" = f16 ]
check "... which gives the answer that there is without" cmp -s "$out" "$tmp/want"
ask --plan "$tmp/codes.yaml"
error_line 2 'moe-run: option --kv f16,q8: a GPU keeps keys and values as f32, f16, q8, q4 or q8,q4*' "... of a pair that a GPU has not"
ask --plan "$tmp/other.yaml"
error_line 3 "moe-run: the plan keeps keys and values as 'q7', which is not f32, f16, q8 or q4*" "... of a kind that there is not"

# What is on the GPU is what the plan says, to less than a slot; a run without a plan has as much.
planned gpu --strategy lru --device cuda --memory ${least}M --gpu-memory 6M --batch 64
booked=0
for part in dense_bytes kv_bytes work_bytes experts_bytes; do
    booked=$((booked + $(member memory $part)))
done
ask --plan "$tmp/plan.yaml"
check "lru: the answer" cmp -s "$out" "$tmp/want"
used=$(figure gpu_memory_bytes) loads=$(figure disk_loads)
check "... with the plan's slots ($used of $booked bytes)" [ "$used" -le "$booked" ]
check "... and no fewer" [ $((booked - used)) -lt "$(sed -n 's/.*slot_bytes: //p' "$tmp/plan.yaml")" ]
check "... some experts from disk" [ "$loads" -gt 0 ]
ask -c 64 --strategy lru --memory ${least}M --gpu-memory 6M --batch 64
check "... in the same batches as without a plan" [ "$(figure gpu_memory_bytes)" = "$used" ]
finish
