# tests/tools/derive: packs of a collection say sensible and different things, the same options make the same
# files, and requests follow the collection.
# shellcheck shell=sh disable=SC2154,SC1091,SC2034 # the variables are lib.sh's
. tests/cli/lib.sh
pack
some=$tmp/some
derive "$some" --experts 4 --checks 2 --requests 50
derive "$tmp/again" --experts 4 --checks 2 --requests 50
derive "$tmp/other" --experts 1 --seed 2

head -n 40 tests/data/stories.valid.txt >"$tmp/text"
nll() { run "$bin/moe-run" "$1" --perplexity "$tmp/text"; sed -n 's/^nll \([0-9.]*\).*/\1/p' "$out"; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && b > 0 && a < 1.03 * b && b < 1.03 * a) }'; }
answer() { "$bin/moe-run" "$1" -p "One day, she would go for a walk in the" -n 32 --temp 0 2>"$err"; }
count() { grep -c "$2" "$1"; }

base=$(nll "$tiny")
for one in c000 c003 d001; do
    check "$one speaks about as well as the bundled model" near "$(nll "$some/$one.moe")" "$base"
done
for one in c000 c001 c002 c003 d000 d001; do
    answer "$some/$one.moe"
    echo
done >"$out"
check "all six answer differently" [ "$(sort -u "$out" | grep -c .)" = "$(grep -c . "$out")" ]
check "the same options make the same packs" cmp "$some/d001.moe" "$tmp/again/d001.moe"
check "and the same requests" cmp "$some/requests.jsonl" "$tmp/again/requests.jsonl"
check "another seed makes another" [ "$(answer "$tmp/other/c000.moe")" != "$(answer "$some/c000.moe")" ]
check "nothing but packs, collection and requests is left" [ "$(find "$some" | wc -l)" = 9 ]

check "there are as many requests as wanted" [ "$(count "$some/requests.jsonl" .)" = 50 ]
for i in 0 1 2 3; do
    check "c00$i gets its quantity of them" grep -q \
        "equals: c00$i, expert: c00$i, quantity: $(count "$some/requests.jsonl" "\"c00$i\"")}" \
        "$some/collection.yaml"
done
check "the first gets most" [ "$(count "$some/requests.jsonl" '"c000"')" -gt "$(count "$some/requests.jsonl" '"c001"')" ]
check "both of the second stage follow somebody" [ "$(grep -o 'expert: d00[01], share: 1' "$some/collection.yaml" | sort -u | wc -l)" = 2 ]
run "$BUILD/tests/tools/derive" --checks 9 "$checkpoint" "$tmp/x"
expect_exit 2 "more of the second stage than of the first are refused"
finish
