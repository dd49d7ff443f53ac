#!/bin/sh
# A real Slurm on this machine: a controller and two nodes, on which moe-pipeline runs the bundled model's whole
# pipeline from one command, while one node is killed in the middle. The files must be those of a run without
# Slurm, byte for byte. Needs slurm-wlm and munge (make check-slurm installs them), and root; starts nothing of
# the system's own services, and ends and removes all that it started.
. tests/cli/lib.sh
for program in slurmctld slurmd munged sbatch; do
    command -v "$program" >/dev/null || PATH=$PATH:/usr/sbin
    command -v "$program" >/dev/null || { echo "Bail out! no $program: apt-get install slurm-wlm munge"; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "Bail out! the daemons need root"; exit 1; }
slurm=$tmp/slurm
host=$(hostname -s)
port=$((20000 + $$ % 20000))
mkdir -p "$slurm/state" "$slurm/munge" "$slurm/tmp-one" "$slurm/tmp-two"
chmod 755 "$tmp"
head -c 1024 /dev/urandom >"$slurm/munge/key"
chmod 600 "$slurm/munge/key"
SLURM_CONF=$slurm/slurm.conf
export SLURM_CONF
# Whatever one of these nodes started.
processes_of() { # NODE
    for process in /proc/[0-9]*; do
        environment=$({ tr '\0' '\n' <"$process/environ"; } 2>/dev/null) || continue
        case "
$environment
" in *"
SLURMD_NODENAME=$1
"*) ;; *) continue ;; esac
        case "
$environment
" in *"
SLURM_CONF=$SLURM_CONF
"*) echo "${process#/proc/}" ;; esac
    done
}
stop_all() {
    scancel --full -u root 2>/dev/null
    for node in one two; do
        # shellcheck disable=SC2046 # several
        kill -9 $(processes_of "$node") 2>/dev/null
    done
    for pid in "$slurm"/*.pid "$slurm/munge/pid"; do
        [ -f "$pid" ] && kill "$(cat "$pid")" 2>/dev/null
    done
    sleep 2
    rm -rf "$tmp"
}
trap stop_all EXIT
munged --force --key-file="$slurm/munge/key" --socket="$slurm/munge/socket" --pid-file="$slurm/munge/pid" \
    --log-file="$slurm/munge/log" --seed-file="$slurm/munge/seed" || { echo "Bail out! munged"; exit 1; }
cat >"$slurm/slurm.conf" <<END
ClusterName=moe
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm/munge/socket
CredType=cred/munge
SlurmctldPort=$port
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd-%n.pid
SlurmctldLogFile=$slurm/slurmctld.log
SlurmdLogFile=$slurm/slurmd-%n.log
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool-%n
TmpFS=$slurm/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmdTimeout=5
SlurmctldTimeout=5
MessageTimeout=5
KillWait=2
MinJobAge=300
ReturnToService=2
MpiDefault=none
NodeName=one NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=1 RealMemory=2000
NodeName=two NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=1 RealMemory=2000
PartitionName=all Nodes=one,two Default=YES MaxTime=INFINITE State=UP
END
slurmctld -f "$SLURM_CONF" && slurmd -N one -f "$SLURM_CONF" && slurmd -N two -f "$SLURM_CONF" ||
    { echo "Bail out! Slurm does not start"; cat "$slurm"/*.log; exit 1; }
for pause in 1 1 2 4 8 16; do
    [ "$(sinfo -h -N -t idle 2>/dev/null | wc -l)" = 2 ] && break
    sleep "$pause"
done
check "two nodes wait for work" [ "$(sinfo -h -N -t idle | wc -l)" = 2 ]

head -c 1600 tests/data/math.calib.txt >"$tmp/calib.txt"
"$bin/moe-quantize" -q -o "$tmp/tiny.moe" "$checkpoint"

# Ranks that srun starts, one on each node: the tokens of one process; one of them is killed.
if [ -f "$BUILD/lib/moe-toolkit/libmoe-mpi.so" ] && srun --mpi=list 2>&1 | grep -q pmix; then
    run "$bin/moe-run" "$tmp/tiny.moe" -p 'Once upon a time' -n 40 --temp 0 --strategy resident
    want=$(cat "$out")
    run timeout 120 srun -N 2 -n 2 --mpi=pmix "$bin/moe-run" "$tmp/tiny.moe" -p 'Once upon a time' -n 40 --temp 0 -t 1 \
        --stats-json "$tmp/ranks.json"
    expect_stdout "$want" "two ranks by srun: the tokens of one process"
    check "... of which one computed" grep -q '"rank": 1, .*"expert_activations": [1-9]' "$tmp/ranks.json"
    run timeout 120 srun -N 2 -n 2 --mpi=pmix "$bin/moe-run" "$tmp/tiny.moe" -p 'Once upon a time' -n 40 --temp 0 -t 1 \
        --share-attention --stats-json "$tmp/ranks.json"
    expect_stdout "$want" "... that share out attention: the same"
    check "... of which one had half of the layers" grep -q '"rank": 1, .*"attention_layers": 6,' "$tmp/ranks.json"
    run timeout 120 srun -N 2 -n 2 --mpi=pmix "$bin/moe-run" "$tmp/tiny.moe" -p 'Once upon a time' -n 40 --temp 0 -t 1 \
        --share-layers --stats-json "$tmp/ranks.json"
    expect_stdout "$want" "... that share out whole layers: the same"
    check "... of which one had half of them" grep -q '"rank": 1, .*"layers": 6, .*"expert_activations": [1-9]' "$tmp/ranks.json"
    timeout 120 srun -N 2 -n 2 --mpi=pmix --kill-on-bad-exit "$bin/moe-run" "$tmp/tiny.moe" -p Once -n 3900 --temp 0 -t 1 \
        --ignore-eos >"$out" 2>"$err" </dev/null &
    job=$!
    victim=
    while [ -z "$victim" ] && kill -0 $job 2>/dev/null; do
        victim=$(for pid in $(processes_of two); do grep -lsx moe-run "/proc/$pid/comm"; done | cut -d/ -f3 | head -n 1)
    done
    sleep 0.5
    killed=no
    [ -z "$victim" ] || ! kill -9 "$victim" 2>/dev/null || killed=yes
    code=0
    wait $job || code=$?
    [ "$code" = 124 ] && code=0
    check "two ranks run, and one is killed" [ $killed = yes ]
    check "... and all end, not well" [ "$code" != 0 ]
    check "... and nothing is left" [ -z "$(for node in one two; do for pid in $(processes_of $node); do
        grep -lsx moe-run "/proc/$pid/comm"; done; done)" ]
else
    echo "# no ranks by srun: built without MPI, or a Slurm without pmix"
fi
begin() { # DIR OPTION...
    dir=$1
    shift
    "$bin/moe-pipeline" "$checkpoint" --text "$tmp/calib.txt" --max-tokens 48 --bits 4,2 --tolerance 5% --memory 26M \
        --shards 4 -t 1 -o "$dir" "$@"
}
code=0
began=$(date +%s)
begin "$tmp/alone" --jobs 2 -q >"$out" 2>"$err" || code=$?
expect_exit 0 "without Slurm: exit 0"
echo "# $(($(date +%s) - began)) s without Slurm"

# One command; node two dies, with everything that runs on it, while it measures importances.
began=$(date +%s)
begin "$tmp/nodes" --slurm --wait --sbatch='--no-requeue' --device-profile "$tmp/alone/device.yaml" \
    >"$tmp/said" 2>"$tmp/log" &
pipeline=$!
lost=
for tick in $(seq 600); do
    lost=$(squeue -h -w two -t R -n moe-calibrate -o %i 2>/dev/null | head -n 1)
    [ -z "$lost" ] || break
    kill -0 "$pipeline" 2>/dev/null || break
    sleep 0.2
done
check "node two runs a task: ${lost:-none}" [ -n "$lost" ]
kill -9 "$(cat "$slurm/slurmd-two.pid")"
victims=
for round in 1 2 3; do # a script that dies may just have started a program
    some=$(processes_of two | tr '\n' ' ')
    # shellcheck disable=SC2086 # several
    kill -9 $some 2>/dev/null
    victims=$victims$some
done
check "... which dies with it: ${victims:-nothing}" [ -n "$victims" ]
code=0
wait "$pipeline" || code=$?
cp "$tmp/said" "$out"
cp "$tmp/log" "$err"
expect_exit 0 "with Slurm, from one command: exit 0"
echo "# $(($(date +%s) - began)) s with Slurm"
check "a lost task was sent again" grep -q 'calibrate.*sent again' "$tmp/nodes/log/again"
sed 's/^/# /' "$tmp/nodes/log/again"
for file in statistics.yaml text.trace importance.yaml map.yaml model.moe; do
    check "$file: the same bytes" cmp "$tmp/alone/$file" "$tmp/nodes/$file"
done
sed "s|$tmp/nodes|$tmp/alone|" "$tmp/nodes/plan.yaml" >"$tmp/plan.yaml" # it names its evidence
check "plan.yaml: the same bytes" cmp "$tmp/alone/plan.yaml" "$tmp/plan.yaml"
expect_stdout_like "Plan for *Expected * tokens/s*measured*" "... and the summary of one machine"

# A task that fails for a reason that stays is not sent again.
mkdir "$tmp/nothing"
echo '{}' >"$tmp/nothing/config.json"
code=0
"$bin/moe-pipeline" "$tmp/nothing" --text "$tmp/calib.txt" --memory 26M -o "$tmp/none" --slurm --wait -q >"$out" 2>"$err" || code=$?
expect_exit 1 "a checkpoint that is none: exit 1"
expect_stderr_like "*moe-quantize: *nothing*" "... is named"
finish
