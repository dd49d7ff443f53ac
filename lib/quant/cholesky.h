/*
 * Second moments of a matrix's inputs, and their factor, for error-aware rounding (gptq.h).
 *
 * Matrices here are square, row-major, in double. Every sum has a fixed order, so results are the
 * same bit for bit whatever the thread count. Loops run over all threads (par.h).
 */
#ifndef MOE_QUANT_CHOLESKY_H
#define MOE_QUANT_CHOLESKY_H

#include <stdbool.h>
#include <stdint.h>

/* Adds n inputs to the second moments: h[i][j] += sum over t of x[t][i] * x[t][j], for i <= j only.
 * h: [cols][cols]; x: [n][stride] floats; `rows` names the n rows to use (NULL: 0..n-1). */
void moe_moments_add(double *h, uint32_t cols, const float *x, uint64_t stride,
                     const uint32_t *rows, uint32_t n);

/* Damping: adds `share` of the mean diagonal element to each diagonal element (1 where all are 0),
 * so that a factor exists for inputs that are few or alike, and columns that were always 0 stay as
 * they are. */
void moe_moments_damp(double *h, uint32_t cols, double share);

/*
 * The Cholesky factor without roots, from the last column to the first: H = R D R^T with R unit
 * upper triangular and D diagonal. Reads h[i][j] for i <= j; on return h[j][j] = D_j, and both
 * h[i][j] and h[j][i] = R_ij for i < j. False, h then undefined: not positive definite, or not
 * finite.
 */
bool moe_cholesky(double *h, uint32_t n);

/* carried[k] += the sum over i < n of e[i] * r[i * stride + k] for k in [begin, end), i ascending:
 * what columns that follow carry of the errors e of n columns, whose rows of R are at r. */
void moe_factor_carry(const double *e, uint32_t n, const double *r, uint64_t stride, uint32_t begin,
                      uint32_t end, double *carried);

/* seen[k] = w[k] + the sum over i < k of w[i] R_ik: the sum over k of D_k seen[k]^2 is the square
 * of what a row w gives for the inputs. factor NULL: of independent columns, D and R are one. */
void moe_factor_see(const double *factor, uint32_t cols, const float *w, double *seen);

#endif
