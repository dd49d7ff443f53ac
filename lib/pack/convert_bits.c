/*
 * Bits shared out among matrices so that what rounding costs is least for the bytes they take.
 *
 * Rounding leaves a part of the weights' variance that depends on the bits alone. Of the output of
 * a matrix over its inputs (H = R D R^T, cholesky.h) that is the sum of D_k w_k^2, of the rows'
 * outputs of the sum of D_k seen_k^2.
 */
#include <math.h>

#include "pack/convert_internal.h"
#include "quant/cholesky.h"

/* What rounding by trellis (of 8 bits: to groups) leaves of the variance of normal weights,
 * measured.
 */
static const struct {
    int bits;
    double left;
} rungs[CONVERT_RUNGS] = {{1, 0.133},  {2, 0.0787}, {3, 0.0224},
                          {4, 0.0054}, {5, 0.0014}, {8, 0.00005}};

enum {
    SEEN_ROWS = 128 /* of a matrix, at most, stand for all: each costs the square of its columns */
};

int convert_sharer_bits(const struct convert_sharer *s)
{
    return rungs[s->rung].bits;
}

void convert_see_matrix(const struct moe_mat *mat, const double *factor, float *row, double *seen,
                        struct convert_seen *out)
{
    const uint32_t step = (mat->rows + SEEN_ROWS - 1) / SEEN_ROWS;
    double energy = 0, weight = 0;
    for (uint32_t r = 0; factor && r < mat->rows; r += step) {
        moe_layout_load_row(mat, r, row);
        moe_factor_see(factor, mat->cols, row, seen);
        for (uint32_t k = 0; k < mat->cols; k++) {
            const double d = factor[(uint64_t)k * mat->cols + k];
            energy += d * seen[k] * seen[k];
            weight += d * (double)row[k] * (double)row[k];
        }
    }
    *out = (struct convert_seen){.known = factor != NULL,
                                 .energy = energy * step,
                                 .weight = energy > 0 ? weight / energy : 0};
}

void convert_add_matrix(const struct moe_mat *mat, const struct convert_seen *seen,
                        const struct moe_convert_options *options, struct convert_sharer *to)
{
    const int has = moe_layout_bits(mat->layout.kind);
    const bool quantized = !moe_layout_is_float(mat->layout.kind);
    const double weight = seen->known ? seen->weight : 1;
    to->there = true;
    to->known = seen->known;
    to->energy = seen->energy;
    to->weight += seen->weight;
    to->n_weights += (uint64_t)mat->rows * mat->cols;
    to->of += weight;
    for (int i = 0; i < CONVERT_RUNGS; i++) {
        const bool own = quantized && rungs[i].bits == CONVERT_OWN_BITS;
        const struct moe_layout layout =
            own ? mat->layout
                : moe_quant_layout(options->method, rungs[i].bits, options->group, MOE_LAYOUT_BF16);
        to->lacks[i] |= rungs[i].bits > has && !own;
        to->lost[i] += own ? 0 : weight * rungs[i].left;
        to->bytes[i] += moe_round_up(moe_layout_bytes(layout, mat->rows, mat->cols),
                                     options->target_bytes ? MOE_ALIGN : 1);
    }
}

void convert_pad_sharer(struct convert_sharer *s)
{
    for (int i = 0; i < CONVERT_RUNGS; i++)
        s->bytes[i] = moe_round_up(s->bytes[i], MOE_PACK_ALIGN);
}

/* What a rung loses, and its bytes at this price. */
static double cost(const struct convert_sharer *s, int rung, double price)
{
    const double lost = s->of > 0 ? s->weight * s->lost[rung] / s->of : 0;
    return lost + price * (double)s->bytes[rung];
}

/* Gives each sharer the bits whose cost at this price is least, of those that keep all within
 * `most` bytes, where they take `bytes` now; returns what they take then. */
static uint64_t buy_bits(struct convert_sharer *sharers, uint64_t n, double price, uint64_t bytes,
                         double most)
{
    for (uint64_t i = 0; i < n; i++) {
        struct convert_sharer *s = &sharers[i];
        const uint64_t others = bytes - s->bytes[s->rung];
        for (int rung = 0; s->there && rung < CONVERT_RUNGS; rung++)
            if (!s->lacks[rung] && (double)(others + s->bytes[rung]) <= most &&
                cost(s, rung, price) < cost(s, s->rung, price))
                s->rung = rung;
        bytes = others + s->bytes[s->rung];
    }
    return bytes;
}

/* The same of all bits. */
static uint64_t buy_all(struct convert_sharer *sharers, uint64_t n, double price)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < n; i++) {
        sharers[i].rung = 0;
        bytes += sharers[i].bytes[0];
    }
    return buy_bits(sharers, n, price, bytes, INFINITY);
}

/* The price at which what is bought fits is found by halving the exponent's range. Of what is too
 * dear at that price, the most worth its bytes then gets the room that is left. */
uint64_t convert_share_out(struct convert_sharer *sharers, uint64_t n, double most)
{
    enum { STEPS = 8 /* to half the price */ };
    double low = -100, high = 100;
    const uint64_t fewest = buy_all(sharers, n, exp2(high));
    if ((double)fewest > most)
        return fewest;
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        if ((double)buy_all(sharers, n, exp2(middle)) > most)
            low = middle;
        else
            high = middle;
    }
    uint64_t bytes = buy_all(sharers, n, exp2(high));
    for (int i = 0; i < (high + 100) * STEPS; i++)
        bytes = buy_bits(sharers, n, exp2(high - (double)i / STEPS), bytes, most);
    return bytes;
}
