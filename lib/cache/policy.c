/* The table of cache policies. */
#include "cache/policy.h"

#include <stddef.h>
#include <string.h>

static const struct moe_policy_ops *const policies[] = {
    &moe_policy_random,
    &moe_policy_fifo,
    &moe_policy_lru,
    &moe_policy_lfu,
    &moe_policy_arc,
    &moe_policy_edgemoe,
    &moe_policy_edgemoe_literal,
    &moe_policy_hobbit,
    &moe_policy_infinity,
    &moe_policy_lrfu,
    &moe_policy_transition,
    &moe_policy_learned,
    &moe_policy_pinned,
};

const struct moe_policy_ops *moe_policy_at(int i)
{
    return i >= 0 && (size_t)i < sizeof policies / sizeof policies[0] ? policies[i] : NULL;
}

const struct moe_policy_ops *moe_policy_find(const char *name)
{
    const struct moe_policy_ops *ops;
    for (int i = 0; (ops = moe_policy_at(i)) != NULL; i++)
        if (strcmp(ops->name, name) == 0)
            return ops;
    return NULL;
}

int moe_policy_follow(const struct moe_policy_ops *ops, struct moe_usage *u, uint64_t beside,
                      struct moe_err *err)
{
    const struct moe_follower_params params = {u->n_layers, u->n_experts, u->top_k, beside};
    if (!ops->follow)
        return MOE_OK;
    struct moe_arena arena = {.size = moe_policy_follow_bytes(ops, &params)};
    arena.base = moe_alloc(1, arena.size, err);
    if (!arena.base)
        return MOE_ERR_MEMORY;
    u->follower = ops->follow(&arena, &params);
    return MOE_OK;
}

uint64_t moe_policy_follow_bytes(const struct moe_policy_ops *ops,
                                 const struct moe_follower_params *params)
{
    struct moe_arena counts = {0};
    if (ops && ops->follow)
        ops->follow(&counts, params);
    return counts.overflowed ? UINT64_MAX : counts.used;
}
