/*
 * Which experts to measure. Estimates of all experts' importances cost a few passes, measuring one
 * costs the passes of those that visit it: so a few are measured, spread over the estimates, a line
 * is fitted that takes estimates to measurements, and of the others those are measured whose
 * bitwidth hangs on what the line leaves open. Pure; calibrate_strategies.c does it.
 */
#ifndef MOE_TUNE_ADAPTIVE_H
#define MOE_TUNE_ADAPTIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* log(nats) = base + slope * log(estimate), give or take `spread`, the standard deviation of what
 * is left of the logarithms. */
struct moe_importance_line {
    double base, slope, spread;
};

/* How many spreads an expert that is not measured may be off the line. */
#define MOE_ADAPTIVE_SPREADS 2

/* The line through experts that were measured (asked[i] != 0), least squares of logarithms. A
 * figure below its own standard error counts as that, for a loss cannot be told from it; experts
 * with an estimate of 0, or with neither figure nor error, are left out. Of fewer than three, or of
 * equal estimates, the slope is 1 and, without any, the base 0. */
struct moe_importance_line moe_importance_fit(const double *estimates, const double *nats,
                                              const double *errors, const uint8_t *asked,
                                              uint64_t n);
/* What the line makes of an estimate; 0 of 0. */
double moe_importance_on_line(const struct moe_importance_line *line, double estimate);

/* Sets asked[] of `count` experts, in equal steps of the estimates' ranks. MOE_ERR_MEMORY. */
int moe_importance_sample(uint8_t *asked, const double *estimates, uint64_t n, uint64_t count,
                          struct moe_err *err);
/* Counts the experts not yet asked that are nearer than `reach`, and sets asked[] of the `count`
 * nearest, the first among equals. MOE_ERR_MEMORY. */
uint64_t moe_importance_open(const uint8_t *asked, const double *distances, uint64_t n,
                             double reach);
int moe_importance_ask(uint8_t *asked, const double *distances, uint64_t n, double reach,
                       uint64_t count, struct moe_err *err);

#endif
