/*
 * Steps: in which order experts should give up bits. Pure.
 *
 * Every expert can be stored at some variants; each has its bytes and a loss, measured or
 * estimated. From the upper variant an expert steps down along the lower convex hull of its points
 * (bytes, loss). The steps of all experts, sorted by loss per byte saved, make one list; its
 * first K steps are taken (EdgeMoE III-B: "starts with the top-K experts from the list"; here
 * an expert may take several smaller steps, and large savings count more).
 */
#ifndef MOE_PLAN_TUNING_H
#define MOE_PLAN_TUNING_H

#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "profile/trace.h"
#include "sched/inventory.h"
#include "sched/strategy.h"

struct moe_step {
    uint32_t expert; /* layer * n_experts + expert */
    uint8_t variant; /* that it steps to */
    double loss;     /* by how much it grows; below 0 only if a gain was measured */
    double bytes;    /* weighted bytes saved, above 0 */
};

struct moe_stairs {
    uint32_t n_experts;    /* of all layers */
    uint32_t n_variants;   /* of an expert, best first */
    uint32_t upper;        /* the variant where all begin */
    const uint64_t *bytes; /* [n_experts][n_variants] stored; 0: not available at this variant */
    const double *loss;    /* [n_experts][n_variants]; ignored at upper and better ones */
    const double *weight;  /* [n_experts] weight of its bytes, such as its loads; NULL: 1 */
};

/* *steps: free() it. An expert's steps keep their order. Equal slopes: the lower expert first. A
 * variant that has at least the bytes and the loss of a better one is never taken; an expert that
 * is not stored at upper, or whose weight is 0, takes no step. MOE_ERR_USAGE: no such upper, a
 * weight below 0, a loss that is not finite. */
int moe_steps_make(struct moe_step **steps, uint64_t *n, const struct moe_stairs *stairs,
                   struct moe_err *err);
/* Writes variants[n_experts] as they are after the first k steps; returns the sum of their losses.
 */
double moe_steps_take(const struct moe_step *steps, uint64_t k, uint32_t upper, uint32_t n_experts,
                      uint8_t *variants);

/*
 * Tuning HOBBIT's cache on a trace: finds the four weights of its priority (equation 3) and the
 * share of memory for low precision that have the least miss penalty. A miss of the high version
 * costs 1, one of the low version B_l / B_h (HOBBIT 3.4), by the bytes that are loaded. The
 * simulator decides as moe-run does, but without prefetches: equation 3 is about eviction.
 */

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
 * minimizes the mean over sizes of each penalty relative to the default's, so that large caches
 * count as much as small ones; out->penalty is never above out->default_penalty. MOE_ERR_USAGE:
 * another cache than hobbit's, no size, a trace without decoded tokens; errors of moe_simulate. */
int moe_tune_hobbit(const struct moe_tuning *in, struct moe_tuned *out, struct moe_err *err);

#endif
