/*
 * Scored policies (private to policies): every resident key has a score that follows from the
 * record of use; the lowest leaves, among equals the least recently used, then the lower key.
 * Scores change with every layer, so keys are not kept in order.
 *
 * A score depends on the key's own part, which changes only with uses, and on its layer's next
 * visit (base/loop.h); it never falls when the part grows. So each layer keeps a bound, at most the
 * part of any of its residents, and only layers whose bound scores low enough are searched for a
 * victim. Parts fall only in uses that the policy is told of, where a new sequence resets the
 * records, and, if the policy follows choices, when a layer's router chooses, or a looped layer's
 * next visit is another one.
 *
 * A policy is an entry of the table with `part` and `score`, and often nothing else.
 */
#ifndef MOE_CACHE_SCORED_H
#define MOE_CACHE_SCORED_H

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cache/policy.h"

struct moe_scored {
    struct moe_policy base;
    const struct moe_usage *usage;
    uint32_t *keys;     /* [n_layers][n_experts] a layer's residents first, unordered */
    uint32_t *place;    /* [n_keys] a resident's index in keys */
    uint32_t *n;        /* [n_layers] residents */
    double *bound;      /* [n_layers] */
    double *least;      /* [n_layers] scratch: what the bounds score */
    uint64_t sequences; /* the record's `sequences` for which the bounds hold */
    uint64_t *version;  /* [n_layers] the follower's version for which they hold; NULL: none */
};

/* The layer that comes next of those that have the experts of `of`, behind `layer`. */
static inline uint32_t moe_scored_next(const struct moe_scored *s, uint32_t of, uint32_t layer)
{
    return moe_loop_next(&s->usage->loop, of, layer + 1);
}

/* The number of layers that run for every token: S, those of the decoder. */
static inline uint32_t moe_scored_round(const struct moe_scored *s)
{
    return s->usage->n_layers - s->usage->n_encoder;
}

/* Whether a layer runs again for the current answer, after `from`: the decoder's layers do, and
 * those of an encoder that are still to come; an encoder runs once. */
static inline bool moe_scored_returns(const struct moe_scored *s, uint32_t from, uint32_t to)
{
    return to >= s->usage->n_encoder || to > from;
}

/* Layers from `from` on until `to` runs, among those that return: 1 for the next one, S for the
 * same one. From an encoder's layer on, layers of the decoder are counted from its first one. */
static inline uint32_t moe_scored_ahead(const struct moe_scored *s, uint32_t from, uint32_t to)
{
    uint32_t n_encoder = s->usage->n_encoder;
    if (to >= n_encoder && from < n_encoder)
        return to - n_encoder + 1;
    return to > from ? to - from : to + moe_scored_round(s) - from;
}

/* How long a layer waits, in tokens: above 0, and 1 for the current layer. */
static inline double moe_scored_wait(const struct moe_scored *s, uint32_t of, uint32_t layer)
{
    return (double)moe_scored_ahead(s, layer, of) / moe_scored_round(s);
}

/* `s` is zeroed; keys are those of the record of use. MOE_ERR_USAGE: there is no record, or none of
 * choices for a policy that follows them. Release also after a failure. */
int moe_scored_init(struct moe_scored *s, const struct moe_policy_ops *ops,
                    const struct moe_policy_params *params, struct moe_err *err);
void moe_scored_release(struct moe_scored *s);

/* For the table: a policy without state beyond this. */
int moe_scored_open(struct moe_policy **out, const struct moe_policy_ops *ops,
                    const struct moe_policy_params *params, struct moe_err *err);
void moe_scored_close(struct moe_policy *p);
void moe_scored_use(struct moe_policy *p, uint32_t key);
void moe_scored_admit(struct moe_policy *p, uint32_t key);
void moe_scored_drop(struct moe_policy *p, uint32_t key);
int64_t moe_scored_victim(struct moe_policy *p, int64_t incoming, moe_evictable_fn may, void *ctx);
/* The part of a policy that follows choices: its follower's score. */
double moe_scored_followed(const struct moe_scored *s, uint32_t key);

#endif
