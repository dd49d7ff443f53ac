/*
 * The stages on the processor. Of a layer, in order: norm, queries, keys and values
 * (projections.c), attention (attention.c), its output, norm; the feed-forward's stages are in
 * stages_cpu_experts.c.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "run/stages_cpu.h"
#include "run/workspace.h"

struct stage {
    struct moe_session *s;
    const struct moe_row *rows;
    const float *weights, *bias; /* of a norm */
    uint32_t first;              /* first row of h */
    float *logits;
};

/* ---- Into and out of a pass ---- */

static void embed_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    struct moe_workspace *w = st->s->work;
    const struct moe_model *m = st->s->model;
    for (int64_t i = begin; i < end; i++) {
        float *h = w->h + (uint64_t)i * w->hidden_stride;
        moe_layout_load_row(&m->embed, st->rows[i].token, h);
        if (m->config.embed_scale != 1)
            moe_kern.scale(m->config.embed_scale, m->config.hidden, h);
    }
}

static int enter(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                 const float *hidden_in, struct moe_err *err)
{
    struct moe_workspace *w = s->work;
    uint32_t hidden = s->model->config.hidden;
    if (hidden_in) {
        for (uint32_t i = 0; i < n_rows; i++)
            memcpy(w->h + i * w->hidden_stride, hidden_in + (uint64_t)i * hidden,
                   hidden * sizeof(float));
    } else {
        struct stage st = {.s = s, .rows = rows};
        moe_par_for(n_rows, 8, embed_rows, &st);
    }
    return MOE_OK;
}

static void reached(struct moe_session *s, uint32_t layer, const char *part)
{
    double now = moe_seconds();
    char name[48];
    if (part) {
        snprintf(name, sizeof name, "layer %u %s", layer, part);
        moe_timeline_span(s->timeline, MOE_TRACK_COMPUTE, name, s->work->reached_at, now);
    }
    s->work->reached_at = now;
}

static int leave(struct moe_session *s, uint32_t n_rows, float *hidden_out, struct moe_err *err)
{
    const struct moe_workspace *w = s->work;
    uint32_t hidden = s->model->config.hidden;
    for (uint32_t i = 0; hidden_out && i < n_rows; i++)
        memcpy(hidden_out + (uint64_t)i * hidden, w->h + i * w->hidden_stride,
               hidden * sizeof(float));
    return MOE_OK;
}

/* ---- A layer up to its feed-forward ---- */

void moe_norm_row(const struct moe_config *c, const float *h, const float *weights,
                  const float *bias, float *out)
{
    if (c->norm_kind == MOE_NORM_LAYER)
        moe_kern.layer_norm(h, weights, bias, c->hidden, c->norm_eps, out);
    else
        moe_kern.rms_norm(h, weights, c->hidden, c->norm_eps, out);
}

static void norm_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_config *c = &st->s->model->config;
    struct moe_workspace *w = st->s->work;
    for (int64_t i = begin; i < end; i++) {
        const float *h = w->h + (st->first + (uint64_t)i) * w->hidden_stride;
        float *out = w->xn + (uint64_t)i * w->hidden_stride;
        moe_norm_row(c, h, st->weights, st->bias, out);
    }
}

static void norm(struct moe_session *s, const float *weights, const float *bias, uint32_t first,
                 uint32_t n)
{
    struct stage st = {.s = s, .weights = weights, .bias = bias, .first = first};
    moe_par_for(n, 16, norm_rows, &st);
}

static void add_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    struct moe_workspace *w = st->s->work;
    const struct moe_config *c = &st->s->model->config;
    for (int64_t i = begin; i < end; i++)
        moe_kern.axpy(c->residual_scale, w->sum + (uint64_t)i * w->hidden_stride, c->hidden,
                      w->h + (uint64_t)i * w->hidden_stride);
}

void stages_cpu_add_to_stream(struct moe_session *s, uint32_t n_rows)
{
    struct stage st = {.s = s};
    moe_par_for(n_rows, 16, add_rows, &st);
}

/* Lets loads move on: they end while we compute. */
static int poll(struct moe_session *s, struct moe_err *err)
{
    const struct moe_experts_ops *ops = s->experts->ops;
    return ops->poll ? ops->poll(s->experts, err) : MOE_OK;
}

static int attend(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, struct moe_err *err)
{
    const struct moe_layer *l = &s->model->layers[layer];
    norm(s, l->attn_norm, l->attn_norm_bias, 0, n_rows);
    if (s->observer.attending)
        s->observer.attending(s->observer.ctx, layer, n_rows, s->work->xn, s->work->hidden_stride);
    int status = poll(s, err);
    moe_project_in(s, layer, rows, n_rows);
    if (status == MOE_OK)
        status = poll(s, err);
    moe_kv_store(s, layer, rows, n_rows);
    moe_attention(s, layer, rows, n_rows);
    moe_project_out(s, layer, n_rows);
    if (status != MOE_OK)
        return status;
    stages_cpu_add_to_stream(s, n_rows);
    norm(s, l->ffn_norm, l->ffn_norm_bias, 0, n_rows);
    moe_inputs_set(&s->work->from_hidden, s->work->xn, s->work->hidden_stride, NULL, n_rows,
                   s->model->config.hidden);
    return MOE_OK;
}

/* ---- The head ---- */

static void finish_logits(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_model *m = st->s->model;
    for (int64_t i = begin; i < end; i++) {
        float *row = st->logits + (uint64_t)i * st->s->work->logits_stride;
        if (m->head_bias)
            moe_kern.add(m->head_bias, m->config.vocab, row);
        if (m->config.logit_scale != 1)
            moe_kern.scale(m->config.logit_scale, m->config.vocab, row);
    }
}

static int logits_of(struct moe_session *s, uint32_t first, uint32_t n, float *logits,
                     struct moe_err *err)
{
    const struct moe_model *m = s->model;
    struct moe_workspace *w = s->work;
    norm(s, m->final_norm, m->final_norm_bias, first, n);
    moe_inputs_set(&w->from_hidden, w->xn, w->hidden_stride, NULL, n, m->config.hidden);
    struct moe_mm mm = moe_inputs_mm(&w->from_hidden, m->head, logits, w->logits_stride);
    moe_matmul(&mm, 1);
    if (m->head_bias || m->config.logit_scale != 1) {
        struct stage st = {.s = s, .logits = logits};
        moe_par_for(n, 1, finish_logits, &st);
    }
    return MOE_OK;
}

static void close_cpu(struct moe_session *s)
{
    (void)s;
}

const struct moe_stages_ops moe_stages_cpu = {
    .name = "cpu",
    .enter = enter,
    .attend = attend,
    .dense = stages_cpu_dense,
    .route = moe_route,
    .beside = stages_cpu_beside,
    .at_once = stages_cpu_at_once,
    .experts = stages_cpu_experts,
    .combine = stages_cpu_combine,
    .reached = reached,
    .leave = leave,
    .logits = logits_of,
    .close = close_cpu,
};
