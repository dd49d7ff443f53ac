/*
 * Supply: the experts of a request as their bytes arrive. Joins the scheduler (scheduler.h), which
 * decides, with a channel that moves bytes: the runner's loader, or the simulator's modelled link.
 * Everything between the two that could decide differently is here, so that it cannot.
 *
 *     begin_sequence, then for each pass: begin_tokens; for each MoE layer in order
 *         begin       the router has spoken
 *         foresee     predictions (moe_scheduler_predicted)
 *         poll        now and then
 *         next, complete, release until every entry in a slot is computed
 *     end_tokens
 *
 * One thread; nothing is allocated after opening.
 */
#ifndef MOE_SCHED_SUPPLY_H
#define MOE_SCHED_SUPPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "sched/inventory.h"
#include "sched/scheduler.h"

/* A segment that has ended. */
struct moe_arrival {
    uint32_t slot, segment;
    int status; /* MOE_OK, or why its bytes are not there */
};

/* What moves bytes; `ctx` comes first in each call. */
struct moe_channel {
    void *ctx;
    /* Begins to load a segment of what the slot is to hold; *handle names it until it has ended. */
    int (*submit)(void *ctx, uint32_t slot, uint32_t segment, enum moe_load_priority priority,
                  float score, uint32_t *handle, struct moe_err *err);
    void (*promote)(void *ctx, uint32_t handle); /* a prefetch is wanted now */
    /* Gives one up. True: nothing of it is under way; false: it will be reported as failed. */
    bool (*cancel)(void *ctx, uint32_t handle);
    /* What has ended, at most max; wait: sleeps until something has. 0 after a wait: nothing is
     * under way. */
    uint32_t (*reap)(void *ctx, bool wait, struct moe_arrival *done, uint32_t max);
    /* A slot's loads have all ended. May be NULL. */
    void (*loaded)(void *ctx, uint32_t slot);
    /* Why a load that somebody waits for failed: fills `err`, returns its status. */
    int (*failure)(void *ctx, struct moe_err *err);
};

struct moe_supply_options {
    const struct moe_inventory *inventory; /* borrowed while the supply is open */
    const struct moe_strategy *strategy;   /* settled and fitted; copied */
    uint32_t high, low;                    /* variants: the one to use, and the lower one */
    /* Slots. Without per_layer they are shared among layers as the strategy says. */
    const struct moe_pools *pools;
    const uint64_t *frequency; /* [layer][expert] of a profile; NULL: none */
    /* What lies in the cache at the start, in this order: layer * n_experts + expert. NULL: as the
     * strategy's --init says. */
    const uint32_t *contents;
    uint32_t n_contents;
    double layer_seconds, load_seconds; /* T and t_expert (Fate 4.3) until they are measured */
    uint32_t n_requests;                /* segments under way at most */
    uint64_t seed;
    struct moe_channel channel;
};

struct moe_supply;

/* The initial contents are not loaded yet: moe_supply_fill. */
int moe_supply_open(struct moe_supply **out, const struct moe_supply_options *options,
                    struct moe_err *err);
void moe_supply_close(struct moe_supply *s); /* NULL is fine */
struct moe_scheduler *moe_supply_scheduler(struct moe_supply *s);

/* Loads the cache's first contents. */
int moe_supply_fill(struct moe_supply *s, const struct moe_progress *progress, struct moe_err *err);

/* The router of a MoE layer has spoken; moe_scheduler_entries says what becomes of each need. */
int moe_supply_begin(struct moe_supply *s, uint32_t layer, const struct moe_need *needs, uint32_t n,
                     struct moe_err *err);
/* Moves loads on, without waiting. */
int moe_supply_poll(struct moe_supply *s, struct moe_err *err);
/* Entries whose first segments (all but the last) are there, each once over all calls: at least
 * one (waits when there is none), at most max. */
int moe_supply_next(struct moe_supply *s, uint32_t max, uint32_t *which, uint32_t *n,
                    struct moe_err *err);
/* Waits until an entry is there whole. */
int moe_supply_complete(struct moe_supply *s, uint32_t which, struct moe_err *err);
void moe_supply_release(struct moe_supply *s, uint32_t which);

/* A pass over rows is over, and took so long; of that the computing threads waited `stalled`
 * seconds for loads, `reading` seconds something was being loaded, and `loads` loads were begun.
 * measure: T and t_expert may be learnt from it (decoded tokens, but for the first). */
void moe_supply_end_tokens(struct moe_supply *s, bool measure, double seconds, double stalled,
                           double reading, uint64_t loads);

#endif
