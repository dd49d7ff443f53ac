/*
 * The forward pass: embedding, layers, head. Stages of a layer in order: norm, queries, keys and
 * values (projections.c), attention (attention.c), its output, norm, feed-forward (feed_forward.c).
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "run/ahead.h"
#include "run/lockstep.h"
#include "run/workspace.h"

struct stage {
    struct moe_session *s;
    const struct moe_row *rows;
    const float *weights, *bias; /* of a norm */
    uint32_t first;              /* first row of h */
    float *logits;
};

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

void moe_add_to_stream(struct moe_session *s, uint32_t n_rows)
{
    struct stage st = {.s = s};
    moe_par_for(n_rows, 16, add_rows, &st);
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

/* Lets loads move on: they end while we compute. */
static int poll(struct moe_session *s, struct moe_err *err)
{
    const struct moe_experts_ops *ops = s->experts->ops;
    return ops->poll ? ops->poll(s->experts, err) : MOE_OK;
}

static int run_layer(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_phase_stats *phase, struct moe_err *err)
{
    const struct moe_layer *l = &s->model->layers[layer];
    double started = moe_seconds();

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
    moe_add_to_stream(s, n_rows);

    norm(s, l->ffn_norm, l->ffn_norm_bias, 0, n_rows);
    if (s->observer.attended)
        s->observer.attended(s->observer.ctx, layer);
    double half = moe_seconds();
    status = moe_feed_forward(s, layer, rows, n_rows, phase, err);
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

/* Tells those who keep records of sequences and tokens. */
static void begin_pass(struct moe_session *s, enum moe_phase phase, const struct moe_row *rows,
                       uint32_t n_rows)
{
    const struct moe_experts_ops *ops = s->experts->ops;
    bool first = rows[0].position == 0;
    if (first && ops->begin_sequence)
        ops->begin_sequence(s->experts);
    if (ops->begin_tokens)
        ops->begin_tokens(s->experts, n_rows, phase == MOE_PREFILL, s->phase);
    if (s->ahead)
        moe_ahead_begin(s->ahead, phase == MOE_DECODE, first);
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
    begin_pass(s, phase, rows, n_rows);
    double started = moe_experts_clock(s->experts);
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
    if (layer_end == s->model->config.n_layers)
        moe_lockstep_head(s);
    double seconds = moe_experts_clock(s->experts) - started;
    stats->seconds += seconds;
    if (s->experts->ops->end_tokens)
        s->experts->ops->end_tokens(s->experts, seconds);
    if (status == MOE_OK)
        stats->tokens += n_rows;
    return status;
}

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

void moe_logits(struct moe_session *s, uint32_t first, uint32_t n, float *logits)
{
    const struct moe_model *m = s->model;
    struct moe_workspace *w = s->work;
    double started = moe_experts_clock(s->experts);
    norm(s, m->final_norm, m->final_norm_bias, first, n);
    moe_inputs_set(&w->from_hidden, w->xn, w->hidden_stride, NULL, n, m->config.hidden);
    struct moe_mm mm = moe_inputs_mm(&w->from_hidden, m->head, logits, w->logits_stride);
    moe_matmul(&mm, 1);
    if (m->head_bias || m->config.logit_scale != 1) {
        struct stage st = {.s = s, .logits = logits};
        moe_par_for(n, 1, finish_logits, &st);
    }
    if (s->phase)
        s->phase->seconds += moe_experts_clock(s->experts) - started;
}
