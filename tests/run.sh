#!/bin/sh
# Runs tests and counts: tests/run.sh [quick|all|root|gpu|torture]. The last line is "N passed, N failed", with
# ", N skipped" where some were; exit 1 when any failed.
#
# Unit and kernel tests are cmocka programs, the others are scripts; all print TAP. A test that dies,
# exits nonzero without a failed line, or announces more tests than it runs, adds one failed test.
#
#   LEAVE_OUT='test_x ...'  tests that are neither run nor counted
#   SLOW=SECONDS            prints which tests take at least so long, and their processor time
#   JOBS=N                  tests that run at a time: by default as many as there are processors
#   RUN_UNDER=COMMAND       runs each test of gpu
#   BUILD=DIR               the build directory; everything runs from the repository's root
#
# For torture every line is printed, with the seconds of each script, and the soak starts first.
# When as many tests run as there are processors, each script is bound to one processor, so that programs
# compute with one thread unless an option asks for more: threads of several programs on the same
# processors mostly wait for each other.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}
PROCESSORS=${PROCESSORS:-$(nproc 2>/dev/null || echo 2)}
JOBS=${JOBS:-$PROCESSORS}
export BUILD CMOCKA_MESSAGE_OUTPUT=TAP PROCESSORS JOBS

# ---- One test ------------------------------------------------------------------------------------

# Counts the TAP in FILE and adds a line "passed failed skipped" to $COUNTS; prints what failed. STATUS is the
# test's exit status.
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

# Prints the command that binds a script to one processor, if each running test has one.
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
    "$BUILD"/fuzz-replay/*) # prints no TAP: its exit status is the result
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
        times >"$out.times" # the second line is the children's: other work does not change it
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
    # In one piece: other tests print too. Where cat copies from file to file it writes over what they print.
    sed '' "$out.said"
    exit 0
fi

# ---- All of them ---------------------------------------------------------------------------------

tests() { # quick|all|root|gpu|torture
    if [ "$1" = root ]; then # tests that check more, or differently, with root's rights
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
    # The scripts first: the small tests at the end keep all processors busy.
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
