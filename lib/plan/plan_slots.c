/*
 * Slots in the file of a plan, and the cache's first contents.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "plan/plan_file.h"
#include "trace/trace.h"

/* ---- Slots ---- */

static int read_per_layer(struct moe_record_reader *r, struct moe_yaml_node *item,
                          const struct moe_member *m, void *record)
{
    const struct moe_plan *p = r->whole;
    struct moe_plan_pool *pool = record;
    struct moe_yaml_node *list = NULL;
    uint64_t sum = 0;
    if (!moe_yaml_get(item, m->key))
        return MOE_OK;
    int status = moe_yaml_get_list_of(r->doc, item, m->key, p->n_layers, &list, r->err);
    if (status != MOE_OK)
        return status;
    pool->per_layer = moe_alloc(p->n_layers, sizeof *pool->per_layer, r->err);
    if (!pool->per_layer)
        return MOE_ERR_MEMORY;
    status = moe_yaml_list_u32s(r->doc, list, p->n_experts, false, pool->per_layer, r->err);
    for (uint32_t l = 0; l < p->n_layers; l++)
        sum += pool->per_layer[l];
    if (status == MOE_OK && sum != pool->n_cache)
        status = moe_yaml_fail(r->doc, list, r->err,
                               "the layers have %" PRIu64 " slots, 'cache_slots' are %" PRIu32, sum,
                               pool->n_cache);
    return status;
}

static void write_per_layer(struct moe_record_writer *w, const struct moe_member *m,
                            const void *record)
{
    const struct moe_plan *p = w->whole;
    const struct moe_plan_pool *pool = record;
    if (pool->per_layer)
        moe_emit_u32s(&w->emit, m->key, pool->per_layer, p->n_layers);
}

static const struct moe_member_own per_layer = {read_per_layer, write_per_layer, NULL};

static const struct moe_member pool_members[] = {
    MOE_FIELD(MOE_ALWAYS, struct moe_plan_pool, "slot_bytes", slot_bytes),
    MOE_FIELD(MOE_ALWAYS, struct moe_plan_pool, "cache_slots", n_cache),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_plan_pool, "working_slots", n_working, 0,
                 MOE_RECORD_MAX_EXPERTS),
    MOE_OWN("per_layer", 0, per_layer),
};

static int check_pool(struct moe_record_reader *r, struct moe_yaml_node *item, void *record)
{
    const struct moe_plan *p = r->whole;
    /* Each expert may be there at two precisions, stored alike. */
    uint64_t most = 2 * (uint64_t)p->n_layers * p->n_experts;
    if (((const struct moe_plan_pool *)record)->n_cache <= most)
        return MOE_OK;
    return moe_yaml_fail(r->doc, item, r->err,
                         "'cache_slots' must not be more than %" PRIu64
                         ", twice as many as there are experts",
                         most);
}

const struct moe_record plan_pool_record = {MOE_RECORD(pool_members), check_pool};

int plan_check_slots(struct moe_record_reader *r, struct moe_yaml_node *root)
{
    const struct moe_plan *p = r->whole;
    uint64_t bytes = 0, of_pool;
    bool fit = true;
    if (p->n_pools == 0)
        return MOE_OK;
    if (p->strategy.resident)
        return moe_yaml_fail(r->doc, moe_yaml_get(root, "slots"), r->err,
                             "the strategy 'resident' has no slots");
    for (uint32_t i = 0; i < p->n_pools && fit; i++)
        fit = moe_mul_u64(p->pools[i].slot_bytes,
                          (uint64_t)p->pools[i].n_cache + p->pools[i].n_working, &of_pool) &&
              moe_add_u64(bytes, of_pool, &bytes);
    if (!fit || (p->memory.experts && bytes > p->memory.experts))
        return moe_yaml_fail(r->doc, moe_yaml_get(root, "slots"), r->err,
                             "the slots have more bytes than 'experts_bytes' of the memory");
    return MOE_OK;
}

/* ---- Contents ---- */

/* The lists of the layers, one after the other in experts[]; ends[l]: where those of l end. */
static int read_layers_contents(struct moe_record_reader *r, struct moe_yaml_node *list,
                                uint32_t *experts, uint32_t *ends, uint32_t *seen)
{
    const struct moe_plan *p = r->whole;
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
        status = moe_yaml_list_u32s(r->doc, m, p->n_experts - 1, false, experts + n, r->err);
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
static int order_contents(struct moe_record_reader *r, struct moe_yaml_node *order,
                          const uint32_t *experts, const uint32_t *ends)
{
    struct moe_plan *p = r->whole;
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

static int count_contents(struct moe_record_reader *r, struct moe_yaml_node *list)
{
    struct moe_plan *p = r->whole;
    uint64_t n = 0, slots = 0;
    int status = MOE_OK;
    for (uint32_t i = 0; i < p->n_pools; i++)
        slots += p->pools[i].n_cache;
    for (struct moe_yaml_node *m = moe_yaml_first(list); m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        status = moe_yaml_item_list(r->doc, m, r->err);
        n += moe_yaml_length(m);
    }
    if (status == MOE_OK && n > slots)
        status = moe_yaml_fail(r->doc, list, r->err,
                               "there are %" PRIu64 " experts for %" PRIu64 " slots", n, slots);
    p->n_contents = status == MOE_OK ? (uint32_t)n : 0;
    return status;
}

static int read_contents(struct moe_record_reader *r, struct moe_yaml_node *root,
                         const struct moe_member *m, void *record)
{
    struct moe_plan *p = record;
    struct moe_yaml_node *map = NULL, *list = NULL, *order = NULL;
    uint32_t *experts = NULL, *ends = NULL, *seen = NULL;
    int status = moe_yaml_get_map(r->doc, root, m->key, false, &map, r->err);
    if (!map)
        return status;
    status = moe_yaml_get_list_of(r->doc, map, "layers", p->n_layers, &list, r->err);
    if (status == MOE_OK)
        status = count_contents(r, list);
    if (status == MOE_OK && moe_yaml_get(map, "order"))
        status = moe_yaml_get_list_of(r->doc, map, "order", p->n_contents, &order, r->err);
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

static bool is_layer_by_layer(const struct moe_plan *p)
{
    for (uint32_t i = 1; i < p->n_contents; i++)
        if (p->contents[i] / p->n_experts < p->contents[i - 1] / p->n_experts)
            return false;
    return true;
}

static void write_contents(struct moe_record_writer *w, const struct moe_member *m,
                           const void *record)
{
    const struct moe_plan *p = record;
    struct moe_emit *e = &w->emit;
    if (p->n_contents == 0)
        return;
    moe_emit_open_map(e, m->key);
    moe_emit_open_list(e, "layers");
    for (uint32_t l = 0; l < p->n_layers; l++) {
        moe_emit_open_line_list(e, NULL);
        for (uint32_t i = 0; i < p->n_contents; i++)
            if (p->contents[i] / p->n_experts == l)
                moe_emit_u64(e, NULL, p->contents[i] % p->n_experts);
        moe_emit_close(e);
    }
    moe_emit_close(e);
    if (!is_layer_by_layer(p)) {
        moe_emit_open_line_list(e, "order");
        for (uint32_t i = 0; i < p->n_contents; i++)
            moe_emit_u64(e, NULL, p->contents[i] / p->n_experts);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

const struct moe_member_own plan_contents = {read_contents, write_contents, NULL};
