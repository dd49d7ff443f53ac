#!/bin/sh
# Checks the house: lib/ and cmd/.
#
# 1. A file includes headers of its own room and of the rooms that ROOMS names for it. A room's internal.h and
#    *_internal.h are for that room. The GPU's interface (kernels/gpu*.h) is for the rooms in GPU.
# 2. No file of lib/ calls a file that, over any way round, calls it back. Calls are read from the objects in
#    $BUILD/lib, so the library is built first.
# 3. A word of the glossary in lib/README.md is explained once.
#
# Prints what is wrong; exit 1 if anything is.
set -eu
export LC_ALL=C # as awk and sort take it
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
found=$(mktemp)
trap 'rm -f "$found"' EXIT

# From the lowest up: a room uses only rooms above its line, so there are no circles.
ROOMS='
base:
quant: base
kern: base quant
fmt: base quant
cache: base
io: base cache
model: base quant fmt
text: base fmt
prompt: base fmt text
grammar: base fmt text
profile: base fmt model
pack: base quant fmt cache model text prompt profile
sched: base cache model profile pack
plan: base cache fmt model profile pack sched
ranks: base model pack sched
infer: base quant kern fmt io model text profile pack sched ranks
engine: base fmt cache model text prompt grammar profile sched plan ranks infer
serve: base fmt prompt grammar ranks engine
show: base fmt cache model profile pack sched plan ranks infer engine serve
tune: base quant kern fmt io model text profile pack sched plan infer engine serve show
api: base profile engine show
'
GPU='io infer engine serve tune show cmd'

find lib cmd -name '*.[ch]' | sort | xargs awk -v rooms="$ROOMS" -v gpu=" $GPU " '
BEGIN {
    n = split(rooms, line, "\n")
    for (i = 1; i <= n; i++) {
        if (split(line[i], part, ": *") < 2) continue
        known[part[1]] = 1
        m = split(part[2], below, " ")
        for (j = 1; j <= m; j++) {
            if (!(below[j] in known)) print "check-rooms.sh: " part[1] " stands below " below[j]
            uses[part[1], below[j]] = 1
        }
    }
}
FNR == 1 {
    split(FILENAME, part, "/")
    programs = part[1] == "cmd"
    room = programs ? "cmd" : part[2]
    if (!programs && !(room in known)) print FILENAME ": unknown room"
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, quoted, "\"")
    path = quoted[2]
    if (path ~ /^(kernels\/)?gpu[a-z_]*\.h$/) {
        ok = index(gpu, " " room " ") > 0
    } else if (path ~ /\//) {
        split(path, to, "/")
        ok = to[1] == room || programs || ((room, to[1]) in uses)
        if (to[1] != room && !(programs && !(to[1] in known)) && to[2] ~ /(^|_)internal\.h$/) ok = 0
    } else {
        ok = programs    # files of lib/ name the room they include
    }
    if (!ok) print FILENAME ":" FNR ": " room " must not include " path
}' >"$found"

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

awk -F ' *[|] *' '/^## / { glossary = /Glossary/ }
glossary && NF == 4 && seen[$2]++ { print FILENAME ": the glossary has \x27" $2 "\x27 twice" }' lib/README.md >>"$found"
cat "$found"
[ ! -s "$found" ]
