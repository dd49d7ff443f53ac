# moe-serve with a collection three times larger than its memory and more: answers do not depend on the budget, on
# executors or schedules, and the process stays inside a control group of the budget.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
coe=$tmp/coe
derive "$coe" --experts 4 --checks 1 --requests 24 --tokens 12
collection=$coe/collection.yaml
serve() { # OPTION...
    "$bin/moe-serve" -q -t 2 -c 512 --coe "$collection" --requests "$coe/requests.jsonl" "$@"
}
# What was answered, by request: all but what the clock and the order of ending decide.
answers() {
    sed 's/"\(request_\)*id": *"[^"]*"//g; s/"created": *[0-9]*//; s/"cached_tokens": *[0-9]*//' "$1" | sort
}
same() { # FILE
    answers "$1" >"$tmp/these"
    cmp -s "$tmp/these" "$tmp/want"
}

run serve
expect_exit 0 "with all memory it serves every request"
check "... with an answer each" [ "$(grep -c '"choices"' "$out")" = 24 ]
answers "$out" >"$tmp/want"
check "... and answers of several models" [ "$(grep -o '"model": *"[^"]*"' "$out" | sort -u | wc -l)" -ge 3 ]

floor=$(smallest_memory serve)
check "the smallest memory is named" [ "${floor:-0}" -gt 20 ]
check "... which is far below the collection" [ $((floor * 1048576)) -lt "$(cat "$coe"/*.moe | wc -c)" ]
run serve --memory $((floor - 4))M
expect_exit 4 "less is refused"
two=$(smallest_memory serve --executors cpu:2)
check "two executors need more" [ "$two" -gt "$floor" ]

limited() { # MIB NAME OPTION...
    mib=$1 name=$2
    shift 2
    if ! can_control_groups; then
        skip "$name: in a control group of $mib MiB" "none can be made here"
        skip "... the same answers" "none can be made here"
        skip "... and nothing is killed" "none can be made here"
        return
    fi
    control_group $((mib << 20)) "$bin/moe-serve" -q -t 2 -c 512 --coe "$collection" \
        --requests "$coe/requests.jsonl" --memory "${mib}M" "$@"
    expect_exit 0 "$name: in a control group of $mib MiB"
    check "... the same answers" same "$out"
    check "... and nothing is killed" [ "$killed" = 0 ]
}
limited "$floor" "the smallest memory"
limited $((floor + 30)) "some more" --evict lru
limited "$two" "two executors, the smallest memory" --executors cpu:2
limited $((two + 40)) "two executors, some more, in the order of coming" --executors cpu:2 --schedule fcfs --evict fifo

# moe-plan gives all of the memory away, of which the server needs a part.
mib=$((floor + 40))
run "$bin/moe-profile" -q --coe "$collection" --requests "$coe/requests.jsonl" --max-batch 2 -t 1 -o "$tmp/costs"
expect_exit 0 "what the models cost is measured"
run "$bin/moe-plan" -q --coe "$collection" --costs "$tmp/costs" --memory "${mib}M" -o "$tmp/plan"
expect_exit 0 "... and a budget is planned"
limited "$mib" "a plan for all of the budget" --plan "$tmp/plan"
run serve --memory $((floor - 4))M --plan "$tmp/plan"
expect_exit 4 "less than the smallest is refused with a plan, too"

# What is computed for models that come and go is what is seen, within 32 MiB; and what they take goes with them.
serve_all() { # the first requests, one after another
    head -n 10 "$coe/requests.jsonl" | while read -r line; do
        printf '%s' "$line" | sed 's/"custom_id": *"[^"]*", *//' >"$tmp/body"
        "$load" -p "$port" -P /v1/completions -f "$tmp/body" >/dev/null
    done
}
floor=$(smallest_memory "$bin/moe-serve" -q -t 1 -c 512 --port 0 --coe "$collection")
if can_control_groups; then
    head -n 1 "$coe/requests.jsonl" >"$tmp/one"
    control_group $(((floor + 200) << 20)) "$bin/moe-serve" -t 1 -c 512 --coe "$collection" --requests "$tmp/one" --memory 3G
    expect_stderr_like "*control groups leave this process * MiB, not the 3.00 GiB of --memory: it may be killed*" \
        "a budget above the control group's is noted"
else
    skip "a budget above the control group's is noted" "none can be made here"
fi
# Counted page by page, without those of code: the figures that kernels keep may be late by some pages for each processor.
anonymous() { sed -n 's/^Anonymous: *\([0-9]*\) kB/\1/p' "/proc/$server/smaps_rollup"; }
listen "$bin/moe-serve" --coe "$collection" -c 512 --memory "$((floor + 100))M"
serve_all
first=$(anonymous) taken=$(($(served executor_models_bytes) + $(served executor_batch_bytes)))
serve_all
serve_all
last=$(served memory_rss_bytes) more=$(($(anonymous) - first)) loads=$(served executor_loads_total)
kill "$server"
wait "$server"
check "a server's models come and go" [ "$loads" -gt 6 ]
check "... and take no more than is computed" [ "$last" -le $((taken + (12 << 20))) ]
check "... nor 32 MiB less" [ "$last" -ge $((taken - (20 << 20))) ]
check "... however often they come: $more KiB more" [ "$more" -le 1024 ]
finish
