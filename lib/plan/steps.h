/*
 * Steps: in which order experts should give up bits. Pure.
 *
 * Every expert can be stored at some variants; each has its bytes and a loss, measured or
 * estimated. From the upper variant an expert steps down along the lower convex hull of its points
 * (bytes, loss). The steps of all experts, sorted by loss per byte saved, make one list, of which
 * the first K steps are taken (EdgeMoE III-B: "starts with the top-K experts from the list"; here
 * an expert may take several smaller steps, and large savings count more).
 */
#ifndef MOE_PLAN_STEPS_H
#define MOE_PLAN_STEPS_H

#include <stdint.h>

#include "base/err.h"

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

#endif
