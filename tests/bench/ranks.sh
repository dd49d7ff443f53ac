#!/bin/sh
# Ranks on several machines, rehearsed on this one: each rank in a network namespace of its own, with a network of a
# given rate and delay between them (tests/tools/slow_net.c, a switch in user space: not every kernel has netem). Prints,
# for each network, tokens/s of prompt and answer, messages and bytes a token, and what rank 0 waited for, beside one
# process that reads experts from disk within the same budget and one that holds them all; every answer must be the
# same. The ranks share this machine's processors, which machines of their own would not: speeds are rehearsed. A disk
# that is slow beside them (LINK_RATE) shows what ranks are for all the same: what one process waits for, several hold.
# With SLOWED=N ranks run in slow motion: computing (tests/tools/slow_ranks.c), the network and LINK_RATE take N times as long,
# and what is printed is multiplied by that again. So ranks do not wait for each other's processors, as on machines of
# their own. The one process is as it is.
# Slow motion lets processors sleep, and forget, that many times as long: what takes long stretches of computing by turns, as
# whole layers do, is slower there than it is. With PINNED=1 ranks have a core each (RANKS=2 on two) and run as they are, in
# no namespaces; the network is imitated without a process of its own (SLOW_WIRE in slow_ranks.c).
# With PLANNED=1 machines and network are measured, too (moe-profile --device in the namespaces, a minute for each
# network; with SLOWED one machine, in pauses of PAUSE seconds, and the network is as stated), and what moe-plan --machines expects of them is printed
# beside what was run.
# With STATISTICS=1 ranks know which experts are frequent, and have these twice.
# With SHARED=1 each network is run with --share-attention, too, with LAYERS=1 with --share-layers.
# With LLAMA=DIR, which holds llama-bench and ggml-rpc-server of a llama.cpp built with GGML_RPC, and GGUF=FILE, the same
# model, it runs in the same namespaces and control groups: one server in each, the client in the first. It is never slowed.
# ROUNDS=N: each is run N times, the one whose answer was of median speed is shown, and the range of answers' speeds.
# On a machine that does other things, too: nice -n -5 tests/bench/ranks.sh. Not at a real-time priority: ranks that meet
# wait awake, which keeps mpirun's daemons, and all else, from the processors.
# Each rank is in a control group of its own, of MEMORY and a tenth (mpirun is in there, too).
# A pack of drawn weights (moe-quantize --synthesize) writes tokens with RUN=$BUILD/tests/tools/run_unchecked; drawn at
# temperature 1, because the likeliest tokens of such a model repeat themselves. LARGE=1: no process holds all of it.
#
#   [RANKS=4] [MEMORY=120M] [LINK_RATE=50M] [TOKENS=64] [PACK=FILE] [NETWORKS='MICROSECONDS:BITS_PER_SECOND ...'] tests/bench/ranks.sh
#
# PROMPT=1800 bytes of a text come first. As root, with Open MPI. PACK: by default the bundled model, made 23 times as
# large (tests/tools/widen.c).
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
bin=$(cd "$BUILD/bin" && pwd)
run=${RUN:-$bin/moe-run}
ranks=${RANKS:-4}
memory=${MEMORY:-120M}
tokens=${TOKENS:-64}
networks=${NETWORKS:-50:10e9 200:10e9 1000:10e9 50:2.5e9 200:2.5e9 1000:2.5e9 50:1e9 200:1e9 1000:1e9}
dir=$(mktemp -d)
net=
own=moe$$- # of this run's namespaces and control groups
groups=/sys/fs/cgroup/memory
limit=memory.limit_in_bytes
[ -d "$groups" ] || { groups=/sys/fs/cgroup; limit=memory.max; }
bytes=$(echo "$memory" | awk '{ printf "%d", $1 * 1.1 * (/G/ ? 1073741824 : 1048576) }')
child=
await() { # COMMAND...: a signal to this script is taken at once, and not when the command has ended
    "$@" &
    child=$!
    code=0
    wait "$child" || code=$?
    child=
    return "$code"
}
end_net() {
    [ -z "$net" ] || kill "$net" 2>/dev/null || :
    for i in $(seq "$ranks"); do
        for tick in 1 2 3 4 5 6 7 8 9 10; do # whatever is left in there
            [ -d "$groups/$own$i" ] || break
            # shellcheck disable=SC2046 # several
            kill -9 $(cat "$groups/$own$i/cgroup.procs") 2>/dev/null || :
            rmdir "$groups/$own$i" 2>/dev/null || sleep 0.1
        done
        ip netns del "$own$i" 2>/dev/null || :
    done
    net=
}
end_all() {
    trap '' INT TERM HUP
    [ -z "$child" ] || kill "$child" 2>/dev/null || :
    [ -z "$child" ] || wait "$child" 2>/dev/null || :
    end_net
    rm -rf "$dir"
}
trap end_all EXIT
trap 'exit 1' INT TERM HUP
pack=${PACK:-$BUILD/bench/wide.moe}
if [ ! -f "$pack" ]; then
    mkdir -p "$(dirname "$pack")"
    "$BUILD/tests/tools/widen" --hidden 4 --ff 8 "$BUILD/models/tiny-moe" "$dir/wide"
    "$bin/moe-quantize" -q --method rtn -o "$pack" "$dir/wide"
fi
pack=$(readlink -f "$pack")
head -c "${PROMPT:-1800}" tests/data/stories.valid.txt >"$dir/prompt.txt"
set -- --raw -f "$dir/prompt.txt" -n "$tokens" --ignore-eos -t 1
if [ -n "${RUN:-}" ]; then
    set -- "$@" --temp 1 --top-k 0 --top-p 1 --min-p 0 --seed 3 -c 256
else
    set -- "$@" --temp 0
fi
slow_disk=
if [ -n "${LINK_RATE:-}" ]; then
    set -- "$@" --link-rate "$LINK_RATE"
    slow_disk=${SLOWED:+$(echo "$LINK_RATE" | awk -v n="$SLOWED" '{ print $1 / n * (/G/ ? 1e9 : /M/ ? 1e6 : 1) }')}
fi

slow=
[ -z "${SLOWED:-}${PINNED:-}" ] || mpicc -O2 -shared -fPIC -o "$dir/slow_ranks.so" tests/tools/slow_ranks.c -ldl

# Starts a command of mpirun's "on" a machine: in its namespaces.
cat >"$dir/agent" <<END
#!/bin/sh
own=$own
echo \$\$ >"$groups/$own\${1##*.}/cgroup.procs"
END
cat >>"$dir/agent" <<'END'
host=$1
shift
exec ip netns exec "$own${host##*.}" unshare --uts sh -c "hostname moe${host##*.}; $*"
END
chmod 755 "$dir/agent"
begin_net() { # MICROSECONDS BITS_PER_SECOND
    wire=$1:$2:$dir/times
    [ -z "${PINNED:-}" ] || return 0
    hosts=
    names=
    for i in $(seq "$ranks"); do
        ip netns add "$own$i"
        mkdir -p "$groups/$own$i"
        echo "$bytes" >"$groups/$own$i/$limit"
        ip netns exec "$own$i" ip link set lo up
        names="$names $own$i"
        hosts="$hosts${hosts:+,}10.77.0.$i:1"
    done
    : >"$dir/net"
    # shellcheck disable=SC2086 # several
    "$BUILD/tests/tools/slow_net" "$1" "$2" $names >"$dir/net" &
    net=$!
    while ! grep -q ready "$dir/net"; do
        kill -0 $net || exit 1
        sleep 0.05
    done
    for i in $(seq "$ranks"); do
        ip netns exec "$own$i" ip addr add "10.77.0.$i/24" dev net0
        ip netns exec "$own$i" ip link set net0 mtu 9000 up
    done
}
on_ranks() {
    if [ -n "${PINNED:-}" ]; then
        rm -f "$dir/times"
        await env TMPDIR=/tmp mpirun --allow-run-as-root --bind-to core -n "$ranks" --mca btl tcp,self --mca pml ob1 \
            --mca btl_tcp_if_include lo -x LD_PRELOAD="$dir/slow_ranks.so" -x SLOW_WIRE="$wire" "$@"
        return
    fi
    # shellcheck disable=SC2086 # slow: options or none
    await env TMPDIR=/tmp ip netns exec "${own}1" unshare --uts sh -c \
        'hostname moe1; echo $$ >"$1/cgroup.procs"; shift; exec "$@"' - "$groups/${own}1" \
        mpirun --allow-run-as-root --bind-to none -n "$ranks" --host "$hosts" \
        --mca plm_rsh_agent "$dir/agent" --mca plm_rsh_no_tree_spawn 1 --mca btl tcp,self --mca pml ob1 \
        --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 $slow "$@"
}
figure() { sed -n "s/^  \"$1\": *\([0-9.]*\).*/\1/p" "$dir/stats"; }
sums() { # KEY...: of all ranks, for each token
    for key; do sed -n "s/^    {\"rank\".*\"$key\": *\([0-9.]*\).*/\1/p" "$dir/stats"; done |
        awk -v tokens="$(sed -n 's/^    "tokens": *\([0-9]*\).*/\1/p' "$dir/stats" | awk '{ n += $1 } END { print n }')" \
            '{ n += $1 } END { printf "%.1f", n / tokens }'
}
decoded() { sed -n "/\"decode\": {/,\$ s/^    \"$1\": *\([0-9.]*\).*/\1/p" "$dir/stats" | head -n 1; }
row() { # NAME SLOWED
    printf '| %-34s | %8.1f | %8.2f | %15s | %8s | %10s | %10s | %9s | %7s |\n' "$1" "$(cat "$dir/prompts")" \
        "$(figure decode_tokens_per_s | awk -v n="$2" '{ print n * $1 }')" \
        "$(awk -v n="$2" '{ s[NR] = n * $1 } END { printf "%.2f to %.2f", s[1], s[NR] }' "$dir/speeds")" \
        "$(sums messages messages_on)" "$(sums bytes_sent bytes_on)" "$(sums bytes_received)" \
        "$(each "$(decoded compute_s)" "$(decoded tokens)" "$2")" "$(each "$(decoded host_wait_s)" "$(decoded tokens)" "$2")"
}
each() { echo "$1 $2 $3" | awk '{ printf "%.2f", 1e3 * $1 / $2 / $3 }'; } # ms a token
# mpirun ends its output with a line.
same() { [ "$(cat "$dir/want")" = "$(cat "$dir/got")" ] || { echo "another answer: $1"; exit 1; }; }
# The second prompt and later ones: the first fills memory, which plans leave out.
prompts() { # SLOWED COMMAND...
    times=$1
    shift
    "$@" --bench --bench-runs 3 -n 1 --prompt-tokens "$prompt_tokens" >"$dir/got" 2>"$dir/err" || { cat "$dir/err"; exit 1; }
    awk -v n="$times" '$1 == "prefill" { print n * $3 }' "$dir/got" >"$dir/prompts"
}
measure() { # NAME SLOWED COMMAND...
    name=$1 times=$2
    shift 2
    : >"$dir/rounds"
    for round in $(seq "${ROUNDS:-1}"); do
        "$@" --stats-json "$dir/stats" >"$dir/got" 2>"$dir/err" || { cat "$dir/err"; exit 1; }
        [ -f "$dir/want" ] || cp "$dir/got" "$dir/want"
        same "$name"
        echo "$(figure decode_tokens_per_s) $round" >>"$dir/rounds"
        mv "$dir/stats" "$dir/stats.$round"
        sed -n "s/^slow_ranks: /# /p" "$dir/err" >"$dir/medians.$round"
    done
    sort -g "$dir/rounds" >"$dir/speeds"
    cp "$dir/stats.$(awk '{ n[NR] = $2 } END { print n[int((NR + 1) / 2)] }' "$dir/speeds")" "$dir/stats"
    prompt_tokens=$(sed -n '/"prefill": {/,$ s/^    "tokens": *\([0-9]*\).*/\1/p' "$dir/stats" | head -n 1)
    prompts "$times" "$@"
    row "$name" "$times"
    sort "$dir/medians.$(awk '{ n[NR] = $2 } END { print n[int((NR + 1) / 2)] }' "$dir/speeds")"
}

of_plan() { sed -n "s/.*\"$1\": \([0-9.e+-]*\)[,}]*.*/\1/p" "$dir/planned" | awk '{ n += $1 } END { print n }'; }
# A switch hands a frame on once it has all of it, so that it takes its time twice: a message is one of about 4,500 bytes.
planned() { # MICROSECONDS BITS_PER_SECOND [--share-attention, --share-layers]
    [ -n "${PLANNED:-}" ] || return 0
    if [ -n "${SLOWED:-}" ]; then
        [ -f "$dir/machine.yaml" ] || LD_PRELOAD=$dir/slow_ranks.so SLOW_PAUSE=${PAUSE:-3e-4} "$bin/moe-profile" -q --device "$pack" \
            -t 1 -o "$dir/machine.yaml"
        printf '%s\n' 'format: moe-machines' 'version: 1' \
            "network: {latency_seconds: $(echo "$1 $2" | awk '{ print 1e-6 * $1 + 8 * 4500 / $2 }'), bytes_per_second: $(echo "$2" |
                awk '{ print $1 / 8 }')}" 'machines:' \
            "- {name: a, memory: $memory, profile: machine.yaml, count: $ranks}" >"$dir/hosts.yaml"
    else
        on_ranks "$bin/moe-profile" -q --device "$pack" -t 1 -o "$dir/hosts.yaml" >/dev/null 2>"$dir/err" ||
            { cat "$dir/err"; exit 1; }
        sed -i "s/memory: .*/memory: $memory/" "$dir/hosts.yaml"
    fi
    # shellcheck disable=SC2086 # options or none
    "$bin/moe-plan" -q "$pack" --machines "$dir/hosts.yaml" -c 512 --trace "$dir/trace" --no-outlook --json \
        ${LINK_RATE:+--link-rate $LINK_RATE} ${STATISTICS:+--stats "$dir/statistics.yaml"} $3 >"$dir/planned"
    n=$(of_plan decode_tokens)
    printf '| %-34s | %8.1f | %8.2f | %15s | %8s | %10s | %10s | %9s | %7s |\n' "  planned" \
        "$(of_plan prefill_tokens_per_s)" "$(of_plan decode_tokens_per_s)" '' \
        $(for key in messages bytes_sent bytes_received; do of_plan $key | awk -v n="$n" '{ printf "%.1f ", $1 / n }'; done) \
        "$(each "$(of_plan compute_s)" "$n" 1)" "$(each "$(of_plan ranks_wait_s)" "$n" 1)"
}
# Layers one machine after the other, as llama.cpp shares them out.
on_machine() { # I COMMAND...: in the machine's namespace and control group; ends the shell that calls it
    exec sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' - "$groups/$own$1" ip netns exec "$own$@"
}
llama() {
    [ -n "${LLAMA:-}" ] || return 0
    servers= pids=
    for i in $(seq "$ranks"); do
        on_machine "$i" "$LLAMA/ggml-rpc-server" -H "10.77.0.$i" -p 50052 -t 1 >/dev/null 2>&1 &
        pids="$pids $!"
        servers="$servers${servers:+,}10.77.0.$i:50052"
    done
    sleep 2
    await llama_bench
    # shellcheck disable=SC2086 # several
    kill $pids 2>/dev/null
}
llama_bench() {
    on_machine 1 "$LLAMA/llama-bench" -m "$GGUF" --rpc "$servers" -ngl 99 -t 1 -p 512 -n "$tokens" -r "${ROUNDS:-1}" -o jsonl \
        2>"$dir/err" | sed -n 's/.*"samples_ts": *\[\([^]]*\)\].*/\1/p' | tr -d , |
        while read -r speeds; do printf '%s\n' $speeds | sort -g | tr '\n' ' '; echo; done |
        awk '{ m[NR] = $int((NF + 1) / 2); least = $1; most = $NF }
            END { printf "| %-34s | %8.1f | %8.2f | %15s |\n", "  llama.cpp, RPC", m[1], m[2],
                sprintf("%.2f to %.2f", least, most) }'
}
if [ -n "${PLANNED:-}${STATISTICS:-}" ]; then
    head -c 6000 tests/data/stories.valid.txt >"$dir/text.txt"
    "$bin/moe-profile" -q "$pack" --text "$dir/text.txt" --trace "$dir/trace" -o "$dir/statistics.yaml"
fi

echo "$ranks ranks, $memory each, $tokens tokens, on $(nproc) cores, disk ${LINK_RATE:-as it is}: $(basename "$pack")"
echo
echo '| run                                | prompt/s | answer/s |           range | messages | bytes to   | bytes from | computing | waiting |'
echo '|------------------------------------|---------:|---------:|----------------:|---------:|-----------:|-----------:|----------:|--------:|'
measure "one process in $memory, from disk" 1 await "$run" "$pack" "$@" --memory "$memory"
[ -n "${LARGE:-}" ] || measure "one process, all in memory" 1 await "$run" "$pack" "$@" --strategy resident
for network in $networks; do
    # shellcheck disable=SC2046 # two
    begin_net $(echo "$network" | awk -F : -v n="${SLOWED:-1}" '{ print n * $1, $2 / n }')
    [ -z "${SLOWED:-}" ] || slow="-x LD_PRELOAD=$dir/slow_ranks.so -x SLOW_RANKS=$SLOWED"
    for shares in '' ${SHARED:+--share-attention} ${LAYERS:+--share-layers}; do
        # shellcheck disable=SC2086 # options or none
        measure "$ranks ranks, ${network%:*} us, $(echo "${network#*:}" | awk '{ print $1 / 1e9 }') Gbit/s${shares:+, ${shares#--share-}}" \
            "${SLOWED:-1}" on_ranks "$run" "$pack" "$@" ${slow_disk:+--link-rate $slow_disk} --memory "$memory" \
            ${STATISTICS:+--statistics "$dir/statistics.yaml"} $shares
        planned "${network%:*}" "${network#*:}" "$shares"
    done
    llama
    end_net
done
