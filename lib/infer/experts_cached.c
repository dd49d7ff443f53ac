/*
 * A cache of experts, as the forward pass sees it. The scheduler decides and waits
 * (sched/scheduler.h), the loader brings the bytes (experts_channel.c); this file keeps the memory
 * of the slots and gives views of the experts in it.
 *
 * The scheduler numbers MoE layers; here layers are the model's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "infer/experts_tiers.h"

/* ---- Passes ---- */

void cached_count_traffic(struct cached *c)
{
    const struct moe_loader_stats *now = moe_loader_stats(c->loader);
    uint64_t moved = now->bytes_read - c->seen.bytes_read;
    *(c->gpu ? &c->phase->bytes_uploaded : &c->phase->bytes_read) += moved;
    c->phase->experts.prefetch_wasted_bytes += now->cancelled_bytes - c->seen.cancelled_bytes;
    c->phase->stall_bytes += now->wait_bytes - c->seen.wait_bytes;
    c->phase->read_seconds += now->read_seconds - c->seen.read_seconds;
    c->phase->handling_seconds += now->work_seconds - c->seen.work_seconds;
    c->seen = *now;
    if (c->tiers)
        tiers_count_traffic(c->tiers);
}

static void begin_tokens(struct moe_experts *self, uint32_t n, bool prefill,
                         struct moe_phase_stats *phase)
{
    struct cached *c = (struct cached *)self;
    cached_count_traffic(c);
    c->phase = phase;
    c->decode = !prefill;
    c->stall_before = phase->stall_seconds;
    c->read_before = phase->read_seconds;
    c->loads_before = phase->experts.loads;
    moe_scheduler_begin_tokens(c->base.scheduler, n, prefill, &phase->experts);
}

static void end_tokens(struct moe_experts *self, double seconds)
{
    struct cached *c = (struct cached *)self;
    cached_count_traffic(c);
    const struct moe_phase_stats *p = c->phase;
    /* What came before affects the first decoded token. */
    moe_scheduler_end_tokens(c->base.scheduler, c->decode && p->tokens > 0, seconds,
                             p->stall_seconds - c->stall_before, p->read_seconds - c->read_before,
                             p->experts.loads - c->loads_before);
}

static void computed(struct moe_experts *self, double seconds)
{
    struct cached *c = (struct cached *)self;
    if (c->tiers)
        tiers_advance(c->tiers, seconds);
    else
        moe_loader_advance(c->loader, seconds);
}

static double modelled_clock(struct moe_experts *self)
{
    return moe_loader_advance(((struct cached *)self)->loader, 0);
}

/* ---- Requests ---- */

static int cached_begin(struct moe_experts *self, const struct moe_layer_request *request,
                        struct moe_phase_stats *phase, struct moe_err *err)
{
    struct cached *c = (struct cached *)self;
    c->failure = (struct moe_err){0};
    if (c->tiers)
        slot_uses_begin(tiers_slot_uses(c->tiers));
    return MOE_OK;
}

/* The expert that the view names, in the copy of the pack; not for compressed ones. */
static void view_copy(const struct cached *c, struct moe_expert_view *view)
{
    const struct moe_expert_extent *x =
        moe_pack_expert(c->pack, view->layer, view->expert, view->variant);
    const struct moe_expert_class *class_ = moe_pack_class_at(c->pack, x->class_index);
    const uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {0};
    for (uint32_t i = 0; i < class_->n_segments; i++)
        segments[i] = (const uint8_t *)c->pools.loader.copy + x->segments[i].offset;
    moe_expert_view_set(view, class_, segments);
}

/* Every class was checked against the model when it was opened. */
static void view_slot(const struct cached *c, uint32_t slot, struct moe_expert_view *view)
{
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    *view = (struct moe_expert_view){.layer = moe_inventory_model_layer(&c->inventory, s->key),
                                     .expert = moe_inventory_expert(&c->inventory, s->key),
                                     .variant = s->variant};
    if (c->pools.loader.in_place) {
        view_copy(c, view);
        return;
    }
    const struct moe_expert_class *class_ = moe_pack_class_at(c->pack, s->class_index);
    const uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {0};
    for (uint32_t i = 0; i < class_->n_segments; i++)
        segments[i] = cached_segment_at(c, slot, i);
    moe_expert_view_set(view, class_, segments);
}

static int cached_next(struct moe_experts *self, uint32_t max, uint32_t *which,
                       struct moe_expert_view *views, uint32_t *n, struct moe_err *err)
{
    struct cached *c = (struct cached *)self;
    uint32_t n_entries;
    int status = moe_scheduler_next(c->base.scheduler, max, which, n, err);
    const struct moe_entry *entries = moe_scheduler_entries(c->base.scheduler, &n_entries);
    for (uint32_t i = 0; i < *n; i++) {
        view_slot(c, entries[which[i]].slot, &views[i]);
        if (c->tiers)
            slot_uses_give(tiers_slot_uses(c->tiers), entries[which[i]].slot);
    }
    return status;
}

static void cached_release(struct moe_experts *self, uint32_t which)
{
    struct cached *c = (struct cached *)self;
    uint32_t n;
    if (c->tiers)
        slot_uses_take_back(tiers_slot_uses(c->tiers),
                            moe_scheduler_entries(c->base.scheduler, &n)[which].slot);
    moe_scheduler_release(c->base.scheduler, which);
}

static void host_view(struct moe_experts *self, uint32_t moe_layer, struct moe_expert_view *view)
{
    const struct cached *c = (const struct cached *)self;
    if (c->tiers)
        tiers_host_view(c->tiers, moe_layer, view);
    else
        view_copy(c, view);
}

static void close_cached(struct moe_experts *self)
{
    struct cached *c = (struct cached *)self;
    if (c->loader)
        moe_loader_close(c->loader); /* first: it writes into the slots */
    tiers_close(c->tiers);
    moe_scheduler_close(c->base.scheduler);
    if (c->gpu)
        moe_gpu_free(c->gpu, c->memory, c->pools.pools.bytes);
    else
        moe_pages_free(c->memory, c->pools.pools.bytes);
    moe_inventory_release(&c->inventory);
    free(c->slot_at);
    free(c->submitted);
    free(c);
}

const struct moe_experts_ops cached_ops = {
    .name = "cached",
    .begin_tokens = begin_tokens,
    .end_tokens = end_tokens,
    .computed = computed,
    .clock = modelled_clock,
    .begin = cached_begin,
    .next = cached_next,
    .release = cached_release,
    .host_view = host_view,
    .close = close_cached,
};

/*
 * Opening a cache of experts: slots, scheduler, loader, first contents.
 */

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

/* Each expert's uses in the statistics, all and those that decide placement; 0 in layers that
 * draft, which statistics do not cover. */
struct known {
    uint64_t *frequency, *placement; /* by key; NULL: there are no statistics */
};

static int know(struct known *k, const struct cached *c, const struct moe_cache_options *o,
                struct moe_err *err)
{
    *k = (struct known){0};
    if (!o->statistics)
        return MOE_OK;
    const uint32_t n_layers = o->statistics->shape.n_layers;
    k->frequency =
        moe_inventory_uses(&c->inventory, o->statistics->series[MOE_S_ACTIVATIONS], n_layers, err);
    k->placement =
        moe_inventory_uses(&c->inventory, moe_statistics_placement(o->statistics), n_layers, err);
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
    MOE_TRY(moe_scheduler_open(&c->base.scheduler, &options, err));
    c->store = moe_scheduler_store(c->base.scheduler);
    return MOE_OK;
}

/* Misses of a later token are not counted for the first contents. */
static int fill(struct cached *c, const struct moe_progress *progress, struct moe_err *err)
{
    if (c->pools.pools.loan.apart)
        moe_scheduler_set_blocks(c->base.scheduler, UINT32_MAX, true);
    int status = moe_scheduler_fill(c->base.scheduler, progress, err);
    if (status == MOE_OK && c->failure.status)
        status = cached_failure(c, err);
    cached_count_traffic(c);
    return status;
}

static int open_parts(struct cached *c, const struct moe_cache_options *o, uint32_t top_k,
                      struct known *known, const struct moe_progress *progress, struct moe_err *err)
{
    MOE_TRY(moe_inventory_of_pack(&c->inventory, c->pack, top_k, o->config, err));
    moe_expert_pools_size(&c->pools, c->pack, &c->inventory, o);
    MOE_TRY(know(known, c, o, err));
    MOE_TRY(open_scheduler(c, o, known, err));
    MOE_TRY(place_slots(c, err));
    MOE_TRY(moe_loader_open(&c->loader, &c->pools.loader, err));
    if (c->gpu)
        MOE_TRY(tiers_open(&c->tiers, c, o, known->placement, progress, err));
    return fill(c, progress, err);
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
    c->gpu = o->gpu;
    c->phase = &c->before;
    c->base.lockstep = o->loader.lockstep;
    int status = open_parts(c, o, top_k, &known, progress, err);
    free(known.frequency);
    free(known.placement);
    if (status == MOE_OK)
        *out = &c->base;
    else
        cached_ops.close(&c->base);
    return status;
}
