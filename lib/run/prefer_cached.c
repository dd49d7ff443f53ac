#include "run/prefer_cached.h"

#include <string.h>

#include "base/best.h"
#include "layer/router.h"

void moe_prefer_cached_carve(struct moe_prefer_cached *p, struct moe_arena *arena,
                             const struct moe_config *c)
{
    uint64_t stride = moe_router_stride(c);
    moe_preference_carve(&p->preference, arena, moe_config_moe_layers(c, c->n_layers), c->n_experts,
                         c->top_k);
    p->scores = moe_arena_take(arena, stride, sizeof *p->scores);
    p->probabilities = moe_arena_take(arena, stride, sizeof *p->probabilities);
    p->scratch = moe_arena_take(arena, 2 * (uint64_t)c->n_experts, sizeof *p->scratch);
    p->best = moe_arena_take(arena, c->n_experts, sizeof *p->best);
}

static bool is_among(const uint32_t *experts, uint32_t n, uint32_t expert)
{
    for (uint32_t i = 0; i < n; i++)
        if (experts[i] == expert)
            return true;
    return false;
}

/* The router's choice, then those that would count most; none that it never chooses. */
static void rank(struct moe_prefer_cached *p, const struct moe_config *c, const float *choice_bias,
                 const uint32_t *chosen)
{
    struct moe_preference *to = &p->preference;
    memcpy(p->probabilities, p->scores, c->n_experts * sizeof *p->scores);
    moe_router_probabilities(c, p->probabilities);
    moe_router_leave_groups(c, choice_bias, p->scores, p->probabilities, p->scratch);
    moe_best(p->probabilities, c->n_experts, to->reach, p->best);
    memcpy(to->experts, chosen, c->top_k * sizeof *chosen);
    to->n = c->top_k;
    for (uint32_t i = 0; i < to->reach && to->n < to->reach; i++)
        if (p->probabilities[p->best[i]] >= 0 && !is_among(chosen, c->top_k, p->best[i]))
            to->experts[to->n++] = p->best[i];
    for (uint32_t i = 0; i < to->n; i++)
        to->probabilities[i] = p->probabilities[to->experts[i]];
}

uint32_t moe_prefer_cached_choose(struct moe_prefer_cached *p, struct moe_session *s,
                                  uint32_t layer)
{
    const struct moe_config *c = &s->model->config;
    struct moe_layer_request *r = &s->request;
    rank(p, c, s->model->layers[layer].choice_bias, r->chosen);
    s->experts->ops->cached(s->experts, layer, p->preference.cached);
    uint32_t n_others =
        moe_preference_choose(&p->preference, moe_config_moe_layers(c, layer), r->chosen);
    if (n_others > 0) {
        moe_router_weigh(c, p->scores, p->probabilities, r->chosen, p->scratch, r->weights);
        moe_router_scale_experts(&s->model->layers[layer], r->chosen, c->top_k, r->weights);
    }
    return n_others;
}
