#include "base/rank.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

struct entry {
    double value;
    uint64_t index;
};

static int by_value(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

/* ranks[i] of values[i], from 1; equal values share the mean of their places. */
static void rank(const double *values, uint64_t n, struct entry *sorted, double *ranks)
{
    for (uint64_t i = 0; i < n; i++)
        sorted[i] = (struct entry){values[i], i};
    qsort(sorted, n, sizeof *sorted, by_value);
    for (uint64_t first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && sorted[end].value == sorted[first].value; end++)
            ;
        for (uint64_t i = first; i < end; i++)
            ranks[sorted[i].index] = 0.5 * (double)(first + 1 + end);
    }
}

/* Pearson's correlation of two rankings, whose means are both (n + 1) / 2. */
static double correlate(const double *a, const double *b, uint64_t n)
{
    double mean = 0.5 * (double)(n + 1), ab = 0, aa = 0, bb = 0;
    for (uint64_t i = 0; i < n; i++) {
        ab += (a[i] - mean) * (b[i] - mean);
        aa += (a[i] - mean) * (a[i] - mean);
        bb += (b[i] - mean) * (b[i] - mean);
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : NAN;
}

int moe_rank_correlation(const double *a, const double *b, uint64_t n, double *out,
                         struct moe_err *err)
{
    struct entry *sorted = moe_alloc(n, sizeof *sorted, err);
    double *ranks = sorted ? moe_alloc(n, 2 * sizeof *ranks, err) : NULL;
    if (ranks) {
        rank(a, n, sorted, ranks);
        rank(b, n, sorted, ranks + n);
        *out = correlate(ranks, ranks + n, n);
    }
    free(sorted);
    free(ranks);
    return ranks ? MOE_OK : MOE_ERR_MEMORY;
}
