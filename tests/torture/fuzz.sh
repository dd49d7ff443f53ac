# Every fuzzer for FUZZ_SECONDS (600) under clang's sanitizers; findings lie in $BUILD/fuzz.
. tests/cli/lib.sh
seconds=${FUZZ_SECONDS:-600}
for source in tests/fuzz/fuzz_*.c; do
    target=${source#*/fuzz_}
    target=${target%.c}
    run make --no-print-directory BUILD="$BUILD" FUZZ_SECONDS="$seconds" "fuzz-$target"
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$err")
    expect_exit 0 "$target: ${inputs:-no} inputs"
done
finish
