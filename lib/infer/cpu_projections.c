/*
 * Attention's projections: the products that make queries, keys and values out of a layer's input,
 * with biases, norms, clipping and rotary positions, and those that make its output.
 *
 * Latent attention (DeepSeek-V2): of a position the cache keeps one normalized vector and one
 * rotated part for all heads. A head's keys and values are linear in that vector, so
 * queries are mapped into its space instead (k_up) and results back out of it (v_up), head by head.
 *
 * Attention to an encoder's output (cross_q and its neighbours) has only products and biases.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "base/rank.h"
#include "infer/cpu_stages.h"
#include "infer/router.h"
#include "kern/kern.h"
#include "kern/kern_math.h"
#include "model/rope.h"

struct project {
    struct moe_session *s;
    const struct moe_row *rows;
    const struct moe_layer *layer;
    struct cpu_attention *w;
    struct moe_inputs *from;                                 /* the layer's input */
    uint32_t heads, head_dim, kv_heads, value_dim, rope_dim; /* the layer's; heads 0: no queries */
    bool global, still;                                      /* still: nothing is rotated */
    uint32_t n_rows, number, state;                          /* state: recurrent_index */
    uint32_t kv_rank, rotated;                               /* of latent attention */
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

void stages_cpu_norm_bare(float *x, uint32_t n, float eps)
{
    float lane[MOE_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        lane[i % MOE_LANES] = fmaf(x[i], x[i], lane[i % MOE_LANES]);
    moe_kern.scale(moe_math_rms_scale(moe_math_join(lane), n, eps), n, x);
}

static void norm_bare(const struct project *p, float *x, uint32_t n_heads)
{
    for (uint32_t head = 0; head < n_heads; head++)
        stages_cpu_norm_bare(x + head * p->head_dim, p->head_dim, p->s->model->config.norm_eps);
}

/* Heads of n values, multiplied by weights (NULL: not), become no longer than that. */
static void clip_heads(float longest, const float *weights, uint32_t n_heads, uint32_t n, float *x)
{
    for (uint32_t i = 0; weights && i < n_heads * n; i++)
        x[i] *= weights[i];
    for (uint32_t head = 0; head < n_heads; head++, x += n) {
        float factor = longest / (sqrtf(moe_kern.dot(x, x, n)) + 1e-6f);
        if (factor < 1)
            moe_kern.scale(factor, n, x);
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
    if (c->qk_norm == MOE_QK_NORM_PLAIN)
        norm_bare(p, x, n_heads);
    if (c->qk_norm == MOE_QK_NORM_CLIP)
        clip_heads(c->qk_clip, norm, n_heads, p->head_dim, x);
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
    if (c->query_floor)
        return !c->layers[p->number].windowed;
    return c->query_step && (p->still || !c->rope_in_windows);
}

void stages_cpu_temper(const float *slope, const float *base, uint32_t n_heads, uint32_t width,
                       uint32_t position, float *queries)
{
    double log_position = log1p((double)position);
    for (uint32_t head = 0; head < n_heads; head++)
        moe_kern.scale((float)((double)slope[head] * log_position + (double)base[head]), width,
                       queries + (uint64_t)head * width);
}

/* ---- Convolutions of heads (ZAYA's CCA, MOE_STATE_CCA) ----
 * A sequence's state keeps, token by token, queries and keys as products made them, and the half of
 * the values that the next token uses. One convolution mixes two tokens channel by channel, a
 * second one its results head by head. The result is added to queries and keys, and each head also
 * gets half of the head that it is compared with. */

/* Channels of a head, or (the last) values, of all rows: what the matrices of heads take in, and
 * the values of the token before. */
static void convolve_heads(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct project *p = ctx;
    const struct cpu_work *work = p->s->device;
    const struct moe_recurrent *r = &work->states;
    const struct moe_layer *l = p->layer;
    uint32_t n = p->head_dim, n_heads = p->heads + p->kv_heads, channels = n_heads * n;
    for (int64_t head = begin; head < end; head++) {
        bool values = head == n_heads;
        uint32_t at = (uint32_t)head * n, of_values = p->kv_heads * p->value_dim / 2;
        for (uint32_t i = 0; i < p->n_rows; i++) {
            float *taps = moe_recurrent_taps(r, p->rows[i].sequence, p->state) + at;
            float *last = taps + r->stride, *x = p->w->q + i * p->w->stride.q + at;
            float *out = work->recurrent.mixed + i * work->recurrent.mixed_stride + 2 * at;
            if (head >= p->heads)
                x = p->w->k + i * p->w->stride.k + (at - p->heads * n);
            if (values)
                x = p->w->v + i * p->w->stride.v + of_values;
            uint32_t width = values ? of_values : n;
            for (uint32_t d = 0; d < width; d++) {
                float before = p->rows[i].position ? last[d] : 0, now = x[d];
                float first = p->rows[i].position ? taps[d] : 0;
                taps[d] = before;
                last[d] = now;
                if (values) {
                    x[d] = before;
                    continue;
                }
                const float *weights = l->head_conv + at + d;
                float bias = l->head_conv_bias[at + d];
                out[2 * d] = fmaf(weights[channels], before, fmaf(weights[0], first, bias));
                out[2 * d + 1] = fmaf(weights[channels], now, fmaf(weights[0], before, bias));
            }
        }
    }
}

/* Queries and keys of a row: what the convolutions gave, and half of each other; as long as the
 * root of their width, keys times a number of their head. */
static void join_heads(const struct project *p, uint64_t row, float *q, float *k)
{
    const struct cpu_work *work = p->s->device;
    const float *conv = work->recurrent.out + row * work->recurrent.values_stride;
    const float *bias = p->layer->head_mix_bias;
    uint32_t n = p->head_dim, group = p->heads / p->kv_heads, queries = p->heads * n;
    for (uint32_t at = 0; at < p->kv_heads * n; at++) {
        float sum = 0;
        for (uint32_t j = 0; j < group; j++) {
            uint32_t of = (at / n * group + j) * n + at % n;
            float both = (q[of] + k[at]) * 0.5f;
            sum += both;
            q[of] = conv[of] + bias[of] + both;
        }
        k[at] = conv[queries + at] + bias[queries + at] + sum / (float)group;
    }
    for (uint32_t head = 0; head < p->heads + p->kv_heads; head++) {
        bool is_key = head >= p->heads;
        float *x = is_key ? k + (head - p->heads) * n : q + head * n;
        float length = fmaxf(sqrtf(moe_kern.dot(x, x, n)), FLT_EPSILON);
        float scale = is_key ? p->layer->key_scale[head - p->heads] : 1;
        moe_kern.scale(scale * (sqrtf((float)n) / length), n, x);
    }
}

static void project_convolved(struct project *p, uint32_t n_rows)
{
    struct cpu_work *work = p->s->device;
    uint32_t n_heads = p->heads + p->kv_heads;
    moe_par_for(n_heads + 1, 1, convolve_heads, p);
    stages_cpu_multiply_blocks(p->w, &p->layer->head_mix, n_heads, n_rows, work->recurrent.mixed,
                               work->recurrent.mixed_stride, 2 * p->head_dim, work->recurrent.out,
                               work->recurrent.values_stride, p->head_dim);
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
        if (l->head_mix.data)
            join_heads(p, (uint64_t)i, q, k);
        if (!l->v.data)
            memcpy(v, k, kv_width * sizeof *v);
        finish_heads(p, q, p->heads, l->q_norm, cs);
        finish_heads(p, k, p->kv_heads, l->k_norm, cs);
        if (scales_queries(p))
            moe_kern.scale(moe_rope_query_factor(c, p->rows[i].position), p->heads * p->head_dim,
                           q);
        if (l->rel_scale)
            clip_heads(c->rel_clip, l->rel_scale, p->heads, c->rel_dim,
                       w->rel + (uint64_t)i * w->rel_stride);
        if (c->rel_dim && scales_queries(p))
            moe_kern.scale(moe_rope_query_factor(c, p->rows[i].position), p->heads * c->rel_dim,
                           w->rel + (uint64_t)i * w->rel_stride);
        if (c->value_norm)
            norm_bare(p, v, p->kv_heads);
        if (c->clip_qkv > 0)
            moe_kern.clamp(c->clip_qkv, values, v);
        if (c->value_scale != 1)
            moe_kern.scale(c->value_scale, values, v);
    }
}

/* ---- Attention made of experts (JetMoE) ----
 * A router chooses for each row the experts that make its queries, and its output; each has a head
 * for every head of keys and values. Experts stand in one matrix, block by block. */

static struct moe_mat block_of(const struct moe_mat *m, uint32_t block, uint32_t n_blocks)
{
    struct moe_mat of = *m;
    of.rows = m->rows / n_blocks;
    of.data += block * (of.rows / MOE_PANEL_ROWS * moe_layout_panel_bytes(m->layout, m->cols));
    return of;
}

static void choose_attention(const struct project *p)
{
    const struct moe_config *c = &p->s->model->config;
    const struct cpu_attention *w = p->w;
    uint32_t top_k = p->heads / p->kv_heads;
    struct moe_mm mm = moe_inputs_mm(&p->s->states.inputs, p->layer->attn_router, w->expert_scores,
                                     w->scores_stride);
    moe_matmul(&mm, 1);
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const float *scores = w->expert_scores + i * w->scores_stride;
        uint32_t *chosen = w->expert_chosen + i * top_k;
        float *weights = w->expert_weights + i * top_k;
        moe_best(scores, c->attn_experts, top_k, chosen);
        for (uint32_t k = 0; k < top_k; k++)
            weights[k] = scores[chosen[k]];
        moe_kern.softmax(weights, top_k);
    }
}

/* Lists, in expert_rows, the rows that chose the expert; returns how many. */
static uint32_t rows_of(const struct project *p, uint32_t expert)
{
    uint32_t n = 0, top_k = p->heads / p->kv_heads;
    for (uint32_t i = 0; i < p->n_rows * top_k; i++)
        if (p->w->expert_chosen[i] == expert)
            p->w->expert_rows[n++] = i / top_k;
    return n;
}

/* Copies an expert's heads of a row, which stand apart in it, from one another or back. */
static void move_heads(const struct project *p, uint32_t expert, uint32_t row, float *apart,
                       float *together, bool back)
{
    uint32_t top_k = p->heads / p->kv_heads, k = 0, n = p->head_dim;
    while (p->w->expert_chosen[row * top_k + k] != expert)
        k++;
    for (uint32_t head = 0; head < p->kv_heads; head++) {
        float *at = apart + (head * top_k + k) * n;
        memcpy(back ? at : together + head * n, back ? together + head * n : at, n * sizeof *at);
    }
}

static void project_queries_of_experts(struct project *p)
{
    const struct moe_config *c = &p->s->model->config;
    struct cpu_attention *w = p->w;
    const struct moe_states *states = &p->s->states;
    choose_attention(p);
    for (uint32_t e = 0; e < c->attn_experts; e++) {
        uint32_t n = rows_of(p, e);
        if (n == 0)
            continue;
        moe_inputs_set(&w->from_rows, states->xn, states->stride, w->expert_rows, n, c->hidden);
        struct moe_mm mm = moe_inputs_mm(&w->from_rows, block_of(&p->layer->q, e, c->attn_experts),
                                         w->out, w->stride.out);
        moe_matmul(&mm, 1);
        for (uint32_t i = 0; i < n; i++)
            move_heads(p, e, w->expert_rows[i], w->q + w->expert_rows[i] * w->stride.q,
                       w->out + i * w->stride.out, true);
    }
}

/* sum = what the rows' experts make of their heads, each times its weight. */
static void multiply_out_of_experts(const struct project *p)
{
    const struct moe_config *c = &p->s->model->config;
    const struct cpu_work *work = p->s->device;
    struct cpu_attention *w = p->w;
    const struct moe_states *states = &p->s->states;
    uint32_t top_k = p->heads / p->kv_heads;
    for (uint32_t i = 0; i < p->n_rows; i++)
        memset(work->sum + i * states->stride, 0, c->hidden * sizeof(float));
    for (uint32_t e = 0; e < c->attn_experts; e++) {
        uint32_t n = rows_of(p, e);
        if (n == 0)
            continue;
        for (uint32_t i = 0; i < n; i++)
            move_heads(p, e, w->expert_rows[i], w->out + w->expert_rows[i] * w->stride.out,
                       w->q + i * w->stride.q, false);
        moe_inputs_set(&w->from_out, w->q, w->stride.q, NULL, n, p->layer->o.cols);
        struct moe_mm mm = moe_inputs_mm(&w->from_out, block_of(&p->layer->o, e, c->attn_experts),
                                         states->expert_out, states->stride);
        moe_matmul(&mm, 1);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t row = w->expert_rows[i], k = row * top_k;
            while (w->expert_chosen[k] != e)
                k++;
            moe_kern.axpy(w->expert_weights[k], states->expert_out + i * states->stride, c->hidden,
                          work->sum + row * states->stride);
        }
    }
}

/* Keys, or values, that take in something else than queries: scores and norm are theirs, or NULL.
 */
static void project_mixed(struct project *p, enum moe_told what, const struct moe_mat *mat,
                          const float *scores, const float *norm, const struct moe_mat *own,
                          float *to, uint64_t stride)
{
    struct cpu_attention *w = p->w;
    uint32_t hidden = p->s->model->config.hidden;
    stages_cpu_streams_own(p->s, p->number, what, p->n_rows,
                           norm ? scores : p->layer->attn_mix.scores,
                           norm ? norm : p->layer->attn_norm, w->own_in);
    moe_inputs_set(&w->from_own, w->own_in, moe_padded(hidden), NULL, p->n_rows, hidden);
    struct moe_mm mm[2] = {moe_inputs_mm(&w->from_own, *mat, to, stride)};
    if (own->data)
        mm[1] = moe_inputs_mm(&w->from_own, *own, w->own_taps, w->taps_stride);
    moe_matmul(mm, own->data ? 2 : 1);
}

/* Convolves keys, or values. */
static void add_head_taps(const struct project *p, const float *weights, const struct moe_mat *own,
                          uint64_t at, uint32_t head, float *x, uint64_t stride)
{
    const struct cpu_taps taps = {
        .weights = weights,
        .own = own->data ? p->w->own_taps : NULL,
        .x = x,
        .scale = moe_config_taps_scale(&p->s->model->config, own->data != NULL),
        .at = at,
        .stride = stride,
        .own_stride = p->w->taps_stride,
        .n = p->kv_heads * head,
        .head = head,
    };
    stages_cpu_add_taps(p->s, p->number, p->rows, p->n_rows, &taps);
}

static void project_heads(struct project *p, uint32_t n_rows)
{
    const struct moe_layer *l = p->layer;
    struct cpu_attention *w = p->w;
    struct moe_inputs *from = p->from;
    struct moe_mm mm[7];
    bool mixed = l->k_input_norm || moe_config_is_told(&p->s->model->config, p->number);
    int n = 0;
    if (!l->attn_router.data && p->heads)
        mm[n++] = moe_inputs_mm(from, l->q, w->q, w->stride.q);
    if (l->k.data && !mixed)
        mm[n++] = moe_inputs_mm(from, l->k, w->k, w->stride.k);
    if (l->v.data && !mixed)
        mm[n++] = moe_inputs_mm(from, l->v, w->v, w->stride.v);
    if (l->own_sinks.data)
        mm[n++] = moe_inputs_mm(from, l->own_sinks, w->own_sinks, w->sinks_stride);
    if (l->v_late.data)
        mm[n++] = moe_inputs_mm(from, l->v_late, w->v + l->v.rows, w->stride.v);
    if (l->attn_gate.data)
        mm[n++] = moe_inputs_mm(from, l->attn_gate, w->gate, w->stride.out);
    if (l->rel.data)
        mm[n++] = moe_inputs_mm(from, l->rel, w->rel, w->rel_stride);
    moe_matmul(mm, n);
    if (mixed)
        project_mixed(p, MOE_TELLS_K, &l->k, l->k_scores, l->k_input_norm, &l->taps_k_own, w->k,
                      w->stride.k);
    if (l->taps_k)
        add_head_taps(p, l->taps_k, &l->taps_k_own, 0, p->head_dim, w->k, w->stride.k);
    if (mixed)
        project_mixed(p, MOE_TELLS_V, &l->v, l->v_scores, l->v_input_norm, &l->taps_v_own, w->v,
                      w->stride.v);
    if (l->taps_v)
        add_head_taps(p, l->taps_v, &l->taps_v_own,
                      ((struct cpu_work *)p->s->device)->states.values_at, p->value_dim, w->v,
                      w->stride.v);
    if (l->attn_router.data)
        project_queries_of_experts(p);
    if (l->head_mix.data)
        project_convolved(p, n_rows);
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
 * v. */
static void finish_latent_key(const struct project *p, float *k, float *v, const float *cs)
{
    const struct moe_config *c = &p->s->model->config;
    float scale = p->global ? c->global_latent_scale : c->latent_scale;
    if (p->rotated == 0)
        memset(k, 0, c->rope_dim * sizeof *k);
    memcpy(k, v + p->kv_rank, p->rotated * sizeof *k);
    if (c->latent_key_norm)
        moe_kern.rms_norm(k, p->layer->k_norm, p->rotated, c->norm_eps, k);
    if (cs)
        moe_kern.rope(k, cs, p->rotated);
    moe_kern.rms_norm(v, p->layer->kv_down_norm, p->kv_rank, moe_config_latent_eps(c), v);
    if (scale != 1)
        moe_kern.scale(scale, p->kv_rank, v);
    memcpy(k + c->rope_dim, v, p->kv_rank * sizeof *k);
}

/* The queries' rotated parts go beside the rest, which k_up has made. */
static void finish_latent_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct project *p = ctx;
    const struct moe_config *c = &p->s->model->config;
    const struct cpu_attention *w = p->w;
    uint32_t key = c->rope_dim + p->kv_rank;
    for (int64_t i = begin; i < end; i++) {
        float *queries = w->queries + (uint64_t)i * w->stride.queries;
        const float *cs = angles(p, i);
        if (p->layer->kv_down.data)
            finish_latent_key(p, w->k + (uint64_t)i * w->stride.k, w->v + (uint64_t)i * w->stride.v,
                              cs);
        for (uint32_t head = 0; head < p->heads; head++) {
            float *query = queries + head * key;
            if (p->rotated == 0)
                memset(query, 0, c->rope_dim * sizeof *query);
            memcpy(query, w->q + (uint64_t)i * w->stride.q + head * p->head_dim,
                   p->rotated * sizeof *query);
            if (cs)
                moe_kern.rope(query, cs, p->rotated);
            if (scales_queries(p))
                moe_kern.scale(moe_rope_query_factor(c, p->rows[i].position), key, query);
        }
        if (p->layer->slope)
            stages_cpu_temper(p->layer->slope, p->layer->base, p->heads, key, p->rows[i].position,
                              queries);
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
    struct moe_inputs *from = p->from;
    struct moe_mm mm[3];
    int n = 0;
    if (l->kv_down.data) /* else the layer sees those of another one */
        mm[n++] = moe_inputs_mm(from, l->kv_down, w->v, w->stride.v);
    if (l->attn_gate.data && !c->q_twice)
        mm[n++] = moe_inputs_mm(from, l->attn_gate, w->gate, w->stride.out);
    if (c->q_rank) {
        mm[n++] = moe_inputs_mm(from, l->q_down, w->q_down, w->stride.q_down);
        moe_matmul(mm, n);
        moe_par_for(n_rows, 16, norm_q_down_rows, p);
        from = &w->from_q_down;
        moe_inputs_set(from, w->q_down, w->stride.q_down, NULL, n_rows, l->q.cols);
        mm[0] = moe_inputs_mm(from, l->q, w->q, w->stride.q);
        if (c->q_twice)
            mm[1] = moe_inputs_mm(from, l->attn_gate, w->gate, w->stride.out);
        moe_matmul(mm, c->q_twice ? 2 : 1);
    } else {
        mm[n++] = moe_inputs_mm(from, l->q, w->q, w->stride.q);
        moe_matmul(mm, n);
    }
    stages_cpu_multiply_blocks(w, &l->k_up, p->heads, n_rows, w->q + p->rotated, w->stride.q,
                               p->head_dim, w->queries + c->rope_dim, w->stride.queries,
                               c->rope_dim + p->kv_rank);
    moe_par_for(n_rows, 8, finish_latent_rows, p);
}

/* ---- Both ---- */

static struct project project_of(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                                 uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    struct cpu_work *w = s->device;
    bool global = moe_config_is_global(c, layer);
    return (struct project){
        .s = s,
        .rows = rows,
        .layer = &s->model->layers[layer],
        .w = &w->attention,
        .from = c->drafter_kind == MOE_DRAFTS_EAGLE3 ? &w->from_joined : &s->states.inputs,
        .heads = moe_config_heads(c, layer),
        .head_dim = moe_config_head_dim(c, layer),
        .kv_heads = moe_config_kv_heads(c, layer),
        .value_dim = moe_config_value_dim(c, layer),
        .rope_dim = global ? 2 * c->n_global_freqs : c->rope_dim,
        .global = global,
        .n_rows = n_rows,
        .number = layer,
        .state = c->layers[layer].recurrent_index,
        .still = c->layers[layer].unrotated || (c->rope_in_windows && !c->layers[layer].windowed &&
                                                !(c->rope_in_dense && !c->layers[layer].moe)),
        .kv_rank = moe_config_kv_rank(c, layer),
        .rotated = moe_config_rotated(c, layer),
    };
}

void moe_project_in(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                    uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    struct project p = project_of(s, layer, rows, n_rows);
    moe_inputs_set(&s->states.inputs, s->states.xn, s->states.stride, NULL, n_rows, c->hidden);
    if (c->kv_rank)
        project_latent(&p, n_rows);
    else
        project_heads(&p, n_rows);
}

void moe_project_keys(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows)
{
    struct project p = project_of(s, layer, rows, n_rows);
    p.heads = 0;
    project_heads(&p, n_rows);
}

struct bias {
    const float *bias; /* [width] */
    float *rows;
    uint64_t stride;
    uint32_t width;
};

static void add_bias_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct bias *b = ctx;
    for (int64_t i = begin; i < end; i++)
        moe_kern.add(b->bias, b->width, b->rows + (uint64_t)i * b->stride);
}

/* Adds a bias, or without one (NULL) nothing, to rows of that width. */
static void add_bias(const float *bias, uint32_t width, float *rows, uint64_t stride,
                     uint32_t n_rows)
{
    struct bias b = {bias, rows, stride, width};
    if (bias)
        moe_par_for(n_rows, 16, add_bias_rows, &b);
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
        const float bias = p->layer->attn_gate_bias ? p->layer->attn_gate_bias[head] : 0;
        if (c->out_norm)
            stages_cpu_norm_bare(out, p->value_dim, c->norm_eps);
        for (uint32_t d = 0; d < p->value_dim; d++) {
            float x = gate[c->gate_by_head ? 0 : d] + bias;
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
        stages_cpu_multiply_blocks(w, &l->v_up, moe_config_heads(c, layer), n_rows, w->attended,
                                   w->stride.attended, moe_config_kv_rank(c, layer), w->out,
                                   w->stride.out, c->value_dim);
    if (l->attn_gate.data) {
        struct project p = {.s = s,
                            .layer = l,
                            .w = w,
                            .heads = moe_config_heads(c, layer),
                            .value_dim = moe_config_value_dim(c, layer)};
        moe_par_for((int64_t)n_rows * p.heads, 1, gate_heads, &p);
    }
    if (l->attn_router.data) {
        const struct project p = {.s = s,
                                  .layer = l,
                                  .w = w,
                                  .n_rows = n_rows,
                                  .heads = c->n_heads,
                                  .kv_heads = c->n_kv_heads,
                                  .head_dim = c->head_dim};
        multiply_out_of_experts(&p);
    } else {
        multiply_out(s, &l->o, n_rows);
    }
    add_bias(l->o_bias, c->hidden, ((struct cpu_work *)s->device)->sum, s->states.stride, n_rows);
}

/* ---- To sources ---- */

void moe_project_cross_in(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct cpu_attention *w = &((struct cpu_work *)s->device)->attention;
    struct moe_inputs *from = &s->states.inputs;
    moe_inputs_set(from, s->states.xn, s->states.stride, NULL, n_rows, s->model->config.hidden);
    const struct moe_layer *l = &s->model->layers[layer];
    struct moe_mm mm = moe_inputs_mm(from, l->cross_q, w->q, w->stride.q);
    moe_matmul(&mm, 1);
    add_bias(l->cross_q_bias, l->cross_q.rows, w->q, w->stride.q, n_rows);
}

void moe_project_cross_out(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct moe_layer *l = &s->model->layers[layer];
    multiply_out(s, &l->cross_o, n_rows);
    add_bias(l->cross_o_bias, l->cross_o.rows, ((struct cpu_work *)s->device)->sum,
             s->states.stride, n_rows);
}

void moe_project_source(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct cpu_attention *w = &((struct cpu_work *)s->device)->attention;
    const struct moe_layer *l = &s->model->layers[layer];
    struct moe_mm mm[2] = {
        moe_inputs_mm(&s->states.inputs, l->cross_k, w->k, w->stride.k),
        moe_inputs_mm(&s->states.inputs, l->cross_v, w->v, w->stride.v),
    };
    moe_matmul(mm, 2);
    add_bias(l->cross_k_bias, l->cross_k.rows, w->k, w->stride.k, n_rows);
    add_bias(l->cross_v_bias, l->cross_v.rows, w->v, w->stride.v, n_rows);
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

/* The same of a head that reads several streams of its model. */

/* Rows of what the layer adds to, and of what its attention takes in: the token beside it, each
 * under its norm. */
static void join_read_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct join *j = ctx;
    const struct moe_model *m = j->s->model;
    const struct moe_config *c = &m->config;
    const struct moe_states *states = &j->s->states;
    const struct cpu_work *w = j->s->device;
    for (int64_t i = begin; i < end; i++) {
        float *embedded = states->xn + (uint64_t)i * states->stride;
        float *h = states->h + (uint64_t)i * states->stride;
        float *joined = w->joined + (uint64_t)i * w->joined_stride;
        moe_layout_load_row(&m->embed, j->rows[i].token, embedded);
        moe_norm_row(c, embedded, j->layer->attn_norm, NULL, joined);
        moe_norm_row(c, h, m->read_norm, NULL, joined + c->hidden);
        if (c->normed_stream)
            memcpy(h, joined + c->hidden, c->hidden * sizeof *h);
    }
}

static void norm_read_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct join *j = ctx;
    const struct moe_config *c = &j->s->model->config;
    const struct cpu_work *w = j->s->device;
    for (int64_t i = begin; i < end; i++) {
        float *reads = w->reads + (j->from ? j->from[i] : (uint64_t)i) * w->reads_stride;
        moe_kern.rms_norm(reads, j->last_norm, c->n_reads * c->hidden, c->norm_eps, reads);
    }
}

/* The vector that is made of the streams of each row, into `to`. */
static void fuse_reads(struct moe_session *s, uint32_t n_rows, const uint32_t *from, float *to)
{
    struct cpu_work *w = s->device;
    const struct moe_model *m = s->model;
    struct join j = {.s = s, .last_norm = m->reads_norm, .from = from};
    if (m->reads_norm)
        moe_par_for(n_rows, 1, norm_read_rows, &j);
    moe_inputs_set(&w->from_reads, w->reads, w->reads_stride, from, n_rows,
                   m->config.n_reads * m->config.hidden);
    struct moe_mm mm = moe_inputs_mm(&w->from_reads, m->reads_join, to, s->states.stride);
    moe_matmul(&mm, 1);
}

static int join_reads(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                      const uint32_t *from)
{
    struct cpu_work *w = s->device;
    const struct moe_model *m = s->model;
    const struct moe_states *states = &s->states;
    const uint32_t hidden = m->config.hidden;
    struct join j = {s, &m->layers[0], rows, NULL, from, 0};
    if (!s->drafts)
        fuse_reads(s, n_rows, from, states->h);
    for (uint32_t i = 0; s->drafts && from && i < n_rows; i++) /* row i is never behind from[i] */
        memmove(states->h + i * states->stride, states->h + from[i] * states->stride,
                hidden * sizeof(float));
    moe_par_for(n_rows, 1, join_read_rows, &j);
    moe_inputs_set(&w->from_joined, w->joined, w->joined_stride, NULL, n_rows, 2 * hidden);
    return MOE_OK;
}

static void norm_fused_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct moe_session *s = ctx;
    for (int64_t i = begin; i < end; i++) {
        float *xn = s->states.xn + (uint64_t)i * s->states.stride;
        moe_norm_row(&s->model->config, xn, s->model->read_norm, NULL, xn);
    }
}

/* The same of a head that drafts blocks: what all its layers make keys and values of. */
static int norm_reads(struct moe_session *s, uint32_t n_rows, const uint32_t *from)
{
    struct moe_states *states = &s->states;
    fuse_reads(s, n_rows, from, states->xn);
    moe_par_for(n_rows, 16, norm_fused_rows, s);
    moe_inputs_set(&states->inputs, states->xn, states->stride, NULL, n_rows,
                   s->model->config.hidden);
    return MOE_OK;
}

int stages_cpu_join(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                    uint32_t n_rows, const uint32_t *from, struct moe_err *err)
{
    struct cpu_work *w = s->device;
    const struct moe_model *m = s->model;
    const struct moe_layer *l = &m->layers[layer];
    const struct moe_states *states = &s->states;
    if (m->config.draft_block)
        return norm_reads(s, n_rows, from);
    if (m->config.drafter_kind)
        return join_reads(s, rows, n_rows, from);
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
