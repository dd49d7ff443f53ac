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
 * Threads that help with a loop: each thread that runs loops has a crew of its own.
 *
 * The one that runs the loop works too, and waits at its end for those alone that have begun. A
 * helper that is still asleep, or that the machine gives no processor, holds up nobody: where
 * experts are waited for, threads sleep between loops, and waking takes longer than a small loop.
 */
/* Calls work(ctx, thread) on the calling thread, as 0, and on up to threads - 1 helpers, each with
 * a number of its own below `threads`, while that call lasts; the helpers that come in time. The
 * calling thread's must therefore do all that is left. Returns when all calls have. Not from within
 * such a call. */
void moe_crew_run(int threads, void (*work)(void *ctx, int thread), void *ctx);

/* Whether the calling thread is within such a call. */
bool moe_crew_inside(void);

/* How long a helper looks for the next loop before it sleeps, and the caller for the end of those
 * that have begun: longer than what stands between two loops of a layer, the check of an expert
 * that was loaded included, and shorter than a load (tests/bench/RESULTS.md, Beside other work). */
static const double LOOK_SECONDS = 100e-6;
enum { LOOKS = 32 }; /* between two looks at the clock */

/* A loop is open while `loop` is odd. Its other members change while it is closed and nobody is
 * inside: a helper that enters counts itself first and then looks whether the loop that it saw is
 * still open, and the caller that closes it looks afterwards how many are inside. */
struct crew {
    atomic_uint loop;
    atomic_int inside;  /* helpers that have entered, or are about to find it closed */
    atomic_int numbers; /* given out in this loop */
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
    int core; /* that helpers keep off, as the caller was there; -1: none yet */
};

static _Thread_local struct crew *own;
static _Thread_local bool is_inside;
static pthread_key_t key; /* frees a thread's crew at its end */
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
        return; /* enough have come */
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

/* The number of the loop that is open, if it is not `before`; 0: there is none. */
static unsigned open_since(struct crew *c, unsigned before)
{
    unsigned now = atomic_load(&c->loop);
    return now % 2 && now != before ? now : 0;
}

/* Sleeps until a loop opens; false: the crew ends. */
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

/* Returns the loop's number once it is open and not `before`; 0: the crew ends. Who was woken for a
 * loop that is over by now looks for the next, which is near. */
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

/* The calling thread's crew with so many helpers, or as many as can be had; NULL: none. */
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

/* A helper that wakes on the caller's core would take the loop from it, not help. Kernels put it
 * there: in a virtual machine they count a halted processor as preempted by the host and pass it
 * over, so that the sleeper wakes on the waker's core. So helpers run where the caller does not, as
 * long as there are cores for all. */
static void keep_helpers_off(struct crew *c, int core)
{
    cpu_set_t set;
    c->core = core;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return; /* more than CPU_SETSIZE processors, or no such call */
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

void moe_crew_run(int threads, void (*work)(void *ctx, int thread), void *ctx)
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

bool moe_crew_inside(void)
{
    return is_inside;
}

/* ---- Loops ---- */

static int n_threads_wanted = 1;
static _Thread_local int team; /* 0: n_threads_wanted */
static _Thread_local bool runs_alone;

/* Of a loop under way. */
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
    if (n < 1) /* more than CPU_SETSIZE processors, or no such call */
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MOE_MAX_THREADS ? MOE_MAX_THREADS : n;
}

static int clamp(int n_threads)
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
    n_threads_wanted = clamp(n_threads);
}

int moe_par_set_team(int n_threads)
{
    int before = team;
    team = n_threads > 0 ? clamp(n_threads) : 0;
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
    if (runs_alone || moe_crew_inside()) {
        fn(ctx, 0, n, 0);
        return;
    }
    if (grain < 1)
        grain = 1;
    int64_t n_ranges = (n + grain - 1) / grain;
    int wanted = moe_par_threads(), threads = wanted < n_ranges ? wanted : (int)n_ranges;
    struct loop l = {.n = n, .grain = grain, .fn = fn, .ctx = ctx, .threads = threads};
    if (threads > 1)
        moe_crew_run(threads, take_ranges, &l);
    else
        fn(ctx, 0, n, 0);
}
