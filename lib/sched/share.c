/* Divides experts among ranks: first how many bytes each gets, then which experts. */
#include "sched/share.h"

#include <stdlib.h>

#include "base/mem.h"

struct rank_part {
    double bytes;      /* that it is to get */
    double taken;      /* ... and has, so far */
    double work;       /* uses of its experts so far */
    double layer_work; /* ... in the layer at hand */
};

/* Equal parts of `all`, as far as each has room; what one lacks the others get. */
static void fill_evenly(struct rank_part *parts, const uint64_t *room, uint32_t n, double all)
{
    double left = all;
    uint32_t n_open = n;
    for (bool closed = true; closed;) {
        closed = false;
        for (uint32_t r = 0; r < n; r++) {
            if (parts[r].bytes > 0 || (double)room[r] >= left / n_open)
                continue;
            parts[r].bytes = (double)room[r] > 0 ? (double)room[r] : 1;
            left -= (double)room[r];
            n_open--;
            closed = true;
            if (n_open == 0)
                return;
        }
    }
    for (uint32_t r = 0; r < n; r++)
        if (parts[r].bytes == 0)
            parts[r].bytes = left / n_open;
}

static void size_parts(struct rank_part *parts, const uint64_t *room, uint32_t n, double all)
{
    double sum = 0;
    for (uint32_t r = 0; r < n; r++)
        sum += (double)room[r];
    if (sum >= all) {
        fill_evenly(parts, room, n, all);
        return;
    }
    for (uint32_t r = 0; r < n; r++)
        parts[r].bytes = sum > 0 ? all * (double)room[r] / sum : all / n;
}

/* Whether rank a should get the expert rather than b. One whose part is full comes last. */
static bool is_better(const struct rank_part *a, const struct rank_part *b, double bytes,
                      double uses)
{
    const bool a_full = a->taken + bytes / 2 > a->bytes, b_full = b->taken + bytes / 2 > b->bytes;
    if (a_full != b_full)
        return b_full;
    if (a_full) {
        return (a->taken + bytes) / a->bytes < (b->taken + bytes) / b->bytes;
    }
    double a_layer = (a->layer_work + uses) / a->bytes, b_layer = (b->layer_work + uses) / b->bytes;
    if (a_layer != b_layer)
        return a_layer < b_layer;
    return a->work / a->bytes < b->work / b->bytes;
}

/* The layer's experts, by falling frequency where there is one; equal ones by their numbers. */
static void order_layer(const struct moe_inventory *inv, uint32_t layer, const uint64_t *frequency,
                        uint32_t *order)
{
    for (uint32_t e = 0; e < inv->n_experts; e++) {
        uint32_t key = moe_inventory_key(inv, layer, e), at = e;
        for (; frequency && at > 0 && frequency[order[at - 1]] < frequency[key]; at--)
            order[at] = order[at - 1];
        order[at] = key;
    }
}

int moe_share_experts(const struct moe_inventory *inv, const uint64_t *room, uint32_t n_ranks,
                      const uint64_t *frequency, uint8_t *owner, struct moe_err *err)
{
    struct rank_part *parts = moe_alloc(n_ranks, sizeof *parts, err);
    uint32_t *order = moe_alloc(inv->n_experts, sizeof *order, err);
    int status = parts && order ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        size_parts(parts, room, n_ranks, (double)moe_inventory_all_bytes(inv, 0));
    for (uint32_t layer = 0; layer < inv->n_layers && status == MOE_OK; layer++) {
        order_layer(inv, layer, frequency, order);
        for (uint32_t r = 0; r < n_ranks; r++)
            parts[r].layer_work = 0;
        for (uint32_t i = 0; i < inv->n_experts; i++) {
            const uint32_t key = order[i], variant = moe_inventory_usable(inv, key, 0);
            const double uses = frequency ? (double)frequency[key] + 1 : 1;
            const double bytes = (double)moe_inventory_class(inv, key, variant)->slot_bytes;
            uint32_t best = 0;
            for (uint32_t r = 1; r < n_ranks; r++)
                if (is_better(&parts[r], &parts[best], bytes, uses))
                    best = r;
            parts[best].taken += bytes;
            parts[best].work += uses;
            parts[best].layer_work += uses;
            owner[key] = (uint8_t)best;
        }
    }
    free(parts);
    free(order);
    return status;
}
