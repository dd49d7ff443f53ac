# Plans that come true: sizes are computed. The same command gives the same bytes on an idle and a busy machine,
# moe-plan and moe-run name the same smallest budget, it works, and a plan takes no memory from its run.
. tests/cli/lib.sh
pack
plan="$bin/moe-plan"
head -c 3000 tests/data/math.valid.txt >"$tmp/text" # plans take as long as their trace
"$bin/moe-profile" -q "$tiny" --text "$tmp/text" --max-tokens 32 -o "$tmp/s.yaml" \
    --trace "$tmp/t.trace"
fingerprint=$(sed -n 's/^ *source_fingerprint: //p' "$tmp/s.yaml")
printf '%s\n' 'format: moe-device' 'version: 1' 'name: "a machine"' 'host:' \
    '  memory_bytes_per_second: 10e9' 'storage:' '  bytes_per_second: 600e6' >"$tmp/device.yaml"

refusal() { # PROGRAM OPTION...: its sentence of a budget that is too small, without its name
    run "$@" --memory 1M
    sed 's/^[a-z-]*: //' "$err"
}
for strategy in '' ondemand fate; do
    # shellcheck disable=SC2086 # words
    want=$(refusal "$bin/moe-run" "$tiny" -p hello ${strategy:+--strategy $strategy})
    # shellcheck disable=SC2086
    got=$(refusal "$plan" "$tiny" ${strategy:+--strategy $strategy})
    check "${strategy:-no strategy}: moe-plan and moe-run name the same smallest budget" [ "$want" = "$got" ]
    least=$(echo "$want" | sed -n 's/.*the smallest that works is .*--memory \([0-9]*\)M.*/\1/p')
    # shellcheck disable=SC2086
    run "$bin/moe-run" "$tiny" -p hello -n 2 --memory "${least:-0}M" --stats-json "$json" \
        ${strategy:+--strategy $strategy}
    expect_exit 0 "... of ${least:-no} MiB, which works"
    check "... and is kept" [ "$(figure peak_rss_bytes)" -le $((${least:-0} << 20)) ]
done

memory=$((least + 3))
make_plan() { # OUT OPTION...
    to=$1
    shift
    run "$plan" -q "$tiny" --memory "${memory}M" --max-tokens 24 --trace "$tmp/t.trace" \
        --device-profile "$tmp/device.yaml" -o "$to" "$@"
}
make_plan "$tmp/idle.yaml"
expect_exit 0 "a plan"
make_plan "$tmp/again.yaml"
check "the same command again: the same bytes" cmp "$tmp/idle.yaml" "$tmp/again.yaml"
(while :; do :; done) &
busy=$!
make_plan "$tmp/busy.yaml"
kill "$busy"
wait "$busy" 2>"$tmp/ended"
check "... and on a busy machine" cmp "$tmp/idle.yaml" "$tmp/busy.yaml"

# What the run holds of experts, with the strategy that the plan has.
held() { # OPTION...
    run "$bin/moe-run" "$tiny" -p 'Once upon a time' -n 24 --temp 0 --stats-json "$json" "$@"
    sed -n 's/.*"resident_expert_bytes_max": *\([0-9]*\).*/\1/p' "$json"
}
slots() { sed -n 's/.*buffers .* + experts \([0-9.]*\) =.*/\1/p' "$out" "$err"; }
make_plan "$tmp/lru.yaml" --strategy lru --batch 32
run "$bin/moe-run" "$tiny" -p hi -n 1 --stats -v --memory "${memory}M" --strategy lru --batch 32
without=$(slots)
run "$bin/moe-run" "$tiny" -p hi -n 1 --stats -v --plan "$tmp/lru.yaml"
check "in the same batches a plan gives experts the ${without:-no} MiB that they have without" [ "$(slots)" = "${without:-none}" ]
small=$(held --plan "$tmp/lru.yaml")
large=$(held --plan "$tmp/lru.yaml" --memory $((memory + 2))M)
check "a run uses what a larger budget has over: $small, then $large bytes" [ "${small:-9}" -lt "${large:-0}" ]
check "... and stays within it" [ "$(figure peak_rss_bytes)" -le $(((memory + 2) << 20)) ]
run "$bin/moe-run" "$tiny" -p hi -n 1 --stats -v --plan "$tmp/lru.yaml" --memory $((memory - 2))M
expect_exit 0 "a plan in a smaller budget has fewer slots"
check "... than ${without:-no} MiB" awk "BEGIN { exit !($(slots) + 0 < ${without:-0}) }"

# Whatever the budget, a plan's run names the same smallest one, also where its layers have slots of their own.
for strategy in fate lru; do
    make_plan "$tmp/large.yaml" --strategy "$strategy" --memory $((memory + 14))M
    for budget in 17 $((memory - 2)) $((memory + 4)) $((memory + 14)); do
        run "$bin/moe-run" "$tiny" -p hi -n 1 --stats -v --plan "$tmp/large.yaml" --memory "${budget}M"
        sed -n 's/.*smallest that works is \([^ ]*\).*/\1/p; s/.*the smallest budget: \([^ ]*\).*/\1/p' "$err"
    done >"$tmp/named"
    check "$strategy: runs by a plan in other budgets name the same smallest: $(tr '\n' ' ' <"$tmp/named")" \
        [ "$(wc -l <"$tmp/named"):$(sort -u "$tmp/named" | wc -l)" = 4:1 ]
    run "$bin/moe-run" "$tiny" -p hi -n 1 --plan "$tmp/large.yaml" --memory "$(awk '{ print int($1 + 1) }' "$tmp/named" | tail -n 1)M"
    expect_exit 0 "... which works"
done

# Batches that are smaller than those chosen are the plan's part of its smallest budget.
make_plan "$tmp/few.yaml" --batch 2 --strategy ondemand
least=$(sed -n 's/^ *floor_bytes: //p' "$tmp/few.yaml")
make_plan "$tmp/few.yaml" --batch 2 --strategy ondemand --memory "${least:-0}"
expect_exit 0 "a plan of batches of 2 in the ${least:-no} bytes that it needs at least"
run "$bin/moe-run" "$tiny" -p hi -n 1 --plan "$tmp/few.yaml"
expect_exit 0 "... runs in them"
for less in 1 100000; do
    run "$bin/moe-run" "$tiny" -p hi -n 1 --plan "$tmp/few.yaml" --memory $((least - less))
    expect_exit 4 "... and not in $less less"
done
finish
