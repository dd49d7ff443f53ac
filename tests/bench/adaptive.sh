#!/bin/sh
# Importances of the bundled model's experts three ways: all measured, all estimated, measured where it decides
# (moe-calibrate --importance exact, proxy, adaptive): passes over the texts that measuring experts took,
# minutes, and the map's bytes and loss on the texts it was chosen on and on held-out ones.
#
#     tests/bench/adaptive.sh [WORK]
#
# DOCUMENTS: of each calibration text, all unless set; TOLERANCE: 2% unless set; SHARES: of experts that adaptive may
# measure, "10% 25%" unless set; THREADS. Half an hour on 2 cores; what WORK has already is not made again.
set -eu
cd "$(dirname "$0")/../.."
work=${1:-build/bench-adaptive}
bin=${BUILD:-build}/bin
mkdir -p "$work"
[ -e "$work/all.moe" ] || "$bin/moe-quantize" -q --experts 8,4,2 --dense 8 -o "$work/all.moe" "${BUILD:-build}/models/tiny-moe"
texts='' checks=''
for d in stories math code; do
    awk -v n="${DOCUMENTS:-1000000}" '/^<\|endoftext\|>$/ { k++ } k < n' "tests/data/$d.calib.txt" >"$work/$d.calib.txt"
    texts="$texts --text $work/$d.calib.txt"
    checks="$checks --check tests/data/$d.valid.txt"
done

row() { # NAME OPTION...
    name=$1 map=$work/$1.yaml
    shift
    start=$(date +%s)
    # shellcheck disable=SC2086 # lists of options
    [ -e "$map" ] || {
        "$bin/moe-calibrate" -q ${THREADS:+-t $THREADS} "$work/all.moe" $texts $checks --tolerance "${TOLERANCE:-2%}" \
            --without fate --without hobbit "$@" -o "$map"
        echo $(($(date +%s) - start)) >"$work/$name.seconds"
    }
    # An expert takes the documents that visit it through the layers from its own on.
    passes=$("$bin/moe-calibrate" --show --json "$map" | python3 -c '
import json, sys
m = json.load(sys.stdin)
documents = sum(t["documents"] for t in m["texts"] if not t["check"])
n, i = m["shape"]["moe_layers"], m["importances"]
print("%.0f" % sum(v / documents * (n - l["layer"]) / n for l in i["layers"] if i["exact"]
                   for e, v in enumerate(l["visited_documents"]) if e not in l.get("estimated", [])))')
    "$bin/moe-calibrate" --show "$map" | awk -v name="$name" -v passes="$passes" -v s="$(cat "$work/$name.seconds")" '
        /measured, .* estimated within/ { changes = $(NF - 4) " of " $3 }
        /^Choice/ { sub(/.*: /, ""); sub(/, experts.*/, ""); bytes = $0 }
        /^  on the texts/ { calib = $4 " (" $6 ")" }
        /^  on checks/ { valid = $3 " (" $5 ")" }
        END { printf "| %s | %s | %.1f | %s | %s | %s | %s |\n", name, passes, s / 60, changes, bytes, calib, valid }'
}

echo "| importances | passes of experts | minutes | could still change | bytes | loss, calib | loss, valid |"
echo "|---|---|---|---|---|---|---|"
row proxy --importance proxy
for share in ${SHARES:-10% 25%}; do row "adaptive-${share%\%}" --importance adaptive --measured "$share"; done
row exact
