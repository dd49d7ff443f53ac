# moe-plan --coe: plans for collections of expert models, their explanation, systems side by side.
. tests/cli/lib.sh
plan="$bin/moe-plan"
sh profiles/coe/board.sh 352 >"$tmp/a.yaml"
sh profiles/coe/board.sh 342 >"$tmp/b.yaml"
numa=profiles/coe/numa.yaml
uma=profiles/coe/uma.yaml

wrong() { # NAME GLOB ARGUMENTS...
    name=$1 glob=$2
    shift 2
    run "$plan" "$@"
    error_line 2 "moe-plan: $glob" "$name"
}
wrong "no costs" "option --coe needs --costs*" --coe "$tmp/a.yaml"
wrong "a pack too" "--coe takes a collection*" --coe "$tmp/a.yaml" --costs $numa x.moe
wrong "options of packs" "options --coe and --strategy exclude each other*" --coe "$tmp/a.yaml" --costs $numa --strategy lru
wrong "parts of strategies" "options --coe and --cache exclude each other*" --coe "$tmp/a.yaml" --costs $numa --cache lru
wrong "options of collections" "option --costs goes with --coe*" x.moe --memory 1G --costs $numa
wrong "executors that are none" "option --executors: 'gpu:3' is not*" --coe "$tmp/a.yaml" --costs $numa \
    --executors gpu:3
wrong "no executors at all" "option --executors: 'cpu:0' is not*" --coe "$tmp/a.yaml" --costs $numa --executors cpu:0
wrong "a schedule that is none" "option --schedule: 'lifo' is not one of fcfs, round-robin, arrange, coserve, home*" --coe "$tmp/a.yaml" --costs $numa --schedule lifo
wrong "an eviction that is none" "option --evict: 'x' is not one of lru, fifo, two-stage, queue*" --coe "$tmp/a.yaml" --costs $numa --evict x
wrong "a task that is none" "option --simulate: 'many' is not*" --coe "$tmp/a.yaml" --costs $numa --simulate many
wrong "--json of a plan" "option --json needs --explain, --simulate or --machines*" --coe "$tmp/a.yaml" --costs $numa --json
wrong "a schedule beside all of them" "options --schedule and --simulate exclude*" --coe "$tmp/a.yaml" \
    --costs $numa --schedule home --simulate 9
wrong "two ways to say the memory" "options --casual and --resident*" --coe "$tmp/a.yaml" --costs $numa --casual \
    --resident 3
run "$plan" --coe $numa --costs $numa
error_line 3 "moe-plan: $numa: *moe-coe*" "no collection"
run "$plan" --coe "$tmp/a.yaml" --costs "$tmp/a.yaml"
error_line 3 "moe-plan: $tmp/a.yaml: *moe-coe-costs*" "no costs"
sed 's/architecture: yolov5l/architecture: vgg/' "$tmp/a.yaml" >"$tmp/other.yaml"
run "$plan" --coe "$tmp/other.yaml" --costs $numa
error_line 2 "moe-plan: expert 'detect02': the costs have no architecture 'vgg'*" "costs of other models"
run "$plan" --coe "$tmp/a.yaml" --costs $numa --device-memory 100M --executors cuda:1
error_line 4 "moe-plan: 100.00 MiB is not enough for 1 executor on 'cuda'*" "memory that does not suffice"
run "$plan" --coe "$tmp/a.yaml" --costs $numa --executors cuda:1 --resident 300
error_line 4 "moe-plan: 300 experts and a request for each executor on 'cuda' take *, and 12.00 GiB are there*" \
    "more experts by hand than fit"

# Plans.
run "$plan" --coe "$tmp/a.yaml" --costs $numa -o "$tmp/p.yaml"
expect_exit 0 "a plan is written"
expect_stdout "" "... and nothing on stdout"
expect_stderr_like "moe-plan: $tmp/p.yaml: * results/s expected*" "... a line says so"
check "... its format names it" grep -q "^format: moe-coe-plan" "$tmp/p.yaml"
check "... and its page" grep -q "see moe-coe(5)" "$tmp/p.yaml"
cp "$tmp/p.yaml" "$tmp/first"
run "$plan" -q --coe "$tmp/a.yaml" --costs $numa -o "$tmp/p.yaml"
check "the same inputs give the same plan" cmp -s "$tmp/first" "$tmp/p.yaml"
run "$plan" --explain "$tmp/p.yaml"
expect_stdout_like "Plan for *Executors*Largest batches*Why*with a sliding window*schedule: *: home with eviction*without*; coserve with*Expected of the sample*" \
    "it is explained"
check "... in 80 columns" [ "$(awk 'length > n { n = length } END { print n + 0 }' "$out")" -le 80 ]
explained=$(cat "$out")
run "$plan" --coe "$tmp/a.yaml" --costs $numa
expect_stdout "$explained" "without -o the same is shown at once"
run "$plan" --explain "$tmp/p.yaml" --json
expect_stdout_like '*"format"*"moe-coe-plan"*"reasons"*' "... and as JSON"
run "$plan" --coe "$tmp/a.yaml" --costs $numa --no-prefetch --schedule coserve --evict two-stage
expect_stdout_like "*(coserve)*(two-stage).*Why*" "the paper's schedule, without loading ahead"
check "... which it does not say that it does" [ "$(grep -c "loads while" "$out")" = 0 ]
run "$plan" --coe "$tmp/a.yaml" --costs $numa --casual
expect_stdout_like "*  3 on cuda           3.00 GiB      1.00 GiB*  1 on cpu*the casual setting*" \
    "the casual setting: three executors, 75% for experts"
run "$plan" --coe "$tmp/a.yaml" --costs $uma --casual
expect_stdout_like "*  2 on cuda *  1 on cpu*the casual setting*" "... two where there is one memory"
run "$plan" --coe "$tmp/a.yaml" --costs $uma --executors cuda:2
expect_stdout_like "*the largest batches take 12.4% of 24.00 GiB, so these*come first*" \
    "where batches take little they come first"
run "$plan" --coe "$tmp/a.yaml" --costs $numa --executors cuda:3,cpu:1 --resident 35
expect_stdout_like "*  3 on cuda *             35*cuda: 35 experts, as asked for*" "experts by hand"
run "$plan" --coe "$tmp/a.yaml" --costs $numa --executors cuda:3 --window 30 --seed 4
check "a wider window" [ "$(sed -n '/^Experts in memory/,$p' "$out" | sed -n '2p' | awk '{ print $1 }')" = 30 ]
run "$plan" --coe "$tmp/a.yaml" --costs $uma --memory 6G --executors cuda:1
expect_stdout_like "Plan for *in*6.00*GiB*Executors*" "less memory"
check "each combination of executors has one row" [ -z "$(awk '/^Executors; experts/ { rows = 1; next } /^$/ { rows = 0 }
    rows { sub(/;.*/, ""); print $1, $2, $3, $4 }' "$out" | sort | uniq -d)" ]
run "$plan" --coe "$tmp/a.yaml" --costs $uma --memory 1400M
tr -s ' \n' ' ' <"$out" >"$tmp/words"
check "batches of one have a reason" matches "$tmp/words" \
    "*cuda: each executor's memory for batches, * MiB, has no room for a whole request of resnet101, which takes * MiB, so these are computed one by one.*"

# Systems side by side.
systems="samba samba-fifo samba-parallel none em em+ra casual coserve coserve+next next+home next+queue next+both planned fcfs+two-stage"
for costs in $numa $uma; do
    run "$plan" --coe "$tmp/b.yaml" --costs "$costs" --simulate 2500
    expect_exit 0 "a task on $costs"
    check "... by all systems" [ "$(awk 'NR > 2 { printf "%s ", $1 }' "$out")" = "$systems " ]
    # shellcheck disable=SC2016 # awk expands
    check "... CoServe ahead of every baseline, with fewer switches" awk '
        $1 ~ /^samba/ { speed[$1] = $2; switches[$1] = $3 }
        $1 == "coserve" { s = $2; n = $3 }
        END { for (i in speed) if (s < 2 * speed[i] || n > 0.6 * switches[i]) exit 1 }' "$out"
    # shellcheck disable=SC2016
    check "... each part adds to it" awk '
        $1 ~ /^(none|em|em\+ra|coserve)$/ { if ($2 <= speed || (n && $3 >= n)) exit 1; speed = $2; n = $3 }' "$out"
done
# Plans that lost to the casual setting, by up to 42%: few types, little memory, slow loads.
SKEW=0.5 sh profiles/coe/board.sh 80 >"$tmp/few.yaml"
awk '{ while (match($0, /load_[a-z_]*seconds: [0-9.]+/)) {
           split(substr($0, RSTART, RLENGTH), a, ": ")
           printf "%s%s: %g", substr($0, 1, RSTART - 1), a[1], 3 * a[2]
           $0 = substr($0, RSTART + RLENGTH)
       } print }' $numa >"$tmp/slow.yaml"
for costs in $numa "$tmp/slow.yaml"; do
    run "$plan" --coe "$tmp/few.yaml" --costs "$costs" --memory 4G --simulate 3500
    # shellcheck disable=SC2016
    check "... CoServe's best setting is no worse than its casual one" awk '
        { speed[$1] = $2 } END { exit !(speed["coserve"] > 0.97 * speed["casual"]) }' "$out"
done
run "$plan" --coe "$tmp/b.yaml" --costs $uma --simulate 200 --json
expect_stdout_like '[[]{"system": "samba", "schedule": "fcfs", "evict": "lru", "prefetch": false, "cuda": 1,*}[]]' \
    "as JSON"
check "... all results" [ "$(grep -c '"results": 200,' "$out")" = 14 ]
finish
