#!/bin/sh
# Installs what building and testing need, if anything is missing; says so first. Debian and Ubuntu
# are served by apt, with sudo where needed; where that cannot be, it names what is missing in one line.
# --look: installs nothing, and says what the programs need; FLAGS: the compiler's, which may name places.
set -eu
packages='gcc g++ libc6-dev make libjansson-dev libpcre2-dev libedit-dev libyaml-dev libzstd-dev
    zlib1g-dev libxxhash-dev libutf8proc-dev liburing-dev libmicrohttpd-dev libcmocka-dev'

# What counts is whether it compiles: the libraries may come from anywhere.
compiles() { # HEADER LIBRARY of the tests
    header=${1:-errno.h} library=${2:-}
    # shellcheck disable=SC2086 # may be a command with arguments: "ccache gcc"
    set -- ${CC:-cc} ${FLAGS:-}
    command -v "$1" >/dev/null 2>&1 || return 1
    printf '%s\n' '#include <stdarg.h>' '#include <stddef.h>' '#include <stdint.h>' \
        '#include <setjmp.h>' '#define PCRE2_CODE_UNIT_WIDTH 8' '#include <pcre2.h>' \
        '#include <jansson.h>' '#include <histedit.h>' '#include <yaml.h>' '#include <zstd.h>' '#include <zlib.h>' \
        '#include <xxhash.h>' '#include <utf8proc.h>' '#include <liburing.h>' \
        '#include <microhttpd.h>' "#include <$header>" \
        'int main(void) { return 0; }' |
        "$@" -x c - -o /dev/null -ljansson -lpcre2-8 -ledit -lyaml -lzstd -lz -lutf8proc \
            -luring -lmicrohttpd $library 2>/dev/null
}

# Only the tests need C++: they run the CUDA backend's kernels on the processor.
compiles_cxx() {
    printf '%s\n' '#include <functional>' '#include <tuple>' \
        'int main() { return !std::get<0>(std::tuple<bool>(true)); }' |
        ${CXX:-g++} -std=c++17 -x c++ - -o /dev/null 2>/dev/null
}

if [ "${1:-}" = --look ]; then
    ! compiles || exit 0
    found="${CC:-cc} does not find every library that the programs need"
    command -v "$(echo "${CC:-cc}" | cut -d ' ' -f 1)" >/dev/null 2>&1 || found="There is no C compiler '${CC:-cc}' here"
elif compiles cmocka.h -lcmocka && compiles_cxx; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg >/dev/null 2>&1; then
    echo "${found:+$found. }Please install a C11 and a C++17 compiler, GNU make and the development files of jansson," \
        "pcre2, libedit, libyaml, zlib, zstd, xxhash, utf8proc, liburing, libmicrohttpd and cmocka." >&2
    exit 1
fi
missing=
for package in $packages; do
    if ! dpkg -s "$package" 2>/dev/null | grep -q '^Status: install ok installed'; then
        missing="$missing $package"
    fi
done
if [ -z "$missing" ]; then
    echo "${found:-A probe does not compile with ${CC:-cc} or ${CXX:-g++}}, and every package is installed." >&2
    exit 1
fi
install="apt-get install -y --no-install-recommends$missing"
if [ -n "${found:-}" ]; then
    echo "$found: 'make deps' installs what is missing, or an administrator: apt-get update && $install" >&2
    exit 1
fi
as_root=
if [ "$(id -u)" != 0 ]; then
    as_root=sudo
    # With a terminal, sudo may ask for a password.
    if [ -t 0 ]; then may="sudo -v"; else may="sudo -n true"; fi
    if ! command -v sudo >/dev/null 2>&1 || ! $may 2>/dev/null; then
        echo "Only an administrator can install what is missing here: apt-get update && $install" >&2
        exit 1
    fi
fi
echo "Installing${as_root:+ with sudo}:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # $as_root and $install are lists of words
{
    if ! $as_root $install >/dev/null 2>&1; then
        # Most often the lists are missing or old: a fresh container has none.
        $as_root apt-get update >&2
        $as_root $install >&2
    fi
}
