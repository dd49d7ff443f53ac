/*
 * The best of many: how scores are ranked everywhere.
 */
#ifndef MOE_BASE_RANK_H
#define MOE_BASE_RANK_H

#include <stdint.h>

#include "base/err.h"

/* Writes to best[k] the indices of the k largest of n values, in descending order, the lower index
 * first among equals. k <= n. The k indices differ even if values are NaN. */
void moe_best(const float *values, uint32_t n, uint32_t k, uint32_t *best);

/* The same for k < n, with indices in rising order, in a time that does not depend on k. Both zeros
 * are equal; a NaN may be anywhere. */
void moe_best_places(const float *values, uint32_t n, uint32_t k, uint32_t *places);

#endif
