/*
 * The scheduler's state, shared by its files: scheduler.c (opening, loads), scheduler_request.c
 * (the router has spoken), scheduler_prefetch.c (predictions). Internal to the scheduler.
 */
#ifndef MOE_SCHED_SCHEDULER_STATE_H
#define MOE_SCHED_SCHEDULER_STATE_H

#include "sched/placement.h"
#include "sched/scheduler.h"
#include "sched/trial.h"

/* An expert worth fetching ahead, in its turn. */
struct candidate {
    uint32_t layer, expert, variant;
    float score;
};

enum foretold { NOT_FORETOLD = 0, FORETOLD, FORETOLD_UNPOPULAR };

struct moe_scheduler {
    uint32_t n_layers, n_experts, top_k;
    struct moe_strategy strategy;
    uint32_t *best, *high, *low; /* [layer][expert] */
    struct moe_usage usage;
    struct moe_store *store;
    struct moe_mover mover;
    struct moe_counts *counts, before;
    struct moe_store_counts seen; /* the store's, as last added to counts */
    bool prefill;

    uint32_t layer;            /* of the request */
    struct moe_entry *entries; /* [n_experts] */
    uint32_t *order;           /* [n_experts] */
    uint32_t n, n_open;        /* entries; of these, not done */
    uint8_t *given_up;         /* [n_slots] failed or cancelled, and still held or under way */

    uint8_t *foretold;       /* [layer][expert] in the predicted set */
    bool *is_predicted;      /* [layer] */
    uint8_t *guarded;        /* [layer] some of its experts are protected */
    struct candidate *queue; /* [n_experts] */
    uint32_t n_queue, at_queue;
    uint32_t *ahead; /* [n_slots] prefetches begun and not seen to their end */
    uint32_t n_ahead;
    struct moe_trial trial;
    double layer_seconds, load_seconds;

    uint8_t *marks;         /* [n_experts] scratch */
    uint32_t *numbers;      /* [2 * n_experts] scratch */
    struct moe_swap *swaps; /* [n_experts / 2 + 1] scratch */
};

static inline uint64_t scheduler_key(const struct moe_scheduler *s, uint32_t layer, uint32_t expert)
{
    return (uint64_t)layer * s->n_experts + expert;
}

/* Like moe_store_find, but blind to what was given up and is still under way. */
uint32_t scheduler_find(const struct moe_scheduler *s, uint32_t layer, uint32_t expert,
                        uint32_t variant);
/* Begins to fill a slot; one that nobody holds is free again after a failure. */
int scheduler_load(struct moe_scheduler *s, uint32_t slot, enum moe_load_priority priority,
                   float score, struct moe_err *err);
/* Evictions and wasted prefetches since the last look go to the tokens under way. */
void scheduler_account(struct moe_scheduler *s);

/* Marks the entries of the request whose experts prompts take at low precision: s->marks. */
void scheduler_mark_unpopular(struct moe_scheduler *s);
/* Gives up prefetches for the layer whose router has spoken and which it did not ask for; its
 * predictions are forgotten. */
void scheduler_drop_stale(struct moe_scheduler *s);
/* Begins queued prefetches, as far as there is room. */
int scheduler_feed_prefetches(struct moe_scheduler *s, struct moe_err *err);

#endif
