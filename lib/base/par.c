#define _GNU_SOURCE /* sched_getaffinity */
#include "base/par.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

static int n_threads_wanted = 1;
static _Thread_local int team; /* 0: n_threads_wanted */
static _Thread_local bool runs_alone;

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

void moe_par_for(int64_t n, int64_t grain,
                 void (*fn)(void *ctx, int64_t begin, int64_t end, int thread), void *ctx)
{
    if (n <= 0)
        return;
    if (runs_alone) {
        fn(ctx, 0, n, 0);
        return;
    }
    if (grain < 1)
        grain = 1;
    int64_t n_ranges = (n + grain - 1) / grain;
    int wanted = moe_par_threads(), threads = wanted < n_ranges ? wanted : (int)n_ranges;
#ifdef _OPENMP
    if (threads > 1 && !omp_in_parallel()) {
        /* A shared counter instead of schedule(dynamic): the ranges shrink towards the end, so a
         * core slowed by other work holds up the others by one grain at most. */
        atomic_llong next = 0;
#pragma omp parallel num_threads(threads)
        {
            int thread = omp_get_thread_num();
            for (;;) {
                long long seen = atomic_load_explicit(&next, memory_order_relaxed), take;
                do {
                    take = (n - seen) / (2 * threads);
                    take = take / grain * grain;
                    if (take < grain)
                        take = grain;
                } while (seen < n && !atomic_compare_exchange_weak_explicit(
                                         &next, &seen, seen + take, memory_order_relaxed,
                                         memory_order_relaxed));
                if (seen >= n)
                    break;
                fn(ctx, seen, seen + take < n ? seen + take : n, thread);
            }
        }
        return;
    }
#endif
    (void)threads;
    fn(ctx, 0, n, 0);
}
