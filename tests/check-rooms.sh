#!/bin/sh
# Keeps the rooms of lib/ and cmd/ small and free of circles: no floor and no room of cmd/ has more than
# 45 files or 7,000 lines (cmd/ itself 60 files); a file of more than 400 lines says why ("Over 400
# lines: ...") in its first comment; no file of lib/ calls a file that, over any way round, calls it
# back. The calls are read from the objects in $BUILD/lib, so the library is built first. Prints what
# is wrong; exit 1 if anything is.
set -eu
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
found=$(mktemp)
trap 'rm -f "$found"' EXIT

for floor in lib/*/ cmd/ cmd/*/; do
    most=45
    [ "$floor" != cmd/ ] || most=60
    files=$(find "$floor" -maxdepth 1 -name '*.[ch]' | wc -l)
    lines=$(cat "$floor"*.[ch] | wc -l)
    [ "$files" -le "$most" ] || echo "$floor has $files files: $most at most"
    [ "$lines" -le 7000 ] || echo "$floor has $lines lines: 7,000 at most"
done >>"$found"
wc -l lib/*/*.[ch] cmd/*.[ch] cmd/*/*.[ch] | awk '$1 > 400 && $2 != "total"' | while read -r lines file; do
    sed 20q "$file" | grep -q 'Over 400 lines: ' ||
        echo "$file has $lines lines: split it, or say why in its first comment (Over 400 lines: ...)"
done >>"$found"

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
