# The rows of CLAIMS.md, for claims.sh: each measures what it needs, reads the figures, and judges them.
# shellcheck shell=sh disable=SC2154

ids_of() { # PAPER
    case $1 in
    Fate) echo F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 F11 F12 ;;
    HOBBIT) echo H1 H2 H3 H4 H5 H6 H7 H8 H9 H10 H11 H12 H13 H14 ;;
    DAOP) echo D1 D2 D3 D4 D5 D6 ;;
    CoServe) echo C1 C2 C3 C4 C5 C6 ;;
    EdgeMoE) echo E1 E2 E3 E4 E5 E6 E7 E8 E9 E10 E11 ;;
    "$machines") echo F10m F11m F10d H9m D4m E6m ;;
    "$switch") echo E1s E2s E3s E4s E5s E6s E7s E8s ;;
    esac
}

about() {
    cat <<END
# The papers' claims

What five papers claim of their systems, beside what this toolkit shows with its own engine, on its own
model. A model of 17.5 million parameters with 32 small experts a layer, 4 of them for each token, is not
theirs: it does not repeat every figure, and where it does not the row says so. Ids are those of the papers
in order: F Fate, H HOBBIT, D DAOP, E EdgeMoE, C CoServe.

This page is what \`tests/bench/claims.sh\` prints; \`tests/bench/claims.sh F9\` measures one row anew. *Holds*
is judged by that script: *yes* where at least nine tenths of the effect are seen, *partly* where at least a
quarter is, *no* below; *not here* where this machine cannot measure it, with the reason. How the figures come
about:

- *profile*: measured. \`moe-profile\` at 16 bits on the bundled validation texts (180 documents); path
  statistics from the calibration texts.
- *ladder*: measured. \`tests/bench/ladder.sh\`.
- *calibrate*: measured. \`moe-calibrate PACK --text FILE... --check FILE... --tolerance 1%\`; EdgeMoE's rows:
  \`METHOD=linear tests/bench/calibrate.sh\`.
- *quality*: measured. \`moe-run --perplexity FILE --prompt-share 50% --strategy NAME --expert-memory SIZE\`, ten
  documents of each domain.
- *simulate*, *replay*: simulated. \`moe-plan --simulate\`, \`build/tests/tools/replay_trace\`, on a trace of the
  validation texts.
- *coe*: simulated. \`tests/bench/coe.sh\`, whose page with the tables behind these rows is [COE.md](COE.md); only
  what scheduling takes (C6) is measured.
- *rehearse*: rehearsed. \`bench_strategies\` on the bundled model widened until a layer takes a millisecond, on
  a link whose loads take the named multiple of a layer's computation.

The bundled texts were written by the bundled model; figures on texts by other people, the tables behind these
and the machine are in [RESULTS.md](RESULTS.md). A demand is what one token visits; "loads of 3" means that
loading one expert takes three times as long as computing one layer. The papers' own ratios: Fate 0.46 (6 ms of
13 ms, PCIe 3), four times that on PCIe 1; HOBBIT about 3 (RTX 4090: loading two experts is 85.5% of a layer's
time) and 8.6 (Orin, 94.5%); DAOP 32.
END
}

about_others() {
    cat <<END

## Not redone here

Accuracy on MMLU, GSM8K, HumanEval and TruthfulQA: no such models and data at hand; nats per token and top-1
agreement stand in. Phones and boards: simulated only, from profiles. Transformers and DeepSpeed as baselines: other
engines, not rebuilt here. STI is a strategy of this one (E6s).
END
}

# ---- CoServe ----

# A row whose figures coe.sh computes; its last field is "HERE THEIRS NONE;...", of which the worst is the verdict.
coe_row() { # ID
    once coe.tsv env BUILD="$BUILD" sh tests/bench/coe.sh claims
    field() { awk -F'\t' -v id="$1" -v n="$2" '$1 == id { print $n }' "$work/coe.tsv"; }
    row "$(field "$1" 2)" "$(field "$1" 3)" "$(field "$1" 4)" \
        "$(worst "$(field "$1" 5 | tr ';' '\n' | while read -r here theirs none; do holds "$here" "$theirs" "$none"; done |
            paste -sd' ')")" coe
}
row_C1() { coe_row C1; }
row_C2() { coe_row C2; }
row_C3() { coe_row C3; }
row_C4() { coe_row C4; }
row_C5() { coe_row C5; }
row_C6() { coe_row C6; }

# ---- Fate ----

row_F1() {
    profile
    gate=$(of_profile '.all.cosine["gate-1"]')
    row "cosine similarity of a gate's input with: the previous gate's input; this layer's attention input; the previous layer's attention input (table 1)" \
        "88.8%; 93.1%; 83.8%" \
        "$gate; $(of_profile '.all.cosine.attention'); $(of_profile '.all.cosine["attention-1"]'): here the previous gate's input is the most similar" \
        "$(holds "${gate%\%}" 88.83)" profile
}
row_F2() {
    profile
    prompt=$(of_profile '.all.predictors["gate-1"].prompt')
    decode=$(of_profile '.all.predictors["gate-1"].in_k')
    row "experts predicted by a gate from the previous gate's input: prefill, decode; in decode from the two other positions (table 1)" \
        "99.6%, 78.8%; 84.0%, 76.9%" \
        "$prompt, $decode; $(of_profile '.all.predictors.attention.in_k'), $(of_profile '.all.predictors["attention-1"].in_k')" \
        "$(worst "$(holds "${prompt%\%}" 99.6)" "$(holds "${decode%\%}" 78.79)")" profile
}
row_F3() {
    profile
    here=$(of_profile '.all.predictors["gate-1"].in_p75')
    row "... taking all above the 75th percentile" "97.2%" \
        "$here; with 4 of 32 experts that is also the top 2k" "$(holds "${here%\%}" 97.15)" profile
}
row_F4() {
    profile
    here=$(jq -r '[.layers[1:][].predictors["gate-1"].in_k * 100]
        | "layer 1: \(.[0]), 2 to 4: \(.[1:4] | min) to \(.[1:4] | max), then \(.[4:] | min) to \(.[4:] | max)"' \
        "$work/profile.json" | sed 's/\([0-9]\.[0-9]\)[0-9]*/\1%/g')
    lower=$(jq '[.layers[1:][].predictors["gate-1"].in_k]
        | if (.[0:3] | add / 3) < (.[3:] | add / length) and .[0] == min then 1 else 0 end' "$work/profile.json")
    quality fate 42 --strategy fate --statistics "$work/calib.yaml" --expert-memory "$(demand_bytes 2)"
    found=$(jq -r .alloc "$work/quality-fate.json")
    row "shallow layers are harder to predict (fig. 7)" "L = 3 of 24 layers" "$here; L = ${found#shallow:} of 12" \
        "$([ "$lower" = 1 ] && echo yes || echo partly)" profile
}
row_F5() {
    rehearse fate-shallow 42 strategies=fate+alloc=shallow:2,fate+alloc=shallow:4 demand=4,7 loads=0.46 \
        prompt=16 decode=32
    here=$(at fate-shallow 'hits %' fate+alloc=shallow:4 7 0.46)
    row "hits with all experts of the first layers cached" "99.1% (4 of 24 layers)" \
        "L = 2 of 12 layers: $(at fate-shallow 'hits %' fate+alloc=shallow:2 4 0.46)% at four tokens' demand, $(at fate-shallow 'hits %' fate+alloc=shallow:2 7 0.46)% at seven, which is 88% of all experts; L = 4: $(at fate-shallow 'hits %' fate+alloc=shallow:4 4 0.46)%, $here%" \
        "$(holds "$here" 99.08 50)" "rehearse fate-shallow"
}
rung() { # NAME: its loss in per cent
    awk -F' *[|] *' -v name="$1" '$2 == name { gsub(/%/, "", $5); print $5 }' "$work/ladder.txt"
}
row_F6() {
    ladder
    eight=$(rung "hqq 8, experts alone") four=$(rung "hqq 4, experts alone") two=$(rung "hqq 2, experts alone")
    row "what experts at 8, 4, 2 bits cost (table 2)" "0, -0.2, -4.5 of 59.6 MMLU points" \
        "$eight%, $four%, $two% of the nats, the rest of the model at 16 bits" \
        "$(calc %s "($eight < 0.1 && $four < 2 && $two > 3 * $four) ? \"yes\" : \"partly\"")" ladder
}
row_F7() {
    profile
    here=$(of_profile '.layers[6].popularity[2]')
    row "share of a prompt's tokens on the 30% least popular experts (layer 6, fig. 9)" "15%" \
        "$here; $(of_profile '.all.popularity[2]') over all layers" "$(holds "-${here%\%}" -15 -30)" profile
}
# Of hqq's map: the loss of all experts at 4 bits over 8, per cent.
four_bits() {
    jq -r '.rungs[] | select(.experts == "4" and .dense_bits == 8).loss.nll_percent' "$work/hqq.json"
}
row_F8() {
    hqq_map
    set -- $(jq -r '.fate | (.curve | min_by(.share - 0.2 | fabs)) as $at
        | "\(100 * .share | round) \(.check.nll_percent) \($at.unpopular.nll_percent) \($at.popular.nll_percent)"' \
        "$work/hqq.json")
    four=$(four_bits)
    # Where the curve, between its points, costs 1% more than all at 4 bits.
    over=$(jq -r --argjson four "$four" '[.fate.curve[] | [.share, .unpopular.nll_percent - $four]] as $c
        | [range(1; $c | length) | select($c[.][1] > 1)][0] as $i | $c[$i - 1] as $a | $c[$i] as $b
        | ($a[0] + ($b[0] - $a[0]) * (1 - $a[1]) / ($b[1] - $a[1])) * 100 | round' "$work/hqq.json")
    row "unpopular experts at 2 bits cost little, popular ones much; share p within a loss of 1% (fig. 10)" "p = 25%" \
        "p = $1% over 8 bits, of which 4 bits cost $(calc %+.2f%% "$four") ($(calc %+.2f%% "$2") on validation texts); $over% over 4 bits; at 20% $(calc %+.2f "$3 - $four") against $(calc %+.2f "$4 - $four") points over none" \
        "$(holds "$over" 25)" calibrate
}
prompts() {
    rehearse fate-prompts 42 strategies=ondemand,eap,fate demand=2,4 loads=0.46 prompt=128 decode=8 of=prompt join=1
    rehearse fate-prompts-256 42 strategies=ondemand,eap,fate demand=4 loads=0.46 prompt=256 decode=8 of=prompt join=1
    rehearse fate-prompts-500 42 strategies=ondemand,eap,fate demand=4 loads=0.46 prompt=500 decode=8 of=prompt join=1
    rehearse fate-prompts-slow 42 strategies=ondemand,eap,fate demand=4 loads=1.85 prompt=128 decode=8 of=prompt join=1
}
row_F9() {
    prompts
    here='' best=0
    for n in '' -256 -500; do
        one=$(ratios "fate-prompts$n" prefill fate ondemand 0.46 4)
        here="$here${here:+, }$(span "$one")"
        best=$(calc %.2f "${one#* } > $best ? ${one#* } : $best")
    done
    row "speed of prompts of 128, 256, 512 tokens over on-demand, over EAP; on PCIe 1 (fig. 11)" "up to 4.5x, 1.9x; 1.8x, 1.5x" \
        "128, 256, 500 tokens at four tokens' demand: $here; over EAP $(span "$(ratios fate-prompts prefill fate eap 0.46 2 4)"); loads four times as long: $(span "$(ratios fate-prompts-slow prefill fate ondemand 1.85 4)"), $(span "$(ratios fate-prompts-slow prefill fate eap 1.85 4)") (loads in multiples of a layer's computation of the whole prompt)" \
        "$(holds "$best" 4.5 1)" "rehearse fate-prompts"
}
row_F10() {
    rehearse fate-budgets 42 strategies=ondemand,eap,fate demand=1,2,3,4,5,6,7 loads=0.46,1.85 prompt=32 decode=64
    over=$(ratios fate-budgets decode fate ondemand 0.46 1 2 3 4 5 6 7)
    eap=$(ratios fate-budgets decode fate eap 0.46 1 2 3 4 5 6 7)
    row "speed of decoding over on-demand, over EAP, over budgets; on a slow bus (fig. 12, 13)" "up to 4.1x, 2.2x; 2.3x, 1.6x" \
        "1 to 7 tokens' demand: $(span "$over"), $(span "$eap"); slow: $(span "$(ratios fate-budgets decode fate ondemand 1.85 1 2 3 4 5 6 7)"), $(span "$(ratios fate-budgets decode fate eap 1.85 1 2 3 4 5 6 7)"). EAP has the same cache and precision here" \
        "$(worst "$(holds "${over#* }" 4.1 1)" "$(holds "${eap#* }" 2.2 1)")" "rehearse fate-budgets"
}
row_F11() {
    rehearse fate-parts-82 82 "strategies=ondemand,ondemand+predict=gate-next+prefetch=percentile:75;slack,fate+prefill=popularity+cache-bits=0" \
        demand=2 loads=0.46 prompt=16 decode=32
    rehearse fate-parts-42 42 strategies=fate demand=3.5 loads=0.26 prompt=16 decode=32
    base=$(at fate-parts-82 decode ondemand 2 0.46)
    one=$(calc %.2f "$(at fate-parts-82 decode 'ondemand+predict=gate-next+prefetch=percentile:75;slack' 2 0.46) / $base")
    two=$(calc %.2f "$(at fate-parts-82 decode fate+prefill=popularity+cache-bits=0 2 0.46) / $base")
    three=$(calc %.2f "$(at fate-parts-42 decode fate 3.5 0.26) / $base")
    row "prefetching, then caching, then quantization, over on-demand at 8 bits (fig. 14)" "1.3x, 2x, 3.7x" \
        "${one}x, ${two}x, ${three}x at two tokens' demand of 8 bits. Without a cache four loads a layer leave the link no time for predictions" \
        "$(worst "$(holds "$one" 1.3 1)" "$(holds "$two" 2 1)" "$(holds "$three" 3.7 1)")" "rehearse fate-parts-82"
}
machine() { # this machine's times for the widened pack, as JSON
    models
    [ -e "$work/device.yaml" ] || "$bin/moe-profile" -q --device "$wide/42.moe" -o "$work/device.yaml"
    once device.json "$bin/moe-profile" --show "$work/device.yaml" --json
}
# Milliseconds of one layer of a decoded token, and of loading one expert from the disk.
times_here() {
    jq -r '(.model.batches[] | select(.rows == 1)) as $b
        | ($b.attention_seconds.value + $b.router_seconds.value + $b.shared_seconds.value
           + $b.combine_seconds.value + .model.experts_per_token * $b.expert_seconds["4"].value) as $layer
        | (.storage.reads | map(.bytes_per_second.value) | max) as $rate
        | "\(1000 * $layer) \(1000 * (.model.variants[0].bytes) / $rate)"' "$work/device.json"
}
row_F12() {
    machine
    set -- $(times_here)
    row "loading an expert takes 6 ms where a block computes for 13 ms: a ratio of 0.46 (3.2)" "0.46" \
        "$(calc %.2f "$2 / $1"): $(calc %.2f "$2") ms from this machine's disk, $(calc %.2f "$1") ms a layer, of the 1.2 GB pack at 4 bits. The rehearsals above set the paper's ratio" \
        "a figure of the machine" "\`moe-profile --device PACK\`"
}

# ---- HOBBIT ----

row_H1() {
    profile
    here=$(jq -r '.all.weight_norm_correlation' "$work/profile.json")
    row "correlation of the routing weight with the norm of the weighted output (fig. 5a)" "0.99" \
        "$(calc %.2f "$here") over all, $(jq -r '[.layers[].weight_norm_correlation] | "\(min) to \(max)"' "$work/profile.json" | sed 's/\(0\.[0-9][0-9]\)[0-9]*/\1/g') by layer" \
        "$(holds "$here" 0.99)" profile
}
row_H2() {
    profile
    set -- $(sed -n "s/.*ranks from 2 on: \([0-9.]*\)% up to 0.6, \([0-9.]*\)% up to 0.9/\1 \2/p" "$work/profile.txt")
    high=$(calc %.0f "(100 + 3 * $1) / 4") low=$(calc %.0f "($2 - $1) * 3 / 4")
    row "how T1 = 0.6, T2 = 0.9 split the activations (fig. 5b)" "67% high, 30% low, 3% left out" \
        "$high%, $low%, $((100 - high - low))%: of four experts the last two have flat weights" \
        "$(holds "$high" 67)" profile
}
row_H3() {
    hqq_map
    base=$(four_bits)
    cut() { # KEY SHARE: "LOSS SHARE" of the nearest cut
        jq -r "[.hobbit.cuts[] | select(.$1)] | min_by(.share - $2 | fabs) | \"\(.$1.nll_percent) \(100 * .share)\"" \
            "$work/hqq.json"
    }
    set -- $(cut low 0.2) $(cut skipped 0.1)
    low=$(calc %+.2f "$1 - $base") out=$(calc %+.2f "$3 - $base")
    row "20% at low precision cost below 1%, 10% left out above (fig. 3b)" "" \
        "$(calc %.0f "$2")% low $low%, $(calc %.0f "$4")% left out $out%: a shared expert and three others remain" \
        "$(calc %s "$low < 1 ? ($out > 1 ? \"yes\" : \"partly\") : \"no\"")" calibrate
}
row_H4() {
    profile
    one=$(of_profile '.all.predictors["gate-1"].top1')
    row "best expert of the next layer predicted; two, three layers ahead (fig. 7)" "96%; about 90%" \
        "$one; $(of_profile '.all.predictors["gate-2"].top1'), $(of_profile '.all.predictors["gate-3"].top1') (chance 3%)" \
        "$(holds "${one%\%}" 96 3)" profile
}
hobbit_cells() {
    rehearse hobbit 82 "strategies=ondemand,hobbit,hobbit+on-miss=load+skip-below=0,hobbit+predict=none+prefetch=none,hobbit+on-miss=load+skip-below=0+predict=none+prefetch=none,hobbit+predict=gate-ahead:1,hobbit+predict=gate-ahead:2,hobbit+predict=gate-ahead:4,moe-offloading,moe-infinity,adapmoe" \
        demand=2,4 loads=3,8.6 prompt=16 decode=32
}
row_H5() {
    hobbit_cells
    here='' shares=''
    for s in hobbit+predict=gate-ahead:1 hobbit+predict=gate-ahead:2 hobbit hobbit+predict=gate-ahead:4; do
        here="$here${here:+, }$(at hobbit decode $s 4 3)"
        shares="$shares${shares:+, }$(at hobbit 'predict %' $s 4 3)%"
    done
    row "stacked gates cost as much as one; depth 1 to 3 is best (fig. 17)" "" \
        "depth 1 to 4: $here tokens/s (loads of 3, four tokens' demand); predicting takes $shares of the time" \
        "$(echo "$here" | awk -F', ' '{ print ($4 <= ($1 > $2 ? ($1 > $3 ? $1 : $3) : ($2 > $3 ? $2 : $3)) ? "yes" : "no") }')" "rehearse hobbit"
}
row_H6() {
    profile
    best=$(of_profile .all.reuse.best) any=$(of_profile .all.reuse.any)
    row "the last token's best expert used again; one of its experts (chance) (fig. 10a)" "above 0.25; above 0.46" \
        "$best (12.5%); $any (43.1%)" "$(calc %s "${best%\%} > 1.5 * 12.5 && ${any%\%} > 1.3 * 43.1 ? \"yes\" : \"partly\"")" profile
}
# HOBBIT without prediction under each policy, in this order.
policies="hobbit lru lfu lfu+keep-records=on random lrfu"
hobbit_policies() {
    simulate hobbit-policies "$(for cache in $policies; do
        printf 'hobbit+predict=none+prefetch=none+protect=off+cache=%s,' "$cache"; done | sed 's/,$//')"
}
of_policy() { # KEY CACHE MEMORY
    jq -r --arg all "$policies" --arg cache "$2" "[.[] | select(.memory == \"$3\")]
        [\$all | split(\" \") | index(\$cache)] | .$1" "$work/hobbit-policies.json"
}
# How much less the first reads than the second at 1, 2, 4 tokens' demand, per cent.
less_than() { # CACHE-A CACHE-B
    for m in 1x 2x 4x; do
        echo "$(of_policy bytes_per_token "$1" $m) $(of_policy bytes_per_token "$2" $m)"
    done | awk '{ printf("%s%+.1f%%", (NR > 1 ? ", " : ""), 100 * ($1 / $2 - 1)) }'
}
row_H7() {
    hobbit_policies
    lfu=$(less_than hobbit lfu)
    row "bytes missed under its policy, against lru, lfu of the sequence, random (fig. 18a)" "-4.7 to -8.7%, -2.1 to -4.2%" \
        "1, 2, 4 tokens' demand: $(less_than hobbit lru); $lfu; $(less_than hobbit random); against lfu of all sequences $(less_than hobbit lfu+keep-records=on)" \
        "$(echo "$lfu" | awk -F'[,%] *' '{ print ($1 < 0 && $3 < 0 && $5 < 0 ? "yes" : $1 < 0 || $3 < 0 || $5 < 0 ? "partly" : "no") }')" "simulate"
}
row_H8() {
    hobbit_policies
    here=$(for m in 1x 2x 4x; do echo "$(of_policy hit_rate lfu $m) $(of_policy hit_rate lfu+keep-records=on $m)"; done |
        awk '{ printf("%s%.1f%% against %.1f%%", (NR > 1 ? ", " : ""), 100 * $1, 100 * $2) }')
    row "hits of lfu with records of the sequence instead of all (fig. 18b)" "+4.5%" \
        "1, 2, 4 tokens' demand: $here" "$(echo "$here" | awk -F'[ %,]+' '{ print ($1 > $3 && $4 > $6 && $7 > $9 ? "yes" : "partly") }')" simulate
}
row_H9() {
    hobbit_cells
    near=$(ratios hobbit decode hobbit hobbit+on-miss=load+skip-below=0 3 2 4)
    far=$(ratios hobbit decode hobbit hobbit+on-miss=load+skip-below=0 8.6 2 4)
    row "speed-up by dynamic loading (fig. 16)" "1.19x to 1.57x" \
        "$(span "$near") (loads of 3), $(span "$far") (8.6); $(at hobbit 'low %' hobbit 2 3)% of the activations low, $(at hobbit 'skipped %' hobbit 2 3)% left out (two tokens' demand, 8 and 2 bits)" \
        "$(holds "${near#* }" 1.19 1)" "rehearse hobbit"
}
row_H10() {
    hobbit_cells
    none=hobbit+predict=none+prefetch=none exact=hobbit+on-miss=load+skip-below=0
    prompt=$(ratios hobbit prefill hobbit $none 3 2 4)
    alone=$(ratios hobbit decode $exact $exact+predict=none+prefetch=none 3 2 4)
    mixed=$(ratios hobbit decode hobbit $none 3 2 4)
    row "prefetch: speed of prompts; of decoding alone, with mixed precision (fig. 17b)" "1.11x (-10% time); 1.01x, 1.05x" \
        "loads of 3, two and four tokens' demand: $(span "$prompt"); $(span "$alone"), $(span "$mixed")" \
        "$(worst "$(holds "${prompt#* }" 1.11 1)" "$(holds "${mixed#* }" 1.05 1)")" "rehearse hobbit"
}
row_H11() {
    hobbit_cells
    row "share of a layer's time that loading takes (fig. 3a)" "85.5%, 94.5%" \
        "on demand: $(at hobbit 'stall %' ondemand 2 3)%, $(at hobbit 'stall %' ondemand 2 8.6)% (loads of 3 and 8.6 by set-up; four experts a layer instead of two)" \
        "set-up" "rehearse hobbit"
}
# Bytes of experts in so many tokens' demand of the bundled model at 4 bits.
demand_bytes() {
    calc %d "$1 * 48 * 24576"
}
quality_of() { # NAME: mean nats per token
    sed -n 's/^nll \([0-9.]*\).*/\1/p' "$work/quality-$1.txt"
}
loss_of() { # NAME BASE
    calc %+.2f%% "100 * ($(quality_of "$1") / $(quality_of "$2") - 1)"
}
row_H12() {
    quality resident 42 --strategy resident
    quality resident82 82 --strategy resident
    for d in 1 2 4; do quality "hobbit-$d" 42 --strategy hobbit --expert-memory "$(demand_bytes $d)"; done
    quality hobbit82-2 82 --strategy hobbit --expert-memory "$(calc %d "2 * 48 * 45056")"
    worst=$(loss_of hobbit-1 resident)
    row "loss under mixed precision (table 3)" "below 1%" \
        "$worst, $(loss_of hobbit-2 resident), $(loss_of hobbit-4 resident) of the nats at 1, 2, 4 tokens' demand (4 and 2 bits); $(loss_of hobbit82-2 resident82) at 2 (8 and 2 bits)" \
        "$(calc %s "${worst%\%} < 1 ? \"yes\" : \"no\"")" quality
}
row_H13() {
    rehearse cooperative 82 "strategies=host,hobbit,hobbit+on-miss=compute-host;load-low" speed=6.47 demand=2,4 loads=3 prompt=16 decode=32
    row "decoding over llama.cpp where the CPU computes too (fig. 15)" "1.31x to 1.42x" \
        "needs a GPU beside the CPU; on the test device (6.47 times its host) over computing all missing experts on the host: $(span "$(ratios cooperative decode 'hobbit+on-miss=compute-host;load-low' host 3 2 4)")" \
        "not here" "rehearse cooperative"
}
row_H14() {
    hobbit_cells
    mo=$(ratios hobbit decode hobbit moe-offloading 3 2 4) mi=$(ratios hobbit decode hobbit moe-infinity 3 2 4)
    row "speed of decoding over MoE-Offloading, MoE-Infinity (fig. 14)" "3.2x, 2.3x to 3.9x" \
        "$(span "$mo"), $(span "$mi") (loads of 3); $(span "$(ratios hobbit decode hobbit moe-offloading 8.6 2 4)"), $(span "$(ratios hobbit decode hobbit moe-infinity 8.6 2 4)") (8.6); over AdapMoE's gating $(span "$(ratios hobbit decode hobbit adapmoe 3 2 4)"): their strategies in this engine, without what their engines cost" \
        "$(worst "$(holds "${mo#* }" 3.2 1)" "$(holds "${mi#* }" 2.3 1)")" "rehearse hobbit"
}

# ---- DAOP ----

row_D1() {
    machine
    set -- $(times_here)
    row "moving one expert takes as long as 32 blocks on the GPU (table I)" "39.87 ms against 1.24; on the CPU 8.02" \
        "no GPU here. This processor and its disk: $(calc %.2f "$2") ms against $(calc %.2f "$1"); the rehearsals of D4 set loads of 32 and a host 6.47 times slower than the device" \
        "not here" "\`moe-profile --device PACK\`"
}
row_D2() {
    profile
    here=$(of_profile .similarity.prompt_to_rest)
    row "similarity of a prompt's experts and the answer's (table II, equation 1)" "90.7%" "$here" \
        "$(holds "${here%\%}" 90.72)" profile
}
row_D3() {
    profile
    here=$(of_profile '.all.predictors["residual-1"].in_k')
    row "next layer predicted, steady after the first layers (fig. 5)" "84.1%" \
        "$here (residual stream); by layer $(jq -r '[.layers[1:][].predictors["residual-1"].in_k * 100 | round | tostring] | join(", ")' "$work/profile.json")" \
        "$(holds "${here%\%}" 84.11)" profile
}
# 46.9% of the experts on the device: 180 of 384, what 3.75 tokens visit.
daop_cells() {
    rehearse daop 42 "strategies=lru+cache=pinned+alloc=frequency+init=frequency,host,daop,daop+degrade-most=1,daop+degrade=off" speed=6.47 \
        demand=3.75 loads=32 prompt=64 decode=32
}
row_D4() {
    daop_cells
    host=$(ratios daop decode daop host 32 3.75)
    pinned=$(ratios daop decode daop lru+cache=pinned+alloc=frequency+init=frequency 32 3.75)
    row "speed over computing missing experts in place; over on-demand with the same experts pinned (46.9% of the experts on the device; fig. 9, 10)" \
        "1.35x to 1.40x; 8.2x" \
        "loads of 32, a device 6.47 times its host: $(span "$host"); $(span "$pinned"); with at most one expert replaced $(span "$(ratios daop decode daop+degrade-most=1 host 32 3.75)"), without degradation $(span "$(ratios daop decode daop+degrade=off host 32 3.75)")" \
        "$(worst "$(holds "${host#* }" 1.354 1)" "$(holds "${pinned#* }" 8.2 1)")" "rehearse daop"
}
row_D5() {
    quality resident 42 --strategy resident
    for share in 25 50; do
        for s in daop daop+degrade-most=1; do
            quality "$s-$share" 42 --strategy $s --device test:1,10G --statistics "$work/calib.yaml" \
                --expert-memory "$(calc %d "9437184 * $share / 100")"
        done
    done
    row "small loss, except where experts shift (table VI)" "58.9 to 33.5 on GSM8K at 25%" \
        "nats $(loss_of daop-25 resident) at 25%, $(loss_of daop-50 resident) at 50% of the experts on the device; with at most one expert replaced $(loss_of daop+degrade-most=1-25 resident), $(loss_of daop+degrade-most=1-50 resident)" yes quality
}
row_D6() {
    row "tokens for a joule, over Fiddler (table IV)" "1.5x" \
        "needs a GPU whose energy is counted beside the processor's" "not here" "\`moe-run --stats\`"
}

# ---- EdgeMoE ----

row_E1() {
    profile
    here=$(of_profile .paths.top_fifth)
    row "share of tokens on the 20% most frequent paths (fig. 4)" "99%" \
        "$here: $(jq -r .paths.whole "$work/profile.json") different paths of $(jq -r .tokens "$work/profile.json") tokens, no power law" \
        "$(holds "${here%\%}" 99 20)" profile
}
row_E2() {
    profile
    here=$(of_profile .paths.rank1_right)
    row "best expert predicted from those of two layers (fig. 8)" "87.1% for one path" \
        "$here over all (each token left out of its own statistics), $(of_profile '.all.predictors["path-rank1"].top1') from other texts; the gates predict twice as well here" \
        "$(holds "${here%\%}" 87.1 3.1)" profile
}
row_E3() {
    ladder
    four=$(rung "linear 4, experts alone") two=$(rung "linear 2, experts alone")
    row "all experts at 4 bits, at 2, one scale a row (fig. 6)" "-1.3 to -1.4%, -5.8% of the accuracy" \
        "$four%, $two% of the nats (linear, the rest of the model at 16 bits)" \
        "$(calc %s "$four < 2 ? ($two < 12 ? \"yes\" : \"partly\") : \"no\"")" ladder
}
linear_map() { # NAME: JSON of a map of linear experts
    linear_maps
    "$bin/moe-calibrate" --show "$work/linear/$1.yaml" --json
}
row_E4() {
    here=$(linear_map 1 | jq -r '[.importances.layers[].nats[]] as $n | (.rungs[0].loss) as $all
        | ($all.nats_per_token * $all.tokens) as $sum
        | "\($n | min * 100 / $sum) \($n | add / length * 100 / $sum) \($n | max * 100 / $sum)"')
    set -- $here
    row "importance differs between experts (fig. 7a)" "0.44% against 0.59%" \
        "one expert at 2 bits costs $(calc %+.3f%% "$1") to $(calc %+.2f%% "$3") of the nats, in the mean $(calc %+.3f%% "$2")" \
        "$(calc %s "$3 > 1.3 * $2 ? \"yes\" : \"no\"")" "calibrate"
}
row_E5() {
    uniform=$(linear_map 1 | jq -r '.rungs[] | select(.experts == "4" and .dense_bits == 8) | "\(.bytes / 1048576) \(.loss.nll_percent)"')
    # Of the maps the one that loses least within the bytes of 4 bits.
    map=$(for p in 0.5 1 2 5 10; do linear_map $p |
        jq -r '"\((.choice.expert_bytes + .choice.dense_bytes) / 1048576) \(.choice.loss.nll_percent) \(.choice.check.nll_percent)"'; done |
        awk -v most="${uniform% *}" '$1 <= most && (!n++ || $2 < least) { least = $2; line = $0 } END { print line }')
    set -- $uniform ${map:-0 1e9 1e9}
    row "mixed bits beat uniform 4 bits in bytes and loss (table II)" "0.81 GB, 0.89% against 0.85 GB, 2.04%" \
        "$(if [ -n "$map" ]; then calc "%.2f MiB, %+.2f%%" "$3, $4"; else echo "no map below the bytes of 4 bits"; fi) against $(calc "%.2f MiB, %+.2f%%" "$1, $2") (linear, calibration texts)" \
        "$(calc %s "$4 < $2 ? \"yes\" : \"no\"")" calibrate
}
row_E6() {
    edgemoe_cells
    quantized=$(ratios edgemoe-42 decode edgemoe ondemand 0.56 2)
    slow=$(ratios edgemoe-42 decode edgemoe ondemand 2.2 2)
    over8=$(calc %.1f "$(at edgemoe-42 decode edgemoe 2 0.56) / $(at edgemoe-82 decode ondemand 2 1)")
    over8slow=$(calc %.1f "$(at edgemoe-42 decode edgemoe 2 2.2) / $(at edgemoe-82 decode ondemand 2 4)")
    row "speed over quantized, over unquantized on-demand (fig. 11)" "1.2x to 2.1x; 2.6x to 3.3x" \
        "4 bits, loads of 0.56 and 2.2, two tokens' demand: $(span "$quantized"), $(span "$slow"); over 8 bits (loads of 1 and 4) ${over8}x, ${over8slow}x" \
        "$(worst "$(holds "${slow#* }" 1.19 1)" "$(holds "$over8slow" 2.55 1)")" "rehearse edgemoe-42"
}
edgemoe_cells() {
    preload=ondemand+predict=path+prefetch=until-router
    rehearse edgemoe-82 82 strategies=ondemand,$preload,edgemoe demand=2 loads=1,4 prompt=8 decode=32
    rehearse edgemoe-42 42 strategies=ondemand,$preload,edgemoe demand=2 loads=0.56,2.2 prompt=8 decode=32
}
found() { # POLICY: its hits at the four sizes
    awk -v name="$1" '$1 == name { printf("%s%%, %s%%, %s%%, %s%%", $2, $3, $4, $5) }' "$work/replay.txt"
}
row_E7() {
    replay
    row "its eviction above lru, lfu, fifo, random (fig. 14)" "at every size" \
        "hits at 0.5, 1, 2, 4 tokens' demand: $(found edgemoe); lru $(found lru); lfu $(found lfu); fifo $(found fifo); random $(found random)" \
        "$(awk '$1 == "edgemoe" { for (i = 2; i <= 5; i++) own[i] = $i }
            $1 ~ /^(lru|lfu|fifo|random)$/ { for (i = 2; i <= 5; i++) if ($i > best[i]) best[i] = $i }
            END { for (i = 2; i <= 5; i++) n += (own[i] > best[i])
                print (n == 4 ? "yes" : n ? "partly" : "no") }' "$work/replay.txt")" replay
}
row_E8() {
    edgemoe_cells
    preload=ondemand+predict=path+prefetch=until-router
    row "quantization, then preloading, then buffer, s/token (fig. 18)" "0.789, 0.392, 0.305, 0.245" \
        "$(calc "%.3f, %.3f, %.3f, %.3f" "1 / $(at edgemoe-82 decode ondemand 2 4), 1 / $(at edgemoe-42 decode ondemand 2 2.2), 1 / $(at edgemoe-42 decode $preload 2 2.2), 1 / $(at edgemoe-42 decode edgemoe 2 2.2)") (8 bits with loads of 4)" \
        "$(calc %s "$(at edgemoe-42 decode ondemand 2 2.2) > 1.3 * $(at edgemoe-82 decode ondemand 2 4) && $(at edgemoe-42 decode edgemoe 2 2.2) > 1.2 * $(at edgemoe-42 decode ondemand 2 2.2) ? ($(at edgemoe-42 decode $preload 2 2.2) > 1.1 * $(at edgemoe-42 decode ondemand 2 2.2) ? \"yes\" : \"partly\") : \"no\"")" "rehearse edgemoe-42"
}
row_E9() {
    linear_maps
    here=$(for d in $domains; do linear_map "$d" | jq -r --arg own "$d.valid.txt" '
        [.texts[] | select(.check)] | "\(.[] | select(.name == $own).loss.nll_percent) \([.[] | select(.name != $own).loss.nll_percent] | max)"'; done |
        awk '{ if (!n++ || $1 > own) own = $1; if ($2 > other) other = $2 } END { printf "%.1f %.1f", own, other }')
    row "a map holds on another text (table IV)" "about 2%" \
        "maps of one domain within 2%: up to +${here% *}% on its own validation text, up to +${here#* }% on others (linear)" \
        "$(calc %s "${here#* } < 3 ? \"yes\" : \"no\"")" calibrate
}
row_E10() {
    models
    for s in resident edgemoe; do
        once "rss-$s.txt" "$bin/moe-run" -q "$wide/42.moe" -p "Once upon a time" -n 8 --temp 0 --strategy $s \
            --statistics "$wide/stats.yaml" --stats-json "$work/rss-$s.json"
    done
    all=$(jq .peak_rss_bytes "$work/rss-resident.json") few=$(jq .peak_rss_bytes "$work/rss-edgemoe.json")
    here=$(calc %.0f "100 * ($few / $all - 1)")
    row "memory against all in memory (fig. 15)" "-63%" \
        "$(calc %.0f "$few / 1048576") against $(calc %.0f "$all / 1048576") MiB ($here%; the 1.2 GB pack, buffer of 10 experts)" \
        "$(holds "$here" -63)" "\`moe-run --strategy edgemoe --stats\`"
}
row_E11() {
    quality resident 42 --strategy resident
    quality edgemoe 42 --strategy edgemoe --statistics "$work/calib.yaml" --expert-memory "$(demand_bytes 2)"
    all=$(jq -r .decode_joules_per_token "$work/quality-resident.json")
    here=$(jq -r .decode_joules_per_token "$work/quality-edgemoe.json")
    if [ "$all" = null ]; then
        row "energy of a token, over all in memory (fig. 13)" "+1.1% at least, +17% in the mean" \
            "$(jq -r .energy_unavailable "$work/quality-resident.json")" "not here" "\`moe-run --stats\`"
    else
        row "energy of a token, over all in memory (fig. 13)" "+1.1% at least, +17% in the mean" \
            "$(calc %+.0f%% "100 * ($here / $all - 1)"), $(calc %.3f "$here") against $(calc %.3f "$all") J" \
            "$(calc %s "$here < 1.17 * $all ? \"yes\" : \"partly\"")" quality
    fi
}
