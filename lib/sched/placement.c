#include "sched/placement.h"

#include <string.h>

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

/* From the weakest up, at most so many of those on the host, but not the strongest. */
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
