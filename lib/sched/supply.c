#include "sched/supply.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/allocate.h"
#include "sched/trial.h"

enum { ARRIVALS = 32 /* taken at once */ };

/* The loads that fill one slot. */
struct slot_loads {
    uint32_t n_segments;
    uint32_t arrived;                        /* bit per segment */
    uint32_t in_flight;                      /* bit per segment */
    uint32_t handles[MOE_PACK_MAX_SEGMENTS]; /* of segments in flight */
    bool failed;
};

struct moe_supply {
    const struct moe_inventory *inventory;
    struct moe_strategy strategy;
    struct moe_channel channel;
    struct moe_scheduler *scheduler;
    struct moe_store *store; /* the scheduler's */
    uint32_t *best, *high, *low;
    uint32_t *per_layer; /* [classes][layers] */
    uint32_t *contents;  /* [n_contents] */
    uint32_t n_contents;
    struct slot_loads *loads;         /* [slots] */
    uint32_t n_requests, n_in_flight; /* segments */
    uint8_t *given;                   /* [n_experts] of the request's entries */
    /* For n = T / t_expert (Fate 4.3). */
    struct moe_fading layer_seconds, load_seconds;
};

/* ---- Loads, for the scheduler ---- */

/* Asks for every segment of what the slot is to hold, in order. */
static int load_slot(void *ctx, uint32_t slot, enum moe_load_priority priority, float score,
                     struct moe_err *err)
{
    struct moe_supply *s = ctx;
    struct slot_loads *l = &s->loads[slot];
    const struct moe_slot *x = moe_store_slot(s->store, slot);
    *l = (struct slot_loads){.n_segments = s->inventory->classes[x->class_index].n_segments};
    for (uint32_t i = 0; i < l->n_segments; i++) {
        int status =
            s->channel.submit(s->channel.ctx, slot, i, priority, score, &l->handles[i], err);
        if (status != MOE_OK) {
            l->failed = true;
            return status;
        }
        l->in_flight |= 1u << i;
        s->n_in_flight++;
    }
    return MOE_OK;
}

static void promote_slot(void *ctx, uint32_t slot)
{
    struct moe_supply *s = ctx;
    for (uint32_t i = 0; i < s->loads[slot].n_segments; i++)
        if (s->loads[slot].in_flight & 1u << i)
            s->channel.promote(s->channel.ctx, s->loads[slot].handles[i]);
}

static bool cancel_slot(void *ctx, uint32_t slot)
{
    struct moe_supply *s = ctx;
    struct slot_loads *l = &s->loads[slot];
    l->failed = true;
    for (uint32_t i = 0; i < l->n_segments; i++) {
        if ((l->in_flight & 1u << i) && s->channel.cancel(s->channel.ctx, l->handles[i])) {
            l->in_flight &= ~(1u << i);
            s->n_in_flight--;
        }
    }
    return l->in_flight == 0;
}

static bool has_room(void *ctx)
{
    const struct moe_supply *s = ctx;
    return s->n_in_flight + MOE_PACK_MAX_SEGMENTS <= s->n_requests;
}

/* Books what has ended; returns how many segments that were. */
static uint32_t reap(struct moe_supply *s, bool wait)
{
    struct moe_arrival done[ARRIVALS];
    uint32_t n = s->channel.reap(s->channel.ctx, wait, done, ARRIVALS);
    for (uint32_t i = 0; i < n; i++) {
        struct slot_loads *l = &s->loads[done[i].slot];
        l->in_flight &= ~(1u << done[i].segment);
        s->n_in_flight--;
        if (done[i].status == MOE_OK)
            l->arrived |= 1u << done[i].segment;
        else
            l->failed = true;
        if (l->in_flight) {
            if (done[i].status != MOE_OK)
                moe_scheduler_spoiled(s->scheduler, done[i].slot);
            continue;
        }
        if (s->channel.loaded)
            s->channel.loaded(s->channel.ctx, done[i].slot);
        moe_scheduler_arrived(s->scheduler, done[i].slot, !l->failed);
    }
    return n;
}

static int wait_for_some(struct moe_supply *s, struct moe_err *err)
{
    if (reap(s, true) > 0)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_IO, "an expert is awaited that nobody loads");
}

/* ---- Opening ---- */

/* The variants of each expert that are used. */
static int list_variants(struct moe_supply *s, const struct moe_supply_options *o,
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

/* Each pool's slots by layer, where they are shared out: as the plan says, or the strategy. */
static int share_layers(struct moe_supply *s, const struct moe_supply_options *o,
                        struct moe_pools *pools, struct moe_err *err)
{
    uint32_t n_layers = s->inventory->n_layers;
    s->per_layer = moe_alloc((uint64_t)pools->n_classes * n_layers, sizeof *s->per_layer, err);
    if (!s->per_layer)
        return MOE_ERR_MEMORY;
    for (uint32_t c = 0; c < pools->n_classes; c++) {
        struct moe_pool_params *pool = &pools->pools[c];
        uint32_t *share = s->per_layer + (uint64_t)c * n_layers;
        if (pool->per_layer)
            memcpy(share, pool->per_layer, n_layers * sizeof *share);
        else if (s->strategy.alloc != MOE_ALLOC_GLOBAL)
            moe_allocate(s->strategy.alloc, s->strategy.boundary, pool->n_cache, n_layers,
                         s->inventory->n_experts, o->frequency, share);
        else
            continue;
        pool->per_layer = share;
    }
    return MOE_OK;
}

static int open_scheduler(struct moe_supply *s, const struct moe_supply_options *o,
                          const struct moe_pools *pools, struct moe_err *err)
{
    uint64_t class_bytes[MOE_MAX_CLASSES];
    for (uint32_t c = 0; c < pools->n_classes; c++)
        class_bytes[c] = s->inventory->classes[c].slot_bytes;
    const struct moe_scheduler_params params = {
        .n_layers = s->inventory->n_layers,
        .n_experts = s->inventory->n_experts,
        .top_k = s->inventory->top_k,
        .n_variants = s->inventory->n_variants,
        .n_classes = pools->n_classes,
        .pools = pools->pools,
        .class_of = s->inventory->class_of,
        .class_bytes = class_bytes,
        .best = s->best,
        .high = s->high,
        .low = s->low,
        .strategy = &s->strategy,
        .frequency = o->frequency,
        .seed = o->seed,
        .mover = {s, load_slot, promote_slot, cancel_slot, has_room},
    };
    int status = moe_scheduler_open(&s->scheduler, &params, err);
    if (status == MOE_OK)
        s->store = moe_scheduler_store(s->scheduler);
    return status;
}

/* What is loaded first. Without a plan every expert is offered in its turn: only the store knows
 * which pool, and which layer's share of it, has room. */
static int list_contents(struct moe_supply *s, const struct moe_supply_options *o,
                         struct moe_err *err)
{
    uint32_t n_keys = s->inventory->n_layers * s->inventory->n_experts;
    s->contents = moe_alloc(n_keys, sizeof *s->contents, err);
    uint32_t *order = moe_alloc(n_keys, sizeof *order, err);
    int status = s->contents && order ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK && o->contents) {
        s->n_contents = o->n_contents < n_keys ? o->n_contents : n_keys;
        memcpy(s->contents, o->contents, s->n_contents * sizeof *s->contents);
    } else if (status == MOE_OK && s->strategy.init != MOE_INIT_EMPTY) {
        s->n_contents = moe_initial(s->strategy.init, NULL, n_keys, s->inventory->n_layers,
                                    s->inventory->n_experts, o->frequency, s->contents, order);
    }
    free(order);
    return status;
}

int moe_supply_open(struct moe_supply **out, const struct moe_supply_options *o,
                    struct moe_err *err)
{
    *out = NULL;
    struct moe_supply *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    s->inventory = o->inventory;
    s->strategy = *o->strategy;
    s->channel = o->channel;
    s->n_requests = o->n_requests;
    s->layer_seconds.value = o->layer_seconds;
    s->load_seconds.value = o->load_seconds;
    struct moe_pools pools = *o->pools;
    int status = list_variants(s, o, err);
    if (status == MOE_OK)
        status = share_layers(s, o, &pools, err);
    if (status == MOE_OK)
        status = open_scheduler(s, o, &pools, err);
    if (status == MOE_OK)
        status = list_contents(s, o, err);
    if (status == MOE_OK) {
        s->loads = moe_alloc(moe_store_n_slots(s->store), sizeof *s->loads, err);
        s->given = moe_alloc(s->inventory->n_experts, 1, err);
        status = s->loads && s->given ? MOE_OK : MOE_ERR_MEMORY;
    }
    if (status != MOE_OK) {
        moe_supply_close(s);
        return status;
    }
    moe_scheduler_tell_times(s->scheduler, o->layer_seconds, o->load_seconds);
    *out = s;
    return MOE_OK;
}

void moe_supply_close(struct moe_supply *s)
{
    if (!s)
        return;
    moe_scheduler_close(s->scheduler);
    free(s->best);
    free(s->high);
    free(s->low);
    free(s->per_layer);
    free(s->contents);
    free(s->loads);
    free(s->given);
    free(s);
}

struct moe_scheduler *moe_supply_scheduler(struct moe_supply *s)
{
    return s->scheduler;
}

int moe_supply_fill(struct moe_supply *s, const struct moe_progress *progress, struct moe_err *err)
{
    uint32_t n_experts = s->inventory->n_experts;
    int status = MOE_OK;
    for (uint32_t i = 0; i < s->n_contents && status == MOE_OK; i++) {
        struct moe_err why = {0};
        while (status == MOE_OK && !has_room(s))
            status = wait_for_some(s, err);
        if (status == MOE_OK &&
            moe_scheduler_fill(s->scheduler, s->contents[i] / n_experts, s->contents[i] % n_experts,
                               &why) == MOE_NO_SLOT &&
            why.status)
            status = moe_fail(err, why.status, "%s", why.text);
        moe_progress_report(progress, "filling the cache", i, s->n_contents);
        if (moe_progress_stopped(progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    while (status == MOE_OK && s->n_in_flight)
        status = wait_for_some(s, err);
    return status;
}

/* ---- Requests ---- */

int moe_supply_begin(struct moe_supply *s, uint32_t layer, const struct moe_need *needs, uint32_t n,
                     struct moe_err *err)
{
    memset(s->given, 0, n);
    reap(s, false);
    return moe_scheduler_request(s->scheduler, layer, needs, n, err);
}

int moe_supply_poll(struct moe_supply *s, struct moe_err *err)
{
    if (s->n_in_flight == 0)
        return MOE_OK;
    reap(s, false);
    return moe_scheduler_feed(s->scheduler, err);
}

/* Whether the segments that the first part of an expert's work needs are there. */
static bool can_begin(const struct slot_loads *l)
{
    uint32_t first = l->n_segments > 1 ? (1u << (l->n_segments - 1)) - 1 : 1;
    return (l->arrived & first) == first;
}

int moe_supply_next(struct moe_supply *s, uint32_t max, uint32_t *which, uint32_t *n,
                    struct moe_err *err)
{
    uint32_t n_entries;
    const struct moe_entry *entries = moe_scheduler_entries(s->scheduler, &n_entries);
    const uint32_t *order = moe_scheduler_order(s->scheduler);
    for (*n = 0;;) {
        int status = moe_supply_poll(s, err);
        if (status == MOE_OK)
            status = moe_scheduler_feed(s->scheduler, err);
        if (status != MOE_OK)
            return status;
        for (uint32_t i = 0; i < n_entries && *n < max; i++) {
            const struct moe_entry *e = &entries[order[i]];
            if (e->state != MOE_ENTRY_HAS_SLOT || s->given[order[i]])
                continue;
            if (s->loads[e->slot].failed)
                return s->channel.failure(s->channel.ctx, err);
            if (!can_begin(&s->loads[e->slot]))
                continue;
            which[(*n)++] = order[i];
            s->given[order[i]] = 1;
        }
        if (*n > 0)
            return MOE_OK;
        status = wait_for_some(s, err);
        if (status != MOE_OK)
            return status;
    }
}

int moe_supply_complete(struct moe_supply *s, uint32_t which, struct moe_err *err)
{
    uint32_t n, slot = moe_scheduler_entries(s->scheduler, &n)[which].slot;
    while (moe_store_slot(s->store, slot)->state != MOE_SLOT_READY) {
        if (s->loads[slot].failed)
            return s->channel.failure(s->channel.ctx, err);
        int status = wait_for_some(s, err);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

void moe_supply_release(struct moe_supply *s, uint32_t which)
{
    moe_scheduler_release(s->scheduler, which);
}

void moe_supply_end_tokens(struct moe_supply *s, bool measure, double seconds, double stalled,
                           double reading, uint64_t loads)
{
    if (!measure)
        return;
    if (seconds > stalled)
        moe_fading_add(&s->layer_seconds, (seconds - stalled) / s->inventory->n_layers);
    if (loads)
        moe_fading_add(&s->load_seconds, reading / (double)loads);
    moe_scheduler_tell_times(s->scheduler, s->layer_seconds.value, s->load_seconds.value);
    moe_scheduler_tell_token(s->scheduler, seconds);
}
