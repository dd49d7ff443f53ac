/*
 * Replay: a trace as passes over rows, with the predictions that a strategy would have made: those
 * of routers from the scores in the trace, those from earlier choices by sched/history.h; or
 * predictions of an assumed accuracy. The simulator goes by it, and a session that
 * follows a trace (struct moe_session).
 */
#ifndef MOE_SCHED_REPLAY_H
#define MOE_SCHED_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "profile/statistics.h"
#include "profile/trace.h"
#include "sched/select.h"
#include "sched/strategy.h"

/* Tokens that go through the layers together: several of a prompt, or one decoded. Where the model
 * has an encoder, a prompt is a source and goes through its layers at once. */
struct moe_replay_pass {
    uint32_t n_rows;   /* 0: the trace is over */
    uint32_t position; /* of its first token */
    bool prompt;
    bool first; /* of its sequence */
    bool warms; /* its sequence only fills caches and is not counted */
};

struct moe_replay;

/* From the first token of the excerpt on. batch: rows of a pass at most, raised to the longest
 * source.
 * MOE_ERR_USAGE: the trace lacks the predictions that the strategy makes, or the scores that it
 * chooses by, or the ids of tokens, or there are no statistics for paths; the text says what to do.
 */
int moe_replay_open(struct moe_replay **out, struct moe_trace *trace, struct moe_excerpt excerpt,
                    uint32_t batch, const struct moe_strategy *strategy,
                    const struct moe_statistics *statistics, struct moe_err *err);
void moe_replay_close(struct moe_replay *r); /* NULL is fine */

/* Rows of a pass at most. */
uint32_t moe_replay_batch(const struct moe_replay *r);
/* The next pass. Errors of the trace's reader. */
int moe_replay_next(struct moe_replay *r, struct moe_replay_pass *pass, struct moe_err *err);
/* Whether the pass's tokens were computed in this layer: imported traces may have gaps. */
bool moe_replay_has(const struct moe_replay *r, uint32_t layer);
/* The experts of the pass's rows in a layer. chosen, weights: [n_rows][top_k]. */
void moe_replay_chosen(const struct moe_replay *r, uint32_t layer, uint32_t *chosen,
                       float *weights);
/* The best experts of the pass's first row in a layer, for cache-aware routing (sched/select.h):
 * those chosen, then the next best, falling, and their probabilities. Returns how many. */
uint32_t moe_replay_ranked(const struct moe_replay *r, uint32_t layer, uint32_t *experts,
                           float *probabilities);
/* For every layer of the pass in turn, once it is known which experts its rows use: chosen, weights
 * [n_rows][top_k] (moe_replay_chosen's, or those that replaced them). */
void moe_replay_note(struct moe_replay *r, uint32_t layer, const uint32_t *chosen,
                     const float *weights);
/* Marks (marks[expert] = 1) what the tokens of the pass chose in a layer where they were used last;
 * false: nothing is known. */
bool moe_replay_expects(const struct moe_replay *r, uint32_t layer, uint8_t *marks);
/* Before the pass's first layer `first`: predictions for it and those after it, `depth` in all,
 * nearest first, by the tokens; returns how many there are. */
uint32_t moe_replay_predict_first(struct moe_replay *r, uint32_t first, uint32_t depth,
                                  const struct moe_prediction **predictions);
/* Call it for every layer in turn, once its router has chosen: predictions for the next `depth`
 * layers, nearest first; returns how many there are. chosen, weights: the experts that are used. */
uint32_t moe_replay_predict(struct moe_replay *r, uint32_t layer, uint32_t depth,
                            const uint32_t *chosen, const float *weights,
                            const struct moe_prediction **predictions);

/* ---- Predictions of an assumed accuracy ----
 * Who knows what a router is going to choose names its experts, all but a share of them, which are
 * others. So a strategy can be tried where no predictor of the model is at hand: a trace of another
 * engine has none. */

/* What a prediction is about; together with the expert's place it decides whether that is right. */
struct moe_assumed_of {
    uint64_t sequence; /* of the trace */
    uint32_t token;    /* in the sequence */
    uint32_t layer;    /* MoE layer */
};

/* Writes probabilities[n_experts]: of the experts chosen[top_k] each is predicted with the
 * probability `accuracy`, else another expert in its place that was neither chosen nor predicted,
 * as far as there is one. They fall in the router's order, those of all others are 0. Drawn from
 * `of`, and so the same wherever it is asked for. */
void moe_assumed_prediction(struct moe_assumed_of of, double accuracy, const uint16_t *chosen,
                            uint32_t top_k, uint32_t n_experts, float *probabilities);

#endif
