/* What a model takes within a budget: from its inputs, step by step, to slots of experts. */
#include "engine/memory.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "engine/engine_strategy.h"
#include "engine/generate.h"
#include "gpu.h"
#include "infer/layer_predictor.h"
#include "infer/pass_ops.h"
#include "infer/rank_worker.h"
#include "model/shape.h"
#include "sched/history.h"

enum {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    PROGRAM_BYTES = 42 << 20, /* with what a sanitizer keeps beside it */
#else
    /* Resident pages of code, libraries and their data, and the first of the heap: 4.9 to 6.6 MiB
     * before anything is read, 9.7 once it computes (Debian 12, x86-64). How many pages beside
     * those that are used are mapped is the kernel's choice, so that all of it counts from the
     * beginning. */
    PROGRAM_BYTES = 9 << 20,
#endif
    CUDA_BYTES = 2 << 20,     /* ... of a build with CUDA on top; 1.5 MiB were seen */
    THREAD_BYTES = 256 << 10, /* of a thread's stack and heap that are touched */
    LOGITS_ROWS = 4,          /* logits, sampler's candidates: rows of the vocabulary */
    MEASURE_BYTES = 1 << 20,  /* rows that a perplexity run keeps */
    ALWAYS_ROOM = 4 << 20,    /* for texts: any budget that works has more for weights, buffers */
    FREE_SHARE_PERCENT = 90,  /* of what is free, when no budget is named */
    DEFAULT_BATCH = 256,
    GPU_BATCH = 512,       /* an expert that was brought serves more rows */
    LENT_BATCH = 512,      /* ... as much as memory for it is lent */
    SMALL_BATCH = 16,      /* the smallest that is chosen, and the step to the next */
    WORK_SHARE = 8,        /* of a budget, for the buffers of a batch that is chosen */
    EXPERTS_SHARE = 2,     /* times what a batch takes more than the smallest, or borrows, for
                              experts */
    SNAPSHOTS_PART = 32,   /* of a budget, for snapshots of recurrent states */
    SESSION_PART = 8,      /* ... of what a server's session has */
    MAX_HOST_THREADS = 16, /* a few experts of a layer are missing at a time */
};

/* ---- The program ---- */

uint64_t moe_program_bytes(bool for_gpu)
{
    bool has_cuda = for_gpu || strcmp(moe_gpu_build(), "none") != 0;
    return PROGRAM_BYTES + (has_cuda ? CUDA_BYTES : 0);
}

uint64_t moe_threads_bytes(int n_threads)
{
    return (uint64_t)n_threads * THREAD_BYTES;
}

bool moe_engine_takes_part(const struct moe_strategy *s)
{
    return s->predict != MOE_PREDICT_BY_NOTHING || moe_strategy_recalls(s) || s->needs_host ||
           s->gate_below > 0 || s->prefer > 0;
}

uint32_t moe_engine_host_threads(bool on_gpu)
{
    int spare = moe_default_threads() - 1;
    if (!on_gpu) /* the test device's host is one core */
        return 1;
    return spare < 1 ? 1 : spare > MAX_HOST_THREADS ? MAX_HOST_THREADS : (uint32_t)spare;
}

struct moe_engine_room moe_engine_room_of(uint64_t total, uint64_t program, uint32_t context)
{
    uint64_t left = total > program ? total - program : 0;
    return (struct moe_engine_room){
        .total = total,
        .may_hold = left < ALWAYS_ROOM ? ALWAYS_ROOM : left,
        .context = context,
    };
}

uint64_t moe_engine_text_room(uint32_t context)
{
    enum { LEAST = 256 << 10, BYTES_PER_TOKEN = 64 };
    return LEAST + (uint64_t)BYTES_PER_TOKEN * context;
}

uint64_t moe_engine_free_bytes(uint64_t program)
{
    uint64_t available = moe_available_bytes();
    return available == UINT64_MAX ? UINT64_MAX : available / 100 * FREE_SHARE_PERCENT + program;
}

/* ---- What is asked for, and what there is ---- */

/* Positions: those named, else the model's up to the cap. */
static uint32_t context_of(const struct moe_model *model, const struct moe_engine_options *o)
{
    uint32_t most = model->config.context_max;
    if (o->session.context)
        return o->session.context;
    return o->context_cap && o->context_cap < most ? o->context_cap : most;
}

static int check_plan(const struct moe_model *m, const struct moe_gpu *gpu,
                      const struct moe_plan *plan, struct moe_err *err)
{
    if (plan->pack_fingerprint != moe_pack_fingerprint(m->pack))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "the plan was made for another pack%s%s, not for %s (moe-plan makes one)",
                        plan->pack[0] ? ", " : "", plan->pack, moe_pack_path(m->pack));
    if (plan->host.total && !gpu)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the plan is for a GPU: it takes --device cuda (moe-plan without it plans "
                        "for the processor)");
    if (plan->kv[0] && moe_kv_kind_find(plan->kv) == MOE_LAYOUT_NONE)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "the plan keeps keys and values as '%s', which is not " MOE_KV_KINDS,
                        plan->kv);
    return MOE_OK;
}

static int read_inventory(struct moe_memory_inputs *in, struct moe_err *err)
{
    const struct moe_model *m = in->model;
    if (m->config.n_experts == 0)
        return MOE_OK;
    struct moe_inventory *i = &in->inventory;
    MOE_TRY(moe_inventory_of_pack(i, m->pack, m->config.top_k, &m->config, err));
    in->all = moe_inventory_all_bytes(i, 0);
    in->token = (uint64_t)(i->n_layers - i->n_encoder) * i->top_k * moe_inventory_mean_bytes(i, 0);
    if (in->options->ranks) /* other ranks have the other experts that it visits */
        in->token = in->all / i->n_experts * i->top_k;
    if (in->token > in->all) /* some are visited again and again */
        in->token = in->all;
    return MOE_OK;
}

/* A plan's strategy, session and budget take the options' place. */
static void follow_plan(struct moe_memory_inputs *in)
{
    const struct moe_engine_options *o = in->options;
    const struct moe_plan *plan = o->plan;
    in->strategy = plan->strategy;
    if (!in->strategy.name) { /* parts without a strategy need a name too */
        in->strategy.name = "none";
        in->strategy.describe = "the parts of a plan";
    }
    in->expert_memory = 0;
    /* With a GPU there are two budgets. A plan for the processor says nothing of either. */
    const struct moe_plan_memory *main_memory = in->gpu ? &plan->host : &plan->memory;
    if (!o->memory_bytes) {
        in->total = main_memory->total;
        in->memory_named = main_memory->total > 0;
    }
    if (in->gpu && !o->gpu_memory_bytes && plan->host.total)
        in->gpu_total = plan->memory.total;
    if (!o->session.context)
        in->session.context = plan->memory.context;
    if (!o->session.kv_kind && plan->kv[0])
        in->session.kv_kind = moe_kv_kind_find(plan->kv);
    const uint64_t budget = in->gpu && plan->host.total ? in->gpu_total : in->total;
    bool fits = !plan->memory.total || budget >= plan->memory.total;
    if (!o->session.batch && (fits || plan->memory.batch <= SMALL_BATCH))
        in->session.batch = plan->memory.batch;
}

/* Whether a process of its own reads the statistics and keeps them. A run by a plan does only where
 * it predicts from paths: all else that they say is in the plan. */
static bool holds_statistics(const struct moe_engine_options *o, bool by_plan)
{
    struct moe_strategy s = o->strategy;
    if (!o->statistics || o->shares)
        return false;
    return !by_plan ||
           (moe_strategy_settle(&s, NULL) == MOE_OK && moe_predicts_from_paths(s.predict));
}

static int read_inputs(struct moe_memory_inputs *in, const struct moe_model *model,
                       struct moe_gpu *gpu, const struct moe_engine_options *o, bool by_plan,
                       struct moe_err *err)
{
    *in = (struct moe_memory_inputs){
        .model = model,
        .gpu = gpu,
        .options = o,
        .strategy = o->strategy,
        .session = o->session,
        .total = o->memory_bytes,
        .gpu_total = gpu ? o->gpu_memory_bytes : 0,
        .memory_named = o->memory_bytes > 0,
        .expert_memory = o->expert_memory_bytes,
        .program = o->program_bytes,
        .lends = !gpu && !o->experts_only && (!o->shares || o->grows) && !o->expert_memory_bytes,
        .statistics = holds_statistics(o, by_plan) ? o->statistics : NULL,
    };
    if (!in->program)
        in->program = moe_model_directory_bytes(model);
    if (!o->program_bytes && !o->shares) {
        in->program += moe_program_bytes(gpu != NULL);
        in->program += in->statistics ? moe_statistics_held_bytes(in->statistics) : 0;
    }
    in->program += moe_pack_staging_bytes(model->pack);
    in->program += o->ranks ? moe_ranks_wire(o->ranks)->bytes : 0;
    if (o->plan)
        MOE_TRY(check_plan(model, gpu, o->plan, err));
    MOE_TRY(read_inventory(in, err));
    in->session.gpu = gpu;
    in->session.gpu_bf16 = gpu && o->bf16_prompts;
    in->session.context = context_of(model, o);
    if (o->plan)
        follow_plan(in);
    if (in->session.kv_kind == MOE_LAYOUT_NONE)
        in->session.kv_kind = MOE_KV_DEFAULT;
    if (gpu && !moe_kv_on_gpu(in->session.kv_kind))
        return moe_fail(err, o->device.automatic ? MOE_ERR_DEVICE : MOE_ERR_USAGE, MOE_KV_ON_GPU,
                        moe_kv_kind_name(in->session.kv_kind));
    if (model->config.n_encoder && !in->session.source_context)
        in->session.source_context = in->session.context;
    if (in->total == 0)
        in->total =
            moe_engine_free_bytes(in->program) / (o->ranks ? moe_ranks_wire(o->ranks)->n_here : 1);
    if (gpu && in->gpu_total == 0)
        in->gpu_total = moe_gpu_info(gpu)->memory_free_bytes / 100 * FREE_SHARE_PERCENT;
    const struct moe_engine_room room =
        moe_engine_room_of(in->total, in->program, in->session.context);
    if (o->survey)
        MOE_TRY(o->survey(o->beside_ctx, model, &room, err));
    in->automatic = in->strategy.name == NULL;
    if (in->automatic)
        moe_strategy_find(MOE_DEFAULT_STRATEGY, &in->strategy);
    if (in->all == 0) /* a model without experts has nothing to cache */
        moe_strategy_find("resident", &in->strategy);
    return MOE_OK;
}

/* The session that was asked for, with what a strategy needs of it on a GPU. */
static struct moe_session_options session_for(const struct moe_memory_inputs *in,
                                              const struct moe_strategy *s)
{
    struct moe_session_options so = in->session;
    if (in->gpu) {
        so.needs_rows = s->needs_host;
        so.predict_depth = moe_layer_predictor_depth(in->model, s, &so.predict_residual);
    }
    return so;
}

/* Bytes of main memory for a strategy's part in passes of `batch` rows. */
static uint64_t pass_bytes_of(const struct moe_memory_inputs *in, const struct moe_strategy *s,
                              uint32_t batch)
{
    const uint32_t n_host = s->needs_host ? moe_engine_host_threads(in->gpu) : 0; /* reads files */
    return moe_engine_takes_part(s) ? moe_session_strategy_bytes(in->model, batch, s, n_host) : 0;
}

/* ---- The cache ---- */

/* What it takes where the slots are. */
static uint64_t cache_bytes(const struct moe_memory_inputs *in, const struct moe_cache_options *o)
{
    struct moe_expert_pools p;
    moe_expert_pools_size(&p, in->model->pack, &in->inventory, o);
    return moe_expert_pools_bytes(&p);
}

/* Its options, with as few slots as work: a layer's experts, none of which is kept. */
static struct moe_cache_options least_cache(const struct moe_memory_inputs *in,
                                            const struct moe_resolved *r)
{
    const struct moe_engine_options *o = in->options;
    return (struct moe_cache_options){
        .strategy = &r->strategy,
        .statistics = o->statistics,
        .high = r->high,
        .low = r->low,
        .top_k = in->model->config.top_k,
        .config = &in->model->config,
        .n_working = in->model->config.top_k,
        .seed = o->seed,
        .gpu = in->gpu,
        .loader =
            {
                .verify = !o->no_checksums,
                .rate = o->device.test ? o->device.link_rate : o->link_rate,
                .lockstep = o->lockstep,
                .costs = o->pace && !in->gpu ? moe_strategy_loads(&r->strategy, o->pace->loads)
                                             : (struct moe_link_costs){0},
                .queue_depth = o->queue_depth,
                /* One load at a time, so that it can stop once the router has chosen. */
                .prefetch_depth = r->strategy.prefetch.until_router ? 1 : 0,
                .piece_bytes = o->piece_bytes,
                .copy = o->pack_copy,
                .copy_bytes = o->pack_copy_bytes,
            },
    };
}

/* Slots: as many as the budget leaves, or as the user (or the strategy) named; those for prefetched
 * experts are taken from them. At least top_k work without a cache. `lent` of the available bytes
 * are the KV cache's as it grows, so that only slots that keep experts are made of them. */
static void size_slots(struct moe_cache_options *cache, const struct moe_memory_inputs *in,
                       uint64_t available, uint64_t lent)
{
    const struct moe_strategy *s = cache->strategy;
    uint64_t slot_bytes = moe_inventory_slot_bytes(&in->inventory, cache->high);
    uint64_t named = in->expert_memory;
    if (!named && s->buffer && !in->memory_named)
        named = s->buffer * slot_bytes;
    const struct moe_slots slots =
        moe_slots_of(s, named ? named : available - lent, named > 0, slot_bytes,
                     in->model->config.top_k, in->options->staging);
    cache->n_working = slots.working;
    cache->n_staging = slots.staging;
    cache->cache_bytes = slots.cache_bytes;
    if (named)
        return;
    /* The loaders' tables grow with the slots: near the floor they may leave less to prefetch. */
    while (cache->n_staging > 0 && cache_bytes(in, cache) > available - lent) {
        cache->n_staging--;
        cache->n_working--;
    }
    if (cache->n_working > in->model->config.top_k && cache_bytes(in, cache) > available - lent)
        cache->n_working = in->model->config.top_k;
    if (!s->cache)
        return;
    uint64_t rest = cache_bytes(in, cache);
    cache->cache_bytes = available > rest ? available - rest : 0;
    while (cache->cache_bytes && cache_bytes(in, cache) > available)
        cache->cache_bytes -= cache->cache_bytes < slot_bytes ? cache->cache_bytes : slot_bytes;
}

/* The plan's slots, which `planned` holds. */
static int take_slots(struct moe_cache_options *cache, struct moe_pools *planned,
                      const struct moe_memory_inputs *in, struct moe_err *err)
{
    const struct moe_plan *plan = in->options->plan;
    const struct moe_inventory *inventory = &in->inventory;
    /* A plan is of the model's layers, and heads that draft have no experts. */
    const uint32_t n_drafting = in->model->drafter ? 0 : in->model->config.n_drafting;
    *planned = (struct moe_pools){.n_classes = plan->n_pools};
    bool agrees = plan->n_pools == inventory->n_classes &&
                  plan->n_layers == inventory->n_layers - n_drafting &&
                  plan->n_experts == inventory->n_experts && plan->top_k == inventory->top_k;
    for (uint32_t c = 0; agrees && c < plan->n_pools; c++) {
        const struct moe_plan_pool *p = &plan->pools[c];
        agrees = p->slot_bytes == inventory->classes[c].slot_bytes;
        /* With a layer more they are divided anew, as the strategy does. */
        planned->pools[c] =
            (struct moe_pool_params){p->n_cache, p->n_working, n_drafting ? NULL : p->per_layer};
        planned->n_slots += p->n_cache + p->n_working;
        planned->bytes += (uint64_t)(p->n_cache + p->n_working) * p->slot_bytes;
    }
    if (!agrees)
        return moe_fail(err, MOE_ERR_FORMAT, "the plan's slots are not those of %s",
                        moe_pack_path(in->model->pack));
    if (n_drafting && cache->strategy->alloc == MOE_ALLOC_FREQUENCY)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the plan's slots are by the frequency of the model's experts: the layer "
                        "that drafts has none (alloc=global has)");
    cache->pools = planned;
    cache->contents = plan->contents;
    cache->n_contents = plan->n_contents;
    cache->layer_seconds = plan->layer_seconds;
    cache->load_seconds = plan->load_seconds;
    return MOE_OK;
}

/* The planned slots that keep experts, times share / SHARES. Those of layers of their own become no
 * more; fewer are in the plan's proportions (sched/scheduler.c). */
enum { SHARES = 1 << 16 };
static void scale_slots(struct moe_pools *out, const struct moe_pools *planned,
                        const struct moe_inventory *inventory, uint64_t share)
{
    const uint64_t most = (uint64_t)inventory->n_layers * inventory->n_experts;
    *out = *planned;
    out->n_slots = 0;
    out->bytes = 0;
    for (uint32_t c = 0; c < out->n_classes; c++) {
        struct moe_pool_params *p = &out->pools[c];
        uint64_t n = p->n_cache * share / SHARES;
        if (!p->per_layer || n < p->n_cache)
            p->n_cache = (uint32_t)(n < most ? n : most);
        out->n_slots += p->n_cache + p->n_working;
        out->bytes += (uint64_t)(p->n_cache + p->n_working) * inventory->classes[c].slot_bytes;
    }
}

/* As many as there is room for, in the plan's proportions: a run may have more than the plan booked
 * (a larger budget), or less (a longer text, a larger process). */
static void resize_slots(struct moe_cache_options *cache, struct moe_pools *planned,
                         const struct moe_memory_inputs *in, uint64_t available)
{
    const struct moe_pools as_planned = *planned;
    uint64_t low = 0, high = (uint64_t)SHARES << 16;
    while (low < high) {
        uint64_t share = low + (high - low + 1) / 2;
        scale_slots(planned, &as_planned, &in->inventory, share);
        if (cache_bytes(in, cache) <= available)
            low = share;
        else
            high = share - 1;
    }
    scale_slots(planned, &as_planned, &in->inventory, low);
}

/* ---- Sizes ---- */

/* The memory where the slots are. */
static struct moe_plan_memory *slots_memory(const struct moe_memory_inputs *in,
                                            struct moe_budget *b)
{
    return in->gpu ? &b->gpu : &b->host;
}

/* What passes of the session's batch borrow of the slots, beyond own_rows. */
static uint64_t lent_bytes(const struct moe_config *c, const struct moe_session_options *so)
{
    return so->own_rows && so->own_rows < so->batch
               ? moe_session_rows_bytes(c, so, so->batch) -
                     moe_session_rows_bytes(c, so, so->own_rows)
               : 0;
}

/* Whether that is more than it takes to borrow it. */
static bool saves_by_loan(const struct moe_config *c, const struct moe_session_options *so)
{
    struct moe_session_options none = *so;
    none.own_rows = 0;
    return lent_bytes(c, so) > moe_session_bytes(c, so) - moe_session_bytes(c, &none);
}

static uint64_t beside_experts(const struct moe_plan_memory *m)
{
    return m->program + m->dense + m->kv + m->work;
}

/* A budget with everything but the experts sized for a session of so->batch rows. strategy NULL: it
 * is not resolved yet, and takes nothing. */
static struct moe_budget size_all_but_experts(const struct moe_memory_inputs *in,
                                              const struct moe_session_options *so,
                                              const struct moe_strategy *strategy)
{
    const struct moe_model *m = in->model;
    const struct moe_config *c = &m->config;
    const struct moe_engine_options *o = in->options;
    const uint64_t logits_bytes = LOGITS_ROWS * moe_logits_stride(c) * sizeof(float);
    const uint64_t kv = moe_session_kv_bytes(c, so);
    struct moe_budget b = {
        .token = in->token, .revisits = c->loop.n > 0, .all = in->all, .batch = so->batch};
    b.host = (struct moe_plan_memory){
        .total = in->total,
        .program = in->program,
        .dense = o->experts_only && !moe_model_has_session(m) ? 0
                 : in->gpu ? moe_model_gpu_host_bytes(m, so->context)
                           : moe_model_load_bytes(m, so->context),
        .work = o->beside ? o->beside(o->beside_ctx, m, so->batch) : 0,
    };
    if (so->predict_depth > 0)
        b.host.dense += moe_host_routers_bytes(m);
    if (in->gpu)
        b.gpu = (struct moe_plan_memory){
            .total = in->gpu_total, .dense = m->weights_bytes, .work = MOE_GPU_OWN_BYTES};
    if (o->shares) /* sessions come and go apart from it */
        return b;
    if (o->experts_only) {
        struct moe_rank_shape shape = *moe_ranks_shape(o->ranks);
        shape.batch = so->batch;
        b.host.program += moe_threads_bytes(moe_par_threads());
        b.host.work += moe_rank_worker_bytes(m, &shape);
        b.host.kv = moe_model_has_session(m) ? kv : 0;
        b.host.work += moe_model_has_session(m) ? moe_session_bytes(c, so) - kv : 0;
        b.host.work += m->whole_layers && strategy ? pass_bytes_of(in, strategy, so->batch) : 0;
        return b;
    }
    slots_memory(in, &b)->kv = kv;
    b.host.program += moe_threads_bytes(moe_par_threads()) + MEASURE_BYTES + logits_bytes;
    b.host.lent = lent_bytes(c, so);
    b.host.work += moe_session_bytes(c, so) - b.host.kv - b.host.lent;
    if (strategy)
        b.host.work += pass_bytes_of(in, strategy, so->batch);
    if (o->ranks) {
        const struct moe_rank_shape shape = moe_rank_shape_of(m, so);
        const struct moe_wire *wire = moe_ranks_wire(o->ranks);
        b.host.work += moe_ranks_bytes(&shape, wire->n_ranks);
        b.host.work += moe_rank_unread_bytes(&shape, wire->at_once);
    }
    if (in->gpu)
        b.gpu.work += moe_session_gpu_bytes(c, so) - kv;
    return b;
}

/* A batch's budget, the least total that it works in, and the least that it is chosen for. */
struct sized {
    struct moe_budget budget;
    uint64_t beside, work, floor, from; /* of the memory where the slots are */
};

static struct sized size_batch(const struct moe_memory_inputs *in, struct moe_session_options so,
                               const struct moe_strategy *strategy, uint32_t batch, uint64_t least,
                               uint64_t work_first)
{
    so.batch = batch;
    so.own_rows = saves_by_loan(&in->model->config, &so) ? so.own_rows : 0;
    struct sized s = {.budget = size_all_but_experts(in, &so, strategy)};
    s.work = slots_memory(in, &s.budget)->work;
    s.beside = beside_experts(slots_memory(in, &s.budget));
    const uint64_t lent = EXPERTS_SHARE * s.budget.host.lent;
    least = least > lent ? least : lent;
    s.floor = lent > in->all ? UINT64_MAX : s.beside + least; /* a cache has no more */
    uint64_t extra = s.work > work_first ? EXPERTS_SHARE * (s.work - work_first) : 0;
    uint64_t experts = extra > in->all ? in->all : extra;
    experts = experts > least ? experts : least;
    s.from = WORK_SHARE * s.work > s.beside + experts ? WORK_SHARE * s.work : s.beside + experts;
    s.from = s.from > s.floor ? s.from : s.floor;
    return s;
}

enum { MOST_STEPS = GPU_BATCH / SMALL_BATCH };
_Static_assert((int)LENT_BATCH <= (int)GPU_BATCH, "there is a step for each batch");

/* What batches of a strategy come to within the budget. */
struct batches {
    struct moe_budget budget; /* with the batch that is chosen; its floor is that of the smallest */
    uint64_t most_experts;    /* bytes that experts get at most, so that a larger budget, which has
                                 a larger batch, never has fewer of them; UINT64_MAX: all there are */
    uint32_t n;
    uint64_t from[MOST_STEPS]; /* [n] rising: the totals that each batch is chosen for */
};

/* The session's batch, or if that is 0 the largest whose buffers take at most an eighth of the
 * budget, and beyond the smallest batch's at most half of the experts' memory. Batches rise by
 * small steps, and what a step takes is kept free just below the budget that it comes with: so
 * neither the batch nor the experts' memory shrinks as the budget grows. least: bytes of the
 * smallest cache. */
static void size_batches(struct batches *out, const struct moe_memory_inputs *in,
                         struct moe_session_options so, const struct moe_strategy *strategy,
                         uint64_t least)
{
    const uint64_t total = in->gpu ? in->gpu_total : in->total;
    /* Positions that one pass has to hold. */
    const uint32_t whole = in->model->config.n_encoder   ? so.source_context
                           : in->model->config.prefix_lm ? so.context
                                                         : 0;
    uint32_t most = in->gpu ? GPU_BATCH : so.own_rows ? LENT_BATCH : DEFAULT_BATCH;
    uint32_t first = so.batch ? so.batch : SMALL_BATCH;
    first = first < whole ? whole : first;
    most = so.batch || most < first ? first : most;
    struct sized s = size_batch(in, so, strategy, first, least, UINT64_MAX);
    const uint64_t work_first = s.work;
    *out = (struct batches){.budget = s.budget, .most_experts = UINT64_MAX, .n = 1};
    const uint64_t floor = out->from[0] = s.floor;
    for (uint32_t batch = first; batch < most && !in->options->shares;) {
        batch = batch + SMALL_BATCH < most ? batch + SMALL_BATCH : most;
        s = size_batch(in, so, strategy, batch, least, work_first);
        out->from[out->n++] = s.from;
        if (s.from <= total)
            out->budget = s.budget;
        else if (s.from - s.beside < out->most_experts)
            out->most_experts = s.from - s.beside;
    }
    slots_memory(in, &out->budget)->floor = floor;
}

/* The floor is that of the smallest batch; and what is smaller is chosen if this does not fit. */
static void allow_smaller_batches(struct batches *batches, const struct moe_memory_inputs *in,
                                  struct moe_session_options so,
                                  const struct moe_strategy *strategy, uint64_t least)
{
    struct moe_plan_memory *slots = slots_memory(in, &batches->budget);
    struct batches smaller;
    so.batch = 0;
    size_batches(&smaller, in, so, strategy, least);
    if (slots->floor > slots->total)
        *batches = smaller;
    else
        slots->floor = slots_memory(in, &smaller.budget)->floor;
}

/* Passes are as small as may be chosen, whatever the budget has room for. */
static void take_smallest_batch(struct batches *batches, const struct moe_memory_inputs *in,
                                struct moe_session_options so, const struct moe_strategy *strategy,
                                uint64_t least)
{
    struct batches smallest;
    so.batch = so.batch ? so.batch : SMALL_BATCH;
    size_batches(&smallest, in, so, strategy, least);
    slots_memory(in, &smallest.budget)->floor = slots_memory(in, &batches->budget)->floor;
    batches->budget = smallest.budget;
    batches->most_experts = UINT64_MAX;
}

/* Rows of a pass that decodes, which borrows nothing. */
static uint32_t own_rows(const struct moe_session_options *so)
{
    return so->n_sequences > SMALL_BATCH ? so->n_sequences : SMALL_BATCH;
}

/* Has memory of slots lent to passes of many rows, if the budget has room for that. */
static void lend_slots(struct batches *batches, const struct moe_memory_inputs *in,
                       struct moe_session_options so, const struct moe_strategy *strategy,
                       uint64_t least)
{
    struct batches lent;
    so.own_rows = own_rows(&so);
    size_batches(&lent, in, so, strategy, least);
    if (lent.from[0] > in->total)
        return;
    lent.budget.host.floor = batches->budget.host.floor;
    batches->budget = lent.budget;
    batches->most_experts = lent.most_experts;
}

/* Whether all experts fit where the slots are, beside `beside` bytes. */
static bool has_room_for_all(const struct moe_memory_inputs *in, uint64_t beside)
{
    return (!in->expert_memory || in->expert_memory >= in->all) &&
           beside + in->all <= (in->gpu ? in->gpu_total : in->total);
}

/* ... beside everything else, with the smallest batch that may be chosen and no strategy. */
static bool all_fit(const struct moe_memory_inputs *in)
{
    struct moe_session_options so = in->session;
    so.batch = so.batch ? so.batch : SMALL_BATCH;
    struct moe_budget b = size_all_but_experts(in, &so, NULL);
    return has_room_for_all(in, beside_experts(slots_memory(in, &b)));
}

/* ---- Experts ---- */

/* All experts are in memory. */
static void choose_resident(struct moe_budget *b, const struct moe_memory_inputs *in)
{
    struct moe_plan_memory *slots = slots_memory(in, b);
    const uint64_t whole = beside_experts(slots) + b->all;
    slots->experts = b->all;
    if (in->gpu) {
        b->host.experts = moe_experts_resident_host_bytes(in->model->pack);
        b->host.floor = beside_experts(&b->host) + b->host.experts;
    }
    if (whole > slots->total)
        slots->floor = whole;
}

/* What the host keeps behind the slots of a GPU: all experts, or what its budget leaves. Returns
 * the least that works. */
static uint64_t size_tier(struct moe_cache_options *cache, const struct moe_plan_memory *host,
                          const struct moe_memory_inputs *in)
{
    uint64_t least, all, beside = beside_experts(host);
    uint64_t left = host->total > beside ? host->total - beside : 0;
    moe_cache_host_bytes(in->model->pack, cache, &least, &all);
    cache->host_bytes = left < least ? least : left > all ? all : left;
    return least;
}

/* Whether a plan's slots follow the budget: not where the plan was for a cache of a named size. */
static bool follows_budget(const struct moe_memory_inputs *in)
{
    const struct moe_plan *plan = in->options->plan;
    return plan && (in->gpu ? plan->host.total : plan->memory.total) > 0;
}

/* *least: bytes of the smallest cache that the budget must have room for. */
static int size_least(uint64_t *least, struct moe_memory *out, const struct moe_memory_inputs *in,
                      struct moe_err *err)
{
    struct moe_cache_options cache = out->cache;
    const bool all_named = in->automatic && in->expert_memory >= in->all;
    if (in->options->plan) {
        MOE_TRY(take_slots(&cache, &out->planned, in, err));
        if (follows_budget(in))
            scale_slots(&out->planned, &out->planned, &in->inventory, 0);
    } else if (in->expert_memory && !all_named) {
        size_slots(&cache, in, 0, 0);
    }
    *least = cache_bytes(in, &cache);
    if ((!in->options->plan && !in->expert_memory) || all_named)
        *least = *least < in->all ? *least : in->all;
    return MOE_OK;
}

/* Slots in what a plan names or in `left` bytes, and in the memory of `blocks` blocks of the KV
 * cache, which is lent to them; what no slot was made of is the KV cache's own. */
static int make_slots(struct moe_memory *out, const struct moe_memory_inputs *in, uint64_t left,
                      uint32_t blocks, struct moe_err *err)
{
    struct moe_plan_memory *slots = slots_memory(in, &out->budget);
    struct moe_loan *loan = &out->pools.pools.loan;
    const struct moe_kv kv = moe_session_kv(&in->model->config, &out->session);
    const uint64_t block_bytes = moe_kv_block_bytes(&kv), lent = blocks * block_bytes;
    if (in->options->plan) {
        MOE_TRY(take_slots(&out->cache, &out->planned, in, err));
        if (follows_budget(in))
            resize_slots(&out->cache, &out->planned, in, left + lent);
    } else {
        size_slots(&out->cache, in, left + lent, lent);
    }
    moe_expert_pools_size(&out->pools, in->model->pack, &in->inventory, &out->cache);
    if (blocks) {
        const uint64_t used = moe_expert_pools_bytes(&out->pools) + beside_experts(slots);
        const uint64_t all = slots->total + (kv.whole.n_blocks - 1) * block_bytes;
        loan->n_blocks = kv.whole.n_blocks;
        loan->block_positions = kv.block_positions;
        loan->block_bytes = block_bytes;
        loan->apart = in->options->shares;
        slots->kv_lent = moe_loan_settle(loan, all > used ? all - used : 0);
    }
    return MOE_OK;
}

static bool can_lend(const struct moe_memory *m, const struct moe_memory_inputs *in)
{
    return moe_pools_can_lend(&m->pools.pools, &in->inventory, m->budget.batch);
}

/* Slots where out->budget has everything else sized, and of the KV cache's blocks as many lent as
 * slots that keep experts can be made of: all of them, or near the floor fewer. Where there are
 * none, can_lend() is false. */
static int choose_slots(struct moe_memory *out, const struct moe_memory_inputs *in, uint64_t most,
                        struct moe_err *err)
{
    struct moe_budget *b = &out->budget;
    struct moe_plan_memory *slots = slots_memory(in, b);
    const uint64_t beside = beside_experts(slots);
    uint64_t left = slots->total > beside ? slots->total - beside : 0;
    left = left < most ? left : most;
    const struct moe_kv kv = moe_session_kv(&in->model->config, &out->session);
    const uint32_t all = out->session.kv_grows ? kv.whole.n_blocks - 1 : 0;
    MOE_TRY(make_slots(out, in, left, all, err));
    if (all && !can_lend(out, in)) {
        uint32_t low = 0, high = all - 1;
        while (low < high) {
            const uint32_t middle = low + (high - low + 1) / 2;
            MOE_TRY(make_slots(out, in, left, middle, err));
            if (can_lend(out, in))
                low = middle;
            else
                high = middle - 1;
        }
        MOE_TRY(make_slots(out, in, left, low ? low : all, err));
    }
    if (in->gpu) {
        b->host.floor = beside_experts(&b->host) + size_tier(&out->cache, &b->host, in);
        moe_expert_pools_size(&out->pools, in->model->pack, &in->inventory, &out->cache);
    }
    const bool in_place = moe_pack_fd(in->model->pack) < 0;
    if (in->options->device.test && out->pools.loader.compressed_bytes)
        return moe_fail(
            err, MOE_ERR_UNSUPPORTED,
            in_place ? "%s: experts of a checkpoint cannot be computed where they lie: --device "
                       "test needs a pack (moe-quantize makes one)"
                     : "%s: compressed experts cannot be computed where they lie: --device "
                       "test needs a pack without zstd (moe-quantize PACK makes one)",
            moe_pack_path(in->model->pack));
    if (all) {
        slots->kv -= in->options->shares ? 0 : slots->kv_lent;
        out->session.kv_grows = slots->kv_lent > 0;
        out->cache.loan = out->pools.pools.loan;
    }
    uint64_t tables = moe_expert_pools_beside_bytes(&out->pools);
    slots->experts = out->pools.pools.bytes;
    b->host.experts = (in->gpu ? out->pools.host.bytes : slots->experts) + tables;
    b->n_slots = out->pools.pools.n_slots;
    b->below_token = out->pools.pools.bytes < b->token;
    if (in->expert_memory && beside + slots->experts > slots->floor)
        slots->floor = beside + slots->experts;
    return MOE_OK;
}

/* ---- The result ---- */

int moe_memory_refuse(const struct moe_model *model, const struct moe_plan_memory *m, bool on_gpu,
                      struct moe_err *err)
{
    char have[32], need[32];
    return moe_fail(err, MOE_ERR_LIMIT,
                    "%s: a budget of %s%s is too small: the smallest that works is %s (--%s "
                    "%" PRIu64 "M; a shorter context -c needs less%s)",
                    moe_pack_path(model->pack), moe_format_at_most(m->total, have),
                    on_gpu ? " on the GPU" : "", moe_format_at_least(m->floor, need),
                    on_gpu ? "gpu-memory" : "memory", (m->floor + (1 << 20) - 1) >> 20,
                    model->config.n_experts ? "" : "; a dense model stays in memory as a whole");
}

/* Where no strategy is named, makes it resident if the budget has room for all experts and for a
 * batch no smaller than with a cache. A rank's part was made to fit: it is held with any batch. The
 * floor is still that of a cache. */
static void become_resident(struct moe_memory *out, const struct moe_memory_inputs *in,
                            const struct batches *cached)
{
    struct moe_strategy resident;
    struct batches all;
    struct moe_budget *b = &out->budget;
    uint64_t from = UINT64_MAX;
    if (in->expert_memory && in->expert_memory < in->all)
        return;
    moe_strategy_find("resident", &resident);
    const struct moe_session_options session = session_for(in, &resident);
    size_batches(&all, in, session, &resident, in->all);
    out->most = all.from[all.n - 1];
    out->whole = true;
    for (uint32_t i = 0; i < all.n && from == UINT64_MAX; i++) {
        uint64_t both = all.from[i] > cached->from[i] ? all.from[i] : cached->from[i];
        if (i + 1 == all.n || both < cached->from[i + 1])
            from = both;
    }
    if (in->options->ranks)
        from = all.from[0];
    if (slots_memory(in, b)->total < from)
        return;
    all.budget.host.floor = b->host.floor;
    all.budget.gpu.floor = b->gpu.floor;
    *b = all.budget;
    out->resolved.strategy = resident;
    out->session = session;
}

/* Statistics were read before anything else was there. */
static uint64_t reading_bytes(const struct moe_memory_inputs *in)
{
    const struct moe_statistics *s = in->statistics;
    return s ? moe_program_bytes(in->gpu != NULL) + moe_statistics_held_bytes(s) + s->read_bytes
             : 0;
}

/* Whether the KV cache has blocks that slots can be made of until texts need them. */
static bool can_grow(const struct moe_memory_inputs *in, const struct moe_session_options *so,
                     const struct moe_strategy *s)
{
    const struct moe_kv kv = moe_session_kv(&in->model->config, so);
    const bool named =
        (s->buffer && !in->memory_named) || (in->options->plan && !follows_budget(in));
    return !named && !in->options->reserve_kv && kv.whole.n_blocks > 1 &&
           moe_kv_block_bytes(&kv) > 0;
}

/* What it takes that its blocks end in pages of their own. */
static uint64_t growth_bytes(const struct moe_config *c, const struct moe_session_options *so)
{
    struct moe_session_options whole = *so;
    whole.kv_grows = false;
    return moe_session_bytes(c, so) - moe_session_bytes(c, &whole);
}

/* What memory of slots is lent to, where there is room for that: near the floor there is none for
 * rows, too. */
enum lends { TO_NOTHING, TO_ROWS, TO_BLOCKS, TO_ROWS_AND_BLOCKS };

static int compute_split(struct moe_memory *out, const struct moe_memory_inputs *in,
                         enum lends lends, struct moe_err *err)
{
    struct moe_resolved *r = &out->resolved;
    struct moe_budget *b = &out->budget;
    struct batches batches;
    MOE_TRY(moe_engine_resolve(r, in, all_fit(in), err));
    out->session = session_for(in, &r->strategy);
    out->cache = least_cache(in, r);
    out->whole = r->strategy.resident;
    if (r->strategy.resident || !r->strategy.cache ||
        r->strategy.cache == &moe_policy_pinned) /* whose experts never leave */
        lends = TO_NOTHING;
    out->session.kv_grows = lends >= TO_BLOCKS && can_grow(in, &out->session, &r->strategy);
    uint64_t least = in->all;
    if (!out->whole)
        MOE_TRY(size_least(&least, out, in, err));
    size_batches(&batches, in, out->session, &r->strategy, least);
    /* The plan's is no more than a wish where a smaller one would be chosen. */
    if (in->session.batch > SMALL_BATCH && !in->options->session.batch)
        allow_smaller_batches(&batches, in, out->session, &r->strategy, least);
    if (lends == TO_BLOCKS) /* rows that nothing is lent to take what slots could be made of */
        take_smallest_batch(&batches, in, out->session, &r->strategy, least);
    else if (lends && !in->options->shares)
        lend_slots(&batches, in, out->session, &r->strategy, least);
    *b = batches.budget;
    if (!in->options->shares) /* it works without, too */
        b->host.floor -= growth_bytes(&in->model->config, &out->session);
    out->most = batches.from[batches.n - 1];
    out->pass_bytes =
        pass_bytes_of(in, &r->strategy, in->session.batch ? in->session.batch : DEFAULT_BATCH);
    if (in->automatic)
        become_resident(out, in, &batches);
    const struct moe_terms terms = moe_engine_terms(r, in);
    out->exactness = moe_exactness_of(&terms);
    out->session.batch = b->batch;
    if (b->host.lent) {
        const uint32_t rows = out->session.own_rows = own_rows(&out->session);
        out->cache.loan.rows = rows;
        out->cache.loan.row_bytes = (b->host.lent + b->batch - rows - 1) / (b->batch - rows);
    }
    if (r->strategy.resident)
        choose_resident(b, in);
    else
        MOE_TRY(choose_slots(out, in, batches.most_experts, err));
    if (!out->whole) { /* no cache has use for more */
        const uint64_t floor = slots_memory(in, b)->floor;
        out->most = (out->most > floor ? out->most : floor) + 2 * in->all;
    }
    const uint64_t reading = reading_bytes(in);
    b->host.floor = b->host.floor > reading ? b->host.floor : reading;
    if (b->gpu.floor > b->gpu.total)
        return moe_memory_refuse(in->model, &b->gpu, true, err);
    return b->host.floor > b->host.total ? moe_memory_refuse(in->model, &b->host, false, err)
                                         : MOE_OK;
}

static int compute_memory(struct moe_memory *out, const struct moe_memory_inputs *in,
                          struct moe_err *err)
{
    const struct moe_memory empty = {.memory_named = in->memory_named};
    *out = empty;
    const enum lends most = in->lends ? TO_ROWS_AND_BLOCKS : TO_NOTHING;
    struct moe_err short_of;
    for (enum lends lends = most; lends > TO_NOTHING; lends--) {
        *out = empty;
        if (compute_split(out, in, lends, &short_of) != MOE_OK || !can_lend(out, in))
            continue;
        const struct moe_loan *loan = &out->pools.pools.loan;
        if (lends != TO_ROWS_AND_BLOCKS || !out->session.kv_grows || loan->own_blocks == 1)
            return MOE_OK;
        /* Where only some blocks can be lent, rows must not cost the experts more than one. */
        const uint64_t enough = slots_memory(in, &out->budget)->experts + loan->block_bytes;
        *out = empty;
        if (compute_split(out, in, TO_BLOCKS, &short_of) == MOE_OK && can_lend(out, in) &&
            slots_memory(in, &out->budget)->experts > enough)
            return MOE_OK;
        *out = empty;
        return compute_split(out, in, TO_ROWS_AND_BLOCKS, err);
    }
    *out = empty;
    return compute_split(out, in, TO_NOTHING, err);
}

/* What a snapshot of recurrent states takes, where the session computes. */
static uint64_t snapshot_bytes(const struct moe_config *c, struct moe_session_options o)
{
    uint64_t bytes[2];
    for (uint32_t n = 0; n < 2; n++) {
        o.n_snapshots = n;
        bytes[n] = o.gpu ? moe_session_gpu_bytes(c, &o) : moe_session_bytes(c, &o);
    }
    return bytes[1] > bytes[0] && bytes[1] != UINT64_MAX ? bytes[1] - bytes[0] : 0;
}

/* Of the snapshots that are wanted, those that 1 / part of `room` holds. */
static uint32_t snapshots_within(const struct moe_config *c, const struct moe_session_options *o,
                                 uint64_t room, uint32_t part)
{
    const uint64_t each = snapshot_bytes(c, *o), n = each ? room / part / each : 0;
    return n < o->n_snapshots ? (uint32_t)n : o->n_snapshots;
}

/* Computes it with as many snapshots as a part of the budget has room for. The floor is that
 * without any, and where all experts fit so, they still do. */
static int compute_with_snapshots(struct moe_memory *out, struct moe_memory_inputs *in,
                                  struct moe_err *err)
{
    const uint64_t total = in->gpu ? in->gpu_total : in->total;
    uint32_t n = in->options->shares
                     ? 0
                     : snapshots_within(&in->model->config, &in->session, total, SNAPSHOTS_PART);
    in->session.n_snapshots = 0;
    MOE_TRY(compute_memory(out, in, err));
    const struct moe_budget without = out->budget;
    const bool resident = out->resolved.strategy.resident;
    for (struct moe_err short_of; n > 0; n /= 2) {
        in->session.n_snapshots = n;
        int status = compute_memory(out, in, &short_of);
        if (status == MOE_OK && out->resolved.strategy.resident == resident)
            break;
    }
    if (in->session.n_snapshots > 0 && n == 0) {
        in->session.n_snapshots = 0;
        return compute_memory(out, in, err);
    }
    out->budget.host.floor = without.host.floor;
    out->budget.gpu.floor = without.gpu.floor;
    return MOE_OK;
}

/* by_plan: of a run by the plan that is made, which has most of the options. */
static int memory_of(struct moe_memory *out, const struct moe_model *model, struct moe_gpu *gpu,
                     const struct moe_engine_options *options, bool by_plan, struct moe_err *err)
{
    struct moe_memory_inputs in;
    *out = (struct moe_memory){0};
    int status = read_inputs(&in, model, gpu, options, by_plan, err);
    if (status == MOE_OK)
        status = compute_with_snapshots(out, &in, err);
    moe_inventory_release(&in.inventory);
    return status;
}

int moe_memory_of(struct moe_memory *out, const struct moe_model *model, struct moe_gpu *gpu,
                  const struct moe_engine_options *options, struct moe_err *err)
{
    return memory_of(out, model, gpu, options, false, err);
}

/* ---- Maps for several tolerances ---- */

/* Sizes depend on there being a GPU, and on the bytes that are named of it; nothing is asked of it.
 * So one that is only described, here or on another machine, is any address. */
static struct moe_gpu *described_gpu(const struct moe_engine_options *o)
{
    static uint64_t stand_in;
    return o->device.cuda ? (struct moe_gpu *)&stand_in : NULL;
}

/* The most bytes of experts with which all of them fit beside everything else; 0: not known. */
static int room_for_experts(uint64_t *room, const struct moe_model *model,
                            const struct moe_engine_options *options, struct moe_err *err)
{
    struct moe_engine_options o = *options;
    struct moe_memory *m = moe_alloc(1, sizeof *m, err);
    struct moe_err why;
    *room = 0;
    if (!m)
        return MOE_ERR_MEMORY;
    moe_strategy_find("resident", &o.strategy);
    int status = moe_memory_of(m, model, described_gpu(&o), &o, &why);
    const struct moe_plan_memory *slots = o.device.cuda ? &m->budget.gpu : &m->budget.host;
    const uint64_t beside = slots->floor - m->budget.all;
    if ((status == MOE_OK || status == MOE_ERR_LIMIT) && slots->total > beside)
        *room = slots->total - beside;
    if (o.expert_memory_bytes && o.expert_memory_bytes < *room)
        *room = o.expert_memory_bytes;
    free(m);
    return MOE_OK;
}

int moe_engine_take_map(struct moe_model *model, const struct moe_engine_options *o,
                        struct moe_err *err)
{
    const uint32_t n = moe_pack_n_maps(model->pack);
    const uint64_t fingerprint = o->plan ? o->plan->pack_fingerprint : o->of_fingerprint;
    uint32_t within = 0, i = 0;
    uint64_t room = 0;
    if (o->tolerance > 0 && n == 0 && !o->shares)
        return moe_fail(
            err, MOE_ERR_USAGE,
            "%s: has no maps for tolerances; moe-calibrate makes maps, and moe-quantize "
            "--map A --map B a pack with them",
            moe_pack_path(model->pack));
    for (; fingerprint && i < n; i++)
        if (moe_pack_map_fingerprint(model->pack, i) == fingerprint) {
            moe_pack_take_map(model->pack, i);
            return MOE_OK;
        }
    while (within < n && !fingerprint &&
           moe_pack_map_at(model->pack, within).tolerance <= 100 * o->tolerance * (1 + 1e-9))
        within++;
    if (within == 0)
        return MOE_OK;
    if (!o->shares && !o->ranks)
        MOE_TRY(room_for_experts(&room, model, o, err));
    if (moe_pack_map_bytes(model->pack, UINT32_MAX) <= room)
        return MOE_OK;
    for (i = 0; i + 1 < within && moe_pack_map_bytes(model->pack, i) > room;)
        i++;
    moe_pack_take_map(model->pack, i);
    return MOE_OK;
}

/* ---- A budget shared by several models ---- */

#define ALL_THERE_IS (UINT64_MAX / 4) /* bytes: more than any machine has */

/* Main memory beside a GPU that is enough for a cache of any size there. Larger caches have larger
 * tables, but smaller ones may have more working slots: neither end says it. */
static uint64_t host_least_of(const struct moe_memory *m, const struct moe_model *model,
                              const struct moe_engine_options *o)
{
    struct moe_cache_options largest = m->cache;
    const uint32_t top_k = largest.top_k;
    const uint64_t slot_bytes = moe_cache_slot_bytes(model->pack, largest.high);
    largest.cache_bytes = 2 * m->budget.all; /* at both precisions */
    const struct moe_slots slots =
        moe_slots_of(largest.strategy, largest.cache_bytes, o->expert_memory_bytes > 0, slot_bytes,
                     top_k, o->staging);
    largest.n_working = slots.working > top_k ? slots.working : top_k;
    uint64_t least, all;
    moe_cache_host_bytes(model->pack, &largest, &least, &all);
    return beside_experts(&m->budget.host) + least;
}

/* gpu NULL: on the processor. */
static int look_at_needs(struct moe_needs_on *out, const struct moe_model *model,
                         struct moe_gpu *gpu, const struct moe_engine_options *options,
                         struct moe_err *err)
{
    struct moe_engine_options o = *options;
    struct moe_memory m;
    const struct moe_plan_memory *host = &m.budget.host, *slots = gpu ? &m.budget.gpu : host;
    o.memory_bytes = gpu ? ALL_THERE_IS : 1;
    o.gpu_memory_bytes = 1;
    int status = moe_memory_of(&m, model, gpu, &o, err);
    if (status != MOE_OK && status != MOE_ERR_LIMIT)
        return status;
    *out = (struct moe_needs_on){
        .least = slots->floor < m.most ? slots->floor : m.most,
        .most = m.most,
        .whole = m.whole,
        .pass_bytes = m.pass_bytes,
        .host_least =
            gpu && !m.resolved.strategy.resident ? host_least_of(&m, model, &o) : host->floor,
        .host_all = beside_experts(host) + host->experts,
        .session = {m.session.needs_rows, m.session.predict_residual, m.session.predict_depth},
    };
    if (!gpu)
        return MOE_OK;
    o.gpu_memory_bytes = m.most;
    MOE_TRY(moe_memory_of(&m, model, gpu, &o, err));
    const uint64_t staging = moe_pack_staging_bytes(model->pack);
    out->passing = model->largest_tensor_bytes + host->experts + staging;
    out->kept = beside_experts(host) - model->largest_tensor_bytes - staging;
    return MOE_OK;
}

/* Names the layout of most weights, as GGUF names types: in a .gguf file its own, else that of an
 * expert of the first class, or where there is none of all matrices. */
static void name_weights(const struct moe_pack *pack, char name[MOE_NAME_BYTES])
{
    enum { KINDS = 256 };
    uint64_t bytes[KINDS] = {0};
    uint16_t most = MOE_LAYOUT_F32;
    const struct moe_expert_class *class_ =
        moe_pack_n_classes(pack) ? moe_pack_class_at(pack, 0) : NULL;
    for (uint32_t i = 0; class_ && i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        bytes[m->layout.kind % KINDS] +=
            m->cols > 1 ? moe_layout_bytes(m->layout, m->rows, m->cols) : 0;
    }
    for (uint32_t i = 0; !class_ && i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        bytes[t->layout.kind % KINDS] += t->is_vector ? 0 : t->extent.raw_bytes;
    }
    for (uint16_t kind = 0; kind < KINDS; kind++)
        most = bytes[kind] > bytes[most] ? kind : most;
    const char *own = moe_pack_gguf_type(pack);
    snprintf(name, MOE_NAME_BYTES, "%s", own ? own : moe_layout_name(most));
    for (char *c = name; *c; c++)
        *c = (char)toupper((unsigned char)*c);
}

static const char *format_of(const struct moe_pack *pack)
{
    static const char one[] = ".safetensors";
    const char *path = moe_pack_path(pack);
    const size_t n = strlen(path), m = strlen(one);
    if (moe_pack_fd(pack) >= 0)
        return "moe";
    return (n > m && strcmp(path + n - m, one) == 0) || moe_path_is_directory(path) ? "safetensors"
                                                                                    : "gguf";
}

int moe_needs_of(struct moe_needs *out, const char *path, const struct moe_engine_options *options,
                 struct moe_gpu *gpu, struct moe_err *err)
{
    struct moe_engine_options o = *options;
    struct moe_model *model;
    struct moe_shape_bytes shape = {0};
    *out = (struct moe_needs){0};
    o.shares = true;
    o.program_bytes = 0;
    MOE_TRY(moe_model_open_directory(&model, path, err));
    int status = moe_engine_take_map(model, &o, err);
    if (status == MOE_OK && options->ahead)
        status = moe_engine_take_ahead(model, options, gpu != NULL, err);
    out->config = model->config;
    out->sampling = model->sampling;
    out->file_bytes = moe_pack_file_bytes(model->pack);
    out->fingerprint = moe_pack_fingerprint(model->pack);
    name_weights(model->pack, out->weights);
    out->format = format_of(model->pack);
    if (status == MOE_OK)
        status = moe_shape_bytes(&shape, &out->config, (struct moe_bits){16, 16}, 16, 64, err);
    out->parameters = shape.parameters;
    if (status == MOE_OK)
        status = look_at_needs(&out->on[false], model, NULL, &o, err);
    if (status == MOE_OK && gpu)
        status = look_at_needs(&out->on[true], model, gpu, &o, err);
    moe_model_close(model);
    return status;
}

/* ---- Sessions ---- */

uint64_t moe_needs_session_bytes(const struct moe_needs *needs, const struct moe_session_options *o,
                                 bool cached)
{
    uint64_t session = moe_session_bytes(&needs->config, o), sum;
    uint64_t pass = needs->on[o->gpu != NULL].pass_bytes;
    uint64_t beside = moe_generator_bytes(&needs->config, o) + (cached ? pass : 0);
    return moe_add_u64(session, beside, &sum) ? sum : UINT64_MAX;
}

static bool has_room(const struct moe_session_options *o, const struct moe_needs *needs,
                     bool cached, struct moe_session_room room)
{
    return moe_needs_session_bytes(needs, o, cached) <= room.host &&
           moe_session_gpu_bytes(&needs->config, o) <= room.gpu;
}

/* With as many blocks as there is room for, from `least` on; false: there is none for these. */
static bool fill_blocks(struct moe_session_options *o, const struct moe_needs *needs, bool cached,
                        struct moe_session_room room, uint32_t least, uint32_t most)
{
    o->kv_blocks = least;
    if (!has_room(o, needs, cached, room))
        return false;
    for (uint32_t low = least, high = most; low < high;) {
        o->kv_blocks = low + (high - low + 1) / 2;
        if (has_room(o, needs, cached, room))
            low = o->kv_blocks;
        else
            high = o->kv_blocks - 1;
        o->kv_blocks = low;
    }
    return true;
}

/* Large passes where half of the cache has room beside them; else small ones. */
static bool fit_batch(struct moe_session_options *o, const struct moe_needs *needs, bool cached,
                      struct moe_session_room room)
{
    uint32_t each = moe_kv_shape(&needs->config, o).per_sequence, all = each * o->n_sequences;
    uint32_t named = o->batch, least = SMALL_BATCH;
    least = o->n_sequences > least ? o->n_sequences : least;
    uint32_t half = all / 2 > each ? all / 2 : each;
    for (o->batch = named ? named : DEFAULT_BATCH; o->batch >= least; o->batch /= 2) {
        if (fill_blocks(o, needs, cached, room, half, all))
            return true;
        if (named)
            break;
    }
    o->batch = named ? named : least;
    if (o->batch >= o->n_sequences && fill_blocks(o, needs, cached, room, each, all))
        return true;
    o->batch = named;
    return false;
}

/* With all snapshots that are wanted beside a whole cache, or as many as a part of the room holds,
 * or none. */
static bool fit_sequences(struct moe_session_options *o, const struct moe_needs *needs, bool cached,
                          struct moe_session_room room)
{
    const struct moe_session_options wanted = *o;
    const uint64_t bytes = o->gpu ? room.gpu : room.host;
    const uint32_t n[] = {o->n_snapshots, snapshots_within(&needs->config, o, bytes, SESSION_PART),
                          0};
    for (int i = 0; i < 3; i++) {
        *o = wanted;
        o->n_snapshots = n[i];
        bool fits = fit_batch(o, needs, cached, room);
        bool whole = o->kv_blocks == moe_kv_shape(&needs->config, o).per_sequence * o->n_sequences;
        if (fits && (n[i] <= n[1] || whole))
            return true;
    }
    *o = wanted;
    return false;
}

int moe_needs_fit_session(struct moe_session_options *o, const struct moe_needs *needs, bool cached,
                          struct moe_session_room room, struct moe_session_room *least,
                          struct moe_err *err)
{
    if (o->kv_kind == MOE_LAYOUT_NONE)
        o->kv_kind = MOE_KV_DEFAULT;
    if (o->gpu && cached) {
        const struct moe_session_needs *s = &needs->on[true].session;
        o->needs_rows = s->rows;
        o->predict_depth = s->predict_depth;
        o->predict_residual = s->residual;
    }
    struct moe_session_options one = *o;
    one.n_sequences = 1;
    one.n_snapshots = 0;
    one.batch = o->batch ? o->batch : SMALL_BATCH;
    one.kv_blocks = moe_kv_shape(&needs->config, &one).per_sequence;
    least->host = moe_needs_session_bytes(needs, &one, cached);
    least->gpu = moe_session_gpu_bytes(&needs->config, &one);
    for (; o->n_sequences > 0; o->n_sequences /= 2)
        if (fit_sequences(o, needs, cached, room))
            return MOE_OK;
    bool on_gpu = least->gpu > room.gpu;
    return moe_fail(err, MOE_ERR_LIMIT,
                    "a session of %u positions takes %" PRIu64 " bytes%s, and there are %" PRIu64,
                    one.context, on_gpu ? least->gpu : least->host, on_gpu ? " on the GPU" : "",
                    on_gpu ? room.gpu : room.host);
}

/* ---- The planner's view ---- */

struct moe_pack_fit {
    struct moe_model *model; /* its directory */
    struct moe_engine_options options;
    struct moe_inventory inventory;
};

int moe_pack_fit_open(struct moe_pack_fit **out, const char *path,
                      const struct moe_engine_options *options, struct moe_err *err)
{
    *out = NULL;
    struct moe_pack_fit *f = moe_alloc(1, sizeof *f, err);
    if (!f)
        return MOE_ERR_MEMORY;
    f->options = *options;
    f->options.follows = NULL; /* borrowed while opening */
    int status;
    MOE_STEP(moe_model_open_directory(&f->model, path, err));
    MOE_STEP(moe_engine_take_map(f->model, options, err));
    struct moe_err other; /* a trace of another model may show the manner of one */
    if (options->follows)
        moe_engine_take_trace(f->model, options, &other);
    MOE_STEP(moe_inventory_of_pack(&f->inventory, f->model->pack, f->model->config.top_k,
                                   &f->model->config, err));
    if (options->ahead) { /* counted, but no layer of those that are planned */
        MOE_STEP(moe_engine_take_ahead(f->model, options, options->device.cuda, err));
    }
out:
    if (status != MOE_OK) {
        moe_pack_fit_close(f);
        return status;
    }
    *out = f;
    return MOE_OK;
}

void moe_pack_fit_close(struct moe_pack_fit *f)
{
    if (!f)
        return;
    moe_inventory_release(&f->inventory);
    moe_model_close(f->model);
    free(f);
}

static int fit_pack(void *ctx, const struct moe_strategy *wanted, const struct moe_fit_room *room,
                    struct moe_fitted *out, struct moe_err *err)
{
    struct moe_pack_fit *f = ctx;
    struct moe_engine_options o = f->options;
    struct moe_memory m;
    const uint64_t bytes = room ? room->bytes : 0;
    uint64_t floor = 0, host_floor = 0;
    if (room && room->batch) {
        const struct moe_fit_room own = {.bytes = bytes};
        MOE_TRY(fit_pack(ctx, wanted, &own, out, err));
        floor = out->memory.floor;
        host_floor = out->host.floor;
        o.session.batch = room->batch;
    }
    if (bytes && o.device.cuda)
        o.gpu_memory_bytes = bytes;
    else if (bytes && o.memory_bytes)
        o.memory_bytes = bytes;
    else if (bytes)
        o.expert_memory_bytes = bytes;
    o.strategy = *wanted;
    *out = (struct moe_fitted){.strategy = *wanted, .named = o.expert_memory_bytes};
    MOE_TRY(memory_of(&m, f->model, described_gpu(&o), &o, true, err));
    const struct moe_budget *b = &m.budget;
    out->strategy = m.resolved.strategy;
    out->high = m.cache.high;
    out->low = m.cache.low;
    out->pools = m.pools.pools;
    out->staging = m.cache.n_staging;
    out->memory = b->host;
    out->memory.total = o.memory_bytes;
    if (o.device.cuda) {
        uint64_t tables = moe_expert_pools_beside_bytes(&m.pools);
        out->host = out->memory;
        out->host_bytes = m.cache.host_bytes > tables ? m.cache.host_bytes - tables : 0;
        out->memory = b->gpu;
    }
    out->memory.token = b->token;
    out->memory.all = b->all;
    out->memory.context = m.session.context;
    out->memory.batch = b->batch;
    bool has_room = b->host.floor <= b->host.total &&
                    (!o.expert_memory_bytes || o.expert_memory_bytes >= b->all);
    if (out->strategy.resident && !has_room)
        return moe_fail(err, MOE_ERR_LIMIT, "not all experts fit");
    if (room && room->batch) {
        out->memory.floor = floor;
        out->host.floor = host_floor;
    }
    return MOE_OK;
}

struct moe_fitter moe_pack_fit_fitter(struct moe_pack_fit *f)
{
    return (struct moe_fitter){f, fit_pack};
}

const struct moe_inventory *moe_pack_fit_inventory(const struct moe_pack_fit *f)
{
    return &f->inventory;
}

const struct moe_model *moe_pack_fit_model(const struct moe_pack_fit *f)
{
    return f->model;
}

void moe_pack_fit_statistics(struct moe_pack_fit *f, const struct moe_statistics *statistics)
{
    f->options.statistics = statistics;
}
