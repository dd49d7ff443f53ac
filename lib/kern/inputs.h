/*
 * Inputs of products: vectors in memory, in the form that the weights need.
 */
#ifndef MOE_KERN_INPUTS_H
#define MOE_KERN_INPUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "kern/matmul.h"

/* Inputs of products, prepared at most once per form of weights (float, blocks of 32, of 64). */
struct moe_inputs {
    const float *x;
    uint64_t stride;
    const uint32_t *rows; /* gather, or NULL */
    uint32_t n, cols;
    bool ready[3];
    struct moe_act act[3];
};

/* Carves room for up to n inputs of up to cols columns, in any form. */
void moe_inputs_carve(struct moe_inputs *in, struct moe_arena *arena, uint32_t n, uint32_t cols);
/* Points `in` at new data; nothing is prepared yet. */
void moe_inputs_set(struct moe_inputs *in, const float *x, uint64_t stride, const uint32_t *rows,
                    uint32_t n, uint32_t cols);
/* The inputs in the form that weights of this layout need. */
const struct moe_act *moe_inputs_for(struct moe_inputs *in, struct moe_layout layout);
/* One product with such inputs. */
struct moe_mm moe_inputs_mm(struct moe_inputs *in, struct moe_mat w, float *y, uint64_t y_stride);

#endif
