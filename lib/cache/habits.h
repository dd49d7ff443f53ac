/*
 * Habits: how often a token that used one expert of a layer was followed by one that used another,
 * and what follows from that for the next token. Counts since opening, of all sequences.
 *
 *     ratio(e) = mean over a in S of ((N[a][e] + 4b) / (n[a] + 4)) / b
 *     b = (count_e + k/2E) / (runs + 1/2)
 *
 * S is what the router has just chosen, N[a][e] how often a token that used a was followed by one
 * that used e, n[a] how often one that used a was followed, count_e how often e was used in `runs`
 * tokens. So 1 is what the expert's mean frequency says, and the counts are believed as far as
 * there are any.
 *
 * Of several sequences side by side, S is what the last row of each has chosen, and each token
 * follows the one before it in its own sequence.
 */
#ifndef MOE_CACHE_HABITS_H
#define MOE_CACHE_HABITS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "cache/usage.h"

enum { MOE_HABITS_SEQUENCES = 64 }; /* those numbered alike modulo this share a predecessor */

struct moe_habits {
    uint32_t n_layers, n_experts, top_k;
    uint16_t
        *followed;    /* N: [layer][n_experts][n_experts]; n[a] and N[a] halve when n[a] is full */
    uint16_t *tokens; /* n: [layer][n_experts] */
    uint32_t *count;  /* [layer][n_experts] */
    uint32_t *runs;   /* [n_layers] */
    uint16_t *before; /* [layer][MOE_HABITS_SEQUENCES][top_k] what the last token chose */
    uint8_t *follows; /* [layer][MOE_HABITS_SEQUENCES] there is such a token */
    uint8_t *in_pass; /* [MOE_HABITS_SEQUENCES] scratch: it has a row in the pass */
};

/* Everything zero, in the arena's memory. */
void moe_habits_carve(struct moe_habits *h, struct moe_arena *arena,
                      const struct moe_follower_params *params);
/* The next token of every sequence follows none. */
void moe_habits_begin_sequence(struct moe_habits *h);
/* Takes in one row. */
void moe_habits_row(struct moe_habits *h, uint32_t layer, uint32_t sequence,
                    const uint32_t *chosen);
/* Once the rows of a pass are taken in: ratio [n_experts], and share [n_experts], the share of the
 * texts in the pass whose last row chose it: 1 and 0 of a single text. */
void moe_habits_ratios(struct moe_habits *h, const struct moe_choices *c, float *ratio,
                       float *share);

#endif
