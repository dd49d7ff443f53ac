#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "gpu.h"
#include "serve/memory.h"

enum {
    THREAD_BYTES = 512 << 10, /* of an executor's threads, beside its team's */
    LEAST_QUEUE_BYTES = 1 << 20,
    MOST_QUEUE_BYTES = 64 << 20,
    QUEUE_PART = 32,         /* of the budget is for requests that wait */
    FREE_SHARE_PERCENT = 90, /* of what is free, when no budget is named */
    FLOOR_SLACK = 1 << 20,
    GRAPH_BYTES = 64 << 20, /* of a GPU's, for recordings of passes of one row (gpu.h) */
};
#define CASUAL_SHARE 0.75 /* of an executor's memory, for models (5.1) */

/* What the executors of one kind of processor are asked for. */
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
    return !s->models[model].broken && (!device[0] || strcmp(device, cuda ? "cuda" : "cpu") == 0);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t part(uint64_t whole, double share)
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
        d.least_model = larger(d.least_model, cuda ? m->gpu.least : m->least);
        d.all_models += cuda ? m->gpu.all : m->all;
    }
    if (d.n)
        memory_of_batches(s, cuda, &d.least, &d.full);
    return d;
}

/* ---- An executor's memory ---- */

/* Batches get what the share leaves, but no more than they can use, and each side at least what it
 * works with. */
static void split(struct executor *x, uint64_t bytes, const struct demand *d, uint64_t least_batch,
                  uint64_t full_batch)
{
    const struct moe_server_options *o = &x->server->options;
    double share = o->expert_share > 0 && o->expert_share < 1 ? o->expert_share : CASUAL_SHARE;
    uint64_t batch = bytes - part(bytes, share);
    if (bytes >= d->all_models && bytes - d->all_models > batch)
        batch = bytes - d->all_models; /* models need no more */
    batch = larger(smaller(batch, full_batch), least_batch);
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

/* The executors of the plan have that `share` of what it says, each at least what works. */
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
            uint64_t bytes = part(p->executors[i].expert_bytes, share) +
                             part(p->executors[i].batch_bytes, share);
            if (bytes < d->least_model + least_batch)
                return moe_fail(err, MOE_ERR_LIMIT,
                                "the plan leaves an executor %" PRIu64 " bytes%s: at least %" PRIu64
                                " work (moe-plan --coe with fewer --executors)",
                                bytes, cuda ? " of the GPU" : "", d->least_model + least_batch);
            x->batch_bytes = larger(part(p->executors[i].batch_bytes, share), least_batch);
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

/* main: main memory beside the process. Where the GPU has none of its own, what a plan says, or
 * three quarters of its executors' equal parts. */
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
        bytes = part(planned_bytes(p, true),
                     share_of(planned_bytes(p, true) + planned_bytes(p, false), main));
    return larger(smaller(bytes, free_bytes), least_on_gpu(d));
}

static int divide_gpu(struct moe_server *s, const struct demand *d, struct moe_err *err)
{
    char have[32], need[32];
    uint64_t least = least_on_gpu(d), left;
    if (d->n == 0)
        return MOE_OK;
    if (least > s->gpu_bytes)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "a budget of %s on the GPU is too small: the smallest that works is %s "
                        "(--gpu-memory %" PRIu64
                        "M; a shorter context -c needs less, and fewer executors do)",
                        moe_format_bytes(s->gpu_bytes, have), moe_format_bytes(least, need),
                        (least + (1 << 20) - 1) >> 20);
    left = s->gpu_bytes - MOE_GPU_OWN_BYTES;
    if (s->options.plan)
        return follow_plan(s, true, share_of(planned_bytes(s->options.plan, true), left), d, err);
    for (uint32_t i = 0; i < s->n_executors; i++)
        if (s->executors[i].options.device.cuda)
            split(&s->executors[i], left / d->n, d, d->least.gpu, d->full.gpu + GRAPH_BYTES);
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
        room = larger(room, x->expert_bytes);
        for (uint32_t i = 0; i < s->n_models; i++) {
            const struct moe_engine_gpu_needs *gpu = &s->models[i].gpu;
            if (!runs_on(s, i, true))
                continue;
            smallest = smaller(smallest, memory_of_model(x, &s->models[i]));
            d->kept = larger(d->kept, gpu->kept);
            d->passing = larger(d->passing, gpu->passing);
            if (memory_is_whole(x, &s->models[i]))
                continue;
            d->host_least = larger(d->host_least, gpu->host_least);
            d->host_all = larger(d->host_all, gpu->host_all);
        }
    }
    uint64_t n = smallest && smallest < UINT64_MAX ? room / smallest : 1;
    d->n_models = (uint32_t)larger(smaller(n, s->n_models), 1);
}

static uint64_t least_beside(const struct demand *d)
{
    return larger(d->kept + d->passing, d->host_least) + d->least.host;
}

/* So much of main memory is for what an executor on a GPU needs there. */
static void split_beside(struct executor *x, uint64_t bytes, const struct demand *d)
{
    uint64_t want = larger(d->n_models * d->kept + d->passing, d->host_all);
    uint64_t least = least_beside(d) - d->least.host;
    uint64_t batch = bytes > want ? bytes - want : 0;
    batch = larger(batch, bytes / 4);
    batch = larger(smaller(batch, d->full.host), d->least.host);
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
        larger(gpu->n_models * gpu->kept + gpu->passing, gpu->host_all) + gpu->full.host;
    if (gpu->n == 0)
        return 0;
    uint64_t bytes = smaller(want, larger(least_beside(gpu), left / s->n_executors));
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

/* What belongs to no executor, waiting requests apart. */
static uint64_t process_bytes(const struct moe_server *s)
{
    const struct moe_server_options *o = &s->options;
    uint64_t program = o->engine.program_bytes ? o->engine.program_bytes : moe_rss_bytes();
    return program + moe_engine_process_bytes() + (uint64_t)s->n_executors * THREAD_BYTES +
           o->beside_bytes;
}

/* For requests that wait: a part of the budget, of which others need so much. */
static uint64_t queue_bytes(const struct moe_server *s, uint64_t others)
{
    uint64_t queue = s->memory_bytes / QUEUE_PART, left = s->memory_bytes - others;
    queue = queue < MOST_QUEUE_BYTES ? queue : MOST_QUEUE_BYTES;
    queue = queue < left ? queue : left;
    return queue > LEAST_QUEUE_BYTES ? queue : LEAST_QUEUE_BYTES;
}

static int refuse(const struct moe_server *s, struct moe_err *err)
{
    char have[32], need[32];
    return moe_fail(err, MOE_ERR_LIMIT,
                    "a budget of %s is too small: the smallest that works is %s (--memory %" PRIu64
                    "M; a shorter context -c needs less, and fewer executors do)",
                    moe_format_bytes(s->memory_bytes, have), moe_format_bytes(s->floor_bytes, need),
                    (s->floor_bytes + FLOOR_SLACK + (1 << 20) - 1) >> 20);
}

static int most_threads(const struct moe_server *s)
{
    int most = 1;
    for (uint32_t i = 0; i < s->n_executors; i++)
        most = s->executors[i].options.n_threads > most ? s->executors[i].options.n_threads : most;
    return most;
}

/* Named, or of the plan without what it counts of GPUs, or what is free. */
static uint64_t budget_of(const struct moe_server *s)
{
    const struct moe_coe_plan *plan = s->options.plan;
    uint64_t named = s->options.engine.memory_bytes;
    if (named || plan)
        return named ? named
                     : plan->memory_bytes -
                           (is_unified(s) ? 0
                                          : smaller(plan->memory_bytes, planned_bytes(plan, true)));
    uint64_t free_bytes = moe_available_bytes();
    return free_bytes == UINT64_MAX ? UINT64_MAX / 2
                                    : free_bytes / 100 * FREE_SHARE_PERCENT + moe_rss_bytes();
}

/* What is left when executors on a GPU have what they need of it: to those on the processor, and
 * the tier. */
static int divide_rest(struct moe_server *s, uint64_t left, const struct demand *cpu,
                       const struct demand *gpu, struct moe_err *err)
{
    const struct moe_coe_plan *plan = s->options.plan;
    uint64_t tier = left - cpu->n * (cpu->least_model + cpu->least.host);
    if (plan) {
        double share = share_of(planned_bytes(plan, false) + plan->host_bytes, left);
        s->host_bytes = smaller(part(plan->host_bytes, share), all_images(s));
        return follow_plan(s, false, share, cpu, err);
    }
    tier = smaller(tier, left / s->n_executors * gpu->n);
    s->host_bytes = smaller(tier, all_images(s));
    for (uint32_t i = 0; i < s->n_executors; i++)
        if (!s->executors[i].options.device.cuda)
            split(&s->executors[i], (left - s->host_bytes) / cpu->n, cpu, cpu->least.host,
                  cpu->full.host);
    return MOE_OK;
}

/* Divides so much of the GPU's memory. *needed: of main memory, with `fixed` bytes of it, and with
 * these where they are of it. */
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
    uint64_t process = process_bytes(s), others = cpu.n * (cpu.least_model + cpu.least.host);
    moe_par_set_team(before);
    uint64_t fixed = process + others + LEAST_QUEUE_BYTES, least = least_on_gpu(&gpu), needed;
    uint64_t bytes = gpu_budget(s, &gpu, s->memory_bytes - smaller(process, s->memory_bytes));
    bool gives = is_unified(s) && !s->options.engine.gpu_memory_bytes && !s->options.plan;
    int status = settle_gpu(s, &gpu, gives ? least : bytes, fixed, &needed, err);
    s->floor_bytes = needed;
    if (status == MOE_OK && s->floor_bytes > s->memory_bytes)
        status = refuse(s, err);
    if (status == MOE_OK && gives)
        status = settle_gpu(s, &gpu, bytes, fixed, &needed, err);
    if (status == MOE_OK && needed > s->memory_bytes) /* the processor's first */
        status = settle_gpu(s, &gpu, least, fixed, &needed, err);
    if (status != MOE_OK)
        return status;
    s->request_bytes_max = queue_bytes(s, needed - LEAST_QUEUE_BYTES);
    uint64_t left = s->memory_bytes - process - s->request_bytes_max;
    left -= is_unified(s) ? s->gpu_bytes : 0;
    left -= divide_beside(s, left, &gpu, others);
    return divide_rest(s, left, &cpu, &gpu, err);
}
