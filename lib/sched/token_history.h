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
#ifndef MOE_SCHED_TOKEN_HISTORY_H
#define MOE_SCHED_TOKEN_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

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

#endif
