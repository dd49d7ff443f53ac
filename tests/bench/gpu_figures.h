/*
 * What the figures of bench_gpu.c count: shapes, bytes, shares of one another. No device is needed
 * here (tests/unit/test_gpu_figures.c has worked examples).
 */
#ifndef TESTS_BENCH_GPU_FIGURES_H
#define TESTS_BENCH_GPU_FIGURES_H

#include <stdint.h>

#include "quant/layout.h"

/* Matrices of one shape, multiplied by one launch. */
struct product_shape {
    const char *name;
    uint32_t n_matrices, rows, cols;
};

/* A model's attention: all its heads. */
struct attention_shape {
    const char *name;
    uint32_t n_heads, n_kv_heads, key_dim, value_dim;
};

/* Bytes of weights that one launch reads, scales included. */
static inline uint64_t product_bytes(const struct product_shape *s, struct moe_layout layout)
{
    return s->n_matrices * moe_layout_bytes(layout, s->rows, s->cols);
}

/* Multiplications and additions of a launch, for n inputs. */
static inline double product_operations(const struct product_shape *s, uint32_t n)
{
    return 2.0 * s->n_matrices * s->rows * s->cols * n;
}

/* Bytes of a cache of such cells that one row at position context - 1 reads in a layer. */
static inline uint64_t attention_bytes(const struct attention_shape *s, uint32_t context,
                                       uint32_t cell_bytes)
{
    return (uint64_t)context * s->n_kv_heads * (s->key_dim + s->value_dim) * cell_bytes;
}

/* Multiplications and additions for the last n rows of a context. */
static inline double attention_operations(const struct attention_shape *s, uint32_t context,
                                          uint32_t n)
{
    double seen = (double)n * context - (double)n * (n - 1) / 2;
    return 2 * seen * s->n_heads * (s->key_dim + s->value_dim);
}

/* A copy inside the device goes through its memory twice. */
static inline uint64_t copied_bytes(uint64_t n_bytes)
{
    return 2 * n_bytes;
}

/* How many pieces are used in turn, so that none is left in a cache of less than cold_bytes when
 * its turn comes again. At least one. */
static inline uint64_t pieces_in_turn(uint64_t cold_bytes, uint64_t piece_bytes)
{
    return cold_bytes > piece_bytes ? cold_bytes / piece_bytes : 1;
}

/* Of the shorter of two jobs, the share that was hidden by the longer: 1 when both together take
 * as long as the longer, 0 when they take the sum. */
static inline double hidden_share(double a, double b, double together)
{
    return (a + b - together) / (a < b ? a : b);
}

#endif
