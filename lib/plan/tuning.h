/*
 * Tuning HOBBIT's cache on a trace: finds the four weights of its priority (equation 3) and the
 * share of memory for low precision that have the least miss penalty. A miss of the high version
 * costs 1, one of the low version B_l / B_h (HOBBIT 3.4), by the bytes that are loaded. The
 * simulator decides as moe-run does, but without prefetches: equation 3 is about eviction.
 */
#ifndef MOE_PLAN_TUNING_H
#define MOE_PLAN_TUNING_H

#include "base/progress.h"
#include "sched/inventory.h"
#include "sched/strategy.h"
#include "trace/excerpt.h"
#include "trace/trace.h"

struct moe_tuning {
    const struct moe_inventory *inventory;
    struct moe_trace *trace; /* of the same shape */
    struct moe_excerpt excerpt;
    struct moe_strategy strategy; /* settled: hobbit with its T1 and T2 */
    uint32_t high, low;           /* variants */
    const uint64_t *cache_bytes;  /* [n_sizes] cache sizes over which penalties are averaged */
    uint32_t n_sizes;
    const struct moe_progress *progress;
};

struct moe_tuned {
    double weights[MOE_HOBBIT_WEIGHTS];
    double low_pool;
    double penalty;         /* mean over sizes, per activation of decoded tokens */
    double default_penalty; /* of the strategy as given */
    uint32_t n_tried;
};

/* Steepest descent over weights (1/8 of the sum moves from one to another) and pool shares (steps
 * of 1/20, at most 1/2), from the strategy's own and from each single policy; deterministic. It
 * minimises the mean over sizes of each penalty relative to the default's, so that large caches
 * count as much as small ones; out->penalty is never above out->default_penalty. MOE_ERR_USAGE:
 * another cache than hobbit's, no size, a trace without decoded tokens; errors of moe_simulate. */
int moe_tune_hobbit(const struct moe_tuning *in, struct moe_tuned *out, struct moe_err *err);

#endif
