# The rows of CLAIMS.md that are simulated on the papers' own machines and models, for claims.sh: shapes of
# profiles/shapes/ on profiles/. No time is measured for them, so a busy machine gives the same figures.
# shellcheck shell=sh disable=SC2154

about_machines() {
    cat <<END

Simulated: \`moe-plan --simulate TRACE --shape MODEL --device-profile MACHINE\`, the paper's model on the paper's
machine, by layer and load times that the paper gives where it gives any (\`timed\` in the profile), else by
bandwidths. Routing is drawn in the manner of the bundled model (a trace of its validation texts), and so are the
statistics that EAP, EdgeMoE and DAOP go by, from other texts: in them no path predicts better than how often
experts are used.
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
faster() { calc '%.4f\n' "$(speed "$1" "$2" "$4") / $(speed "${5:-$1}" "$3" "$4")"; }

fate_here() { # MODEL
    on "fate-on-3090-$1" rtx3090-pcie3 "$1" 16,4 7G,12G,24G \
        "ondemand,ondemand+predict=gate-next+prefetch=percentile:75;slack,fate+prefill=popularity+cache-bits=0,fate,eap,eap+cache-bits=0,fate+assume-prediction=97.15%,ondemand+predict=gate-next+prefetch=percentile:75;slack+assume-prediction=97.15%,fate+prefill=popularity+cache-bits=0+assume-prediction=97.15%" \
        --dense 16
}
fate_at_3ms() {
    on fate-at-3ms rtx3090-pcie3 qwen1.5-moe-a2.7b 16,4 7G,12G,24G \
        "ondemand,fate,eap,eap+cache-bits=0,ondemand+predict=gate-next+prefetch=percentile:75;slack,fate+prefill=popularity+cache-bits=0" \
        --dense 16 --layer-seconds 3e-3
}
row_F10m() {
    fate_here qwen1.5-moe-a2.7b
    fate_at_3ms
    t=fate-on-3090-qwen1.5-moe-a2.7b
    over() { for m in 7G 12G 24G; do faster "$1" "$2" "$3" $m; done; } # TABLE N M
    highest() { over "$@" | sort -g | tail -1; }
    # shellcheck disable=SC2046
    said() { echo "$(multiples $(over "$1" "$2" 0)); $(multiples $(over "$1" "$2" "$3"))"; } # TABLE N EAP
    against() { echo "$(faster "$1" "$2" 0 7G) of 1.8 from 1; $(highest "$1" "$2" 0) of 4.1 from 1; $(highest "$1" "$2" "$3") of 2.2 from 1"; }
    row "Qwen1.5-MoE on the RTX 3090: decoding over on-demand, over EAP (fig. 12, 13)" "1.8x (7 GB) to 4.1x, up to 2.2x" \
        "7, 12, 24 GB: $(said $t 3 4). On-demand has four loads of 6 ms beside a block of 13 ms, which computes a shared expert meanwhile: without any load it is $(multiples "$(faster $t 2 0 24G)") as fast, and the rest is 4 bits computing faster" \
        "$(against $t 3 4)" "simulate" "$(said $t 6 4)" "$(against $t 6 4)" \
        "setting: an EAP that loads 16 bits as on-demand does: $(said $t 3 5)" "$(against $t 3 5)" \
        "setting: blocks of 3 ms, as the paper's 14 tokens/s are, instead of 13 (3.2): $(said fate-at-3ms 1 2)" "$(against fate-at-3ms 1 2)" \
        "setting: both: $(said fate-at-3ms 1 3)" "$(against fate-at-3ms 1 3)"
}
row_F11m() {
    fate_here qwen1.5-moe-a2.7b
    fate_at_3ms
    t=fate-on-3090-qwen1.5-moe-a2.7b
    over() { for m in 7G 12G 24G; do calc '%.4f\n' "${3:-1} * $(faster "$1" "$2" 0 $m)"; done; } # TABLE N [FACTOR]
    # Of TABLE PREFETCHING CACHING QUANTIZATION [FACTOR]:
    # shellcheck disable=SC2046
    said() { echo "$(multiples $(over "$1" "$2" "${5:-}")); $(multiples $(over "$1" "$3" "${5:-}")); $(multiples $(over "$1" "$4" "${5:-}"))"; }
    against() { echo "$(over "$1" "$2" "${5:-}" | sort -g | head -1) of 1.3 from 1; $(over "$1" "$3" "${5:-}" | sort -g | tail -1) of 2 from 1; $(over "$1" "$4" "${5:-}" | sort -g | tail -1) of 3.7 from 1"; }
    naive=$(in_turn $t 24G) # the same in any memory, of which it uses little
    row "prefetching, then caching, then quantization, over on-demand (fig. 14)" "1.3x in the mean; up to 2x, 3.7x" \
        "7, 12, 24 GB: $(said $t 1 2 3)" "$(against $t 1 2 3)" "simulate" "$(said $t 7 8 6)" "$(against $t 7 8 6)" \
        "setting: an on-demand that computes nothing while it loads, as the naive one of the paper's figure 1, and takes $(calc %.2f "$naive") times as long: $(said $t 1 2 3 "$naive")" "$(against $t 1 2 3 "$naive")" \
        "setting: blocks of 3 ms instead of 13: $(said fate-at-3ms 4 5 1)" "$(against fate-at-3ms 4 5 1)"
}
row_F10d() {
    fate_here deepseek-moe-16b
    t=fate-on-3090-deepseek-moe-16b
    over() { for m in 7G 12G 24G; do faster $t "$1" "$2" $m; done; } # N M
    highest() { over "$@" | sort -g | tail -1; }
    # shellcheck disable=SC2046
    said() { echo "$(multiples $(over "$1" 0)); $(multiples $(over "$1" "$2"))"; } # N EAP
    against() { echo "$(highest "$1" 0) of 3.7 from 1; $(highest "$1" "$2") of 2.2 from 1"; }
    row "DeepSeekMoE on the RTX 3090: decoding over on-demand, over EAP (fig. 12)" "up to 3.7x, 2.2x" \
        "7, 12, 24 GB: $(said 3 4). The block's 13 ms are those of the other model: the paper times none of this one. Experts at 4 bits are computed faster here, by their bytes" \
        "$(against 3 4)" "simulate" "$(said 6 4)" "$(against 6 4)" \
        "setting: an EAP that loads 16 bits as on-demand does: $(said 3 5)" "$(against 3 5)"
}
hobbit_both="hobbit,hobbit+on-miss=load+skip-below=0,hobbit+assume-prediction=96%,hobbit+on-miss=load+skip-below=0+assume-prediction=96%,$mixtrals,hobbit+on-miss=load-low:0.5,ondemand"
longer() { # TABLE MEMORY SHARE: seconds of one of 32 layers
    calc %.6f "$(of "$1" link_s 6 "$2") / $(of "$1" decode_tokens 6 "$2") / 32 * (1 - $3) / $3"
}
row_H9m() {
    for m in mixtral-8x7b phi-3.5-moe; do
        on "hobbit-on-4090-$m" rtx4090 $m 16,4 22G "$hobbit_both" --dense 16
        on "hobbit-on-orin-$m" jetson-agx-orin $m 8,2 24G "$hobbit_both"
        # Layers so long that loads take the paper's share of on-demand's time (H11), and on the Orin room for about as many
        # experts as on the RTX 4090.
        on "hobbit-longer-on-4090-$m" rtx4090 $m 16,4 22G "$hobbit_both" --dense 16 --layer-seconds "$(longer "hobbit-on-4090-$m" 22G 0.855)"
        on "hobbit-longer-on-orin-$m" jetson-agx-orin $m 8,2 12G "$hobbit_both" --layer-seconds "$(longer "hobbit-on-orin-$m" 24G 0.945)"
    done
    over() { # N M [-longer]: Mixtral on the RTX 4090, on the Orin, Phi
        for m in mixtral-8x7b phi-3.5-moe; do faster "hobbit${3:-}-on-4090-$m" "$1" "$2" 22G && faster "hobbit${3:-}-on-orin-$m" "$1" "$2" "$([ -n "${3:-}" ] && echo 12G || echo 24G)"; done
    }
    against() { # FOUR FIGURES
        printf '%s\n' "$@" | sort -g | awk '{ of[NR] = $1 } END { printf "%s of 1.19 from 1; %s of 1.57 from 1; ", of[1], of[NR] }'
        echo "$2 > $1; $4 > $3; $3 < $1; $4 < $2"
    }
    # shellcheck disable=SC2046
    row "speed-up by dynamic loading (fig. 16): Mixtral on the RTX 4090, on the Orin; Phi-3.5-MoE" "1.19x (the RTX 4090 where the CPU helps, which is not here) to 1.57x, the Orin highest, Phi below Mixtral" \
        "$(multiples $(over 0 1))" "$(against $(over 0 1))" "simulate" "$(multiples $(over 2 3))" "$(against $(over 2 3))" \
        "setting: T1 0.6 and T2 0.9, as the paper found them for Mixtral, instead of by the scores of the routing here: $(multiples $(over 4 1))" "$(against $(over 4 1))" \
        "setting: T1 0.5, by which more is low: $(multiples $(over 5 1))" "$(against $(over 5 1))" \
        "setting: layers as long as the paper's shares of loading say (H11), and 12 GB for experts on the Orin, room for a quarter of them as on the RTX 4090: $(multiples $(over 0 1 -longer))" "$(against $(over 0 1 -longer))" \
        "setting: T1 0.5, layers as long as the paper's shares of loading say (H11), and 12 GB for experts on the Orin, room for a quarter of them as on the RTX 4090: $(multiples $(over 5 1 -longer))" "$(against $(over 5 1 -longer))"
}
# Loads at the bus's rate, and of 40 ms, as the paper's table I.
daop_on_a6000() {
    for m in mixtral-8x7b phi-3.5-moe; do
        on "daop-on-a6000-$m" a6000 $m 16 46.9% "lru+cache=pinned+alloc=frequency+init=frequency,host,daop,daop+assume-prediction=84.11%" --dense 16
        on "daop-on-a6000-slow-$m" a6000 $m 16 46.9% "lru+cache=pinned+alloc=frequency+init=frequency,host,daop" --dense 16 --load-seconds 39.87e-3
    done
}
daop_over() { for m in mixtral-8x7b phi-3.5-moe; do faster "$1-$m" "$2" "$3" 46.9%; done; } # TABLE N M
# shellcheck disable=SC2046
daop_said() { echo "$(multiples $(daop_over "$1" "$2" 1)); $(multiples $(daop_over "$1" "$2" 0))"; } # TABLE N
daop_against() { # TABLE N
    daop_over "$1" "$2" 1 | paste -sd' ' | sed 's/ / of 1.404 from 1; /; s/$/ of 1.354 from 1; /' | tr -d '\n'
    echo "$(daop_over "$1" "$2" 0 | sort -g | tail -1) of 8.2 from 1"
}
row_D4m() {
    daop_on_a6000
    rate() { calc %.1f "$(speed daop-on-a6000-mixtral-8x7b "$1" 46.9%)"; }
    row "Mixtral, Phi-3.5-MoE on the A6000, 46.9% of the experts on it: over Fiddler; over on-demand with the same experts pinned (fig. 9, 10)" "1.40x, 1.35x in the mean; up to 8.2x" \
        "$(daop_said daop-on-a6000 2). Fiddler makes $(rate 1) tokens/s of Mixtral here, DAOP $(rate 2) (theirs 4.5), on-demand $(rate 0) (theirs below 1): an expert comes in 11 ms at the bus's nominal rate, where table I, of another machine, has 40" \
        "$(daop_against daop-on-a6000 2)" "simulate" "$(daop_said daop-on-a6000 3)" "$(daop_against daop-on-a6000 3)" \
        "setting: table I's 40 ms for an expert: $(daop_said daop-on-a6000-slow 2)" "$(daop_against daop-on-a6000-slow 2)"
}
# EdgeMoE beside on-demand at 4 bits, in a buffer of 10 experts of 12 layers with experts; 16 bits over half the link: its experts
# have 32. A layer takes what the paper's does at either, so that the rest has 4 bits, too. Loads of 4 bits as they are, and so
# much slower (edgemoe.sh) that on the TX2 they take on demand what figure 18 has.
edgemoe_few=0.8334x
edgemoe_boards="jetson-tx2:jetson-tx2:550e6 raspberry-pi-4b:raspberry-pi-4b:50e6 disk:jetson-tx2:50e6" # name, profile, bytes a second
edgemoe_on_boards() {
    for board in $edgemoe_boards; do
        name=${board%%:*} rate=${board##*:} profile=${board#*:}
        profile=${profile%:*}
        on "edgemoe-on-$name-plain" "$profile" switch-base-8 16 "$edgemoe_few,2x" ondemand --dense 16 --link-rate "$(calc %d "$rate / 2")"
        on "edgemoe-on-$name" "$profile" switch-base-8 4 "$edgemoe_few,2x" ondemand,edgemoe,edgemoe+assume-prediction=87% --dense 4 --link-rate "$rate"
        [ "$name" != jetson-tx2 ] || {
            computing=$(of "edgemoe-on-$name" compute_s 0 $edgemoe_few)
            slower=$(calc %.4f "(0.392 / 0.789 * $(of "edgemoe-on-$name-plain" decode_s 0 $edgemoe_few) - $computing) / ($(of "edgemoe-on-$name" decode_s 0 $edgemoe_few) - $computing)")
        }
        on "edgemoe-on-$name-slower" "$profile" switch-base-8 4 "$edgemoe_few,2x" ondemand,edgemoe,edgemoe+assume-prediction=87% --dense 4 --link-rate "$(calc %d "$rate / $slower")"
    done
}
row_E6m() {
    edgemoe_on_boards
    # Of the TX2 with an SSD, the Raspberry Pi, the TX2 with a hard disk: N [-slower [MEMORY]].
    quantized() { for b in $edgemoe_boards; do faster "edgemoe-on-${b%%:*}${2:-}" "$1" 0 "${3:-$edgemoe_few}"; done; }
    plain() { for b in $edgemoe_boards; do faster "edgemoe-on-${b%%:*}${2:-}" "$1" 0 "${3:-$edgemoe_few}" "edgemoe-on-${b%%:*}-plain"; done; }
    # shellcheck disable=SC2046
    said() { echo "$(multiples $(quantized "$@")); $(multiples $(plain "$@"))"; }
    against() {
        quantized "$@" | sort -g | awk '{ of[NR] = $1 } END { printf "%s of 1.19 from 1; %s of 2.12 from 1; ", of[1], of[NR] }'
        echo $(plain "$@" | awk 'NR < 3 { print $1 " of " (NR == 1 ? 2.64 : 2.55) " from 1; " $1 " of " (NR == 1 ? 3.03 : 3.25) " from 1; " } NR == 3 { print $1 " of 4.76 from 1" }')
    }
    row "Switch base-8 on the TX2 with an SSD, on the Raspberry Pi, on the TX2 with a hard disk, 10 experts: over quantized, over unquantized on-demand (fig. 11)" "1.19x to 2.12x; 2.64x to 3.03x, 2.55x to 3.25x, up to 4.76x" \
        "$(said 1). All in memory a token is as fast as theirs by set-up; without any load on-demand at 4 bits would be $(calc %.2fx "$(of edgemoe-on-jetson-tx2 decode_s 0 $edgemoe_few) / $(of edgemoe-on-jetson-tx2 compute_s 0 $edgemoe_few)") as fast on the TX2" \
        "$(against 1)" "simulate" "$(said 2)" "$(against 2)" \
        "setting: loads of 4 bits $slower times slower, which on the TX2 take what figure 18 has, 0.392 of 0.789 s: $(said 1 -slower)" "$(against 1 -slower)" \
        "setting: these, at their accuracy: $(said 2 -slower)" "$(against 2 -slower)" \
        "setting: a buffer of 24 experts, half of the decoder's, instead of 10: $(said 1 "" 2x)" "$(against 1 "" 2x)"
}
