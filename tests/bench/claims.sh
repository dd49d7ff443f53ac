#!/bin/sh
# The papers' claims beside what this toolkit shows, made anew: prints CLAIMS.md.
#
#   make all tests tools                              what it runs
#   tests/bench/claims.sh > tests/bench/CLAIMS.md     everything: hours, most of them maps; what is timed (F12, D1, C6) wants quiet cores
#   tests/bench/claims.sh F9 F10                      these rows and their comparisons, and what they need
#
# Results of measurements stay in WORK (build/bench/claims), one file each; what is there is not measured
# again. Remove a file to measure it anew. TEXTS: a directory of {stories,math,code}.{calib,valid}.txt
# (tests/data). Needs jq, 8 GB of disk and 4 GB of memory. SECOND: the second model, a directory
# (build/models/second), which `make second-model` trains; where it is not there, its column says so;
# SECOND_DOCUMENTS: of each text, that its maps are of (12). The rows themselves stand in claims_rows.sh; those of
# EdgeMoE on a model with an encoder (E1s and on) in claims_switch.sh, those on the papers' machines in
# claims_machines.sh: no time is measured for either.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
bin=$BUILD/bin
work=${WORK:-$BUILD/bench/claims}
model=$BUILD/models/tiny-moe # that is judged
second=${SECOND:-$BUILD/models/second}
judging=first # or second
switch="EdgeMoE on Switch Transformers"
machines="On the papers' own machines"
texts=${TEXTS:-tests/data}
map_texts=$texts
domains="stories math code"
wide=$BUILD/bench/strategies # widened packs, of strategies.sh
mkdir -p "$work"

fail() {
    echo "claims.sh: $*" >&2
    exit 1
}
command -v jq >/dev/null || fail "jq is needed (apt-get install jq)"

# ---- Measuring, each once ----

# once FILE COMMAND...: the command's output becomes WORK/FILE, unless it is there; the command itself
# WORK/FILE.command.
once() {
    out=$work/$1
    shift
    echo "$*" | sed "s|^chosen [^ ]* ||; s|$work|WORK|g; s|$BUILD/|build/|g; s|BUILD=$BUILD |BUILD=build |g" >"$out.command"
    [ -e "$out" ] && return
    echo "claims.sh: $(date +%H:%M) $out" >&2
    "$@" >"$out.part" || fail "$* failed"
    mv "$out.part" "$out"
}

of_texts() { # OPTION KIND: the option before each domain's text
    for d in $domains; do printf '%s %s ' "$1" "$texts/$d.$2.txt"; done
}

of_maps() { # OPTION KIND: of the texts that maps are chosen on and checked by
    for d in $domains; do printf '%s %s ' "$1" "$map_texts/$d.$2.txt"; done
}

quantize() { # NAME OPTION...: a pack of the model at work
    pack=$work/$1.moe
    shift
    [ -e "$pack" ] || "$bin/moe-quantize" -q -o "$pack" "$@" "$model"
}

# Statistics at 16 bits on the validation texts, paths predicted from the calibration texts.
profile() {
    quantize 16 --experts 16 --dense 16
    # shellcheck disable=SC2046
    [ -e "$work/calib.yaml" ] ||
        "$bin/moe-profile" -q "$work/16.moe" $(of_texts --text calib) -o "$work/calib.yaml"
    # shellcheck disable=SC2046
    [ -e "$work/valid.yaml" ] || "$bin/moe-profile" -q "$work/16.moe" $(of_texts --text valid) \
        --path-stats "$work/calib.yaml" --trace "$work/valid.trace" -o "$work/valid.yaml"
    once profile.json "$bin/moe-profile" --show "$work/valid.yaml" --json
    once profile.txt "$bin/moe-profile" --show "$work/valid.yaml"
}

# shellcheck disable=SC2046
ladder() {
    once ladder.txt env BIN="$bin" METHODS="hqq linear" BITS="8 4 2" ALONE=1 sh tests/bench/ladder.sh "$model" \
        $(for d in $domains; do echo "$texts/$d.valid.txt"; done)
    once ladder-32.txt env BIN="$bin" METHODS=hqq BITS="8 4 2" ALONE=1 GROUP=32 sh tests/bench/ladder.sh "$model" \
        $(for d in $domains; do echo "$texts/$d.valid.txt"; done)
}

# Maps by calibrate.sh of experts with one scale a row, as EdgeMoE rounds them: in WORK/linear.
linear_maps() {
    once linear.txt env METHOD=linear SHUFFLES=0 TOLERANCES= CURVES=0 TEXTS="$map_texts" BUILD="$BUILD" MODEL="$model" DOCUMENTS="${DOCUMENTS:-}" \
        sh tests/bench/calibrate.sh "$work/linear"
}

# By the same pack, importances estimated, a map just below what all experts at 4 bits lose, where 8, 4 and 2 bits mix:
# WORK/below-4.yaml. Where 4 bits lose nothing it may lose nothing either.
below_4_map() {
    linear_pack=$work/linear-all.moe
    [ -e "$linear_pack" ] || "$bin/moe-quantize" -q --method linear --experts 8,4,2 --dense 8 -o "$linear_pack" "$model"
    # shellcheck disable=SC2046
    [ -e "$work/estimated.yaml" ] || "$bin/moe-calibrate" -q "$linear_pack" $(of_maps --text calib) $(of_maps --check valid) \
        --importance proxy --tolerance 1% --without fate --without hobbit -o "$work/estimated.yaml" || [ -s "$work/estimated.yaml" ]
    once estimated.json "$bin/moe-calibrate" --show "$work/estimated.yaml" --json
    below=$(jq -r '.rungs | map(select(.experts == "4").loss.nll_percent)[0] | [. * 990, 0] | max | floor / 1000' "$work/estimated.json")
    # shellcheck disable=SC2046
    [ -e "$work/below-4.yaml" ] || "$bin/moe-calibrate" -q "$linear_pack" $(of_maps --text calib) \
        $(of_maps --check valid) --from "$work/estimated.yaml" --importance proxy --tolerance "$below%" --without fate \
        --without hobbit -o "$work/below-4.yaml" || [ -s "$work/below-4.yaml" ]
    once below-4.json "$bin/moe-calibrate" --show "$work/below-4.yaml" --json
}

# What prompts and misses may lose, by hqq at 8, 4 and 2 bits, within 1%: Fate's p, HOBBIT's thresholds.
hqq_map() {
    quantize 842 --experts 8,4,2
    # shellcheck disable=SC2046
    [ -e "$work/hqq.yaml" ] || "$bin/moe-calibrate" -q "$work/842.moe" $(of_maps --text calib) \
        $(of_maps --check valid) --tolerance 1% --importance proxy -o "$work/hqq.yaml"
    once hqq.json "$bin/moe-calibrate" --show "$work/hqq.yaml" --json
}

# Policies on the trace of the validation texts: one table.
replay() {
    profile
    once replay.txt "$BUILD/tests/tools/replay_trace" --capacity 0.5x,1x,2x,4x "$work/valid.trace"
}

# The bundled model's routing in the simulator, its experts as large as Qwen1.5-MoE's, so that a load is cut into as many
# pieces: strategies side by side, with commas, in memories with commas, on a link whose loads at the first precision
# take LOADS times a layer of a decoded token: JSON, a line for each strategy and memory. On a second device, and at three
# precisions: the model itself. TOP_K: so many experts a token instead of the model's,
# whose statistics are drawn as the routing is.
simulate() { # NAME VARIANTS STRATEGIES MEMORIES LOADS [OPTION...]
    papers_trace
    profile
    name=$1 variants=$2 strategies=$3 memories=$4 loads=$5
    shift 5
    shape=$work/shape${TOP_K:+-top$TOP_K}.json
    jq --argjson k "${TOP_K:-null}" '. + {hidden_size: 2048, num_attention_heads: 16, num_experts_per_tok: ($k // .num_experts_per_tok), moe_shape: {name: "its experts as large as those of Qwen1.5-MoE"}}
        + (if .num_local_experts then {head_dim: 128, intermediate_size: 1408}
           else {intermediate_size: 2816, moe_intermediate_size: 1408, shared_expert_intermediate_size: 2816} end)' \
        "$model/config.json" >"$shape"
    case "$variants $*" in
    1642*|*--device*)
        quantize "$variants" --experts "$(variants_of "$variants")"
        set -- "$work/$variants.moe" "$@"
        ;;
    *) set -- --shape "$shape" --experts "$(variants_of "$variants")" "$@" ;;
    esac
    [ -n "${TOP_K:-}" ] || set -- "$@" --stats "$work/calib.yaml"
    once "$name.json" "$bin/moe-plan" -q --simulate "${TRACE:-$work/papers.trace}" "$@" \
        --strategy "$strategies" --memory "$memories" --layer-seconds 1e-3 \
        --load-seconds "${loads}e-3" --json
}
variants_of() { # PACK: its bits, best first
    case $1 in
    1642) echo 16,4,2 ;;
    164) echo 16,4 ;;
    16) echo 16 ;;
    *) echo "$1" | sed 's/./&,/g; s/,$//' ;;
    esac
}
# of NAME KEY N MEMORY: a figure of the n-th strategy, from 0.
of() {
    jq -r "[.[] | select(.memory == \"$4\")][$3].$2" "$work/$1.json"
}
# spread NAME KEY N M MEMORY...: lowest and highest of the n-th strategy's figures over the m-th's.
spread() {
    table=$1 key=$2 nth=$3 mth=$4
    shift 4
    for m; do echo "$(of "$table" "$key" "$nth" "$m") $(of "$table" "$key" "$mth" "$m")"; done | lowest_highest
}

models() {
    [ -e "$wide/stats.yaml" ] || BUILD=$BUILD sh tests/bench/strategies.sh models
}

# Nats of ten documents of each domain, or of WORK/QUALITY_TEXT, the first half of each a prompt; statistics of the run as JSON.
quality() { # NAME EXPERTS OPTION...
    name=$1 variants=$2
    shift 2
    quantize "$variants" --experts "$(echo "$variants" | sed 's/./&,/g; s/,$//')"
    [ -e "$work/quality.txt" ] || for d in $domains; do
        awk '{ print } /^<\|endoftext\|>$/ && ++n == 10 { exit }' "$texts/$d.valid.txt"
    done >"$work/quality.txt"
    once "quality-$name.txt" "$bin/moe-run" -q "$work/$variants.moe" --perplexity "$work/${QUALITY_TEXT:-quality.txt}" \
        --prompt-share 50% --stats-json "$work/quality-$name.json" "$@"
}

# ---- Reading ----

calc() { # FORMAT EXPRESSION
    awk "BEGIN { printf(\"$1\", $2) }"
}

of_profile() { # JQ: a share of the profile in per cent
    jq -r "100 * ($1)" "$work/profile.json" | awk '{ printf "%.4f", $1 }'
}
# Figures as the cells print them, with commas: by a format, per cents, multiples.
listed() { # FORMAT FIGURE...
    format=$1
    shift
    for figure; do printf "$format\n" "$figure"; done | paste -sd, | sed 's/,/, /g'
}
pc() { listed %.1f%% "$@"; }
multiples() { listed %.2fx "$@"; }

lowest_highest() { # of the ratios of two columns
    awk '$2 > 0 { r = $1 / $2; if (!n++ || r < low) low = r; if (r > high) high = r }
        END { printf("%.4f %.4f", low, high) }'
}

span() { # "LOW HIGH" as text
    # shellcheck disable=SC2046
    set -- $(printf '%.2f %.2f' $1)
    [ "$1" = "$2" ] && printf '%sx' "$1" || printf '%sx to %sx' "$1" "$2"
}

# ---- Judging ----

# judge COMPARISONS: verdict and the share that it rests on. COMPARISONS, "; " between them:
#   HERE of THEIRS [from NONE]  an effect beside the paper's, NONE being what there is without it: how much of it is here
#   HERE is THEIRS              a part of a whole: the smaller over the larger
#   HERE within THEIRS          a loss: theirs over ours where ours is more
#   A < B, A > B                of all of these the share that come out so
# The least share counts. Words without a figure ("not here") are their own verdict.
judge() {
    case $1 in *[0-9]*) ;; *) echo "$1" && return ;; esac
    echo "$1" | tr ';' '\n' | awk '
        function take(share) { if (!n++ || share < least) least = share }
        $2 == "of" { take(($1 - $5) / ($3 - $5)) }
        $2 == "is" { take($1 + 0 < $3 + 0 ? $1 / $3 : $3 / $1) }
        $2 == "within" { take($1 + 0 <= $3 + 0 ? 1 : $3 / $1) }
        $2 == "<" { all++; right += $1 + 0 < $3 + 0 }
        $2 == ">" { all++; right += $1 + 0 > $3 + 0 }
        END { if (all) take(right / all)
            printf("%s, %.3f\n", least >= 0.9 ? "yes" : least >= 0.25 ? "partly" : "no", least) }'
}
better() { # VERDICT VERDICT: whether the first is the better one
    case "${1%%,*} ${2%%,*}" in
    "yes partly" | "yes no" | "partly no") ;;
    *) return 1 ;;
    esac
}
# The row at work, of the second model: its figures, judgement, causes, what was tried in vain and comparisons, tabs between.
on_second() {
    [ -e "$second/model.safetensors" ] || { printf 'not there: \140make second-model\140\t\t\t\t' && return; }
    (
        judging=second model=$second work=$work/second
        map_texts=$work/texts
        mkdir -p "$map_texts"
        for text in "$texts"/*.calib.txt "$texts"/*.valid.txt; do
            awk -v n="${SECOND_DOCUMENTS:-12}" '/^<\|endoftext\|>$/ { k++ } k < n' "$text" >"$map_texts/${text##*/}"
        done
        "row_$id"
    ) || fail "row $id fails on $second"
}
compared() { # COMPARISONS JUDGEMENT: as the page lists them
    echo "$1: $2" | sed 's/; *:/:/; s/\(\.[0-9]\{4\}\)[0-9]*/\1/g'
}
explained() { # JUDGEMENT CAUSES TRIED: of what does not hold, why
    case $1 in
    partly* | no,*) echo "${2:-no cause found${3:+; tried: $3}}" ;;
    esac
}

# row CLAIM THEIRS HERE COMPARISONS COMMAND [AT-THEIRS AT-COMPARISONS] [EXPERIMENT COMPARISONS]...: a line of the table; the
# id is that of the row at work. AT-THEIRS: the figures where predictions are as right as the paper's. EXPERIMENT: the row
# with one thing changed; it is a cause where its verdict is better, as are the predictor, where the verdict at their
# accuracy is, and the model, where the other one's is. A cause without comparisons was judged by who found it.
row() {
    claim=$1 theirs=$2 here=$3 command=$5 at=${6:-} at_judged=${7:+$(judge "$7")}
    judged=$(judge "$4") causes='' tried=''
    comparisons="$(compared "$4" "$judged")${7:+. At their accuracy $(compared "$7" "$at_judged")}"
    ! better "$at_judged" "$judged" || causes="predictor: ${at_judged%%,*} at their accuracy"
    shift $(($# < 7 ? $# : 7))
    while [ $# -gt 1 ]; do
        as=${2:+$(judge "$2")}
        if [ -z "$2" ] || better "$as" "$judged"; then
            causes="$causes${causes:+; }$1${as:+: ${as%%,*}}"
        else
            tried="$tried${tried:+; }$1: ${as%%,*}"
        fi
        case $judged in partly* | no,*) comparisons="$comparisons${2:+. Experiment (${1%:*}) $(compared "$2" "$as")}" ;; esac
        shift 2
    done
    if [ $judging = second ]; then
        printf '%s\t%s\t%s\t%s\t%s' "$here" "$judged" "$causes" "$tried" "$comparisons"
        return
    fi
    there='' there_judged='' there_why=''
    case " $of_models " in
    *" $id "*)
        of_second=$(on_second)
        nth() { echo "$of_second" | cut -f "$1"; }
        there=$(nth 1) there_judged=$(nth 2) there_causes=$(nth 3)
        ! better "$there_judged" "$judged" || causes="${causes:+$causes; }model: ${there_judged%%,*} on the second"
        ! better "$judged" "$there_judged" || there_causes="${there_causes:+$there_causes; }model: ${judged%%,*} on the first"
        there_why=$(explained "$there_judged" "$there_causes" "$(nth 4)")
        comparisons="$comparisons. On the second $(nth 5)"
        ;;
    esac
    why=$(explained "$judged" "$causes" "$tried")
    printf '| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$id" "$claim" "$theirs" "$here" "${judged%%,*}" \
        "$at${at_judged:+: ${at_judged%%,*}}" "$there" "${there_judged%%,*}" "$why${why:+${there_why:+; }}${there_why:+of the second, $there_why}" "$command"
    case $judged in *[0-9]) echo "- $id: $comparisons" >>"$work/comparisons.txt" ;; esac
}

. tests/bench/claims_rows.sh
. tests/bench/claims_switch.sh
. tests/bench/claims_machines.sh

head_of() { # PAPER
    printf '\n## %s\n' "$1"
    [ "$1" != "$switch" ] || about_switch
    [ "$1" != "$machines" ] || about_machines
    printf '\n| id | claim | theirs | here | holds | at their accuracy | second model | holds there | cause | command |\n'
    printf '|---|---|---|---|---|---|---|---|---|---|\n'
}

: >"$work/comparisons.txt"
if [ $# -gt 0 ]; then
    for id; do "row_$id" || fail "no row $id"; done
    cat "$work/comparisons.txt"
    exit
fi
about
for paper in Fate HOBBIT DAOP EdgeMoE "$switch" "$machines" CoServe; do
    head_of "$paper"
    for id in $(ids_of "$paper"); do "row_$id"; done
done
about_others
about_comparisons
cat "$work/comparisons.txt"
printf '\n## Commands\n\nIn WORK, which is %s/bench/claims unless set; of the second model the same in WORK/second:\n\n' build
for f in "$work"/*.command; do
    f=${f##*/}
    printf -- '- %s: `%s`\n' "${f%.command}" "$(cat "$work/$f")"
done
