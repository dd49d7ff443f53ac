/*
 * Encoding into Q2_K to Q6_K, IQ4_XS and Q8_0 (layout.h): blocks of 16 or 32 columns, whose scales
 * and offsets are numbers of 4 to 8 bits times the span's.
 *
 * A block's scale (and offset, where the kind has one) are those of least error among codes for a
 * range of scales, each time fitted to its codes. Squared errors count by the sizes of weights:
 * large ones, which outputs hang on, are kept closer. They are then rounded to multiples of the
 * span's: of the numbers next to them those with the least error. The span's scale and offset are
 * fitted to what was chosen, and the choice is made again.
 */
#ifndef MOE_QUANT_BLOCKS_H
#define MOE_QUANT_BLOCKS_H

#include <stdint.h>

#include "quant/layout.h"

enum { MOE_BLOCKS_GROUP = 32 }; /* of a layout of these kinds */

/* The kind that `bits` bits (8, 6, 5, 4, 3, 2) ask for, or MOE_LAYOUT_NONE. */
uint16_t moe_blocks_kind(int bits);

/* Whether the kind is one of these. */
bool moe_blocks_encodes(int kind);

/* Fits a span of n finite weights of magnitudes up to 65504; n > 0, the kind's columns at most. */
void moe_blocks_fit(int kind, const float *w, uint32_t n, struct moe_span_codes *span);

#endif
