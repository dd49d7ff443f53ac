/*
 * Attention on a GPU: the products before it, queries, keys and values, the cache, and its output
 * into the residual stream.
 */
#include "infer/gpu_stages.h"

/* The cache as the kernels see it. */
static struct moe_gpu_kv gpu_kv_of(const struct gpu_work *g)
{
    const struct moe_kv *kv = &g->kv;
    return (struct moe_gpu_kv){
        .keys = kv->whole.keys,
        .values = kv->whole.values,
        .keys_as = kv->keys_as,
        .values_as = kv->values_as,
        .key_bytes = kv->key_bytes,
        .value_bytes = kv->value_bytes,
        .table = kv->table,
        .block_positions = kv->block_positions,
        .per_sequence = kv->per_sequence,
        .key_dim = kv->key_dim,
        .value_dim = kv->value_dim,
        .value_padded = kv->value_padded,
        .n_heads = kv->n_heads,
        .n_layers = kv->n_layers,
    };
}

/* Asks for the products; returns what is left to be done with them. */
static struct moe_gpu_heads project_heads(struct moe_session *s, uint32_t layer,
                                          const struct moe_gpu_act *in, uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct gpu_work *g = s->device;
    struct gpu_attention *a = &g->attention;
    const struct moe_gpu_product products[4] = {
        stages_gpu_product(l->q, in, n_rows, a->q, a->stride.q),
        stages_gpu_product(l->k, in, n_rows, a->k, a->stride.k),
        stages_gpu_product(l->v, in, n_rows, a->v, a->stride.v),
        stages_gpu_product(l->attn_gate, in, n_rows, a->gate, a->stride.out),
    };
    moe_gpu_matmul(g->gpu, products, l->attn_gate.data ? 4 : 3);
    return (struct moe_gpu_heads){
        .q = a->q,
        .k = a->k,
        .v = a->v,
        .q_stride = a->stride.q,
        .k_stride = a->stride.k,
        .v_stride = a->stride.v,
        .q_bias = l->q_bias,
        .k_bias = l->k_bias,
        .v_bias = l->v_bias,
        .qk_norm = c->qk_norm,
        .q_norm = l->q_norm,
        .k_norm = l->k_norm,
        .eps = c->norm_eps,
        .clip = c->clip_qkv,
        .rope = a->rope,
        .rope_dim = c->rope_dim,
        .rope_original = c->rope_original,
        .q_factors = a->q_factors,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .rows = g->rows,
        .kv = gpu_kv_of(g),
        .layer = c->layers[layer].attention_index,
    };
}

/* The inputs of a matrix that has rows for each head: those of all heads at x, with room for their
 * byte forms. */
static struct moe_gpu_act heads_act(const struct gpu_attention *a, const struct moe_mat *m,
                                    float *x, uint64_t x_stride)
{
    struct moe_gpu_act all = {.cols = m->cols, .x = x, .x_stride = x_stride};
    gpu_act_want(&all, &a->heads, m->layout);
    return all;
}

/* y[i][head * y_width ..] = (rows [head * rows_each ..) of m) x[i][head * x_width ..] for all
 * heads, as in cpu_projections.c; x is that of `all`, whose byte forms are filled. */
static void multiply_heads(struct moe_session *s, const struct moe_mat *m, uint32_t n_rows,
                           const struct moe_gpu_act *all, uint32_t x_width, float *y,
                           uint64_t y_stride, uint32_t y_width)
{
    struct moe_gpu_product heads = stages_gpu_product(*m, all, n_rows, y, y_stride);
    heads.n_parts = s->model->config.n_heads;
    heads.w.rows = m->rows / heads.n_parts;
    heads.in_part = x_width;
    heads.y_part = y_width;
    moe_gpu_matmul(gpu_of(s), &heads, 1);
}

static void project_latent(struct moe_session *s, uint32_t layer, const struct moe_gpu_act *in,
                           uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct gpu_work *g = s->device;
    struct gpu_attention *a = &g->attention;
    struct moe_gpu_product list[2] = {
        stages_gpu_product(l->kv_down, in, n_rows, a->v, a->stride.v)};
    if (c->q_rank) {
        list[1] = list[0];
        list[0] = stages_gpu_product(l->q_down, in, n_rows, a->q_down_raw, a->stride.q_down);
        struct moe_gpu_act out = gpu_act_plain(&a->q_down, c->q_rank);
        gpu_act_want(&out, &a->q_down, l->q.layout);
        const struct moe_gpu_norm norm = {
            .h = a->q_down_raw,
            .h_stride = a->stride.q_down,
            .cols = c->q_rank,
            .weights = l->q_down_norm,
            .eps = moe_config_latent_eps(c),
            .out = out,
        };
        moe_gpu_matmul(g->gpu, list, 2);
        moe_gpu_add_norm(g->gpu, &norm, n_rows);
        list[0] = stages_gpu_product(l->q, &out, n_rows, a->q, a->stride.q);
        moe_gpu_matmul(g->gpu, list, 1);
    } else {
        list[1] = stages_gpu_product(l->q, in, n_rows, a->q, a->stride.q);
        moe_gpu_matmul(g->gpu, list, 2);
    }
    const struct moe_gpu_act nope = heads_act(a, &l->k_up, a->q + c->rope_dim, a->stride.q);
    const struct moe_gpu_latent latent = {
        .q = a->q,
        .v = a->v,
        .queries = a->queries,
        .q_stride = a->stride.q,
        .v_stride = a->stride.v,
        .queries_stride = a->stride.queries,
        .kv_norm = l->kv_down_norm,
        .eps = moe_config_latent_eps(c),
        .rope = c->positions == MOE_POSITIONS_ROTARY ? a->rope : NULL,
        .rope_dim = c->rope_dim,
        .rope_original = c->rope_original,
        .n_heads = c->n_heads,
        .head_dim = c->head_dim,
        .kv_rank = c->kv_rank,
        .rows = g->rows,
        .kv = gpu_kv_of(g),
        .layer = c->layers[layer].attention_index,
        .nope = &nope,
    };
    moe_gpu_finish_latent(g->gpu, &latent, n_rows);
    multiply_heads(s, &l->k_up, n_rows, &nope, c->head_dim, a->queries + c->rope_dim,
                   a->stride.queries, moe_config_cache_key(c, 0));
}

/* fresh: what is still to be done before, or NULL; out: the byte forms to fill afterwards, of rows
 * or of their heads. */
static void attend_cache(struct moe_session *s, uint32_t layer, uint32_t n_rows,
                         const struct moe_gpu_heads *fresh, const struct moe_gpu_act *out,
                         uint32_t out_parts)
{
    const struct moe_config *c = &s->model->config;
    struct gpu_work *g = s->device;
    struct gpu_attention *a = &g->attention;
    const struct moe_gpu_attention attention = {
        .queries = a->queries,
        .attended = a->attended,
        .queries_stride = a->stride.queries,
        .attended_stride = a->stride.attended,
        .kv = gpu_kv_of(g),
        .layer = c->layers[layer].attention_index,
        .n_heads = c->n_heads,
        .scale = c->attn_scale,
        .window = c->layers[layer].windowed ? c->window : 0,
        .sinks = s->model->layers[layer].sinks,
        .rows = g->rows,
        .end = g->end,
        .scratch = a->scratch,
        .scratch_bytes = a->scratch_bytes,
        .fresh = fresh,
        .out = out,
        .out_parts = out_parts,
    };
    moe_gpu_attention(g->gpu, &attention, n_rows);
}

/* Attention up to its last product, whose inputs are returned. */
static struct moe_gpu_act attend_text(struct moe_session *s, uint32_t layer,
                                      const struct moe_gpu_act *in, uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct gpu_work *g = s->device;
    struct gpu_attention *a = &g->attention;
    struct moe_gpu_act out = gpu_act_plain(&a->from_out, c->n_heads * c->value_dim);
    gpu_act_want(&out, &a->from_out, l->o.layout);
    if (c->kv_rank) {
        struct moe_gpu_act heads = heads_act(a, &l->v_up, a->attended, a->stride.attended);
        project_latent(s, layer, in, n_rows);
        attend_cache(s, layer, n_rows, NULL, &heads, c->n_heads);
        multiply_heads(s, &l->v_up, n_rows, &heads, c->kv_rank, a->out, a->stride.out,
                       c->value_dim);
        moe_gpu_prepare(g->gpu, a->out, a->stride.out, n_rows, 1, 0, &out);
        return out;
    }
    const struct moe_gpu_heads fresh = project_heads(s, layer, in, n_rows);
    attend_cache(s, layer, n_rows, &fresh, l->attn_gate.data ? NULL : &out, 1);
    const struct moe_gpu_gate gate = {.x = a->out,
                                      .gate = a->gate,
                                      .x_stride = a->stride.out,
                                      .gate_stride = a->stride.out,
                                      .act = out};
    if (l->attn_gate.data)
        moe_gpu_gate(g->gpu, &gate, n_rows);
    return out;
}

/* The norm behind a layer's attention: its feed-forward's, or where it has none the next layer's,
 * or none. */
static struct moe_gpu_norm end_norm(struct moe_session *s, uint32_t layer)
{
    const struct moe_layer *l = &s->model->layers[layer];
    struct moe_gpu_norm norm = stages_gpu_norm(s, NULL, NULL, (struct moe_gpu_act){0});
    if (!s->model->config.layers[layer].no_ffn)
        return stages_gpu_norm(s, l->ffn_norm, l->ffn_norm_bias, stages_gpu_ffn_inputs(s, layer));
    stages_gpu_next_norm(s, layer, &norm);
    return norm;
}

int stages_gpu_attend(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct gpu_work *g = s->device;
    bool recurrent = c->layers[layer].recurrent;
    struct moe_gpu_norm norm = stages_gpu_attention_norm(s, layer);
    const struct moe_gpu_act in = norm.out;
    if (g->normed_for != layer)
        moe_gpu_add_norm(g->gpu, &norm, n_rows);
    if (c->layers[layer].no_attention)
        return moe_pass_poll(&s->pass, err);
    const struct moe_gpu_act out = recurrent ? stages_gpu_recurrent(s, layer, &in, n_rows)
                                             : attend_text(s, layer, &in, n_rows);
    const struct moe_gpu_product o =
        stages_gpu_product(recurrent ? l->state_o : l->o, &out, n_rows, g->sum, g->hidden_stride);
    norm = end_norm(s, layer);
    norm.add = g->sum;
    norm.add_stride = g->hidden_stride;
    norm.add_bias = l->o_bias;
    norm.add_scale = c->residual_scale;
    moe_gpu_matmul(g->gpu, &o, 1);
    moe_gpu_add_norm(g->gpu, &norm, n_rows);
    if (recurrent)
        moe_recurrent_advance(s, layer, rows, n_rows);
    return moe_pass_poll(&s->pass, err);
}
