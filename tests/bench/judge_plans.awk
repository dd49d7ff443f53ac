# Sums up tables of bench_strategies with device= (and calib=): how far predicted decode tokens/s
# are from the measured over all strategies and cells, and auto against the best of the other exact
# strategies of its cell, except resident, which takes all the memory it needs.
#
#   awk -f tests/bench/judge_plans.awk OUTPUT...

BEGIN { FS = "|" }

function trim(s) { gsub(/^ +| +$/, "", s); return s }
function field(name) { return trim($column[name]) }

# Sorts values[1..n], and labels with them.
function sort(values, labels, n,    i, j, v, l) {
    for (i = 2; i <= n; i++) {
        v = values[i]; l = labels[i]
        for (j = i; j > 1 && values[j - 1] > v; j--) {
            values[j] = values[j - 1]; labels[j] = labels[j - 1]
        }
        values[j] = v; labels[j] = l
    }
}

# The smallest of sorted values that so large a share of them does not exceed.
function at_share(values, n, share,    i) {
    i = int(n * share)
    if (i < n * share) i++
    return values[i < 1 ? 1 : i]
}

function middle(values, n) {
    return n % 2 ? values[(n + 1) / 2] : (values[n / 2] + values[n / 2 + 1]) / 2
}

$2 ~ /^ strategy *$/ { # a table begins
    for (name in column) delete column[name]
    for (i = 2; i < NF; i++) column[trim($i)] = i
    n_tables++
    n_columns = NF
    next
}

# Strategies that could not run have shorter lines.
!/^\| / || NF != n_columns || !("planned decode" in column) { next }

{
    strategy = field("strategy")
    loads = field("loads"); demand = field("demand"); speed = field("decode") + 0
    cell = n_tables SUBSEP loads SUBSEP demand
    where = sprintf("demand %s, loads %s", demand, loads)
    if (!(cell in cell_name)) { cells[++n_cells] = cell; cell_name[cell] = where }
    if (field("measured/planned") == "-") n_unknown++
    else {
        ratio = field("measured/planned") + 0
        error[++n_results] = ratio > 1 ? 1 - 1 / ratio : 1 / ratio - 1
        error_label[n_results] = sprintf("%s (%s): measured %.3f of the predicted", strategy, where, ratio)
    }
    if (strategy ~ /^auto: /) { auto_speed[cell] = speed; auto_strategy[cell] = strategy }
    else if (field("exact") == "yes" && strategy !~ /^resident/ && speed > best_speed[cell] + 0) {
        best_speed[cell] = speed; best_strategy[cell] = strategy
    }
}

END {
    if (n_results > 0) {
        sort(error, error_label, n_results)
        printf "|predicted/measured - 1| of decode tokens/s, %d results in %d cells: ", n_results, n_cells
        printf "median %.1f%%, 95th percentile %.1f%%\n", 100 * middle(error, n_results),
               100 * at_share(error, n_results, 0.95)
        print "the worst:"
        for (i = n_results; i > 0 && i > n_results - 5; i--)
            printf "  %5.1f%%  %s\n", 100 * error[i], error_label[i]
    }
    if (n_unknown > 0) printf "without a prediction: %d results\n", n_unknown
    for (i = 1; i <= n_cells; i++) {
        cell = cells[i]
        if (!(cell in auto_speed) || !(cell in best_strategy)) continue
        share[++n_judged] = auto_speed[cell] / best_speed[cell]
        share_label[n_judged] = sprintf("%s: %s, best: %s", cell_name[cell], auto_strategy[cell],
                                        best_strategy[cell])
    }
    if (n_judged > 0) {
        print "auto, measured, over the best other exact strategy:"
        for (i = 1; i <= n_judged; i++) printf "  %.3f  %s\n", share[i], share_label[i]
        sort(share, share_label, n_judged)
        printf "median %.3f, least %.3f, of %d cells\n", middle(share, n_judged), share[1], n_judged
    }
    if (n_results == 0) { print "no predictions in these tables (device=)"; exit 1 }
}
