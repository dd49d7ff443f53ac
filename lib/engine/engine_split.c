/* The split of a budget: from its inputs, step by step, to slots of experts. */
#include "engine/engine_split.h"

#include <inttypes.h>

#include "base/mem.h"
#include "base/text.h"
#include "engine/engine_size.h"
#include "engine/engine_strategy.h"
#include "gpu.h"
#include "layer/layer_predictor.h"
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
        moe_inventory_set_encoder(i, m->config.n_encoder);
        moe_inventory_set_static(i, m->config.layer_is_static);
        i->routes_early = m->config.router_early;
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
        .n_encoder = in->model->config.n_encoder,
        .layer_is_static = in->model->config.layer_is_static,
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
