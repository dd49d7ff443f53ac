/*
 * The best of many: the order in which scores are ranked everywhere.
 */
#ifndef MOE_BASE_BEST_H
#define MOE_BASE_BEST_H

#include <stdint.h>

/* Writes to best[k] the indices of the k largest of n values, in descending order, among equals the
 * lower index first. k <= n. They are k different ones even if values are NaN. */
void moe_best(const float *values, uint32_t n, uint32_t k, uint32_t *best);

/* The same k < n, in rising order, in a time that does not depend on k. Both zeros are equal; a NaN
 * may be anywhere. */
void moe_best_places(const float *values, uint32_t n, uint32_t k, uint32_t *places);

#endif
