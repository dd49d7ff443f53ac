/*
 * Cache-aware routing: a decoded token prefers experts that the cache keeps. Pure; the runner and
 * the simulator choose with the same code.
 *
 * Of a router's best experts, as many as traces keep by default, those in the cache have their
 * scores raised by lambda times the layer's spread, and the best top_k are used; the strongest ones
 * always are. A score is the logarithm of the softmax over all experts, which differs from the
 * router's own by the same amount for all of them. Probabilities are rounded to half precision, as
 * traces have them, so that a replay chooses as the run did. The spread is the mean, over the
 * tokens that a sequence has decoded so far, the present one included, of the distance between the
 * best and the last of these scores; from MOE_PREFER_SPAN tokens on older ones fade.
 *
 * What is used depends on what is in the cache, so on its size and policy: results do, too.
 *
 * Source: Cache-Prior of Mixture of Cache-Conditional Experts (arXiv 2412.00099), where the spread
 * is over all experts and never fades.
 */
#ifndef MOE_SCHED_PREFER_H
#define MOE_SCHED_PREFER_H

#include <stdint.h>

#include "base/mem.h"

enum { MOE_PREFER_SPAN = 64 };

struct moe_preference {
    double lambda;
    uint32_t keeps; /* of the strongest experts, at least 1 */
    uint32_t n_layers, n_experts, top_k, reach;
    double *spread; /* [n_layers] */
    uint32_t *seen; /* [n_layers] tokens in it, up to MOE_PREFER_SPAN */

    /* The router's best experts in a layer, n of at most `reach`, which the caller fills in: those
     * that it chose in its order, then the next best, falling; and their probabilities. */
    uint32_t n;
    uint32_t *experts;    /* [reach] */
    float *probabilities; /* [reach] */
    uint8_t *cached;      /* [n_experts] which the cache keeps; likewise */
    double *scores;       /* [reach] scratch */
    uint8_t *taken;       /* [reach] scratch */
};

/* Experts of a layer that count: a replay needs as many of a trace's. */
uint32_t moe_preference_reach(uint32_t n_experts, uint32_t top_k);
/* Takes its memory from the arena (which may only count); layers are MoE layers. */
void moe_preference_carve(struct moe_preference *p, struct moe_arena *arena, uint32_t n_layers,
                          uint32_t n_experts, uint32_t top_k);
void moe_preference_begin_sequence(struct moe_preference *p);
/* chosen: [top_k] the experts to use, falling by the router's score. Returns how many are not those
 * that the router chose. */
uint32_t moe_preference_choose(struct moe_preference *p, uint32_t layer, uint32_t *chosen);

#endif
