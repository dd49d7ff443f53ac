/*
 * What a parallel loop takes after its threads have slept, as after a wait for an expert.
 *
 *   bench_loops [THREADS]      THREADS: the cores that may be used
 *
 * A loop of steps that need no memory, and one that reads memory no cache holds, on one thread and
 * on THREADS, right after another one and after sleeps of some length. Prints medians of RUNS, the
 * tenth and the ninetieth percentile, and the share of the items that helpers took.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "tune/device_bench.h"

enum { ITEMS = 160, GRAIN = 4, STEPS = 1200, ITEM_BYTES = 4096, RUNS = 400, N_SLEEPS = 5 };

static const double sleeps[N_SLEEPS] = {0, 50e-6, 300e-6, 1e-3, 4e-3};

struct work {
    const uint8_t *memory; /* ITEM_BYTES for each item; NULL: the loop of steps */
    int64_t helped;
    uint64_t sums[MOE_MAX_THREADS];
};

static void work_on(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct work *w = ctx;
    uint64_t sum = 0;
    for (int64_t i = begin; i < end; i++) {
        if (w->memory)
            for (int k = 0; k < ITEM_BYTES; k += 8) {
                uint64_t word;
                memcpy(&word, w->memory + i * ITEM_BYTES + k, 8);
                sum += word;
            }
        else
            for (int k = 0; k < STEPS; k++) /* Knuth's MMIX constant: */
                sum = sum * 6364136223846793005u + (uint64_t)i;
    }
    w->sums[thread] += sum;
    if (thread > 0)
        __atomic_fetch_add(&w->helped, end - begin, __ATOMIC_RELAXED);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The memory is read from *at on, which moves on. */
static void run(const uint8_t *memory, uint64_t n_bytes, uint64_t *at, int threads, double sleep)
{
    static double seconds[RUNS];
    struct work w = {.memory = NULL};
    moe_par_set_threads(threads);
    for (int i = 0; i < RUNS; i++) {
        if (memory) {
            w.memory = memory + *at;
            *at = (*at + ITEMS * ITEM_BYTES) % n_bytes;
        }
        if (sleep > 0)
            nanosleep(&(struct timespec){.tv_nsec = (long)(sleep * 1e9)}, NULL);
        double began = moe_seconds();
        moe_par_for(ITEMS, GRAIN, work_on, &w);
        seconds[i] = moe_seconds() - began;
    }
    qsort(seconds, RUNS, sizeof *seconds, compare);
    printf("%-7s %3d threads, slept %4.0f us: %6.1f us (%.1f to %.1f), helpers took %2.0f%%\n",
           memory ? "memory" : "steps", threads, 1e6 * sleep, 1e6 * seconds[RUNS / 2],
           1e6 * seconds[RUNS / 10], 1e6 * seconds[RUNS - RUNS / 10],
           100.0 * (double)w.helped / (RUNS * ITEMS));
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : moe_cores_available();
    struct moe_err err;
    const uint64_t pass = ITEMS * ITEM_BYTES, n_bytes = (moe_cold_bytes() / pass + 1) * pass;
    uint8_t *memory = moe_pages_alloc(n_bytes, &err);
    uint64_t at = 0;
    if (!memory) {
        fprintf(stderr, "bench_loops: %s\n", err.text);
        return 1;
    }
    memset(memory, 1, n_bytes);
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < 2 * N_SLEEPS; i++)
            run(kind ? memory : NULL, n_bytes, &at, i < N_SLEEPS ? 1 : threads,
                sleeps[i % N_SLEEPS]);
    moe_pages_free(memory, n_bytes);
    return 0;
}
