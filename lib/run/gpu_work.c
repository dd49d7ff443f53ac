#include "run/gpu_work.h"

#include <stdlib.h>
#include <string.h>

#include "experts/experts.h"
#include "kern/matmul.h"
#include "run/gpu_timing.h"

static uint64_t padded(uint64_t n)
{
    return moe_round_up(n, MOE_PANEL_ROWS);
}

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

/* Byte forms of n inputs of `cols` columns, or of other_n of other_cols. */
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

struct moe_gpu_act gpu_act_plain(const struct moe_gpu_act *room, uint32_t cols)
{
    return (struct moe_gpu_act){.cols = cols, .x = room->x, .x_stride = room->x_stride};
}

void gpu_act_want(struct moe_gpu_act *act, const struct moe_gpu_act *room, struct moe_layout layout)
{
    uint32_t block = layout.kind == MOE_LAYOUT_NONE ? 0 : moe_act_block_for(layout);
    int form = block == 32 ? MOE_GPU_BLOCK_32 : MOE_GPU_BLOCK_64;
    if (block)
        act->bytes[form] = room->bytes[form];
}

void gpu_act_want_experts(struct moe_gpu_act *act, const struct moe_gpu_act *room,
                          const struct moe_pack *pack, bool down)
{
    for (uint32_t i = 0; i < moe_pack_n_classes(pack); i++) {
        const struct moe_expert_class *class_ = moe_pack_class_at(pack, i);
        for (uint32_t k = 0; k < class_->n_matrices; k++) {
            uint16_t role = class_->matrices[k].role;
            if (down ? role == MOE_ROLE_DOWN : role == MOE_ROLE_GATE || role == MOE_ROLE_UP)
                gpu_act_want(act, room, class_->matrices[k].layout);
        }
    }
}

/* ---- Sizes: one function carves, counting or for real ---- */

static void carve_latent(struct gpu_work *g, struct moe_arena *arena, const struct moe_config *c,
                         uint64_t batch)
{
    g->queries_stride = padded(c->n_heads * moe_config_cache_key(c));
    g->attended_stride = padded(c->n_heads * moe_config_cache_value(c));
    g->queries = moe_arena_take(arena, batch * g->queries_stride, sizeof(float));
    g->attended = moe_arena_take(arena, batch * g->attended_stride, sizeof(float));
    g->q_down_stride = padded(c->q_rank);
    g->q_down_raw = moe_arena_take(arena, batch * g->q_down_stride, sizeof(float));
    g->q_down.x = moe_arena_take(arena, batch * g->q_down_stride, sizeof(float));
    g->q_down.x_stride = g->q_down_stride;
    carve_act(&g->q_down, arena, batch, larger(c->q_rank, 1));
    carve_act(&g->heads, arena, batch * c->n_heads, larger(c->head_dim - c->rope_dim, c->kv_rank));
}

static void carve_attention(struct gpu_work *g, struct moe_arena *arena, const struct moe_config *c,
                            const struct moe_session_options *o)
{
    uint64_t batch = o->batch;
    uint32_t kv_heads = moe_config_cache_heads(c);
    g->q_stride = padded(c->n_heads * c->head_dim);
    g->k_stride = padded(kv_heads * moe_config_cache_key(c));
    g->v_stride =
        padded(c->kv_rank ? c->kv_rank + c->rope_dim : kv_heads * moe_config_cache_value(c));
    g->attn_stride = padded(c->n_heads * c->value_dim);
    g->q = moe_arena_take(arena, batch * g->q_stride, sizeof(float));
    g->k = moe_arena_take(arena, batch * g->k_stride, sizeof(float));
    g->v = moe_arena_take(arena, batch * g->v_stride, sizeof(float));
    g->attn = moe_arena_take(arena, batch * g->attn_stride, sizeof(float));
    g->from_attn.x = g->attn;
    g->from_attn.x_stride = g->attn_stride;
    carve_act(&g->from_attn, arena, batch, c->n_heads * c->value_dim);
    g->queries = g->q;
    g->queries_stride = g->q_stride;
    g->attended = g->attn;
    g->attended_stride = g->attn_stride;
    if (c->kv_rank)
        carve_latent(g, arena, c, batch);
    g->attention_bytes = moe_gpu_attention_bytes(c->n_heads, moe_config_cache_value(c), o->context);
    g->attention = moe_arena_take(arena, g->attention_bytes, 1);
    g->rope = moe_arena_take(arena, (uint64_t)o->context * c->rope_dim, sizeof(float));
}

static void carve_experts(struct gpu_work *g, struct moe_arena *arena, const struct moe_config *c,
                          const struct moe_session_options *o)
{
    uint64_t batch = o->batch, pairs = batch * larger(c->top_k, 1);
    uint64_t expert_values = pairs * padded(c->expert_ff);
    uint64_t dense_values = batch * padded(larger(c->dense_ff, c->shared_ff));
    uint64_t values = expert_values > dense_values ? expert_values : dense_values;
    g->router_stride = padded(larger(c->n_experts, 1));
    g->gate = moe_arena_take(arena, values, sizeof(float));
    g->up = moe_arena_take(arena, values, sizeof(float));
    g->mid.x = g->gate;
    carve_either(&g->mid, arena, pairs, c->expert_ff, batch, larger(c->dense_ff, c->shared_ff));
    uint32_t shared_ff = larger(c->shared_ff, 1);
    g->shared_mid.x_stride = padded(shared_ff);
    values = MOE_GPU_JOINED_ROWS * g->shared_mid.x_stride;
    g->shared_gate = moe_arena_take(arena, values, sizeof(float));
    g->shared_up = moe_arena_take(arena, values, sizeof(float));
    g->shared_mid.x = g->shared_gate;
    carve_act(&g->shared_mid, arena, MOE_GPU_JOINED_ROWS, shared_ff);
    g->expert_out = moe_arena_take(arena, pairs * g->hidden_stride, sizeof(float));
    g->shared_scale = moe_arena_take(arena, batch * MOE_PANEL_ROWS, sizeof(float));
    g->scores = moe_arena_take(arena, batch * g->router_stride, sizeof(float));
    g->chosen = moe_arena_take(arena, pairs, sizeof(uint32_t));
    g->weights = moe_arena_take(arena, pairs, sizeof(float));
    g->expert_rows = moe_arena_take(arena, pairs, sizeof(uint32_t));
    g->slot_of = moe_arena_take(arena, pairs, sizeof(uint32_t));
    g->looks = moe_arena_take(arena, o->look_depth * batch * g->router_stride, sizeof(float));
    if (o->look_residual) {
        g->look.x = moe_arena_take(arena, batch * g->hidden_stride, sizeof(float));
        g->look.x_stride = g->hidden_stride;
        carve_act(&g->look, arena, batch, c->hidden);
    }
}

/* What cuBLAS multiplies at most: the widest matrix, all rows of a batch. */
static uint64_t math_bytes(const struct moe_config *c, const struct moe_session_options *o)
{
    uint32_t widest = larger(larger(c->dense_ff, c->shared_ff), c->expert_ff);
    widest = larger(larger(widest, c->n_heads * c->head_dim), c->n_heads * c->value_dim);
    widest = larger(widest, c->n_heads * moe_config_cache_key(c));
    uint64_t other = larger(c->hidden, larger(c->q_rank, c->kv_rank));
    return moe_gpu_math_bytes(padded(widest) * padded(other),
                              (uint64_t)o->batch * padded(larger(widest, c->hidden)));
}

static void carve(struct gpu_work *g, struct moe_arena *arena, const struct moe_config *c,
                  const struct moe_session_options *o)
{
    uint64_t batch = o->batch;
    g->hidden_stride = padded(c->hidden);
    g->logits_stride = moe_logits_stride(c);
    g->rows = moe_arena_take(arena, batch, sizeof *g->rows);
    g->h = moe_arena_take(arena, batch * g->hidden_stride, sizeof(float));
    g->sum = moe_arena_take(arena, batch * g->hidden_stride, sizeof(float));
    g->hidden.x = moe_arena_take(arena, batch * g->hidden_stride, sizeof(float));
    g->hidden.x_stride = g->hidden_stride;
    carve_act(&g->hidden, arena, batch, c->hidden);
    carve_attention(g, arena, c, o);
    carve_experts(g, arena, c, o);
    g->logits = moe_arena_take(arena, GPU_LOGITS_ROWS * g->logits_stride, sizeof(float));
    g->tokens = moe_arena_take(arena, GPU_LOGITS_ROWS, sizeof(uint32_t));
    g->math_bytes = o->gpu_bf16 ? math_bytes(c, o) : 0;
    g->math = moe_arena_take(arena, g->math_bytes, 1);
    uint64_t n_moe = moe_config_moe_layers(c, c->n_layers);
    g->table_bytes = n_moe * c->n_experts * sizeof *g->table;
    g->table = moe_arena_take(arena, g->table_bytes, 1);
}

static void carve_host(struct gpu_work *g, struct moe_arena *arena, const struct moe_config *c,
                       const struct moe_session_options *o)
{
    g->router_stride = padded(larger(c->n_experts, 1));
    g->host_rows = moe_arena_take(arena, o->batch, sizeof *g->host_rows);
    g->host_looks =
        moe_arena_take(arena, (uint64_t)o->look_depth * o->batch * g->router_stride, sizeof(float));
    g->host_token = moe_arena_take(arena, GPU_LOGITS_ROWS, sizeof(uint32_t));
    g->like = moe_arena_take(arena, moe_config_moe_layers(c, c->n_layers), sizeof *g->like);
}

static uint64_t shape_kv(struct gpu_work *g, const struct moe_config *c,
                         const struct moe_session_options *o)
{
    g->kv = (struct moe_gpu_kv){
        .f16 = o->kv_kind == MOE_LAYOUT_F16,
        .n_positions = (uint32_t)padded(o->context),
        .key_dim = moe_config_cache_key(c),
        .value_dim = moe_config_cache_value(c),
        .value_padded = (uint32_t)padded(moe_config_cache_value(c)),
        .n_heads = moe_config_cache_heads(c),
        .n_sequences = o->n_sequences,
    };
    return moe_session_kv_bytes(c, o);
}

uint64_t gpu_work_bytes(const struct moe_config *c, const struct moe_session_options *o)
{
    struct gpu_work g = {0};
    struct moe_arena arena = {0};
    carve(&g, &arena, c, o);
    uint64_t kv = shape_kv(&g, c, o), sum;
    return !arena.overflowed && moe_add_u64(arena.used, kv, &sum) ? sum : UINT64_MAX;
}

uint64_t gpu_work_host_bytes(const struct moe_config *c, const struct moe_session_options *o)
{
    struct gpu_work g = {0};
    struct moe_arena arena = {0};
    carve_host(&g, &arena, c, o);
    return sizeof g + arena.used;
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

/* Tells the device where all experts lie, if they lie there. */
static int fill_table(struct gpu_work *g, const struct moe_config *c,
                      const struct moe_expert_view *views, struct moe_err *err)
{
    struct moe_gpu_gated *table = moe_alloc(g->table_bytes, 1, err), *at = table;
    if (!table)
        return MOE_ERR_MEMORY;
    g->recordable = true;
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
        g->like[m] = at[-(int64_t)c->n_experts];
        if (!alike)
            g->like[m].gate.data = NULL;
        g->recordable &= alike;
        m++;
    }
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->table, table, g->table_bytes);
    int status = moe_gpu_finish(g->gpu, err);
    free(table);
    return status;
}

static int allocate(struct gpu_work *g, const struct moe_config *c,
                    const struct moe_session_options *o, struct moe_err *err)
{
    struct moe_arena arena = {0}, host = {0};
    carve(g, &arena, c, o);
    carve_host(g, &host, c, o);
    g->kv_bytes = shape_kv(g, c, o);
    if (arena.overflowed || host.overflowed || g->kv_bytes == UINT64_MAX)
        return moe_fail(err, MOE_ERR_MEMORY,
                        "out of memory: a context of %u positions and batches of %u overflow",
                        o->context, o->batch);
    g->block_bytes = arena.used;
    g->block = moe_gpu_alloc(g->gpu, g->block_bytes, err);
    if (!g->block)
        return MOE_ERR_MEMORY;
    arena = (struct moe_arena){.base = g->block, .size = g->block_bytes};
    carve(g, &arena, c, o);
    g->kv.keys = moe_gpu_alloc(g->gpu, g->kv_bytes, err);
    if (!g->kv.keys)
        return MOE_ERR_MEMORY;
    uint64_t heads = (uint64_t)c->n_layers * o->n_sequences * g->kv.n_heads;
    g->kv.values = g->kv.keys + heads * g->kv.n_positions * g->kv.key_dim * (g->kv.f16 ? 2 : 4);
    g->host_block = moe_pages_alloc(host.used, err);
    if (!g->host_block)
        return MOE_ERR_MEMORY;
    g->host_bytes = host.used;
    host = (struct moe_arena){.base = g->host_block, .size = g->host_bytes};
    carve_host(g, &host, c, o);
    return moe_gpu_pin(g->gpu, g->host_block, g->host_bytes, err);
}

int gpu_work_open(struct gpu_work **out, const struct moe_model *model,
                  const struct moe_experts *experts, const struct moe_session_options *o,
                  struct moe_err *err)
{
    *out = NULL;
    const struct moe_config *c = &model->config;
    struct gpu_work *g = moe_alloc(1, sizeof *g, err);
    if (!g)
        return MOE_ERR_MEMORY;
    g->gpu = o->gpu;
    int status = allocate(g, c, o, err);
    if (status == MOE_OK)
        status = moe_gpu_mark_open(&g->entered, g->gpu, false, err);
    if (status == MOE_OK)
        status = moe_gpu_mark_open(&g->routed, g->gpu, false, err);
    if (status == MOE_OK && o->gpu_bf16)
        status = moe_gpu_set_math(g->gpu, MOE_GPU_MATH_BF16, g->math, g->math_bytes, err);
    if (status == MOE_OK) {
        moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->rope, model->rope,
                       (uint64_t)o->context * c->rope_dim * sizeof *g->rope);
        status = moe_gpu_finish(g->gpu, err);
    }
    const struct moe_expert_view *views = moe_experts_resident_views(experts);
    if (status == MOE_OK && views && c->n_experts > 0)
        status = fill_table(g, c, views, err);
    else if (status == MOE_OK) {
        g->table = NULL;
        g->recordable = c->n_experts == 0;
    }
    if (status != MOE_OK) {
        gpu_work_close(g);
        return status;
    }
    *out = g;
    return MOE_OK;
}

void gpu_work_close(struct gpu_work *g)
{
    if (!g)
        return;
    moe_gpu_finish(g->gpu, NULL);
    for (uint32_t i = 0; i < g->n_graphs; i++)
        moe_gpu_graph_close(g->graphs[i].graph);
    gpu_timing_close(g->moments);
    moe_gpu_mark_close(g->entered);
    moe_gpu_mark_close(g->routed);
    moe_gpu_set_math(g->gpu, MOE_GPU_MATH_EXACT, NULL, 0, NULL);
    if (g->host_block)
        moe_gpu_unpin(g->gpu, g->host_block);
    moe_pages_free(g->host_block, g->host_bytes);
    moe_gpu_free(g->gpu, g->kv.keys, g->kv_bytes);
    moe_gpu_free(g->gpu, g->block, g->block_bytes);
    free(g);
}
