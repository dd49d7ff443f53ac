/*
 * Feed-forward on the processor: dense layers, the shared expert, routed experts, and their sum.
 *
 * Every expert writes its own rows of expert_out; they are added per token in the router's order at
 * the end, so that the sum does not depend on when an expert arrived.
 */
#include <string.h>

#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "experts/expert_compute.h"
#include "kern/kern.h"
#include "kern/kern_math.h"
#include "layer/lockstep.h"
#include "layer/router.h"

/* ---- Products into a feed-forward, and out ---- */

/* Rows of gate and up side by side. `views`: the experts they belong to, row i to views[i * step];
 * NULL: not experts'. */
struct activation {
    const struct moe_config *config;
    const float *up_bias; /* of a dense layer, or NULL */
    float *gate, *up;
    uint64_t stride;
    uint32_t width;
    const struct moe_expert_view *views;
    uint32_t step;
    const float *scales; /* of the rows, or NULL */
};

static void activate_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct activation *a = ctx;
    for (int64_t i = begin; i < end; i++) {
        float *up = a->up + (uint64_t)i * a->stride;
        if (a->up_bias)
            moe_kern.add(a->up_bias, a->width, up);
        moe_activate_row(a->config, a->views ? &a->views[i * a->step] : NULL, a->width,
                         a->scales ? &a->scales[i] : NULL, a->gate + (uint64_t)i * a->stride, up);
    }
}

/* gate[n][stride] = activation of gate x and up x for the n rows of `in`; there may be no gate. */
static void gated_in(struct moe_session *s, struct moe_inputs *in, const struct moe_mat *gate,
                     const struct moe_mat *up, const float *up_bias,
                     const struct moe_expert_view *view, const float *scales)
{
    struct cpu_feed_forward *w = cpu_feed_forward(s);
    struct moe_mm mm[2] = {
        moe_inputs_mm(in, *up, w->up, w->stride),
    };
    if (gate->data)
        mm[1] = moe_inputs_mm(in, *gate, w->gate, w->stride);
    moe_matmul(mm, gate->data ? 2 : 1);
    struct activation a = {
        &s->model->config, up_bias, w->gate, w->up, w->stride, up->rows, view, 0, scales,
    };
    moe_par_for(in->n, 4, activate_rows, &a);
}

/* out[n][the states' stride] = down times the first n rows of gate. */
static void gated_out(struct moe_session *s, uint32_t n, const struct moe_mat *down, float *out)
{
    struct cpu_feed_forward *w = cpu_feed_forward(s);
    moe_inputs_set(&w->from_gate, w->gate, w->stride, NULL, n, down->cols);
    struct moe_mm mm = moe_inputs_mm(&w->from_gate, *down, out, s->states.stride);
    moe_matmul(&mm, 1);
}

struct normed {
    struct moe_session *s;
    const struct moe_layer *layer;
    const float *norm; /* NULL: as the router takes it in */
};

static void normed_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct normed *n = ctx;
    const struct moe_states *states = &n->s->states;
    const struct moe_config *c = &n->s->model->config;
    const struct cpu_work *w = n->s->device;
    for (int64_t i = begin; i < end; i++) {
        const float *h = states->h + (uint64_t)i * states->stride;
        float *out = w->sum + (uint64_t)i * states->stride;
        if (n->norm)
            moe_norm_row(c, h, n->norm, NULL, out);
        else
            moe_router_input_row(c, n->layer, h, out);
    }
}

struct moe_inputs *stages_cpu_normed(struct moe_session *s, const struct moe_layer *layer,
                                     const float *norm, uint32_t n_rows)
{
    struct moe_inputs *in = &cpu_feed_forward(s)->gathered;
    const struct cpu_work *w = s->device;
    struct normed n = {s, layer, norm};
    moe_par_for(n_rows, 16, normed_rows, &n);
    moe_inputs_set(in, w->sum, s->states.stride, NULL, n_rows, s->model->config.hidden);
    return in;
}

/* A dense layer's feed-forward, or the shared expert's, into `sum`; without the bias of down. */
static void run_dense(struct moe_session *s, const struct moe_layer *l)
{
    struct cpu_work *w = s->device;
    struct moe_inputs *in = &s->states.inputs;
    uint32_t n_rows = in->n;
    if (l->shared_norm)
        in = stages_cpu_normed(s, l, l->shared_norm, n_rows);
    gated_in(s, in, &l->gate, &l->up, l->up_bias, NULL, NULL);
    gated_out(s, n_rows, &l->down, w->sum);
}

struct add {
    struct moe_session *s;
    const struct moe_block_end *end;
};

static void add_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct add *a = ctx;
    const struct moe_config *c = &a->s->model->config;
    const struct cpu_work *w = a->s->device;
    uint64_t stride = a->s->states.stride;
    for (int64_t i = begin; i < end; i++) {
        float *sum = w->sum + (uint64_t)i * stride;
        if (a->end->bias)
            moe_kern.add(a->end->bias, c->hidden, sum);
        float *h = a->s->states.h + (uint64_t)i * stride;
        if (a->end->norm)
            moe_norm_row(c, sum, a->end->norm, a->end->norm_bias, sum);
        if (c->n_streams)
            stages_cpu_streams_out(a->s, (uint32_t)i, sum);
        else
            moe_kern.axpy(c->residual_scale, sum, c->hidden, h);
        if (a->end->scale)
            moe_kern.scale(*a->end->scale, c->hidden, h);
    }
}

void stages_cpu_add_to_stream(struct moe_session *s, const struct moe_block_end *end,
                              uint32_t n_rows)
{
    struct add a = {s, end};
    moe_par_for(n_rows, 16, add_rows, &a);
}

/* ---- Experts ---- */

/* One expert for all rows of a batch that want it. */
static int run_expert(struct moe_session *s, uint32_t which, const struct moe_expert_view *view,
                      struct moe_err *err)
{
    struct moe_inputs *gathered = &cpu_feed_forward(s)->gathered;
    const struct moe_layer_request *r = &s->request;
    const struct moe_states *states = &s->states;
    uint32_t first = r->first[which], n = r->n_rows[which];
    float *out = states->expert_out + first * states->stride;
    moe_inputs_set(gathered, states->xn, states->stride, r->rows + first, n,
                   s->model->config.hidden);
    gated_in(s, gathered, &view->gate, &view->up, NULL, view, r->scales ? r->scales + first : NULL);
    moe_lockstep_expert(s, view->variant, n, false);
    int status = s->experts->ops->complete(s->experts, which, err);
    if (status == MOE_OK) {
        gated_out(s, n, &view->down, out);
        moe_add_down_bias(view, n, out, states->stride);
        moe_lockstep_expert(s, view->variant, n, true);
    }
    return status;
}

/* Several experts for the one row of a decode step, side by side: three parallel loops in all
 * instead of three per expert. */
static int run_side_by_side(struct moe_session *s, const uint32_t *which,
                            const struct moe_expert_view *views, uint32_t n, struct moe_err *err)
{
    struct cpu_feed_forward *w = cpu_feed_forward(s);
    struct moe_inputs *in = &s->states.inputs;
    uint64_t stride = s->states.stride;
    struct moe_mm mm[2 * MOE_MAX_TOP_K];
    float scales[MOE_MAX_TOP_K];
    int n_mm = 0;
    for (uint32_t i = 0; i < n; i++) {
        scales[i] = s->request.scales ? s->request.scales[s->request.first[which[i]]] : 1;
        float *gate = w->gate + i * w->stride, *up = w->up + i * w->stride;
        mm[n_mm++] = moe_inputs_mm(in, views[i].up, up, w->stride);
        if (views[i].gate.data)
            mm[n_mm++] = moe_inputs_mm(in, views[i].gate, gate, w->stride);
    }
    moe_matmul(mm, n_mm);
    struct activation a = {
        &s->model->config,
        NULL,
        w->gate,
        w->up,
        w->stride,
        views[0].up.rows,
        views,
        1,
        s->request.scales ? scales : NULL,
    };
    moe_par_for(n, 4, activate_rows, &a);
    for (uint32_t i = 0; i < n; i++)
        moe_lockstep_expert(s, views[i].variant, 1, false);
    for (uint32_t i = 0; i < n; i++) {
        int status = s->experts->ops->complete(s->experts, which[i], err);
        if (status != MOE_OK)
            return status;
        float *out = s->states.expert_out + s->request.first[which[i]] * stride;
        moe_inputs_set(&w->single[i], w->gate + i * w->stride, w->stride, NULL, 1,
                       views[i].down.cols);
        mm[i] = moe_inputs_mm(&w->single[i], views[i].down, out, stride);
    }
    moe_matmul(mm, (int)n);
    for (uint32_t i = 0; i < n; i++) {
        moe_add_down_bias(&views[i], 1, mm[i].y, stride);
        moe_lockstep_expert(s, views[i].variant, 1, true);
    }
    return MOE_OK;
}

int stages_cpu_dense(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    const struct moe_layer *l = &s->model->layers[layer];
    const struct moe_block_end end = stages_cpu_ffn_end(&s->model->config, l);
    run_dense(s, l);
    stages_cpu_add_to_stream(s, &end, n_rows);
    return MOE_OK;
}

int stages_cpu_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    const struct moe_layer *l = &s->model->layers[layer];
    if (l->has_ffn)
        run_dense(s, l);
    if (l->shared_gate.data) {
        struct moe_mm mm = moe_inputs_mm(&s->states.inputs, l->shared_gate,
                                         cpu_feed_forward(s)->shared_scale, MOE_PANEL_ROWS);
        moe_matmul(&mm, 1);
    }
    if (l->bypass.data) {
        struct moe_mm mm = moe_inputs_mm(&s->states.inputs, l->bypass, cpu_feed_forward(s)->bypass,
                                         s->states.stride);
        moe_matmul(&mm, 1);
    }
    return MOE_OK;
}

/* A batch takes them one by one: each has enough work for all threads. */
uint32_t stages_cpu_at_once(const struct moe_session *s, uint32_t n_rows)
{
    return n_rows == 1 ? MOE_MAX_TOP_K : 1;
}

int stages_cpu_experts(struct moe_session *s, uint32_t n_rows, const uint32_t *which,
                       const struct moe_expert_view *views, uint32_t n, struct moe_err *err)
{
    return n_rows == 1 ? run_side_by_side(s, which, views, n, err)
                       : run_expert(s, which[0], &views[0], err);
}

struct combine {
    struct moe_session *s;
    const struct moe_layer *layer;
};

/* The stream receives the experts' outputs, added by rank, and the shared expert's, which is
 * already in sum, scaled by its gate; and tanh of the bypass. */
static void combine_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct combine *m = ctx;
    const struct moe_config *c = &m->s->model->config;
    const struct cpu_work *w = m->s->device;
    const struct moe_states *states = &m->s->states;
    const struct moe_layer_request *r = &m->s->request;
    const struct moe_block_end last = stages_cpu_ffn_end(c, m->layer);
    for (int64_t i = begin; i < end; i++) {
        float *sum = w->sum + (uint64_t)i * states->stride;
        float *h = states->h + (uint64_t)i * states->stride;
        float *acc = states->xn + (uint64_t)i * states->stride; /* no longer needed */
        uint64_t first = (uint64_t)i * c->top_k;
        memset(acc, 0, c->hidden * sizeof *acc);
        for (uint32_t k = 0; k < c->top_k; k++)
            moe_kern.axpy(c->weigh_inputs ? 1 : r->weights[first + k],
                          states->expert_out + r->slot_of[first + k] * states->stride, c->hidden,
                          acc);
        if (m->layer->experts_end_norm) {
            moe_norm_row(c, acc, m->layer->experts_end_norm, NULL, acc);
            moe_norm_row(c, sum, m->layer->shared_end_norm, NULL, sum);
        }
        if (c->shared_ff) {
            float scale = 1;
            if (m->layer->shared_gate.data)
                scale = 1 / (1 + moe_expf(-w->ff.shared_scale[i * MOE_PANEL_ROWS]));
            moe_kern.axpy(scale, sum, c->hidden, acc);
        }
        if (c->moe_scale != 1)
            moe_kern.scale(c->moe_scale, c->hidden, acc);
        if (m->layer->bypass.data) {
            float *bypass = w->ff.bypass + (uint64_t)i * states->stride;
            moe_kern.tanh(bypass, c->hidden, bypass);
            moe_kern.add(bypass, c->hidden, acc);
        }
        if (last.norm)
            moe_norm_row(c, acc, last.norm, last.norm_bias, acc);
        if (c->n_streams)
            stages_cpu_streams_out(m->s, (uint32_t)i, acc);
        else
            moe_kern.axpy(c->residual_scale, acc, c->hidden, h);
        if (last.scale)
            moe_kern.scale(*last.scale, c->hidden, h);
    }
}

int stages_cpu_combine(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    struct combine m = {s, &s->model->layers[layer]};
    moe_par_for(n_rows, 16, combine_rows, &m);
    return MOE_OK;
}
