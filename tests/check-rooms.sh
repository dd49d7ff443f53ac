#!/bin/sh
# No file of lib/ calls a file that, over any way round, calls it back. The calls are read from the
# objects in $BUILD/lib, so the library is built first. Prints the circles; exit 1 if there are any.
set -eu
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
found=$(mktemp)
trap 'rm -f "$found"' EXIT

# "user definer" for every symbol that one object takes from another; tsort names what goes round.
for source in lib/*/*.c; do
    object=$BUILD/${source%.c}.o
    if [ -f "$object" ]; then echo "$object"; else echo "$object is not built" >>"$found"; fi
done | xargs nm -A | awk -v build="$BUILD/" '
    { # "FILE:ADDRESS T NAME", or "FILE: U NAME"
        colon = index($0, ".o:")
        file = substr($0, length(build) + 1, colon - length(build)) "c"
        kind = $(NF - 1)
    }
    kind ~ /^[TDRBC]$/ { definer[$NF] = file }
    kind == "U" { n++; symbol[n] = $NF; user[n] = file }
    END {
        for (i = 1; i <= n; i++)
            if ((symbol[i] in definer) && definer[symbol[i]] != user[i])
                print user[i], definer[symbol[i]]
    }' | sort -u | tsort 2>&1 >/dev/null | sed 's/^tsort: -: .*/files that call each other in a circle:/; s/^tsort: /    /' >>"$found"
cat "$found"
[ ! -s "$found" ]
