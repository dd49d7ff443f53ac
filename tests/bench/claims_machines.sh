# The rows of CLAIMS.md that are simulated on the papers' own machines and models, for claims.sh: shapes of
# profiles/shapes/ on profiles/. No time is measured for them, so a busy machine gives the same figures.
# shellcheck shell=sh disable=SC2154

about_machines() {
    cat <<END

Simulated: \`moe-plan --simulate TRACE --shape MODEL --device-profile MACHINE\`, the paper's model on the paper's
machine, by layer and load times that the paper gives where it gives any (\`timed\` in the profile), else by
bandwidths. Routing is drawn in the manner of the bundled model (a trace of its validation texts), and so are the
statistics that EAP, EdgeMoE and DAOP go by, from other texts: in them no path predicts better than how often
experts are used. Where a ratio is more than a fifth from the paper's, the row says why.
END
}

papers_trace() {
    quantize 42 --experts 4,2
    # shellcheck disable=SC2046
    [ -e "$work/papers.trace" ] || "$bin/moe-profile" -q "$work/42.moe" $(of_texts --text valid) --max-tokens 64 --max-windows 1 \
        --trace "$work/papers.trace" -o "$work/papers.yaml"
}
# on NAME MACHINE SHAPE EXPERTS MEMORY STRATEGIES OPTION...: a table in JSON, a line for each strategy and size.
on() {
    papers_trace
    on_table=$1 on_machine=$2 on_shape=$3 on_experts=$4 on_memory=$5 on_strategies=$6
    shift 6
    once "$on_table.json" "$bin/moe-plan" -q --simulate "$work/papers.trace" \
        --shape "profiles/shapes/$on_shape.json" --device-profile "profiles/$on_machine.yaml" \
        --experts "$on_experts" --memory "$on_memory" --strategy "$on_strategies" --json "$@"
}
speed() { # NAME N MEMORY: tokens/s of the n-th strategy, from 0
    jq -r "[.[] | select(.memory == \"$3\")][$2].decode_tokens_per_s" "$work/$1.json"
}
# faster NAME N M MEMORY [NAME-OF-M]: how many times as fast the n-th is as the m-th
faster() { calc %.2f "$(speed "$1" "$2" "$4") / $(speed "${5:-$1}" "$3" "$4")"; }

fate_here() { # MODEL
    on "fate-on-3090-$1" rtx3090-pcie3 "$1" 16,4 7G,12G,24G \
        "ondemand,ondemand+predict=gate-next+prefetch=percentile:75;slack,fate+prefill=popularity+cache-bits=0,fate,eap,eap+cache-bits=0,fate+assume-prediction=97.15%,ondemand+predict=gate-next+prefetch=percentile:75;slack+assume-prediction=97.15%" \
        --dense 16
}
row_F10m() {
    fate_here qwen1.5-moe-a2.7b
    on fate-at-3ms rtx3090-pcie3 qwen1.5-moe-a2.7b 16,4 7G,24G ondemand,fate,eap --dense 16 --layer-seconds 3e-3
    t=fate-on-3090-qwen1.5-moe-a2.7b
    over="$(faster $t 3 0 7G)" most="$(faster $t 3 0 24G)"
    row "Qwen1.5-MoE on the RTX 3090: decoding over on-demand, over EAP (fig. 12, 13)" "1.8x (7 GB) to 4.1x, up to 2.2x" \
        "7, 12, 24 GB: ${over}x, $(faster $t 3 0 12G)x, ${most}x; over EAP $(faster $t 3 4 7G)x, over EAP that loads 16 bits as on-demand does $(faster $t 3 5 7G)x, $(faster $t 3 5 24G)x. On-demand has four loads of 6 ms beside a block of 13 ms, of which a shared expert is computed meanwhile: without any load it is $(faster $t 2 0 24G)x as fast, and the rest is 4 bits computing faster. The paper's 14 tokens/s are 3 ms a block, which its 13 ms (3.2) are not; at 4 bits four loads take 7 ms and are hidden, EAP's as well" \
        "$(worst "$(holds "$most" 4.1 1)" "$(holds "$(faster $t 3 4 7G)" 2.2 1)")" "simulate" "$(faster $t 6 0 7G)x to $(faster $t 6 0 24G)x" "" \
        "setting: blocks of 3 ms, as its 14 tokens/s are, instead of 13: $(faster fate-at-3ms 1 0 7G)x, $(faster fate-at-3ms 1 0 24G)x; over EAP $(faster fate-at-3ms 1 2 7G)x, $(faster fate-at-3ms 1 2 24G)x; over on-demand: $(holds "$(faster fate-at-3ms 1 0 7G)" 4.1 1)"
}
row_F11m() {
    fate_here qwen1.5-moe-a2.7b
    t=fate-on-3090-qwen1.5-moe-a2.7b
    one=$(faster $t 1 0 12G) two=$(faster $t 2 0 24G) three=$(faster $t 3 0 24G)
    row "prefetching, then caching, then quantization, over on-demand (fig. 14)" "1.3x, 2x, 3.7x" \
        "${one}x at any size, caching $(faster $t 2 0 7G)x, $(faster $t 2 0 12G)x, ${two}x at 7, 12, 24 GB, quantization ${three}x" \
        "$(worst "$(holds "$one" 1.3 1)" "$(holds "$two" 2 1)" "$(holds "$three" 3.7 1)")" "simulate" \
        "$(faster $t 7 0 12G)x; $(faster $t 6 0 24G)x" "" \
        "setting: without any load on-demand is $(faster $t 2 0 24G)x as fast, which is all that prefetching and caching can win"
}
row_F10d() {
    fate_here deepseek-moe-16b
    t=fate-on-3090-deepseek-moe-16b
    here=$(faster $t 3 0 24G)
    row "DeepSeekMoE on the RTX 3090: decoding over on-demand, over EAP (fig. 12)" "3.7x, 2.2x" \
        "7, 12, 24 GB: $(faster $t 3 0 7G)x, $(faster $t 3 0 12G)x, ${here}x; over EAP $(faster $t 3 4 7G)x, over EAP that loads 16 bits $(faster $t 3 5 7G)x, $(faster $t 3 5 24G)x. The block's 13 ms are those of the other model: the paper times none of this one. Experts at 4 bits are computed faster here, by their bytes" \
        "$(worst "$(holds "$here" 3.7 1)" "$(holds "$(faster $t 3 4 7G)" 2.2 1)")" "simulate" "$(faster $t 6 0 7G)x to $(faster $t 6 0 24G)x" "" \
        "setting: this EAP loads 4 bits and has Fate's cache; over EAP that loads 16 bits $(faster $t 3 5 7G)x: $(worst "$(holds "$here" 3.7 1)" "$(holds "$(faster $t 3 5 7G)" 2.2 1)")"
}
hobbit_both="hobbit,hobbit+on-miss=load+skip-below=0,hobbit+assume-prediction=96%,hobbit+on-miss=load+skip-below=0+assume-prediction=96%"
row_H9m() {
    here='' theirs=''
    for m in mixtral-8x7b phi-3.5-moe; do
        on "hobbit-on-4090-$m" rtx4090 $m 16,4 22G "$hobbit_both" --dense 16
        on "hobbit-on-orin-$m" jetson-agx-orin $m 8,2 24G "$hobbit_both"
        here="$here $(faster "hobbit-on-4090-$m" 0 1 22G) $(faster "hobbit-on-orin-$m" 0 1 24G)"
        theirs="$theirs${theirs:+, }$(faster "hobbit-on-4090-$m" 2 3 22G)x, $(faster "hobbit-on-orin-$m" 2 3 24G)x"
    done
    # shellcheck disable=SC2086
    set -- $here
    row "speed-up by dynamic loading (fig. 16): Mixtral on the RTX 4090, on the Orin; Phi-3.5-MoE" "1.19x to 1.57x, the Orin highest, Phi below Mixtral" \
        "$1x, $2x; $3x, $4x" \
        "$(worst "$(holds "$1" 1.19 1)" "$(holds "$2" 1.19 1)" "$(holds "$3" 1.19 1)" "$(holds "$4" 1.19 1)")" "simulate" "$theirs"
}
row_D4m() {
    for m in mixtral-8x7b phi-3.5-moe; do
        on "daop-on-a6000-$m" a6000 $m 16 46.9% "lru+cache=pinned+alloc=frequency+init=frequency,host,daop,daop+assume-prediction=84.11%" --dense 16
    done
    on daop-on-a6000-slow a6000 mixtral-8x7b 16 46.9% "lru+cache=pinned+alloc=frequency+init=frequency,host,daop" --dense 16 --load-seconds 39.87e-3
    a=$(faster daop-on-a6000-mixtral-8x7b 2 1 46.9%) b=$(faster daop-on-a6000-phi-3.5-moe 2 1 46.9%)
    row "Mixtral, Phi-3.5-MoE on the A6000, 46.9% of the experts on it: over Fiddler; over on-demand with the same experts pinned (fig. 9, 10)" "1.40x, 1.35x in the mean; up to 8.2x" \
        "${a}x, ${b}x; $(faster daop-on-a6000-mixtral-8x7b 2 0 46.9%)x, $(faster daop-on-a6000-phi-3.5-moe 2 0 46.9%)x. Fiddler makes $(calc %.1f "$(speed daop-on-a6000-mixtral-8x7b 1 46.9%)") tokens/s of Mixtral here, DAOP $(calc %.1f "$(speed daop-on-a6000-mixtral-8x7b 2 46.9%)") (theirs 4.5), on-demand $(calc %.1f "$(speed daop-on-a6000-mixtral-8x7b 0 46.9%)") (theirs below 1): an expert comes in 11 ms at the bus's nominal rate, where table I, of another machine, has 40" \
        "$(worst "$(holds "$a" 1.354 1)" "$(holds "$b" 1.354 1)" "$(holds "$(faster daop-on-a6000-mixtral-8x7b 2 0 46.9%)" 8.2 1)")" "simulate" \
        "$(faster daop-on-a6000-mixtral-8x7b 3 1 46.9%)x, $(faster daop-on-a6000-phi-3.5-moe 3 1 46.9%)x; $(faster daop-on-a6000-mixtral-8x7b 3 0 46.9%)x" "" \
        "setting: with table I's 40 ms for an expert $(calc %.2f "$(speed daop-on-a6000-slow 2 46.9%) / $(speed daop-on-a6000-slow 0 46.9%)")x over on-demand: $(worst "$(holds "$(faster daop-on-a6000-slow 2 1 46.9%)" 1.354 1)" "$(holds "$(faster daop-on-a6000-slow 2 0 46.9%)" 8.2 1)")"
}
row_E6m() {
    here='' plain='' theirs=''
    for board in jetson-tx2:275e6 raspberry-pi-4b:25e6; do
        name=${board%%:*}
        on "edgemoe-on-$name" "$name" switch-base-8 4 1.67x ondemand,edgemoe,edgemoe+assume-prediction=87% --dense 16
        # 16 bits over half the link: its experts have 32.
        on "edgemoe-on-$name-plain" "$name" switch-base-8 16 1.67x ondemand --dense 16 --link-rate "${board##*:}"
        here="$here $(faster "edgemoe-on-$name" 1 0 1.67x)"
        plain="$plain $(faster "edgemoe-on-$name" 1 0 1.67x "edgemoe-on-$name-plain")"
        theirs="$theirs${theirs:+, }$(faster "edgemoe-on-$name" 2 0 1.67x)x; $(faster "edgemoe-on-$name" 2 0 1.67x "edgemoe-on-$name-plain")x"
    done
    # shellcheck disable=SC2086
    set -- $here $plain
    row "Switch base-8 on the TX2 with an SSD, on the Raspberry Pi, 10 experts: over quantized, over unquantized on-demand (fig. 11)" "1.19x to 2.12x; 2.64x to 3.03x, 2.55x to 3.25x" \
        "$1x, $2x; $3x, $4x. All in memory a token is as fast as theirs by set-up" \
        "$(worst "$(holds "$1" 1.19 1)" "$(holds "$3" 2.64 1)" "$(holds "$2" 1.19 1)" "$(holds "$4" 2.55 1)")" "simulate" "$theirs"
}
