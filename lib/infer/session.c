/* Opens sessions; sequences of the KV cache: synchronized, rewound, forked, saved and loaded. */
#include "infer/session.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "infer/compressed.h"
#include "infer/cpu_stages.h"
#include "infer/gpu_stages.h"
#include "infer/kv_pool.h"
#include "infer/pass_ops.h"
#include "infer/recurrent.h"
#include "infer/stages.h"
#include "model/config.h"
#include "ranks/ranks.h"

enum { DEFAULT_BATCH = 256, MAX_BATCH = 1 << 14 };

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
    o.kv_grows = o.kv_grows && !o.gpu;
    o.takes_back = o.takes_back && c->layers[c->n_layers].state_index > 0;
    if (c->layers[c->n_layers].state_index == 0 || c->n_encoder || c->prefix_lm)
        o.n_snapshots = 0;
    o.batch = moe_larger(o.batch, o.source_context);
    if (c->prefix_lm)
        o.batch = moe_larger(o.batch, o.context);
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
                                      .limited = c->expert_capacity > 0 || c->n_zero > 0,
                                      .passes = c->overflow_passes || c->n_zero > 0};
}

static uint64_t passing_floats(const struct moe_config *c, const struct moe_session_options *o)
{
    return moe_config_count_layers(c, MOE_LAYER(away))
               ? (uint64_t)o->batch * moe_config_state_width(c)
               : 0;
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
    moe_arena_take(&arena, o->n_sequences, sizeof(struct moe_sequence));
    moe_arena_take(&arena, (uint64_t)o->n_sequences * c->layers[c->n_layers].state_index,
                   sizeof(uint32_t));                                             /* state_ends */
    moe_arena_take(&arena, o->takes_back ? o->n_sequences : 0, sizeof(uint32_t)); /* kept_ends */
    moe_arena_take(&arena, o->n_sources, sizeof(struct moe_encoded));
    moe_arena_take(&arena, o->n_sources ? o->n_sequences : 0, sizeof(uint32_t)); /* attends */
    moe_arena_take(&arena, c->prefix_lm ? o->n_sequences : 0, sizeof(struct moe_prompt));
    moe_arena_take(&arena, passing_floats(c, o), sizeof(float));
    return arena.overflowed ? UINT64_MAX : arena.used;
}

uint64_t moe_session_bytes(const struct moe_config *config,
                           const struct moe_session_options *options)
{
    struct moe_session_options o = resolve(config, options);
    uint64_t sum, stages = stages_of(&o)->host_bytes(config, &o);
    return moe_add_u64(request_bytes(config, &o), stages, &sum) ? sum : UINT64_MAX;
}

uint64_t moe_session_rows_bytes(const struct moe_config *config,
                                const struct moe_session_options *options, uint32_t n_rows)
{
    struct moe_session_options o = resolve(config, options);
    return cpu_work_rows_bytes(config, &o, n_rows);
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

struct moe_kv moe_session_kv(const struct moe_config *config,
                             const struct moe_session_options *options)
{
    struct moe_session_options o = resolve(config, options);
    return moe_kv_shape(config, &o);
}

/* ---- Open and close ---- */

static int check_kv(const struct moe_model *model, const struct moe_session_options *o,
                    struct moe_err *err)
{
    const char *name = moe_kv_kind_name(o->kv_kind);
    const bool apart = o->kv_kind >> 8 != 0;
    if (!name)
        return moe_fail(err, MOE_ERR_USAGE, "the KV cache is kept as none of " MOE_KV_KINDS);
    if (o->gpu && !moe_kv_on_gpu(o->kv_kind))
        return moe_fail(err, MOE_ERR_UNSUPPORTED, MOE_KV_ON_GPU, name);
    if (apart && moe_compressed_shape(&model->config, o).bytes)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "option --kv %s: this model keeps key and value in one, and takes one kind",
                        name);
    return MOE_OK;
}

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
    MOE_TRY(check_kv(model, o, err));
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
    s->sequences = moe_arena_take(&arena, o->n_sequences, sizeof *s->sequences);
    memset(s->sequences, 0, o->n_sequences * sizeof *s->sequences);
    uint64_t n_states = (uint64_t)o->n_sequences * c->layers[c->n_layers].state_index;
    uint32_t *state_ends = moe_arena_take(&arena, n_states, sizeof *state_ends);
    s->state_ends = n_states ? state_ends : NULL;
    uint32_t n_kept = o->takes_back ? o->n_sequences : 0;
    uint32_t *kept_ends = moe_arena_take(&arena, n_kept, sizeof *kept_ends);
    s->kept_ends = n_kept ? kept_ends : NULL;
    for (uint32_t i = 0; i < n_kept; i++)
        kept_ends[i] = MOE_NO_STATE;
    for (uint32_t i = 0; i < o->n_sequences; i++)
        moe_recurrent_set(s, i, 0);
    s->sources = moe_arena_take(&arena, o->n_sources, sizeof *s->sources);
    s->attends = moe_arena_take(&arena, o->n_sources ? o->n_sequences : 0, sizeof *s->attends);
    uint32_t n_prompts = c->prefix_lm ? o->n_sequences : 0;
    struct moe_prompt *prompts = moe_arena_take(&arena, n_prompts, sizeof *prompts);
    for (uint32_t i = 0; i < n_prompts; i++)
        prompts[i] = (struct moe_prompt){0};
    s->prompts = n_prompts ? prompts : NULL;
    const uint64_t n_passing = passing_floats(c, o);
    float *passing = moe_arena_take(&arena, n_passing, sizeof *passing);
    s->passing = n_passing ? passing : NULL;
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
                                   .loop = moe_config_moe_loop(c),
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
    s->kv_grows = o.kv_grows;
    s->kv_keeps = o.kv_keeps;
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
    if (s->kv_grows) /* nothing is held */
        moe_session_hold(s, false, true);
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

/* ---- Sequences ---- */

uint32_t moe_sequence_length(const struct moe_session *s, uint32_t sequence)
{
    return s->sequences[sequence].n;
}

uint32_t moe_sequence_common(const struct moe_session *s, uint32_t sequence, const uint32_t *ids,
                             uint32_t n)
{
    uint32_t length = s->sequences[sequence].n;
    return moe_kv_common(&s->kv_pool, sequence, ids, n < length ? n : length);
}

int moe_sequence_reserve(struct moe_session *s, uint32_t sequence, uint32_t n_positions,
                         struct moe_err *err)
{
    if (sequence >= s->n_sequences || n_positions > s->context)
        return moe_fail(err, MOE_ERR_USAGE, "sequence %u with %u positions is out of range",
                        sequence, n_positions);
    return moe_kv_take(&s->kv_pool, sequence, n_positions, err);
}

void moe_session_hold(struct moe_session *s, bool drops, bool now)
{
    struct moe_kv_pool *pool = &s->kv_pool;
    for (uint32_t next = 0, i; (i = moe_kv_hold(pool, &next, drops)) != MOE_NO_BLOCK;)
        s->stages->hold_block(s, i, pool->blocks[i].held);
    s->stats.kv_blocks_max = (uint32_t)moe_larger(s->stats.kv_blocks_max, pool->n_held);
    if (s->pass.scheduler)
        moe_scheduler_set_blocks(s->pass.scheduler, pool->n_held, now);
}

/* Cells of a sequence's first n positions will be written between passes. */
static void hold_positions(struct moe_session *s, uint32_t sequence, uint32_t n)
{
    if (!s->kv_grows)
        return;
    moe_kv_need(&s->kv_pool, sequence, n);
    moe_session_hold(s, false, true);
}

/* A sequence's states, or those that are kept, in the place of others, wherever layers have them.
 */
static void copy_states(struct moe_session *s, uint32_t from, uint32_t to)
{
    s->stages->copy_states(s, from, to);
    if (s->passing)
        moe_ranks_copy_states(s->ranks, from, to);
}

static void end_sequence(struct moe_session *s, uint32_t sequence)
{
    uint32_t n_recorded = s->sequences[sequence].n_recorded;
    moe_kv_give_back(&s->kv_pool, sequence);
    if (n_recorded && s->pass.scheduler)
        moe_scheduler_end_sequence(s->pass.scheduler, n_recorded);
    s->sequences[sequence] = (struct moe_sequence){.owner = s->sequences[sequence].owner};
    moe_recurrent_set(s, sequence, 0);
    if (s->kept_ends)
        s->kept_ends[sequence] = MOE_NO_STATE;
    if (sequence == 0)
        s->passed = (struct moe_passed){0};
    if (s->prompts)
        s->prompts[sequence] = (struct moe_prompt){0};
}

/* ---- Going back ---- */

/* Where keys and values can go on to position n. */
static uint32_t writable(const struct moe_session *s, uint32_t sequence, uint32_t n)
{
    n = moe_kv_writable(&s->kv_pool, sequence, n);
    return moe_kv_windows_from(&s->kv_pool, sequence, n);
}

uint32_t moe_sequence_from(const struct moe_session *s, uint32_t sequence, uint32_t n)
{
    return moe_recurrent_from(s, sequence, writable(s, sequence, n));
}

uint32_t moe_sequence_rewind(struct moe_session *s, uint32_t sequence, uint32_t n)
{
    struct moe_sequence *q = &s->sequences[sequence];
    uint32_t from = moe_sequence_from(s, sequence, n);
    uint32_t kept = s->kept_ends ? s->kept_ends[sequence] : MOE_NO_STATE;
    if (from != n && kept <= n && writable(s, sequence, kept) == kept) {
        copy_states(s, s->n_sequences + sequence, sequence);
        moe_recurrent_set(s, sequence, kept);
        from = kept;
    }
    if (from == 0)
        end_sequence(s, sequence);
    else
        moe_kv_rewind(&s->kv_pool, sequence, from);
    q->n = q->n < from ? q->n : from;
    return from;
}

void moe_sequence_keep(struct moe_session *s, uint32_t sequence)
{
    uint32_t n = s->sequences[sequence].n;
    if (!s->kept_ends || s->kept_ends[sequence] == n || n == 0 ||
        moe_recurrent_from(s, sequence, n) != n)
        return;
    copy_states(s, sequence, s->n_sequences + sequence);
    s->kept_ends[sequence] = n;
}

/* ---- Texts that begin alike ---- */

/* What a text's keys and values depend on beside its ids (infer/kv_pool.h): LongRoPE, or the source
 * that a sequence attends to; and whose it is. */
static uint64_t given_of(uint64_t owner, bool far)
{
    return owner << 1 | far;
}

static uint64_t given(const struct moe_session *s, uint32_t sequence, bool far)
{
    return s->n_sources ? s->sources[s->attends[sequence]].number
                        : given_of(s->sequences[sequence].owner, far);
}

void moe_sequence_own(struct moe_session *s, uint32_t sequence, uint64_t owner)
{
    if (s->sequences[sequence].owner != owner)
        moe_sequence_rewind(s, sequence, 0);
    s->sequences[sequence].owner = owner;
}

static bool is_far(const struct moe_session *s, uint32_t n)
{
    uint32_t original = s->model->config.rope_original;
    return original && n > original;
}

static bool takes_over(const struct moe_session *s)
{
    return !s->prompts && (!s->state_ends || s->kv_pool.n_snapshots);
}

/* Where the states of a snapshot lie. */
static uint32_t snapshot_at(const struct moe_session *s, uint32_t snapshot)
{
    return s->n_sequences * (s->kept_ends ? 2 : 1) + snapshot;
}

void moe_sequence_snapshot(struct moe_session *s, uint32_t sequence, bool likely)
{
    const uint32_t n = s->sequences[sequence].n;
    if (!s->kv_pool.n_snapshots || n == 0 || moe_recurrent_from(s, sequence, n) != n)
        return;
    const uint32_t to = moe_kv_snapshot(&s->kv_pool, sequence, n, likely);
    if (to != MOE_NO_BLOCK)
        copy_states(s, sequence, snapshot_at(s, to));
}

void moe_sequence_append(struct moe_session *s, const struct moe_row *row)
{
    struct moe_sequence *q = &s->sequences[row->sequence];
    if (row->position > q->n) /* of what is before it nothing is known */
        return;
    q->n = row->position + 1;
    q->far = is_far(s, row->length ? row->length : q->n);
    moe_kv_know(&s->kv_pool, row->sequence, row->position, row->token,
                given(s, row->sequence, q->far));
}

uint32_t moe_sequence_known(const struct moe_session *s, uint64_t owner, const uint32_t *ids,
                            uint32_t n)
{
    if (s->n_sources || !takes_over(s))
        return 0;
    return moe_kv_find(&s->kv_pool,
                       &(struct moe_kv_text){ids, n - 1, given_of(owner, is_far(s, n))});
}

/* Its cells, wherever layers have them. */
static int copy_block(struct moe_session *s, uint32_t from, uint32_t to, struct moe_err *err)
{
    s->stages->copy_block(s, from, to);
    if (moe_config_count_layers(&s->model->config, MOE_LAYER(elsewhere)) == 0)
        return MOE_OK;
    MOE_TRY(moe_session_tell_table(s, err)); /* where windows of blocks lie */
    return moe_ranks_copy_block(s->ranks, from, to, err);
}

/* As moe_sequence_sync, for a sequence that has nothing. */
static int begin_sequence(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint32_t n,
                          uint32_t n_positions, uint32_t *n_done, struct moe_err *err)
{
    const bool far = is_far(s, n);
    const struct moe_kv_text text = {ids, takes_over(s) ? n - 1 : 0, given(s, sequence, far)};
    struct moe_kv_begun begun;
    MOE_TRY(moe_kv_begin(&s->kv_pool, sequence, &text, n_positions, &begun, err));
    if (begun.copy_to != MOE_NO_BLOCK) {
        hold_positions(s, sequence, begun.n_known);
        MOE_TRY(copy_block(s, begun.copy_from, begun.copy_to, err));
    }
    if (begun.snapshot != MOE_NO_BLOCK) {
        copy_states(s, snapshot_at(s, begun.snapshot), sequence);
        moe_recurrent_set(s, sequence, begun.n_known);
    }
    moe_kv_windows_mark(&s->kv_pool, sequence, begun.n_alike, n);
    *n_done = s->sequences[sequence].n = begun.n_known;
    s->sequences[sequence].n_alike = begun.n_alike;
    s->sequences[sequence].far = far;
    s->begins = true;
    return MOE_OK;
}

int moe_sequence_sync(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint32_t n,
                      uint32_t n_positions, uint32_t *n_done, struct moe_err *err)
{
    uint32_t same = 0;
    if (s->sequences[sequence].far == is_far(s, n))
        same = moe_sequence_common(s, sequence, ids, n - 1);
    *n_done = moe_sequence_rewind(s, sequence, same);
    if (*n_done == 0)
        return begin_sequence(s, sequence, ids, n, n_positions, n_done, err);
    s->sequences[sequence].n_alike = same;
    moe_kv_windows_mark(&s->kv_pool, sequence, same, n);
    return moe_sequence_reserve(s, sequence, n_positions, err);
}

int moe_sequence_fork(struct moe_session *s, uint32_t from, uint32_t to, uint32_t n_positions,
                      struct moe_err *err)
{
    struct moe_kv_begun begun;
    MOE_TRY(moe_kv_fork(&s->kv_pool, from, to, n_positions, &begun, err));
    if (begun.copy_to != MOE_NO_BLOCK) {
        hold_positions(s, to, n_positions);
        MOE_TRY(copy_block(s, begun.copy_from, begun.copy_to, err));
    }
    const struct moe_sequence *q = &s->sequences[from];
    s->sequences[to].n = q->n < n_positions ? q->n : n_positions;
    s->sequences[to].far = q->far;
    s->sequences[to].owner = q->owner;
    if (s->state_ends) {
        bool there = moe_recurrent_from(s, from, n_positions) == n_positions;
        if (there)
            copy_states(s, from, to);
        moe_recurrent_set(s, to, there ? n_positions : MOE_NO_STATE);
    }
    return MOE_OK;
}

/* ---- Saving and loading ---- */

static int pieces_of(const struct moe_session *s, uint32_t sequence, uint32_t n,
                     struct moe_kept *out, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const char *why = c->n_encoder ? "a model with an encoder keeps none of its texts"
                      : c->prefix_lm
                          ? "a model whose prompts see all of themselves begins each anew"
                      : moe_config_count_layers(c, MOE_LAYER(elsewhere))
                          ? "several ranks have the KV cache: start without --share-attention and "
                            "--share-layers"
                      : s->stages->kv ? NULL
                                      : "the KV cache lies in the GPU's memory: take --device cpu";
    if (why)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "no context can be saved or loaded here: %s",
                        why);
    *out = (struct moe_kept){.kv = s->stages->kv(s), .sequence = sequence, .n = n};
    out->far = s->sequences[sequence].far;
    if (s->stages->states)
        s->stages->states(s, &out->states, &out->compressed);
    return MOE_OK;
}

int moe_sequence_save(const struct moe_session *s, uint32_t sequence, uint32_t n,
                      struct moe_kept *out, struct moe_err *err)
{
    uint32_t length = s->sequences[sequence].n;
    n = moe_kv_windows_complete(&s->kv_pool, sequence, n < length ? n : length);
    return pieces_of(s, sequence, moe_recurrent_from(s, sequence, n), out, err);
}

int moe_sequence_load(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint32_t n,
                      bool far, moe_sequence_fill *fill, void *ctx, struct moe_err *err)
{
    struct moe_kept pieces;
    if (fill)
        MOE_TRY(pieces_of(s, sequence, n, &pieces, err));
    if (ids)
        end_sequence(s, sequence);
    int status;
    MOE_STEP(moe_sequence_reserve(s, sequence, n, err));
    moe_kv_windows_hold(&s->kv_pool, sequence, n);
    hold_positions(s, sequence, n);
    if (fill)
        MOE_STEP(fill(ctx, &pieces, err));
out:
    if (status != MOE_OK) {
        end_sequence(s, sequence);
        return status;
    }
    moe_recurrent_set(s, sequence, n);
    for (uint32_t i = 0; ids && i < n; i++)
        moe_kv_know(&s->kv_pool, sequence, i, ids[i], given(s, sequence, far));
    if (ids) {
        s->sequences[sequence].n = n;
        s->sequences[sequence].far = far;
        s->begins = true;
    }
    return MOE_OK;
}
