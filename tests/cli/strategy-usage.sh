# Strategies on moe-run's command line: what --strategy help lists is taken, what makes no sense is
# refused before a pack is opened. $nowhere: a pack that is not there, exit 1 once all options are.
. tests/cli/lib.sh
nowhere=$tmp/none.moe

run "$bin/moe-run" --strategy help
expect_exit 0 "--strategy help exits with 0"
expect_stderr_lines 0 "... and is silent on stderr"
check "... fits 80 columns" sh -c "! grep -q '.\{81\}' '$out'"
cp "$out" "$tmp/help"
for name in resident ondemand lru host eap edgemoe fate hobbit daop; do
    check "... lists $name" grep -q "^  $name " "$tmp/help"
done

# Every option that it lists is one of moe-run's: its argument is refused, not its name.
sed -n 's/^      --\([a-z-]*\).*/\1/p' "$tmp/help" >"$tmp/options"
check "it lists options" [ "$(wc -l <"$tmp/options")" -ge 18 ]
while read -r option; do
    run "$bin/moe-run" "--$option=" --nope
    check "--$option is an option" sh -c "! grep -q 'unknown option .--$option' '$err'"
done <"$tmp/options"

# The parts of each strategy, as they are listed, make a command line of their own.
awk '/^Strategies:/ { on = 1; next } /^Parts:/ { on = 0 }
     !on || !NF { next }
     /^  [a-z]/ { if (line) print line; line = ""; next }
     { line = line $0 }
     END { if (line) print line }' "$tmp/help" >"$tmp/lines"
check "thirteen strategies have parts" [ "$(grep -c -- --cache "$tmp/lines")" = 13 ]
while read -r line; do
    # shellcheck disable=SC2086 # words are meant
    run "$bin/moe-run" "$nowhere" $line
    check "taken: $line" [ "$code" != 2 ]
done <"$tmp/lines"

missing_pack() { error_line 1 "moe-run: $nowhere: *No such file or directory*" "$1"; }
run "$bin/moe-run" "$nowhere" --strategy lru
missing_pack "a strategy"
run "$bin/moe-run" "$nowhere" --alloc per-layer --cache arc --strategy ondemand
missing_pack "parts before their strategy"
run "$bin/moe-run" "$nowhere" --exact --strategy lru --without cache
missing_pack "a strategy without a part"
run "$bin/moe-run" "$nowhere" --strategy auto --exact
missing_pack "auto"
run "$bin/moe-run" "$nowhere" --device cpu
missing_pack "--device cpu"

wrong() { # GLOB OPTION...
    glob=$1
    shift
    run "$bin/moe-run" "$nowhere" "$@"
    error_line 2 "moe-run: $glob" "refused: $*"
}
wrong "option --strategy: 'magic' is not a strategy (--strategy help lists them)" \
    --strategy magic
wrong "option --cache: 'mru' is not none, *lru*" --cache mru
wrong "option --cache-weights: '1,2' is not default, or four numbers*" --cache hobbit --cache-weights 1,2
wrong "option --without: 'luck' is not a part*" --strategy fate --without prefetch,luck
wrong "option --predict has no effect here: nothing uses the prediction*" --predict gate-next
wrong "option --cache has no effect here: every expert is in memory already" \
    --cache arc --strategy resident
wrong "option --degrade has no effect here: *--precalculate" --degrade
wrong "option --exact forbids what may change results: --prefer-cached 0.1 (without these: --without prefer-cached)" \
    --prefer-cached 0.1 --exact
wrong "option --prefer-cached auto: no bit map says how much*" --strategy lru+prefer-cached
wrong "option --prefer-cached: '-1' is not a number*" --prefer-cached -1
wrong "option --exact forbids what may change results: --on-miss load-low:auto --skip-below auto *--without on-miss,skip-below)" \
    --strategy hobbit --exact
wrong "option --exact forbids what may change results: --prefill hybrid:25% *" \
    --exact --strategy fate --prefill hybrid
wrong "option --exact forbids*: --precalculate --degrade *" --exact --strategy daop
wrong "option --device: 'gpu' is not cpu, cuda*" --device gpu
wrong "option --device: 'test:0.5,1G' is not *" --device test:0.5,1G
wrong "option --device: 'test:2' is not *" --device test:2
wrong "option --staging: '65537' is not *" --staging 65537

finish
