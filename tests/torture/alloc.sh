# Failed allocations: every program does its main jobs on the smallest inputs that reach the code, again
# and again, each time with another allocation failing (tests/tools/fail_calls.c): alone, then it and
# all after it. A job with more than ALLOC_MOST (1500) allocations has its first and last hundred tried
# and others evenly between, the second way a fifth as many. ALLOC_JOBS='name ...' tries these jobs alone.
# tests/tools/failing.sh says what must hold. Two processes at a time; about
# twenty minutes.
# shellcheck shell=sh disable=SC2154,SC1091 # the variables are lib.sh's
. tests/cli/lib.sh
. tests/tools/failing.sh
# Failures that a library answers by itself, with its own words and status.
#   libtinfo: ends the program when it cannot hold the terminal's description, which libedit asks for.
allowed='^"[^"]*", line [0-9]+, col [0-9]+: Out of memory'
#   libedit: el_init writes through pointers that it did not get.
#   jansson: asserts that a long number is whole of which it lost bytes.
theirs='libedit|libjansson'
# (zstd says `not enough memory`; a thread without memory is `unavailable`.)
says='out of memory|Cannot allocate memory|not enough memory|cannot start a thread'

attempt() {
    count=$n_allocations
    most=${ALLOC_MOST:-1500}
    tries FAIL_ALLOC "$most"
    tries FAIL_ALLOC_FROM $((most / 5))
}
jobs_of_programs
finish
