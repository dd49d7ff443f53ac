/*
 * Opening a cache of experts: tables for the scheduler, slots, loader, first contents.
 */
#include "run/experts_cached.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/allocate.h"

/* Numbers the MoE layers and lists each expert's variants and classes. */
static int list_experts(struct cached *c, const struct moe_cache_options *o, struct moe_err *err)
{
    const struct moe_pack *pack = c->pack;
    uint32_t n_all = moe_pack_n_layers(pack), n_variants = moe_pack_n_variants(pack);
    uint64_t n_keys = (uint64_t)n_all * c->n_experts;
    c->model_layer = moe_alloc(n_all, sizeof *c->model_layer, err);
    c->moe_layer = moe_alloc(n_all, sizeof *c->moe_layer, err);
    c->best = moe_alloc(n_keys, sizeof *c->best, err);
    c->high = moe_alloc(n_keys, sizeof *c->high, err);
    c->low = moe_alloc(n_keys, sizeof *c->low, err);
    c->class_of = moe_alloc(n_keys * n_variants, sizeof *c->class_of, err);
    c->given = moe_alloc(c->n_experts, 1, err);
    if (!c->model_layer || !c->moe_layer || !c->best || !c->high || !c->low || !c->class_of ||
        !c->given)
        return MOE_ERR_MEMORY;
    for (uint32_t layer = 0; layer < n_all; layer++) {
        c->moe_layer[layer] = c->n_layers;
        if (moe_pack_usable_variant(pack, layer, 0, 0) == UINT32_MAX)
            continue;
        for (uint32_t e = 0; e < c->n_experts; e++) {
            uint64_t key = (uint64_t)c->n_layers * c->n_experts + e;
            c->best[key] = moe_pack_usable_variant(pack, layer, e, 0);
            c->high[key] = moe_pack_usable_variant(pack, layer, e, o->high);
            c->low[key] = moe_pack_usable_variant(pack, layer, e, o->low);
            if (!c->strategy.needs_low || c->low[key] < c->high[key])
                c->low[key] = c->high[key];
            for (uint32_t v = 0; v < n_variants; v++) {
                const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, v);
                c->class_of[key * n_variants + v] = x->present ? x->class_index : UINT32_MAX;
            }
        }
        c->model_layer[c->n_layers++] = layer;
    }
    return MOE_OK;
}

/* Uses of each expert in a profile, [layer][expert]; NULL without one, or without memory. */
static uint64_t *frequencies(const struct cached *c, const struct moe_statistics *statistics,
                             struct moe_err *err)
{
    uint64_t *f = moe_alloc((uint64_t)c->n_layers * c->n_experts, sizeof *f, err);
    for (uint32_t layer = 0; f && layer < c->n_layers; layer++)
        memcpy(f + (uint64_t)layer * c->n_experts,
               moe_series_at(statistics, MOE_S_ACTIVATIONS, layer), c->n_experts * sizeof *f);
    return f;
}

/* Each pool's slots by layer, where the strategy shares them out. per_layer: [classes][layers]. */
static void share_layers(struct cached *c, const uint64_t *frequency, uint32_t *per_layer)
{
    for (uint32_t i = 0; i < c->pools.n_classes; i++) {
        uint32_t *share = per_layer + (uint64_t)i * c->n_layers;
        if (c->strategy.alloc == MOE_ALLOC_GLOBAL)
            continue;
        moe_allocate(c->strategy.alloc, c->strategy.boundary, c->pools.pools[i].n_cache,
                     c->n_layers, c->n_experts, frequency, share);
        c->pools.pools[i].per_layer = share;
    }
}

/* Loads the cache's first contents; misses of a later token are not counted for them. Every expert
 * is offered in its turn: only the store knows which pool, and which layer's share of it, has room.
 */
static int fill(struct cached *c, const uint64_t *frequency, const struct moe_progress *progress,
                struct moe_err *err)
{
    uint32_t n_keys = c->n_layers * c->n_experts, n = 0;
    uint32_t *keys = moe_alloc(n_keys, sizeof *keys, err);
    uint32_t *order = moe_alloc(n_keys, sizeof *order, err);
    int status = keys && order ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        n = moe_initial(c->strategy.init, NULL, n_keys, c->n_layers, c->n_experts, frequency, keys,
                        order);
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        struct moe_err why = {0};
        while (status == MOE_OK && !cached_mover(c).has_room(c))
            status = cached_wait(c, err);
        if (status == MOE_OK &&
            moe_scheduler_fill(c->scheduler, keys[i] / c->n_experts, keys[i] % c->n_experts,
                               &why) == MOE_NO_SLOT &&
            why.status)
            status = moe_fail(err, why.status, "%s", why.text);
        moe_progress_report(progress, "filling the cache", i, n);
        if (moe_progress_stopped(progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    while (status == MOE_OK && c->n_in_flight)
        status = cached_wait(c, err);
    if (status == MOE_OK && c->failure.status)
        status = cached_failure(c, err);
    free(keys);
    free(order);
    cached_count_traffic(c);
    return status;
}

static int place_slots(struct cached *c, struct moe_err *err)
{
    c->memory = moe_pages_alloc(c->pools.bytes, err);
    c->slot_at = moe_alloc(c->pools.n_slots, sizeof *c->slot_at, err);
    c->loads = moe_alloc(c->pools.n_slots, sizeof *c->loads, err);
    if (!c->memory || !c->slot_at || !c->loads)
        return MOE_ERR_MEMORY;
    uint64_t at = 0;
    for (uint32_t i = 0; i < c->pools.n_slots; i++) {
        c->slot_at[i] = at;
        at += c->pools.class_bytes[moe_store_slot(c->store, i)->class_index];
    }
    c->base.resident_bytes = c->base.resident_bytes_max = c->pools.bytes;
    return MOE_OK;
}

static int open_scheduler(struct cached *c, uint32_t top_k, uint64_t seed,
                          const uint64_t *frequency, struct moe_err *err)
{
    const struct moe_scheduler_params params = {
        .n_layers = c->n_layers,
        .n_experts = c->n_experts,
        .top_k = top_k,
        .n_variants = moe_pack_n_variants(c->pack),
        .n_classes = c->pools.n_classes,
        .pools = c->pools.pools,
        .class_of = c->class_of,
        .class_bytes = c->pools.class_bytes,
        .best = c->best,
        .high = c->high,
        .low = c->low,
        .strategy = &c->strategy,
        .frequency = frequency,
        .seed = seed,
        .mover = cached_mover(c),
    };
    int status = moe_scheduler_open(&c->scheduler, &params, err);
    if (status == MOE_OK)
        c->store = moe_scheduler_store(c->scheduler);
    return status;
}

int moe_experts_open_cached(struct moe_experts **out, const struct moe_pack *pack, uint32_t top_k,
                            const struct moe_cache_options *o, const struct moe_progress *progress,
                            struct moe_err *err)
{
    *out = NULL;
    struct cached *c = moe_alloc(1, sizeof *c, err);
    uint32_t *per_layer = NULL;
    uint64_t *frequency = NULL;
    if (!c)
        return MOE_ERR_MEMORY;
    c->base.ops = &cached_ops;
    c->pack = pack;
    c->n_experts = moe_pack_n_experts(pack);
    c->phase = &c->before;
    if (o->strategy)
        c->strategy = *o->strategy;
    else
        moe_strategy_row("lru", &c->strategy);
    int status = moe_expert_pools_size(&c->pools, pack, o, err);
    if (status == MOE_OK)
        status = list_experts(c, o, err);
    if (status != MOE_OK)
        goto fail;
    status = MOE_ERR_MEMORY;
    per_layer = moe_alloc((uint64_t)c->pools.n_classes * c->n_layers, sizeof *per_layer, err);
    if (o->statistics)
        frequency = frequencies(c, o->statistics, err);
    if (!per_layer || (o->statistics && !frequency))
        goto fail;
    share_layers(c, frequency, per_layer);
    status = open_scheduler(c, top_k, o->seed, frequency, err);
    if (status == MOE_OK)
        status = place_slots(c, err);
    if (status == MOE_OK)
        status = moe_loader_open(&c->loader, &c->pools.loader, err);
    if (status == MOE_OK && c->strategy.init != MOE_INIT_EMPTY)
        status = fill(c, frequency, progress, err);
    if (status != MOE_OK)
        goto fail;
    free(per_layer);
    free(frequency);
    *out = &c->base;
    return MOE_OK;
fail:
    free(per_layer);
    free(frequency);
    cached_ops.close(&c->base);
    return status;
}
