/* The host: threads that compute experts beside a device. */
#define _GNU_SOURCE /* clock_nanosleep and pthread_sigmask in C11 mode */
#include "infer/host.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/par.h"

enum { STACK_BYTES = 256 * 1024 };

/* Shorter sleeps are mostly overhead: what is owed adds up until it is longer. */
#define SHORTEST_SLEEP 100e-6

struct worker {
    struct moe_host *host;
    struct moe_expert_compute *compute;
    pthread_t thread;
    bool started;
};

struct moe_host {
    struct moe_host_shape shape;
    uint64_t x_stride, x_rows, next_row;
    double slowdown;
    float *x;                  /* [x_rows][x_stride] ring: the inputs of each job, side by side */
    struct moe_host_job *jobs; /* [max_jobs] ring; number i is at i % max_jobs */
    bool *finished;            /* [max_jobs] before an older one */
    struct worker *workers;    /* [n_threads] */
    pthread_mutex_t lock;      /* of what follows */
    pthread_cond_t submitted, done;
    /* Jobs so far: asked for, begun, and done together with all before them; a ticket is a job's
     * number, which wraps. */
    uint64_t n_submitted, n_begun, n_done;
    uint64_t rows_under_way;
    double busy_seconds;
    bool stop;
};

/* ---- The host's threads ---- */

/* Processor time of the calling thread: time that others take from it is not slowed down. */
static double own_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void sleep_seconds(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
        continue;
}

/* Computes one job. owed: seconds of slowing down that are still to be slept; below 0 after a sleep
 * that was too long. */
static void run_job(const struct worker *w, const struct moe_host_job *job, double *owed)
{
    double began = own_seconds();
    moe_expert_compute(w->compute, &job->view, job->x, job->x_stride, NULL, job->scales, job->n,
                       job->out, job->out_stride);
    *owed += (w->host->slowdown - 1) * (own_seconds() - began);
    if (*owed >= SHORTEST_SLEEP) {
        double lay_down = moe_seconds();
        sleep_seconds(*owed);
        *owed -= moe_seconds() - lay_down;
    }
}

/* With the lock: the job is done; so may be others that had to wait for it. */
static void finish_job(struct moe_host *h, uint64_t number)
{
    h->finished[number % h->shape.max_jobs] = true;
    while (h->n_done < h->n_begun && h->finished[h->n_done % h->shape.max_jobs]) {
        uint64_t place = h->n_done++ % h->shape.max_jobs;
        h->finished[place] = false;
        h->rows_under_way -= h->jobs[place].n;
    }
    pthread_cond_broadcast(&h->done);
}

static void *serve_jobs(void *ctx)
{
    struct worker *w = ctx;
    struct moe_host *h = w->host;
    double owed = 0;
    moe_par_alone(true); /* the others compute, too */
    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (h->n_begun == h->n_submitted && !h->stop)
            pthread_cond_wait(&h->submitted, &h->lock);
        if (h->n_begun == h->n_submitted)
            break;
        uint64_t number = h->n_begun++;
        const struct moe_host_job *job = &h->jobs[number % h->shape.max_jobs];
        pthread_mutex_unlock(&h->lock);
        double began = moe_seconds();
        run_job(w, job, &owed);
        double took = moe_seconds() - began;
        pthread_mutex_lock(&h->lock);
        h->busy_seconds += took;
        finish_job(h, number);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* ---- Memory, open and close ---- */

static struct moe_host *carve_host(struct moe_arena *arena, const struct moe_config *config,
                                   const struct moe_host_shape *shape)
{
    struct moe_host *place = moe_arena_take(arena, 1, sizeof *place);
    uint64_t stride = moe_round_up(config->hidden, MOE_PANEL_ROWS), n;
    /* A job is contiguous: a rest at the end that is too small for it stays unused. */
    uint64_t rows = shape->max_rows_under_way + 2ull * shape->max_rows;
    if (!moe_mul_u64(rows, stride, &n))
        n = UINT64_MAX; /* too many: the arena overflows */
    float *x = moe_arena_take(arena, n, sizeof *x);
    struct moe_host_job *jobs = moe_arena_take(arena, shape->max_jobs, sizeof *jobs);
    bool *finished = moe_arena_take(arena, shape->max_jobs, sizeof *finished);
    struct worker *workers = moe_arena_take(arena, shape->n_threads, sizeof *workers);
    if (place)
        *place = (struct moe_host){
            .shape = *shape,
            .x_stride = stride,
            .x_rows = rows,
            .x = x,
            .jobs = jobs,
            .finished = finished,
            .workers = workers,
        };
    return place;
}

uint64_t moe_host_bytes(const struct moe_config *config, const struct moe_host_shape *shape)
{
    struct moe_arena arena = {0};
    uint64_t each, sum;
    carve_host(&arena, config, shape);
    bool fits =
        moe_add_u64(moe_expert_compute_bytes(config, shape->max_rows), STACK_BYTES, &each) &&
        moe_mul_u64(each, shape->n_threads, &sum) && moe_add_u64(arena.used, sum, &sum);
    return fits && !arena.overflowed ? sum : UINT64_MAX;
}

/* Signals stay with the program's own threads. */
static int start_worker(struct worker *w, struct moe_err *err)
{
    pthread_attr_t attr;
    sigset_t all, before;
    char text[128];
    int got = pthread_attr_init(&attr);
    if (got == 0) {
        pthread_attr_setstacksize(&attr, STACK_BYTES);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        got = pthread_create(&w->thread, &attr, serve_jobs, w);
        if (got == EINVAL) /* the program's thread-local data take more */
            got = pthread_create(&w->thread, NULL, serve_jobs, w);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attr);
    }
    w->started = got == 0;
    return got == 0 ? MOE_OK
                    : moe_fail(err, MOE_ERR_MEMORY, "cannot start a thread for the host: %s",
                               moe_errno_text(got, text, sizeof text));
}

int moe_host_open(struct moe_host **out, const struct moe_config *config,
                  const struct moe_host_shape *shape, double slowdown, struct moe_err *err)
{
    *out = NULL;
    if (shape->max_rows == 0 || shape->max_jobs == 0 || shape->n_threads == 0 || !(slowdown >= 1))
        return moe_fail(err, MOE_ERR_USAGE,
                        "a host takes at least 1 job of 1 row on 1 thread and a slowdown of at "
                        "least 1, not %u, %u, %u and %g",
                        shape->max_jobs, shape->max_rows, shape->n_threads, slowdown);
    struct moe_arena arena = {0};
    carve_host(&arena, config, shape);
    arena = (struct moe_arena){
        .base = moe_alloc(arena.overflowed ? UINT64_MAX : arena.used, 1, err), .size = arena.used};
    if (!arena.base)
        return MOE_ERR_MEMORY;
    struct moe_host *h = carve_host(&arena, config, shape);
    h->slowdown = slowdown;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->submitted, NULL);
    pthread_cond_init(&h->done, NULL);
    int status = MOE_OK;
    for (uint32_t i = 0; i < shape->n_threads; i++) {
        struct worker *w = &h->workers[i];
        w->host = h;
        MOE_STEP(moe_expert_compute_open(&w->compute, config, shape->max_rows, err));
        MOE_STEP(start_worker(w, err));
    }
out:
    if (status != MOE_OK) {
        moe_host_close(h);
        return status;
    }
    *out = h;
    return MOE_OK;
}

void moe_host_close(struct moe_host *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_broadcast(&h->submitted);
    pthread_mutex_unlock(&h->lock);
    for (uint32_t i = 0; i < h->shape.n_threads; i++) {
        if (h->workers[i].started)
            pthread_join(h->workers[i].thread, NULL);
        moe_expert_compute_close(h->workers[i].compute);
    }
    pthread_cond_destroy(&h->done);
    pthread_cond_destroy(&h->submitted);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* ---- Jobs ---- */

/* Where the ring has room for n contiguous rows: after the last ones, or at its beginning. */
static float *take_rows(struct moe_host *h, uint32_t n)
{
    if (h->next_row + n > h->x_rows)
        h->next_row = 0;
    float *x = h->x + h->next_row * h->x_stride;
    h->next_row += n;
    return x;
}

int moe_host_submit(struct moe_host *h, const struct moe_host_job *job, uint32_t *ticket,
                    struct moe_err *err)
{
    const struct moe_host_shape *shape = &h->shape;
    if (job->n > shape->max_rows)
        return moe_fail(err, MOE_ERR_LIMIT, "a job of the host takes at most %u rows, not %u",
                        shape->max_rows, job->n);
    pthread_mutex_lock(&h->lock);
    uint64_t number = h->n_submitted;
    bool full = number - h->n_done == shape->max_jobs;
    bool fits = h->rows_under_way + job->n <= shape->max_rows_under_way;
    pthread_mutex_unlock(&h->lock);
    if (full || !fits)
        return moe_fail(err, MOE_ERR_LIMIT, "the host has %u jobs or %" PRIu64 " rows under way",
                        shape->max_jobs, shape->max_rows_under_way);
    float *x = take_rows(h, job->n);
    for (uint32_t i = 0; i < job->n; i++)
        memcpy(x + i * h->x_stride, job->x + (job->rows ? job->rows[i] : i) * job->x_stride,
               job->view.up.cols * sizeof *x);
    struct moe_host_job *place = &h->jobs[number % shape->max_jobs];
    *place = *job;
    place->x = x;
    place->x_stride = h->x_stride;
    place->rows = NULL;
    pthread_mutex_lock(&h->lock);
    h->n_submitted++;
    h->rows_under_way += job->n;
    pthread_cond_signal(&h->submitted);
    pthread_mutex_unlock(&h->lock);
    *ticket = (uint32_t)number;
    return MOE_OK;
}

/* With the lock. */
static bool is_done(const struct moe_host *h, uint32_t ticket)
{
    return (int32_t)((uint32_t)h->n_done - ticket) > 0;
}

double moe_host_wait(struct moe_host *h, uint32_t ticket)
{
    double slept = 0;
    pthread_mutex_lock(&h->lock);
    if (!is_done(h, ticket)) {
        double began = moe_seconds();
        while (!is_done(h, ticket))
            pthread_cond_wait(&h->done, &h->lock);
        slept = moe_seconds() - began;
    }
    pthread_mutex_unlock(&h->lock);
    return slept;
}

double moe_host_busy_seconds(struct moe_host *h)
{
    pthread_mutex_lock(&h->lock);
    double seconds = h->busy_seconds;
    pthread_mutex_unlock(&h->lock);
    return seconds;
}
