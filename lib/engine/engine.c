/* A model opened within a budget. */
#include "engine/engine.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/energy.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "cache/learnt.h"
#include "engine/engine_ranks.h"
#include "engine/engine_strategy.h"
#include "engine/memory.h"
#include "gpu_ops.h"
#include "grammar/constraint.h"
#include "infer/pass_ops.h"
#include "infer/rank_worker.h"
#include "infer/stages.h"
#include "ranks/ranks.h"

/* ---- Opening ---- */

static int copy_pack(struct moe_engine *e, struct moe_err *err)
{
    uint64_t n = moe_pack_file_bytes(e->model->pack);
    e->copy = moe_pages_alloc(n, err);
    if (!e->copy)
        return MOE_ERR_MEMORY;
    e->copy_bytes = n;
    return moe_pack_read_all(e->model->pack, e->copy, err);
}

static int open_gpu(struct moe_engine *e, const struct moe_engine_options *o, struct moe_err *err)
{
    int status = moe_gpu_open(&e->gpu, o->device.index, err);
    /* Refused before the weights are read; and what cuBLAS takes of the host's memory counts. */
    return status == MOE_OK && o->bf16_prompts
               ? moe_gpu_set_math(e->gpu, MOE_GPU_MATH_BF16, NULL, 0, err)
               : status;
}

static int describe_strategy(struct moe_engine *e, struct moe_err *err)
{
    struct moe_buf parts = {0};
    moe_strategy_describe(&e->strategy, &parts);
    int status = parts.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
    if (status == MOE_OK && parts.data)
        snprintf(e->parts, sizeof e->parts, "%s", (const char *)parts.data);
    moe_buf_release(&parts);
    return status;
}

static int decide_memory(struct moe_engine *e, struct moe_memory *memory,
                         const struct moe_engine_options *o, struct moe_err *err)
{
    int status = moe_memory_of(memory, e->model, e->gpu, o, err);
    e->strategy = memory->resolved.strategy;
    e->fallback = memory->resolved.fallback;
    e->exactness = memory->exactness;
    e->exact_required = o->exact;
    e->follows = o->follows != NULL;
    e->budget = memory->budget;
    e->memory_named = memory->memory_named;
    if (status == MOE_OK && e->strategy.assumed > 0 && !e->follows)
        return moe_fail(err, MOE_ERR_USAGE,
                        "option --assume-prediction: only a trace knows what comes next "
                        "(--bench --follow TRACE)");
    if (status == MOE_OK && e->gpu)
        moe_gpu_set_budget(e->gpu, memory->budget.gpu.total);
    return status == MOE_OK ? describe_strategy(e, err) : status;
}

/* Precision and slots of the experts, if the model has any. */
static void set_settings(struct moe_engine *e, const struct moe_memory *memory)
{
    const struct moe_pack *pack = e->model->pack;
    const struct moe_resolved *r = &memory->resolved;
    const struct moe_pools *pools = &memory->pools.pools;
    struct moe_run_settings *s = &e->settings;
    if (moe_pack_n_variants(pack) == 0)
        return;
    snprintf(s->precision, sizeof s->precision, "%s", moe_pack_variant_at(pack, r->high)->name);
    if (moe_strategy_takes_low(&r->strategy) && r->low != r->high)
        snprintf(s->low_precision, sizeof s->low_precision, "%s",
                 moe_pack_variant_at(pack, r->low)->name);
    s->mapped = moe_pack_map_taken(pack) != UINT32_MAX;
    if (s->mapped) {
        const struct moe_pack_map map = moe_pack_map_at(pack, moe_pack_map_taken(pack));
        s->map_tolerance = map.tolerance;
        s->map_loss = map.loss;
        s->map_points = map.points;
    }
    for (uint32_t c = 0; c < pools->n_classes; c++) {
        s->cache_slots += pools->pools[c].n_cache;
        s->working_slots += pools->pools[c].n_working;
    }
}

static int open_experts(struct moe_engine *e, struct moe_cache_options *cache,
                        const struct moe_progress *progress, struct moe_err *err)
{
    const struct moe_model *m = e->model;
    if (e->arriving)
        return moe_experts_open_arriving(&e->experts, m->pack, 0, m->passes, err);
    if (e->strategy.resident)
        return moe_experts_open_resident(&e->experts, m->pack, 0, e->gpu, progress, err);
    if (e->copy) {
        cache->loader.copy = e->copy;
        cache->loader.copy_bytes = e->copy_bytes;
    }
    return moe_experts_open_cached(&e->experts, m->pack, m->config.top_k, cache, progress, err);
}

/* How many times slower than the device the host computes an expert; 0: there is no host. */
static double host_slowdown(const struct moe_engine *e, const struct moe_engine_options *o)
{
    return o->device.test ? o->device.speed : e->gpu ? 1 : 0;
}

int moe_engine_open_session(struct moe_engine *e, const struct moe_session_options *options,
                            struct moe_err *err)
{
    struct moe_session_options o = *options;
    o.gpu = e->gpu;
    int status = moe_session_open(&e->session, e->model, e->experts, &o, err);
    if (status != MOE_OK)
        return status;
    e->session->timeline = e->timeline;
    e->session->energy = e->energy;
    if (moe_engine_takes_part(&e->strategy))
        status =
            moe_session_take_strategy(e->session, &e->strategy, e->statistics, e->host_slowdown,
                                      moe_engine_host_threads(e->gpu != NULL), err);
    e->session->pass.pace = e->pace;
    e->session->ranks = e->ranks;
    if (e->ranks && !moe_ranks_owners(e->ranks))
        e->session->pass.holders = moe_ranks_holders(e->ranks);
    if (status != MOE_OK)
        moe_engine_close_session(e);
    return status;
}

void moe_engine_close_session(struct moe_engine *e)
{
    if (e->session && e->experts && e->experts->scheduler)
        moe_scheduler_leave_counts(e->experts->scheduler);
    moe_session_close(e->session);
    e->session = NULL;
    if (e->apart && e->experts) /* its memory is another's now */
        moe_scheduler_set_blocks(e->experts->scheduler, UINT32_MAX, true);
}

/* ---- What the cache has learnt ---- */

/* What learns; NULL: nothing does. */
static struct moe_follower *learner_of(const struct moe_engine *e, struct moe_learnt_origin *of)
{
    const struct moe_usage *u =
        e->experts->scheduler ? moe_scheduler_usage(e->experts->scheduler) : NULL;
    if (!u || !u->follower || !u->follower->learnt)
        return NULL;
    *of = (struct moe_learnt_origin){.source = moe_pack_source_fingerprint(e->model->pack),
                                     .name = moe_pack_path(e->model->pack),
                                     .n_layers = u->n_layers,
                                     .n_experts = u->n_experts,
                                     .top_k = u->top_k};
    return u->follower;
}

static int read_learnt(struct moe_engine *e, const struct moe_engine_options *o,
                       struct moe_err *err)
{
    struct moe_learnt_origin of;
    struct moe_follower *learner = learner_of(e, &of);
    if (!learner && !e->strategy.resident)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: the cache %s learns nothing (--strategy lru+cache=learned does, and "
                        "so does the default)",
                        o->learn, e->strategy.cache ? e->strategy.cache->name : "none");
    e->learn = o->learn;
    if (!learner || !moe_path_exists(o->learn))
        return MOE_OK;
    MOE_TRY(moe_learnt_read(o->learn, &of, learner, err));
    e->learnt_tokens = learner->n_learnt(learner);
    return MOE_OK;
}

int moe_engine_save_learnt(const struct moe_engine *e, struct moe_err *err)
{
    struct moe_learnt_origin of;
    struct moe_follower *learner = e->learn ? learner_of(e, &of) : NULL;
    return learner ? moe_learnt_write(e->learn, &of, learner, err) : MOE_OK;
}

/* What a strategy changes by where experts are would depend on how they were shared out. */
static int check_strategy_of_ranks(const struct moe_engine *e, struct moe_err *err)
{
    return e->exactness.parts == 0
               ? MOE_OK
               : moe_fail(err, MOE_ERR_USAGE,
                          "strategy %s may change results (%s): ranks share experts out only with "
                          "one that does not, as prefetch, lru or resident",
                          e->strategy.name, e->exactness.why);
}

static int open_parts(struct moe_engine *e, const struct moe_engine_options *options,
                      const struct moe_progress *progress, struct moe_err *err)
{
    struct moe_memory memory;
    struct moe_engine_options own = *options;
    const struct moe_engine_options *o = &own;
    uint32_t context = o->session.context, most = e->model->config.context_max;
    if (context > most)
        return moe_fail(err, MOE_ERR_USAGE, "a context of %u: %s has %u positions", context,
                        moe_pack_path(e->model->pack), most);
    e->test_device = o->device.test;
    if (o->device.test) /* one core for the device, one for the host */
        moe_par_set_threads(1);
    if (o->device.cuda)
        MOE_TRY(open_gpu(e, o, err));
    if (!o->shares)
        MOE_TRY(moe_energy_open(&e->energy, MOE_ENERGY_ROOT, err));
    e->ranks = o->ranks;
    if (o->spread && !o->ranks)
        return moe_fail(err, MOE_ERR_USAGE,
                        "--spread is for several ranks: start more than one with mpirun or srun");
    if ((o->share_attention || o->share_layers) && !o->ranks)
        return moe_fail(err, MOE_ERR_USAGE,
                        "--share-%s is for several ranks: start more than one with mpirun or srun",
                        o->share_layers ? "layers" : "attention");
    if (o->ranks)
        MOE_TRY(moe_engine_join_ranks(e->model, &own, err));
    MOE_TRY(decide_memory(e, &memory, o, err));
    if (o->ranks)
        MOE_TRY(check_strategy_of_ranks(e, err));
    if (o->ranks && !o->experts_only) {
        struct moe_rank_shape shape = moe_rank_shape_of(e->model, &memory.session);
        MOE_TRY(moe_ranks_share(o->ranks, &shape, err));
        if (o->spread)
            MOE_TRY(moe_ranks_give(o->ranks, e->model->pack, progress, err));
    }
    set_settings(e, &memory);
    const bool behind =
        o->first_token_first && !e->gpu && !o->image && !o->experts_only && !o->lockstep;
    e->arriving = behind && e->strategy.resident;
    if ((o->pack_in_ram || o->device.test) && !o->pack_copy && !e->strategy.resident)
        MOE_TRY(copy_pack(e, err));
    if (behind)
        MOE_TRY(moe_model_load_behind(e->model, memory.session.context, progress, o->passes, err));
    else if (!o->experts_only || moe_model_has_session(e->model))
        MOE_TRY(moe_model_load(e->model, memory.session.context, e->gpu, progress, err));
    MOE_TRY(open_experts(e, &memory.cache, progress, err));
    e->apart = memory.cache.loan.apart;
    if (o->ranks && !o->experts_only)
        MOE_TRY(moe_ranks_wait_ready(o->ranks, progress, err));
    e->statistics = o->statistics;
    e->pace = o->lockstep ? o->pace : NULL;
    e->timeline = e->experts->timeline = o->timeline;
    e->host_slowdown = host_slowdown(e, o);
    if (o->learn)
        MOE_TRY(read_learnt(e, o, err));
    if (o->experts_only && e->model->attends && !e->model->whole_layers)
        return moe_session_open(&e->session, e->model, e->experts, &memory.session, err);
    if (o->shares || (o->experts_only && !e->model->whole_layers))
        return MOE_OK;
    MOE_TRY(moe_engine_open_session(e, &memory.session, err));
    e->session->led = o->experts_only;
    return MOE_OK;
}

static int open_model(struct moe_engine *e, const char *path, const struct moe_engine_options *o,
                      const struct moe_progress *progress, struct moe_err *err)
{
    MOE_TRY(moe_model_open_image(&e->model, path, o->image, err));
    if (!o->measures)
        MOE_TRY(moe_pack_check_meant(e->model->pack, err));
    MOE_TRY(moe_engine_take_map(e->model, o, err));
    if (o->ahead)
        MOE_TRY(moe_engine_take_ahead(e->model, o, o->device.cuda, err));
    e->own_top_k = e->model->config.top_k;
    if (o->follows)
        MOE_TRY(moe_engine_take_trace(e->model, o, err));
    MOE_TRY(open_parts(e, o, progress, err));
    if (o->image) /* else the pack stays as it is: threads may read it */
        moe_pack_leave_image(e->model->pack);
    return MOE_OK;
}

static int open_engine(struct moe_engine **out, const char *path,
                       const struct moe_engine_options *o, const struct moe_progress *progress,
                       struct moe_err *err)
{
    *out = NULL;
    moe_heap_trim(); /* files that were read before, statistics and plans, leave free memory */
    struct moe_engine *e = moe_alloc(1, sizeof *e, err);
    if (!e)
        return MOE_ERR_MEMORY;
    int status = open_model(e, path, o, progress, err);
    if (status != MOE_OK) {
        moe_engine_close(e);
        return status;
    }
    *out = e;
    return MOE_OK;
}

int moe_engine_open(struct moe_engine **out, const char *path, const struct moe_engine_options *o,
                    const struct moe_progress *progress, struct moe_err *err)
{
    struct moe_err why = {0};
    bool may_fall_back = o->device.cuda && o->device.automatic;
    int status = open_engine(out, path, o, progress, may_fall_back ? &why : err);
    bool lacks_gpu =
        status == MOE_ERR_DEVICE || status == MOE_ERR_LIMIT || status == MOE_ERR_MEMORY;
    if (status == MOE_OK || !may_fall_back)
        return status;
    if (!lacks_gpu) {
        if (err)
            *err = why;
        return status;
    }
    struct moe_engine_options plain = *o;
    plain.device = (struct moe_device_choice){0};
    status = open_engine(out, path, &plain, progress, err);
    if (status == MOE_OK)
        (*out)->no_gpu = why;
    return status;
}

/* ---- A rank other than 0 ---- */

struct loading {
    struct moe_ranks *ranks;
    sig_atomic_t stop;
};

static void say_loading(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct loading *l = ctx;
    moe_ranks_say_state(l->ranks, MOE_RANK_LOADING, done, total);
    l->stop = moe_ranks_stopped(l->ranks);
}

int moe_engine_serve_rank(const char *path, const struct moe_engine_options *options,
                          struct moe_err *err)
{
    struct moe_ranks *ranks = options->ranks;
    struct loading loading = {.ranks = ranks};
    const struct moe_progress progress = {
        .report = say_loading, .ctx = &loading, .stop = &loading.stop};
    struct moe_engine_options o = *options;
    struct moe_engine *e = NULL;
    o.experts_only = true;
    o.session = (struct moe_session_options){0};
    o.survey = NULL;
    o.beside = NULL;
    o.timeline = NULL;
    o.first_token_first = false;
    o.passes = NULL;
    char *own = NULL;
    bool begun_now = false;
    int status =
        o.spread ? moe_engine_begin_spread(&own, &begun_now, ranks, o.spread, path, err) : MOE_OK;
    if (status == MOE_OK)
        status = moe_engine_open(&e, own ? own : path, &o, &progress, err);
    if (status == MOE_OK)
        status = moe_rank_work(ranks, e->model, e->experts, e->session, moe_ranks_shape(ranks),
                               moe_pass_predicts(&e->strategy), err);
    if (status != MOE_OK && (status != MOE_ERR_INTERRUPTED || loading.stop))
        moe_ranks_fail(ranks, err);
    moe_engine_close(e);
    if (status != MOE_OK && begun_now)
        moe_engine_undo_spread(own);
    free(own);
    return status;
}

int moe_engine_constrain(struct moe_engine *e, const struct moe_grammar *g,
                         const struct moe_ids *marks, struct moe_constraint **out,
                         struct moe_err *err)
{
    bool marked = marks && marks->n;
    struct moe_vocabulary **v = marked ? &e->marked_vocabulary : &e->vocabulary;
    *out = NULL;
    int status = MOE_OK;
    if (!*v)
        status = moe_vocabulary_new(v, e->model->tokenizer, e->model->config.vocab, marks, err);
    return status == MOE_OK ? moe_constraint_new(out, g, *v, err) : status;
}

uint64_t moe_constraints_bytes(const struct moe_config *config, uint32_t n)
{
    return moe_vocabulary_bytes(config->vocab) + n * moe_constraint_bytes(config->vocab);
}

void moe_engine_close(struct moe_engine *e)
{
    if (!e)
        return;
    moe_vocabulary_free(e->vocabulary);
    moe_vocabulary_free(e->marked_vocabulary);
    moe_engine_close_session(e);
    moe_experts_close(e->experts);
    moe_model_close(e->model);
    moe_gpu_close(e->gpu);
    moe_energy_close(e->energy);
    moe_pages_free(e->copy, e->copy_bytes);
    free(e);
}

void moe_engine_finish_stats(const struct moe_engine *e, struct moe_stats *stats)
{
    char part[MOE_PART_TEXT_BYTES];
    const struct moe_strategy *s = &e->strategy;
    snprintf(stats->strategy, sizeof stats->strategy, "%s", s->name);
    snprintf(stats->parts, sizeof stats->parts, "%s", e->parts);
    snprintf(stats->cache, sizeof stats->cache, "%s", s->cache ? s->cache->name : "none");
    moe_strategy_part_text(s, MOE_PART_ALLOC, part);
    snprintf(stats->alloc, sizeof stats->alloc, "%.31s", s->cache ? part : "none");
    stats->model = moe_path_name(moe_pack_path(e->model->pack));
    stats->model_fingerprint = moe_pack_fingerprint(e->model->pack);
    stats->learnt = e->learnt_tokens ? e->learn : NULL;
    stats->learnt_tokens = e->learnt_tokens;
    const char *from = moe_strategy_boundary_from(s);
    snprintf(stats->boundary_from, sizeof stats->boundary_from, "%s", from ? from : "");
    from = moe_strategy_thresholds_from(s);
    snprintf(stats->thresholds_from, sizeof stats->thresholds_from, "%s", from ? from : "");
    const char *no_energy = moe_energy_unavailable(e->energy);
    snprintf(stats->no_energy, sizeof stats->no_energy, "%s", no_energy ? no_energy : "");
    stats->in_place = moe_pack_arranger(e->model->pack) != NULL;
    stats->synthesized = moe_pack_synthesized(e->model->pack).is;
    stats->exact_required = e->exact_required;
    snprintf(stats->inexact, sizeof stats->inexact, "%s",
             e->follows ? "--follow (experts are a trace's choices)" : e->exactness.why);
    snprintf(stats->device, sizeof stats->device, "%s",
             e->gpu           ? "cuda"
             : e->test_device ? "test"
                              : "cpu");
    stats->gpu_memory_bytes = e->gpu ? MOE_GPU_OWN_BYTES + moe_gpu_allocated_bytes(e->gpu) : 0;
    stats->gpu_memory_budget_bytes = e->gpu ? e->budget.gpu.total : 0;
    stats->unlocked_bytes = e->gpu ? moe_gpu_unlocked_bytes(e->gpu) : 0;
    stats->settings = e->settings;
    stats->settings.context = e->session->context;
    stats->settings.batch = e->session->batch;
    stats->settings.n_threads = (uint32_t)e->session->n_threads;
    snprintf(stats->settings.kv, sizeof stats->settings.kv, "%s",
             moe_kv_kind_name(e->session->kv_kind));
    const struct moe_kv_pool *blocks = &e->session->kv_pool;
    stats->settings.kv_blocks = e->session->kv_grows ? blocks->n_blocks : 0;
    stats->settings.kv_block_positions = blocks->block_positions;
    stats->bf16_rows = e->gpu ? moe_gpu_bf16_rows(e->gpu) : 0;
    if (e->session->stages->add_stats)
        e->session->stages->add_stats(e->session, stats);
    stats->resident_expert_bytes_max = e->experts->resident_bytes_max;
    stats->memory_budget_bytes = e->memory_named ? e->budget.host.total : 0;
    stats->peak_rss_bytes = moe_peak_rss_bytes();
}

const char *moe_engine_method(const struct moe_engine *e)
{
    return e->exactness.exact ? "" : e->parts;
}

struct moe_changes moe_engine_changes(const struct moe_engine *e)
{
    const struct moe_phase_stats all = moe_stats_all(&e->session->stats);
    struct moe_changes changes = {
        .of[MOE_CHANGE_BF16_ROWS] = e->gpu ? moe_gpu_bf16_rows(e->gpu) : 0,
        .of[MOE_CHANGE_KV_ROWS] =
            moe_kv_is_inexact(moe_kv_kind_name(e->session->kv_kind)) ? all.tokens : 0,
    };
    moe_changes_add_counts(&changes, &all.experts, e->gpu != NULL);
    return changes;
}

/* ---- For people ---- */

struct part {
    const char *name;
    uint64_t bytes;
};

/* "program 13.4 + dense weights 3.7 + experts 9.0 = 26.1 MiB". What rounding takes from one part it
 * gives to the next, so that the line adds up. */
static void write_sum(const struct part *parts, int n, uint64_t total, struct moe_buf *out)
{
    double bytes = 0, sum = 0; /* up to a part, and in tenths of a MiB */
    char allowed[32];
    for (int i = 0; i < n; i++) {
        bytes += (double)parts[i].bytes;
        double tenths = floor(bytes / (1 << 20) * 10) - sum;
        moe_buf_printf(out, "%s%s %.1f", i ? " + " : "", parts[i].name, tenths / 10);
        sum += tenths;
    }
    moe_buf_printf(out, " = %.1f MiB, ", sum / 10);
    if (total == UINT64_MAX)
        moe_buf_text(out, "no limit known\n");
    else
        moe_buf_printf(out, "of %s allowed\n", moe_format_bytes(total, allowed));
}

void moe_budget_write_text(const struct moe_budget *b, struct moe_buf *out)
{
    const struct moe_plan_memory *h = &b->host, *g = &b->gpu;
    const struct part gpu[] = {{"dense weights", g->dense},
                               {"KV cache", g->kv},
                               {"buffers", g->work},
                               {"experts", g->experts}};
    const struct part host[] = {{"program", h->program},
                                {"dense weights", h->dense},
                                {"KV cache", h->kv},
                                {"buffers", h->work},
                                {"experts", h->experts}};
    char x[3][32];
    if (g->total) {
        moe_buf_text(out, "GPU      ");
        write_sum(gpu, b->all ? 4 : 3, g->total, out);
    }
    moe_buf_text(out, "memory   ");
    write_sum(host, b->all ? 5 : 4, h->total, out);
    moe_buf_text(out, "         ");
    if (b->all)
        moe_buf_printf(out, "one token visits %s%s of experts, all are %s; ",
                       b->revisits ? "at most " : "", moe_format_bytes(b->token, x[0]),
                       moe_format_bytes(b->all, x[1]));
    if (h->kv_lent)
        moe_buf_printf(out, "the text takes up to %s from the experts; ",
                       moe_format_bytes(h->kv_lent, x[2]));
    moe_buf_printf(out, "the smallest budget: %s\n", moe_format_at_least(h->floor, x[2]));
}

/* ---- The device ---- */

enum { MAX_GPU = 1023 };

bool moe_device_parse(const char *text, struct moe_device_choice *device, struct moe_err *why)
{
    char speed[32];
    const char *numbers = strncmp(text, "test:", 5) == 0 ? text + 5 : "";
    size_t n = strcspn(numbers, ",");
    if (strcmp(text, "cpu") == 0) {
        *device = (struct moe_device_choice){0};
        return true;
    }
    if (strcmp(text, "auto") == 0) {
        *device = (struct moe_device_choice){.cuda = true, .automatic = true};
        return true;
    }
    if (strncmp(text, "cuda", 4) == 0 && (text[4] == 0 || text[4] == ':')) {
        uint64_t index = 0;
        *device = (struct moe_device_choice){.cuda = true};
        if (text[4] == 0 || (moe_parse_u64(text + 5, &index) && index <= MAX_GPU)) {
            device->index = (int)index;
            return true;
        }
    }
    if (n < sizeof speed && numbers[n]) {
        memcpy(speed, numbers, n);
        speed[n] = 0;
        *device = (struct moe_device_choice){.test = true};
        if (moe_parse_double(speed, &device->speed) && device->speed >= 1 &&
            moe_parse_rate(numbers + n + 1, &device->link_rate))
            return true;
    }
    moe_fail(
        why, MOE_ERR_USAGE,
        "is not cpu, cuda[:N], auto or test:SPEED,LINK, as in test:4,2GB/s; SPEED is 1 or more");
    return false;
}
