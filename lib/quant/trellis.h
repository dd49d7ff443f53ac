/*
 * Encoding into IQ1_KT, IQ2_KT and IQ3_KT (layout.h), in which a number of 13 or 16 bits stands for
 * 8 columns, and into IQ4_KS and IQ5_KS, in which it stands for one: a group of columns gets the
 * number whose values make the least error of the matrix's outputs.
 *
 * The errors e of a row count e H e^T (gptq.h); with H = R D R^T a group's share of that, once the
 * columns before it are fixed, is (v - t) M (v - t)^T for its values v, where M is R D R^T of the
 * group's own columns and t the weights corrected by what the earlier errors leave. All numbers of
 * the kind are tried, for the whole of M; 8 or 16 scales of 32 columns are tried first. In IQ3_KT,
 * where columns have signs of their own, the search goes by M's diagonal, and what it finds is
 * compared by all of M. When all columns of a row are rounded, each group is chosen again, M then
 * being its part of H, and the row's factor fitted to what was chosen.
 */
#ifndef MOE_QUANT_TRELLIS_H
#define MOE_QUANT_TRELLIS_H

#include <stdint.h>

#include "base/err.h"
#include "quant/quantize.h"

enum { MOE_TRELLIS_BLOCK = 32 }; /* columns of a scale */

/* Whether the kind is one of these. */
static inline bool moe_trellis_encodes(int kind)
{
    return (moe_kind_is_trellis(kind) && kind != MOE_LAYOUT_IQ4_KT) || moe_kind_scale_has_e(kind);
}

/*
 * Encodes w[rows][cols], finite, into `out`, zeroed memory of moe_layout_bytes(layout, rows, cols)
 * of a kind that it encodes. factor: of the inputs' moments, [cols][cols] of moe_cholesky; NULL:
 * unknown, all columns count alike. *error is added to. Uses all threads (par.h), with the same
 * result for any number.
 */
int moe_trellis_encode(struct moe_layout layout, const double *factor, const float *w,
                       uint32_t rows, uint32_t cols, uint8_t *out, struct moe_quant_error *error,
                       struct moe_err *err);

#endif
