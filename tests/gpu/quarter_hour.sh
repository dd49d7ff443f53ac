#!/bin/sh
# What a borrowed GPU can say in minutes, on a bare machine with CUDA's toolkit and nothing of ours.
#
#   sh tests/gpu/quarter_hour.sh pack [--archs '90'] [--shim] [DIR]
#       Builds the programs and the GPU's tests for these architectures and packs them with what they
#       need into DIR (build/quarter_hour), which is all that has to travel. --shim packs the build for
#       the processor (make shim shim-programs) instead, for dry runs.
#   sh DIR/start.sh [--quick] [--dry] [--limit SECONDS] [RESULTS]
#       There: unpacks it in /tmp/quarter_hour (or $QUARTER_HOUR) and does `run` with the same arguments:
#       every step in turn, the most telling first, within 410 s. --quick: the tests, tokens and one
#       model's speed, within 90 s. --dry: with tiny models and ten times as
#       long, for the shim.
#   sh DIR/start.sh --rebuild [--sources TREE] [--tests 'test_x ...'] [RESULTS]
#       There, after a fix: compiles the kernels of TREE (by default those packed), runs these tests, and
#       a model's speed with the old kernels and the new ones in turn, within 240 s.
#
# A step that hangs, crashes or lacks something is a row of the table, and the next one begins. What is
# known is in RESULTS (./results) at once, in eight files:
#   table.txt       a row for each step, then what failed, then the figures
#   log.txt         what each step printed (the first 300 kB)
#   failed.txt      of each failed test what it said first
#   sanitizers.txt  what CUDA's sanitizers said of each test, with kernels and lines
#   bench_gpu.txt, device.yaml, kernels.txt (by ncu), stats.txt (of runs, by moe-run --stats-json)
# The exit status is 1 when anything failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 1
self=tests/gpu/quarter_hour.sh

# ---- Packing -------------------------------------------------------------------------------------

# The drawn models: which of profiles/shapes.
BIG=qwen3-30b-a3b
RECURRENT=granite-4.0-h-tiny
LATENT=deepseek-v2-lite
DRY=qwen3-moe-a
DRY_RECURRENT=granite4-a
DRY_LATENT=deepseek-v2-a

# The shared libraries of programs that a bare system lacks: all but the C and C++ libraries.
libraries() { # PROGRAM...
    ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
        grep -Ev '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libmoe-cuda)\.so'
}

drawn=${BUILD:-build}/fixtures
models=${BUILD:-build}/models
# Fixtures that the tests name.
fixtures() {
    for fixture in "$drawn"/*; do
        name=${fixture##*/}
        grep -q "[\"/]${name}[\"/]" tests/gpu/*.[ch] && echo "$fixture"
    done
}

pack_code() { # TREE BUILD ARCHS
    mkdir -p "$1/bin" "$1/lib/moe-toolkit" "$1/tests/gpu" "$1/tests/tools" "$1/tests/bench" "$1/rebuild"
    cp "$2"/bin/moe-* "$1/bin"
    for test in "$2"/tests/gpu/test_*; do
        case $test in *.o | *.d) ;; *) cp "$test" "$1/tests/gpu" ;; esac
    done
    cp "$2/tests/tools/gpu_here" "$1/tests/tools"
    cp "$2/tests/bench/bench_gpu" "$1/tests/bench"
    # shellcheck disable=SC2046 # names without blanks
    cp -L $(libraries "$1"/bin/moe-run "$1"/bin/moe-serve "$1"/tests/gpu/test_moe "$1"/tests/gpu/test_server_device) "$1/lib"
    if [ "$3" ]; then # with the tests' own kernels, for tests and programs alike
        cp "$2/tests/gpu/libmoe-cuda.so" "$1/lib/moe-toolkit"
        cp "$2/tests/gpu/libmoe-cuda.so.names" "$1/rebuild/names"
        cp "$2/lib/base/err.o" "$2/lib/quant/layout.o" "$1/rebuild"
        sed 's/^[^ ]*nvcc/nvcc/; s/-Werror.*//' "$2/.nvcc-flags" >"$1/rebuild/nvcc"
    fi
    find "$1/bin" "$1/lib" "$1/tests" -type f | while IFS= read -r file; do
        case $file in *.sh | */moe-pipeline) ;; *) strip "$file" ;; esac
    done
    # Sources, after what is stripped.
    cp tests/run.sh "$1/tests"
    cp "$self" "$1/tests/gpu"
    cp -r kernels "$1"
    cp tests/gpu/*.cu tests/gpu/*.h "$1/tests/gpu"
    for header in lib/*/*.h; do
        mkdir -p "$1/${header%/*}"
        cp "$header" "$1/$header"
    done
}

pack_data() { # TREE
    mkdir -p "$1/$drawn" "$1/$models/tiny-moe" "$1/profiles/shapes" "$1/tests"
    cp "$models"/tiny-moe/* "$1/$models/tiny-moe"
    cp -r tests/data "$1/tests"
    for fixture in $(fixtures); do
        cp -r "$fixture" "$1/$drawn"
        rm -f "$1/$fixture/reference.json"
        grep -q "${fixture##*/}/model.gguf" tests/gpu/*.[ch] || rm -f "$1/$fixture/model.gguf"
    done
    # Where the tests look, which were built in a directory of their own.
    for part in "$drawn" "$models"; do
        [ -e "$1/$from/${part##*/}" ] || { mkdir -p "$1/$from" && ln -s "../${part##*/}" "$1/$from"; }
    done
    for shape in $BIG $RECURRENT $LATENT; do cp "profiles/shapes/$shape.json" "$1/profiles/shapes"; done
}

pack() {
    archs=90 shim=
    while [ $# -gt 0 ]; do
        case $1 in
        --archs) archs=$2 && shift ;;
        --shim) shim=1 archs= ;;
        *) break ;;
        esac
        shift
    done
    to=${1:-build/quarter_hour}
    set -e
    if [ "$shim" ]; then
        make -j2 CUDA=0 WERROR=1 shim shim-programs
        from=${BUILD:-build}/shim
    else
        from=${BUILD:-build/gpu$(echo "$archs" | tr -d ' ')}
        make -j2 CUDA=1 WERROR=1 CUDA_ARCHS="$archs" NVCC_OPT='-O3 -lineinfo' BUILD="$from" \
            LDFLAGS="-Wl,--disable-new-dtags,-rpath,"'\$$ORIGIN/../lib:\$$ORIGIN/../../lib:\$$ORIGIN/../lib/moe-toolkit:\$$ORIGIN/../../lib/moe-toolkit' \
            all gpu-tests
    fi
    mkdir -p "$to"
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    pack_code "$tree/code" "$from" "$archs"
    tar -C "$tree/code" -cf - . | xz -T2 -8 >"$to/code.tar.xz"
    pack_data "$tree/data"
    (cd "$tree/data" && find . -type f | sort | xargs sha256sum && find . -type l) >"$tree/sums"
    if ! cmp -s "$tree/sums" "$to/data.sums"; then # most of the time, and rarely something new
        tar -C "$tree/data" -cf - . | xz -T2 -1 >"$to/data.tar.xz"
        cp "$tree/sums" "$to/data.sums"
    fi
    # A bare system may lack xz.
    cp -L "$(command -v xz)" "$to/xz"
    cp -L "$(ldd "$to/xz" | awk '/liblzma/ { print $3 }')" "$to"
    cat >"$to/start.sh" <<'END'
#!/bin/sh
# Unpacks what lies beside this and runs it: see tests/gpu/quarter_hour.sh.
here=$(cd "$(dirname "$0")" && pwd)
to=${QUARTER_HOUR:-/tmp/quarter_hour}
mkdir -p "$to" || exit 1
QUARTER_HOUR_BEGAN=${QUARTER_HOUR_BEGAN:-$(date +%s)}
QUARTER_HOUR_FROM=${QUARTER_HOUR_FROM:-$PWD}
export QUARTER_HOUR_BEGAN QUARTER_HOUR_FROM
unpack() {
    if command -v xz >/dev/null; then xz -dc "$1"; else LD_LIBRARY_PATH=$here "$here/xz" -dc "$1"; fi | tar -C "$to" -xf -
}
unpack "$here/data.tar.xz" &
unpack "$here/code.tar.xz"
wait
exec sh "$to/tests/gpu/quarter_hour.sh" run "$@"
END
    echo "$to: $(du -sk "$to" | cut -f 1) KiB to travel, of them"
    du -k "$to"/*.xz
    echo "unpacked: $(du -sk "$tree" | cut -f 1) KiB"
}

# ---- Steps ---------------------------------------------------------------------------------------

elapsed() { echo $(($(date +%s) - QUARTER_HOUR_BEGAN)); }

# A row of the table: ok, FAILED or - (what is not there, or was left out).
row() { # STATE SECONDS NAME WHAT
    [ "$1" != FAILED ] || failures=$((failures + 1))
    printf '%4s  %-6s %5s  %-26s %s\n' "$(elapsed)" "$1" "$2" "$3" "$(echo "$4" | cut -c 1-240)" | tee -a "$results/table.txt"
}

# What a command said last, and how it ended.
ending() { # STATUS FILE
    case $1 in
    124 | 137) how="stopped by the clock" ;;
    12[5-7]) how="cannot be started" ;;
    *) [ "$1" -le 128 ] && how="exit $1" || how="died of signal $(($1 - 128))" ;;
    esac
    echo "$how: $(tr -d '\r' <"$2" | grep -v '^ *$' | tail -n 1)"
}

# Runs a command within so many seconds, and within what is left. Its output is $out, its status $status,
# its seconds $took. A failure is a row; of a success the caller makes one.
step() { # NAME SECONDS COMMAND...
    name=$1 most=$(($2 * slow))
    shift 2
    left=$((limit - $(elapsed)))
    out=$logs/$name took=0 status=99
    if [ "$left" -lt 3 ]; then
        row - 0 "$name" "no time was left"
        return 1
    fi
    [ "$most" -le "$left" ] || most=$left
    began=$(date +%s%3N)
    timeout -k 3 "$most" "$@" >"$out" 2>&1 </dev/null
    status=$?
    took=$(($(date +%s%3N) - began))
    took=$((took / 1000)).$((took % 1000 / 100))
    {
        echo "=== $name: exit $status, $took s of at most $most: $*"
        head -c 300000 "$out"
    } >>"$results/log.txt"
    [ $status = 0 ] || row FAILED "$took" "$name" "$(ending $status "$out")"
    return $status
}
ok() { row ok "$took" "$name" "$1"; }

# ---- Tests ---------------------------------------------------------------------------------------

# What run.sh starts each test through: keeps what it printed, line by line, and what it said first where
# it failed.
one() { # LABEL SECONDS COMMAND...
    label=$1 most=$2
    shift 2
    for last; do :; done
    name=${last##*/}
    out=$logs/$label.$name
    began=$(date +%s%3N)
    timeout --foreground -k 2 "$most" stdbuf -oL "$@" >"$out" 2>&1
    status=$?
    took=$(($(date +%s%3N) - began))
    cat "$out"
    echo "$took $name" >>"$logs/$label.times"
    # All that a sanitizer said: neither run.sh nor the log keeps it.
    sed -n "s/^=========/$label $name:/p" "$out" | head -c 50000 >>"$results/sanitizers.txt"
    [ $status = 0 ] || first_words "$status" "$out" | sed "s/^/$label $name: /" >>"$results/failed.txt"
    exit $status
}

# The kernel and line of a sanitizer's first error, or the first failed assertions, or how it ended.
first_words() { # STATUS FILE
    if grep -q '^========= .*\(Invalid\|Uninitialized\|Race\|Barrier\|Error:\|error\)' "$2"; then
        grep -m 1 -A 3 '^========= .*\(Invalid\|Uninitialized\|Race\|Barrier\|Error:\|error\)' "$2" | cut -c 1-220
        grep '^========= .*SUMMARY' "$2" | tail -n 1
    elif grep -q '^not ok' "$2"; then
        grep -m 3 -A 2 '^not ok' "$2" | grep -v '^ok\|^--' | cut -c 1-300
    fi
    [ "$1" -le 123 ] || ending "$1" "$2"
}

# All tests but those left out under a command, so many at a time.
tests() { # LABEL SECONDS EACH JOBS LEAVE_OUT COMMAND...
    label=$1 most=$2 each=$3 jobs=$4 leave_out=$5
    shift 5
    : >"$logs/$label.times"
    if step "$label" "$most" env BUILD=. JOBS="$jobs" LEAVE_OUT="$leave_out" \
        RUN_UNDER="sh $self one $label $((each * slow)) $*" sh tests/run.sh gpu; then
        ok "$(tail -n 1 "$out")"
    fi
}
names() { for test in tests/gpu/test_*; do [ -x "$test" ] && echo "${test##*/}"; done; }
all_but() { names | grep -vxF "$(printf '%s\n' "$@")" | tr '\n' ' '; }

all_tests() {
    tests tests 80 60 8 ""
    awk '{ printf "  %.1f s %s\n", $1 / 1000, $2 }' "$logs/tests.times" | sort -rn >>"$results/log.txt"
    # One launch after the other, so that the kernel that fails is the one that is named.
    again=$(sed -n 's/^tests \([a-z_]*\): .*/\1/p' "$results/failed.txt" | sort -u | head -n 8)
    [ -n "$again" ] || return
    # shellcheck disable=SC2086 # several names
    leave=$(all_but $again)
    tests blocking 15 15 4 "$leave" env MOE_GPU_SYNC=1 CUDA_LAUNCH_BLOCKING=1
    sanitizer=$(command -v compute-sanitizer) && tests memcheck-failed 30 30 4 "$leave" \
        env MOE_GPU_CHECKED=1 "$sanitizer" --tool memcheck --print-limit 3 --error-exitcode 1
}

# ---- The bundled model ---------------------------------------------------------------------------

decode_rate() { sed -n '/"decode": {/,/}/s/.*"tokens_per_s": *\([0-9.]*\).*/\1/p' "$1"; }

# The greedy continuations of four texts, to $work/LABEL.N.
say() { # LABEL TEXTS OPTION...
    sh -c 'label=$1 texts=$2 tokens=$3 work=$4; shift 4
        for i in $texts; do
            case $i in 1) text="Once upon a time";; 2) text="The cat";; 3) text="One day a boy";; 4) text="In the dark wood";; esac
            bin/moe-run "$work/tiny.moe" -p "$text" -n "$tokens" -c 512 --temp 0 --raw --ignore-eos \
                --stats-json "$work/$label.json" "$@" >"$work/$label.$i" || exit
        done' sh "$1" "$2" "$tokens" "$work" $3
}
same_tokens() { # LABEL TEXTS OPTIONS
    step "tokens-$1" 30 sh $self said "$1" "$2" "$3" || return
    rate=$(decode_rate "$work/$1.json")
    for i in $2; do
        if ! cmp "$work/cpu.$i" "$work/$1.$i" >"$work/differs" 2>&1; then
            row FAILED "$took" "$name" "not the processor's: $(sed 's|.*/||' "$work/differs")"
            return
        fi
    done
    ok "the processor's, text $2 of $tokens tokens; $rate tokens/s"
    cat "$work/$1.json" >>"$results/stats.txt"
}

tokens_of_bundled() {
    step quantize 20 bin/moe-quantize -q -o "$work/tiny.moe" --experts 4 "$models/tiny-moe" || return
    half=$(bin/moe-quantize --list --json "$work/tiny.moe" | sed -n 's/.*"bytes": *\([0-9]*\).*/\1/p' | head -n 1)
    half=$((${half:-8000000} / 2))
    step tokens-cpu 30 sh $self said cpu "$texts" "" || return
    ok "$(decode_rate "$work/cpu.json") tokens/s"
    same_tokens graphs "$texts" "--device cuda"
    [ "$what" = quick ] && return
    for strategy in host+init=layerwise lru prefetch; do
        same_tokens "${strategy%%+*}" 1 "--device cuda --strategy $strategy --expert-memory $half"
    done
}

# ---- Drawn models --------------------------------------------------------------------------------

# In the background: packs of drawn weights, in memory where they have room. In groups of 64, as those of earlier figures.
draw() { # NAME SHAPE
    bin/moe-quantize -q --synthesize "$2" --experts 4 --method hqq -o "$packs/$1.moe" >"$work/$1.drawn" 2>&1 &&
        mv "$work/$1.drawn" "$work/$1.is-there"
}
draw_all() {
    for packs in /dev/shm /tmp; do
        room=$(df -Pm $packs | awk 'NR == 2 { print $4 }')
        # What lies in memory lies there once more where the host keeps experts.
        most=$(awk '/^MemAvailable/ { print int($2 / 2048) }' /proc/meminfo)
        [ $packs = /tmp ] || [ "$most" -ge "${room:-0}" ] || room=$most
        [ "${room:-0}" -ge "$wanted" ] && break
        row - 0 "room in $packs" "${room:-0} MiB, the drawn models want $wanted"
    done
    [ "${room:-0}" -ge "$wanted" ] || return
    packs=$(mktemp -d $packs/quarter_hour.XXXXXX)
    (
        draw big "$big"
        [ "$what" = all ] || exit
        draw recurrent "$recurrent"
        draw latent "$latent"
    ) &
    drawing=$!
}
# Waits for a pack; false where there is none.
drawn() { # NAME
    [ -n "$drawing" ] || return 1
    while [ ! -f "$work/$1.is-there" ] && kill -0 "$drawing" 2>/dev/null && [ "$(elapsed)" -lt "$limit" ]; do sleep 0.2; done
    [ -f "$work/$1.is-there" ] || {
        row FAILED 0 "drawing $1" "$(tail -n 1 "$work/$1.drawn" 2>/dev/null)"
        return 1
    }
}

median() { sed -n 's/.*"'"$1"'_tokens_per_s": {"median": \([0-9.]*\).*/\1/p' "$out"; }

# Prompt and decode of a drawn model, five runs after a warm-up unless `runs` says how many. OPTIONS
# without those of the bench are kept with the figures, for plans of the same.
speed() { # NAME SECONDS PACK PROMPT DECODE OPTIONS...
    label=$1 most=$2 pack=$3 first=$4 then=$5
    shift 5
    # shellcheck disable=SC2048,SC2086 # options without blanks
    step "$label" "$most" bin/moe-run "$packs/$pack.moe" --device cuda $* --bench --prompt-tokens "$first" -n "$then" \
        --bench-runs "${runs:-5}" --json --stats-json "$work/$label.json" || return
    ok "prompt of $first $(median prefill), decode of $then $(median decode) tokens/s"
    echo "$label $pack $(median prefill) $(median decode) $*" >>"$work/figures"
    { echo "== $label"; cat "$work/$label.json"; } >>"$results/stats.txt"
}

resident() {
    drawn big || return
    speed resident 40 big "$prompt" "$decode" -c "$context" --strategy resident
    [ "$what" = all ] || return
    speed "at-depth-$deep" 25 big "$deep" 64 -c $((deep + 64)) --strategy resident
    runs=2
    for kv in q8 q4; do
        speed "at-depth-$kv" 20 big "$deep" 64 -c $((deep + 64)) --kv $kv --strategy resident
    done
    speed "at-depth-$deeper" 60 big "$deeper" 64 -c $((deeper + 64)) --strategy resident
    runs=
}
half_resident() {
    [ -f "$work/resident.json" ] || return
    whole=$(sed -n 's/.*"gpu_memory_bytes": *\([0-9]*\).*/\1/p' "$work/resident.json")
    experts=$(sed -n 's/.*"resident_expert_bytes_max": *\([0-9]*\).*/\1/p' "$work/resident.json")
    half=$(((whole - experts / 2) >> 10))K
    for strategy in prefetch lru host+init=layerwise; do
        speed "half-${strategy%%+*}" 35 big "$((prompt / 4))" "$((decode / 4))" -c "$context" --strategy "$strategy" --gpu-memory "$half"
    done
}
others() {
    drawn recurrent && speed recurrent 25 recurrent "$prompt" "$((decode / 2))" -c "$context" --strategy resident
    drawn latent && speed latent 25 latent "$prompt" "$((decode / 2))" -c "$context" --strategy resident
}

# A device profile; and by it, in the background, plans of what was measured. No plan says how a token at a
# certain depth is.
profile() {
    drawn big || return
    step profile 40 bin/moe-profile -q --device "$packs/big.moe" -o "$results/device.yaml" || return
    ok "$(awk '/^accelerator/ { here = 1 } /^storage/ { here = 0 }
        here && /_per_second|_seconds/ { sub(/:$/, "", $1); sub(/,$/, "", $3); printf "%s %s; ", $1, $3 }' "$results/device.yaml")"
    memory=$(awk '/^MemAvailable/ { print int($2 / 1024 * 0.9) "M" }' /proc/meminfo)
    while read -r label pack read_rate answer_rate options; do
        case $label in *depth*) continue ;; esac
        case $options in *--gpu-memory*) ;; *) options="$options --gpu-memory 70G" ;; esac
        # shellcheck disable=SC2086 # options without blanks
        timeout $((100 * slow)) bin/moe-plan -q "$packs/$pack.moe" --memory "$memory" --device cuda $options \
            --device-profile "$results/device.yaml" --max-tokens 512 -o "$work/$label.plan" >"$logs/plan-$label" 2>&1 &
        planning="$planning $!"
    done <"$work/figures"
}
plans() {
    # shellcheck disable=SC2086 # several processes
    [ -z "$planning" ] || wait $planning
    while read -r label pack read_rate answer_rate options; do
        [ -f "$logs/plan-$label" ] || continue
        took=0 name=plan-$label
        if [ ! -f "$work/$label.plan" ]; then
            row FAILED - "$name" "$(tail -n 1 "$logs/$name")"
            continue
        fi
        for rate in prefill decode; do
            # of later answers: the first answer's comes behind
            sed -n "s/^  ${rate}_tokens_per_second: *\([0-9.e+]*\).*/$label $rate \1/p" "$work/$label.plan" | head -n 1 >>"$work/plans"
        done
    done <"$work/figures"
}

# ---- Kernels -------------------------------------------------------------------------------------

bench_gpu() {
    step bench_gpu 60 stdbuf -oL tests/bench/bench_gpu $smoke && ok "$(tail -n 1 "$out")"
    [ -f "$out" ] && cp "$out" "$results/bench_gpu.txt"
}

# Each kernel of a token: time, bytes of the device's memory, share of cycles in which something was issued.
# Sums by name and number of blocks over one token, from one embedding to the next.
by_kernel='
    function plain(x) { gsub(/[",]/, "", x); return x + 0 }
    /^"ID"/ { for (i = 1; i <= NF; i++) at[$i] = i; name = at["Kernel Name"]; next }
    !name || !/^"[0-9]/ { next }
    $name ~ /embed/ { embeds++ }
    embeds != 1 { next }
    {
        k = $name; sub(/\(.*/, "", k); k = k " x " plain($at["launch__grid_size"]); n[k]++
        t = plain($at["gpu__time_duration.sum"]); time[k] += t; all += t
        bytes[k] += plain($at["dram__bytes_read.sum"]) + plain($at["dram__bytes_write.sum"])
        issue[k] += t * plain($at["smsp__issue_active.avg.pct_of_peak_sustained_active"])
        warps[k] += t * plain($at["sm__warps_active.avg.pct_of_peak_sustained_active"])
        if (plain($at["launch__registers_per_thread"]) > regs[k]) regs[k] = plain($at["launch__registers_per_thread"])
    }
    END {
        for (k in n)
            printf "%-44s %5d %9.1f us %5.1f%% %9.2f MB %7.0f GB/s %5.1f%% issue %5.1f%% warps %3d regs\n", substr(k, 1, 44), n[k],
                time[k] / 1e3, 100 * time[k] / all, bytes[k] / 1e6, bytes[k] / time[k], issue[k] / time[k], warps[k] / time[k], regs[k]
        printf "%-44s %5s %9.1f us\n", "a token", "", all / 1e3
    }'
kernels() {
    profiler=$(command -v ncu) || {
        row - 0 ncu "not on this machine"
        return
    }
    drawn big || return
    step ncu 60 "$profiler" --clock-control none --graph-profiling node --launch-count 1500 --csv --page raw --print-units base \
        --kernel-name-base function \
        --metrics gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum,smsp__issue_active.avg.pct_of_peak_sustained_active,sm__warps_active.avg.pct_of_peak_sustained_active,launch__registers_per_thread,launch__grid_size \
        bin/moe-run "$packs/big.moe" --device cuda --strategy resident -c "$context" --bench --prompt-tokens 1 -n 2
    [ -f "$out" ] || return
    # Also of what it had when the clock stopped it.
    awk -F'","' "$by_kernel" "$out" | sort -k 3 -rn >"$results/kernels.txt"
    [ $status = 0 ] && ok "$(grep '^a token' "$results/kernels.txt"), see kernels.txt"
}

sanitizers() {
    sanitizer=$(command -v compute-sanitizer) || {
        row - 0 sanitizers "no compute-sanitizer on this machine"
        return
    }
    set -- env MOE_GPU_CHECKED=1 "$sanitizer" --print-limit 20 --error-exitcode 1 --tool
    tests memcheck 90 80 4 "" "$@" memcheck
    # Attention and products share the most, between the most barriers: their tests are not too large for these.
    large=$(awk '$1 > 2500 && $2 !~ /^test_(attention|products)$/ { print $2 }' "$logs/tests.times" | tr '\n' ' ')
    for tool in racecheck initcheck synccheck; do
        tests $tool 75 60 4 "$large" "$@" $tool
    done
}

# ---- The machine ---------------------------------------------------------------------------------

tools() {
    for dir in /usr/local/cuda/bin /usr/local/nvidia/bin /opt/nvidia/nsight-compute/*; do
        [ -d "$dir" ] && PATH=$PATH:$dir
    done
    export PATH
    # The driver's library, where it lies beside the search path.
    ldconfig -p 2>/dev/null | grep -q libcuda.so.1 || for dir in /usr/local/nvidia/lib64 /usr/lib/wsl/lib; do
        [ -e "$dir/libcuda.so.1" ] && export LD_LIBRARY_PATH="$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    done
}

# The build for the processor looks for libraries where all programs do.
[ -d lib/moe-toolkit ] && [ ! -e lib/moe-toolkit/libmoe-cuda.so ] && export LD_LIBRARY_PATH="$PWD/lib"

# Puts cuBLAS where our libraries are, if it is not where CUDA's toolkit has it.
find_blas() {
    blas=$(grep -ao 'libcublas\.so\.[0-9]*' lib/moe-toolkit/libmoe-cuda.so 2>/dev/null | head -n 1)
    [ -n "$blas" ] || return
    for dir in /usr/local/cuda/lib64 /usr/local/cuda-*/lib64 /usr/local/cuda*/targets/*/lib /usr/lib/x86_64-linux-gnu \
        $(python3 -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null | tr ' ' '\n' | sed 's|$|/*/lib|'); do
        if [ -e "$dir/$blas" ]; then
            ln -sf "$dir/$blas" "$dir/$(echo "$blas" | sed s/cublas/cublasLt/)" lib
            row ok 0 cuBLAS "$dir/$blas"
            return
        fi
    done
    row FAILED 0 cuBLAS "no $blas in the toolkit or in Python's nvidia packages: bf16 products will fail"
}

machine() {
    # shellcheck disable=SC2016 # the inner shell expands it
    step machine 10 sh -c '
        for field in name driver_version compute_cap memory.total memory.free pcie.link.gen.current pcie.link.width.current \
            pcie.link.gen.max pcie.link.width.max clocks.sm clocks.max.sm clocks.mem power.limit ecc.mode.current mig.mode.current; do
            echo "$field: $(nvidia-smi --query-gpu=$field --format=csv,noheader 2>&1 | head -n 1)"
        done
        uname -a; cat /etc/os-release 2>/dev/null | head -n 2; ls -d /.dockerenv /run/.containerenv 2>/dev/null
        head -c 300 /proc/1/cgroup; echo; cat /sys/class/dmi/id/product_name 2>/dev/null
        grep -m 1 "model name" /proc/cpuinfo; nproc; free -m 2>/dev/null; df -Pm /dev/shm /tmp; ulimit -a
        cat /proc/driver/nvidia/version 2>/dev/null; nvcc --version | tail -n 2; ncu --version | tail -n 1
        compute-sanitizer --version | tail -n 1; ldd --version 2>&1 | head -n 1; cat /proc/sys/kernel/io_uring_disabled 2>/dev/null
        true'
    say_of() { sed -n "s/^$1: //p" "$out"; }
    if command -v nvidia-smi >/dev/null; then
        ok "$(say_of name), driver $(say_of driver_version), $(say_of compute_cap), PCIe $(say_of pcie.link.gen.current)x$(say_of pcie.link.width.current) of $(say_of pcie.link.gen.max)x$(say_of pcie.link.width.max), $(nproc) cores"
    else
        row - "$took" machine "no nvidia-smi; $(nproc) cores"
    fi
    find_blas
}

basics() {
    step gpu_here 20 tests/tools/gpu_here && ok "a GPU can be opened"
    tests basics 30 20 2 "$(all_but test_shim test_gpu_device)"
}

# ---- After a fix ---------------------------------------------------------------------------------

rebuild() {
    [ -f rebuild/nvcc ] || {
        row FAILED 0 rebuild "no build for a GPU was packed"
        return
    }
    command -v nvcc >/dev/null || {
        row FAILED 0 rebuild "no nvcc on this machine"
        return
    }
    objects=$work/objects
    mkdir "$objects"
    so=lib/moe-toolkit/libmoe-cuda.so
    cp "$so" "$work/before.so"
    # shellcheck disable=SC2016 # the inner shell expands it
    step nvcc 150 sh -c 'cd "$1" && ls kernels/*.cu tests/gpu/*.cu | xargs -P 16 -I {} sh -c "
            $(cat "$2/rebuild/nvcc") -c {} -o \"$3/\$(basename {}).o\" || exit 255"' sh "$sources" "$PWD" "$objects" || return
    ok "$(find "$objects" -name '*.o' | wc -l) files compiled from $sources"
    step link 30 sh -c 'g++ -shared -o "$1" "$2"/*.o rebuild/err.o rebuild/layout.o \
        -Wl,-soname,libmoe-cuda.so,-z,defs,--disable-new-dtags,-rpath,"\$ORIGIN/..:$3/lib64",--version-script=rebuild/names \
        -L"$3/lib64" -L"$3/targets/x86_64-linux/lib" -lcudart_static -ldl -lrt -lpthread' \
        sh "$work/after.so" "$objects" "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")" || return
    ok "$(wc -c <"$work/after.so") bytes"
    cp "$work/after.so" "$so"
}
compare() {
    drawn big || return
    for round in 1 2; do
        for which in before after; do
            [ -f "$work/$which.so" ] || continue
            cp "$work/$which.so" lib/moe-toolkit/libmoe-cuda.so
            speed "$which-$round" 25 big "$prompt" "$decode" -c "$context" --strategy resident
        done
    done
}

# ---- All of it -----------------------------------------------------------------------------------

figures() {
    [ -s "$work/figures" ] || return
    printf '\n%-22s %-8s %12s %12s %7s   (tokens/s)\n' figure phase measured modelled ratio
    while read -r label pack read_rate answer_rate options; do
        for pair in "prefill $read_rate" "decode $answer_rate"; do
            rate=${pair%% *}
            modelled=$(sed -n "s/^$label $rate //p" "$work/plans" 2>/dev/null)
            echo "$label $rate ${pair#* } ${modelled:--}" | awk '{ printf "%-22s %-8s %12.1f ", $1, $2, $3
                if ($4 == "-") printf "%12s %7s\n", "-", "-"; else printf "%12.1f %7.2f\n", $4, $3 / $4 }'
        done
    done <"$work/figures"
}

everything() {
    draw_all
    machine
    basics
    all_tests
    tokens_of_bundled
    if [ "$what" = all ]; then
        while [ -n "$drawing" ] && kill -0 "$drawing" 2>/dev/null && [ "$(elapsed)" -lt $((180 * slow)) ]; do sleep 0.2; done
        bench_gpu
    fi
    resident
    [ "$what" = all ] || return
    half_resident
    others
    profile
    kernels
    sanitizers
    plans
}

run() {
    what=all limit= slow=1 sources=$PWD only= results= drawing= planning= smoke= failures=0
    tokens=490 texts='1 2 3 4' prompt=512 decode=128 context=4096 deep=4096 deeper=16384 wanted=34000
    big=profiles/shapes/$BIG.json recurrent=profiles/shapes/$RECURRENT.json latent=profiles/shapes/$LATENT.json
    from=${QUARTER_HOUR_FROM:-$PWD}
    while [ $# -gt 0 ]; do
        case $1 in
        --quick) what=quick ;;
        --rebuild) what=rebuild ;;
        --limit) limit=$2 && shift ;;
        --sources) sources=$(cd "$from" && cd "$2" && pwd) && shift ;;
        --tests) only=$2 && shift ;;
        --dry)
            slow=10 smoke=--smoke tokens=12 texts=1 prompt=16 decode=8 context=64 deep=40 deeper=80 wanted=100
            big=$drawn/$DRY/config.json recurrent=$drawn/$DRY_RECURRENT/config.json
            latent=$drawn/$DRY_LATENT/config.json
            ;;
        -*)
            sed -n '2,25s/^# \{0,1\}//p' "$self" >&2
            exit 2
            ;;
        *) results=$1 ;;
        esac
        shift
    done
    case $what in all) limit=${limit:-$((410 * slow))} ;; quick) limit=${limit:-$((90 * slow))} ;; *) limit=${limit:-$((240 * slow))} ;; esac
    [ "$what" = all ] || wanted=$((wanted * 55 / 100))
    results=$(cd "$from" && mkdir -p "${results:=results}" && cd "$results" && pwd) || exit 1
    work=$(mktemp -d) packs=
    logs=$work/logs
    mkdir "$logs"
    QUARTER_HOUR_BEGAN=${QUARTER_HOUR_BEGAN:-$(date +%s)}
    export QUARTER_HOUR_BEGAN work logs results tokens
    trap 'kill $drawing $planning 2>/dev/null; rm -rf "$work" ${packs:+"$packs"}' EXIT
    trap 'exit 1' INT TERM
    for file in table log failed sanitizers stats; do : >"$results/$file.txt"; done
    : >"$work/figures"
    tools
    printf '%4s  %-6s %5s  %s\n' at state took step | tee -a "$results/table.txt"
    row ok "$(elapsed)" unpacked "$(du -sk . | cut -f 1) KiB in $PWD"
    if [ "$what" = rebuild ]; then
        draw_all
        rebuild
        # shellcheck disable=SC2086 # several names
        [ -z "$only" ] || tests tests 60 60 8 "$(all_but $only)"
        [ -n "$only" ] || all_tests
        compare
    else
        everything
    fi
    {
        [ ! -s "$results/failed.txt" ] || { echo && cut -c 1-300 "$results/failed.txt" | head -n 40; }
        [ ! -s "$results/kernels.txt" ] || { echo && head -n 16 "$results/kernels.txt"; }
        figures
        echo
        echo "$failures failed; $(elapsed) s; all of it in $results"
    } | tee -a "$results/table.txt"
    [ $failures = 0 ]
}

case ${1:-} in
pack | run | one)
    what=$1
    shift
    "$what" "$@"
    ;;
said) # the step of same_tokens
    shift
    say "$@"
    ;;
*)
    sed -n '2,25s/^# \{0,1\}//p' "$self"
    exit 2
    ;;
esac
