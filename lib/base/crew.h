/*
 * Threads that help with a loop: each thread that runs loops has a crew of its own.
 *
 * The one that runs the loop works too, and waits at its end for those alone that have begun. A
 * helper that is still asleep, or that the machine gives no processor, holds up nobody: where
 * experts are waited for, threads sleep between loops, and waking takes longer than a small loop.
 */
#ifndef MOE_BASE_CREW_H
#define MOE_BASE_CREW_H

#include <stdbool.h>

/* Calls work(ctx, thread) on the calling thread, as 0, and on up to threads - 1 helpers, each with
 * a number of its own below `threads`, while that call lasts; the helpers that come in time. The
 * calling thread's must therefore do all that is left. Returns when all calls have. Not from within
 * such a call. */
void moe_crew_run(int threads, void (*work)(void *ctx, int thread), void *ctx);

/* Whether the calling thread is within such a call. */
bool moe_crew_inside(void);

#endif
