/* The split of a budget: from its inputs, step by step, to slots of experts. */
#include "engine/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "engine/batch.h"
#include "engine/engine_strategy.h"
#include "gpu.h"
#include "infer/layer_predictor.h"
#include "infer/pass_ops.h"
#include "plan/fitting.h"

enum {
    GROWN_SLACK = 1 << 20,   /* a size that is measured varies a little from run to run */
    ALWAYS_ROOM = 4 << 20,   /* any budget that works has more for weights and buffers */
    FREE_SHARE_PERCENT = 90, /* of what is free, when no budget is named */
};

struct moe_engine_room moe_engine_room_of(uint64_t total, uint32_t context)
{
    uint64_t taken = moe_rss_bytes(), left = total > taken ? total - taken : 0;
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
                        "the plan keeps keys and values as '%s', which is not f32 or f16",
                        plan->kv);
    return MOE_OK;
}

/* Of the KV cache. Engines that share are asked for before it is known what computes. */
static int check_kv(const struct moe_split_inputs *in, struct moe_err *err)
{
    uint16_t kind = in->session.kv_kind;
    if (in->gpu || in->options->shares || kind == MOE_LAYOUT_NONE || kind == MOE_LAYOUT_F32)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE, MOE_KV_ON_CPU, moe_layout_name(kind));
}

static int read_inventory(struct moe_split_inputs *in, struct moe_err *err)
{
    const struct moe_model *m = in->model;
    if (m->config.n_experts == 0)
        return MOE_OK;
    struct moe_inventory *i = &in->inventory;
    int status = moe_inventory_of_pack(i, m->pack, m->config.top_k, err);
    if (status == MOE_OK) {
        moe_inventory_set_model(i, &m->config);
        in->all = moe_inventory_all_bytes(i, 0);
        in->token =
            (uint64_t)(i->n_layers - i->n_encoder) * i->top_k * moe_inventory_mean_bytes(i, 0);
    }
    return status;
}

/* A plan's strategy, session and budget take the options' place. */
static void follow_plan(struct moe_split_inputs *in)
{
    const struct moe_engine_options *o = in->options;
    const struct moe_plan *plan = o->plan;
    in->strategy = plan->strategy;
    if (!in->strategy.name) { /* parts alone, which are no less named */
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
    if (!o->session.batch && fits)
        in->session.batch = plan->memory.batch;
}

static int read_inputs(struct moe_split_inputs *in, const struct moe_model *model,
                       struct moe_gpu *gpu, const struct moe_engine_options *o, struct moe_err *err)
{
    *in = (struct moe_split_inputs){
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
    };
    if (!o->program_bytes && !o->shares) {
        const uint64_t now = moe_rss_bytes();
        in->program = moe_engine_program_bytes(model, gpu != NULL);
        in->grown = now > in->program;
        in->program = in->grown ? now : in->program;
    }
    in->program += moe_pack_staging_bytes(model->pack);
    int status = o->plan ? check_plan(model, gpu, o->plan, err) : MOE_OK;
    if (status == MOE_OK)
        status = read_inventory(in, err);
    if (status != MOE_OK)
        return status;
    in->session.gpu = gpu;
    in->session.gpu_bf16 = gpu && o->bf16_prompts;
    in->session.context = context_of(model, o);
    if (o->plan)
        follow_plan(in);
    status = check_kv(in, err);
    if (status != MOE_OK)
        return status;
    if (model->config.n_encoder && !in->session.source_context)
        in->session.source_context = in->session.context;
    if (in->total == 0) {
        uint64_t available = moe_available_bytes();
        in->total = available == UINT64_MAX
                        ? UINT64_MAX
                        : available / 100 * FREE_SHARE_PERCENT + moe_rss_bytes();
    }
    if (gpu && in->gpu_total == 0)
        in->gpu_total = moe_gpu_info(gpu)->memory_free_bytes / 100 * FREE_SHARE_PERCENT;
    const struct moe_engine_room room = moe_engine_room_of(in->total, in->session.context);
    if (o->survey && (status = o->survey(o->beside_ctx, model, &room, err)) != MOE_OK)
        return status;
    in->automatic = in->strategy.name == NULL;
    if (in->automatic)
        moe_strategy_find(MOE_DEFAULT_STRATEGY, &in->strategy);
    if (in->all == 0) /* a model without experts has nothing to cache */
        moe_strategy_find("resident", &in->strategy);
    return MOE_OK;
}

/* The session that was asked for, with what a strategy needs of it on a GPU. */
static struct moe_session_options session_for(const struct moe_split_inputs *in,
                                              const struct moe_strategy *s)
{
    struct moe_session_options so = in->session;
    if (in->gpu) {
        so.needs_rows = s->needs_host;
        so.predict_depth = moe_layer_predictor_depth(in->model, s, &so.predict_residual);
    }
    return so;
}

/* ---- The cache ---- */

/* Its options, with as few slots as work: a layer's experts, none of which is kept. */
static struct moe_cache_options least_cache(const struct moe_split_inputs *in,
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
 * experts are taken from them. At least top_k work without a cache. */
static void size_slots(struct moe_cache_options *cache, const struct moe_split_inputs *in,
                       uint64_t available)
{
    const struct moe_strategy *s = cache->strategy;
    const struct moe_pack *pack = in->model->pack;
    uint64_t slot_bytes = moe_inventory_slot_bytes(&in->inventory, cache->high);
    uint64_t named = in->expert_memory;
    if (!named && s->buffer && !in->memory_named)
        named = s->buffer * slot_bytes;
    const struct moe_slots slots = moe_slots_of(s, named ? named : available, named > 0, slot_bytes,
                                                in->model->config.top_k, in->options->staging);
    cache->n_working = slots.working;
    cache->n_staging = slots.staging;
    cache->cache_bytes = slots.cache_bytes;
    if (named)
        return;
    /* The loaders' tables grow with the slots: near the floor they may leave less to prefetch. */
    while (cache->n_staging > 0 && moe_cache_bytes(pack, cache) > available) {
        cache->n_staging--;
        cache->n_working--;
    }
    if (!s->cache)
        return;
    uint64_t rest = moe_cache_bytes(pack, cache);
    cache->cache_bytes = available > rest ? available - rest : 0;
    while (cache->cache_bytes && moe_cache_bytes(pack, cache) > available)
        cache->cache_bytes -= cache->cache_bytes < slot_bytes ? cache->cache_bytes : slot_bytes;
}

/* The plan's slots, which `planned` holds. */
static int take_slots(struct moe_cache_options *cache, struct moe_pools *planned,
                      const struct moe_split_inputs *in, struct moe_err *err)
{
    const struct moe_plan *plan = in->options->plan;
    const struct moe_inventory *inventory = &in->inventory;
    const uint32_t n_drafting = in->model->config.n_drafting; /* a plan is of the model's layers */
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

/* The planned slots that keep experts, times share / SHARES. A layer's own are as planned. */
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
        if (!p->per_layer)
            p->n_cache = (uint32_t)(n < most ? n : most);
        out->n_slots += p->n_cache + p->n_working;
        out->bytes += (uint64_t)(p->n_cache + p->n_working) * inventory->classes[c].slot_bytes;
    }
}

/* As many as there is room for, in the plan's proportions: a run may have more than the plan booked
 * (a larger budget), or less (a longer text, a larger process). */
static void resize_slots(struct moe_cache_options *cache, struct moe_pools *planned,
                         const struct moe_split_inputs *in, uint64_t available)
{
    const struct moe_pools as_planned = *planned;
    uint64_t low = 0, high = (uint64_t)SHARES << 16;
    while (low < high) {
        uint64_t share = low + (high - low + 1) / 2;
        scale_slots(planned, &as_planned, &in->inventory, share);
        if (moe_cache_bytes(in->model->pack, cache) <= available)
            low = share;
        else
            high = share - 1;
    }
    scale_slots(planned, &as_planned, &in->inventory, low);
}

/* ---- Choosing ---- */

/* All experts are in memory. */
static void choose_resident(struct moe_budget *b, const struct moe_split_inputs *in)
{
    bool on_gpu = in->gpu != NULL;
    uint64_t whole = moe_budget_beside_slots(b, on_gpu) + b->all;
    b->experts = on_gpu ? moe_experts_resident_host_bytes(in->model->pack) : b->all;
    if (on_gpu) {
        b->gpu.experts = b->all;
        b->floor = moe_budget_on_host(b) + b->experts;
    }
    if (on_gpu && whole > b->gpu.total)
        b->gpu.floor = whole;
    if (!on_gpu && whole > b->total)
        b->floor = whole;
}

/* What the host keeps behind the slots of a GPU: all experts, or what its budget leaves. Returns
 * the least that works. */
static uint64_t size_tier(struct moe_cache_options *cache, const struct moe_budget *b,
                          const struct moe_pack *pack)
{
    uint64_t least, all, host = moe_budget_on_host(b), left = b->total > host ? b->total - host : 0;
    moe_cache_host_bytes(pack, cache, &least, &all);
    cache->host_bytes = left < least ? least : left > all ? all : left;
    return least;
}

/* Slots in what a plan names or the budget leaves; out->budget has everything else sized. */
static int choose_slots(struct moe_split *out, const struct moe_split_inputs *in, uint64_t most,
                        struct moe_err *err)
{
    struct moe_budget *b = &out->budget;
    const struct moe_pack *pack = in->model->pack;
    bool on_gpu = in->gpu != NULL, planned = in->options->plan != NULL;
    uint64_t beside = moe_budget_beside_slots(b, on_gpu), total = on_gpu ? b->gpu.total : b->total;
    int status = planned ? take_slots(&out->cache, &out->planned, in, err) : MOE_OK;
    if (status != MOE_OK)
        return status;
    uint64_t left = total > beside ? total - beside : 0;
    if (!planned)
        size_slots(&out->cache, in, left < most ? left : most);
    else if (on_gpu ? in->options->plan->host.total : in->options->plan->memory.total)
        resize_slots(&out->cache, &out->planned, in, left < most ? left : most);
    if (on_gpu)
        b->floor = moe_budget_on_host(b) + size_tier(&out->cache, b, pack);
    moe_expert_pools_size(&out->pools, pack, &in->inventory, &out->cache);
    if (in->options->device.test && out->pools.loader.compressed_bytes)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: compressed experts cannot be computed where they lie: --device "
                        "test needs a pack without zstd (moe-quantize PACK makes one)",
                        moe_pack_path(pack));
    uint64_t tables = moe_expert_pools_beside_bytes(&out->pools);
    uint64_t slots = out->pools.pools.bytes + (on_gpu ? 0 : tables);
    b->experts = on_gpu ? out->pools.host.bytes + tables : slots;
    b->gpu.experts = on_gpu ? slots : 0;
    b->n_slots = out->pools.pools.n_slots;
    b->below_token = out->pools.pools.bytes < b->token;
    uint64_t *floor = on_gpu ? &b->gpu.floor : &b->floor;
    if ((planned || in->expert_memory) && beside + slots > *floor)
        *floor = beside + slots;
    return MOE_OK;
}

static int refuse(const struct moe_split_inputs *in, uint64_t total, uint64_t floor, bool on_gpu,
                  struct moe_err *err)
{
    char have[32], need[32];
    uint64_t named = floor + (in->grown ? GROWN_SLACK : 0) + (1 << 20) - 1;
    return moe_fail(err, MOE_ERR_LIMIT,
                    "%s: a budget of %s%s is too small: the smallest that works is %s (--%s "
                    "%" PRIu64 "M; a shorter context -c needs less)",
                    moe_pack_path(in->model->pack), moe_format_bytes(total, have),
                    on_gpu ? " on the GPU" : "", moe_format_bytes(floor, need),
                    on_gpu ? "gpu-memory" : "memory", named >> 20);
}

/* Where no strategy is named and everything fits, with a batch no smaller than a cache would leave
 * room for. The floor is still that of a cache. */
static void become_resident(struct moe_split *out, const struct moe_split_inputs *in)
{
    struct moe_strategy resident;
    struct moe_budget *b = &out->budget;
    uint64_t most;
    moe_strategy_find("resident", &resident);
    const struct moe_session_options session = session_for(in, &resident);
    struct moe_budget all = moe_engine_size_batch(in, session, &resident, in->all, &most);
    const uint64_t beside = moe_budget_beside_slots(&all, in->gpu != NULL);
    if (all.batch < b->batch || !moe_engine_has_room_for_all(in, beside))
        return;
    all.floor = b->floor;
    all.gpu.floor = b->gpu.floor;
    *b = all;
    out->resolved.strategy = resident;
    out->session = session;
}

static int split(struct moe_split *out, const struct moe_split_inputs *in, struct moe_err *err)
{
    struct moe_resolved *r = &out->resolved;
    struct moe_budget *b = &out->budget;
    int status = moe_engine_resolve(r, in, moe_engine_all_fit(in), err);
    if (status != MOE_OK)
        return status;
    out->session = session_for(in, &r->strategy);
    out->cache = least_cache(in, r);
    uint64_t least = r->strategy.resident ? in->all
                     : in->all            ? moe_cache_bytes(in->model->pack, &out->cache)
                                          : 0;
    uint64_t most;
    *b = moe_engine_size_batch(in, out->session, &r->strategy, least, &most);
    if (in->automatic)
        become_resident(out, in);
    const struct moe_terms terms = moe_engine_terms(r, in);
    r->exactness = moe_exactness_of(&terms);
    out->session.batch = b->batch;
    if (r->strategy.resident)
        choose_resident(b, in);
    else
        status = choose_slots(out, in, most, err);
    if (status != MOE_OK)
        return status;
    /* What was read before now, statistics say, counts as well. */
    bool measured = !in->options->program_bytes && !in->options->shares;
    if (measured && moe_peak_rss_bytes() > b->floor)
        b->floor = moe_peak_rss_bytes();
    if (b->gpu.floor > b->gpu.total)
        return refuse(in, b->gpu.total, b->gpu.floor, true, err);
    return b->floor > b->total ? refuse(in, b->total, b->floor, false, err) : MOE_OK;
}

int moe_engine_split(struct moe_split *out, const struct moe_model *model, struct moe_gpu *gpu,
                     const struct moe_engine_options *options, struct moe_err *err)
{
    struct moe_split_inputs in;
    *out = (struct moe_split){0};
    int status = read_inputs(&in, model, gpu, options, err);
    if (status == MOE_OK) {
        out->memory_named = in.memory_named;
        status = split(out, &in, err);
    }
    moe_inventory_release(&in.inventory);
    return status;
}

/* ---- Sizes ---- */

enum {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    PROGRAM_BYTES = 40 << 20, /* with what a sanitizer keeps beside it */
#else
    /* Resident pages of code, libraries and their data, and the first of the heap: at most 5 MiB
     * were seen (Debian 12, x86-64). Where a process has more, a run counts that. */
    PROGRAM_BYTES = 6 << 20,
#endif
    CUDA_BYTES = 2 << 20,     /* ... of a build with CUDA on top; 1.5 MiB were seen */
    PROGRAM_MARGIN = 3 << 20, /* what malloc, the line editor and the like add to the RSS we see */
    THREAD_BYTES = 256 << 10, /* of a thread's stack and heap that are touched */
    LOGITS_ROWS = 4,          /* logits, sampler's candidates: rows of the vocabulary */
    MEASURE_BYTES = 1 << 20,  /* rows that a perplexity run keeps */
    DEFAULT_BATCH = 256,
    GPU_BATCH = 512,       /* an expert that was brought serves more rows */
    SMALL_BATCH = 16,      /* the smallest that is chosen, and the step to the next */
    WORK_SHARE = 8,        /* of a budget, for the buffers of a batch that is chosen */
    EXPERTS_SHARE = 2,     /* times what a batch takes more than the smallest, for experts */
    MAX_HOST_THREADS = 16, /* a few experts of a layer are missing at a time */
};

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

uint64_t moe_budget_on_host(const struct moe_budget *b)
{
    return b->program + b->dense + b->kv + b->work;
}

uint64_t moe_budget_beside_slots(const struct moe_budget *b, bool on_gpu)
{
    return on_gpu ? b->gpu.dense + b->gpu.kv + b->gpu.work : moe_budget_on_host(b);
}

bool moe_engine_has_room_for_all(const struct moe_split_inputs *in, uint64_t beside)
{
    return (!in->expert_memory || in->expert_memory >= in->all) &&
           beside + in->all <= (in->gpu ? in->gpu_total : in->total);
}

uint64_t moe_engine_process_bytes(void)
{
    return PROGRAM_MARGIN + (uint64_t)moe_par_threads() * THREAD_BYTES;
}

uint64_t moe_engine_program_bytes(const struct moe_model *model, bool for_gpu)
{
    bool has_cuda = for_gpu || strcmp(moe_gpu_build(), "none") != 0;
    return PROGRAM_BYTES + (has_cuda ? CUDA_BYTES : 0) + moe_model_directory_bytes(model);
}

struct moe_budget moe_engine_size(const struct moe_split_inputs *in,
                                  const struct moe_session_options *so,
                                  const struct moe_strategy *strategy)
{
    const struct moe_model *m = in->model;
    const struct moe_config *c = &m->config;
    const struct moe_engine_options *o = in->options;
    uint64_t logits_bytes = LOGITS_ROWS * moe_logits_stride(c) * sizeof(float);
    uint64_t kv = moe_session_kv_bytes(c, so);
    struct moe_budget b = {
        .total = in->total,
        .program = in->program +
                   (o->shares ? 0 : moe_engine_process_bytes() + MEASURE_BYTES + logits_bytes),
        .dense = in->gpu ? moe_model_gpu_host_bytes(m, so->context)
                         : moe_model_load_bytes(m, so->context),
        .kv = in->gpu || o->shares ? 0 : kv,
        .work = o->beside ? o->beside(o->beside_ctx, m, so->batch) : 0,
        .token = in->token,
        .all = in->all,
        .batch = so->batch,
    };
    if (!o->shares)
        b.work += moe_session_bytes(c, so) - b.kv;
    if (so->predict_depth > 0)
        b.dense += moe_host_routers_bytes(m);
    if (strategy && moe_engine_takes_part(strategy) && !o->shares)
        b.work += moe_session_strategy_bytes(m, so->batch, strategy,
                                             moe_engine_host_threads(in->gpu != NULL));
    if (in->gpu)
        b.gpu = (struct moe_gpu_budget){
            .total = in->gpu_total,
            .dense = m->weights_bytes,
            .kv = o->shares ? 0 : kv,
            .work = MOE_GPU_OWN_BYTES + (o->shares ? 0 : moe_session_gpu_bytes(c, so) - kv),
        };
    return b;
}

/* A batch's budget, and the least total that it is chosen for. */
struct sized {
    struct moe_budget budget;
    uint64_t beside, work, from; /* of the memory where the slots are */
};

static struct sized size_batch(const struct moe_split_inputs *in, struct moe_session_options so,
                               const struct moe_strategy *strategy, uint32_t batch, uint64_t least,
                               uint64_t work_first)
{
    bool on_gpu = in->gpu != NULL;
    so.batch = batch;
    struct sized s = {.budget = moe_engine_size(in, &so, strategy)};
    uint64_t work = on_gpu ? s.budget.gpu.work : s.budget.work;
    s.beside = moe_budget_beside_slots(&s.budget, on_gpu);
    uint64_t extra = work > work_first ? EXPERTS_SHARE * (work - work_first) : 0;
    uint64_t experts = extra > in->all ? in->all : extra;
    experts = experts > least ? experts : least;
    s.from = WORK_SHARE * work > s.beside + experts ? WORK_SHARE * work : s.beside + experts;
    s.work = work;
    return s;
}

/* Batches rise by small steps, and what a step takes is kept free just below the budget that it
 * comes with: so both the batch and the experts' memory never shrink as the budget grows. */
struct moe_budget moe_engine_size_batch(const struct moe_split_inputs *in,
                                        struct moe_session_options so,
                                        const struct moe_strategy *strategy, uint64_t least_experts,
                                        uint64_t *most_experts)
{
    bool on_gpu = in->gpu != NULL;
    uint64_t total = on_gpu ? in->gpu_total : in->total;
    /* What must stand in one pass. */
    uint32_t whole = in->model->config.n_encoder   ? so.source_context
                     : in->model->config.prefix_lm ? so.context
                                                   : 0;
    uint32_t most = on_gpu ? GPU_BATCH : DEFAULT_BATCH;
    uint32_t first = so.batch ? so.batch : whole > SMALL_BATCH ? whole : SMALL_BATCH;
    uint64_t least = least_experts < in->all ? least_experts : in->all;
    first = first < whole ? whole : first;
    most = so.batch || most < first ? first : most;
    struct sized s = size_batch(in, so, strategy, first, least, UINT64_MAX);
    const uint64_t floor = s.beside + least, work_first = s.work;
    *most_experts = UINT64_MAX;
    for (uint32_t batch = first; batch < most;) {
        batch = batch + SMALL_BATCH < most ? batch + SMALL_BATCH : most;
        struct sized next = size_batch(in, so, strategy, batch, least, work_first);
        if (next.from > total) {
            *most_experts = next.from - next.beside;
            break;
        }
        s = next;
    }
    *(on_gpu ? &s.budget.gpu.floor : &s.budget.floor) = floor;
    return s.budget;
}

bool moe_engine_all_fit(const struct moe_split_inputs *in)
{
    struct moe_session_options so = in->session;
    if (so.batch == 0)
        so.batch = SMALL_BATCH;
    struct moe_budget b = moe_engine_size(in, &so, NULL);
    return moe_engine_has_room_for_all(in, moe_budget_beside_slots(&b, in->gpu != NULL));
}

/* ---- A budget shared by several models ---- */

enum {
    HEAP_UNIT = 64 << 10, /* the same model twice differs by less */
};
#define ALL_THERE_IS (UINT64_MAX / 4) /* bytes: more than any machine has */

/* ---- Weights ---- */

/* Of a split with the least and with all memory. */
static int split_twice(struct moe_engine_needs *out, const struct moe_model *model,
                       const struct moe_engine_options *options, struct moe_err *err)
{
    struct moe_engine_options o = *options;
    struct moe_split split;
    o.memory_bytes = 1;
    int status = moe_engine_split(&split, model, NULL, &o, err);
    if (status != MOE_OK && status != MOE_ERR_LIMIT)
        return status;
    out->least = split.budget.floor;
    const struct moe_strategy *s = &split.resolved.strategy;
    if (moe_engine_takes_part(s))
        out->pass_bytes =
            moe_session_strategy_bytes(model, o.session.batch ? o.session.batch : DEFAULT_BATCH, s,
                                       moe_engine_host_threads(false));
    /* Enough for everything, in a cache too. */
    o.memory_bytes = out->all = out->least + 2 * split.budget.all;
    status = moe_engine_split(&split, model, NULL, &o, err);
    const struct moe_budget *b = &split.budget;
    out->resident = s->resident;
    if (s->resident)
        out->all = b->program + b->dense + b->experts;
    out->least = out->least < out->all ? out->least : out->all;
    return status;
}

/* The same of a GPU's memory, with all of the host's. */
static int split_on_gpu(struct moe_engine_gpu_needs *out, const struct moe_model *model,
                        struct moe_gpu *gpu, const struct moe_engine_options *options,
                        struct moe_err *err)
{
    struct moe_engine_options o = *options;
    struct moe_split split;
    const struct moe_budget *b = &split.budget;
    const struct moe_strategy *s = &split.resolved.strategy;
    o.memory_bytes = ALL_THERE_IS;
    o.gpu_memory_bytes = 1;
    int status = moe_engine_split(&split, model, gpu, &o, err);
    if (status != MOE_OK && status != MOE_ERR_LIMIT)
        return status;
    out->least = b->gpu.floor;
    out->host_least = b->floor;
    out->host_all = moe_budget_on_host(b) + b->experts;
    out->session = (struct moe_session_needs){
        split.session.needs_rows, split.session.predict_residual, split.session.predict_depth};
    if (moe_engine_takes_part(s))
        out->pass_bytes =
            moe_session_strategy_bytes(model, o.session.batch ? o.session.batch : DEFAULT_BATCH, s,
                                       moe_engine_host_threads(true));
    o.gpu_memory_bytes = out->all = out->least + 2 * b->all;
    status = moe_engine_split(&split, model, gpu, &o, err);
    out->resident = s->resident;
    if (s->resident)
        out->all = moe_budget_beside_slots(b, true) + b->gpu.experts;
    out->least = out->least < out->all ? out->least : out->all;
    const uint64_t staging = moe_pack_staging_bytes(model->pack);
    out->passing = model->largest_tensor_bytes + b->experts + staging;
    out->kept = moe_budget_on_host(b) - model->largest_tensor_bytes - staging;
    return status;
}

int moe_engine_needs_of(struct moe_engine_needs *out, const char *path,
                        const struct moe_engine_options *options, struct moe_gpu *gpu,
                        struct moe_err *err)
{
    struct moe_engine_options o = *options;
    struct moe_model *model;
    uint64_t before = moe_heap_bytes();
    *out = (struct moe_engine_needs){0};
    int status = moe_model_open_directory(&model, path, err);
    if (status != MOE_OK)
        return status;
    if (options->ahead && (status = moe_engine_take_ahead(model, options, gpu != NULL, err)) < 0) {
        moe_model_close(model);
        return status;
    }
    uint64_t after = moe_heap_bytes();
    out->config = model->config;
    out->sampling = model->sampling;
    out->directory = moe_round_up(after > before ? after - before : 0, HEAP_UNIT);
    out->file_bytes = moe_pack_file_bytes(model->pack);
    o.shares = true;
    o.program_bytes = out->directory;
    status = split_twice(out, model, &o, err);
    if (status == MOE_OK && gpu)
        status = split_on_gpu(&out->gpu, model, gpu, &o, err);
    moe_model_close(model);
    return status;
}

/* ---- Sessions ---- */

uint64_t moe_engine_session_bytes(const struct moe_engine_needs *needs,
                                  const struct moe_session_options *o, bool cached)
{
    uint64_t session = moe_session_bytes(&needs->config, o), sum;
    uint64_t pass = o->gpu ? needs->gpu.pass_bytes : needs->pass_bytes;
    uint64_t beside = moe_batch_bytes(&needs->config, o) + (cached ? pass : 0);
    return moe_add_u64(session, beside, &sum) ? sum : UINT64_MAX;
}

static bool has_room(const struct moe_session_options *o, const struct moe_engine_needs *needs,
                     bool cached, struct moe_session_room room)
{
    return moe_engine_session_bytes(needs, o, cached) <= room.host &&
           moe_session_gpu_bytes(&needs->config, o) <= room.gpu;
}

/* With as many blocks as there is room for, from `least` on; false: there is none for these. */
static bool fill(struct moe_session_options *o, const struct moe_engine_needs *needs, bool cached,
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
static bool fit(struct moe_session_options *o, const struct moe_engine_needs *needs, bool cached,
                struct moe_session_room room)
{
    uint32_t each = moe_kv_shape(&needs->config, o).per_sequence, all = each * o->n_sequences;
    uint32_t named = o->batch, least = SMALL_BATCH;
    least = o->n_sequences > least ? o->n_sequences : least;
    uint32_t half = all / 2 > each ? all / 2 : each;
    for (o->batch = named ? named : DEFAULT_BATCH; o->batch >= least; o->batch /= 2) {
        if (fill(o, needs, cached, room, half, all))
            return true;
        if (named)
            break;
    }
    o->batch = named ? named : least;
    if (o->batch >= o->n_sequences && fill(o, needs, cached, room, each, all))
        return true;
    o->batch = named;
    return false;
}

int moe_engine_fit_session(struct moe_session_options *o, const struct moe_engine_needs *needs,
                           bool cached, struct moe_session_room room,
                           struct moe_session_room *least, struct moe_err *err)
{
    if (o->kv_kind == MOE_LAYOUT_NONE)
        o->kv_kind = MOE_LAYOUT_F32;
    if (o->gpu && cached) {
        o->needs_rows = needs->gpu.session.rows;
        o->predict_depth = needs->gpu.session.predict_depth;
        o->predict_residual = needs->gpu.session.residual;
    }
    struct moe_session_options one = *o;
    one.n_sequences = 1;
    one.batch = o->batch ? o->batch : SMALL_BATCH;
    one.kv_blocks = moe_kv_shape(&needs->config, &one).per_sequence;
    least->host = moe_engine_session_bytes(needs, &one, cached);
    least->gpu = moe_session_gpu_bytes(&needs->config, &one);
    for (; o->n_sequences > 0; o->n_sequences /= 2)
        if (fit(o, needs, cached, room))
            return MOE_OK;
    bool on_gpu = least->gpu > room.gpu;
    return moe_fail(err, MOE_ERR_LIMIT,
                    "a session of %u positions takes %" PRIu64 " bytes%s, and there are %" PRIu64,
                    one.context, on_gpu ? least->gpu : least->host, on_gpu ? " on the GPU" : "",
                    on_gpu ? room.gpu : room.host);
}

/* ---- What a pack needs ---- */

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
    int status = moe_model_open_directory(&f->model, path, err);
    struct moe_err other; /* a trace of another model may show the manner of one */
    if (status == MOE_OK && options->follows)
        moe_engine_take_trace(f->model, options, &other);
    if (status == MOE_OK)
        status = moe_inventory_of_pack(&f->inventory, f->model->pack, f->model->config.top_k, err);
    if (status == MOE_OK && options->ahead) /* counted, but no layer of those that are planned */
        status = moe_engine_take_ahead(f->model, options, options->device.cuda, err);
    if (status != MOE_OK) {
        moe_pack_fit_close(f);
        return status;
    }
    moe_inventory_set_model(&f->inventory, &f->model->config);
    f->options.program_bytes = moe_engine_program_bytes(f->model, options->device.cuda);
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

/* Sizes depend on there being a GPU, and on the bytes that are named of it; nothing is asked of it.
 * So one that is only described, here or on another machine, is any address. */
static struct moe_gpu *described_gpu(const struct moe_engine_options *o)
{
    static uint64_t stand_in;
    return o->device.cuda ? (struct moe_gpu *)&stand_in : NULL;
}

/* Where the slots are, and what lies behind that. */
static void set_memories(struct moe_fitted *out, const struct moe_engine_options *o,
                         const struct moe_split *split)
{
    const struct moe_budget *b = &split->budget;
    const struct moe_gpu_budget *g = &b->gpu;
    const struct moe_plan_memory host = {
        .total = o->memory_bytes,
        .program = b->program,
        .dense = b->dense,
        .kv = b->kv,
        .work = b->work,
        .experts = b->experts,
        .floor = b->floor,
    };
    out->memory = host;
    if (o->device.cuda) {
        uint64_t tables = moe_expert_pools_beside_bytes(&split->pools);
        out->host = host;
        out->host_bytes = split->cache.host_bytes > tables ? split->cache.host_bytes - tables : 0;
        out->memory = (struct moe_plan_memory){
            .total = g->total,
            .dense = g->dense,
            .kv = g->kv,
            .work = g->work,
            .experts = g->experts,
            .floor = g->floor,
        };
    }
    out->memory.token = b->token;
    out->memory.all = b->all;
    out->memory.context = split->session.context;
    out->memory.batch = b->batch;
}

static int fit_pack(void *ctx, const struct moe_strategy *wanted, const struct moe_fit_room *room,
                    struct moe_fitted *out, struct moe_err *err)
{
    struct moe_pack_fit *f = ctx;
    struct moe_engine_options o = f->options;
    struct moe_split split;
    const uint64_t bytes = room ? room->bytes : 0;
    uint64_t floor = 0, host_floor = 0;
    if (room && room->batch) {
        const struct moe_fit_room own = {.bytes = bytes, .staging = room->staging};
        int status = fit_pack(ctx, wanted, &own, out, err);
        if (status != MOE_OK)
            return status;
        floor = out->memory.floor;
        host_floor = out->host.floor;
        o.session.batch = room->batch;
    }
    if (room && room->staging)
        o.staging = room->staging;
    if (bytes && o.device.cuda)
        o.gpu_memory_bytes = bytes;
    else if (bytes && o.memory_bytes)
        o.memory_bytes = bytes;
    else if (bytes)
        o.expert_memory_bytes = bytes;
    o.strategy = *wanted;
    *out = (struct moe_fitted){.strategy = *wanted, .named = o.expert_memory_bytes};
    int status = moe_engine_split(&split, f->model, described_gpu(&o), &o, err);
    if (status != MOE_OK)
        return status;
    out->strategy = split.resolved.strategy;
    out->high = split.cache.high;
    out->low = split.cache.low;
    out->pools = split.pools.pools;
    out->staging = split.cache.n_staging;
    set_memories(out, &o, &split);
    const struct moe_budget *b = &split.budget;
    bool has_room =
        b->floor <= b->total && (!o.expert_memory_bytes || o.expert_memory_bytes >= b->all);
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
