#define _POSIX_C_SOURCE 200809L /* pthread */
#include "serve/server.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "serve/executor.h"
#include "serve/job.h"
#include "serve/models.h"

/* Requests without a model's name, where rules lead to models. */
#define BY_RULES "auto"

enum { PATIENCE_SECONDS = 10 };

/* ---- Opening ---- */

static struct moe_server_options complete(const struct moe_server_options *given)
{
    struct moe_server_options o = *given;
    if (o.sequences == 0)
        o.sequences = MOE_SERVER_SEQUENCES;
    if (o.max_queue == 0)
        o.max_queue = MOE_SERVER_MAX_QUEUE;
    if (o.n_executors == 0)
        o.n_executors = 1;
    if (!(o.patience > 0))
        o.patience = PATIENCE_SECONDS;
    return o;
}

static int open_slots(struct moe_server *s, struct moe_err *err)
{
    s->n_slots = s->options.max_queue;
    s->slots = moe_alloc(s->n_slots, sizeof(struct asked *), err);
    s->free_slots = moe_alloc(s->n_slots, sizeof *s->free_slots, err);
    if (!s->slots || !s->free_slots)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < s->n_slots; i++)
        s->free_slots[s->n_free++] = s->n_slots - 1 - i;
    return MOE_OK;
}

static int open_executors(struct moe_server *s, struct moe_err *err)
{
    const struct moe_server_options *o = &s->options;
    s->executors = moe_alloc(o->n_executors, sizeof *s->executors, err);
    if (!s->executors)
        return MOE_ERR_MEMORY;
    s->n_executors = o->n_executors;
    for (uint32_t i = 0; i < s->n_executors; i++) {
        struct executor *x = &s->executors[i];
        *x = (struct executor){.server = s, .index = i, .model = MOE_COE_NONE};
        pthread_cond_init(&x->wake, NULL);
        if (o->executors)
            x->options = o->executors[i];
        else
            x->options.device = o->engine.device;
        if (x->options.n_threads == 0)
            x->options.n_threads = moe_par_threads() / (int)s->n_executors;
        if (x->options.n_threads < 1)
            x->options.n_threads = 1;
        x->counts.device = x->options.device.cuda ? "cuda" : "cpu";
        x->loaded = moe_alloc(s->n_models, sizeof *x->loaded, err);
        if (!x->loaded)
            return MOE_ERR_MEMORY;
    }
    return MOE_OK;
}

static int open_dispatch(struct moe_server *s, struct moe_err *err)
{
    struct moe_coe_executor_options executors[MOE_SERVER_MAX_EXECUTORS] = {0};
    s->experts = moe_alloc(s->n_models, sizeof *s->experts, err);
    if (!s->experts)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < s->n_models; i++)
        s->experts[i] = (struct moe_coe_expert){.bytes = 1};
    s->all = (struct moe_coe_experts){.n = s->n_models, .n_kinds = 1, .experts = s->experts};
    s->cost = (struct moe_coe_cost){
        .per_request = 1, .per_batch = 1, .load = 1, .max_batch = s->options.sequences};
    for (uint32_t i = 0; i < s->n_executors; i++)
        executors[i] =
            (struct moe_coe_executor_options){.costs = &s->cost, .expert_bytes = s->n_models};
    const struct moe_coe_options o = {
        .all = &s->all,
        .n_executors = s->n_executors,
        .executors = executors,
        .arrange = s->options.schedule != MOE_SCHEDULE_FCFS,
        .assign = s->options.schedule == MOE_SCHEDULE_COSERVE ? MOE_COE_ASSIGN_LEAST
                                                              : MOE_COE_ASSIGN_ROUND_ROBIN,
        .evict = s->options.evict,
    };
    return moe_coe_dispatch_open(&s->dispatch, &o, err);
}

static void load_first(void *ctx, uint32_t executor, uint32_t model)
{
    (void)ctx, (void)executor, (void)model;
}

static int open_all(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err)
{
    if (s->options.collection || s->options.n_executors > 1)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "several models, or executors, are not served yet");
    int status = models_list(s, err);
    if (status == MOE_OK)
        status = open_slots(s, err);
    if (status == MOE_OK)
        status = open_executors(s, err);
    if (status == MOE_OK)
        status = open_dispatch(s, err);
    if (status == MOE_OK)
        status = model_load(&s->executors[0], 0, progress, err);
    if (status == MOE_OK)
        status = moe_coe_place(s->dispatch, load_first, s, err);
    for (uint32_t i = 0; i < s->n_executors && status == MOE_OK; i++)
        status = executor_start(&s->executors[i], err);
    return status;
}

int moe_server_open(struct moe_server **out, const struct moe_server_options *options,
                    const struct moe_progress *progress, struct moe_err *err)
{
    *out = NULL;
    struct moe_server *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    s->options = complete(options);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->idle, NULL);
    int status = open_all(s, progress, err);
    if (status != MOE_OK) {
        moe_server_close(s);
        return status;
    }
    s->opened = moe_seconds();
    *out = s;
    return MOE_OK;
}

/* ---- Requests ---- */

const char *moe_server_model(const struct moe_server *s, uint32_t i)
{
    const struct moe_coe_collection *c = s->options.collection;
    if (i < s->n_models)
        return s->models[i].name;
    return i == s->n_models && c && (c->n_routes || c->n_scores) ? BY_RULES : NULL;
}

static const char *field(void *ctx, const char *name)
{
    return moe_request_field(ctx, name);
}

static int choose_model(const struct moe_server *s, struct moe_request *r, uint32_t *model,
                        struct moe_err *err)
{
    *model = MOE_COE_NONE;
    for (uint32_t i = 0; r->model && i < s->n_models; i++)
        if (strcmp(s->models[i].name, r->model) == 0)
            *model = i;
    if (*model != MOE_COE_NONE)
        return MOE_OK;
    if (r->model && strcmp(r->model, BY_RULES) != 0)
        return moe_fail(err, MOE_ERR_USAGE, "the model '%s' is not served here", r->model);
    *model = s->n_models == 1 ? 0 : moe_coe_route(s->options.collection, field, r);
    if (*model == MOE_COE_NONE)
        return moe_fail(err, MOE_ERR_USAGE,
                        "no rule of the collection takes the request: name a 'model'");
    return MOE_OK;
}

/* Ends its jobs that have not ended. Under the mutex. */
static void cancel(struct moe_server *s, struct asked *a)
{
    for (uint32_t i = 0; i < a->request->n; i++) {
        struct job *j = &a->jobs[i];
        struct executor *x = &s->executors[j->executor];
        if (j->state == JOB_ENDED || j->cancelled)
            continue;
        if (j->state == JOB_WAITS)
            moe_coe_withdraw(s->dispatch, j->executor, &j->queued);
        j->state = JOB_TAKEN;
        j->cancelled = true;
        j->next_cancelled = x->cancelled;
        x->cancelled = j;
        pthread_cond_signal(&x->wake);
    }
}

/* All jobs, or none. Under the mutex. */
static int queue_all(struct moe_server *s, struct asked *a, uint32_t model, struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t i = 0; i < a->request->n && status == MOE_OK; i++) {
        a->jobs[i].queued.expert = model;
        status = job_queue(s, &a->jobs[i], err);
    }
    for (uint32_t i = 0; i < a->request->n && status != MOE_OK; i++)
        if (a->jobs[i].state == JOB_WAITS)
            moe_coe_withdraw(s->dispatch, a->jobs[i].executor, &a->jobs[i].queued);
    return status;
}

int moe_server_submit(struct moe_server *s, struct moe_request *r,
                      const struct moe_server_events *events, uint64_t *id, struct moe_err *err)
{
    struct asked *a = NULL;
    uint32_t model;
    int status = choose_model(s, r, &model, err);
    if (status != MOE_OK)
        return status;
    pthread_mutex_lock(&s->mutex);
    if (s->closing)
        status = moe_fail(err, MOE_ERR_LIMIT, "the server is ending");
    else
        status = asked_new(&a, s, r, events, err);
    s->counts.refused += status == MOE_ERR_LIMIT;
    if (status == MOE_OK && (status = queue_all(s, a, model, err)) != MOE_OK)
        asked_free(s, a, false);
    s->counts.requests += status == MOE_OK;
    if (status == MOE_OK && id)
        *id = a->id;
    pthread_mutex_unlock(&s->mutex);
    return status;
}

void moe_server_cancel(struct moe_server *s, uint64_t id)
{
    pthread_mutex_lock(&s->mutex);
    struct asked *a = asked_find(s, id);
    if (a)
        cancel(s, a);
    pthread_mutex_unlock(&s->mutex);
}

void moe_server_drain(struct moe_server *s)
{
    pthread_mutex_lock(&s->mutex);
    while (s->n_free < s->n_slots)
        pthread_cond_wait(&s->idle, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}

/* ---- Figures ---- */

void moe_server_count(struct moe_server *s, struct moe_server_counts *out)
{
    pthread_mutex_lock(&s->mutex);
    *out = s->counts;
    out->n_executors = s->n_executors;
    for (uint32_t i = 0; i < s->n_executors; i++) {
        const struct executor *x = &s->executors[i];
        out->executors[i] = x->counts;
        out->executors[i].waiting = moe_coe_waiting(s->dispatch, i);
        out->waiting += out->executors[i].waiting;
        out->running += x->counts.running;
        out->schedule_seconds += x->counts.schedule_seconds;
    }
    pthread_mutex_unlock(&s->mutex);
    out->seconds = moe_seconds() - s->opened;
    out->memory_bytes = s->memory_bytes;
    out->floor_bytes = s->floor_bytes;
    out->rss_bytes = moe_rss_bytes();
}

/* ---- Closing ---- */

static void stop_executors(struct moe_server *s)
{
    pthread_mutex_lock(&s->mutex);
    s->closing = true;
    for (uint32_t i = 0; s->slots && i < s->n_slots; i++)
        if (s->slots[i])
            cancel(s, s->slots[i]);
    for (uint32_t i = 0; i < s->n_executors; i++)
        pthread_cond_signal(&s->executors[i].wake);
    pthread_mutex_unlock(&s->mutex);
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
    }
    free(s->executors);
    moe_coe_dispatch_close(s->dispatch);
    models_free(s);
    free(s->experts);
    free(s->slots);
    free(s->free_slots);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}
