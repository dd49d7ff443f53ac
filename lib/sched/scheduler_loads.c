/*
 * Slots as the scheduler sees them, and the loads that fill them, segment by segment.
 */
#include "sched/scheduler_state.h"

enum { ARRIVALS = 32 /* taken at once */ };

/* ---- Slots ---- */

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

void moe_scheduler_cached(const struct moe_scheduler *s, uint32_t layer, uint8_t *cached)
{
    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint32_t slot = scheduler_find(s, layer, e, s->high[scheduler_key(s, layer, e)]);
        cached[e] = slot != MOE_NO_SLOT && moe_store_slot(s->store, slot)->use == MOE_SLOT_CACHED;
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

/* ---- Loads ---- */

bool scheduler_has_room(const struct moe_scheduler *s)
{
    return s->n_in_flight + MOE_PACK_MAX_SEGMENTS <= s->n_requests;
}

/* Submits every segment of the expert that the slot is for, in order. */
static int submit(struct moe_scheduler *s, uint32_t slot, enum moe_load_priority priority,
                  float score, struct moe_err *err)
{
    struct slot_loads *l = &s->loads[slot];
    const struct moe_slot *x = moe_store_slot(s->store, slot);
    *l = (struct slot_loads){.n_segments = s->inventory->classes[x->class_index].n_segments};
    for (uint32_t i = 0; i < l->n_segments; i++) {
        int status =
            s->channel.submit(s->channel.ctx, slot, i, priority, score, &l->handles[i], err);
        if (status != MOE_OK)
            return status;
        l->in_flight |= 1u << i;
        s->n_in_flight++;
    }
    return MOE_OK;
}

int scheduler_load(struct moe_scheduler *s, uint32_t slot, enum moe_load_priority priority,
                   float score, struct moe_err *err)
{
    s->given_up[slot] = 0;
    s->counts->loads++;
    int status = submit(s, slot, priority, score, err);
    if (status == MOE_OK)
        return MOE_OK;
    s->loads[slot].failed = true;
    s->given_up[slot] = 1;
    if (moe_store_slot(s->store, slot)->pins == 0)
        scheduler_give_up(s, slot);
    return status;
}

void scheduler_promote(struct moe_scheduler *s, uint32_t slot)
{
    for (uint32_t i = 0; i < s->loads[slot].n_segments; i++)
        if (s->loads[slot].in_flight & 1u << i)
            s->channel.promote(s->channel.ctx, s->loads[slot].handles[i]);
}

bool scheduler_give_up(struct moe_scheduler *s, uint32_t slot)
{
    struct slot_loads *l = &s->loads[slot];
    l->failed = true;
    for (uint32_t i = 0; i < l->n_segments; i++) {
        if ((l->in_flight & 1u << i) && s->channel.cancel(s->channel.ctx, l->handles[i])) {
            l->in_flight &= ~(1u << i);
            s->n_in_flight--;
        }
    }
    s->given_up[slot] = l->in_flight != 0;
    if (l->in_flight == 0)
        moe_store_failed(s->store, slot);
    return l->in_flight == 0;
}

/* All loads of a slot have ended. A failed slot that an entry holds stays its own until the entry
 * is released. */
static void arrived(struct moe_scheduler *s, uint32_t slot)
{
    if (s->channel.loaded)
        s->channel.loaded(s->channel.ctx, slot);
    if (!s->loads[slot].failed && !s->given_up[slot]) {
        moe_store_ready(s->store, slot);
    } else if (moe_store_slot(s->store, slot)->pins == 0) {
        moe_store_failed(s->store, slot);
        s->given_up[slot] = 0;
    } else {
        s->given_up[slot] = 1;
    }
}

int scheduler_reap(struct moe_scheduler *s, bool wait, struct moe_err *err)
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
        if (l->in_flight == 0)
            arrived(s, done[i].slot);
        else if (done[i].status != MOE_OK)
            s->given_up[done[i].slot] = 1; /* nothing should wait for the rest */
    }
    if (wait && n == 0)
        return moe_fail(err, MOE_ERR_IO, "an entry waits for an expert that is not being loaded");
    return MOE_OK;
}
