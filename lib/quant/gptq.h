/*
 * Error-aware rounding (GPTQ: Frantar et al., 2022, arXiv 2210.17323; EdgeMoE III-B uses it for the
 * dense part).
 *
 * Rounding by weights only keeps the error E = W - Q of each weight small. What counts is the error
 * of the outputs over the inputs x that the matrix really gets: the trace of E H E^T with H = sum
 * of x x^T. GPTQ rounds the columns in order and lets later columns make up for the errors of those
 * already rounded.
 *
 * The paper eliminates columns from H^-1 and works with its Cholesky factor U. The same follows
 * from H = R D R^T (cholesky.h), without an inverse, for U = D^(-1/2) R^-1: per row
 *
 *     e H e^T = sum over k of D_k * (e_k + sum over i < k of e_i R_ik)^2
 *
 * so column k is rounded as if the weight were w_k + sum over i < k of e_i R_ik. That sum of
 * squares is the row's output error, for any codes: this file measures with it.
 */
#ifndef MOE_QUANT_GPTQ_H
#define MOE_QUANT_GPTQ_H

#include <stdint.h>

#include "base/err.h"
#include "quant/quantize.h"

/*
 * Improves `out` (an affine layout), the result of moe_quantize_matrix for w[rows][cols], for
 * inputs whose moments have the factor `factor` [cols][cols] of moe_cholesky. Fits each group's d
 * and m when its first column is reached, to the corrected weights. A row whose output error does
 * not fall keeps its codes, so no row gets worse. Where H is diagonal no column can make up for
 * another: each weight then gets the nearest value of its group.
 *
 * error: the result of moe_quantize_matrix for w; corrected, with the output errors filled in. May
 * be NULL. Uses all threads (par.h), panel by panel, with the same result for any number.
 */
int moe_gptq_improve(struct moe_layout layout, const double *factor, const float *w, uint32_t rows,
                     uint32_t cols, uint8_t *out, struct moe_quant_error *error,
                     struct moe_err *err);

#endif
