/* Timing, buffers and arguments of the GPU's stages. */
#include "infer/gpu_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "infer/gpu_stages.h"
#include "infer/router.h"
#include "kern/matmul.h"
#include "model/rope.h"

struct point {
    struct moe_gpu_mark *mark;
    uint32_t layer;
    const char *part; /* text that stays; NULL: only a beginning */
};

struct gpu_timing {
    struct moe_gpu *gpu;
    struct moe_gpu_mark *origin; /* passed at origin_seconds of the processor's clock */
    double origin_seconds;
    uint32_t n, max;
    struct point *points;
};

int gpu_timing_open(struct gpu_timing **out, struct moe_gpu *gpu, uint32_t max, struct moe_err *err)
{
    *out = NULL;
    struct gpu_timing *t = moe_alloc(1, sizeof *t, err);
    if (!t)
        return MOE_ERR_MEMORY;
    t->gpu = gpu;
    t->max = max;
    t->points = moe_alloc(max, sizeof *t->points, err);
    int status = t->points ? moe_gpu_mark_open(&t->origin, gpu, true, err) : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < max && status == MOE_OK; i++)
        status = moe_gpu_mark_open(&t->points[i].mark, gpu, true, err);
    if (status == MOE_OK)
        status = moe_gpu_finish(gpu, err);
    if (status == MOE_OK) {
        moe_gpu_mark_set(t->origin, MOE_GPU_COMPUTE);
        status = moe_gpu_mark_wait(t->origin, err);
        t->origin_seconds = moe_seconds();
    }
    if (status != MOE_OK) {
        gpu_timing_close(t);
        return status;
    }
    *out = t;
    return MOE_OK;
}

void gpu_timing_close(struct gpu_timing *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; t->points && i < t->max; i++)
        moe_gpu_mark_close(t->points[i].mark);
    moe_gpu_mark_close(t->origin);
    free(t->points);
    free(t);
}

void gpu_timing_add(struct gpu_timing *t, uint32_t layer, const char *part)
{
    if (t->n == t->max)
        return;
    struct point *point = &t->points[t->n++];
    point->layer = layer;
    point->part = part;
    moe_gpu_mark_set(point->mark, MOE_GPU_COMPUTE);
}

int gpu_timing_write(struct gpu_timing *t, struct moe_timeline *timeline, struct moe_err *err)
{
    int status = moe_gpu_finish(t->gpu, err);
    double before = 0;
    for (uint32_t i = 0; i < t->n && status == MOE_OK; i++) {
        const struct point *point = &t->points[i];
        double at = t->origin_seconds + moe_gpu_mark_seconds(t->origin, point->mark);
        char name[48];
        if (point->part) {
            snprintf(name, sizeof name, "layer %u %s", point->layer, point->part);
            moe_timeline_span(timeline, MOE_TRACK_COMPUTE, name, before, at);
        }
        before = at;
    }
    t->n = 0;
    return status;
}

/* ---- Buffers ---- */

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
    carve_act(&g->q_down, arena, batch, moe_larger(c->q_rank, 1));
    carve_act(&g->heads, arena, batch * c->n_heads,
              moe_larger(c->head_dim - c->rope_dim, c->kv_rank));
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
    g->scratch_bytes =
        moe_gpu_attention_bytes(c->n_heads, moe_config_cache_value(c, 0), o->context);
    g->scratch = moe_arena_take(arena, g->scratch_bytes, 1);
    g->rope = moe_arena_take(arena, (uint64_t)moe_model_rope_rows(c, o->context) * c->rope_dim,
                             sizeof(float));
    if (c->query_step)
        g->q_factors = moe_arena_take(arena, o->context, sizeof(float));
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
    uint64_t pairs = batch * moe_larger(c->top_k, 1), shared_ff = moe_larger(c->shared_ff, 1);
    uint64_t expert_values = pairs * moe_padded(c->expert_ff);
    uint64_t dense_values = batch * moe_padded(moe_larger(c->dense_ff, c->shared_ff));
    uint64_t values = expert_values > dense_values ? expert_values : dense_values;
    g->router_stride = moe_router_stride(c);
    g->gate = moe_arena_take(arena, values, sizeof(float));
    g->up = moe_arena_take(arena, values, sizeof(float));
    g->mid.x = g->gate;
    carve_either(&g->mid, arena, pairs, c->expert_ff, batch, moe_larger(c->dense_ff, c->shared_ff));
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
    uint32_t widest = moe_larger(moe_larger(c->dense_ff, c->shared_ff), c->expert_ff);
    widest = moe_larger(moe_larger(widest, c->n_heads * c->head_dim), c->n_heads * c->value_dim);
    widest = moe_larger(widest, c->n_heads * moe_config_cache_key(c, 0));
    widest = moe_larger(widest, c->state_heads * moe_larger(c->state_value_dim, c->state_key_dim));
    uint64_t other = moe_larger(c->hidden, moe_larger(c->q_rank, c->kv_rank));
    return moe_gpu_math_bytes(moe_padded(widest) * moe_padded(other),
                              (uint64_t)o->batch * moe_padded(moe_larger(widest, c->hidden)));
}

static uint64_t kv_table_cells(const struct moe_config *c, const struct moe_session_options *o)
{
    struct moe_kv_pool pool = moe_kv_pool_shape(c, o);
    return (uint64_t)pool.n_sequences * pool.per_sequence;
}

static void carve_gpu_work(struct gpu_work *g, struct moe_arena *arena, const struct moe_config *c,
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
    g->states = moe_recurrent_shape(c, moe_session_states(o));
    if (g->states.n_layers)
        carve_recurrent(&g->recurrent, arena, c, &g->states, batch);
    carve_feed_forward(&g->ff, arena, c, batch);
    carve_prediction(&g->prediction, arena, c, o);
    g->logits = moe_arena_take(arena, GPU_LOGITS_ROWS * moe_logits_stride(c), sizeof(float));
    g->tokens = moe_arena_take(arena, GPU_LOGITS_ROWS, sizeof(uint32_t));
    g->math_bytes = o->gpu_bf16 ? math_bytes(c, o) : 0;
    g->math = moe_arena_take(arena, g->math_bytes, 1);
    uint64_t n_moe = c->n_moe_layers;
    all->table_bytes = n_moe * c->n_experts * sizeof *all->table;
    all->table = moe_arena_take(arena, all->table_bytes, 1);
}

/* The states that the host computes with: inputs of predictions and of experts, and their outputs.
 */
static void carve_states(struct moe_states *states, struct moe_arena *arena,
                         const struct moe_config *c, const struct moe_session_options *o)
{
    uint64_t batch = o->batch, pairs = batch * moe_larger(c->top_k, 1);
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
    g->residents.like = moe_arena_take(arena, c->n_moe_layers, sizeof(struct moe_gpu_gated));
}

uint64_t gpu_work_bytes(const struct moe_config *c, const struct moe_session_options *o)
{
    struct gpu_work g = {0};
    struct moe_arena arena = {0};
    carve_gpu_work(&g, &arena, c, o);
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
        if (!c->layers[layer].moe)
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

static int allocate_gpu_work(struct gpu_work *g, struct moe_states *states,
                             const struct moe_config *c, const struct moe_session_options *o,
                             struct moe_err *err)
{
    struct moe_arena arena = {0}, host = {0};
    carve_gpu_work(g, &arena, c, o);
    carve_host(g, states, &host, c, o);
    g->block_bytes = arena.used;
    g->block = moe_gpu_alloc(g->gpu, g->block_bytes, err);
    if (!g->block)
        return MOE_ERR_MEMORY;
    arena = (struct moe_arena){.base = g->block, .size = g->block_bytes};
    carve_gpu_work(g, &arena, c, o);
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

static int upload_factors(struct gpu_work *g, const struct moe_config *c, uint32_t context,
                          struct moe_err *err)
{
    float *factors = malloc(context * sizeof *factors);
    if (!factors)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < context; i++)
        factors[i] = moe_rope_query_factor(c, i);
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->attention.q_factors, factors,
                   context * sizeof *factors);
    int status = moe_gpu_finish(g->gpu, err);
    free(factors);
    return status;
}

/* Uploads what stays on the device: rotary angles, factors of queries, and where all experts lie,
 * when they lie there. */
static int upload(struct gpu_work *g, const struct moe_session *s,
                  const struct moe_session_options *o, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->attention.rope, s->model->rope,
                   (uint64_t)moe_model_rope_rows(c, o->context) * c->rope_dim * sizeof(float));
    int status = moe_gpu_finish(g->gpu, err);
    if (status == MOE_OK && c->query_step)
        status = upload_factors(g, c, o->context, err);
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
    MOE_TRY(moe_gpu_pin(g->gpu, s->request_block, s->request_bytes, err));
    g->pinned = s->request_block;
    MOE_TRY(allocate_gpu_work(g, &s->states, &s->model->config, o, err));
    MOE_TRY(open_marks(g, err));
    if (o->gpu_bf16)
        MOE_TRY(moe_gpu_set_math(g->gpu, MOE_GPU_MATH_BF16, g->math, g->math_bytes, err));
    return upload(g, s, o, err);
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

/*
 * What several of the GPU's stages ask of its kernels, as kernels/gpu_ops.h describes it: forms of
 * inputs, norms, products, routers.
 */

/* ---- Forms of inputs ---- */

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

/* ---- Products and norms ---- */

struct moe_gpu_product stages_gpu_product(struct moe_mat w, const struct moe_gpu_act *act,
                                          uint32_t n, float *y, uint64_t y_stride)
{
    return (struct moe_gpu_product){.w = w, .act = act, .n = n, .y = y, .y_stride = y_stride};
}

struct moe_gpu_norm stages_gpu_norm(const struct moe_session *s, const float *weights,
                                    const float *bias, struct moe_gpu_act out)
{
    const struct gpu_work *g = s->device;
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

struct moe_gpu_norm stages_gpu_attention_norm(const struct moe_session *s, uint32_t layer)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    const struct moe_gpu_act *room = &gpu_work_of(s)->hidden;
    const struct moe_mat *const of_states[] = {
        &l->state_q,    &l->state_k,          &l->state_v,     &l->state_z,    &l->state_z_down,
        &l->state_beta, &l->state_decay_down, &l->state_scale, &l->state_decay};
    struct moe_gpu_act in = gpu_act_plain(room, c->hidden);
    if (c->layers[layer].no_attention)
        return stages_gpu_norm(s, l->ffn_norm, l->ffn_norm_bias, stages_gpu_ffn_inputs(s, layer));
    gpu_act_want(&in, room, l->q_down.layout);
    gpu_act_want(&in, room, l->kv_down.layout);
    if (!c->q_rank)
        gpu_act_want(&in, room, l->q.layout);
    gpu_act_want(&in, room, l->k.layout);
    gpu_act_want(&in, room, l->v.layout);
    gpu_act_want(&in, room, l->attn_gate.layout);
    for (size_t i = 0; c->layers[layer].recurrent && i < sizeof of_states / sizeof *of_states; i++)
        gpu_act_want(&in, room, of_states[i]->layout);
    return stages_gpu_norm(s, l->attn_norm, l->attn_norm_bias, in);
}

const struct moe_gpu_norm *stages_gpu_next_norm(struct moe_session *s, uint32_t layer,
                                                struct moe_gpu_norm *norm)
{
    if (layer + 1 >= s->model->config.n_layers)
        return NULL;
    *norm = stages_gpu_attention_norm(s, layer + 1);
    gpu_work_of(s)->normed_for = layer + 1;
    return norm;
}

/* ---- Routers ---- */

uint32_t stages_gpu_layers_ahead(const struct moe_session *s, uint32_t layer, uint32_t *ahead)
{
    const struct moe_config *c = &s->model->config;
    uint32_t n = 0, depth = gpu_work_of(s)->prediction.depth;
    for (uint32_t l = layer + 1; l < c->n_layers && n < depth; l++)
        if (c->layers[l].moe)
            ahead[n++] = l;
    return n;
}

struct moe_gpu_act stages_gpu_ffn_inputs(const struct moe_session *s, uint32_t layer)
{
    const struct moe_model *m = s->model;
    const struct moe_layer *l = &m->layers[layer];
    const struct moe_gpu_act *room = &gpu_work_of(s)->hidden;
    struct moe_gpu_act act = gpu_act_plain(room, m->config.hidden);
    uint32_t ahead[MOE_MAX_DEPTH],
        n = gpu_work_of(s)->prediction.residual ? 0 : stages_gpu_layers_ahead(s, layer, ahead);
    gpu_act_want(&act, room, l->gate.layout);
    gpu_act_want(&act, room, l->up.layout);
    if (l->is_moe) {
        gpu_act_want(&act, room, l->router.layout);
        gpu_act_want(&act, room, l->shared_gate.layout);
        gpu_act_want_experts(&act, room, m->pack, false);
    }
    for (uint32_t i = 0; l->is_moe && i < n; i++)
        gpu_act_want(&act, room, m->layers[ahead[i]].router.layout);
    return act;
}

struct moe_gpu_router stages_gpu_router(const struct moe_session *s, uint32_t layer)
{
    const struct moe_config *c = &s->model->config;
    const struct gpu_feed_forward *g = &gpu_work_of(s)->ff;
    return (struct moe_gpu_router){
        .kind = c->router_kind,
        .n_experts = c->n_experts,
        .top_k = c->top_k,
        .n_groups = c->n_groups,
        .top_groups = c->top_groups,
        .norm_topk = c->norm_topk,
        .topk_eps = c->topk_eps,
        .routed_scale = c->routed_scale,
        .jitter = c->router_jitter,
        .bias = s->model->layers[layer].router_bias,
        .choice_bias = s->model->layers[layer].choice_bias,
        .scores = g->scores,
        .stride = g->router_stride,
        .chosen = g->chosen,
        .weights = g->weights,
    };
}

uint32_t stages_gpu_list_routers(const struct moe_session *s, uint32_t layer,
                                 const struct moe_gpu_act *in, uint32_t n_rows,
                                 struct moe_gpu_product list[2])
{
    const struct gpu_feed_forward *g = &gpu_work_of(s)->ff;
    const struct moe_layer *l = &s->model->layers[layer];
    list[0] = stages_gpu_product(l->router, in, n_rows, g->scores, g->router_stride);
    list[1] = stages_gpu_product(l->shared_gate, in, n_rows, g->shared_scale, MOE_PANEL_ROWS);
    return l->shared_gate.data ? 2 : 1;
}
