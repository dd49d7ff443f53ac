/*
 * The stages on the processor: into and out of a pass, a layer up to its feed-forward, the head. A
 * layer begins with a norm, queries, keys and values (projections.c), attention (attention.c), its
 * output (and in a decoder with an encoder the same once more, to the source) and another norm; the
 * feed-forward's stages are in router.c and stages_cpu_feed_forward.c.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"
#include "layer/router.h"

struct stage {
    struct moe_session *s;
    const struct moe_row *rows;
    const float *weights, *bias; /* of a norm */
    uint32_t first;              /* first row of h */
    const struct moe_mat *positions;
    float *logits;
};

/* ---- Into and out of a pass ---- */

static void embed_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_states *states = &st->s->states;
    const struct moe_model *m = st->s->model;
    for (int64_t i = begin; i < end; i++) {
        float *h = states->h + (uint64_t)i * states->stride;
        moe_layout_load_row(&m->embed, st->rows[i].token, h);
        if (m->config.embed_scale != 1)
            moe_kern.scale(m->config.embed_scale, m->config.hidden, h);
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

/* h += the learnt vectors of the rows' positions. */
static void add_positions(struct moe_session *s, const struct moe_mat *positions,
                          const struct moe_row *rows, uint32_t n_rows)
{
    struct stage st = {.s = s, .rows = rows, .positions = positions};
    moe_par_for(n_rows, 8, position_rows, &st);
}

static int enter(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                 const float *hidden_in, struct moe_err *err)
{
    const struct moe_states *states = &s->states;
    uint32_t hidden = s->model->config.hidden;
    if (s->model->config.n_streams && hidden_in) {
        stages_cpu_streams_set(s, n_rows, hidden_in);
        return MOE_OK;
    }
    if (hidden_in) {
        for (uint32_t i = 0; i < n_rows; i++)
            memcpy(states->h + i * states->stride, hidden_in + (uint64_t)i * hidden,
                   hidden * sizeof(float));
    } else {
        struct stage st = {.s = s, .rows = rows};
        moe_par_for(n_rows, 8, embed_rows, &st);
        if (s->model->positions.data)
            add_positions(s, &s->model->positions, rows, n_rows);
    }
    if (s->model->config.n_streams)
        stages_cpu_streams_begin(s, n_rows);
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

static int leave(struct moe_session *s, uint32_t n_rows, float *hidden_out, struct moe_err *err)
{
    const struct moe_states *states = &s->states;
    uint32_t hidden = s->model->config.hidden;
    if (s->model->config.n_streams && hidden_out) {
        stages_cpu_streams_get(s, n_rows, hidden_out);
        return MOE_OK;
    }
    for (uint32_t i = 0; hidden_out && i < n_rows; i++)
        memcpy(hidden_out + (uint64_t)i * hidden, states->h + i * states->stride,
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
    for (int64_t i = begin; i < end; i++)
        moe_norm_row(&st->s->model->config, states->h + (st->first + (uint64_t)i) * states->stride,
                     st->weights, st->bias, states->xn + (uint64_t)i * states->stride);
}

static void input_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct stage *st = ctx;
    const struct moe_states *states = &st->s->states;
    for (int64_t i = begin; i < end; i++)
        moe_block_input_row(&st->s->model->config, states->h + (uint64_t)i * states->stride,
                            st->weights, st->bias, states->xn + (uint64_t)i * states->stride);
}

/* xn of the first n rows: what a block takes in. */
static void block_input(struct moe_session *s, const float *weights, const float *bias, uint32_t n)
{
    struct stage st = {.s = s, .weights = weights, .bias = bias};
    moe_par_for(n, 16, input_rows, &st);
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
        moe_kv_store(&w->kv, layer, rows, n_rows, &in);
}

static void attend_source(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                          uint32_t n_rows)
{
    block_input(s, s->model->layers[layer].cross_norm, NULL, n_rows);
    moe_project_cross_in(s, layer, n_rows);
    moe_attention_cross(s, layer, rows, n_rows);
    moe_project_cross_out(s, layer, n_rows);
    stages_cpu_add_to_stream(s, &(struct moe_block_end){0}, n_rows);
}

static int attend(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, struct moe_err *err)
{
    const struct moe_layer *l = &s->model->layers[layer];
    const struct moe_config *c = &s->model->config;
    const struct cpu_work *w = s->device;
    if (s->model->extra_positions.data && layer == c->extra_positions)
        add_positions(s, &s->model->extra_positions, rows, n_rows);
    bool mixes = !c->layer_no_attention[layer], feeds = !c->layer_no_ffn[layer];
    bool recurrent = c->layer_is_recurrent[layer];
    const float *norm = mixes ? l->attn_norm : l->ffn_norm;
    if (c->n_streams)
        stages_cpu_streams_in(s, &l->attn_mix, 0, n_rows);
    block_input(s, norm, mixes ? l->attn_norm_bias : l->ffn_norm_bias, n_rows);
    if (s->observer.attending)
        s->observer.attending(s->observer.ctx, layer, n_rows, s->states.xn, s->states.stride);
    int status = moe_poll_loads(s, err);
    if (recurrent) {
        stages_cpu_recurrent(s, layer, rows, n_rows);
    } else if (mixes) {
        if (c->out_groups)
            stages_cpu_shared_in(s, layer, rows, n_rows);
        else
            moe_project_in(s, layer, rows, n_rows);
        if (moe_config_has_indexer(c, layer))
            stages_cpu_index(s, layer, rows, n_rows);
        if (status == MOE_OK)
            status = moe_poll_loads(s, err);
        stages_cpu_store(s, layer, rows, n_rows);
        if (c->layer_compresses[layer])
            stages_cpu_compress(s, layer, rows, n_rows);
        if (!moe_config_picks_positions(c))
            moe_attention(s, layer, rows, n_rows);
        else if (status == MOE_OK)
            status = stages_cpu_attend_chosen(s, layer, rows, n_rows, err);
        if (c->out_groups)
            stages_cpu_shared_out(s, layer, rows, n_rows);
        else
            moe_project_out(s, layer, n_rows);
    }
    if (status != MOE_OK)
        return status;
    const struct moe_block_end end = stages_cpu_attention_end(c, l);
    if (mixes)
        stages_cpu_add_to_stream(s, &end, n_rows);
    if (l->cross_norm) {
        attend_source(s, layer, rows, n_rows);
        status = moe_poll_loads(s, err);
    }
    if (status != MOE_OK)
        return status;
    if (c->n_streams)
        stages_cpu_streams_in(s, &l->ffn_mix, 0, n_rows);
    if (mixes && feeds && !c->parallel_blocks)
        block_input(s, l->ffn_norm, l->ffn_norm_bias, n_rows);
    moe_inputs_set(&s->states.inputs, s->states.xn, s->states.stride, NULL, n_rows,
                   s->model->config.hidden);
    if (s->observer.attended)
        s->observer.attended(s->observer.ctx, layer, recurrent || !mixes ? NULL : w->attention.out,
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
    if (s->drafts)
        st.weights = m->layers[m->config.n_layers].ahead_norm;
    if (m->config.n_streams)
        stages_cpu_streams_in(s, &m->last_mix, first, n);
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
    return MOE_OK;
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
    struct stage st = {.s = s, .weights = m->encoder_norm};
    moe_par_for(n_rows, 16, norm_rows, &st);
    for (uint32_t i = 0; output && i < n_rows; i++)
        memcpy(output + (uint64_t)i * hidden, states->xn + i * states->stride,
               hidden * sizeof(float));
    moe_inputs_set(&s->states.inputs, states->xn, states->stride, NULL, n_rows, hidden);
    for (uint32_t layer = m->config.n_encoder; layer < m->config.n_layers; layer++) {
        moe_project_source(s, layer);
        moe_kv_store(&w->source_kv, layer, rows, n_rows, &in);
    }
    return moe_poll_loads(s, err);
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
    moe_compressed_copy(&w->compressed, from, to, from < s->n_sequences && to < s->n_sequences);
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

const struct moe_stages_ops moe_stages_cpu = {
    .name = "cpu",
    .host_bytes = cpu_work_bytes,
    .open = open_cpu,
    .close = close_cpu,
    .kv = kv_of,
    .states = states_of,
    .copy_states = copy_states,
    .copy_block = copy_block,
    .enter = enter,
    .join = stages_cpu_join,
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
};
