# From a moe-plan(5) file, the figures that its explanation must give, computed independently: a fragment
# of the text a line, blanks squeezed. Bars are left out.

function bytes(n, unit, i) {
    n += 0
    if (n < 1024) return int(n) " B"
    split("KiB MiB GiB TiB PiB EiB", unit, " ")
    for (i = 0; n >= 1023.995 || i == 0; i++) n /= 1024
    return sprintf("%.2f %s", n, unit[i])
}
function rate(x) { x += 0; return x >= 1e9 ? sprintf("%.2f GB/s", x * 1e-9) : sprintf("%.1f MB/s", x * 1e-6) }
function speed(x) { return x == "" ? "?" : sprintf(x + 0 < 10 ? "%.2f" : "%.1f", x) }
function percent(x) { return x == "" ? "?" : sprintf("%.1f%%", 100 * x) }
function ms(x) { return sprintf("%.3f", 1e3 * x) }
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
    tried_hit[n_tried++] = member("hit_rate")
}
/^  [a-z_]+: / { key = $1; sub(/:/, "", key); value[section, key] = $2 }

function memory(key) { return value["memory", key "_bytes"] + 0 }
function expected(key) { return value["expected", key] }

function put_memory(used, all, names, keys, n, i) {
    n = split("program dense kv work experts", keys, " ")
    split("program|weights outside experts|context of " value["memory", "context_tokens"] + 0 \
          "|batches of " value["memory", "batch_tokens"] + 0 "|experts", names, "|")
    for (i = 1; i <= n; i++) used += memory(keys[i])
    all = max(memory("total"), used)
    for (i = 1; i <= n && all; i++)
        print names[i], bytes(memory(keys[i])), sprintf("%.1f%%", 100 * memory(keys[i]) / all)
    if (memory("total") > used)
        print "unused", bytes(memory("total") - used),
              sprintf("%.1f%%", 100 * (memory("total") - used) / all)
    if (memory("floor") && pools)
        print "The smallest budget that works is " bytes(memory("floor")) "."
}
function put_slots(i, cache, working, cache_bytes, working_bytes, all, token) {
    for (i = 1; i <= pools; i++) {
        cache += pool[i, "cache_slots:"]; working += pool[i, "working_slots:"]
        cache_bytes += pool[i, "cache_slots:"] * pool[i, "slot_bytes:"]
        working_bytes += pool[i, "working_slots:"] * pool[i, "slot_bytes:"]
    }
    if (!pools) return
    all = value["shape", "moe_layers"] * value["shape", "experts"]
    token = memory("token_experts")
    print cache + 0 " slots keep experts (" bytes(cache_bytes) "): " percent(cache / all) \
          " of all " all " experts (" bytes(memory("all_experts")) "), " \
          sprintf("%.2f", token ? cache_bytes / token : 0) " times what a token uses (" \
          bytes(token) "). " working + 0 " are scratch space (" bytes(working_bytes) ")."
}
function fitting(n) { return n == 0 ? "no load fits" : n == 1 ? "1 load fits" : n " loads fit" }
function put_bounds(compute, handling, wait, host, total, c, limit, part1, part2, part3, least, what) {
    compute = max(expected("compute_seconds"), 0); wait = max(expected("stall_seconds"), 0)
    host = max(expected("host_seconds"), 0); handling = max(expected("handling_seconds"), 0)
    total = compute + handling + wait + host
    if (!total) return
    c = min(max(expected("compute_limit_seconds"), 0), total)
    limit = min(max(expected("link_limit_seconds"), c), total)
    part1 = c; part2 = limit - c; part3 = total - limit
    print "A token takes " ms(total) " ms: " ms(compute) " computing, " ms(handling) \
          " handling loads, " ms(wait) " waiting for experts, " ms(host) " waiting for the host."
    print "computation, with all experts in memory " ms(part1) " ms " percent(part1 / total)
    print "the link, even with perfect caching " ms(part2) " ms " percent(part2 / total)
    print "imperfect caching and prediction " ms(part3) " ms " percent(part3 / total)
    what = part1 >= part2 && part1 >= part3 ? "Computation" : part2 >= part3 ? "The link" : "Imperfect caching and prediction"
    least = what == "Computation" ? part1 : part1 + part2
    print what (what ~ /^Imperfect/ ? " are" : " is") " the largest part:"
    print speed(1 / least) " tokens/s"
    if (!pools) return
    print "A token loads " bytes(int(expected("bytes_per_token"))) "; the link (" \
          rate(value["times", "load_bytes_per_second"]) ") is busy " \
          percent(expected("link_seconds") * expected("decode_tokens_per_second")) \
          " of the time. Found in memory: " percent(expected("hit_rate")) \
          "; by a cache that knows the future but loads only on demand: " \
          percent(expected("optimal_hit_rate")) "."
    print "A layer takes " ms(value["prefetch", "layer_seconds"]) " ms, loading an expert " \
          ms(value["prefetch", "load_seconds"]) " ms: " fitting(value["prefetch", "loads"] + 0) \
          " in its time."
    if (expected("accuracy") != "")
        print "Of a layer's experts " percent(expected("accuracy")) " are predicted."
}
function put_layers(n, step, l, i, end, s, f, h, nh, a, na, w) {
    n = value["shape", "moe_layers"]
    step = int((n + 11) / 12)
    for (l = 0; l < n && pools; l += step) {
        s = f = h = nh = a = na = w = 0
        end = min(l + step, n)
        for (i = l; i < end; i++) {
            s += slots[i]; f += loaded[i]; w += stall[i]
            if (hit[i] != "") { h += hit[i]; nh++ }
            if (accuracy[i] != "") { a += accuracy[i]; na++ }
        }
        print (end - l == 1 ? l : l "-" end - 1), (own ? s + 0 : "shared"), f + 0, \
              (na ? percent(a / na) : "-"), ms(w) " ms", (nh ? percent(h / nh) : "-")
    }
    if (pools)
        print (("boundary", "by_accuracy") in value ? value["boundary", "by_accuracy"] : "unknown") \
              " by accuracy, " \
              (("boundary", "by_stall") in value ? value["boundary", "by_stall"] : "unknown") \
              " by least waiting."
}
# Line i of the steps shown: evenly, but the present one takes the place of the one nearest to it.
function picked(k, now, n, rows, i, p, o, x, best, least) {
    for (p = 0; p < n && !(amount[k, p] > 0.999 * now && amount[k, p] < 1.001 * now);) p++
    best = -1
    for (o = 0; o < rows && p < n; o++) {
        x = int(o * (n - 1) / max(rows - 1, 1)) - p
        x = x < 0 ? -x : x
        if (best < 0 || x < least) { best = o; least = x }
    }
    return i == best ? p : int(i * (n - 1) / max(rows - 1, 1))
}
function put_steps(k, now, n, rows, i, j, next_) {
    n = steps[k] + 0
    rows = min(n, 5)
    next_ = -1
    for (i = 0; i < rows; i++) {
        j = picked(k, now, n, rows, i)
        print (amount[k, j] > 0.999 * now && amount[k, j] < 1.001 * now ? "> " : "") \
              (k == "memory" ? bytes(amount[k, j]) : rate(amount[k, j])) " " speed(fast[k, j]) \
              " tokens/s " percent(step_hit[k, j]) " found"
    }
    for (i = n - 1; i >= 0; i--) if (amount[k, i] > 1.001 * now) next_ = i
    if (next_ >= 0 && expected("decode_tokens_per_second") > 0)
        print "The next step up, " (k == "memory" ? bytes(amount[k, next_]) : rate(amount[k, next_])) \
              ", gives " speed(fast[k, next_]) " tokens/s: " \
              sprintf("%+.1f%%.", 100 * (fast[k, next_] / expected("decode_tokens_per_second") - 1))
}
END {
    if (expected("decode_tokens_per_second") > 0) print "Expected: " speed(expected("decode_tokens_per_second")) " tokens/s of an answer, " \
          speed(expected("prefill_tokens_per_second")) " tokens/s of a prompt; " \
          percent(expected("hit_rate")) " of experts found in memory"
    put_memory()
    put_slots()
    put_bounds()
    put_layers()
    put_steps("memory", memory("total") ? memory("total") : memory("experts"))
    put_steps("link", value["times", "load_bytes_per_second"])
    for (i = 0; i < n_tried && i < 3; i++) # the first line of a long name
        print speed(tried_speed[i]), percent(tried_hit[i]), substr(tried[i], 1, 59)
    tokens = value["evidence", "trace_tokens"] - value["evidence", "trace_prompt_tokens"]
    h = expected("hit_rate")
    printf "the share found is good to %.1f points\n", 100 * (tokens > 0 ? 2 * sqrt(h * (1 - h) / tokens) : 1)
}
