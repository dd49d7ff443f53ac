/*
 * Precision: which experts deserve their high precision. Pure functions of routing weights and
 * popularity.
 *
 * Sources: HOBBIT 3.2, equation 2, fig. 6; Fate 4.5, fig. 9 and 10; AdapMoE (arXiv 2408.10284).
 */
#ifndef MOE_SCHED_SELECT_H
#define MOE_SCHED_SELECT_H

#include <stdint.h>

#include "base/mem.h"
#include "sched/strategy.h"

/* HOBBIT's unimportance score s of each chosen expert (equation 2): the normalized weights of those
 * before it, summed; 0 for the first, never above 1. weights: [k], not negative, of any scale (they
 * are normalized to a sum of 1 here) and in any order (they are ranked here, equal ones by
 * position); scores: [k], of the same positions. Weights that are all 0: every score is 0. */
void moe_unimportance(const float *weights, uint32_t k, float *scores);

/* Lowers each expert's entry of `least` to its score in the row of a pass to which it matters most.
 * chosen, weights: [n_rows][k], k <= MOE_MAX_TOP_K; least: [experts], set by the caller. */
void moe_least_unimportance(const uint32_t *chosen, const float *weights, uint32_t n_rows,
                            uint32_t k, float *least);

/* AdapMoE's gating of one row: the weight of experts whose score is above 1 - share becomes 0, the
 * others grow so that the sum stays. The first expert always keeps its weight; the score of those
 * left out becomes 1. weights: [k], k <= MOE_MAX_TOP_K, as in moe_unimportance. */
void moe_gate_below(float *weights, uint32_t k, double share);

/* Equation 2's three classes. */
enum moe_importance { MOE_IMPORTANT = 0, MOE_LESS_IMPORTANT, MOE_UNIMPORTANT };
/* s <= t1: important; s <= t2: less important; above: unimportant. A score of 0 (the best expert)
 * is important whatever the thresholds are. Compared at the precision of the score. */
enum moe_importance moe_importance_of(float score, double t1, double t2);

/* Fate's hybrid prefill: marks the floor(share * n) least popular of n active experts as low (1),
 * the others 0. Of equally popular ones the higher id is taken first. rows: [n]; share: 0 to 1;
 * low: [n]. */
void moe_least_popular(const uint32_t *rows, uint32_t n, double share, uint8_t *low);

/*
 * Selection: from a layer's predicted scores to the experts worth prefetching. Pure.
 *
 * Sources: Fate 4.2 (percentile) and 4.3 (n = T / t_expert, popularity in prefill), EdgeMoE III-C
 * (by falling probability).
 */

/*
 * One layer's prediction for the rows of a pass. For one row, scores are probabilities; for
 * several, the number of rows whose predicted best k hold the expert, plus a fraction below 1 that
 * ranks equal ones by their mean probability, as finely as a float can (moe_tally).
 */
struct moe_prediction {
    uint32_t layer; /* MoE layer that it is about */
    uint32_t n_rows;
    const float *scores;       /* [n_experts] */
    const float *unimportance; /* [n_experts] least score of equation 2 (HOBBIT) over the rows
                                  whose best k hold the expert; above 1: in no row's best k */
};

/* Ranked candidates: experts by falling score, the lower number first among equals; never those
 * whose score is 0.
 * percentile P, 0 to 100: those whose score is above the P-th percentile of all n scores (nearest
 * rank: the ceil(P/100 * n)-th from below; what equals it is not above it); of several rows all
 * those in some row's best k (Fate 4.3: prompts fetch what is predicted, by popularity). top_k: at
 * most k of one row, of several those in some row's best k. The scheduler applies the other limits.
 * experts: [n_experts]; returns how many. */
uint32_t moe_select(const struct moe_prefetch_limits *limits, const struct moe_prediction *p,
                    uint32_t n_experts, uint32_t top_k, uint32_t *experts);

/* Makes a prediction's scores of n_rows rows, at least 1; with one row they are its probabilities.
 * Means are of what a trace would keep (trace.h): of each row the best of moe_trace_default_keep,
 * as half-precision numbers, so that a replay ranks as the run did. An expert of probability 0 is
 * not among a row's best k. probabilities: [n_rows][stride], 0 to 1, of any sum; top_k: at most
 * MOE_MAX_TOP_K; scores and unimportance: [n_experts], out; scratch: [2 * top_k]. */
void moe_tally(const float *probabilities, uint64_t stride, uint32_t n_rows, uint32_t n_experts,
               uint32_t top_k, float *scores, float *unimportance, float *scratch);

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
