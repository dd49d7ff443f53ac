/*
 * Choice history: predictions from what routers chose before, without running a router: by the
 * previous token, by what the same token chose last, by paths through the layers, and by earlier
 * requests. Runner and simulator predict with the same code. Pure.
 *
 * Weights are kept as half-precision numbers, as traces have them, so that a replay ranks experts
 * as the run did.
 */
#ifndef MOE_SCHED_CHOICE_HISTORY_H
#define MOE_SCHED_CHOICE_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "record/statistics.h"
#include "sched/request_history.h"
#include "sched/strategy.h"
#include "sched/token_history.h"

struct moe_choice_history {
    enum moe_predict_by by;
    uint32_t n_layers, n_experts, top_k;
    const struct moe_statistics *statistics; /* of path predictions, and of earlier requests or
                                                NULL; borrowed */

    bool recalls; /* keeps the tokens' history, for these predictions or for other uses of it */
    struct moe_token_history tokens;

    /* By the previous token, or where a token is new: what the one before chose in each layer. */
    uint32_t *chosen; /* [n_layers][top_k] */
    float *weights;   /* [n_layers][top_k] */
    bool *known;      /* [n_layers] */

    /* By paths: the best expert of each of the pass's rows in the layer before. */
    uint16_t *best;                 /* [batch] */
    uint32_t best_layer, best_rows; /* where they were chosen; best_rows 0: nowhere */

    struct moe_request_history requests;
    uint32_t match; /* of the request under way; MOE_REQUESTS_KEPT: none */
};

/* Whether `by` predicts from earlier choices, and whether by paths. */
static inline bool moe_predicts_from_choices(enum moe_predict_by by)
{
    return by == MOE_PREDICT_BY_PREVIOUS || by == MOE_PREDICT_BY_TOKEN ||
           by == MOE_PREDICT_BY_PATH || by == MOE_PREDICT_BY_KEYS || by == MOE_PREDICT_BY_REQUESTS;
}
/* Predictions made before a layer's attention, on its input. */
static inline bool moe_predicts_from_attention(enum moe_predict_by by)
{
    return by == MOE_PREDICT_BY_ATTENTION || by == MOE_PREDICT_BY_ATTENTION_BEFORE;
}

static inline bool moe_predicts_from_paths(enum moe_predict_by by)
{
    return by == MOE_PREDICT_BY_PATH || by == MOE_PREDICT_BY_KEYS;
}

/* In place of the layer whose router has chosen: a pass begins, and none has. What follows it is
 * layer 0. */
#define MOE_NO_LAYER_YET UINT32_MAX

/* Takes its memory from the arena (which may only count); shape, `by`, `recalls` and statistics are
 * set. */
void moe_choice_history_carve(struct moe_choice_history *r, struct moe_arena *arena,
                              uint32_t batch);

/* After carving: what statistics know of earlier requests, where they are given. */
void moe_choice_history_seed(struct moe_choice_history *r);
void moe_choice_history_begin_sequence(struct moe_choice_history *r);
/* A pass over rows of these tokens begins: ids[n_rows]. Only where it `recalls`. */
void moe_choice_history_begin_pass(struct moe_choice_history *r, const uint32_t *ids,
                                   uint32_t n_rows);
/* For every layer of the pass, once it is known which experts its rows use: what their tokens are
 * remembered by. Only where it `recalls`. */
void moe_choice_history_note(struct moe_choice_history *r, uint32_t layer, uint32_t n_rows,
                             const uint32_t *chosen, const float *weights);
/* The router of `layer` has chosen for a pass's rows, chosen: [n_rows][top_k]: what predictions may
 * already go by. */
void moe_choice_history_see(struct moe_choice_history *r, uint32_t layer, uint32_t n_rows,
                            const uint32_t *chosen);
/* How many of the n layers after `layer`, or MOE_NO_LAYER_YET, can be predicted for a pass of
 * n_rows. */
uint32_t moe_choice_history_reach(const struct moe_choice_history *r, uint32_t layer,
                                  uint32_t n_rows, uint32_t n);
/* Probabilities of the layer d + 1 after `layer` for row `row`, whose experts in `layer` were
 * `chosen` [top_k] by falling weight. p: [n_experts], of sum 1 (or all 0). */
void moe_choice_history_predict(const struct moe_choice_history *r, uint32_t layer, uint32_t d,
                                uint32_t row, uint32_t n_rows, const uint32_t *chosen, float *p);
/* After the predictions: keeps what later ones are made from: what a pass's rows chose in `layer`.
 * chosen, weights: [n_rows][top_k]. */
void moe_choice_history_add(struct moe_choice_history *r, uint32_t layer, uint32_t n_rows,
                            const uint32_t *chosen, const float *weights);

#endif
