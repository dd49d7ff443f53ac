/*
 * Routers on the processor: their scores, what they choose by them, and the norms that their inputs
 * have. Real choices and predicted ones are made by the same code.
 */
#ifndef MOE_INFER_ROUTER_H
#define MOE_INFER_ROUTER_H

#include "base/mem.h"
#include "infer/model.h"
#include "kern/matmul.h"
#include "sched/layer_request.h"
#include "sched/placement.h"
#include "sched/select.h"

struct moe_prompt;
struct moe_row;

/* Whether its router gives each score a value of its own, as sigmoids are: all but softmaxes. */
static inline bool moe_router_is_single(const struct moe_config *c)
{
    return c->router_kind == MOE_ROUTER_SIGMOID || c->router_kind == MOE_ROUTER_SOFTPLUS;
}

/* One row of the residual stream under a norm of the model's kind; bias NULL where it has none. */
void moe_norm_row(const struct moe_config *c, const float *h, const float *weights,
                  const float *bias, float *out);

/* What a block takes in of it: that norm, or where norms stand after blocks the row itself. */
void moe_block_input_row(const struct moe_config *c, const float *h, const float *weights,
                         const float *bias, float *out);

/* What the layer's router takes in of it: that of routed experts, with own_norms its own, with
 * router_early the row itself, with parallel_blocks what attention takes in. */
void moe_router_input_row(const struct moe_config *c, const struct moe_layer *layer, const float *h,
                          float *out);

/* Weights as the functions below make them become those of n chosen experts' outputs. */
void moe_router_scale_experts(const struct moe_layer *layer, const uint32_t *chosen, uint64_t n,
                              float *weights);

/* Where a router with layers before its last product computes (router_dim). */
struct moe_router_room {
    float *state, *hidden; /* [n][stride] what the next router adds to its own; what layers made */
    uint64_t stride;
    struct moe_inputs from; /* hidden */
};
/* For n rows; nothing for other routers. */
void moe_router_room_carve(struct moe_router_room *room, struct moe_arena *arena,
                           const struct moe_config *c, uint32_t n);

/* The first matrix of a layer's router. */
static inline const struct moe_mat *moe_router_entry(const struct moe_layer *layer)
{
    return layer->router_down.data ? &layer->router_down : &layer->router;
}

/* A layer's router on some inputs, prepared for the weights of moe_router_entry:
 * scores[act->n][router_stride], its bias included. With router_dim: room for them, which routers
 * of one list may share, and the states that the router before made of the rows. */
struct moe_router_use {
    const struct moe_layer *layer;
    const struct moe_act *act;
    float *scores;
    struct moe_router_room *room;
    const float *before; /* [act->n][before_stride] */
    uint64_t before_stride;
};
/* n <= MOE_MAX_ROUTERS of them in one product. */
enum { MOE_MAX_ROUTERS = 8 };
void moe_router_scores(const struct moe_config *c, const struct moe_router_use *uses, uint32_t n,
                       uint64_t router_stride);

/* What the router makes of one row of its scores: chosen[top_k] by falling weight, and
 * weights[top_k] as the model uses them. choice_bias: the layer's, on the host; NULL: none, here
 * and below. p: [n_experts] the scores, on return moe_router_probabilities; scratch: [2 *
 * n_experts]. */
void moe_route_scores(const struct moe_config *c, const float *choice_bias, float *p,
                      float *scratch, uint32_t *chosen, float *weights);
/* The same by a router that scores shared experts, too (shared_sinks): what is behind p's n_experts
 * becomes their weights. */
void moe_route_with_sinks(const struct moe_config *c, const float *choice_bias, float *p,
                          float *scratch, uint32_t *chosen, float *weights);
/* The same of a row of the request by a router that n_zero experts more stand behind, which give
 * back what they take in: p and choice_bias have them too. The best of those not chosen take the
 * places of zero experts that are, beyond their capacity: the rows pass the first of them with the
 * weight of all zero experts. */
void moe_route_with_zeros(const struct moe_config *c, const float *choice_bias, float *p,
                          float *scratch, struct moe_layer_request *request, uint32_t row);
/* Scores become what each expert would count among all of them, of sum 1: their softmax, or of a
 * sigmoid router each one's share of the sigmoids. A bias for the choice is no part of it. */
void moe_router_probabilities(const struct moe_config *c, float *p);
/* The weights that the router gives any top_k experts, falling by score: those that it would choose
 * have its own, bit for bit, others their share under the same rule. scores: [n_experts] as they
 * were (only a softmax router does without: NULL); p: [n_experts] their probabilities; scratch:
 * [n_experts]. */
void moe_router_weigh(const struct moe_config *c, const float *scores, const float *p,
                      const uint32_t *chosen, float *scratch, float *weights);
/* Probabilities of experts beyond the best groups become -1: the router never chooses them. scores:
 * as for moe_router_weigh; scratch: [2 * n_experts]. */
void moe_router_leave_groups(const struct moe_config *c, const float *choice_bias,
                             const float *scores, float *p, float *scratch);
/* Whether a softmax of its scores ranks and weighs experts as the router does. Not so with groups
 * (DeepSeek-V2), by the sparsemixer (Phi-3.5-MoE), by sigmoids and with a bias for the choice
 * (DeepSeek-V3). */
bool moe_router_is_softmax(const struct moe_config *c);
/* Changes one row of scores so that their softmax does: the chosen experts lead, in the proportions
 * of the router's weights, and the others follow in their old order, or where that is not the
 * router's (sigmoids, a bias for the choice) in that one. Nothing to do where
 * moe_router_is_softmax. */
void moe_router_grade(const struct moe_config *c, const float *choice_bias, float *scores);

/* The experts that a router chooses by predicted scores, degraded (moe_predicted_choice; what lies
 * beyond the router's groups replaces nothing), with the weights that it gives those experts. Where
 * none is replaced both are the router's, bit for bit. A replacement has its own share of the
 * scores, a lower one ("even the next-best expert exhibits a lower score", DAOP IV-C); where the
 * model normalizes its weights (norm_topk), over the experts that are used. choice_bias: the
 * layer's, on the host; NULL: none. scores: [n_experts] as the router gives them; NULL: of a
 * softmax router, for which probabilities suffice. weights: [top_k]; scratch: [3 * n_experts];
 * barred: [n_experts]. */
void moe_router_choose_predicted(const struct moe_config *config, const float *choice_bias,
                                 const float *scores, const float *probabilities,
                                 const uint8_t *on_device, uint32_t replaces,
                                 struct moe_predicted *choice, float *weights, float *scratch,
                                 uint32_t *barred);
/* Fills in, for cache-aware routing, the experts that a router chose of its scores [n_experts], and
 * those that would count most after them; none that it never chooses. p: [n_experts] out, their
 * probabilities; scratch: [2 * n_experts]; best: [n_experts]. */
void moe_router_rank(const struct moe_config *config, const float *choice_bias, const float *scores,
                     const uint32_t *chosen, float *p, float *scratch, uint32_t *best,
                     struct moe_preference *to);

/* MOE_ERR_FORMAT when one of the weights that the router of model layer `layer` gave is not a
 * number. */
int moe_route_check(const struct moe_layer_request *request, uint32_t layer, uint32_t n_rows,
                    struct moe_err *err);
/* Counts the rows of each source, or prompt, that an expert takes, in their order, and marks the
 * choices beyond its capacity (expert_capacity): their weights become 0, those of rows that pass it
 * until the choices are grouped. prompts: by sequence, in a model that has them; else the layer is
 * an encoder's, or nothing is marked. */
void moe_route_limit(struct moe_layer_request *request, const struct moe_config *config,
                     uint32_t layer, const struct moe_prompt *prompts, const struct moe_row *rows,
                     uint32_t n_rows);
/* What a layer with static routing chooses for rows, from their tokens: the request's chosen and
 * weights. */
void moe_route_tokens(const struct moe_model *model, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows, struct moe_layer_request *request);

/* Floats from one row of routers' scores to the next. */
static inline uint64_t moe_router_stride(const struct moe_config *c)
{
    return moe_round_up(c->n_experts ? c->n_experts + c->n_zero + c->shared_sinks : 1,
                        MOE_PANEL_ROWS);
}

#endif
