/* Placement. */
#include "sched/placement.h"

#include <stdbool.h>
#include <string.h>

/* n_slots in equal parts to n_layers layers; the first of them take the remainder. */
static void share_equally(uint32_t n_slots, uint32_t n_layers, uint32_t *per_layer)
{
    for (uint32_t l = 0; l < n_layers; l++)
        per_layer[l] = n_slots / n_layers + (l < n_slots % n_layers);
}

static void fill_shallow(uint32_t boundary, uint32_t n_slots, uint32_t n_layers, uint32_t n_experts,
                         uint32_t *per_layer)
{
    uint32_t n_shallow = boundary < n_layers ? boundary : n_layers;
    for (uint32_t l = 0; l < n_shallow; l++) {
        per_layer[l] = n_slots < n_experts ? n_slots : n_experts;
        n_slots -= per_layer[l];
    }
    share_equally(n_slots, n_layers - n_shallow, per_layer + n_shallow);
}

/* How many of n experts are used more often than `than`, or just as often where `or_equal`. */
static uint32_t count_above(const uint64_t *frequency, uint32_t n, uint64_t than, bool or_equal)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < n; e++)
        count += frequency[e] > than || (or_equal && frequency[e] == than);
    return count;
}

/* The highest frequency but the `skip` highest; skip < n. */
static uint64_t frequency_after(const uint64_t *frequency, uint32_t n, uint32_t skip)
{
    uint32_t e = 0;
    while (count_above(frequency, n, frequency[e], false) > skip ||
           count_above(frequency, n, frequency[e], true) <= skip)
        e++;
    return frequency[e];
}

static void share_by_frequency(uint32_t n_slots, uint32_t n_layers, uint32_t n_experts,
                               const uint64_t *frequencies, uint32_t *per_layer)
{
    uint32_t base = n_slots / n_layers, n_over = n_slots % n_layers;
    for (uint32_t l = 0; l < n_layers; l++) {
        per_layer[l] = base;
        if (n_over == 0)
            continue;
        uint64_t next = frequency_after(frequencies + (uint64_t)l * n_experts, n_experts, base);
        uint32_t n_before = 0; /* layers whose next expert comes before this one's */
        for (uint32_t other = 0; other < n_layers; other++) {
            const uint64_t *others = frequencies + (uint64_t)other * n_experts;
            n_before += count_above(others, n_experts, next, other < l) > base;
        }
        per_layer[l] += n_before < n_over;
    }
}

/* Among the layers of one stack. n_experts: the fewest that one of them has. */
static void share_slots(enum moe_alloc alloc, uint32_t boundary, uint32_t n_slots,
                        uint32_t n_layers, uint32_t n_experts, const uint64_t *frequencies,
                        uint32_t *per_layer)
{
    switch (alloc) {
    case MOE_ALLOC_GLOBAL:
    case MOE_ALLOC_PER_LAYER:
        share_equally(n_slots, n_layers, per_layer);
        break;
    case MOE_ALLOC_SHALLOW:
        fill_shallow(boundary, n_slots, n_layers, n_experts, per_layer);
        break;
    case MOE_ALLOC_FREQUENCY:
        share_by_frequency(n_slots, n_layers, n_experts, frequencies, per_layer);
        break;
    }
}

void moe_allocate(enum moe_alloc alloc, uint32_t boundary, uint32_t n_slots, uint32_t n_layers,
                  uint32_t n_encoder, uint32_t n_experts, const uint64_t *frequencies,
                  uint32_t *per_layer)
{
    uint64_t n_keys = (uint64_t)n_layers * n_experts, before = (uint64_t)n_encoder * n_experts;
    uint32_t all = n_slots < n_keys ? n_slots : (uint32_t)n_keys;
    uint32_t decoder = all < n_keys - before ? all : (uint32_t)(n_keys - before);
    if (n_encoder < n_layers)
        share_slots(alloc, boundary, decoder, n_layers - n_encoder, n_experts,
                    frequencies ? frequencies + before : NULL, per_layer + n_encoder);
    share_equally(all - decoder, n_encoder, per_layer);
}

void moe_allocate_owners(const struct moe_strategy *strategy, const struct moe_inventory *i,
                         uint32_t n_slots, const uint64_t *frequencies, uint32_t *per_layer)
{
    uint32_t left = 0;
    moe_allocate(strategy->alloc, strategy->boundary, n_slots, i->n_layers, i->n_encoder,
                 i->n_experts, frequencies, per_layer);
    for (uint32_t layer = 0; layer < i->n_layers; layer++) {
        if (moe_inventory_owns(i, layer))
            continue;
        per_layer[moe_loop_owner(&i->loop, layer)] += per_layer[layer];
        per_layer[layer] = 0;
    }
    for (uint32_t layer = 0; layer < i->n_layers; layer++)
        if (per_layer[layer] > i->n_experts) {
            left += per_layer[layer] - i->n_experts;
            per_layer[layer] = i->n_experts;
        }
    for (uint32_t layer = 0; layer < i->n_layers && left > 0; layer++) {
        uint32_t room = moe_inventory_owns(i, layer) ? i->n_experts - per_layer[layer] : 0;
        room = room < left ? room : left;
        per_layer[layer] += room;
        left -= room;
    }
}

/* ---- Initial contents ---- */

static bool comes_before(const uint64_t *frequencies, uint32_t a, uint32_t b)
{
    return frequencies[a] != frequencies[b] ? frequencies[a] > frequencies[b] : a < b;
}

/* Heap of keys with the last in order on top: the one at `at` may be out of place. */
static void sift_down(uint32_t *heap, uint32_t n, uint32_t at, const uint64_t *frequencies)
{
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && comes_before(frequencies, heap[child], heap[child + 1]))
            child++;
        if (comes_before(frequencies, heap[child], heap[at]))
            return;
        uint32_t key = heap[at];
        heap[at] = heap[child];
        heap[child] = key;
    }
}

/* Falling frequency, the lower key first among equals. qsort's comparison could not see the
 * frequencies. */
static void sort_by_frequency(uint32_t *keys, uint32_t n, const uint64_t *frequencies)
{
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(keys, n, i, frequencies);
    for (uint32_t end = n; end-- > 1;) {
        uint32_t last = keys[0];
        keys[0] = keys[end];
        keys[end] = last;
        sift_down(keys, end, 0, frequencies);
    }
}

/* Whether expert e is among the n_slots most frequent of its layer, the lower number first among
 * equals. */
static bool fits_layer(const uint64_t *layer, uint32_t n_experts, uint32_t e, uint32_t n_slots)
{
    uint32_t n_before = count_above(layer, e, layer[e], true) +
                        count_above(layer + e + 1, n_experts - e - 1, layer[e], false);
    return n_before < n_slots;
}

/* Of the layers from `from` on. */
static uint32_t most_frequent(const uint32_t *per_layer, uint32_t n_slots, uint32_t from,
                              uint32_t n_layers, uint32_t n_experts, const uint64_t *frequencies,
                              uint32_t *keys, uint32_t *order)
{
    uint32_t n = 0;
    for (uint32_t l = from; l < n_layers; l++) {
        const uint64_t *layer = frequencies + (uint64_t)l * n_experts;
        for (uint32_t e = 0; e < n_experts; e++)
            if (!per_layer || fits_layer(layer, n_experts, e, per_layer[l]))
                order[n++] = l * n_experts + e;
    }
    sort_by_frequency(order, n, frequencies);
    n = n < n_slots ? n : n_slots;
    memcpy(keys, order, n * sizeof *keys);
    return n;
}

static uint32_t layer_by_layer(const uint32_t *per_layer, uint32_t n_slots, uint32_t n_layers,
                               uint32_t n_experts, uint32_t *keys)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < n_layers; l++)
        for (uint32_t e = 0; e < n_experts && n < n_slots; e++)
            if (!per_layer || e < per_layer[l])
                keys[n++] = l * n_experts + e;
    return n;
}

uint32_t moe_initial(enum moe_init init, const uint32_t *per_layer, uint32_t n_slots,
                     uint32_t n_layers, uint32_t n_encoder, uint32_t n_experts,
                     const uint64_t *frequencies, uint32_t *keys, uint32_t *order)
{
    uint32_t n;
    switch (init) {
    case MOE_INIT_EMPTY:
        break;
    case MOE_INIT_FREQUENCY:
        return most_frequent(per_layer, n_slots, 0, n_layers, n_experts, frequencies, keys, order);
    case MOE_INIT_LAYERWISE:
        return layer_by_layer(per_layer, n_slots, n_layers, n_experts, keys);
    case MOE_INIT_ENCODER:
        n = layer_by_layer(per_layer, n_slots, n_encoder, n_experts, keys);
        return n + most_frequent(per_layer, n_slots - n, n_encoder, n_layers, n_experts,
                                 frequencies, keys + n, order);
    }
    return 0;
}

/* ---- Placement ---- */

/* By rising number of rows, or falling; equal ones keep their order. */
static void sort_by_rows(uint32_t *experts, uint32_t n, const uint32_t *rows, bool falling)
{
    for (uint32_t i = 1; i < n; i++) {
        uint32_t e = experts[i], at = i;
        for (; at > 0; at--) {
            uint32_t before = experts[at - 1];
            if (falling ? rows[before] >= rows[e] : rows[before] <= rows[e])
                break;
            experts[at] = before;
        }
        experts[at] = e;
    }
}

uint32_t moe_swaps(const uint32_t *rows, const uint8_t *on_device, uint32_t n, double factor,
                   struct moe_swap *swaps, uint32_t *order)
{
    uint32_t n_host = 0, n_swaps = 0;
    for (uint32_t e = 0; e < n; e++)
        if (!on_device[e])
            order[n_host++] = e;
    uint32_t *host = order, *device = order + n_host, n_device = 0;
    for (uint32_t e = 0; e < n; e++)
        if (on_device[e])
            device[n_device++] = e;
    sort_by_rows(host, n_host, rows, true);
    sort_by_rows(device, n_device, rows, false);
    for (uint32_t i = 0; i < n_host && i < n_device; i++)
        if (rows[host[i]] > rows[device[i]] * factor)
            swaps[n_swaps++] = (struct moe_swap){.in = host[i], .out = device[i]};
    return n_swaps;
}

/* Lists the experts that are on the device in a and not in b. */
static uint32_t list_moved(const uint8_t *a, const uint8_t *b, uint32_t n, uint32_t *experts)
{
    uint32_t n_moved = 0;
    for (uint32_t e = 0; e < n; e++)
        if (a[e] && !b[e])
            experts[n_moved++] = e;
    return n_moved;
}

uint32_t moe_swaps_so_far(const uint32_t *rows, const uint8_t *before, const uint8_t *now,
                          uint32_t n, double factor, struct moe_swap *swaps, uint32_t *order,
                          uint8_t *target)
{
    uint32_t n_swaps = moe_swaps(rows, before, n, factor, swaps, order);
    memcpy(target, before, n);
    for (uint32_t i = 0; i < n_swaps; i++) {
        target[swaps[i].in] = 1;
        target[swaps[i].out] = 0;
    }
    uint32_t n_in = list_moved(target, now, n, order), *out = order + n_in;
    uint32_t n_out = list_moved(now, target, n, out);
    sort_by_rows(order, n_in, rows, true);
    sort_by_rows(out, n_out, rows, false);
    n_swaps = n_in < n_out ? n_in : n_out;
    for (uint32_t i = 0; i < n_swaps; i++)
        swaps[i] = (struct moe_swap){.in = order[i], .out = out[i]};
    return n_swaps;
}

/* The largest of n values, at least 0, that is not barred, the lower number first among equals; n:
 * all are. */
static uint32_t best_free(const float *values, const uint32_t *barred, uint32_t n)
{
    uint32_t best = n;
    for (uint32_t e = 0; e < n; e++)
        if (!barred[e] && values[e] >= 0 && (best == n || values[e] > values[best]))
            best = e;
    return best;
}

/* Replaces experts on the host from the weakest up, at most `replaces`, never the strongest. */
static void replace_on_host(const float *probabilities, const uint8_t *on_device, uint32_t n,
                            uint32_t most, struct moe_predicted *f, uint32_t *barred)
{
    uint32_t n_host = 0;
    for (uint32_t e = 0; e < n; e++)
        barred[e] = !on_device[e];
    for (uint32_t i = 0; i < f->n; i++) {
        barred[f->experts[i]] = 1;
        n_host += f->on_host[i];
    }
    for (uint32_t i = f->n; i-- > 0 && n_host > 1 && f->substituted < most;) {
        if (!f->on_host[i])
            continue;
        uint32_t e = best_free(probabilities, barred, n);
        if (e == n)
            break;
        barred[e] = 1;
        f->experts[i] = e;
        f->scores[i] = probabilities[e];
        f->on_host[i] = false;
        f->substituted++;
        n_host--;
    }
}

void moe_predicted_choice(const float *probabilities, const uint8_t *on_device, uint32_t n,
                          uint32_t k, uint32_t replaces, struct moe_predicted *out,
                          uint32_t *barred)
{
    out->n = k;
    out->substituted = 0;
    for (uint32_t i = 0; i < k; i++) {
        out->scores[i] = probabilities[out->experts[i]];
        out->on_host[i] = !on_device[out->experts[i]];
    }
    replace_on_host(probabilities, on_device, n, replaces, out, barred);
}

bool moe_predicted_pays(const struct moe_predicted *f, const uint32_t *chosen, uint32_t k,
                        const uint8_t *on_device)
{
    bool on_host = false;
    for (uint32_t i = 0; i < f->n; i++)
        on_host |= f->on_host[i];
    for (uint32_t i = 0; i < k; i++)
        on_host |= !on_device[chosen[i]];
    return f->n > 0 && on_host;
}

uint32_t moe_predicted_others(const struct moe_predicted *f, const uint32_t *chosen, uint32_t k)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        uint32_t at = 0;
        while (at < k && chosen[at] != f->experts[i])
            at++;
        n += at == k;
    }
    return n;
}
