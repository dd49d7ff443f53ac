#!/bin/sh
# Compares the programs with their man pages. Every option of a program's --help is in its page, with
# the same short form and default, and the page has no others. Options that --help leaves out are in a
# page of section 7, with their defaults, and those pages have no option that no program takes; the
# parts of each strategy there are those of --strategy help. Lints the pages where mandoc is
# installed; runs the commands of their EXAMPLES, in order, in a directory of the page's own that has
# this repository's tests/ and the build's models. Prints what differs; exit 1 if anything does.
set -eu
export LC_ALL=C # as awk and sort take it
cd "$(dirname "$0")/.."
bin=$(cd "${BUILD:-build}/bin" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/found"

# "x name|default" or "name|default" for each option of a help text, in rows or side by side.
options_of_help() {
    awk '
        function option(text,    letter, name, shown) {
            letter = match(text, /^ *-[^-], /) ? substr(text, RSTART + RLENGTH - 3, 1) " " : ""
            match(text, /--[a-z0-9-]+/)
            name = substr(text, RSTART + 2, RLENGTH - 2)
            shown = match(text, / \[[^]]*\]$/) ? substr(text, RSTART + 2, RLENGTH - 3) : ""
            print letter name "|" shown
        }
        /^Examples:/ { exit }
        /^  -., --/ || /^      --/ { option($0); side_by_side = 0; next }
        /^[A-Z][a-z]*: +-/ { side_by_side = 1; sub(/^[A-Z][a-z]*: */, "") }
        !/^ *-/ { side_by_side = 0 }
        side_by_side {
            sub(/^ */, "")
            n = split($0, cells, /  +/)
            for (i = 1; i <= n; i++)
                option(cells[i])
        }' "$1" | sort -u
}
# The same of the tables in the sources, C and shell, without short forms.
options_of_sources() {
    cat cmd/*.c cmd/*/*.c | tr '\n' ' ' | sed 's/{CLI_OPT_/\n&/g' |
        sed -n 's/^{CLI_OPT_[A-Z0-9]*([^"]*"\([a-z0-9-]*\)".*)[^)]*\.shown = "\([^"]*\)".*/\1|\2/p; t
            s/^{CLI_OPT_[A-Z0-9]*([^"]*"\([a-z0-9-]*\)".*/\1|/p' | sort -u
    sed -n 's/^[a-zA-Z]\{0,1\}|\([a-z-]*\)|[^|]*|\([^|]*\)|[^|]*|.*/\1|\2/p' cmd/moe-pipeline
}
# "x name" or "name" for each option of a page: in mdoc -x is "Fl x" and --name is "Fl Fl name".
options_of_page() {
    sed -n 's/\\-/-/g; s/^\.It Fl \([^F]\) .*Fl Fl \([a-z0-9-]*\).*/\1 \2/p
        s/^\.It Fl Fl \([a-z0-9-]*\).*/\1/p' "$1" | sort
}
names() { sed 's/|.*//; s/^. //' "$1" | sort -u; }
# The default stands in the option's paragraph of the page.
has_default() { # PAGE OPTION DEFAULT
    awk -v option="$2" -v default_="$3" '
        { gsub(/\\-/, "-") }
        /^\.It Fl / { here = index($0 " ", "Fl Fl " option " ") > 0 }
        /^\.S[hs] / { here = 0 }
        here && index($0, default_) { found = 1 }
        END { exit !found }' "$1"
}
# By the sources, and what a strategy is made of.
"$bin/moe-run" --strategy help >"$work/parts"
{ options_of_sources && options_of_help "$work/parts"; } | sort -u >"$work/known"
for program in "$bin"/moe-*; do
    name=$(basename "$program")
    page=man/$name.1
    if [ ! -f "$page" ]; then
        echo "$name has no man page ($page)"
        continue
    fi
    "$program" --help >"$work/help"
    options_of_help "$work/help" >"$work/in_help"
    sed 's/|.*//' "$work/in_help" | sort >"$work/shown"
    options_of_page "$page" >"$work/in_page"
    comm -23 "$work/shown" "$work/in_page" | sed "s|^|$page lacks an option of --help: |"
    comm -13 "$work/shown" "$work/in_page" | sed "s|^|$page has an option that --help lacks: |"
    while IFS='|' read -r option default; do
        [ -z "$default" ] || has_default "$page" "${option#? }" "$default" ||
            echo "$page: --${option#? }: its default '$default' is missing"
    done <"$work/in_help"
    names "$work/in_help" >"$work/names"
    "$program" --completion fish | sed -n 's/^complete .* -l \([a-z0-9-]*\).*/\1/p' | sort -u >"$work/taken"
    names "$work/known" | comm -13 - "$work/taken" | sed "s|^|$name: no source has its option: |"
    comm -23 "$work/names" "$work/taken" | sed "s|^|$name: --completion lacks an option of --help: |"
    comm -13 "$work/names" "$work/taken" | while read -r option; do
        pages=$(grep -l "^\.It Fl Fl $option\( \|\$\)" man/*.7) || {
            echo "$name: no page of section 7 has its option: $option"
            continue
        }
        grep "^$option|." "$work/known" | sort -u | while IFS='|' read -r option default; do
            has_default "$pages" "$option" "$default" ||
                echo "$pages: --$option: its default '$default' is missing"
        done
    done
    cat "$work/taken" >>"$work/taken_by_any"
done >>"$work/found"
for page in man/*.7; do
    options_of_page "$page" | grep -v -x -F -f "$work/taken_by_any" |
        sed "s|^|$page has an option that no program takes: |"
done >>"$work/found"
# "lru --cache lru": the parts of each strategy, in the program's table and in the page's.
awk '
    /^[A-Z]/ { on = /^Strategies:/ }
    on && /^  [a-z]/ { name = $1 }
    on && /^            --/ { $1 = $1; parts[name] = parts[name] " " $0 }
    END { for (name in parts) print name parts[name] }' "$work/parts" | sort >"$work/strategies"
awk '
    /^\.Sh/ { on = /STRATEGIES/ }
    on && /^\.It Cm/ { name = $3 }
    on && /^\.Dl --/ { sub(/^\.Dl/, ""); parts[name] = parts[name] $0 }
    END { for (name in parts) print name parts[name] }' man/moe-strategies.7 | sort >"$work/in_page"
diff "$work/strategies" "$work/in_page" |
    sed -n 's|^[<>]|man/moe-strategies.7: parts that differ from --strategy help:|p' >>"$work/found"
grep -nE '^\.(Dl|Li|Ql) .*"' man/*.[1-9] | grep -v '\\&"' |
    sed 's|$| (its quotation marks are lost: write \\(dq)|' >>"$work/found"
if command -v mandoc >/dev/null; then
    for page in man/*.[1-9]; do
        mandoc -T lint -W warning "$page" >>"$work/found" 2>&1 || true
    done
fi
# Every line of an EXAMPLES section set with .Dl is a command for a shell. Those of a page build on
# each other and on nothing but the bundled model, and read the beginning of each text; a prompt gets the end of input. What needs a
# program that is not installed (jq, say) is left out.
root=$PWD
examples() { # PAGE DIRECTORY
    mkdir "$2"
    mkdir "$2/build"
    mkdir -p "$2/tests/data"
    ln -s "$root/tests/fixtures" "$2/tests"
    for text in tests/data/*.txt; do
        head -n 6 "$text" >"$2/$text"
    done
    ln -s "$bin/../models" "$2/build/models"
    sed -n '/^\.Sh EXAMPLES/,/^\.Sh [^E]/s/^\.Dl //p' "$1" |
        sed "s/\\\\(aq/'/g; s/\\\\(dq/\"/g; s/\\\\-/-/g; s/\\\\e/\\\\/g; s/\\\\&//g" |
        while IFS= read -r line; do
            needs=$(echo "$line" | sed -n 's/.*| *\([a-z]*\).*/\1/p')
            if [ -n "$needs" ] && ! command -v "$needs" >/dev/null; then
                continue
            fi
            (cd "$2" && PATH=$bin:$PATH sh -c "$line") </dev/null >"$2.example" 2>&1 || {
                echo "$1: an example fails: $line"
                sed 's/^/    /' "$2.example" | tail -n 3
            }
        done
}
# The pages at once.
for page in man/*.[17]; do
    examples "$page" "$work/${page#man/}" >"$work/${page#man/}.found" &
done
wait
cat "$work"/*.[17].found >>"$work/found"
cat "$work/found"
[ ! -s "$work/found" ]
