/*
 * Token history: which experts each token's routers chose where it was used last, whatever stood
 * before it. Known as soon as a token is: before the first layer of its pass, drafted tokens
 * included. Runner and simulator remember with the same code. Pure.
 *
 * MOE_TOKENS_KEPT tokens of a vocabulary are kept, through all sequences, in sets of
 * MOE_TOKENS_WAYS by their number: of a set's tokens the one used longest ago makes room.
 *
 * Weights are half-precision numbers, as traces have them, so that a replay ranks experts as the
 * run did.
 */
#ifndef MOE_SCHED_HISTORY_H
#define MOE_SCHED_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "profile/statistics.h"
#include "sched/strategy.h"

enum { MOE_TOKENS_KEPT = 2048, MOE_TOKENS_WAYS = 4 };

struct moe_token_history {
    uint32_t n_layers, top_k;
    uint64_t now;   /* uses of tokens so far */
    uint32_t *ids;  /* [MOE_TOKENS_KEPT] */
    uint64_t *used; /* [MOE_TOKENS_KEPT] when each was used last; 0: a free place */
    /* [MOE_TOKENS_KEPT][n_layers][top_k]: the expert's number + 1, 0 where it is not known; and its
     * weight. */
    uint16_t *chosen, *weights;
    uint32_t *rows;    /* [batch] the places of the pass's rows */
    uint32_t *row_ids; /* [batch] their tokens */
    uint32_t n_rows;
};

/* Takes its memory from the arena (which may only count); the shape is set, all else zero. */
void moe_token_history_carve(struct moe_token_history *h, struct moe_arena *arena, uint32_t batch);

/* A pass over rows of these tokens begins: ids[n_rows], at most `batch`. */
void moe_token_history_begin_pass(struct moe_token_history *h, const uint32_t *ids,
                                  uint32_t n_rows);
/* What the token of a row chose in a layer where it was used last, before this pass or, in layers
 * that the pass has been through, in it: [top_k] experts + 1 and their weights; false: that is not
 * known. */
bool moe_token_history_recall(const struct moe_token_history *h, uint32_t row, uint32_t layer,
                              const uint16_t **chosen, const uint16_t **weights);
/* Sets marks[expert] to 1 for all that rows of the pass chose in the layer where their tokens were
 * used last. True: there are some. */
bool moe_token_history_mark(const struct moe_token_history *h, uint32_t layer, uint8_t *marks);
/* The pass's rows have chosen in a layer. chosen, weights: [n_rows][top_k]. */
void moe_token_history_add(struct moe_token_history *h, uint32_t layer, uint32_t n_rows,
                           const uint32_t *chosen, const float *weights);

/*
 * Request history: which experts whole requests chose, and which of the earlier ones the request
 * under way is most like (MoE-Infinity, arXiv 2401.14361: the expert activation matrix of a
 * sequence, and its collection of them). Runner and simulator predict with the same code. Pure.
 *
 * A request is a sequence; its matrix counts, for each MoE layer, the tokens that chose each
 * expert, its prompt's included. The collection begins with the documents of statistics; without
 * them the first request of a process finds nothing in it.
 */

/* MOE_REQUESTS_KEPT matrices are kept. When there are more, the one that was matched least makes
 * room, the oldest of these first. */

struct moe_request_history {
    uint32_t n_layers, n_experts;
    uint32_t n;        /* matrices kept */
    uint64_t begun;    /* requests */
    float *counts;     /* [MOE_REQUESTS_KEPT + 1][n_layers][n_experts]; the last: under way */
    float *norms;      /* [MOE_REQUESTS_KEPT][n_layers] lengths of the rows */
    float *similarity; /* [MOE_REQUESTS_KEPT][n_layers] cosine with the row of the one under way */
    uint64_t *matched; /* [MOE_REQUESTS_KEPT] how often it was the most similar */
    uint64_t *number;  /* [MOE_REQUESTS_KEPT] of its request */
};

/* Takes its memory from the arena (which may only count); the shape is set, all else zero. */
void moe_request_history_carve(struct moe_request_history *h, struct moe_arena *arena);

/* Before the first request: the documents of statistics, of the same shape, become the collection.
 */
void moe_request_history_seed(struct moe_request_history *h, const struct moe_requests *requests);
/* A request begins; the one before joins the collection. */
void moe_request_history_begin(struct moe_request_history *h);
/* n tokens' choices in a layer: chosen[n][top_k]. */
void moe_request_history_add(struct moe_request_history *h, uint32_t layer, uint32_t n,
                             uint32_t top_k, const uint32_t *chosen);
/* The kept request that is most similar to the one under way: by the mean over layers of the cosine
 * of the rows; the older among equals. MOE_REQUESTS_KEPT: none is kept. `note` counts it as
 * matched. */
uint32_t moe_request_history_match(const struct moe_request_history *h);
void moe_request_history_note(struct moe_request_history *h, uint32_t match);
/* What a kept request chose in a layer: shares of sum 1, or all 0. p: [n_experts]. */
void moe_request_history_shares(const struct moe_request_history *h, uint32_t match, uint32_t layer,
                                float *p);

/*
 * Choice history: predictions from what routers chose before, without running a router: by the
 * previous token, by what the same token chose last, by paths through the layers, and by earlier
 * requests. Runner and simulator predict with the same code. Pure.
 *
 * Weights are kept as half-precision numbers, as traces have them, so that a replay ranks experts
 * as the run did.
 */

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
