/*
 * Reads what lies where: slots, and the cache's first contents.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "plan/plan_reader.h"
#include "record/trace.h"

static int read_per_layer(struct plan_reader *r, struct moe_yaml_node *item,
                          struct moe_plan_pool *pool)
{
    const struct moe_plan *p = r->plan;
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0, sum = 0;
    int status = moe_yaml_get_list(r->doc, item, "per_layer", false, &list, &n, r->err);
    if (!list)
        return status;
    if (n != p->n_layers)
        return moe_yaml_fail(r->doc, list, r->err,
                             "'per_layer' must have %" PRIu32 " items, not %" PRIu64, p->n_layers,
                             n);
    pool->per_layer = moe_alloc(n, sizeof *pool->per_layer, r->err);
    if (!pool->per_layer)
        return MOE_ERR_MEMORY;
    status = plan_read_numbers(r, list, p->n_experts, pool->per_layer);
    for (uint64_t l = 0; l < n; l++)
        sum += pool->per_layer[l];
    if (status == MOE_OK && sum != pool->n_cache)
        status = moe_yaml_fail(r->doc, list, r->err,
                               "the layers have %" PRIu64 " slots, 'cache_slots' are %" PRIu32, sum,
                               pool->n_cache);
    return status;
}

static int read_pool(struct plan_reader *r, struct moe_yaml_node *item, uint32_t i)
{
    struct moe_plan_pool *pool = &r->plan->pools[i];
    /* Each expert may be there at two precisions, stored alike. */
    uint64_t most = 2 * (uint64_t)r->plan->n_layers * r->plan->n_experts;
    int status = plan_read_members(r, item, &plan_pool, pool);
    if (status == MOE_OK && pool->n_cache > most)
        return moe_yaml_fail(r->doc, item, r->err,
                             "'cache_slots' must not be more than %" PRIu64
                             ", twice as many as there are experts",
                             most);
    if (status == MOE_OK && pool->n_working > MOE_TRACE_MAX_EXPERTS)
        return moe_yaml_fail(r->doc, item, r->err, "'working_slots' must not be more than %d",
                             MOE_TRACE_MAX_EXPERTS);
    return status == MOE_OK ? read_per_layer(r, item, pool) : status;
}

int plan_read_slots(struct plan_reader *r)
{
    struct moe_plan *p = r->plan;
    uint64_t bytes = 0, of_pool;
    bool fit = true;
    int status = plan_read_items(r, r->root, "slots", MOE_MAX_CLASSES, read_pool, &p->n_pools);
    if (status != MOE_OK || p->n_pools == 0)
        return status;
    struct moe_yaml_node *list = moe_yaml_get(r->root, "slots");
    if (p->strategy.resident)
        return moe_yaml_fail(r->doc, list, r->err, "the strategy 'resident' has no slots");
    for (uint32_t i = 0; i < p->n_pools && fit; i++)
        fit = moe_mul_u64(p->pools[i].slot_bytes,
                          (uint64_t)p->pools[i].n_cache + p->pools[i].n_working, &of_pool) &&
              moe_add_u64(bytes, of_pool, &bytes);
    if (!fit || (p->memory.experts && bytes > p->memory.experts))
        return moe_yaml_fail(r->doc, list, r->err,
                             "the slots have more bytes than 'experts_bytes' of the memory");
    return MOE_OK;
}

/* The lists of the layers, one behind the other in experts[]; ends[l]: where those of l end. */
static int read_layers_contents(struct plan_reader *r, struct moe_yaml_node *list,
                                uint32_t *experts, uint32_t *ends, uint32_t *seen)
{
    const struct moe_plan *p = r->plan;
    uint32_t n = 0, layer = 0;
    int status = MOE_OK;
    for (struct moe_yaml_node *m = moe_yaml_first(list); m && status == MOE_OK;
         m = moe_yaml_next(m), layer++) {
        uint32_t first = n;
        uint64_t slots = 0;
        for (uint32_t i = 0; i < p->n_pools; i++)
            slots += p->pools[i].per_layer ? p->pools[i].per_layer[layer] : p->pools[i].n_cache;
        if (moe_yaml_length(m) > slots)
            return moe_yaml_fail(r->doc, m, r->err,
                                 "layer %" PRIu32 " has more contents than slots", layer);
        status = plan_read_numbers(r, m, p->n_experts - 1, experts + n);
        n += (uint32_t)moe_yaml_length(m);
        ends[layer] = n;
        for (uint32_t i = first; i < n && status == MOE_OK; i++) {
            if (seen[experts[i]] == layer + 1)
                status = moe_yaml_fail(r->doc, m, r->err, "expert %" PRIu32 " is there twice",
                                       experts[i]);
            seen[experts[i]] = layer + 1;
        }
    }
    return status;
}

/* Brings the experts of the layers into the order in which they are loaded: in `order` the layer of
 * each; NULL: layer by layer. */
static int order_contents(struct plan_reader *r, struct moe_yaml_node *order,
                          const uint32_t *experts, const uint32_t *ends)
{
    struct moe_plan *p = r->plan;
    uint32_t *taken = moe_alloc(p->n_layers, sizeof *taken, r->err);
    uint32_t i = 0;
    int status = taken ? MOE_OK : MOE_ERR_MEMORY;
    for (uint32_t l = 0; l < p->n_layers && taken; l++)
        for (taken[l] = l ? ends[l - 1] : 0; !order && i < ends[l]; i++)
            p->contents[i] = l * p->n_experts + experts[i];
    for (struct moe_yaml_node *m = order ? moe_yaml_first(order) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        uint64_t l = 0;
        status = moe_yaml_item_u64(r->doc, m, p->n_layers - 1, &l, r->err);
        if (status == MOE_OK && taken[l] == ends[l])
            status = moe_yaml_fail(r->doc, m, r->err,
                                   "layer %" PRIu64 " is named more often than it has contents", l);
        if (status == MOE_OK)
            p->contents[i++] = (uint32_t)l * p->n_experts + experts[taken[l]++];
    }
    free(taken);
    return status;
}

static int count_contents(struct plan_reader *r, struct moe_yaml_node *list)
{
    uint64_t n = 0, slots = 0;
    int status = MOE_OK;
    for (uint32_t i = 0; i < r->plan->n_pools; i++)
        slots += r->plan->pools[i].n_cache;
    for (struct moe_yaml_node *m = moe_yaml_first(list); m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        status = moe_yaml_item_list(r->doc, m, r->err);
        n += moe_yaml_length(m);
    }
    if (status == MOE_OK && n > slots)
        status = moe_yaml_fail(r->doc, list, r->err,
                               "%" PRIu64 " experts are to lie in %" PRIu64 " slots", n, slots);
    r->plan->n_contents = status == MOE_OK ? (uint32_t)n : 0;
    return status;
}

int plan_read_contents(struct plan_reader *r)
{
    struct moe_plan *p = r->plan;
    struct moe_yaml_node *map = NULL, *list = NULL, *order = NULL;
    uint32_t *experts = NULL, *ends = NULL, *seen = NULL;
    uint64_t n = 0, n_order = 0;
    int status = moe_yaml_get_map(r->doc, r->root, "contents", false, &map, r->err);
    if (!map)
        return status;
    status = moe_yaml_get_list(r->doc, map, "layers", true, &list, &n, r->err);
    if (status == MOE_OK && n != p->n_layers)
        status =
            moe_yaml_fail(r->doc, list, r->err,
                          "'layers' must have %" PRIu32 " items, not %" PRIu64, p->n_layers, n);
    if (status == MOE_OK)
        status = count_contents(r, list);
    if (status == MOE_OK)
        status = moe_yaml_get_list(r->doc, map, "order", false, &order, &n_order, r->err);
    if (status == MOE_OK && order && n_order != p->n_contents)
        status = moe_yaml_fail(r->doc, order, r->err,
                               "'order' must have %" PRIu32 " items, not %" PRIu64, p->n_contents,
                               n_order);
    if (status == MOE_OK) {
        p->contents = moe_alloc(p->n_contents, sizeof *p->contents, r->err);
        experts = moe_alloc(p->n_contents, sizeof *experts, r->err);
        ends = moe_alloc(p->n_layers, sizeof *ends, r->err);
        seen = moe_alloc(p->n_experts, sizeof *seen, r->err);
        status = p->contents && experts && ends && seen ? MOE_OK : MOE_ERR_MEMORY;
    }
    if (status == MOE_OK)
        status = read_layers_contents(r, list, experts, ends, seen);
    if (status == MOE_OK)
        status = order_contents(r, order, experts, ends);
    free(experts);
    free(ends);
    free(seen);
    return status;
}
