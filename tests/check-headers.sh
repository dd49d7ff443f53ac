#!/bin/sh
# Every header compiles alone. A header that is a template for one variant's file says so with the
# words "not self-contained"; one for ARM is skipped on other machines.
set -eu
cd "$(dirname "$0")/.."
arm='<arm_neon.h>'
! ${CC:-cc} -dumpmachine | grep -q '^aarch64' || arm='not self-contained'
# Many in one command, each a unit of its own; the compiler says which does not.
find lib cmd kernels -name '*.h' | sort | xargs grep -L -e 'not self-contained' -e "$arm" |
    xargs ${CC:-cc} -std=c11 -Wall -Wextra -Wno-unused-function -Wno-unused-parameter -Werror \
        -fsyntax-only -Ilib -Icmd -Ikernels -x c ||
    { echo "headers that do not compile alone stand above"; exit 1; }
