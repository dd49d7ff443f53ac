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
is judged by that script, by one rule, from the comparisons that stand at [the end](#comparisons) for each row. Every figure
that both the paper and the cell state is compared: a range at both its ends, the lowest and the highest here with theirs;
"up to" with the highest here; one figure with the lowest here. A comparison has a share:

- *here* of *theirs* from *none*: of an effect, (here - none) / (theirs - none), none being what there is without it: 1 of a
  speed-up, 0 of a share or a saving, the share of experts that fit of hits, 20 of the tokens on 20% of the paths, 30 of
  those on 30% of the experts, and of a prediction what chance has right on the model here: as many experts drawn as are
  active (F2, D3) or taken (F3), or one (H4, E2). A prompt's (F2's 99.6%) has no chance taken off: its tokens use nearly all
  experts;
- *here* within *theirs*: of a loss, theirs / here, 1 where here is less. The papers' are of accuracy, here they are of the
  nats unless the row says otherwise;
- *here* is *theirs*: of a part of a whole, the smaller over the larger;
- *a* < *b*, *a* > *b*: of an order or a bound, of all these of the row the share that come out so. Bounds are the paper's
  words in the claim (H3, F8, H12: 1%); no loss (F6 at 8 bits) is one that rounds to 0.0%, a small one (D5) is below 2%; a
  loss is less than another (E5) where it is so by more than that one's standard error.

*yes* where the least share is 0.9 or more, *partly* where it is 0.25 or more, *no* below: more than the paper claims is
*yes*; *not here* where this machine cannot measure it or the figure is a machine's, with the reason. *At their accuracy*:
the same where predictions are right as often as the paper's (\`--assume-prediction\`), which tells the engine from the
predictor. *Cause*: of what does not hold, on either model, an experiment on which the row's verdict, after the colon, is better:
*predictor* at their accuracy, *model* on the other model, else with what is said changed and nothing else, which shows what
the figure hangs on and need not be the paper's setting; *no cause found* where none is, with those tried. CoServe's are as
coe.sh prints them. How the figures come about:

- *profile*: measured. \`moe-profile\` at 16 bits on the bundled validation texts (180 documents); path
  statistics from the calibration texts.
- *ladder*: measured. \`tests/bench/ladder.sh\`.
- *calibrate*: measured. \`moe-calibrate PACK --text FILE... --check FILE... --tolerance 1%\`; EdgeMoE's rows:
  \`METHOD=linear tests/bench/calibrate.sh\`.
- *quality*: measured. \`moe-run --perplexity FILE --prompt-share 50% --strategy NAME --expert-memory SIZE\`, ten
  documents of each domain.
- *replay*: simulated. \`build/tests/tools/replay_trace\`, on a trace of the validation texts.
- *simulate* with a name: simulated, the model's routing with experts as large as Qwen1.5-MoE's, layers of 1 ms, on a
  link whose loads at the first precision take the named multiple of a layer's computation; memory as a share of all experts
  at that precision, or in tokens' demand. Precisions: F5, F10, F11 16 bits on demand and 4 in Fate; H5, H9, H10, H14 16
  and 4 with loads of 3, as the paper on the RTX 4090, 8 and 2 with loads of 8.6, as on the Orin; H7, H8 8 and 2, on whole
  texts, of up to 256 tokens as the paper's, in what the machines of H9m hold of Mixtral and Phi; E6, E8 16 and 4. Of three
  rows the experts are the model's own, small ones: F9, at 16, 4 and 2 bits, where a pass of 16 tokens is a layer of 1 ms and
  a prompt of N takes loads of 0.46 N/16 ms, and on a second device H13, at 8 and 2 bits, and D4, at 4 and 2.
- *coe*: simulated. \`tests/bench/coe.sh\`, whose page with the tables behind these rows is [COE.md](COE.md); only
  what scheduling takes (C6) is measured.

The bundled texts were written by the bundled model; figures on texts by other people, the tables behind these
and the machine are in [RESULTS.md](RESULTS.md). A demand is what one token visits; "loads of 3" means that
loading one expert takes three times as long as computing one layer. The papers' own ratios: Fate 0.46 (6 ms of
13 ms, PCIe 3), four times that on PCIe 1; HOBBIT about 3 (RTX 4090: loading two experts is 85.5% of a layer's
time) and 8.6 (Orin, 94.5%); DAOP 32.
END
}

about_comparisons() {
    cat <<END

## Comparisons

Of each row, the verdict and the least share: as it is, at their accuracy, of the experiments, on the second model.

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

# A row whose figures coe.sh computes; its fifth field is "HERE THEIRS NONE;...", effects to compare; from the sixth on each
# experiment and what it is compared by.
coe_row() {
    once coe.tsv env BUILD="$BUILD" sh tests/bench/coe.sh claims
    field() { awk -F'\t' -v id="$id" -v n="$1" '$1 == id { print $n }' "$work/coe.tsv"; }
    effects() { field "$1" | sed 's/\([^ ;]*\) \([^ ;]*\) \([^ ;]*\)/\1 of \2 from \3/g; s/;/; /g'; }
    set --
    n=6
    while [ -n "$(field $n)" ]; do
        set -- "$@" "$(field $n)" "$(effects $((n + 1)))"
        n=$((n + 2))
    done
    row "$(field 2)" "$(field 3)" "$(field 4)" "$(effects 5)" coe "" "" "$@"
}
row_C1() { coe_row; }
row_C2() { coe_row; }
row_C3() { coe_row; }
row_C4() { coe_row; }
row_C5() { coe_row; }
row_C6() { coe_row; }

# ---- Fate ----

shape() { # KEY: of the model at work, as its statistics say it
    jq -r ".$1" "$work/profile.json"
}
chance() { # of an active expert to be among as many drawn, per cent
    calc %.1f "100 * $(shape experts_per_token) / $(shape experts)"
}
# later JQ: a share of the layers from the third on, in the mean, per cent.
later() {
    of_profile "[.layers[2:][] | $1] | add / length"
}
row_F1() {
    profile
    gate=$(of_profile '.all.cosine["gate-1"]') here=$(of_profile '.all.cosine.attention') before=$(of_profile '.all.cosine["attention-1"]')
    row "cosine similarity of a gate's input with: the previous gate's input; this layer's attention input; the previous layer's attention input (table 1)" \
        "88.8%; 93.1%; 83.8%" \
        "$(pc "$gate"); $(pc "$here"); $(pc "$before")$(calc %s "$gate > $here ? \": the previous gate's input is the most similar\" : \"\"")" \
        "$gate of 88.83; $here of 93.05; $before of 83.84" profile
}
row_F2() {
    profile
    prompt=$(of_profile '.all.predictors["gate-1"].prompt')
    decode=$(of_profile '.all.predictors["gate-1"].in_k')
    here=$(of_profile '.all.predictors.attention.in_k') before=$(of_profile '.all.predictors["attention-1"].in_k')
    chance=$(chance)
    prompt_later=$(later '.predictors["gate-1"].prompt') decode_later=$(later '.predictors["gate-1"].in_k')
    here_later=$(later .predictors.attention.in_k) before_later=$(later '.predictors["attention-1"].in_k')
    row "experts predicted by a gate from the previous gate's input: prefill, decode; in decode from the two other positions (table 1)" \
        "99.6%, 78.8%; 84.0%, 76.9%" \
        "$(pc "$prompt" "$decode"); $(pc "$here" "$before")" \
        "$prompt of 99.6; $decode of 78.79 from $chance; $here of 83.99 from $chance; $before of 76.94 from $chance" \
        profile "" "" \
        "model: without the second of $(jq '.layers | length' "$work/profile.json") layers, which changes most (its inputs are $(pc "$(of_profile '.layers[1].cosine["attention-1"]')") alike, the others' $(pc "$(later '.cosine["attention-1"]')")): $(pc "$prompt_later" "$decode_later"); $(pc "$here_later" "$before_later")" \
        "$prompt_later of 99.6; $decode_later of 78.79 from $chance; $here_later of 83.99 from $chance; $before_later of 76.94 from $chance"
}
row_F3() {
    profile
    here=$(of_profile '.all.predictors["gate-1"].in_p75') here_later=$(later '.predictors["gate-1"].in_p75')
    row "... taking all above the 75th percentile" "97.2%" \
        "$(pc "$here"); with $(shape experts_per_token) of $(shape experts) experts that is also the top 2k" "$here of 97.15 from 25" profile "" "" \
        "model: without the second layer, which changes most: $(pc "$here_later")" "$here_later of 97.15 from 25"
}
row_F4() {
    profile
    here=$(jq -r '[.layers[1:][].predictors["gate-1"].in_k * 100]
        | "layer 1: \(.[0]), 2 to 4: \(.[1:4] | min) to \(.[1:4] | max), then \(.[4:] | min) to \(.[4:] | max)"' \
        "$work/profile.json" | sed 's/\([0-9]\.[0-9]\)[0-9]*/\1%/g')
    quality fate 42 --strategy fate --statistics "$work/calib.yaml" --expert-memory "$(demand_bytes 2)"
    found=$(jq -r .alloc "$work/quality-fate.json")
    row "shallow layers are harder to predict (fig. 7)" "L = 3 of 24 layers" "$here; L = ${found#shallow:} of $(shape moe_layers)" \
        "$(jq -r '[.layers[1:][].predictors["gate-1"].in_k * 100] | "\(.[0]) < \(.[1:] | min); \(.[0:3] | add / 3) < \(.[3:] | add / length)"' "$work/profile.json")" profile
}
# 16 and 4 bits under Fate's parts and EAP, loads at 16 bits of 0.46 layers and 1.85.
fate_strategies="ondemand,ondemand+predict=gate-next+prefetch=percentile:75;slack,fate+prefill=popularity+cache-bits=0,fate,eap,eap+cache-bits=0,ondemand+predict=gate-next+prefetch=percentile:75;slack+assume-prediction=97.15%,fate+prefill=popularity+cache-bits=0+assume-prediction=97.15%,fate+assume-prediction=97.15%"
fate_budgets="12.5% 25% 50% 75%"
fate_cells() {
    simulate fate 164 "$fate_strategies" "$(echo "$fate_budgets" | tr ' ' ,)" 0.46
    simulate fate-slow 164 "$fate_strategies" "$(echo "$fate_budgets" | tr ' ' ,)" 1.85
}
# in_turn TABLE MEMORY: how much longer on-demand, the table's first, would take if it computed nothing while it loads.
in_turn() {
    calc %.4f "($(of "$1" compute_s 0 "$2") + $(of "$1" link_s 0 "$2")) / $(of "$1" decode_s 0 "$2")"
}
percent() { calc %.4f "100 * ($1)"; }
row_F5() {
    fate_cells
    hit() { percent "$(of fate hit_rate "$1" "$2")"; }
    fits() { calc %.4f "100 * $(of fate slots 3 "$1") / ($(shape experts) * $(shape moe_layers))"; }
    against() { echo "$(hit "$1" 12.5%) of 99.08 from $(fits 12.5%); $(hit "$1" 25%) of 99.08 from $(fits 25%)"; }
    row "hits with all experts of the first layers cached" "99.1% (4 of 24 layers; the share cached is not said)" \
        "L = $(of fate alloc 3 12.5% | sed 's/shallow://') of $(shape moe_layers) layers: $(pc "$(hit 3 12.5%)") where $(calc %.0f%% "$(fits 12.5%)") of the experts fit at 4 bits, $(pc "$(hit 3 25%)") where $(calc %.0f%% "$(fits 25%)") do" \
        "$(against 3)" "simulate fate" "$(pc "$(hit 8 12.5%)" "$(hit 8 25%)")" "$(against 8)"
}
rung() { # NAME: its loss in per cent
    awk -F' *[|] *' -v name="$1" '$2 == name { gsub(/%/, "", $5); print $5 }' "$work/ladder.txt"
}
# wrong TABLE NAME: how much less often the most likely token is the text's than at 16 bits, per cent of that.
wrong() {
    awk -F' *[|] *' -v name="$2" '{ gsub(/%/, "", $7) } $2 == "16" { base = $7 } $2 == name { printf "%+.2f", 100 * (1 - $7 / base) }' "$work/$1.txt"
}
row_F6() {
    ladder
    eight=$(rung "hqq 8, experts alone") four=$(rung "hqq 4, experts alone") two=$(rung "hqq 2, experts alone")
    against() { echo "$1 < 0.05; $2 within 0.336; $3 of 7.55"; }
    losses() { for bits in 8 4 2; do wrong "$1" "$2 $bits, experts alone" && echo; done; } # TABLE METHOD
    # shellcheck disable=SC2046
    row "what experts at 8, 4, 2 bits cost (table 2)" "0, -0.2, -4.5 of 59.6 MMLU points: 0.0%, 0.3%, 7.6%" \
        "$eight%, $four%, $two% of the nats, the rest of the model at 16 bits" \
        "$(against "$eight" "$four" "$two")" ladder "" "" \
        "setting: judged by how often the likeliest token is the text's, an accuracy as the paper's: $(listed %s%% $(losses ladder hqq))" "$(against $(losses ladder hqq))" \
        "setting: the same accuracy, in groups of 32 weights instead of 64: $(listed %s%% $(losses ladder-32 hqq))" "$(against $(losses ladder-32 hqq))" \
        "setting: one scale a row (linear): $(listed %s%% "$(rung "linear 8, experts alone")" "$(rung "linear 4, experts alone")" "$(rung "linear 2, experts alone")")" \
        "$(against "$(rung "linear 8, experts alone")" "$(rung "linear 4, experts alone")" "$(rung "linear 2, experts alone")")"
}
row_F7() {
    profile
    here=$(of_profile '.layers[6].popularity[2]')
    row "share of a prompt's tokens on the 30% least popular experts (layer 6, fig. 9)" "15%" \
        "$(pc "$here"); $(pc "$(of_profile '.all.popularity[2]')") over all layers" "$here of 15 from 30" profile
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
    unpopular=$(calc %+.2f "$3 - $four") popular=$(calc %+.2f "$4 - $four")
    row "unpopular experts at 2 bits cost little, popular ones much; share p within a loss of 1% (fig. 10)" "p = 25%" \
        "beside all at 4 bits p = $over%; the 20% least popular at 2 bits cost $unpopular%, the 20% most popular $popular%. Beside all at 8 bits, which lose $(calc %.2f%% "$four") less than those at 4, p = $1% ($(calc %+.2f%% "$2") on validation texts)" \
        "$over of 25; $unpopular < 1; $popular > 1" calibrate
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
# 512 tokens at the one rate that the paper gives, DeepSeekMoE's 804 tokens/s: 23.6 ms for each of its 27 layers. A load at a bus's
# nominal rate takes 17,301,504 bytes of it, and its layers have 64 experts, here 32. The slow bus is four times as slow.
nominal_prompts() {
    load=$(calc %.6f "17301504 / 16e9 / (512 / 804 / 27) * 64 / $(shape experts) * 512 / 16")
    for case in fast:1 slow:4 slow-gpu:0.25; do
        TRACE=$work/prompts-512.trace simulate "fate-nominal-${case%:*}" 1642 ondemand,eap,fate,fate+assume-prediction=99.6%,eap+cache-bits=0 \
            12.5% "$(calc %f "$load * ${case#*:}")" --batch 512
    done
}
row_F9() {
    for n in 128 256 512; do prompts $n; done
    nominal_prompts
    nominal() { calc %.4f "$(of "fate-nominal-$1" prefill_tokens_per_s 2 12.5%) / $(of "fate-nominal-$1" prefill_tokens_per_s "$2" 12.5%)"; } # CASE N
    at_nominal() { echo "over on-demand $(multiples "$(nominal fast 0)" "$(nominal "$1" 0)"), over the EAP at 16 bits $(multiples "$(nominal fast 4)" "$(nominal "$1" 4)")"; }
    nominal_against() { echo "$(nominal fast 0) of 4.5 from 1; $(nominal fast 4) of 1.9 from 1; $(nominal "$1" 0) of 1.8 from 1; $(nominal "$1" 4) of 1.5 from 1; $(nominal "$1" 0) < $(nominal fast 0)"; }
    over() { # LOADS N M: of each prompt
        for n in 128 256 512; do
            calc '%.4f\n' "$(of "fate-prompts-$n-$1" prefill_tokens_per_s "$2" 12.5%) / $(of "fate-prompts-$n-$1" prefill_tokens_per_s "$3" 12.5%)"
        done
    }
    highest() { over "$@" | sort -g | tail -1; }
    said() { # N EAP
        # shellcheck disable=SC2046
        echo "over on-demand $(multiples $(over 1 "$1" 0)), over EAP $(multiples $(over 1 "$1" "$2")); loads four times as long $(multiples $(over 4 "$1" 0)), $(multiples $(over 4 "$1" "$2"))"
    }
    against() { echo "$(highest 1 "$1" 0) of 4.5 from 1; $(highest 1 "$1" "$2") of 1.9 from 1; $(highest 4 "$1" 0) of 1.8 from 1; $(highest 4 "$1" "$2") of 1.5 from 1"; }
    # shellcheck disable=SC2046
    row "speed of prompts of 128, 256, 512 tokens: over on-demand, over EAP; the same on PCIe 1 (fig. 11)" "up to 4.5x, 1.9x; 1.8x, 1.5x" \
        "half of the experts fit at 4 bits: $(said 2 1). Loads outlast layers at either rate, so that both give the same ratios" \
        "$(against 2 1)" "simulate fate-prompts" "$(said 3 1)" "$(against 3 1)" \
        "setting: an EAP that loads 16 bits instead of one with Fate's precision, cache and order: over it $(multiples $(over 1 2 4)); $(multiples $(over 4 2 4))" "$(against 2 4)" \
        "setting: not bound by the link: that EAP, 512 tokens computed as fast as theirs (804 tokens/s), loads at the buses' nominal 16 and 4 GB/s, the GPU on the slow bus 16 times as slow (what it takes; the paper does not time it): $(at_nominal slow-gpu)" "$(nominal_against slow-gpu)" \
        "setting: the same with one GPU on both buses: $(at_nominal slow)" "$(nominal_against slow)"
}
row_F10() {
    fate_cells
    # shellcheck disable=SC2086
    over() { spread "$1" decode_tokens_per_s "$2" "$3" $fate_budgets; }
    highest() { over "$@" | cut -d' ' -f2; }
    said() { # N EAP
        echo "over on-demand $(span "$(over fate "$1" 0)"), over EAP $(span "$(over fate "$1" "$2")"); loads four times as long $(span "$(over fate-slow "$1" 0)"), $(span "$(over fate-slow "$1" "$2")")"
    }
    against() { echo "$(highest fate "$1" 0) of 4.1 from 1; $(highest fate "$1" "$2") of 2.2 from 1; $(highest fate-slow "$1" 0) of 2.3 from 1; $(highest fate-slow "$1" "$2") of 1.6 from 1"; }
    row "speed of decoding over budgets: over on-demand, over EAP; the same on a slow bus (fig. 12, 13)" "up to 4.1x, 2.2x; 2.3x, 1.6x" \
        "in $(echo "$fate_budgets" | sed 's/ /, /g') of the bytes at 16 bits: $(said 3 4)" \
        "$(against 3 4)" "simulate fate" "$(said 8 4)" "$(against 8 4)" \
        "setting: an EAP that loads 16 bits, as on-demand does, instead of 4, whose loads are hidden: over it $(span "$(over fate 3 5)"); $(span "$(over fate-slow 3 5)")" "$(against 3 5)"
}
row_F11() {
    fate_cells
    TOP_K=2 simulate fate-top2 164 "$fate_strategies" 50% 0.46
    parts() { # TABLE FACTOR N-OF-EACH-PART...: each over on-demand, at half of the experts, that many times
        name=$1 factor=$2
        shift 2
        for n; do calc '%.4f ' "$factor * $(of "$name" decode_tokens_per_s "$n" 50%) / $(of "$name" decode_tokens_per_s 0 50%)"; done
    }
    naive=$(in_turn fate 50%)
    against() { echo "$1 of 1.3 from 1; $2 of 2 from 1; $3 of 3.7 from 1"; }
    # shellcheck disable=SC2046
    row "prefetching, then caching, then quantization, over on-demand (fig. 14)" "1.3x, 2x, 3.7x" \
        "$(multiples $(parts fate 1 1 2 3)) in half of the bytes of 16 bits" "$(against $(parts fate 1 1 2 3))" "simulate fate" \
        "$(multiples $(parts fate 1 6 7 8))" "$(against $(parts fate 1 6 7 8))" \
        "setting: an on-demand that computes nothing while it loads, as the naive one of the paper's figure 1, and takes $(calc %.2f "$naive") times as long: $(multiples $(parts fate "$naive" 1 2 3))" "$(against $(parts fate "$naive" 1 2 3))" \
        "setting: two experts a token instead of four, whose loads of 0.46 layers a layer can hide: $(multiples $(parts fate-top2 1 1 2 3))" "$(against $(parts fate-top2 1 1 2 3))"
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
        "a figure of a machine, not of a method: $(calc %.2f "$2 / $1") here, $(calc %.2f "$2") ms from the disk, $(calc %.2f "$1") ms a layer, of the 1.2 GB pack at 4 bits. Fate's simulations set the paper's ratio" \
        "not here" "\`moe-profile --device PACK\`"
}

# ---- HOBBIT ----

row_H1() {
    profile
    here=$(jq -r '.all.weight_norm_correlation' "$work/profile.json")
    # shellcheck disable=SC2046
    once norms.txt "$BUILD/tests/bench/bench_norms" "$work/16.moe" $(for d in $domains; do echo "$texts/$d.valid.txt"; done)
    norm() { awk -v name="$1" '$1 == name { printf "%.2f", $2 }' "$work/norms.txt"; }
    row "correlation of the routing weight with the norm of the weighted output (fig. 5a)" "0.99" \
        "$(calc %.2f "$here") over all, $(jq -r '[.layers[].weight_norm_correlation] | "\(min) to \(max)"' "$work/profile.json" | sed 's/\(0\.[0-9][0-9]\)[0-9]*/\1/g') by layer; $(norm expert) within one expert" \
        "$here of 0.99" profile "" "" \
        "setting: weights and norms as shares of their token's sums, the paper's data being normalized by what it does not say: $(norm token)" "$(norm token) of 0.99" \
        "model: outputs as long as their expert's are in the mean: $(norm means)" "$(norm means) of 0.99"
}
row_H2() {
    profile
    set -- $(sed -n "s/.*ranks from 2 on: \([0-9.]*\)% up to 0.6, \([0-9.]*\)% up to 0.9/\1 \2/p" "$work/profile.txt")
    k=$(shape experts_per_token)
    high=$(calc %.1f "(100 + ($k - 1) * $1) / $k") low=$(calc %.1f "($2 - $1) * ($k - 1) / $k")
    out=$(calc %.1f "100 - $high - $low")
    row "how T1 = 0.6, T2 = 0.9 split the activations (fig. 5b)" "67% high, 30% low, 3% left out" \
        "$high%, $low%, $out%, of $k experts a token; the first has no score. Split as theirs: H9" \
        "$high is 67; $low is 30; $out is 3" profile
}
row_H3() {
    hqq_map
    base=$(four_bits)
    cut_of() { # KEY SHARE: "LOSS SHARE" of the nearest cut
        jq -r "[.hobbit.cuts[] | select(.$1)] | min_by(.share - $2 | fabs) | \"\(.$1.nll_percent) \(100 * .share)\"" \
            "$work/hqq.json"
    }
    set -- $(cut_of low 0.2) $(cut_of skipped 0.1)
    nats=$(jq '.rungs[0].loss.reference_nats_per_token / 100' "$work/hqq.json") # a per cent of them
    perplexity() { calc %+.2f "100 * (exp(($1 - $base) * $nats) - 1)"; }        # that much more than 4 bits, of the perplexity
    low=$(perplexity "$1") out=$(perplexity "$3")
    # Where the curve of what is left out, between its points, costs 1% more than 4 bits.
    at_one() {
        jq -r --argjson base "$base" --argjson nats "$nats" '([[0, 0]] + [.hobbit.cuts[] | [.share, 100 * ((.skipped.nll_percent - $base) * $nats | exp - 1)]]) as $c
            | [range(1; $c | length) | select($c[.][1] > 1)][0] as $i | $c[$i - 1] as $a | $c[$i] as $b
            | ($a[0] + ($b[0] - $a[0]) * (1 - $a[1]) / ($b[1] - $a[1])) * 100 | round' "$work/hqq.json"
    }
    row "20% at low precision cost below 1%, 10% left out above (fig. 3b)" "as said" \
        "of the perplexity, as theirs: $(calc %.0f "$2")% low $low%, $(calc %.0f "$4")% left out $out%; 1% is lost where $(at_one)% are left out" \
        "$low < 1; $out > 1" calibrate
}
row_H4() {
    profile
    chance=$(calc %.1f "100 / $(shape experts)")
    ahead() { of_profile "[.layers[$(($1 + ${2:-0})):][].predictors[\"gate-$1\"].top1 | values] | add / length"; } # N [LAYERS LEFT OUT MORE]
    against() { echo "$1 of 96 from $chance; $2 of 90 from $chance; $3 of 90 from $chance"; }
    gate() { of_profile ".all.predictors[\"gate-$1\"].top1"; }
    # Of the expert predicted best: 5 it is chosen, 7 the same without the second layer.
    once best.txt "$BUILD/tests/tools/replay_trace" --best "$work/valid.trace"
    first() { awk -v n="$1" -v at="$2" '$1 == n { print $at }' "$work/best.txt"; } # LAYERS FIELD
    firsts() { echo "$(pc "$(first 1 "$1")"); $(pc "$(first 2 "$1")" "$(first 3 "$1")")"; }
    firsts_against() { for n in 1 2 3; do echo "$(first $n "$1") of $([ $n = 1 ] && echo 96 || echo 90) from $(chance);"; done; }
    # shellcheck disable=SC2046
    row "best expert of the next layer predicted; two, three layers ahead (fig. 7)" "96%; about 90%" \
        "$(pc "$(gate 1)"); $(pc "$(gate 2)" "$(gate 3)") (chance $(calc %.0f%% "$chance")); among twice as many as are active are $(pc "$(of_profile '.all.predictors["gate-1"].in_2k')") of the active ones" \
        "$(against "$(gate 1)" "$(gate 2)" "$(gate 3)")" profile "" "" \
        "model: without the second layer, which changes most: $(pc "$(ahead 1 1)"); $(pc "$(ahead 2 1)" "$(ahead 3 1)")" "$(against "$(ahead 1 1)" "$(ahead 2 1)" "$(ahead 3 1)")" \
        "setting: right where the expert predicted best is chosen at all, in which place is not asked, chance having $(chance)%: $(firsts 5)" "$(echo $(firsts_against 5))" \
        "setting: the same without the second layer: $(firsts 7)" "$(echo $(firsts_against 7))"
}
# HOBBIT in this order, the last two by Mixtral's thresholds and with T1 0.5. Loads of 3 layers at 16 and 4 bits, as on the RTX 4090, of 8.6 at 8 and
# 2, as on the Orin; two and four tokens' demand.
mixtrals=hobbit+on-miss=load-low:0.6+skip-below=10%
hobbit_strategies="ondemand,hobbit,hobbit+on-miss=load+skip-below=0,hobbit+predict=none+prefetch=none+protect=off,hobbit+on-miss=load+skip-below=0+predict=none+prefetch=none+protect=off,hobbit+predict=gate-ahead:1,hobbit+predict=gate-ahead:2,moe-offloading,moe-infinity,adapmoe,hobbit+assume-prediction=96%,hobbit+on-miss=load+skip-below=0+assume-prediction=96%,$mixtrals,hobbit+on-miss=load-low:0.5"
hobbit_cells() {
    simulate hobbit 164 "$hobbit_strategies" 2x,4x 3
    simulate hobbit-far 82 "$hobbit_strategies" 2x,4x 8.6
}
hobbit_times() { # TABLE N M [KEY]: at two and four tokens' demand
    spread "$1" "${4:-decode_tokens_per_s}" "$2" "$3" 2x 4x
}
row_H5() {
    hobbit_cells
    at_depths() { for n in 3 5 6 1; do of "$1" decode_tokens_per_s $n 4x; done; }
    said() { at_depths "$1" | awk '{ printf("%s%.2f", n++ ? ", " : "", $1) }'; }
    against() { at_depths "$1" | awk 'NR == 1 { none = $1; next } { printf("%s > %s; ", $1, none) }'; }
    row "predicting one to three layers ahead is better than not (fig. 17b; what a prediction costs: RESULTS.md)" "as said" \
        "depth 0 to 3, four tokens' demand: $(said hobbit) tokens/s (loads of 3), $(said hobbit-far) (8.6)" \
        "$(against hobbit)$(against hobbit-far)" "simulate hobbit" \
        "depth 3: $(calc %.2f "$(of hobbit decode_tokens_per_s 10 4x)"), $(calc %.2f "$(of hobbit-far decode_tokens_per_s 10 4x)")" \
        "$(of hobbit decode_tokens_per_s 10 4x) > $(of hobbit decode_tokens_per_s 3 4x); $(of hobbit-far decode_tokens_per_s 10 4x) > $(of hobbit-far decode_tokens_per_s 3 4x)"
}
row_H6() {
    profile
    best=$(of_profile .all.reuse.best) any=$(of_profile .all.reuse.any)
    # By chance: k of n, and one minus the share of choices without any of k.
    # shellcheck disable=SC2046
    set -- x $(awk -v k="$(shape experts_per_token)" -v n="$(shape experts)" 'BEGIN {
        for (none = 1; i < k; i++) none *= (n - k - i) / (n - i)
        printf("%.1f %.1f", 100 * k / n, 100 * (1 - none)) }')
    row "the last token's best expert is used again more often than by chance, and so is one of its experts (fig. 10a)" "above chance: 25%; 46%" \
        "$(pc "$best") ($2%); $(pc "$any") ($3%)" "$best > $2; $any > $3" profile
}
# HOBBIT without prediction under each policy, in this order, the first with the best of sixty weights on the
# calibration texts, by the product of the bytes at all sizes; the paper finds its weights so, too. The last ones: the best at
# one size. Sizes: what the papers' machines hold of Mixtral and Phi (H9m), on whole texts, of up to 256 tokens as the paper's.
policies="tuned lru lfu lfu+keep-records=on random best1 best2 best3 best4"
weight_sizes=22%,24%,50%,56%
# tuned_weights [SIZE]: for all the sizes, or for one of them, from 1.
tuned_weights() {
    quantize 82 --experts 8,2
    # shellcheck disable=SC2046
    [ -e "$work/weights.trace" ] || "$bin/moe-profile" -q "$work/82.moe" $(of_texts --text calib) --max-tokens 96 \
        --max-windows 1 --trace "$work/weights.trace" -o "$work/weights.yaml"
    grid=$(for lru in 0.2 0.3 0.4 0.5 0.6; do for lhu in 0 0.1 0.2; do for layers in 0.02 0.05 0.1 0.15; do
        calc "%s;%.2f;%s;%s\n" "\"$lru\", 1 - $lru - $lhu - $layers, \"$lhu\", \"$layers\""; done; done; done)
    once weights.json "$bin/moe-plan" -q --simulate "$work/weights.trace" "$work/82.moe" --stats "$work/weights.yaml" --json --memory $weight_sizes --layer-seconds 1e-3 \
        --link-rate 24M --strategy "$(for w in $grid; do printf '%s+cache=hobbit+cache-weights=%s,' $hobbit_alone "$w"; done | sed 's/,$//')"
    jq -r --arg grid "$grid" --arg sizes $weight_sizes --argjson size "${1:-null}" '. as $all | ($sizes | split(",")) as $sizes | $grid | split("\n")
        | to_entries | min_by(.key as $nth | [$sizes[] as $m | [$all[] | select(.memory == $m)][$nth].bytes_per_token | log]
            | if $size then .[$size - 1] else add end).value' "$work/weights.json"
}
hobbit_alone=hobbit+predict=none+prefetch=none+protect=off
hobbit_policies() {
    weights=$(tuned_weights)
    profile
    TRACE=$work/valid.trace simulate hobbit-policies 82 "$(for cache in $policies; do
        case $cache in
        tuned) cache="hobbit+cache-weights=$weights" ;;
        best*) cache="hobbit+cache-weights=$(tuned_weights "${cache#best}")" ;;
        esac
        printf '%s+cache=%s,' "$hobbit_alone" "$cache"
    done | sed 's/,$//')" $weight_sizes 1
}
of_policy() { # KEY CACHE MEMORY
    jq -r --arg all "$policies" --arg cache "$2" "[.[] | select(.memory == \"$3\")]
        [\$all | split(\" \") | index(\$cache)] | .$1" "$work/hobbit-policies.json"
}
row_H7() {
    hobbit_policies
    sizes=$(echo $weight_sizes | tr , ' ')
    changes() { # CACHE-A CACHE-B: how much more the first, or the best of each size, reads than the second, per cent
        nth=0
        for m in $sizes; do
            nth=$((nth + 1)) cache=$1
            [ "$cache" != best ] || cache=best$nth
            calc '%.4f ' "100 * ($(of_policy bytes_per_token "$cache" "$m") / $(of_policy bytes_per_token "$2" "$m") - 1)"
        done
    }
    # shellcheck disable=SC2046
    said() { listed %+.1f%% $("$@"); }
    against() { # LEAST MOST CHANGES...
        least=$1 most=$2
        shift 2
        "$@" | tr ' ' '\n' | sort -g | awk -v least="$least" -v most="$most" 'NF { of[++n] = $1 }
            END { printf("%s of %s; %s of %s; ", of[n], least, of[1], most) }'
    }
    beside() { echo "$(against -4.69 -8.68 "$@" lru)$(against -2.13 -4.19 "$@" lfu)"; } # CHANGES...
    row "bytes missed under its policy, against lru, lfu of the sequence; ours also against random (fig. 18a)" "-4.7 to -8.7%, -2.1 to -4.2%" \
        "$(echo "$weights" | awk -F';' '{ printf "weights found on other texts, lru %s, lfu %s, lhu %s, layers %s", $1, $2, $3, $4 }')$(case $weights in *\;*\;0\;*) echo " (none for how often an expert is needed at high precision)" ;; esac); in $(echo "$sizes" | sed 's/ /, /g') of the experts' bytes: $(said changes tuned lru); $(said changes tuned lfu); random $(said changes tuned random)" \
        "$(beside changes tuned)" "simulate hobbit-policies" "" "" \
        "setting: weights for each size: $(said changes best lru); $(said changes best lfu)" "$(beside changes best)"
}
row_H8() {
    hobbit_policies
    rates() { for m in $(echo $weight_sizes | tr , ' '); do echo "$(of_policy hit_rate lfu $m) $(of_policy hit_rate lfu+keep-records=on $m)"; done; }
    row "hits of lfu with records of the sequence instead of all (fig. 18b)" "+4.5 points" \
        "in $(echo $weight_sizes | sed 's/,/, /g') of the experts' bytes: $(rates | awk '{ printf("%s%.1f%% against %.1f%%", (NR > 1 ? ", " : ""), 100 * $1, 100 * $2) }')" \
        "$(rates | awk '{ printf("%.4f of 4.5; ", 100 * ($1 - $2)) }')" "simulate hobbit-policies"
}
row_H9() {
    hobbit_cells
    t1=$(of hobbit on_miss 1 2x) skips=$(of hobbit skip_below 1 2x)
    against() { # N M
        printf '%s\n' $(hobbit_times hobbit "$1" "$2") $(hobbit_times hobbit-far "$1" "$2") | sort -g |
            awk '{ of[NR] = $1 } END { printf "%s of 1.19 from 1; %s of 1.57 from 1", of[1], of[NR] }'
    }
    said() { echo "$(span "$(hobbit_times hobbit "$1" "$2")") (loads of 3), $(span "$(hobbit_times hobbit-far "$1" "$2")") (8.6)"; }
    row "speed-up by dynamic loading (fig. 16)" "1.19x (where the CPU helps) to 1.57x (the Orin)" \
        "split as theirs, T1 ${t1#*:}, T2 $(calc %.2f "1 - ${skips%\%} / 100"): $(said 1 2)" \
        "$(against 1 2)" "simulate hobbit" "$(said 10 11)" "$(against 10 11)" \
        "setting: Mixtral's T1 and T2, which leave out $(pc "$(percent "$(of hobbit skipped 12 2x) / $(of hobbit expert_activations 12 2x)")") here: $(said 12 2)" "$(against 12 2)" \
        "setting: T1 0.5, by which more is low, with as little left out: $(said 13 2)" "$(against 13 2)"
}
row_H10() {
    hobbit_cells
    said() { # MIXED NONE ALONE NONE
        echo "$(span "$(hobbit_times hobbit "$1" "$2" prefill_tokens_per_s)"); $(span "$(hobbit_times hobbit "$3" "$4")"), $(span "$(hobbit_times hobbit "$1" "$2")")"
    }
    against() {
        prompt=$(hobbit_times hobbit "$1" "$2" prefill_tokens_per_s) alone=$(hobbit_times hobbit "$3" "$4") mixed=$(hobbit_times hobbit "$1" "$2")
        echo "${prompt% *} of 1.11 from 1; ${alone% *} of 1.01 from 1; ${mixed% *} of 1.05 from 1"
    }
    row "prefetch: speed of prompts; of decoding at one precision, at two (fig. 17b)" "1.11x (-10% time); 1.01x, 1.05x" \
        "split as theirs, loads of 3, two and four tokens' demand: $(said 1 3 2 4); loads of 8.6, depth 1, decoding at two: $(span "$(hobbit_times hobbit-far 5 3)")" \
        "$(against 1 3 2 4)" "simulate hobbit" "$(said 10 3 11 4); $(span "$(hobbit_times hobbit-far 10 3)")" "$(against 10 3 11 4)"
}
row_H11() {
    hobbit_cells
    row "share of a layer's time that loading takes (fig. 3a)" "85.5%, 94.5%" \
        "a figure of a machine, which loads of 3 and 8.6 stand for: on demand $(pc "$(percent "$(of hobbit stall_s 0 2x) / $(of hobbit decode_s 0 2x)")" "$(percent "$(of hobbit-far stall_s 0 2x) / $(of hobbit-far decode_s 0 2x)")") with $(shape experts_per_token) experts a layer instead of two" \
        "not here" "simulate hobbit"
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
    profile
    for d in 1 2 4; do quality "hobbit-$d" 42 --strategy hobbit --statistics "$work/calib.yaml" --expert-memory "$(demand_bytes $d)"; done
    quality hobbit82-2 82 --strategy hobbit --statistics "$work/calib.yaml" --expert-memory "$(demand_bytes 2 82)"
    set -- "$(loss_of hobbit-1 resident)" "$(loss_of hobbit-2 resident)" "$(loss_of hobbit-4 resident)" "$(loss_of hobbit82-2 resident82)"
    row "loss under mixed precision (table 3)" "below 1%" \
        "$1, $2, $3 of the nats at 1, 2, 4 tokens' demand (4 and 2 bits); $4 at 2 (8 and 2 bits)" \
        "$1 < 1; $2 < 1; $3 < 1; $4 < 1" quality
}
# HOBBIT with the host computing what is missing, in this order, beside a host that computes all of it, on a device 6.47
# times the host, and on one twice as much faster.
cooperative() { # NAME SPEED
    simulate "$1" 82 "host,hobbit+on-miss=compute-host;load-low,hobbit+on-miss=compute-host;load-low+assume-prediction=96%" 2x,4x 3 \
        --device "test:$2,$(calc %d "$(loads_of 82) / 384 / 3e-3")"
}
row_H13() {
    cooperative cooperative 6.47
    cooperative cooperative-slow-host 12.94
    against() { spread "$1" decode_tokens_per_s "$2" 0 2x 4x | sed 's/ / of 1.31 from 1; /; s/$/ of 1.42 from 1/'; } # TABLE N
    said() { span "$(spread "$1" decode_tokens_per_s "$2" 0 2x 4x)"; }
    row "decoding over llama.cpp where the CPU computes too (fig. 15)" "1.31x to 1.42x" \
        "on a device 6.47 times its host, loads of 3, two and four tokens' demand, over computing all missing experts on the host, which is the strategy of this engine nearest to llama.cpp's: $(said cooperative 1)" \
        "$(against cooperative 1)" "simulate cooperative" "$(said cooperative 2)" "$(against cooperative 2)" \
        "setting: a host twice as slow: $(said cooperative-slow-host 1)" "$(against cooperative-slow-host 1)"
}
row_H14() {
    hobbit_cells
    on hobbit-baselines rtx4090 mixtral-8x7b 16,4 22G hobbit,moe-offloading,moe-infinity --dense 16
    said() { echo "$(span "$(hobbit_times hobbit "$1" 7)"), $(span "$(hobbit_times hobbit "$1" 8)") (loads of 3); $(span "$(hobbit_times hobbit-far "$1" 7)"), $(span "$(hobbit_times hobbit-far "$1" 8)") (8.6)"; }
    against() {
        offloading=$(printf '%s\n' $(hobbit_times hobbit "$1" 7) $(hobbit_times hobbit-far "$1" 7) | sort -g | head -1)
        printf '%s\n' $(hobbit_times hobbit "$1" 8) $(hobbit_times hobbit-far "$1" 8) | sort -g |
            awk -v offloading="$offloading" '{ of[NR] = $1 } END { printf "%s of 3.2 from 1; %s of 2.3 from 1; %s of 3.9 from 1", offloading, of[1], of[NR] }'
    }
    a=$(faster hobbit-baselines 0 1 22G) b=$(faster hobbit-baselines 0 2 22G)
    row "speed of decoding over MoE-Offloading, MoE-Infinity (fig. 14)" "3.2x, 2.3x to 3.9x" \
        "their strategies in this engine, split as the paper's: $(said 1); over AdapMoE's gating $(span "$(hobbit_times hobbit 1 9)")" \
        "$(against 1)" "simulate hobbit" "$(said 10)" "$(against 10)" \
        "setting: Mixtral's T1 and T2: $(said 12)" "$(against 12)" \
        "setting: Mixtral at 16 and 4 bits on the RTX 4090: $(multiples "$a" "$b")" "$a of 3.2 from 1; $b of 2.3 from 1; $b of 3.9 from 1"
}

# ---- DAOP ----

row_D1() {
    machine
    set -- $(times_here)
    row "moving one expert takes as long as 32 blocks on the GPU (table I)" "39.87 ms against 1.24; on the CPU 8.02" \
        "no GPU here. This processor and its disk: $(calc %.2f "$2") ms against $(calc %.2f "$1"); D4 sets loads of 32 and a host 6.47 times slower than the device" \
        "not here" "\`moe-profile --device PACK\`"
}
row_D2() {
    profile
    here=$(of_profile .similarity.prompt_to_rest)
    row "similarity of a prompt's experts and the answer's (table II, equation 1)" "90.7%" "$(pc "$here")" "$here of 90.72" profile
}
row_D3() {
    profile
    here=$(of_profile '.all.predictors["residual-1"].in_k') here_later=$(later '.predictors["residual-1"].in_k')
    row "next layer predicted, steady after the first layers (fig. 5)" "84.1%" \
        "$(pc "$here") (residual stream); by layer $(jq -r '[.layers[1:][].predictors["residual-1"].in_k * 100 | round | tostring] | join(", ")' "$work/profile.json")" \
        "$here of 84.11 from $(chance)" profile "" "" "model: without the second layer, which changes most: $(pc "$here_later")" "$here_later of 84.11 from $(chance)"
}
# 46.9% of the experts on a device 6.47 times its host, whose loads take 32 of its layers.
daop_cells() {
    simulate daop 42 "lru+cache=pinned+alloc=frequency+init=frequency,host,daop,daop+degrade-most=1,daop+degrade=off,daop+assume-prediction=84.11%" \
        46.9% 32 --device "test:6.47,$(calc %d "$(loads_of 42) / 384 / 32e-3")"
}
row_D4() {
    daop_cells
    daop_on_a6000
    over() { calc %.4f "$(of daop decode_tokens_per_s "$1" 46.9%) / $(of daop decode_tokens_per_s "$2" 46.9%)"; }
    against() { echo "$(over "$1" 1) of 1.354 from 1; $(over "$1" 1) of 1.404 from 1; $(over "$1" 0) of 8.2 from 1"; }
    row "speed over computing missing experts in place; over on-demand with the same experts pinned (46.9% of the experts on the device; fig. 9, 10)" \
        "1.35x to 1.40x; up to 8.2x" \
        "loads of 32, a device 6.47 times its host: $(multiples "$(over 2 1)"); $(multiples "$(over 2 0)"); with at most one expert replaced $(multiples "$(over 3 1)"), without degradation $(multiples "$(over 4 1)"). The host computes what is missing for $(pc "$(percent "$(of daop host_s 1 46.9%) / $(of daop decode_s 1 46.9%)")") of the time. On their machine and models: D4m" \
        "$(against 2)" "simulate daop" "$(multiples "$(over 5 1)"); $(multiples "$(over 5 0)")" "$(against 5)" \
        "model: D4m's with 40 ms an expert, as table I: $(daop_said daop-on-a6000-slow 2)" "$(daop_against daop-on-a6000-slow 2)"
}
# Texts whose experts shift between prompt and answer: WORK/shifted.txt, first halves of the documents of each domain, which
# the second halves of the next domain's follow.
shifted_text() {
    [ -e "$work/shifted.txt" ] || for pair in "stories code" "code math" "math stories"; do
        # shellcheck disable=SC2086
        set -- $pair
        awk '!/^<\|endoftext\|>$/ { text = text $0 "\n"; next }
            NR == FNR { of[++n] = text }
            NR != FNR { m++; printf("%s%s%s\n", substr(of[m], 1, int(length(of[m]) / 2)), substr(text, int(length(text) / 2) + 1), $0) }
            { text = "" }
            m == 10 { exit }' "$texts/$1.valid.txt" "$texts/$2.valid.txt"
    done >"$work/shifted.txt"
}
kept_experts() { # TEXT: by how much an answer's experts are its prompt's (equation 1), per cent
    [ -e "$work/$1.yaml" ] || "$bin/moe-profile" -q "$work/16.moe" --text "$work/$1.txt" --prompt-share 50% -o "$work/$1.yaml"
    once "$1.json" "$bin/moe-profile" --show "$work/$1.yaml" --json
    jq '100 * .similarity.prompt_to_rest' "$work/$1.json"
}
row_D5() {
    profile
    shifted_text
    quality resident 42 --strategy resident
    QUALITY_TEXT=shifted.txt quality shifted-resident 42 --strategy resident
    for share in 25 50; do
        set -- --device test:1,10G --statistics "$work/calib.yaml" --expert-memory "$(calc %d "$(loads_of 42) * $share / 100")"
        for s in daop daop+degrade-most=1 daop+degrade=off; do
            quality "$s-$share" 42 --strategy $s "$@"
        done
        for s in daop daop+degrade=off; do
            QUALITY_TEXT=shifted.txt quality "shifted-$s-$share" 42 --strategy $s "$@"
        done
    done
    losses() { echo "$(loss_of "$1-25" resident), $(loss_of "$1-50" resident)"; }
    more() { calc %+.4f "$(quality_of "$2$1-$3") - $(quality_of "$2resident")"; } # STRATEGY [shifted-] SHARE: nats per token
    against() {
        losses "$1" | sed 's/, / < 2; /; s/$/ < 2; /' | tr -d '\n'
        echo "$(more "$1" shifted- 25) > $(more "$1" '' 25); $(more "$1" shifted- 50) > $(more "$1" '' 50)"
    }
    row "small loss (here: below 2%), except where experts shift between prompt and answer (table VI)" "58.9 to 33.5 on GSM8K at 25%, where they shift" \
        "$(losses daop) of the nats with 25%, 50% of the experts on the device, which are $(more daop '' 25), $(more daop '' 50) nats per token; $(more daop shifted- 25), $(more daop shifted- 50) where another domain's second half follows the first, so that $(pc "$(kept_experts shifted)") of the experts stay instead of $(pc "$(kept_experts quality)"); with at most one expert replaced $(losses daop+degrade-most=1)" \
        "$(against daop)" quality "" "" \
        "engine: nothing replaced, only computed from the layer before: $(losses daop+degrade=off)" "$(against daop+degrade=off)"
}
row_D6() {
    row "tokens for a joule, over Fiddler (table IV)" "1.5x" \
        "needs a GPU whose energy is counted beside the processor's" "not here" "\`moe-run --stats\`"
}

# ---- EdgeMoE ----

# paths_through LAYERS STATISTICS [POSSIBLE]: share of tokens on the 20% most frequent paths of the best experts through two or
# three layers in a row, in the mean over layers: of the paths that tokens took, or of so many.
paths_through() {
    awk -v through="$1" '/^[a-z_]+:/ { paths = /^paths:/; next }
        paths { gsub(/[][,-]/, " "); if ($2 != 65535) n[$1 " " (through > 2 ? $2 : "") " " $3 " " $4] += $5 }
        END { for (path in n) print path, n[path] }' "$2" | sort -k1,1n -k"$(($1 + 2))","$(($1 + 2))nr" |
        awk -v possible="${3:-0}" 'function take() { for (i = 1; i <= k; i++) { all += of[i]; if (i <= (possible ? possible : k) / 5) top += of[i] }
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
best_path() { # STATISTICS: the highest of them, per cent
    one_path "$1" | sed 's/up to \([0-9.]*\)%.*/\1/'
}
row_E1() {
    profile
    here=$(of_profile .paths.top_fifth) possible=$(calc %d "$(shape experts) ^ 3")
    row "share of tokens on the 20% most frequent paths (fig. 4)" "99%" \
        "$(pc "$here"): $(jq -r .paths.whole "$work/profile.json") different paths of $(jq -r .tokens "$work/profile.json") tokens, no power law" \
        "$here of 99 from 20" profile "" "" \
        "text: paths through three layers in a row, which so few tokens meet oftener than whole ones: $(paths_through 3 "$work/calib.yaml") (calibration texts)" "$(paths_through 3 "$work/calib.yaml") of 99 from 20" \
        "setting: on a fifth of all paths through three layers that there could be, instead of those taken: $(paths_through 3 "$work/calib.yaml" "$possible")" "$(paths_through 3 "$work/calib.yaml" "$possible") of 99 from 20"
}
row_E2() {
    profile
    here=$(of_profile .paths.rank1_right) chance=$(calc %.1f "100 / $(shape experts)")
    row "best expert predicted from those of two layers (fig. 8)" "87.1% for one path" \
        "$(pc "$here") over all (each token left out of its own statistics), $(pc "$(of_profile '.all.predictors["path-rank1"].top1')") from other texts; the next gate $(pc "$(of_profile '.all.predictors["gate-1"].top1')")" \
        "$here of 87.1 from $chance" profile "" "" \
        "setting: one pair of experts in two layers, as the paper's figure, of those that 50 tokens or more have: $(one_path "$work/calib.yaml")" "$(best_path "$work/calib.yaml") of 87.1 from $chance"
}
row_E3() {
    ladder
    losses() { calc "%+.2f%%, %+.2f%%" "$(rung "$1 4, experts alone"), $(rung "$1 2, experts alone")"; }
    against() { echo "$(rung "$1 4, experts alone") within 1.44; $(rung "$1 2, experts alone") within 5.82"; }
    row "all experts at 4 bits, at 2, one scale a row (fig. 6)" "-1.3 to -1.4%, -5.8% of the accuracy" \
        "$(losses linear) of the nats (linear, the rest of the model at 16 bits). On Switch Transformers: E3s" \
        "$(against linear)" ladder "" "" "setting: one scale for 64 weights (hqq): $(losses hqq)" "$(against hqq)"
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
    row "importance differs between experts (fig. 7a)" "0.44% against 0.59%: 1.34x" \
        "one expert at 2 bits costs $(calc %+.3f%% "$1") to $(calc %+.2f%% "$3") of the nats, in the mean $(calc %+.3f%% "$2")" \
        "$(calc %.2f "$3 / $2") of 1.34 from 1" calibrate
}
# Each domain's map that loses less than all at 4 bits by more than that loss's standard error, beside 4 bits: on a line MiB, per
# cent of the nats more, and on validation texts; the same of 4 bits; the standard error.
domain_maps() {
    for d in $domains; do
        four=$(linear_map "$d" | jq -r '.rungs[] | select(.experts == "4" and .dense_bits == 8) | "\(.bytes / 1048576) \(.loss.nll_percent) \(.loss.nll_error_percent)"')
        below=$(echo "$four" | awk '{ t = int(1000 * ($2 - $3)) / 1000; print t > 0 ? t : 0 }')
        [ -e "$work/linear/$d-below-4.yaml" ] || "$bin/moe-calibrate" -q "$work/linear/all.moe" --text "$map_texts/$d.calib.txt" \
            --check "$map_texts/$d.valid.txt" --from "$work/linear/$d.yaml" --importance proxy --tolerance "$below%" \
            --without fate --without hobbit -o "$work/linear/$d-below-4.yaml" || [ -s "$work/linear/$d-below-4.yaml" ]
        once "linear-4-$d.json" "$bin/moe-run" "$work/linear-4.moe" --kv f32 --perplexity "$map_texts/$d.valid.txt" --json
        linear_map "$d-below-4" | jq -r --arg four "$four" --argjson nats "$(jq .nll "$work/linear-4-$d.json")" '.choice | ($four | split(" ")) as $u
            | "\((.expert_bytes + .dense_bytes) / 1048576) \(.loss.nll_percent) \(.check.nll_percent) \($u[0]) \($u[1]) \(100 * ($nats / .check.reference_nats_per_token - 1)) \($u[2])"'
    done
}
row_E5() {
    below_4_map
    uniform=$(jq -r '.rungs[] | select(.experts == "4" and .dense_bits == 8) | "\(.bytes / 1048576) \(.loss.nll_percent) \(.loss.nll_error_percent)"' "$work/estimated.json")
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
    of_domains=$(domain_maps)
    set -- $uniform ${best:-0 1e9 1e9}
    row "mixed bits beat uniform 4 bits in bytes and loss (table II)" "0.81 GB, 0.89% against 0.85 GB, 2.04%" \
        "$(if [ -n "$best" ]; then calc "%.2f MiB, %+.2f%%, on validation texts %+.2f%%" "$5, $6, $7"; else echo "no map below the bytes of 4 bits"; fi) against $(calc "%.2f MiB, %+.2f%% (standard error %.2f), %+.2f%%" "$1, $2, $3, $4") (linear, importances estimated). Maps of 8/4/2 bits within 1%, and within just less than what 4 bits lose: $(echo "$map" | awk '{ printf("%s%.2f MiB, %+.2f%% with %s experts", n++ ? "; " : "", $1, $2, $4) }')" \
        "$(calc "%.3f < %.3f; %.3f < %.3f; %.3f < %.3f" "$5, $1, $6, $2 - $3, $7, $4 - $3")" calibrate "" "" \
        "text: of one domain, as the paper's are of one task, instead of three ($domains): $(echo "$of_domains" | awk '{ printf("%s%.2f MiB, %+.2f%%, on validation texts %+.2f%% against %.2f MiB, %+.2f%% (standard error %.2f), %+.2f%%", NR > 1 ? "; " : "", $1, $2, $3, $4, $5, $7, $6) }')" \
        "$(echo "$of_domains" | awk '{ printf("%.3f < %.3f; %.3f < %.3f; %.3f < %.3f; ", $1, $4, $2, $5 - $7, $3, $6 - $7) }')"
}
edgemoe_strategies="ondemand,ondemand+predict=path+prefetch=until-router,edgemoe,edgemoe+predict=none+prefetch=none,edgemoe+assume-prediction=87%,ondemand+predict=path+prefetch=until-router+assume-prediction=87%"
# 16 bits on demand, and 4 bits, whose loads are 3.4 times as short; two and four tokens' demand of 4 bits.
edgemoe_cells() {
    for loads in 1 4; do
        simulate "edgemoe-16-$loads" 16 ondemand 2x $loads
        simulate "edgemoe-4-$loads" 42 "$edgemoe_strategies" 2x,4x "$(calc %f "$loads * $(loads_of 42) / $(loads_of 16)")"
    done
}
loads_of() { # PACK: bytes of its experts at the first precision
    quantize "$1" --experts "$(variants_of "$1")"
    "$bin/moe-plan" --explain "$work/$1.moe" --json | jq '[.. | .all_expert_bytes? // empty][0]'
}
row_E6() {
    edgemoe_cells
    over() { # N BITS MEMORY: with each of the loads
        for loads in 1 4; do calc '%.4f\n' "$(of "edgemoe-4-$loads" decode_tokens_per_s "$1" "$3") / $(of "edgemoe-$2-$loads" decode_tokens_per_s 0 2x)"; done
    }
    # shellcheck disable=SC2046
    said() { echo "$(multiples $(over "$1" 4 "$2")); $(multiples $(over "$1" 16 "$2"))"; } # N MEMORY
    against() {
        over "$1" 4 "$2" | sort -g | paste -sd' ' | sed 's/ / of 1.19 from 1; /; s/$/ of 2.12 from 1;/'
        over "$1" 16 "$2" | sort -g | paste -sd' ' | sed 's/ / of 2.55 from 1; /; s/$/ of 3.25 from 1/'
    }
    # shellcheck disable=SC2046
    row "speed over quantized, over unquantized on-demand (fig. 11)" "1.2x to 2.1x; 2.6x to 3.3x" \
        "loads at 16 bits of 1 and 4 layers, a buffer of two tokens' demand: $(said 2 2x)" "$(echo $(against 2 2x))" "simulate edgemoe" "$(said 4 2x)" "$(echo $(against 4 2x))" \
        "setting: a buffer of four tokens' demand: $(said 2 4x)" "$(echo $(against 2 4x))"
}
hits() { # FILE: those of five policies at the four sizes
    awk '{ of[$1] = sprintf("%s%%, %s%%, %s%%, %s%%", $2, $3, $4, $5) }
        END { printf("%s; lru %s; lfu %s; fifo %s; random %s", of["edgemoe"], of["lru"], of["lfu"], of["fifo"], of["random"]) }' "$work/$1.txt"
}
# above_best: of lines "POLICY HITS...", edgemoe's hits beside the best of the others', as comparisons.
above_best() {
    awk '$1 == "edgemoe" { n = split($0, own); next }
        { for (i = 2; i <= NF; i++) if ($i + 0 > best[i] + 0) best[i] = $i }
        END { for (i = 2; i <= n; i++) printf("%s > %s; ", own[i], best[i]) }'
}
above_others() { # FILE
    grep -E '^(edgemoe|lru|lfu|fifo|random) ' "$work/$1.txt" | above_best
}
row_E7() {
    replay
    once replay-cold.txt "$BUILD/tests/tools/replay_trace" --cold --policy edgemoe,lru,lfu,fifo,random --capacity 0.5x,1x,2x,4x "$work/valid.trace"
    row "its eviction above lru, lfu, fifo, random (fig. 14)" "at every size" \
        "hits at 0.5, 1, 2, 4 tokens' demand: $(hits replay)" \
        "$(above_others replay)" replay "" "" \
        "setting: frequencies counted anew for each text, in a buffer that begins empty, instead of over all texts so far: $(hits replay-cold)" "$(above_others replay-cold)"
}
parts_beside() { # SECONDS: unquantized, quantized, with preloading, with the buffer; as comparisons
    calc "%.4f of 2.013 from 1; %.4f of 1.285 from 1; %.4f of 1.245 from 1" "$1 / $2, $2 / $3, $3 / $4"
}
row_E8() {
    edgemoe_cells
    for bits in 16 4; do
        TOP_K=1 simulate "edgemoe-$bits-one-4" "$([ $bits = 16 ] && echo 16 || echo 42)" "$edgemoe_strategies" 2x \
            "$([ $bits = 16 ] && echo 4 || calc %f "4 * $(loads_of 42) / $(loads_of 16)")"
    done
    simulate edgemoe-16-2.5 16 ondemand 2x 2.5
    simulate edgemoe-4-2.5 42 "$edgemoe_strategies" 2x "$(calc %f "2.5 * $(loads_of 42) / $(loads_of 16)")"
    seconds() { # KIND PRELOADING BUFFER [LOADS]: of each part, which are n-th
        for at in "16$1 0" "4$1 0" "4$1 $2" "4$1 $3"; do calc '%.6f ' "1 / $(of "edgemoe-${at% *}-${4:-4}" decode_tokens_per_s "${at#* }" 2x)"; done
    }
    # shellcheck disable=SC2046
    row "quantization, then preloading, then buffer, s/token (fig. 18)" "0.789, 0.392, 0.305, 0.245" \
        "$(listed %.4f $(seconds "" 1 2)) (loads at 16 bits of 4 layers)" "$(parts_beside $(seconds "" 1 2))" "simulate edgemoe" \
        "$(listed %.4f $(seconds "" 5 4))" "$(parts_beside $(seconds "" 5 4))" \
        "setting: one expert a token in each layer, at their accuracy, instead of $(shape experts_per_token), whose loads leave the link idle for $(pc "$(percent "1 - $(of edgemoe-4-4 link_s 0 2x) / $(of edgemoe-4-4 decode_s 0 2x)")") of on-demand's time: $(listed %.4f $(seconds -one 5 4))" \
        "$(parts_beside $(seconds -one 5 4))" \
        "setting: loads at 16 bits of 2.5 layers, at their accuracy: $(listed %.4f $(seconds "" 5 4 2.5))" "$(parts_beside $(seconds "" 5 4 2.5))"
}
row_E9() {
    linear_maps
    losses() { # JQ: on the validation texts that it chooses
        for d in $domains; do linear_map "$d" | jq -r --arg own "$d.valid.txt" "[.texts[] | select(.check)][] | select($1).loss.nll_percent"; done
    }
    against() { losses "$1" | awk '{ printf("%s%.3f within 2", n++ ? "; " : "", $1) }'; }
    most() { losses "$1" | sort -g | tail -1; }
    row "a map holds on another text (table IV)" "about 2%" \
        "maps of one domain within 2%: up to $(calc %+.1f%% "$(most '.name != $own')") on others' texts (linear); a map of all three, within 1%, loses at most $(linear_map 1 | jq -r '[.texts[] | select(.check).loss.nll_percent] | max' | awk '{ printf "%.1f%%", $1 }') on any. Tasks of one kind of text: E9s" \
        "$(against '.name != $own')" calibrate "" "" "text: another text of the map's own domain: up to $(calc %+.1f%% "$(most '.name == $own')")" "$(against '.name == $own')"
}
row_E10() {
    models
    for s in resident edgemoe; do
        once "rss-$s.txt" "$bin/moe-run" -q "$wide/42.moe" -p "Once upon a time" -n 8 --temp 0 --strategy $s \
            --statistics "$wide/stats.yaml" --stats-json "$work/rss-$s.json"
    done
    all=$(jq .peak_rss_bytes "$work/rss-resident.json") few=$(jq .peak_rss_bytes "$work/rss-edgemoe.json")
    here=$(calc %.1f "100 * ($few / $all - 1)")
    row "memory against all in memory (fig. 15)" "-63%" \
        "$(calc %.0f "$few / 1048576") against $(calc %.0f "$all / 1048576") MiB ($(calc %.0f "$here")%; the 1.2 GB pack, buffer of 10 experts)" \
        "$here of -63" "\`moe-run --strategy edgemoe --stats\`"
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
        more=$(calc %+.1f "100 * ($here / $all - 1)")
        row "energy of a token, over all in memory (fig. 13)" "+1.1% at least, +17% in the mean" \
            "$more%, $(calc %.3f "$here") against $(calc %.3f "$all") J" "$more within 17" quality
    fi
}
