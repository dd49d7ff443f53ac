# The rows of CLAIMS.md, for claims.sh: each measures what it needs, reads the figures, and judges them.
# shellcheck shell=sh disable=SC2154

# Claims about models, which are judged on the second one too.
of_models="F1 F2 F3 F4 F5 F6 F7 F8 H1 H2 H3 H4 H5 H6 H7 H8 H9 H12 D2 D3 D5 E1 E2 E3 E4 E5 E6 E7 E8 E9"

ids_of() { # PAPER
    case $1 in
    Fate) echo F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 F11 F12 ;;
    HOBBIT) echo H1 H2 H3 H4 H5 H6 H7 H8 H9 H10 H11 H12 H13 H14 ;;
    DAOP) echo D1 D2 D3 D4 D5 D6 ;;
    CoServe) echo C1 C2 C3 C4 C5 C6 ;;
    EdgeMoE) echo E1 E2 E3 E4 E5 E6 E7 E8 E9 E10 E11 ;;
    "$machines") echo F10m F11m F10d H9m D4m E6m ;;
    "$switch") echo E1s E2s E3s E4s E5s E6s E7s E8s E9s ;;
    esac
}

about() {
    cat <<END
# The papers' claims

What five papers claim of their systems, beside what this toolkit shows with its own engine, on its own
model. A model of 17.5 million parameters with 32 small experts a layer, 4 of them for each token, is not
theirs: it does not repeat every figure, and where it does not the row says so. What is about models is judged on a
second one as well ([its README](../models/second/README.md): 8 layers of 16 experts, 2 of them for each token, no shared
expert, another router), trained by \`make second-model\`; its maps are of ${SECOND_DOCUMENTS:-12} documents of each text. Ids are
those of the papers in order: F Fate, H HOBBIT, D DAOP, E EdgeMoE, C CoServe.

This page is what \`tests/bench/claims.sh\` prints; \`tests/bench/claims.sh F9\` measures one row anew. *Holds*
is judged by that script, by one rule: *yes* where at least nine tenths of the effect are seen, or of a claim's
comparisons come out as it says, *partly* where at least a quarter, *no* below; of several figures the worst counts; *not
here* where this machine cannot measure it, with the reason. *At their accuracy*: the same where predictions are right as often as the paper's
(\`--assume-prediction\`), which tells the engine from the predictor. *Cause*: of what does not hold, on either model, the
experiment that shows it: *predictor*, where the verdict is better at their accuracy, *model*, where it is better on the
second model; then engine, model, text or setting with one thing changed, and after a colon the verdict that the row has
there. All of it is computed. How the figures come about:

- *profile*: measured. \`moe-profile\` at 16 bits on the bundled validation texts (180 documents); path
  statistics from the calibration texts.
- *ladder*: measured. \`tests/bench/ladder.sh\`.
- *calibrate*: measured. \`moe-calibrate PACK --text FILE... --check FILE... --tolerance 1%\`; EdgeMoE's rows:
  \`METHOD=linear tests/bench/calibrate.sh\`.
- *quality*: measured. \`moe-run --perplexity FILE --prompt-share 50% --strategy NAME --expert-memory SIZE\`, ten
  documents of each domain.
- *replay*: simulated. \`build/tests/tools/replay_trace\`, on a trace of the validation texts.
- *simulate* with a name: simulated, the bundled model's routing with experts as large as Qwen1.5-MoE's, at the paper's
  precisions (Fate: 16 bits on demand and 4 and 2 bits in its strategy; HOBBIT 8 and 2; EdgeMoE 16 and 4), layers of
  1 ms, on a link whose loads at the first of them take the named multiple of a layer's computation; memory as a share of
  all experts at that precision, or in tokens' demand.
- *coe*: simulated. \`tests/bench/coe.sh\`, whose page with the tables behind these rows is [COE.md](COE.md); only
  what scheduling takes (C6) is measured.
- *rehearse*: rehearsed. \`bench_strategies\` on the bundled model widened until a layer takes a millisecond.

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

# A row whose figures coe.sh computes; its fifth field is "HERE THEIRS NONE;...", of which the worst is the verdict, its sixth the cause.
coe_row() { # ID
    once coe.tsv env BUILD="$BUILD" sh tests/bench/coe.sh claims
    field() { awk -F'\t' -v id="$1" -v n="$2" '$1 == id { print $n }' "$work/coe.tsv"; }
    row "$(field "$1" 2)" "$(field "$1" 3)" "$(field "$1" 4)" \
        "$(worst "$(field "$1" 5 | tr ';' '\n' | while read -r here theirs none; do holds "$here" "$theirs" "$none"; done |
            paste -sd' ')")" coe "" "" "$(field "$1" 6)"
}
row_C1() { coe_row C1; }
row_C2() { coe_row C2; }
row_C3() { coe_row C3; }
row_C4() { coe_row C4; }
row_C5() { coe_row C5; }
row_C6() { coe_row C6; }

# ---- Fate ----

shape() { # KEY: of the model at work, as its statistics say it
    jq -r ".$1" "$work/profile.json"
}
# later JQ: a share of the layers from the third on, in the mean, as per cent; later_holds JQ THEIRS [NONE]: its verdict.
later() {
    of_profile "[.layers[2:][] | $1] | add / length"
}
later_holds() {
    share=$(later "$1")
    holds "${share%\%}" "$2" "${3:-0}"
}
row_F1() {
    profile
    gate=$(of_profile '.all.cosine["gate-1"]') here=$(of_profile '.all.cosine.attention') before=$(of_profile '.all.cosine["attention-1"]')
    row "cosine similarity of a gate's input with: the previous gate's input; this layer's attention input; the previous layer's attention input (table 1)" \
        "88.8%; 93.1%; 83.8%" \
        "$gate; $here; $before$(calc %s "${gate%\%} > ${here%\%} ? \": the previous gate's input is the most similar\" : \"\"")" \
        "$(worst "$(holds "${gate%\%}" 88.83)" "$(holds "${here%\%}" 93.1)" "$(holds "${before%\%}" 83.8)")" profile
}
row_F2() {
    profile
    prompt=$(of_profile '.all.predictors["gate-1"].prompt')
    decode=$(of_profile '.all.predictors["gate-1"].in_k')
    here=$(of_profile '.all.predictors.attention.in_k') before=$(of_profile '.all.predictors["attention-1"].in_k')
    row "experts predicted by a gate from the previous gate's input: prefill, decode; in decode from the two other positions (table 1)" \
        "99.6%, 78.8%; 84.0%, 76.9%" \
        "$prompt, $decode; $here, $before" \
        "$(worst "$(holds "${prompt%\%}" 99.6)" "$(holds "${decode%\%}" 78.79)" "$(holds "${here%\%}" 84)" "$(holds "${before%\%}" 76.9)")" \
        profile "" "" "model: $(jq '.layers | length' "$work/profile.json") layers, of which the second changes most: its inputs are $(of_profile '.layers[1].cosine["attention-1"]') alike, the others' $(later '.cosine["attention-1"]'); of the others $(later '.predictors["gate-1"].prompt'), $(later '.predictors["gate-1"].in_k'); $(later '.predictors.attention.in_k'), $(later '.predictors["attention-1"].in_k'): $(worst "$(later_holds '.predictors["gate-1"].prompt' 99.6)" "$(later_holds '.predictors["gate-1"].in_k' 78.79)" "$(later_holds .predictors.attention.in_k 84)" "$(later_holds '.predictors["attention-1"].in_k' 76.9)")"
}
row_F3() {
    profile
    here=$(of_profile '.all.predictors["gate-1"].in_p75')
    row "... taking all above the 75th percentile" "97.2%" \
        "$here; with $(shape experts_per_token) of $(shape experts) experts that is also the top 2k" "$(holds "${here%\%}" 97.15)" profile
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
    row "shallow layers are harder to predict (fig. 7)" "L = 3 of 24 layers" "$here; L = ${found#shallow:} of $(shape moe_layers)" \
        "$(most "$lower == 1")" profile
}
# 16 and 4 bits under Fate's parts and EAP, loads at 16 bits of 0.46 layers and 1.85.
fate_strategies="ondemand,ondemand+predict=gate-next+prefetch=percentile:75;slack,fate+prefill=popularity+cache-bits=0,fate,eap,eap+cache-bits=0,ondemand+predict=gate-next+prefetch=percentile:75;slack+assume-prediction=97.15%,fate+prefill=popularity+cache-bits=0+assume-prediction=97.15%,fate+assume-prediction=97.15%"
fate_budgets="12.5% 25% 50% 75%"
fate_cells() {
    simulate fate 164 "$fate_strategies" "$(echo "$fate_budgets" | tr ' ' ,)" 0.46
    simulate fate-slow 164 "$fate_strategies" "$(echo "$fate_budgets" | tr ' ' ,)" 1.85
}
percent() { calc %.1f "100 * ($1)"; }
row_F5() {
    fate_cells
    half=$(percent "$(of fate hit_rate 3 12.5%)") all=$(percent "$(of fate hit_rate 3 25%)")
    row "hits with all experts of the first layers cached" "99.1% (4 of 24 layers; the share cached is not said)" \
        "L = $(of fate alloc 3 12.5% | sed 's/shallow://') of $(shape moe_layers) layers: $half% where half of the experts fit at 4 bits (12.5% of 16 bits' bytes), $all% where all but a few do" \
        "$(worst "$(holds "$half" 99.08 50)" "$(holds "$all" 99.08 50)")" "simulate fate" \
        "$(percent "$(of fate hit_rate 8 12.5%)")%, $(percent "$(of fate hit_rate 8 25%)")%" \
        "$(worst "$(holds "$(percent "$(of fate hit_rate 8 12.5%)")" 99.08 50)" "$(holds "$(percent "$(of fate hit_rate 8 25%)")" 99.08 50)")"
}
rung() { # NAME: its loss in per cent
    awk -F' *[|] *' -v name="$1" '$2 == name { gsub(/%/, "", $5); print $5 }' "$work/ladder.txt"
}
row_F6() {
    ladder
    eight=$(rung "hqq 8, experts alone") four=$(rung "hqq 4, experts alone") two=$(rung "hqq 2, experts alone")
    row "what experts at 8, 4, 2 bits cost (table 2)" "0, -0.2, -4.5 of 59.6 MMLU points" \
        "$eight%, $four%, $two% of the nats, the rest of the model at 16 bits" \
        "$(most "$eight < 0.1" "$four < 2" "$two > 3 * $four")" ladder
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
    # Where the curve, between its points, costs 1% more than all at 4 bits: perhaps nowhere.
    over=$(jq -r --argjson four "$four" '[.fate.curve[] | [.share, .unpopular.nll_percent - $four]] as $c
        | [range(1; $c | length) | select($c[.][1] > 1)][0] as $i
        | if $i == null then 100 else $c[$i - 1] as $a | $c[$i] as $b
        | ($a[0] + ($b[0] - $a[0]) * (1 - $a[1]) / ($b[1] - $a[1])) * 100 | round end' "$work/hqq.json")
    row "unpopular experts at 2 bits cost little, popular ones much; share p within a loss of 1% (fig. 10)" "p = 25%" \
        "p = $1% over 8 bits, of which 4 bits cost $(calc %+.2f%% "$four") ($(calc %+.2f%% "$2") on validation texts); $over% over 4 bits; at 20% $(calc %+.2f "$3 - $four") against $(calc %+.2f "$4 - $four") points over none" \
        "$(holds "$over" 25)" calibrate
}
# Prompts of so many tokens: documents joined. The paper's block of 13 ms is a token's: a prompt's takes as many times
# longer as a pass of 16 tokens, which costs what one does, is shorter than it.
prompts() { # TOKENS
    profile
    for d in $domains; do awk '!/^<\|endoftext\|>$/' "$texts/$d.valid.txt" >"$work/joined-$d.txt"; done
    # shellcheck disable=SC2046
    [ -e "$work/prompts-$1.trace" ] || "$bin/moe-profile" -q "$work/16.moe" \
        $(for d in $domains; do echo "--text $work/joined-$d.txt"; done) --max-tokens "$1" --max-windows 3 \
        --prompt-share 99% --path-stats "$work/calib.yaml" --trace "$work/prompts-$1.trace" -o "$work/prompts.yaml"
    for factor in 1 4; do
        TRACE=$work/prompts-$1.trace simulate "fate-prompts-$1-$factor" 1642 ondemand,eap,fate,fate+assume-prediction=99.6%,eap+cache-bits=0 \
            12.5%,25% "$(calc %f "0.46 * $factor * $1 / 16")" --batch 512
    done
}
row_F9() {
    here='' slow='' eap='' theirs='' full='' best=0 worse=0 most=0 over=0
    for n in 128 256 512; do
        prompts $n
        over=$(calc %.2f "$over > ($(of fate-prompts-$n-1 prefill_tokens_per_s 3 12.5%) / $(of fate-prompts-$n-1 prefill_tokens_per_s 1 12.5%)) ? $over : $(of fate-prompts-$n-1 prefill_tokens_per_s 3 12.5%) / $(of fate-prompts-$n-1 prefill_tokens_per_s 1 12.5%)")
        full="$full${full:+, }$(calc %.2fx "$(of fate-prompts-$n-1 prefill_tokens_per_s 2 12.5%) / $(of fate-prompts-$n-1 prefill_tokens_per_s 4 12.5%)")"
        here="$here${here:+, }$(calc %.2fx "$(of fate-prompts-$n-1 prefill_tokens_per_s 2 12.5%) / $(of fate-prompts-$n-1 prefill_tokens_per_s 0 12.5%)")"
        eap="$eap${eap:+, }$(calc %.2fx "$(of fate-prompts-$n-1 prefill_tokens_per_s 2 12.5%) / $(of fate-prompts-$n-1 prefill_tokens_per_s 1 12.5%)")"
        theirs="$theirs${theirs:+, }$(calc %.2fx "$(of fate-prompts-$n-1 prefill_tokens_per_s 3 12.5%) / $(of fate-prompts-$n-1 prefill_tokens_per_s 0 12.5%)")"
        one=$(calc %.2f "$(of fate-prompts-$n-4 prefill_tokens_per_s 2 12.5%) / $(of fate-prompts-$n-4 prefill_tokens_per_s 0 12.5%)")
        slow="$slow${slow:+, }${one}x"
    done
    for x in $(echo "$here" | tr -d ,x); do best=$(calc %.2f "$x > $best ? $x : $best"); done
    for x in $(echo "$eap" | tr -d ,x); do worse=$(calc %.2f "$x > $worse ? $x : $worse"); done
    for x in $(echo "$theirs" | tr -d ,x); do most=$(calc %.2f "$x > $most ? $x : $most"); done
    row "speed of prompts of 128, 256, 512 tokens over on-demand, over EAP; on PCIe 1 (fig. 11)" "up to 4.5x, 1.9x; 1.8x, 1.5x" \
        "half of the experts at 4 bits: $here, $eap; loads four times as long: $slow" \
        "$(worst "$(holds "$best" 4.5 1)" "$(holds "$worse" 1.9 1)")" "simulate fate-prompts" "$theirs" \
        "$(worst "$(holds "$most" 4.5 1)" "$(holds "$over" 1.9 1)")" "setting: EAP's, which has Fate's cache, precision and order here; over EAP that loads 16 bits $full: $(best=0; for x in $(echo "$full" | tr -d ,x); do best=$(calc %.2f "$x > $best ? $x : $best"); done; holds "$best" 1.9 1)"
}
row_F10() {
    fate_cells
    # shellcheck disable=SC2086
    set -- $fate_budgets
    over=$(spread fate decode_tokens_per_s 3 0 "$@") eap=$(spread fate decode_tokens_per_s 3 4 "$@")
    row "speed of decoding over on-demand, over EAP, over budgets; on a slow bus (fig. 12, 13)" "up to 4.1x, 2.2x; 2.3x, 1.6x" \
        "$*: $(span "$over"), $(span "$eap"); slow: $(span "$(spread fate-slow decode_tokens_per_s 3 0 "$@")"), $(span "$(spread fate-slow decode_tokens_per_s 3 4 "$@")")" \
        "$(worst "$(holds "${over#* }" 4.1 1)" "$(holds "${eap#* }" 2.2 1)")" "simulate fate" \
        "$(span "$(spread fate decode_tokens_per_s 8 0 "$@")")" "" \
        "setting: loads of 4 bits are hidden, EAP's as well; over EAP that loads 16 bits as on-demand does $(eap=$(spread fate decode_tokens_per_s 3 5 "$@") && span "$eap" && echo ": $(worst "$(holds "${over#* }" 4.1 1)" "$(holds "${eap#* }" 2.2 1)")")"
}
row_F11() {
    fate_cells
    parts() { # N-OF-EACH-PART...: each over on-demand, at half of the experts
        for n; do calc '%.2f ' "$(of fate decode_tokens_per_s "$n" 50%) / $(of fate decode_tokens_per_s 0 50%)"; done
    }
    # shellcheck disable=SC2046
    set -- $(parts 1 2 3) $(parts 6 7 8)
    row "prefetching, then caching, then quantization, over on-demand (fig. 14)" "1.3x, 2x, 3.7x" \
        "$1x, $2x, $3x in half of the bytes of 16 bits" \
        "$(worst "$(holds "$1" 1.3 1)" "$(holds "$2" 2 1)" "$(holds "$3" 3.7 1)")" "simulate fate" "$4x, $5x, $6x" \
        "$(worst "$(holds "$4" 1.3 1)" "$(holds "$5" 2 1)" "$(holds "$6" 3.7 1)")" "setting: four loads of 0.46 layers; with nearly all of 16 bits cached it is $(calc %.2f "$(of fate decode_tokens_per_s 2 75%) / $(of fate decode_tokens_per_s 0 75%)")x, which is all that prefetching can win"
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
    # shellcheck disable=SC2046
    once norms.txt "$BUILD/tests/bench/bench_norms" "$work/16.moe" $(for d in $domains; do echo "$texts/$d.valid.txt"; done)
    norm() { awk -v name="$1" '$1 == name { printf "%.2f", $2 }' "$work/norms.txt"; }
    row "correlation of the routing weight with the norm of the weighted output (fig. 5a)" "0.99" \
        "$(calc %.2f "$here") over all, $(jq -r '[.layers[].weight_norm_correlation] | "\(min) to \(max)"' "$work/profile.json" | sed 's/\(0\.[0-9][0-9]\)[0-9]*/\1/g') by layer" \
        "$(holds "$here" 0.99)" profile "" "" "setting: the paper correlates normalized data and does not say by what: with weights and norms as shares of their token's sums it is $(norm token): $(holds "$(norm token)" 0.99); as they are $(norm expert) within one expert, and with outputs as long as their expert's are in the mean $(norm means)"
}
row_H2() {
    profile
    set -- $(sed -n "s/.*ranks from 2 on: \([0-9.]*\)% up to 0.6, \([0-9.]*\)% up to 0.9/\1 \2/p" "$work/profile.txt")
    k=$(shape experts_per_token)
    high=$(calc %.0f "(100 + ($k - 1) * $1) / $k") low=$(calc %.0f "($2 - $1) * ($k - 1) / $k")
    row "how T1 = 0.6, T2 = 0.9 split the activations (fig. 5b)" "67% high, 30% low, 3% left out" \
        "$high%, $low%, $((100 - high - low))%, of $k experts a token" \
        "$(holds "$high" 67)" profile "" "" "model: of two chosen experts the second has a score, of four three have; split as theirs: H9"
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
    # Where the curve of what is left out, between its points, costs 1% more than 4 bits.
    at_one() {
        jq -r --argjson base "$(four_bits)" '([[0, 0]] + [.hobbit.cuts[] | [.share, .skipped.nll_percent - $base]]) as $c
            | [range(1; $c | length) | select($c[.][1] > 1)][0] as $i | $c[$i - 1] as $a | $c[$i] as $b
            | ($a[0] + ($b[0] - $a[0]) * (1 - $a[1]) / ($b[1] - $a[1])) * 100 | round' "$work/hqq.json"
    }
    row "20% at low precision cost below 1%, 10% left out above (fig. 3b)" "" \
        "$(calc %.0f "$2")% low $low%, $(calc %.0f "$4")% left out $out%" \
        "$(most "$low < 1" "$out > 1")" calibrate "" "" "model: 1% is lost where $(at_one)% of the activations are left out"
}
row_H4() {
    profile
    chance=$(calc %.1f "100 / $(shape experts)")
    one=$(of_profile '.all.predictors["gate-1"].top1') two=$(of_profile '.all.predictors["gate-2"].top1') three=$(of_profile '.all.predictors["gate-3"].top1')
    row "best expert of the next layer predicted; two, three layers ahead (fig. 7)" "96%; about 90%" \
        "$one; $two, $three (chance $(calc %.0f%% "$chance"))" \
        "$(worst "$(holds "${one%\%}" 96 $chance)" "$(holds "${two%\%}" 90 $chance)" "$(holds "${three%\%}" 90 $chance)")" profile \
        "" "" "model: of all layers but the second, which changes most, $(later '.predictors["gate-1"].top1'); $(of_profile '[.layers[3:][].predictors["gate-2"].top1] | add / length'), $(of_profile '[.layers[4:][].predictors["gate-3"].top1] | add / length'); inputs of the next are $(later '.cosine["gate-1"]') alike there; among twice as many as are active $(of_profile '.all.predictors["gate-1"].in_2k') of the active ones are found"
}
# The bundled model at 8 and 2 bits, in this order; loads of 3 layers and 8.6, two and four tokens' demand.
hobbit_strategies="ondemand,hobbit,hobbit+on-miss=load+skip-below=0,hobbit+predict=none+prefetch=none+protect=off,hobbit+on-miss=load+skip-below=0+predict=none+prefetch=none+protect=off,hobbit+predict=gate-ahead:1,hobbit+predict=gate-ahead:2,moe-offloading,moe-infinity,adapmoe,hobbit+assume-prediction=96%,hobbit+on-miss=load+skip-below=0+assume-prediction=96%"
hobbit_cells() {
    simulate hobbit 82 "$hobbit_strategies" 2x,4x 3
    simulate hobbit-far 82 "$hobbit_strategies" 2x,4x 8.6
}
hobbit_times() { # TABLE N M [KEY]: at two and four tokens' demand
    spread "$1" "${4:-decode_tokens_per_s}" "$2" "$3" 2x 4x
}
row_H5() {
    hobbit_cells
    here='' far=''
    for n in 3 5 6 1; do
        here="$here${here:+, }$(calc %.2f "$(of hobbit decode_tokens_per_s $n 4x)")"
        far="$far${far:+, }$(calc %.2f "$(of hobbit-far decode_tokens_per_s $n 4x)")"
    done
    # shellcheck disable=SC2046
    set -- $(echo "$here, $far" | tr -d ,)
    row "predicting one to three layers ahead is better than not (fig. 17b; what a prediction costs: RESULTS.md)" "" \
        "depth 0 to 3, four tokens' demand: $here tokens/s (loads of 3), $far (8.6)" \
        "$(most "$2 > $1" "$3 > $1" "$4 > $1" "$6 > $5" "$7 > $5" "$8 > $5")" "simulate hobbit" \
        "depth 3: $(calc %.2f "$(of hobbit decode_tokens_per_s 10 4x)"), $(calc %.2f "$(of hobbit-far decode_tokens_per_s 10 4x)")"
}
row_H6() {
    profile
    best=$(of_profile .all.reuse.best) any=$(of_profile .all.reuse.any)
    # By chance: k of n, and one minus the share of choices without any of k.
    # shellcheck disable=SC2046
    set -- x $(awk -v k="$(shape experts_per_token)" -v n="$(shape experts)" 'BEGIN {
        for (none = 1; i < k; i++) none *= (n - k - i) / (n - i)
        printf("%.1f %.1f", 100 * k / n, 100 * (1 - none)) }')
    row "the last token's best expert used again; one of its experts (chance) (fig. 10a)" "above 0.25; above 0.46" \
        "$best ($2%); $any ($3%)" "$(most "${best%\%} > 1.5 * $2" "${any%\%} > 1.3 * $3")" profile
}
# HOBBIT without prediction under each policy, in this order, the first with the best of fifteen weights on the
# calibration texts for T1 0.6, T2 0.9, by the product of the bytes at the three sizes; the paper finds its weights so, too.
policies="tuned hobbit lru lfu lfu+keep-records=on random lrfu"
tuned_weights() {
    quantize 82 --experts 8,2
    # shellcheck disable=SC2046
    [ -e "$work/weights.trace" ] || "$bin/moe-profile" -q "$work/82.moe" $(of_texts --text calib) --max-tokens 96 \
        --max-windows 1 --trace "$work/weights.trace" -o "$work/weights.yaml"
    [ -e "$work/weights.txt" ] || for w in 0.25,0.25,0.25,0.25 0.5,0.25,0.25,0 0.25,0.5,0.25,0 0.25,0.25,0.5,0 0.4,0.4,0.2,0 \
        0.4,0.2,0.4,0 0.2,0.4,0.4,0 0.3,0.3,0.3,0.1 0.45,0.45,0,0.1 0.6,0.3,0,0.1 0.3,0.6,0,0.1 0.5,0,0.5,0 0.2,0.4,0.3,0.1 \
        0.2,0.5,0.2,0.1 0.3,0.65,0,0.05; do
        echo "$("$bin/moe-plan" -q --simulate "$work/weights.trace" "$work/82.moe" --json --memory 1x,2x,4x \
            --layer-seconds 1e-3 --link-rate 24M --strategy "$hobbit_alone+cache=hobbit+cache-weights=$(echo "$w" | tr , \;)" |
            jq '[.[].bytes_per_token | log] | add') $w"
    done >"$work/weights.txt"
    sort -n "$work/weights.txt" | awk 'NR == 1 { print $2 }'
}
hobbit_alone=hobbit+predict=none+prefetch=none+protect=off
hobbit_policies() {
    weights=$(tuned_weights)
    profile
    simulate hobbit-policies 82 "$(for cache in $policies; do
        printf '%s+cache=%s,' "$hobbit_alone" "$cache"; done |
        sed "s/,$//; s/cache=tuned/cache=hobbit+cache-weights=$(echo "$weights" | tr , \;)/")" 1x,2x,4x 1
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
    lru=$(less_than tuned lru) lfu=$(less_than tuned lfu)
    # shellcheck disable=SC2046
    set -- $(echo "$lru, $lfu" | tr -d ,%)
    # shellcheck disable=SC2046
    row "bytes missed under its policy, against lru, lfu of the sequence, random (fig. 18a)" "-4.7 to -8.7%, -2.1 to -4.2%" \
        "weights $weights found on other texts; 1, 2, 4 tokens' demand: $lru; $lfu; $(less_than tuned random); with equal weights $(less_than hobbit lru); $(less_than hobbit lfu)" \
        "$(most "$1 < -4.69" "$2 < -4.69" "$3 < -4.69" "$4 < -2.13" "$5 < -2.13" "$6 < -2.13")" "simulate hobbit-policies" "" "" \
        "setting: the paper does not say which records its lfu has; against lfu with those of all texts $(less_than tuned lfu+keep-records=on): $(all=$(less_than tuned lfu+keep-records=on | tr -d ,%) && most "$1 < -4.69" "$2 < -4.69" "$3 < -4.69" $(for x in $all; do echo "$x<-2.13"; done))"
}
row_H8() {
    hobbit_policies
    here=$(for m in 1x 2x 4x; do echo "$(of_policy hit_rate lfu $m) $(of_policy hit_rate lfu+keep-records=on $m)"; done |
        awk '{ printf("%s%.1f%% against %.1f%%", (NR > 1 ? ", " : ""), 100 * $1, 100 * $2) }')
    # shellcheck disable=SC2046
    set -- $(echo "$here" | tr -cd '0-9. ')
    row "hits of lfu with records of the sequence instead of all (fig. 18b)" "+4.5%" \
        "1, 2, 4 tokens' demand: $here" "$(most "$1 - $2 > 4.5" "$3 - $4 > 4.5" "$5 - $6 > 4.5")" "simulate hobbit-policies"
}
# T1 and 1 - T2 by which 67% of the activations are high, 30% low and 3% left out, as the paper splits Mixtral's: from the
# scores of the calibration texts (3.2).
split_thresholds() { # TOP-K
    profile
    awk -v k="$1" '/score_histogram:/ { gsub(/.*\[|\].*/, ""); n = split($0, at, ","); for (i = 1; i <= n; i++) { of[i] += at[i]; all += at[i] } }
        function score(share, sum, i) { for (i = 1; i < 100; i++) { sum += of[i]; if (sum >= (share * k - 1) / (k - 1) * all) break }
            return i / 100 }
        END { printf("%.2f %.2f", score(0.67), 1 - score(0.97)) }' "$work/calib.yaml"
}
row_H9() {
    hobbit_cells
    # shellcheck disable=SC2046
    set -- $(split_thresholds "$(shape experts_per_token)")
    for table in hobbit-split:3 hobbit-split-far:8.6; do
        simulate "${table%:*}" 82 "hobbit+on-miss=load-low:$1+skip-below=$2,hobbit+on-miss=load+skip-below=0,hobbit+on-miss=load-low:$1+skip-below=$2+assume-prediction=96%" 2x,4x "${table#*:}"
    done
    near=$(hobbit_times hobbit-split 0 1) far=$(hobbit_times hobbit-split-far 0 1)
    row "speed-up by dynamic loading (fig. 16)" "1.19x to 1.57x" \
        "split as theirs, T1 $1, T2 $(calc %.2f "1 - $2"): $(span "$near") (loads of 3), $(span "$far") (8.6); by Mixtral's T1 and T2, which leave out $(percent "$(of hobbit skipped 1 2x) / $(of hobbit expert_activations 1 2x)")% here, $(span "$(hobbit_times hobbit 1 2)"), $(span "$(hobbit_times hobbit-far 1 2)")" \
        "$(worst "$(holds "${near% *}" 1.19 1)" "$(holds "${far% *}" 1.19 1)")" "simulate hobbit-split" \
        "$(span "$(hobbit_times hobbit-split 2 1)"), $(span "$(hobbit_times hobbit-split-far 2 1)")" ""
}
row_H10() {
    hobbit_cells
    prompt=$(hobbit_times hobbit 1 3 prefill_tokens_per_s)
    alone=$(hobbit_times hobbit 2 4) mixed=$(hobbit_times hobbit 1 3)
    row "prefetch: speed of prompts; of decoding alone, with mixed precision (fig. 17b)" "1.11x (-10% time); 1.01x, 1.05x" \
        "loads of 3, two and four tokens' demand: $(span "$prompt"); $(span "$alone"), $(span "$mixed"); loads of 8.6, depth 1: $(span "$(hobbit_times hobbit-far 5 3)")" \
        "$(worst "$(holds "${prompt#* }" 1.11 1)" "$(holds "${alone#* }" 1.01 1)" "$(holds "${mixed#* }" 1.05 1)")" "simulate hobbit" \
        "$(span "$(hobbit_times hobbit 10 3 prefill_tokens_per_s)"); $(span "$(hobbit_times hobbit 11 4)"), $(span "$(hobbit_times hobbit 10 3)"); $(span "$(hobbit_times hobbit-far 10 3)")" \
        "$(prompt=$(hobbit_times hobbit 10 3 prefill_tokens_per_s) alone=$(hobbit_times hobbit 11 4) mixed=$(hobbit_times hobbit 10 3)
            worst "$(holds "${prompt#* }" 1.11 1)" "$(holds "${alone#* }" 1.01 1)" "$(holds "${mixed#* }" 1.05 1)")" \
        "setting: a prompt's pass visits nearly every expert, so that there is little to predict; without prefetching the link idles $(percent "1 - $(of hobbit link_s 3 2x) / $(of hobbit decode_s 3 2x)")% and $(percent "1 - $(of hobbit link_s 3 4x) / $(of hobbit decode_s 3 4x)")% of the time, which is what there is to win"
}
row_H11() {
    hobbit_cells
    row "share of a layer's time that loading takes (fig. 3a)" "85.5%, 94.5%" \
        "on demand: $(percent "$(of hobbit stall_s 0 2x) / $(of hobbit decode_s 0 2x)")%, $(percent "$(of hobbit-far stall_s 0 2x) / $(of hobbit-far decode_s 0 2x)")% (loads of 3 and 8.6 by set-up; four experts a layer instead of two)" \
        "set-up" "simulate hobbit"
}
# Bytes of experts in so many tokens' demand of the model at work, at the first precision of a pack: 42 unless named.
demand_bytes() {
    profile
    calc %d "$1 * $(loads_of "${2:-42}") * $(shape experts_per_token) / $(shape experts)"
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
    quality hobbit82-2 82 --strategy hobbit --expert-memory "$(demand_bytes 2 82)"
    set -- "$(loss_of hobbit-1 resident)" "$(loss_of hobbit-2 resident)" "$(loss_of hobbit-4 resident)" "$(loss_of hobbit82-2 resident82)"
    row "loss under mixed precision (table 3)" "below 1%" \
        "$1, $(loss_of hobbit-2 resident), $(loss_of hobbit-4 resident) of the nats at 1, 2, 4 tokens' demand (4 and 2 bits); $(loss_of hobbit82-2 resident82) at 2 (8 and 2 bits)" \
        "$(most "${1%\%} < 1" "${2%\%} < 1" "${3%\%} < 1" "${4%\%} < 1")" quality
}
row_H13() {
    rehearse cooperative 82 "strategies=host,hobbit,hobbit+on-miss=compute-host;load-low" speed=6.47 demand=2,4 loads=3 prompt=16 decode=32
    row "decoding over llama.cpp where the CPU computes too (fig. 15)" "1.31x to 1.42x" \
        "needs a GPU beside the CPU; on the test device (6.47 times its host) over computing all missing experts on the host: $(span "$(ratios cooperative decode 'hobbit+on-miss=compute-host;load-low' host 3 2 4)")" \
        "not here" "rehearse cooperative"
}
row_H14() {
    hobbit_cells
    mo=$(hobbit_times hobbit 1 7) mi=$(hobbit_times hobbit 1 8)
    # What Mixtral's token takes in the two engines, seconds, by the README of one (github.com/TorchMoE/MoE-Infinity,
    # 000f22a), on an RTX A5000 with 24 GB; its link is the RTX 4090's.
    mo_own=1.752 mi_own=0.895
    on hobbit-baselines rtx4090 mixtral-8x7b 16,4 22G hobbit,moe-offloading,moe-infinity --dense 16
    token() { calc %.2f "1 / $(speed hobbit-baselines "$1" 22G)"; }
    row "speed of decoding over MoE-Offloading, MoE-Infinity (fig. 14)" "3.2x, 2.3x to 3.9x" \
        "$(span "$mo"), $(span "$mi") (loads of 3); $(span "$(hobbit_times hobbit-far 1 7)"), $(span "$(hobbit_times hobbit-far 1 8)") (8.6); over AdapMoE's gating $(span "$(hobbit_times hobbit 1 9)")" \
        "$(worst "$(holds "${mo#* }" 3.2 1)" "$(holds "${mi#* }" 2.3 1)")" "simulate hobbit" \
        "$(span "$(hobbit_times hobbit 10 7)"), $(span "$(hobbit_times hobbit 10 8)")" \
        "$(mo=$(hobbit_times hobbit 10 7) mi=$(hobbit_times hobbit 10 8)
            worst "$(holds "${mo#* }" 3.2 1)" "$(holds "${mi#* }" 2.3 1)")" \
        "engine: their strategies run in this one. Mixtral in 16 bits over PCIe 4: $(token 1) and $(token 2) s a token here, in their own engines $mo_own and $mi_own (MoE-Infinity's README, RTX A5000), against which HOBBIT's $(token 0) s here are $(calc %.2f "$mo_own / $(token 0)")x and $(calc %.2f "$mi_own / $(token 0)")x: $(worst "$(holds "$(calc %f "$mo_own / $(token 0)")" 3.2 1)" "$(holds "$(calc %f "$mi_own / $(token 0)")" 2.3 1)")"
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
        "$(holds "${here%\%}" 84.11)" profile "" "" "model: the second layer, which is $(of_profile '.layers[1].predictors["residual-1"].in_k'), without it $(later '.predictors["residual-1"].in_k'): $(later_holds '.predictors["residual-1"].in_k' 84.11)"
}
# 46.9% of the experts on a device 6.47 times its host, whose loads take 32 of its layers.
daop_cells() {
    simulate daop 42 "lru+cache=pinned+alloc=frequency+init=frequency,host,daop,daop+degrade-most=1,daop+degrade=off,daop+assume-prediction=84.11%" \
        46.9% 32 --device "test:6.47,$(calc %d "$(loads_of 42) / 384 / 32e-3")"
}
row_D4() {
    daop_cells
    over() { calc %.2f "$(of daop decode_tokens_per_s "$1" 46.9%) / $(of daop decode_tokens_per_s "$2" 46.9%)"; }
    row "speed over computing missing experts in place; over on-demand with the same experts pinned (46.9% of the experts on the device; fig. 9, 10)" \
        "1.35x to 1.40x; up to 8.2x" \
        "loads of 32, a device 6.47 times its host: $(over 2 1)x; $(over 2 0)x; with at most one expert replaced $(over 3 1)x, without degradation $(over 4 1)x" \
        "$(worst "$(holds "$(over 2 1)" 1.354 1)" "$(holds "$(over 2 0)" 8.2 1)")" "simulate daop" "$(over 5 1)x; $(over 5 0)x" \
        "$(worst "$(holds "$(over 5 1)" 1.354 1)" "$(holds "$(over 5 0)" 8.2 1)")" \
        "setting: the host takes $(percent "$(of daop host_s 1 46.9%) / $(of daop decode_s 1 46.9%)")% of the time to compute what is missing, which is what there is to win; on their machine and models: D4m"
}
row_D5() {
    quality resident 42 --strategy resident
    for share in 25 50; do
        for s in daop daop+degrade-most=1 daop+degrade=off; do
            quality "$s-$share" 42 --strategy $s --device test:1,10G --statistics "$work/calib.yaml" \
                --expert-memory "$(calc %d "$(loads_of 42) * $share / 100")"
        done
    done
    row "small loss, except where experts shift (table VI)" "58.9 to 33.5 on GSM8K at 25%" \
        "nats $(loss_of daop-25 resident) at 25%, $(loss_of daop-50 resident) at 50% of the experts on the device; with at most one expert replaced $(loss_of daop+degrade-most=1-25 resident), $(loss_of daop+degrade-most=1-50 resident)" \
        "$(most "$(loss_of daop-25 resident | tr -d %) < 2" "$(loss_of daop-50 resident | tr -d %) < 2")" quality "" "" \
        "model: with nothing replaced, only computed from the layer before, it is $(loss_of daop+degrade=off-25 resident), $(loss_of daop+degrade=off-50 resident): replacing experts costs $(loss_of daop-25 daop+degrade=off-25), $(loss_of daop-50 daop+degrade=off-50)"
}
row_D6() {
    row "tokens for a joule, over Fiddler (table IV)" "1.5x" \
        "needs a GPU whose energy is counted beside the processor's" "not here" "\`moe-run --stats\`"
}

# ---- EdgeMoE ----

# paths_through LAYERS STATISTICS: share of tokens on the 20% most frequent paths of the best experts through two or three
# layers in a row, in the mean over layers.
paths_through() {
    awk -v through="$1" '/^[a-z_]+:/ { paths = /^paths:/; next }
        paths { gsub(/[][,-]/, " "); if ($2 != 65535) n[$1 " " (through > 2 ? $2 : "") " " $3 " " $4] += $5 }
        END { for (path in n) print path, n[path] }' "$2" | sort -k1,1n -k"$(($1 + 2))","$(($1 + 2))nr" |
        awk 'function take() { for (i = 1; i <= k; i++) { all += of[i]; if (i <= k / 5) top += of[i] }
                if (k) { sum += top / all; layers++ }
                all = top = k = 0 }
            $1 != last { take(); last = $1 }
            { of[++k] = $NF }
            END { take(); printf "%.1f%%", 100 * sum / layers }'
}
# one_path STATISTICS: of pairs of best experts in two layers that 50 tokens or more have, how much the likeliest expert of
# the next layer has at most, and which share of the tokens has a pair with 87.1% or more.
one_path() {
    awk '/^[a-z_]+:/ { paths = /^paths:/; next }
        paths { gsub(/[][,-]/, " "); if ($2 == 65535) next
            pair = $1 " " $2 " " $3; n[pair] += $5; if ($5 > best[pair]) best[pair] = $5; all += $5 }
        END { for (pair in n) if (n[pair] >= 50) { share = best[pair] / n[pair]
                if (share > most) most = share
                if (share >= 0.871) as_theirs += n[pair] }
            printf "up to %.1f%%, and 87.1%% or more for %.1f%% of the tokens", 100 * most, 100 * as_theirs / all }' "$1"
}
row_E1() {
    profile
    here=$(of_profile .paths.top_fifth)
    row "share of tokens on the 20% most frequent paths (fig. 4)" "99%" \
        "$here: $(jq -r .paths.whole "$work/profile.json") different paths of $(jq -r .tokens "$work/profile.json") tokens, no power law" \
        "$(holds "${here%\%}" 99 20)" profile "" "" "text: so many paths are rarely met twice in so few tokens; of paths through two layers in a row the 20% most frequent have $(paths_through 2 "$work/calib.yaml"), through three $(paths_through 3 "$work/calib.yaml") (calibration texts)"
}
row_E2() {
    profile
    here=$(of_profile .paths.rank1_right)
    row "best expert predicted from those of two layers (fig. 8)" "87.1% for one path" \
        "$here over all (each token left out of its own statistics), $(of_profile '.all.predictors["path-rank1"].top1') from other texts; the next gate $(of_profile '.all.predictors["gate-1"].top1')" \
        "$(holds "${here%\%}" 87.1 "$(calc %.1f "100 / $(shape experts)")")" profile "" "" \
        "setting: 87.1% is of one pair of experts in two layers; of those that 50 tokens or more have here it is $(one_path "$work/calib.yaml")"
}
row_E3() {
    ladder
    four=$(rung "linear 4, experts alone") two=$(rung "linear 2, experts alone")
    row "all experts at 4 bits, at 2, one scale a row (fig. 6)" "-1.3 to -1.4%, -5.8% of the accuracy" \
        "$four%, $two% of the nats (linear, the rest of the model at 16 bits)" \
        "$(most "$four < 2" "$two < 12")" ladder "" "" "setting: one scale a row for weights of this model; with one for 64 weights (hqq) $(rung "hqq 4, experts alone")%, $(rung "hqq 2, experts alone")%: $(most "$(rung "hqq 4, experts alone") < 2" "$(rung "hqq 2, experts alone") < 12"); on Switch Transformers: E3s"
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
        "$(most "$3 > 1.3 * $2")" "calibrate"
}
row_E5() {
    below_4_map
    uniform=$(jq -r '.rungs[] | select(.experts == "4" and .dense_bits == 8) | "\(.bytes / 1048576) \(.loss.nll_percent)"' "$work/estimated.json")
    # All at 4 bits on the texts that maps are checked by.
    [ -e "$work/linear-4.moe" ] || "$bin/moe-quantize" -q --experts 4 -o "$work/linear-4.moe" "$linear_pack"
    for d in $domains; do cat "$map_texts/$d.valid.txt"; done >"$work/linear-valid.txt"
    once linear-4.json "$bin/moe-run" "$work/linear-4.moe" --kv f32 --perplexity "$work/linear-valid.txt" --json
    uniform="$uniform $(calc %f "100 * ($(jq .nll "$work/linear-4.json") / $(jq .choice.check.reference_nats_per_token "$work/estimated.json") - 1)")"
    # Of the two maps the one that loses least within the bytes of 4 bits; how many experts have which bits.
    map=$(for m in estimated below-4; do
        jq -r '.choice | [.layers[][]] as $v | "\((.expert_bytes + .dense_bytes) / 1048576) \(.loss.nll_percent) \(.check.nll_percent) \([("8", "4", "2") as $b | "\($v | map(select(. == $b)) | length)"] | join("/"))"' \
            "$work/$m.json"; done)
    best=$(echo "$map" | awk -v most="${uniform%% *}" '$1 <= most && (!n++ || $2 < least) { least = $2; line = $0 } END { print line }')
    set -- $uniform ${best:-0 1e9 1e9}
    row "mixed bits beat uniform 4 bits in bytes and loss (table II)" "0.81 GB, 0.89% against 0.85 GB, 2.04%" \
        "$(if [ -n "$best" ]; then calc "%.2f MiB, %+.2f%%, on validation texts %+.2f%%" "$4, $5, $6"; else echo "no map below the bytes of 4 bits"; fi) against $(calc "%.2f MiB, %+.2f%%, %+.2f%%" "$1, $2, $3") (linear, importances estimated)" \
        "$(most "$4 < $1" "$5 < $2" "$6 < $3")" calibrate "" "" \
        "model: within 1%, and within just less than what 4 bits lose, the best maps of 8/4/2 bits are $(echo "$map" | awk '{ printf("%s%.2f MiB, %+.2f%% with %s experts", n++ ? "; " : "", $1, $2, $4) }')"
}
edgemoe_strategies="ondemand,ondemand+predict=path+prefetch=until-router,edgemoe,edgemoe+predict=none+prefetch=none,edgemoe+assume-prediction=87%,ondemand+predict=path+prefetch=until-router+assume-prediction=87%"
# 16 bits on demand, and 4 bits, whose loads are 3.4 times as short; two tokens' demand of 4 bits.
edgemoe_cells() {
    for loads in 1 4; do
        simulate "edgemoe-16-$loads" 16 ondemand 2x $loads
        simulate "edgemoe-4-$loads" 42 "$edgemoe_strategies" 2x "$(calc %f "$loads * $(loads_of 42) / $(loads_of 16)")"
    done
}
loads_of() { # PACK: bytes of its experts at the first precision
    quantize "$1" --experts "$(variants_of "$1")"
    "$bin/moe-plan" --explain "$work/$1.moe" --json | jq '[.. | .all_expert_bytes? // empty][0]'
}
row_E6() {
    edgemoe_cells
    over() { calc %.2f "$(of "edgemoe-4-$1" decode_tokens_per_s "$2" 2x) / $(of "edgemoe-$3-$1" decode_tokens_per_s 0 2x)"; }
    row "speed over quantized, over unquantized on-demand (fig. 11)" "1.2x to 2.1x; 2.6x to 3.3x" \
        "loads at 16 bits of 1 and 4 layers: $(over 1 2 4)x, $(over 4 2 4)x; $(over 1 2 16)x, $(over 4 2 16)x" \
        "$(worst "$(holds "$(over 4 2 4)" 1.19 1)" "$(holds "$(over 4 2 16)" 2.55 1)")" "simulate edgemoe" \
        "$(over 1 4 4)x, $(over 4 4 4)x; $(over 1 4 16)x, $(over 4 4 16)x" "$(worst "$(holds "$(over 4 4 4)" 1.19 1)" "$(holds "$(over 4 4 16)" 2.55 1)")"
}
hits() { # FILE: those of five policies at the four sizes
    awk '{ of[$1] = sprintf("%s%%, %s%%, %s%%, %s%%", $2, $3, $4, $5) }
        END { printf("%s; lru %s; lfu %s; fifo %s; random %s", of["edgemoe"], of["lru"], of["lfu"], of["fifo"], of["random"]) }' "$work/$1.txt"
}
above_others() { # FILE: whether edgemoe's are
    verdict "$(awk '$1 == "edgemoe" { for (i = 2; i <= 5; i++) own[i] = $i }
        $1 ~ /^(lru|lfu|fifo|random)$/ { for (i = 2; i <= 5; i++) if ($i > best[i]) best[i] = $i }
        END { for (i = 2; i <= 5; i++) n += (own[i] > best[i])
            print n / 4 }' "$work/$1.txt")"
}
row_E7() {
    replay
    once replay-cold.txt "$BUILD/tests/tools/replay_trace" --cold --policy edgemoe,lru,lfu,fifo,random --capacity 0.5x,1x,2x,4x "$work/valid.trace"
    row "its eviction above lru, lfu, fifo, random (fig. 14)" "at every size" \
        "hits at 0.5, 1, 2, 4 tokens' demand: $(hits replay)" \
        "$(above_others replay)" replay "" "" \
        "setting: its frequencies count all texts so far; counted anew for each text, in a buffer that begins empty, $(hits replay-cold): $(above_others replay-cold)"
}
row_E8() {
    edgemoe_cells
    for bits in 16 4; do
        TOP_K=1 simulate "edgemoe-$bits-one-4" "$([ $bits = 16 ] && echo 16 || echo 42)" "$edgemoe_strategies" 2x \
            "$([ $bits = 16 ] && echo 4 || calc %f "4 * $(loads_of 42) / $(loads_of 16)")"
    done
    seconds() { calc %.4f "1 / $(of "edgemoe-$1-4" decode_tokens_per_s "$2" 2x)"; }
    parts_hold() { # SECONDS OF EACH PART
        worst "$(holds "$(calc %f "$1 / $2")" 2.01 1)" "$(holds "$(calc %f "$2 / $3")" 1.29 1)" "$(holds "$(calc %f "$3 / $4")" 1.24 1)"
    }
    set -- "$(seconds 16 0)" "$(seconds 4 0)" "$(seconds 4 1)" "$(seconds 4 2)"
    row "quantization, then preloading, then buffer, s/token (fig. 18)" "0.789, 0.392, 0.305, 0.245" \
        "$1, $2, $3, $4 (loads at 16 bits of 4 layers)" \
        "$(parts_hold "$@")" "simulate edgemoe" \
        "$1, $2, $(seconds 4 5), $(seconds 4 4)" "$(parts_hold "$1" "$2" "$(seconds 4 5)" "$(seconds 4 4)")" \
        "setting: $(shape experts_per_token) loads a layer leave the link idle for $(percent "1 - $(of edgemoe-4-4 link_s 0 2x) / $(of edgemoe-4-4 decode_s 0 2x)")% of on-demand's time, which is what preloading can win; with one expert a token in each layer and their accuracy $(seconds 16-one 0), $(seconds 4-one 0), $(seconds 4-one 5), $(seconds 4-one 4): $(parts_hold "$(seconds 16-one 0)" "$(seconds 4-one 0)" "$(seconds 4-one 5)" "$(seconds 4-one 4)")"
}
row_E9() {
    linear_maps
    here=$(for d in $domains; do linear_map "$d" | jq -r --arg own "$d.valid.txt" '
        [.texts[] | select(.check)] | "\(.[] | select(.name == $own).loss.nll_percent) \([.[] | select(.name != $own).loss.nll_percent] | max)"'; done |
        awk '{ if (!n++ || $1 > own) own = $1; if ($2 > other) other = $2 } END { printf "%.1f %.1f", own, other }')
    row "a map holds on another text (table IV)" "about 2%" \
        "maps of one domain within 2%: up to +${here% *}% on its own validation text, up to +${here#* }% on others (linear)" \
        "$(most "${here#* } < 3")" calibrate "" "" "text: on its own domain's other text $(most "${here% *} < 3"); a map of all three texts, within 1%, loses at most $(linear_map 1 | jq -r '[.texts[] | select(.check).loss.nll_percent] | max' | awk '{ printf "%.1f%%", $1 }') on any of their validation texts; tasks of one kind of text: E9s"
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
            "$(most "$here < 1.17 * $all")" quality
    fi
}
