/*
 * Precision: which experts deserve their high precision. Pure functions of routing weights and
 * popularity.
 *
 * Sources: HOBBIT 3.2, equation 2, fig. 6; Fate 4.5, fig. 9 and 10; AdapMoE (arXiv 2408.10284).
 */
#ifndef MOE_SCHED_PRECISION_H
#define MOE_SCHED_PRECISION_H

#include <stdint.h>

/* HOBBIT's unimportance score s of each chosen expert (equation 2): the normalised weights of those
 * before it, summed; 0 for the first, never above 1. weights: [k], not negative, of any scale (they
 * are normalised to a sum of 1 here) and in any order (they are ranked here, equal ones by
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

#endif
