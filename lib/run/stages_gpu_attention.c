/*
 * Attention on a GPU: products, what becomes of queries, keys and values, the cache, the output
 * into the stream.
 */
#include "run/stages_gpu.h"

struct moe_gpu_norm stages_gpu_norm(const struct moe_session *s, const float *weights,
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

struct moe_gpu_product stages_gpu_product(struct moe_mat w, const struct moe_gpu_act *act,
                                          uint32_t n, float *y, uint64_t y_stride)
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
        stages_gpu_product(l->q, in, n_rows, g->q, g->q_stride),
        stages_gpu_product(l->k, in, n_rows, g->k, g->k_stride),
        stages_gpu_product(l->v, in, n_rows, g->v, g->v_stride),
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
    struct moe_gpu_product heads = stages_gpu_product(*m, all, n_rows, y, y_stride);
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
    struct moe_gpu_product list[2] = {
        stages_gpu_product(l->kv_down, in, n_rows, g->v, g->v_stride)};
    if (c->q_rank) {
        list[1] = list[0];
        list[0] = stages_gpu_product(l->q_down, in, n_rows, g->q_down_raw, g->q_down_stride);
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
        list[0] = stages_gpu_product(l->q, &out, n_rows, g->q, g->q_stride);
        moe_gpu_matmul(g->gpu, list, 1);
    } else {
        list[1] = stages_gpu_product(l->q, in, n_rows, g->q, g->q_stride);
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
    return stages_gpu_norm(s, l->attn_norm, l->attn_norm_bias, in);
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

int stages_gpu_attend(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
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
    const struct moe_gpu_product o =
        stages_gpu_product(l->o, &out, n_rows, g->sum, g->hidden_stride);
    norm = stages_gpu_norm(s, l->ffn_norm, l->ffn_norm_bias, stages_gpu_ffn_inputs(s, layer));
    norm.add = g->sum;
    norm.add_stride = g->hidden_stride;
    norm.add_bias = l->o_bias;
    norm.add_scale = c->residual_scale;
    const struct moe_gpu_then then = {.norm = &norm, .n = n_rows};
    moe_gpu_matmul_then(g->gpu, &o, 1, &then);
    return poll(s, err);
}
