# moe-plan: plans, the simulator's table, wrong command lines and files.
. tests/cli/lib.sh
pack
plan="$bin/moe-plan"
memory=$(($(smallest_memory "$plan" "$tiny") + 7))
machine="--layer-seconds 2e-4 --link-rate 600MB/s"
head -c 3000 tests/data/math.valid.txt >"$tmp/text" # plans take as long as their trace
"$bin/moe-profile" -q "$tiny" --text "$tmp/text" --max-tokens 32 -o "$tmp/s.yaml" \
    --trace "$tmp/t.trace"
sed 's/"num_experts": 32/"num_experts": 16/' "$checkpoint/config.json" >"$tmp/smaller.json"

wrong() { # NAME GLOB ARGUMENTS...
    name=$1 glob=$2
    shift 2
    run "$plan" "$@"
    error_line 2 "moe-plan: $glob" "$name"
}
wrong "nothing to do" "nothing to do*"
wrong "no memory" "no budget given*" "$tiny"
wrong "a size that is none" "option --memory: 'much'*" "$tiny" --memory much
wrong "two packs" "give either one MODEL or --shape, or several*" "$tiny" "$tiny" --memory 30M
wrong "a pack and a shape" "give either one MODEL or --shape*" "$tiny" --shape "$tmp/smaller.json" --memory 30M
wrong "--experts without a shape" "option --experts needs --shape*" "$tiny" --memory 30M --experts 4
wrong "--layer-seconds alone" "option --layer-seconds needs*" "$tiny" --memory 30M --layer-seconds 1
wrong "two rates" "options --load-seconds and*" "$tiny" --memory 30M --load-seconds 1 --link-rate 1G
wrong "--json of a plan" "option --json needs --explain, --simulate or --machines*" "$tiny" --memory 30M --json
wrong "explain and simulate" "options --explain and --simulate exclude each other*" --explain a --simulate b
wrong "a row that is none" "option --strategy: 'magic'*" "$tiny" --memory 30M --strategy magic
wrong "a row without its statistics" "strategy eap*" "$tiny" --memory "${memory}M" --strategy eap \
    --layer-seconds 1e-4 --link-rate 1GB/s --trace "$tmp/t.trace"
wrong "exact and not" "*--exact forbids*" "$tiny" --memory 30M --strategy hobbit --exact
run "$plan" "$tiny" --memory 1M
error_line 4 "moe-plan: *too small: the smallest that works is*" "a budget that is too small"
run "$plan" "$tiny" --memory 0
error_line 2 "moe-plan: option --memory: '0' is not a size*" "a budget of nothing"
run "$plan" "$tmp/s.yaml" --memory 30M
error_line 3 "moe-plan: $tmp/s.yaml: not an expert pack*" "no pack"
run "$plan" --simulate "$tiny" --strategy lru
error_line 3 "moe-plan: $tiny: *" "no trace"
run "$plan" "$tiny" --memory "${memory}M" --device-profile "$tmp/s.yaml" --trace "$tmp/t.trace"
error_line 3 "moe-plan: $tmp/s.yaml: *" "no device profile"

# Plans.
make_plan() { # ARGUMENTS...
    # shellcheck disable=SC2086
    run "$plan" "$tiny" --memory "${memory}M" --max-tokens 120 $machine "$@"
}
make_plan --trace "$tmp/t.trace" --strategy lru -o "$tmp/a.yaml"
expect_exit 0 "a plan is written"
expect_stdout "" "... and nothing on stdout"
expect_stderr_like "*moe-plan: $tmp/a.yaml: strategy lru, expected: about * tokens/s, * with other texts*; moe-plan --explain * says why*" "... a line says so"
make_plan --trace "$tmp/t.trace" --strategy lru
expect_stdout_like "*as with all experts in memory*tiny.moe in $memory.? MiB, on layers of 0.0002 s*Where a token's time goes*As moe-run*    lru" \
    "without -o its first screen is shown"
check "... on one screen" [ "$(wc -l <"$out")" -le 50 ]
make_plan --trace "$tmp/t.trace" --strategy fate+cache=lrfu -o "$tmp/c.yaml"
check "a row brings its parts" grep -q 'cache: lrfu' "$tmp/c.yaml"
run "$plan" --explain "$tmp/c.yaml"
expect_stdout_like "*    fate+cache=lrfu*" "... and is explained so"
make_plan -q --strategy lru --seed 3 -o "$tmp/d.yaml"
expect_exit 0 "a trace is drawn where there is none"
run "$plan" --explain "$tmp/d.yaml"
expect_stdout_like "*What it assumes, the weakest first*drawn at random, in the bundled model's
     manner*" "... and that is said"
make_plan -q --strategy lru --stats "$tmp/s.yaml" -o "$tmp/d.yaml"
run "$plan" --explain "$tmp/d.yaml" --json
expect_stdout_like '*"assumptions": \[*"routing-drawn"*' \
    "with the figures of statistics"
# What a cache has learnt.
for model in "$tiny" "$BUILD/models/tiny-switch"; do
    run "$bin/moe-run" "$model" --memory 64M --strategy lru+cache=learned --learn "$tmp/learnt.$(basename "$model")" -p Once -n 8 --temp 0
done
make_plan --trace "$tmp/t.trace" --strategy lru+cache=learned --learn "$tmp/learnt.$(basename "$tiny")" -o "$tmp/l.yaml"
run "$plan" --explain "$tmp/l.yaml"
expect_stdout_like "*begins with what it has learnt:*--learn*$tmp/learnt.$(basename "$tiny")*" "what a cache begins with is explained"
run "$bin/moe-run" "$tiny" --plan "$tmp/l.yaml" -p Once -n 1
expect_stderr_like "*moe-run: the cache of this plan begins with what it has learnt: --learn $tmp/learnt.*" "... and a run that begins with nothing is told"
run "$plan" "$tiny" --memory "${memory}M" --learn "$tmp/learnt.tiny-switch"
error_line 2 "moe-plan: $tmp/learnt.tiny-switch: this was learnt from another model than $tiny*" "another model's is refused before this machine is measured"
make_plan --trace "$tmp/t.trace" --strategy lru -o "$tmp/none/a.yaml"
error_line 1 "moe-plan: $tmp/none/*" "nowhere to write"
run "$plan" -q "$tiny" --expert-memory 2M --trace "$tmp/t.trace" --strategy lru --max-tokens 120 \
    --layer-seconds 2e-4 --link-rate 600MB/s -o "$tmp/e.yaml"
expect_exit 0 "memory of the experts alone"
make_plan --trace "$tmp/t.trace" -o "$tmp/auto.yaml"
expect_exit 0 "--strategy auto"
check "... says what it tried" grep -q '^tried:' "$tmp/auto.yaml"

# A model without weights, on a machine that is not here.
shape() { run "$plan" -q --shape "$checkpoint/config.json" --device-profile profiles/rtx4090.yaml "$@"; }
shape --memory 60M --strategy lru --max-tokens 120
expect_exit 0 "a shape"
expect_stdout_like "*config.json in 60.0 MiB, on RTX 4090*" "... is planned for"
shape --memory 60M --strategy lru --max-tokens 120 -o "$tmp/a.yaml"
shape --memory 60M --strategy lru --max-tokens 120 -o "$tmp/b.yaml"
check "the same inputs give the same plan" cmp "$tmp/a.yaml" "$tmp/b.yaml"
shape --memory 60M --strategy hobbit --experts 8,2 --trace "$tmp/t.trace" --max-tokens 120
expect_stdout_like "*Experts are stored at 8 bits, some are taken at 2*" "... at two precisions"
shape --memory 1M --strategy lru
error_line 4 "moe-plan: *" "... in too little memory"

# Several machines: what they have and do adds up, and a network without delay takes less.
printf '%s\n' 'format: moe-machines' 'version: 1' \
    'network: {latency_seconds: 50e-6, bytes_per_second: 1.17e8}' 'machines:' \
    '- {name: a, memory: 42M, memory_bytes_per_second: 20e9, storage_bytes_per_second: 1e9}' \
    '- {name: b, memory: 54M, memory_bytes_per_second: 9e9, storage_bytes_per_second: 1e9, count: 2}' >"$tmp/hosts.yaml"
run "$plan" -q "$tiny" --machines "$tmp/hosts.yaml" --trace "$tmp/t.trace" --max-tokens 40 --json
expect_exit 0 "three machines"
of_machines() { sed -n "s/.*\"$1\": \([0-9.e-]*\)[,}].*/\1/p" "$out" | awk '{ n += $1 } END { print n }'; }
check "... have all experts, each once" [ "$(of_machines experts)" = 384 ]
check "... and less without the network's delay" awk -v a="$(of_machines decode_s)" -v tokens="$(of_machines decode_tokens)" \
    -v b="$(sed -n 's/.*without delay", "decode_tokens_per_s": \([0-9.e+]*\).*/\1/p' "$out")" 'BEGIN { exit !(tokens / b < a) }'
sed 's/memory: ..M/memory: 90M/' "$tmp/hosts.yaml" >"$tmp/large.yaml"
run "$plan" -q "$tiny" --machines "$tmp/large.yaml" --trace "$tmp/t.trace" --max-tokens 40 --no-outlook --json
apart=$(of_machines messages) alone=$(of_machines decode_s) tokens=$(of_machines decode_tokens)
run "$plan" -q "$tiny" --machines "$tmp/large.yaml" --trace "$tmp/t.trace" --max-tokens 40 --no-outlook --json --share-attention
check "... that share out attention: a message more for each of 8 layers" [ "$(of_machines messages)" = $((apart + 8 * tokens)) ]
check "... and two latencies" awk -v a="$alone" -v b="$(of_machines decode_s)" -v n="$tokens" 'BEGIN { exit !(b - a > 8e-4 * n) }'
"$bin/moe-quantize" -q --experts 8 -o "$tmp/chooses.moe" "$drawn/glm5-a"
run "$plan" -q "$tmp/chooses.moe" --machines "$tmp/large.yaml" --max-tokens 40 --no-outlook --share-attention
error_line 3 "moe-plan: *: has no two layers whose attention could be on different ranks*" "... which not every model can"
run "$plan" -q "$tiny" --machines "$tmp/large.yaml" --trace "$tmp/t.trace" --max-tokens 40 --json --share-layers
check "... or whole layers: a message to each of two others, whatever the layers" [ "$(of_machines messages)" = $((2 * tokens)) ]
check "... all experts once" [ "$(of_machines experts)" = 384 ]
check "... and what the other placement would give" awk -v n="$tokens" -v s="$alone" \
    -v a="$(sed -n 's/.*"without --share-layers", "decode_tokens_per_s": \([0-9.e+]*\).*/\1/p' "$out")" 'BEGIN { d = a * s / n; exit !(d > 0.999 && d < 1.001) }'
sed '/^network/d' "$tmp/hosts.yaml" >"$tmp/alone.yaml"
run "$plan" -q "$tiny" --machines "$tmp/alone.yaml" --no-outlook
error_line 3 "moe-plan: $tmp/alone.yaml: line *'b' has no 'link', and there is no 'network'" "... without a network"
for small in a=10M b=20M; do
    sed "s/name: ${small%=*}, memory: [0-9]*M/name: ${small%=*}, memory: ${small#*=}/" "$tmp/hosts.yaml" >"$tmp/small.yaml"
    run "$plan" -q "$tiny" --machines "$tmp/small.yaml" --no-outlook
    error_line 4 "moe-plan: machine '${small%=*}' has no room for experts: it has [12]0.00 MiB, and * takes *MiB*" \
        "... one of which is too small ($small): what it takes"
done
run "$plan" -q "$tiny" --machines "$tmp/hosts.yaml" --trace "$tmp/t.trace" --max-tokens 1 --no-outlook
error_line 2 "moe-plan: the part of the trace that is simulated decodes no token*" "... or by prompts only"

# Whose loads: a pack's come from storage, whatever accelerator the machine's profile has.
fingerprint=$(sed -n 's/^ *source_fingerprint: //p' "$tmp/s.yaml")
printf '%s\n' 'format: moe-device' 'version: 1' 'name: "a machine"' 'host:' \
    '  memory_bytes_per_second: 10e9' 'storage:' '  bytes_per_second: 600e6' >"$tmp/derived.yaml"
{ cat "$tmp/derived.yaml"; printf '%s\n' 'model:' "  source_fingerprint: $fingerprint" '  layers: 8' \
    '  moe_layers: 8' '  experts_per_token: 4' '  positions: 64' '  head_seconds: 1e-4' \
    '  variants:' '    - name: "4"' '      bytes: 100000' '  batches:' '    - rows: 1' \
    '      attention_seconds: 1e-4' '      router_seconds: 1e-5' '      shared_seconds: 1e-5' \
    '      combine_seconds: 1e-5' '      expert_rows: 1' '      expert_seconds:' '        "4": 2e-5'; } \
    >"$tmp/measured.yaml"
for times in derived measured; do
    { cat "$tmp/$times.yaml"; printf '%s\n' 'accelerator:' '  name: "a GPU"' \
        '  memory_bytes_per_second: 1000e9' '  link_bytes_per_second: 32e9'; } >"$tmp/more.yaml"
    for profile in "$times" more; do
        run "$plan" -q "$tiny" --expert-memory 2M --max-tokens 120 --trace "$tmp/t.trace" \
            --strategy lru --device-profile "$tmp/$profile.yaml" -o "$tmp/f.yaml"
        expect_exit 0 "a plan with times $times ($profile)"
        # The program's own size varies from run to run.
        grep -v -e program_bytes -e floor_bytes "$tmp/f.yaml" >"$tmp/plan-$profile.yaml"
    done
    check "... the same with an accelerator" cmp "$tmp/plan-$times.yaml" "$tmp/plan-more.yaml"
done
check "... of times that were measured" grep -q 'times_measured: true' "$tmp/plan-more.yaml"
run "$plan" -q "$tiny" --memory "${memory}M" --trace "$tmp/t.trace" --strategy lru \
    --device-profile profiles/rtx4090.yaml
error_line 2 "moe-plan: device profile 'RTX 4090*add memory_bytes_per_second of the host" \
    "no plan of a pack by an accelerator's figures"
run "$plan" -q --shape "$checkpoint/config.json" --memory 60M --max-tokens 120 --strategy lru \
    --device-profile "$tmp/more.yaml" -o "$tmp/shape.yaml"
expect_exit 0 "a shape"
check "... is planned for the accelerator and its link" \
    grep -q 'load_bytes_per_second: 3.2e+10' "$tmp/shape.yaml"
run "$plan" -q --shape "$checkpoint/config.json" --memory 60M --max-tokens 120 --strategy lru \
    --device cpu --device-profile "$tmp/more.yaml" -o "$tmp/shape.yaml"
expect_exit 0 "a shape on the processor"
check "... loads from storage, not over the GPU's link" \
    grep -q 'load_bytes_per_second: 6e+08' "$tmp/shape.yaml"
run "$plan" -q --shape "$checkpoint/config.json" --memory 60M --device cuda \
    --device-profile "$tmp/derived.yaml"
error_line 2 "moe-plan: device profile *: no GPU with memory of its own*" "no plan for a GPU that is not there"
run "$plan" -q "$tiny" --memory 60M --device cuda --device-profile "$tmp/more.yaml"
expect_exit 2 "no plan of a pack for a GPU"

# The host holds 90% of 20 MB: what is beyond comes from storage, over two links.
{ sed 's/^host:/&\n  memory_bytes: 20e6/' "$tmp/derived.yaml"
    printf '%s\n' 'accelerator:' '  name: "a GPU"' '  memory_bytes_per_second: 1000e9' \
        '  link_bytes_per_second: 32e9' '  link_piece_seconds: 5e-6' '  launch_seconds: 4e-6' \
        '  trip_seconds: 2e-5'; } >"$tmp/gpu.yaml"
run "$plan" -q --shape "$checkpoint/config.json" --memory 60M --max-tokens 120 --strategy lru \
    --device cuda --device-profile "$tmp/gpu.yaml" -o "$tmp/shape.yaml"
expect_exit 0 "a shape for a GPU"
check "... has the link, its pieces, storage behind it, and launches" [ "$(grep -c \
    -e 'load_bytes_per_second: 3.2e+10' -e 'load_piece_seconds: 5e-06' \
    -e 'storage_bytes_per_second: 6e+08' -e 'joint_seconds: 8e-06' "$tmp/shape.yaml")" = 4 ]

# The table.
# shellcheck disable=SC2086
run "$plan" --simulate "$tmp/t.trace" "$tiny" --strategy lru,prefetch+cache=arc \
    --memory "10%,2x,${memory}M" $machine
expect_exit 0 "strategies side by side"
check "... a line for each at each size" [ "$(grep -c -e '^lru ' -e '^prefetch+cache=arc ' "$out")" = 6 ]
run "$plan" --simulate "$tmp/t.trace" --memory 25%,50%,100% --strategy lru --json \
    --layer-seconds 2e-4 --link-rate 600MB/s
expect_exit 0 "of a trace alone, for scripts"
expect_stdout_like '\[{"strategy": "lru", "memory": "25%", "memory_bytes": *"hit_rate": *"optimal_hit_rate": *"stall_s": *"decode_tokens_per_s": *}\]' \
    "... entries with the documented keys"
check "hits rise with memory, below the optimum, and speed below its bound" awk '
    function of(key) { match($0, "\"" key "\": [-+.0-9e]*")
        return substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0 }
    { hits = of("hit_rate"); if (hits < last || hits > of("optimal_hit_rate") + 1e-9) bad = 1
      if (of("decode_tokens_per_s") > of("bound_tokens_per_s") * (1 + 1e-9)) bad = 1
      last = hits; n++ }
    END { exit bad || n != 3 }' "$out"
# Where nothing else is named, the disk that is measured is that of the current directory.
run env -C "$tmp" "$(realpath "$plan")" --simulate "$tmp/t.trace" --strategy lru --memory 4M
expect_exit 0 "a trace alone, on this machine"
expect_stderr_like "moe-plan: measuring this machine*" "... which is measured"
run "$plan" --simulate "$tmp/t.trace" --memory 10%,20% --strategy host,lru --layer-seconds 2e-4 \
    --link-rate 600MB/s
expect_exit 0 "a row that cannot run"
expect_stdout_like "*host *statistics*lru *" "... says why, the others run"
check "... once, not at each size" [ "$(grep -c statistics "$out")" = 1 ]
run "$plan" --simulate "$tmp/t.trace" --memory 10% --strategy host --layer-seconds 2e-4 \
    --link-rate 600MB/s
expect_exit 2 "none that can run is an error"
check "... which is said once" [ "$(cat "$out" "$err" | grep -c statistics)" = 1 ]
run "$plan" --simulate "$tmp/t.trace" --memory 10% --strategy lru,lru+skip-below=0.5 --layer-seconds 2e-4 \
    --link-rate 600MB/s
expect_stdout_like "*lru  *lru+skip-below=50%\\* *\\* may change what the model says" "... what may change results is marked"
check "... and nothing else" [ "$(grep -c '^[a-z0-9.+=-]*\*' "$out")" = 1 ]
run "$plan" --simulate "$tmp/t.trace" --memory 10% --strategy lru,lru+skip-below=0.5 --layer-seconds 2e-4 \
    --link-rate 600MB/s --json
check "... in JSON too" [ "$(grep -o '"exact": [a-z]*' "$out" | tr -d '\n')" = '"exact": true"exact": false' ]
wrong "sizes that are none" "option --memory: '1z'*" --simulate "$tmp/t.trace" --memory 1z
wrong "auto is for plans" "option --strategy: auto*" --simulate "$tmp/t.trace" --strategy auto
# shellcheck disable=SC2086
run "$plan" --simulate "$tmp/t.trace" --shape "$tmp/smaller.json" --memory 50% --strategy lru \
    --device-profile profiles/rtx4090.yaml
expect_exit 0 "figures of another model's trace"
expect_stderr_like "*drawing one at random that resembles $tmp/t.trace*" "... which is said"
finish
