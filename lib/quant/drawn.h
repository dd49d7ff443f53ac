/*
 * Pseudo-random weights, drawn straight into a layout: as fast as memory takes them, because
 * nothing is quantized.
 */
#ifndef MOE_QUANT_DRAWN_H
#define MOE_QUANT_DRAWN_H

#include "base/err.h"
#include "quant/layout.h"

/*
 * Fills out, zeroed memory of moe_layout_bytes(layout, rows, cols), with weights of mean 0 and
 * standard deviation `spread`: all codes equally likely under one scale, or floats of one exponent
 * (its rounding moves the spread by less than a half). The same seed gives the same bytes for any
 * number of threads. Layouts that moe_quant_layout gives, so not MXFP4. MOE_ERR_MEMORY.
 */
int moe_drawn_matrix(struct moe_layout layout, uint32_t rows, uint32_t cols, double spread,
                     uint64_t seed, uint8_t *out, struct moe_err *err);

/* n plain f32 values from -bound to bound. */
void moe_drawn_vector(uint32_t n, float bound, uint64_t seed, float *out);

#endif
