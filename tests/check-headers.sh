#!/bin/sh
# Every header compiles alone. A header that is a template for one variant's file says so with the
# words "not self-contained"; one for ARM is skipped on other machines.
set -eu
cd "$(dirname "$0")/.."
bad=0
for header in $(find lib cmd kernels -name '*.h' | sort); do
    if grep -q 'not self-contained' "$header"; then
        continue
    fi
    if grep -q '<arm_neon.h>' "$header" && ! ${CC:-cc} -dumpmachine | grep -q '^aarch64'; then
        continue
    fi
    if ! printf '#include "%s"\nextern int moe_no_empty_unit;\n' "$PWD/$header" |
        ${CC:-cc} -std=c11 -Wall -Wextra -Wno-unused-function -Wno-unused-parameter -Werror \
            -fsyntax-only -Ilib -Icmd -Ikernels -x c -; then
        echo "$header: does not compile alone"
        bad=1
    fi
done
exit $bad
