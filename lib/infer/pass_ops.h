/*
 * The runner's operations of a pass (sched/pass.h): a layer's stages on the session's device,
 * experts from their provider, predictions, and experts that the host computes beside a device.
 */
#ifndef MOE_INFER_PASS_OPS_H
#define MOE_INFER_PASS_OPS_H

#include "infer/session.h"
#include "profile/statistics.h"
#include "sched/strategy.h"

extern const struct moe_pass_ops moe_runner_ops; /* ctx: the session */

/* A session that has computed nothing yet computes with the strategy from now on. host_slowdown: 0:
 * there is no host; else 1 or more (infer/host.h), on host_threads. statistics: for path
 * predictions, borrowed; else NULL. MOE_ERR_USAGE when the strategy needs what is not there. */
int moe_session_take_strategy(struct moe_session *s, const struct moe_strategy *strategy,
                              const struct moe_statistics *statistics, double host_slowdown,
                              uint32_t host_threads, struct moe_err *err);
/* ... and no longer; closing the session does that, too. */
void moe_session_drop_strategy(struct moe_session *s);
/* Memory that it takes, statistics not counted. */
uint64_t moe_session_strategy_bytes(const struct moe_model *model, uint32_t batch,
                                    const struct moe_strategy *strategy, uint32_t host_threads);

/* Waits for dense weights (infer/model.h); MOE_DENSE_TABLES: for what the session's rows need. */
int moe_session_await(struct moe_session *s, enum moe_dense_group group, uint32_t layer,
                      struct moe_err *err);
/* A pass over the session's rows begins; first: their sequence does. */
/* Has the rank that computes a layer's attention do so for the rows at work, whose inputs are in
 * xn. out: [n_rows][states' stride]. */
int moe_session_attend_elsewhere(struct moe_session *s, uint32_t layer, float *out,
                                 struct moe_err *err);
/* Has layers [begin, end), which are other ranks', computed for the rows at work, from the states
 * that the last layer before has left to those behind them. */
int moe_session_layers_elsewhere(struct moe_session *s, uint32_t begin, uint32_t end,
                                 struct moe_err *err);
/* Tells other ranks, if they do not know it, which blocks sequences have. */
int moe_session_tell_table(struct moe_session *s, struct moe_err *err);
void moe_session_begin_pass(struct moe_session *s, bool decode, bool first);
/* Counts the activations of MoE layers that a device computed by itself. */
void moe_session_count_alone(struct moe_session *s, uint32_t n_layers);

#endif
