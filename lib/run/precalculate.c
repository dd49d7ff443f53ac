#include "run/precalculate.h"

#include <string.h>

#include "base/best.h"
#include "layer/router.h"

void moe_precalculation_carve(struct moe_precalculation *p, struct moe_arena *arena,
                              const struct moe_config *c)
{
    for (int i = 0; i < 2; i++)
        p->layers[i].out = moe_arena_take(arena, c->top_k * moe_padded(c->hidden), sizeof(float));
    p->precalculated = moe_arena_take(arena, c->n_experts, 1);
    p->present = moe_arena_take(arena, c->n_experts, 1);
    p->order = moe_arena_take(arena, c->n_experts, sizeof *p->order);
    p->scratch = moe_arena_take(arena, 3 * (uint64_t)c->n_experts, sizeof *p->scratch);
}

void moe_precalculation_reset(struct moe_precalculation *p)
{
    p->layers[0].choice.n = p->layers[1].choice.n = 0;
}

static struct moe_precalculated_layer *layer_of(struct moe_precalculation *p, uint32_t layer)
{
    return &p->layers[moe_config_moe_layers(&p->session->model->config, layer) % 2];
}

void moe_precalculate_choice(const struct moe_config *c, const float *choice_bias,
                             const float *scores, const float *probabilities,
                             const uint8_t *on_device, uint32_t replaces,
                             struct moe_predicted *choice, float *weights, float *scratch,
                             uint32_t *barred)
{
    float *p = scratch, *rest = scratch + c->n_experts;
    memcpy(p, scores ? scores : probabilities, c->n_experts * sizeof *p);
    if (scores) {
        moe_route_scores(c, choice_bias, p, rest, choice->experts, weights);
    } else {
        moe_best(p, c->n_experts, c->top_k, choice->experts);
        moe_router_weigh(c, NULL, p, choice->experts, rest, weights);
    }
    moe_router_leave_groups(c, choice_bias, scores, p, rest);
    moe_predicted_choice(p, on_device, c->n_experts, c->top_k, replaces, choice, barred);
    if (choice->substituted > 0)
        moe_router_weigh(c, scores, p, choice->experts, rest, weights);
}

uint32_t moe_precalculation_choose(struct moe_precalculation *p, uint32_t layer, uint32_t n_rows,
                                   const uint8_t **precalculated)
{
    struct moe_session *s = p->session;
    const struct moe_config *c = &s->model->config;
    struct moe_precalculated_layer *l = layer_of(p, layer);
    const struct moe_predicted *choice = &l->choice;
    *precalculated = NULL;
    bool has_choice = choice->n > 0 && l->layer == layer && n_rows == 1;
    if (has_choice)
        s->experts->ops->present(s->experts, layer, p->present);
    if (!has_choice || !moe_predicted_pays(choice, s->request.chosen, c->top_k, p->present)) {
        l->choice.n = 0;
        return 0;
    }
    uint32_t n_other = moe_predicted_others(choice, s->request.chosen, c->top_k);
    memset(p->precalculated, 0, c->n_experts);
    for (uint32_t k = 0; k < choice->n; k++)
        p->precalculated[choice->experts[k]] = choice->on_host[k];
    memcpy(s->request.chosen, choice->experts, choice->n * sizeof *s->request.chosen);
    memcpy(s->request.weights, l->weights, choice->n * sizeof *l->weights);
    *precalculated = p->precalculated;
    return n_other;
}

int moe_precalculation_begin(struct moe_precalculation *p, uint32_t next,
                             const struct moe_prediction *prediction, const float *choice_bias,
                             const float *scores, struct moe_err *err)
{
    struct moe_session *s = p->session;
    const struct moe_experts_ops *experts = s->experts->ops;
    const struct moe_config *c = &s->model->config;
    struct moe_precalculated_layer *l = layer_of(p, next);
    l->layer = next;
    experts->present(s->experts, next, p->present);
    moe_precalculate_choice(c, choice_bias, scores, prediction->scores, p->present, p->replaces,
                            &l->choice, l->weights, p->scratch, p->order);
    moe_router_scale_experts(&s->model->layers[next], l->choice.experts, l->choice.n, l->weights);
    int status = MOE_OK;
    for (uint32_t k = 0; k < l->choice.n && status == MOE_OK; k++) {
        if (!l->choice.on_host[k])
            continue;
        const struct moe_host_rows row = {.scales = c->weigh_inputs ? &l->weights[k] : NULL,
                                          .n = 1,
                                          .out = l->out + k * s->states.stride};
        struct moe_expert_view view;
        experts->host_view(s->experts, UINT32_MAX, next, l->choice.experts[k], &view);
        status = moe_host_jobs_begin(p->jobs, &view, &row, &l->tickets[k], err);
    }
    return status;
}

double moe_precalculation_collect(struct moe_precalculation *p, uint32_t layer, uint32_t expert,
                                  float *out)
{
    const struct moe_precalculated_layer *l = layer_of(p, layer);
    uint64_t stride = p->session->states.stride;
    uint32_t k = 0;
    while (l->choice.experts[k] != expert)
        k++;
    double waited = moe_host_jobs_wait(p->jobs, &l->tickets[k]);
    memcpy(out, l->out + k * stride, stride * sizeof *out);
    return waited;
}
