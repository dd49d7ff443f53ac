#!/bin/sh
# coverage.sh DIR [CORPUS ...]: which lines of each reader its fuzz targets' inputs run, for make
# fuzz-coverage. DIR: the instrumented targets. A target names its readers in comments "Readers:",
# as patterns below lib/; a reader that several name is theirs together. The inputs are those of
# tests/fuzz/corpus and of each CORPUS/TARGET that is there.
#
# The last line names the readers below LEAST (90) percent; then the exit status is 1. The lines that
# are not run lie in DIR/missed.
set -eu
dir=$1
shift
for source in tests/fuzz/fuzz_*.c; do
    target=${source#*/fuzz_}
    target=${target%.c}
    inputs=tests/fuzz/corpus/$target
    for corpus in "$@"; do
        [ ! -d "$corpus/$target" ] || inputs="$inputs $corpus/$target"
    done
    # shellcheck disable=SC2086
    LLVM_PROFILE_FILE=$dir/$target.raw "$dir/fuzz_$target" $inputs >"$dir/$target.log"
    llvm-profdata merge -o "$dir/$target.data" "$dir/$target.raw"
    for pattern in $(sed -n 's@^/\* Readers: \(.*\) \*/$@\1@p' "$source"); do
        for reader in lib/$pattern; do
            llvm-cov show "$dir/fuzz_$target" -instr-profile="$dir/$target.data" "$reader" |
                sed -n "s@^ *\([0-9]*\)| *\([0-9][^|]*\)|\(.*\)@$target|${reader#lib/}|\1|\2|\3@p"
        done
    done
done >"$dir/lines"
awk -F'|' -v missed="$dir/missed" -v least="${LEAST:-90}" '
    !($2 in order) { readers[++n_readers] = $2; order[$2] = 1 }
    !index(targets[$2] " ", " " $1 " ") { targets[$2] = targets[$2] " " $1 }
    !(($2, $3) in text) { numbers[$2] = numbers[$2] " " $3; text[$2, $3] = $5 }
    $4 != "0" { run[$2, $3] = 1 }
    END {
        printf "" >missed
        printf "%-32s %-30s %6s %6s %8s\n", "reader", "targets", "lines", "missed", "run"
        for (r = 1; r <= n_readers; r++) {
            name = readers[r]
            n = split(numbers[name], lines, " ")
            bad = 0
            for (i = 1; i <= n; i++)
                if (!((name, lines[i]) in run)) {
                    bad++
                    print name ":" lines[i] ":" text[name, lines[i]] >missed
                }
            printf "%-32s %-30s %6d %6d %7.1f%%\n", name, substr(targets[name], 2), n, bad,
                   100 * (n - bad) / n
            if (100 * (n - bad) < least * n)
                below = below " " name
            all += n
            all_bad += bad
        }
        printf "%-32s %-30s %6d %6d %7.1f%%\n", "all", "", all, all_bad, 100 * (all - all_bad) / all
        printf "%d readers; below %d%%:%s\n", n_readers, least, below ? below : " none"
        exit below != ""
    }' "$dir/lines"
