/* Weights that arrive behind what computes with them. */
#define _POSIX_C_SOURCE 200809L /* pthread_sigmask */

#include "infer/arrivals.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"

enum { LOOK_MS = 100 /* between looks at the stop flag */ };

enum arrival { EXPECTED, BEING_READ, ARRIVED, FAILED };

struct moe_arrivals {
    uint64_t n;
    int (*read)(void *ctx, uint64_t which, uint64_t *bytes, struct moe_err *err);
    void *ctx;
    int threads;
    const struct moe_progress *progress; /* of who waits; NULL: none */
    const char *what;
    uint64_t total;
    bool behind; /* `reader` reads; else moe_arrivals_read waits for all */
    pthread_t reader;
    atomic_bool complete; /* every item has arrived: what follows changes no more */
    atomic_ullong bytes;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t arrived;
    const uint64_t *asked;
    uint64_t n_asked, n_taken;
    uint64_t next; /* all before it have begun */
    uint64_t n_missing;
    bool ends;        /* no further one begins */
    uint8_t states[]; /* [n] an enum arrival */
};

int moe_arrivals_open(struct moe_arrivals **out, uint64_t n,
                      int (*read)(void *ctx, uint64_t which, uint64_t *bytes, struct moe_err *err),
                      void *ctx, struct moe_err *err)
{
    struct moe_arrivals *a = *out = moe_alloc(sizeof *a + n, 1, err);
    if (!a)
        return MOE_ERR_MEMORY;
    a->n = a->n_missing = n;
    a->read = read;
    a->ctx = ctx;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->arrived, NULL);
    atomic_store(&a->complete, n == 0);
    return MOE_OK;
}

void moe_arrivals_close(struct moe_arrivals *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->ends = true;
    pthread_cond_broadcast(&a->arrived);
    pthread_mutex_unlock(&a->lock);
    if (a->behind)
        pthread_join(a->reader, NULL);
    pthread_cond_destroy(&a->arrived);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

void moe_arrivals_leave_out(struct moe_arrivals *a, uint64_t which)
{
    a->states[which] = ARRIVED;
    atomic_store(&a->complete, --a->n_missing == 0);
}

/* ---- Reading ---- */

/* With the lock: which item to read next; false: none. */
static bool take_next(struct moe_arrivals *a, uint64_t *which)
{
    bool found = false;
    while (!found && !a->ends && (a->n_taken < a->n_asked || a->next < a->n)) {
        *which = a->n_taken < a->n_asked ? a->asked[a->n_taken++] : a->next++;
        found = a->states[*which] == EXPECTED;
    }
    return found;
}

/* With the lock, which is open while it reads. What was interrupted is read as if never begun. */
static int read_item(struct moe_arrivals *a, uint64_t which, struct moe_err *err)
{
    uint64_t bytes = 0;
    a->states[which] = BEING_READ;
    pthread_mutex_unlock(&a->lock);
    int status = a->read(a->ctx, which, &bytes, err);
    pthread_mutex_lock(&a->lock);
    a->states[which] = status == MOE_OK                ? ARRIVED
                       : status == MOE_ERR_INTERRUPTED ? EXPECTED
                                                       : FAILED;
    if (status == MOE_ERR_INTERRUPTED) {
        a->next = which < a->next ? which : a->next;
        a->n_taken = 0;
    }
    atomic_fetch_add(&a->bytes, status == MOE_OK ? bytes : 0);
    a->n_missing -= status == MOE_OK;
    atomic_store(&a->complete, a->n_missing == 0);
    pthread_cond_broadcast(&a->arrived);
    return status;
}

/* On one of the threads that read: until nothing is left or, where all are waited for, one fails.
 * Behind a pass, what was interrupted waits until the next one is on its way. */
static void read_some(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct moe_arrivals *a = ctx;
    uint64_t which;
    pthread_mutex_lock(&a->lock);
    while (take_next(a, &which)) {
        int status = read_item(a, which, NULL);
        while (a->behind && status == MOE_ERR_INTERRUPTED && !a->ends &&
               moe_progress_stopped(a->progress))
            moe_wait_at_most(&a->arrived, &a->lock, LOOK_MS);
        if (a->behind)
            continue;
        if (thread == 0)
            moe_progress_report(a->progress, a->what, a->bytes, a->total);
        a->ends |= status != MOE_OK || moe_progress_stopped(a->progress);
    }
    pthread_mutex_unlock(&a->lock);
}

static void *read_all(void *ctx)
{
    struct moe_arrivals *a = ctx;
    moe_par_set_team(a->threads);
    moe_par_for(a->threads, 1, read_some, a);
    return NULL;
}

static void prepare(struct moe_arrivals *a, int threads, const struct moe_progress *progress,
                    const char *what, uint64_t total)
{
    a->threads = threads;
    a->progress = progress;
    a->what = what;
    a->total = total;
}

/* The first item that could not be read is read again, for its error. */
int moe_arrivals_read(struct moe_arrivals *a, int threads, const struct moe_progress *progress,
                      const char *what, uint64_t total, struct moe_err *err)
{
    int status = MOE_OK, team = moe_par_set_team(0);
    prepare(a, threads, progress, what, total);
    while (status == MOE_OK && !moe_arrivals_complete(a)) {
        uint64_t which = 0;
        a->ends = false;
        read_all(a);
        while (which < a->n && a->states[which] != FAILED)
            which++;
        pthread_mutex_lock(&a->lock);
        if (which < a->n)
            status = read_item(a, which, err);
        else if (a->ends)
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
        pthread_mutex_unlock(&a->lock);
    }
    moe_par_set_team(team);
    return status;
}

/* Signals stay with the program's own threads. */
int moe_arrivals_begin(struct moe_arrivals *a, int threads, const struct moe_progress *progress,
                       const char *what, uint64_t total, struct moe_err *err)
{
    sigset_t all, before;
    if (moe_arrivals_complete(a))
        return MOE_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    prepare(a, threads, progress, what, total);
    a->behind = true;
    bool started = pthread_create(&a->reader, NULL, read_all, a) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        return MOE_OK;
    a->behind = false;
    return moe_arrivals_read(a, threads, progress, what, total, err);
}

/* ---- Waiting ---- */

bool moe_arrivals_complete(const struct moe_arrivals *a)
{
    return atomic_load(&a->complete);
}

bool moe_arrivals_has(struct moe_arrivals *a, uint64_t which)
{
    if (moe_arrivals_complete(a))
        return true;
    pthread_mutex_lock(&a->lock);
    bool has = a->states[which] == ARRIVED;
    pthread_mutex_unlock(&a->lock);
    return has;
}

uint64_t moe_arrivals_bytes(const struct moe_arrivals *a)
{
    return atomic_load(&a->bytes);
}

void moe_arrivals_ask(struct moe_arrivals *a, const uint64_t *which, uint64_t n)
{
    pthread_mutex_lock(&a->lock);
    a->asked = which;
    a->n_asked = n;
    a->n_taken = 0;
    pthread_mutex_unlock(&a->lock);
}

/* With the lock: what who waits does before each item. */
static int go_on(struct moe_arrivals *a, struct moe_err *err)
{
    moe_progress_report(a->progress, a->what, moe_arrivals_bytes(a), a->total);
    return moe_progress_stopped(a->progress) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped")
                                             : MOE_OK;
}

/* The same, and waits until an item has been read, or for a while. */
static int wait_for_item(struct moe_arrivals *a, struct moe_err *err)
{
    MOE_TRY(go_on(a, err));
    moe_wait_at_most(&a->arrived, &a->lock, LOOK_MS);
    return MOE_OK;
}

int moe_arrivals_await_any(struct moe_arrivals *a, const uint64_t *which, uint64_t n,
                           struct moe_err *err)
{
    int status = MOE_OK;
    bool there = moe_arrivals_complete(a);
    pthread_mutex_lock(&a->lock);
    while (!there && status == MOE_OK) {
        uint64_t failed = n;
        for (uint64_t i = 0; i < n; i++) {
            there |= a->states[which[i]] == ARRIVED;
            failed = a->states[which[i]] == FAILED ? i : failed;
        }
        if (!there && failed < n)
            status = read_item(a, which[failed], err);
        else if (!there)
            status = wait_for_item(a, err);
    }
    pthread_mutex_unlock(&a->lock);
    return status;
}

int moe_arrivals_await(struct moe_arrivals *a, uint64_t first, uint64_t end, struct moe_err *err)
{
    int status = MOE_OK;
    if (moe_arrivals_complete(a))
        return MOE_OK;
    pthread_mutex_lock(&a->lock);
    for (uint64_t i = first; i < end && status == MOE_OK; i++) {
        if (a->states[i] != EXPECTED)
            continue;
        status = go_on(a, err);
        if (status == MOE_OK)
            status = read_item(a, i, err);
    }
    for (uint64_t i = first; i < end && status == MOE_OK; i++) {
        while (a->states[i] == BEING_READ && status == MOE_OK)
            status = wait_for_item(a, err);
        if (status == MOE_OK && a->states[i] != ARRIVED)
            status = read_item(a, i, err);
    }
    pthread_mutex_unlock(&a->lock);
    return status;
}
