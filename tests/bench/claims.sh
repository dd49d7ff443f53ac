#!/bin/sh
# The papers' claims beside what this toolkit shows, made anew: prints CLAIMS.md.
#
#   tests/bench/claims.sh > tests/bench/CLAIMS.md     everything: hours, most of them maps; what is timed (F12, H13, E10) wants quiet cores
#   tests/bench/claims.sh F9 F10                      these rows alone, and what they need
#
# Results of measurements stay in WORK (build/bench/claims), one file each; what is there is not measured
# again. Remove a file to measure it anew. TEXTS: a directory of {stories,math,code}.{calib,valid}.txt
# (tests/data). SECONDS_PER_STRATEGY, ROUNDS: of each rehearsed cell (3 seconds, 1). Needs jq, 8 GB of disk
# and 4 GB of memory. SECOND: the second model, a directory (build/models/second), which `make second-model` trains;
# where it is not there, its column says so; SECOND_DOCUMENTS: of each text, that its maps are of (12). The rows themselves stand in claims_rows.sh; those of EdgeMoE on a model
# with an encoder (E1s and on) in claims_switch.sh, which need no quiet machine: no time is measured for them.
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

# Strategies side by side on the widened model: a table of bench_strategies.
rehearse() { # NAME PACK OPTION=VALUE...
    models
    name=$1
    pack=$2
    shift 2
    once "$name.txt" "$BUILD/tests/bench/bench_strategies" "$wide/$pack.moe" \
        "$wide/stats.yaml" tests/data/stories.valid.txt,tests/data/math.valid.txt,tests/data/code.valid.txt \
        seconds="${SECONDS_PER_STRATEGY:-3}" rounds="${ROUNDS:-1}" "$@"
}

# Nats of ten documents of each domain, the first half of each a prompt; statistics of the run as JSON.
quality() { # NAME EXPERTS OPTION...
    name=$1 variants=$2
    shift 2
    quantize "$variants" --experts "$(echo "$variants" | sed 's/./&,/g; s/,$//')"
    [ -e "$work/quality.txt" ] || for d in $domains; do
        awk '{ print } /^<\|endoftext\|>$/ && ++n == 10 { exit }' "$texts/$d.valid.txt"
    done >"$work/quality.txt"
    once "quality-$name.txt" "$bin/moe-run" -q "$work/$variants.moe" --perplexity "$work/quality.txt" \
        --prompt-share 50% --stats-json "$work/quality-$name.json" "$@"
}

# ---- Reading ----

calc() { # FORMAT EXPRESSION
    awk "BEGIN { printf(\"$1\", $2) }"
}

of_profile() { # JQ FORMAT: a share of the profile as per cent
    jq -r "100 * ($1)" "$work/profile.json" | awk -v f="${2:-%.1f%%}" '{ printf f, $1 }'
}

# at NAME COLUMN STRATEGY DEMAND LOADS: one figure of a rehearsed table, its last line that fits. Empty: none.
at() {
    awk -F' *[|] *' -v column="$2" -v strategy="$3" -v demand="$4" -v loads="$5" '
        $2 == "strategy" { for (i = 2; i <= NF; i++) at[$i] = i }
        $2 == strategy && $(at["demand"]) == demand && $(at["loads"]) == loads { found = $(at[column]) }
        END { print found }' "$work/$1.txt"
}

# ratios NAME COLUMN OVER BASE LOADS DEMAND...: lowest and highest of OVER's figures over BASE's.
ratios() {
    name=$1 column=$2 over=$3 base=$4 loads=$5
    shift 5
    for demand; do
        echo "$(at "$name" "$column" "$over" "$demand" "$loads") $(at "$name" "$column" "$base" "$demand" "$loads")"
    done | lowest_highest
}
lowest_highest() { # of the ratios of two columns
    awk '$2 > 0 { r = $1 / $2; if (!n++ || r < low) low = r; if (r > high) high = r }
        END { printf("%.2f %.2f", low, high) }'
}

span() { # "LOW HIGH" as text
    set -- $1
    [ "$1" = "$2" ] && printf '%sx' "$1" || printf '%sx to %sx' "$1" "$2"
}

# ---- Judging ----

# One rule: yes where at least nine tenths of the effect are there, partly where at least a quarter is.
verdict() { # SHARE
    awk -v share="$1" 'BEGIN { print (share >= 0.9 ? "yes" : share >= 0.25 ? "partly" : "no") }'
}
# holds HERE THEIRS [NONE]: of an effect, NONE being none of it.
holds() {
    verdict "$(calc %f "($1 - ${3:-0}) / ($2 - ${3:-0})")"
}
# most CONDITION...: of a claim about order or bounds, the share of its comparisons that come out so.
most() {
    for condition; do calc '%d\n' "($condition) ? 1 : 0"; done |
        awk '{ n += $1 } END { print n / NR }' | { read -r share && verdict "$share"; }
}
# worst VERDICT...: the least of several.
worst() {
    case " $* " in
    *" no "*) echo no ;;
    *" partly "*) echo partly ;;
    *) echo yes ;;
    esac
}

# better VERDICT VERDICT: whether the first is the better one.
better() {
    case "$1 $2" in
    "yes partly" | "yes no" | "partly no") ;;
    *) return 1 ;;
    esac
}
# The row at work, of the second model: figures, verdict and cause, tabs between.
on_second() {
    [ -e "$second/model.safetensors" ] || { printf 'not there: \140make second-model\140\t\t' && return; }
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

# row CLAIM THEIRS HERE HOLDS COMMAND [AT-THEIRS AT-HOLDS] [CAUSE]: a line of the table; the id is that of the row at work.
# AT-THEIRS: the figures where predictions are as right as the paper's, AT-HOLDS: their verdict. CAUSE: of what does not
# hold, and what shows it. Before it stands what the other columns show: the predictor, where the verdict is better at
# their accuracy; the model, where it is better on the second one; behind it the second one's, where it does not hold there.
row() {
    if [ $judging = second ]; then
        printf '%s\t%s\t%s' "$3" "$4" "${8:-}"
        return
    fi
    there='' there_holds='' there_cause='' causes=''
    case " $of_models " in
    *" $id "*)
        there=$(on_second)
        there_cause=${there##*	} there=${there%	*}
        there_holds=${there#*	} there=${there%	*}
        ;;
    esac
    better "${7:-}" "$4" && causes="predictor: $7 at their accuracy"
    better "$there_holds" "$4" && causes="${causes:+$causes; }model: $there_holds on the second"
    case $4 in partly | no) causes="$causes${causes:+${8:+; }}${8:-}" ;; esac
    case $there_holds in partly | no) causes="$causes${causes:+${there_cause:+; }}${there_cause:+of the second, $there_cause}" ;; esac
    printf '| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$id" "$1" "$2" "$3" "$4" "${6:+$6${7:+: $7}}" "$there" \
        "$there_holds" "$causes" "$5"
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

if [ $# -gt 0 ]; then
    for id; do "row_$id" || fail "no row $id"; done
    exit
fi
about
for paper in Fate HOBBIT DAOP EdgeMoE "$switch" "$machines" CoServe; do
    head_of "$paper"
    for id in $(ids_of "$paper"); do "row_$id"; done
done
about_others
printf '\n## Commands\n\nIn WORK, which is %s/bench/claims unless set; of the second model the same in WORK/second:\n\n' build
for f in "$work"/*.command; do
    f=${f##*/}
    printf -- '- %s: `%s`\n' "${f%.command}" "$(cat "$work/$f")"
done
