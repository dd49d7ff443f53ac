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

static double uses_of(const struct moe_scored *s, uint32_t key)
{
    return s->usage->count[key];
}

static int open_lfu(struct moe_policy **out, const struct moe_policy_params *params,
                    struct moe_err *err)
{
    return moe_scored_open(out, &moe_policy_lfu, params, uses_of, err);
}

static double score(const struct moe_scored *s, double part, uint32_t of, uint32_t layer)
{
    return part;
}

static int64_t lfu_victim(struct moe_policy *p, int64_t incoming, moe_evictable_fn may, void *ctx)
{
    return moe_scored_least((struct moe_scored *)p, incoming, may, ctx, score);
}

const struct moe_policy_ops moe_policy_lfu = {
    .name = "lfu",
    .describe = "evicts the least frequently used",
    .needs_usage = true,
    .open = open_lfu,
    .close = moe_scored_close,
    .use = moe_scored_use,
    .admit = moe_scored_admit,
    .drop = moe_scored_drop,
    .victim = lfu_victim,
};
