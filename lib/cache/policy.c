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
