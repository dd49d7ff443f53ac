# moe-plan --shape: models without weights, on the machines of papers.
. tests/cli/lib.sh
plan=$bin/moe-plan
shapes=profiles/shapes

# A trace to imitate.
pack
"$bin/moe-profile" -q "$tiny" --text tests/data/math.valid.txt --max-tokens 64 -o "$tmp/s.yaml" --trace "$tmp/t.trace"

# ---- What a profile says of a model ----

# Fate's 13 ms a block and 6 ms a load: what a token computes with all experts in memory, and what the link
# moves for it without a cache (a shared expert is computed meanwhile).
of_fate() { # STRATEGY MEMORY OPTION...
    row=$1 memory=$2
    shift 2
    run "$plan" -q --simulate "$tmp/t.trace" --shape $shapes/qwen1.5-moe-a2.7b.json --experts 16 --dense 16 \
        --device-profile profiles/rtx3090-pcie3.yaml --memory "$memory" --strategy "$row" --max-tokens 400 --json "$@"
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
check "... computes 24 blocks of 13 ms and the head" seconds decode_s 0.3129
of_fate ondemand 1x
check "... and loads 4 experts of 6 ms for each" seconds link_s 0.576
of_fate resident 100% --layer-seconds 3e-3
check "... or computes for the time that is given" seconds decode_s 0.0729
of_fate ondemand 1x --load-seconds 2e-3
check "... or loads for that" seconds link_s 0.192
of_fate ondemand 1x --link-rate 17301504
check "... or over a link that is given" seconds link_s 96
run "$plan" -q --simulate "$tmp/t.trace" --memory 1x --strategy ondemand --layer-seconds 3e-3 --load-seconds 2e-3 \
    --max-tokens 100
expect_exit 0 "a layer's and a load's time are a machine"
finish
