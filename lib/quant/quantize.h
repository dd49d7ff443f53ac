/*
 * Quantizers: from weights to codes.
 *
 * A method fits one group of weights: it chooses d, m (already rounded to f16) and a code for every
 * weight so that w ~ d * q + m. Methods know nothing of layouts, files or models; each is one file
 * and one entry of the table in quantize.c.
 *
 *   rtn     minimum to maximum in equal steps, nearest code; no error exceeds d / 2.
 *   linear  symmetric about zero, scale from the largest magnitude, nearest code (EdgeMoE III-B);
 *           used with one group per row, "one scale per output channel". Zero stays exactly zero.
 *   hqq     half-quadratic quantization (Fate 4.5): d of rtn; m, the zero point, minimizes a
 *           sparsity-promoting norm (p = 0.7) of the error by the proximal method with the
 *           generalized soft-threshold, beta = 10 growing by 1.01, at most 20 steps, ended where
 *           the mean absolute error no longer falls; never worse than rtn in that error. Errors are
 *           measured in steps of the code, so scaling a group by a power of two keeps its codes.
 *   blocks  kinds of blocks.h, whose blocks' scales have a few bits of their own; where rows are
 *           narrower than a span of these, hqq.
 *   gptq    hqq, then improved for the inputs of the matrix, where these are known (gptq.h).
 *   trellis 5 bits and fewer are kinds of trellis.h, their numbers chosen for the matrix's inputs
 *           where these are known; 8 bits are those of gptq.
 */
#ifndef MOE_QUANT_QUANTIZE_H
#define MOE_QUANT_QUANTIZE_H

#include <stdint.h>

#include "base/err.h"
#include "quant/layout.h"

struct moe_quant_method {
    const char *name;
    bool per_row;     /* always one group per row, whatever --group says */
    bool compensates; /* codes are chosen for a matrix's inputs where these are known */
    bool blocks;      /* bits are kinds of blocks.h */
    bool trellis;     /* bits from 5 down are kinds of trellis.h */
    /* Fits n weights (finite, n > 0) with codes of `bits` bits. codes: n bytes, written. */
    void (*fit)(const float *w, uint32_t n, int bits, uint16_t *d, uint16_t *m, uint8_t *codes);
};

/* The method of that name, or NULL. "best" is the one that loses least for its bytes: trellis. */
const struct moe_quant_method *moe_quant_method_find(const char *name);
/* Entry i of the table, or NULL past its end: for --help and for tests over all methods. */
const struct moe_quant_method *moe_quant_method_at(int i);

/* The method that rounds to `bits`: the one of the kind that is named, else `method`. */
const struct moe_quant_method *moe_quant_method_of(const struct moe_quant_method *method, int bits);

/* The layout for `bits` (32, 16, 8, 4, 3, 2; of blocks also 6, 5, of trellis 5, 1; or a kind that
 * is named), a method and a group size; 16 gives float16_kind (MOE_LAYOUT_F16 or MOE_LAYOUT_BF16:
 * as the checkpoint stores it). Kind MOE_LAYOUT_NONE when the combination is not allowed. */
struct moe_layout moe_quant_layout(const struct moe_quant_method *method, int bits, uint32_t group,
                                   uint16_t float16_kind);
/* The same for rows of `cols` columns: where blocks' spans have no room it is hqq's, unless only
 * blocks have that many bits. */
struct moe_layout moe_quant_layout_of(const struct moe_quant_method *method, int bits,
                                      uint32_t cols, uint32_t group, uint16_t float16_kind);

/* Of the codes that all methods make of the same weights and inputs, and of what texts say of
 * matrices (cholesky.h): raise it where a change makes others, so that a conversion does not go on
 * from what an older program has kept. */
enum { MOE_QUANT_VERSION = 1 };

/* How well matrices were quantized; sums over all their weights, for reports. */
struct moe_quant_error {
    double sum_squared_error, sum_squared_weight;
    /* Errors of the outputs over the inputs, where these are known, of affine layouts: with plain
     * rounding, and after moe_gptq_improve. */
    double output_plain, output_improved;
};

/*
 * Encodes the row-major f32 matrix w[rows][cols] into `out`, zeroed memory of
 * moe_layout_bytes(layout, rows, cols), for inputs with this factor (moe_cholesky), [cols][cols];
 * NULL: they are unknown. Uses all threads (par.h), with the same result for any number. `method`
 * is unused for float layouts and the kinds of blocks.h and trellis.h. `error` may be NULL.
 * MOE_ERR_USAGE for layouts that only checkpoints' types have. MOE_ERR_FORMAT, with row and column,
 * for a weight that is not finite, or too large for f16 where d, m or the layout need it.
 */
int moe_quantize_matrix(const struct moe_quant_method *method, struct moe_layout layout,
                        const double *factor, const float *w, uint32_t rows, uint32_t cols,
                        uint8_t *out, struct moe_quant_error *error, struct moe_err *err);

/* The three fits. */
void moe_quant_fit_rtn(const float *w, uint32_t n, int bits, uint16_t *d, uint16_t *m,
                       uint8_t *codes);
void moe_quant_fit_linear(const float *w, uint32_t n, int bits, uint16_t *d, uint16_t *m,
                          uint8_t *codes);
void moe_quant_fit_hqq(const float *w, uint32_t n, int bits, uint16_t *d, uint16_t *m,
                       uint8_t *codes);

#endif
