# From a moe-plan(5) file, the figures that its explanation must give, computed independently: a fragment
# of the text a line, blanks squeezed. Bars are left out.

function about(x, unit) { # two significant digits
    if (x == "") return "?"
    x += 0
    for (unit = 1; x >= 99.5 * unit;) unit *= 10
    return x >= 9.95 || x == 0 ? sprintf("%.0f", unit * int(x / unit + 0.5)) : sprintf(x >= 0.995 ? "%.1f" : x >= 0.0995 ? "%.2f" : "%.3f", x)
}
function share(x) {
    if (x == "") return "?"
    x += 0
    return sprintf(x > 0 && (x < 0.0995 || (x > 0.99 && x < 0.9995)) ? "%.1f%%" : "%.0f%%", 100 * x)
}
function time(x) { x += 0; return x < 0.0995e-3 ? about(1e6 * x) " us" : x < 0.995 ? about(1e3 * x) " ms" : about(x) " s" }
function bytes(n, unit, i) { # three digits
    n += 0
    split("B KiB MiB GiB TiB PiB EiB", unit, " ")
    for (i = 1; n >= 999.5 && i < 7; i++) n /= 1024
    return sprintf(i == 1 || n >= 99.95 ? "%.0f %s" : n >= 9.995 ? "%.1f %s" : "%.2f %s", n, unit[i])
}
function rate(x) { x += 0; return x >= 1e9 ? sprintf("%.2f GB/s", x * 1e-9) : sprintf("%.1f MB/s", x * 1e-6) }
function max(a, b) { return a + 0 > b + 0 ? a + 0 : b + 0 }
function min(a, b) { return a + 0 < b + 0 ? a + 0 : b + 0 }
function member(key, found) { # of a mapping in one line
    if (!match($0, key ": [^,}]*")) return ""
    found = substr($0, RSTART + length(key) + 2, RLENGTH - length(key) - 2)
    gsub(/"/, "", found)
    return found
}
BEGIN { n_tried = pools = layer_lists = 0 }
function list(text, to) { gsub(/^.*\[|\].*$|,/, " ", text); return split(text, to, " ") }

/^[a-z]/ { # a section
    section = $1; sub(/:.*/, "", section)
    part = ""
    next
}
/^  [a-z_]+:$/ { part = $1; sub(/:/, "", part); next }
section == "slots" && /slot_bytes:/ { pools++ }
section == "slots" && /per_layer:/ {
    own = 1
    n = list($0, items)
    for (i = 1; i <= n; i++) slots[i - 1] += items[i]
    next
}
section == "slots" { sub(/- /, ""); pool[pools, $1] = $2; next }
section == "contents" && part == "layers" && /\[/ { loaded[layer_lists++] = list($0, items) }
section == "layers" {
    l = member("layer")
    hit[l] = member("hit_rate"); accuracy[l] = member("accuracy"); stall[l] = member("stall_seconds")
}
section == "outlook" { # memory, then link
    k = part
    amount[k, steps[k] + 0] = member(k == "memory" ? "bytes" : "bytes_per_second") + 0
    fast[k, steps[k] + 0] = member("decode_tokens_per_second")
    step_hit[k, steps[k]++ + 0] = member("hit_rate")
}
section == "tried" {
    tried[n_tried] = member("strategy"); tried_speed[n_tried] = member("decode_tokens_per_second")
    n_tried++
}
/^  [a-z_]+: / { key = $1; sub(/:/, "", key); value[section, key] = $2 }

function memory(key) { return value["memory", key "_bytes"] + 0 }
function expected(key) { return value["expected", key] }

function piece(name, x, all) { if (x > 0) print name, bytes(x), share(x / all) }
function budget() { return memory("total") ? memory("total") : memory("experts") }
function put_memory(used, all, names, keys, n, i, buffers, lent) {
    n = split("program dense kv work experts lent kv_lent", keys, " ")
    buffers = "buffers for " value["memory", "batch_tokens"] + 0 " prompt tokens"
    lent = memory("lent")
    split("the program|weights that every token uses|the text: a context of " value["memory", "context_tokens"] + 0 \
          " tokens|" (lent ? "buffers" : buffers) "|experts|experts, or " buffers \
          "|experts, until the text needs it", names, "|")
    for (i = 1; i < n - 1; i++) used += memory(keys[i])
    all = max(memory("total"), used)
    if (!all) return
    for (i = 1; i <= n; i++) piece(names[i], memory(keys[i]) - (keys[i] == "experts" ? lent + memory("kv_lent") : 0), all)
    piece("unused", memory("total") - used, all)
    if (memory("floor") && pools) print "The smallest budget that works is " bytes(memory("floor")) "."
    print "each of " value["shape", "moe_layers"] " layers has " value["shape", "experts"] ", a token uses " \
          value["shape", "experts_per_token"] " of them."
}
function put_slots(i, cache, cache_bytes, all, token) {
    for (i = 1; i <= pools; i++) {
        cache += pool[i, "cache_slots:"]
        cache_bytes += pool[i, "cache_slots:"] * pool[i, "slot_bytes:"]
    }
    if (!pools || !budget()) return
    all = value["shape", "moe_layers"] * value["shape", "experts"]
    token = memory("token_experts")
    print cache + 0 " of all " all " experts (" bytes(cache_bytes) " of " bytes(memory("all_experts")) \
          ") have room at a time, " about(token ? cache_bytes / token : 0) " times what a token uses."
}
function cause(name, x, total) { if (x >= 0.0005 * total && x > 0) print name, time(x), share(x / total) }
function doing(name, x, total) { if (x >= 0.0005 * total) print name ": " time(x) }
function put_bounds(compute, handling, wait, host, total, c, limit) {
    compute = max(expected("compute_seconds"), 0); wait = max(expected("stall_seconds"), 0)
    host = max(expected("host_seconds"), 0); handling = max(expected("handling_seconds"), 0)
    total = compute + handling + wait + host
    if (!total) return
    c = min(max(expected("compute_limit_seconds"), 0), total)
    limit = min(max(expected("link_limit_seconds"), c), total)
    print "Where a token's time goes, " time(total)
    cause("computing", c, total)
    cause("reading that nobody could avoid", limit - c, total)
    cause("reading that a perfect guess would have saved", total - limit, total)
    if (pools && limit > 0 && total - limit >= 0.005 * total)
        print "Upper bound for this memory, not reachable: about " about(1 / limit) " tokens/s."
    if ((handling >= 0.0005 * total) + (wait >= 0.0005 * total) + (host >= 0.0005 * total) && compute >= 0.0005 * total) {
        doing("computes", compute, total); doing("asks for experts and takes them in", handling, total)
        doing("waits for the " link(), wait, total); doing("waits for the host", host, total)
    }
    if (!pools) return
    if (expected("bytes_per_token") > 0)
        print "A token reads " bytes(expected("bytes_per_token")) "; the " link() " (" \
              rate(value["times", "load_bytes_per_second"]) beside() ") is busy " \
              share(min(1, expected("link_seconds") * expected("decode_tokens_per_second"))) " of the time."
    if (expected("optimal_hit_rate") != "")
        print share(expected("hit_rate")) " of the experts are in memory when they are needed; " \
              share(expected("optimal_hit_rate")) " would be"
    if (value["prefetch", "layer_seconds"] > 0)
        print "A layer computes for " time(value["prefetch", "layer_seconds"]) ", reading an expert takes " \
              time(value["prefetch", "load_seconds"]) "."
    if (expected("accuracy") != "")
        print share(expected("accuracy")) " of a layer's experts are guessed before"
}
function beside(x) {
    x = value["times", "load_piece_seconds"]
    return x > 0 && !(value["times", "storage_bytes_per_second"] > 0) ? ", beside " time(x) " a read" : ""
}
function link() { return value["evidence", "loads_over_bus"] == "true" || value["times", "storage_bytes_per_second"] > 0 || value["host_memory", "total_bytes"] > 0 ? "bus" : "disk" }
function put_layers(n, step, l, i, end, s, f, h, nh, a, na, w, line, any_a, any_f) {
    n = value["shape", "moe_layers"]
    step = int((n + 11) / 12)
    for (l = 0; l < n; l++) { any_a += accuracy[l] != ""; any_f += loaded[l] > 0 }
    for (l = 0; l < n && pools; l += step) {
        s = f = h = nh = a = na = w = 0
        end = min(l + step, n)
        for (i = l; i < end; i++) {
            s += slots[i]; f += loaded[i]; w += stall[i]
            if (hit[i] != "") { h += hit[i]; nh++ }
            if (accuracy[i] != "") { a += accuracy[i]; na++ }
        }
        line = (end - l == 1 ? l : l "-" end - 1) " " (nh ? share(h / nh) : "?") " " (w > 0 ? time(w) : "-")
        if (any_a) line = line " " (na ? share(a / na) : "-")
        if (own) line = line " " s + 0
        if (any_f) line = line " " f + 0
        print line
    }
}
# Line i of the steps shown: evenly, but the present one takes the place of the one nearest to it, of the last only
# if it is that.
function picked(k, now, n, rows, i, p, o, x, best, least) {
    for (p = 0; p < n && !(amount[k, p] > 0.999 * now && amount[k, p] < 1.001 * now);) p++
    best = -1
    for (o = 0; o < (p < n - 1 ? rows - 1 : rows) && p < n; o++) {
        x = int(o * (n - 1) / max(rows - 1, 1)) - p
        x = x < 0 ? -x : x
        if (best < 0 || x < least) { best = o; least = x }
    }
    return i == best ? p : int(i * (n - 1) / max(rows - 1, 1))
}
function put_steps(k, now, n, rows, i, j, next_, gain) {
    n = steps[k] + 0
    rows = min(n, 5)
    next_ = -1
    for (i = 0; i < rows && n > 1; i++) {
        j = picked(k, now, n, rows, i)
        print (amount[k, j] > 0.999 * now && amount[k, j] < 1.001 * now ? "> " : "") \
              (k == "memory" ? bytes(amount[k, j]) : rate(amount[k, j])) " " about(fast[k, j]) " " share(step_hit[k, j])
    }
    for (i = n - 1; i >= 0; i--) if (amount[k, i] > 1.001 * now) next_ = i
    if (k != "memory" || n < 2 || next_ < 0 || expected("decode_tokens_per_second") <= 0) return
    gain = fast[k, next_] / expected("decode_tokens_per_second") - 1
    if (gain >= 0.005 || gain <= -0.005)
        print "The next step up, " bytes(amount[k, next_]) ": about " about(fast[k, next_]) " tokens/s, " \
              sprintf("%+.0f%%.", 100 * gain)
}
function times(x) { return x > 0.75 && x < 1.25 ? sprintf("%.0f%% %s", 100 * (x < 1 ? 1 - x : x - 1), x < 1 ? "slower" : "faster") : about(x) " times as fast." }
function put_answer(last, apart, all, now) {
    last = steps["memory"] - 1
    now = budget()
    if (!(expected("decode_tokens_per_second") > 0)) { print "The plan does not say how fast it is."; return }
    if (!pools) { print "All experts are in memory. More memory would not help"; return }
    print (expected("hit_rate") == "" ? "some" : share(1 - expected("hit_rate") - expected("skipped_rate"))) " of " # "the experts", or "them" where it matters little
    if (expected("skipped_rate") != "")
        print "leaves out " share(expected("skipped_rate"))
    if (last < 0 || step_hit["memory", last] <= 1 - 1e-9 || amount["memory", last] <= now) return
    if (fast["memory", last] / expected("decode_tokens_per_second") < 1.005) return
    all = bytes(amount["memory", last])
    apart = bytes(amount["memory", last] - now)
    split(all, words, " "); split(apart, others, " ")
    print all " (+" (words[2] == others[2] ? others[1] : apart) ") holds all of them: " \
          times(fast["memory", last] / expected("decode_tokens_per_second"))
}
END {
    put_answer()
    if (expected("decode_tokens_per_second") > 0) print "an answer about " about(expected("decode_tokens_per_second")) " tokens/s"
    if (value["expected_first", "decode_tokens_per_second"] > 0)
        print "the first about " about(value["expected_first", "decode_tokens_per_second"]) " tokens/s, " \
              share(value["expected_first", "hit_rate"]) " of the experts in memory"
    if (expected("prefill_tokens_per_second") > 0) print "a prompt about " about(expected("prefill_tokens_per_second")) " tokens/s"
    put_memory()
    put_slots()
    put_bounds()
    put_layers()
    put_steps("memory", budget())
    put_steps("link", value["times", "load_bytes_per_second"])
    for (i = 0; i < n_tried && i < 3 && n_tried > 1; i++) { # a long name is broken before '+'
        split(tried[i], words, "+")
        print about(tried_speed[i]), words[1]
    }
}
