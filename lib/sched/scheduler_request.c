/*
 * Requests: the router has chosen, and each expert becomes a hit, a load, or something else.
 */
#include "sched/scheduler_state.h"

#include <string.h>

#include "sched/precision.h"

static void finish(struct moe_scheduler *s, struct moe_entry *e)
{
    uint32_t slot = e->slot;
    bool held = e->state == MOE_ENTRY_HAS_SLOT;
    e->state = MOE_ENTRY_DONE;
    s->n_open--;
    if (!held)
        return;
    moe_store_release(s->store, slot);
    const struct moe_slot *x = moe_store_slot(s->store, slot);
    if (s->given_up[slot] && x->pins == 0 && x->state == MOE_SLOT_LOADING)
        scheduler_give_up(s, slot);
}

/* Releases what an earlier request (one that ended in an error) still holds. */
static void drop_request(struct moe_scheduler *s)
{
    for (uint32_t i = 0; s->n_open > 0 && i < s->n; i++)
        if (s->entries[i].state != MOE_ENTRY_DONE)
            finish(s, &s->entries[i]);
}

/* The lowest precision that suffices for an expert of the request, wherever it is computed. */
static uint32_t acceptable(const struct moe_scheduler *s, enum moe_importance importance,
                           bool unpopular, uint32_t key)
{
    bool low = unpopular || s->strategy.miss_precision == MOE_MISS_EMERGENCY ||
               (s->strategy.miss_precision == MOE_MISS_BY_SCORE && importance != MOE_IMPORTANT);
    return low ? s->low[key] : s->high[key];
}

static bool computes_on_host(const struct moe_scheduler *s)
{
    return s->strategy.miss_place == MOE_MISS_COMPUTE_HOST &&
           !(s->prefill && s->strategy.host_decodes_only);
}

/* What becomes of one expert, once the router has chosen. */
static void decide(struct moe_scheduler *s, struct moe_entry *e, bool unpopular)
{
    uint32_t expert = e->need.expert;
    uint64_t key = scheduler_key(s, s->layer, expert), rows = e->need.n_rows;
    struct moe_counts *c = s->counts;
    enum moe_importance importance =
        moe_importance_of(e->need.unimportance, s->strategy.high_up_to, 1 - s->strategy.skip_below);
    e->variant = acceptable(s, importance, unpopular, (uint32_t)key);
    uint32_t slot = MOE_NO_SLOT;
    /* The gate has taken its weight. */
    bool left_out = s->strategy.gate_below > 0 && !s->prefill && e->need.unimportance >= 1;
    bool precalculated = e->need.precalculated && !left_out;
    if (!precalculated && !left_out)
        slot = scheduler_find(s, s->layer, expert, e->variant);
    bool skipped = left_out || (!precalculated && slot == MOE_NO_SLOT &&
                                importance == MOE_UNIMPORTANT && s->strategy.skip_below > 0);
    if (!skipped) /* what is not computed is no use: R and F of equation 3 (HOBBIT 3.4) */
        moe_usage_note(&s->usage, s->layer, expert, (uint32_t)rows, e->variant == s->high[key]);
    c->activations += rows;
    c->known += s->is_known[s->layer] ? rows : 0;
    if (s->is_predicted[s->layer]) {
        c->predicted += rows;
        c->predicted_right += s->predicted[key] ? rows : 0;
    }
    e->slot = MOE_NO_SLOT;
    e->state = MOE_ENTRY_DONE;
    if (precalculated) {
        e->kind = MOE_ENTRY_PRECALCULATED;
        c->precalculated += rows;
        c->low_precision += s->high[key] > s->best[key] ? rows : 0;
        return;
    }
    if (slot != MOE_NO_SLOT) {
        const struct moe_slot *x = moe_store_slot(s->store, slot);
        e->slot = slot;
        e->variant = x->variant;
        e->state = MOE_ENTRY_HAS_SLOT;
        if (x->state == MOE_SLOT_LOADING && x->prefetched) {
            c->prefetch_late += rows;
            scheduler_promote(s, slot);
        } else if (x->state == MOE_SLOT_LOADING) {
            c->misses += rows;
        } else if (x->prefetched) {
            c->prefetch_hits += rows;
        } else {
            c->cache_hits += rows;
        }
        moe_store_use(s->store, slot);
    } else if (skipped) {
        e->kind = MOE_ENTRY_SKIPPED;
        c->skipped += rows;
        return;
    } else if (computes_on_host(s)) {
        e->kind = MOE_ENTRY_HOST;
        c->host_computed += rows;
    } else {
        e->state = MOE_ENTRY_WANTS_SLOT;
        c->misses += rows;
    }
    c->low_precision += e->variant > s->best[key] ? rows : 0;
}

/* Puts one expert in the place of another, waiting for room, and for the other if it has just been
 * moved there itself. */
static int swap_one(struct moe_scheduler *s, struct moe_swap swap, struct moe_err *err)
{
    uint32_t high = s->high[scheduler_key(s, s->layer, swap.in)];
    uint32_t out =
        scheduler_find(s, s->layer, swap.out, s->high[scheduler_key(s, s->layer, swap.out)]);
    int status = MOE_OK;
    while (status == MOE_OK &&
           (!scheduler_has_room(s) || (out != MOE_NO_SLOT && s->loads[out].in_flight != 0)))
        status = scheduler_reap(s, true, err);
    uint32_t slot = status == MOE_OK
                        ? moe_store_replace(s->store, s->layer, swap.out, swap.in, high)
                        : MOE_NO_SLOT;
    return slot == MOE_NO_SLOT ? status : scheduler_load(s, slot, MOE_LOAD_DEMAND, 0, err);
}

/* DAOP's algorithm 1: experts of a prompt change places before anything is computed. A prompt that
 * comes in several passes is counted as a whole. */
static int swap_places(struct moe_scheduler *s, struct moe_err *err)
{
    uint64_t at = scheduler_key(s, s->layer, 0);
    uint32_t *rows = s->swap_rows + at;
    uint8_t *before = s->swap_before + at, *now = s->marks;
    moe_scheduler_cached(s, s->layer, now);
    if (!s->in_prompt[s->layer]) {
        s->in_prompt[s->layer] = true;
        memset(rows, 0, s->n_experts * sizeof *rows);
        memcpy(before, now, s->n_experts);
    }
    for (uint32_t i = 0; i < s->n; i++)
        rows[s->entries[i].need.expert] += s->entries[i].need.n_rows;
    uint32_t n = moe_swaps_so_far(rows, before, now, s->n_experts, MOE_SWAP_FACTOR, s->swaps,
                                  s->numbers, s->marks + s->n_experts);
    int status = MOE_OK;
    for (uint32_t i = 0; i < n && status == MOE_OK; i++)
        status = swap_one(s, s->swaps[i], err);
    return status;
}

/* Whether an expert of the request is in the cache proper, not in staging. */
static bool is_cached(const struct moe_scheduler *s, const struct moe_entry *e)
{
    uint32_t slot = scheduler_find(s, s->layer, e->need.expert,
                                   s->low[scheduler_key(s, s->layer, e->need.expert)]);
    return slot != MOE_NO_SLOT && moe_store_slot(s->store, slot)->use == MOE_SLOT_CACHED;
}

/* Sorts the order by falling rows; equal ones stay in the order of their ids. */
static void order_by_popularity(struct moe_scheduler *s)
{
    for (uint32_t i = 1; i < s->n; i++) {
        uint32_t entry = s->order[i], at = i;
        for (; at > 0 && s->entries[s->order[at - 1]].need.n_rows < s->entries[entry].need.n_rows;
             at--)
            s->order[at] = s->order[at - 1];
        s->order[at] = entry;
    }
}

static int feed_demands(struct moe_scheduler *s, struct moe_err *err)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct moe_entry *e = &s->entries[s->order[i]];
        if (e->state != MOE_ENTRY_WANTS_SLOT)
            continue;
        if (!scheduler_has_room(s))
            return MOE_OK;
        /* The same load was given up before and still writes into its slot. */
        uint32_t old = moe_store_find(s->store, s->layer, e->need.expert, e->variant);
        if (old != MOE_NO_SLOT && moe_store_slot(s->store, old)->variant == e->variant)
            continue;
        uint32_t slot =
            moe_store_miss(s->store, s->layer, e->need.expert, e->variant, e->policy_knows);
        e->policy_knows = true;
        if (slot == MOE_NO_SLOT)
            continue;
        e->slot = slot;
        e->state = MOE_ENTRY_HAS_SLOT;
        int status = scheduler_load(s, slot, MOE_LOAD_DEMAND, 0, err);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

/* Finds slots for entries that still want one, and begins queued prefetches, as far as there is
 * room. */
static int feed(struct moe_scheduler *s, struct moe_err *err)
{
    int status = feed_demands(s, err);
    return status == MOE_OK ? scheduler_feed_prefetches(s, err) : status;
}

/* The layer is there when all of it is; then the next one of the pass begins to come. */
static int stream_on(struct moe_scheduler *s, struct moe_err *err)
{
    bool last = s->layer + 1 == s->n_layers || s->layer + 1 == s->n_encoder;
    int status = scheduler_end_stream(s, s->layer, err);
    if (status == MOE_OK && !last) {
        scheduler_stream(s, s->layer + 1);
        status = feed(s, err);
    }
    return status;
}

void moe_scheduler_chosen(struct moe_scheduler *s, const struct moe_choices *choices)
{
    moe_usage_chosen(&s->usage, choices);
}

int moe_scheduler_request(struct moe_scheduler *s, uint32_t layer, const struct moe_need *needs,
                          uint32_t n, struct moe_err *err)
{
    scheduler_reap(s, false, err);
    drop_request(s);
    if (layer < s->n_encoder && !s->source)
        moe_usage_is_source(&s->usage);
    s->source = layer < s->n_encoder;
    s->layer = s->usage.layer = layer;
    moe_store_begin_layer(s->store, layer);
    scheduler_known_after(s, layer);
    s->n = s->n_open = n;
    for (uint32_t i = 0; i < n; i++) {
        s->entries[i] = (struct moe_entry){.need = needs[i]};
        s->order[i] = i;
    }
    int status = MOE_OK;
    if (s->strategy.stream)
        scheduler_stream(s, layer);
    if (s->prefill && s->strategy.prefill_swap)
        status = swap_places(s, err);
    scheduler_mark_unpopular(s);
    /* What is cached is pinned first, so that making room for the rest cannot take it. */
    for (uint32_t i = 0; i < n; i++)
        s->numbers[i] = is_cached(s, &s->entries[i]);
    for (uint32_t i = 0; i < n; i++)
        if (s->numbers[i])
            decide(s, &s->entries[i], s->marks[i]);
    for (uint32_t i = 0; i < n; i++)
        if (!s->numbers[i])
            decide(s, &s->entries[i], s->marks[i]);
    for (uint32_t i = 0; i < n; i++)
        s->n_open -= s->entries[i].state == MOE_ENTRY_DONE;
    scheduler_drop_stale(s);
    if (s->prefill && s->strategy.prefill != MOE_PREFILL_ROUTED)
        order_by_popularity(s);
    if (status == MOE_OK)
        status = feed(s, err);
    return status == MOE_OK && s->strategy.stream ? stream_on(s, err) : status;
}

int moe_scheduler_predicted(struct moe_scheduler *s, const struct moe_prediction *predictions,
                            uint32_t n, struct moe_err *err)
{
    /* Others predict layers beyond the next one worse from afar than they will from near. */
    bool on = s->strategy.predict == MOE_PREDICT_BY_TOKEN;
    uint32_t n_missing = 0;
    s->n_queue = s->at_queue = 0;
    for (uint32_t d = 0; d < n && (on || n_missing == 0); d++)
        n_missing += scheduler_predict_layer(s, &predictions[d]);
    return feed(s, err);
}

/* ---- Entries as they arrive ---- */

const struct moe_entry *moe_scheduler_entries(const struct moe_scheduler *s, uint32_t *n)
{
    *n = s->n;
    return s->entries;
}

const uint32_t *moe_scheduler_order(const struct moe_scheduler *s)
{
    return s->order;
}

int moe_scheduler_poll(struct moe_scheduler *s, struct moe_err *err)
{
    if (s->n_in_flight == 0)
        return MOE_OK;
    scheduler_reap(s, false, err);
    return feed(s, err);
}

/* Whether the segments that the first part of an expert's work needs are there. */
static bool can_begin(const struct slot_loads *l)
{
    uint32_t first = l->n_segments > 1 ? (1u << (l->n_segments - 1)) - 1 : 1;
    return (l->arrived & first) == first;
}

/* Names entries that can begin, at most max in all. */
static int name_ready(struct moe_scheduler *s, uint32_t max, uint32_t *which, uint32_t *n,
                      struct moe_err *err)
{
    for (uint32_t i = 0; i < s->n && *n < max; i++) {
        struct moe_entry *e = &s->entries[s->order[i]];
        if (e->state != MOE_ENTRY_HAS_SLOT || e->given)
            continue;
        if (s->loads[e->slot].failed)
            return s->channel.failure(s->channel.ctx, err);
        if (!can_begin(&s->loads[e->slot]))
            continue;
        which[(*n)++] = s->order[i];
        e->given = true;
    }
    return MOE_OK;
}

int moe_scheduler_next(struct moe_scheduler *s, uint32_t max, uint32_t *which, uint32_t *n,
                       struct moe_err *err)
{
    for (*n = 0;;) {
        int status = moe_scheduler_poll(s, err);
        if (status == MOE_OK) /* poll feeds nothing while nothing is under way */
            status = feed(s, err);
        if (status == MOE_OK)
            status = name_ready(s, max, which, n, err);
        if (status != MOE_OK || *n > 0)
            return status;
        status = scheduler_reap(s, true, err);
        if (status != MOE_OK)
            return status;
    }
}

int moe_scheduler_complete(struct moe_scheduler *s, uint32_t which, struct moe_err *err)
{
    uint32_t slot = s->entries[which].slot;
    while (moe_store_slot(s->store, slot)->state != MOE_SLOT_READY) {
        if (s->loads[slot].failed)
            return s->channel.failure(s->channel.ctx, err);
        int status = scheduler_reap(s, true, err);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

void moe_scheduler_release(struct moe_scheduler *s, uint32_t which)
{
    finish(s, &s->entries[which]);
    if (s->n_open == 0)
        scheduler_account(s);
}
