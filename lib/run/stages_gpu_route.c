/*
 * Routers on a GPU. The host has to know which experts a layer wants, and waits for that alone:
 * what the router and the routers of layers ahead say travels in one go, and while it travels the
 * device computes what does not depend on it.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "run/stages_gpu.h"
#include "run/workspace.h"

/* Looking whether a router has spoken, and moving loads on, before the host goes to sleep over it:
 * the device's part of a layer takes about as long. */
#define SPIN_SECONDS 200e-6

/* ---- Inputs ---- */

/* MoE layers behind `layer`, at most as many as are looked at. */
static uint32_t layers_ahead(const struct moe_session *s, uint32_t layer, uint32_t *ahead)
{
    const struct moe_config *c = &s->model->config;
    uint32_t n = 0;
    for (uint32_t l = layer + 1; l < c->n_layers && n < s->look_depth; l++)
        if (c->layer_is_moe[l])
            ahead[n++] = l;
    return n;
}

struct moe_gpu_act stages_gpu_ffn_inputs(const struct moe_session *s, uint32_t layer)
{
    const struct moe_model *m = s->model;
    const struct moe_layer *l = &m->layers[layer];
    const struct moe_gpu_act *room = &s->gpu_work->hidden;
    struct moe_gpu_act act = gpu_act_plain(room, m->config.hidden);
    uint32_t ahead[MOE_MAX_DEPTH], n = s->look_residual ? 0 : layers_ahead(s, layer, ahead);
    gpu_act_want(&act, room, l->gate.layout);
    gpu_act_want(&act, room, l->up.layout);
    if (l->is_moe) {
        gpu_act_want(&act, room, l->router.layout);
        gpu_act_want(&act, room, l->shared_gate.layout);
        gpu_act_want_experts(&act, room, m->pack, false);
    }
    for (uint32_t i = 0; l->is_moe && i < n; i++)
        gpu_act_want(&act, room, m->layers[ahead[i]].router.layout);
    return act;
}

/* ---- Routers ---- */

static struct moe_gpu_product router_product(const struct moe_session *s, uint32_t layer,
                                             const struct moe_gpu_act *in, uint32_t n_rows,
                                             float *scores)
{
    return (struct moe_gpu_product){
        .w = s->model->layers[layer].router,
        .act = in,
        .n = n_rows,
        .y = scores,
        .y_stride = s->gpu_work->router_stride,
    };
}

struct moe_gpu_router stages_gpu_router(const struct moe_session *s, uint32_t layer)
{
    const struct moe_config *c = &s->model->config;
    const struct gpu_work *g = s->gpu_work;
    return (struct moe_gpu_router){
        .kind = (enum moe_gpu_router_kind)c->router_kind,
        .n_experts = c->n_experts,
        .top_k = c->top_k,
        .n_groups = c->n_groups,
        .top_groups = c->top_groups,
        .norm_topk = c->norm_topk,
        .routed_scale = c->routed_scale,
        .jitter = c->router_jitter,
        .bias = s->model->layers[layer].router_bias,
        .scores = g->scores,
        .stride = g->router_stride,
        .chosen = g->chosen,
        .weights = g->weights,
    };
}

uint32_t stages_gpu_list_routers(const struct moe_session *s, uint32_t layer,
                                 const struct moe_gpu_act *in, uint32_t n_rows,
                                 struct moe_gpu_product list[2])
{
    const struct gpu_work *g = s->gpu_work;
    list[0] = router_product(s, layer, in, n_rows, g->scores);
    list[1] = list[0];
    list[1].w = s->model->layers[layer].shared_gate;
    list[1].y = g->shared_scale;
    list[1].y_stride = MOE_PANEL_ROWS;
    return list[1].w.data ? 2 : 1;
}

static void speak(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct moe_gpu_act in = stages_gpu_ffn_inputs(s, layer);
    const struct moe_gpu_router router = stages_gpu_router(s, layer);
    const struct moe_gpu_then then = {.router = &router, .n = n_rows};
    struct moe_gpu_product list[2];
    uint32_t n = stages_gpu_list_routers(s, layer, &in, n_rows, list);
    moe_gpu_matmul_then(s->gpu_work->gpu, list, n, &then);
}

/* Where the host asks the routers ahead, it wants the gate's inputs, which are there already where
 * it computes experts, or the stream. */
static void bring_inputs(struct moe_session *s, uint32_t n_rows)
{
    const struct gpu_work *g = s->gpu_work;
    struct moe_workspace *w = s->work;
    uint64_t n_bytes = n_rows * g->hidden_stride * sizeof(float);
    if (s->look_residual)
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, w->h, g->h, n_bytes);
    else if (!s->needs_rows)
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, w->xn, g->hidden.x, n_bytes);
    if (!s->look_residual)
        moe_inputs_set(&w->from_hidden, w->xn, w->hidden_stride, NULL, n_rows,
                       s->model->config.hidden);
}

/* The routers ahead, on the same inputs or on the stream under their own norms: their word travels
 * with this layer's. */
void stages_gpu_look_ahead(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct moe_model *m = s->model;
    const struct moe_config *c = &m->config;
    struct gpu_work *g = s->gpu_work;
    uint32_t ahead[MOE_MAX_DEPTH];
    uint64_t each = (uint64_t)s->batch * g->router_stride;
    g->n_looks = layers_ahead(s, layer, ahead);
    if (g->n_looks > 0 && n_rows <= s->predict_device.host_rows) {
        bring_inputs(s, n_rows);
        return;
    }
    for (uint32_t d = 0; d < g->n_looks; d++) {
        const struct moe_layer *l = &m->layers[ahead[d]];
        struct moe_gpu_act in = stages_gpu_ffn_inputs(s, layer);
        if (s->look_residual) {
            in = gpu_act_plain(&g->look, c->hidden);
            gpu_act_want(&in, &g->look, l->router.layout);
            const struct moe_gpu_norm norm = {
                .h = g->h,
                .h_stride = g->hidden_stride,
                .cols = c->hidden,
                .layer = c->norm_kind == MOE_NORM_LAYER,
                .weights = l->ffn_norm,
                .bias = l->ffn_norm_bias,
                .eps = c->norm_eps,
                .out = in,
            };
            moe_gpu_add_norm(g->gpu, &norm, n_rows);
        }
        const struct moe_gpu_product product =
            router_product(s, ahead[d], &in, n_rows, g->looks + d * each);
        moe_gpu_matmul(g->gpu, &product, 1);
        moe_gpu_softmax(g->gpu, g->looks + d * each, g->router_stride, n_rows, c->n_experts,
                        l->router_bias);
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, g->host_looks + d * each, g->looks + d * each,
                         n_rows * g->router_stride * sizeof(float));
    }
}

void stages_gpu_look(struct moe_session *s, uint32_t n, uint32_t n_rows, float *probabilities,
                     uint64_t layer_stride)
{
    const struct gpu_work *g = s->gpu_work;
    assert(n <= g->n_looks);
    for (uint32_t d = 0; d < n; d++)
        memcpy(probabilities + d * layer_stride,
               g->host_looks + (uint64_t)d * s->batch * g->router_stride,
               n_rows * g->router_stride * sizeof(float));
}

/* Waits until the router's word is here; loads move on meanwhile. */
static int await_router(struct moe_session *s, struct moe_err *err)
{
    const struct moe_experts_ops *ops = s->experts->ops;
    struct gpu_work *g = s->gpu_work;
    double started = moe_seconds();
    int status = MOE_OK;
    while (status == MOE_OK && ops->poll && !moe_gpu_mark_passed(g->routed) &&
           moe_seconds() - started < SPIN_SECONDS)
        status = ops->poll(s->experts, err);
    return status == MOE_OK ? moe_gpu_mark_wait(g->routed, err) : status;
}

int stages_gpu_route(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    struct gpu_work *g = s->gpu_work;
    struct moe_workspace *w = s->work;
    uint64_t n = (uint64_t)n_rows * c->top_k;
    speak(s, layer, n_rows);
    moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, w->chosen, g->chosen, n * sizeof *w->chosen);
    moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, w->weights, g->weights, n * sizeof *w->weights);
    stages_gpu_look_ahead(s, layer, n_rows);
    if (s->needs_rows) /* experts are computed on the host, too */
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, w->xn, g->hidden.x,
                         n_rows * g->hidden_stride * sizeof(float));
    moe_gpu_mark_set(g->routed, MOE_GPU_COMPUTE);
    stages_gpu_run_beside(s, layer, n_rows);
    int status = await_router(s, err);
    for (uint64_t i = 0; status == MOE_OK && i < n; i++)
        if (isnan(w->weights[i]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "layer %u: the router's scores are not numbers (damaged weights?)",
                            layer);
    return status;
}
