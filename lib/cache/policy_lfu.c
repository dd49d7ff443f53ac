/*
 * lfu: evicts the least frequently used expert; among equals the least recently used, then the
 * lower key.
 *
 * All uses count, also those before an expert was admitted and while it was absent: those of the
 * current sequence or, where records are kept from one sequence to the next, of all so far
 * ("sequence level" and "model level" in HOBBIT 3.4 and 5.5.3). The same as hobbit
 * (policy_hobbit.c) with the weights 0, 1, 0, 0.
 */
#include "cache/scored.h"

static double lfu_part(const struct moe_scored *s, uint32_t key)
{
    return s->usage->count[key];
}

static double lfu_score(const struct moe_scored *s, double part, uint32_t of, uint32_t layer)
{
    return part;
}

const struct moe_policy_ops moe_policy_lfu = {
    .name = "lfu",
    .describe = "evicts the least frequently used",
    .needs_usage = true,
    .open = moe_scored_open,
    .close = moe_scored_close,
    .use = moe_scored_use,
    .admit = moe_scored_admit,
    .drop = moe_scored_drop,
    .victim = moe_scored_victim,
    .part = lfu_part,
    .score = lfu_score,
};
