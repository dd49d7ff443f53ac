/* moe-profile --coe: what batches and loads of models cost on this machine. */
#define _GNU_SOURCE             /* _SC_PHYS_PAGES */
#define _POSIX_C_SOURCE 200809L /* posix_fadvise */

#include "tune/coe_bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/par.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "gpu.h"
#include "tune/bench.h"
#include "tune/device_internal.h"

enum { LOADS = 3, TEAMS = 4, CPU = 0, CUDA = 1 };

static const char *const processor_names[MOE_COE_MAX_PROCESSORS] = {"cpu", "cuda"};

struct kind {
    uint64_t shape;
    const char *called; /* by the collection; "": by itself */
    uint32_t first, n_models;
    uint32_t loads[LOADS], n_loads; /* models whose loading is timed */
    bool on[MOE_COE_MAX_PROCESSORS];
};

struct bench {
    const struct moe_coe_bench_options *o;
    struct moe_coe_costs *costs; /* lists have room for what there can be */
    struct kind *kinds;          /* [n_kinds], as costs->kinds */
    char machine[MOE_DEVICE_TEXT], source[MOE_DEVICE_TEXT];
};

char *moe_coe_pack_path(const char *directory, const struct moe_coe_model *model,
                        struct moe_err *err)
{
    return model->pack[0] == '/' ? moe_strndup(model->pack, strlen(model->pack), err)
                                 : moe_path_join(directory, model->pack, err);
}

/* Says which expert an error is about. */
static int of_expert(int status, const struct moe_coe_model *m, struct moe_err *err)
{
    struct moe_err why = *err;
    return status == MOE_OK || status == MOE_ERR_INTERRUPTED
               ? status
               : moe_fail(err, status, "expert '%s': %s", m->name, why.text);
}

/* ---- Architectures ---- */

/* Hashes all that decides how long computing takes and how much room; packs with equal hashes
 * differ only in their weights. */
static uint64_t shape_of(const struct moe_pack *pack)
{
    uint64_t n;
    const uint8_t *model = moe_pack_section(pack, MOE_PACK_MODEL, &n);
    uint64_t hash = moe_hash64(model, n);
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        uint64_t shape[5] = {t->is_vector, t->layout.kind, t->rows, t->cols, t->extent.raw_bytes};
        hash = moe_hash64_chain(hash, shape, sizeof shape);
    }
    for (uint32_t i = 0; i < moe_pack_n_variants(pack); i++) {
        const char *name = moe_pack_variant_at(pack, i)->name;
        hash = moe_hash64_chain(hash, name, strlen(name) + 1);
    }
    for (uint32_t i = 0; i < moe_pack_n_classes(pack); i++) {
        const struct moe_expert_class *c = moe_pack_class_at(pack, i);
        hash = moe_hash64_chain(hash, c->segment_bytes, sizeof c->segment_bytes);
    }
    return hash;
}

/* Makes a name like "qwen2_moe-12x32-8": layers, experts, variant; with a number where it is taken.
 */
static void name_kind(struct bench *b, const struct kind *kind, const struct moe_model *m,
                      char name[64])
{
    const struct moe_config *c = &m->config;
    int n = kind->called[0]
                ? snprintf(name, 64, "%s", kind->called)
                : snprintf(name, 64, "%.24s-%ux%u-%.8s", c->family, c->n_layers, c->n_experts,
                           moe_pack_n_variants(m->pack) ? moe_pack_variant_at(m->pack, 0)->name
                                                        : "dense");
    for (uint32_t i = 0, number = 2; i < b->costs->n_kinds; i++)
        if (strcmp(b->costs->kinds[i].name, name) == 0) {
            snprintf(name + n, (size_t)(64 - n), "-%u", number++);
            i = UINT32_MAX; /* from the beginning */
        }
}

static int add_kind(struct bench *b, uint32_t model, uint64_t shape, const struct moe_model *m,
                    uint32_t *index, struct moe_err *err)
{
    const struct moe_coe_model *models = b->o->collection->models;
    struct moe_coe_costs *costs = b->costs;
    if (costs->n_kinds == MOE_COE_MAX_KINDS)
        return moe_fail(err, MOE_ERR_LIMIT, "there are more than %d architectures",
                        MOE_COE_MAX_KINDS);
    struct kind *kind = &b->kinds[costs->n_kinds];
    *kind = (struct kind){.shape = shape, .called = models[model].architecture, .first = model};
    for (uint32_t i = 0; i < costs->n_kinds; i++)
        if (kind->called[0] && strcmp(b->kinds[i].called, kind->called) == 0)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "'%s' and '%s' are of one architecture, '%s', but of different shapes",
                            models[b->kinds[i].first].name, models[model].name, kind->called);
    name_kind(b, kind, m, costs->kinds[costs->n_kinds].name);
    *index = costs->n_kinds++;
    return MOE_OK;
}

static int add_model(struct bench *b, uint32_t i, struct moe_err *err)
{
    const struct moe_coe_model *model = &b->o->collection->models[i];
    struct moe_model *m = NULL;
    char *path = moe_coe_pack_path(b->o->directory, model, err);
    int status = path ? moe_model_open_directory(&m, path, err) : MOE_ERR_MEMORY;
    uint64_t shape = status == MOE_OK ? shape_of(m->pack) : 0;
    uint32_t k = 0;
    while (status == MOE_OK && k < b->costs->n_kinds &&
           (b->kinds[k].shape != shape || strcmp(b->kinds[k].called, model->architecture) != 0))
        k++;
    if (status == MOE_OK && k == b->costs->n_kinds)
        status = add_kind(b, i, shape, m, &k, err);
    if (status == MOE_OK) {
        struct moe_coe_model_cost *cost = &b->costs->models[b->costs->n_models++];
        struct kind *kind = &b->kinds[k];
        snprintf(cost->name, sizeof cost->name, "%s", model->name);
        snprintf(cost->architecture, sizeof cost->architecture, "%s", b->costs->kinds[k].name);
        cost->kind = k;
        cost->probability = b->o->samples ? b->o->samples->usage[i] : -1;
        kind->n_models++;
        if (kind->n_loads < LOADS)
            kind->loads[kind->n_loads++] = i;
        for (uint32_t on = 0; on < MOE_COE_MAX_PROCESSORS; on++)
            kind->on[on] = kind->on[on] || !model->device[0] ||
                           strcmp(model->device, processor_names[on]) == 0;
    }
    moe_model_close(m);
    free(path);
    return of_expert(status, model, err);
}

static int find_kinds(struct bench *b, struct moe_err *err)
{
    uint32_t n = b->o->collection->n_models;
    for (uint32_t i = 0; i < n; i++) {
        moe_progress_report(b->o->progress, "packs", i, n);
        MOE_TRY(add_model(b, i, err));
        if (moe_progress_stopped(b->o->progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    return MOE_OK;
}

/* ---- One architecture on one processor ---- */

static struct moe_engine_options engine_of(const struct bench *b, uint32_t on)
{
    struct moe_engine_options options = {
        .measures = true,
        .memory_bytes = b->o->memory_bytes,
        .gpu_memory_bytes = b->o->gpu_memory_bytes,
        .device = {.cuda = on == CUDA},
        .session = {.context = b->o->prompt_tokens + b->o->answer_tokens},
    };
    moe_strategy_find("resident", &options.strategy);
    return options;
}

static int load_once(const struct bench *b, uint32_t model, uint32_t on, struct moe_coe_load *load,
                     struct moe_err *err)
{
    const struct moe_coe_model *m = &b->o->collection->models[model];
    const struct moe_engine_options options = engine_of(b, on);
    char *path = moe_coe_pack_path(b->o->directory, m, err);
    int status =
        path ? moe_coe_measure_load(load, path, &options, b->o->progress, err) : MOE_ERR_MEMORY;
    free(path);
    return of_expert(status, m, err);
}

/* Loads packs in turn: a single one would stay in the disk's own memory. */
static int measure_loads(const struct bench *b, const struct kind *kind, uint32_t on,
                         struct moe_coe_kind_cost *cost, struct moe_err *err)
{
    double disk[LOADS], host[LOADS];
    for (uint32_t i = 0; i < LOADS; i++) {
        struct moe_coe_load load;
        moe_progress_report(b->o->progress, "loads", i, LOADS);
        MOE_TRY(load_once(b, kind->loads[i % kind->n_loads], on, &load, err));
        disk[i] = load.disk;
        host[i] = load.host;
        cost->expert_bytes = load.bytes;
        if (moe_progress_stopped(b->o->progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    cost->cost.load = moe_bench_round(moe_bench_summarize(disk, LOADS).median);
    cost->cost.load_from_host = moe_bench_round(moe_bench_summarize(host, LOADS).median);
    return MOE_OK;
}

static int open_engine(const struct bench *b, uint32_t model, uint32_t on, struct moe_engine **out,
                       struct moe_err *err)
{
    const struct moe_coe_model *m = &b->o->collection->models[model];
    const struct moe_engine_options options = engine_of(b, on);
    char *path = moe_coe_pack_path(b->o->directory, m, err);
    int status = path ? moe_engine_open(out, path, &options, b->o->progress, err) : MOE_ERR_MEMORY;
    free(path);
    return of_expert(status, m, err);
}

static int measure_curve(const struct bench *b, const struct kind *kind, uint32_t on,
                         struct moe_coe_batch_curve *curve, struct moe_err *err)
{
    const struct moe_coe_batch_options how = {
        .prompt_tokens = b->o->prompt_tokens,
        .answer_tokens = b->o->answer_tokens,
        .most = b->o->max_batch,
        .text = b->o->samples ? &b->o->samples->prompts : NULL,
        .progress = b->o->progress,
    };
    struct moe_engine *e = NULL;
    int status;
    MOE_STEP(open_engine(b, kind->first, on, &e, err));
    if (how.text)
        MOE_STEP(moe_check_ids(e->model, how.text->ids, how.text->n, err));
    MOE_STEP(moe_coe_measure_batches(e, &how, curve, err));
out:
    moe_engine_close(e);
    return status;
}

/* One team: K, B and the largest batch of `cost`, whose loading is known, and their batches. */
static int measure_team(struct bench *b, uint32_t k, uint32_t on, uint32_t threads,
                        struct moe_coe_kind_cost *cost, struct moe_err *err)
{
    struct moe_coe_costs *costs = b->costs;
    struct moe_coe_batch_curve curve;
    int before = moe_par_set_team((int)threads);
    int status = measure_curve(b, &b->kinds[k], on, &curve, err);
    moe_par_set_team(before);
    if (status != MOE_OK)
        return status;
    cost->threads = threads;
    moe_coe_batch_fit(&curve, &cost->cost.per_request, &cost->cost.per_batch);
    cost->cost.per_request = moe_bench_round(cost->cost.per_request);
    cost->cost.per_batch = moe_bench_round(cost->cost.per_batch);
    cost->cost.max_batch = moe_coe_batch_level(&curve);
    cost->cost.request_bytes = moe_coe_batch_request_bytes(&curve);
    for (uint32_t i = 0; i < curve.n; i++) {
        struct moe_coe_kind_batch *batch = &costs->batches[costs->n_batches++];
        memcpy(batch->architecture, cost->architecture, sizeof batch->architecture);
        memcpy(batch->processor, cost->processor, sizeof batch->processor);
        batch->threads = threads;
        batch->requests = curve.points[i].requests;
        batch->seconds = moe_bench_round(curve.points[i].seconds);
        batch->bytes = curve.points[i].bytes;
    }
    return MOE_OK;
}

/* The teams of one to three executors, which a plan tries first, and of one thread. */
static uint32_t next_team(uint32_t all, uint32_t team)
{
    for (uint32_t n = 2; n <= 3; n++)
        if (all / n < team && all / n > 0)
            return all / n;
    return team > 1;
}

static int measure_kind(struct bench *b, uint32_t k, uint32_t on, struct moe_err *err)
{
    struct moe_coe_costs *costs = b->costs;
    struct moe_coe_kind_cost loaded = {0};
    uint32_t all = on == CPU ? (uint32_t)moe_par_threads() : 0;
    snprintf(loaded.architecture, sizeof loaded.architecture, "%s", costs->kinds[k].name);
    snprintf(loaded.processor, sizeof loaded.processor, "%s", processor_names[on]);
    int status = measure_loads(b, &b->kinds[k], on, &loaded, err);
    for (uint32_t team = all; status == MOE_OK; team = next_team(all, team)) {
        struct moe_coe_kind_cost *cost = &costs->costs[costs->n_costs];
        *cost = loaded;
        status = measure_team(b, k, on, team, cost, err);
        costs->n_costs += status == MOE_OK;
        if (team <= 1)
            break;
    }
    return status;
}
/* ---- All of it ---- */

static void add_processors(struct bench *b)
{
    struct moe_gpu_info info;
    struct moe_coe_costs *c = b->costs;
    bool any[MOE_COE_MAX_PROCESSORS] = {false};
    for (uint32_t k = 0; k < c->n_kinds; k++)
        for (uint32_t on = 0; on < MOE_COE_MAX_PROCESSORS; on++)
            any[on] = any[on] || b->kinds[k].on[on];
    for (uint32_t on = 0; on < MOE_COE_MAX_PROCESSORS; on++) {
        struct moe_coe_processor *p = &c->processors[c->n_processors];
        bool there = on == CPU || (moe_gpu_count() > 0 && moe_gpu_describe(0, &info) == 0);
        if (!any[on] || !there)
            continue;
        snprintf(p->name, sizeof p->name, "%s", processor_names[on]);
        p->memory_bytes = on == CUDA && !info.unified ? info.memory_bytes : 0;
        p->threads = on == CPU ? (uint32_t)moe_par_threads() : 0;
        c->n_processors++;
    }
}

static int measure_all(struct bench *b, struct moe_err *err)
{
    const struct moe_coe_bench_options *o = b->o;
    int status = MOE_OK;
    for (uint32_t k = 0; k < b->costs->n_kinds && status == MOE_OK; k++) {
        struct moe_coe_kind *kind = &b->costs->kinds[k];
        uint32_t n = 0;
        snprintf(kind->source, sizeof kind->source,
                 "pack of '%s' for %u experts; requests of %u tokens, answers of %u",
                 o->collection->models[b->kinds[k].first].name, b->kinds[k].n_models,
                 o->prompt_tokens, o->answer_tokens);
        for (uint32_t on = 0; on < MOE_COE_MAX_PROCESSORS && status == MOE_OK; on++)
            if (b->kinds[k].on[on] &&
                moe_coe_costs_processor(b->costs, processor_names[on]) != MOE_COE_NONE) {
                status = measure_kind(b, k, on, err);
                n++;
            }
        if (status == MOE_OK && n == 0)
            status =
                moe_fail(err, MOE_ERR_DEVICE, "expert '%s' may only run on %s, which is not here",
                         o->collection->models[b->kinds[k].first].name,
                         o->collection->models[b->kinds[k].first].device);
    }
    return status;
}

static int make_room(struct moe_coe_costs *c, uint32_t n_models, struct moe_err *err)
{
    uint64_t kinds = n_models < MOE_COE_MAX_KINDS ? n_models : MOE_COE_MAX_KINDS;
    uint64_t costs = MOE_COE_MAX_PROCESSORS * kinds * TEAMS;
    c->processors = moe_alloc(MOE_COE_MAX_PROCESSORS, sizeof *c->processors, err);
    c->kinds = moe_alloc(kinds, sizeof *c->kinds, err);
    c->costs = moe_alloc(costs, sizeof *c->costs, err);
    c->batches = moe_alloc(costs * MOE_COE_BATCH_POINTS, sizeof *c->batches, err);
    c->models = moe_alloc(n_models, sizeof *c->models, err);
    return c->processors && c->kinds && c->costs && c->batches && c->models ? MOE_OK
                                                                            : MOE_ERR_MEMORY;
}

int moe_coe_bench(struct moe_coe_costs **out, const struct moe_coe_bench_options *o,
                  struct moe_err *err)
{
    struct bench b = {.o = o};
    uint32_t n = o->collection->n_models;
    *out = NULL;
    b.costs = moe_alloc(1, sizeof *b.costs, err);
    b.kinds = moe_alloc(n < MOE_COE_MAX_KINDS ? n : MOE_COE_MAX_KINDS, sizeof *b.kinds, err);
    int status;
    MOE_STEP(b.costs && b.kinds ? make_room(b.costs, n, err) : MOE_ERR_MEMORY);
    MOE_STEP(find_kinds(&b, err));
    moe_device_describe(b.costs->machine, b.costs->source);
    b.costs->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    add_processors(&b);
    MOE_STEP(measure_all(&b, err));
out:
    free(b.kinds);
    if (status == MOE_OK)
        *out = b.costs;
    else
        moe_coe_costs_free(b.costs);
    return status;
}

/* ---- Batches ---- */

enum { LEAST_RUNS = 3, MOST_RUNS = 25 };

#define RUN_SECONDS 0.25 /* in all: short ones are measured more often */

#define GAIN 0.05 /* of a request's time: less is none */

/* ---- Figures of a curve ---- */

void moe_coe_batch_fit(const struct moe_coe_batch_curve *c, double *per_request, double *per_batch)
{
    double n = c->n, x = 0, y = 0, xx = 0, xy = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        double r = c->points[i].requests, t = c->points[i].seconds;
        x += r;
        y += t;
        xx += r * r;
        xy += r * t;
    }
    double spread = n * xx - x * x;
    *per_request = spread > 0 ? (n * xy - x * y) / spread : 0;
    *per_batch = (y - *per_request * x) / n;
    if (spread <= 0 || *per_batch < 0) {
        *per_request = xy / xx;
        *per_batch = 0;
    } else if (*per_request < 0) {
        *per_request = 0;
        *per_batch = y / n;
    }
}

static double each(const struct moe_coe_batch_point *p)
{
    return p->seconds / p->requests;
}

/* Of the first n points. */
static double least_each(const struct moe_coe_batch_curve *c, uint32_t n)
{
    double least = each(&c->points[0]);
    for (uint32_t i = 1; i < n; i++)
        least = each(&c->points[i]) < least ? each(&c->points[i]) : least;
    return least;
}

uint32_t moe_coe_batch_level(const struct moe_coe_batch_curve *c)
{
    double least = least_each(c, c->n);
    uint32_t i = 0;
    while (each(&c->points[i]) > (1 + GAIN) * least)
        i++;
    return c->points[i].requests;
}

bool moe_coe_batch_levelled(const struct moe_coe_batch_curve *c)
{
    return c->n > 2 && least_each(c, c->n) > (1 - GAIN) * least_each(c, c->n - 2);
}

uint64_t moe_coe_batch_request_bytes(const struct moe_coe_batch_curve *c)
{
    uint32_t level = moe_coe_batch_level(c), i = 0;
    while (c->points[i].requests != level)
        i++;
    return (c->points[i].bytes + level - 1) / level;
}

/* ---- Measuring ---- */

static void ended(void *ctx, const struct moe_generate_result *result)
{
    struct moe_err *failed = ctx; /* the first that did */
    if (result->status != MOE_OK && failed->status == MOE_OK)
        *failed = *result->err;
}

/* Prompts differ in their first token, run by run: else one would take over what another computed.
 */
static int add_request(struct moe_generator *batch, const struct moe_engine *e,
                       const struct moe_coe_batch_options *o, const struct moe_row *rows,
                       uint32_t *prompt, uint32_t number, struct moe_err *failed,
                       struct moe_err *err)
{
    struct moe_generate_request request = {
        .prompt = prompt,
        .n_prompt = o->prompt_tokens,
        .options = {.max_tokens = o->answer_tokens, .ignore_eos = true, .ctx = failed},
        .ended = ended,
    };
    struct moe_sampler_options greedy;
    uint64_t id;
    for (uint32_t i = 0; i < o->prompt_tokens; i++)
        prompt[i] = rows[i].token;
    prompt[0] = number % e->model->config.vocab;
    moe_sampling_unsaid(&greedy);
    greedy.temperature = 0;
    moe_sampling_complete(&greedy, NULL);
    int status = moe_sampler_new(&request.sampler, &greedy, e->model->config.vocab, err);
    if (status != MOE_OK)
        return status;
    status = moe_generator_add(batch, &request, &id, err);
    if (status != MOE_OK)
        moe_sampler_free(request.sampler);
    return status;
}

/* rows: prompts of all requests, one after the other. */
static int run_once(struct moe_engine *e, const struct moe_coe_batch_options *o,
                    const struct moe_row *rows, uint32_t n, uint32_t run, double *seconds,
                    struct moe_err *err)
{
    struct moe_generator *batch = NULL;
    struct moe_err failed = {0};
    uint32_t *prompt = moe_alloc(o->prompt_tokens, sizeof *prompt, err);
    int status = prompt ? moe_generator_open(&batch, e->session, e->session->n_sequences, 0, err)
                        : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n && status == MOE_OK; i++)
        status = add_request(batch, e, o, rows + (uint64_t)i * o->prompt_tokens, prompt,
                             run * n + i, &failed, err);
    double began = moe_seconds();
    while (status == MOE_OK &&
           moe_generator_state(batch)->n_running + moe_generator_state(batch)->n_waiting > 0) {
        moe_generator_step(batch);
        if (moe_progress_stopped(o->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    *seconds = moe_seconds() - began;
    if (status == MOE_OK && failed.status != MOE_OK)
        status = moe_fail(err, failed.status, "%s", failed.text);
    moe_generator_close(batch);
    free(prompt);
    return status;
}

static int measure_point(struct moe_engine *e, const struct moe_coe_batch_options *o,
                         const struct moe_row *rows, struct moe_coe_batch_point *p,
                         struct moe_err *err)
{
    char what[64];
    double seconds[MOST_RUNS], sum = 0;
    uint32_t n = 0;
    snprintf(what, sizeof what, "batches of %u", p->requests);
    moe_progress_report(o->progress, what, 0, LEAST_RUNS + 1);
    MOE_TRY(run_once(e, o, rows, p->requests, 0, &seconds[0], err)); /* does not count */
    while (n < MOST_RUNS && (n < LEAST_RUNS || sum < RUN_SECONDS)) {
        moe_progress_report(o->progress, what, n + 1, n < LEAST_RUNS ? LEAST_RUNS + 1 : n + 2);
        MOE_TRY(run_once(e, o, rows, p->requests, n + 1, &seconds[n], err));
        sum += seconds[n++];
    }
    p->seconds = moe_bench_summarize(seconds, n).median;
    return MOE_OK;
}

/* A session for n requests, in room for `room` bytes. *fits false: it takes more. */
static int open_session(struct moe_engine *e, const struct moe_coe_batch_options *o, uint32_t n,
                        uint32_t rows, uint64_t room, bool *fits, uint64_t *bytes,
                        struct moe_err *err)
{
    const struct moe_session_options session = {
        .context = o->prompt_tokens + o->answer_tokens,
        .n_sequences = n,
        .batch = rows > n ? rows : n,
        .gpu = e->gpu,
    };
    const struct moe_config *config = &e->model->config;
    uint64_t on_host = UINT64_MAX;
    *fits = moe_add_u64(moe_session_bytes(config, &session), moe_generator_bytes(config, &session),
                        &on_host);
    *bytes = e->gpu ? moe_session_gpu_bytes(config, &session) : on_host;
    *fits = *fits && *bytes <= room;
    if (!*fits)
        return MOE_OK;
    moe_session_close(e->session);
    e->session = NULL;
    return moe_session_open(&e->session, e->model, e->experts, &session, err);
}

/* What the budget leaves beside the model. */
static uint64_t room_beside(const struct moe_engine *e)
{
    const struct moe_plan_memory *m = e->gpu ? &e->budget.gpu : &e->budget.host;
    const uint64_t taken = m->program + m->dense + m->experts;
    return m->total == UINT64_MAX ? UINT64_MAX : m->total > taken ? m->total - taken : 0;
}

int moe_coe_measure_batches(struct moe_engine *e, const struct moe_coe_batch_options *o,
                            struct moe_coe_batch_curve *out, struct moe_err *err)
{
    const uint64_t room = room_beside(e);
    const uint32_t rows_of_pass = e->session->batch;
    uint64_t n_rows = 0;
    if (!moe_mul_u64(o->most, o->prompt_tokens, &n_rows) || n_rows > UINT32_MAX)
        return moe_fail(err, MOE_ERR_USAGE, "%u prompts of %u tokens are too many", o->most,
                        o->prompt_tokens);
    struct moe_row *rows = moe_alloc(n_rows, sizeof *rows, err);
    int status;
    out->n = 0;
    MOE_STEP(rows ? MOE_OK : MOE_ERR_MEMORY);
    moe_bench_rows(o->text, e->model->config.vocab, 0, rows, (uint32_t)n_rows);
    for (uint32_t n = 1; n <= o->most; n *= 2) {
        struct moe_coe_batch_point *p = &out->points[out->n];
        bool fits;
        p->requests = n;
        MOE_STEP(open_session(e, o, n, rows_of_pass, room, &fits, &p->bytes, err));
        if (!fits && n > 1)
            break;
        if (!fits)
            MOE_STEP(moe_fail(err, MOE_ERR_LIMIT,
                              "%s: its memory has no room for a request beside the model",
                              moe_pack_path(e->model->pack)));
        MOE_STEP(measure_point(e, o, rows, p, err));
        out->n++;
        if (moe_coe_batch_levelled(out))
            break;
    }
out:
    free(rows);
    return status;
}

/* ---- Loads ---- */

/* What of the file the system keeps in memory goes. */
static int forget_file(const char *path, struct moe_err *err)
{
    uint64_t size;
    int fd = moe_file_open(path, &size, err);
    if (fd < 0)
        return fd;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return MOE_OK;
}

int moe_coe_measure_load(struct moe_coe_load *out, const char *path,
                         const struct moe_engine_options *options,
                         const struct moe_progress *progress, struct moe_err *err)
{
    struct moe_engine_options o = *options;
    struct moe_pack_image image = {NULL, 0};
    *out = (struct moe_coe_load){0};
    struct moe_gpu_info info = {.unified = true};
    if (o.device.cuda)
        moe_gpu_describe(o.device.index, &info);
    bool apart = !info.unified;
    int status = forget_file(path, err);
    double began = moe_seconds(), read = began, opened;
    if (status == MOE_OK && apart) {
        status = moe_pack_image_read(&image, path, UINT64_MAX, NULL, NULL, err);
        read = moe_seconds();
        o.image = &image;
    }
    for (int i = 0; i < (apart ? 2 : 1) && status == MOE_OK; i++) {
        struct moe_engine *e = NULL;
        double from = moe_seconds();
        status = moe_engine_open(&e, path, &o, progress, err);
        opened = moe_seconds() - from;
        if (status == MOE_OK)
            out->bytes = e->gpu ? e->budget.gpu.dense + e->budget.gpu.experts
                                : e->budget.host.dense + e->budget.host.experts;
        *(i ? &out->host : &out->disk) = opened + (i ? 0 : read - began);
        moe_engine_close(e);
    }
    moe_pack_image_free(&image);
    return status;
}
