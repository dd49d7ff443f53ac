/*
 * A cache of experts: its state, shared by experts_cached.c (what the forward pass asks),
 * experts_channel.c (how bytes come) and experts_tiers.c (how they come to a GPU).
 */
#ifndef MOE_INFER_EXPERTS_CACHED_H
#define MOE_INFER_EXPERTS_CACHED_H

#include "infer/expert_pools.h"
#include "infer/experts.h"
#include "sched/scheduler.h"

struct cached {
    struct moe_experts base;
    const struct moe_pack *pack;
    struct moe_inventory inventory;
    struct moe_expert_pools pools;
    struct moe_store *store;       /* the scheduler's */
    struct moe_loader *loader;     /* fills the slots */
    const struct moe_loader *disk; /* the tiers' own; NULL: none */
    struct moe_gpu *gpu;           /* whose memory holds them; NULL: the host's */
    struct tiers *tiers;           /* how its slots are filled; NULL without a GPU */
    uint8_t *memory;
    uint64_t *slot_at; /* [slots] offset in memory */
    double *submitted; /* [slots] when its load began, for the timeline */
    struct moe_phase_stats *phase, before;
    struct moe_err failure; /* of a load that an entry waits for */

    /* The loader's counters as last seen, for what a phase added to them. */
    struct moe_loader_stats seen;
    /* The phase's figures when the pass began. */
    bool decode;
    double stall_before, read_before;
    uint64_t loads_before;
};

extern const struct moe_experts_ops cached_ops;

/* Adds what the loader did since the last call to the phase that caused it. */
void cached_count_traffic(struct cached *c);

/* Moves bytes for the scheduler. */
struct moe_channel cached_channel(struct cached *c);

/* ---- What both channels do ---- */

/* Where a segment of the slot's expert is in the slots' memory. */
uint8_t *cached_segment_at(const struct cached *c, uint32_t slot, uint32_t segment);
/* Remembers a load that failed, and why. */
void cached_fail(struct cached *c, uint32_t slot, uint32_t segment, int status, const char *why);
/* The load that failed last, as an error. */
int cached_failure(void *ctx, struct moe_err *err);
/* The computing threads wait for loads between these two calls. */
struct cached_stall {
    double clock, began; /* by the clock that counts, by the wall clock */
    double work;         /* of the loaders, which is no waiting */
};
struct cached_stall cached_stall_begin(struct cached *c);
void cached_stall_end(struct cached *c, const struct cached_stall *stall);
/* Loads wait for each other, or begin. */
void cached_hold(void *ctx, bool holds);
void cached_limit_prefetches(void *ctx, double bytes);
/* For the timeline: a slot's loads begin, and have all ended. */
void cached_loading(struct cached *c, uint32_t slot);
void cached_loaded(void *ctx, uint32_t slot);

#endif
