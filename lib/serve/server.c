/* Opens and closes a server, and counts what it does. */
#define _POSIX_C_SOURCE 200809L /* pthread */
#include "serve/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "gpu.h"
#include "serve/server_internal.h"

enum { PATIENCE_SECONDS = 10, LEAST_QUEUE_BYTES = 1 << 20, WHOLE_READING = 8 << 20 };

/* ---- Opening ---- */

static struct moe_server_options complete(const struct moe_server_options *given)
{
    struct moe_server_options o = *given;
    if (o.sequences == 0)
        o.sequences = MOE_SERVER_SEQUENCES;
    if (o.max_queue == 0)
        o.max_queue = MOE_SERVER_MAX_QUEUE;
    if (!(o.patience > 0))
        o.patience = PATIENCE_SECONDS;
    if (!o.schedule)
        o.schedule = moe_coe_schedule_find("coserve");
    if (o.prompt_cache.directory) {
        uint32_t n = o.n_executors ? o.n_executors : 1, context = o.engine.session.context;
        o.beside_bytes += moe_prompt_cache_bytes(context ? context : o.engine.context_cap, n);
        o.engine.session.whole_windows = true; /* else their texts could not be kept */
    }
    o.engine.session.takes_back = o.draft > 0;
    o.engine.session.n_snapshots = MOE_SNAPSHOTS * o.sequences;
    return o;
}

static int open_slots(struct moe_server *s, struct moe_err *err)
{
    s->n_slots = s->options.max_queue;
    s->slots = moe_alloc(s->n_slots, sizeof(struct request *), err);
    s->free_slots = moe_alloc(s->n_slots, sizeof *s->free_slots, err);
    if (!s->slots || !s->free_slots)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < s->n_slots; i++)
        s->free_slots[s->n_free++] = s->n_slots - 1 - i;
    return MOE_OK;
}

/* A plan's threads, if the machine has as many. */
static int planned_threads(const struct moe_coe_plan_executors *e)
{
    uint64_t all = (uint64_t)e->number * e->threads;
    return all <= (uint64_t)moe_par_threads() ? (int)e->threads : 0;
}

/* Lists the executors of the plan, or those named, or one. */
static uint32_t name_executors(const struct moe_server_options *o,
                               struct moe_server_executor to[MOE_SERVER_MAX_EXECUTORS])
{
    const struct moe_coe_plan *p = o->plan;
    uint32_t n = 0;
    for (uint32_t i = 0; p && i < p->n_executors; i++)
        for (uint32_t k = 0; k < p->executors[i].number && n < MOE_SERVER_MAX_EXECUTORS; k++) {
            to[n].n_threads = planned_threads(&p->executors[i]);
            to[n++].device.cuda = strcmp(p->executors[i].device, "cuda") == 0;
        }
    for (uint32_t i = 0; !p && i < o->n_executors && n < MOE_SERVER_MAX_EXECUTORS; i++)
        to[n++] = o->executors[i];
    if (n == 0)
        to[n++].device = o->engine.device;
    for (uint32_t i = 0; i < n; i++)
        to[i].device.index = o->engine.device.index;
    return n;
}

/* Divides threads: one for each executor on a GPU, which only starts computations; the rest for the
 * others. */
static void share_threads(struct moe_server_executor *named, uint32_t n)
{
    int n_cuda = 0, all = moe_par_threads();
    for (uint32_t i = 0; i < n; i++)
        n_cuda += named[i].device.cuda;
    int n_cpu = (int)n - n_cuda, each = n_cpu ? (all - n_cuda) / n_cpu : 1;
    for (uint32_t i = 0; i < n; i++)
        if (named[i].n_threads == 0)
            named[i].n_threads = n == 1 ? all : named[i].device.cuda || each < 1 ? 1 : each;
}

static int open_executors(struct moe_server *s, struct moe_err *err)
{
    struct moe_server_executor named[MOE_SERVER_MAX_EXECUTORS];
    memset(named, 0, sizeof named);
    uint32_t n = name_executors(&s->options, named);
    share_threads(named, n);
    s->executors = moe_alloc(n, sizeof *s->executors, err);
    if (!s->executors)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        struct executor *x = &s->executors[s->n_executors++];
        *x = (struct executor){.server = s,
                               .index = i,
                               .options = named[i],
                               .model = MOE_COE_NONE,
                               .to_load = MOE_COE_NONE};
        pthread_cond_init(&x->wake, NULL);
        pthread_cond_init(&x->load, NULL);
        pthread_cond_init(&x->is_loaded, NULL);
        x->loaded = moe_alloc(s->n_models, sizeof *x->loaded, err);
        if (!x->loaded)
            return MOE_ERR_MEMORY;
    }
    const struct moe_ranks *ranks = s->options.engine.ranks;
    s->whole = (named[0].device.cuda || ranks) && n == 1 && s->n_models == 1;
    if (ranks && (!s->whole || !s->own))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "several ranks serve one model with one executor: start one process "
                        "without mpirun for more");
    return MOE_OK;
}

/* Opens the GPU that several engines will share, to measure its memory, before the process is
 * measured. --device auto works without one. */
static int find_gpu(struct moe_server *s, struct moe_err *err)
{
    struct moe_err why;
    int status = MOE_OK;
    for (uint32_t i = 0; i < s->n_executors && !s->whole && !s->gpu; i++) {
        struct moe_device_choice *device = &s->executors[i].options.device;
        if (!device->cuda)
            continue;
        status = moe_gpu_open(&s->gpu, device->index, &why);
        if (status != MOE_OK && device->automatic) {
            *device = (struct moe_device_choice){0};
            status = MOE_OK;
        } else if (status != MOE_OK) {
            return moe_fail(err, status, "executors on cuda: %s", why.text);
        }
    }
    for (uint32_t i = 0; i < s->n_executors; i++)
        s->executors[i].counts.device = s->executors[i].options.device.cuda ? "cuda" : "cpu";
    return status;
}

/* Refuses a cache kind that not all executors have. */
static int check_kv(const struct moe_server *s, struct moe_err *err)
{
    uint16_t kind = s->options.engine.session.kv_kind;
    for (uint32_t i = 0; i < s->n_executors; i++)
        if (s->executors[i].options.device.cuda && !moe_kv_on_gpu(kind))
            return moe_fail(err, MOE_ERR_USAGE, MOE_KV_ON_GPU, moe_kv_kind_name(kind));
    return MOE_OK;
}

/* An engine that has all memory reveals its needs only once open. */
static int skip_survey(struct moe_server *s, struct moe_err *err)
{
    s->needs = moe_alloc(s->n_kinds = 1, sizeof *s->needs, err);
    return s->needs ? MOE_OK : MOE_ERR_MEMORY;
}

static void load_first(void *ctx, uint32_t executor, uint32_t model)
{
    struct moe_server *s = ctx;
    executor_load(&s->executors[executor], model);
}

static int go_on(const struct moe_progress *progress, struct moe_err *err)
{
    return moe_progress_stopped(progress) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped") : MOE_OK;
}

/* Fills the pools before the first request, then the tier above the disk. A single pack must load.
 */
static int load_models(struct moe_server *s, const struct moe_progress *progress,
                       struct moe_err *err)
{
    s->opening = progress;
    int status = moe_coe_place(s->dispatch, load_first, s, err);
    s->opening = NULL;
    MOE_TRY(status);
    MOE_TRY(go_on(progress, err));
    for (uint32_t i = 0; i < s->n_executors && s->own; i++) {
        const struct loaded *l = &s->executors[i].loaded[0];
        if (l->state == MODEL_FAILED)
            return moe_fail(err, l->status, "%s", l->why ? l->why : "out of memory");
        if (s->whole && l->engine) {
            s->memory_bytes = l->engine->budget.host.total;
            s->floor_bytes = l->engine->budget.host.floor;
            s->gpu_bytes = l->engine->budget.gpu.total;
        }
    }
    return host_tier_fill(s, progress, err);
}

static int open_all(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err)
{
    MOE_TRY(models_list(s, err));
    MOE_TRY(go_on(progress, err));
    MOE_TRY(open_slots(s, err));
    MOE_TRY(open_executors(s, err));
    MOE_TRY(find_gpu(s, err));
    MOE_TRY(check_kv(s, err));
    if (s->whole)
        s->reading_bytes = WHOLE_READING;
    MOE_TRY(s->whole ? skip_survey(s, err) : memory_survey(s, progress, err));
    if (!s->whole)
        MOE_TRY(memory_divide(s, err));
    MOE_TRY(go_on(progress, err));
    MOE_TRY(dispatching_open(s, err));
    MOE_TRY(host_tier_open(s, err));
    if (s->options.prompt_cache.directory)
        MOE_TRY(moe_prompt_cache_open(&s->prompt_cache, &s->options.prompt_cache, err));
    MOE_TRY(go_on(progress, err));
    MOE_TRY(load_models(s, progress, err));
    for (uint32_t i = 0; i < s->n_executors; i++)
        MOE_TRY(executor_start(&s->executors[i], err));
    s->has_reader = pthread_create(&s->reader, NULL, requests_read, s) == 0;
    return s->has_reader ? MOE_OK
                         : moe_fail(err, MOE_ERR_MEMORY, "out of memory: a thread that reads");
}

int moe_server_open(struct moe_server **out, const struct moe_server_options *options,
                    const struct moe_progress *progress, struct moe_err *err)
{
    *out = NULL;
    struct moe_server *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    s->options = complete(options);
    s->passes.stop = &s->ends;
    s->request_bytes_max = LEAST_QUEUE_BYTES;
    s->reading_bytes = SERVER_LEAST_READING;
    s->quick.last = &s->quick.first;
    s->slow.last = &s->slow.first;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->idle, NULL);
    pthread_cond_init(&s->wants_reading, NULL);
    int status = open_all(s, progress, err);
    if (status != MOE_OK) {
        moe_server_close(s);
        return status;
    }
    s->opened = moe_seconds();
    *out = s;
    return MOE_OK;
}

/* ---- Figures ---- */

void moe_server_count(struct moe_server *s, struct moe_server_counts *out)
{
    pthread_mutex_lock(&s->mutex);
    *out = s->counts;
    out->n_executors = s->n_executors;
    out->exact_required = s->options.engine.exact;
    for (uint32_t i = 0; i < s->n_executors; i++) {
        const struct executor *x = &s->executors[i];
        out->executors[i] = x->counts;
        out->executors[i].waiting = moe_coe_waiting(s->dispatch, i);
        out->executors[i].batch_bytes = x->batch_bytes;
        out->preempted += x->batch ? moe_generator_state(x->batch)->n_preempted : 0;
        out->waiting += out->executors[i].waiting;
        out->running += x->counts.running;
        out->schedule_seconds += x->counts.schedule_seconds;
    }
    host_tier_count(s, &out->host_taken, &out->host_models);
    pthread_mutex_unlock(&s->mutex);
    if ((out->keeps_prompts = s->prompt_cache != NULL))
        out->prompt_cache = moe_prompt_cache_count(s->prompt_cache);
    out->gpu_bytes = s->gpu_bytes;
    out->host_bytes = s->host_bytes;
    out->seconds = moe_seconds() - s->opened;
    out->memory_bytes = s->memory_bytes;
    out->floor_bytes = s->floor_bytes;
    out->rss_bytes = moe_rss_bytes();
}

bool moe_server_has_failed(struct moe_server *s, struct moe_err *err)
{
    pthread_mutex_lock(&s->mutex);
    *err = s->failure;
    pthread_mutex_unlock(&s->mutex);
    return err->status != MOE_OK;
}

/* ---- Closing ---- */

static void stop_executors(struct moe_server *s)
{
    pthread_mutex_lock(&s->mutex);
    s->closing = true;
    __atomic_store_n(&s->ends, 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; s->slots && i < s->n_slots; i++)
        if (s->slots[i])
            request_cancel(s, s->slots[i]);
    pthread_cond_signal(&s->wants_reading);
    for (uint32_t i = 0; i < s->n_executors; i++) {
        pthread_cond_signal(&s->executors[i].wake);
        pthread_cond_signal(&s->executors[i].load);
    }
    pthread_mutex_unlock(&s->mutex);
    if (s->has_reader)
        pthread_join(s->reader, NULL);
    for (uint32_t i = 0; i < s->n_executors; i++)
        executor_join(&s->executors[i]);
}

void moe_server_close(struct moe_server *s)
{
    if (!s)
        return;
    stop_executors(s);
    for (uint32_t i = 0; i < s->n_executors; i++) {
        struct executor *x = &s->executors[i];
        for (uint32_t m = 0; x->loaded && m < s->n_models; m++)
            model_unload(x, m);
        free(x->loaded);
        pthread_cond_destroy(&x->wake);
        pthread_cond_destroy(&x->load);
        pthread_cond_destroy(&x->is_loaded);
    }
    free(s->executors);
    for (struct client *c = s->clients, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    host_tier_close(s);
    moe_prompt_cache_close(s->prompt_cache);
    dispatching_close(s);
    moe_gpu_close(s->gpu);
    models_free(s);
    free(s->slots);
    free(s->free_slots);
    pthread_cond_destroy(&s->idle);
    pthread_cond_destroy(&s->wants_reading);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}
