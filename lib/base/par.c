/* Parallel loops, and the crew of helpers that serves them. */
#define _GNU_SOURCE /* pthread_setaffinity_np */
#define _GNU_SOURCE /* sched_getaffinity */

#include "base/par.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"

/*
 * A crew: helper threads for loops. Each thread that runs loops has its own.
 *
 * The caller works too, and at the end waits only for helpers that have started. A helper that
 * still sleeps, or gets no processor, delays nobody: while experts are awaited, threads sleep
 * between loops, and waking takes longer than a small loop.
 */

/* How long a helper looks for the next loop before it sleeps, and the caller spins for helpers that
 * have started: longer than the gap between two loops of a layer, including the check of a loaded
 * expert, and shorter than a load (tests/bench/RESULTS.md, Beside other work). */
static const double LOOK_SECONDS = 100e-6;
enum { LOOKS = 32 }; /* between two reads of the clock */

/* A loop is open while `loop` is odd. The other members change only while it is closed and nobody
 * is inside: a helper first counts itself in, then checks that the loop it saw is still open; the
 * caller closes the loop first, then checks how many are inside. */
struct crew {
    atomic_uint loop;
    atomic_int inside;  /* helpers that have entered, or are about to find the loop closed */
    atomic_int numbers; /* thread numbers given out in this loop */
    void (*work)(void *ctx, int thread);
    void *ctx;
    atomic_int threads;

    atomic_int n_asleep;
    atomic_bool caller_asleep;
    bool ends;
    pthread_mutex_t lock;
    pthread_cond_t opened, left;
    pthread_t helpers[MOE_MAX_THREADS - 1];
    int n_helpers;
    int core; /* the caller's core, which helpers avoid; -1: none yet */
};

static _Thread_local struct crew *own;
static _Thread_local bool is_inside;
static pthread_key_t key; /* frees a thread's crew when the thread ends */
static pthread_once_t key_made = PTHREAD_ONCE_INIT;

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- Helpers ---- */

static void help(struct crew *c, unsigned seen)
{
    if (atomic_load(&c->numbers) + 1 >= atomic_load(&c->threads))
        return; /* enough helpers have come */
    atomic_fetch_add(&c->inside, 1);
    if (atomic_load(&c->loop) == seen) {
        int number = atomic_fetch_add(&c->numbers, 1) + 1;
        if (number < c->threads)
            c->work(c->ctx, number);
    }
    if (atomic_fetch_sub(&c->inside, 1) == 1 && atomic_load(&c->caller_asleep)) {
        pthread_mutex_lock(&c->lock);
        pthread_cond_signal(&c->left);
        pthread_mutex_unlock(&c->lock);
    }
}

/* The number of the open loop unless it is `before`; 0: none. */
static unsigned open_since(struct crew *c, unsigned before)
{
    unsigned now = atomic_load(&c->loop);
    return now % 2 && now != before ? now : 0;
}

/* Sleeps until a loop opens; false when the crew ends. */
static bool sleep_until_open(struct crew *c, unsigned before)
{
    pthread_mutex_lock(&c->lock);
    atomic_fetch_add(&c->n_asleep, 1);
    if (!c->ends && !open_since(c, before))
        pthread_cond_wait(&c->opened, &c->lock);
    atomic_fetch_sub(&c->n_asleep, 1);
    bool ends = c->ends;
    pthread_mutex_unlock(&c->lock);
    return !ends;
}

/* Returns the number of the next open loop other than `before`; 0 when the crew ends. A helper
 * woken for a loop that is already over looks for the next one, which is near. */
static unsigned next_loop(struct crew *c, unsigned before)
{
    do {
        double until = moe_seconds() + LOOK_SECONDS;
        do {
            for (int i = 0; i < LOOKS; i++) {
                unsigned now = open_since(c, before);
                if (now)
                    return now;
                relax();
            }
        } while (moe_seconds() < until);
    } while (sleep_until_open(c, before));
    return 0;
}

static void *helper(void *arg)
{
    struct crew *c = arg;
    unsigned seen = 0;
    is_inside = true;
    while ((seen = next_loop(c, seen)) != 0)
        help(c, seen);
    return NULL;
}

/* ---- The crew ---- */

static void end_crew(void *arg)
{
    struct crew *c = arg;
    pthread_mutex_lock(&c->lock);
    c->ends = true;
    pthread_cond_broadcast(&c->opened);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->n_helpers; i++)
        pthread_join(c->helpers[i], NULL);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->opened);
    pthread_cond_destroy(&c->left);
    free(c);
}

static void make_key(void)
{
    pthread_key_create(&key, end_crew);
}

/* The calling thread's crew with n_helpers helpers, or as many as the system allows; NULL: none. */
static struct crew *crew_of(int n_helpers)
{
    if (!own) {
        pthread_once(&key_made, make_key);
        own = calloc(1, sizeof *own);
        if (!own)
            return NULL;
        pthread_mutex_init(&own->lock, NULL);
        pthread_cond_init(&own->opened, NULL);
        pthread_cond_init(&own->left, NULL);
        own->core = -1;
        pthread_setspecific(key, own);
    }
    while (own->n_helpers < n_helpers &&
           pthread_create(&own->helpers[own->n_helpers], NULL, helper, own) == 0) {
        own->n_helpers++;
        own->core = -1;
    }
    return own->n_helpers ? own : NULL;
}

/* Keeps helpers off the caller's core while there are cores for all: a helper that wakes there
 * would take the loop from the caller instead of helping. Kernels do put it there: in a virtual
 * machine they take a halted processor for one preempted by the host and pass it over, so that the
 * sleeper wakes on the waker's core. */
static void keep_helpers_off(struct crew *c, int core)
{
    cpu_set_t set;
    c->core = core;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return; /* more than CPU_SETSIZE processors, or the call is missing */
    if (CPU_COUNT(&set) > c->n_helpers)
        CPU_CLR((size_t)core, &set);
    for (int i = 0; i < c->n_helpers; i++)
        pthread_setaffinity_np(c->helpers[i], sizeof set, &set);
}

static void open_loop(struct crew *c)
{
    int core = sched_getcpu();
    if (core >= 0 && core != c->core)
        keep_helpers_off(c, core);
    atomic_fetch_add(&c->loop, 1);
    int n_asleep = atomic_load(&c->n_asleep);
    if (n_asleep == 0)
        return;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < n_asleep && i < c->threads - 1; i++)
        pthread_cond_signal(&c->opened);
    pthread_mutex_unlock(&c->lock);
}

static void close_loop(struct crew *c)
{
    atomic_fetch_add(&c->loop, 1);
    double until = moe_seconds() + LOOK_SECONDS;
    do {
        for (int i = 0; i < LOOKS; i++) {
            if (atomic_load(&c->inside) == 0)
                return;
            relax();
        }
    } while (moe_seconds() < until);
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->caller_asleep, true);
    while (atomic_load(&c->inside) > 0)
        pthread_cond_wait(&c->left, &c->lock);
    atomic_store(&c->caller_asleep, false);
    pthread_mutex_unlock(&c->lock);
}

/* Calls work(ctx, thread) on the calling thread, as 0, and on up to threads - 1 helpers that come
 * in time, each with its own number below `threads`. The calling thread's call must therefore
 * finish whatever is left. Returns when all calls have returned. Must not be nested. */
static void crew_run(int threads, void (*work)(void *ctx, int thread), void *ctx)
{
    struct crew *c = crew_of(threads - 1);
    is_inside = true;
    if (c) {
        c->work = work;
        c->ctx = ctx;
        atomic_store(&c->threads, threads);
        atomic_store(&c->numbers, 0);
        open_loop(c);
    }
    work(ctx, 0);
    if (c)
        close_loop(c);
    is_inside = false;
}

/* Whether the calling thread runs such a call. */
static bool crew_inside(void)
{
    return is_inside;
}

/* ---- Loops ---- */

static atomic_int n_threads_wanted = 1;
static _Thread_local int team; /* 0: n_threads_wanted */
static _Thread_local bool runs_alone;

/* A running loop. */
struct loop {
    int64_t n, grain;
    void (*fn)(void *ctx, int64_t begin, int64_t end, int thread);
    void *ctx;
    int threads;
    atomic_llong next;
};

int moe_cores_available(void)
{
    int n = 0;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
    if (n < 1) /* more than CPU_SETSIZE processors, or the call is missing */
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MOE_MAX_THREADS ? MOE_MAX_THREADS : n;
}

static int clamp_threads(int n_threads)
{
    return n_threads < 1 ? 1 : n_threads > MOE_MAX_THREADS ? MOE_MAX_THREADS : n_threads;
}

int moe_default_threads(void)
{
    const uint32_t quota = moe_quota_cores();
    const int cores = moe_cores_available();
    return quota < (uint32_t)cores ? (int)quota : cores;
}

void moe_par_set_threads(int n_threads)
{
    n_threads_wanted = clamp_threads(n_threads);
}

int moe_par_set_team(int n_threads)
{
    int before = team;
    team = n_threads > 0 ? clamp_threads(n_threads) : 0;
    return before;
}

int moe_par_threads(void)
{
    return team ? team : n_threads_wanted;
}

bool moe_par_alone(bool alone)
{
    bool before = runs_alone;
    runs_alone = alone;
    return before;
}

/* Takes ranges until none is left. They shrink towards the end, so a core slowed by other work
 * holds up the others by one grain at most. */
static void take_ranges(void *ctx, int thread)
{
    struct loop *l = ctx;
    for (;;) {
        long long seen = atomic_load_explicit(&l->next, memory_order_relaxed), take;
        do {
            take = (l->n - seen) / (2 * l->threads);
            take = take / l->grain * l->grain;
            if (take < l->grain)
                take = l->grain;
        } while (seen < l->n && !atomic_compare_exchange_weak_explicit(&l->next, &seen, seen + take,
                                                                       memory_order_relaxed,
                                                                       memory_order_relaxed));
        if (seen >= l->n)
            break;
        l->fn(l->ctx, seen, seen + take < l->n ? seen + take : l->n, thread);
    }
}

void moe_par_for(int64_t n, int64_t grain,
                 void (*fn)(void *ctx, int64_t begin, int64_t end, int thread), void *ctx)
{
    if (n <= 0)
        return;
    if (runs_alone || crew_inside()) {
        fn(ctx, 0, n, 0);
        return;
    }
    if (grain < 1)
        grain = 1;
    int64_t n_ranges = (n + grain - 1) / grain;
    int wanted = moe_par_threads(), threads = wanted < n_ranges ? wanted : (int)n_ranges;
    struct loop l = {.n = n, .grain = grain, .fn = fn, .ctx = ctx, .threads = threads};
    if (threads > 1)
        crew_run(threads, take_ranges, &l);
    else
        fn(ctx, 0, n, 0);
}
