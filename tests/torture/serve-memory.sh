# Memory of moe-serve: a collection of packs with results that go on, answered in control groups of exactly
# --memory and without swap, from the smallest that works up, by one executor and by two, with every way of
# eviction. None may be killed, every request is answered as with memory for all, and the peak is printed.
#
# SERVE_MEMORY_PACKS (12): packs; SERVE_MEMORY_REQUESTS (120); SERVE_MEMORY_MORE ('0 2 16'): MiB above the smallest;
# SERVE_MEMORY_ROUNDS (3): how often the requests come in a run. About ten minutes.
# shellcheck shell=sh disable=SC2154,SC1091 # the variables are lib.sh's
. tests/cli/lib.sh
packs=${SERVE_MEMORY_PACKS:-12}
requests=${SERVE_MEMORY_REQUESTS:-120}
more=${SERVE_MEMORY_MORE:-0 2 16}
rounds=${SERVE_MEMORY_ROUNDS:-3}
can_control_groups || {
    skip "memory of moe-serve" "no control group can be made here"
    finish
}
c=$tmp/c
derive "$c" --experts $((packs - packs / 4)) --checks $((packs / 4)) --requests "$requests" --words 60 --tokens 24
for round in $(seq "$rounds"); do
    sed "s/\"custom_id\":\"/&$round-/" "$c/requests.jsonl"
done >"$tmp/requests.jsonl"
n=$((requests * rounds))

serve() { # BYTES|none OPTION...
    bytes=$1
    shift
    rm -f "$tmp/results" "$json"
    set -- "$bin/moe-serve" -q --coe "$c/collection.yaml" --requests "$tmp/requests.jsonl" -o "$tmp/results" \
        --stats-json "$json" "$@"
    if [ "$bytes" = none ]; then run "$@"; else control_group "$bytes" "$@"; fi
}
# What does not differ from run to run: id, model and answer.
texts() {
    sed -n 's/.*\("custom_id":"[^"]*"\).*\("model":"[^"]*"\).*\("choices":.*\),"usage".*/\1 \2 \3/p' "$tmp/results" | sort
}

serve none --sequences 4
expect_exit 0 "with memory for all"
texts >"$tmp/want"
check "all $n requests have results" [ "$(wc -l <"$tmp/want")" = "$n" ]
check "none is an error" [ "$(grep -c '"error":null' "$tmp/results")" = "$n" ]

for executors in cpu:1 cpu:2; do
    smallest=$(smallest_memory "$bin/moe-serve" --coe "$c/collection.yaml" --requests "$tmp/requests.jsonl" \
        --executors $executors --sequences 4)
    check "$executors: a smallest memory of ${smallest:-none} MiB" [ -n "$smallest" ]
    for evict in lru fifo two-stage queue; do
        for above in $more; do
            memory=$((${smallest:-0} + above))
            row="$executors, $evict, smallest + $above MiB"
            serve $((memory << 20)) --memory ${memory}M --executors $executors --evict $evict --sequences 4
            check "$row: is not killed" [ "$killed" = 0 ]
            expect_exit 0 "$row: ends"
            [ "$code" = 0 ] || continue
            peak=$(figure peak_rss_bytes)
            check "$row: peak $((peak >> 10)) KiB of $((memory << 10))" [ "$peak" -le $((memory << 20)) ]
            texts >"$tmp/got"
            check "$row: every answer is the same" cmp -s "$tmp/want" "$tmp/got"
        done
    done
done
finish
