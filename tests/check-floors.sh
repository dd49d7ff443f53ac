#!/bin/sh
# Checks the include directions of lib/ and cmd/: a file includes its own floor and those below it. The floors
# from the lowest up stand in FLOORS, as in lib/README.md; those of a few pairs do not know each other
# (APART), though one lies above the other. A room of cmd/ uses what all programs share. The GPU's interface (kernels/gpu.h, gpu_ops.h, gpu_states.h) is for the
# floors in GPU. A word of the glossary there is explained once. Prints each offending line; exit 1 if there is any.
set -eu
cd "$(dirname "$0")/.."
FLOORS='base quant kern cache fmt pack model family jinja text vocab grammar chat io record trace coe convert sched plan experts layer cpu gpu run sample engine serve lines show html api bench study calibrate planning repl cmd'
APART='kern cache, kern fmt, kern pack, kern trace, kern model, kern family, kern text, kern io, kern record, kern convert, kern sched,
    kern plan, kern coe, io coe, model coe, family coe, text coe, cache coe, quant coe, coe convert, io sched, io plan, io record, io convert, text record, text trace, io trace, text sched, text plan, cpu gpu'
GPU='io experts layer gpu run engine serve bench show cmd'
find lib cmd -name '*.[ch]' | sort | xargs awk -v floors="$FLOORS" -v apart="$APART" -v gpu=" $GPU " '
BEGIN {
    n = split(floors, name, " ")
    for (i = 1; i <= n; i++) level[name[i]] = i
    n = split(apart, pair, /,[ \n]*/)
    for (i = 1; i <= n; i++) { split(pair[i], two, " "); strangers[two[2], two[1]] = 1 }
}
FNR == 1 {
    split(FILENAME, part, "/")
    floor = part[1] == "cmd" && part[2] ~ /\./ ? "cmd" : part[2]
    programs = part[1] == "cmd"
    if (!(floor in level)) { print FILENAME ": unknown floor"; bad = 1 }
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, quoted, "\"")
    path = quoted[2]
    if (path == "gpu.h" || path == "gpu_ops.h" || path == "gpu_states.h" || path ~ /^kernels\//) {
        ok = index(gpu, " " floor " ") > 0
    } else if (path ~ /\//) {
        split(path, to, "/")
        ok = to[1] == floor || ((to[1] in level) && level[to[1]] < level[floor] &&
                                !((floor, to[1]) in strangers))
    } else {
        ok = programs    # the floors of lib/ name the floor they include
    }
    if (!ok) { print FILENAME ":" FNR ": " floor " must not include " path; bad = 1 }
}
END { exit bad }' || exit 1
awk -F ' *[|] *' '/^## / { glossary = /Glossary/ }
glossary && NF == 4 && seen[$2]++ { print FILENAME ": the glossary has \x27" $2 "\x27 twice"; bad = 1 }
END { exit bad }' lib/README.md
