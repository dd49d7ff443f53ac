/*
 * Steps: in which order experts should give up bits. Pure.
 *
 * Every expert can be stored at some variants; each has its bytes and a loss that was measured or
 * estimated. From the upper variant an expert steps down along the lower convex hull of its points
 * (bytes, loss); the steps of all experts, sorted by loss per byte saved, make one list. The first
 * K steps are the choice for some K (EdgeMoE III-B: "starts with the top-K experts from the list";
 * here an expert may take several smaller steps, and large savings count for more).
 */
#ifndef MOE_PLAN_STEPS_H
#define MOE_PLAN_STEPS_H

#include <stdint.h>

#include "base/err.h"

struct moe_step {
    uint32_t expert; /* layer * n_experts + expert */
    uint8_t variant; /* that it steps to */
    double loss;     /* more than before, 0 or above but for measured gains */
    double bytes;    /* weighted bytes less than before, above 0 */
};

struct moe_stairs {
    uint32_t n_experts;    /* of all layers */
    uint32_t n_variants;   /* of an expert, best first */
    uint32_t upper;        /* where all begin */
    const uint64_t *bytes; /* [n_experts][n_variants] stored; 0: not stored at it, or not to be
                              taken */
    const double *loss;    /* [n_experts][n_variants]; of upper and better ones not looked at */
    const double *weight;  /* [n_experts] what a byte of it counts, e.g. loads; NULL: 1 */
};

/* *steps: free() it. An expert's steps keep their order. Equal slopes: the lower expert first. A
 * variant with no fewer bytes than a better one with no more loss is never taken; an expert that
 * is not stored at upper, or whose bytes count nothing, takes no step. MOE_ERR_USAGE: no such
 * upper, a weight below 0, a loss that is no number. */
int moe_steps_make(struct moe_step **steps, uint64_t *n, const struct moe_stairs *stairs,
                   struct moe_err *err);
/* variants[n_experts] after the first k steps. Returns the sum of their losses. */
double moe_steps_take(const struct moe_step *steps, uint64_t k, uint32_t upper, uint32_t n_experts,
                      uint8_t *variants);

#endif
