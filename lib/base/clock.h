/* Monotonic time in seconds, for measurements. */
#ifndef MOE_BASE_CLOCK_H
#define MOE_BASE_CLOCK_H

double moe_seconds(void);

/* Time that the host of a virtual machine keeps of its processors while they want to run ("steal",
 * proc(5)). */

/* Of all processors, since the machine started, in clock ticks; 0 where the kernel does not say. */
struct moe_ticks {
    double all, stolen;
};

struct moe_ticks moe_ticks_now(void);

#endif
