/*
 * How fast this machine reads its memory: the yardstick of everything that has to touch each weight
 * once.
 */
#ifndef MOE_STUDY_READ_RATE_H
#define MOE_STUDY_READ_RATE_H

#include <stdint.h>

/* One timed pass of all threads (moe_par_threads) over n bytes (a multiple of 256; more than the
 * caches hold, or it is them that are measured), in bytes per second. `data` is 64-byte aligned. */
double moe_read_rate(const void *data, uint64_t n_bytes);

#endif
