# Failed writes: the jobs of the programs that write files, with one of the calls failing that make,
# write, flush, name or close them (tests/tools/fail_calls.c): with ENOSPC and with EIO alone, with ENOSPC it
# and all after it, by a short write, by a write that takes nothing. Every output is there before, with
# another content: after a failure it has this or the whole new one, and nothing lies beside it.
# WRITES_MOST (300): of a job's calls at most so many; ALLOC_JOBS='name ...' tries these jobs alone.
# tests/tools/failing.sh says what must hold. Two processes at a time; about ten minutes.
# shellcheck shell=sh disable=SC2154,SC1091,SC2034 # the variables are lib.sh's and failing.sh's
. tests/cli/lib.sh
. tests/tools/failing.sh
most=${WRITES_MOST:-300}
allowed= theirs=
says='No space left on device|Input/output error|the system takes no bytes'
old='what was there'

attempt() {
    [ "$n_writes" -gt 0 ] || return 0
    count=$n_writes
    tries FAIL_WRITE "$most"
    tries "FAIL_WRITE_AS=EIO FAIL_WRITE" "$most"
    tries FAIL_WRITE_FROM "$most"
    tries "FAIL_WRITE_AS=short FAIL_WRITE" "$most"
    tries "FAIL_WRITE_AS=zero FAIL_WRITE" "$most"
}
jobs_of_programs
finish
