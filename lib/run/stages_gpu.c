/*
 * The stages on a GPU. Everything is asked of its compute stream and happens there in order; the
 * host waits where a router has to speak (stages_gpu_experts.c) and for results. A decoded token
 * whose experts all lie on the device needs nothing of the host between its embedding and its
 * logits: its layers are recorded once and started by one call.
 */
#include "run/stages_gpu.h"

#include <math.h>
#include <string.h>

#include "base/text.h"
#include "kern/kern.h"
#include "run/gpu_moments.h"
#include "run/workspace.h"

_Static_assert(sizeof(struct moe_row) == sizeof(struct moe_gpu_row),
               "rows are uploaded as they are");

/* ---- Into and out of a pass --------------------------------------------------------------------
 */

static int enter(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                 const float *hidden_in, struct moe_err *err)
{
    struct gpu_work *g = s->gpu_work;
    const struct moe_config *c = &s->model->config;
    int status = moe_gpu_mark_wait(g->entered, err); /* the rows before are on the device */
    if (status != MOE_OK)
        return status;
    memcpy(g->host_rows, rows, n_rows * sizeof *rows);
    g->n_rows = n_rows;
    g->normed_for = UINT32_MAX;
    g->end = 0;
    for (uint32_t i = 0; i < n_rows; i++)
        if (rows[i].position >= g->end)
            g->end = rows[i].position + 1;
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->rows, g->host_rows, n_rows * sizeof *rows);
    moe_gpu_mark_set(g->entered, MOE_GPU_COMPUTE);
    for (uint32_t i = 0; hidden_in && i < n_rows; i++)
        moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->h + i * g->hidden_stride,
                       hidden_in + (uint64_t)i * c->hidden, c->hidden * sizeof(float));
    if (!hidden_in)
        moe_gpu_embed(g->gpu, &s->model->embed, g->rows, n_rows, c->embed_scale, g->h,
                      g->hidden_stride);
    return moe_gpu_status(g->gpu, err);
}

/* Where the clocks cannot be tied together, there are no spans. */
static void reached(struct moe_session *s, uint32_t layer, const char *part)
{
    struct gpu_work *g = s->gpu_work;
    if (!g->moments)
        gpu_moments_open(&g->moments, g->gpu, 3 * s->model->config.n_layers, NULL);
    if (g->moments)
        gpu_moments_add(g->moments, layer, part);
}

static int leave(struct moe_session *s, uint32_t n_rows, float *hidden_out, struct moe_err *err)
{
    const struct gpu_work *g = s->gpu_work;
    uint32_t hidden = s->model->config.hidden;
    int status = s->timeline && g->moments ? gpu_moments_write(g->moments, s->timeline, err)
                                           : moe_gpu_status(g->gpu, err);
    if (status != MOE_OK || !hidden_out)
        return status;
    for (uint32_t i = 0; i < n_rows; i++)
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, hidden_out + (uint64_t)i * hidden,
                         g->h + i * g->hidden_stride, hidden * sizeof(float));
    return moe_gpu_finish(g->gpu, err);
}

/* ---- Attention ---------------------------------------------------------------------------------
 */

static struct moe_gpu_norm norm_of(const struct moe_session *s, const float *weights,
                                   const float *bias, struct moe_gpu_act out)
{
    const struct gpu_work *g = s->gpu_work;
    const struct moe_config *c = &s->model->config;
    return (struct moe_gpu_norm){
        .h = g->h,
        .h_stride = g->hidden_stride,
        .cols = c->hidden,
        .layer = c->norm_kind == MOE_NORM_LAYER,
        .weights = weights,
        .bias = bias,
        .eps = c->norm_eps,
        .out = out,
    };
}

static struct moe_gpu_product product(struct moe_mat w, const struct moe_gpu_act *act, uint32_t n,
                                      float *y, uint64_t y_stride)
{
    return (struct moe_gpu_product){.w = w, .act = act, .n = n, .y = y, .y_stride = y_stride};
}

/* Asks for the products; what is left to be done with them is returned. */
static struct moe_gpu_heads project_heads(struct moe_session *s, uint32_t layer,
                                          const struct moe_gpu_act *in, uint32_t n_rows)
{
    static const enum moe_gpu_qk_norm kinds[] = {
        [MOE_QK_NORM_NONE] = MOE_GPU_QK_NORM_NONE,
        [MOE_QK_NORM_HEAD] = MOE_GPU_QK_NORM_HEAD,
        [MOE_QK_NORM_FULL] = MOE_GPU_QK_NORM_FULL,
    };
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct gpu_work *g = s->gpu_work;
    const struct moe_gpu_product products[3] = {
        product(l->q, in, n_rows, g->q, g->q_stride),
        product(l->k, in, n_rows, g->k, g->k_stride),
        product(l->v, in, n_rows, g->v, g->v_stride),
    };
    moe_gpu_matmul(g->gpu, products, 3);
    return (struct moe_gpu_heads){
        .q = g->q,
        .k = g->k,
        .v = g->v,
        .q_stride = g->q_stride,
        .k_stride = g->k_stride,
        .v_stride = g->v_stride,
        .q_bias = l->q_bias,
        .k_bias = l->k_bias,
        .v_bias = l->v_bias,
        .qk_norm = kinds[c->qk_norm],
        .q_norm = l->q_norm,
        .k_norm = l->k_norm,
        .eps = c->norm_eps,
        .clip = c->clip_qkv,
        .rope = g->rope,
        .rope_dim = c->rope_dim,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .rows = g->rows,
        .kv = g->kv,
        .layer = layer,
    };
}

/* What a matrix that has rows for each head multiplies: inputs of all heads at x, with room for
 * their byte forms. */
static struct moe_gpu_act heads_act(const struct gpu_work *g, const struct moe_mat *m, float *x,
                                    uint64_t x_stride)
{
    struct moe_gpu_act all = {.cols = m->cols, .x = x, .x_stride = x_stride};
    gpu_act_want(&all, &g->heads, m->layout);
    return all;
}

/* y[i][head * y_width ..] = (rows [head * rows_each ..) of m) x[i][head * x_width ..] for all
 * heads, as projections.c does; the x are those of `all`, whose byte forms are filled. */
static void multiply_heads(struct moe_session *s, const struct moe_mat *m, uint32_t n_rows,
                           const struct moe_gpu_act *all, uint32_t x_width, float *y,
                           uint64_t y_stride, uint32_t y_width)
{
    struct moe_gpu_product heads = product(*m, all, n_rows, y, y_stride);
    heads.n_parts = s->model->config.n_heads;
    heads.w.rows = m->rows / heads.n_parts;
    heads.in_part = x_width;
    heads.y_part = y_width;
    moe_gpu_matmul(s->gpu_work->gpu, &heads, 1);
}

static void project_latent(struct moe_session *s, uint32_t layer, const struct moe_gpu_act *in,
                           uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct gpu_work *g = s->gpu_work;
    struct moe_gpu_product list[2] = {product(l->kv_down, in, n_rows, g->v, g->v_stride)};
    if (c->q_rank) {
        list[1] = list[0];
        list[0] = product(l->q_down, in, n_rows, g->q_down_raw, g->q_down_stride);
        struct moe_gpu_act out = gpu_act_plain(&g->q_down, c->q_rank);
        gpu_act_want(&out, &g->q_down, l->q.layout);
        const struct moe_gpu_norm norm = {
            .h = g->q_down_raw,
            .h_stride = g->q_down_stride,
            .cols = c->q_rank,
            .weights = l->q_down_norm,
            .eps = c->norm_eps,
            .out = out,
        };
        const struct moe_gpu_then then = {.norm = &norm, .n = n_rows};
        moe_gpu_matmul_then(g->gpu, list, 2, &then);
        list[0] = product(l->q, &out, n_rows, g->q, g->q_stride);
        moe_gpu_matmul(g->gpu, list, 1);
    } else {
        list[1] = product(l->q, in, n_rows, g->q, g->q_stride);
        moe_gpu_matmul(g->gpu, list, 2);
    }
    const struct moe_gpu_act nope = heads_act(g, &l->k_up, g->q + c->rope_dim, g->q_stride);
    const struct moe_gpu_latent latent = {
        .q = g->q,
        .v = g->v,
        .queries = g->queries,
        .q_stride = g->q_stride,
        .v_stride = g->v_stride,
        .queries_stride = g->queries_stride,
        .kv_norm = l->kv_down_norm,
        .eps = c->norm_eps,
        .rope = g->rope,
        .rope_dim = c->rope_dim,
        .n_heads = c->n_heads,
        .head_dim = c->head_dim,
        .kv_rank = c->kv_rank,
        .rows = g->rows,
        .kv = g->kv,
        .layer = layer,
        .nope = &nope,
    };
    moe_gpu_finish_latent(g->gpu, &latent, n_rows);
    multiply_heads(s, &l->k_up, n_rows, &nope, c->head_dim, g->queries + c->rope_dim,
                   g->queries_stride, moe_config_cache_key(c));
}

/* fresh: what is still to be done before, or NULL; out: the byte forms to be filled behind, of rows
 * or of their heads. */
static void attend_cache(struct moe_session *s, uint32_t layer, uint32_t n_rows,
                         const struct moe_gpu_heads *fresh, const struct moe_gpu_act *out,
                         uint32_t out_parts)
{
    const struct moe_config *c = &s->model->config;
    struct gpu_work *g = s->gpu_work;
    const struct moe_gpu_attention attention = {
        .queries = g->queries,
        .attended = g->attended,
        .queries_stride = g->queries_stride,
        .attended_stride = g->attended_stride,
        .kv = g->kv,
        .layer = layer,
        .n_heads = c->n_heads,
        .scale = c->attn_scale,
        .window = c->layer_is_windowed[layer] ? c->window : 0,
        .sinks = s->model->layers[layer].sinks,
        .rows = g->rows,
        .end = g->end,
        .scratch = g->attention,
        .scratch_bytes = g->attention_bytes,
        .fresh = fresh,
        .out = out,
        .out_parts = out_parts,
    };
    moe_gpu_attention(g->gpu, &attention, n_rows);
}

/* The norm in front of a layer's attention. */
static struct moe_gpu_norm attention_norm(const struct moe_session *s, uint32_t layer)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    const struct moe_gpu_act *room = &s->gpu_work->hidden;
    struct moe_gpu_act in = gpu_act_plain(room, c->hidden);
    gpu_act_want(&in, room, l->q_down.layout);
    gpu_act_want(&in, room, l->kv_down.layout);
    if (!c->q_rank)
        gpu_act_want(&in, room, l->q.layout);
    gpu_act_want(&in, room, l->k.layout);
    gpu_act_want(&in, room, l->v.layout);
    return norm_of(s, l->attn_norm, l->attn_norm_bias, in);
}

const struct moe_gpu_norm *stages_gpu_next_norm(struct moe_session *s, uint32_t layer,
                                                struct moe_gpu_norm *norm)
{
    if (layer + 1 >= s->model->config.n_layers)
        return NULL;
    *norm = attention_norm(s, layer + 1);
    s->gpu_work->normed_for = layer + 1;
    return norm;
}

/* Lets loads move on: they end while the device computes. */
static int poll(struct moe_session *s, struct moe_err *err)
{
    const struct moe_experts_ops *ops = s->experts->ops;
    return ops->poll ? ops->poll(s->experts, err) : MOE_OK;
}

static int attend(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct gpu_work *g = s->gpu_work;
    struct moe_gpu_norm norm = attention_norm(s, layer);
    const struct moe_gpu_act in = norm.out;
    if (g->normed_for != layer)
        moe_gpu_add_norm(g->gpu, &norm, n_rows);
    struct moe_gpu_act out = gpu_act_plain(&g->from_attn, c->n_heads * c->value_dim);
    gpu_act_want(&out, &g->from_attn, l->o.layout);
    if (c->kv_rank) {
        struct moe_gpu_act heads = heads_act(g, &l->v_up, g->attended, g->attended_stride);
        project_latent(s, layer, &in, n_rows);
        attend_cache(s, layer, n_rows, NULL, &heads, c->n_heads);
        multiply_heads(s, &l->v_up, n_rows, &heads, c->kv_rank, g->attn, g->attn_stride,
                       c->value_dim);
        moe_gpu_prepare(g->gpu, g->attn, g->attn_stride, n_rows, 1, 0, &out);
    } else {
        const struct moe_gpu_heads fresh = project_heads(s, layer, &in, n_rows);
        attend_cache(s, layer, n_rows, &fresh, &out, 1);
    }
    const struct moe_gpu_product o = product(l->o, &out, n_rows, g->sum, g->hidden_stride);
    norm = norm_of(s, l->ffn_norm, l->ffn_norm_bias, stages_gpu_ffn_inputs(s, layer));
    norm.add = g->sum;
    norm.add_stride = g->hidden_stride;
    norm.add_bias = l->o_bias;
    norm.add_scale = c->residual_scale;
    const struct moe_gpu_then then = {.norm = &norm, .n = n_rows};
    moe_gpu_matmul_then(g->gpu, &o, 1, &then);
    return poll(s, err);
}

/* ---- Recorded layers ---------------------------------------------------------------------------
 */

/* Positions that a recording for this one reaches: a power of two of chunks, so that a context of n
 * chunks needs log n recordings. */
static uint32_t reach(const struct moe_session *s, uint32_t end)
{
    uint64_t positions = MOE_ATTENTION_CHUNK;
    while (positions < end)
        positions *= 2;
    return positions < s->context ? (uint32_t)positions : s->context;
}

static void record(struct moe_session *s, struct gpu_graph *recording)
{
    struct gpu_work *g = s->gpu_work;
    const struct moe_row *rows = (const struct moe_row *)g->host_rows;
    moe_gpu_graph_begin(g->gpu);
    for (uint32_t layer = 0; layer < s->model->config.n_layers; layer++) {
        attend(s, layer, rows, 1, NULL);
        if (!s->model->layers[layer].is_moe)
            stages_gpu_dense(s, layer, 1, NULL);
        else
            stages_gpu_alone(s, layer, 1);
    }
    moe_gpu_graph_end(g->gpu, &recording->graph, NULL);
}

/* The recording that reaches so far, or room for it; NULL: there is none. */
static struct gpu_graph *find_recording(struct gpu_work *g, uint32_t end)
{
    for (uint32_t i = 0; i < g->n_graphs; i++)
        if (g->graphs[i].end == end)
            return &g->graphs[i];
    if (g->n_graphs == GPU_MAX_GRAPHS)
        return NULL;
    g->graphs[g->n_graphs] = (struct gpu_graph){.end = end};
    return &g->graphs[g->n_graphs++];
}

static bool replay(struct moe_session *s, uint32_t n_rows, uint32_t layer_begin, uint32_t layer_end)
{
    struct gpu_work *g = s->gpu_work;
    if (!g->recordable || s->ahead || s->timeline || n_rows != 1 || layer_begin != 0 ||
        layer_end != s->model->config.n_layers)
        return false;
    uint32_t end = reach(s, g->end);
    struct gpu_graph *recording = find_recording(g, end);
    if (!recording)
        return false;
    g->end = end;
    /* The first row goes layer by layer: kernels are loaded when they first run, which must not
     * happen while recording. */
    if (!recording->has_run) {
        recording->has_run = true;
        return false;
    }
    if (!recording->graph)
        record(s, recording);
    if (recording->graph)
        moe_gpu_graph_run(g->gpu, recording->graph);
    return recording->graph != NULL;
}

/* ---- The head ----------------------------------------------------------------------------------
 */

/* Logits of at most GPU_LOGITS_ROWS rows, on the device. */
static void head(struct moe_session *s, uint32_t first, uint32_t n)
{
    const struct moe_model *m = s->model;
    struct gpu_work *g = s->gpu_work;
    struct moe_gpu_act in = gpu_act_plain(&g->hidden, m->config.hidden);
    gpu_act_want(&in, &g->hidden, m->head.layout);
    struct moe_gpu_norm norm = norm_of(s, m->final_norm, m->final_norm_bias, in);
    norm.h += first * g->hidden_stride;
    moe_gpu_add_norm(g->gpu, &norm, n);
    const struct moe_gpu_product p = product(m->head, &in, n, g->logits, g->logits_stride);
    moe_gpu_matmul(g->gpu, &p, 1);
    if (m->head_bias || m->config.logit_scale != 1)
        moe_gpu_finish_logits(g->gpu, g->logits, g->logits_stride, n, m->config.vocab, m->head_bias,
                              m->config.logit_scale);
}

static int not_numbers(struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_FORMAT, "the logits are not numbers (damaged weights?)");
}

static int logits_of(struct moe_session *s, uint32_t first, uint32_t n, float *logits,
                     struct moe_err *err)
{
    const struct gpu_work *g = s->gpu_work;
    for (uint32_t i = 0, part; i < n; i += part) {
        part = n - i < GPU_LOGITS_ROWS ? n - i : GPU_LOGITS_ROWS;
        float *to = logits + i * g->logits_stride;
        head(s, first + i, part);
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, to, g->logits,
                         part * g->logits_stride * sizeof(float));
        int status = moe_gpu_finish(g->gpu, err);
        if (status != MOE_OK)
            return status;
        /* A number of the stream that is none makes all logits of its row so. */
        for (uint32_t row = 0; g->table && row < part; row++)
            if (isnan(to[row * g->logits_stride]))
                return not_numbers(err);
    }
    return MOE_OK;
}

static int greedy(struct moe_session *s, uint32_t row, uint32_t *token, struct moe_err *err)
{
    const struct gpu_work *g = s->gpu_work;
    head(s, row, 1);
    moe_gpu_argmax(g->gpu, g->logits, g->logits_stride, 1, s->model->config.vocab, g->tokens);
    moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, g->host_token, g->tokens, sizeof *token);
    int status = moe_gpu_finish(g->gpu, err);
    if (status != MOE_OK)
        return status;
    *token = *g->host_token;
    return *token == UINT32_MAX ? not_numbers(err) : MOE_OK;
}

static void close_gpu(struct moe_session *s)
{
    gpu_work_close(s->gpu_work);
}

const struct moe_stages_ops moe_stages_gpu = {
    .name = "gpu",
    .enter = enter,
    .replay = replay,
    .attend = attend,
    .dense = stages_gpu_dense,
    .alone = stages_gpu_alone,
    .route = stages_gpu_route,
    .grouped = stages_gpu_grouped,
    .beside = stages_gpu_beside,
    .at_once = stages_gpu_at_once,
    .experts = stages_gpu_experts,
    .take = stages_gpu_take,
    .combine = stages_gpu_combine,
    .reached = reached,
    .leave = leave,
    .logits = logits_of,
    .greedy = greedy,
    .look = stages_gpu_look,
    .close = close_gpu,
};
