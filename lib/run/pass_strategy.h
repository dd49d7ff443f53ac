/*
 * Ahead: what a strategy does beside the device's own work: predictions for layers to come, experts
 * computed on the host, and DAOP's pre-calculation, where predicted experts replace the router's
 * choice and those on the host are computed a layer early, on the state of the layer before.
 *
 * The feed-forward calls, per MoE layer: choose (before its experts are asked for), spoken (after),
 * collect (before outputs are added).
 *
 * Source: DAOP IV-C; placement is decided by sched/placement.h.
 */
#ifndef MOE_RUN_PASS_STRATEGY_H
#define MOE_RUN_PASS_STRATEGY_H

#include "record/statistics.h"
#include "run/session.h"
#include "sched/strategy.h"

struct moe_pass_strategy;

/* Decides where a session on a gpu asks routers ahead (run/predict_device.h), too.
 * host_slowdown: 0: there is no host; else 1 or more (experts/host.h), on host_threads. statistics:
 * for path predictions, borrowed; else NULL. MOE_ERR_USAGE when the strategy needs what is not
 * there.
 */
int moe_pass_strategy_open(struct moe_pass_strategy **out, struct moe_session *session,
                           const struct moe_strategy *strategy,
                           const struct moe_statistics *statistics, double host_slowdown,
                           uint32_t host_threads, struct moe_err *err);
void moe_pass_strategy_close(struct moe_pass_strategy *a); /* NULL is fine */
/* Memory that it takes, statistics not counted. */
uint64_t moe_pass_strategy_bytes(const struct moe_model *model, uint32_t batch,
                                 const struct moe_strategy *strategy, uint32_t host_threads);

/* A pass over rows begins; first: the sequence does. */
void moe_pass_strategy_begin(struct moe_pass_strategy *a, bool decode, bool first);

/* The router of a model layer has spoken for n_rows rows: work->chosen and weights become what was
 * foreseen, where something was. *precalculated: [n_experts], or NULL; how many activations are not
 * the router's choice is returned. */
uint32_t moe_pass_strategy_choose(struct moe_pass_strategy *a, uint32_t layer, uint32_t n_rows,
                                  const uint8_t **precalculated);
/* The layer's experts were asked for: work->kinds says what became of them. Begins host jobs, hands
 * predictions on, begins pre-calculation for the next layer. */
int moe_pass_strategy_requested(struct moe_pass_strategy *a, uint32_t layer, uint32_t n_rows,
                                uint32_t n_active, struct moe_err *err);
/* All outputs of the layer's experts that are not computed on the device lie in work->expert_out
 * (those left out are zero). */
void moe_pass_strategy_collect(struct moe_pass_strategy *a, uint32_t layer, uint32_t n_active);

#endif
