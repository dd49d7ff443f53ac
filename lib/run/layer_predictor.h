/*
 * Foresight: scores of layers to come, computed where the strategy predicts: the next routers on
 * this layer's gate input (Fate 4.2, HOBBIT 3.3) or residual stream, path statistics (EdgeMoE
 * III-C), or the token before. Selecting and loading is for sched/ (scheduler.h).
 */
#ifndef MOE_RUN_LAYER_PREDICTOR_H
#define MOE_RUN_LAYER_PREDICTOR_H

#include "record/statistics.h"
#include "run/session.h"
#include "sched/select.h"
#include "sched/strategy.h"

struct moe_layer_predictor;

/* Room for batches of session->batch rows. statistics: borrowed, of the session's model, needed by
 * path predictions alone. MOE_ERR_USAGE: it is missing or of another model. */
int moe_layer_predictor_open(struct moe_layer_predictor **out, struct moe_session *session,
                             const struct moe_strategy *strategy,
                             const struct moe_statistics *statistics, struct moe_err *err);
void moe_layer_predictor_close(struct moe_layer_predictor *f); /* NULL is fine */
/* Memory that it takes, statistics not counted, nor the routers' copies with which it asks them for
 * a session on a gpu (run/host_routers.h). */
uint64_t moe_layer_predictor_bytes(const struct moe_model *model, uint32_t batch,
                                   const struct moe_strategy *strategy);

/* What a session on a gpu has to ask ahead for it: of how many layers the routers, and on what; 0:
 * none. */
uint32_t moe_layer_predictor_looks(const struct moe_model *model,
                                   const struct moe_strategy *strategy, bool *residual);

/* A sequence begins: the token before is forgotten. */
void moe_layer_predictor_begin_sequence(struct moe_layer_predictor *f);

/* The router of model layer `layer` has spoken (work->from_hidden: gate inputs, work->h: the
 * stream, work->chosen and weights are its). Predicts up to `depth` further MoE layers, nearest
 * first; what it points at holds until the next call. Returns how many; 0 where nothing can be
 * said. To be called after every router, with depth 0 where no prediction is of use: it also
 * remembers. */
uint32_t moe_predict_layers(struct moe_layer_predictor *f, uint32_t layer, uint32_t n_rows,
                            uint32_t depth, const struct moe_prediction **predictions);

#endif
