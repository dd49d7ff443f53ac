/*
 * Pools of an expert cache: how many slots of each size class a number of bytes gives, how many
 * places in host memory serve slots on a GPU, and what the loaders and the policy need in addition.
 * The one place that sizes and allocates.
 */
#ifndef MOE_INFER_EXPERT_POOLS_H
#define MOE_INFER_EXPERT_POOLS_H

#include "infer/experts.h"
#include "sched/host_places.h"
#include "sched/inventory.h"

struct moe_expert_pools {
    struct moe_pools pools;
    struct moe_loader_options loader; /* of what fills the slots; complete */
    uint32_t high, low;               /* variants; low is high where the strategy takes no other */
    uint64_t policy;                  /* bytes that the cache policy keeps of choices */

    /* With a GPU: the host tier (host_tier.h). */
    struct moe_host_sizes host;
    struct moe_loader_options disk; /* of what fills the places; complete */
};

/* inventory: the pack's. */
void moe_expert_pools_size(struct moe_expert_pools *out, const struct moe_pack *pack,
                           const struct moe_inventory *inventory,
                           const struct moe_cache_options *options);

/* Memory where its slots are: with a GPU only the slots. */
uint64_t moe_expert_pools_bytes(const struct moe_expert_pools *p);
/* Memory of its loaders, and of what the policy keeps of choices. */
uint64_t moe_expert_pools_beside_bytes(const struct moe_expert_pools *p);

#endif
