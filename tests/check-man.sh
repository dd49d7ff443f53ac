#!/bin/sh
# Compares every program's --help with its man page: each option is in both, with its default;
# lints the pages where mandoc is installed. Prints what differs; exit 1 if anything does.
set -eu
cd "$(dirname "$0")/.."
bin=${BUILD:-build}/bin
bad=0
complain() {
    echo "$*"
    bad=1
}
for program in "$bin"/moe-*; do
    name=$(basename "$program")
    page=man/$name.1
    if [ ! -f "$page" ]; then
        complain "$name has no man page ($page)"
        continue
    fi
    "$program" --help >"${TMPDIR:-/tmp}/help.$$"
    # Options as --help shows them, as "-x --name ARG".
    in_help=$(sed -n 's/^  \(-.\), \(--[a-z0-9-]*\).*/\1 \2/p; s/^      \(--[a-z0-9-]*\).*/\1/p' \
        "${TMPDIR:-/tmp}/help.$$")
    in_page=$(sed -n 's/^\.It //p' "$page" | grep '^Fl' || true)
    for option in $in_help; do
        # mdoc: Fl p is -p, Fl -prompt is --prompt.
        mark=$(printf '%s' "$option" | sed 's/^-//; s/-/\\-/g')
        if ! printf '%s\n' "$in_page" | sed 's/\\-/-/g' |
            grep -qE "(^|[ ,])Fl $mark( |,|\$)"; then
            complain "$page: $option of --help is missing"
        fi
    done
    for option in $(printf '%s\n' "$in_page" | sed 's/\\-/-/g' | grep -oE 'Fl -[a-z0-9-]+' |
        sed 's/^Fl /-/'); do
        if ! printf '%s\n' "$in_help" | grep -qE -- "(^| )$option\$"; then
            complain "$page: $option is not in --help"
        fi
    done
    # "[default]" at a line's end must stand in the page, as ".Pq default" or in its text.
    sed -n 's/^ *\(-., \)\{0,1\}--\([a-z0-9-]*\).*\[\(.*\)\]$/\2\t\3/p' "${TMPDIR:-/tmp}/help.$$" |
        while IFS="$(printf '\t')" read -r option default; do
            awk -v option="$option" -v default="$default" '
                { gsub(/\\-/, "-") }
                /^\.It / { here = index($0 " ", "Fl -" option " ") > 0 }
                here && index($0, default) { found = 1 }
                END { exit !found }' "$page" || echo "$page: --$option: default '$default' is missing"
        done >"${TMPDIR:-/tmp}/man.$$"
    if [ -s "${TMPDIR:-/tmp}/man.$$" ]; then
        cat "${TMPDIR:-/tmp}/man.$$"
        bad=1
    fi
    rm -f "${TMPDIR:-/tmp}/help.$$" "${TMPDIR:-/tmp}/man.$$"
done
if command -v mandoc >/dev/null; then
    for page in man/*.[1-9]; do
        [ -f "$page" ] || continue
        # "referenced manual not found" would depend on what this machine has installed.
        if ! mandoc -T lint -W warning "$page" >"${TMPDIR:-/tmp}/lint.$$" 2>&1; then
            cat "${TMPDIR:-/tmp}/lint.$$"
            bad=1
        fi
        rm -f "${TMPDIR:-/tmp}/lint.$$"
    done
fi
exit $bad
