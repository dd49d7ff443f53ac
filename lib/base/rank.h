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

/*
 * Rank correlation.
 */

/* Spearman's rank correlation of n pairs, computed as Pearson's of the ranks: equal values have
 * their mean rank. NAN where one side is constant or n < 2. The values are finite.
 * MOE_ERR_MEMORY. */
int moe_rank_correlation(const double *a, const double *b, uint64_t n, double *out,
                         struct moe_err *err);

#endif
