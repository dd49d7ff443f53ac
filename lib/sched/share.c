/* Divides experts among ranks: first how many bytes each gets, then which experts, then which of
 * them a second rank has, too; or whole layers. */
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

/* Whether all experts fit. */
static bool size_parts(struct rank_part *parts, const uint64_t *room, uint32_t n, double all)
{
    double sum = 0;
    for (uint32_t r = 0; r < n; r++)
        sum += (double)room[r];
    if (sum >= all) {
        fill_evenly(parts, room, n, all);
        return true;
    }
    for (uint32_t r = 0; r < n; r++)
        parts[r].bytes = sum > 0 ? all * (double)room[r] / sum : all / n;
    return false;
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

struct use {
    uint64_t n;
    uint32_t key;
};

/* By falling number, then by key. */
static int compare_uses(const void *a, const void *b)
{
    const struct use *x = a, *y = b;
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return (x->key > y->key) - (x->key < y->key);
}

/* Gives the most frequent experts a second rank: of those with room for it, the one with the fewest
 * uses of such experts. What room is left is not used to the last page, which other things may
 * take: on rank 0 a prompt's passes, which have more rows then. */
static int share_twice(const struct moe_inventory *inv, const struct rank_part *parts,
                       const uint64_t *room, uint32_t n_ranks, const uint64_t *frequency,
                       uint8_t *holders, struct moe_err *err)
{
    const uint32_t n_keys = moe_inventory_n_keys(inv);
    struct use *uses = moe_alloc(n_keys, sizeof *uses, err);
    struct rank_part *second = moe_alloc(n_ranks, sizeof *second, err);
    int status = uses && second ? MOE_OK : MOE_ERR_MEMORY;
    for (uint32_t key = 0; key < n_keys && status == MOE_OK; key++)
        uses[key] = (struct use){frequency[key], key};
    for (uint32_t r = 0; r < n_ranks && status == MOE_OK; r++)
        second[r].bytes = (double)(room[r] - room[r] / (r ? 32 : 8)) - parts[r].taken;
    if (status == MOE_OK)
        qsort(uses, n_keys, sizeof *uses, compare_uses);
    for (uint32_t i = 0; i < n_keys / 2 && status == MOE_OK; i++) {
        const uint32_t key = uses[i].key, variant = moe_inventory_usable(inv, key, 0);
        if (variant == UINT32_MAX)
            continue;
        const double bytes = (double)moe_inventory_class(inv, key, variant)->slot_bytes;
        uint32_t best = MOE_NO_RANK;
        for (uint32_t r = 0; r < n_ranks; r++)
            if (r != holders[MOE_HOLDERS * key] && second[r].taken + bytes <= second[r].bytes &&
                (best == MOE_NO_RANK || second[r].work < second[best].work))
                best = r;
        if (best == MOE_NO_RANK)
            continue;
        second[best].taken += bytes;
        second[best].work += (double)uses[i].n;
        holders[MOE_HOLDERS * key + 1] = (uint8_t)best;
    }
    free(uses);
    free(second);
    return status;
}

int moe_share_experts(const struct moe_inventory *inv, const uint64_t *room, uint32_t n_ranks,
                      const uint64_t *frequency, uint8_t *holders, struct moe_err *err)
{
    struct rank_part *parts = moe_alloc(n_ranks, sizeof *parts, err);
    uint32_t *order = moe_alloc(inv->n_experts, sizeof *order, err);
    int status = parts && order ? MOE_OK : MOE_ERR_MEMORY;
    bool fits = false;
    if (status == MOE_OK)
        fits = size_parts(parts, room, n_ranks, (double)moe_inventory_all_bytes(inv, 0));
    for (uint32_t key = 0; key < moe_inventory_n_keys(inv) && status == MOE_OK; key++)
        holders[MOE_HOLDERS * key] = holders[MOE_HOLDERS * key + 1] = MOE_NO_RANK;
    for (uint32_t layer = 0; layer < inv->n_layers && status == MOE_OK; layer++) {
        if (!moe_inventory_owns(inv, layer))
            continue;
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
            holders[MOE_HOLDERS * key] = (uint8_t)best;
        }
    }
    if (status == MOE_OK && frequency && fits)
        status = share_twice(inv, parts, room, n_ranks, frequency, holders, err);
    free(parts);
    free(order);
    return status;
}

/* Bytes of the experts of a model's layer. */
static uint64_t expert_bytes(const struct moe_inventory *inv, uint32_t layer)
{
    uint64_t sum = 0;
    for (uint32_t key = 0; key < moe_inventory_n_keys(inv); key++)
        if (moe_inventory_model_layer(inv, key) == layer &&
            moe_inventory_owns(inv, key / inv->n_experts))
            sum += moe_inventory_class(inv, key, moe_inventory_usable(inv, key, 0))->slot_bytes;
    return sum;
}

int moe_share_layers(const struct moe_inventory *inv, const uint64_t *bytes, const bool *begins,
                     uint32_t n_layers, const uint64_t *room, uint32_t n_ranks, uint8_t *owners,
                     uint8_t *holders, struct moe_err *err)
{
    struct rank_part *parts = moe_alloc(n_ranks, sizeof *parts, err);
    uint64_t *of_layers = moe_alloc(n_layers, sizeof *of_layers, err);
    double all = 0, sum = 0, end = 0; /* bytes of all layers; of those so far, and up to when */
    uint32_t rank = 0, n_places = 0;  /* at which another rank can begin, from a layer on */
    int status;
    MOE_STEP(parts && of_layers ? MOE_OK : MOE_ERR_MEMORY);
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        of_layers[layer] = bytes[layer] + expert_bytes(inv, layer);
        all += (double)of_layers[layer];
        n_places += layer > 0 && begins[layer];
    }
    const bool fits = size_parts(parts, room, n_ranks, all);
    end = parts[0].bytes;
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        const double each = (double)of_layers[layer];
        const bool place = layer > 0 && begins[layer];
        const bool full =
            sum + each / 2 > end || (fits && parts[rank].taken + each > (double)room[rank]);
        if (place && rank + 1 < n_ranks && (full || n_places == n_ranks - 1 - rank))
            end += parts[++rank].bytes;
        n_places -= place;
        owners[layer] = (uint8_t)rank;
        parts[rank].taken += each;
        sum += each;
    }
    for (uint32_t key = 0; key < moe_inventory_n_keys(inv); key++) {
        const uint32_t layer = moe_inventory_model_layer(inv, key);
        const bool owned = moe_inventory_owns(inv, key / inv->n_experts);
        holders[MOE_HOLDERS * key] = !owned ? MOE_NO_RANK : layer < n_layers ? owners[layer] : 0;
        holders[MOE_HOLDERS * key + 1] = MOE_NO_RANK;
    }
out:
    free(parts);
    free(of_layers);
    return status;
}

void moe_share_request(struct moe_layer_request *q, const uint8_t *holders)
{
    enum { WEIGHTS = 4 /* rows that take about as long as reading an expert's weights */ };
    uint32_t work[UINT8_MAX + 1] = {0};
    for (uint32_t i = 0; i < q->n_entries; i++) {
        const uint8_t *h = holders + (uint64_t)MOE_HOLDERS * q->experts[i];
        q->ranks[i] = h[0];
        if (h[1] == MOE_NO_RANK)
            work[h[0]] += WEIGHTS + q->n_rows[i];
    }
    for (uint32_t i = 0; i < q->n_entries; i++) {
        const uint8_t *h = holders + (uint64_t)MOE_HOLDERS * q->experts[i];
        if (h[1] == MOE_NO_RANK)
            continue;
        q->ranks[i] = work[h[1]] < work[h[0]] ? h[1] : h[0];
        work[q->ranks[i]] += WEIGHTS + q->n_rows[i];
    }
}
