#include "infer/session.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "infer/cpu_stages.h"
#include "infer/gpu_stages.h"
#include "infer/kv_pool.h"
#include "infer/pass_ops.h"
#include "infer/recurrent.h"
#include "infer/stages.h"
#include "model/config.h"

enum { DEFAULT_BATCH = 256, MAX_BATCH = 1 << 14 };

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
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
    if (o.source_context == 0)
        o.source_context = o.context;
    if (o.n_sources == 0)
        o.n_sources = o.n_sequences;
    if (c->n_encoder == 0)
        o.source_context = o.n_sources = 0;
    o.takes_back = o.takes_back && c->layers[c->n_layers].state_index > 0;
    o.batch = larger(o.batch, o.source_context);
    if (c->prefix_lm)
        o.batch = larger(o.batch, o.context);
    return o;
}

static const struct moe_stages_ops *stages_of(const struct moe_session_options *o)
{
    return o->gpu ? &moe_stages_gpu : &moe_stages_cpu;
}

/* ---- Sizes ---- */

static struct moe_request_shape request_shape(const struct moe_config *c,
                                              const struct moe_session_options *o)
{
    return (struct moe_request_shape){.n_experts = c->n_experts,
                                      .top_k = c->top_k,
                                      .batch = o->batch,
                                      .n_variants = o->n_variants,
                                      .weighs_inputs = c->weigh_inputs,
                                      .limited = c->expert_capacity > 0,
                                      .passes = c->overflow_passes};
}

/* Bytes of the request's and the pool's arrays; UINT64_MAX on overflow. */
static uint64_t request_bytes(const struct moe_config *c, const struct moe_session_options *o)
{
    struct moe_layer_request request;
    const struct moe_request_shape shape = request_shape(c, o);
    struct moe_kv_pool pool = moe_kv_pool_shape(c, o);
    struct moe_arena arena = {0};
    moe_layer_request_carve(&request, &arena, &shape);
    moe_kv_pool_carve(&pool, &arena);
    moe_arena_take(&arena, o->n_sequences, sizeof(uint32_t)); /* n_recorded */
    moe_arena_take(&arena, (uint64_t)o->n_sequences * c->layers[c->n_layers].state_index,
                   sizeof(uint32_t));                                             /* stands */
    moe_arena_take(&arena, o->takes_back ? o->n_sequences : 0, sizeof(uint32_t)); /* marked */
    moe_arena_take(&arena, o->n_sources, sizeof(struct moe_encoded));
    moe_arena_take(&arena, o->n_sources ? o->n_sequences : 0, sizeof(uint32_t)); /* attends */
    moe_arena_take(&arena, c->prefix_lm ? o->n_sequences : 0, sizeof(struct moe_prompt));
    return arena.overflowed ? UINT64_MAX : arena.used;
}

uint64_t moe_session_bytes(const struct moe_config *config,
                           const struct moe_session_options *options)
{
    struct moe_session_options o = resolve(config, options);
    uint64_t sum, stages = stages_of(&o)->host_bytes(config, &o);
    return moe_add_u64(request_bytes(config, &o), stages, &sum) ? sum : UINT64_MAX;
}

uint64_t moe_session_gpu_bytes(const struct moe_config *config,
                               const struct moe_session_options *options)
{
    struct moe_session_options o = resolve(config, options);
    const struct moe_stages_ops *stages = stages_of(&o);
    return stages->device_bytes ? stages->device_bytes(config, &o) : 0;
}

uint64_t moe_session_kv_bytes(const struct moe_config *config,
                              const struct moe_session_options *options)
{
    struct moe_session_options o = resolve(config, options);
    uint64_t sum, sources = o.n_sources ? moe_kv_source_shape(config, &o).bytes : 0;
    return moe_add_u64(moe_kv_shape(config, &o).bytes, sources, &sum) ? sum : UINT64_MAX;
}

/* ---- Open and close ---- */

static int check_options(const struct moe_model *model, const struct moe_session_options *o,
                         struct moe_err *err)
{
    if (o->context > model->rope_positions)
        return moe_fail(err, MOE_ERR_USAGE, "a context of %u is more than the model's %u positions",
                        o->context, model->rope_positions);
    if (o->source_context > model->rope_positions)
        return moe_fail(err, MOE_ERR_USAGE, "sources of %u positions are more than the model's %u",
                        o->source_context, model->rope_positions);
    if (o->batch > MAX_BATCH)
        return moe_fail(err, MOE_ERR_USAGE,
                        "a pass of %u rows, which see each other, is more than %d: take a shorter "
                        "context",
                        o->batch, MAX_BATCH);
    if (o->gpu) {
        int status = moe_config_check_gpu(&model->config, moe_pack_path(model->pack), err);
        if (status != MOE_OK)
            return status;
    }
    if (o->kv_kind != MOE_LAYOUT_F32 && o->kv_kind != MOE_LAYOUT_F16)
        return moe_fail(err, MOE_ERR_USAGE, "the KV cache is kept as f32 or f16, not as %s",
                        moe_layout_name(o->kv_kind));
    if (moe_session_bytes(&model->config, o) == UINT64_MAX ||
        moe_session_gpu_bytes(&model->config, o) == UINT64_MAX)
        return moe_fail(err, MOE_ERR_MEMORY,
                        "out of memory: a context of %u positions and batches of %u overflow",
                        o->context, o->batch);
    return MOE_OK;
}

static int allocate_request(struct moe_session *s, const struct moe_session_options *o,
                            struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    s->request_bytes = request_bytes(c, o);
    s->request_block = moe_pages_alloc(s->request_bytes, err);
    if (!s->request_block)
        return MOE_ERR_MEMORY;
    struct moe_arena arena = {.base = s->request_block, .size = s->request_bytes};
    const struct moe_request_shape shape = request_shape(c, o);
    moe_layer_request_carve(&s->request, &arena, &shape);
    s->kv_pool = moe_kv_pool_shape(c, o);
    moe_kv_pool_carve(&s->kv_pool, &arena);
    s->n_recorded = moe_arena_take(&arena, o->n_sequences, sizeof *s->n_recorded);
    memset(s->n_recorded, 0, o->n_sequences * sizeof *s->n_recorded);
    uint64_t n_states = (uint64_t)o->n_sequences * c->layers[c->n_layers].state_index;
    uint32_t *stands = moe_arena_take(&arena, n_states, sizeof *stands);
    s->stands = n_states ? stands : NULL;
    uint32_t n_marked = o->takes_back ? o->n_sequences : 0;
    uint32_t *marked = moe_arena_take(&arena, n_marked, sizeof *marked);
    s->marked = n_marked ? marked : NULL;
    for (uint32_t i = 0; i < n_marked; i++)
        marked[i] = MOE_STANDS_NOWHERE;
    for (uint32_t i = 0; i < o->n_sequences; i++)
        moe_recurrent_stand(s, i, 0);
    s->sources = moe_arena_take(&arena, o->n_sources, sizeof *s->sources);
    s->attends = moe_arena_take(&arena, o->n_sources ? o->n_sequences : 0, sizeof *s->attends);
    uint32_t n_prompts = c->prefix_lm ? o->n_sequences : 0;
    struct moe_prompt *prompts = moe_arena_take(&arena, n_prompts, sizeof *prompts);
    for (uint32_t i = 0; i < n_prompts; i++)
        prompts[i] = (struct moe_prompt){0};
    s->prompts = n_prompts ? prompts : NULL;
    for (uint32_t i = 0; i < o->n_sources; i++)
        s->sources[i] = (struct moe_encoded){0};
    for (uint32_t i = 0; o->n_sources && i < o->n_sequences; i++)
        s->attends[i] = i % o->n_sources;
    return MOE_OK;
}

/* The driver of its passes, which computes with no strategy yet. */
static int open_pass(struct moe_session *s, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    uint32_t n_all = c->n_layers + c->n_drafting;
    s->moe_layers = moe_alloc(n_all, sizeof *s->moe_layers, err);
    s->static_layers = moe_alloc(n_all, 1, err);
    if (!s->moe_layers || !s->static_layers)
        return MOE_ERR_MEMORY;
    struct moe_pass_shape shape = {.n_layers = c->n_moe_layers,
                                   .n_encoder = c->layers[c->n_encoder].moe_index,
                                   .n_experts = c->n_experts,
                                   .top_k = c->top_k,
                                   .n_model_layers = c->n_layers,
                                   .model_layer = s->moe_layers,
                                   .is_static = s->static_layers,
                                   .routes_early = c->router_early};
    for (uint32_t layer = 0; layer < n_all; layer++) {
        if (!c->layers[layer].moe)
            continue;
        s->moe_layers[shape.n_listed] = layer;
        s->static_layers[shape.n_listed++] = c->layers[layer].static_routing;
    }
    s->pass = (struct moe_pass){.ops = &moe_runner_ops,
                                .ctx = s,
                                .shape = shape,
                                .scheduler = s->experts ? s->experts->scheduler : NULL,
                                .request = &s->request};
    return MOE_OK;
}

int moe_session_open(struct moe_session **out, struct moe_model *model, struct moe_experts *experts,
                     const struct moe_session_options *options, struct moe_err *err)
{
    *out = NULL;
    struct moe_session_options o = resolve(&model->config, options);
    int status = check_options(model, &o, err);
    if (status != MOE_OK)
        return status;
    struct moe_session *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    s->model = model;
    s->experts = experts;
    s->context = o.context;
    s->n_sequences = o.n_sequences;
    s->kv_kind = o.kv_kind;
    s->batch = o.batch;
    s->source_context = o.source_context;
    s->n_sources = o.n_sources;
    s->n_threads = moe_par_threads();
    s->stages = stages_of(&o);
    status = open_pass(s, err);
    if (status == MOE_OK)
        status = allocate_request(s, &o, err);
    if (status == MOE_OK)
        status = s->stages->open(s, &o, err);
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
    moe_session_drop_strategy(s);
    if (s->device)
        s->stages->close(s);
    moe_pages_free(s->request_block, s->request_bytes);
    free(s->moe_layers);
    free(s->static_layers);
    free(s);
}

int moe_sequence_reserve(struct moe_session *s, uint32_t sequence, uint32_t n_positions,
                         struct moe_err *err)
{
    if (sequence >= s->n_sequences || n_positions > s->context)
        return moe_fail(err, MOE_ERR_USAGE, "sequence %u with %u positions is out of range",
                        sequence, n_positions);
    return moe_kv_take(&s->kv_pool, sequence, n_positions, err);
}

void moe_sequence_end(struct moe_session *s, uint32_t sequence)
{
    uint32_t n_recorded = s->n_recorded[sequence];
    moe_kv_give_back(&s->kv_pool, sequence);
    if (n_recorded && s->pass.scheduler)
        moe_scheduler_end_sequence(s->pass.scheduler, n_recorded);
    s->n_recorded[sequence] = 0;
    if (s->marked)
        s->marked[sequence] = MOE_STANDS_NOWHERE;
    if (sequence == 0)
        s->passed = (struct moe_passed){0};
    moe_recurrent_stand(s, sequence, 0);
    if (s->prompts)
        s->prompts[sequence] = (struct moe_prompt){0};
}

/* ---- Texts that begin alike ---- */

/* What a text's keys and values depend on beside its ids (infer/kv_pool.h): LongRoPE, or the source
 * that a sequence attends to. */
static uint64_t given(const struct moe_session *s, uint32_t sequence, uint32_t n)
{
    const struct moe_config *c = &s->model->config;
    if (s->n_sources)
        return s->sources[s->attends[sequence]].number;
    return c->rope_original && n > c->rope_original;
}

void moe_sequence_computed(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n_rows && !s->prompts && !s->stands; i++)
        moe_kv_know(&s->kv_pool, rows[i].sequence, rows[i].position, rows[i].token,
                    given(s, rows[i].sequence, rows[i].length));
}

uint32_t moe_sequence_known(const struct moe_session *s, const uint32_t *ids, uint32_t n)
{
    if (s->n_sources || s->prompts || s->stands)
        return 0;
    return moe_kv_find(&s->kv_pool, &(struct moe_kv_text){ids, n - 1, given(s, 0, n)});
}

int moe_sequence_begin(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint32_t n,
                       uint32_t n_positions, uint32_t *n_known, struct moe_err *err)
{
    const struct moe_kv_text text = {ids, n - 1, given(s, sequence, n)};
    struct moe_kv_begun begun;
    int status = moe_kv_begin(&s->kv_pool, sequence, &text, n_positions, &begun, err);
    if (status == MOE_OK && begun.copy_to != MOE_NO_BLOCK)
        s->stages->copy_block(s, begun.copy_from, begun.copy_to);
    *n_known = begun.n_known;
    s->begun = s->begun || status == MOE_OK;
    return status;
}

int moe_sequence_fork(struct moe_session *s, uint32_t from, uint32_t to, uint32_t n_positions,
                      struct moe_err *err)
{
    struct moe_kv_begun begun;
    int status = moe_kv_fork(&s->kv_pool, from, to, n_positions, &begun, err);
    if (status == MOE_OK && begun.copy_to != MOE_NO_BLOCK)
        s->stages->copy_block(s, begun.copy_from, begun.copy_to);
    if (status == MOE_OK && s->stands) {
        bool there = moe_recurrent_from(s, from, n_positions) == n_positions;
        if (there)
            s->stages->copy_states(s, from, to);
        moe_recurrent_stand(s, to, there ? n_positions : MOE_STANDS_NOWHERE);
    }
    return status;
}

uint32_t moe_sequence_from(const struct moe_session *s, uint32_t sequence, uint32_t n)
{
    return moe_recurrent_from(s, sequence, moe_kv_windows_from(&s->kv_pool, sequence, n));
}

int moe_sequence_stand(struct moe_session *s, uint32_t sequence, uint32_t position,
                       struct moe_err *err)
{
    int status = moe_sequence_hold(s, sequence, position, err);
    if (status == MOE_OK)
        moe_recurrent_stand(s, sequence, position);
    return status;
}

void moe_sequence_prompted(struct moe_session *s, uint32_t sequence, uint32_t begin, uint32_t end)
{
    moe_kv_windows_mark(&s->kv_pool, sequence, begin, end);
}

void moe_sequence_mark(struct moe_session *s, uint32_t sequence, uint32_t n)
{
    if (!s->marked || s->marked[sequence] == n || n == 0 || moe_recurrent_from(s, sequence, n) != n)
        return;
    s->stages->copy_states(s, sequence, s->n_sequences + sequence);
    s->marked[sequence] = n;
}

uint32_t moe_sequence_back(struct moe_session *s, uint32_t sequence, uint32_t n)
{
    uint32_t from = moe_sequence_from(s, sequence, n);
    if (from == n || !s->marked || s->marked[sequence] == MOE_STANDS_NOWHERE ||
        s->marked[sequence] > n ||
        moe_kv_windows_from(&s->kv_pool, sequence, s->marked[sequence]) != s->marked[sequence])
        return from;
    s->stages->copy_states(s, s->n_sequences + sequence, sequence);
    moe_recurrent_stand(s, sequence, s->marked[sequence]);
    return s->marked[sequence];
}

/* ---- What is kept elsewhere ---- */

int moe_sequence_pieces(const struct moe_session *s, uint32_t n, struct moe_kept *out,
                        struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const char *why =
        c->n_encoder    ? "a model with an encoder keeps none of its texts"
        : c->prefix_lm  ? "a model whose prompts see all of themselves begins each anew"
        : s->stages->kv ? NULL
        : s->kv_kind == MOE_LAYOUT_F32
            ? "the KV cache lies in the GPU's memory: take --device cpu"
            : "the KV cache lies in the GPU's memory, as f16: take --device cpu, without "
              "--kv f16";
    if (why)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "no context can be saved or loaded here: %s",
                        why);
    *out = (struct moe_kept){.kv = s->stages->kv(s), .n = n};
    if (s->stages->states)
        s->stages->states(s, &out->states, &out->compressed);
    return MOE_OK;
}

int moe_sequence_kept(const struct moe_session *s, uint32_t n, struct moe_kept *out,
                      struct moe_err *err)
{
    n = moe_kv_windows_complete(&s->kv_pool, 0, n);
    bool marked = s->marked && s->marked[0] != MOE_STANDS_NOWHERE && s->marked[0] <= n;
    uint32_t from = moe_recurrent_from(s, 0, n);
    bool back = marked && from != n;
    int status = moe_sequence_pieces(s, back ? s->marked[0] : from, out, err);
    if (status == MOE_OK && back)
        out->states_of = s->n_sequences; /* sequence 0's mark */
    return status;
}

int moe_sequence_hold(struct moe_session *s, uint32_t sequence, uint32_t n, struct moe_err *err)
{
    int status = moe_sequence_reserve(s, sequence, n, err);
    if (status == MOE_OK)
        moe_kv_windows_hold(&s->kv_pool, sequence, n);
    return status;
}

void moe_sequence_put(struct moe_session *s, uint32_t sequence, uint32_t n, bool far)
{
    moe_recurrent_stand(s, sequence, n);
    s->n_recorded[sequence] = 0;
    s->begun = true;
    if (s->marked)
        s->marked[sequence] = MOE_STANDS_NOWHERE;
    if (sequence == 0) {
        s->far = far;
        s->passed = (struct moe_passed){0};
    }
}
