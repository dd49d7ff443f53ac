/*
 * The forward pass: embedding, layers, head. Stages in order: norm, q/k/v, rope, attention, output
 * projection, norm, feed-forward (feed_forward.c).
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "run/workspace.h"

struct stage {
    struct moe_session *s;
    const struct moe_row *rows;
    const float *vector; /* a norm's weights */
    const struct moe_layer *layer;
    uint32_t first; /* first row of h */
};

static void embed_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    struct moe_workspace *w = st->s->work;
    for (int64_t i = begin; i < end; i++)
        moe_layout_load_row(&st->s->model->embed, st->rows[i].token,
                            w->h + (uint64_t)i * w->hidden_stride);
}

static void norm_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_config *c = &st->s->model->config;
    struct moe_workspace *w = st->s->work;
    for (int64_t i = begin; i < end; i++)
        moe_kern.rms_norm(w->h + (st->first + (uint64_t)i) * w->hidden_stride, st->vector,
                          c->hidden, c->norm_eps, w->xn + (uint64_t)i * w->hidden_stride);
}

static void norm(struct moe_session *s, const float *weights, uint32_t first, uint32_t n)
{
    struct stage st = {.s = s, .vector = weights, .first = first};
    moe_par_for(n, 16, norm_rows, &st);
}

/* Biases, then rope on queries and keys. */
static void rotate_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_model *m = st->s->model;
    const struct moe_config *c = &m->config;
    struct moe_workspace *w = st->s->work;
    for (int64_t i = begin; i < end; i++) {
        float *q = w->q + (uint64_t)i * w->q_stride, *k = w->k + (uint64_t)i * w->kv_stride;
        const float *cs = m->rope + (uint64_t)st->rows[i].position * c->head_dim;
        if (st->layer->q_bias) {
            moe_kern.add(st->layer->q_bias, c->n_heads * c->head_dim, q);
            moe_kern.add(st->layer->k_bias, c->n_kv_heads * c->head_dim, k);
            moe_kern.add(st->layer->v_bias, c->n_kv_heads * c->head_dim,
                         w->v + (uint64_t)i * w->kv_stride);
        }
        for (uint32_t head = 0; head < c->n_heads; head++)
            moe_kern.rope(q + head * c->head_dim, cs, c->head_dim);
        for (uint32_t head = 0; head < c->n_kv_heads; head++)
            moe_kern.rope(k + head * c->head_dim, cs, c->head_dim);
    }
}

static void add_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    struct moe_workspace *w = st->s->work;
    for (int64_t i = begin; i < end; i++)
        moe_kern.add(w->sum + (uint64_t)i * w->hidden_stride, st->s->model->config.hidden,
                     w->h + (uint64_t)i * w->hidden_stride);
}

static void record(struct moe_session *s, uint32_t layer, const char *part, double begin,
                   double end)
{
    char name[48];
    if (!s->timeline)
        return;
    snprintf(name, sizeof name, "layer %u %s", layer, part);
    moe_timeline_span(s->timeline, MOE_TRACK_COMPUTE, name, begin, end);
}

static int run_layer(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_phase_stats *phase, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct moe_workspace *w = s->work;
    struct stage st = {.s = s, .rows = rows, .layer = l};
    double started = moe_seconds();

    norm(s, l->attn_norm, 0, n_rows);
    moe_inputs_set(&w->from_hidden, w->xn, w->hidden_stride, NULL, n_rows, c->hidden);
    struct moe_mm qkv[3] = {
        moe_inputs_mm(&w->from_hidden, l->q, w->q, w->q_stride),
        moe_inputs_mm(&w->from_hidden, l->k, w->k, w->kv_stride),
        moe_inputs_mm(&w->from_hidden, l->v, w->v, w->kv_stride),
    };
    moe_matmul(qkv, 3);
    moe_par_for(n_rows, 8, rotate_rows, &st);
    moe_kv_store(s, layer, rows, n_rows);
    moe_attention(s, layer, rows, n_rows);
    moe_inputs_set(&w->from_attn, w->attn, w->q_stride, NULL, n_rows, c->n_heads * c->head_dim);
    struct moe_mm o = moe_inputs_mm(&w->from_attn, l->o, w->sum, w->hidden_stride);
    moe_matmul(&o, 1);
    moe_par_for(n_rows, 16, add_rows, &st);

    norm(s, l->ffn_norm, 0, n_rows);
    double half = moe_seconds();
    int status = moe_feed_forward(s, layer, rows, n_rows, phase, err);
    record(s, layer, "attention", started, half);
    record(s, layer, "feed-forward", half, moe_seconds());
    return status;
}

static int check_rows(const struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                      struct moe_err *err)
{
    if (n_rows == 0 || n_rows > s->batch)
        return moe_fail(err, MOE_ERR_USAGE, "a pass takes 1 to %u rows, not %u", s->batch, n_rows);
    if (moe_par_threads() > s->n_threads) /* scratch memory is per thread */
        return moe_fail(err, MOE_ERR_USAGE, "the session was opened for %d threads, not %d",
                        s->n_threads, moe_par_threads());
    for (uint32_t i = 0; i < n_rows; i++)
        if (rows[i].sequence >= s->n_sequences || rows[i].position >= s->context ||
            rows[i].token >= s->model->config.vocab)
            return moe_fail(err, MOE_ERR_USAGE,
                            "row %u: sequence %u, position %u or token %u is out of range", i,
                            rows[i].sequence, rows[i].position, rows[i].token);
    return MOE_OK;
}

int moe_forward(struct moe_session *s, enum moe_phase phase, const struct moe_row *rows,
                uint32_t n_rows, uint32_t layer_begin, uint32_t layer_end, const float *hidden_in,
                float *hidden_out, struct moe_err *err)
{
    int status = check_rows(s, rows, n_rows, err);
    if (status != MOE_OK)
        return status;
    struct moe_workspace *w = s->work;
    struct moe_phase_stats *stats = phase == MOE_PREFILL ? &s->stats.prefill : &s->stats.decode;
    s->phase = stats;
    double started = moe_seconds();
    uint32_t hidden = s->model->config.hidden;
    if (hidden_in) {
        for (uint32_t i = 0; i < n_rows; i++)
            memcpy(w->h + i * w->hidden_stride, hidden_in + (uint64_t)i * hidden,
                   hidden * sizeof(float));
    } else {
        struct stage st = {.s = s, .rows = rows};
        moe_par_for(n_rows, 8, embed_rows, &st);
    }
    for (uint32_t layer = layer_begin; layer < layer_end && status == MOE_OK; layer++)
        status = run_layer(s, layer, rows, n_rows, stats, err);
    for (uint32_t i = 0; hidden_out && i < n_rows; i++)
        memcpy(hidden_out + (uint64_t)i * hidden, w->h + i * w->hidden_stride,
               hidden * sizeof(float));
    stats->seconds += moe_seconds() - started;
    if (status == MOE_OK)
        stats->tokens += n_rows;
    return status;
}

void moe_logits(struct moe_session *s, uint32_t first, uint32_t n, float *logits)
{
    struct moe_workspace *w = s->work;
    double started = moe_seconds();
    norm(s, s->model->final_norm, first, n);
    moe_inputs_set(&w->from_hidden, w->xn, w->hidden_stride, NULL, n, s->model->config.hidden);
    struct moe_mm mm = moe_inputs_mm(&w->from_hidden, s->model->head, logits, w->logits_stride);
    moe_matmul(&mm, 1);
    if (s->phase)
        s->phase->seconds += moe_seconds() - started;
}
