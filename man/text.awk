# Writes manual pages as plain text, for those who have no man: awk -f man/text.awk man/moe-run.1 ...
# It knows the part of mdoc(7) that these pages use, in 78 columns; each page begins with a form feed and its name.

BEGIN {
    WIDTH = 78
    split("%T Ar Bq Brq Cm Dq Dv Em Ev Fa Fl Fn Ft Ic Li Nm No Ns Op Pa Pc Po Pq Ql Qq Sq Sx Sy Ta Va Vt Xr", names, " ")
    for (i in names)
        calls[names[i]] = 1
    split("Bq [ ] Brq { } Dq \" \" Op [ ] Pq ( ) Ql ' ' Qq \" \" Sq ' '", names, " ")
    for (i = 1; names[i]; i += 3) {
        opens[names[i]] = names[i + 1]
        closes[names[i]] = names[i + 2]
    }
}

# ---- Lines of text ----

function spaces(n) { return sprintf("%" (n > 0 ? n : 0) "s", "") }
function unescape(s) {
    gsub(/\\\(aq/, "'", s)
    gsub(/\\\(dq/, "\"", s)
    gsub(/\\\(mi|\\-/, "-", s)
    gsub(/\\\(mu/, "*", s)
    gsub(/\\&/, "", s)
    gsub(/\\ /, "\001", s) # does not break
    gsub(/\\e/, "\\", s)
    return s
}
function put(line) {
    gsub(/\001/, " ", line)
    sub(/ +$/, "", line)
    if (line == "" && blank)
        return
    blank = line == ""
    print line
}
function space() { flush(); put("") }

# The words so far, filled to the width; the first line may begin left of the others, with a head.
function flush(    n, word, line, i, left) {
    left = head != "" ? spaces(head_at) head : spaces(indent)
    if (head != "" && length(left) >= indent) {
        put(left)
        left = spaces(indent)
    }
    line = left spaces(indent - length(left))
    n = split(text, word, /[ \n]+/)
    left = 0
    for (i = 1; i <= n; i++) {
        if (word[i] == "")
            continue
        if (left && length(line) + 1 + length(word[i]) > WIDTH) {
            put(line)
            line = spaces(indent)
            left = 0
        }
        line = line (left ? " " : "") word[i]
        left = 1
    }
    if (left || (head != "" && line ~ /[^ ]/))
        put(line)
    text = head = ""
}
function add(words) {
    if (words == "")
        return
    text = text (text == "" || glue || closing(words) ? "" : " ") words
    glue = 0
}

# ---- Macros within a line ----

# The arguments of a line, in arg[1..n]; quoted[i]: one in quotes is no macro.
function arguments(line,    n, i, c, in_quotes, word) {
    n = 0
    while (line != "") {
        sub(/^ +/, "", line)
        if (line == "")
            break
        n++
        quoted[n] = 0
        if (substr(line, 1, 1) == "\"") {
            quoted[n] = 1
            line = substr(line, 2)
            i = index(line, "\"")
            if (!i)
                i = length(line) + 1
            arg[n] = substr(line, 1, i - 1)
            line = substr(line, i + 1)
        } else {
            match(line, /([^ \\]|\\.)+/)
            arg[n] = substr(line, 1, RLENGTH)
            line = substr(line, RLENGTH + 1)
        }
    }
    return n
}
function closing(word) { return word ~ /^[].,:;)?!|]$/ && word != "|" }

# What the macro and arguments from i to n say.
function inline(i, n,    out, mode, dashes, pending, tight, word, ends, j, rest) {
    out = ends = dashes = ""
    tight = 1
    for (; i <= n; i++) {
        word = arg[i]
        if (!quoted[i] && word in calls) {
            mode = word
            pending = ""
            if (word == "Fl") {
                dashes = dashes "-"
                if (i == n || closing(arg[i + 1])) {
                    out = out (tight ? "" : " ") dashes
                    dashes = ""
                    tight = 0
                }
            } else if (word in opens) {
                out = out (tight ? "" : " ") opens[word]
                ends = closes[word] ends
                tight = 1
            } else if (word == "Po") {
                out = out (tight ? "" : " ") "("
                tight = 1
            } else if (word == "Pc") {
                out = out ")"
                tight = 0
            } else if (word == "Ns") {
                tight = 1
            } else if (word == "Nm" && (i == n || closing(arg[i + 1]) || arg[i + 1] in calls)) {
                out = out (tight ? "" : " ") name
                tight = 0
            }
            continue
        }
        word = unescape(word)
        if (!quoted[i] && closing(arg[i])) {
            rest = 1 # nothing but closing marks: they stand behind what is enclosed
            for (j = i; j <= n; j++)
                rest = rest && closing(arg[j])
            if (rest) {
                out = out ends
                ends = ""
            }
            out = out word
            tight = 0
            continue
        }
        if (mode == "Fl" && word != "|")
            word = (dashes == "" ? "-" : dashes) word
        dashes = ""
        if (mode == "Xr" && i < n && arg[i + 1] ~ /^[0-9]$/)
            word = word "(" arg[++i] ")"
        if (mode == "Fn") {
            rest = ""
            for (j = i + 1; j <= n && !closing(arg[j]); j++)
                rest = rest (rest == "" ? "" : ", ") arg[j]
            word = word "(" rest ")"
            i = j - 1
        }
        if (quoted[i] && mode != "Fn" && mode != "")
            gsub(/ /, "\001", word)
        out = out (tight ? "" : " ") word
        tight = !quoted[i] && word ~ /^[([]$/
    }
    return out ends
}

# ---- Lists and pages ----

function begin_list(n,    i) {
    depth++
    kind[depth] = arg[2]
    outer[depth] = indent
    step[depth] = 8
    compact[depth] = 0
    number[depth] = 0
    columns[depth] = 0
    for (i = 3; i <= n; i++) {
        if (arg[i] == "-compact" && !quoted[i])
            compact[depth] = 1
        else if (arg[i] == "-offset" && !quoted[i]) {
            outer[depth] += 6
            i++
        } else if (arg[i] == "-width" && !quoted[i]) {
            i++
            step[depth] = arg[i] == "Ds" ? 8 : arg[i] ~ /^[0-9]+n$/ ? arg[i] + 2 : length(arg[i]) + 2
            if (step[depth] > 22)
                step[depth] = 22
        } else if (kind[depth] == "-column")
            width[depth, ++columns[depth]] = (length(unescape(arg[i])) > 6 ? length(unescape(arg[i])) : 6) + 2
    }
    if (kind[depth] == "-bullet")
        step[depth] = 3
    if (kind[depth] == "-enum")
        step[depth] = 4
    flush()
    if (kind[depth] == "-column" || compact[depth])
        put("")
}
# A row of a table; its last cell may go on in lines of its own.
function row(n,    i, from, cell, at, before, last) {
    flush()
    from = 2
    for (i = 2; i <= n + 1; i++) {
        if (i <= n && !(arg[i] == "Ta" && !quoted[i]))
            continue
        before = before last
        last = inline(from, i - 1)
        if (i <= n) {
            at += width[depth, ++cell]
            last = last spaces(at - length(before last))
            if (last !~ / $/)
                last = last " "
        }
        from = i + 1
    }
    indent = outer[depth] + at
    head_at = outer[depth]
    sub(/ +$/, "", before)
    head = before
    text = last
}
function item(n) {
    if (kind[depth] == "-column") {
        row(n)
        return
    }
    flush()
    if (!compact[depth])
        put("")
    indent = outer[depth] + step[depth]
    head_at = outer[depth]
    head = kind[depth] == "-bullet" ? "*" : kind[depth] == "-enum" ? ++number[depth] "." : inline(2, n)
}

FNR == 1 {
    flush()
    name = FILENAME
    sub(/.*\//, "", name)
    printf "\f%s\n", name
    blank = 1
    sub(/\.[0-9]$/, "", name)
    indent = depth = literal = synopsis = 0
}
literal && !/^\.Ed/ {
    put(spaces(indent) unescape($0))
    next
}
/^\.(Dd|Os|\\")/ { next }
/^\.Dt/ {
    put($2 "(" $3 ")")
    next
}
/^\.Sh/ {
    space()
    sub(/^\.Sh +/, "")
    put($0)
    synopsis = $0 == "SYNOPSIS"
    indent = 4
    next
}
/^\.Ss/ {
    space()
    sub(/^\.Ss +/, "  ")
    put($0)
    indent = 4
    next
}
/^\.Pp/ { space(); next }
/^\.Bd/ {
    space()
    before = indent
    indent += / -offset/ ? 6 : 0
    literal = 1
    next
}
/^\.Ed/ { indent = before; literal = 0; put(""); next }
/^\.Dl/ {
    flush()
    n = arguments(substr($0, 2))
    sub(/^\.Dl +/, "")
    put(spaces(indent + 6) unescape($0))
    next
}
/^\.Bl/ { begin_list(arguments(substr($0, 2))); next }
/^\.It/ { item(arguments(substr($0, 2))); next }
/^\.El/ {
    flush()
    indent = outer[depth]
    depth--
    indent = depth ? outer[depth] + step[depth] : 4
    put("")
    next
}
/^\.Nd/ { sub(/^\.Nd +/, ""); add("-"); add($0); next }
/^\.Rs/ { reference = ""; listing = 1; next }
/^\.%/ && listing {
    sub(/^\.%. +/, "")
    reference = reference (reference == "" ? "" : ", ") unescape($0)
    next
}
/^\.Re/ { add(reference "."); listing = 0; next }
/^\.Ft/ && synopsis { space() }
/^\.In/ {
    flush()
    add("#include <" $2 ">")
    next
}
/^\.Nm/ && synopsis { flush() }
/^\.(Fn)/ && synopsis {
    add(inline(1, arguments(substr($0, 2))) ";")
    flush()
    next
}
/^\.[A-Z%]/ {
    words = inline(1, arguments(substr($0, 2)))
    if ($1 == ".Pc")
        text = text words
    else
        add(words)
    glue = $1 == ".Po"
    next
}
/^\./ { next }
{ add(unescape($0)) }
END { flush() }
