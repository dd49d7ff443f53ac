#include "run/engine_split.h"

#include <inttypes.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "run/ahead.h"
#include "run/engine_strategy.h"
#include "run/expert_pools.h"
#include "sched/fitting.h"

enum {
    PROGRAM_MARGIN = 3 << 20, /* what malloc, the line editor and the like add to the RSS we see */
    THREAD_BYTES = 256 << 10, /* of a thread's stack and heap that are touched */
    LOGITS_ROWS = 4,          /* logits, sampler's candidates: rows of the vocabulary */
    MEASURE_BYTES = 5 << 20,  /* logits of a perplexity run */
    DEFAULT_BATCH = 256,
    SMALL_BATCH = 16,
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

static uint64_t work_bytes(const struct moe_config *c, const struct moe_session_options *so)
{
    return moe_session_bytes(c, so) - moe_session_kv_bytes(c, so);
}

bool moe_engine_needs_ahead(const struct moe_strategy *s)
{
    return s->predict != MOE_PREDICT_BY_NOTHING || s->needs_host;
}

/* Everything but the experts; returns the sum. */
static uint64_t size_fixed_part(const struct moe_engine *e, const struct moe_engine_options *o,
                                const struct moe_session_options *so, uint64_t program,
                                struct moe_budget *b)
{
    const struct moe_model *m = e->model;
    uint64_t row = moe_logits_stride(&m->config) * sizeof(float);
    b->dense = moe_model_load_bytes(m, so->context);
    b->kv = moe_session_kv_bytes(&m->config, so);
    b->program = program + PROGRAM_MARGIN + MEASURE_BYTES + LOGITS_ROWS * row +
                 (uint64_t)moe_par_threads() * THREAD_BYTES;
    b->batch = so->batch;
    b->work = work_bytes(&m->config, so) + (o->beside ? o->beside(o->beside_ctx, m, so->batch) : 0);
    if (moe_engine_needs_ahead(&e->strategy))
        b->work += moe_ahead_bytes(m, so->batch, &e->strategy);
    return b->program + b->dense + b->kv + b->work;
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

static int refuse(const struct moe_engine *e, const struct moe_budget *b, struct moe_err *err)
{
    char have[32], need[32];
    return moe_fail(err, MOE_ERR_LIMIT,
                    "%s: a budget of %s is too small: the smallest that works is %s (--memory "
                    "%" PRIu64 "M; a shorter context -c needs less)",
                    moe_pack_path(e->model->pack), moe_format_bytes(b->total, have),
                    moe_format_bytes(b->floor, need),
                    (b->floor + FLOOR_SLACK + (1 << 20) - 1) >> 20);
}

/* Whether all experts, at their best, have room beside everything else. */
static bool wants_resident(const struct moe_engine_options *o, const struct moe_budget *b,
                           uint64_t fixed)
{
    return (!o->expert_memory_bytes || o->expert_memory_bytes >= b->all) &&
           fixed + b->all <= b->total;
}

/* ---- A plan ------------------------------------------------------------------------------------
 */

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
    wanted->strategy.cache_bits = 0; /* decided */
    if (!wanted->memory_bytes)
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

/* ---- Deciding ----------------------------------------------------------------------------------
 */

/* Sizes the slots, by the plan or by what is left of the budget. */
static int size_experts(struct moe_engine *e, const struct moe_engine_options *o, uint64_t fixed,
                        struct moe_cache_options *cache, struct moe_err *err)
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
                   b->total > fixed ? b->total - fixed : 0, cache);
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
    b->experts = pools.pools.bytes + moe_loader_bytes(&pools.loader);
    b->n_slots = pools.pools.n_slots;
    b->below_token = pools.pools.bytes < b->token;
    if ((o->plan || o->expert_memory_bytes) && fixed + b->experts > b->floor)
        b->floor = fixed + b->experts;
    return MOE_OK;
}

int moe_engine_split(struct moe_engine *e, const struct moe_engine_options *o,
                     struct moe_session_options *so, struct moe_cache_options *cache,
                     struct moe_err *err)
{
    const struct moe_model *m = e->model;
    struct moe_budget *b = &e->budget;
    struct moe_engine_options wanted = *o;
    uint64_t available = moe_available_bytes();
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
    b->total = o->memory_bytes;
    e->memory_named = o->memory_bytes > 0;
    if (b->total == 0)
        b->total = available == UINT64_MAX ? UINT64_MAX
                                           : available / 100 * FREE_SHARE_PERCENT + moe_rss_bytes();
    bool automatic = o->strategy.name == NULL;
    if (automatic)
        moe_strategy_row(DEFAULT_ROW, &wanted.strategy);
    if (b->all == 0) /* a model without experts has nothing to cache */
        moe_strategy_row("resident", &wanted.strategy);
    struct moe_session_options least_batch = *so;
    least_batch.batch = so->batch ? so->batch : SMALL_BATCH;
    bool fits = wants_resident(o, b, size_fixed_part(e, o, &least_batch, program, b));
    status = moe_engine_resolve(e, &wanted, fits, &high, &low, err);
    if (status != MOE_OK)
        return status;
    *cache = cache_options(e, o);
    cache->high = high;
    cache->low = low;
    uint64_t least = m->config.n_experts ? moe_cache_bytes(m->pack, cache) : 0;
    uint64_t fixed;
    bool choose = so->batch == 0; /* a smaller one where buffers would take much of the budget */
    so->batch = choose ? DEFAULT_BATCH : so->batch;
    for (;; so->batch /= 2) {
        fixed = size_fixed_part(e, o, so, program, b);
        b->floor = fixed + (least < b->all ? least : b->all);
        if (!choose || so->batch <= SMALL_BATCH ||
            (b->work <= b->total / 8 && b->floor <= b->total))
            break;
    }
    if (automatic && wants_resident(o, b, fixed))
        moe_strategy_row("resident", &e->strategy);
    if (e->strategy.resident) {
        b->experts = b->all;
        if (fixed + b->all > b->total)
            b->floor = fixed + b->all;
    } else {
        status = size_experts(e, o, fixed, cache, err);
        if (status != MOE_OK)
            return status;
    }
    if (!o->program_bytes &&
        moe_peak_rss_bytes() > b->floor) /* what was read before us, statistics say */
        b->floor = moe_peak_rss_bytes();
    return b->floor > b->total ? refuse(e, b, err) : MOE_OK;
}
