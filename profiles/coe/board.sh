#!/bin/sh
# A circuit board of CoServe's evaluation (section 5.1) as a collection of experts, moe-coe(5):
#
#   profiles/coe/board.sh 352 > board-a.yaml        circuit board A: 352 types of components
#   profiles/coe/board.sh 342 > board-b.yaml        circuit board B: 342
#
# What the paper says: each type has a classification expert of its own (ResNet101); for some types, where
# that finds no issue, an object detection expert (YOLOv5m or YOLOv5l), which several types may share, looks
# again; the quantities of components are known, and so the probabilities of experts.
# What it does not say, and is assumed:
#   SKEW (1)          quantities fall with the rank of a type as 1 / rank^SKEW (Zipf); figure 11 shows only
#                     that they are between even and a step
#   DETECTORS (20)    object detection experts, half of each architecture ("multiple types share")
#   DETECTED (0.5)    of the types go on to one ("for some components"), spread evenly over the ranks
#   FINE (0.98)       of their results find no issue
set -eu
[ $# = 1 ] || { echo "usage: board.sh TYPES" >&2; exit 2; }
awk -v types="$1" -v skew="${SKEW:-1}" -v detectors="${DETECTORS:-20}" -v detected="${DETECTED:-0.5}" \
    -v fine="${FINE:-0.98}" '
    function goes_on(type) { return int(type * detected) > int((type - 1) * detected) }
    BEGIN {
        print "# A circuit board of CoServe: board.sh says what is the paper'\''s and what is assumed."
        print "format: moe-coe"
        print "version: 1"
        print "experts:"
        for (i = 1; i <= types; i++)
            printf "  - {name: type%03d, pack: type%03d.moe, architecture: resnet101}\n", i, i
        for (i = 1; i <= types; i++)
            if (goes_on(i))
                detector[i] = n++ % detectors + 1
        for (d = 1; d <= detectors && d <= n; d++)
            printf "  - {name: detect%02d, pack: detect%02d.moe, architecture: %s}\n", d, d,
                   d % 2 ? "yolov5m" : "yolov5l"
        print "routes:"
        for (i = 1; i <= types; i++)
            printf "  - {field: type, equals: \"%d\", expert: type%03d, quantity: %.9g}\n", i, i, i ^ -skew
        if (n)
            print "follows:"
        for (i = 1; i <= types; i++)
            if (i in detector)
                printf "  - {after: type%03d, equals: fine, expert: detect%02d, share: %g}\n", i, detector[i], fine
    }'
