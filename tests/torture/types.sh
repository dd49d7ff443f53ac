# GGUF files of each type of few bits (IQ1 to IQ3, TQ1_0, Q1_0, Q2_0) and of ik_llama.cpp, DAMAGED (200) of each with bytes changed or
# missing: converted, or refused with one line. Two minutes.
# shellcheck shell=sh disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
run env DAMAGED="${DAMAGED:-200}" "$BUILD/tests/unit/test_convert_gguf"
expect_exit 0 "files with damage in types of few bits"
grep '^# ' "$out" "$err" | sed 's/^[^#]*//'
finish
