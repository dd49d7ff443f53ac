/*
 * Feed-forward on a GPU. The router's word goes to the host, which decides where the experts come
 * from; while it travels the device computes what does not depend on it. Where all experts lie on
 * the device and nobody else wants to know, the host is not asked.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "run/lockstep.h"
#include "run/stages_gpu.h"
#include "run/workspace.h"

/* Looking whether a router has spoken, and moving loads on, before the host goes to sleep over it:
 * the device's part of a layer takes about as long. */
#define SPIN_SECONDS 200e-6

/* ---- Inputs ------------------------------------------------------------------------------------
 */

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

/* ---- Dense and shared --------------------------------------------------------------------------
 */

/* Where a dense or shared feed-forward comes from and goes, with room in gate, up and `room`; in
 * and mid are filled and pointed at. */
static struct moe_gpu_experts dense_of(const struct moe_session *s, uint32_t layer, float *gate,
                                       float *up, const struct moe_gpu_act *room,
                                       struct moe_gpu_act *in, struct moe_gpu_act *mid)
{
    const struct moe_layer *l = &s->model->layers[layer];
    const struct gpu_work *g = s->gpu_work;
    *in = stages_gpu_ffn_inputs(s, layer);
    *mid = gpu_act_plain(room, l->down.cols);
    mid->x_stride = moe_round_up(l->gate.rows, MOE_PANEL_ROWS);
    gpu_act_want(mid, room, l->down.layout);
    return (struct moe_gpu_experts){
        .in = in,
        .gate = gate,
        .up = up,
        .ff_stride = mid->x_stride,
        .mid = mid,
        .out = g->sum,
        .out_stride = g->hidden_stride,
    };
}

static struct moe_gpu_gated weights_of(const struct moe_layer *l)
{
    return (struct moe_gpu_gated){.gate = l->gate, .up = l->up, .down = l->down};
}

static void run_dense(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    struct gpu_work *g = s->gpu_work;
    struct moe_gpu_act in, mid;
    const struct moe_gpu_experts e = dense_of(s, layer, g->gate, g->up, &g->mid, &in, &mid);
    const struct moe_gpu_job job = {.weights = weights_of(&s->model->layers[layer]), .n = n_rows};
    moe_gpu_experts_in(g->gpu, &e, &job, 1);
    moe_gpu_experts_out(g->gpu, &e, &job, 1);
}

int stages_gpu_dense(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    struct gpu_work *g = s->gpu_work;
    struct moe_gpu_norm add = {
        .h = g->h, .h_stride = g->hidden_stride, .cols = s->model->config.hidden};
    run_dense(s, layer, n_rows);
    stages_gpu_next_norm(s, layer, &add);
    add.add = g->sum;
    add.add_stride = g->hidden_stride;
    add.add_scale = s->model->config.residual_scale;
    moe_gpu_add_norm(g->gpu, &add, n_rows);
    return moe_gpu_status(g->gpu, err);
}

/* The shared expert; its gate went with the router. */
static void run_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    if (s->model->layers[layer].has_ffn)
        run_dense(s, layer, n_rows);
}

/* It went before the host waited for the router. */
int stages_gpu_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    return moe_gpu_status(s->gpu_work->gpu, err);
}

/* ---- Routers -----------------------------------------------------------------------------------
 */

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

/* What is done with the layer's scores: chosen and weights, on the device. */
static struct moe_gpu_router router_of(const struct moe_session *s, uint32_t layer)
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

/* The router's product and that of the shared expert's gate, which is a row more of the same kind
 * as a rule. Returns how many. */
static uint32_t list_routers(const struct moe_session *s, uint32_t layer,
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
    const struct moe_gpu_router router = router_of(s, layer);
    const struct moe_gpu_then then = {.router = &router, .n = n_rows};
    struct moe_gpu_product list[2];
    uint32_t n = list_routers(s, layer, &in, n_rows, list);
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
    if (g->n_looks > 0 && n_rows <= s->predict_place.host_rows) {
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
    run_beside(s, layer, n_rows);
    int status = await_router(s, err);
    for (uint64_t i = 0; status == MOE_OK && i < n; i++)
        if (isnan(w->weights[i]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "layer %u: the router's scores are not numbers (damaged weights?)",
                            layer);
    return status;
}

/* ---- Experts -----------------------------------------------------------------------------------
 */

void stages_gpu_grouped(struct moe_session *s, uint32_t n_rows)
{
    struct gpu_work *g = s->gpu_work;
    const struct moe_workspace *w = s->work;
    uint64_t n = (uint64_t)n_rows * s->model->config.top_k;
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->expert_rows, w->expert_rows, n * sizeof(uint32_t));
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->slot_of, w->slot_of, n * sizeof(uint32_t));
    if (s->ahead) /* it may have replaced the router's */
        moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->weights, w->weights, n * sizeof(float));
}

uint32_t stages_gpu_at_once(const struct moe_session *s, uint32_t n_rows)
{
    return MOE_MAX_TOP_K;
}

/* Where experts of this batch come from and go; `in` and `mid` are filled and pointed at. */
static struct moe_gpu_experts experts_of(struct moe_session *s, uint32_t layer,
                                         struct moe_gpu_act *in, struct moe_gpu_act *mid)
{
    const struct moe_config *c = &s->model->config;
    struct gpu_work *g = s->gpu_work;
    *in = stages_gpu_ffn_inputs(s, layer);
    *mid = gpu_act_plain(&g->mid, c->expert_ff);
    mid->x_stride = moe_round_up(c->expert_ff, MOE_PANEL_ROWS);
    gpu_act_want_experts(mid, &g->mid, s->model->pack, true);
    return (struct moe_gpu_experts){
        .in = in,
        .rows = g->expert_rows,
        .activation = {c->expert_act == MOE_ACT_SWIGLU_CLAMPED, c->act_alpha, c->act_limit},
        .gate = g->gate,
        .up = g->up,
        .ff_stride = mid->x_stride,
        .mid = mid,
        .out = g->expert_out,
        .out_stride = g->hidden_stride,
    };
}

int stages_gpu_experts(struct moe_session *s, uint32_t n_rows, const uint32_t *which,
                       const struct moe_expert_view *views, uint32_t n, struct moe_err *err)
{
    struct gpu_work *g = s->gpu_work;
    const struct moe_workspace *w = s->work;
    struct moe_gpu_job jobs[MOE_MAX_TOP_K];
    struct moe_gpu_act in, mid;
    const struct moe_gpu_experts e = experts_of(s, views[0].layer, &in, &mid);
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_expert_view *v = &views[i];
        jobs[i] = (struct moe_gpu_job){
            .weights = {v->gate, v->up, v->down, v->gate_bias, v->up_bias, v->down_bias},
            .first = w->first[which[i]],
            .n = w->n_rows[which[i]],
        };
    }
    moe_gpu_experts_in(g->gpu, &e, jobs, n);
    for (uint32_t i = 0; i < n; i++)
        moe_lockstep_expert(s, views[i].variant, jobs[i].n, false);
    for (uint32_t i = 0; i < n; i++) {
        int status = s->experts->ops->complete(s->experts, which[i], err);
        if (status != MOE_OK)
            return status;
    }
    moe_gpu_experts_out(g->gpu, &e, jobs, n);
    for (uint32_t i = 0; i < n; i++)
        moe_lockstep_expert(s, views[i].variant, jobs[i].n, true);
    return moe_gpu_status(g->gpu, err);
}

void stages_gpu_take(struct moe_session *s, uint32_t which)
{
    struct gpu_work *g = s->gpu_work;
    const struct moe_workspace *w = s->work;
    uint64_t at = w->first[which] * g->hidden_stride;
    uint64_t n_bytes = w->n_rows[which] * g->hidden_stride * sizeof(float);
    /* The host has room for outputs only where it computes some. */
    if (w->kinds[which] == MOE_ENTRY_SKIPPED)
        moe_gpu_zero(g->gpu, MOE_GPU_COMPUTE, g->expert_out + at, n_bytes);
    else
        moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->expert_out + at, w->expert_out + at, n_bytes);
}

static struct moe_gpu_combine sum_of(const struct moe_session *s, uint32_t layer,
                                     const uint32_t *slot_of)
{
    const struct moe_config *c = &s->model->config;
    const struct gpu_work *g = s->gpu_work;
    return (struct moe_gpu_combine){
        .outputs = g->expert_out,
        .out_stride = g->hidden_stride,
        .slot_of = slot_of,
        .weights = g->weights,
        .top_k = c->top_k,
        .cols = c->hidden,
        .shared = c->shared_ff ? g->sum : NULL,
        .shared_stride = g->hidden_stride,
        .shared_scale = s->model->layers[layer].shared_gate.data ? g->shared_scale : NULL,
        .h = g->h,
        .h_stride = g->hidden_stride,
        .residual_scale = c->residual_scale,
    };
}

int stages_gpu_combine(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    struct gpu_work *g = s->gpu_work;
    const struct moe_gpu_combine sum = sum_of(s, layer, g->slot_of);
    struct moe_gpu_norm norm;
    moe_gpu_combine(g->gpu, &sum, stages_gpu_next_norm(s, layer, &norm), n_rows);
    return moe_gpu_status(g->gpu, err);
}

/* ---- Without the host --------------------------------------------------------------------------
 */

bool stages_gpu_alone(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct gpu_work *g = s->gpu_work;
    uint32_t m = moe_config_moe_layers(c, layer);
    if (!g->table || s->ahead || n_rows > MOE_GPU_JOINED_ROWS || !g->like[m].gate.data)
        return false;
    struct moe_gpu_act in, mid, shared_in, shared_mid;
    struct moe_gpu_product routers[2];
    struct moe_gpu_experts routed = experts_of(s, layer, &in, &mid), shared;
    const struct moe_gpu_router router = router_of(s, layer);
    const struct moe_gpu_combine sum = sum_of(s, layer, NULL);
    const struct moe_gpu_gated weights = weights_of(l);
    struct moe_gpu_norm norm;
    routed.rows = NULL;
    if (l->has_ffn)
        shared = dense_of(s, layer, g->shared_gate, g->shared_up, &g->shared_mid, &shared_in,
                          &shared_mid);
    const struct moe_gpu_moe moe = {
        .routers = routers,
        .n_routers = list_routers(s, layer, &in, n_rows, routers),
        .router = &router,
        .shared = l->has_ffn ? &shared : NULL,
        .shared_weights = &weights,
        .routed = &routed,
        .table = g->table + (uint64_t)m * c->n_experts,
        .like = &g->like[m],
        .combine = &sum,
        .norm = stages_gpu_next_norm(s, layer, &norm),
    };
    moe_gpu_moe(g->gpu, &moe, n_rows);
    return true;
}
