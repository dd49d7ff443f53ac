# Every fuzzer, as many at a time as there are processors, each until it has tried FUZZ_INPUTS inputs
# (no limit) or FUZZ_SECONDS (180) have passed: half an hour on 2 processors. Inputs that are slower
# than 10 seconds or take 2 GB are findings too. New inputs stay in $BUILD/fuzz/new, so that the next
# run goes on where this one ended; findings lie in $BUILD/fuzz.
#
# FUZZ_SANITIZE= builds without clang's sanitizers; say BUILD=build-plain with it.
. tests/cli/lib.sh
FUZZ_SECONDS=${FUZZ_SECONDS:-180}
export BUILD FUZZ_SECONDS
jobs=$(nproc)
targets=$(for source in tests/fuzz/fuzz_*.c; do basename "${source#*/fuzz_}" .c; done)
run make -j"$jobs" fuzz-build
expect_exit 0 "the fuzzers are built"
# shellcheck disable=SC2016 # the inner shell expands
echo "$targets" | xargs -P "$jobs" -I TARGET sh -c '
    make fuzz-TARGET >"$1/TARGET" 2>&1
    echo $? >"$1/TARGET.status"' sh "$tmp"
all=0
for target in $targets; do
    cp "$tmp/$target" "$err"
    code=$(cat "$tmp/$target.status")
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$err")
    all=$((all + ${inputs:-0}))
    expect_exit 0 "$target: ${inputs:-no} inputs"
done
check "all targets: $all inputs" [ "$all" -gt 0 ]
finish
