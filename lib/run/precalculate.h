/*
 * DAOP's pre-calculation in decode (IV-C): the predicted experts of the next MoE layer replace its
 * router's choice where the host has any of either, and those that lie on the host alone are
 * computed a layer early, on the state of the layer before.
 *
 * Per MoE layer: choose, when the router has chosen; begin, for the next layer; collect, before the
 * outputs are added. Which experts are on the device is decided by sched/placement.h.
 */
#ifndef MOE_RUN_PRECALCULATE_H
#define MOE_RUN_PRECALCULATE_H

#include "run/host_jobs.h"
#include "sched/placement.h"
#include "sched/select.h"

/* What was decided for a layer; choice.n 0: nothing. */
struct moe_precalculated_layer {
    uint32_t layer; /* of the model */
    struct moe_predicted choice;
    float weights[MOE_MAX_TOP_K];                  /* of its experts */
    struct moe_host_ticket tickets[MOE_MAX_TOP_K]; /* of those computed on the host */
    float *out;                                    /* [top_k][states' stride] */
};

struct moe_precalculation {
    struct moe_session *session;              /* borrowed */
    struct moe_host_jobs *jobs;               /* borrowed */
    uint32_t replaces;                        /* experts at most (moe_predicted_choice) */
    struct moe_precalculated_layer layers[2]; /* this and the next, by MoE layer modulo 2 */
    uint8_t *precalculated;                   /* [n_experts] */
    uint8_t *present;                         /* [n_experts] */
    uint32_t *order;                          /* [n_experts] */
    float *scratch;                           /* [3 * n_experts] */
};

/* The experts that a router chooses by predicted scores, degraded (moe_predicted_choice; what lies
 * beyond the router's groups replaces nothing), with the weights that it gives those experts. Where
 * none is replaced both are the router's, bit for bit. A replacement has its own share of the
 * scores, a lower one ("even the next-best expert exhibits a lower score", IV-C); where the model
 * normalises its weights (norm_topk), over the experts that are used. choice_bias: the layer's, on
 * the host; NULL: none. scores: [n_experts] as the router gives them; NULL: of a softmax router, of
 * which probabilities suffice. weights: [top_k]; scratch: [3 * n_experts]; barred: [n_experts]. */
void moe_precalculate_choice(const struct moe_config *config, const float *choice_bias,
                             const float *scores, const float *probabilities,
                             const uint8_t *on_device, uint32_t replaces,
                             struct moe_predicted *choice, float *weights, float *scratch,
                             uint32_t *barred);

void moe_precalculation_carve(struct moe_precalculation *p, struct moe_arena *arena,
                              const struct moe_config *config);
/* A pass begins: nothing is decided yet. */
void moe_precalculation_reset(struct moe_precalculation *p);

/* The request's chosen and weights of a model layer become what was decided for it, if anything
 * was, and if the host has an expert of it or of the router's choice (moe_predicted_pays): then
 * *precalculated is [n_experts], else NULL. Returns how many activations are not the router's
 * choice. */
uint32_t moe_precalculation_choose(struct moe_precalculation *p, uint32_t layer, uint32_t n_rows,
                                   const uint8_t **precalculated);
/* Decides the experts of model layer `next` by the prediction and the scores behind it
 * (moe_predicted_router_scores), with that layer's bias for the choice; those on the host begin. */
int moe_precalculation_begin(struct moe_precalculation *p, uint32_t next,
                             const struct moe_prediction *prediction, const float *choice_bias,
                             const float *scores, struct moe_err *err);
/* Copies the outputs of an expert of the layer to `out` when they are done; returns for how many
 * seconds it waited. */
double moe_precalculation_collect(struct moe_precalculation *p, uint32_t layer, uint32_t expert,
                                  float *out);

#endif
