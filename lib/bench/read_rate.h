/*
 * How fast this machine reads its memory: the limit of everything that reads each weight once.
 */
#ifndef MOE_BENCH_READ_RATE_H
#define MOE_BENCH_READ_RATE_H

#include <stdint.h>

/* Bytes that do not fit this machine's caches, with a margin. */
uint64_t moe_cold_bytes(void);

/* One timed pass of all threads (moe_par_threads) over n bytes, in bytes per second. n is a
 * multiple of 256 and at least moe_cold_bytes, else the caches are measured. `data` is 64-byte
 * aligned. */
double moe_read_rate(const void *data, uint64_t n_bytes);

#endif
