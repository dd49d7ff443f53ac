#include "engine/engine_split.h"

#include <inttypes.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "engine/engine_strategy.h"
#include "experts/expert_pools.h"
#include "gpu.h"
#include "plan/fitting.h"
#include "run/host_routers.h"
#include "run/layer_predictor.h"
#include "run/pass_strategy.h"

enum {
    PROGRAM_MARGIN = 3 << 20, /* what malloc, the line editor and the like add to the RSS we see */
    THREAD_BYTES = 256 << 10, /* of a thread's stack and heap that are touched */
    LOGITS_ROWS = 4,          /* logits, sampler's candidates: rows of the vocabulary */
    MEASURE_BYTES = 5 << 20,  /* logits of a perplexity run */
    DEFAULT_BATCH = 256,
    GPU_BATCH = 512, /* an expert that was brought serves more rows */
    SMALL_BATCH = 16,
    MAX_HOST_THREADS = 16,   /* a few experts of a layer are missing at a time */
    FLOOR_SLACK = 1 << 20,   /* the program's own size varies a little from run to run */
    FREE_SHARE_PERCENT = 90, /* of what is free, when no budget is named */
};

/* Where not everything fits and nothing is named: the exact row that measures best (README). */
#define DEFAULT_ROW "prefetch"

/* All experts there are, at the best variant, and those that one token visits, in the mean. */
static int count_experts(const struct moe_model *m, struct moe_budget *b, struct moe_err *err)
{
    struct moe_inventory i;
    if (m->config.n_experts == 0)
        return MOE_OK;
    int status = moe_inventory_of_pack(&i, m->pack, m->config.top_k, err);
    if (status == MOE_OK) {
        b->all = moe_inventory_all_bytes(&i, 0);
        b->token = (uint64_t)i.n_layers * i.top_k * moe_inventory_mean_bytes(&i, 0);
    }
    moe_inventory_release(&i);
    return status;
}

bool moe_engine_needs_ahead(const struct moe_strategy *s)
{
    return s->predict != MOE_PREDICT_BY_NOTHING || s->needs_host;
}

uint32_t moe_engine_host_threads(const struct moe_engine *e)
{
    int spare = moe_cores_available() - 1;
    if (!e->gpu) /* the test device's host is one core */
        return 1;
    return spare < 1 ? 1 : spare > MAX_HOST_THREADS ? MAX_HOST_THREADS : (uint32_t)spare;
}

/* What is on the GPU beside the experts. */
static void size_gpu_part(const struct moe_engine *e, const struct moe_session_options *so,
                          struct moe_gpu_budget *b)
{
    const struct moe_config *c = &e->model->config;
    b->dense = e->model->weights_bytes;
    b->kv = moe_session_kv_bytes(c, so);
    b->work = MOE_GPU_OWN_BYTES + moe_session_gpu_bytes(c, so) - b->kv;
}

/* Everything but the experts. Returns the sum where the experts' slots are: of the GPU, or of the
 * host; *host: of the host. */
static uint64_t size_fixed_part(const struct moe_engine *e, const struct moe_engine_options *o,
                                const struct moe_session_options *so, uint64_t program,
                                struct moe_budget *b, uint64_t *host)
{
    const struct moe_model *m = e->model;
    uint64_t row = moe_logits_stride(&m->config) * sizeof(float);
    b->dense =
        e->gpu ? moe_model_gpu_host_bytes(m, so->context) : moe_model_load_bytes(m, so->context);
    if (so->look_depth > 0)
        b->dense += moe_host_routers_bytes(m);
    b->kv = e->gpu ? 0 : moe_session_kv_bytes(&m->config, so);
    b->program = program + PROGRAM_MARGIN + MEASURE_BYTES + LOGITS_ROWS * row +
                 (uint64_t)moe_par_threads() * THREAD_BYTES;
    b->batch = so->batch;
    b->work = moe_session_bytes(&m->config, so) - b->kv +
              (o->beside ? o->beside(o->beside_ctx, m, so->batch) : 0);
    if (moe_engine_needs_ahead(&e->strategy))
        b->work += moe_pass_strategy_bytes(m, so->batch, &e->strategy, moe_engine_host_threads(e));
    *host = b->program + b->dense + b->kv + b->work;
    if (!e->gpu)
        return *host;
    size_gpu_part(e, so, &b->gpu);
    return b->gpu.dense + b->gpu.kv + b->gpu.work;
}

/* The cache's options, its size still open. */
static struct moe_cache_options cache_options(const struct moe_engine *e,
                                              const struct moe_engine_options *o)
{
    return (struct moe_cache_options){
        .strategy = &e->strategy,
        .statistics = o->statistics,
        .n_working = e->model->config.top_k,
        .seed = o->seed,
        .gpu = e->gpu,
        .loader =
            {
                .verify = !o->no_checksums,
                .rate = o->device.test ? o->device.link_rate : o->link_rate,
                .lockstep = o->lockstep,
                .queue_depth = o->queue_depth,
                /* One load at a time, so that it can stop when the router speaks. */
                .prefetch_depth = e->strategy.prefetch.until_router ? 1 : 0,
                .piece_bytes = o->piece_bytes,
                .copy = o->pack_copy,
                .copy_bytes = o->pack_copy_bytes,
            },
    };
}

/* Slots: as many as the budget leaves, or as the user (or the strategy) named; those for prefetched
 * experts are taken from them. At least top_k work without a cache. */
static void size_cache(const struct moe_engine *e, const struct moe_engine_options *o,
                       uint64_t slot_bytes, uint64_t available, struct moe_cache_options *cache)
{
    const struct moe_strategy *s = &e->strategy;
    const struct moe_pack *pack = e->model->pack;
    uint64_t named = o->expert_memory_bytes;
    if (!named && s->buffer && !e->memory_named)
        named = s->buffer * slot_bytes;
    const struct moe_slots slots = moe_slots_of(s, named ? named : available, named > 0, slot_bytes,
                                                e->model->config.top_k, o->staging);
    cache->n_working = slots.working;
    cache->n_staging = slots.staging;
    cache->cache_bytes = slots.cache_bytes;
    if (named)
        return;
    /* The loader's tables grow with the slots: near the floor they may leave less to prefetch. */
    while (cache->n_staging > 0 && moe_cache_bytes(pack, cache) > available) {
        cache->n_staging--;
        cache->n_working--;
    }
    if (!s->cache)
        return;
    uint64_t rest = moe_cache_bytes(pack, cache);
    cache->cache_bytes = available > rest ? available - rest : 0;
    while (cache->cache_bytes && (rest = moe_cache_bytes(pack, cache)) > available)
        cache->cache_bytes -= cache->cache_bytes < slot_bytes ? cache->cache_bytes : slot_bytes;
}

static int refuse(const struct moe_engine *e, bool on_gpu, struct moe_err *err)
{
    const struct moe_budget *b = &e->budget;
    uint64_t total = on_gpu ? b->gpu.total : b->total, floor = on_gpu ? b->gpu.floor : b->floor;
    char have[32], need[32];
    return moe_fail(err, MOE_ERR_LIMIT,
                    "%s: a budget of %s%s is too small: the smallest that works is %s (--%s "
                    "%" PRIu64 "M; a shorter context -c needs less)",
                    moe_pack_path(e->model->pack), moe_format_bytes(total, have),
                    on_gpu ? " on the GPU" : "", moe_format_bytes(floor, need),
                    on_gpu ? "gpu-memory" : "memory", (floor + FLOOR_SLACK + (1 << 20) - 1) >> 20);
}

/* The budget of the memory in which experts are computed with. */
static uint64_t *slots_total(struct moe_engine *e)
{
    return e->gpu ? &e->budget.gpu.total : &e->budget.total;
}
static uint64_t *slots_floor(struct moe_engine *e)
{
    return e->gpu ? &e->budget.gpu.floor : &e->budget.floor;
}

/* Whether all experts, at their best, have room there beside everything else. */
static bool wants_resident(struct moe_engine *e, const struct moe_engine_options *o, uint64_t fixed)
{
    uint64_t all = e->budget.all;
    return (!o->expert_memory_bytes || o->expert_memory_bytes >= all) &&
           fixed + all <= *slots_total(e);
}

/* ---- A plan ---- */

static int check_plan(const struct moe_engine *e, const struct moe_plan *plan, struct moe_err *err)
{
    const struct moe_pack *pack = e->model->pack;
    if (plan->pack_fingerprint != moe_pack_fingerprint(pack))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "the plan was made for another pack%s%s, not for %s (moe-plan makes one)",
                        plan->pack[0] ? ", " : "", plan->pack, moe_pack_path(pack));
    return MOE_OK;
}

/* What a plan says of the session and the budget. */
static void follow_plan(const struct moe_plan *plan, const struct moe_engine_options *o,
                        struct moe_engine_options *wanted, struct moe_session_options *so)
{
    wanted->strategy = plan->strategy;
    wanted->strategy.cache_bits = 0;                   /* decided */
    if (!wanted->memory_bytes && !wanted->device.cuda) /* with a GPU there are two of them */
        wanted->memory_bytes = plan->memory.total;
    wanted->expert_memory_bytes = 0;
    if (!o->session.context)
        so->context = plan->memory.context;
    if (!so->batch)
        so->batch = plan->memory.batch;
}

/* The plan's precisions and slots. */
static int take_slots(struct moe_engine *e, const struct moe_plan *plan,
                      const struct moe_inventory *inventory, struct moe_cache_options *cache,
                      struct moe_err *err)
{
    struct moe_pools *pools = &e->planned;
    cache->high = moe_inventory_variant(inventory, plan->high);
    cache->low = plan->low[0] ? moe_inventory_variant(inventory, plan->low) : cache->high;
    *pools = (struct moe_pools){.n_classes = plan->n_pools};
    bool agrees = plan->n_pools == inventory->n_classes && cache->high < inventory->n_variants &&
                  cache->low < inventory->n_variants && plan->n_layers == inventory->n_layers &&
                  plan->n_experts == inventory->n_experts && plan->top_k == inventory->top_k;
    for (uint32_t c = 0; agrees && c < plan->n_pools; c++) {
        const struct moe_plan_pool *p = &plan->pools[c];
        agrees = p->slot_bytes == inventory->classes[c].slot_bytes;
        pools->pools[c] = (struct moe_pool_params){p->n_cache, p->n_working, p->per_layer};
        pools->n_slots += p->n_cache + p->n_working;
        pools->bytes += (uint64_t)(p->n_cache + p->n_working) * p->slot_bytes;
    }
    if (!agrees)
        return moe_fail(err, MOE_ERR_FORMAT, "the plan's slots are not those of %s",
                        moe_pack_path(e->model->pack));
    cache->pools = pools;
    cache->contents = plan->contents;
    cache->n_contents = plan->n_contents;
    cache->layer_seconds = plan->layer_seconds;
    cache->load_seconds = plan->load_seconds;
    return MOE_OK;
}

/* ---- Deciding ---- */

/* What the host keeps behind the slots of a GPU: all experts, or what its budget leaves. */
static void size_tier(struct moe_engine *e, uint64_t host, struct moe_cache_options *cache)
{
    struct moe_budget *b = &e->budget;
    uint64_t least, all, left = b->total > host ? b->total - host : 0;
    moe_cache_host_bytes(e->model->pack, cache, &least, &all);
    cache->host_bytes = left < least ? least : left > all ? all : left;
    b->floor = host + least;
}

/* Sizes the slots, by the plan or by what is left of the budget. fixed: what else is where they
 * are; host: what else is on the host. */
static int size_experts(struct moe_engine *e, const struct moe_engine_options *o, uint64_t fixed,
                        uint64_t host, struct moe_cache_options *cache, struct moe_err *err)
{
    struct moe_budget *b = &e->budget;
    const struct moe_pack *pack = e->model->pack;
    struct moe_expert_pools pools;
    struct moe_inventory inventory;
    int status = moe_inventory_of_pack(&inventory, pack, e->model->config.top_k, err);
    if (status == MOE_OK && o->plan)
        status = take_slots(e, o->plan, &inventory, cache, err);
    else if (status == MOE_OK)
        size_cache(e, o, moe_inventory_slot_bytes(&inventory, cache->high),
                   *slots_total(e) > fixed ? *slots_total(e) - fixed : 0, cache);
    if (status == MOE_OK && e->gpu)
        size_tier(e, host, cache);
    if (status == MOE_OK)
        moe_expert_pools_size(&pools, pack, &inventory, cache);
    moe_inventory_release(&inventory);
    if (status != MOE_OK)
        return status;
    if (o->device.test && pools.loader.compressed_bytes)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: compressed experts cannot be computed where they lie: --device "
                        "test wants a pack without zstd (moe-quantize PACK makes one)",
                        moe_pack_path(pack));
    uint64_t loaders = moe_expert_pools_loader_bytes(&pools);
    uint64_t slots = pools.pools.bytes + (e->gpu ? 0 : loaders);
    b->experts = e->gpu ? pools.host_bytes + loaders : slots;
    b->gpu.experts = e->gpu ? slots : 0;
    b->n_slots = pools.pools.n_slots;
    b->below_token = pools.pools.bytes < b->token;
    if ((o->plan || o->expert_memory_bytes) && fixed + slots > *slots_floor(e))
        *slots_floor(e) = fixed + slots;
    return MOE_OK;
}

/* The budgets: what was named, else most of what is free. */
static void set_totals(struct moe_engine *e, const struct moe_engine_options *o)
{
    struct moe_budget *b = &e->budget;
    uint64_t available = moe_available_bytes();
    b->total = o->memory_bytes;
    e->memory_named = o->memory_bytes > 0;
    if (b->total == 0)
        b->total = available == UINT64_MAX ? UINT64_MAX
                                           : available / 100 * FREE_SHARE_PERCENT + moe_rss_bytes();
    if (e->gpu)
        b->gpu.total = o->gpu_memory_bytes
                           ? o->gpu_memory_bytes
                           : moe_gpu_info(e->gpu)->memory_free_bytes / 100 * FREE_SHARE_PERCENT;
}

/* What a session on a GPU has to know of the strategy. */
static void follow_strategy(const struct moe_engine *e, struct moe_session_options *so)
{
    if (!e->gpu)
        return;
    so->needs_rows = e->strategy.needs_host;
    so->look_depth = moe_layer_predictor_looks(e->model, &e->strategy, &so->look_residual);
}

/* Rows of a pass: as named, else as many as make buffers of an eighth of the budget at most. Fills
 * the fixed parts and the floor; returns the part where the slots are, *host that of the host. */
static uint64_t choose_batch(struct moe_engine *e, const struct moe_engine_options *o,
                             struct moe_session_options *so, uint64_t program, uint64_t least,
                             uint64_t *host)
{
    struct moe_budget *b = &e->budget;
    bool choose = so->batch == 0;
    so->batch = choose ? (e->gpu ? GPU_BATCH : DEFAULT_BATCH) : so->batch;
    for (;; so->batch /= 2) {
        uint64_t fixed = size_fixed_part(e, o, so, program, b, host);
        uint64_t work = e->gpu ? b->gpu.work : b->work, total = *slots_total(e);
        *slots_floor(e) = fixed + (least < b->all ? least : b->all);
        if (!choose || so->batch <= SMALL_BATCH || (work <= total / 8 && *slots_floor(e) <= total))
            return fixed;
    }
}

int moe_engine_split(struct moe_engine *e, const struct moe_engine_options *o,
                     struct moe_session_options *so, struct moe_cache_options *cache,
                     struct moe_err *err)
{
    const struct moe_model *m = e->model;
    struct moe_budget *b = &e->budget;
    struct moe_engine_options wanted = *o;
    uint64_t program = o->program_bytes ? o->program_bytes : moe_rss_bytes();
    uint32_t high, low;
    int status = o->plan ? check_plan(e, o->plan, err) : MOE_OK;
    if (status == MOE_OK)
        status = count_experts(m, b, err);
    if (status != MOE_OK)
        return status;
    if (o->plan)
        follow_plan(o->plan, o, &wanted, so);
    o = &wanted;
    set_totals(e, o);
    bool automatic = o->strategy.name == NULL;
    if (automatic)
        moe_strategy_find(DEFAULT_ROW, &wanted.strategy);
    if (b->all == 0) /* a model without experts has nothing to cache */
        moe_strategy_find("resident", &wanted.strategy);
    so->gpu = e->gpu;
    so->gpu_bf16 = e->gpu && o->bf16_prompts;
    struct moe_session_options least_batch = *so;
    least_batch.batch = so->batch ? so->batch : SMALL_BATCH;
    uint64_t host, fixed = size_fixed_part(e, o, &least_batch, program, b, &host);
    status = moe_engine_resolve(e, &wanted, wants_resident(e, o, fixed), &high, &low, err);
    if (status != MOE_OK)
        return status;
    follow_strategy(e, so);
    *cache = cache_options(e, o);
    cache->high = high;
    cache->low = low;
    uint64_t least = m->config.n_experts ? moe_cache_bytes(m->pack, cache) : 0;
    fixed = choose_batch(e, o, so, program, least, &host);
    if (automatic && wants_resident(e, o, fixed)) {
        moe_strategy_find("resident", &e->strategy);
        follow_strategy(e, so);
    }
    if (e->strategy.resident) {
        b->experts = e->gpu ? moe_experts_resident_host_bytes(m->pack) : b->all;
        b->gpu.experts = e->gpu ? b->all : 0;
        if (e->gpu)
            b->floor = host + b->experts;
        if (fixed + b->all > *slots_total(e))
            *slots_floor(e) = fixed + b->all;
    } else {
        status = size_experts(e, o, fixed, host, cache, err);
        if (status != MOE_OK)
            return status;
    }
    if (!o->program_bytes &&
        moe_peak_rss_bytes() > b->floor) /* what was read before us, statistics say */
        b->floor = moe_peak_rss_bytes();
    if (b->gpu.floor > b->gpu.total)
        return refuse(e, true, err);
    return b->floor > b->total ? refuse(e, false, err) : MOE_OK;
}
