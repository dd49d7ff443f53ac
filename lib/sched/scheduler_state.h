/*
 * The scheduler's state, shared by its files, from the lowest up: scheduler_loads.c (slots and the
 * loads that fill them), scheduler_prefetch.c (predictions), scheduler_request.c (what the router
 * has chosen), scheduler.c (opening, passes). Internal to the scheduler.
 */
#ifndef MOE_SCHED_SCHEDULER_STATE_H
#define MOE_SCHED_SCHEDULER_STATE_H

#include "sched/placement.h"
#include "sched/scheduler.h"
#include "sched/trial.h"

/* The loads that fill one slot. */
struct slot_loads {
    uint32_t n_segments;
    uint32_t arrived;                        /* bit per segment */
    uint32_t in_flight;                      /* bit per segment */
    uint32_t handles[MOE_PACK_MAX_SEGMENTS]; /* of segments in flight */
    bool failed;
};

/* An expert worth prefetching, in its turn. */
struct candidate {
    uint32_t layer, expert, variant;
    float score;
};

enum predicted_as { NOT_PREDICTED = 0, PREDICTED, PREDICTED_UNPOPULAR };

struct moe_scheduler {
    const struct moe_inventory *inventory;
    uint32_t n_layers, n_encoder, n_experts, top_k; /* the inventory's */
    struct moe_strategy strategy;
    /* [layer][expert] variants: the best there is, the high one to be used, and the low one (the
     * same as the high one where there is none). */
    uint32_t *best, *high, *low;
    struct moe_usage usage;
    struct moe_store *store;
    struct moe_channel channel;
    uint32_t *contents; /* [n_contents] of the cache at the start */
    uint32_t n_contents;
    struct moe_counts *counts, before;
    struct moe_store_counts seen; /* the store's, as last added to counts */
    bool prefill;
    bool source; /* the pass at work is the encoder's */

    struct slot_loads *loads;         /* [n_slots] */
    uint32_t n_requests, n_in_flight; /* segments */
    uint8_t *given_up; /* [n_slots] failed or cancelled, and still held or under way */

    uint32_t layer;            /* of the request */
    struct moe_entry *entries; /* [n_experts] */
    uint32_t *order;           /* [n_experts] */
    uint32_t n, n_open;        /* entries; of these, not done */

    uint8_t *predicted;      /* [layer][expert] enum predicted_as */
    bool *is_predicted;      /* [layer] */
    uint8_t *guarded;        /* [layer] some of its experts are protected */
    struct candidate *queue; /* [max(2, depth) * n_experts] of the nearest layer first */
    uint32_t n_queue, at_queue;
    uint32_t
        streaming; /* layer whose experts were queued last, to be loaded whole; UINT32_MAX: none */
    /* What layers with static routing will want in this pass, in the order of the layers. */
    struct candidate *known; /* [their number * n_experts] */
    uint32_t n_known, at_known;
    bool *is_known;       /* [layer] it is in the list */
    uint64_t unused;      /* staged experts that left unused so far: some may be wanted again */
    uint32_t *prefetched; /* [n_slots] whose prefetches have begun and were not seen to end */
    uint32_t n_prefetched;
    struct moe_trial trial;
    struct moe_fading layer_seconds, load_seconds; /* for n = T / t_expert (Fate 4.3) */

    /* Of a prompt under way, for DAOP's algorithm 1. */
    bool *in_prompt;      /* [layer] it has been through this one */
    uint32_t *swap_rows;  /* [layer][expert] its rows so far */
    uint8_t *swap_before; /* [layer][expert] which were in the cache before it */

    uint8_t *marks;         /* [2 * n_experts] scratch */
    uint32_t *numbers;      /* [2 * n_experts] scratch */
    struct moe_swap *swaps; /* [n_experts / 2 + 1] scratch */
};

static inline uint64_t scheduler_key(const struct moe_scheduler *s, uint32_t layer, uint32_t expert)
{
    return (uint64_t)layer * s->n_experts + expert;
}

/* ---- Slots and loads ---- */

/* Like moe_store_find, but without what was given up and is still under way. */
uint32_t scheduler_find(const struct moe_scheduler *s, uint32_t layer, uint32_t expert,
                        uint32_t variant);
/* Whether one more load can be taken now. */
bool scheduler_has_room(const struct moe_scheduler *s);
/* Begins to fill a slot; one that nothing holds is free again after a failure. */
int scheduler_load(struct moe_scheduler *s, uint32_t slot, enum moe_load_priority priority,
                   float score, struct moe_err *err);
/* A prefetch under way has become a demand. */
void scheduler_promote(struct moe_scheduler *s, uint32_t slot);
/* Gives the loads of a slot up. True: nothing of them is under way, the slot is forgotten; false:
 * they will be reported as failed. */
bool scheduler_give_up(struct moe_scheduler *s, uint32_t slot);
/* Takes in what has ended; wait: sleeps until something has, MOE_ERR_IO when nothing is under way.
 */
int scheduler_reap(struct moe_scheduler *s, bool wait, struct moe_err *err);
/* Evictions and wasted prefetches since the last look go to the tokens under way. */
void scheduler_account(struct moe_scheduler *s);

/* ---- Predictions ---- */

/* Marks the entries of the request whose experts prompts take at low precision: s->marks. */
void scheduler_mark_unpopular(struct moe_scheduler *s);
/* Gives up prefetches for the layer whose router has chosen, those that it did not choose; its
 * predictions are forgotten. */
void scheduler_drop_stale(struct moe_scheduler *s);
/* Remembers the predicted set of a layer and queues what is missing of it behind what is queued;
 * returns how many. */
uint32_t scheduler_predict_layer(struct moe_scheduler *s, const struct moe_prediction *p);
/* The pass has come to this layer: of what is known, layers after it are to be prefetched. */
void scheduler_known_after(struct moe_scheduler *s, uint32_t layer);
/* Forgets what was known of a pass, and what was expected of it. */
void scheduler_forget_known(struct moe_scheduler *s);
void scheduler_forget_expected(struct moe_scheduler *s);
/* Begins queued prefetches, as far as there is room. */
int scheduler_feed_prefetches(struct moe_scheduler *s, struct moe_err *err);
/* Where layers are loaded whole: queues all experts of a layer behind what is queued, once in a
 * pass. */
void scheduler_stream(struct moe_scheduler *s, uint32_t layer);
/* ... and waits until those of the layer have come through, as far as slots are free of what is
 * used. */
int scheduler_end_stream(struct moe_scheduler *s, uint32_t layer, struct moe_err *err);

#endif
