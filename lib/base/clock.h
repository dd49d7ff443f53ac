/* Time in seconds, for measurements: monotonic, and of processors. */
#ifndef MOE_BASE_CLOCK_H
#define MOE_BASE_CLOCK_H

#include <pthread.h>

double moe_seconds(void);

/* Seconds for which the calling thread has had a processor. */
double moe_thread_seconds(void);

/* pthread_cond_wait for at most that long: for loops that also look at a flag which a signal sets.
 */
void moe_wait_at_most(pthread_cond_t *changed, pthread_mutex_t *lock, int milliseconds);

/* Stolen time: what the host of a virtual machine withheld from processors that wanted to run
 * ("steal", proc(5)). */

/* Ticks of all processors since the machine started; 0 where the kernel does not say. */
struct moe_ticks {
    double all, stolen;
};

struct moe_ticks moe_ticks_now(void);

#endif
