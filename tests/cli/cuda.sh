# moe-run on a GPU that the processor plays (tests/shim): its text is the CPU's, its memory budgets
# hold, and what is missing or fails is reported in one line. Most of it runs on the model of a parity
# fixture, for which the shim is fast enough.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
gpu=$BUILD/shim/bin/moe-run
if [ ! -x "$gpu" ]; then
    echo "ok 1 - moe-run on a GPU # SKIP $gpu is not built (make shim-programs)"
    echo "1..1"
    exit 0
fi
two=$tmp/two.moe
"$bin/moe-quantize" -q --experts 4,2 --method rtn -o "$two" "$drawn/qwen3-moe-a" || exit 1
head -c 600 tests/data/stories.calib.txt >"$tmp/text"
stats=$tmp/stats.yaml
"$bin/moe-profile" -q "$two" --text "$tmp/text" --max-tokens 96 --max-windows 1 -o "$stats" || exit 1

model=$two
tokens=10
saying() { # PROGRAM OPTION...: an answer
    program=$1
    shift
    run "$program" "$model" -p 'Once' -n $tokens --temp 0 --raw --ignore-eos --stats-json "$json" \
        "$@"
}
ask() { saying "$gpu" --device cuda "$@"; }
# The bytes of standard output are not always text.
answers() { cmp -s "$out" "$1"; }

saying "$bin/moe-run" --strategy resident
expect_exit 0 "the CPU, to compare with"
cp "$out" "$tmp/want"
check "... says something" [ -s "$tmp/want" ]

# ---- Strategies ----------------------------------------------------------------------------------

ask
check "a GPU: the CPU's answer" answers "$tmp/want"
check "... all resident" [ "$(figure strategy)" = resident ]
check "... on cuda" [ "$(figure device)" = cuda ]
check "... every activation is a hit" [ "$(figure cache_hits)" = "$(figure expert_activations)" ]
for key in gpu_memory_bytes gpu_memory_budget_bytes bytes_uploaded host_hits disk_loads bf16_rows; do
    check "--stats-json has $key" [ -n "$(figure $key)" ]
done

exact() { # ROW OPTION...
    row=$1
    shift
    ask --strategy "$row" --expert-memory 64K --statistics "$stats" "$@"
    check "$row${*:+ $*}: the CPU's answer" answers "$tmp/want"
    check "... activations add up" adds_up
    for kind in low_precision substituted skipped precalculated; do
        check "... no $kind" none $kind
    done
}
for row in ondemand lru prefetch edgemoe host; do
    exact $row
    check "... the statistics name it" [ "$(figure strategy)" = "$row" ]
    case $row in
    host) check "... the host computed" some host_computed ;;
    *) check "... experts came from host memory" some host_hits ;;
    esac
    check "... none from disk" none disk_loads
done
for row in lru prefetch edgemoe; do
    exact $row --exact
done
for row in eap fate; do
    exact $row --exact
    check "$row had predicted" some predicted_right
done
for key in predict_on predict_gpu_us predict_host_us; do
    check "... the statistics have $key" [ -n "$(figure $key)" ]
done
right=$(figure predicted_right)
for place in gpu host; do
    exact fate --exact --predict-on $place
    check "... asked there" [ "$(figure predict_on)" = $place ]
    check "... predicting the same" [ "$(figure predicted_right)" = "$right" ]
done
exact hobbit --exact --without on-miss,skip-below
MOE_SHIM_LATE=1
export MOE_SHIM_LATE
for row in resident lru prefetch host; do
    ask --strategy $row --statistics "$stats"
    check "$row, work done as late as can be: the CPU's answer" answers "$tmp/want"
done
unset MOE_SHIM_LATE

# What changes results: it runs, and counts what it did.
inexact() { # ROW KIND...
    row=$1
    shift
    ask --strategy "$row" --expert-memory 64K --statistics "$stats"
    expect_exit 0 "$row"
    check "... says something" [ -s "$out" ]
    check "... activations add up" adds_up
    for kind in "$@"; do
        check "... some $kind" some "$kind"
    done
}
inexact fate low_precision
inexact hobbit low_precision
inexact hobbit+skip-below=10% skipped
inexact daop host_computed precalculated substituted

refused() { # STATUS GLOB NAME OPTION...
    status=$1 glob=$2 what=$3
    shift 3
    run "$gpu" "$model" -p Once -n 2 "$@"
    error_line "$status" "moe-run: $glob" "refused: $what"
}
refused 2 'option --exact forbids *: experts computed on the host instead of the GPU' \
    "host with --exact" --device cuda --exact --strategy host --statistics "$stats"
refused 2 'option --exact forbids *--precalculate*' "daop with --exact" \
    --device cuda --exact --strategy daop --statistics "$stats"
refused 2 'option --exact forbids *--on-miss load-low*' "hobbit with --exact" \
    --device cuda --exact --strategy hobbit
refused 2 'option --exact forbids what may change results: --bf16-prompts' \
    "prompts in bf16 with --exact" --device cuda --exact --bf16-prompts
of_a_gpu='options --gpu-memory, --bf16-prompts and --predict-on go with *--device*'
refused 2 "$of_a_gpu" "prompts in bf16 on the CPU" --bf16-prompts
refused 2 "$of_a_gpu" "memory of no GPU" --gpu-memory 1G
refused 2 "$of_a_gpu" "a place for predictions beside no GPU" --predict-on host
refused 2 'option --predict-on: strategy lru asks no routers *' "a place for no predictions" \
    --device cuda --strategy lru --predict-on host

# ---- Recurrent states ----------------------------------------------------------------------------

next=$tmp/next.moe
"$bin/moe-quantize" -q --experts 4 --dense 8 -o "$next" "$drawn/qwen3-next-a" || exit 1
model=$next
tokens=24
saying "$bin/moe-run"
cp "$out" "$tmp/states"
ask
check "recurrent states on a GPU: the CPU's answer" answers "$tmp/states"
ask --draft ngram
check "... with drafts" answers "$tmp/states"
ask --batch 3 --strategy lru --expert-memory 16K
check "... in small passes, behind a cache" answers "$tmp/states"
model=$two
tokens=10

# ---- Measuring -----------------------------------------------------------------------------------

run "$bin/moe-run" "$two" --perplexity "$tmp/text" --max-doc-tokens 40 --max-windows 1 --prompt-share 0.7
cp "$out" "$tmp/nats"
run "$gpu" "$two" --perplexity "$tmp/text" --max-doc-tokens 40 --max-windows 1 --prompt-share 0.7 --device cuda
expect_exit 0 "--perplexity"
check "... is the CPU's" cmp -s "$out" "$tmp/nats"
run "$bin/moe-run" "$two" --perplexity "$tmp/text" --max-doc-tokens 40 --max-windows 1
cp "$out" "$tmp/whole"
run "$gpu" "$two" --perplexity "$tmp/text" --max-doc-tokens 40 --max-windows 1 --device cuda --bf16-prompts \
    --stats-json "$json"
expect_exit 0 "--perplexity of prompts in bf16"
check "... of matrices too small to gain: exact" none bf16_rows
check "... so it is the CPU's" cmp -s "$out" "$tmp/whole"
run env MOE_SHIM_COMPUTE=7.5 "$gpu" "$two" -p Once -n 2 --device cuda --bf16-prompts
error_line 2 'moe-run: CUDA device 0 (*compute capability 7.5) has no tensor cores for bf16*' \
    "prompts in bf16 without tensor cores for it"
run "$gpu" "$two" --bench --prompt-tokens 12 -n 3 --device cuda
expect_exit 0 "--bench"
check "... says something" [ -s "$out" ]
ask --strategy lru --expert-memory 64K --trace-events "$tmp/trace"
check "a trace of events: the CPU's answer" answers "$tmp/want"
check "... has computation" grep -q 'layer 1 attention' "$tmp/trace"
check "... of both kinds" grep -q 'layer 1 feed-forward' "$tmp/trace"
check "... and loads" grep -q 'layer 1 expert' "$tmp/trace"

# ---- A host that does not page-lock ---------------------------------------------------------------

MOE_SHIM_PINNED=0
export MOE_SHIM_PINNED
ask --strategy prefetch --expert-memory 64K
check "nothing can be page-locked: the CPU's answer" answers "$tmp/want"
check "... which the statistics say" some unlocked_bytes
ask --stats
check "... in words, too" grep -qa "could not be page-locked" "$err"
unset MOE_SHIM_PINNED
ask
check "all can" none unlocked_bytes

# ---- Keys and values as f32 ----------------------------------------------------------------------

ask
check "f16 is the default" [ "$(figure kv)" = f16 ]
half=$(figure gpu_memory_bytes)
ask --kv f32
expect_exit 0 "--kv f32"
check "... takes more of the GPU ($(figure gpu_memory_bytes) against $half bytes)" [ "$(figure gpu_memory_bytes)" -gt "$half" ]
check "... which the statistics name" [ "$(figure kv)" = f32 ]
check "... as exact, too" grep -q '"as_done": true' "$json"
run "$gpu" "$two" --perplexity "$tmp/text" --max-doc-tokens 40 --max-windows 1 --device cuda --kv f32
expect_exit 0 "... --perplexity"
cp "$out" "$tmp/f32"
check "... of other digits than with f16" [ "$(cat "$out")" != "$(cat "$tmp/whole")" ]
check "... and near them" awk 'NR == FNR { want = $2; next } { exit !($2 > 0.98 * want && $2 < 1.02 * want) }' "$tmp/whole" "$out"
run "$gpu" "$two" --perplexity "$tmp/text" --max-doc-tokens 40 --max-windows 1 --kv f32
check "... and those of the CPU" cmp -s "$out" "$tmp/f32"
for kind in q8 q8,q4; do
    run "$gpu" "$two" --perplexity "$tmp/text" --max-doc-tokens 40 --max-windows 1 --device cuda --kv $kind
    cp "$out" "$tmp/codes"
    run "$gpu" "$two" --perplexity "$tmp/text" --max-doc-tokens 40 --max-windows 1 --kv $kind
    check "--kv $kind on a GPU has the digits of the CPU" cmp -s "$out" "$tmp/codes"
done
check "... other ones than f32" [ "$(cat "$out")" != "$(cat "$tmp/f32")" ]
ask --kv f16,q8
error_line 2 'moe-run: option --kv f16,q8: a GPU keeps keys and values as f32, f16, q8, q4 or q8,q4*' "other pairs are the CPU's"
run env MOE_SHIM_DEVICES=0 "$gpu" "$two" -p Once -n 2 --kv f16,q8 --device auto
expect_exit 0 "... but on the CPU in place of one"
ask --kv q7
error_line 2 "moe-run: option --kv: 'q7' is not f32, f16, q8 or q4*" "another kind"

# ---- No device, or one that fails ----------------------------------------------------------------

failing() { # GLOB NAME SETTING OPTION...: an error with cuda, a note and the answer with auto
    glob=$1 what=$2 setting=$3
    shift 3
    run env "$setting" "$gpu" "$two" -p Once -n $tokens --temp 0 --raw --ignore-eos \
        --device auto "$@"
    check "--device auto, $what: the CPU's answer" answers "$tmp/want"
    check "... with a note" matches "$err" "moe-run: device auto: the CPU computes: $glob"
    expect_stderr_lines 1 "... of one line"
    run env "$setting" "$gpu" "$two" -p Once -n 2 --device cuda "$@"
    error_line "$status" "moe-run: $glob" "--device cuda, $what"
}
status=1
failing 'no CUDA device: no CUDA-capable device is detected' "no device" MOE_SHIM_DEVICES=0
failing '*no driver is installed*' "no driver" MOE_SHIM_DEVICES=-1
failing 'this program has no code for CUDA device 0*' "an old device" MOE_SHIM_OLD=1
failing 'CUDA device 0: * bytes are needed, * are free*' "memory exhausted" MOE_SHIM_MEMORY=1000000 \
    --gpu-memory 100M
status=4
failing '*on the GPU is too small: the smallest that works is *' "too little of its memory" \
    MOE_SHIM_DEVICES=1 --gpu-memory 200K
refused 1 'no CUDA device 7: there is one, number 0' "a device that is not there" --device cuda:7
run "$gpu" "$two" -p Once -n 2 --device cuda:x
check "refused: a device that is no number" [ "$code" = 2 ]

# Kernels and copies of an answer, counted in the middle of it.
lost() { # CALL:N OPTION...
    fault=$1
    shift
    run env MOE_SHIM_FAIL="$fault" "$gpu" "$two" -p Once -n 60 --temp 0 --raw --ignore-eos "$@"
    check "lost at $fault: exit 1" [ "$code" = 1 ]
    check "... after a part of the answer" [ -s "$out" ]
    expect_stderr_lines 1 "... one line"
    check "... which says so" matches "$err" 'moe-run: CUDA device 0 failed: *'
}
lost cudaGraphLaunch:5 --device cuda
lost cudaMemcpyAsync:400 --device cuda --strategy lru --expert-memory 64K
lost cudaLaunchKernel:700 --device auto --strategy lru --expert-memory 64K

if [ -z "$(find "$BUILD/kernels" -name '*.cu.o' 2>/dev/null)" ]; then
    run "$bin/moe-run" "$two" -p Once --device cuda
    error_line 1 'moe-run: this program was built without CUDA' "a build without CUDA"
    saying "$bin/moe-run" --device auto
    check "... auto: the CPU's answer" answers "$tmp/want"
    check "... with a note" matches "$err" \
        'moe-run: device auto: the CPU computes: this program was built without CUDA'
fi

# ---- Budgets -------------------------------------------------------------------------------------

smallest_gpu() {
    "$@" --gpu-memory 1M 2>&1 >/dev/null |
        sed -n 's/.*the smallest that works is .*--gpu-memory \([0-9]*\)M.*/\1/p'
}
pack
model=$tiny
tokens=3
saying "$bin/moe-run"
cp "$out" "$tmp/want"
set -- --strategy lru -c 64
least=$(smallest_gpu "$gpu" "$tiny" -p Once --device cuda "$@")
check "the smallest memory of a GPU is named" [ -n "$least" ]
ask "$@" --gpu-memory "${least}M"
check "... and it works" answers "$tmp/want"
check "... within it" [ "$(figure gpu_memory_bytes)" -le $((least << 20)) ]
check "... activations add up" adds_up
least=$(smallest_gpu "$gpu" "$tiny" -p Once --device cuda --strategy resident -c 64)
ask --strategy resident -c 64 --gpu-memory "${least}M"
check "... of all experts" answers "$tmp/want"
check "... within it" [ "$(figure gpu_memory_bytes)" -le $((least << 20)) ]

# The device's memory is the process's here, and so are the stacks of a block's threads: some 2 MiB, 3 where the machine
# is so busy that two blocks meet. Sanitizers have memory of their own beside it.
keeps() { # MIB
    grep -q __asan_init "$gpu" ||
        [ $(($(figure peak_rss_bytes) - $(figure gpu_memory_bytes))) -le $((($1 + 3) << 20)) ]
}
set -- --strategy prefetch -c 64 --expert-memory 2M
ask "$@"
check "all experts in host memory: the CPU's answer" answers "$tmp/want"
check "... none from disk" none disk_loads
least=$(smallest_memory "$gpu" "$tiny" -p Once --device cuda "$@")
check "the smallest host memory is named" [ -n "$least" ]
for more in 0 4; do
    ask "$@" --memory "$((least + more))M"
    check "the least host memory + $more MiB: the CPU's answer" answers "$tmp/want"
    check "... some experts from disk" some disk_loads
    check "... its peak stays below" keeps $((least + more))
    check "... activations add up" adds_up
done
model=$two
refused 4 '* is too small: the smallest that works is *--memory *' "too little host memory" \
    --device cuda --memory 1M
finish
