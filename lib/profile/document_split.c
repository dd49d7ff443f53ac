/* Documents of a trace split into those that are counted and those that judge. */
#include "profile/document_split.h"

#include <stdlib.h>

#include "base/mem.h"

bool moe_split_shared(const struct moe_origins *a, const struct moe_origins *b)
{
    for (uint32_t i = 0; i < a->n; i++) {
        const struct moe_origin *x = &a->items[i], *y = moe_origins_find(b, x);
        if (!y)
            continue;
        if (x->shards.n != y->shards.n) /* parts of other sizes meet somewhere */
            return true;
        for (uint32_t k = 0; k < x->shards.n_held; k++)
            if (moe_shards_hold(&y->shards, x->shards.held[k]))
                return true;
    }
    return false;
}

struct moe_excerpt moe_split_judged(struct moe_excerpt e)
{
    e.every = 2 * (e.every ? e.every : 1);
    e.max_tokens = (e.max_tokens + 1) / 2;
    return e;
}

struct moe_excerpt moe_split_counted(struct moe_excerpt e)
{
    uint32_t every = e.every ? e.every : 1;
    e = moe_split_judged(e);
    e.first += every;
    return e;
}

/* ---- Counting ---- */

struct counting {
    struct moe_statistics *statistics;
    struct moe_trace *trace;
    uint32_t *chosen; /* [n_layers][max_tokens][top_k] */
    float *weights;   /* likewise */
    uint32_t *ids;    /* [max_tokens] */
    uint32_t n;       /* tokens of the document */
    uint64_t sequence;
};

static uint64_t at(const struct counting *c, uint32_t layer)
{
    const struct moe_statistics_shape *s = &c->statistics->shape;
    return (uint64_t)layer * s->max_tokens * s->top_k;
}

static int end_document(struct counting *c, struct moe_err *err)
{
    struct moe_statistics *s = c->statistics;
    if (c->n == 0)
        return MOE_OK;
    int status;
    MOE_STEP(moe_statistics_begin(s, c->sequence, err));
    for (uint32_t layer = 0; layer < s->shape.n_layers; layer++) {
        const struct moe_layer_observation seen = {
            .chosen = c->chosen + at(c, layer),
            .weights = c->weights + at(c, layer),
            .ids = moe_trace_shape(c->trace)->has_ids ? c->ids : NULL,
            .by_token = moe_trace_shape(c->trace)->is_static[layer],
        };
        moe_statistics_observe(s, layer, 0, c->n, &seen);
    }
out:
    c->n = 0;
    return status == MOE_OK ? moe_statistics_end(s, err) : status;
}

static int add_token(struct counting *c, uint32_t id, struct moe_err *err)
{
    const struct moe_statistics_shape *s = &c->statistics->shape;
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        const struct moe_trace_step step = moe_trace_step(c->trace, layer);
        uint64_t to = at(c, layer) + (uint64_t)c->n * s->top_k;
        if (!step.experts)
            return moe_fail(err, MOE_ERR_USAGE,
                            "the trace has no choices of layer %u for some tokens", layer);
        for (uint32_t i = 0; i < s->top_k; i++) {
            c->chosen[to + i] = step.experts[i];
            c->weights[to + i] = step.weights[i];
        }
    }
    c->ids[c->n++] = id;
    return MOE_OK;
}

static int count_all(struct counting *c, struct moe_excerpt excerpt, struct moe_err *err)
{
    const struct moe_trace_token *token = NULL;
    uint64_t taken = 0;
    int status = MOE_OK;
    moe_excerpt_begin(c->trace, excerpt, 0);
    while ((status = moe_excerpt_next(c->trace, excerpt, &taken, &token, err)) == MOE_OK && token) {
        if (token->index == 0)
            status = end_document(c, err);
        c->sequence = token->sequence;
        if (status == MOE_OK && c->n < c->statistics->shape.max_tokens)
            status = add_token(c, token->id, err);
        if (status != MOE_OK)
            break;
    }
    return status == MOE_OK ? end_document(c, err) : status;
}

int moe_split_count(struct moe_statistics **out, struct moe_trace *trace,
                    struct moe_excerpt excerpt, const struct moe_statistics_shape *shape,
                    struct moe_err *err)
{
    const struct moe_trace_shape *t = moe_trace_shape(trace);
    struct counting c = {.trace = trace};
    *out = NULL;
    if (t->n_layers != shape->n_layers || t->n_experts != shape->n_experts ||
        t->top_k != shape->top_k || t->n_encoder || shape->n_encoder)
        return moe_fail(err, MOE_ERR_USAGE, "the trace and the statistics are of other models");
    uint64_t n = (uint64_t)shape->n_layers * shape->max_tokens * shape->top_k;
    int status;
    MOE_STEP(moe_statistics_new(&c.statistics, shape, err));
    c.chosen = moe_alloc(n, sizeof *c.chosen, err);
    c.weights = moe_alloc(n, sizeof *c.weights, err);
    c.ids = moe_alloc(shape->max_tokens, sizeof *c.ids, err);
    if (!c.chosen || !c.weights || !c.ids)
        MOE_STEP(MOE_ERR_MEMORY);
    MOE_STEP(count_all(&c, excerpt, err));
out:
    free(c.chosen);
    free(c.weights);
    free(c.ids);
    if (status == MOE_OK)
        *out = c.statistics;
    else
        moe_statistics_free(c.statistics);
    return status;
}
