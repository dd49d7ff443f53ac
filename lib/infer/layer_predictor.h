/*
 * Layer predictor: predicts the experts of MoE layers to come, by what the strategy says: the next
 * routers on this layer's gate input (Fate 4.2, HOBBIT 3.3) or on the residual stream, path
 * statistics (EdgeMoE III-C), the token before, or what the same token chose last. Choosing among
 * them and loading is for sched/ (scheduler.h).
 */
#ifndef MOE_INFER_LAYER_PREDICTOR_H
#define MOE_INFER_LAYER_PREDICTOR_H

#include "infer/model.h"
#include "infer/state.h"
#include "profile/statistics.h"
#include "sched/select.h"
#include "sched/strategy.h"

struct moe_layer_predictor;

/* Room for batches of session->batch rows. statistics: borrowed, of the session's model, needed
 * only by path predictions. MOE_ERR_USAGE: they are missing or of another model. */
int moe_layer_predictor_open(struct moe_layer_predictor **out, struct moe_session *session,
                             const struct moe_strategy *strategy,
                             const struct moe_statistics *statistics, struct moe_err *err);
void moe_layer_predictor_close(struct moe_layer_predictor *p); /* NULL is fine */
/* Memory that it takes, without statistics and without the copies of routers that predict for a
 * session on a GPU. */
uint64_t moe_layer_predictor_bytes(const struct moe_model *model, uint32_t batch,
                                   const struct moe_strategy *strategy);

/* How many layers ahead a session on a GPU asks routers for it, and whether on the residual stream;
 * 0: none. */
uint32_t moe_layer_predictor_depth(const struct moe_model *model,
                                   const struct moe_strategy *strategy, bool *residual);

/* A sequence begins: the token before is forgotten. */
void moe_layer_predictor_begin_sequence(struct moe_layer_predictor *p);

/* A pass over these rows begins: their tokens are known. */
void moe_layer_predictor_begin_pass(struct moe_layer_predictor *p, const struct moe_row *rows,
                                    uint32_t n_rows);
/* Marks (marks[expert] = 1) what the tokens of the pass chose in a model layer with experts where
 * they were used last; false: nothing is known. */
bool moe_layer_predictor_expects(const struct moe_layer_predictor *p, uint32_t layer,
                                 uint8_t *marks);
/* Before model layer `layer`, the pass's first: predictions by the tokens for `depth` MoE layers
 * from it on. Returns how many; *predictions as below. */
uint32_t moe_predict_first(struct moe_layer_predictor *p, uint32_t layer, uint32_t n_rows,
                           uint32_t depth, const struct moe_prediction **predictions);
/* Of every model layer with experts, which experts the request uses: remembered with its tokens. */
void moe_layer_predictor_note(struct moe_layer_predictor *p, uint32_t layer, uint32_t n_rows);

/* Predicts the experts of the `depth` next MoE layers, nearest first, but of those with static
 * routing, which need no prediction, once the router of model layer `layer`
 * has chosen: the session's states hold its inputs and h, the request's chosen and weights are its.
 * *predictions holds until the next call. Returns how many; 0 where nothing can be predicted. To be
 * called after every router, with depth 0 where no prediction is used: it also remembers. */
uint32_t moe_predict_layers(struct moe_layer_predictor *p, uint32_t layer, uint32_t n_rows,
                            uint32_t depth, const struct moe_prediction **predictions);

/* Of the first prediction of the last call: the scores that its router gives on the predictor's
 * input, [n_experts]. NULL of several rows, of predictions without routers, and where the device
 * was asked, which gives only their softmax. */
const float *moe_predicted_router_scores(const struct moe_layer_predictor *p);
/* The bias for the choice of a layer whose router it asks, on the host; NULL: it has none. */
const float *moe_predicted_choice_bias(const struct moe_layer_predictor *p, uint32_t layer);
/* Whether pre-calculation needs them for its weights: then the host has to be asked. */
bool moe_layer_predictor_needs_scores(const struct moe_layer_predictor *p);

/* Predicts the experts of this layer, or of the next one, on the input of the attention of model
 * layer `layer`, which has experts (Fate table 1): the session's states hold h. *predictions as
 * above. Returns how many: 1, or 0 where no such layer is left. */
uint32_t moe_predict_before_attention(struct moe_layer_predictor *p, uint32_t layer,
                                      uint32_t n_rows, const struct moe_prediction **predictions);

/*
 * Routers on the host: copies for a model whose dense part lies on a GPU, so that the host can
 * predict as it does where it computes by itself.
 */

/* Memory that they take, of a model whose directory is open; UINT64_MAX on overflow. */
uint64_t moe_host_routers_bytes(const struct moe_model *model);

/* Reads them. *out: [n_layers], of MoE layers router, ffn_norm and their biases, all else empty;
 * one block, released with free(). */
int moe_host_routers_read(struct moe_layer **out, const struct moe_model *model,
                          struct moe_err *err);

#endif
