/*
 * Feed-forward on a GPU: dense layers, the shared expert, and experts from wherever their provider
 * has them. Where all of them lie on the device and nothing on the host depends on the choice, the
 * host is not asked.
 */
#include "gpu/stages_gpu.h"
#include "layer/lockstep.h"

/* ---- Dense and shared ---- */

static struct moe_gpu_activation activation_of(const struct moe_config *c, enum moe_act_kind kind)
{
    return (struct moe_gpu_activation){kind, c->act_alpha, c->act_limit};
}

/* Inputs and outputs of a dense or shared feed-forward, with room in gate, up and `room`; the
 * result points at in and mid, which are filled. */
static struct moe_gpu_experts dense_of(const struct moe_session *s, uint32_t layer, float *gate,
                                       float *up, const struct moe_gpu_act *room,
                                       struct moe_gpu_act *in, struct moe_gpu_act *mid)
{
    const struct moe_layer *l = &s->model->layers[layer];
    const struct gpu_work *g = s->device;
    *in = stages_gpu_ffn_inputs(s, layer);
    *mid = gpu_act_plain(room, l->down.cols);
    mid->x_stride = moe_round_up(l->up.rows, MOE_PANEL_ROWS);
    gpu_act_want(mid, room, l->down.layout);
    return (struct moe_gpu_experts){
        .in = in,
        .activation = activation_of(&s->model->config, s->model->config.dense_act),
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
    struct gpu_work *g = s->device;
    struct moe_gpu_act in, mid;
    const struct moe_gpu_experts e =
        dense_of(s, layer, g->ff.gate, g->ff.up, &g->ff.mid, &in, &mid);
    const struct moe_gpu_job job = {.weights = weights_of(&s->model->layers[layer]), .n = n_rows};
    moe_gpu_experts_in(g->gpu, &e, &job, 1);
    moe_gpu_experts_out(g->gpu, &e, &job, 1);
}

int stages_gpu_dense(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    struct gpu_work *g = s->device;
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

void stages_gpu_run_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    if (s->model->layers[layer].has_ffn)
        run_dense(s, layer, n_rows);
}

/* It was asked for before the host waited for the router. */
int stages_gpu_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    return moe_gpu_status(gpu_of(s), err);
}

/* ---- Experts ---- */

void stages_gpu_grouped(struct moe_session *s, uint32_t n_rows)
{
    struct gpu_work *g = s->device;
    const struct moe_layer_request *r = &s->request;
    uint64_t n = (uint64_t)n_rows * s->model->config.top_k;
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->ff.rows, r->rows, n * sizeof(uint32_t));
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->ff.slot_of, r->slot_of, n * sizeof(uint32_t));
    if (s->strategy) /* it may have replaced the router's choice */
        moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->ff.weights, r->weights, n * sizeof(float));
}

uint32_t stages_gpu_at_once(const struct moe_session *s, uint32_t n_rows)
{
    return MOE_MAX_TOP_K;
}

/* Inputs and outputs of this batch's experts; the result points at in and mid, which are filled. */
static struct moe_gpu_experts experts_of(struct moe_session *s, uint32_t layer,
                                         struct moe_gpu_act *in, struct moe_gpu_act *mid)
{
    const struct moe_config *c = &s->model->config;
    struct gpu_work *g = s->device;
    *in = stages_gpu_ffn_inputs(s, layer);
    *mid = gpu_act_plain(&g->ff.mid, c->expert_ff);
    mid->x_stride = moe_round_up(c->expert_ff, MOE_PANEL_ROWS);
    gpu_act_want_experts(mid, &g->ff.mid, s->model->pack, true);
    return (struct moe_gpu_experts){
        .in = in,
        .rows = g->ff.rows,
        .activation = activation_of(c, c->expert_act),
        .gate = g->ff.gate,
        .up = g->ff.up,
        .ff_stride = mid->x_stride,
        .mid = mid,
        .out = g->ff.expert_out,
        .out_stride = g->hidden_stride,
    };
}

int stages_gpu_experts(struct moe_session *s, uint32_t n_rows, const uint32_t *which,
                       const struct moe_expert_view *views, uint32_t n, struct moe_err *err)
{
    struct gpu_work *g = s->device;
    const struct moe_layer_request *r = &s->request;
    struct moe_gpu_job jobs[MOE_MAX_TOP_K];
    struct moe_gpu_act in, mid;
    const struct moe_gpu_experts e = experts_of(s, views[0].layer, &in, &mid);
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_expert_view *v = &views[i];
        jobs[i] = (struct moe_gpu_job){
            .weights = {v->gate, v->up, v->down, v->gate_bias, v->up_bias, v->down_bias},
            .first = r->first[which[i]],
            .n = r->n_rows[which[i]],
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
    struct gpu_work *g = s->device;
    const struct moe_layer_request *r = &s->request;
    uint64_t at = r->first[which] * g->hidden_stride;
    uint64_t n_bytes = r->n_rows[which] * g->hidden_stride * sizeof(float);
    /* The host has room for outputs only where it computes some. */
    if (r->kinds[which] == MOE_ENTRY_SKIPPED)
        moe_gpu_zero(g->gpu, MOE_GPU_COMPUTE, g->ff.expert_out + at, n_bytes);
    else
        moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->ff.expert_out + at, s->states.expert_out + at,
                       n_bytes);
}

static struct moe_gpu_combine sum_of(const struct moe_session *s, uint32_t layer,
                                     const uint32_t *slot_of)
{
    const struct moe_config *c = &s->model->config;
    const struct gpu_work *g = s->device;
    return (struct moe_gpu_combine){
        .outputs = g->ff.expert_out,
        .out_stride = g->hidden_stride,
        .slot_of = slot_of,
        .weights = g->ff.weights,
        .top_k = c->top_k,
        .cols = c->hidden,
        .shared = c->shared_ff ? g->sum : NULL,
        .shared_stride = g->hidden_stride,
        .shared_scale = s->model->layers[layer].shared_gate.data ? g->ff.shared_scale : NULL,
        .h = g->h,
        .h_stride = g->hidden_stride,
        .residual_scale = c->residual_scale,
    };
}

int stages_gpu_combine(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    struct gpu_work *g = s->device;
    const struct moe_gpu_combine sum = sum_of(s, layer, g->ff.slot_of);
    struct moe_gpu_norm norm;
    moe_gpu_combine(g->gpu, &sum, stages_gpu_next_norm(s, layer, &norm), n_rows);
    return moe_gpu_status(g->gpu, err);
}

/* ---- Without the host ---- */

bool stages_gpu_alone(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct gpu_work *g = s->device;
    uint32_t m = moe_config_moe_layers(c, layer);
    if (!g->residents.table || s->strategy || n_rows > MOE_GPU_JOINED_ROWS ||
        !g->residents.like[m].up.data)
        return false;
    struct moe_gpu_act in, mid, shared_in, shared_mid;
    struct moe_gpu_product routers[2];
    struct moe_gpu_experts routed = experts_of(s, layer, &in, &mid), shared;
    const struct moe_gpu_router router = stages_gpu_router(s, layer);
    const struct moe_gpu_combine sum = sum_of(s, layer, NULL);
    const struct moe_gpu_gated weights = weights_of(l);
    struct moe_gpu_norm norm;
    routed.rows = NULL;
    if (l->has_ffn)
        shared = dense_of(s, layer, g->ff.shared_gate, g->ff.shared_up, &g->ff.shared_mid,
                          &shared_in, &shared_mid);
    const struct moe_gpu_moe moe = {
        .routers = routers,
        .n_routers = stages_gpu_list_routers(s, layer, &in, n_rows, routers),
        .router = &router,
        .shared = l->has_ffn ? &shared : NULL,
        .shared_weights = &weights,
        .routed = &routed,
        .table = g->residents.table + (uint64_t)m * c->n_experts,
        .like = &g->residents.like[m],
        .combine = &sum,
        .norm = stages_gpu_next_norm(s, layer, &norm),
    };
    moe_gpu_moe(g->gpu, &moe, n_rows);
    return true;
}
