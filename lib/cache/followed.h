/*
 * Followed policies (private to policies): evict the expert with the lowest score of their
 * follower, less the time until its layer runs again. Built on scored.h; a layer's bounds expire
 * when its router chooses.
 */
#ifndef MOE_CACHE_FOLLOWED_H
#define MOE_CACHE_FOLLOWED_H

#include "cache/scored.h"

struct moe_followed {
    struct moe_scored scored;
    uint64_t *version; /* [n_layers] the follower's version for which the bounds hold */
};

static inline double moe_followed_part(const struct moe_scored *s, uint32_t key)
{
    return (double)s->usage->follower->scores[key];
}

static inline void moe_followed_close(struct moe_policy *p)
{
    moe_scored_release(&((struct moe_followed *)p)->scored);
    free(((struct moe_followed *)p)->version);
    free(p);
}

static inline int moe_followed_open(struct moe_policy **out, const struct moe_policy_ops *ops,
                                    const struct moe_policy_params *params, struct moe_err *err)
{
    struct moe_followed *f = moe_alloc(1, sizeof *f, err);
    if (!f)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    if (!params->usage || !params->usage->follower)
        status = moe_fail(err, MOE_ERR_USAGE,
                          "cache policy %s needs to be told of what routers choose", ops->name);
    if (status == MOE_OK)
        status = moe_scored_init(&f->scored, ops, params, moe_followed_part, err);
    if (status == MOE_OK) {
        f->version = moe_alloc(params->usage->n_layers, sizeof *f->version, err);
        status = f->version ? MOE_OK : MOE_ERR_MEMORY;
    }
    if (status == MOE_OK)
        *out = &f->scored.base;
    else
        moe_followed_close(&f->scored.base);
    return status;
}

/* How long a layer waits, in tokens: above 0, and 1 for the current layer. */
static inline double moe_followed_wait(const struct moe_scored *s, uint32_t of, uint32_t layer)
{
    return (double)moe_scored_ahead(s, layer, of) / moe_scored_round(s);
}

static inline int64_t moe_followed_least(struct moe_policy *p, int64_t incoming,
                                         moe_evictable_fn may, void *ctx, moe_scored_score_fn score)
{
    struct moe_followed *f = (struct moe_followed *)p;
    const struct moe_usage *u = f->scored.usage;
    for (uint32_t layer = 0; layer < u->n_layers; layer++)
        if (f->version[layer] != u->follower->version[layer]) {
            f->version[layer] = u->follower->version[layer];
            f->scored.bound[layer] = -INFINITY;
        }
    return moe_scored_least(&f->scored, incoming, may, ctx, score);
}

#endif
