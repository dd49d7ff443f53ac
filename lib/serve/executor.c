#define _POSIX_C_SOURCE 200809L /* pthread */
#include "serve/executor.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "gpu.h"
#include "serve/dispatching.h"
#include "serve/job.h"
#include "serve/memory.h"
#include "serve/models.h"

/* ---- Models ---- */

/* Those that have to go are no longer there; one of the executor's threads may call it at a time.
 * The mutex is held before and after. */
static void unload(struct executor *x)
{
    struct moe_server *s = x->server;
    for (uint32_t m = 0; m < s->n_models; m++) {
        struct loaded *l = &x->loaded[m];
        if (!l->leaves)
            continue;
        bool there = l->state == MODEL_READY;
        l->leaves = false;
        l->state = MODEL_ABSENT;
        pthread_mutex_unlock(&s->mutex);
        model_unload(x, m);
        pthread_mutex_lock(&s->mutex);
        x->counts.models_bytes -= there ? memory_of_model(x, &s->models[m]) : 0;
    }
}

/* Loads a model and says how that went. The mutex is held before and after. */
static void load(struct executor *x, uint32_t model)
{
    struct moe_server *s = x->server;
    struct loaded *l = &x->loaded[model];
    struct moe_err err;
    double began = moe_seconds();
    l->state = MODEL_LOADING;
    pthread_mutex_unlock(&s->mutex);
    int status = model_load(x, model, NULL, &err);
    char *why = status == MOE_OK ? NULL : moe_strndup(err.text, strlen(err.text), NULL);
    pthread_mutex_lock(&s->mutex);
    if (status == MOE_OK) {
        l->state = MODEL_READY;
        x->counts.loads++;
        x->counts.host_loads += l->from_host;
        x->counts.bytes_read += l->read_bytes;
        if (!s->counts.inexact[0])
            memcpy(s->counts.inexact, l->engine->exactness.why, sizeof s->counts.inexact);
        x->counts.models_bytes += memory_of_model(x, &s->models[model]);
        dispatching_learn_load(x, model, moe_seconds() - began);
    } else {
        l->state = MODEL_FAILED;
        l->status = status;
        l->why = why;
    }
}

void executor_load(struct executor *x, uint32_t model)
{
    pthread_mutex_lock(&x->server->mutex);
    load(x, model);
    pthread_mutex_unlock(&x->server->mutex);
}

/* Notes who leaves, which the dispatch says until it is asked again. Under the mutex. */
static void note_leaving(struct executor *x, const struct moe_coe_batch *batch)
{
    for (uint32_t i = 0; i < batch->n_evicted; i++)
        x->loaded[batch->evicted[i]].leaves = true;
}

static void close_batch(struct executor *x)
{
    if (!x->batch)
        return;
    struct moe_server *s = x->server;
    pthread_mutex_lock(&s->mutex);
    job_count(x);
    s->counts.preempted += moe_batch_state(x->batch)->n_preempted;
    pthread_mutex_unlock(&s->mutex);
    moe_batch_close(x->batch);
    if (!s->whole)
        moe_engine_close_session(x->loaded[x->model].engine);
    x->batch = NULL;
    x->model = MOE_COE_NONE;
}

/* A session and a batch of the model, which is there. */
static int open_batch(struct executor *x, uint32_t model, struct moe_err *err)
{
    const struct moe_server *s = x->server;
    struct moe_engine *engine = x->loaded[model].engine;
    struct moe_session_options o;
    int status = MOE_OK;
    if (x->model == model)
        return MOE_OK;
    close_batch(x);
    if (!s->whole)
        status = memory_session(x, &s->models[model], &o, err);
    if (status == MOE_OK && !s->whole)
        status = moe_engine_open_session(engine, &o, err);
    if (status != MOE_OK)
        return status;
    if (!s->whole && engine->gpu) /* what is left of both parts is for recordings */
        moe_gpu_set_budget(engine->gpu, memory_of_model(x, &s->models[model]) + x->batch_bytes);
    status = moe_batch_open(&x->batch, engine->session, 0, err);
    if (status != MOE_OK) {
        if (!s->whole)
            moe_engine_close_session(engine);
        return status;
    }
    x->model = model;
    x->room = engine->session->n_sequences;
    x->seen = engine->session->stats;
    x->seen_changes = moe_engine_changes(engine);
    return MOE_OK;
}

/* Has the batch's model there: waits for the loader, or loads it. The mutex is held before and
 * after. */
static int have_model(struct executor *x, const struct moe_coe_batch *batch, struct moe_err *err)
{
    struct moe_server *s = x->server;
    struct loaded *l = &x->loaded[batch->expert];
    double began = moe_seconds();
    note_leaving(x, batch);
    if (x->model != MOE_COE_NONE && x->model != batch->expert) {
        pthread_mutex_unlock(&s->mutex);
        close_batch(x); /* its memory is this one's */
        pthread_mutex_lock(&s->mutex);
    }
    while (x->to_load != MOE_COE_NONE && (batch->load || x->to_load == batch->expert))
        pthread_cond_wait(&x->is_loaded, &s->mutex);
    if (batch->load) {
        unload(x);
        load(x, batch->expert);
    }
    x->counts.load_seconds += moe_seconds() - began;
    if (l->state == MODEL_READY)
        return MOE_OK;
    int status = moe_fail(err, l->status, "%s", l->why ? l->why : "out of memory");
    l->state = MODEL_ABSENT;
    model_unload(x, batch->expert); /* what it says */
    return status;
}

/* Lets the loader bring the model that comes next. Under the mutex. */
static void prefetch(struct executor *x)
{
    struct moe_coe_batch what;
    if (x->server->options.no_prefetch || x->to_load != MOE_COE_NONE || !x->has_loader ||
        !moe_coe_prefetch(x->server->dispatch, x->index, &what))
        return;
    note_leaving(x, &what);
    x->to_load = what.expert;
    x->counts.prefetched++;
    pthread_cond_signal(&x->load);
}

/* The loader's thread. */
static void *run_loader(void *arg)
{
    struct executor *x = arg;
    struct moe_server *s = x->server;
    moe_par_alone(true);
    pthread_mutex_lock(&s->mutex);
    while (!s->closing) {
        if (x->to_load == MOE_COE_NONE) {
            pthread_cond_wait(&x->load, &s->mutex);
            continue;
        }
        unload(x);
        load(x, x->to_load);
        x->to_load = MOE_COE_NONE;
        pthread_cond_signal(&x->is_loaded);
    }
    x->to_load = MOE_COE_NONE;
    pthread_cond_signal(&x->is_loaded);
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* ---- Jobs ---- */

static void begin_all(struct executor *x, struct moe_coe_request *list, int status,
                      const struct moe_err *err)
{
    for (struct moe_coe_request *r = list, *next; r; r = next) {
        next = r->next; /* r may be gone afterwards */
        if (status == MOE_OK)
            job_begin(x, (struct job *)r);
        else if (status == MOE_ERR_INTERRUPTED) /* the server ends */
            job_end(x, (struct job *)r, MOE_OK, NULL);
        else
            job_end(x, (struct job *)r, status, err);
    }
}

/* They wait no more. Under the mutex. */
static void take(struct moe_coe_request *list)
{
    for (struct moe_coe_request *r = list; r; r = r->next)
        ((struct job *)r)->state = JOB_TAKEN;
}

/* Ends what was cancelled; the mutex is held before and after. */
static void end_cancelled(struct executor *x)
{
    struct moe_server *s = x->server;
    struct job *j;
    while ((j = x->cancelled) != NULL) {
        x->cancelled = j->next_cancelled;
        pthread_mutex_unlock(&s->mutex);
        if (j->in_batch)
            job_stop(x, j);
        else
            job_end(x, j, MOE_OK, NULL);
        pthread_mutex_lock(&s->mutex);
    }
}

/* Whoever waits for another model has waited long enough. Under the mutex. */
static bool others_first(const struct executor *x, uint32_t model)
{
    const struct moe_server *s = x->server;
    const struct moe_coe_request *other = moe_coe_other(s->dispatch, x->index, model);
    return other && moe_seconds() - ((const struct job *)other)->came > s->options.patience;
}

/* Further jobs for the model that computes, where there is room. Under the mutex. */
static struct moe_coe_request *more(struct executor *x, uint32_t *n)
{
    struct moe_server *s = x->server;
    uint32_t room = x->n_running < x->room ? x->room - x->n_running : 0;
    if (room == 0 || others_first(x, x->model))
        return NULL;
    double began = moe_seconds();
    struct moe_coe_request *list = moe_coe_more(s->dispatch, x->index, room, n);
    take(list);
    x->counts.schedule_seconds += moe_seconds() - began;
    return list;
}

/* Computes a batch, and what joins it, to its end. False: its model is not there. The mutex is held
 * before and after. */
static bool compute(struct executor *x, struct moe_coe_batch *batch)
{
    struct moe_server *s = x->server;
    struct moe_err err;
    if (s->closing) {
        bool is_there = x->loaded[batch->expert].state == MODEL_READY;
        pthread_mutex_unlock(&s->mutex);
        begin_all(x, batch->requests, MOE_ERR_INTERRUPTED, NULL);
        pthread_mutex_lock(&s->mutex);
        return is_there;
    }
    int status = have_model(x, batch, &err);
    bool there = status == MOE_OK;
    pthread_mutex_unlock(&s->mutex);
    if (there)
        status = open_batch(x, batch->expert, &err);
    double began = moe_seconds(), begun = began;
    uint32_t n_jobs = batch->n, n;
    begin_all(x, batch->requests, status, &err);
    pthread_mutex_lock(&s->mutex);
    while (x->n_running > 0) {
        prefetch(x);
        pthread_mutex_unlock(&s->mutex);
        moe_batch_step(x->batch);
        pthread_mutex_lock(&s->mutex);
        job_count(x);
        end_cancelled(x);
        struct moe_coe_request *list = s->closing ? NULL : more(x, &n);
        double now = moe_seconds();
        x->counts.busy_seconds += now - began;
        began = now;
        if (!list)
            continue;
        n_jobs += n;
        pthread_mutex_unlock(&s->mutex);
        begin_all(x, list, MOE_OK, NULL);
        pthread_mutex_lock(&s->mutex);
    }
    if (status == MOE_OK)
        dispatching_learn_batch(x, batch->expert, n_jobs, began - begun);
    return there;
}

/* ---- The thread ---- */

/* The next batch, if somebody waits. Under the mutex. */
static bool next_batch(struct executor *x, struct moe_coe_batch *batch)
{
    struct moe_server *s = x->server;
    double began = moe_seconds();
    uint32_t first = moe_coe_first(s->dispatch, x->index);
    if (first != MOE_COE_NONE && first == x->model && others_first(x, first))
        moe_coe_give_way(s->dispatch, x->index);
    bool some = moe_coe_next(s->dispatch, x->index, began, batch);
    if (some)
        take(batch->requests);
    x->counts.schedule_seconds += moe_seconds() - began;
    return some;
}

static void *run(void *arg)
{
    struct executor *x = arg;
    struct moe_server *s = x->server;
    struct moe_coe_batch batch;
    moe_par_set_team(x->options.n_threads);
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        end_cancelled(x);
        if (next_batch(x, &batch)) {
            if (batch.expert != x->model)
                x->counts.switches++;
            x->counts.model = s->models[batch.expert].name;
            if (compute(x, &batch))
                moe_coe_done(s->dispatch, x->index, moe_seconds());
            else
                moe_coe_failed(s->dispatch, x->index, moe_seconds());
            x->counts.model = NULL;
        } else if (s->closing) {
            break;
        } else {
            pthread_cond_wait(&x->wake, &s->mutex);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    close_batch(x);
    return NULL;
}

int executor_start(struct executor *x, struct moe_err *err)
{
    const struct moe_server *s = x->server;
    bool wants_loader = s->n_models > 1 && !s->options.no_prefetch;
    x->has_loader = wants_loader && pthread_create(&x->loader, NULL, run_loader, x) == 0;
    x->started = pthread_create(&x->thread, NULL, run, x) == 0;
    return x->started && (x->has_loader || !wants_loader)
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "out of memory: the threads of an executor");
}

void executor_join(struct executor *x)
{
    if (x->has_loader)
        pthread_join(x->loader, NULL);
    if (x->started)
        pthread_join(x->thread, NULL);
}
