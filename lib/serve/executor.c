#define _POSIX_C_SOURCE 200809L /* pthread */
#include "serve/executor.h"

#include "base/clock.h"
#include "base/par.h"
#include "serve/job.h"

/* ---- Models ---- */

static void close_batch(struct executor *x)
{
    if (x->batch)
        x->preempted_before += moe_batch_state(x->batch)->n_preempted;
    moe_batch_close(x->batch);
    x->batch = NULL;
    x->model = MOE_COE_NONE;
}

/* A batch of the model, which is loaded. */
static int open_batch(struct executor *x, uint32_t model, struct moe_err *err)
{
    if (x->model == model)
        return MOE_OK;
    close_batch(x);
    int status = moe_batch_open(&x->batch, x->loaded[model].engine->session, 0, err);
    x->model = status == MOE_OK ? model : MOE_COE_NONE;
    if (status == MOE_OK)
        x->seen = x->loaded[model].engine->session->stats;
    return status;
}

/* ---- Jobs ---- */

static void begin_all(struct executor *x, struct moe_coe_request *list, int status,
                      const struct moe_err *err)
{
    for (struct moe_coe_request *r = list, *next; r; r = next) {
        next = r->next; /* r may be gone afterwards */
        if (status == MOE_OK)
            job_begin(x, (struct job *)r);
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
static struct moe_coe_request *more(struct executor *x)
{
    struct moe_server *s = x->server;
    uint32_t n, room = s->options.sequences - x->n_running;
    if (room == 0 || others_first(x, x->model))
        return NULL;
    double began = moe_seconds();
    struct moe_coe_request *list = moe_coe_more(s->dispatch, x->index, room, &n);
    take(list);
    x->counts.schedule_seconds += moe_seconds() - began;
    return list;
}

/* Computes a batch, and what joins it, to its end. */
static void compute(struct executor *x, struct moe_coe_batch *batch)
{
    struct moe_server *s = x->server;
    struct moe_err err;
    int status = open_batch(x, batch->expert, &err);
    double began = moe_seconds();
    begin_all(x, batch->requests, status, &err);
    while (x->n_running > 0) {
        moe_batch_step(x->batch);
        pthread_mutex_lock(&s->mutex);
        job_count(x);
        end_cancelled(x);
        struct moe_coe_request *list = s->closing ? NULL : more(x);
        double now = moe_seconds();
        x->counts.busy_seconds += now - began;
        began = now;
        pthread_mutex_unlock(&s->mutex);
        begin_all(x, list, MOE_OK, NULL);
    }
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
            pthread_mutex_unlock(&s->mutex);
            compute(x, &batch);
            pthread_mutex_lock(&s->mutex);
            moe_coe_done(s->dispatch, x->index, moe_seconds());
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
    if (pthread_create(&x->thread, NULL, run, x) != 0)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the thread of an executor");
    x->started = true;
    return MOE_OK;
}

void executor_join(struct executor *x)
{
    if (x->started)
        pthread_join(x->thread, NULL);
}
