#define _GNU_SOURCE /* clock_nanosleep and pthread_sigmask in C11 mode */
#include "run/host.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

enum { STACK_BYTES = 256 * 1024 };

/* Sleeping shorter than this is mostly overhead: what is owed is saved up. */
#define SHORTEST_SLEEP 100e-6

struct moe_host {
    struct moe_expert_compute *compute; /* the thread's */
    uint32_t max_rows, max_jobs;
    uint64_t x_stride;
    double slowdown;
    float *x;                  /* [max_jobs][max_rows][x_stride] the inputs of each job */
    struct moe_host_job *jobs; /* [max_jobs] ring; number i lies at i % max_jobs */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t submitted, done;
    uint64_t n_submitted, n_done; /* so far; a ticket is a job's number, which wraps */
    double busy_seconds;
    bool stop;
};

/* ---- The host's thread -------------------------------------------------------------------------
 */

/* Processor time of the calling thread: what others take from it is not slowed down as well. */
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
static void run_job(struct moe_host *h, const struct moe_host_job *job, double *owed)
{
    double began = own_seconds();
    moe_expert_compute(h->compute, &job->view, job->x, job->x_stride, NULL, job->n, job->out,
                       job->out_stride);
    *owed += (h->slowdown - 1) * (own_seconds() - began);
    if (*owed >= SHORTEST_SLEEP) {
        double lay_down = moe_seconds();
        sleep_seconds(*owed);
        *owed -= moe_seconds() - lay_down;
    }
}

static void *serve(void *ctx)
{
    struct moe_host *h = ctx;
    double owed = 0;
    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (h->n_done == h->n_submitted && !h->stop)
            pthread_cond_wait(&h->submitted, &h->lock);
        if (h->n_done == h->n_submitted)
            break;
        const struct moe_host_job *job = &h->jobs[h->n_done % h->max_jobs];
        pthread_mutex_unlock(&h->lock);
        double began = moe_seconds();
        run_job(h, job, &owed);
        double took = moe_seconds() - began;
        pthread_mutex_lock(&h->lock);
        h->busy_seconds += took;
        h->n_done++;
        pthread_cond_broadcast(&h->done);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* ---- Memory, open and close --------------------------------------------------------------------
 */

static struct moe_host *carve(struct moe_arena *arena, const struct moe_config *config,
                              uint32_t max_rows, uint32_t max_jobs)
{
    struct moe_host *place = moe_arena_take(arena, 1, sizeof *place);
    uint64_t stride = moe_round_up(config->hidden, MOE_PANEL_ROWS), n;
    if (!moe_mul_u64((uint64_t)max_jobs * max_rows, stride, &n))
        n = UINT64_MAX; /* more than there is: the arena overflows */
    float *x = moe_arena_take(arena, n, sizeof *x);
    struct moe_host_job *jobs = moe_arena_take(arena, max_jobs, sizeof *jobs);
    if (place)
        *place = (struct moe_host){
            .max_rows = max_rows, .max_jobs = max_jobs, .x_stride = stride, .x = x, .jobs = jobs};
    return place;
}

uint64_t moe_host_bytes(const struct moe_config *config, uint32_t max_rows, uint32_t max_jobs)
{
    struct moe_arena arena = {0};
    uint64_t sum;
    carve(&arena, config, max_rows, max_jobs);
    bool fits = moe_add_u64(moe_expert_compute_bytes(config, max_rows), STACK_BYTES, &sum) &&
                moe_add_u64(arena.used, sum, &sum);
    return fits && !arena.overflowed ? sum : UINT64_MAX;
}

/* Signals stay with the program's own threads. */
static int start_thread(struct moe_host *h, struct moe_err *err)
{
    pthread_attr_t attr;
    sigset_t all, before;
    char text[128];
    int got = pthread_attr_init(&attr);
    if (got == 0) {
        pthread_attr_setstacksize(&attr, STACK_BYTES);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        got = pthread_create(&h->thread, &attr, serve, h);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attr);
    }
    h->started = got == 0;
    return got == 0 ? MOE_OK
                    : moe_fail(err, MOE_ERR_MEMORY, "cannot start a thread for the host: %s",
                               moe_errno_text(got, text, sizeof text));
}

int moe_host_open(struct moe_host **out, const struct moe_config *config, uint32_t max_rows,
                  uint32_t max_jobs, double slowdown, struct moe_err *err)
{
    *out = NULL;
    if (max_rows == 0 || max_jobs == 0 || !(slowdown >= 1))
        return moe_fail(err, MOE_ERR_USAGE,
                        "a host takes at least 1 job of 1 row and a slowdown of at least 1, not "
                        "%u, %u and %g",
                        max_jobs, max_rows, slowdown);
    struct moe_arena arena = {0};
    carve(&arena, config, max_rows, max_jobs);
    arena = (struct moe_arena){
        .base = moe_alloc(arena.overflowed ? UINT64_MAX : arena.used, 1, err), .size = arena.used};
    if (!arena.base)
        return MOE_ERR_MEMORY;
    struct moe_host *h = carve(&arena, config, max_rows, max_jobs);
    h->slowdown = slowdown;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->submitted, NULL);
    pthread_cond_init(&h->done, NULL);
    int status = moe_expert_compute_open(&h->compute, config, max_rows, err);
    if (status == MOE_OK)
        status = start_thread(h, err);
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
    if (h->started) {
        pthread_mutex_lock(&h->lock);
        h->stop = true;
        pthread_cond_signal(&h->submitted);
        pthread_mutex_unlock(&h->lock);
        pthread_join(h->thread, NULL);
    }
    pthread_cond_destroy(&h->done);
    pthread_cond_destroy(&h->submitted);
    pthread_mutex_destroy(&h->lock);
    moe_expert_compute_close(h->compute);
    free(h);
}

/* ---- Jobs --------------------------------------------------------------------------------------
 */

int moe_host_submit(struct moe_host *h, const struct moe_host_job *job, uint32_t *ticket,
                    struct moe_err *err)
{
    if (job->n > h->max_rows)
        return moe_fail(err, MOE_ERR_LIMIT, "a job of the host takes at most %u rows, not %u",
                        h->max_rows, job->n);
    pthread_mutex_lock(&h->lock);
    uint64_t number = h->n_submitted;
    bool full = number - h->n_done == h->max_jobs;
    pthread_mutex_unlock(&h->lock);
    if (full)
        return moe_fail(err, MOE_ERR_LIMIT, "the host has %u jobs under way already", h->max_jobs);
    uint64_t place = number % h->max_jobs;
    float *x = h->x + place * h->max_rows * h->x_stride;
    for (uint32_t i = 0; i < job->n; i++)
        memcpy(x + i * h->x_stride, job->x + (job->rows ? job->rows[i] : i) * job->x_stride,
               job->view.gate.cols * sizeof *x);
    h->jobs[place] = *job;
    h->jobs[place].x = x;
    h->jobs[place].x_stride = h->x_stride;
    h->jobs[place].rows = NULL;
    pthread_mutex_lock(&h->lock);
    h->n_submitted++;
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
