/*
 * The processor's stage of a layer's router: its scores, and what layer/router.h makes of them.
 */
#include <string.h>

#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "layer/router.h"
#include "model/routes.h"

struct route {
    const struct moe_session *s;
    const struct moe_layer *layer;
    const struct moe_row *rows;
};

/* As moe_route_scores, of experts that a table gives the token (static_weighed). */
static void weigh_known(const struct moe_config *c, const float *routes, uint32_t token, float *p,
                        float *scratch, uint32_t *chosen, float *weights)
{
    moe_routes_choose(c, routes, token, chosen, weights);
    for (uint32_t k = 1; k < c->top_k; k++) { /* by falling score */
        uint32_t e = chosen[k], at = k;
        for (; at > 0 &&
               (p[e] > p[chosen[at - 1]] || (p[e] == p[chosen[at - 1]] && e < chosen[at - 1]));
             at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = e;
    }
    memcpy(scratch, p, c->n_experts * sizeof *p);
    moe_router_probabilities(c, p);
    moe_router_weigh(c, scratch, p, chosen, scratch + c->n_experts, weights);
}

static void route_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct route *r = ctx;
    const struct moe_session *s = r->s;
    const struct moe_config *c = &s->model->config;
    const struct cpu_feed_forward *w = cpu_feed_forward(s);
    float *scratch = w->router_scratch + (uint64_t)thread * 2 * w->router_stride;
    for (int64_t i = begin; i < end; i++) {
        float *p = w->probabilities + (uint64_t)i * w->router_stride;
        uint64_t at = (uint64_t)i * c->top_k;
        uint32_t *chosen = s->request.chosen + at;
        float *weights = s->request.weights + at;
        if (r->layer->routes)
            weigh_known(c, r->layer->routes, r->rows[i].token, p, scratch, chosen, weights);
        else
            moe_route_scores(c, r->layer->choice_bias, p, scratch, chosen, weights);
    }
}

/* Of what the table chose, in place of the softmax of scores. */
static void share_probabilities(const struct moe_session *s, uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct cpu_feed_forward *w = cpu_feed_forward(s);
    for (uint32_t i = 0; i < n_rows; i++) {
        float *p = w->probabilities + (uint64_t)i * w->router_stride;
        memset(p, 0, c->n_experts * sizeof *p);
        for (uint32_t k = 0; k < c->top_k; k++)
            p[s->request.chosen[(uint64_t)i * c->top_k + k]] = 1 / (float)c->top_k;
    }
}

/* Scores, choice and weights, into the request. */
static int choose(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct cpu_feed_forward *w = cpu_feed_forward(s);
    const struct moe_layer_request *r = &s->request;
    if (l->routes && !l->router.data) {
        moe_route_tokens(s->model, layer, rows, n_rows, &s->request);
        share_probabilities(s, n_rows);
    } else {
        bool own = l->router_norm || c->router_early;
        struct moe_inputs *in = own ? stages_cpu_normed(s, l, NULL, n_rows) : &s->states.inputs;
        const struct moe_router_use use = {l, moe_inputs_for(in, l->router.layout),
                                           w->probabilities};
        moe_router_scores(&use, 1, w->router_stride);
        if (s->router_row && n_rows == 1)
            memcpy(s->router_row, w->probabilities, c->n_experts * sizeof *s->router_row);
        struct route route = {s, l, rows};
        moe_par_for(n_rows, 16, route_rows, &route);
        moe_router_scale_experts(l, r->chosen, (uint64_t)n_rows * c->top_k, r->weights);
    }
    if (s->follow)
        moe_replay_chosen(s->follow, moe_config_moe_layers(c, layer), s->request.chosen,
                          s->request.weights);
    int status = moe_layer_request_check(r, c, layer, n_rows, err);
    moe_layer_request_limit(&s->request, c, layer, s->prompts, rows, n_rows);
    return status;
}

static void show(struct moe_session *s, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                 const uint32_t *chosen, const float *weights)
{
    const struct cpu_feed_forward *w = cpu_feed_forward(s);
    if (s->observer.routed)
        s->observer.routed(s->observer.ctx, layer, rows, n_rows, s->states.xn, s->states.stride,
                           w->probabilities, w->router_stride, chosen, weights);
}

int stages_cpu_choose(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows, struct moe_err *err)
{
    const struct cpu_feed_forward *w = cpu_feed_forward(s);
    uint64_t n = (uint64_t)n_rows * s->model->config.top_k;
    int status = choose(s, layer, rows, n_rows, err);
    /* The request may become another one, by a strategy, before observers see it. */
    memcpy(w->seen_chosen, s->request.chosen, n * sizeof *w->seen_chosen);
    memcpy(w->seen_weights, s->request.weights, n * sizeof *w->seen_weights);
    return status;
}

int moe_route(struct moe_session *s, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
              struct moe_err *err)
{
    const struct cpu_feed_forward *w = cpu_feed_forward(s);
    if (s->model->config.router_early) { /* it has chosen */
        show(s, layer, rows, n_rows, w->seen_chosen, w->seen_weights);
        return MOE_OK;
    }
    int status = choose(s, layer, rows, n_rows, err);
    if (status == MOE_OK)
        show(s, layer, rows, n_rows, s->request.chosen, s->request.weights);
    return status;
}
