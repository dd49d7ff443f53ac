/*
 * Scored policies (private to policies): every resident key has a score that follows from the
 * record of use; the lowest leaves, among equals the least recently used, then the lower key.
 * Scores change with every layer, so keys are not kept in order.
 *
 * A score depends on the key's own part, which changes only with uses, and on its layer; it never
 * falls when the part grows. So each layer keeps a bound, at most the part of any of its residents,
 * and only layers whose bound scores low enough are searched for a victim. Parts fall only in uses
 * that the policy is told of, and where a new sequence resets the records.
 */
#ifndef MOE_CACHE_SCORED_H
#define MOE_CACHE_SCORED_H

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cache/policy.h"

struct moe_scored;
/* A key's own part of its score. */
typedef double (*moe_scored_part_fn)(const struct moe_scored *s, uint32_t key);
/* The score of a part in layer `of` while `layer` is running. */
typedef double (*moe_scored_score_fn)(const struct moe_scored *s, double part, uint32_t of,
                                      uint32_t layer);

struct moe_scored {
    struct moe_policy base;
    const struct moe_usage *usage;
    moe_scored_part_fn part_of;
    uint32_t *keys;     /* [n_layers][n_experts] a layer's residents first, unordered */
    uint32_t *place;    /* [n_keys] a resident's index in keys */
    uint32_t *n;        /* [n_layers] residents */
    double *bound;      /* [n_layers] */
    uint64_t sequences; /* the record's `sequences` for which the bounds hold */
};

static inline void moe_scored_release(struct moe_scored *s)
{
    free(s->keys);
    free(s->place);
    free(s->n);
    free(s->bound);
}

/* Forgets the bounds, so that every layer is searched. */
static inline void moe_scored_unbind(struct moe_scored *s)
{
    for (uint32_t layer = 0; layer < s->usage->n_layers; layer++)
        s->bound[layer] = -INFINITY;
    s->sequences = s->usage->sequences;
}

/* `s` is zeroed; keys are those of the record of use. MOE_ERR_USAGE: there is no record. Release
 * also after a failure. */
static inline int moe_scored_init(struct moe_scored *s, const struct moe_policy_ops *ops,
                                  const struct moe_policy_params *params,
                                  moe_scored_part_fn part_of, struct moe_err *err)
{
    const struct moe_usage *u = params->usage;
    s->base.ops = ops;
    s->usage = u;
    s->part_of = part_of;
    if (!u)
        return moe_fail(err, MOE_ERR_USAGE,
                        "cache policy %s needs a record of use, and there is none", ops->name);
    s->keys = moe_alloc(params->n_keys, sizeof *s->keys, err);
    s->place = moe_alloc(params->n_keys, sizeof *s->place, err);
    s->n = moe_alloc(u->n_layers, sizeof *s->n, err);
    s->bound = moe_alloc(u->n_layers, sizeof *s->bound, err);
    if (!s->keys || !s->place || !s->n || !s->bound)
        return MOE_ERR_MEMORY;
    moe_scored_unbind(s);
    return MOE_OK;
}

/* Opens and closes a policy without state beyond this. */
static inline void moe_scored_close(struct moe_policy *p)
{
    moe_scored_release((struct moe_scored *)p);
    free(p);
}

static inline int moe_scored_open(struct moe_policy **out, const struct moe_policy_ops *ops,
                                  const struct moe_policy_params *params,
                                  moe_scored_part_fn part_of, struct moe_err *err)
{
    struct moe_scored *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    int status = moe_scored_init(s, ops, params, part_of, err);
    if (status == MOE_OK)
        *out = &s->base;
    else
        moe_scored_close(&s->base);
    return status;
}

static inline void moe_scored_bind(struct moe_scored *s, uint32_t layer, uint32_t key)
{
    s->bound[layer] = fmin(s->bound[layer], s->part_of(s, key));
}

/* Does nothing else: the scheduler keeps the record. */
static inline void moe_scored_use(struct moe_policy *p, uint32_t key)
{
    struct moe_scored *s = (struct moe_scored *)p;
    moe_scored_bind(s, key / s->usage->n_experts, key);
}

static inline void moe_scored_admit(struct moe_policy *p, uint32_t key)
{
    struct moe_scored *s = (struct moe_scored *)p;
    uint32_t layer = key / s->usage->n_experts;
    s->place[key] = layer * s->usage->n_experts + s->n[layer]++;
    s->keys[s->place[key]] = key;
    moe_scored_bind(s, layer, key);
}

/* Removes a key; the last of its layer takes its place. */
static inline void moe_scored_drop(struct moe_policy *p, uint32_t key)
{
    struct moe_scored *s = (struct moe_scored *)p;
    uint32_t layer = key / s->usage->n_experts;
    uint32_t last = s->keys[layer * s->usage->n_experts + --s->n[layer]];
    s->keys[s->place[key]] = last;
    s->place[last] = s->place[key];
}

/* The current layer: the incoming key's, or the one whose router chose last. */
static inline uint32_t moe_scored_layer(const struct moe_scored *s, int64_t incoming)
{
    return incoming >= 0 ? (uint32_t)incoming / s->usage->n_experts : s->usage->layer;
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

struct moe_scored_victim {
    int64_t key;
    double score;
};

/* Searches one layer for a lower victim, and tightens its bound. */
static inline void moe_scored_look(struct moe_scored *s, uint32_t of, uint32_t layer,
                                   moe_evictable_fn may, void *ctx, moe_scored_score_fn score,
                                   struct moe_scored_victim *best)
{
    const uint64_t *used = s->usage->last_ever;
    const uint32_t *keys = s->keys + of * s->usage->n_experts;
    double bound = INFINITY;
    for (uint32_t i = 0; i < s->n[of]; i++) {
        uint32_t key = keys[i];
        double part = s->part_of(s, key), value = score(s, part, of, layer);
        bool before = best->key < 0 || value < best->score ||
                      (value == best->score && (used[key] < used[best->key] ||
                                                (used[key] == used[best->key] && key < best->key)));
        if (before && (!may || may(ctx, key)))
            *best = (struct moe_scored_victim){key, value};
        bound = part < bound ? part : bound;
    }
    s->bound[of] = bound;
}

/* Finds the victim. */
static inline int64_t moe_scored_least(struct moe_scored *s, int64_t incoming, moe_evictable_fn may,
                                       void *ctx, moe_scored_score_fn score)
{
    uint32_t layer = moe_scored_layer(s, incoming), n_layers = s->usage->n_layers, first = n_layers;
    struct moe_scored_victim best = {MOE_NO_KEY, 0};
    double least = 0;
    if (s->sequences != s->usage->sequences)
        moe_scored_unbind(s);
    for (uint32_t of = 0; of < n_layers; of++) {
        double value = s->n[of] ? score(s, s->bound[of], of, layer) : INFINITY;
        if (s->n[of] && (first == n_layers || value < least)) {
            first = of;
            least = value;
        }
    }
    /* The most promising layer first: most others then need no search. */
    if (first < n_layers)
        moe_scored_look(s, first, layer, may, ctx, score, &best);
    for (uint32_t of = 0; of < n_layers; of++)
        if (s->n[of] && of != first &&
            (best.key < 0 || !(score(s, s->bound[of], of, layer) > best.score)))
            moe_scored_look(s, of, layer, may, ctx, score, &best);
    return best.key;
}

#endif
