/*
 * The scheduler's opening, the cache's first contents, and what happens once per pass.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/allocate.h"
#include "sched/scheduler_state.h"

/* ---- Opening ---- */

static const uint64_t *placement_of(const struct moe_scheduler_options *o)
{
    return o->placement ? o->placement : o->frequency;
}

/* The variants of each expert that are used. */
static int list_variants(struct moe_scheduler *s, const struct moe_scheduler_options *o,
                         struct moe_err *err)
{
    const struct moe_inventory *inv = s->inventory;
    uint64_t n_keys = (uint64_t)inv->n_layers * inv->n_experts;
    s->best = moe_alloc(n_keys, sizeof *s->best, err);
    s->high = moe_alloc(n_keys, sizeof *s->high, err);
    s->low = moe_alloc(n_keys, sizeof *s->low, err);
    if (!s->best || !s->high || !s->low)
        return MOE_ERR_MEMORY;
    for (uint32_t layer = 0; layer < inv->n_layers; layer++) {
        for (uint32_t e = 0; e < inv->n_experts; e++) {
            uint64_t key = moe_inventory_key(inv, layer, e);
            s->best[key] = moe_inventory_usable(inv, layer, e, 0);
            s->high[key] = moe_inventory_usable(inv, layer, e, o->high);
            s->low[key] = moe_inventory_usable(inv, layer, e, o->low);
            if (!s->strategy.needs_low || s->low[key] < s->high[key])
                s->low[key] = s->high[key];
        }
    }
    return MOE_OK;
}

/* Divides each pool's slots among the layers where the strategy, or else the plan, says so.
 * per_layer: [classes][layers], for the pools to point into. */
static void share_layers(const struct moe_scheduler *s, const uint64_t *frequency,
                         struct moe_pools *pools, uint32_t *per_layer)
{
    for (uint32_t c = 0; c < pools->n_classes; c++) {
        struct moe_pool_params *pool = &pools->pools[c];
        uint32_t *share = per_layer + (uint64_t)c * s->n_layers;
        if (pool->per_layer || s->strategy.alloc == MOE_ALLOC_GLOBAL)
            continue; /* as the plan says; among no layers */
        moe_allocate(s->strategy.alloc, s->strategy.boundary, pool->n_cache, s->n_layers,
                     s->n_encoder, s->n_experts, frequency, share);
        pool->per_layer = share;
    }
}

static int open_store(struct moe_scheduler *s, const struct moe_scheduler_options *o,
                      struct moe_err *err)
{
    uint64_t class_bytes[MOE_MAX_CLASSES];
    struct moe_pools pools = *o->pools;
    uint32_t *per_layer =
        moe_alloc((uint64_t)pools.n_classes * s->n_layers, sizeof *per_layer, err);
    if (!per_layer)
        return MOE_ERR_MEMORY;
    share_layers(s, placement_of(o), &pools, per_layer);
    for (uint32_t c = 0; c < pools.n_classes; c++)
        class_bytes[c] = s->inventory->classes[c].slot_bytes;
    const struct moe_store_params params = {
        .n_layers = s->n_layers,
        .n_experts = s->n_experts,
        .n_variants = s->inventory->n_variants,
        .n_classes = pools.n_classes,
        .pools = pools.pools,
        .class_of = s->inventory->class_of,
        .class_bytes = class_bytes,
        .policy = s->strategy.cache ? s->strategy.cache : &moe_policy_lru,
        .usage = &s->usage,
        .weights = moe_strategy_weights(&s->strategy),
        .half_life = s->strategy.half_life,
        .seed = o->seed,
    };
    int status = moe_store_open(&s->store, &params, err);
    free(per_layer);
    return status;
}

static int open_tables(struct moe_scheduler *s, struct moe_err *err)
{
    uint64_t n_keys = (uint64_t)s->n_layers * s->n_experts;
    uint32_t n_slots = moe_store_n_slots(s->store);
    s->entries = moe_alloc(s->n_experts, sizeof *s->entries, err);
    s->order = moe_alloc(s->n_experts, sizeof *s->order, err);
    s->loads = moe_alloc(n_slots, sizeof *s->loads, err);
    s->given_up = moe_alloc(n_slots, 1, err);
    s->predicted = moe_alloc(n_keys, 1, err);
    s->is_predicted = moe_alloc(s->n_layers, sizeof *s->is_predicted, err);
    s->guarded = moe_alloc(s->n_layers, 1, err);
    uint64_t n_queued = s->strategy.depth > 2 ? s->strategy.depth : 2;
    s->queue = moe_alloc(n_queued * s->n_experts, sizeof *s->queue, err);
    uint64_t n_static = 0;
    for (uint32_t layer = 0; layer < s->n_layers; layer++)
        n_static += s->inventory->is_static[layer];
    s->known = moe_alloc(n_static * s->n_experts, sizeof *s->known, err);
    s->is_known = moe_alloc(s->n_layers, sizeof *s->is_known, err);
    s->prefetched = moe_alloc(n_slots, sizeof *s->prefetched, err);
    s->in_prompt = moe_alloc(s->n_layers, sizeof *s->in_prompt, err);
    s->swap_rows = moe_alloc(n_keys, sizeof *s->swap_rows, err);
    s->swap_before = moe_alloc(n_keys, 1, err);
    s->marks = moe_alloc(2 * (uint64_t)s->n_experts, 1, err);
    s->numbers = moe_alloc(2 * (uint64_t)s->n_experts, sizeof *s->numbers, err);
    s->swaps = moe_alloc(s->n_experts / 2 + 1, sizeof *s->swaps, err);
    bool all = s->entries && s->order && s->loads && s->given_up && s->predicted &&
               s->is_predicted && s->guarded && s->queue && s->known && s->is_known &&
               s->prefetched && s->in_prompt && s->swap_rows && s->swap_before && s->marks &&
               s->numbers && s->swaps;
    return all ? MOE_OK : MOE_ERR_MEMORY;
}

/* What is loaded first. Without a plan every expert is offered in its turn: only the store knows
 * which pool, and which layer's share of it, has room. */
static int list_contents(struct moe_scheduler *s, const struct moe_scheduler_options *o,
                         struct moe_err *err)
{
    uint32_t n_keys = s->n_layers * s->n_experts;
    s->contents = moe_alloc(n_keys, sizeof *s->contents, err);
    uint32_t *order = moe_alloc(n_keys, sizeof *order, err);
    int status = s->contents && order ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK && o->contents) {
        s->n_contents = o->n_contents < n_keys ? o->n_contents : n_keys;
        memcpy(s->contents, o->contents, s->n_contents * sizeof *s->contents);
    } else if (status == MOE_OK && s->strategy.init != MOE_INIT_EMPTY) {
        s->n_contents = moe_initial(s->strategy.init, NULL, n_keys, s->n_layers, s->n_encoder,
                                    s->n_experts, placement_of(o), s->contents, order);
    }
    free(order);
    return status;
}

int moe_scheduler_open(struct moe_scheduler **out, const struct moe_scheduler_options *o,
                       struct moe_err *err)
{
    *out = NULL;
    struct moe_scheduler *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    s->inventory = o->inventory;
    s->n_layers = o->inventory->n_layers;
    s->n_encoder = o->inventory->n_encoder;
    s->n_experts = o->inventory->n_experts;
    s->top_k = o->inventory->top_k;
    s->strategy = *o->strategy;
    s->channel = o->channel;
    s->n_requests = o->n_requests;
    s->layer_seconds.value = o->layer_seconds;
    s->load_seconds.value = o->load_seconds;
    s->counts = &s->before;
    moe_trial_init(&s->trial);
    int status = moe_usage_init(&s->usage, s->n_layers, s->n_experts, s->top_k, err);
    s->usage.n_encoder = s->n_encoder;
    if (status == MOE_OK && s->strategy.cache)
        status = moe_policy_follow(s->strategy.cache, &s->usage, err);
    if (status == MOE_OK && o->frequency)
        memcpy(s->usage.frequency, o->frequency,
               (uint64_t)s->n_layers * s->n_experts * sizeof *o->frequency);
    if (status == MOE_OK)
        status = list_variants(s, o, err);
    if (status == MOE_OK)
        status = open_store(s, o, err);
    if (status == MOE_OK)
        status = open_tables(s, err);
    if (status == MOE_OK)
        status = list_contents(s, o, err);
    if (status != MOE_OK) {
        moe_scheduler_close(s);
        return status;
    }
    *out = s;
    return MOE_OK;
}

void moe_scheduler_close(struct moe_scheduler *s)
{
    if (!s)
        return;
    moe_store_close(s->store);
    moe_usage_release(&s->usage);
    free(s->best);
    free(s->high);
    free(s->low);
    free(s->contents);
    free(s->loads);
    free(s->given_up);
    free(s->entries);
    free(s->order);
    free(s->predicted);
    free(s->is_predicted);
    free(s->guarded);
    free(s->queue);
    free(s->known);
    free(s->is_known);
    free(s->prefetched);
    free(s->in_prompt);
    free(s->swap_rows);
    free(s->swap_before);
    free(s->marks);
    free(s->numbers);
    free(s->swaps);
    free(s);
}

struct moe_store *moe_scheduler_store(struct moe_scheduler *s)
{
    return s->store;
}

const struct moe_usage *moe_scheduler_usage(const struct moe_scheduler *s)
{
    return &s->usage;
}

/* ---- First contents ---- */

/* Begins to load an expert into the cache, where there is room for it and it is not there yet. */
static int fill_one(struct moe_scheduler *s, uint32_t layer, uint32_t expert, struct moe_err *err)
{
    uint32_t variant = s->high[scheduler_key(s, layer, expert)];
    if (!scheduler_has_room(s) || scheduler_find(s, layer, expert, variant) != MOE_NO_SLOT)
        return MOE_OK;
    uint32_t slot = moe_store_fill(s->store, layer, expert, variant);
    return slot == MOE_NO_SLOT ? MOE_OK : scheduler_load(s, slot, MOE_LOAD_DEMAND, 0, err);
}

int moe_scheduler_fill(struct moe_scheduler *s, const struct moe_progress *progress,
                       struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t i = 0; i < s->n_contents && status == MOE_OK; i++) {
        while (status == MOE_OK && !scheduler_has_room(s))
            status = scheduler_reap(s, true, err);
        if (status == MOE_OK)
            status = fill_one(s, s->contents[i] / s->n_experts, s->contents[i] % s->n_experts, err);
        moe_progress_report(progress, "filling the cache", i, s->n_contents);
        if (moe_progress_stopped(progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    while (status == MOE_OK && s->n_in_flight)
        status = scheduler_reap(s, true, err);
    return status;
}

/* ---- Passes ---- */

void moe_scheduler_begin_sequence(struct moe_scheduler *s)
{
    if (!s->strategy.keep_records)
        moe_usage_begin_sequence(&s->usage);
    if (s->usage.follower)
        s->usage.follower->begin_sequence(s->usage.follower);
    memset(s->in_prompt, 0, s->n_layers * sizeof *s->in_prompt);
}

void moe_scheduler_end_sequence(struct moe_scheduler *s, uint32_t n)
{
    if (!s->strategy.keep_records)
        moe_usage_end_sequence(&s->usage, n);
}

void moe_scheduler_begin_tokens(struct moe_scheduler *s, uint32_t n, bool prefill,
                                struct moe_counts *counts)
{
    scheduler_account(s);
    s->counts = counts;
    s->prefill = prefill;
    s->source = false;
    s->streaming = UINT32_MAX;
    s->n_queue = s->strategy.stream ? s->at_queue : s->n_queue;
    scheduler_forget_known(s);
    scheduler_forget_expected(s);
    if (!prefill) {
        memset(s->in_prompt, 0, s->n_layers * sizeof *s->in_prompt);
        moe_store_take_back(s->store);
    }
    moe_store_begin_token(s->store);
    moe_usage_begin_tokens(&s->usage, n);
}

void moe_scheduler_end_tokens(struct moe_scheduler *s, bool measure, double seconds, double stalled,
                              double reading, uint64_t loads)
{
    if (!measure)
        return;
    if (seconds > stalled && s->n_layers > s->n_encoder)
        moe_fading_add(&s->layer_seconds, (seconds - stalled) / (s->n_layers - s->n_encoder));
    if (loads)
        moe_fading_add(&s->load_seconds, reading / (double)loads);
    if (s->strategy.prefetch.measured)
        moe_trial_token(&s->trial, seconds);
}
