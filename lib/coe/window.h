/*
 * How many experts stay in memory where a large batch could take it all: a window slides over their
 * number, narrower at each step, until throughput no longer rises as it did (CoServe 4.4).
 */
#ifndef MOE_COE_WINDOW_H
#define MOE_COE_WINDOW_H

#include <stdint.h>

#include "base/err.h"

enum { MOE_COE_MAX_POINTS = 64 };

struct moe_coe_window_options {
    uint32_t first;  /* size of the first window; 0: 15, as in 5.3; at most 99 */
    uint32_t fitted; /* N: the trend is a line through so many points; 0: 2 */
    double margin;   /* ... that the next may be below by this share; 0: 5% */
    uint32_t most;   /* experts that memory and collection have room for, at least 1 */
    uint64_t seed;   /* of the choice within the window */
};

struct moe_coe_window {
    uint32_t n_points; /* upper bounds that were tried, and what came of them */
    uint32_t experts[MOE_COE_MAX_POINTS];
    double throughput[MOE_COE_MAX_POINTS];
    uint32_t lower, upper; /* the last window */
    double expected;       /* f(upper), by the trend; 0: there were too few points for one */
    uint32_t chosen;       /* lower < chosen <= upper */
};

/* measure: the throughput with so many experts in memory. Window k is [b, b + first * factor^k], b
 * the end of the one before, factor = 1 - first / 100 (equation 1); it stops where (f(N + 1) -
 * measured) / f(N + 1) > margin (equations 2 and 3), or with `most`. */
int moe_coe_slide(const struct moe_coe_window_options *options,
                  int (*measure)(void *ctx, uint32_t n_experts, double *throughput,
                                 struct moe_err *err),
                  void *ctx, struct moe_coe_window *out, struct moe_err *err);

#endif
