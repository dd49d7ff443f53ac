#include "gpu/gpu_work.h"

#include <stdlib.h>
#include <string.h>

#include "gpu/gpu_timing.h"
#include "layer/router.h"

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* ---- Forms of inputs ---- */

static const uint32_t block_columns[MOE_GPU_N_BLOCKS] = {
    [MOE_GPU_BLOCK_32] = 32,
    [MOE_GPU_BLOCK_64] = 64,
};

static uint64_t n_blocks(uint64_t n, uint32_t cols, uint32_t block)
{
    return n * ((cols + block - 1) / block);
}

/* Byte forms of n inputs of `cols` columns, or of other_n inputs of other_cols: the larger. */
static void carve_either(struct moe_gpu_act *act, struct moe_arena *arena, uint64_t n,
                         uint32_t cols, uint64_t other_n, uint32_t other_cols)
{
    act->cols = cols;
    for (int b = 0; b < MOE_GPU_N_BLOCKS; b++) {
        uint32_t block = block_columns[b];
        uint64_t most = n_blocks(n, cols, block), other = n_blocks(other_n, other_cols, block);
        most = other > most ? other : most;
        act->bytes[b].q = moe_arena_take(arena, most, block);
        act->bytes[b].s = moe_arena_take(arena, most, sizeof(float));
        act->bytes[b].z = moe_arena_take(arena, most, sizeof(float));
    }
}

static void carve_act(struct moe_gpu_act *act, struct moe_arena *arena, uint64_t n, uint32_t cols)
{
    carve_either(act, arena, n, cols, 0, 0);
}

/* ---- Sizes: one function carves, counting or for real ---- */

static void carve_latent(struct gpu_attention *g, struct moe_arena *arena,
                         const struct moe_config *c, uint64_t batch)
{
    g->queries = moe_arena_take(arena, batch * g->stride.queries, sizeof(float));
    g->attended = moe_arena_take(arena, batch * g->stride.attended, sizeof(float));
    g->q_down_raw = moe_arena_take(arena, batch * g->stride.q_down, sizeof(float));
    g->q_down.x = moe_arena_take(arena, batch * g->stride.q_down, sizeof(float));
    g->q_down.x_stride = g->stride.q_down;
    carve_act(&g->q_down, arena, batch, larger(c->q_rank, 1));
    carve_act(&g->heads, arena, batch * c->n_heads, larger(c->head_dim - c->rope_dim, c->kv_rank));
}

static void carve_attention(struct gpu_attention *g, struct moe_arena *arena,
                            const struct moe_config *c, const struct moe_session_options *o)
{
    uint64_t batch = o->batch;
    g->stride = moe_attention_strides(c);
    g->q = moe_arena_take(arena, batch * g->stride.q, sizeof(float));
    g->k = moe_arena_take(arena, batch * g->stride.k, sizeof(float));
    g->v = moe_arena_take(arena, batch * g->stride.v, sizeof(float));
    g->out = moe_arena_take(arena, batch * g->stride.out, sizeof(float));
    if (c->attn_gate)
        g->gate = moe_arena_take(arena, batch * g->stride.out, sizeof(float));
    g->from_out.x = g->out;
    g->from_out.x_stride = g->stride.out;
    carve_act(&g->from_out, arena, batch, c->n_heads * c->value_dim);
    g->queries = g->q;
    g->attended = g->out;
    if (c->kv_rank)
        carve_latent(g, arena, c, batch);
    g->scratch_bytes = moe_gpu_attention_bytes(c->n_heads, moe_config_cache_value(c), o->context);
    g->scratch = moe_arena_take(arena, g->scratch_bytes, 1);
    g->rope = moe_arena_take(arena, (uint64_t)moe_model_rope_rows(c, o->context) * c->rope_dim,
                             sizeof(float));
}

static void carve_recurrent(struct gpu_recurrent *g, struct moe_arena *arena,
                            const struct moe_config *c, const struct moe_recurrent *states,
                            uint64_t batch)
{
    g->stride = moe_recurrent_strides(c);
    g->low_stride = moe_padded(g->stride.low);
    g->mixed = moe_arena_take(arena, batch * states->stride, sizeof(float));
    g->gate = moe_arena_take(arena, batch * g->stride.values, sizeof(float));
    g->out = moe_arena_take(arena, batch * g->stride.values, sizeof(float));
    g->beta = moe_arena_take(arena, batch * g->stride.heads, sizeof(float));
    g->decay = moe_arena_take(arena, batch * g->stride.decay, sizeof(float));
    for (int i = 0; i < 2 && g->low_stride; i++) {
        g->low[i].x = moe_arena_take(arena, batch * g->low_stride, sizeof(float));
        g->low[i].x_stride = g->low_stride;
        carve_act(&g->low[i], arena, batch, g->stride.low);
    }
    g->from_out.x = g->out;
    g->from_out.x_stride = g->stride.values;
    carve_act(&g->from_out, arena, batch, c->state_heads * c->state_value_dim);
    g->from_values = g->from_out;
    g->from_values.x = g->mixed ? g->mixed + states->values_at : NULL;
    g->from_values.x_stride = states->stride;
}

static void carve_feed_forward(struct gpu_feed_forward *g, struct moe_arena *arena,
                               const struct moe_config *c, uint64_t batch)
{
    uint64_t pairs = batch * larger(c->top_k, 1), shared_ff = larger(c->shared_ff, 1);
    uint64_t expert_values = pairs * moe_padded(c->expert_ff);
    uint64_t dense_values = batch * moe_padded(larger(c->dense_ff, c->shared_ff));
    uint64_t values = expert_values > dense_values ? expert_values : dense_values;
    g->router_stride = moe_router_stride(c);
    g->gate = moe_arena_take(arena, values, sizeof(float));
    g->up = moe_arena_take(arena, values, sizeof(float));
    g->mid.x = g->gate;
    carve_either(&g->mid, arena, pairs, c->expert_ff, batch, larger(c->dense_ff, c->shared_ff));
    g->shared_mid.x_stride = moe_padded(shared_ff);
    values = MOE_GPU_JOINED_ROWS * g->shared_mid.x_stride;
    g->shared_gate = moe_arena_take(arena, values, sizeof(float));
    g->shared_up = moe_arena_take(arena, values, sizeof(float));
    g->shared_mid.x = g->shared_gate;
    carve_act(&g->shared_mid, arena, MOE_GPU_JOINED_ROWS, (uint32_t)shared_ff);
    g->expert_out = moe_arena_take(arena, pairs * moe_padded(c->hidden), sizeof(float));
    g->shared_scale = moe_arena_take(arena, batch * MOE_PANEL_ROWS, sizeof(float));
    g->scores = moe_arena_take(arena, batch * g->router_stride, sizeof(float));
    g->chosen = moe_arena_take(arena, pairs, sizeof(uint32_t));
    g->weights = moe_arena_take(arena, pairs, sizeof(float));
    g->rows = moe_arena_take(arena, pairs, sizeof(uint32_t));
    g->slot_of = moe_arena_take(arena, pairs, sizeof(uint32_t));
}

static void carve_prediction(struct gpu_prediction *p, struct moe_arena *arena,
                             const struct moe_config *c, const struct moe_session_options *o)
{
    uint64_t batch = o->batch;
    p->probabilities =
        moe_arena_take(arena, o->predict_depth * batch * moe_router_stride(c), sizeof(float));
    if (o->predict_residual) {
        p->input.x_stride = moe_padded(c->hidden);
        p->input.x = moe_arena_take(arena, batch * p->input.x_stride, sizeof(float));
        carve_act(&p->input, arena, batch, c->hidden);
    }
}

/* The largest product of cuBLAS: the widest matrix, all rows of a batch. */
static uint64_t math_bytes(const struct moe_config *c, const struct moe_session_options *o)
{
    uint32_t widest = larger(larger(c->dense_ff, c->shared_ff), c->expert_ff);
    widest = larger(larger(widest, c->n_heads * c->head_dim), c->n_heads * c->value_dim);
    widest = larger(widest, c->n_heads * moe_config_cache_key(c));
    widest = larger(widest, c->state_heads * larger(c->state_value_dim, c->state_key_dim));
    uint64_t other = larger(c->hidden, larger(c->q_rank, c->kv_rank));
    return moe_gpu_math_bytes(moe_padded(widest) * moe_padded(other),
                              (uint64_t)o->batch * moe_padded(larger(widest, c->hidden)));
}

static uint64_t kv_table_cells(const struct moe_config *c, const struct moe_session_options *o)
{
    struct moe_kv_pool pool = moe_kv_pool_shape(c, o);
    return (uint64_t)pool.n_sequences * pool.per_sequence;
}

static void carve(struct gpu_work *g, struct moe_arena *arena, const struct moe_config *c,
                  const struct moe_session_options *o)
{
    struct gpu_residents *all = &g->residents;
    uint64_t batch = o->batch;
    g->hidden_stride = moe_padded(c->hidden);
    g->rows = moe_arena_take(arena, batch, sizeof *g->rows);
    g->kv_table = moe_arena_take(arena, kv_table_cells(c, o), sizeof *g->kv_table);
    g->h = moe_arena_take(arena, batch * g->hidden_stride, sizeof(float));
    g->sum = moe_arena_take(arena, batch * g->hidden_stride, sizeof(float));
    g->hidden.x = moe_arena_take(arena, batch * g->hidden_stride, sizeof(float));
    g->hidden.x_stride = g->hidden_stride;
    carve_act(&g->hidden, arena, batch, c->hidden);
    carve_attention(&g->attention, arena, c, o);
    g->states = moe_recurrent_shape(c, o->n_sequences * (1 + o->takes_back));
    if (g->states.n_layers)
        carve_recurrent(&g->recurrent, arena, c, &g->states, batch);
    carve_feed_forward(&g->ff, arena, c, batch);
    carve_prediction(&g->prediction, arena, c, o);
    g->logits = moe_arena_take(arena, GPU_LOGITS_ROWS * moe_logits_stride(c), sizeof(float));
    g->tokens = moe_arena_take(arena, GPU_LOGITS_ROWS, sizeof(uint32_t));
    g->math_bytes = o->gpu_bf16 ? math_bytes(c, o) : 0;
    g->math = moe_arena_take(arena, g->math_bytes, 1);
    uint64_t n_moe = moe_config_moe_layers(c, c->n_layers);
    all->table_bytes = n_moe * c->n_experts * sizeof *all->table;
    all->table = moe_arena_take(arena, all->table_bytes, 1);
}

/* The states that the host computes with: inputs of predictions and of experts, and their outputs.
 */
static void carve_states(struct moe_states *states, struct moe_arena *arena,
                         const struct moe_config *c, const struct moe_session_options *o)
{
    uint64_t batch = o->batch, pairs = batch * larger(c->top_k, 1);
    bool asks_gates = o->predict_depth > 0 && !o->predict_residual;
    states->stride = moe_padded(c->hidden);
    if (o->predict_depth > 0 && o->predict_residual)
        states->h = moe_arena_take(arena, batch * states->stride, sizeof(float));
    if (asks_gates)
        moe_inputs_carve(&states->inputs, arena, o->batch, c->hidden);
    if (asks_gates || o->needs_rows)
        states->xn = moe_arena_take(arena, batch * states->stride, sizeof(float));
    if (o->needs_rows)
        states->expert_out = moe_arena_take(arena, pairs * states->stride, sizeof(float));
}

static void carve_host(struct gpu_work *g, struct moe_states *states, struct moe_arena *arena,
                       const struct moe_config *c, const struct moe_session_options *o)
{
    carve_states(states, arena, c, o);
    g->host_rows = moe_arena_take(arena, o->batch, sizeof *g->host_rows);
    g->host_kv_table = moe_arena_take(arena, kv_table_cells(c, o), sizeof *g->host_kv_table);
    g->prediction.on_host = moe_arena_take(
        arena, (uint64_t)o->predict_depth * o->batch * moe_router_stride(c), sizeof(float));
    g->host_token = moe_arena_take(arena, GPU_LOGITS_ROWS, sizeof(uint32_t));
    g->host_logits = moe_arena_take(arena, GPU_LOGITS_ROWS * moe_logits_stride(c), sizeof(float));
    g->residents.like =
        moe_arena_take(arena, moe_config_moe_layers(c, c->n_layers), sizeof(struct moe_gpu_gated));
}

uint64_t gpu_work_bytes(const struct moe_config *c, const struct moe_session_options *o)
{
    struct gpu_work g = {0};
    struct moe_arena arena = {0};
    carve(&g, &arena, c, o);
    uint64_t kv = moe_kv_shape(c, o).bytes, sum;
    bool fits = !arena.overflowed && moe_add_u64(arena.used, kv, &sum) &&
                moe_add_u64(sum, g.states.bytes, &sum);
    return fits ? sum : UINT64_MAX;
}

uint64_t gpu_work_host_bytes(const struct moe_config *c, const struct moe_session_options *o)
{
    struct gpu_work g = {0};
    struct moe_states states = {0};
    struct moe_arena arena = {0};
    carve_host(&g, &states, &arena, c, o);
    return arena.overflowed ? UINT64_MAX : sizeof g + arena.used;
}

/* ---- Open and close ---- */

static bool same_layout(struct moe_mat a, struct moe_mat b)
{
    return a.layout.kind == b.layout.kind && a.layout.group == b.layout.group;
}

static struct moe_gpu_gated gated_of(const struct moe_expert_view *view)
{
    return (struct moe_gpu_gated){view->gate,      view->up,      view->down,
                                  view->gate_bias, view->up_bias, view->down_bias};
}

/* Tells the device where all experts lie, when they lie there. */
static int fill_table(struct gpu_work *g, const struct moe_config *c,
                      const struct moe_expert_view *views, struct moe_err *err)
{
    struct gpu_residents *all = &g->residents;
    struct moe_gpu_gated *table = moe_alloc(all->table_bytes, 1, err), *at = table;
    if (!table)
        return MOE_ERR_MEMORY;
    all->recordable = true;
    for (uint32_t layer = 0, m = 0; layer < c->n_layers; layer++) {
        if (!c->layer_is_moe[layer])
            continue;
        bool alike = true;
        for (uint32_t e = 0; e < c->n_experts; e++, at++) {
            *at = gated_of(&views[(uint64_t)layer * c->n_experts + e]);
            const struct moe_gpu_gated *first = at - e;
            alike = alike && same_layout(at->gate, first->gate) && same_layout(at->up, first->up) &&
                    same_layout(at->down, first->down);
        }
        all->like[m] = at[-(int64_t)c->n_experts];
        if (!alike)
            all->like[m].up.data = NULL;
        all->recordable &= alike;
        m++;
    }
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, all->table, table, all->table_bytes);
    int status = moe_gpu_finish(g->gpu, err);
    free(table);
    return status;
}

static int allocate(struct gpu_work *g, struct moe_states *states, const struct moe_config *c,
                    const struct moe_session_options *o, struct moe_err *err)
{
    struct moe_arena arena = {0}, host = {0};
    carve(g, &arena, c, o);
    carve_host(g, states, &host, c, o);
    g->block_bytes = arena.used;
    g->block = moe_gpu_alloc(g->gpu, g->block_bytes, err);
    if (!g->block)
        return MOE_ERR_MEMORY;
    arena = (struct moe_arena){.base = g->block, .size = g->block_bytes};
    carve(g, &arena, c, o);
    g->kv = moe_kv_shape(c, o);
    uint8_t *kv = moe_gpu_alloc(g->gpu, g->kv.bytes, err);
    if (!kv)
        return MOE_ERR_MEMORY;
    moe_kv_place(&g->kv, kv);
    g->kv.table = g->kv_table;
    if (g->states.n_layers && !(g->states.memory = moe_gpu_alloc(g->gpu, g->states.bytes, err)))
        return MOE_ERR_MEMORY;
    g->host_block = moe_pages_alloc(host.used, err);
    if (!g->host_block)
        return MOE_ERR_MEMORY;
    g->host_bytes = host.used;
    host = (struct moe_arena){.base = g->host_block, .size = g->host_bytes};
    carve_host(g, states, &host, c, o);
    return moe_gpu_pin(g->gpu, g->host_block, g->host_bytes, err);
}

static int open_marks(struct gpu_work *g, struct moe_err *err)
{
    int status = moe_gpu_mark_open(&g->entered, g->gpu, false, err);
    return status == MOE_OK ? moe_gpu_mark_open(&g->routed, g->gpu, false, err) : status;
}

/* Uploads what stays on the device: rotary angles, and where all experts lie, when they lie there.
 */
static int upload(struct gpu_work *g, const struct moe_session *s,
                  const struct moe_session_options *o, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->attention.rope, s->model->rope,
                   (uint64_t)moe_model_rope_rows(c, o->context) * c->rope_dim * sizeof(float));
    int status = moe_gpu_finish(g->gpu, err);
    const struct moe_expert_view *views = moe_experts_resident_views(s->experts);
    if (status == MOE_OK && views && c->n_experts > 0)
        return fill_table(g, c, views, err);
    g->residents.table = NULL;
    g->residents.recordable = c->n_experts == 0;
    return status;
}

int gpu_work_open(struct moe_session *s, const struct moe_session_options *o, struct moe_err *err)
{
    struct gpu_work *g = moe_alloc(1, sizeof *g, err);
    if (!g)
        return MOE_ERR_MEMORY;
    s->device = g;
    g->gpu = o->gpu;
    g->needs_rows = o->needs_rows;
    g->prediction.depth = o->predict_depth;
    g->prediction.residual = o->predict_residual;
    g->prediction.named = o->predict_on;
    int status = moe_gpu_pin(g->gpu, s->request_block, s->request_bytes, err);
    if (status == MOE_OK) {
        g->pinned = s->request_block;
        status = allocate(g, &s->states, &s->model->config, o, err);
    }
    if (status == MOE_OK)
        status = open_marks(g, err);
    if (status == MOE_OK && o->gpu_bf16)
        status = moe_gpu_set_math(g->gpu, MOE_GPU_MATH_BF16, g->math, g->math_bytes, err);
    return status == MOE_OK ? upload(g, s, o, err) : status;
}

void gpu_work_close(struct gpu_work *g)
{
    if (!g)
        return;
    moe_gpu_finish(g->gpu, NULL);
    for (uint32_t i = 0; i < g->residents.n_graphs; i++)
        moe_gpu_graph_close(g->residents.graphs[i].graph);
    gpu_timing_close(g->timing);
    moe_gpu_mark_close(g->entered);
    moe_gpu_mark_close(g->routed);
    moe_gpu_set_math(g->gpu, MOE_GPU_MATH_EXACT, NULL, 0, NULL);
    if (g->host_block)
        moe_gpu_unpin(g->gpu, g->host_block);
    moe_pages_free(g->host_block, g->host_bytes);
    moe_gpu_unpin(g->gpu, g->pinned);
    moe_gpu_free(g->gpu, g->states.memory, g->states.bytes);
    moe_gpu_free(g->gpu, g->kv.whole.keys, g->kv.bytes);
    moe_gpu_free(g->gpu, g->block, g->block_bytes);
    free(g);
}
