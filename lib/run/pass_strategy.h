/*
 * A strategy's part in a forward pass beside the device's own work: predictions of the experts of
 * layers to come, experts computed on the host, and DAOP's pre-calculation.
 *
 * The feed-forward calls, per MoE layer: choose (before its experts are asked for), requested
 * (after), collect (before outputs are added). Where routers stand before attention, choose and
 * early come before it and requested after it.
 */
#ifndef MOE_RUN_PASS_STRATEGY_H
#define MOE_RUN_PASS_STRATEGY_H

#include "record/statistics.h"
#include "run/session.h"
#include "sched/strategy.h"

struct moe_pass_strategy;

/* For a session that has computed nothing yet. host_slowdown: 0: there is no host; else 1 or more
 * (experts/host.h), on host_threads. statistics: for path predictions, borrowed; else NULL.
 * MOE_ERR_USAGE when the strategy needs what is not there. */
int moe_pass_strategy_open(struct moe_pass_strategy **out, struct moe_session *session,
                           const struct moe_strategy *strategy,
                           const struct moe_statistics *statistics, double host_slowdown,
                           uint32_t host_threads, struct moe_err *err);
void moe_pass_strategy_close(struct moe_pass_strategy *p); /* NULL is fine */
/* Memory that it takes, statistics not counted. */
uint64_t moe_pass_strategy_bytes(const struct moe_model *model, uint32_t batch,
                                 const struct moe_strategy *strategy, uint32_t host_threads);

/* A pass over rows begins; first: the sequence does. */
void moe_pass_strategy_begin(struct moe_pass_strategy *p, bool decode, bool first,
                             const struct moe_row *rows, uint32_t n_rows);
/* Before its layers [begin, end): hands on what the tokens of its rows say of them. */
int moe_pass_strategy_expect(struct moe_pass_strategy *p, uint32_t begin, uint32_t end,
                             uint32_t n_rows, struct moe_err *err);

/* The attention of a model layer with experts begins: hands on predictions by its input. */
int moe_pass_strategy_attending(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                                struct moe_err *err);

/* The router of a model layer has chosen for n_rows rows: the request's chosen and weights become
 * what was pre-calculated, if anything was, or what is preferred (prefer_cached.h), and what the
 * gate makes of them (moe_gate_below).
 * *precalculated: [n_experts], or NULL. Returns how many activations are not the router's choice.
 */
uint32_t moe_pass_strategy_choose(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                                  const uint8_t **precalculated);
/* The layer's experts were asked for, and its attention is to come: hands on predictions that need
 * nothing of it. */
int moe_pass_strategy_early(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                            struct moe_err *err);
/* The layer's experts were asked for: the request's kinds say what became of them. Begins host
 * jobs, hands predictions on, begins pre-calculation for the next layer. */
int moe_pass_strategy_requested(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                                struct moe_err *err);
/* Afterwards the outputs of the layer's experts that the host computes lie in the states'
 * expert_out. */
void moe_pass_strategy_collect(struct moe_pass_strategy *p, uint32_t layer);

#endif
