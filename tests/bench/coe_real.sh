#!/bin/sh
# make bench-coe: a collection of 44 packs, three times larger than the memory that moe-serve is given, with the
# baselines of CoServe (5.1) and its parts added in turn (5.3):
#
#   samba        one executor, requests in the order of coming; the least recently used expert leaves
#   samba-fifo   ... the first that came leaves
#   parallel     two executors, requests in turn; the least recently used leaves
#   none         ... the first that came leaves
#   +evict       two stages of eviction, by dependency and probability
#   +arrange     requests go behind those for the same expert
#   +assign      ... and to the executor that ends soonest: all of it, with the casual split of memory
#   +ahead       the next expert is loaded while one computes
#   planned      all of it, as moe-profile --coe and moe-plan --coe say
#
# Requests fall on 36 experts by a power law, and the results of half of these go on to one of 8 others. Every
# answer is compared with that of moe-run with the last expert's pack alone. Each run is in a control group of
# its --memory, where one can be made, so that packs come from the disk and not from the page cache.
#
#   SMALL=1 sh tests/bench/coe_real.sh      twelve packs and 36 requests: a minute
#   ROWS='samba +assign' ...                these rows only
#   EXPERTS CHECKS REQUESTS TOKENS FF ...   as tests/tools/derive and widen take them; DIR: where packs are kept
#
# Needs 4 GB of disk and jq. Prints a line for each row: seconds, requests a second, times the first row's,
# switches (an executor goes on with another expert), experts loaded, seconds that executors waited for loads, the
# share of time spent on scheduling, the peak in MiB, answers that differ. Exit 1 where any does.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
if [ -n "${SMALL:-}" ]; then
    experts=${EXPERTS:-9} checks=${CHECKS:-3} requests=${REQUESTS:-36} ff=${FF:-4}
else
    experts=${EXPERTS:-36} checks=${CHECKS:-8} requests=${REQUESTS:-240} ff=${FF:-4}
fi
tokens=${TOKENS:-4}
dir=${DIR:-$BUILD/bench/coe-$experts-$checks-$requests-$tokens-$ff}
rows=${ROWS:-samba samba-fifo parallel none +evict +arrange +assign +ahead planned}
bench_build=$BUILD
. tests/cli/lib.sh
bin=$bench_build/bin

# ---- The collection ----

if [ ! -f "$dir/made" ]; then
    rm -rf "$dir"
    mkdir -p "$dir"
    from=$checkpoint
    if [ "$ff" != 1 ]; then
        from=$dir/wide
        "$BUILD/tests/tools/widen" --ff "$ff" "$checkpoint" "$from"
    fi
    "$BUILD/tests/tools/derive" --experts "$experts" --checks "$checks" --requests "$requests" --words 8 \
        --tokens "$tokens" "$from" "$dir"
    rm -rf "$dir/wide"
    : >"$dir/made"
fi
bytes=$(cat "$dir"/*.moe | wc -c)
memory=$((bytes / 3 >> 20))
echo "$((experts + checks)) packs of $((bytes >> 20)) MiB in all, memory $memory MiB, $requests requests"

# ---- Each expert alone ----

# "id expert" of each request: where it ends.
jq -r '"\(.custom_id) \(.metadata.component)"' "$dir/requests.jsonl" | awk '
    NR == FNR {
        if (match($0, /after: [^,}]*/))
            after = substr($0, RSTART + 7, RLENGTH - 7)
        if (after != "" && match($0, /expert: [^,}]*/))
            next_of[after] = substr($0, RSTART + 8, RLENGTH - 8)
        after = ""
        next
    }
    { while ($2 in next_of) $2 = next_of[$2]; print }' "$dir/collection.yaml" - >"$tmp/ends"
# id and text of each result; a line without an answer shows its error.
answers() { jq -r '[.custom_id, (.response.body.choices[0].text // .error.message)] | @json' "$1" | sort; }

cut -d ' ' -f 2 "$tmp/ends" | sort -u >"$tmp/used"
while read -r expert; do
    awk -v e="$expert" '$2 == e { print $1 }' "$tmp/ends" >"$tmp/ids"
    jq -c --rawfile ids "$tmp/ids" '. as $r | select($ids | split("\n") | index($r.custom_id))' \
        "$dir/requests.jsonl" >"$tmp/some.jsonl"
    "$bin/moe-run" -q "$dir/$expert.moe" --requests "$tmp/some.jsonl" >"$tmp/results" </dev/null
    answers "$tmp/results" >>"$tmp/alone.unsorted"
    # The first of them once more, without a server.
    prompt=$(head -n 1 "$tmp/some.jsonl" | jq -r .prompt)
    "$bin/moe-run" -q "$dir/$expert.moe" -p "$prompt" --raw -n "$tokens" --temp 0 </dev/null >"$tmp/text"
    id=$(head -n 1 "$tmp/some.jsonl" | jq -r .custom_id)
    printf '%s\n' "$(jq -r --arg id "$id" 'select(.custom_id == $id) | .response.body.choices[0].text' "$tmp/results")" >"$tmp/served"
    printf '%s\n' "$(cat "$tmp/text")" | cmp -s - "$tmp/served" || {
        echo "$expert: --requests and -p answer $id differently" >&2
        exit 1
    }
done <"$tmp/used"
sort "$tmp/alone.unsorted" >"$tmp/alone"

# ---- What it costs ----

make_plan() {
    "$bin/moe-profile" -q --coe "$dir/collection.yaml" --requests "$dir/requests.jsonl" --max-batch 16 \
        -o "$tmp/costs.yaml" &&
        "$bin/moe-plan" -q --coe "$dir/collection.yaml" --costs "$tmp/costs.yaml" --memory "${memory}M" \
            -o "$tmp/plan.yaml"
}
options_of() { # ROW
    case $1 in
    samba) echo "--executors cpu:1 --schedule fcfs --evict lru --no-prefetch" ;;
    samba-fifo) echo "--executors cpu:1 --schedule fcfs --evict fifo --no-prefetch" ;;
    parallel) echo "--executors cpu:2 --schedule round-robin --evict lru --no-prefetch" ;;
    none) echo "--executors cpu:2 --schedule round-robin --evict fifo --no-prefetch" ;;
    +evict) echo "--executors cpu:2 --schedule round-robin --evict two-stage --no-prefetch" ;;
    +arrange) echo "--executors cpu:2 --schedule arrange --evict two-stage --no-prefetch" ;;
    +assign) echo "--executors cpu:2 --schedule coserve --evict two-stage --no-prefetch" ;;
    +ahead) echo "--executors cpu:2 --schedule coserve --evict two-stage" ;;
    planned) echo "--plan $tmp/plan.yaml" ;;
    esac
}

# ---- The rows ----

differing() { # lines of either file that are not in the other, a request each
    comm -3 "$tmp/alone" "$1" | sed 's/^\t*//' | jq -r '.[0]' | sort -u | wc -l
}
printf '%-12s %8s %8s %7s %9s %7s %8s %9s %6s %8s\n' row seconds req/s times switches loads waited schedule peak differ
first= wrong=0
for row in $rows; do
    options=$(options_of "$row")
    [ "$row" != planned ] || make_plan || { echo "planned      cannot be planned"; wrong=1; continue; }
    # shellcheck disable=SC2086 # words
    set -- "$bin/moe-serve" -q --coe "$dir/collection.yaml" --requests "$dir/requests.jsonl" -o "$tmp/results" \
        --stats-json "$tmp/stats.json" --memory "${memory}M" -c 64 $options
    rm -f "$tmp/results" "$tmp/stats.json"
    if can_control_groups; then control_group $((memory << 20)) "$@"; else run "$@"; fi
    if [ "$code" != 0 ]; then
        printf '%-12s fails: %s\n' "$row" "$(cat "$err")"
        wrong=1
        continue
    fi
    answers "$tmp/results" >"$tmp/answers"
    differ=$(differing "$tmp/answers")
    [ "$differ" = 0 ] || wrong=1
    rate=$(jq -r '.requests / .seconds' "$tmp/stats.json")
    first=${first:-$rate}
    jq -r --arg row "$row" --argjson first "$first" --arg differ "$differ" '
        def sum(f): [.executors[] | f] | add;
        [$row, .seconds, .requests / .seconds, .requests / .seconds / $first, sum(.switches), sum(.loads),
         sum(.load_seconds), 100 * .schedule_seconds / .seconds, .peak_rss_bytes / 1048576, $differ] | @tsv' \
        "$tmp/stats.json" |
        awk -F '\t' '{ printf "%-12s %8.2f %8.2f %6.2fx %9d %7d %8.2f %8.2f%% %6.0f %8d\n", $1, $2, $3, $4, $5, $6, $7, $8, $9, $10 }'
done
exit "$wrong"
