# Budgets of memory: kept, refused where too small, the same tokens as in memory, inside a control
# group where one can be made.
. tests/cli/lib.sh
pack
prompt='Once upon a time, there was a little girl named Lily. She had a red ball and she liked to'
ask() { run "$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 --stats-json "$tmp/stats" "$@"; }
figure() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" "$tmp/stats" | head -n 1; }
tells() { grep -q "\"cache\": \"$1\"" "$tmp/stats" && grep -q "\"alloc\": \"$2\"" "$tmp/stats"; }

ask --strategy resident
expect_exit 0 "resident"
want=$(cat "$out")
check "... says something" [ -n "$want" ]

ask --memory 1M
error_line 4 'moe-run: * too small: the smallest that works is *--memory *' "a budget below the floor"
floor=$(sed 's/.*--memory \([0-9]*\)M.*/\1/' "$err")
for more in 1 2 4 8 12; do
    ask --memory "$((floor + more))M"
    expect_stdout "$want" "floor + $more MiB: the same tokens"
    check "... and its peak stays below" [ "$(figure peak_rss_bytes)" -le $(((floor + more) << 20)) ]
done
# A long prompt borrows slots, and no more than the budget.
head -c 900 tests/data/stories.valid.txt >"$tmp/long.txt"
long() { run "$bin/moe-run" "$tiny" --raw -f "$tmp/long.txt" -n 8 --temp 0 --stats-json "$tmp/stats" "$@"; }
long --strategy resident
want_long=$(cat "$out")
long --memory "$((floor + 6))M"
expect_stdout "$want_long" "a long prompt: the same tokens"
check "... and its peak stays below" [ "$(figure peak_rss_bytes)" -le $(((floor + 6) << 20)) ]
check "... whose passes borrowed slots" [ "$(figure lent)" -gt 0 ]
# A context leaves its memory to experts until a text needs it.
ask --memory 1M -c 512
floor_512=$(sed 's/.*--memory \([0-9]*\)M.*/\1/' "$err")
ask --memory "$((floor_512 + 4))M" -c 512 --reserve-kv
expect_stdout "$want" "a context that is reserved: the same tokens"
reserved=$(figure cache_slots)
check "... and nothing is said of blocks" [ -z "$(figure kv_blocks)" ]
ask --memory "$((floor_512 + 4))M" -c 512
expect_stdout "$want" "one that grows: the same tokens"
check "... it had one of its blocks" [ "$(figure kv_blocks_max)/$(figure kv_blocks)" = 1/2 ]
check "... and experts the memory of the other" [ "$(figure cache_slots)" -gt "$reserved" ]
head -c 1300 tests/data/stories.valid.txt >"$tmp/long.txt"
long --strategy resident -c 512
want_long=$(cat "$out")
long --memory "$((floor_512 + 4))M" -c 512
expect_stdout "$want_long" "a text that takes both: the same tokens"
check "... it had both" [ "$(figure kv_blocks_max)" = 2 ]
check "... and its peak stays below" [ "$(figure peak_rss_bytes)" -le $(((floor_512 + 4) << 20)) ]
for cache in random fifo lru lfu arc pinned; do
    for alloc in global per-layer; do
        ask --expert-memory 2M --cache $cache --alloc $alloc
        expect_stdout "$want" "$cache, $alloc: the same tokens"
        check "... and the statistics name both" tells "$cache" "$alloc"
    done
done
ask --expert-memory 150K --strategy lru
check "a cache below a token's experts: a warning" grep -q "fewer experts than one token uses" "$err"
ask --expert-memory 150K --strategy prefetch
check "... but none where experts are read ahead" [ "$(grep -c "fewer experts than" "$err")" = 0 ]
ask --expert-memory 2M
sum=$(($(figure cache_hits) + $(figure prefetch_hits) + $(figure prefetch_late) + $(figure misses)))
check "the kinds of activation add up" [ "$sum" = "$(figure expert_activations)" ]
ask --strategy ondemand
expect_stdout "$want" "ondemand: the same tokens"
check "... and nothing is hit" [ "$(figure cache_hits)" = 0 ]
ask --expert-memory 2M --link-rate 50M
expect_stdout "$want" "a slow link: the same tokens"
ask --expert-memory 2M --link-rate 1G --lockstep
expect_stdout "$want" "lockstep: the same tokens"
ask --expert-memory 2M --link-rate 2G --pack-in-ram
expect_stdout "$want" "a pack in memory: the same tokens"
ask --expert-memory 2M --no-checksums --trace-events "$tmp/trace"
expect_stdout "$want" "without checksums: the same tokens"
check "a trace of events is written" grep -q '"loads"' "$tmp/trace"
ask --expert-memory 2M --lockstep
check "lockstep without a rate is refused" [ "$code" = 2 ]
ask --cache nonsense
error_line 2 'moe-run: *nonsense*' "an unknown policy"

# The smallest budget is computed: it is kept, and no more than 12 MiB of it are left over: each thread may need 256 KiB,
# and seldom does. Sanitizers take memory of their own.
near_floor() { # PACK OPTION...
    check "the smallest budget of ${1##*/}" [ -s "$1" ]
    set -- "$@" -t 2
    near=$(smallest_memory "$bin/moe-run" "$@" -p x -n 1)
    run "$bin/moe-run" "$@" -p "$prompt" -n 40 --temp 0 --memory "${near}M" --stats-json "$tmp/stats"
    shift
    expect_exit 0 "... $near MiB work $*"
    grep -q __asan_init "$bin/moe-run" && return
    peak=$(($(figure peak_rss_bytes)))
    check "... its peak is no more: $((near * 1024 - peak / 1024)) KiB are left" [ "$peak" -le $((near << 20)) ]
    check "... nor 12 MiB less" [ "$peak" -ge $(((near - 12) << 20)) ]
}
for experts in 4,2 8; do
    "$bin/moe-quantize" -q --method rtn "$checkpoint" --experts $experts -o "$tmp/$experts.moe"
    near_floor "$tmp/$experts.moe"
done
"$bin/moe-quantize" -q --method rtn "$models/tiny-switch" --zstd 3 -o "$tmp/switch.moe"
near_floor "$tmp/switch.moe"
"$bin/moe-profile" -q "$tmp/4,2.moe" --text tests/data/stories.calib.txt --max-windows 1 -o "$tmp/stats.yaml"
near_floor "$tmp/4,2.moe" --strategy fate --statistics "$tmp/stats.yaml"
echo 'root ::= ([a-z ,.A-Z] [a-z ,.A-Z]){2000,40000}' >"$tmp/long.gbnf"
near_floor "$tmp/4,2.moe" --grammar "$tmp/long.gbnf"

# Damage in an expert shows when it is read, names it, and ends the answer only.
size=$(wc -c <"$tiny")
cp "$tiny" "$tmp/hurt.moe"
printf '\377\377\377\377\377\377\377\377' |
    dd of="$tmp/hurt.moe" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
run "$bin/moe-run" "$tmp/hurt.moe" --expert-memory 2M --perplexity tests/data/stories.valid.txt
error_line 3 'moe-run: layer * expert *' "a damaged expert"

# A real limit: the program must survive in a control group of its budget.
if can_control_groups; then
    budget=$((floor + 2))
    control_group $((budget << 20)) "$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 --memory ${budget}M
    expect_stdout "$want" "in a control group of the budget: the same tokens"
    check "... and nothing is killed" [ "$killed" = 0 ]
else
    skip "in a control group of the budget: the same tokens" "none can be made here"
    skip "... and nothing is killed" "none can be made here"
fi

# Files that were read fill a group with page cache, which is given up when memory is needed.
if can_control_groups; then
    # shellcheck disable=SC2016 # for the inner shell
    control_group 90000000 sh -c 'head -c 80000000 /dev/zero >"$0"
        for i in 1 2 3; do cat "$0" >/dev/null; done; exec "$@"' "$tmp/file" \
        "$bin/moe-run" "$tiny" -p "$prompt" -n 40 --temp 0 -c 512
    expect_stdout "$want" "in a control group full of page cache: the same tokens"
    rm "$tmp/file"
else
    skip "in a control group full of page cache: the same tokens" "none can be made here"
fi

# The least that moe-calibrate names is enough for every text of the command, also for one that takes more to read
# than to run, and less is refused before it is read.
head -c 500 tests/data/math.calib.txt >"$tmp/short.txt"
head -c 1048576 /dev/zero | tr '\0' a >"$tmp/wide.txt"
wide() { # MIB
    mib=$1
    set -- "$bin/moe-calibrate" -q "$tmp/4,2.moe" --text "$tmp/short.txt" --check "$tmp/wide.txt" --max-tokens 12 --max-windows 1 \
        --importance proxy --without fate --without hobbit --tolerance 50% -o "$tmp/wide.yaml" --memory "${mib}M"
    if can_control_groups; then control_group $((mib << 20)) "$@"; else run "$@"; fi
}
wide 40
error_line 4 'moe-calibrate: * too small: the smallest that works is *--memory *' "too small a memory for a text"
floor=$(sed 's/.*--memory \([0-9]*\)M.*/\1/' "$err")
wide "$floor"
expect_exit 0 "... and the least that works, ${floor} MiB, works"
finish
