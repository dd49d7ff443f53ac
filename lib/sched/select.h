/*
 * Selection: from a layer's predicted scores to the experts worth prefetching. Pure.
 *
 * Sources: Fate 4.2 (percentile) and 4.3 (n = T / t_expert, popularity in prefill), EdgeMoE III-C
 * (by falling probability).
 */
#ifndef MOE_SCHED_SELECT_H
#define MOE_SCHED_SELECT_H

#include <stdint.h>

#include "sched/strategy.h"

/*
 * One layer's prediction for the rows of a pass. For one row, scores are probabilities; for
 * several, the number of rows whose predicted best k hold the expert, plus a fraction below 1 that
 * ranks equal ones by their mean probability, as finely as a float can (moe_tally).
 */
struct moe_prediction {
    uint32_t layer; /* MoE layer that it is about */
    uint32_t n_rows;
    const float *scores;       /* [n_experts] */
    const float *unimportance; /* [n_experts] least score of equation 2 (precision.h) over the rows
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

#endif
