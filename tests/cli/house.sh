# The checks of the house themselves: check-rooms.sh finds what is planted in a small tree.
. tests/cli/lib.sh
house=$tmp/house
mkdir -p "$house/tests" "$house/lib/base" "$house/lib/quant" "$house/lib/kern" "$house/lib/cache" "$house/cmd"
cp tests/check-rooms.sh "$house/tests/"
mkdir "$house/stub"
: >"$house/stub/gpu.h"
cc=${CC:-cc}

file() { # PATH TEXT
    printf '%b' "$2" >"$house/$1"
}
file lib/README.md '## Glossary\n\n| word | meaning |\n|---|---|\n| a | b |\n| c | d |\n'
rooms() {
    for source in "$house"/lib/*/*.c; do
        object=$house/build/${source#"$house"/}
        mkdir -p "$(dirname "$object")"
        # shellcheck disable=SC2086 # may be a command with arguments
        $cc -I"$house/lib" -I"$house/stub" -c "$source" -o "${object%.c}.o"
    done
    run env BUILD=build sh "$house/tests/check-rooms.sh"
}

file lib/base/low.c 'int low(void);\nint low(void) { return 1; }\n'
file lib/base/low.h '#include <stdint.h>\n'
file lib/quant/high.c '#include "base/low.h"\nint low(void);\nint high(void);\nint high(void) { return low(); }\n'
file lib/quant/high.h '\n'
file lib/kern/kern.h '\n'
file lib/cache/store.h '\n'
file lib/cache/internal.h '\n'
file lib/cache/store.c '#include "cache/internal.h"\n'
file cmd/main.c '#include "quant/high.h"\n'
rooms
expect_exit 0 "rooms that use rooms below them, and no circles, are fine"

file lib/base/low.h '#include "quant/high.h"\n'
rooms
expect_exit 1 "an upward include is refused"
expect_stdout "lib/base/low.h:1: base must not include quant/high.h" "and named"
file lib/base/low.h '\n'
file lib/cache/store.c '#include "kern/kern.h"\n'
rooms
expect_stdout "lib/cache/store.c:1: cache must not include kern/kern.h" "rooms apart do not know each other"
file lib/cache/store.c '#include "gpu.h"\n'
rooms
expect_stdout "lib/cache/store.c:1: cache must not include gpu.h" "the GPU's interface is for the upper rooms"
file lib/cache/store.c '\n'
file cmd/main.c '#include "cache/internal.h"\n'
rooms
expect_stdout "cmd/main.c:1: cmd must not include cache/internal.h" "a room's internal header is its own"
file cmd/main.c '\n'
mkdir "$house/lib/attic"
file lib/attic/box.c 'int box;\n'
rooms
expect_stdout "lib/attic/box.c: unknown room" "a room that nobody named is refused"
rm -r "$house/lib/attic" "$house/build/lib/attic"
cp "$house/lib/README.md" "$tmp/glossary"
echo '| a | e |' >>"$house/lib/README.md"
rooms
expect_exit 1 "a word that the glossary has twice is refused"
expect_stdout "lib/README.md: the glossary has 'a' twice" "... and named"
cp "$tmp/glossary" "$house/lib/README.md"

file lib/base/low.c 'int high(void);\nint low(void);\nint low(void) { return high(); }\n'
rooms
expect_exit 1 "a circle of calls is refused"
expect_stdout_like "files that call each other in a circle:*lib/*/*.c*lib/*/*.c*" "and its files are named"
file lib/base/low.c 'int low(void);\nint low(void) { return 1; }\n'

# run.sh counts what a cmocka program prints: a skipped test is "not ok N # SKIP" to some versions.
cp tests/run.sh "$house/tests/"
mkdir -p "$house/tests/cli" "$house/made/tests/unit" "$house/made/tests/kern"
planted() { # LINES STATUS
    printf '#!/bin/sh\nprintf "%s"\nexit %s\n' "$1" "$2" >"$house/made/tests/unit/test_planted"
    chmod +x "$house/made/tests/unit/test_planted"
    run env BUILD=made JOBS=1 sh "$house/tests/run.sh" quick
}
last() { [ "$(tail -n 1 "$out")" = "$1" ]; }
planted '1..3\\nok 1 - a\\nnot ok 2 # SKIP b\\nok 3 # SKIP c\\n' 0
expect_exit 0 "skipped tests are no failures, in either form"
check "... and are counted" last "1 passed, 0 failed, 2 skipped"
check "... and shown in one form" [ "$(grep -c ': ok [23] # SKIP ' "$out")" = 2 ]
planted '1..2\\nok 1 - a\\nnot ok 2 - SKIP b\\n' 1
expect_exit 1 "a failed test is one, whatever its name"
check "... and is counted" last "1 passed, 1 failed"
planted '1..2\\nok 1 - a\\n' 0
check "a test that was announced and did not run has failed" last "1 passed, 1 failed"

# What continuous integration leaves out under sanitizers is there to be left out, with a reason.
sed 's/#.*//' tests/unsanitized.txt | while read -r left_out why; do
    [ -z "$left_out" ] || { [ -n "$why" ] && [ -n "$(ls "tests/cli/$left_out" tests/unit/"$left_out".c tests/kern/"$left_out".c tests/gpu/"$left_out".c 2>/dev/null)" ]; } ||
        echo "$left_out"
done >"$tmp/unknown"
check "tests/unsanitized.txt names tests, each with a reason" [ ! -s "$tmp/unknown" ]

# Of torture each line is wanted, and a total.
mkdir "$house/tests/torture"
torture() { # LINE OF heat.sh
    printf 'echo "1..1"; echo "%s"\n' "$1" >"$house/tests/torture/heat.sh"
    run env SLOW= BUILD=made JOBS=2 sh "$house/tests/run.sh" torture
}
printf 'echo "1..1"; echo "ok 1 - two hours"\n' >"$house/tests/torture/soak.sh"
torture 'ok 1 - 7 of 7 died'
expect_exit 0 "torture passes"
check "... prints what was tried" grep -q '^tests/torture/heat.sh: ok 1 - 7 of 7 died$' "$out"
check "... and how long" grep -q '^tests/torture/soak.sh: [0-9]* s, [0-9.]* of a processor$' "$out"
check "... and totals" last "2 passed, 0 failed"
torture 'not ok 1 - 7 of 7 died'
expect_exit 1 "torture fails with one of its checks"
check "... and counts it" last "1 passed, 1 failed"
finish
