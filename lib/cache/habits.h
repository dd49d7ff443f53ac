/*
 * Habits: how often a token that used one expert of a layer was followed by one that used another,
 * and what this predicts for the next token. Counts since opening, over all sequences.
 *
 *     ratio(e) = mean over a in S of ((N[a][e] + 4b) / (n[a] + 4)) / b
 *     b = (count_e + k/2E) / (runs + 1/2)
 *
 * S is the router's latest choice, N[a][e] how often a token that used a was followed by one that
 * used e, n[a] how often one that used a was followed at all, count_e how often e was used in
 * `runs` tokens. A ratio of 1 equals the expert's mean frequency; the counts gain weight as they
 * grow.
 *
 * With several sequences side by side, S is the choice for the last row of each, and each token
 * follows the one before it in its own sequence.
 */
#ifndef MOE_CACHE_HABITS_H
#define MOE_CACHE_HABITS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "cache/usage.h"

enum { MOE_HABITS_SEQUENCES = 64 }; /* sequences equal modulo this share a predecessor */

struct moe_habits {
    uint32_t n_layers, n_experts, top_k;
    uint16_t
        *followed;    /* N: [layer][n_experts][n_experts]; n[a] and N[a] halve when n[a] is full */
    uint16_t *tokens; /* n: [layer][n_experts] */
    uint32_t *count;  /* [layer][n_experts] */
    uint32_t *runs;   /* [n_layers] */
    uint16_t *before; /* [layer][MOE_HABITS_SEQUENCES][top_k] the last token's choice */
    uint8_t *follows; /* [layer][MOE_HABITS_SEQUENCES] whether there is a last token */
    uint8_t *in_pass; /* [MOE_HABITS_SEQUENCES] scratch: whether it has a row in the pass */
};

/* Carves everything, zeroed. */
void moe_habits_carve(struct moe_habits *h, struct moe_arena *arena,
                      const struct moe_follower_params *params);
/* Begins anew: the next token of every sequence follows none. */
void moe_habits_begin_sequence(struct moe_habits *h);
/* Adds one row. */
void moe_habits_row(struct moe_habits *h, uint32_t layer, uint32_t sequence,
                    const uint32_t *chosen);
/* After all rows of a pass are added: ratio [n_experts], and share [n_experts], the share of the
 * texts in the pass whose last row chose the expert (1 or 0 for a single text). */
void moe_habits_ratios(struct moe_habits *h, const struct moe_choices *c, float *ratio,
                       float *share);

#endif
