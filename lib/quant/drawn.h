/*
 * Pseudo-random weights drawn directly into a layout, at memory speed: nothing is quantized.
 */
#ifndef MOE_QUANT_DRAWN_H
#define MOE_QUANT_DRAWN_H

#include "base/err.h"
#include "quant/layout.h"

/*
 * Fills out, zeroed memory of moe_layout_bytes(layout, rows, cols), with weights of mean 0 and
 * standard deviation `spread`: all codes equally likely under one scale, or floats of one exponent
 * (rounding it changes the spread by less than half). The same seed gives the same bytes for any
 * number of threads. Takes the layouts of moe_quant_layout: of checkpoints' types those with names
 * (bits.h). MOE_ERR_MEMORY.
 */
int moe_drawn_matrix(struct moe_layout layout, uint32_t rows, uint32_t cols, double spread,
                     uint64_t seed, uint8_t *out, struct moe_err *err);

/* n plain f32 values from -bound to bound. */
void moe_drawn_vector(uint32_t n, float bound, uint64_t seed, float *out);

#endif
