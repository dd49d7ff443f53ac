/* Scored policies: bounds, and the search for a victim. */
#include "cache/scored.h"

void moe_scored_release(struct moe_scored *s)
{
    free(s->keys);
    free(s->place);
    free(s->n);
    free(s->bound);
    free(s->least);
    free(s->version);
}

/* Forgets the bounds, so that every layer is searched. */
static void forget_bounds(struct moe_scored *s)
{
    for (uint32_t layer = 0; layer < s->usage->n_layers; layer++)
        s->bound[layer] = -INFINITY;
    s->sequences = s->usage->sequences;
}

int moe_scored_init(struct moe_scored *s, const struct moe_policy_ops *ops,
                    const struct moe_policy_params *params, struct moe_err *err)
{
    const struct moe_usage *u = params->usage;
    s->base.ops = ops;
    s->usage = u;
    if (!u)
        return moe_fail(err, MOE_ERR_USAGE,
                        "cache policy %s needs a record of use, and there is none", ops->name);
    if (ops->follow && !u->follower)
        return moe_fail(err, MOE_ERR_USAGE,
                        "cache policy %s needs to be told of what routers choose", ops->name);
    s->keys = moe_alloc(params->n_keys, sizeof *s->keys, err);
    s->place = moe_alloc(params->n_keys, sizeof *s->place, err);
    s->n = moe_alloc(u->n_layers, sizeof *s->n, err);
    s->bound = moe_alloc(u->n_layers, sizeof *s->bound, err);
    s->least = moe_alloc(u->n_layers, sizeof *s->least, err);
    s->version = ops->follow ? moe_alloc(u->n_layers, sizeof *s->version, err) : NULL;
    if (!s->keys || !s->place || !s->n || !s->bound || !s->least || (ops->follow && !s->version))
        return MOE_ERR_MEMORY;
    forget_bounds(s);
    return MOE_OK;
}

void moe_scored_close(struct moe_policy *p)
{
    moe_scored_release((struct moe_scored *)p);
    free(p);
}

int moe_scored_open(struct moe_policy **out, const struct moe_policy_ops *ops,
                    const struct moe_policy_params *params, struct moe_err *err)
{
    struct moe_scored *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    int status = moe_scored_init(s, ops, params, err);
    if (status == MOE_OK)
        *out = &s->base;
    else
        moe_scored_close(&s->base);
    return status;
}

double moe_scored_followed(const struct moe_scored *s, uint32_t key)
{
    const struct moe_usage *u = s->usage;
    uint32_t layer = moe_scored_next(s, key / u->n_experts, u->layer);
    return (double)u->follower->scores[layer * u->n_experts + key % u->n_experts];
}

/* The scheduler keeps the record: only the bound changes. */
void moe_scored_use(struct moe_policy *p, uint32_t key)
{
    struct moe_scored *s = (struct moe_scored *)p;
    uint32_t layer = key / s->usage->n_experts;
    s->bound[layer] = fmin(s->bound[layer], p->ops->part(s, key));
}

void moe_scored_admit(struct moe_policy *p, uint32_t key)
{
    struct moe_scored *s = (struct moe_scored *)p;
    uint32_t layer = key / s->usage->n_experts;
    s->place[key] = layer * s->usage->n_experts + s->n[layer]++;
    s->keys[s->place[key]] = key;
    moe_scored_use(p, key);
}

/* The last of its layer takes the key's place. */
void moe_scored_drop(struct moe_policy *p, uint32_t key)
{
    struct moe_scored *s = (struct moe_scored *)p;
    uint32_t layer = key / s->usage->n_experts;
    uint32_t last = s->keys[layer * s->usage->n_experts + --s->n[layer]];
    s->keys[s->place[key]] = last;
    s->place[last] = s->place[key];
}

struct candidate {
    int64_t key;
    double score;
};

/* Searches one layer for a lower victim, and tightens its bound. A greater part scores no less:
 * only those up to the lowest that was good enough, or was not, are scored. */
static void search_layer(struct moe_scored *s, uint32_t of, uint32_t layer, moe_evictable_fn may,
                         void *ctx, struct candidate *best)
{
    const struct moe_policy_ops *ops = s->base.ops;
    const uint64_t *used = s->usage->last_ever;
    const uint32_t *keys = s->keys + of * s->usage->n_experts;
    const uint32_t next = moe_scored_next(s, of, layer),
                   before_it = (next - of) * s->usage->n_experts;
    const float *scores = s->version ? s->usage->follower->scores + before_it : NULL;
    bool returns = moe_scored_returns(s, layer, next); /* else all may score the same */
    double bound = INFINITY, lowest = INFINITY;
    for (uint32_t i = 0; i < s->n[of]; i++) {
        uint32_t key = keys[i];
        double part = scores ? (double)scores[key] : ops->part(s, key);
        bound = part < bound ? part : bound;
        if (part > lowest && returns)
            continue;
        double value = ops->score(s, part, next, layer);
        bool before = best->key < 0 || value < best->score ||
                      (value == best->score && (used[key] < used[best->key] ||
                                                (used[key] == used[best->key] && key < best->key)));
        bool takes = before && (!may || may(ctx, key));
        if (takes)
            *best = (struct candidate){key, value};
        if (takes || (!before && value > best->score))
            lowest = part;
    }
    s->bound[of] = bound;
}

/* Forgets the bounds of layers whose router has chosen since. */
static void forget_chosen(struct moe_scored *s)
{
    const uint64_t *now = s->usage->follower->version;
    for (uint32_t layer = 0; layer < s->usage->n_layers; layer++)
        if (s->version[layer] != now[layer] || moe_loop_has(&s->usage->loop, layer)) {
            s->version[layer] = now[layer];
            s->bound[layer] = -INFINITY;
        }
}

int64_t moe_scored_victim(struct moe_policy *p, int64_t incoming, moe_evictable_fn may, void *ctx)
{
    struct moe_scored *s = (struct moe_scored *)p;
    const struct moe_usage *u = s->usage;
    /* The current layer: the incoming key's, or the one whose router chose last. */
    uint32_t layer = incoming >= 0
                         ? moe_loop_next(&u->loop, (uint32_t)incoming / u->n_experts, u->layer)
                         : u->layer;
    uint32_t first = u->n_layers;
    struct candidate best = {MOE_NO_KEY, 0};
    if (s->version)
        forget_chosen(s);
    if (s->sequences != u->sequences)
        forget_bounds(s);
    for (uint32_t of = 0; of < u->n_layers; of++) {
        if (s->n[of])
            s->least[of] = p->ops->score(s, s->bound[of], moe_scored_next(s, of, layer), layer);
        if (s->n[of] && (first == u->n_layers || s->least[of] < s->least[first]))
            first = of;
    }
    /* The most promising layer first: most others then need no search. */
    if (first < u->n_layers)
        search_layer(s, first, layer, may, ctx, &best);
    for (uint32_t of = 0; of < u->n_layers; of++)
        if (s->n[of] && of != first && (best.key < 0 || !(s->least[of] > best.score)))
            search_layer(s, of, layer, may, ctx, &best);
    if (p->ops->passes && incoming >= 0 && best.key >= 0 &&
        p->ops->score(s, p->ops->part(s, (uint32_t)incoming), layer, layer) <= best.score)
        return MOE_NO_KEY;
    return best.key;
}
