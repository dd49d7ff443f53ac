/*
 * Opening a cache of experts: slots, scheduler, loader, first contents.
 */
#include "experts/experts_tiers.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Numbers the MoE layers. */
static int number_layers(struct cached *c, struct moe_err *err)
{
    c->moe_layer = moe_alloc(c->inventory.n_model_layers, sizeof *c->moe_layer, err);
    if (!c->moe_layer)
        return MOE_ERR_MEMORY;
    for (uint32_t layer = 0; layer < c->inventory.n_layers; layer++)
        c->moe_layer[c->inventory.model_layer[layer]] = layer;
    return MOE_OK;
}

static int place_slots(struct cached *c, struct moe_err *err)
{
    const struct moe_pools *pools = &c->pools.pools;
    c->memory =
        c->gpu ? moe_gpu_alloc(c->gpu, pools->bytes, err) : moe_pages_alloc(pools->bytes, err);
    c->slot_at = moe_alloc(pools->n_slots, sizeof *c->slot_at, err);
    c->submitted = moe_alloc(pools->n_slots, sizeof *c->submitted, err);
    if (!c->memory || !c->slot_at || !c->submitted)
        return MOE_ERR_MEMORY;
    uint64_t at = 0;
    for (uint32_t i = 0; i < pools->n_slots; i++) {
        c->slot_at[i] = at;
        at += c->inventory.classes[moe_store_slot(c->store, i)->class_index].slot_bytes;
    }
    c->base.resident_bytes = c->base.resident_bytes_max = pools->bytes;
    return MOE_OK;
}

/* What statistics say of each expert; 0 of layers that draft, of which they know nothing. */
struct known {
    uint64_t *frequency, *placement; /* [layer][expert]; NULL: there are no statistics */
};

static uint64_t *for_all_layers(const struct cached *c, const struct moe_cache_options *o,
                                const uint64_t *of_model, struct moe_err *err)
{
    const struct moe_inventory *i = &c->inventory;
    uint64_t known = (uint64_t)o->statistics->shape.n_layers * o->statistics->shape.n_experts;
    uint64_t all = (uint64_t)i->n_layers * i->n_experts;
    uint64_t *out = moe_alloc(all, sizeof *out, err);
    for (uint64_t k = 0; out && k < all; k++)
        out[k] = k < known ? of_model[k] : 0;
    return out;
}

static int know(struct known *k, const struct cached *c, const struct moe_cache_options *o,
                struct moe_err *err)
{
    *k = (struct known){0};
    if (!o->statistics)
        return MOE_OK;
    k->frequency = for_all_layers(c, o, o->statistics->series[MOE_S_ACTIVATIONS], err);
    k->placement = for_all_layers(c, o, moe_statistics_placement(o->statistics), err);
    return k->frequency && k->placement ? MOE_OK : MOE_ERR_MEMORY;
}

static int open_scheduler(struct cached *c, const struct moe_cache_options *o,
                          const struct known *known, struct moe_err *err)
{
    struct moe_strategy lru;
    moe_strategy_find("lru", &lru);
    const struct moe_scheduler_options options = {
        .inventory = &c->inventory,
        .strategy = o->strategy ? o->strategy : &lru,
        .high = o->high,
        .low = o->low,
        .pools = &c->pools.pools,
        .frequency = known->frequency,
        .placement = known->placement,
        .contents = o->contents,
        .n_contents = o->n_contents,
        .layer_seconds = o->layer_seconds,
        .load_seconds = o->load_seconds,
        .n_requests = c->pools.loader.n_requests,
        .seed = o->seed,
        .channel = c->gpu ? tiers_channel(c) : cached_channel(c),
    };
    int status = moe_scheduler_open(&c->scheduler, &options, err);
    if (status == MOE_OK)
        c->store = moe_scheduler_store(c->scheduler);
    return status;
}

/* Misses of a later token are not counted for the first contents. */
static int fill(struct cached *c, const struct moe_progress *progress, struct moe_err *err)
{
    int status = moe_scheduler_fill(c->scheduler, progress, err);
    if (status == MOE_OK && c->failure.status)
        status = cached_failure(c, err);
    cached_count_traffic(c);
    return status;
}

int moe_experts_open_cached(struct moe_experts **out, const struct moe_pack *pack, uint32_t top_k,
                            const struct moe_cache_options *o, const struct moe_progress *progress,
                            struct moe_err *err)
{
    *out = NULL;
    struct known known = {0};
    struct cached *c = moe_alloc(1, sizeof *c, err);
    if (!c)
        return MOE_ERR_MEMORY;
    c->base.ops = &cached_ops;
    c->pack = pack;
    c->high = o->high;
    c->gpu = o->gpu;
    c->phase = &c->before;
    c->base.lockstep = o->loader.lockstep;
    int status = moe_inventory_of_pack(&c->inventory, pack, top_k, err);
    if (status == MOE_OK) {
        moe_inventory_set_encoder(&c->inventory, o->n_encoder);
        if (o->layer_is_static)
            moe_inventory_set_static(&c->inventory, o->layer_is_static);
        status = number_layers(c, err);
    }
    if (status != MOE_OK)
        goto fail;
    moe_expert_pools_size(&c->pools, pack, &c->inventory, o);
    status = know(&known, c, o, err);
    if (status == MOE_OK)
        status = open_scheduler(c, o, &known, err);
    if (status == MOE_OK)
        status = place_slots(c, err);
    if (status == MOE_OK)
        status = moe_loader_open(&c->loader, &c->pools.loader, err);
    if (status == MOE_OK && c->gpu)
        status = tiers_open(&c->tiers, c, o, known.placement, progress, err);
    if (status == MOE_OK)
        status = fill(c, progress, err);
    if (status != MOE_OK)
        goto fail;
    *out = &c->base;
fail:
    free(known.frequency);
    free(known.placement);
    if (status != MOE_OK)
        cached_ops.close(&c->base);
    return status;
}
