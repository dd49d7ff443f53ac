/* Monotonic time in seconds, for measurements. */
#ifndef MOE_BASE_CLOCK_H
#define MOE_BASE_CLOCK_H

double moe_seconds(void);

#endif
