/*
 * The host tier: experts in page-locked memory of the host, from where they are copied to a GPU.
 *
 * It holds every expert that the strategy may use, or as many as fit, the most used first; what it
 * lacks is read from disk on request and takes a place (host_places.h).
 */
#ifndef MOE_INFER_HOST_TIER_H
#define MOE_INFER_HOST_TIER_H

#include "gpu.h"
#include "infer/expert_pools.h"
#include "infer/experts.h"
#include "sched/host_places.h"

struct moe_host_tier {
    const struct moe_pack *pack;           /* borrowed, as are these: */
    const struct moe_inventory *inventory; /* the pack's */
    struct moe_gpu *gpu;
    bool whole; /* every expert in use has its place */
    struct moe_host_places places;
    uint64_t *place_at; /* [places] offset in memory */
    uint8_t *memory;
    uint64_t bytes;
    bool pinned;
};

/* Places as the pools say, still empty. MOE_ERR_MEMORY, MOE_ERR_DEVICE. Closed also after that. */
int moe_host_tier_open(struct moe_host_tier *t, const struct moe_pack *pack,
                       const struct moe_inventory *inventory, const struct moe_expert_pools *pools,
                       struct moe_gpu *gpu, struct moe_err *err);
/* Nothing is being loaded into it any more, or copied from it. */
void moe_host_tier_close(struct moe_host_tier *t);

/* A segment of a copy. */
struct moe_expert_segment moe_host_tier_segment(const struct moe_host_tier *t, uint32_t copy,
                                                uint32_t segment);
/* Where a segment of a place's expert is or will be. */
uint8_t *moe_host_tier_at(const struct moe_host_tier *t, uint32_t place, uint32_t segment);

/* Loads experts at `high`, then at `low` where the strategy takes that, as far as there are places:
 * by falling frequency ([layer][expert]; NULL: the first of every layer, the second of every layer
 * and so on). `loader` reads the pack, n_requests at a time at most. */
int moe_host_tier_fill(struct moe_host_tier *t, struct moe_loader *loader, uint32_t n_requests,
                       uint32_t high, uint32_t low, const uint64_t *frequency,
                       const struct moe_progress *progress, struct moe_err *err);

#endif
