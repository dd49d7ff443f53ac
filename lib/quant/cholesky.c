/* Second moments of inputs and their Cholesky factor, blocked for the cache. */
#include "quant/cholesky.h"

#include <math.h>

#include "base/par.h"
#include "quant/fit.h"

enum {
    INPUTS = 32, /* added to all rows of moments while a cache holds them */
    BLOCK = 64   /* columns eliminated together */
};

/* ---- Moments ---- */

struct adding {
    double *h;
    uint32_t cols, n;
    const float *x;
    uint64_t stride;
    const uint32_t *rows;
};

/* Adds the sum over t < n of x[t][i] * x[t][j] to y[j] for j in [i, cols). Eight products at a time
 * are added in single precision: the loss is far below the damping. */
MOE_CLONES
static void add_inputs(const float *const x[INPUTS], uint32_t n, uint32_t i, uint32_t cols,
                       double *y)
{
    uint32_t t = 0;
    for (; t + 8 <= n; t += 8) {
        const float *x0 = x[t], *x1 = x[t + 1], *x2 = x[t + 2], *x3 = x[t + 3];
        const float *x4 = x[t + 4], *x5 = x[t + 5], *x6 = x[t + 6], *x7 = x[t + 7];
        float a0 = x0[i], a1 = x1[i], a2 = x2[i], a3 = x3[i];
        float a4 = x4[i], a5 = x5[i], a6 = x6[i], a7 = x7[i];
        for (uint32_t j = i; j < cols; j++)
            y[j] += (double)(((a0 * x0[j] + a1 * x1[j]) + (a2 * x2[j] + a3 * x3[j])) +
                             ((a4 * x4[j] + a5 * x5[j]) + (a6 * x6[j] + a7 * x7[j])));
    }
    for (; t < n; t++)
        for (uint32_t j = i; j < cols; j++)
            y[j] += (double)(x[t][i] * x[t][j]);
}

static void add_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct adding *a = ctx;
    for (uint32_t first = 0; first < a->n; first += INPUTS) {
        const float *x[INPUTS];
        uint32_t n = a->n - first < INPUTS ? a->n - first : INPUTS;
        for (uint32_t t = 0; t < n; t++)
            x[t] = a->x + (a->rows ? a->rows[first + t] : first + t) * a->stride;
        for (int64_t i = begin; i < end; i++)
            add_inputs(x, n, (uint32_t)i, a->cols, a->h + (uint64_t)i * a->cols);
    }
}

void moe_moments_add(double *h, uint32_t cols, const float *x, uint64_t stride,
                     const uint32_t *rows, uint32_t n)
{
    struct adding a = {h, cols, n, x, stride, rows};
    moe_par_for(cols, 16, add_rows, &a);
}

void moe_moments_damp(double *h, uint32_t cols, double share)
{
    double sum = 0;
    for (uint64_t i = 0; i < cols; i++)
        sum += h[i * cols + i];
    double more = sum > 0 ? share * sum / cols : 1;
    for (uint64_t i = 0; i < cols; i++)
        h[i * cols + i] += more;
}

/* ---- The factor ----
 * Blocks from the last to the first, each in three steps: the block's own rows; R of all rows above
 * in the block's columns; the moments above, less what these columns explain. R is stored twice, so
 * that its columns can be read as rows of the lower triangle. */

struct factor {
    double *h;
    uint32_t n, begin, end; /* the block */
};

/* y[j] -= a * x[j] for j in [begin, end). */
MOE_CLONES
static void subtract(double a, const double *x, uint32_t begin, uint32_t end, double *y)
{
    for (uint32_t j = begin; j < end; j++)
        y[j] -= a * x[j];
}

/* Solves row i in the block's columns, from the last down to `stop`; row k of the lower triangle
 * exists from `from` on. */
static void solve_row(const struct factor *f, uint32_t i, uint32_t stop)
{
    double *row = f->h + (uint64_t)i * f->n;
    for (uint32_t k = f->end; k-- > stop;) {
        double *column = f->h + (uint64_t)k * f->n, explained = row[k];
        row[k] = column[i] = explained / column[k];
        subtract(explained, column, i < f->begin ? f->begin : i, k, row);
    }
}

static bool factor_block(const struct factor *f)
{
    for (uint32_t i = f->end; i-- > f->begin;) {
        solve_row(f, i, i + 1);
        double d = f->h[(uint64_t)i * f->n + i];
        if (!(d > 0) || !isfinite(d))
            return false;
    }
    return true;
}

static void solve_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct factor *f = ctx;
    for (int64_t i = begin; i < end; i++)
        solve_row(f, (uint32_t)i, f->begin);
}

static void update_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct factor *f = ctx;
    for (int64_t i = begin; i < end; i++) {
        double *row = f->h + (uint64_t)i * f->n;
        for (uint32_t k = f->end; k-- > f->begin;) {
            const double *column = f->h + (uint64_t)k * f->n;
            subtract(row[k] * column[k], column, (uint32_t)i, f->begin, row);
        }
    }
}

bool moe_cholesky(double *h, uint32_t n)
{
    for (uint32_t end = n, begin; end > 0; end = begin) {
        begin = (end - 1) / BLOCK * BLOCK;
        struct factor f = {h, n, begin, end};
        if (!factor_block(&f))
            return false;
        moe_par_for(begin, 16, solve_rows, &f);
        moe_par_for(begin, 16, update_rows, &f);
    }
    return true;
}

/* ---- The factor at work ---- */

MOE_CLONES
void moe_factor_carry(const double *e, uint32_t n, const double *r, uint64_t stride, uint32_t begin,
                      uint32_t end, double *carried)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const double *r0 = r + i * stride, *r1 = r0 + stride, *r2 = r1 + stride, *r3 = r2 + stride;
        for (uint32_t k = begin; k < end; k++)
            carried[k] = (((carried[k] + e[i] * r0[k]) + e[i + 1] * r1[k]) + e[i + 2] * r2[k]) +
                         e[i + 3] * r3[k];
    }
    for (; i < n; i++)
        for (uint32_t k = begin; k < end; k++)
            carried[k] += e[i] * r[i * stride + k];
}

void moe_factor_see(const double *factor, uint32_t cols, const float *w, double *seen)
{
    for (uint32_t k = 0; k < cols; k++)
        seen[k] = 0;
    for (uint32_t i = 0; i < cols; i++) {
        const double value = w[i];
        seen[i] += value;
        if (factor)
            moe_factor_carry(&value, 1, factor + (uint64_t)i * cols, 0, i + 1, cols, seen);
    }
}
