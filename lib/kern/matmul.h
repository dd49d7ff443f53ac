/*
 * Matrix products over all threads: prepares inputs, walks panels and tiles, calls the kernels.
 *
 * A product's result for one input does not depend on the other inputs in the batch nor on the
 * number of threads: every (row, input) pair is one sum computed in one place.
 */
#ifndef MOE_KERN_MATMUL_H
#define MOE_KERN_MATMUL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "kern/kern.h"

/*
 * Inputs x[n][stride] prepared for weights of one kind: float tiles for float layouts, byte tiles
 * (with the block size of the layout) for quantized ones. One preparation serves all matrices that
 * share the input and the kind.
 *
 * Tiles: n inputs are cut greedily into tiles of 8, 4, 2, 1. The tile that starts at input i lies
 * at offset i * per_input in each array, so the arrays are plain blocks.
 */
struct moe_act {
    uint32_t n, cols;     /* inputs, columns */
    uint32_t cols_padded; /* in byte tiles */
    uint32_t block;       /* B of byte tiles; 0: float tiles */
    float *x;             /* n * cols */
    int8_t *q;            /* n * cols_padded */
    float *s, *z;         /* n * (cols_padded / block) each */
    struct moe_sums *sum; /* likewise */
};

/* Carves room for up to n_max inputs of up to cols_max columns, for either form. On a counting
 * arena it measures (mem.h). */
void moe_act_carve(struct moe_act *act, struct moe_arena *arena, uint32_t n_max, uint32_t cols_max);

/* Block size of the inputs that weights of this layout need: 0 for float tiles, else 32 or 64. */
uint32_t moe_act_block_for(struct moe_layout layout);

/* Fills `act` from rows x[i * stride], or from x[rows[i] * stride] when `rows` is not NULL.
 * `block` as from moe_act_block_for. Parallel over inputs. */
void moe_act_prepare(struct moe_act *act, const float *x, uint64_t stride, const uint32_t *rows,
                     uint32_t n, uint32_t cols, uint32_t block);

/* One product: y[i * y_stride + r] = (w x_i)[r] for all inputs i of act and rows r. y rows have
 * room for w->rows rounded up to 16 (the excess is set to 0). */
struct moe_mm {
    struct moe_mat w;
    const struct moe_act *act; /* prepared with moe_act_block_for(w.layout), act->cols == w.cols */
    float *y;
    uint64_t y_stride;
};

/* Runs all products of the list in one parallel loop over all their panels, so that several small
 * matrices cost one start and one barrier. */
void moe_matmul(const struct moe_mm *list, int n);

/*
 * Inputs of products.
 */

/* Vectors in memory, prepared at most once per form that weights need (float, blocks of 32, of 64).
 */
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
