#!/bin/sh
# CoServe's figures 13 to 19 in form, and what they hang on, from the simulator: prints COE.md.
#
#   tests/bench/coe.sh > tests/bench/COE.md     three minutes of one processor; all but figure 19 the same everywhere
#   tests/bench/coe.sh claims                   the figures of its claims C1 to C6, for claims.sh
#
# CLAIMS=FILE: those of the same run there, beside the page.
#
# Machines and models: profiles/coe, whose comments say what is the paper's and what is assumed. Tasks: A1,
# A2 (2,500 and 3,500 requests of board A), B1, B2 (of board B), one request per 4 ms, drawn by SEED (0).
# Needs jq. GRID=FILE: the points of "What the figures hang on" from a file, as grid() writes them, instead of anew.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
SEED=${SEED:-0}
plan=$BUILD/bin/moe-plan
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v jq >/dev/null || { echo "coe.sh: jq is needed (apt-get install jq)" >&2; exit 1; }
sh profiles/coe/board.sh 352 >"$work/A.yaml"
sh profiles/coe/board.sh 342 >"$work/B.yaml"

machines="numa uma"
tasks="A1 A2 B1 B2"
requests() { case $1 in ?1) echo 2500 ;; *) echo 3500 ;; esac; }
board() { echo "$work/${1%?}.yaml"; }
machine() { [ "$1" = numa ] && echo NUMA || echo UMA; }

# ---- The paper's tasks ----

for m in $machines; do
    for t in $tasks; do
        "$plan" --coe "$(board "$t")" --costs "profiles/coe/$m.yaml" --seed "$SEED" \
            --simulate "$(requests "$t")" --json >"$work/$m.$t"
    done
    for b in A B; do
        "$plan" -q --coe "$work/$b.yaml" --costs "profiles/coe/$m.yaml" --seed "$SEED" --requests 2500 \
            --schedule coserve --evict two-stage --no-prefetch -o "$work/$m.$b.plan"
        "$plan" --explain "$work/$m.$b.plan" --json >"$work/$m.$b.json"
        "$BUILD/tests/bench/bench_coe" "$work/$b.yaml" "profiles/coe/$m.yaml" >"$work/$m.$b.cost"
    done
done

# value MACHINE TASK SYSTEM KEY
value() { jq -r ".[] | select(.system == \"$3\") | .$4" "$work/$1.$2"; }
per_second() { value "$1" "$2" "$3" results_per_s | awk '{ printf "%.1f", $1 }'; }
switches() { value "$1" "$2" "$3" switches; }

# ---- What an executor takes for itself ----

# A line for each: board, MiB of the GPU's memory that each executor takes, executors on the GPU and on the CPU,
# results a second, the window's last range, and the number of experts that gave the most in the window.
taken() { # BOARD MIB CUDA CPU
    sed "s/{name: cuda, /&executor_bytes: $(($2 * 1048576)), /" profiles/coe/numa.yaml >"$work/taken.yaml"
    "$plan" -q --coe "$work/$1.yaml" --costs "$work/taken.yaml" --seed "$SEED" --requests 2500 --schedule coserve \
        --evict two-stage --no-prefetch --executors "cuda:$3$([ "$4" = 0 ] || echo ",cpu:$4")" -o "$work/taken.plan"
    "$plan" --explain "$work/taken.plan" --json |
        jq -r --arg at "$*" '$at + " \(.expected_per_second) \(.window.lower) \(.window.upper) \(.points | max_by(.per_second).experts)"'
}
for b in A B; do
    for o in 0 512 1024 1536; do
        for n in 1 2 3 4 5 6; do taken $b $o $n 0; done
        taken $b $o 3 1
        taken $b $o 4 1
    done
done >"$work/taken"
# Where each takes 1.5 GiB: the best of these executors; of how many boards it is the paper's, of how many a further one
# on the GPU loses; with 3G1C the last ranges of the window, where the most lies, and of how many boards that is an end of it.
of_taken() { # AWK [END]
    awk "\$2 == 1536 { $1 } ${2:-}" "$work/taken"
}
best_taken() {
    of_taken '{ if ($5 > most[$1]) { most[$1] = $5; at[$1] = $3 "G" $4 "C" } }' 'END { print at["A"] " of A, " at["B"] " of B" }'
}
same_taken() {
    of_taken '{ if ($5 > most[$1]) { most[$1] = $5; at[$1] = $3 "G" $4 "C" } }' 'END { print (at["A"] == "3G1C") + (at["B"] == "4G1C") }'
}
inner_taken() {
    of_taken 'if ($4 == 0 && $5 > most[$1]) { most[$1] = $5; at[$1] = $3 }' \
        'END { print (at["A"] > 1 && at["A"] < 6) + (at["B"] > 1 && at["B"] < 6) }'
}
ranges_taken() { of_taken 'if ($3 == 3 && $4) printf("%s%s to %s of %s", n++ ? ", " : "", $6, $7, $1)'; }
most_taken() { of_taken 'if ($3 == 3 && $4) printf("%s%s of %s", n++ ? ", " : "", $8, $1)'; }
inside_taken() { of_taken 'if ($3 == 3 && $4) n += $8 == $6 || $8 == $7' 'END { print n + 0 }'; }

# ---- What they hang on: types x skew x memory x load time ----

types="60 80 120 200 342"
skews="0 0.5 1 1.5"
loads="1 2 3"
memories() { [ "$1" = numa ] && echo 4 8 16 || echo 8 16 24; } # GiB of the host's; where it is shared, of all
slower() { # COSTS TIMES: loads that take so many times as long
    awk -v times="$2" '{
        while (match($0, /load_[a-z_]*seconds: [0-9.]+/)) {
            split(substr($0, RSTART, RLENGTH), pair, ": ")
            printf "%s%s: %.6g", substr($0, 1, RSTART - 1), pair[1], times * pair[2]
            $0 = substr($0, RSTART + RLENGTH)
        }
        print }' "$1"
}
# A line: machine types skew GiB loads, then results a second and switches of these systems. The loads' costs and the
# board of the types are in $work.
systems="samba casual coserve coserve+next next+both planned samba-fifo samba-parallel"
point() { # MACHINE TYPES SKEW GIB LOADS SEED
    [ "$1" = numa ] && n=3500 || n=2500 # B2 and B1, of which the paper says the switches
    "$plan" --coe "$work/grid.yaml" --costs "$work/$1.slower.$5" --memory "${4}G" --seed "$6" --simulate "$n" --json |
        jq -r --arg at "$1 $2 $3 $4 $5" --arg systems "$systems" '(map({(.system): .}) | add) as $by
            | $at + " " + ($systems | split(" ") | map($by[.] | "\(.results_per_s) \(.switches)") | join(" "))'
}
grid() {
    for m in $machines; do
        for k in $types; do
            for s in $skews; do
                SKEW=$s sh profiles/coe/board.sh "$k" >"$work/grid.yaml"
                for g in $(memories "$m"); do
                    for x in $loads; do point "$m" "$k" "$s" "$g" "$x" "$SEED"; done
                done
            done
        done
    done
}
for m in $machines; do
    for x in $loads; do slower "profiles/coe/$m.yaml" "$x" >"$work/$m.slower.$x"; done
done
if [ -n "${GRID:-}" ]; then cp "$GRID" "$work/grid"; else grid >"$work/grid"; fi

# ---- What the search for executors and the window hang on: types, memory, load time, draws ----

# found FILE: of a plan as JSON: the best executors of the first search; 1 where the best number of them on the accelerator has
# slower ones on both sides, else 0; the window's last range, and the number of experts that gave the most in the window.
found() {
    jq -r '[.trials[] | select(.experts == null)] as $tried | ($tried | max_by(.per_second)) as $best
        | ($tried | map(select(.cpu == $tried[0].cpu).per_second) | (max as $m | index($m)) as $i
            | if $i > 0 and $i < length - 1 then 1 else 0 end) as $inner
        | "\($best.cuda)G\($best.cpu)C \($inner) \(.window.lower // "-") \(.window.upper // "-") \((.points // [] | max_by(.per_second).experts) // "-")"' "$1"
}
searched_types="80 120 160 200 240 280 342"
drawn="0 1 2 3"
# A line: machine, types, GiB, loads, draw, and what was found.
search() { # MACHINE TYPES GIB LOADS DRAW
    "$plan" -q --coe "$work/searched.yaml" --costs "$work/$1.slower.$4" --memory "${3}G" --seed $((SEED + $5)) --requests 2500 \
        --schedule coserve --evict two-stage --no-prefetch -o "$work/searched.plan"
    "$plan" --explain "$work/searched.plan" --json >"$work/searched.json"
    echo "$* $(found "$work/searched.json")"
}
for k in $searched_types; do
    sh profiles/coe/board.sh "$k" >"$work/searched.yaml"
    for d in $drawn; do
        for g in $(memories numa); do
            for x in $loads; do search numa "$k" "$g" "$x" "$d"; done
        done
        search uma "$k" 24 1 "$d"
    done
done >"$work/searched"
# of_searched MACHINE GIB LOADS AWK [END]: lines of these.
of_searched() {
    awk "\$1 == \"$1\" && \$3 == $2 && \$4 == $3 { $4 } ${5:-}" "$work/searched"
}
whole() { [ "$1" = numa ] && echo 16 || echo 24; } # GiB that a machine has, as in its costs
# best_of MACHINE TYPES: the best executors with how many draws, most first: "3G1C 2, 3G0C 2".
best_of() {
    of_searched "$1" "$(whole "$1")" 1 "if (\$2 == $2) print \$6" | sort | uniq -c | sort -k1,1nr -k2 |
        awk '{ printf("%s%s %s", NR > 1 ? ", " : "", $2, $1) }'
}
# mostly MACHINE: which are the best in the most draws, with each number of types.
mostly() {
    for k in $searched_types; do
        best_of "$1" "$k" | tr , '\n' | awk -v types="$k" 'NR == 1 { most = $2 } $2 == most { printf("%s%s", NR > 1 ? " or " : "", $1) }
            END { print " with " types }'
    done | sed '1s/$/ types/' | paste -sd, | sed 's/,/, /g'
}
# Of how many machines and boards the paper's number is the best in half of the draws or more, with some number of types.
same_searched() {
    for m in $machines; do
        for n in 3G1C 4G1C; do
            for k in $searched_types; do best_of "$m" "$k"; echo; done | tr , '\n' |
                awk -v n=$n '$1 == n && $2 >= 2 { found = 1 } END { print found + 0 }'
        done
    done | awk '{ n += $1 } END { print n }'
}
inner_searched() { for m in $machines; do of_searched "$m" "$(whole "$m")" 1 'print $7'; done | awk '{ n += $1 } END { print n " " NR }'; }
# inside_searched GIB LOADS: on the NUMA machine, in how many draws the most bounds the last range; of how many.
inside_searched() { of_searched numa "$1" "$2" 'n += $10 == $8 || $10 == $9; all++' 'END { print n + 0 " " all }'; }

# column SYSTEM: of the grid's lines, that of its results a second.
column() { echo "$systems" | tr ' ' '\n' | awk -v name="$1" '$1 == name { print 4 + 2 * NR }'; }
# ahead A B: where A is faster than B: in how many points, by at most how much, and there.
ahead() {
    awk -v a="$(column "$1")" -v b="$(column "$2")" -v names="$1 | $2" '{
            lead = $a / $b - 1
            n += lead > 0
            if (NR == 1 || lead > most) { most = lead; at = $1 " " $2 " " $3 " " $4 " " $5 } }
        END { printf("%s | %d of %d | %+.1f%%\t%s\n", names, n, NR, 100 * most, at) }' "$work/grid"
}
# draws A B MACHINE TYPES SKEW GIB LOADS: by how much A is ahead of B on other draws of one point.
draws() {
    a=$(column "$1") b=$(column "$2")
    shift 2
    SKEW=$3 sh profiles/coe/board.sh "$2" >"$work/grid.yaml"
    for seed in 1 2 3 4; do point "$@" $((SEED + seed)); done |
        awk -v a="$a" -v b="$b" '{ printf("%s%+.1f%%", n++ ? ", " : "", 100 * ($a / $b - 1)) }'
}
draws_table() { # "A B"...
    for pair; do
        # shellcheck disable=SC2086 # two names
        line=$(ahead $pair)
        at=${line#*	}
        # shellcheck disable=SC2086 # names, and a point
        echo "| ${line%	*} | $(echo "$at" | awk '{ print ($1 == "numa" ? "NUMA" : "UMA") ", " $2 ", " $3 ", " $4 " GiB, x" $5 }') | $(draws $pair $at) |"
    done
}

# ---- Tables ----

# table FUNCTION SYSTEM...: a row for each machine and task.
table() {
    f=$1
    shift
    printf '| machine, task |'
    printf ' %s |' "$@"
    printf '\n|---|'
    for s in "$@"; do printf -- '---|'; done
    echo
    for m in $machines; do
        for t in $tasks; do
            printf '| %s, %s |' "$(machine "$m")" "$t"
            for s in "$@"; do printf ' %s |' "$($f "$m" "$t" "$s")"; done
            echo
        done
    done
}
# Tasks whose plan has executors on the processor.
on_processor() {
    for m in $machines; do
        for t in $tasks; do [ "$(value "$m" "$t" coserve "cpu // 0")" = 0 ] || printf '%s\n' "$(machine "$m") $t"; done
    done | paste -sd, | sed 's/,/, /g; s/^$/here none/'
}
baselines="samba samba-fifo samba-parallel"
# range KEY TOP BOTTOMS MACHINE: TOP's KEY over those of BOTTOMS, least and most of the tasks.
range() {
    for t in $tasks; do
        for b in $3; do echo "$(value "$4" "$t" "$2" "$1") $(value "$4" "$t" "$b" "$1")"; done
    done |
        awk '{ x = $1 / $2 } NR == 1 || x < low { low = x } x > high { high = x }
             END { printf "%.3f %.3f\n", low, high }'
}
faster() { range results_per_s "$1" "$2" "$3" | awk '{ printf "%.1fx to %.1fx", $1, $2 }'; }
# The least and the most of the tasks on the NUMA machine.
spread() {
    for t in $tasks; do
        per_second numa "$t" "$1"
        echo
    done | sort -n | sed -n '1p;$p' | paste -sd' ' | sed 's/ / to /'
}
# By how much a system is faster than coserve+next: in the mean of all tasks, least and most.
gain() {
    for m in $machines; do
        for t in $tasks; do echo "$(value "$m" "$t" "$1" results_per_s) $(value "$m" "$t" coserve+next results_per_s)"; done
    done | awk '{ x = 100 * ($1 / $2 - 1); sum += x }
                NR == 1 || x < low { low = x } NR == 1 || x > high { high = x }
                END { printf "%+.1f%% (%+.1f%% to %+.1f%%)", sum / NR, low, high }'
}
fewer() { range switches "$1" "$2" "$3" | awk '{ printf "%.1f%% to %.1f%%", 100 * (1 - $2), 100 * (1 - $1) }'; }


# of_grid MACHINE AWK...: lines of the grid, with x the times of samba's speed, less the share of its switches that
# are gone.
of_grid() {
    awk -v m="$1" "\$1 == m { x = \$10 / \$6; less = 1 - \$11 / (\$7 > 0 ? \$7 : 1); $2 } ${3:-}" "$work/grid"
}
grid_table() { # MACHINE EXPRESSION
    printf '| types, exponent |'
    for g in $(memories "$1"); do for x in $loads; do printf ' %s GiB, x%s |' "$g" "$x"; done; done
    printf '\n|---|'
    for g in $(memories "$1"); do for x in $loads; do printf -- '---|'; done; done
    echo
    of_grid "$1" "row = \$2 \", \" \$3; if (row != last) printf(\"%s| %s |\", last ? \"\\n\" : \"\", row); last = row
        printf(\" %s |\", $2)" 'END { print "" }'
}
# A picture: memory and types down, load times and exponents across; shades by the bounds, in rising order.
heat() { # MACHINE EXPRESSION BOUND BOUND BOUND
    printf '\n```\n'
    {
        printf '               '
        for x in $loads; do printf 'loads x %-9s' "$x"; done
        printf '\nGiB  types     '
        for x in $loads; do
            for s in $skews; do printf '%-4s' "$s"; done
            printf ' '
        done
        echo
    } | sed 's/ *$//'
    for g in $(memories "$1"); do
        for k in $types; do
            printf '%3s  %5s     ' "$g" "$k"
            of_grid "$1" "if (\$4 == $g && \$2 == $k) v[\$5, \$3] = $2" "END {
                n = split(\"$loads\", load, \" \"); k = split(\"$skews\", skew, \" \")
                for (i = 1; i <= n; i++) {
                    for (j = 1; j <= k; j++) {
                        x = v[load[i], skew[j]]
                        printf(\"%s  \", x < $3 ? \"··\" : x < $4 ? \"░░\" : x < $5 ? \"▒▒\" : \"██\")
                    }
                    printf(\" \")
                }
                print \"\" }"
        done
    done | sed 's/ *$//'
    printf '```\n'
}
# nearest MACHINE SAMBA COSERVE: the five points whose switches are nearest to these.
nearest() {
    of_grid "$1" "d = log((\$7 + 1) / ($2 + 1)) ^ 2 + log((\$11 + 1) / ($3 + 1)) ^ 2
        printf(\"%.6f| %s | %s | %s | %s | %s, %s | %.1f, %.1f | %.1fx |\\n\", d, \$2, \$3, \$4, \$5, \$7, \$11, \$6, \$10, x)" |
        sort -n | sed 's/^[0-9.]*//; 5q'
}
# How many times as fast as the baselines CoServe is in the paper, least and most.
slowest() { [ "$1" = numa ] && echo 4.5 || echo 4.6; }
fastest() { [ "$1" = numa ] && echo 10.5 || echo 12; }
# In the paper's range: a condition for points.
within() { echo "x >= $(slowest "$1") && x <= $(fastest "$1")"; }
# Of the types, exponents and load times, with 8 GiB on both machines, those whose figures over the three baselines reach nine
# tenths of the paper's speed-ups, and of these the nearest to its figures: types, exponent, loads; how many times as fast, least
# and most on NUMA, on UMA; switches less so, per cent; how many of how many reach them.
alike() {
    awk '$4 == 8 {
            settings[$2 " " $3 " " $5]
            k = $2 " " $3 " " $5 " " $1
            for (i = split("6 18 20", at, " "); i; i--) {
                x = $10 / $at[i]
                left = $11 / ($(at[i] + 1) > 0 ? $(at[i] + 1) : 1)
                if (!(k in low) || x < low[k]) low[k] = x
                if (x > high[k]) high[k] = x
                if (!(k in least) || left < least[k]) least[k] = left
                if (left > most[k]) most[k] = left
            } }
        function far(here, theirs) { return log((here + 1e-9) / theirs) ^ 2 }
        function reaches(here, theirs) { return here - 1 >= 0.9 * (theirs - 1) }
        END {
            for (s in settings) {
                all++
                n = s " numa"; u = s " uma"
                if (!reaches(low[n], 4.5) || !reaches(high[n], 10.5) || !reaches(low[u], 4.6) || !reaches(high[u], 12)) continue
                reached++
                d = far(low[n], 4.5) + far(high[n], 10.5) + far(low[u], 4.6) + far(high[u], 12)
                d += far(most[n], 0.215) + far(least[n], 0.061) + far(most[u], 0.215) + far(least[u], 0.061)
                if (!nearest || d < nearest) { nearest = d; is = s }
            }
            n = is " numa"; u = is " uma"
            printf("%s %.3f %.3f %.3f %.3f %.1f %.1f %.1f %.1f %d of %d\n", is, low[n], high[n], low[u], high[u],
                100 * (1 - most[n]), 100 * (1 - least[n]), 100 * (1 - most[u]), 100 * (1 - least[u]), reached, all) }' "$work/grid"
}
# points MACHINE CONDITION: in how many of the grid's points it holds.
points() { of_grid "$1" "if ($2) n++" 'END { print n + 0 }'; }
# The least and the most of something.
span() { of_grid "$1" "v = $2; if (!n++ || v < low) low = v; if (v > high) high = v" "END { printf(\"$3\", low, high) }"; }


# ---- The claims ----

# claim ID CLAIM THEIRS HERE "HERE THEIRS NONE;..." [EXPERIMENT "HERE THEIRS NONE;..."]...: a line with tabs; claims.sh judges by
# the fifth field, and each experiment by what follows it.
claim() {
    printf '%s' "$1"
    shift
    printf '\t%s' "$@"
    echo
}
best_executors() { found "$work/$1.$2.json" | cut -d' ' -f1; } # MACHINE BOARD
added() { # KIND: of 24 steps none, em, em+ra, coserve those with more results a second, with fewer switches
    for m in $machines; do
        for t in $tasks; do
            before=
            for s in none em em+ra coserve; do
                now=$(value "$m" "$t" "$s" "$1")
                [ -z "$before" ] || echo "$before $now"
                before=$now
            done
        done
    done | awk -v key="$1" '{ n += key == "switches" ? $2 < $1 : $2 > $1 } END { print n + 0 }'
}
claims() {
    numa=$(range results_per_s coserve "$baselines" numa)
    uma=$(range results_per_s coserve "$baselines" uma)
    # shellcheck disable=SC2046
    set -- $(alike)
    setting="$1 types, exponent $2, 8 GiB, loads x$3"
    claim C1 "results a second, over Samba-CoE, with FIFO, parallel (fig. 13)" "4.5x to 10.5x on NUMA, 4.6x to 12x on UMA" \
        "$(faster coserve "$baselines" numa), $(faster coserve "$baselines" uma)" \
        "${numa% *} 4.5 1;${numa#* } 10.5 1;${uma% *} 4.6 1;${uma#* } 12 1" \
        "setting: what the paper leaves open (how many types a task uses, how uneven they are, how much host memory is free, what a framework adds to a load) as in ${12} ${13} ${14} settings with 8 GiB, which reach nine tenths of each figure; the nearest, $setting: $(printf '%.1fx to %.1fx, %.1fx to %.1fx' "$4" "$5" "$6" "$7")" \
        "$4 4.5 1;$5 10.5 1;$6 4.6 1;$7 12 1"
    numa=$(range switches coserve "$baselines" numa)
    uma=$(range switches coserve "$baselines" uma)
    claim C2 "fewer expert switches (fig. 14)" "78.5% to 93.9%" \
        "NUMA $(fewer coserve "$baselines" numa), UMA $(fewer coserve "$baselines" uma)" \
        "$(echo "$numa" | awk '{ print 100 * (1 - $2) }') 78.5 0;$(echo "$numa" | awk '{ print 100 * (1 - $1) }') 93.9 0;$(echo "$uma" | awk '{ print 100 * (1 - $2) }') 78.5 0;$(echo "$uma" | awk '{ print 100 * (1 - $1) }') 93.9 0" \
        "setting: that of C1 ($setting), 65 switches after 34 preloaded experts being about 100 types of 342: NUMA $8% to $9%, UMA ${10}% to ${11}%" \
        "$8 78.5 0;$9 93.9 0;${10} 78.5 0;${11} 93.9 0"
    fast=$(added results_per_s) few=$(added switches)
    claim C3 "expert management, arranging, assigning: each adds (fig. 15, 16)" "in all 8 tasks" \
        "of 24 steps $fast are faster, $few have fewer switches" "$fast 24 0;$few 24 0"
    same=0 inner=0 list=
    for m in $machines; do
        for b in A B; do
            # shellcheck disable=SC2046
            set -- $(found "$work/$m.$b.json")
            list="$list${list:+, }$1"
            [ $b = A ] && want=3G1C || want=4G1C
            [ "$1" != "$want" ] || same=$((same + 1))
            inner=$((inner + $2))
        done
    done
    claim C4 "best executors: fewer use less of the machine, more cost more than they bring (fig. 17)" "3G1C for board A, 4G1C for B, on both machines" \
        "$list; inside of the range that is tried in $inner of 4" \
        "$same 4 0;$inner 4 0" \
        "setting: a task that uses fewer of a board's types, as its switches say (C2), nothing else changed. The best executors in most of four draws: on NUMA $(mostly numa); on UMA $(mostly uma)" \
        "$(same_searched) 4 0;$(inner_searched) 0" \
        "setting: a further executor costs nothing here but its part of the memory. Where each takes 1.5 GiB of the NUMA machine's GPU for itself (a context, a framework): the best are $(best_taken), and on the GPU alone further ones lose on $(inner_taken) of 2 boards" \
        "$(same_taken) 2 0;$(inner_taken) 2 0"
    inside=$({ found "$work/numa.A.json" && found "$work/numa.B.json"; } | awk '{ n += $5 == $3 || $5 == $4 } END { print n }')
    claim C5 "the most results a second lie in the window's last range (fig. 18)" "28 to 39 of A, 31 to 42 of B" \
        "$(for b in A B; do jq -j --arg b $b '"\($b): \(.window.lower) to \(.window.upper), the most at \(.points | max_by(.per_second).experts)"' "$work/numa.$b.json"; [ $b = B ] || printf '; '; done)" \
        "$inside 2 0" \
        "setting: 4 GiB of the host's memory for experts instead of 16, so that more loads come from the disk, and 80 to 342 types: the most lies in the last range in $(inside_searched 4 1 | sed 's/ / of /') draws" \
        "$(inside_searched 4 1) 0" \
        "setting: these loads three times as long as well: in $(inside_searched 4 3 | sed 's/ / of /')" \
        "$(inside_searched 4 3) 0" \
        "setting: 1.5 GiB that each executor takes for itself: the last ranges with 3G1C are $(ranges_taken), the most at $(most_taken)" \
        "$(inside_taken) 2 0"
    worst=$(for m in $machines; do for b in A B; do jq -r '[100 * (1 - .per_s / .per_s_in_advance), .schedule_s[2] / .inference_s, 100 * .take_s / .inference_s] | @tsv' "$work/$m.$b.cost"; done; done |
        awk '{ d = $1 > d ? $1 : d; s = $2 > s ? $2 : s; t = $3 > t ? $3 : t } END { printf "%.2f %.6f %.4f", d, s, t }')
    # shellcheck disable=SC2086
    set -- $worst
    claim C6 "scheduling takes less time than inference, and below 3% of the throughput; expert management below 0.2% of the time (fig. 19)" "yes" \
        "at most $(awk "BEGIN { printf \"%.4f\", 100 * $2 }")% of a request's inference, $1%, $3%" \
        "$(awk "BEGIN { print ($2 < 1) + ($1 < 3) + ($3 < 0.2) }") 3 0"
}
if [ "${1:-}" = claims ]; then
    claims
    exit
fi
[ -z "${CLAIMS:-}" ] || claims >"$CLAIMS"

# ---- The page ----

cat <<'TEXT'
# CoServe's figures, simulated

Figures 13 to 19 of CoServe (ASPLOS 2025) in form: the scheduler and expert manager of `lib/serve` under a
virtual clock. This page is what `tests/bench/coe.sh` prints. Machines, models and boards are in `profiles/coe`;
comments there say which number the paper gives, which one follows from its text and which one is assumed. None
was chosen to come near a result: the paper prints most of its figures as pictures only, so that K, B, batches on
the NUMA machine, quantities of components and dependencies had to be assumed, and the results below are those
of the assumptions as they were first made, except that ResNet101's operations have since been looked up (YOLOv5's times
grew by 0.4% with that: results of chance, as which request comes first, moved by up to some percent).

Systems: *samba*, *samba-fifo*, *samba-parallel* are the paper's three baselines (5.1); *none*, *em*, *em+ra*,
*coserve* add expert management, request arranging and request assigning in turn (5.3); *casual* has three
executors on the GPU (two on the UMA machine), one on the CPU and 75% of the GPU's memory for experts; *coserve*
has executors and memory as `moe-plan --coe` finds them (CoServe Best), on four other tasks of the same length and
under the same schedule. What the paper does not have: *coserve+next* also loads the next expert while the present
one computes, as `moe-serve` does; *next+home* keeps the requests of an expert on one executor, *next+queue* lets
none leave memory that is about to be needed, *next+both* does both. Each has a plan of its own. *planned* is what
`moe-plan --coe` plans: the best of *coserve*, *coserve+next*, *next+both* and *next+both* without loading ahead, by the four other
tasks.

TEXT

echo "## Figure 13: throughput, results a second"
echo
table per_second samba samba-fifo samba-parallel casual coserve coserve+next next+both planned
cat <<TEXT

| | paper | here |
|---|---|---|
| NUMA: CoServe over the baselines | 4.5x to 10.5x | over samba $(faster coserve samba numa), samba-fifo $(faster coserve samba-fifo numa), samba-parallel $(faster coserve samba-parallel numa) |
| UMA: the same | 4.6x to 12x | $(faster coserve samba uma), $(faster coserve samba-fifo uma), $(faster coserve samba-parallel uma) |
| casual over samba | up to 8.5x on NUMA, 10.6x on UMA | $(faster casual samba numa), $(faster casual samba uma) |
| NUMA: results a second, CoServe Best, Casual | 24.5 to 27.2, 22.1 to 23.1 | $(spread coserve), $(spread casual) |

## Figure 14: expert switches

TEXT
table switches samba samba-fifo samba-parallel casual coserve coserve+next next+both planned
cat <<TEXT

| | paper | here |
|---|---|---|
| fewer than the baselines | 78.5% to 93.9% | NUMA: than samba $(fewer coserve samba numa), than samba-fifo $(fewer coserve samba-fifo numa), than samba-parallel $(fewer coserve samba-parallel numa); UMA: $(fewer coserve samba uma), $(fewer coserve samba-fifo uma), $(fewer coserve samba-parallel uma) |
| NUMA, B2: samba, CoServe | 1,060, 65 | $(switches numa B2 samba), $(switches numa B2 coserve) on $(jq '[.executors[].number] | add' "$work/numa.B.json") executors |
| UMA, B1: a baseline, CoServe | 293, 63 | $(switches uma B1 samba), $(switches uma B1 coserve) on $(jq '[.executors[].number] | add' "$work/uma.B.json") executors |

## Figures 15 and 16: the parts, added in turn

Results a second:

TEXT
table per_second none em em+ra coserve coserve+next
printf '\nSwitches:\n\n'
table switches none em em+ra coserve coserve+next

cat <<'TEXT'

## Beyond the paper: each part alone

Results a second, and switches:

TEXT
table per_second coserve+next next+home next+queue next+both
echo
table switches coserve+next next+home next+queue next+both
cat <<TEXT

Over coserve+next in the mean of the eight tasks, least and most: next+home $(gain next+home), next+queue $(gain next+queue),
next+both $(gain next+both). One task of each says little about parts this small: see below what another draw changes.
Taking next the group whose expert is in memory gained 0.2% when it was tried and was not kept; no option repeats it.

## Figure 17: executors

Results a second on the tasks that plans are tried on (2,500 requests), 75% of the GPU's memory for experts; G on
the GPU, C on the CPU.

| machine, board | tried, in this order | best | paper |
|---|---|---|---|
TEXT
for m in $machines; do
    for b in A B; do
        tried=$(jq -r '[.trials[] | select(.experts == null) | "\(.cuda)G\(.cpu)C \(.per_second * 10 | round / 10)"] | join(", ")' "$work/$m.$b.json")
        best=$(best_executors "$m" "$b")
        [ $b = A ] && paper=3G1C || paper=4G1C
        echo "| $(machine "$m"), $b | $tried | $best | $paper |"
    done
done

cat <<'TEXT'

## Figure 18: experts in the memory of the NUMA machine's GPU

Results a second on the same tasks at the upper ends of the decay window; the first is 15.

| board | experts: results/s | last window, drawn from it | below the trend | planned | paper |
|---|---|---|---|---|---|
TEXT
for b in A B; do
    points=$(jq -r '[.points[] | "\(.experts): \(.per_second * 10 | round / 10)"] | join(", ")' "$work/numa.$b.json")
    window=$(jq -r '.window | "\(.lower) to \(.upper), \(.chosen)"' "$work/numa.$b.json")
    below=$(jq -r '(.points[-1].per_second) as $x | .window | if .expected_per_second then (1 - $x / .expected_per_second) * 1000 | round / 10 | tostring + "%" else "?" end' "$work/numa.$b.json")
    [ $b = A ] && paper="28 to 39, 35; 7.7%; 25.4/s" || paper="31 to 42, 34; 7.5%; 26.7/s"
    planned=$(jq -r '"\(.executors[0].experts) on \(.executors[0].number), \(.expected_per_second * 10 | round / 10)"' "$work/numa.$b.json")
    echo "| $b | $points | $window | $below | $planned | $paper |"
done

cat <<'TEXT'

## Fewer types, slower loads

Figures 17 and 18 where a task uses so many of a board's types (exponent 1), by four draws of tasks (SEED 0 to 3). The best
executors of the search, and in how many of the draws:

TEXT
{
    printf '| machine |'
    for k in $searched_types; do printf ' %s types |' "$k"; done
    printf '\n|---|'
    for k in $searched_types; do printf -- '---|'; done
    echo
    for m in $machines; do
        printf '| %s |' "$(machine "$m")"
        for k in $searched_types; do printf ' %s |' "$(best_of "$m" "$k")"; done
        echo
    done
    printf '\nOn the NUMA machine, with these types and draws, how often the most results a second are at an end of the window'"'"'s last range, by\nGiB of the host'"'"'s memory for experts and how long loads take:\n\n| GiB |'
    for x in $loads; do printf ' x%s |' "$x"; done
    printf '\n|---|'
    for x in $loads; do printf -- '---|'; done
    echo
    for g in $(memories numa); do
        printf '| %s |' "$g"
        for x in $loads; do printf ' %s |' "$(inside_searched "$g" "$x" | sed 's/ / of /')"; done
        echo
    done
}
cat <<TEXT

The paper's number, 3G1C of A and 4G1C of B, is the best in half of the draws or more, with some number of types, in $(same_searched) of 4
cases (two machines, two boards): an executor more brings something where its loads run while others compute, and the fewer
types a task uses, the fewer loads there are. More experts in memory bring something only where a load costs more than
the memory that batches lose: where many come from the disk, and where they take longer than the profiles have them.
TEXT
cat <<'TEXT'

## What an executor takes for itself

A process on a GPU takes memory beside its experts: its context, its framework's kernels and workspace. The paper
does not say how much; a machine's costs may (`executor_bytes`, moe-coe(5)), and plans count it. Results a second on the
NUMA machine where each executor takes so much of the GPU's 12 GiB:

| board, GiB | 1G0C | 2G0C | 3G0C | 4G0C | 5G0C | 6G0C | 3G1C | 4G1C | last window of 3G1C, the most at |
|---|---|---|---|---|---|---|---|---|---|
TEXT
awk '{ row = $1 ", " $2 / 1024
       if (row != last) printf("| %s |", row)
       last = row
       printf(" %.1f |", $5)
       if ($4 && $3 == 3) window = $6 " to " $7 ", " $8
       if ($4 && $3 == 4) printf(" %s |\n", window) }' "$work/taken"
cat <<TEXT

With 1.5 GiB the best of these are $(best_taken) (the paper: 3G1C, 4G1C), and on the GPU alone further ones lose on
$(inner_taken) of 2 boards. The last windows of 3G1C are $(ranges_taken) (the paper: 28 to 39, 31 to 42); the most results
a second are at $(most_taken), an end of that window on $(inside_taken) of 2 boards.
TEXT
cat <<'TEXT'

## Figure 19: what scheduling costs

Measured on the machine that printed this page, in nanoseconds for a request, while so many are queued;
inference is simulated, 16 tasks. *In advance*: the same requests in the same order, without scheduling on the clock.

| machine, board | scheduling at 1,000, 10,000, 100,000 queued | taking it out | bytes for 100,000 queued | inference, ms | results/s, in advance | difference |
|---|---|---|---|---|---|---|
TEXT
for m in $machines; do
    for b in A B; do
        jq -r --arg who "$(machine "$m"), $b" '"| \($who) | \([.schedule_s[] * 1e9 | round | tostring] | join(", ")) | \(.take_s * 1e9 | round) | \(.queue_bytes) | \(.inference_s * 1e4 | round / 10) | \(.per_s), \(.per_s_in_advance) | \((.per_s / .per_s_in_advance - 1) * 1e4 | round / 100)% |"' "$work/$m.$b.cost"
    done
done
cat <<'TEXT'

The paper: scheduling is shorter than inference, and a difference below 3%. What is left of it here is chance: a few
nanoseconds change which of two requests comes first.

## What the figures hang on

The paper does not say how many of a board's types a task uses, how uneven they are ("the distribution of component
quantities is known"), how much of the host's memory is free for experts, and what its framework adds to a load
("possibly due to data reorganization"). All four are varied here, on board B: types, quantities that fall as
1 / rank^exponent, GiB of host memory (on the UMA machine of all memory), loads as long as the profiles have them (x1),
twice and three times. NUMA: 3,500 requests (B2), UMA: 2,500 (B1).
TEXT
for m in $machines; do
    printf '\n### %s: results a second, samba, coserve and planned\n\n' "$(machine "$m")"
    grid_table "$m" 'sprintf("%.1f, %.1f, %.1f", $6, $10, $16)'
    printf '\nHow many times as fast as samba coserve is: ·· below 2, ░░ from 2, ▒▒ from %s to %s, which is the paper'"'"'s range, ██ above.\n' \
        "$(slowest "$m")" "$(fastest "$m")"
    heat "$m" x 2 "$(slowest "$m")" "$(fastest "$m")"
    printf '\n### %s: switches, samba, coserve and planned\n\n' "$(machine "$m")"
    grid_table "$m" 'sprintf("%d, %d, %d", $7, $11, $17)'
    printf '\nFewer switches of coserve than of samba: ·· below 50%%, ░░ from 50%%, ▒▒ from 78.5%% to 93.9%%, the paper'"'"'s range, ██ above.\n'
    heat "$m" less 0.5 0.785 0.9395
done
cat <<TEXT

### Where the paper's figures lie

| | NUMA | UMA |
|---|---|---|
| points | $(points numa 1) | $(points uma 1) |
| faster by 4.5x to 10.5x (NUMA), 4.6x to 12x (UMA) | $(points numa "$(within numa)") | $(points uma "$(within uma)") |
| fewer switches by 78.5% to 93.9% | $(points numa 'less >= 0.785 && less <= 0.939') | $(points uma 'less >= 0.785 && less <= 0.939') |
| both | $(points numa "$(within numa) && less >= 0.785 && less <= 0.939") | $(points uma "$(within uma) && less >= 0.785 && less <= 0.939") |
| faster, least and most | $(span numa x '%.1fx to %.1fx') | $(span uma x '%.1fx to %.1fx') |
| next+both over coserve, least and most | $(span numa '$14 / $10' '%.2fx to %.2fx') | $(span uma '$14 / $10' '%.2fx to %.2fx') |
| planned over coserve, least and most | $(span numa '$16 / $10' '%.2fx to %.2fx') | $(span uma '$16 / $10' '%.2fx to %.2fx') |
| planned over samba, least and most | $(span numa '$16 / $6' '%.1fx to %.1fx') | $(span uma '$16 / $6' '%.1fx to %.1fx') |

With 8 GiB on both machines $(alike | cut -d' ' -f12-) settings reach nine tenths of each of the paper's speed-ups over all three baselines, the least
and the most on both machines. Nearest to its figures (the eight ends of its ranges, in logarithms):

| types | exponent | loads | NUMA: faster, fewer switches | UMA |
|---|---|---|---|---|
$(alike | awk '{ printf("| %s | %s | %s | %.1fx to %.1fx, %s%% to %s%% | %.1fx to %.1fx, %s%% to %s%% |", $1, $2, $3, $4, $5, $8, $9, $6, $7, $10, $11) }')

The points whose switches are nearest to the paper's, 1,060 and 65 (NUMA, B2):

| types | exponent | GiB | loads | switches: samba, coserve | results a second | faster |
|---|---|---|---|---|---|---|
$(nearest numa 1060 65)

... and to 293 and 63 (UMA, B1, of one of its baselines):

| types | exponent | GiB | loads | switches: samba, coserve | results a second | faster |
|---|---|---|---|---|---|---|
$(nearest uma 293 63)

TEXT
# What a switch takes by the paper's own figures: B2 on NUMA at 24.5 to 27.2 results a second, 4.5 to 10.5 times
# the baselines' speed, 1,060 switches; the rest is computation, as samba's here.
jq -r '.[] | select(.system == "samba") | .computing_s' "$work/numa.B2" | awk '{
    fast = (3500 / (27.2 / 4.5) - $1) / 1060; slow = (3500 / (24.5 / 10.5) - $1) / 1060
    printf "By the paper'"'"'s own figures a switch of Samba-CoE on the NUMA machine takes %.2f to %.2f s: 3,500 requests at\n", fast, slow
    printf "24.5 to 27.2 a second divided by 10.5 and 4.5, less %.0f s of computation, over 1,060 switches. A load from the disk is\n", $1
    printf "0.40 s in these profiles, one from the host'"'"'s memory 0.06 s: at the upper end the framework adds twice the disk'"'"'s time,\n"
    printf "which is the column x3. At the points with the paper'"'"'s switches nearly all loads of samba come from the host'"'"'s\n"
    printf "memory, so that it loses less there: the paper'"'"'s cache there helped little, or its loads from it were slow as well.\n" }'
cat <<TEXT

### What one draw says

Every point above is one task, on plans chosen by four others, so that which of two systems is ahead is partly chance:
in how many points it is the first, the point where it leads most (machine, types, exponent, memory, loads), and by how much
there on four other draws (SEED 1 to 4).

| first | second | ahead in | by at most | there | other draws |
|---|---|---|---|---|---|
$(draws_table "casual coserve" "casual planned" "coserve coserve+next" "coserve next+both" "coserve planned" "next+both planned")

## Where it differs from the paper, and why

- *All 342 or 352 types.* 65 switches after 34 preloaded experts are about 100 different experts in a task: the paper's
  tasks use far fewer types than its boards have, or it counts in another way; it does not say.
- *Loads at the disk's rate.* The baselines lose most where loads are slow and few come from the host's memory: with
  80 types and 4 GiB of host memory $(points numa '$2 == 80 && $4 == 4 && x >= 4.5') of $(points numa '$2 == 80 && $4 == 4') points reach the paper's range, with 16 GiB $(points numa '$2 == 80 && $4 == 16 && x >= 4.5') of $(points numa '$2 == 80 && $4 == 16').
- *The UMA machine.* Its loads are taken at the SSD's 3000 MB/s and all 24 GB are for experts and batches; a
  baseline that loads at the disk's full rate has less to lose. With 8 GiB of them $(points uma "\$4 == 8 && $(within uma)") of $(points uma '$4 == 8') points reach the
  paper's range, with 24 GiB $(points uma "\$4 == 24 && $(within uma)") of $(points uma '$4 == 24').
- *Figures 15 and 16*: *none*, *em* and *em+ra* have CoServe's executors and give each the same number of requests;
  where some of these are on the processor, the others wait for them: $(on_processor).
- *The processor's executor* is 27 times slower than the GPU's (an assumption from another machine's table). More
  executors on the GPU cost nothing here but the division of its memory, so that $(best_executors numa A) and
  $(best_executors numa B) are the best on the NUMA machine; what each takes for itself bounds their number, and so does a task
  that uses fewer types (tables above).
  Executors of one processor compute in turn here: the profiles of these machines have no teams of threads
  (moe-coe(5)), which compute side by side.
- *The window*: its rule is the paper's, its trend is level where the last points fall, and the number in it is drawn
  at random, as there; but a plan takes the best point that was measured, wherever it lies (figure 18).
TEXT
