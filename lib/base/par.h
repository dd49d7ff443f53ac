/*
 * Parallel loops.
 *
 * A loop over n items is cut into consecutive ranges that the threads take as they become free;
 * results must not depend on the cut: any number of threads gives the same tokens. Loops do not
 * nest: one started inside another runs on its own thread. Every thread that starts loops has its
 * own helpers (par.c), so that several can compute side by side; moe_par_alone(true) makes the
 * calling thread work without them.
 */
#ifndef MOE_BASE_PAR_H
#define MOE_BASE_PAR_H

#include <stdbool.h>
#include <stdint.h>

enum { MOE_MAX_THREADS = 256 };

/* Cores this process may run on (its affinity mask), at least 1, at most MOE_MAX_THREADS. */
int moe_cores_available(void);

/* Threads that compute where none are named: one for each of these cores, but no more than the CPU
 * quotas of control groups allow. */
int moe_default_threads(void);

/* Threads that later loops use; process-wide. Values are clamped to 1..MOE_MAX_THREADS.
 * Call before the first loop, or between loops. */
void moe_par_set_threads(int n_threads);
/* The same for loops of the calling thread only; 0: the process's number again. Returns the
 * previous setting. */
int moe_par_set_team(int n_threads);
/* The number of threads of the calling thread's next loop. */
int moe_par_threads(void);

/* Runs the calling thread's later loops without helpers, with thread number 0; scratch memory
 * indexed by thread number is then the caller's own. Returns the previous setting. */
bool moe_par_alone(bool alone);

/* Calls fn(ctx, begin, end, thread) over [0, n) in ranges of at least `grain` items (the last may
 * be shorter); `thread` is 0..threads-1, for scratch memory. Returns when all are done. */
void moe_par_for(int64_t n, int64_t grain,
                 void (*fn)(void *ctx, int64_t begin, int64_t end, int thread), void *ctx);

#endif
