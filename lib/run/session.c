#include "run/session.h"

#include <stdlib.h>
#include <string.h>

#include "run/gpu_work.h"
#include "run/stages.h"
#include "run/workspace.h"

enum { DEFAULT_BATCH = 256, MAX_BATCH = 1 << 14 };

static uint64_t padded(uint64_t n)
{
    return moe_round_up(n, 16);
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

uint64_t moe_logits_stride(const struct moe_config *config)
{
    return padded(config->vocab);
}

/* ---- Sizes: one function carves, counting or for real ---- */

/* What latent attention needs besides. */
static void carve_latent(struct moe_workspace *w, struct moe_arena *arena,
                         const struct moe_config *c, uint32_t batch)
{
    uint32_t nope = c->head_dim - c->rope_dim;
    w->queries_stride = padded(c->n_heads * moe_config_cache_key(c));
    w->attended_stride = padded(c->n_heads * moe_config_cache_value(c));
    w->q_down = moe_arena_take(arena, batch * w->q_down_stride, sizeof(float));
    w->queries = moe_arena_take(arena, batch * w->queries_stride, sizeof(float));
    w->attended = moe_arena_take(arena, batch * w->attended_stride, sizeof(float));
    moe_inputs_carve(&w->from_q_down, arena, batch, c->q_rank);
    w->head_products = moe_arena_take(arena, c->n_heads, sizeof *w->head_products);
    w->head_acts = moe_arena_take(arena, c->n_heads, sizeof *w->head_acts);
    for (uint32_t i = 0; i < c->n_heads; i++) {
        struct moe_act measure;
        moe_act_carve(w->head_acts ? &w->head_acts[i] : &measure, arena, batch,
                      larger(nope, c->kv_rank));
    }
}

/* What the processor computes with. */
static void carve_stages(struct moe_workspace *w, struct moe_arena *arena,
                         const struct moe_config *c, const struct moe_session_options *o,
                         int n_threads)
{
    uint64_t batch = o->batch;
    uint32_t q = c->n_heads * c->head_dim, attn = c->n_heads * c->value_dim;
    uint32_t kv_heads = moe_config_cache_heads(c), key = moe_config_cache_key(c);
    uint32_t value = moe_config_cache_value(c);
    uint32_t ff = larger(larger(c->dense_ff, c->expert_ff), c->shared_ff);
    uint32_t ff_rows = larger(o->batch, c->top_k);
    w->q_stride = padded(q);
    w->q_down_stride = padded(c->q_rank);
    w->k_stride = padded(kv_heads * key);
    w->v_stride = padded(c->kv_rank ? c->kv_rank + c->rope_dim : kv_heads * value);
    w->attn_stride = padded(attn);
    w->ff_stride = padded(ff);
    w->logits_stride = moe_logits_stride(c);
    w->h = moe_arena_take(arena, batch * w->hidden_stride, sizeof(float));
    w->sum = moe_arena_take(arena, batch * w->hidden_stride, sizeof(float));
    w->q = moe_arena_take(arena, batch * w->q_stride, sizeof(float));
    w->attn = moe_arena_take(arena, batch * w->attn_stride, sizeof(float));
    w->k = moe_arena_take(arena, batch * w->k_stride, sizeof(float));
    w->v = moe_arena_take(arena, batch * w->v_stride, sizeof(float));
    w->queries = w->q;
    w->queries_stride = w->q_stride;
    w->attended = w->attn;
    w->attended_stride = w->attn_stride;
    if (c->kv_rank)
        carve_latent(w, arena, c, o->batch);
    w->gate = moe_arena_take(arena, ff_rows * w->ff_stride, sizeof(float));
    w->up = moe_arena_take(arena, ff_rows * w->ff_stride, sizeof(float));
    w->probabilities = moe_arena_take(arena, batch * w->router_stride, sizeof(float));
    w->router_scratch =
        moe_arena_take(arena, (uint64_t)n_threads * 2 * w->router_stride, sizeof(float));
    w->shared_scale = moe_arena_take(arena, batch * MOE_PANEL_ROWS, sizeof(float));
    w->tiles = moe_arena_take(arena, moe_attention_max_tiles(c, o->batch), sizeof *w->tiles);
    w->scratch_floats = moe_attention_scratch_floats(c);
    w->scratch = moe_arena_take(arena, (uint64_t)n_threads * w->scratch_floats, sizeof(float));
    moe_inputs_carve(&w->from_hidden, arena, o->batch, c->hidden);
    moe_inputs_carve(&w->from_attn, arena, o->batch, attn);
    moe_inputs_carve(&w->gathered, arena, o->batch, c->hidden);
    moe_inputs_carve(&w->from_ff, arena, o->batch, ff);
    w->single = moe_arena_take(arena, larger(c->top_k, 1), sizeof *w->single);
    for (uint32_t i = 0; i < larger(c->top_k, 1); i++) {
        struct moe_inputs measure = {0};
        moe_inputs_carve(w->single ? &w->single[i] : &measure, arena, 1, larger(c->expert_ff, 1));
    }
}

static void carve(struct moe_workspace *w, struct moe_arena *arena, const struct moe_config *c,
                  const struct moe_session_options *o, int n_threads)
{
    uint64_t batch = o->batch, pairs = batch * larger(c->top_k, 1);
    w->hidden_stride = padded(c->hidden);
    w->router_stride = padded(larger(c->n_experts, 1));
    bool looks = o->gpu && o->look_depth > 0; /* perhaps on the host */
    if (!o->gpu)
        carve_stages(w, arena, c, o, n_threads);
    else if (looks && o->look_residual)
        w->h = moe_arena_take(arena, batch * w->hidden_stride, sizeof(float));
    else if (looks)
        moe_inputs_carve(&w->from_hidden, arena, o->batch, c->hidden);
    if (!o->gpu || o->needs_rows || (looks && !o->look_residual))
        w->xn = moe_arena_take(arena, batch * w->hidden_stride, sizeof(float));
    if (!o->gpu || o->needs_rows)
        w->expert_out = moe_arena_take(arena, pairs * w->hidden_stride, sizeof(float));
    w->chosen = moe_arena_take(arena, pairs, sizeof(uint32_t));
    w->weights = moe_arena_take(arena, pairs, sizeof(float));
    w->expert_rows = moe_arena_take(arena, pairs, sizeof(uint32_t));
    w->slot_of = moe_arena_take(arena, pairs, sizeof(uint32_t));
    w->n_classes = o->n_variants ? o->n_variants + 1 : 1;
    uint64_t entries = w->router_stride * w->n_classes;
    w->variants = moe_arena_take(arena, o->n_variants ? pairs : 0, 1);
    w->active = moe_arena_take(arena, entries, sizeof(uint32_t));
    w->n_rows = moe_arena_take(arena, entries, sizeof(uint32_t));
    w->first = moe_arena_take(arena, entries, sizeof(uint32_t));
    w->entry_classes = moe_arena_take(arena, entries, 1);
    w->cursor = moe_arena_take(arena, entries, sizeof(uint32_t));
    w->needs = moe_arena_take(arena, entries, sizeof *w->needs);
    w->kinds = moe_arena_take(arena, entries, 1);
    w->unimportance = moe_arena_take(arena, w->router_stride, sizeof *w->unimportance);
}

/* Shape and size of the KV cache; UINT64_MAX when it overflows. */
static uint64_t shape_kv(struct moe_kv *kv, const struct moe_config *c,
                         const struct moe_session_options *o)
{
    *kv = (struct moe_kv){
        .n_positions = (uint32_t)padded(o->context),
        .key_dim = moe_config_cache_key(c),
        .value_dim = moe_config_cache_value(c),
        .value_padded = (uint32_t)padded(moe_config_cache_value(c)),
        .n_heads = moe_config_cache_heads(c),
        .n_sequences = o->n_sequences,
        .layout = {o->kv_kind, 0},
        .item_bytes = (uint32_t)moe_layout_bits(o->kv_kind) / 8,
    };
    uint64_t heads = (uint64_t)c->n_layers * o->n_sequences * kv->n_heads;
    uint64_t per_head =
        (uint64_t)kv->n_positions * (kv->key_dim + kv->value_padded) * kv->item_bytes;
    if (!moe_mul_u64(heads, per_head, &kv->bytes))
        kv->bytes = UINT64_MAX;
    return kv->bytes;
}

static struct moe_session_options resolve(const struct moe_config *c,
                                          const struct moe_session_options *options)
{
    struct moe_session_options o = options ? *options : (struct moe_session_options){0};
    if (o.context == 0)
        o.context = c->context_max;
    if (o.n_sequences == 0)
        o.n_sequences = 1;
    if (o.batch == 0)
        o.batch = DEFAULT_BATCH;
    if (o.kv_kind == MOE_LAYOUT_NONE)
        o.kv_kind = MOE_LAYOUT_F32;
    if (o.batch > MAX_BATCH)
        o.batch = MAX_BATCH;
    return o;
}

uint64_t moe_session_bytes(const struct moe_config *config,
                           const struct moe_session_options *options)
{
    struct moe_session_options o = resolve(config, options);
    struct moe_workspace w = {0};
    struct moe_arena arena = {0};
    carve(&w, &arena, config, &o, moe_par_threads());
    uint64_t rest = o.gpu ? gpu_work_host_bytes(config, &o) : shape_kv(&w.kv, config, &o), sum;
    return !arena.overflowed && moe_add_u64(arena.used, rest, &sum) ? sum : UINT64_MAX;
}

uint64_t moe_session_gpu_bytes(const struct moe_config *config,
                               const struct moe_session_options *options)
{
    struct moe_session_options o = resolve(config, options);
    return o.gpu ? gpu_work_bytes(config, &o) : 0;
}

uint64_t moe_session_kv_bytes(const struct moe_config *config,
                              const struct moe_session_options *options)
{
    struct moe_session_options o = resolve(config, options);
    struct moe_kv kv;
    return shape_kv(&kv, config, &o);
}

/* ---- Open and close ---- */

static int allocate_kv(struct moe_workspace *w, const struct moe_config *c,
                       const struct moe_session_options *o, struct moe_err *err)
{
    w->kv.keys = moe_pages_alloc(w->kv.bytes, err);
    if (!w->kv.keys)
        return MOE_ERR_MEMORY;
    uint64_t heads = (uint64_t)c->n_layers * o->n_sequences * w->kv.n_heads;
    w->kv.values = w->kv.keys + heads * w->kv.n_positions * w->kv.key_dim * w->kv.item_bytes;
    return MOE_OK;
}

static int allocate(struct moe_workspace *w, const struct moe_config *c,
                    const struct moe_session_options *o, struct moe_err *err)
{
    struct moe_arena arena = {0};
    carve(w, &arena, c, o, moe_par_threads());
    uint64_t kv = shape_kv(&w->kv, c, o);
    if (arena.overflowed || kv == UINT64_MAX)
        return moe_fail(err, MOE_ERR_MEMORY,
                        "out of memory: a context of %u positions and batches of %u overflow",
                        o->context, o->batch);
    w->block = moe_pages_alloc(arena.used, err);
    if (!w->block)
        return MOE_ERR_MEMORY;
    w->block_bytes = arena.used;
    arena = (struct moe_arena){.base = w->block, .size = w->block_bytes};
    carve(w, &arena, c, o, moe_par_threads());
    return MOE_OK;
}

/* The device's part; what it and the host tell each other lies in page-locked memory. */
static int open_gpu(struct moe_session *s, const struct moe_session_options *o, struct moe_err *err)
{
    s->needs_rows = o->needs_rows;
    s->look_depth = o->look_depth;
    s->look_residual = o->look_residual;
    s->predict_device.named = o->predict_on;
    int status = moe_gpu_pin(o->gpu, s->work->block, s->work->block_bytes, err);
    if (status != MOE_OK)
        return status;
    s->pinned_by = o->gpu;
    status = gpu_work_open(&s->gpu_work, s->model, s->experts, o, err);
    if (status == MOE_OK)
        s->stages = &moe_stages_gpu;
    return status;
}

int moe_session_open(struct moe_session **out, struct moe_model *model, struct moe_experts *experts,
                     const struct moe_session_options *options, struct moe_err *err)
{
    *out = NULL;
    struct moe_session_options o = resolve(&model->config, options);
    if (o.context > model->rope_positions)
        return moe_fail(err, MOE_ERR_USAGE, "a context of %u is more than the model's %u positions",
                        o.context, model->rope_positions);
    if (o.kv_kind != MOE_LAYOUT_F32 && o.kv_kind != MOE_LAYOUT_F16)
        return moe_fail(err, MOE_ERR_USAGE, "the KV cache is kept as f32 or f16, not as %s",
                        moe_layout_name(o.kv_kind));
    struct moe_session *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    s->model = model;
    s->experts = experts;
    s->context = o.context;
    s->n_sequences = o.n_sequences;
    s->batch = o.batch;
    s->n_threads = moe_par_threads();
    s->stages = &moe_stages_cpu;
    s->work = moe_alloc(1, sizeof *s->work, err);
    int status = s->work ? allocate(s->work, &model->config, &o, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = o.gpu ? open_gpu(s, &o, err) : allocate_kv(s->work, &model->config, &o, err);
    if (status != MOE_OK) {
        moe_session_close(s);
        return status;
    }
    *out = s;
    return MOE_OK;
}

void moe_session_close(struct moe_session *s)
{
    if (!s)
        return;
    if (s->work) {
        s->stages->close(s);
        if (s->pinned_by)
            moe_gpu_unpin(s->pinned_by, s->work->block);
        moe_pages_free(s->work->block, s->work->block_bytes);
        moe_pages_free(s->work->kv.keys, s->work->kv.bytes);
        free(s->work);
    }
    free(s);
}
