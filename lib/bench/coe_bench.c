#define _GNU_SOURCE /* _SC_PHYS_PAGES */
#include "bench/coe_bench.h"

#include "gpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/par.h"
#include "bench/bench.h"
#include "bench/coe_batches.h"
#include "bench/coe_loads.h"
#include "bench/device_private.h"
#include "engine/engine.h"

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

/* Of everything that computing takes time for and room; two packs with equal ones differ in their
 * weights alone. */
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

/* "qwen2_moe-12x32-8": layers, experts, variant; a number after it where that is taken. */
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
    int status = MOE_OK;
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        moe_progress_report(b->o->progress, "packs", i, n);
        status = add_model(b, i, err);
        if (status == MOE_OK && moe_progress_stopped(b->o->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    return status;
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

/* Packs are loaded in turn: one alone would leave traces in the disk's own memory. */
static int measure_loads(const struct bench *b, const struct kind *kind, uint32_t on,
                         struct moe_coe_kind_cost *cost, struct moe_err *err)
{
    double disk[LOADS], host[LOADS];
    int status = MOE_OK;
    for (uint32_t i = 0; i < LOADS && status == MOE_OK; i++) {
        struct moe_coe_load load;
        moe_progress_report(b->o->progress, "loads", i, LOADS);
        status = load_once(b, kind->loads[i % kind->n_loads], on, &load, err);
        disk[i] = load.disk;
        host[i] = load.host;
        cost->expert_bytes = load.bytes;
        if (status == MOE_OK && moe_progress_stopped(b->o->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    if (status != MOE_OK)
        return status;
    cost->cost.load = moe_bench_round(moe_bench_summarise(disk, LOADS).median);
    cost->cost.load_from_host = moe_bench_round(moe_bench_summarise(host, LOADS).median);
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
    int status = open_engine(b, kind->first, on, &e, err);
    if (status == MOE_OK && how.text)
        status = moe_check_ids(e->model, how.text->ids, how.text->n, err);
    if (status == MOE_OK)
        status = moe_coe_measure_batches(e, &how, curve, err);
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

static int measure(struct bench *b, uint32_t k, uint32_t on, struct moe_err *err)
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
                status = measure(b, k, on, err);
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
    int status = b.costs && b.kinds ? make_room(b.costs, n, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = find_kinds(&b, err);
    if (status == MOE_OK) {
        moe_device_describe(b.costs->machine, b.costs->source);
        b.costs->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
        add_processors(&b);
        status = measure_all(&b, err);
    }
    free(b.kinds);
    if (status == MOE_OK)
        *out = b.costs;
    else
        moe_coe_costs_free(b.costs);
    return status;
}
