/*
 * The stages on the processor: into and out of a pass, a layer up to its feed-forward, the head. A
 * layer begins with a norm, queries, keys and values (cpu_projections.c), attention
 * (cpu_attention.c), its output (and in a decoder with an encoder the same once more, to the
 * source) and another norm. Routing (router.c) and the feed-forward follow.
 */
#include "infer/cpu_stages.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/par.h"
#include "infer/expert_compute.h"
#include "infer/pass_ops.h"
#include "infer/router.h"
#include "infer/state.h"
#include "kern/kern.h"
#include "kern/kern_math.h"
#include "model/routes.h"
#include "ranks/ranks.h"

struct stage {
    struct moe_session *s;
    const struct moe_row *rows;
    const float *weights, *bias; /* of a norm */
    uint32_t first;              /* first row of h */
    const struct moe_mat *positions;
    float *logits;
    float *to; /* of embeddings; NULL: the stream */
};

static void multiply(const float *by, uint32_t n, float *x)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] *= by[i];
}

/* ---- Into and out of a pass ---- */

/* What the layer before has left of rows beside the stream; NULL: nothing. */
static float *left_beside(const struct moe_session *s)
{
    const struct cpu_work *w = s->device;
    return w->late ? w->late : s->states.routed;
}

static void embed_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_states *states = &st->s->states;
    const struct moe_model *m = st->s->model;
    for (int64_t i = begin; i < end; i++) {
        float *h = (st->to ? st->to : states->h) + (uint64_t)i * states->stride;
        moe_layout_load_row(&m->embed, st->rows[i].token, h);
        if (m->config.embed_scale != 1)
            moe_kern.scale(m->config.embed_scale, m->config.hidden, h);
        if (m->config.embed_norm)
            stages_cpu_norm_bare(h, m->config.hidden, m->config.norm_eps);
        if (m->embed_bias)
            moe_kern.add(m->embed_bias, m->config.hidden, h);
        if (m->embed_weight)
            multiply(m->embed_weight, m->config.hidden, h);
    }
}

static void position_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_states *states = &st->s->states;
    const struct moe_config *c = &st->s->model->config;
    for (int64_t i = begin; i < end; i++) {
        float *learnt = states->xn + (uint64_t)i * states->stride; /* is free */
        uint32_t position = st->rows[i].position;
        position = position < c->context_max ? position : c->context_max - 1;
        moe_layout_load_row(st->positions, position, learnt);
        moe_kern.add(learnt, c->hidden, states->h + (uint64_t)i * states->stride);
    }
}

/* h += sines and cosines of the rows' positions. */
static void sinusoid_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_config *c = &st->s->model->config;
    const uint32_t half = c->hidden / 2;
    const double step = -log(1e4) / (half - 1);
    for (int64_t i = begin; i < end; i++) {
        float *h = st->s->states.h + (uint64_t)i * st->s->states.stride;
        const double position = (double)st->rows[i].position + c->first_position;
        for (uint32_t k = 0; k < half; k++) {
            const double angle = position * exp(step * k);
            h[k] += (float)sin(angle);
            h[half + k] += (float)cos(angle);
        }
    }
}

/* h += the learnt vectors of the rows' positions. */
static void add_positions(struct moe_session *s, const struct moe_mat *positions,
                          const struct moe_row *rows, uint32_t n_rows)
{
    struct stage st = {.s = s, .rows = rows, .positions = positions};
    moe_par_for(n_rows, 8, position_rows, &st);
}

/* What layers have of a token: their own embeddings, and a part of the embedding under a norm. */
static void mix_layer_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_model *m = st->s->model;
    const struct cpu_work *w = st->s->device;
    const struct moe_config *c = &m->config;
    uint32_t n = c->layer_embed;
    for (int64_t i = begin; i < end; i++) {
        float *mixed = w->of_layers + (uint64_t)i * w->layer_stride;
        float *own = w->own_embeds + (uint64_t)thread * w->layer_stride;
        moe_layout_load_row(&m->layer_embed, st->rows[i].token, own);
        moe_kern.scale(1 / sqrtf((float)c->hidden), c->n_layers * n, mixed);
        for (uint32_t layer = 0; layer < c->n_layers; layer++)
            moe_kern.rms_norm(mixed + layer * n, m->layer_embed_norm, n, c->norm_eps,
                              mixed + layer * n);
        moe_kern.axpy(sqrtf((float)n), own, c->n_layers * n, mixed);
        moe_kern.scale(sqrtf(0.5f), c->n_layers * n, mixed);
    }
}

static void embed_by_layer(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows)
{
    const struct cpu_work *w = s->device;
    struct moe_states *states = &s->states;
    struct stage st = {.s = s, .rows = rows, .to = states->xn};
    moe_par_for(n_rows, 8, embed_rows, &st);
    moe_inputs_set(&states->inputs, states->xn, states->stride, NULL, n_rows,
                   s->model->config.hidden);
    struct moe_mm mm =
        moe_inputs_mm(&states->inputs, s->model->layer_embed_mix, w->of_layers, w->layer_stride);
    moe_matmul(&mm, 1);
    moe_par_for(n_rows, 1, mix_layer_rows, &st);
}

static int enter(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                 const float *hidden_in, struct moe_err *err)
{
    const struct moe_states *states = &s->states;
    float *beside = left_beside(s);
    uint32_t hidden = s->model->config.hidden, width = moe_config_state_width(&s->model->config);
    if (s->model->config.n_streams && hidden_in) {
        stages_cpu_streams_set(s, n_rows, hidden_in);
        return MOE_OK;
    }
    if (hidden_in) {
        for (uint32_t i = 0; i < n_rows; i++)
            memcpy(states->h + i * states->stride, hidden_in + (uint64_t)i * width,
                   hidden * sizeof(float));
        for (uint32_t i = 0; beside && i < n_rows; i++)
            memcpy(beside + i * states->stride, hidden_in + (uint64_t)i * width + hidden,
                   hidden * sizeof(float));
    } else {
        struct stage st = {.s = s, .rows = rows};
        moe_par_for(n_rows, 8, embed_rows, &st);
        if (s->model->positions.data)
            add_positions(s, &s->model->positions, rows, n_rows);
        if (s->model->config.positions == MOE_POSITIONS_SINUSOIDS)
            moe_par_for(n_rows, 8, sinusoid_rows, &st);
    }
    if (s->model->config.n_streams)
        stages_cpu_streams_begin(s, n_rows);
    if (s->model->config.layer_embed)
        embed_by_layer(s, rows, n_rows);
    return MOE_OK;
}

static void reached(struct moe_session *s, uint32_t layer, const char *part)
{
    struct cpu_work *w = s->device;
    double now = moe_seconds();
    char name[48];
    if (part) {
        snprintf(name, sizeof name, "layer %u %s", layer, part);
        moe_timeline_span(s->timeline, MOE_TRACK_COMPUTE, name, w->reached_at, now);
    }
    w->reached_at = now;
}

/* Keeps the stream that comes into a layer of the model where a head that drafts reads it. */
static void keep_reads(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct cpu_work *w = s->device;
    const struct moe_model *head = s->model->drafter;
    const uint32_t hidden = s->model->config.hidden;
    for (uint32_t k = 0; head && k < head->config.n_reads; k++)
        for (uint32_t i = 0; head->config.reads[k] == layer && i < n_rows; i++)
            memcpy(w->reads + i * w->reads_stride + (uint64_t)k * hidden,
                   s->states.h + i * s->states.stride, hidden * sizeof(float));
}

static int leave(struct moe_session *s, uint32_t n_rows, float *hidden_out, struct moe_err *err)
{
    const struct moe_states *states = &s->states;
    const float *beside = left_beside(s);
    uint32_t hidden = s->model->config.hidden, width = moe_config_state_width(&s->model->config);
    keep_reads(s, s->model->config.n_layers, n_rows);
    if (s->model->config.n_streams && hidden_out) {
        stages_cpu_streams_get(s, n_rows, hidden_out);
        return MOE_OK;
    }
    for (uint32_t i = 0; hidden_out && i < n_rows; i++)
        memcpy(hidden_out + (uint64_t)i * width, states->h + i * states->stride,
               hidden * sizeof(float));
    for (uint32_t i = 0; hidden_out && beside && i < n_rows; i++)
        memcpy(hidden_out + (uint64_t)i * width + hidden, beside + i * states->stride,
               hidden * sizeof(float));
    return MOE_OK;
}

/* ---- A layer up to its feed-forward ---- */

/* xn of rows [first, first + n) under a norm; or, of blocks whose norms stand after them, as they
 * are. */
static void norm_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_states *states = &st->s->states;
    const struct moe_config *c = &st->s->model->config;
    for (int64_t i = begin; i < end; i++) {
        const float *h = states->h + (st->first + (uint64_t)i) * states->stride;
        float *xn = states->xn + (uint64_t)i * states->stride;
        if (c->last_eps > 0)
            moe_kern.rms_norm(h, st->weights, c->hidden, c->last_eps, xn);
        else
            moe_norm_row(c, h, st->weights, st->bias, xn);
    }
}

static void input_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_states *states = &st->s->states;
    const struct moe_config *c = &st->s->model->config;
    for (int64_t i = begin; i < end; i++) {
        float *h = states->h + (uint64_t)i * states->stride;
        float *xn = states->xn + (uint64_t)i * states->stride;
        moe_block_input_row(c, h, st->weights, st->bias, xn);
        if (c->norm_place == MOE_NORM_STREAM) {
            memcpy(h, xn, c->hidden * sizeof *h);
            moe_kern.scale(c->stream_scale, c->hidden, h);
        }
    }
}

/* xn of the first n rows: what a block takes in. */
static void block_input(struct moe_session *s, const float *weights, const float *bias, uint32_t n)
{
    struct stage st = {.s = s, .weights = weights, .bias = bias};
    moe_par_for(n, 16, input_rows, &st);
}

static void silu_gate_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct moe_session *s = ctx;
    const struct cpu_work *w = s->device;
    for (int64_t i = begin; i < end; i++) {
        float *gate = w->ff.gate + (uint64_t)i * w->ff.stride;
        moe_kern.silu(gate, s->model->config.norm_gate_rank, gate);
    }
}

static void gate_norm_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct moe_session *s = ctx;
    const struct cpu_work *w = s->device;
    for (int64_t i = begin; i < end; i++) {
        float *xn = s->states.xn + (uint64_t)i * s->states.stride;
        const float *gate = w->sum + (uint64_t)i * s->states.stride;
        for (uint32_t d = 0; d < s->model->config.hidden; d++)
            xn[d] *= moe_math_sigmoid(gate[d]);
    }
}

/* xn of the first n rows, multiplied by what two matrices make of it. */
static void gate_norm(struct moe_session *s, const struct moe_mat *down, const struct moe_mat *up,
                      uint32_t n)
{
    struct cpu_work *w = s->device;
    struct moe_states *states = &s->states;
    moe_inputs_set(&states->inputs, states->xn, states->stride, NULL, n, down->cols);
    struct moe_mm mm = moe_inputs_mm(&states->inputs, *down, w->ff.gate, w->ff.stride);
    moe_matmul(&mm, 1);
    moe_par_for(n, 16, silu_gate_rows, s);
    moe_inputs_set(&w->ff.from_gate, w->ff.gate, w->ff.stride, NULL, n, up->cols);
    mm = moe_inputs_mm(&w->ff.from_gate, *up, w->sum, states->stride);
    moe_matmul(&mm, 1);
    moe_par_for(n, 16, gate_norm_rows, s);
}

void stages_cpu_store(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows)
{
    const struct cpu_work *w = s->device;
    const struct cpu_attention *a = &w->attention;
    const struct moe_kv_input in = {a->k,        a->v,       a->stride.k,
                                    a->stride.v, w->index.k, w->index.k_stride};
    uint32_t n_encoder = s->model->config.n_encoder;
    if (layer < n_encoder)
        moe_kv_store(&w->source_kv, n_encoder, rows, n_rows, &in);
    else
        moe_kv_store(&w->kv, s->first_layer + layer, rows, n_rows, &in);
}

static int join(struct moe_session *s, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                const uint32_t *from, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    MOE_TRY(stages_cpu_join(s, layer, rows, n_rows, from, err));
    for (uint32_t i = 0; c->draft_block && i < c->n_layers; i++) {
        moe_project_keys(s, i, rows, n_rows);
        stages_cpu_store(s, i, rows, n_rows);
    }
    return MOE_OK;
}

static void attend_source(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                          uint32_t n_rows)
{
    const struct moe_layer *l = &s->model->layers[layer];
    block_input(s, l->cross_norm, l->cross_norm_bias, n_rows);
    moe_project_cross_in(s, layer, n_rows);
    moe_attention_cross(s, layer, rows, n_rows);
    moe_project_cross_out(s, layer, n_rows);
    stages_cpu_add_to_stream(s, &(struct moe_block_end){0}, n_rows);
}

/* Convolves what a block of the layer has put out, in `sum`. */
static void add_block_taps(struct moe_session *s, uint32_t layer, uint32_t n_rows,
                           const float *weights, uint64_t at)
{
    const struct cpu_work *w = s->device;
    const struct cpu_taps taps = {.weights = weights,
                                  .x = w->sum,
                                  .scale = moe_config_taps_scale(&s->model->config, false),
                                  .at = at,
                                  .stride = s->states.stride,
                                  .n = s->model->config.hidden};
    stages_cpu_add_taps(s, layer, s->rows, n_rows, &taps);
}

int stages_cpu_mix(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                   uint32_t n_rows, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    if (c->out_groups)
        stages_cpu_shared_in(s, layer, rows, n_rows);
    else
        moe_project_in(s, layer, rows, n_rows);
    if (moe_config_has_indexer(c, layer))
        stages_cpu_index(s, layer, rows, n_rows);
    MOE_TRY(moe_pass_poll(&s->pass, err));
    if (moe_config_keeps_keys(c, layer))
        stages_cpu_store(s, layer, rows, n_rows);
    if (c->index_means && moe_config_has_indexer(c, layer))
        stages_cpu_index_means(s, layer, rows, n_rows);
    if (c->layers[layer].compression)
        stages_cpu_compress(s, layer, rows, n_rows);
    if (moe_config_keeps_state(c, layer) && moe_state_is_beside(c->state_kind))
        moe_recurrent_advance(s, layer, rows, n_rows);
    if (moe_config_sees_choice(c, layer))
        MOE_TRY(stages_cpu_attend_chosen(s, layer, rows, n_rows, err));
    else
        moe_attention(s, layer, rows, n_rows);
    if (c->out_groups)
        stages_cpu_shared_out(s, layer, rows, n_rows);
    else
        moe_project_out(s, layer, n_rows);
    return MOE_OK;
}

static int attend(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, struct moe_err *err)
{
    const struct moe_layer *l = &s->model->layers[layer];
    const struct moe_config *c = &s->model->config;
    const struct cpu_work *w = s->device;
    keep_reads(s, layer, n_rows);
    if (s->model->extra_positions.data && layer == c->extra_positions)
        add_positions(s, &s->model->extra_positions, rows, n_rows);
    bool mixes = !c->layers[layer].no_attention, feeds = !c->layers[layer].no_ffn;
    bool recurrent = moe_config_is_recurrent(c, layer);
    const float *norm = mixes ? l->attn_norm : l->ffn_norm;
    if (c->layers[layer].ngrams)
        stages_cpu_ngrams(s, layer, rows, n_rows);
    if (c->n_streams)
        stages_cpu_streams_in(s, 2 * layer, 0, n_rows);
    if (c->drafter_kind != MOE_DRAFTS_EAGLE3) /* it has joined what its attention takes in */
        block_input(s, norm, mixes ? l->attn_norm_bias : l->ffn_norm_bias, n_rows);
    if (l->attn_norm_down.data)
        gate_norm(s, &l->attn_norm_down, &l->attn_norm_up, n_rows);
    if (s->observer.attending)
        s->observer.attending(s->observer.ctx, layer, n_rows, s->states.xn, s->states.stride);
    MOE_TRY(moe_pass_poll(&s->pass, err));
    if (recurrent)
        stages_cpu_recurrent(s, layer, rows, n_rows);
    else if (c->layers[layer].elsewhere)
        MOE_TRY(moe_session_attend_elsewhere(s, layer, w->sum, err));
    else if (mixes)
        MOE_TRY(stages_cpu_mix(s, layer, rows, n_rows, err));
    const struct moe_block_end end = stages_cpu_attention_end(c, l);
    if (l->taps_attn)
        add_block_taps(s, layer, n_rows, l->taps_attn, w->states.mixed_at);
    if (mixes)
        stages_cpu_add_to_stream(s, &end, n_rows);
    if (l->cross_norm) {
        attend_source(s, layer, rows, n_rows);
        MOE_TRY(moe_pass_poll(&s->pass, err));
    }
    if (c->n_streams)
        stages_cpu_streams_in(s, 2 * layer + 1, 0, n_rows);
    if (mixes && feeds && !c->parallel_blocks)
        block_input(s, l->ffn_norm, l->ffn_norm_bias, n_rows);
    if (l->ffn_norm_down.data)
        gate_norm(s, &l->ffn_norm_down, &l->ffn_norm_up, n_rows);
    moe_inputs_set(&s->states.inputs, s->states.xn, s->states.stride, NULL, n_rows,
                   s->model->config.hidden);
    if (s->observer.attended)
        s->observer.attended(s->observer.ctx, layer,
                             recurrent || !mixes || c->layers[layer].elsewhere ? NULL
                                                                               : w->attention.out,
                             w->attention.stride.out, s->states.xn, s->states.stride);
    return MOE_OK;
}

/* ---- The head ---- */

static void finish_logits(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_model *m = st->s->model;
    for (int64_t i = begin; i < end; i++) {
        float *row = st->logits + (uint64_t)i * moe_logits_stride(&m->config);
        if (m->head_bias)
            moe_kern.add(m->head_bias, m->config.vocab, row);
        if (m->config.logit_scale != 1)
            moe_kern.scale(m->config.logit_scale, m->config.vocab, row);
        if (m->config.logit_cap > 0) {
            moe_kern.scale(1 / m->config.logit_cap, m->config.vocab, row);
            moe_kern.tanh(row, m->config.vocab, row);
            moe_kern.scale(m->config.logit_cap, m->config.vocab, row);
        }
    }
}

static void finish_last(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_model *m = st->s->model;
    const struct cpu_work *w = st->s->device;
    for (int64_t i = begin; i < end; i++) {
        uint64_t at = (uint64_t)i * st->s->states.stride;
        moe_kern.add(m->last_projection_bias, m->config.hidden, w->sum + at);
        moe_kern.silu(w->sum + at, m->config.hidden, st->s->states.xn + at);
    }
}

/* xn, and the inputs, of what the head takes: the norm of rows [first, first + n) of h, or silu of
 * their last projection. */
static void last_inputs(struct moe_session *s, uint32_t first, uint32_t n)
{
    const struct moe_model *m = s->model;
    const struct cpu_work *w = s->device;
    struct moe_states *states = &s->states;
    struct stage st = {
        .s = s, .weights = m->final_norm, .bias = m->final_norm_bias, .first = first};
    if (s->drafts && !m->config.drafter_kind)
        st.weights = m->layers[m->config.n_layers].ahead_norm;
    if (m->config.n_streams)
        stages_cpu_streams_in(s, 2 * m->config.n_layers, first, n);
    if (!m->last_projection.data) {
        moe_par_for(n, 16, norm_rows, &st);
    } else {
        moe_inputs_set(&states->inputs, states->h + first * states->stride, states->stride, NULL, n,
                       m->config.hidden);
        struct moe_mm mm =
            moe_inputs_mm(&states->inputs, m->last_projection, w->sum, states->stride);
        moe_matmul(&mm, 1);
        moe_par_for(n, 16, finish_last, &st);
    }
    moe_inputs_set(&states->inputs, states->xn, states->stride, NULL, n, m->config.hidden);
}

/* Logits of a head's own tokens become those of its model's, which rise with them; others are
 * impossible. */
static void spread_logits(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_model *m = st->s->model;
    for (int64_t i = begin; i < end; i++) {
        float *row = st->logits + (uint64_t)i * moe_logits_stride(&m->config);
        uint32_t at = m->config.vocab;
        for (uint32_t k = m->config.draft_vocab; k-- > 0;) {
            const uint32_t token = (uint32_t)m->draft_tokens[k];
            while (at > token + 1)
                row[--at] = -INFINITY;
            row[--at] = row[k];
        }
        while (at > 0)
            row[--at] = -INFINITY;
    }
}

static int logits_of(struct moe_session *s, uint32_t first, uint32_t n, float *logits,
                     struct moe_err *err)
{
    const struct moe_model *m = s->model;
    struct moe_states *states = &s->states;
    last_inputs(s, first, n);
    struct moe_mm mm =
        moe_inputs_mm(&states->inputs, m->head, logits, moe_logits_stride(&m->config));
    moe_matmul(&mm, 1);
    if (m->head_bias || m->config.logit_scale != 1 || m->config.logit_cap > 0) {
        struct stage st = {.s = s, .logits = logits};
        moe_par_for(n, 1, finish_logits, &st);
    }
    if (m->draft_tokens) {
        struct stage st = {.s = s, .logits = logits};
        moe_par_for(n, 1, spread_logits, &st);
    }
    return MOE_OK;
}

/* Adds to a row's logits what a head makes of the token before. */
static int follow(struct moe_session *s, uint32_t token, float *logits, struct moe_err *err)
{
    const struct moe_model *m = s->model;
    struct cpu_work *w = s->device;
    (void)err;
    moe_layout_load_row(&m->markov_from, token, w->markov);
    moe_inputs_set(&w->from_markov, w->markov, w->markov_stride, NULL, 1, m->config.markov_rank);
    struct moe_mm mm =
        moe_inputs_mm(&w->from_markov, m->markov_to, w->followed, moe_logits_stride(&m->config));
    moe_matmul(&mm, 1);
    if (!m->draft_tokens)
        moe_kern.add(w->followed, m->config.vocab, logits);
    for (uint32_t k = 0; m->draft_tokens && k < m->config.draft_vocab; k++)
        logits[(uint32_t)m->draft_tokens[k]] += w->followed[k];
    return MOE_OK;
}

static const float *last_state(struct moe_session *s, uint32_t row)
{
    last_inputs(s, row, 1);
    return s->states.xn;
}

/* ---- Sources ---- */

static int keep_sources(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                        float *output, struct moe_err *err)
{
    const struct moe_model *m = s->model;
    const struct cpu_work *w = s->device;
    const struct cpu_attention *a = &w->attention;
    const struct moe_states *states = &s->states;
    const struct moe_kv_input in = {
        .keys = a->k, .values = a->v, .keys_stride = a->stride.k, .values_stride = a->stride.v};
    uint32_t hidden = m->config.hidden;
    struct stage st = {.s = s, .weights = m->encoder_norm, .bias = m->encoder_norm_bias};
    moe_par_for(n_rows, 16, norm_rows, &st);
    for (uint32_t i = 0; output && i < n_rows; i++)
        memcpy(output + (uint64_t)i * hidden, states->xn + i * states->stride,
               hidden * sizeof(float));
    moe_inputs_set(&s->states.inputs, states->xn, states->stride, NULL, n_rows, hidden);
    for (uint32_t layer = m->config.n_encoder; layer < m->config.n_layers; layer++) {
        moe_project_source(s, layer, n_rows);
        moe_kv_store(&w->source_kv, layer, rows, n_rows, &in);
    }
    return moe_pass_poll(&s->pass, err);
}

static void copy_block(struct moe_session *s, uint32_t from, uint32_t to)
{
    const struct cpu_work *w = s->device;
    moe_kv_copy_block(&w->kv, from, to);
}

static void copy_states(struct moe_session *s, uint32_t from, uint32_t to)
{
    const struct cpu_work *w = s->device;
    if (w->states.n_layers)
        moe_recurrent_copy(&w->states, from, to);
    /* What drafts are taken back to has its entries in the sequence. */
    const uint32_t n = s->n_sequences, kept = s->kept_ends ? 2 * n : n;
    const bool back = (from >= n && from < kept) || (to >= n && to < kept);
    moe_compressed_copy(&w->compressed, from, to, !back);
}

static void states_of(const struct moe_session *s, const struct moe_recurrent **states,
                      const struct moe_compressed **compressed)
{
    const struct cpu_work *w = s->device;
    *states = &w->states;
    *compressed = &w->compressed;
}

static const struct moe_kv *kv_of(const struct moe_session *s)
{
    const struct cpu_work *w = s->device;
    return &w->kv;
}

/* ---- The table ---- */

static int open_cpu(struct moe_session *s, const struct moe_session_options *o, struct moe_err *err)
{
    struct cpu_work *w;
    int status = cpu_work_open(&w, &s->states, &s->model->config, o, err);
    s->device = w;
    if (status != MOE_OK)
        return status;
    w->kv.table = s->kv_pool.table;
    w->kv.slot_of = s->kv_pool.slot_of;
    return MOE_OK;
}

static void close_cpu(struct moe_session *s)
{
    cpu_work_close(s->device);
}

static void give_back(struct moe_session *s, uint32_t n_rows)
{
    cpu_work_give_back(s->device, n_rows);
}

static void hold_block(struct moe_session *s, uint32_t block, bool held)
{
    cpu_work_hold_block(s->device, block, held);
}

const struct moe_stages_ops moe_stages_cpu = {
    .name = "cpu",
    .host_bytes = cpu_work_bytes,
    .open = open_cpu,
    .give_back = give_back,
    .hold_block = hold_block,
    .close = close_cpu,
    .kv = kv_of,
    .states = states_of,
    .copy_states = copy_states,
    .copy_block = copy_block,
    .enter = enter,
    .join = join,
    .choose = stages_cpu_choose,
    .attend = attend,
    .dense = stages_cpu_dense,
    .route = moe_route,
    .beside = stages_cpu_beside,
    .at_once = stages_cpu_at_once,
    .experts = stages_cpu_experts,
    .combine = stages_cpu_combine,
    .reached = reached,
    .keep_sources = keep_sources,
    .leave = leave,
    .logits = logits_of,
    .follow = follow,
    .last = last_state,
};

/*
 * The processor's stage of a layer's router: its scores, and what infer/router.h makes of them.
 */

struct route {
    struct moe_session *s;
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
    struct moe_session *s = r->s;
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
        else if (c->shared_sinks)
            moe_route_with_sinks(c, r->layer->choice_bias, p, scratch, chosen, weights);
        else if (c->n_zero)
            moe_route_with_zeros(c, r->layer->choice_bias, p, scratch, &s->request, (uint32_t)i);
        else
            moe_route_scores(c, r->layer->choice_bias, p, scratch, chosen, weights);
    }
}

/* Sets the probabilities of what the table chose, instead of the softmax of scores. */
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
        const struct moe_router_use use = {
            .layer = l,
            .act = moe_inputs_for(in, moe_router_entry(l)->layout),
            .scores = w->probabilities,
            .room = &w->router,
            .before = s->states.routed,
            .before_stride = s->states.stride,
        };
        moe_router_scores(c, &use, 1, w->router_stride);
        for (uint32_t i = 0; c->router_dim && i < n_rows; i++)
            memcpy(s->states.routed + i * s->states.stride, w->router.state + i * w->router.stride,
                   c->router_dim * sizeof(float));
        if (s->router_row && n_rows == 1)
            memcpy(s->router_row, w->probabilities, c->n_experts * sizeof *s->router_row);
        struct route route = {s, l, rows};
        moe_par_for(n_rows, 16, route_rows, &route);
        moe_router_scale_experts(l, r->chosen, (uint64_t)n_rows * c->top_k, r->weights);
        for (uint32_t i = 0; l->ffn_factor && c->shared_sinks && i < n_rows; i++)
            moe_kern.scale(*l->ffn_factor, c->shared_sinks,
                           w->probabilities + i * w->router_stride + c->n_experts);
    }
    if (s->pass.replay)
        moe_replay_chosen(s->pass.replay, s->pass.moe, r->chosen, r->weights);
    int status = moe_route_check(r, layer, n_rows, err);
    moe_route_limit(&s->request, c, layer, s->prompts, rows, n_rows);
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

/* What routed experts take in, in a space of their own. */
static void narrow(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    struct moe_states *states = &s->states;
    const struct moe_config *c = &s->model->config;
    const float *norm = s->model->layers[layer].experts_start_norm;
    struct moe_mm mm = moe_inputs_mm(&states->inputs, s->model->layers[layer].experts_in,
                                     states->expert_in, states->stride);
    moe_matmul(&mm, 1);
    for (uint32_t i = 0; norm && i < n_rows; i++) {
        float *x = states->expert_in + i * states->stride;
        moe_kern.rms_norm(x, norm, c->expert_dim, c->norm_eps, x);
    }
    moe_inputs_set(&states->narrow_inputs, states->expert_in, states->stride, NULL, n_rows,
                   c->expert_dim);
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
    if (status == MOE_OK && s->model->config.expert_dim)
        narrow(s, layer, n_rows);
    return status;
}

/*
 * Feed-forward on the processor: dense layers, the shared expert, routed experts, and their sum.
 *
 * Every expert writes its own rows of expert_out; they are added per token in the router's order at
 * the end, so that the sum does not depend on when an expert arrived.
 */

/* ---- Products into a feed-forward, and out ---- */

/* Rows of gate and up side by side. `views`: the experts they belong to, row i to views[i * step];
 * NULL: not experts'. */
struct activation {
    const struct moe_config *config;
    uint32_t layer;       /* of a dense layer or shared expert */
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
        const struct moe_expert_view *view = a->views ? &a->views[i * a->step] : NULL;
        moe_activate_row(a->config, view ? view->layer : a->layer, view, a->width,
                         a->scales ? &a->scales[i] : NULL, a->gate + (uint64_t)i * a->stride, up);
    }
}

/* gate[n][stride] = activation of gate x and up x for the n rows of `in`; there may be no gate.
 * dense: the layer whose they are, unless they are an expert's. */
static void gated_in(struct moe_session *s, struct moe_inputs *in, const struct moe_mat *gate,
                     const struct moe_mat *up, const struct moe_layer *dense,
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
        .config = &s->model->config,
        .layer = dense ? (uint32_t)(dense - s->model->layers) : 0,
        .up_bias = dense ? dense->up_bias : NULL,
        .gate = w->gate,
        .up = w->up,
        .stride = w->stride,
        .width = up->rows,
        .views = view,
        .scales = scales,
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

/* What goes into the down matrices of shared experts that are sinks, times their weights. */
static void weigh_sinks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct moe_session *s = ctx;
    const struct moe_config *c = &s->model->config;
    const struct cpu_feed_forward *w = cpu_feed_forward(s);
    uint32_t width = c->shared_ff / c->shared_sinks;
    for (int64_t i = begin; i < end; i++)
        for (uint32_t k = 0; k < c->shared_sinks; k++)
            moe_kern.scale(w->probabilities[(uint64_t)i * w->router_stride + c->n_experts + k],
                           width, w->gate + (uint64_t)i * w->stride + (uint64_t)k * width);
}

/* A dense layer's feed-forward, or the shared expert's, into `sum`; without the bias of down. */
static int run_dense(struct moe_session *s, const struct moe_layer *l, struct moe_err *err)
{
    struct cpu_work *w = s->device;
    struct moe_inputs *in = &s->states.inputs;
    uint32_t n_rows = in->n;
    if (l->shared_norm)
        in = stages_cpu_normed(s, l, l->shared_norm, n_rows);
    gated_in(s, in, &l->gate, &l->up, l, NULL, NULL);
    if (l->is_moe && s->model->config.shared_sinks)
        moe_par_for(n_rows, 16, weigh_sinks, s);
    if (s->ranks) /* of a prompt that takes long, and rows for the next rank wait */
        MOE_TRY(moe_ranks_go_on(s->ranks, err));
    gated_out(s, n_rows, &l->down, w->sum);
    return MOE_OK;
}

struct add {
    struct moe_session *s;
    const struct moe_block_end *end;
};

/* The stream of a row becomes what it is behind a block that put out `y`, which is changed. */
static void end_block_row(struct moe_session *s, const struct moe_block_end *end, uint64_t row,
                          float *y)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_residual *r = &end->residual;
    float *h = s->states.h + row * s->states.stride;
    if (end->bias)
        moe_kern.add(end->bias, c->hidden, y);
    if (r->bias)
        moe_kern.add(r->bias, c->hidden, y);
    if (r->weight)
        multiply(r->weight, c->hidden, y);
    if (end->norm && c->end_eps > 0)
        moe_kern.rms_norm(y, end->norm, c->hidden, c->end_eps, y);
    else if (end->norm)
        moe_norm_row(c, y, end->norm, end->norm_bias, y);
    if (r->keep_bias)
        moe_kern.add(r->keep_bias, c->hidden, h);
    if (r->keep)
        multiply(r->keep, c->hidden, h);
    if (end->n_summed)
        moe_kern.scale(sqrtf((float)(end->n_summed - 1) / (float)end->n_summed), c->hidden, h);
    if (c->n_streams)
        stages_cpu_streams_out(s, (uint32_t)row, y);
    else
        moe_kern.axpy(end->n_summed ? 1 / sqrtf((float)end->n_summed) : c->residual_scale, y,
                      c->hidden, h);
    if (end->scale)
        moe_kern.scale(*end->scale, c->hidden, h);
}

static void add_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct add *a = ctx;
    const struct cpu_work *w = a->s->device;
    for (int64_t i = begin; i < end; i++)
        end_block_row(a->s, a->end, (uint64_t)i, w->sum + (uint64_t)i * a->s->states.stride);
}

void stages_cpu_add_to_stream(struct moe_session *s, const struct moe_block_end *end,
                              uint32_t n_rows)
{
    struct add a = {s, end};
    moe_par_for(n_rows, 16, add_rows, &a);
}

/* ---- Experts ---- */

/* One expert for all rows of a batch that want it: gate and up, or down. */
static void run_expert(struct moe_session *s, uint32_t which, const struct moe_expert_view *view,
                       bool last)
{
    struct moe_inputs *gathered = &cpu_feed_forward(s)->gathered;
    const struct moe_layer_request *r = &s->request;
    const struct moe_states *states = &s->states;
    uint32_t first = r->first[which], n = r->n_rows[which];
    float *out = states->expert_out + first * states->stride;
    if (last) {
        gated_out(s, n, &view->down, out);
        moe_add_down_bias(view, n, out, states->stride);
        return;
    }
    moe_inputs_set(gathered, states->expert_in, states->stride, r->rows + first, n,
                   moe_config_expert_dim(&s->model->config));
    gated_in(s, gathered, &view->gate, &view->up, NULL, view, r->scales ? r->scales + first : NULL);
}

/* Several experts for the one row of a decode step, side by side: three parallel loops in all
 * instead of three per expert. */
static void side_by_side_in(struct moe_session *s, const uint32_t *which,
                            const struct moe_expert_view *views, uint32_t n)
{
    struct cpu_feed_forward *w = cpu_feed_forward(s);
    bool narrow = s->model->config.expert_dim > 0;
    struct moe_inputs *in = narrow ? &s->states.narrow_inputs : &s->states.inputs;
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
        .config = &s->model->config,
        .gate = w->gate,
        .up = w->up,
        .stride = w->stride,
        .width = views[0].up.rows,
        .views = views,
        .step = 1,
        .scales = s->request.scales ? scales : NULL,
    };
    moe_par_for(n, 4, activate_rows, &a);
}

static void side_by_side_out(struct moe_session *s, const uint32_t *which,
                             const struct moe_expert_view *views, uint32_t n)
{
    struct cpu_feed_forward *w = cpu_feed_forward(s);
    uint64_t stride = s->states.stride;
    struct moe_mm mm[MOE_MAX_TOP_K] = {0};
    for (uint32_t i = 0; i < n; i++) {
        float *out = s->states.expert_out + s->request.first[which[i]] * stride;
        moe_inputs_set(&w->single[i], w->gate + i * w->stride, w->stride, NULL, 1,
                       views[i].down.cols);
        mm[i] = moe_inputs_mm(&w->single[i], views[i].down, out, stride);
    }
    moe_matmul(mm, (int)n);
    for (uint32_t i = 0; i < n; i++)
        moe_add_down_bias(&views[i], 1, mm[i].y, stride);
}

struct of_layer {
    struct moe_session *s;
    uint32_t layer;
};

static void gate_layer_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct of_layer *e = ctx;
    const struct moe_config *c = &e->s->model->config;
    const struct cpu_work *w = e->s->device;
    for (int64_t i = begin; i < end; i++)
        moe_activate_row(c, e->layer, NULL, c->layer_embed, NULL,
                         w->ff.gate + (uint64_t)i * w->ff.stride,
                         w->of_layers + (uint64_t)i * w->layer_stride + e->layer * c->layer_embed);
}

/* The layer's own embedding, gated by the stream, is added to it. */
static void add_layer_embed(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct moe_layer *l = &s->model->layers[layer];
    struct cpu_work *w = s->device;
    struct moe_states *states = &s->states;
    struct of_layer e = {s, layer};
    const struct moe_block_end end = {.norm = l->embed_norm, .scale = l->scale};
    moe_inputs_set(&states->inputs, states->h, states->stride, NULL, n_rows,
                   s->model->config.hidden);
    struct moe_mm mm = moe_inputs_mm(&states->inputs, l->embed_gate, w->ff.gate, w->ff.stride);
    moe_matmul(&mm, 1);
    moe_par_for(n_rows, 4, gate_layer_rows, &e);
    gated_out(s, n_rows, &l->embed_out, w->sum);
    stages_cpu_add_to_stream(s, &end, n_rows);
}

/* What the experts of the layer before have put out. */
static void add_late_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct moe_session *s = ctx;
    const struct cpu_work *w = s->device;
    for (int64_t i = begin; i < end; i++)
        moe_kern.add(w->late + (uint64_t)i * s->states.stride, s->model->config.hidden,
                     s->states.h + (uint64_t)i * s->states.stride);
}

int stages_cpu_dense(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    const struct moe_layer *l = &s->model->layers[layer];
    const struct cpu_work *w = s->device;
    struct moe_block_end end = stages_cpu_ffn_end(&s->model->config, l);
    if (l->embed_gate.data)
        end.scale = NULL;
    MOE_TRY(run_dense(s, l, err));
    for (uint32_t i = 0; l->ffn_factor && i < n_rows; i++)
        moe_kern.scale(*l->ffn_factor, s->model->config.hidden, w->sum + i * s->states.stride);
    if (l->taps_ffn)
        add_block_taps(s, layer, n_rows, l->taps_ffn, w->states.fed_at);
    stages_cpu_add_to_stream(s, &end, n_rows);
    if (l->embed_gate.data)
        add_layer_embed(s, layer, n_rows);
    if (s->model->config.late_experts && layer > 0 && s->model->config.layers[layer - 1].moe)
        moe_par_for(n_rows, 16, add_late_rows, s);
    return MOE_OK;
}

int stages_cpu_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    const struct moe_layer *l = &s->model->layers[layer];
    if (l->has_ffn)
        MOE_TRY(run_dense(s, l, err));
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
                       const struct moe_expert_view *views, uint32_t n, bool last,
                       struct moe_err *err)
{
    if (n_rows > 1)
        run_expert(s, which[0], &views[0], last);
    else if (last)
        side_by_side_out(s, which, views, n);
    else
        side_by_side_in(s, which, views, n);
    return MOE_OK;
}

struct combine {
    struct moe_session *s;
    const struct moe_layer *layer;
};

/* A row's routed experts, added by rank. */
static void add_experts(const struct combine *m, uint64_t row, uint32_t width, float *acc)
{
    const struct moe_config *c = &m->s->model->config;
    const struct moe_states *states = &m->s->states;
    const struct moe_layer_request *r = &m->s->request;
    uint64_t first = row * c->top_k;
    memset(acc, 0, width * sizeof *acc);
    for (uint32_t k = 0; k < c->top_k; k++) {
        float *out = states->expert_out + r->slot_of[first + k] * states->stride;
        if (m->layer->experts_weight) {
            multiply(m->layer->experts_weight, width, out);
            stages_cpu_norm_bare(out, width, moe_config_end_eps(c));
        }
        moe_kern.axpy(c->weigh_inputs ? 1 : r->weights[first + k], out, width, acc);
    }
}

static void add_narrow_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct combine *m = ctx;
    const struct moe_states *states = &m->s->states;
    const struct moe_config *c = &m->s->model->config;
    for (int64_t i = begin; i < end; i++) {
        float *sum = states->expert_in + (uint64_t)i * states->stride;
        add_experts(m, (uint64_t)i, c->expert_dim, sum);
        if (m->layer->experts_norm)
            moe_kern.rms_norm(sum, m->layer->experts_norm, c->expert_dim, c->norm_eps, sum);
    }
}

/* Their sum in their own space, and of it what is added to the stream, into xn. */
static void widen(const struct combine *m, uint32_t n_rows)
{
    struct moe_states *states = &m->s->states;
    moe_par_for(n_rows, 16, add_narrow_rows, (void *)m);
    moe_inputs_set(&states->narrow_inputs, states->expert_in, states->stride, NULL, n_rows,
                   m->s->model->config.expert_dim);
    struct moe_mm mm =
        moe_inputs_mm(&states->narrow_inputs, m->layer->experts_out, states->xn, states->stride);
    moe_matmul(&mm, 1);
}

/* Adjugate experts (GroveMoE, as llama.cpp's graph has them): number e of what a row's expert
 * belongs to, e / adjugate_of, takes in the sum acc of the row's experts; it counts as the router's
 * probability of expert e / adjugate_of does, divided by the sum of all of theirs, or by 2^-14
 * where that is less. */
static struct moe_mat adjugate_of(const struct moe_config *c, const struct moe_mat *all, uint32_t i)
{
    uint32_t rows = all->rows / (c->n_experts / c->adjugate_of);
    uint64_t bytes = rows / MOE_PANEL_ROWS * moe_layout_panel_bytes(all->layout, all->cols);
    return (struct moe_mat){all->data + i * bytes, all->layout, rows, all->cols};
}

static void sum_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct combine *m = ctx;
    const struct moe_states *states = &m->s->states;
    for (int64_t i = begin; i < end; i++)
        add_experts(m, (uint64_t)i, m->s->model->config.hidden,
                    states->xn + (uint64_t)i * states->stride);
}

static void add_adjugates(const struct combine *m, uint32_t row)
{
    struct moe_session *s = m->s;
    const struct moe_config *c = &s->model->config;
    struct cpu_feed_forward *w = cpu_feed_forward(s);
    const uint32_t *chosen = s->request.chosen + (uint64_t)row * c->top_k;
    const float *p = w->probabilities + row * w->router_stride;
    float *acc = s->states.xn + row * s->states.stride, sum = 0;
    struct moe_mm mm[2 * MOE_MAX_TOP_K] = {0};
    moe_inputs_set(&w->gathered, acc, s->states.stride, NULL, 1, c->hidden);
    for (uint32_t k = 0; k < c->top_k; k++) {
        uint32_t i = chosen[k] / c->adjugate_of;
        mm[2 * k] = moe_inputs_mm(&w->gathered, adjugate_of(c, &m->layer->adjugate_gate, i),
                                  w->gate + k * w->stride, w->stride);
        mm[2 * k + 1] = moe_inputs_mm(&w->gathered, adjugate_of(c, &m->layer->adjugate_up, i),
                                      w->up + k * w->stride, w->stride);
        sum += p[i];
    }
    moe_matmul(mm, 2 * (int)c->top_k);
    for (uint32_t k = 0; k < c->top_k; k++) {
        float *gate = w->gate + k * w->stride;
        moe_activate_row(c, s->request.layer, NULL, c->adjugate_ff, NULL, gate,
                         w->up + k * w->stride);
        moe_inputs_set(&w->single[k], gate, w->stride, NULL, 1, c->adjugate_ff);
        mm[k] = moe_inputs_mm(&w->single[k],
                              adjugate_of(c, &m->layer->adjugate_down, chosen[k] / c->adjugate_of),
                              s->states.expert_out + k * s->states.stride, s->states.stride);
    }
    moe_matmul(mm, (int)c->top_k);
    for (uint32_t k = 0; k < c->top_k; k++)
        moe_kern.axpy(c->adjugate_scale * (p[chosen[k] / c->adjugate_of] / fmaxf(sum, 0x1p-14f)),
                      s->states.expert_out + k * s->states.stride, c->hidden, acc);
}

/* The stream receives the experts' outputs, added by rank, and the shared expert's, which is
 * already in sum, scaled by its gate; and tanh of the bypass. */
static void combine_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct combine *m = ctx;
    const struct moe_config *c = &m->s->model->config;
    const struct cpu_work *w = m->s->device;
    const struct moe_states *states = &m->s->states;
    const struct moe_block_end last = stages_cpu_ffn_end(c, m->layer);
    for (int64_t i = begin; i < end; i++) {
        float *sum = w->sum + (uint64_t)i * states->stride;
        float *acc = states->xn + (uint64_t)i * states->stride; /* no longer needed */
        if (!c->expert_dim && !c->adjugate_ff)
            add_experts(m, (uint64_t)i, c->hidden, acc);
        if (w->late) {
            memcpy(w->late + (uint64_t)i * states->stride, acc, c->hidden * sizeof *acc);
            memset(acc, 0, c->hidden * sizeof *acc);
        }
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
        if (m->layer->taps_ffn) /* a convolution comes first */
            memcpy(sum, acc, c->hidden * sizeof *sum);
        else
            end_block_row(m->s, &last, (uint64_t)i, acc);
    }
}

int stages_cpu_combine(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    struct combine m = {s, &s->model->layers[layer]};
    if (s->model->config.expert_dim)
        widen(&m, n_rows);
    if (s->model->config.adjugate_ff)
        moe_par_for(n_rows, 16, sum_rows, &m);
    for (uint32_t i = 0; s->model->config.adjugate_ff && i < n_rows; i++)
        add_adjugates(&m, i);
    moe_par_for(n_rows, 16, combine_rows, &m);
    if (m.layer->taps_ffn) {
        const struct moe_block_end end = stages_cpu_ffn_end(&s->model->config, m.layer);
        const struct cpu_work *w = s->device;
        add_block_taps(s, layer, n_rows, m.layer->taps_ffn, w->states.fed_at);
        stages_cpu_add_to_stream(s, &end, n_rows);
    }
    return MOE_OK;
}
