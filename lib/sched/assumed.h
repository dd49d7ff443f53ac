/*
 * Predictions of an assumed accuracy: who knows what a router is going to choose names its experts,
 * all but a share of them, which are others. So a strategy can be tried where no predictor of the
 * model is at hand: a trace of another engine has none.
 */
#ifndef MOE_SCHED_ASSUMED_H
#define MOE_SCHED_ASSUMED_H

#include <stdint.h>

/* What a prediction is about; together with the expert's place it decides whether that is right. */
struct moe_assumed_of {
    uint64_t sequence; /* of the trace */
    uint32_t token;    /* in the sequence */
    uint32_t layer;    /* MoE layer */
};

/* Writes probabilities[n_experts]: of the experts chosen[top_k] each is predicted with the
 * probability `accuracy`, else another expert in its place that was neither chosen nor predicted,
 * as far as there is one. They fall in the router's order, those of all others are 0. Drawn from
 * `of` alone, and so the same wherever it is asked for. */
void moe_assumed_prediction(struct moe_assumed_of of, double accuracy, const uint16_t *chosen,
                            uint32_t top_k, uint32_t n_experts, float *probabilities);

#endif
