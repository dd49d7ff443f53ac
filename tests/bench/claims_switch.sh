# The rows of CLAIMS.md for EdgeMoE on a Switch Transformers model, for claims.sh: build/models/tiny-switch and
# the bundled pairs. What edgemoe.sh works on lies in build/bench/edgemoe.
# shellcheck shell=sh disable=SC2154

about_switch() {
    cat <<END

EdgeMoE's own models are Switch Transformers. These rows are those of the bundled one
([its README](../models/tiny-switch/README.md): 16 experts, one for each token, in 2 layers of the encoder and 4
of the decoder, routers that have learnt), on 300 pairs of a source and a target to choose on and 300 others
to judge by. *edgemoe*: \`tests/bench/edgemoe.sh\`. *pairs*: measured,
\`moe-calibrate PACK --pairs FILE --check FILE\`, experts rounded by \`linear\`, the rest of the model at 16 bits.
Rates of the devices and the lengths of their layers are the paper's (edgemoe.sh says which).
END
}

edgemoe_part() { # NAME PART [BUFFER]: prints of edgemoe.sh, figures as simulated
    once "switch-$1.txt" env BUILD="$BUILD" MEASURE=0 PARTS="$2" ${3:+BUFFER="$3"} sh tests/bench/edgemoe.sh
}
switch_profile() {
    edgemoe_part paths paths
    once switch-profile.json "$bin/moe-profile" --show "$BUILD/bench/edgemoe/valid.yaml" --json
}
of_switch() { # JQ: a share of the profile as per cent
    jq -r "100 * ($1)" "$work/switch-profile.json" | awk '{ printf "%.1f", $1 }'
}

# The same of each task's pairs alone, lowest to highest: the paper's texts are one task's.
of_tasks() { # JQ
    switch_profile
    for t in fill last lower continue sort sum; do
        grep "\"task\": \"$t\"" "$texts/pairs.valid.jsonl" >"$work/task-$t.jsonl"
        [ -e "$work/task-$t.yaml" ] || "$bin/moe-profile" -q "$BUILD/bench/edgemoe/full.moe" --pairs "$work/task-$t.jsonl" \
            --path-stats "$BUILD/bench/edgemoe/calib.yaml" -o "$work/task-$t.yaml"
        "$bin/moe-profile" --show "$work/task-$t.yaml" --json | jq "100 * ($1)"
    done | sort -n | awk 'NR == 1 { low = $1 } END { printf("%.1f%% to %.1f%%", low, $1) }'
}
row_E1s() {
    switch_profile
    here=$(of_switch .paths.top_fifth) tasks=$(of_tasks .paths.top_fifth) three=$(paths_through 3 "$BUILD/bench/edgemoe/calib.yaml") of_all=$(paths_through 3 "$BUILD/bench/edgemoe/calib.yaml" 4096)
    row "share of tokens on the 20% most frequent paths (fig. 4)" "99%" \
        "$here%: $(jq -r .paths.whole "$work/switch-profile.json") different paths through the decoder; counts over ranks fall with a slope of $(jq -r .paths.slope "$work/switch-profile.json" | awk '{ printf "%.2f", $1 }') in logarithms, no power law of a few paths" \
        "$here of 99 from 20" "edgemoe" "" "" \
        "text: pairs of one task, as in the paper, instead of all six: $tasks" "${tasks% to *} of 99 from 20; ${tasks#* to } of 99 from 20" \
        "text: paths through three layers in a row instead of whole ones: $three" "$three of 99 from 20" \
        "setting: on a fifth of all paths through three layers that there could be, instead of those taken: $of_all" "$of_all of 99 from 20"
}
row_E2s() {
    switch_profile
    here=$(of_switch .paths.rank1_right) tasks=$(of_tasks '.all.predictors["path-rank1"].top1')
    row "best expert predicted from those of two layers (fig. 8)" "87.1% for one path" \
        "$here% over all (each token left out of its own statistics), $(of_switch '.all.predictors["path-rank1"].top1')% from other pairs; chance is 6.2%" \
        "$here of 87.1 from 6.2" "edgemoe" "" "" \
        "text: pairs of one task, as in the paper, instead of all six: $tasks" "${tasks% to *} of 87.1 from 6.2; ${tasks#* to } of 87.1 from 6.2" \
        "setting: one pair of experts in two layers, as the paper's figure, of those that 50 tokens or more have: $(one_path "$BUILD/bench/edgemoe/calib.yaml")" "$(best_path "$BUILD/bench/edgemoe/calib.yaml") of 87.1 from 6.2"
}

# ---- Maps ----

# A calibration, whose map is there though its tolerance does not hold on other pairs, which the rows say.
chosen() { # MAP COMMAND...
    map=$1
    shift
    "$@" || [ -s "$map" ]
}

# switch_map NAME OPTION...: JSON of a map of the pack at 8, 4, 3 and 2 bits.
switch_map() {
    name=$1 map=$work/switch-$1.yaml
    shift
    [ -e "$work/switch.moe" ] || "$bin/moe-quantize" -q --method linear --experts 8,4,3,2 --dense 16 \
        -o "$work/switch.moe" "${BUILD:-build}/models/tiny-switch"
    once "switch-$name.made" chosen "$map" "$bin/moe-calibrate" -q "$work/switch.moe" --pairs "$texts/pairs.calib.jsonl" \
        --check "$texts/pairs.valid.jsonl" --without fate --without hobbit "$@" -o "$map"
    "$bin/moe-calibrate" --show "$map" --json
}
switch_importances() { switch_map 1 --tolerance 1%; }
switch_tolerance() { # PERCENT: the map within it
    [ "$1" != 1 ] || { switch_importances && return; }
    switch_importances >/dev/null
    switch_map "$1" --tolerance "$1%" --from "$work/switch-1.yaml"
}
switch_judged() {
    switch_importances >/dev/null
    switch_map rouge2 --judge rouge2 --tolerance 1% --from "$work/switch-1.yaml"
}
rung_of() { # BITS: MiB, percent of the nats more, Rouge-2, its points less, standard error of the nats
    switch_judged | jq -r --arg bits "$1" '.rungs[] | select(.experts == $bits) | .loss as $l
        | "\(.bytes / 1048576) \($l.nll_percent) \($l.reference_rouge2) \($l.rouge2_points) \($l.nll_error_percent)"'
}

# What experts at so many bits lose on the other pairs, in percent of the nats.
switch_elsewhere() { # BITS
    pack=$work/switch-$1-bits.moe
    [ -e "$pack" ] || "$bin/moe-quantize" -q --experts "$1" -o "$pack" "$work/switch.moe"
    once "switch-$1-bits.json" "$bin/moe-run" "$pack" --kv f32 --perplexity "$texts/pairs.valid.jsonl" --json
    before=$(switch_importances | jq .choice.check.reference_nats_per_token)
    calc %+.2f%% "100 * ($(jq .nll "$work/switch-$1-bits.json") / $before - 1)"
}

row_E3s() {
    set -- $(rung_of 4) $(rung_of 2)
    row "all experts at 4 bits, at 2, one scale a row (fig. 6)" "-1.3 to -1.4%, -5.8% of the accuracy" \
        "Rouge-2 $(calc %.4f "$3") at 8 bits, $(calc "%+.2f%%, %+.2f%%" "-($4) / $3, -($9) / $8"); nats $(calc "%+.2f%%, %+.2f%%" "$2, $7"). Judged by Rouge-2, an accuracy as the paper's" \
        "$(calc "%.3f within 1.44; %.3f within 5.82" "$4 / $3, $9 / $8")" pairs
}
row_E4s() {
    here=$(switch_importances | jq -r '(.rungs[0].loss) as $all | ($all.nats_per_token * $all.tokens) as $sum
        | [.importances.layers[] | .nats as $n | .error_nats as $e | range($n | length) | [$n[.], $e[.]]] as $x
        | ($x | map(.[0])) as $n | ($x | map(select((.[0] | fabs) > 2 * .[1])) | length) as $clear
        | "\($n | min * 100 / $sum) \($n | add / length * 100 / $sum) \($n | max * 100 / $sum) \($clear) \($n | length)"')
    first=$(switch_importances | jq -r '[.importances.layers[].nats | add] | "\(.[2] / add * 100)"')
    set -- $here
    row "importance differs between experts (fig. 7a)" "0.44% against 0.59%: 1.34x" \
        "one expert at 2 bits costs $(calc %+.2f%% "$1") to $(calc %+.2f%% "$3") of the nats, in the mean $(calc %+.3f%% "$2"); $4 of $5 experts by more than two standard errors; the decoder's first layer has $(calc %.0f%% "$first") of the sum" \
        "$(calc %.2f "$3 / $2") of 1.34 from 1" pairs
}
row_E5s() {
    four=$(rung_of 4) three=$(rung_of 3) elsewhere=$(switch_elsewhere 3) elsewhere4=$(switch_elsewhere 4)
    # The map that loses least, and has fewer bytes than either.
    map=$(for p in 0 0.5 1 2 3; do switch_tolerance $p | jq -r '.choice
            | "\((.expert_bytes + .dense_bytes) / 1048576) \(.loss.nll_percent) \(.loss.nll_error_percent) \(.check.nll_percent)"'; done |
        awk -v most="${three% * * * *}" '$1 <= most && (!n++ || $2 < least) { least = $2; line = $0 } END { print line }')
    judged=$(switch_judged | jq -r '.choice | "\((.expert_bytes + .dense_bytes) / 1048576) \(.loss.rouge2_points) \(.check.rouge2_points)"')
    error4=${four##* } error3=${three##* }
    set -- ${four% *} ${three% *} ${map:-0 1e9 0 0} $judged
    row "mixed bits beat uniform 4 bits in bytes and loss (table II)" "0.81 GB, 0.89% against 0.85 GB, 2.04%" \
        "$(calc "%.2f MiB, %+.2f%% (on other pairs %+.2f%%)" "$9, ${10}, ${12}") against $(calc "%.2f MiB, %+.2f%%" "$1, $2") ($elsewhere4; standard error $(calc %.2f "$error4")) at 4 bits. Judged by Rouge-2, within one point: $(calc "%.2f MiB, %+.2f points, on other pairs %+.2f" "${13}, -(${14}), -(${15})")" \
        "$(calc "%.3f < %.3f; %.3f < %.3f; %.3f < %.3f" "$9, $1, ${10}, $2 - $error4, ${12}, ${elsewhere4%\%} - $error4")" pairs "" "" \
        "model: against 3 bits, which lose as the paper's 4 do: $(calc "%.2f MiB, %+.2f%%" "$5, $6") ($elsewhere; standard error $(calc %.2f "$error3"))" \
        "$(calc "%.3f < %.3f; %.3f < %.3f; %.3f < %.3f" "$9, $5, ${10}, $6 - $error3, ${12}, ${elsewhere%\%} - $error3")" \
        "text: on the pairs that maps are chosen on, 300, which are few to choose by, against 3 bits: $(calc "%.2f MiB, %+.2f%% against %.2f MiB, %+.2f%%" "$9, ${10}, $5, $6")" "$(calc "%.3f < %.3f; %.3f < %.3f" "$9, $5, ${10}, $6 - $error3")"
}

# ---- The buffer, and the figures as simulated ----

switch_hits() { # POLICY: at the four sizes
    awk -v name="$1" '$1 ~ /^edgemoe/ {
            policy = $1 ~ /cache=/ ? $1 : "edgemoe"
            sub(/.*cache=/, "", policy)
            if (policy == name) text = text (text ? ", " : "") $3 }
        END { print text }' "$work/switch-eviction.txt"
}
row_E7s() {
    edgemoe_part eviction eviction
    row "its eviction above lru, lfu, fifo, random (fig. 14)" "at every size" \
        "hits of decoded tokens at 0.5, 1, 2, 4 tokens' demand: $(switch_hits edgemoe); lru $(switch_hits lru); lfu $(switch_hits lfu); fifo $(switch_hits fifo); random $(switch_hits random)" \
        "$(for p in edgemoe lru lfu fifo random; do echo "$p $(switch_hits $p | tr -d ,)"; done | above_best)" "edgemoe"
}
# switch_seconds ROW DEVICE: for an output token; devices: 1 Jetson TX2 with its SSD, 2 Raspberry Pi, 3 TX2, hard disk, 4 to 6 the
# same with loads of 4 bits as slow as figure 18 says. $figures: of these.
figures=figures
switch_seconds() {
    awk -v name="$1" -v at="$2" '$1 == name { print $(4 + at) }' "$work/switch-$figures.txt"
}
switch_slower() { # how many times these are slower
    sed -n 's/^as fig. 18: loads of 4 bits \([0-9.]*\) .*/\1/p' "$work/switch-figures.txt"
}
switch_ratios() { # OVER BASE [DEVICES]: how much faster, on the three devices
    for i in ${3:-1 2 3}; do calc '%.4f\n' "$(switch_seconds "$2" $i) / $(switch_seconds "$1" $i)"; done
}
row_E6s() {
    edgemoe_part figures figures
    edgemoe_part figures-32 figures 32
    # shellcheck disable=SC2046
    said() { echo "$(multiples $(switch_ratios "$1" io-qexp "${2:-}")); $(multiples $(switch_ratios "$1" io-exp "${2:-}")); $(multiples $(switch_ratios "$1" sti "${2:-}"))"; }
    against() { # ROW [DEVICES]: the least and the most; on a hard disk unquantized is judged apart
        switch_ratios "$1" io-qexp "${2:-}" | sort -g | awk '{ of[NR] = $1 } END { print of[1] " of 1.19 from 1; " of[NR] " of 2.12 from 1; " }'
        switch_ratios "$1" io-exp "${2:-}" | awk 'NR < 3 { if (NR == 1 || $1 < low) low = $1; if ($1 > high) high = $1 } NR == 3 { disk = $1 }
            END { print low " of 2.55 from 1; " high " of 3.25 from 1; " disk " of 4.76 from 1; " }'
        switch_ratios "$1" sti "${2:-}" | sort -g | awk '{ of[NR] = $1 } END { print of[1] " of 1.22 from 1; " of[NR] " of 2.77 from 1" }'
    }
    row "speed over quantized, over unquantized on-demand; over STI (fig. 11)" "1.2x to 2.1x; 2.6x to 3.3x, up to 4.8x on a hard disk; 1.2x to 2.8x" \
        "simulated, TX2 with an SSD, Raspberry Pi with an SD card, TX2 with a hard disk: $(said edgemoe)" \
        "$(echo $(against edgemoe))" "edgemoe" "$(said edgemoe-87)" "$(echo $(against edgemoe-87))" \
        "setting: loads of 4 bits $(switch_slower) times slower, which take what figure 18 has, 0.392 of 0.789 s, at their accuracy: $(said edgemoe-87 "4 5 6")" "$(echo $(against edgemoe-87 "4 5 6"))" \
        "setting: a buffer of 32 experts, half of the decoder's, instead of 10: $(figures=figures-32 && said edgemoe)" "$(figures=figures-32 && echo $(against edgemoe))"
}
row_E8s() {
    edgemoe_part figures figures
    parts() { # PRELOADING BUFFER [DEVICE]
        for p in io-exp io-qexp "$1" "$2"; do switch_seconds "$p" "${3:-1}"; done
    }
    # shellcheck disable=SC2046
    row "quantization, then preloading, then buffer, s/token (fig. 18)" "0.789, 0.392, 0.305, 0.245" \
        "simulated, TX2 with an SSD: $(listed %s $(parts +preloading edgemoe))" "$(parts_beside $(parts +preloading edgemoe))" "edgemoe" \
        "$(listed %s $(parts +preloading-87 edgemoe-87))" "$(parts_beside $(parts +preloading-87 edgemoe-87))" \
        "setting: loads of 4 bits $(switch_slower) times slower, so that quantization brings what theirs does and more loads are left to hide: $(listed %s $(parts +preloading edgemoe 4))" "$(parts_beside $(parts +preloading edgemoe 4))" \
        "setting: these, at their accuracy: $(listed %s $(parts +preloading-87 edgemoe-87 4))" "$(parts_beside $(parts +preloading-87 edgemoe-87 4))"
}
# 300 pairs of the six tasks to choose by and 300 to judge by, of each domain's texts: WORK/of-DOMAIN.{calib,valid}.jsonl. So are
# Xsum and SAMsum other texts of one task.
domain_pairs() {
    [ -e "$work/of-code.valid.jsonl" ] || PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=tests/models/tiny-switch python3 - "$texts" "$work" <<'END'
import json, sys, tasks
for domain, docs in tasks.documents(sys.argv[1], "valid").items():
    n = len(docs) // 2
    for part, half in ("calib", docs[:n]), ("valid", docs[n:]):
        maker = tasks.Maker(dict.fromkeys(tasks.DOMAINS, half), part)
        with open(f"{sys.argv[2]}/of-{domain}.{part}.jsonl", "w", encoding="utf-8") as f:
            f.writelines(json.dumps(maker.pair(task), ensure_ascii=False) + "\n" for task in tasks.TASKS for _ in range(50))
END
}
row_E9s() {
    switch_importances >/dev/null
    losses_on() { # MAP PAIRS
        "$bin/moe-calibrate" --show "$work/switch-of-$1.yaml" --json |
            jq --arg name "$2" '.texts[] | select(.check and .name == $name).loss.nll_percent'
    }
    # Maps of one half of the tasks, within 2% of its nats, on the other half's.
    said='' within='' own='' within_own=''
    for half in "fill last lower" "continue sort sum"; do
        name=${half%% *}
        for split in calib valid; do
            for t in $half; do grep "\"task\": \"$t\"" "$texts/pairs.$split.jsonl"; done >"$work/pairs-$name.$split.jsonl"
        done
    done
    for way in "fill continue" "continue fill"; do
        from=${way% *} to=${way#* }
        once "switch-of-$from.made" chosen "$work/switch-of-$from.yaml" "$bin/moe-calibrate" -q "$work/switch.moe" --pairs "$work/pairs-$from.calib.jsonl" \
            --check "$work/pairs-$to.valid.jsonl" --check "$work/pairs-$from.valid.jsonl" --without fate --without hobbit \
            --tolerance 2% -o "$work/switch-of-$from.yaml"
        loss_on() { losses_on "$from" "pairs-$1.valid.jsonl"; } # HALF: its other pairs
        said="$said${said:+, }$(calc %+.2f%% "$(loss_on $to)")"
        own="$own${own:+, }$(calc %+.2f%% "$(loss_on $from)")"
        within="$within$(calc %.3f "$(loss_on $to)") within 2; "
        within_own="$within_own$(calc %.3f "$(loss_on $from)") within 2; "
    done
    domain_pairs
    of_domains=''
    for way in "stories math code" "math code stories" "code stories math"; do
        # shellcheck disable=SC2086
        set -- $way
        once "switch-of-$1.made" chosen "$work/switch-of-$1.yaml" "$bin/moe-calibrate" -q "$work/switch.moe" --pairs "$work/of-$1.calib.jsonl" \
            --check "$work/of-$2.valid.jsonl" --check "$work/of-$3.valid.jsonl" --without fate --without hobbit \
            --tolerance 2% -o "$work/switch-of-$1.yaml"
        of_domains="$of_domains $(losses_on "$1" "of-$2.valid.jsonl") $(losses_on "$1" "of-$3.valid.jsonl")"
    done
    all_six=$(switch_tolerance 2 | jq .choice.check.nll_percent)
    # shellcheck disable=SC2086
    row "a map holds on another text (table IV)" "about 2%" \
        "maps of three tasks within 2% of their nats, on pairs of the three others: $said" "$within" pairs \
        "" "" "text: other pairs of the map's own tasks: $own" "$within_own" \
        "text: the six tasks' pairs of another domain's texts than the map's ($domains), as Xsum and SAMsum are of one task: $(listed %+.2f%% $of_domains)" "$(printf '%.3f within 2; ' $of_domains)" \
        "text: other pairs of all six tasks, of a map that all six chose, by 300 pairs instead of 150: $(calc %+.2f%% "$all_six")" "$all_six within 2"
}
