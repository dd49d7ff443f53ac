#!/bin/sh
# Ranks on several machines, rehearsed on this one: each rank in a network namespace of its own, with a network of a
# given rate and delay between them (tests/tools/slow_net.c, a switch in user space: not every kernel has netem). Prints,
# for each network, tokens/s of prompt and answer, messages and bytes a token, and what rank 0 waited for, beside one
# process that reads experts from disk within the same budget and one that holds them all; every answer must be the
# same. The ranks share this machine's processors, which machines of their own would not: speeds are rehearsed. A disk
# that is slow beside them (LINK_RATE) shows what ranks are for all the same: what one process waits for, several hold.
# With PLANNED=1 machines and network are measured, too (moe-profile --device in the namespaces, a minute for each
# network), and what moe-plan --machines expects of them is printed beside what was run.
# With LLAMA=DIR, which holds llama-bench and rpc-server of a llama.cpp built with GGML_RPC, and GGUF=FILE, the same model,
# it runs in the same namespaces: one server in each but the first.
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
groups=/sys/fs/cgroup/memory
limit=memory.limit_in_bytes
[ -d "$groups" ] || { groups=/sys/fs/cgroup; limit=memory.max; }
bytes=$(echo "$memory" | awk '{ printf "%d", $1 * 1.1 * (/G/ ? 1073741824 : 1048576) }')
end_net() {
    [ -z "$net" ] || kill "$net" 2>/dev/null || :
    for i in $(seq "$ranks"); do
        ip netns del "moe$i" 2>/dev/null || :
        rmdir "$groups/moe-bench-$i" 2>/dev/null || :
    done
    net=
}
trap 'end_net; rm -rf "$dir"' EXIT
pack=${PACK:-$BUILD/bench/wide.moe}
if [ ! -f "$pack" ]; then
    mkdir -p "$(dirname "$pack")"
    "$BUILD/tests/tools/widen" --hidden 4 --ff 8 "$BUILD/models/tiny-moe" "$dir/wide"
    "$bin/moe-quantize" -q -o "$pack" "$dir/wide"
fi
pack=$(readlink -f "$pack")
head -c "${PROMPT:-1800}" tests/data/stories.valid.txt >"$dir/prompt.txt"
set -- --raw -f "$dir/prompt.txt" -n "$tokens" --ignore-eos -t 1
if [ -n "${RUN:-}" ]; then
    set -- "$@" --temp 1 --top-k 0 --top-p 1 --min-p 0 --seed 3 -c 256
else
    set -- "$@" --temp 0
fi
[ -z "${LINK_RATE:-}" ] || set -- "$@" --link-rate "$LINK_RATE"

# Starts a command of mpirun's "on" a machine: in its namespaces.
cat >"$dir/agent" <<END
#!/bin/sh
echo \$\$ >"$groups/moe-bench-\${1##*.}/cgroup.procs"
END
cat >>"$dir/agent" <<'END'
host=$1
shift
exec ip netns exec "moe${host##*.}" unshare --uts sh -c "hostname moe${host##*.}; $*"
END
chmod 755 "$dir/agent"
begin_net() { # MICROSECONDS BITS_PER_SECOND
    hosts=
    names=
    for i in $(seq "$ranks"); do
        ip netns add "moe$i"
        mkdir -p "$groups/moe-bench-$i"
        echo "$bytes" >"$groups/moe-bench-$i/$limit"
        ip netns exec "moe$i" ip link set lo up
        names="$names moe$i"
        hosts="$hosts${hosts:+,}10.77.0.$i:1"
    done
    # shellcheck disable=SC2086 # several
    "$BUILD/tests/tools/slow_net" "$1" "$2" $names >"$dir/net" &
    net=$!
    while ! grep -q ready "$dir/net"; do
        kill -0 $net || exit 1
        sleep 0.05
    done
    for i in $(seq "$ranks"); do
        ip netns exec "moe$i" ip addr add "10.77.0.$i/24" dev net0
        ip netns exec "moe$i" ip link set net0 mtu 9000 up
    done
}
on_ranks() {
    TMPDIR=/tmp ip netns exec moe1 unshare --uts sh -c \
        'hostname moe1; echo $$ >"$1/cgroup.procs"; shift; exec "$@"' - "$groups/moe-bench-1" \
        mpirun --allow-run-as-root --bind-to none -n "$ranks" --host "$hosts" \
        --mca plm_rsh_agent "$dir/agent" --mca plm_rsh_no_tree_spawn 1 --mca btl tcp,self --mca pml ob1 \
        --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 "$@"
}
figure() { sed -n "s/^  \"$1\": *\([0-9.]*\).*/\1/p" "$dir/stats"; }
sums() { # KEY: of all ranks, for each token
    sed -n "s/^    {\"rank\".*\"$1\": *\([0-9.]*\).*/\1/p" "$dir/stats" |
        awk -v tokens="$(sed -n 's/^    "tokens": *\([0-9]*\).*/\1/p' "$dir/stats" | awk '{ n += $1 } END { print n }')" \
            '{ n += $1 } END { printf "%.1f", n / tokens }'
}
row() { # NAME
    printf '| %-34s | %8.1f | %8.2f | %8s | %10s | %10s |\n' "$1" "$(figure prefill_tokens_per_s)" \
        "$(figure decode_tokens_per_s)" "$(sums messages)" "$(sums bytes_sent)" "$(sums bytes_received)"
}
# mpirun ends its output with a line.
same() { [ "$(cat "$dir/want")" = "$(cat "$dir/got")" ] || { echo "another answer: $1"; exit 1; }; }

planned() {
    [ -n "${PLANNED:-}" ] || return 0
    on_ranks "$bin/moe-profile" -q --device "$pack" -t 1 -o "$dir/hosts.yaml" >/dev/null 2>"$dir/err" ||
        { cat "$dir/err"; exit 1; }
    sed -i "s/memory: .*/memory: $memory/" "$dir/hosts.yaml"
    # shellcheck disable=SC2086 # LINK_RATE: an option or none
    "$bin/moe-plan" -q "$pack" --machines "$dir/hosts.yaml" -c 512 --trace "$dir/trace" --json \
        ${LINK_RATE:+--link-rate $LINK_RATE} >"$dir/planned"
    printf '| %-34s | %8.1f | %8.2f | latency %s s\n' "  planned" \
        "$(sed -n 's/.*"prefill_tokens_per_s": \([0-9.]*\).*/\1/p' "$dir/planned")" \
        "$(sed -n 's/^  "decode_tokens_per_s": \([0-9.]*\).*/\1/p' "$dir/planned")" \
        "$(sed -n 's/ *latency_seconds: //p' "$dir/hosts.yaml" | tr '\n' ' ')"
}
# Layers one machine after the other, as llama.cpp shares them out.
llama() {
    [ -n "${LLAMA:-}" ] || return 0
    servers= pids=
    for i in $(seq 2 "$ranks"); do
        ip netns exec "moe$i" "$LLAMA/rpc-server" -H "10.77.0.$i" -p 50052 -t 1 >/dev/null 2>&1 &
        pids="$pids $!"
        servers="$servers${servers:+,}10.77.0.$i:50052"
    done
    sleep 2
    ip netns exec moe1 "$LLAMA/llama-bench" -m "$GGUF" --rpc "$servers" -ngl 99 -t 1 -p 64 -n "$tokens" -r 1 -o jsonl \
        2>"$dir/err" | sed -n 's/.*"avg_ts": *\([0-9.]*\).*/\1/p' |
        awk '{ s[NR] = $1 } END { printf "| %-34s | %8.1f | %8.2f |\n", "  llama.cpp, RPC", s[1], s[2] }'
    # shellcheck disable=SC2086 # several
    kill $pids 2>/dev/null
}
if [ -n "${PLANNED:-}" ]; then
    head -c 6000 tests/data/stories.valid.txt >"$dir/text.txt"
    "$bin/moe-profile" -q "$pack" --text "$dir/text.txt" --trace "$dir/trace" -o "$dir/statistics.yaml"
fi

echo "$ranks ranks, $memory each, $tokens tokens, on $(nproc) cores, disk ${LINK_RATE:-as it is}: $(basename "$pack")"
echo
echo '| run                                | prompt/s | answer/s | messages | bytes to   | bytes from |'
echo '|------------------------------------|---------:|---------:|---------:|-----------:|-----------:|'
"$run" "$pack" "$@" --memory "$memory" --stats-json "$dir/stats" >"$dir/want"
row "one process in $memory, from disk"
if [ -z "${LARGE:-}" ]; then
    "$run" "$pack" "$@" --strategy resident --stats-json "$dir/stats" >"$dir/got"
    same "one process, all in memory"
    row "one process, all in memory"
fi
for network in $networks; do
    begin_net "${network%:*}" "${network#*:}"
    on_ranks "$run" "$pack" "$@" --memory "$memory" --stats-json "$dir/stats" >"$dir/got" 2>"$dir/err" ||
        { cat "$dir/err"; exit 1; }
    same "$ranks ranks, $network"
    row "$ranks ranks, ${network%:*} us, $(echo "${network#*:}" | awk '{ print $1 / 1e9 }') Gbit/s"
    planned
    llama
    end_net
done
