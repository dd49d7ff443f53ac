/*
 * Scored policies, private to them: every resident key has a score that follows from the record of
 * use, and the lowest leaves; among equals the least recently used, then the lower key. Scores
 * change with every layer, so that nothing is kept in order: a victim is a scan over the residents.
 */
#ifndef MOE_SCHED_SCORED_H
#define MOE_SCHED_SCORED_H

#include "sched/keyset.h"
#include "sched/policy.h"

struct moe_scored {
    struct moe_policy base;
    const struct moe_usage *usage;
    struct moe_keyset resident;
};

static inline void moe_scored_release(struct moe_scored *s)
{
    moe_keyset_release(&s->resident);
}

/* `s` is zeroed. MOE_ERR_USAGE: there is no record of use to judge by. Released also after a
 * failure. */
static inline int moe_scored_init(struct moe_scored *s, const struct moe_policy_ops *ops,
                                  const struct moe_policy_params *params, struct moe_err *err)
{
    s->base.ops = ops;
    s->usage = params->usage;
    if (!s->usage)
        return moe_fail(err, MOE_ERR_USAGE,
                        "cache policy %s judges by a record of use, and there is none", ops->name);
    return moe_keyset_init(&s->resident, params->n_keys, err);
}

/* The record is the scheduler's: nothing to do. */
static inline void moe_scored_use(struct moe_policy *p, uint32_t key)
{
    (void)p;
    (void)key;
}

static inline void moe_scored_admit(struct moe_policy *p, uint32_t key)
{
    moe_keyset_add(&((struct moe_scored *)p)->resident, key);
}

static inline void moe_scored_drop(struct moe_policy *p, uint32_t key)
{
    moe_keyset_remove(&((struct moe_scored *)p)->resident, key);
}

/* The layer at work: the incoming key's, or the one whose router spoke last. */
static inline uint32_t moe_scored_layer(const struct moe_scored *s, int64_t incoming)
{
    return incoming >= 0 ? (uint32_t)incoming / s->usage->n_experts : s->usage->layer;
}

/* Layers from `from` on until `to` runs, round and round: 1 for the next one, S, all layers, for
 * the same one. */
static inline uint32_t moe_scored_ahead(const struct moe_scored *s, uint32_t from, uint32_t to)
{
    return to > from ? to - from : to + s->usage->n_layers - from;
}

/* The victim, where score(s, key, layer) is the score of a key while `layer` is at work. */
static inline int64_t
moe_scored_least(const struct moe_scored *s, int64_t incoming, moe_evictable_fn may, void *ctx,
                 double (*score)(const struct moe_scored *s, uint32_t key, uint32_t layer))
{
    uint32_t layer = moe_scored_layer(s, incoming);
    const uint64_t *used = s->usage->last_ever;
    int64_t best = MOE_NO_KEY;
    double least = 0;
    for (uint32_t i = 0; i < s->resident.n; i++) {
        uint32_t key = s->resident.keys[i];
        double value = score(s, key, layer);
        bool before = best < 0 || value < least ||
                      (value == least && (used[key] < used[best] ||
                                          (used[key] == used[best] && key < (uint32_t)best)));
        if (before && (!may || may(ctx, key))) {
            best = key;
            least = value;
        }
    }
    return best;
}

#endif
