/*
 * Pools of an expert cache: how many slots of each size class a number of bytes gives, where they
 * lie, and what the loader needs beside them. The one place that sizes and allocates.
 */
#ifndef MOE_RUN_EXPERT_POOLS_H
#define MOE_RUN_EXPERT_POOLS_H

#include "run/experts.h"

enum { MOE_CACHE_MAX_CLASSES = 64 };

struct moe_expert_pools {
    uint32_t n_classes, n_slots;
    struct moe_pool_params pools[MOE_CACHE_MAX_CLASSES]; /* without per_layer */
    uint64_t class_bytes[MOE_CACHE_MAX_CLASSES];         /* of a slot */
    uint64_t bytes;                                      /* of all slots */
    struct moe_loader_options loader;                    /* complete */
};

/* The cache's bytes are shared among classes as their experts' bytes are, those of low precision
 * apart (strategy's low_pool). MOE_ERR_UNSUPPORTED: too many classes. */
int moe_expert_pools_size(struct moe_expert_pools *out, const struct moe_pack *pack,
                          const struct moe_cache_options *options, struct moe_err *err);

#endif
