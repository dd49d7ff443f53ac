/*
 * Pools of an expert cache: how many slots of each size class a number of bytes gives, and what the
 * loader needs beside them. The one place that sizes and allocates.
 */
#ifndef MOE_RUN_EXPERT_POOLS_H
#define MOE_RUN_EXPERT_POOLS_H

#include "run/experts.h"
#include "sched/inventory.h"

struct moe_expert_pools {
    struct moe_pools pools;
    struct moe_loader_options loader; /* complete */
};

/* inventory: the pack's. */
void moe_expert_pools_size(struct moe_expert_pools *out, const struct moe_pack *pack,
                           const struct moe_inventory *inventory,
                           const struct moe_cache_options *options);

#endif
