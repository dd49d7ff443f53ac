#!/bin/sh
# Cache-aware routing beside what else saves loads by changing results: skipping, low precision
# (HOBBIT's) and pre-calculation (DAOP's). The bundled model decodes texts token by token with experts
# of 4 bits (2 for the low precision) in caches of about 1 and 2 tokens' demand; per way the nats that
# it loses over lru without any of them, the bytes that it loads a token, and shares of activations.
# Then, at equal losses, the bytes between the two neighbouring values of each way.
#
#   DOCUMENTS=4 tests/bench/routing.sh        of each of the three texts; minutes
#
# Losses and bytes do not depend on the machine or its load; nothing here predicts or prefetches, so no
# clock takes part. (DAOP's predictions do not wait for one either.) A model widened from the bundled one
# (tests/tools/widen) routes and loses as it does and loads in proportion: it would say the same.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
bin=${BIN:-$BUILD/bin}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

"$bin/moe-quantize" -q --experts 4,2 -o "$dir/42.moe" "${BUILD:-build}/models/tiny-moe"
for text in stories math code; do
    awk -v n="${DOCUMENTS:-4}" '/^<\|endoftext\|>$/ { k++ } k < n' "tests/data/$text.valid.txt"
    echo '<|endoftext|>'
done >"$dir/texts"
"$bin/moe-profile" -q "$dir/42.moe" --text tests/data/stories.calib.txt --text tests/data/math.calib.txt \
    --text tests/data/code.calib.txt --max-tokens 32 --max-windows 1 -o "$dir/stats.yaml"

# measure KIND VALUE SIZE [OPTION]...: "KIND VALUE nats MB low% skipped% others% host%".
measure() {
    kind=$1 value=$2 size=$3
    shift 3
    nats=$("$bin/moe-run" "$dir/42.moe" --perplexity "$dir/texts" --prompt-share 0 --json \
        --expert-memory "$size" --stats-json "$dir/stats.json" "$@" |
        sed 's/.*"nll": \([0-9.]*\),.*/\1/')
    awk -v kind="$kind" -v value="$value" -v nats="$nats" -F'[:,]' '
        { gsub(/[ "]/, "", $1); if (!($1 in n)) n[$1] = $2 }
        END {
            a = n["expert_activations"] / 100
            printf "%s %s %s %.4f %.1f %.1f %.1f %.1f\n", kind, value, nats, n["bytes_per_token"] / 1e6,
                n["low_precision"] / a, n["skipped"] / a, n["substituted"] / a,
                (n["host_computed"] + n["precalculated"]) / a
        }' "$dir/stats.json"
}

curves() { # SIZE
    measure lru - "$1" --strategy lru
    for lambda in 0.1 0.2 0.3 0.5 0.7 1; do
        measure prefer-cached $lambda "$1" --strategy lru+prefer-cached=$lambda
    done
    for lambda in 0.3 0.5 1; do
        measure prefer-cached:2 $lambda "$1" --strategy lru+prefer-cached=$lambda:2
    done
    for share in 5% 10% 20% 30%; do
        measure skip-below $share "$1" --strategy lru+skip-below=$share
    done
    for t1 in 0.9 0.8 0.7 0.6 0.4; do
        measure hobbit $t1 "$1" --strategy "hobbit+predict=none+skip-below=0+on-miss=load-low:$t1"
    done
    measure hobbit+skip 0.6 "$1" --strategy hobbit+predict=none
    measure daop - "$1" --strategy daop --statistics "$dir/stats.yaml" --device test:4,2GB/s
    measure daop most:1 "$1" --strategy daop+degrade-most=1 --statistics "$dir/stats.yaml" \
        --device test:4,2GB/s
}

for size in 1.2M 2.4M; do
    curves $size >"$dir/rows"
    awk -v size=$size '
        NR == 1 { base = $3; printf "== --expert-memory %s: lru %.4f nats, %.3f MB a token\n", size, $3, $4
                  printf "%-16s %6s %8s %10s %6s %6s %6s %6s\n", "way", "value", "loss", "MB/token",
                         "low", "left", "others", "host" }
        { printf "%-16s %6s %+7.2f%% %10.4f %5.1f%% %5.1f%% %5.1f%% %5.1f%%\n", $1, $2,
              100 * ($3 / base - 1), $4, $5, $6, $7, $8 }' "$dir/rows"
    awk '
        NR == 1 { base = $3; all = $4; next }
        { loss = 100 * ($3 / base - 1)
          if (!($1 in seen)) { seen[$1] = 1; way[++n] = $1; last_loss[$1] = 0; last[$1] = all }
          for (i = 1; i <= 4; i++)
              if (!(($1, i) in at) && last_loss[$1] <= want[i] && loss > want[i])
                  at[$1, i] = last[$1] + ($4 - last[$1]) * (want[i] - last_loss[$1]) / (loss - last_loss[$1])
          if (loss >= last_loss[$1]) { last_loss[$1] = loss; last[$1] = $4 } else last[$1] = $4
        }
        BEGIN { split("0.5 1 2 5", want, " ") }
        END { printf "MB/token at a loss of     0.5%%       1%%       2%%       5%%\n"
              for (w = 1; w <= n; w++) {
                  if (way[w] ~ /daop|hobbit\+/) continue
                  printf "%-20s", way[w]
                  for (i = 1; i <= 4; i++)
                      if ((way[w], i) in at) printf " %9.4f", at[way[w], i]; else printf " %9s", "-"
                  printf "\n" } }' "$dir/rows"
done
