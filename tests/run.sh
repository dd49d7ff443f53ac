#!/bin/sh
# Runs tests and counts: tests/run.sh [quick|all]. The last line is "N passed, N failed", with
# ", N skipped" where some were; exit 1 when any failed.
#
# Unit and kernel tests are cmocka programs, the rest are scripts; all speak TAP. A test that dies,
# exits nonzero without a failed line, or announces more tests than it runs, counts as one failed
# test more. LEAVE_OUT='test_x ...' names tests that are not run and not counted; SLOW=SECONDS names
# those that take as long or longer. Everything runs from the repository's root with BUILD naming the
# build directory.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}
# Spinning at barriers is ten times slower than sleeping when other programs want the cores.
OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
export BUILD CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY
what=${1:-all}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
: >"$work/counts"

# Counts one test's TAP in $work/out with exit status $2 into "passed failed skipped"; prints what
# failed.
count() {
    awk -v name="$1" -v status="$2" -v counts="$work/counts" '
        /^1\.\.[0-9]+/ { split($0, range, "\\.\\."); plan += range[2]; planned = 1 }
        /^(not )?ok .*# *[Ss][Kk][Ii][Pp]/ { skipped++; showing = 0; print name ": " $0; next }
        /^ok/ { passed++; showing = 0 }
        /^not ok/ { failed++; showing = 1 }
        showing { print name ": " $0 }
        END {
            ran = passed + failed + skipped
            if (!planned) { print name ": no plan (1..N): it died or ran nothing"; failed++ }
            else if (ran < plan) { print name ": " ran " of " plan " tests ran"; failed++ }
            else if (status != 0 && !failed) { failed++; print name ": exit status " status }
            print passed + 0, failed + 0, skipped + 0 >>counts
        }' "$work/out"
}

run() {
    name=$1
    shift
    case " ${LEAVE_OUT:-} " in
    *" ${name##*/} "*)
        echo "$name: left out"
        return
        ;;
    esac
    began=$(date +%s)
    "$@" >"$work/out" 2>&1 </dev/null
    status=$?
    took=$(($(date +%s) - began))
    [ "$took" -lt "${SLOW:-1000000}" ] || echo "$name: $took s"
    count "$name" "$status"
    # A dead test's last words.
    if [ "$status" -gt 125 ]; then
        tail -n 5 "$work/out" | sed "s|^|$name: |"
    fi
}

replay() {
    if "$@"; then echo "ok 1 - corpus"; else echo "not ok 1 - corpus: exit status $?"; fi
    echo "1..1"
}

for test in "$BUILD"/tests/unit/test_* "$BUILD"/tests/kern/test_*; do
    case $test in *.o | *.d) continue ;; esac
    [ -x "$test" ] && run "${test#"$BUILD"/}" "$test"
done
if [ "$what" = all ]; then
    for test in "$BUILD"/fuzz-replay/*; do
        case $test in *.o | *.d) continue ;; esac
        # A replay speaks no TAP: it survives its corpus or does not.
        if [ -f "$test" ] && [ -x "$test" ]; then
            run "${test#"$BUILD"/}" replay "$test" "tests/fuzz/corpus/${test##*/fuzz_}"
        fi
    done
fi
for test in tests/cli/*.sh; do
    case $test in */lib.sh) continue ;; esac
    [ -f "$test" ] && run "$test" sh "$test"
done
awk '{ passed += $1; failed += $2; skipped += $3 }
     END {
         printf "%d passed, %d failed", passed, failed
         if (skipped) printf ", %d skipped", skipped
         printf "\n"
         exit failed > 0 || passed == 0
     }' "$work/counts"
