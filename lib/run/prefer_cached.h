/*
 * Cache-aware routing in a pass: what the router made of a decoded row, and what the cache keeps,
 * become a choice (sched/prefer.h) with the weights that the router gives it.
 */
#ifndef MOE_RUN_PREFER_CACHED_H
#define MOE_RUN_PREFER_CACHED_H

#include "run/session.h"
#include "sched/prefer.h"

struct moe_prefer_cached {
    struct moe_preference preference;
    float *scores;        /* [router stride] the session's router_row */
    float *probabilities; /* [router stride] */
    float *scratch;       /* [2 * n_experts] */
    uint32_t *best;       /* [n_experts] */
};

void moe_prefer_cached_carve(struct moe_prefer_cached *p, struct moe_arena *arena,
                             const struct moe_config *config);
/* The request's chosen and weights of a model layer for one decoded row become what is preferred,
 * after its router has chosen. Returns how many are not the router's choice. */
uint32_t moe_prefer_cached_choose(struct moe_prefer_cached *p, struct moe_session *s,
                                  uint32_t layer);

#endif
