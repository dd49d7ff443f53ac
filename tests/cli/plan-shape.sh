# moe-plan --shape: models without weights, on the machines of papers.
. tests/cli/lib.sh
plan=$bin/moe-plan
shapes=profiles/shapes

# A trace: models with as many layers and experts take it as theirs, others imitate it, which takes longer.
pack
head -c 12000 tests/data/math.valid.txt >"$tmp/text"
"$bin/moe-profile" -q "$tiny" --text "$tmp/text" --max-tokens 64 --max-windows 1 -o "$tmp/s.yaml" --trace "$tmp/t.trace"

# ---- What a profile says of a model ----

# Fate's 13 ms a block and 6 ms a load: what a token computes with all experts in memory, and what the link
# moves for it without a cache (a shared expert is computed meanwhile).
like_trace() { # SHAPE: with 12 layers of 32 experts, 4 for a token
    sed 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 12/; s/"num_experts": [0-9]*/"num_experts": 32/
        s/"num_experts_per_tok": [0-9]*/"num_experts_per_tok": 4/; s/"count": 25/"count": 9/; s/"count": 5/"count": 3/' "$1"
}
like_trace $shapes/qwen1.5-moe-a2.7b.json >"$tmp/qwen1.5.json"
sed 's/moe_layers: 24/moe_layers: 12/; s/experts: 60/experts: 32/' profiles/rtx3090-pcie3.yaml >"$tmp/3090.yaml"
of_fate() { # STRATEGY MEMORY OPTION...
    row=$1 memory=$2
    shift 2
    run "$plan" -q --simulate "$tmp/t.trace" --shape "$tmp/qwen1.5.json" --experts 16 --dense 16 \
        --device-profile "$tmp/3090.yaml" --memory "$memory" --strategy "$row" --json "$@"
}
seconds() { # KEY EXPECTED: for a token, within 1%
    awk -v key="$1" -v expected="$2" '
        function of(key) { match($0, "\"" key "\": [-+.0-9e]*")
            return substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0 }
        { s = of(key) / of("decode_tokens") }
        END { exit !(s > 0.99 * expected && s < 1.01 * expected) }' "$out"
}
of_fate resident 100%
expect_exit 0 "a model on its paper's machine"
check "... computes 12 blocks of 13 ms and the head" seconds decode_s 0.1569
of_fate ondemand 1x
check "... and loads 4 experts of 6 ms for each" seconds link_s 0.288
of_fate resident 100% --layer-seconds 3e-3
check "... or computes for the time that is given" seconds decode_s 0.0369
of_fate ondemand 1x --load-seconds 2e-3
check "... or loads for that" seconds link_s 0.096
of_fate ondemand 1x --link-rate 17301504
check "... or over a link that is given" seconds link_s 48
# A GPU's loads come over its bus, also where the profile has no storage behind the host's memory.
run "$plan" -q --trace "$tmp/t.trace" --shape "$tmp/qwen1.5.json" --device-profile "$tmp/3090.yaml" --memory 8G \
    --strategy lru -o "$tmp/bus.yaml"
run "$plan" --explain "$tmp/bus.yaml"
expect_stdout_like "*the bus (* is busy*twice as fast a bus*" "a GPU's plan speaks of its bus"
check "... and of no disk's reads" sh -c "! grep -E 'the disk|a disk' '$out'"
run "$plan" --trace "$tmp/t.trace" --shape $shapes/nllb-moe-54b.json --device-profile "$tmp/3090.yaml" --memory 40G --strategy lru \
    -o "$tmp/cpu.yaml"
expect_stderr_like "*moe-plan: moe-run computes it on the processor only, which --device cpu plans for: *" "... of a model that GPUs do not compute, with a note"
# A 13th layer without experts, of which a block's weights are 60%.
sed -i 's/"num_hidden_layers": 12/"num_hidden_layers": 13, "mlp_only_layers": [0]/' "$tmp/qwen1.5.json"
of_fate resident 100%
check "... and for layers without experts" seconds decode_s 0.1646
# A drawn trace can be kept: explained, simulated, and taken in place of the same one drawn again.
like_trace profiles/shapes/olmoe-1b-7b.json >"$tmp/olmoe.json"
shape=$tmp/olmoe.json
run "$bin/moe-plan" --shape "$shape" --strategy lru --memory 2G --device-profile profiles/raspberry-pi-4b.yaml --draw-trace "$tmp/drawn" -o "$tmp/a.yaml"
expect_exit 0 "a drawn trace is kept"
run "$bin/moe-plan" --explain "$tmp/drawn"
expect_stdout_like "*24 sequences*" "... can be explained"
run "$bin/moe-plan" --simulate "$tmp/drawn" --shape "$shape" --strategy lru --memory 2G --device-profile profiles/raspberry-pi-4b.yaml
expect_exit 0 "... simulated"
run "$bin/moe-plan" --shape "$shape" --strategy lru --memory 2G --device-profile profiles/raspberry-pi-4b.yaml --trace "$tmp/drawn" --draw-trace "$tmp/x" -o "$tmp/b.yaml"
error_line 2 "moe-plan: $tmp/drawn: is a trace of this model, so there is none to draw (--draw-trace)" "... and is one of the model"
run "$bin/moe-plan" --shape "$shape" --strategy lru --memory 2G --draw-trace "$tmp/none/x" -o "$tmp/b.yaml"
error_line 1 "moe-plan: $tmp/none/x*" "a place that is not there"

# What nothing was counted of is drawn: strategies that go by what experts do can be simulated.
run "$plan" -q --simulate "$tmp/t.trace" --shape $shapes/switch-base-8.json --device-profile profiles/jetson-tx2.yaml \
    --memory 2x --strategy ondemand,edgemoe,eap --max-tokens 300 --json
check "... paths and frequencies of other texts are drawn with a trace" [ "$(grep -c '"strategy"' "$out")" = 3 ]
cp "$out" "$tmp/first"
run "$plan" -q --simulate "$tmp/t.trace" --shape $shapes/switch-base-8.json --device-profile profiles/jetson-tx2.yaml \
    --memory 2x --strategy ondemand,edgemoe,eap --max-tokens 300 --json
check "... the same at each time" cmp -s "$tmp/first" "$out"
run "$plan" -q --simulate "$tmp/t.trace" --memory 1x --strategy ondemand --layer-seconds 3e-3 --load-seconds 2e-3 \
    --max-tokens 100
expect_exit 0 "a layer's and a load's time are a machine"

# ---- A line for each budget ----

# One that runs, and one with attention of two kinds.
orin="--device-profile profiles/jetson-agx-orin.yaml --trace $tmp/t.trace"
like_trace $shapes/qwen3-30b-a3b.json >"$tmp/few.json"
like_trace tests/data/two-kinds.json >"$tmp/two.json"
# shellcheck disable=SC2086
run "$plan" -q --shape "$tmp/few.json" $orin
expect_exit 0 "a shape without a budget"
check "... is planned for 4, 8, 16 and 32 GB" \
    [ "$(awk '{ print $1 }' "$out" | tr '\n' ' ')" = "Qwen3-30B-A3B: memory 4GB 8GB 16GB 32GB " ]
check "... each with bits, cache, speed and loads" [ "$(grep -c '^[0-9]*GB  *4  *all in memory  *[0-9.]*  *0\.0$' "$out")" = 4 ]
# shellcheck disable=SC2086
run "$plan" --shape "$tmp/few.json" $orin --memory 900M --experts iq2_xxs
error_line 2 "moe-plan: 'iq2_xxs' is not a bitwidth of experts: name one of *, q8_0, q2_k, *, iq3_kt, or two like 4d8" \
    "a type that is not written: those that are"
# Sizes are those that moe-quantize makes.
for bits in '2 q6_k' '3 8' '5 4' 'iq3_kt 16'; do
    "$bin/moe-quantize" -q --synthesize "$tmp/few.json" --sparse --experts "${bits% *}" --dense "${bits#* }" -o "$tmp/few.moe"
    "$bin/moe-quantize" --list --json "$tmp/few.moe" >"$tmp/few.list"
    # shellcheck disable=SC2086
    run "$plan" -q --shape "$tmp/few.json" $orin --memory 5G,6G --strategy lru --experts "${bits% *}" --dense "${bits#* }"
    expect_stdout_like "*with experts at ${bits% *}* and the rest at ${bits#* };*" "experts and the rest at $bits"
    check "... are as large as the pack" awk '
        FILENAME ~ /list$/ && /"memory_bytes"/ { sum += substr($2, 1, length($2) - 1) }
        / parameters, .* GiB with experts/ { said = $4 * 1024 * 1024 * 1024 }
        END { exit !(said > 0.99 * sum && said < 1.01 * sum) }' "$tmp/few.list" "$out"
done
# shellcheck disable=SC2086
run "$plan" -q --shape "$tmp/few.json" $orin --memory 900M,1.5G,2.5G --experts 8 --strategy lru
expect_exit 0 "budgets that are given"
check "... one that does not fit says so" grep -q '^900M  *does not fit: the smallest that works is ' "$out"
check "... more memory loads less and is faster" awk '$1 == "1.5G" { bytes = $NF; speed = $(NF - 1) }
    $1 == "2.5G" { exit !($NF < bytes && $(NF - 1) > speed && bytes > 0) }' "$out"
check "... at the bits that are asked for" grep -q '^1.5G  *8  *[0-9]*% of the experts, ' "$out"
# shellcheck disable=SC2086
run "$plan" -q --shape "$tmp/few.json" $orin --memory 100M,200M --strategy lru
expect_exit 4 "none that fits is an error"
run "$plan" --shape "$tmp/few.json" --memory 20M -o "$tmp/x"
error_line 4 "moe-plan: a budget of * MiB is too small: the smallest that works is *" "a budget that is too small: at once"
# shellcheck disable=SC2086
run "$plan" -q --shape "$tmp/two.json" $orin --memory 2G,4G --strategy lru
expect_exit 0 "a model of a family that is not implemented"
expect_stdout_like "*moe-run cannot run it yet: its layers*" "... says so"
# shellcheck disable=SC2086
run "$plan" --shape "$tmp/two.json" $orin --memory 2G --strategy lru
expect_stderr_like "*moe-run cannot run it yet: its layers*" "... in a plan of one budget, too"
sed 's/"count": 9/"count": 8/' "$tmp/two.json" >"$tmp/wrong.json"
# shellcheck disable=SC2086
run "$plan" -q --shape "$tmp/wrong.json" $orin
error_line 3 "moe-plan: $tmp/wrong.json: 'layers' are 11 in all, the model has 12" "layers that do not add up"
# shellcheck disable=SC2086
run "$plan" -q --shape "$tmp/few.json" $orin -o "$tmp/x"
error_line 2 "moe-plan: option --output needs one budget*" "a plan of several budgets"
run "$plan" -q --shape "$tmp/few.json" --memory 4G,much
error_line 2 "moe-plan: option --memory: 'much' is not a size*" "a size that is none"
finish
