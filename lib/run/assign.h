/*
 * Assigning precision: whoever calibrates says, activation by activation, at which of a pack's
 * variants an expert is computed. The session groups a pass by expert and variant, so that one pass
 * can hold rows under different rules; a row's result is the same as in a pass of its own.
 */
#ifndef MOE_RUN_ASSIGN_H
#define MOE_RUN_ASSIGN_H

#include <stdint.h>

struct moe_row;

/* In the place of a variant: the activation adds nothing; the other weights stay (HOBBIT 3.2). */
enum { MOE_LEFT_OUT = 0xff };

struct moe_assigner {
    void *ctx;
    /* The router has spoken for n_rows rows of a MoE layer. variants: [n_rows][top_k] out, below
     * the session's n_variants or MOE_LEFT_OUT; chosen and weights as the observer sees them. An
     * expert that is not stored at a variant is computed at the best it has. */
    void (*assign)(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                   const uint32_t *chosen, const float *weights, uint8_t *variants);
};

#endif
