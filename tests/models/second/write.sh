#!/bin/sh
# Writes texts with the bundled model, which the second model learns from: DOCUMENTS (6000) of at most 256 tokens, half
# of them from nothing, half from the first words of the bundled texts in turn. A run that was ended goes on.
#
#   sh tests/models/second/write.sh OUT.jsonl
set -eu
BUILD=${BUILD:-build}
documents=${DOCUMENTS:-6000}
cat tests/data/stories.calib.txt tests/data/math.calib.txt tests/data/code.calib.txt |
    awk -v n="$documents" 'BEGIN { RS = "<[|]endoftext[|]>" }
        { gsub(/^\n+|["\\\t]/, "") }
        length($0) > 80 { sub(/\n.*/, ""); n_words = split($0, word, " "); text = word[1]
            for (i = 2; i <= n_words && i <= 2 + NR % 5; i++) text = text " " word[i]
            first[n_first++] = text }
        END { for (i = 0; i < n; i++)
            printf "{\"custom_id\":\"%d\",\"prompt\":\"%s\",\"seed\":%d,\"max_tokens\":240,\"temperature\":0.9,%s}\n", i,
                i % 2 ? first[int(i / 2) % n_first] : "", i, "\"top_k\":0,\"top_p\":0.98,\"echo\":true" }' >"$1.requests"
"$BUILD/bin/moe-run" "$BUILD/models/tiny-moe" --requests "$1.requests" -o "$1" --resume --sequences 64
