#include "run/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "run/ahead.h"
#include "run/engine_strategy.h"
#include "run/expert_pools.h"

enum {
    PROGRAM_MARGIN = 3 << 20, /* what malloc, the line editor and the like add to the RSS we see */
    THREAD_BYTES = 256 << 10, /* of a thread's stack and heap that are touched */
    LOGITS_ROWS = 4,          /* logits, sampler's candidates: rows of the vocabulary */
    MEASURE_BYTES = 5 << 20,  /* logits of a perplexity run */
    DEFAULT_BATCH = 256,
    SMALL_BATCH = 16,
    FLOOR_SLACK = 1 << 20,   /* the program's own size varies a little from run to run */
    FREE_SHARE_PERCENT = 90, /* of what is free, when no budget is named */
    WORKING_SLOTS = 2,       /* beside a cache that holds a layer's experts */
};

/* Where not everything fits and nothing is named: the exact row that measures best (README). */
#define DEFAULT_ROW "prefetch"

/* ---- The split ---------------------------------------------------------------------------------
 */

/* Experts that one token visits, and all there are, at the best variant. */
static void count_experts(const struct moe_model *m, uint64_t slot_bytes, struct moe_budget *b)
{
    uint64_t n_moe = moe_config_moe_layers(&m->config, m->config.n_layers);
    b->token = n_moe * m->config.top_k * slot_bytes;
    b->all = n_moe * m->config.n_experts * slot_bytes;
}

static uint64_t work_bytes(const struct moe_config *c, const struct moe_session_options *so)
{
    return moe_session_bytes(c, so) - moe_session_kv_bytes(c, so);
}

/* Whether anything is done ahead of the router or beside the device. */
static bool needs_ahead(const struct moe_strategy *s)
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
    if (needs_ahead(&e->strategy))
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
    uint32_t top_k = e->model->config.top_k, staging = 0;
    uint64_t named = o->expert_memory_bytes;
    if (!named && s->buffer && !e->memory_named)
        named = s->buffer * slot_bytes;
    uint64_t n = (named ? named : available) / slot_bytes;
    if (moe_strategy_has(s, MOE_PART_PREFETCH))
        staging = o->staging ? o->staging : top_k;
    if (staging > n / 2)
        staging = (uint32_t)(n / 2);
    if (!named && s->cache && n >= (uint64_t)top_k + WORKING_SLOTS)
        cache->n_working = WORKING_SLOTS;
    cache->n_working += staging;
    if (!s->cache)
        return;
    if (named) {
        cache->cache_bytes = named - staging * slot_bytes;
        return;
    }
    uint64_t rest = moe_cache_bytes(pack, cache);
    cache->cache_bytes = available > rest ? available - rest : 0;
    /* The loader's tables grow with the slots. */
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

/* Decides strategy and sizes. */
static int plan(struct moe_engine *e, const struct moe_engine_options *o,
                struct moe_session_options *so, struct moe_cache_options *cache,
                struct moe_err *err)
{
    const struct moe_model *m = e->model;
    struct moe_budget *b = &e->budget;
    struct moe_engine_options wanted = *o;
    uint64_t best_bytes = moe_cache_slot_bytes(m->pack, 0), available = moe_available_bytes();
    uint32_t high, low;
    b->total = o->memory_bytes;
    e->memory_named = o->memory_bytes > 0;
    if (b->total == 0)
        b->total = available == UINT64_MAX ? UINT64_MAX
                                           : available / 100 * FREE_SHARE_PERCENT + moe_rss_bytes();
    count_experts(m, best_bytes, b);
    bool automatic = o->strategy.name == NULL;
    if (automatic)
        moe_strategy_row(DEFAULT_ROW, &wanted.strategy);
    if (b->all == 0) /* a model without experts has nothing to cache */
        moe_strategy_row("resident", &wanted.strategy);
    struct moe_session_options least_batch = *so;
    least_batch.batch = so->batch ? so->batch : SMALL_BATCH;
    bool fits = wants_resident(o, b, size_fixed_part(e, o, &least_batch, moe_rss_bytes(), b));
    int status = moe_engine_resolve(e, &wanted, fits, &high, &low, err);
    if (status != MOE_OK)
        return status;
    *cache = cache_options(e, o);
    cache->high = high;
    cache->low = low;
    uint64_t slot_bytes = moe_cache_slot_bytes(m->pack, high);
    uint64_t least = m->config.n_experts ? moe_cache_bytes(m->pack, cache) : 0;
    uint64_t program = moe_rss_bytes(), fixed;
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
        struct moe_expert_pools pools;
        size_cache(e, o, slot_bytes, b->total > fixed ? b->total - fixed : 0, cache);
        status = moe_expert_pools_size(&pools, m->pack, cache, err);
        if (status != MOE_OK)
            return status;
        if (o->device.test && pools.loader.compressed_bytes)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: compressed experts cannot be computed where they lie: --device "
                            "test wants a pack without zstd (moe-quantize PACK makes one)",
                            moe_pack_path(m->pack));
        b->experts = moe_cache_bytes(m->pack, cache);
        b->n_slots = pools.n_slots;
        b->below_token = pools.bytes < b->token;
        if (o->expert_memory_bytes && fixed + b->experts > b->floor)
            b->floor = fixed + b->experts;
    }
    if (moe_peak_rss_bytes() > b->floor) /* what was read before us, statistics say */
        b->floor = moe_peak_rss_bytes();
    return b->floor > b->total ? refuse(e, b, err) : MOE_OK;
}

/* ---- Opening -----------------------------------------------------------------------------------
 */

static int copy_pack(struct moe_engine *e, struct moe_err *err)
{
    uint64_t n = moe_pack_file_bytes(e->model->pack);
    e->copy = moe_pages_alloc(n, err);
    if (!e->copy)
        return MOE_ERR_MEMORY;
    e->copy_bytes = n;
    return moe_file_pread(moe_pack_fd(e->model->pack), moe_pack_path(e->model->pack), e->copy, n, 0,
                          err);
}

static int open_parts(struct moe_engine *e, const struct moe_engine_options *o,
                      const struct moe_progress *progress, struct moe_err *err)
{
    struct moe_session_options so = o->session;
    struct moe_cache_options cache;
    uint32_t most = e->model->config.context_max;
    if (so.context > most)
        return moe_fail(err, MOE_ERR_USAGE, "a context of %u: %s has %u positions", so.context,
                        moe_pack_path(e->model->pack), most);
    if (so.context == 0)
        so.context = o->context_cap && o->context_cap < most ? o->context_cap : most;
    e->test_device = o->device.test;
    if (o->device.test) /* one core for the device, one for the host */
        moe_par_set_threads(1);
    int status = plan(e, o, &so, &cache, err);
    if (status == MOE_OK && (o->pack_in_ram || o->device.test) && !o->pack_copy &&
        !e->strategy.resident) {
        status = copy_pack(e, err);
        cache.loader.copy = e->copy;
        cache.loader.copy_bytes = e->copy_bytes;
    }
    if (status == MOE_OK)
        status = moe_model_load(e->model, so.context, progress, err);
    if (status != MOE_OK)
        return status;
    if (e->strategy.resident)
        status = moe_experts_open_resident(&e->experts, e->model->pack, 0, progress, err);
    else
        status = moe_experts_open_cached(&e->experts, e->model->pack, e->model->config.top_k,
                                         &cache, progress, err);
    if (status == MOE_OK)
        status = moe_session_open(&e->session, e->model, e->experts, &so, err);
    if (status != MOE_OK)
        return status;
    e->session->timeline = e->experts->timeline = o->timeline;
    if (needs_ahead(&e->strategy))
        status = moe_ahead_open(&e->ahead, e->session, &e->strategy, o->statistics,
                                o->device.test ? o->device.speed : 0, err);
    e->session->ahead = e->ahead;
    return status;
}

int moe_engine_open(struct moe_engine **out, const char *path, const struct moe_engine_options *o,
                    const struct moe_progress *progress, struct moe_err *err)
{
    *out = NULL;
    struct moe_engine *e = moe_alloc(1, sizeof *e, err);
    if (!e)
        return MOE_ERR_MEMORY;
    int status = moe_model_open_directory(&e->model, path, err);
    if (status == MOE_OK)
        status = open_parts(e, o, progress, err);
    if (status != MOE_OK) {
        moe_engine_close(e);
        return status;
    }
    *out = e;
    return MOE_OK;
}

void moe_engine_close(struct moe_engine *e)
{
    if (!e)
        return;
    moe_ahead_close(e->ahead);
    moe_session_close(e->session);
    moe_experts_close(e->experts);
    moe_model_close(e->model);
    moe_pages_free(e->copy, e->copy_bytes);
    free(e);
}

void moe_engine_finish_stats(const struct moe_engine *e, struct moe_stats *stats)
{
    char part[MOE_PART_TEXT_BYTES];
    const struct moe_strategy *s = &e->strategy;
    struct moe_buf parts = {0};
    moe_strategy_describe(s, &parts);
    snprintf(stats->strategy, sizeof stats->strategy, "%s", s->name);
    snprintf(stats->parts, sizeof stats->parts, "%s", parts.failed ? "" : (char *)parts.data);
    moe_buf_release(&parts);
    snprintf(stats->cache, sizeof stats->cache, "%s", s->cache ? s->cache->name : "none");
    moe_strategy_part_text(s, MOE_PART_ALLOC, part);
    snprintf(stats->alloc, sizeof stats->alloc, "%.31s", s->cache ? part : "none");
    snprintf(stats->device, sizeof stats->device, "%s", e->test_device ? "test" : "cpu");
    stats->resident_expert_bytes_max = e->experts->resident_bytes_max;
    stats->memory_budget_bytes = e->memory_named ? e->budget.total : 0;
    stats->peak_rss_bytes = moe_peak_rss_bytes();
}

/* ---- For people --------------------------------------------------------------------------------
 */

void moe_budget_write_text(const struct moe_budget *b, struct moe_buf *out)
{
    char x[6][32];
    if (b->total == UINT64_MAX)
        moe_buf_text(out, "memory   no limit known:");
    else
        moe_buf_printf(out, "memory   %s in all:", moe_format_bytes(b->total, x[0]));
    moe_buf_printf(out, " program %s, dense weights %s, KV cache %s, buffers %s, experts %s\n",
                   moe_format_bytes(b->program, x[1]), moe_format_bytes(b->dense, x[2]),
                   moe_format_bytes(b->kv, x[3]), moe_format_bytes(b->work, x[4]),
                   moe_format_bytes(b->experts, x[5]));
    moe_buf_printf(
        out, "         one token visits %s of experts, all are %s; the least that works: %s\n",
        moe_format_bytes(b->token, x[0]), moe_format_bytes(b->all, x[1]),
        moe_format_bytes(b->floor, x[2]));
}
