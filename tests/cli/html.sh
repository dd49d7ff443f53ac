# --html of moe-profile --show and moe-plan --explain: pages that need nothing else, with the figures that
# --json has; where Chromium is installed, that they are drawn, in light and dark.
. tests/cli/lib.sh
pack
profile="$bin/moe-profile"
plan="$bin/moe-plan"
head -c 8000 tests/data/math.valid.txt >"$tmp/text"
"$profile" -q "$tiny" --text "$tmp/text" --max-tokens 32 -o "$tmp/s.yaml" --trace "$tmp/t.trace"
"$bin/moe-run" -q "$tiny" -p 2+2 -n 4 --trace-events "$tmp/events.json" >/dev/null
full=tests/fuzz/corpus/plan/full
planned() { # OPTION...
    "$plan" -q "$tiny" --strategy lru --trace "$tmp/t.trace" --device-profile profiles/apple-m2.yaml -o "$tmp/plan.yaml" "$@"
}
planned --memory "$(($(smallest_memory planned) + 4))M"

page() { # NAME WHAT
    expect_exit 0 "$2: a page"
    check "... whole" grep -q '^</html>' "$tmp/$1.html"
    check "... with a picture" grep -q '<svg viewBox=.*role="img"' "$tmp/$1.html"
    check "... each picture has a title" [ "$(grep -c 'role="img"' "$tmp/$1.html")" = \
        "$(grep -A1 'role="img"' "$tmp/$1.html" | grep -c '^<title>')" ]
    check "... which loads nothing" sh -c "! grep -qE 'http|src=|@import|url\\(|<script|<link' '$tmp/$1.html'"
}
run "$profile" --show "$tmp/s.yaml" --html "$tmp/s.html"
page s "statistics"
run "$profile" --show "$tmp/t.trace" --html "$tmp/t.html"
page t "a trace"
run "$plan" --explain "$tmp/plan.yaml" --html "$tmp/p.html" --timeline "$tmp/events.json"
page p "a plan and a run"
check "... over time" grep -q '<h2>A run over time</h2>' "$tmp/p.html"
check "... the budget is marked" grep -q 'class="mark"' "$tmp/p.html"
run "$plan" --explain profiles/rtx4090.yaml --html "$tmp/d.html"
expect_exit 0 "a device profile: a page"
run "$plan" --explain "$full" --html -
expect_exit 0 "to stdout"
check "... the same page" sh -c "grep -q 'Where the memory goes' '$out'"

# Figures: the JSON's.
"$profile" --show "$tmp/s.yaml" --json >"$tmp/s.json"
all=$(sed 's/.*"all"://; s/"layers":.*//' "$tmp/s.json")
percent() { awk -v x="$1" 'BEGIN { printf "%.1f%%", 100 * x }'; }
share() { # NAME KEY: of the first line of the page's tables with that name
    want=$(percent "$(echo "$all" | sed -n "s/.*$2\\([-.0-9e+]*\\).*/\\1/p")")
    check "'$1' is $want, as in JSON" grep -A1 -F "<td>$1</td>" "$tmp/s.html" --max-count=1 -q
    check "... in the table" [ "$(grep -A1 -F "<td>$1</td>" "$tmp/s.html" | sed -n '2s/<[^>]*>//gp')" = "$want" ]
}
share "experts that the token before used" '"reuse":{"active":'
share gate-1 '"gate-1":{"top1":[-.0-9e+]*,"in_k":'
share "work of the busiest quarter" '{"skew":'
"$plan" --explain "$tmp/plan.yaml" --json >"$tmp/p.json"
takes=$(sed -n 's/.*"computation_seconds": *\([-.0-9e+]*\).*/\1/p' "$tmp/p.json" |
    awk '{ x = $1 < 0.0995e-3 ? 1e6 * $1 : 1e3 * $1; printf((x >= 9.95 ? "%.0f" : "%.1f"), x); print ($1 < 0.0995e-3 ? " us" : " ms"); exit }')
check "computing takes $takes, as in JSON" grep -qF "computing</td><td>$takes</td>" "$tmp/p.html"
answer=$(sed -n 's/.*"answer": *"\([^"]*\)".*/\1/p' "$tmp/p.json")
check "the answer comes first, as in JSON" grep -qF "<p class=\"answer\">$answer</p>" "$tmp/p.html"

# Names in files are text.
sed 's/^\( *device: \).*/\1"<script>alert(1)<\/script>"/' "$full" >"$tmp/evil.yaml"
run "$plan" --explain "$tmp/evil.yaml" --html "$tmp/e.html"
expect_exit 0 "a hostile name: a page"
check "... in which it is text" sh -c "grep -q '&lt;script&gt;alert' '$tmp/e.html' && ! grep -q '<script' '$tmp/e.html'"

run "$profile" --html "$tmp/x"
error_line 2 "*--html goes with --show*" "--html alone"
run "$plan" --explain "$full" --html "$tmp/x" --json
error_line 2 "*--html and --json exclude each other*" "--html with --json"
run "$plan" --explain "$full" --timeline x
error_line 2 "*--timeline needs --html*" "--timeline without --html"
run "$plan" --explain "$full" --html "$tmp/none.html" --timeline "$full"
error_line 3 "*$full*" "a timeline that is none"
check "... and no page" [ ! -e "$tmp/none.html" ]

# Drawn: a page of one colour compresses to almost nothing.
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
shoot() { # NAME DARK
    HOME=$tmp timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$tmp/browser" \
        --blink-settings=preferredColorScheme="$2" --window-size=500,1200 \
        --screenshot="$tmp/$1-$2.png" "file://$tmp/$1.html" >/dev/null 2>&1
    [ "$(wc -c <"$tmp/$1-$2.png")" -gt 20000 ]
}
if [ -n "$browser" ]; then
    check "drawn on a light page" shoot p 1
    check "drawn on a dark page" shoot p 0
    check "... otherwise" sh -c "! cmp -s '$tmp/p-0.png' '$tmp/p-1.png'"
else
    skip "drawn" "no Chromium"
fi
finish
