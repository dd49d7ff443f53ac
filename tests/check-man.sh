#!/bin/sh
# Compares every program's --help, and its --strategy help where there is one, with its man page: the
# same options, short forms and defaults; lints the pages where mandoc is installed; runs the
# commands of their EXAMPLES, in order, in a directory of the page's own that has this repository's
# tests/. Prints what differs; exit 1 if anything does.
set -eu
cd "$(dirname "$0")/.."
bin=$(cd "${BUILD:-build}/bin" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/found"

for program in "$bin"/moe-*; do
    name=$(basename "$program")
    page=man/$name.1
    if [ ! -f "$page" ]; then
        echo "$name has no man page ($page)" >>"$work/found"
        continue
    fi
    "$program" --help >"$work/help"
    if grep -q -- '--strategy help' "$work/help"; then # lists the options of parts
        "$program" --strategy help >>"$work/help"
    fi
    # "x name" or "name" for each option, as --help shows it and as the page has it (in mdoc -x is
    # "Fl x" and --name is "Fl Fl name").
    sed -n 's/^  -\(.\), --\([a-z0-9-]*\).*/\1 \2/p; s/^      --\([a-z0-9-]*\).*/\1/p' \
        "$work/help" | sort -u >"$work/in_help"
    sed -n 's/\\-/-/g; s/^\.It Fl \([^F]\) .*Fl Fl \([a-z0-9-]*\).*/\1 \2/p
        s/^\.It Fl Fl \([a-z0-9-]*\).*/\1/p' "$page" | sort >"$work/in_page"
    comm -23 "$work/in_help" "$work/in_page" | sed "s|^|$page lacks an option of --help: |"
    comm -13 "$work/in_help" "$work/in_page" | sed "s|^|$page has an option that --help lacks: |"
    # The "[default]" at a line's end stands in the option's paragraph.
    sed -n 's/^ *\(-., \)\{0,1\}--\([a-z0-9-]*\).*\[\(.*\)\]$/\2|\3/p' "$work/help" |
        while IFS='|' read -r option default; do
            awk -v option="$option" -v default_="$default" '
                { gsub(/\\-/, "-") }
                /^\.It Fl / { here = index($0 " ", "Fl Fl " option " ") > 0 }
                /^\.S[hs] / { here = 0 }
                here && index($0, default_) { found = 1 }
                END { exit !found }' "$page" ||
                echo "$page: --$option: its default '$default' is missing"
        done
done >>"$work/found"
if command -v mandoc >/dev/null; then
    for page in man/*.[1-9]; do
        mandoc -T lint -W warning "$page" >>"$work/found" 2>&1 || true
    done
fi
# Every line of an EXAMPLES section set with .Dl is a command for a shell. Those of a page build on
# each other and on nothing but the bundled model; a prompt gets the end of input. What needs a
# program that is not installed (jq, say) is left out.
root=$PWD
examples() { # PAGE DIRECTORY
    mkdir "$2"
    ln -s "$root/tests" "$2/tests"
    sed -n '/^\.Sh EXAMPLES/,/^\.Sh [^E]/s/^\.Dl //p' "$1" |
        sed "s/\\\\(aq/'/g; s/\\\\-/-/g; s/\\\\e/\\\\/g; s/\\\\&//g" |
        while IFS= read -r line; do
            needs=$(echo "$line" | sed -n 's/.*| *\([a-z]*\).*/\1/p')
            if [ -n "$needs" ] && ! command -v "$needs" >/dev/null; then
                continue
            fi
            (cd "$2" && PATH=$bin:$PATH OMP_WAIT_POLICY=passive sh -c "$line") \
                </dev/null >"$2.example" 2>&1 || {
                echo "$1: an example fails: $line"
                sed 's/^/    /' "$2.example" | tail -n 3
            }
        done
}
# The pages at once.
for page in man/*.1; do
    examples "$page" "$work/${page#man/}" >"$work/${page#man/}.found" &
done
wait
cat "$work"/*.1.found >>"$work/found"
cat "$work/found"
[ ! -s "$work/found" ]
