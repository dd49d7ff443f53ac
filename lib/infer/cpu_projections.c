/*
 * Attention's projections: the products that make queries, keys and values out of a layer's input,
 * with biases, norms, clipping and rotary positions, and those that make its output.
 *
 * Latent attention (DeepSeek-V2): of a position the cache keeps one normalized vector and one
 * rotated part for all heads. A head's keys and values are linear in that vector, so
 * queries are mapped into its space instead (k_up) and results back out of it (v_up), head by head.
 *
 * Attention to an encoder's output (cross_q and its neighbours) has only plain products.
 */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "infer/cpu_stages.h"
#include "infer/router.h"
#include "kern/kern.h"
#include "kern/kern_math.h"

struct project {
    struct moe_session *s;
    const struct moe_row *rows;
    const struct moe_layer *layer;
    struct cpu_attention *w;
    uint32_t heads, head_dim, kv_heads, value_dim, rope_dim; /* the layer's */
    bool global, still;                                      /* still: nothing is rotated */
};

static const float *angles(const struct project *p, int64_t row)
{
    const struct moe_model *m = p->s->model;
    const struct moe_row *r = &p->rows[row];
    if (m->config.positions != MOE_POSITIONS_ROTARY || p->still)
        return NULL;
    if (p->global)
        return m->global_rope + (uint64_t)r->position * p->rope_dim;
    uint64_t at = moe_math_rope_row(m->config.rope_original, r->length, r->position);
    return m->rope + at * m->config.rope_dim;
}

/* ---- Ordinary attention ---- */

static void norm_heads(const struct project *p, float *x, uint32_t n_heads, const float *norm)
{
    float eps = p->s->model->config.norm_eps;
    for (uint32_t head = 0; head < n_heads; head++, x += p->head_dim)
        moe_kern.rms_norm(x, norm, p->head_dim, eps, x);
}

/* The same without weights: the scale is kern.h's. */
static void norm_bare(const struct project *p, float *x, uint32_t n_heads)
{
    float eps = p->s->model->config.norm_eps;
    for (uint32_t head = 0; head < n_heads; head++, x += p->head_dim) {
        float lane[MOE_LANES] = {0};
        for (uint32_t i = 0; i < p->head_dim; i++)
            lane[i % MOE_LANES] = fmaf(x[i], x[i], lane[i % MOE_LANES]);
        moe_kern.scale(moe_math_rms_scale(moe_math_join(lane), p->head_dim, eps), p->head_dim, x);
    }
}

/* Norm, clipping and rotary positions of the queries, or the keys, of one row. */
static void finish_heads(const struct project *p, float *x, uint32_t n_heads, const float *norm,
                         const float *cs)
{
    const struct moe_config *c = &p->s->model->config;
    uint32_t width = n_heads * p->head_dim;
    if (c->qk_norm == MOE_QK_NORM_FULL)
        moe_kern.rms_norm(x, norm, width, c->norm_eps, x);
    if (c->qk_norm == MOE_QK_NORM_HEAD)
        norm_heads(p, x, n_heads, norm);
    if (c->clip_qkv > 0)
        moe_kern.clamp(c->clip_qkv, width, x);
    for (uint32_t head = 0; cs && head < n_heads; head++)
        moe_kern.rope(x + head * p->head_dim, cs, p->rope_dim);
    if (c->qk_norm == MOE_QK_NORM_ROTATED)
        norm_heads(p, x, n_heads, norm);
    if (c->qk_norm == MOE_QK_NORM_BARE && cs)
        norm_bare(p, x, n_heads);
}

/* Whether queries are multiplied by query_scale's factor. */
static bool scales_queries(const struct project *p)
{
    const struct moe_config *c = &p->s->model->config;
    return c->query_step && (p->still || !c->rope_in_windows);
}

/* The factor: in double precision, so that it is the same number everywhere. */
static float query_factor(const struct project *p, uint32_t position)
{
    const struct moe_config *c = &p->s->model->config;
    uint64_t steps = ((uint64_t)position + !c->query_from_zero) / c->query_step;
    return (float)(1 + (double)c->query_scale * log1p((double)steps));
}

static void finish_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct project *p = ctx;
    const struct moe_config *c = &p->s->model->config;
    const struct moe_layer *l = p->layer;
    const struct cpu_attention *w = p->w;
    uint32_t kv_width = p->kv_heads * p->head_dim, values = p->kv_heads * p->value_dim;
    for (int64_t i = begin; i < end; i++) {
        float *q = w->q + (uint64_t)i * w->stride.q, *k = w->k + (uint64_t)i * w->stride.k;
        float *v = w->v + (uint64_t)i * w->stride.v;
        const float *cs = angles(p, i);
        if (!l->k.data) { /* sees those of another layer */
            finish_heads(p, q, c->n_heads, l->q_norm, cs);
            continue;
        }
        if (l->q_bias) {
            moe_kern.add(l->q_bias, p->heads * p->head_dim, q);
            moe_kern.add(l->k_bias, kv_width, k);
        }
        if (l->v_bias)
            moe_kern.add(l->v_bias, values, v);
        if (!l->v.data)
            memcpy(v, k, kv_width * sizeof *v);
        finish_heads(p, q, p->heads, l->q_norm, cs);
        finish_heads(p, k, p->kv_heads, l->k_norm, cs);
        if (scales_queries(p))
            moe_kern.scale(query_factor(p, p->rows[i].position), p->heads * p->head_dim, q);
        if (c->value_norm)
            norm_bare(p, v, p->kv_heads);
        if (c->clip_qkv > 0)
            moe_kern.clamp(c->clip_qkv, values, v);
        if (c->value_scale != 1)
            moe_kern.scale(c->value_scale, values, v);
    }
}

static void project_heads(struct project *p, uint32_t n_rows)
{
    const struct moe_layer *l = p->layer;
    struct cpu_attention *w = p->w;
    struct moe_inputs *from = &p->s->states.inputs;
    struct moe_mm mm[4] = {moe_inputs_mm(from, l->q, w->q, w->stride.q)};
    int n = 1;
    if (l->k.data)
        mm[n++] = moe_inputs_mm(from, l->k, w->k, w->stride.k);
    if (l->v.data)
        mm[n++] = moe_inputs_mm(from, l->v, w->v, w->stride.v);
    if (l->attn_gate.data)
        mm[n++] = moe_inputs_mm(from, l->attn_gate, w->gate, w->stride.out);
    moe_matmul(mm, n);
    moe_par_for(n_rows, 8, finish_rows, p);
}

/* ---- Latent attention ---- */

static void norm_q_down_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct project *p = ctx;
    const struct moe_config *c = &p->s->model->config;
    const struct cpu_attention *w = p->w;
    for (int64_t i = begin; i < end; i++) {
        float *x = w->q_down + (uint64_t)i * w->stride.q_down;
        if (c->q_twice)
            memcpy(x + c->q_rank, x, c->q_rank * sizeof *x);
        moe_kern.rms_norm(x, p->layer->q_down_norm, c->q_rank, moe_config_latent_eps(c), x);
    }
}

/* From [latent | shared part] in v to the cache's key [rotated | latent] in k and value [latent] in
 * v; the queries' rotated parts go beside the rest, which k_up has made. */
static void finish_latent_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct project *p = ctx;
    const struct moe_config *c = &p->s->model->config;
    const struct cpu_attention *w = p->w;
    uint32_t key = moe_config_cache_key(c);
    for (int64_t i = begin; i < end; i++) {
        float *k = w->k + (uint64_t)i * w->stride.k, *v = w->v + (uint64_t)i * w->stride.v;
        const float *cs = angles(p, i);
        memcpy(k, v + c->kv_rank, c->rope_dim * sizeof *k);
        if (cs)
            moe_kern.rope(k, cs, c->rope_dim);
        moe_kern.rms_norm(v, p->layer->kv_down_norm, c->kv_rank, moe_config_latent_eps(c), v);
        if (c->latent_scale != 1)
            moe_kern.scale(c->latent_scale, c->kv_rank, v);
        memcpy(k + c->rope_dim, v, c->kv_rank * sizeof *k);
        for (uint32_t head = 0; head < c->n_heads; head++) {
            float *query = w->queries + (uint64_t)i * w->stride.queries + head * key;
            memcpy(query, w->q + (uint64_t)i * w->stride.q + head * c->head_dim,
                   c->rope_dim * sizeof *query);
            if (cs)
                moe_kern.rope(query, cs, c->rope_dim);
            if (scales_queries(p))
                moe_kern.scale(query_factor(p, p->rows[i].position), key, query);
        }
    }
}

void stages_cpu_multiply_blocks(struct cpu_attention *w, const struct moe_mat *m, uint32_t n,
                                uint32_t n_rows, const float *x, uint64_t x_stride,
                                uint32_t x_width, float *y, uint64_t y_stride, uint32_t y_width)
{
    uint32_t each = m->rows / n, block = moe_act_block_for(m->layout);
    uint64_t bytes = each / MOE_PANEL_ROWS * moe_layout_panel_bytes(m->layout, m->cols);
    for (uint32_t i = 0; i < n; i++) {
        moe_act_prepare(&w->head_acts[i], x + i * x_width, x_stride, NULL, n_rows, m->cols, block);
        w->head_products[i] = (struct moe_mm){
            .w = {m->data + i * bytes, m->layout, each, m->cols},
            .act = &w->head_acts[i],
            .y = y + i * y_width,
            .y_stride = y_stride,
        };
    }
    moe_matmul(w->head_products, (int)n);
}

static void project_latent(struct project *p, uint32_t n_rows)
{
    const struct moe_config *c = &p->s->model->config;
    const struct moe_layer *l = p->layer;
    struct cpu_attention *w = p->w;
    struct moe_inputs *from = &p->s->states.inputs;
    struct moe_mm mm[3] = {moe_inputs_mm(from, l->kv_down, w->v, w->stride.v)};
    int n = 2;
    if (l->attn_gate.data && !c->q_twice)
        mm[n++] = moe_inputs_mm(from, l->attn_gate, w->gate, w->stride.out);
    if (c->q_rank) {
        mm[1] = moe_inputs_mm(from, l->q_down, w->q_down, w->stride.q_down);
        moe_matmul(mm, n);
        moe_par_for(n_rows, 16, norm_q_down_rows, p);
        from = &w->from_q_down;
        moe_inputs_set(from, w->q_down, w->stride.q_down, NULL, n_rows, l->q.cols);
        mm[0] = moe_inputs_mm(from, l->q, w->q, w->stride.q);
        if (c->q_twice)
            mm[1] = moe_inputs_mm(from, l->attn_gate, w->gate, w->stride.out);
        moe_matmul(mm, c->q_twice ? 2 : 1);
    } else {
        mm[1] = moe_inputs_mm(from, l->q, w->q, w->stride.q);
        moe_matmul(mm, n);
    }
    stages_cpu_multiply_blocks(w, &l->k_up, c->n_heads, n_rows, w->q + c->rope_dim, w->stride.q,
                               c->head_dim, w->queries + c->rope_dim, w->stride.queries,
                               moe_config_cache_key(c));
    moe_par_for(n_rows, 8, finish_latent_rows, p);
}

/* ---- Both ---- */

void moe_project_in(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                    uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    struct cpu_work *w = s->device;
    bool global = moe_config_is_global(c, layer);
    struct project p = {
        .s = s,
        .rows = rows,
        .layer = &s->model->layers[layer],
        .w = &w->attention,
        .heads = moe_config_heads(c, layer),
        .head_dim = moe_config_head_dim(c, layer),
        .kv_heads = moe_config_kv_heads(c, layer),
        .value_dim = moe_config_value_dim(c, layer),
        .rope_dim = global ? 2 * c->n_global_freqs : c->rope_dim,
        .global = global,
        .still = c->rope_in_windows && !c->layers[layer].windowed &&
                 !(c->rope_in_dense && !c->layers[layer].moe),
    };
    moe_inputs_set(&s->states.inputs, s->states.xn, s->states.stride, NULL, n_rows, c->hidden);
    if (c->kv_rank)
        project_latent(&p, n_rows);
    else
        project_heads(&p, n_rows);
}

static void add_bias_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct project *p = ctx;
    const struct cpu_work *w = p->s->device;
    for (int64_t i = begin; i < end; i++)
        moe_kern.add(p->layer->o_bias, p->s->model->config.hidden,
                     w->sum + (uint64_t)i * p->s->states.stride);
}

/* sum = o times the rows of `out`. */
static void multiply_out(struct moe_session *s, const struct moe_mat *o, uint32_t n_rows)
{
    struct cpu_work *work = s->device;
    struct cpu_attention *w = &work->attention;
    moe_inputs_set(&w->from_out, w->out, w->stride.out, NULL, n_rows, o->cols);
    struct moe_mm mm = moe_inputs_mm(&w->from_out, *o, work->sum, s->states.stride);
    moe_matmul(&mm, 1);
}

/* Pieces of a head: threads share those of a row, too. */
static void gate_heads(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct project *p = ctx;
    const struct moe_config *c = &p->s->model->config;
    for (int64_t i = begin; i < end; i++) {
        uint64_t row = (uint64_t)i / p->heads * p->w->stride.out, head = (uint64_t)i % p->heads;
        float *out = p->w->out + row + head * p->value_dim;
        const float *gate = p->w->gate + row + head * (c->gate_by_head ? 1 : p->value_dim);
        for (uint32_t d = 0; d < p->value_dim; d++) {
            float x = gate[c->gate_by_head ? 0 : d];
            out[d] *= c->gate_softplus ? moe_math_softplus(x) : moe_math_sigmoid(x);
        }
    }
}

void moe_project_out(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct cpu_attention *w = &((struct cpu_work *)s->device)->attention;
    if (c->kv_rank)
        stages_cpu_multiply_blocks(w, &l->v_up, c->n_heads, n_rows, w->attended, w->stride.attended,
                                   c->kv_rank, w->out, w->stride.out, c->value_dim);
    if (l->attn_gate.data) {
        struct project p = {.s = s,
                            .w = w,
                            .heads = moe_config_heads(c, layer),
                            .value_dim = moe_config_value_dim(c, layer)};
        moe_par_for((int64_t)n_rows * p.heads, 1, gate_heads, &p);
    }
    multiply_out(s, &l->o, n_rows);
    if (l->o_bias) {
        struct project p = {.s = s, .layer = l};
        moe_par_for(n_rows, 16, add_bias_rows, &p);
    }
}

/* ---- To sources ---- */

void moe_project_cross_in(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct cpu_attention *w = &((struct cpu_work *)s->device)->attention;
    struct moe_inputs *from = &s->states.inputs;
    moe_inputs_set(from, s->states.xn, s->states.stride, NULL, n_rows, s->model->config.hidden);
    struct moe_mm mm = moe_inputs_mm(from, s->model->layers[layer].cross_q, w->q, w->stride.q);
    moe_matmul(&mm, 1);
}

void moe_project_cross_out(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    multiply_out(s, &s->model->layers[layer].cross_o, n_rows);
}

void moe_project_source(struct moe_session *s, uint32_t layer)
{
    const struct cpu_attention *w = &((struct cpu_work *)s->device)->attention;
    const struct moe_layer *l = &s->model->layers[layer];
    struct moe_mm mm[2] = {
        moe_inputs_mm(&s->states.inputs, l->cross_k, w->k, w->stride.k),
        moe_inputs_mm(&s->states.inputs, l->cross_v, w->v, w->stride.v),
    };
    moe_matmul(mm, 2);
}

/* What a layer that drafts takes in (infer/forward.h): the next token and the state, joined. */

struct join {
    struct moe_session *s;
    const struct moe_layer *layer;
    const struct moe_row *rows;
    const float *last_norm; /* of what has left the states */
    const uint32_t *from;   /* rows of h that they are made of; NULL: the same */
    uint32_t first;         /* of all rows, that is the first here */
};

/* Rows of `joined`: both halves, each under its norm. */
static void join_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct join *j = ctx;
    const struct moe_model *m = j->s->model;
    const struct moe_config *c = &m->config;
    const struct moe_states *states = &j->s->states;
    const struct cpu_work *w = j->s->device;
    for (int64_t i = begin; i < end; i++) {
        float *spare = states->xn + (uint64_t)i * states->stride;
        float *joined = w->joined + (uint64_t)i * w->joined_stride;
        moe_layout_load_row(&m->embed, j->rows[i].token, spare);
        if (c->embed_scale != 1)
            moe_kern.scale(c->embed_scale, c->hidden, spare);
        moe_norm_row(c, spare, j->layer->ahead_token_norm, NULL, joined);
        const uint64_t row = j->first + (uint64_t)i, state = j->from ? j->from[row] : row;
        moe_norm_row(c, states->h + state * states->stride, j->last_norm, NULL, spare);
        moe_norm_row(c, spare, j->layer->ahead_state_norm, NULL, joined + c->hidden);
    }
}

int stages_cpu_join(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                    uint32_t n_rows, const uint32_t *from, struct moe_err *err)
{
    struct cpu_work *w = s->device;
    const struct moe_model *m = s->model;
    const struct moe_layer *l = &m->layers[layer];
    const struct moe_states *states = &s->states;
    (void)err;
    /* Some rows at a time. Their products take the place of states that were read: row i is never
     * behind the row that it is made of. */
    for (uint32_t at = 0; at < n_rows; at += CPU_JOINED_ROWS) {
        uint32_t n = n_rows - at < CPU_JOINED_ROWS ? n_rows - at : CPU_JOINED_ROWS;
        struct join j = {s, l, rows + at, s->drafts ? l->ahead_norm : m->final_norm, from, at};
        moe_par_for(n, 1, join_rows, &j);
        moe_inputs_set(&w->from_joined, w->joined, w->joined_stride, NULL, n, 2 * m->config.hidden);
        struct moe_mm mm = moe_inputs_mm(&w->from_joined, l->ahead_join,
                                         states->h + at * states->stride, states->stride);
        moe_matmul(&mm, 1);
    }
    return MOE_OK;
}
