#define _GNU_SOURCE /* sched_getaffinity */
#include "base/par.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/crew.h"

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
