/*
 * The best of many: the order in which scores are ranked everywhere.
 */
#ifndef MOE_BASE_BEST_H
#define MOE_BASE_BEST_H

#include <stdint.h>

/* The k largest of n values, falling; the lower number first among equals. k <= n. Always k
 * different ones, whatever the values are. best: [k], out. */
void moe_best(const float *values, uint32_t n, uint32_t k, uint32_t *best);

#endif
