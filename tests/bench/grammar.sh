#!/bin/sh
# What holding answers to a grammar costs: tokens/s of an answer of N tokens (200) with none, with a
# grammar that takes any text, with one of a list and with a JSON schema, in turn, ROUNDS times (7).
#
#   tests/bench/grammar.sh [PACK]      the bundled model's, widened (HIDDEN=4, FF=8), where none is named
#
# For each: the median tokens/s of decoding and its range, times the first row's; milliseconds a token
# that masks took beside the model, those of them that the answer waited for, masks made for its tokens.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
rounds=${ROUNDS:-7} n=${N:-200}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
pack=${1:-}
if [ -z "$pack" ]; then
    "$BUILD/tests/tools/widen" --hidden "${HIDDEN:-4}" --ff "${FF:-8}" "${BUILD:-build}/models/tiny-moe" "$work/wide"
    pack=$work/wide.moe
    "$BUILD/bin/moe-quantize" -q -o "$pack" "$work/wide"
fi
printf 'root ::= [^\\x00]*\n' >"$work/text.gbnf"
printf 'root ::= "[" item ("," item)*\nitem ::= "\\"" [a-zA-Z ,.]{1,30} "\\"" | [0-9]{1,6}\n' >"$work/list.gbnf"
printf '%s' '{"type": "array", "minItems": 50, "items": {"type": "object", "required": ["name", "age", "likes"],
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "likes": {"enum": ["bread", "milk", "stories"]}}}}' >"$work/schema.json"

measure() { # NAME OPTION...
    name=$1
    shift
    "$BUILD/bin/moe-run" -q "$pack" -p 'Once upon a time' -n "$n" --temp 0 --ignore-eos --stats-json "$work/stats" "$@" >/dev/null
    tr ',{}' '\n' <"$work/stats" | awk -F: -v name="$name" '
        /"decode_tokens_per_s"/ { speed = $2 + 0 }
        /"grammar_tokens"/ { tokens = $2 + 0 }
        /"grammar_masks"/ { masks = $2 + 0 }
        /"grammar_s"/ { s = $2 + 0 }
        /"grammar_wait_s"/ { wait = $2 + 0 }
        END { printf "%s %g %g %g %g\n", name, speed, tokens ? 1e3 * s / tokens : 0,
              tokens ? 1e3 * wait / tokens : 0, masks }' >>"$work/rows"
}
for round in $(seq "$rounds"); do
    measure none
    measure text --grammar "$work/text.gbnf"
    measure list --grammar "$work/list.gbnf"
    measure schema --json-schema "$work/schema.json"
done
printf '%-8s %10s  %-17s %6s %9s %9s %6s\n' '' 'tokens/s' '(range)' times ms/token waited masks
for name in none text list schema; do
    grep "^$name " "$work/rows" | sort -k 2 -g | awk -v name="$name" -v base="$(grep '^none ' "$work/rows" | sort -k 2 -g |
        awk '{ x[NR] = $2 } END { print x[int((NR + 1) / 2)] }')" '
        { x[NR] = $2; ms += $3; wait += $4; masks = $5 }
        END { m = x[int((NR + 1) / 2)]
              printf "%-8s %10.1f  %-17s %5.2fx %9.3f %9.3f %6d\n", name, m, "(" x[1] " to " x[NR] ")", m / base, ms / NR, wait / NR, masks }'
done
