#!/bin/sh
# Runs tests and counts: tests/run.sh [quick|all|root|gpu|torture]. The last line is "N passed, N failed", with
# ", N skipped" where some were; exit 1 when any failed.
#
# Unit and kernel tests are cmocka programs, the rest are scripts; all speak TAP. A test that dies,
# exits nonzero without a failed line, or announces more tests than it runs, counts as one failed
# test more. LEAVE_OUT='test_x ...' names tests that are not run and not counted; SLOW=SECONDS names
# those that take as long or longer, with the seconds of a processor that they use; JOBS=N run at a time
# (as many as there are processors), in files of their own; RUN_UNDER=COMMAND runs those of gpu. Of
# torture every line is printed, with the seconds each script took, and the soak begins first. Where as
# many run at a time as there are processors, each script has one of them: programs then compute with
# one thread unless their options say more, since threads of several programs on the same processors
# mostly wait for each other.
# Everything runs from the repository's root with BUILD naming the build directory.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}
PROCESSORS=${PROCESSORS:-$(nproc 2>/dev/null || echo 2)}
JOBS=${JOBS:-$PROCESSORS}
export BUILD CMOCKA_MESSAGE_OUTPUT=TAP PROCESSORS JOBS

# ---- One test ------------------------------------------------------------------------------------

# Counts the TAP in FILE of a test with exit status STATUS into "passed failed skipped", a line of
# $COUNTS; prints what failed.
count() { # NAME STATUS FILE
    awk -v name="$1" -v status="$2" -v counts="$COUNTS" -v all="$([ "$TIER" = torture ] && echo 1)" '
        /^1\.\.[0-9]+/ { split($0, range, "\\.\\."); plan += range[2]; planned = 1 }
        /^(not )?ok .*# *[Ss][Kk][Ii][Pp]/ { # "not ok" to some versions of cmocka
            skipped++
            showing = 0
            sub(/^not /, "")
            print name ": " $0
            next
        }
        /^ok/ { passed++; showing = all }
        /^not ok/ { failed++; showing = 1 }
        showing { print name ": " $0 }
        END {
            ran = passed + failed + skipped
            if (!planned) { print name ": no plan (1..N): it died or ran nothing"; failed++ }
            else if (ran < plan) { print name ": " ran " of " plan " tests ran"; failed++ }
            else if (status != 0 && !failed) { failed++; print name ": exit status " status }
            print passed + 0, failed + 0, skipped + 0 >>counts
        }' "$3"
}

replay() {
    if "$@"; then echo "ok 1 - corpus"; else echo "not ok 1 - corpus: exit status $?"; fi
    echo "1..1"
}

# The command that runs a script on the processor of its place among the running ones, where each has
# one.
processor() {
    [ "$JOBS" -ge "$PROCESSORS" ] && [ "$TIER" != torture ] || return 0
    set -- taskset -c "$((${PLACE:-0} % PROCESSORS))"
    "$@" true 2>/dev/null && echo "$@"
}

one() { # TEST
    case $1 in
    *.sh)
        name=$1
        # shellcheck disable=SC2046 # a command with arguments, or nothing
        set -- $(processor) sh "$1"
        ;;
    "$BUILD"/fuzz-replay/*) # prints no TAP: it survives its corpus or does not
        name=${1#"$BUILD"/}
        set -- replay "$1" "tests/fuzz/corpus/${1##*/fuzz_}"
        ;;
    "$BUILD"/tests/gpu/*)
        name=${1#"$BUILD"/}
        # shellcheck disable=SC2086 # a command with arguments
        set -- ${RUN_UNDER:-} "$1"
        ;;
    *) name=${1#"$BUILD"/} ;;
    esac
    began=$(date +%s)
    "$@" >"$out" 2>&1 </dev/null
    status=$?
    took=$(($(date +%s) - began))
    if [ "$took" -ge "${SLOW:-1000000}" ]; then
        times >"$out.times" # of the children, in the second line: what other work does not change
        used=$(awk 'NR == 2 { gsub(/[ms]/, " "); printf "%.1f", $1 * 60 + $2 + $3 * 60 + $4 }' "$out.times")
        echo "$name: $took s, $used of a processor"
    fi
    # The last lines of a test that died.
    if [ "$status" -gt 125 ]; then
        tail -n 5 "$out" | sed "s|^|$name: |"
    fi
    count "$name" "$status" "$out"
}

if [ "${1:-}" = one ]; then
    out=$(mktemp) || exit 1
    trap 'rm -f "$out" "$out.said" "$out.times"' EXIT
    one "$2" >"$out.said" 2>&1
    cat "$out.said" # at once: others write too
    exit 0
fi

# ---- All of them ---------------------------------------------------------------------------------

tests() { # quick|all|root|gpu|torture
    if [ "$1" = root ]; then # what tests more, or otherwise, with root's rights
        grep -l -E '^[^#]*(can_control_groups|small_disk|ordinary )' tests/cli/*.sh | grep -v /lib.sh
        grep -l geteuid tests/unit/test_*.c | sed "s|^tests\(.*\)\.c$|$BUILD/tests\1|"
        return
    fi
    if [ "$1" = torture ]; then
        echo tests/torture/soak.sh
        for test in tests/torture/*.sh; do
            case $test in */soak.sh) ;; *) echo "$test" ;; esac
        done
        return
    fi
    if [ "$1" = gpu ]; then
        for test in "$BUILD"/tests/gpu/test_*; do
            [ -x "$test" ] && echo "$test"
        done
        return
    fi
    # The scripts first: small tests at the end keep all processors busy until then.
    for test in tests/cli/*.sh; do
        case $test in */lib.sh) continue ;; esac
        case $1,$test in
        all,*) ;;
        *,*cuda.sh) continue ;; # make quick builds no shim
        esac
        [ -f "$test" ] && echo "$test"
    done
    for test in "$BUILD"/tests/unit/test_* "$BUILD"/tests/kern/test_*; do
        case $test in *.o | *.d) continue ;; esac
        [ -x "$test" ] && echo "$test"
    done
    for test in "$BUILD"/shim/tests/gpu/test_*; do
        [ "$1" = all ] && [ -x "$test" ] && echo "$test"
    done
    for test in "$BUILD"/fuzz-replay/*; do
        case $test in *.o | *.d) continue ;; esac
        [ "$1" = all ] && [ -f "$test" ] && [ -x "$test" ] && echo "$test"
    done
}

COUNTS=$(mktemp) || exit 1
TIER=${1:-all}
[ "$TIER" != torture ] || SLOW=${SLOW:-0}
export COUNTS TIER SLOW
trap 'rm -f "$COUNTS"' EXIT
trap 'exit 1' INT TERM
tests "$TIER" | while IFS= read -r test; do
    case " ${LEAVE_OUT:-} " in
    *" ${test##*/} "*) echo "${test#"$BUILD"/}: left out" >&2 ;;
    *) echo "$test" ;;
    esac
done | xargs -n 1 -P "$JOBS" --process-slot-var=PLACE sh tests/run.sh one
awk -v status=$? '
    { passed += $1; failed += $2; skipped += $3 }
    END {
        if (status) { print "a test was not counted: xargs ended with " status; failed++ }
        printf "%d passed, %d failed", passed, failed
        if (skipped) printf ", %d skipped", skipped
        printf "\n"
        exit failed > 0 || passed == 0
    }' "$COUNTS"
