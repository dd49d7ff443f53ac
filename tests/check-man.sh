#!/bin/sh
# Compares every program's --help with its man page: the same options, short forms and defaults;
# lints the pages where mandoc is installed. Prints what differs; exit 1 if anything does.
set -eu
cd "$(dirname "$0")/.."
bin=${BUILD:-build}/bin
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
    # "x name" or "name" for each option, as --help shows it and as the page has it (in mdoc -x is
    # "Fl x" and --name is "Fl Fl name").
    sed -n 's/^  -\(.\), --\([a-z0-9-]*\).*/\1 \2/p; s/^      --\([a-z0-9-]*\).*/\1/p' \
        "$work/help" | sort >"$work/in_help"
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
cat "$work/found"
[ ! -s "$work/found" ]
