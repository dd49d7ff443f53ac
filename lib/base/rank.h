/*
 * Rank correlation of two sides of pairs.
 */
#ifndef MOE_BASE_RANK_H
#define MOE_BASE_RANK_H

#include <stdint.h>

#include "base/err.h"

/* Spearman's rank correlation of n pairs, computed as Pearson's of the ranks: equal values have
 * their mean rank. NAN where one side is constant or n < 2. The values are finite.
 * MOE_ERR_MEMORY. */
int moe_rank_correlation(const double *a, const double *b, uint64_t n, double *out,
                         struct moe_err *err);

#endif
