/*
 * A cache of experts: its state, shared by experts_cached.c (requests, loads) and
 * experts_cached_open.c. Internal to it.
 */
#ifndef MOE_RUN_EXPERTS_CACHED_H
#define MOE_RUN_EXPERTS_CACHED_H

#include "run/expert_pools.h"
#include "run/experts.h"
#include "sched/trial.h"

/* The loads that fill one slot. */
struct slot_loads {
    uint32_t n_segments;
    uint32_t arrived;                        /* bit per segment */
    uint32_t in_flight;                      /* bit per segment */
    uint32_t handles[MOE_PACK_MAX_SEGMENTS]; /* of segments in flight */
    bool failed;
    double submitted; /* for the timeline */
};

struct cached {
    struct moe_experts base;
    const struct moe_pack *pack;
    struct moe_strategy strategy;
    uint32_t n_layers, n_experts; /* MoE layers */
    uint32_t *model_layer;        /* [n_layers] of the model */
    uint32_t *moe_layer;          /* [layers of the model] */
    struct moe_expert_pools pools;
    uint32_t *best, *high, *low, *class_of; /* as the scheduler wants them */
    struct moe_scheduler *scheduler;
    struct moe_store *store; /* the scheduler's */
    struct moe_loader *loader;
    uint8_t *memory;
    uint64_t *slot_at;        /* [slots] offset in memory */
    struct slot_loads *loads; /* [slots] */
    uint32_t n_in_flight;     /* segments that the loader has */
    uint8_t *given;           /* [n_experts] of the request's entries */
    uint32_t layer;           /* of the request */
    struct moe_phase_stats *phase, before;
    struct moe_err failure; /* of a load that somebody waits for */

    /* The loader's counters as last seen, for what a phase added to them. */
    struct moe_loader_stats seen;
    /* For n = T / t_expert: means over decoded tokens. */
    struct moe_fading layer_seconds, load_seconds;
    double stall_seen, read_seen;
    uint64_t loads_seen;
};

extern const struct moe_experts_ops cached_ops;

/* What moves bytes for the scheduler. */
struct moe_mover cached_mover(struct cached *c);
/* Sleeps until something has arrived. */
int cached_wait(struct cached *c, struct moe_err *err);
/* The load that failed last, as an error. */
int cached_failure(struct cached *c, struct moe_err *err);
/* What the loader did since the last look goes to the phase that caused it. */
void cached_count_traffic(struct cached *c);

#endif
