#!/bin/sh
# Checks the include directions of lib/: base < quant < fmt < model, kern < io, sched < run < cmd.
# A file may include its own floor and lower ones; model and kern do not know each other, nor do io
# and sched. kernels/gpu.h and gpu_ops.h are for io, run and cmd. Prints each offending line; exit 1 if any.
set -eu
cd "$(dirname "$0")/.."
find lib cmd -name '*.[ch]' | sort | xargs awk '
BEGIN {
    n = split("base 0 quant 1 fmt 2 model 3 kern 3 io 4 sched 4 run 5 cmd 6", pair, " ")
    for (i = 1; i < n; i += 2) level[pair[i]] = pair[i + 1]
}
FNR == 1 {
    split(FILENAME, part, "/")
    floor = part[1] == "cmd" ? "cmd" : part[2]
    if (!(floor in level)) { print FILENAME ": unknown floor"; bad = 1 }
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, quoted, "\"")
    path = quoted[2]
    if (path == "gpu.h" || path == "gpu_ops.h" || path ~ /^kernels\//) {
        ok = floor == "io" || floor == "run" || floor == "cmd"
    } else if (path ~ /\//) {
        split(path, to, "/")
        ok = to[1] == floor || ((to[1] in level) && level[to[1]] < level[floor])
    } else {
        ok = floor == "cmd"    # the layers of lib/ name the floor they include
    }
    if (!ok) { print FILENAME ":" FNR ": " floor " must not include " path; bad = 1 }
}
END { exit bad }'
