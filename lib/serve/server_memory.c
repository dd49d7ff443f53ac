/* How a server's models and executors share memory, and the packs that wait in main memory for a
 * GPU. */
#define _POSIX_C_SOURCE 200809L /* pthread, st_mtim */

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "gpu.h"
#include "serve/server_internal.h"

/* ---- What models take ---- */

/* Models of one description share an entry. */
static uint32_t kind_of(struct moe_server *s, const struct moe_needs *needs)
{
    uint32_t i = 0;
    while (i < s->n_kinds && memcmp(&s->needs[i].config, &needs->config, sizeof needs->config) != 0)
        i++;
    if (i == s->n_kinds)
        s->needs[s->n_kinds++] = *needs;
    struct moe_needs *kind = &s->needs[i];
    for (int cuda = 0; cuda < 2; cuda++)
        kind->on[cuda].pass_bytes =
            moe_larger(kind->on[cuda].pass_bytes, needs->on[cuda].pass_bytes);
    return i;
}

static void note_file(struct model *m, const struct moe_needs *needs)
{
    m->file_bytes = needs->file_bytes;
    m->fingerprint = needs->fingerprint;
    m->parameters = needs->parameters;
    memcpy(m->weights, needs->weights, sizeof m->weights);
    m->format = needs->format;
    m->sampling = needs->sampling;
}

static int survey_one(struct moe_server *s, struct model *m, struct moe_needs *needs,
                      struct moe_err *err)
{
    struct moe_err why;
    int status = moe_needs_of(needs, m->path, &s->options.engine, s->gpu, &why);
    if (status == MOE_OK) {
        m->kind = kind_of(s, needs);
        memcpy(m->on, needs->on, sizeof m->on);
        note_file(m, needs);
        return MOE_OK;
    }
    if (!s->own && status != MOE_ERR_MEMORY) {
        m->is_broken = true;
        m->broken_status = status;
        m->broken = moe_strndup(why.text, strlen(why.text), err);
        return m->broken ? MOE_OK : MOE_ERR_MEMORY;
    }
    if (err)
        *err = why;
    return status;
}

int memory_survey(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err)
{
    struct moe_needs *needs = moe_alloc(1, sizeof *needs, err);
    int status = needs ? MOE_OK : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < s->n_models && status == MOE_OK; i++) {
        struct moe_needs *more = realloc(s->needs, (s->n_kinds + 1) * sizeof *s->needs);
        if (!more) {
            status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: %u kinds of models", s->n_kinds);
            break;
        }
        s->needs = more;
        status = survey_one(s, &s->models[i], needs, err);
        moe_progress_report(progress, "looking at models", i + 1, s->n_models);
        if (moe_progress_stopped(progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    free(needs);
    moe_heap_trim(); /* directories that were looked at leave free memory */
    if (status == MOE_OK && s->n_kinds == 0)
        status = moe_fail(err, s->models[0].broken_status, "no model can be opened: %.400s",
                          s->models[0].broken);
    return status;
}

/* ---- Sessions ---- */

uint32_t memory_context(const struct moe_server *s, const struct moe_needs *needs)
{
    uint32_t wanted = s->options.engine.session.context, cap = s->options.engine.context_cap;
    uint32_t most = needs->config.context_max;
    if (!wanted)
        wanted = cap ? cap : most;
    return wanted < most ? wanted : most;
}

enum {
    KEEPS_PART = 2 /* of the KV cache's blocks may hold texts that ended, for others like them */
};

/* Complete but for what there is room for. */
static struct moe_session_options session_of(const struct moe_server *s,
                                             const struct moe_needs *needs, bool on_gpu)
{
    struct moe_session_options o = s->options.engine.session;
    o.context = memory_context(s, needs);
    o.n_sequences = s->options.sequences;
    o.gpu = on_gpu ? s->gpu : NULL;
    o.kv_grows = !on_gpu && !s->options.engine.reserve_kv;
    if (o.kv_kind == MOE_LAYOUT_NONE)
        o.kv_kind = MOE_KV_DEFAULT;
    return o;
}

uint64_t memory_of_model(const struct executor *x, const struct model *m)
{
    const uint64_t most = m->on[x->options.device.cuda].most;
    return most < x->expert_bytes ? most : x->expert_bytes;
}

/* A model's size on an executor: on a GPU, raised so that no more models are there at a time than
 * main memory has room for beside it. */
uint64_t memory_as_listed(const struct executor *x, const struct model *m)
{
    uint64_t bytes = memory_of_model(x, m);
    uint64_t least = x->most_models ? x->expert_bytes / x->most_models : 0;
    return bytes > least ? bytes : least;
}

/* Takes what a model needs over, if each executor has room for it. Under the mutex. */
static bool take_needs(struct moe_server *s, struct model *m, const struct moe_needs *needs)
{
    const uint32_t model = (uint32_t)(m - s->models);
    uint32_t kind = 0;
    while (kind < s->n_kinds &&
           memcmp(&s->needs[kind].config, &needs->config, sizeof needs->config) != 0)
        kind++;
    if (kind == s->n_kinds || moe_coe_is_placed(s->dispatch, model))
        return false;
    m->kind = kind;
    memcpy(m->on, needs->on, sizeof m->on);
    for (uint32_t i = 0; i < s->n_executors; i++)
        if (memory_as_listed(&s->executors[i], m) > s->executors[i].expert_bytes ||
            needs->on[s->executors[i].options.device.cuda].pass_bytes >
                s->needs[kind].on[s->executors[i].options.device.cuda].pass_bytes)
            return false;
    for (uint32_t i = 0; i < s->n_executors; i++)
        s->sizes[(uint64_t)i * s->n_models + model] = memory_as_listed(&s->executors[i], m);
    note_file(m, needs);
    return true;
}

void memory_look_again(struct moe_server *s, uint32_t model)
{
    struct model *m = &s->models[model];
    struct moe_err why;
    if (!m->is_broken)
        return;
    struct moe_needs *needs = moe_alloc(1, sizeof *needs, &why);
    if (needs && moe_needs_of(needs, m->path, &s->options.engine, s->gpu, &why) == MOE_OK) {
        pthread_mutex_lock(&s->mutex);
        if (m->is_broken && take_needs(s, m, needs))
            m->is_broken = false;
        pthread_mutex_unlock(&s->mutex);
    }
    free(needs);
}

bool memory_is_whole(const struct executor *x, const struct model *m)
{
    const struct moe_needs_on *needs = &m->on[x->options.device.cuda];
    return needs->whole && needs->most <= x->expert_bytes;
}

int memory_session(const struct executor *x, const struct model *m, struct moe_session_options *o,
                   struct moe_err *err)
{
    const struct moe_needs *needs = &x->server->needs[m->kind];
    bool cuda = x->options.device.cuda;
    const struct moe_session_room room = {cuda ? x->host_batch_bytes : x->batch_bytes,
                                          cuda ? x->batch_bytes : 0};
    struct moe_session_room least;
    int before = moe_par_set_team(x->options.n_threads); /* sessions have scratch for each thread */
    *o = session_of(x->server, needs, cuda);
    int status = moe_needs_fit_session(o, needs, !memory_is_whole(x, m), room, &least, err);
    moe_par_set_team(before);
    o->kv_grows = o->kv_grows && !memory_is_whole(x, m);
    o->kv_keeps = o->kv_blocks / KEEPS_PART;
    return status;
}

void memory_of_batches(const struct moe_server *s, bool on_gpu, struct moe_session_room *least,
                       struct moe_session_room *full)
{
    const struct moe_session_room unlimited = {UINT64_MAX, UINT64_MAX};
    *least = *full = (struct moe_session_room){0, 0};
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        const struct moe_needs *needs = &s->needs[i];
        struct moe_session_options o = session_of(s, needs, on_gpu);
        struct moe_session_room one;
        moe_needs_fit_session(&o, needs, true, unlimited, &one, NULL);
        least->host = moe_larger(least->host, one.host);
        least->gpu = moe_larger(least->gpu, one.gpu);
        full->host = moe_larger(full->host, moe_needs_session_bytes(needs, &o, true));
        full->gpu = moe_larger(full->gpu, moe_session_gpu_bytes(&needs->config, &o));
    }
}

/* ---- Division ---- */

enum {
    THREAD_BYTES = 512 << 10, /* of an executor's threads, beside its team's */
    SERVER_BYTES = 2 << 20,   /* of HTTP's libraries on top of a program's; 1.6 MiB were seen */
    MODEL_BYTES = 8 << 10,    /* of a model's names, costs and place in queues */
    LEAST_QUEUE_BYTES = 1 << 20,
    MOST_QUEUE_BYTES = 64 << 20,
    QUEUE_PART = 32, /* of the budget is for requests that wait */
    MOST_READING = 64 << 20,
    READING_PART = 64,       /* ... for each that is being read */
    FREE_SHARE_PERCENT = 90, /* of what is free, when no budget is named */
    GRAPH_BYTES = 64 << 20,  /* of a GPU's, for recordings of passes of one row (gpu.h) */
};
#define CASUAL_SHARE 0.75 /* of an executor's memory, for models (5.1) */

/* What the executors of one kind of processor need. */
struct demand {
    uint32_t n; /* such executors */
    uint64_t least_model, all_models;
    struct moe_session_room least, full; /* of what computes */
    /* On a GPU, of main memory beside it, at most: for a model that is there, for one that comes,
     * for one that has a cache there. */
    uint64_t kept, passing, host_least, host_all;
    uint32_t n_models; /* that an executor's memory on a GPU may hold at a time */
};

static bool runs_on(const struct moe_server *s, uint32_t model, bool cuda)
{
    const char *device = s->collection->models[model].device;
    return !s->models[model].is_broken &&
           (!device[0] || strcmp(device, cuda ? "cuda" : "cpu") == 0);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t part_of(uint64_t whole, double share)
{
    return (uint64_t)((double)whole * share);
}

static struct demand demand_of(const struct moe_server *s, bool cuda)
{
    struct demand d = {0};
    for (uint32_t i = 0; i < s->n_executors; i++)
        d.n += s->executors[i].options.device.cuda == cuda;
    for (uint32_t i = 0; i < s->n_models && d.n; i++) {
        const struct model *m = &s->models[i];
        if (!runs_on(s, i, cuda))
            continue;
        d.least_model = moe_larger(d.least_model, m->on[cuda].least);
        d.all_models += m->on[cuda].most;
    }
    if (d.n)
        memory_of_batches(s, cuda, &d.least, &d.full);
    return d;
}

/* ---- An executor's memory ---- */

/* Models get their share, batches the rest but no more than they can use; each side gets at least
 * the least that it works with. */
static void split_executor(struct executor *x, uint64_t bytes, const struct demand *d,
                           uint64_t least_batch, uint64_t full_batch)
{
    const struct moe_server_options *o = &x->server->options;
    double share = o->expert_share > 0 && o->expert_share < 1 ? o->expert_share : CASUAL_SHARE;
    uint64_t batch = bytes - part_of(bytes, share);
    if (bytes >= d->all_models && bytes - d->all_models > batch)
        batch = bytes - d->all_models; /* models need no more */
    batch = moe_larger(smaller(batch, full_batch), least_batch);
    if (bytes - batch < d->least_model)
        batch = bytes - d->least_model;
    x->batch_bytes = batch;
    x->expert_bytes = bytes - batch;
}

/* What a plan gives the executors of one kind of processor. */
static uint64_t planned_bytes(const struct moe_coe_plan *p, bool cuda)
{
    uint64_t given = 0;
    for (uint32_t i = 0; i < p->n_executors; i++)
        if ((strcmp(p->executors[i].device, "cuda") == 0) == cuda)
            given += p->executors[i].number *
                     (p->executors[i].expert_bytes + p->executors[i].batch_bytes);
    return given;
}

/* Gives each executor `share` of what the plan says for it, at least the least that works. */
static int follow_plan(struct moe_server *s, bool cuda, double share, const struct demand *d,
                       struct moe_err *err)
{
    const struct moe_coe_plan *p = s->options.plan;
    uint64_t least_batch = cuda ? d->least.gpu : d->least.host;
    for (uint32_t i = 0, k = 0; i < p->n_executors; i++)
        for (uint32_t n = 0; n < p->executors[i].number && k < s->n_executors; n++, k++) {
            struct executor *x = &s->executors[k];
            if (x->options.device.cuda != cuda)
                continue;
            uint64_t bytes = part_of(p->executors[i].expert_bytes, share) +
                             part_of(p->executors[i].batch_bytes, share);
            if (bytes < d->least_model + least_batch)
                return moe_fail(err, MOE_ERR_LIMIT,
                                "the plan leaves an executor %" PRIu64 " bytes%s: at least %" PRIu64
                                " work (moe-plan --coe with fewer --executors)",
                                bytes, cuda ? " of the GPU" : "", d->least_model + least_batch);
            x->batch_bytes = moe_larger(part_of(p->executors[i].batch_bytes, share), least_batch);
            x->batch_bytes = smaller(x->batch_bytes, bytes - d->least_model);
            x->expert_bytes = bytes - x->batch_bytes;
        }
    return MOE_OK;
}

static double share_of(uint64_t given, uint64_t left)
{
    return given > left ? (double)left / (double)given : 1;
}

/* ---- A GPU's memory ---- */

/* Whether the GPU's memory is the host's: then it is of that budget, and there is no tier. */
static bool is_unified(const struct moe_server *s)
{
    return s->gpu && moe_gpu_info(s->gpu)->unified;
}

static uint64_t least_on_gpu(const struct demand *d)
{
    return d->n ? MOE_GPU_OWN_BYTES + d->n * (d->least_model + d->least.gpu)
                : 0; /* own: s->gpu's */
}

/* The GPU's budget. main: main memory beside the process; a GPU without memory of its own gets what
 * a plan says of it, or three quarters of its executors' equal parts. */
static uint64_t gpu_budget(const struct moe_server *s, const struct demand *d, uint64_t main)
{
    const struct moe_coe_plan *p = s->options.plan;
    if (d->n == 0 || s->options.engine.gpu_memory_bytes)
        return s->options.engine.gpu_memory_bytes;
    uint64_t free_bytes = moe_gpu_info(s->gpu)->memory_free_bytes / 100 * FREE_SHARE_PERCENT;
    if (!is_unified(s))
        return free_bytes;
    uint64_t bytes = main / s->n_executors * d->n / 4 * 3;
    if (p)
        bytes = part_of(planned_bytes(p, true),
                        share_of(planned_bytes(p, true) + planned_bytes(p, false), main));
    return moe_larger(smaller(bytes, free_bytes), least_on_gpu(d));
}

static int refuse_budget(const struct moe_server *s, uint64_t bytes, uint64_t floor, bool on_gpu,
                         struct moe_err *err)
{
    char have[32], need[32];
    return moe_fail(err, MOE_ERR_LIMIT,
                    "a budget of %s%s is too small: the smallest that works is %s (--%s %" PRIu64
                    "M; a shorter context -c needs less%s)",
                    moe_format_at_most(bytes, have), on_gpu ? " on the GPU" : "",
                    moe_format_at_least(floor, need), on_gpu ? "gpu-memory" : "memory",
                    (floor + (1 << 20) - 1) >> 20,
                    s->n_executors > 1 ? ", and fewer executors do" : "");
}

static int divide_gpu(struct moe_server *s, const struct demand *d, struct moe_err *err)
{
    const uint64_t least = least_on_gpu(d);
    if (d->n == 0)
        return MOE_OK;
    if (least > s->gpu_bytes)
        return refuse_budget(s, s->gpu_bytes, least, true, err);
    const uint64_t left = s->gpu_bytes - MOE_GPU_OWN_BYTES;
    if (s->options.plan)
        return follow_plan(s, true, share_of(planned_bytes(s->options.plan, true), left), d, err);
    for (uint32_t i = 0; i < s->n_executors; i++)
        if (s->executors[i].options.device.cuda)
            split_executor(&s->executors[i], left / d->n, d, d->least.gpu,
                           d->full.gpu + GRAPH_BYTES);
    return MOE_OK;
}

/* What models on the GPU need of main memory beside it. All such executors have equal parts. */
static void look_beside(const struct moe_server *s, struct demand *d)
{
    uint64_t smallest = UINT64_MAX, room = 0;
    d->kept = d->passing = d->host_least = d->host_all = 0;
    for (uint32_t k = 0; k < s->n_executors; k++) {
        const struct executor *x = &s->executors[k];
        if (!x->options.device.cuda)
            continue;
        room = moe_larger(room, x->expert_bytes);
        for (uint32_t i = 0; i < s->n_models; i++) {
            const struct moe_needs_on *gpu = &s->models[i].on[true];
            if (!runs_on(s, i, true))
                continue;
            smallest = smaller(smallest, memory_of_model(x, &s->models[i]));
            d->kept = moe_larger(d->kept, gpu->kept);
            d->passing = moe_larger(d->passing, gpu->passing);
            if (memory_is_whole(x, &s->models[i]))
                continue;
            d->host_least = moe_larger(d->host_least, gpu->host_least);
            d->host_all = moe_larger(d->host_all, gpu->host_all);
        }
    }
    uint64_t n = smallest && smallest < UINT64_MAX ? room / smallest : 1;
    d->n_models = (uint32_t)moe_larger(smaller(n, s->n_models), 1);
}

static uint64_t least_beside(const struct demand *d)
{
    return moe_larger(d->kept + d->passing, d->host_least) + d->least.host;
}

/* Divides `bytes` of main memory, which an executor has beside its GPU, between models and batches.
 */
static void split_beside(struct executor *x, uint64_t bytes, const struct demand *d)
{
    uint64_t want = moe_larger(d->n_models * d->kept + d->passing, d->host_all);
    uint64_t least = least_beside(d) - d->least.host;
    uint64_t batch = bytes > want ? bytes - want : 0;
    batch = moe_larger(batch, bytes / 4);
    batch = moe_larger(smaller(batch, d->full.host), d->least.host);
    batch = smaller(batch, bytes - least);
    x->host_batch_bytes = batch;
    x->host_expert_bytes = bytes - batch;
    uint64_t n = d->kept ? (x->host_expert_bytes - d->passing) / d->kept : d->n_models;
    x->most_models = n < d->n_models ? (uint32_t)n : 0;
}

/* Returns what they take. */
static uint64_t divide_beside(struct moe_server *s, uint64_t left, const struct demand *gpu,
                              uint64_t others_least)
{
    uint64_t want =
        moe_larger(gpu->n_models * gpu->kept + gpu->passing, gpu->host_all) + gpu->full.host;
    if (gpu->n == 0)
        return 0;
    uint64_t bytes = smaller(want, moe_larger(least_beside(gpu), left / s->n_executors));
    bytes = smaller(bytes, (left - others_least) / gpu->n);
    for (uint32_t i = 0; i < s->n_executors; i++)
        if (s->executors[i].options.device.cuda)
            split_beside(&s->executors[i], bytes, gpu);
    return gpu->n * bytes;
}

/* ---- Main memory ---- */

bool memory_in_tier(const struct moe_server *s, uint32_t model)
{
    bool may = s->gpu && !is_unified(s) && runs_on(s, model, true);
    for (uint32_t k = 0; k < s->n_executors && may; k++)
        may = !s->executors[k].options.device.cuda ||
              memory_is_whole(&s->executors[k], &s->models[model]);
    return may;
}

/* What the tier holds at most. */
static uint64_t all_images(const struct moe_server *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_models; i++)
        bytes += memory_in_tier(s, i) ? moe_round_up(s->models[i].file_bytes, MOE_PACK_ALIGN) : 0;
    return bytes;
}

/* The process with its models described, and statistics that all of them share. */
static uint64_t program_bytes(const struct moe_server *s)
{
    const struct moe_engine_options *o = &s->options.engine;
    return o->program_bytes ? o->program_bytes
                            : moe_program_bytes(s->gpu != NULL) + SERVER_BYTES +
                                  s->n_models * MODEL_BYTES + s->n_kinds * sizeof *s->needs +
                                  (o->statistics ? moe_statistics_held_bytes(o->statistics) : 0);
}

/* What belongs to no executor, without waiting requests. */
static uint64_t process_bytes(const struct moe_server *s)
{
    int n_threads = 0;
    for (uint32_t i = 0; i < s->n_executors; i++)
        n_threads += s->executors[i].options.n_threads;
    return program_bytes(s) + moe_threads_bytes(n_threads) +
           (1 + (uint64_t)s->n_executors) * THREAD_BYTES + s->options.beside_bytes;
}

/* Bytes for waiting requests: a part of the budget, where everything else needs `others`. */
static uint64_t queue_bytes(const struct moe_server *s, uint64_t others)
{
    uint64_t queue = s->memory_bytes / QUEUE_PART, left = s->memory_bytes - others;
    queue = queue < MOST_QUEUE_BYTES ? queue : MOST_QUEUE_BYTES;
    queue = queue < left ? queue : left;
    return queue > LEAST_QUEUE_BYTES ? queue : LEAST_QUEUE_BYTES;
}

/* Bytes for each request that is read, where `spare` are left for all that read at a time. */
static uint64_t reading_bytes(const struct moe_server *s, uint64_t spare)
{
    uint64_t wanted = smaller(s->memory_bytes / READING_PART, MOST_READING);
    uint64_t most = SERVER_LEAST_READING + spare / (1 + s->n_executors);
    wanted = wanted > SERVER_LEAST_READING ? wanted : SERVER_LEAST_READING;
    return smaller(wanted, most);
}

static int most_threads(const struct moe_server *s)
{
    int most = 1;
    for (uint32_t i = 0; i < s->n_executors; i++)
        most = s->executors[i].options.n_threads > most ? s->executors[i].options.n_threads : most;
    return most;
}

/* The budget of main memory: named, or the plan's without its GPUs' memory, or what is free. */
static uint64_t budget_of(const struct moe_server *s)
{
    const struct moe_coe_plan *plan = s->options.plan;
    uint64_t named = s->options.engine.memory_bytes;
    if (named || plan)
        return named ? named
                     : plan->memory_bytes -
                           (is_unified(s) ? 0
                                          : smaller(plan->memory_bytes, planned_bytes(plan, true)));
    return smaller(moe_engine_free_bytes(program_bytes(s)), UINT64_MAX / 2);
}

/* Divides what executors on a GPU leave of main memory among those on the processor and the tier.
 */
static int divide_rest(struct moe_server *s, uint64_t left, const struct demand *cpu,
                       const struct demand *gpu, struct moe_err *err)
{
    const struct moe_coe_plan *plan = s->options.plan;
    uint64_t tier = left - cpu->n * (cpu->least_model + cpu->least.host);
    if (plan) {
        double share = share_of(planned_bytes(plan, false) + plan->host_bytes, left);
        s->host_bytes = smaller(part_of(plan->host_bytes, share), all_images(s));
        return follow_plan(s, false, share, cpu, err);
    }
    tier = smaller(tier, left / s->n_executors * gpu->n);
    s->host_bytes = smaller(tier, all_images(s));
    for (uint32_t i = 0; i < s->n_executors; i++)
        if (!s->executors[i].options.device.cuda)
            split_executor(&s->executors[i], (left - s->host_bytes) / cpu->n, cpu, cpu->least.host,
                           cpu->full.host);
    return MOE_OK;
}

/* Divides `bytes` of the GPU's memory. *needed: main memory for that beside `fixed` bytes; where
 * the GPU has none of its own, these bytes are part of it. */
static int settle_gpu(struct moe_server *s, struct demand *gpu, uint64_t bytes, uint64_t fixed,
                      uint64_t *needed, struct moe_err *err)
{
    s->gpu_bytes = gpu->n ? bytes : 0;
    int status = divide_gpu(s, gpu, err);
    look_beside(s, gpu);
    *needed = fixed + gpu->n * least_beside(gpu) + (is_unified(s) ? s->gpu_bytes : 0);
    return status;
}

int memory_divide(struct moe_server *s, struct moe_err *err)
{
    s->memory_bytes = budget_of(s);
    int before = moe_par_set_team(most_threads(s));
    struct demand cpu = demand_of(s, false), gpu = demand_of(s, true);
    moe_par_set_team(before);
    uint64_t process = process_bytes(s), others = cpu.n * (cpu.least_model + cpu.least.host);
    uint64_t n_readers = 1 + s->n_executors; /* executors read prompts */
    uint64_t fixed = process + others + LEAST_QUEUE_BYTES + n_readers * SERVER_LEAST_READING,
             least = least_on_gpu(&gpu), needed;
    uint64_t bytes = gpu_budget(s, &gpu, s->memory_bytes - smaller(process, s->memory_bytes));
    bool gives = is_unified(s) && !s->options.engine.gpu_memory_bytes && !s->options.plan;
    const struct moe_statistics *statistics = s->options.engine.statistics; /* read before */
    const uint64_t reading = program_bytes(s) + (statistics ? statistics->read_bytes : 0);
    MOE_TRY(settle_gpu(s, &gpu, gives ? least : bytes, fixed, &needed, err));
    s->floor_bytes = needed > reading ? needed : reading;
    if (s->floor_bytes > s->memory_bytes)
        return refuse_budget(s, s->memory_bytes, s->floor_bytes, false, err);
    if (gives)
        MOE_TRY(settle_gpu(s, &gpu, bytes, fixed, &needed, err));
    if (needed > s->memory_bytes) /* the processor's first */
        MOE_TRY(settle_gpu(s, &gpu, least, fixed, &needed, err));
    s->request_bytes_max = queue_bytes(s, needed - LEAST_QUEUE_BYTES);
    s->reading_bytes =
        reading_bytes(s, s->memory_bytes - (needed - LEAST_QUEUE_BYTES) - s->request_bytes_max);
    uint64_t left = s->memory_bytes - process - s->request_bytes_max - n_readers * s->reading_bytes;
    left -= is_unified(s) ? s->gpu_bytes : 0;
    left -= divide_beside(s, left, &gpu, others);
    return divide_rest(s, left, &cpu, &gpu, err);
}

/* ---- Models kept in host memory ---- */

enum place { AWAY, COMING, THERE };

/* A pack in memory. The pool says which ones have room; who reads one holds it. */
struct image {
    enum place place;
    uint32_t n_holds;
    struct moe_pack_image file; /* owned */
    struct stat of;             /* the file when it was read: another one is read anew */
};

struct host_tier {
    struct moe_coe_pool *pool;
    struct image *images; /* [n_models] */
    uint64_t *sizes;      /* [n_models] */
    uint32_t *evicted;    /* [n_models] */
    pthread_cond_t came;  /* one is there, or could not be read */
    uint64_t bytes;
    uint32_t n; /* there */
};

/* ---- Opening ---- */

int host_tier_open(struct moe_server *s, struct moe_err *err)
{
    if (s->host_bytes == 0)
        return MOE_OK;
    struct host_tier *h = moe_alloc(1, sizeof *h, err);
    if (!h)
        return MOE_ERR_MEMORY;
    s->host = h;
    pthread_cond_init(&h->came, NULL);
    h->images = moe_alloc(s->n_models, sizeof *h->images, err);
    h->sizes = moe_alloc(s->n_models, sizeof *h->sizes, err);
    h->evicted = moe_alloc(s->n_models, sizeof *h->evicted, err);
    if (!h->images || !h->sizes || !h->evicted)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < s->n_models; i++)
        h->sizes[i] = memory_in_tier(s, i) ? moe_round_up(s->models[i].file_bytes, MOE_PACK_ALIGN)
                                           : UINT64_MAX;
    int status = moe_coe_pool_open(&h->pool, s->all, s->host_bytes, s->options.evict, err);
    if (status == MOE_OK)
        moe_coe_pool_set_sizes(h->pool, h->sizes);
    return status;
}

void host_tier_close(struct moe_server *s)
{
    struct host_tier *h = s->host;
    if (!h)
        return;
    for (uint32_t i = 0; h->images && i < s->n_models; i++)
        moe_pack_image_free(&h->images[i].file);
    moe_coe_pool_close(h->pool);
    pthread_cond_destroy(&h->came);
    free(h->images);
    free(h->sizes);
    free(h->evicted);
    free(h);
    s->host = NULL;
}

bool host_tier_has(const struct moe_server *s, uint32_t model)
{
    return s->host && s->host->images[model].place == THERE;
}

void host_tier_count(const struct moe_server *s, uint64_t *bytes, uint32_t *n)
{
    *bytes = s->host ? s->host->bytes : 0;
    *n = s->host ? s->host->n : 0;
}

/* ---- Reading ---- */

static bool is_closing(void *server)
{
    struct moe_server *s = server;
    pthread_mutex_lock(&s->mutex);
    bool closing = s->closing;
    pthread_mutex_unlock(&s->mutex);
    return closing;
}

static bool is_as_read(const char *path, const struct stat *was)
{
    struct stat now;
    return stat(path, &now) == 0 && now.st_dev == was->st_dev && now.st_ino == was->st_ino &&
           now.st_size == was->st_size && now.st_mtim.tv_sec == was->st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == was->st_mtim.tv_nsec;
}

/* Takes an image that nobody holds out of the tier: free_image. Under the mutex. */
static struct moe_pack_image remove_image(struct host_tier *h, uint32_t model)
{
    struct image *i = &h->images[model];
    struct moe_pack_image file = i->file;
    if (i->place == THERE) {
        h->bytes -= h->sizes[model];
        h->n--;
    }
    *i = (struct image){.place = AWAY};
    return file;
}

/* Makes room and holds it. False: there is none. The mutex is held before and after. */
static bool make_room_in_tier(struct moe_server *s, uint32_t model)
{
    struct host_tier *h = s->host;
    uint32_t n;
    if (!moe_coe_pool_admit(h->pool, model, h->evicted, &n))
        return false;
    moe_coe_pool_hold(h->pool, model);
    h->images[model].place = COMING;
    h->images[model].n_holds = 1;
    /* Freed under the mutex: what others read meanwhile would be beside it. */
    for (uint32_t i = 0; i < n; i++) {
        struct moe_pack_image file = remove_image(h, h->evicted[i]);
        moe_pack_image_free(&file);
    }
    return true;
}

/* Reads what has room. The mutex is held before and after. */
static int read_image(struct moe_server *s, uint32_t model, struct moe_err *err)
{
    struct host_tier *h = s->host;
    struct image *i = &h->images[model];
    pthread_mutex_unlock(&s->mutex);
    /* A file that changes after this is read anew next time. */
    const char *path = s->models[model].path;
    int status;
    MOE_STEP(stat(path, &i->of) == 0
                 ? MOE_OK
                 : moe_fail(err, MOE_ERR_IO, "%s: cannot open: %s", path, strerror(errno)));
    MOE_STEP(moe_pack_image_read(&i->file, path, h->sizes[model], is_closing, s, err));
out:
    pthread_mutex_lock(&s->mutex);
    if (status == MOE_OK) {
        i->place = THERE;
        h->bytes += h->sizes[model];
        h->n++;
    } else {
        moe_coe_pool_drop(h->pool, model);
        struct moe_pack_image file = remove_image(h, model);
        moe_pack_image_free(&file);
    }
    pthread_cond_broadcast(&h->came);
    return status;
}

int host_tier_hold(struct moe_server *s, uint32_t model, bool may_read,
                   struct moe_pack_image *image, bool *was_there, struct moe_err *err)
{
    struct host_tier *h = s->host;
    int status = MOE_OK;
    *image = (struct moe_pack_image){NULL, 0};
    *was_there = false;
    if (!h || h->sizes[model] == UINT64_MAX)
        return MOE_OK;
    struct image *i = &h->images[model];
    pthread_mutex_lock(&s->mutex);
    while (i->place == COMING && may_read)
        pthread_cond_wait(&h->came, &s->mutex);
    if (i->place == THERE && i->n_holds == 0 && !is_as_read(s->models[model].path, &i->of)) {
        moe_coe_pool_drop(h->pool, model);
        struct moe_pack_image file = remove_image(h, model);
        moe_pack_image_free(&file);
    }
    if (i->place == THERE) {
        *was_there = true;
        i->n_holds++;
        moe_coe_pool_use(h->pool, model);
        moe_coe_pool_hold(h->pool, model);
    } else if (may_read && i->place == AWAY && make_room_in_tier(s, model)) {
        status = read_image(s, model, err);
    }
    if (status == MOE_OK && i->place == THERE)
        *image = i->file;
    pthread_mutex_unlock(&s->mutex);
    return status;
}

void host_tier_release(struct moe_server *s, uint32_t model, bool keep)
{
    struct host_tier *h = s->host;
    struct moe_pack_image file = {NULL, 0};
    pthread_mutex_lock(&s->mutex);
    moe_coe_pool_release(h->pool, model);
    if (--h->images[model].n_holds == 0 && !keep) {
        moe_coe_pool_drop(h->pool, model);
        file = remove_image(h, model);
    }
    pthread_mutex_unlock(&s->mutex);
    moe_pack_image_free(&file);
}

int host_tier_fill(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err)
{
    struct host_tier *h = s->host;
    uint32_t model;
    int status = MOE_OK;
    if (!h)
        return MOE_OK;
    pthread_mutex_lock(&s->mutex);
    while (status == MOE_OK && (model = moe_coe_pool_likeliest(h->pool)) != MOE_COE_NONE) {
        moe_progress_report(progress, "packs into main memory", h->bytes, s->host_bytes);
        if (moe_progress_stopped(progress)) {
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
        } else if (make_room_in_tier(s, model)) {
            if (read_image(s, model, NULL) == MOE_OK) {
                moe_coe_pool_release(h->pool, model);
                h->images[model].n_holds--;
            } else {
                h->sizes[model] = UINT64_MAX; /* requests for it say why */
            }
        }
    }
    pthread_mutex_unlock(&s->mutex);
    return status;
}
