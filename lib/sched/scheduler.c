#include "sched/scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/scheduler_state.h"

/* ---- Opening ---- */

static void *copy_of(const void *from, uint64_t n, uint64_t size, struct moe_err *err)
{
    void *to = moe_alloc(n, size, err);
    if (to)
        memcpy(to, from, n * size);
    return to;
}

static int open_store(struct moe_scheduler *s, const struct moe_scheduler_params *p,
                      struct moe_err *err)
{
    const struct moe_store_params params = {
        .n_layers = p->n_layers,
        .n_experts = p->n_experts,
        .n_variants = p->n_variants,
        .n_classes = p->n_classes,
        .pools = p->pools,
        .class_of = p->class_of,
        .class_bytes = p->class_bytes,
        .policy = s->strategy.cache ? s->strategy.cache : &moe_policy_lru,
        .usage = &s->usage,
        .weights = moe_strategy_weights(&s->strategy),
        .seed = p->seed,
    };
    return moe_store_open(&s->store, &params, err);
}

static int open_tables(struct moe_scheduler *s, const struct moe_scheduler_params *p,
                       struct moe_err *err)
{
    uint64_t n_keys = (uint64_t)s->n_layers * s->n_experts;
    uint32_t n_slots = moe_store_n_slots(s->store);
    s->best = copy_of(p->best, n_keys, sizeof *s->best, err);
    s->high = copy_of(p->high, n_keys, sizeof *s->high, err);
    s->low = copy_of(p->low, n_keys, sizeof *s->low, err);
    s->entries = moe_alloc(s->n_experts, sizeof *s->entries, err);
    s->order = moe_alloc(s->n_experts, sizeof *s->order, err);
    s->given_up = moe_alloc(n_slots, 1, err);
    s->foretold = moe_alloc(n_keys, 1, err);
    s->is_predicted = moe_alloc(s->n_layers, sizeof *s->is_predicted, err);
    s->guarded = moe_alloc(s->n_layers, 1, err);
    s->queue = moe_alloc(s->n_experts, sizeof *s->queue, err);
    s->ahead = moe_alloc(n_slots, sizeof *s->ahead, err);
    s->marks = moe_alloc(s->n_experts, 1, err);
    s->numbers = moe_alloc(2 * (uint64_t)s->n_experts, sizeof *s->numbers, err);
    s->swaps = moe_alloc(s->n_experts / 2 + 1, sizeof *s->swaps, err);
    bool all = s->best && s->high && s->low && s->entries && s->order && s->given_up &&
               s->foretold && s->is_predicted && s->guarded && s->queue && s->ahead && s->marks &&
               s->numbers && s->swaps;
    return all ? MOE_OK : MOE_ERR_MEMORY;
}

int moe_scheduler_open(struct moe_scheduler **out, const struct moe_scheduler_params *p,
                       struct moe_err *err)
{
    *out = NULL;
    struct moe_scheduler *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    s->n_layers = p->n_layers;
    s->n_experts = p->n_experts;
    s->top_k = p->top_k;
    s->strategy = *p->strategy;
    s->mover = p->mover;
    s->counts = &s->before;
    moe_trial_init(&s->trial);
    int status = moe_usage_init(&s->usage, p->n_layers, p->n_experts, p->top_k, err);
    if (status == MOE_OK && p->frequency)
        memcpy(s->usage.frequency, p->frequency,
               (uint64_t)p->n_layers * p->n_experts * sizeof *p->frequency);
    if (status == MOE_OK)
        status = open_store(s, p, err);
    if (status == MOE_OK)
        status = open_tables(s, p, err);
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
    free(s->entries);
    free(s->order);
    free(s->given_up);
    free(s->foretold);
    free(s->is_predicted);
    free(s->guarded);
    free(s->queue);
    free(s->ahead);
    free(s->marks);
    free(s->numbers);
    free(s->swaps);
    free(s);
}

/* ---- Looking ---- */

struct moe_store *moe_scheduler_store(struct moe_scheduler *s)
{
    return s->store;
}

const struct moe_usage *moe_scheduler_usage(const struct moe_scheduler *s)
{
    return &s->usage;
}

const struct moe_entry *moe_scheduler_entries(const struct moe_scheduler *s, uint32_t *n)
{
    *n = s->n;
    return s->entries;
}

const uint32_t *moe_scheduler_order(const struct moe_scheduler *s)
{
    return s->order;
}

uint32_t scheduler_find(const struct moe_scheduler *s, uint32_t layer, uint32_t expert,
                        uint32_t variant)
{
    uint32_t slot = moe_store_find(s->store, layer, expert, variant);
    while (slot != MOE_NO_SLOT && s->given_up[slot]) {
        uint32_t better = moe_store_slot(s->store, slot)->variant;
        slot = better ? moe_store_find(s->store, layer, expert, better - 1) : MOE_NO_SLOT;
    }
    return slot;
}

void moe_scheduler_present(const struct moe_scheduler *s, uint32_t layer, uint8_t *present)
{
    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint32_t slot = scheduler_find(s, layer, e, s->low[scheduler_key(s, layer, e)]);
        present[e] = slot != MOE_NO_SLOT && moe_store_slot(s->store, slot)->state == MOE_SLOT_READY;
    }
}

void scheduler_account(struct moe_scheduler *s)
{
    const struct moe_store_counts *now = moe_store_counts(s->store);
    s->counts->evictions += now->evictions - s->seen.evictions;
    s->counts->prefetches_used += now->staged_used - s->seen.staged_used;
    s->counts->prefetch_wasted_bytes += now->staged_unused_bytes - s->seen.staged_unused_bytes;
    s->seen = *now;
}

/* ---- Sequences and tokens ---- */

void moe_scheduler_begin_sequence(struct moe_scheduler *s)
{
    if (!s->strategy.keep_records)
        moe_usage_begin_sequence(&s->usage);
}

void moe_scheduler_begin_tokens(struct moe_scheduler *s, uint32_t n, bool prefill,
                                struct moe_counts *counts)
{
    scheduler_account(s);
    s->counts = counts;
    s->prefill = prefill;
    moe_usage_begin_tokens(&s->usage, n);
}

void moe_scheduler_tell_token(struct moe_scheduler *s, double seconds)
{
    if (s->strategy.prefetch.measured)
        moe_trial_token(&s->trial, seconds);
}

void moe_scheduler_tell_times(struct moe_scheduler *s, double layer_seconds, double load_seconds)
{
    s->layer_seconds = layer_seconds;
    s->load_seconds = load_seconds;
}

/* ---- Loads ---- */

int scheduler_load(struct moe_scheduler *s, uint32_t slot, enum moe_load_priority priority,
                   float score, struct moe_err *err)
{
    s->given_up[slot] = 0;
    s->counts->loads++;
    int status = s->mover.load(s->mover.ctx, slot, priority, score, err);
    if (status == MOE_OK)
        return MOE_OK;
    if (moe_store_slot(s->store, slot)->pins == 0 && s->mover.cancel(s->mover.ctx, slot))
        moe_store_failed(s->store, slot);
    else
        s->given_up[slot] = 1;
    return status;
}

uint32_t moe_scheduler_fill(struct moe_scheduler *s, uint32_t layer, uint32_t expert,
                            struct moe_err *err)
{
    uint32_t variant = s->high[scheduler_key(s, layer, expert)];
    if (!s->mover.has_room(s->mover.ctx) ||
        scheduler_find(s, layer, expert, variant) != MOE_NO_SLOT)
        return MOE_NO_SLOT;
    uint32_t slot = moe_store_fill(s->store, layer, expert, variant);
    if (slot != MOE_NO_SLOT && scheduler_load(s, slot, MOE_LOAD_DEMAND, 0, err) != MOE_OK)
        slot = MOE_NO_SLOT;
    return slot;
}

void moe_scheduler_arrived(struct moe_scheduler *s, uint32_t slot, bool ok)
{
    if (ok && !s->given_up[slot]) {
        moe_store_ready(s->store, slot);
    } else if (moe_store_slot(s->store, slot)->pins == 0) {
        moe_store_failed(s->store, slot);
        s->given_up[slot] = 0;
    } else {
        s->given_up[slot] = 1; /* its entry lets it go */
    }
}

void moe_scheduler_spoiled(struct moe_scheduler *s, uint32_t slot)
{
    s->given_up[slot] = 1;
}
