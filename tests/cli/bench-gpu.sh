#!/bin/sh
# bench_gpu on the tests' shim: every part runs and every figure is a positive number. How large
# they are says nothing there.
. "$(dirname "$0")/lib.sh"
bench=$BUILD/shim/tests/bench/bench_gpu
if [ ! -x "$bench" ]; then
    echo "1..0 # SKIP no shim in this build (make shim)"
    exit 0
fi

run "$bench" --smoke
expect_exit 0 "every figure is a positive number"
for part in device decode layer prompts attention overlap launches; do
    check "$part is measured" grep -q "^== $part" "$out"
done
expect_stdout_like '*8 sections, 418 figures, 0 of them no positive number' "no figure is left out"

two=$tmp/two.moe
"$bin/moe-quantize" -q --method rtn --experts 4,2 -o "$two" "$checkpoint"
"$bin/moe-profile" -q "$two" --text tests/data/stories.calib.txt --max-tokens 24 --max-windows 1 -o "$tmp/stats.yaml"
run "$bench" --smoke "$two" --statistics "$tmp/stats.yaml" --text tests/data/stories.valid.txt
expect_exit 0 "a model is measured"
for row in ondemand fate hobbit daop prefetch; do
    check "$row runs with a part of the experts and with all" \
        [ "$(grep -c "^$row .*%.*MB |" "$out")" = 2 ]
done
check "resident runs as a graph and without" [ "$(grep -c '^resident, .*MB |' "$out")" = 2 ]

run env MOE_SHIM_DEVICES=0 "$bench"
expect_exit 0 "no device: no error"
expect_stdout_like "nothing is measured: no CUDA device*" "... and why"
run "$bench" --fast
expect_exit 2 "an unknown option is refused"
finish
