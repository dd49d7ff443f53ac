# Manual pages without man: --manual of every program, and the text that pages become (man/text.awk).
. tests/cli/lib.sh
PATH=$(cd "$bin" && pwd):$PATH
for program in "$bin"/moe-*; do
    title=$(echo "${program##*/}" | tr a-z A-Z)
    run "$program" --manual
    expect_exit 0 "${program##*/} --manual"
    check "... is its page" [ "$(head -n 1 "$out")" = "$title(1)" ]
    run "$program" --manual moe-trace
    check "... another page" [ "$(head -n 1 "$out")" = "MOE-TRACE(5)" ]
    run "$program" --manual
    "$program" --help | tr -s ' [' '\n' | sed -n 's/^\(--[a-z][a-z0-9-]*\).*/\1/p' | sort -u |
        while read -r option; do grep -q -e "$option" "$out" || echo "$option"; done >"$tmp/missing"
    check "... with all of its options" [ ! -s "$tmp/missing" ]
done
for page in man/*.[1-9]; do
    run moe-run --manual "${page##*/}"
    check "the page ${page##*/}" [ "$(head -n 1 "$out")" = "$(sed -n 's/^\.Dt \([^ ]*\) \(.\)/\1(\2)/p' "$page")" ]
    check "... without macros" sh -c "! grep -E '^\\.[A-Z]|(^| )(Fl|Ar|Cm|Xr|Op|Pq|Li|Ql|Sq|Ns|Ta) [^ ]|\\\\\\((aq|dq|mi)|\\\\&' '$out'"
    # Every word of the page that is no macro ("n Ns th" becomes "nth"): what is lost would be missed here.
    words() { tr -cs 'A-Za-z0-9_' '\n' | LC_ALL=C sort -u; }
    sed -e '/^\.\(Dd\|Os\|Bl\|\\"\)/d' -e 's/^\.%//; s/\\(../ /g; s/\\[&e]/ /g' "$page" | words >"$tmp/words"
    words <"$out" >"$tmp/said"
    check "... with all of its words" [ -z "$(LC_ALL=C comm -23 "$tmp/words" "$tmp/said" | grep -v -x '[A-Z][a-z]\|[A-Z]rq\|[TAOR]\|u\|literal\|offset\|indent\|th')" ]
done
run moe-plan --manual
check "a name alone is the program's page" [ "$(head -n 1 "$out")" = "MOE-PLAN(1)" ]
run moe-run --manual nothing
error_line 2 "moe-run: no page 'nothing': there are libmoe.3 moe-calibrate.1 *" "a page that is not there"
if command -v script >/dev/null; then
    PAGER="sed s/^/paged:/" script -qec "moe-run --manual" /dev/null >"$out" 2>"$err" </dev/null
    check "on a terminal, a pager shows it" grep -q '^paged:MOE-RUN' "$out"
else
    skip "on a terminal, a pager shows it" "no script"
fi
finish
