# Reads Prometheus' text format strictly, and says what is wrong: every family has HELP and TYPE before
# its samples, which stand together; names and labels are spelled as they must be; no sample comes
# twice; values are numbers, counters' not negative; histograms rise to +Inf, which is their count.
function wrong(why) { print FILENAME ":" FNR ": " why ": " $0; bad = 1 }
function family_of(name,    base) {
    base = name
    sub(/_(bucket|sum|count)$/, "", base)
    return type[base] == "histogram" ? base : name
}
/^# HELP / {
    if ($3 in help) wrong("a second HELP")
    if (NF < 4) wrong("HELP without a text")
    help[$3] = 1
    next
}
/^# TYPE / {
    if ($3 in type) wrong("a second TYPE")
    if (!($3 in help)) wrong("TYPE without HELP")
    if ($4 !~ /^(counter|gauge|histogram)$/ || NF != 4) wrong("no type")
    if ($4 == "counter" && $3 !~ /_total$/) wrong("a counter whose name does not end with _total")
    type[$3] = $4
    open = $3
    next
}
/^#/ || /^$/ { wrong("neither HELP, TYPE nor a sample"); next }
{
    if (!match($0, /^[a-zA-Z_:][a-zA-Z0-9_:]*/)) { wrong("no name"); next }
    name = substr($0, 1, RLENGTH)
    rest = substr($0, RLENGTH + 1)
    labels = ""
    if (rest ~ /^\{/) {
        if (!match(rest, /^\{[a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\["\\n])*"(,[a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\["\\n])*")*\}/)) {
            wrong("labels")
            next
        }
        labels = substr(rest, 1, RLENGTH)
        rest = substr(rest, RLENGTH + 1)
    }
    if (rest !~ /^ (-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?|\+Inf|NaN)$/) { wrong("no value"); next }
    value = substr(rest, 2) + 0
    family = family_of(name)
    if (!(family in type)) wrong("no TYPE before it")
    if (family != open) wrong("not beside its family")
    if (type[family] != "gauge" && value < 0) wrong("negative")
    if ((name labels) in seen) wrong("twice")
    seen[name labels] = 1
    samples++
    if (type[family] == "histogram" && name == family "_bucket") {
        if (value < last[family]) wrong("a bucket with less than the one before")
        last[family] = value
        infinite[family] = index(labels, "le=\"+Inf\"") > 0
    }
    if (type[family] == "histogram" && name == family "_count") {
        if (!infinite[family]) wrong("the last bucket is not +Inf")
        if (value != last[family]) wrong("the count is not the last bucket's")
    }
}
END {
    if (samples < 20) { print "only " samples + 0 " samples"; bad = 1 }
    exit bad
}
