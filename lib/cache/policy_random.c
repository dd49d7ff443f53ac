/*
 * random: evicts any resident expert, all equally likely. The baseline for every other policy.
 */
#include "cache/keys.h"
#include "cache/policy.h"

struct random_policy {
    struct moe_policy base;
    struct moe_keyset resident;
    uint64_t state; /* xorshift64*, never 0 */
};

static void close_random(struct moe_policy *p)
{
    struct random_policy *r = (struct random_policy *)p;
    moe_keyset_release(&r->resident);
    free(r);
}

static int open_random(struct moe_policy **out, const struct moe_policy_ops *ops,
                       const struct moe_policy_params *params, struct moe_err *err)
{
    struct random_policy *r = moe_alloc(1, sizeof *r, err);
    if (!r)
        return MOE_ERR_MEMORY;
    r->base.ops = ops;
    r->state = params->seed * 0x9e3779b97f4a7c15u | 1;
    int status = moe_keyset_init(&r->resident, params->n_keys, err);
    if (status != MOE_OK) {
        close_random(&r->base);
        return status;
    }
    *out = &r->base;
    return MOE_OK;
}

static void random_use(struct moe_policy *p, uint32_t key)
{
    (void)p;
    (void)key;
}

static void random_admit(struct moe_policy *p, uint32_t key)
{
    moe_keyset_add(&((struct random_policy *)p)->resident, key);
}

static void random_drop(struct moe_policy *p, uint32_t key)
{
    moe_keyset_remove(&((struct random_policy *)p)->resident, key);
}

/* Starts at a random resident and skips those that may not leave. */
static int64_t random_victim(struct moe_policy *p, int64_t incoming, moe_evictable_fn may,
                             void *ctx)
{
    struct random_policy *r = (struct random_policy *)p;
    uint32_t n = r->resident.n;
    if (n == 0)
        return MOE_NO_KEY;
    r->state ^= r->state >> 12;
    r->state ^= r->state << 25;
    r->state ^= r->state >> 27;
    uint32_t start = (uint32_t)((r->state * 0x2545f4914f6cdd1du >> 32) * n >> 32);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = r->resident.keys[(start + i) % n];
        if (!may || may(ctx, key))
            return key;
    }
    return MOE_NO_KEY;
}

const struct moe_policy_ops moe_policy_random = {
    .name = "random",
    .describe = "evicts any resident expert, all equally likely",
    .open = open_random,
    .close = close_random,
    .use = random_use,
    .admit = random_admit,
    .drop = random_drop,
    .victim = random_victim,
};
