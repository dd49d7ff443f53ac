/*
 * The kernel table: everything that touches numbers in bulk goes through here.
 *
 * Each slot has one meaning, written above it; the reference (kern_ref.c: plain sequential C) is
 * that meaning, and every other variant must give the same bits. That is possible because sums have
 * a fixed order: matrix products add down the columns, one sum per row (layout.h), reductions over
 * a vector use 16 running sums (lane i adds the elements i, i+16, i+32, ... in order; missing
 * elements of the last round add nothing) joined by a fixed tree: lane i += lane i+8, then i+4,
 * i+2, i+1. An fma rounds once, and so does every other operation; no reassociation, no contraction
 * (-ffp-contract=off), no fast-math. So thread count, batch size and instruction set never change a
 * result.
 *
 * Kernels assume validated arguments, allocate nothing and return nothing. Each variant overwrites
 * the slots of the table that it implements.
 *
 * Vectors are f32 unless said otherwise. Buffers are 64-byte aligned.
 */
#ifndef MOE_KERN_KERN_H
#define MOE_KERN_KERN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/err.h"
#include "quant/layout.h"

/*
 * Inputs of a matrix product ("activations"), prepared for the kernels. Up to MOE_TILE inputs are
 * computed together and lie interleaved in a tile of nt (1, 2, 4 or 8) inputs:
 *
 *   float tile   x[cols][nt] f32: value of column c of input t at x[c * nt + t].
 *   byte tile    q[cols_padded/4][nt][4] signed bytes, -127..127 (never -128: the variants without
 *                a mixed-sign dot product rely on it): column 4i+k of input t at
 *                q[(i*nt + t)*4 + k]; s[n_blocks][nt] f32 scales, z[n_blocks][nt] f32 sums
 *                (layout.h's s_b, and z of the whole block), sum[n_blocks][nt] what kernels need
 *                of sums. cols_padded is cols rounded up to a multiple of B; the padding is 0.
 */
enum { MOE_TILE = 8, MOE_N_TILES = 4 /* sizes of tiles: 1, 2, 4, 8 */, MOE_N_LAYOUTS = 50 };
enum { MOE_N_FLOATS = 7 /* layouts that take floats, in the order of moe_kern_layout_index */ };
enum { MOE_FEW_PANELS = 4 };

/* Of a block's bytes: -128 times the sum of all, of its first half and of the other, which is what
 * numbers that are 128 too large add; and z of either half. */
struct moe_sums {
    int32_t less[3];
    float z[2];
};

struct moe_tile {
    const float *x;  /* float tile, or NULL */
    const int8_t *q; /* byte tile, or NULL */
    const float *s, *z;
    const struct moe_sums *sum;
};

/* Attention goes over the positions of a row's context in chunks of this size, wherever it is
 * computed; infer/cpu_attention.c defines its arithmetic. */
enum { MOE_ATTENTION_CHUNK = 256 };

/* Multiplies one panel of 16 rows by a tile; see moe_kern.panel. */
typedef void moe_panel_fn(const uint8_t *panel, struct moe_layout layout, uint32_t cols,
                          const struct moe_tile *tile, float *y, uint64_t y_stride);

/*
 * Blocks of a panel as products with many inputs take them, whatever kind they were: d and m of
 * their scales, and numbers of codes (v, or q in kinds with an offset) plus 128, columns 4s..4s+3
 * of row r at codes[s][4r]. Panels become MOE_UNPACKED blocks at a time, whole records of any kind.
 */
enum { MOE_UNPACKED = 16, MOE_UNPACKED_TILE = 4 /* the smallest tile */ };
struct moe_unpacked {
    uint8_t codes[8][4 * MOE_PANEL_ROWS];
    float d[2][MOE_PANEL_ROWS], m[2][MOE_PANEL_ROWS];
};
/* The least number of a kind, how much larger the largest is, and whether scales have an m. */
struct moe_numbers {
    int least, span;
    bool offsets;
};
/* Unpacks `cols` columns, 32 * MOE_UNPACKED at most, from the records at `panel` on, and returns
 * what follows them. */
typedef const uint8_t *moe_unpack_fn(const uint8_t *panel, uint32_t cols,
                                     struct moe_unpacked *blocks);
/* Goes on with the sums of moe_kern.panel, at y[t * y_stride + r], by n blocks. */
typedef void moe_unpacked_fn(const struct moe_unpacked *blocks, uint32_t n,
                             struct moe_numbers numbers, const struct moe_tile *tile, float *y,
                             uint64_t y_stride);

/* Panels of codes of the KV cache (infer/kv.h); see moe_kern.cells. */
enum moe_cells {
    MOE_CELLS_KEYS_Q8,
    MOE_CELLS_KEYS_Q4,
    MOE_CELLS_VALUES_Q8,
    MOE_CELLS_VALUES_Q4,
    MOE_N_CELLS
};

struct moe_kern {
    enum moe_cpu_level level;

    /*
     * One panel of 16 rows times a tile: y[t * y_stride + r], r = 0..15, t = 0..nt-1, is set to the
     * product of row r with input t. Indexed by layout (moe_kern_layout_index) and log2 of nt.
     * Float layouts: y = 0, then y = fma(w[c], x[c], y) for c = 0..cols-1, w converted exactly to
     * f32, in scaled kinds rounded to it. Quantized layouts: the arithmetic that layout.h defines.
     */
    moe_panel_fn *panel[MOE_N_LAYOUTS][MOE_N_TILES];

    /*
     * MOE_FEW_PANELS panels of a float layout, one behind the other, times one input: y[16 i + r]
     * for row r of panel i. Each row's additions wait for each other; with several panels there are
     * others to do. NULL in variants without it.
     */
    moe_panel_fn *few_panels[MOE_N_FLOATS];

    /*
     * How a kind's panels are unpacked, or NULL where products with many inputs gain nothing by
     * that; and these products, by a kind's scales of a block (one or two), and whether a tile has
     * four inputs or eight.
     */
    moe_unpack_fn *unpack[MOE_N_LAYOUTS];
    moe_unpacked_fn *unpacked[2][2];

    /*
     * The same for codes of the KV cache, with float tiles whose s are the codes' scales: w[c] =
     * the code's number * scale, which is exact. Q8 are signed bytes, Q4 have the numbers of
     * moe_iq4_numbers. Of keys, columns are dimensions: the first 32 have the scales s[16], the
     * next 32 the next 16; q8 codes[cols][16]; q4 codes[cols / 2, rounded up][16], an even column
     * in the low half of its bytes. Of values, columns are positions with a scale s[c] each: q8
     * codes[cols][16]; q4 codes[cols][8], row r < 8 in the low half of byte r, r + 8 in its high
     * half. The layout does not matter.
     */
    moe_panel_fn *cells[MOE_N_CELLS][MOE_N_TILES];

    /*
     * Quantizes one input into column t of a byte tile of nt inputs with blocks of B columns:
     * per block, a = largest |x|, inv = a >= 2^-100 ? 127 / a : 0, q = x * inv rounded to nearest
     * even, s = a / 127, z = s * (float)(sum of q), sum likewise. Writes the padding too. (Below
     * 2^-100, 127 / a could overflow; such a block counts as zeros.) A block that holds an infinity
     * or a NaN gets q = 0, less = 0 and s = z = NaN, so that it shows in every product.
     */
    void (*quantize)(const float *x, uint32_t cols, uint32_t block, int nt, int t, int8_t *q,
                     float *s, float *z, struct moe_sums *sum);

    /* y[i] = x[i] * r * w[i] with r = 1 / sqrt(sum(x*x)/n + eps): sum by 16-lane fma in f32;
     * sum/n, + eps, sqrt, 1/.. each rounded; (x*r)*w in this order. y may be x. */
    void (*rms_norm)(const float *x, const float *w, uint32_t n, float eps, float *y);

    /* y[i] = fma(d[i] * r, w[i], b[i]) with d[i] = x[i] - mean, mean = sum(x)/n by a 16-lane sum,
     * r as in rms_norm from the 16-lane fma sum of d*d. y may be x. */
    void (*layer_norm)(const float *x, const float *w, const float *b, uint32_t n, float eps,
                       float *y);

    /* For the scores x[i], begin <= i < end (at least one): *largest = the largest (of unspecified
     * sign if 0), x[i] = moe_expf(x[i] - *largest); returns their 16-lane sum, x[i] in lane i % 16.
     * The rest of x is not touched. A score of -infinity counts as the smallest argument of
     * moe_expf; the largest must be finite. */
    float (*exp_sum)(float *x, uint32_t begin, uint32_t end, float *largest);

    /* Softmax in place over n > 0 scores: exp_sum of all, then each divided by the sum. Equal
     * scores give equal shares. */
    void (*softmax)(float *x, uint32_t n);

    /* y[i] = silu(gate[i]) * up[i], silu(v) = v / (1 + moe_expf(-v)). y may be gate or up. */
    void (*swiglu)(const float *gate, const float *up, uint32_t n, float *y);

    /* With g = gate[i] above limit ? limit : gate[i] and u = up[i] clamped to +-limit (clamp
     * below): y[i] = g / (1 + moe_expf(-(alpha * g))) * (u + 1). y may be gate or up. */
    void (*swiglu_clamped)(const float *gate, const float *up, uint32_t n, float alpha, float limit,
                           float *y);

    /* y[i] = silu(x[i]), as in swiglu. y may be x. */
    void (*silu)(const float *x, uint32_t n, float *y);

    /* y[i] = x[i] below 0 ? 0 : x[i], so that a NaN and a negative zero stay. y may be x. */
    void (*relu)(const float *x, uint32_t n, float *y);

    /* y[i] = tanh(x[i]) = (1 - t) / (1 + t) with the sign of x[i], t = moe_expf(-2 |x[i]|);
     * absolute error below 2e-7. y may be x. */
    void (*tanh)(const float *x, uint32_t n, float *y);

    /* y[i] = fma(a, x[i], y[i]) */
    void (*axpy)(float a, const float *x, uint32_t n, float *y);

    /* y[i] += x[i] */
    void (*add)(const float *x, uint32_t n, float *y);

    /* y[i] = fma(a[i], x[i], y[i]) */
    void (*mul_add)(const float *a, const float *x, uint32_t n, float *y);

    /* y[i] *= a */
    void (*scale)(float a, uint32_t n, float *y);

    /* y[i] above limit becomes limit, below -limit -limit; NaN stays. limit > 0. */
    void (*clamp)(float limit, uint32_t n, float *y);

    /* Rotates pairs (x[i], x[i + n/2]), i < n/2, by the angle whose cosine and sine are cs[2i],
     * cs[2i+1]: a' = fma(a, c, -(b * s)), b' = fma(b, c, a * s). */
    void (*rope)(float *x, const float *cs, uint32_t n);

    /* The 16-lane fma sum of x[i] * y[i]. */
    float (*dot)(const float *x, const float *y, uint32_t n);

    /*
     * A token's step of a recurrent state under the gated delta rule, for 16 values r of a head.
     * state[n][16], k, q, decay [n], v, y [16]:
     *
     *   m[r] = 0, then for i = 0..n-1: state[i][r] *= decay[i], m[r] = fma(state[i][r], k[i],
     * m[r]); d[r] = (v[r] - m[r]) * beta; y[r] = 0, then for i = 0..n-1: state[i][r] = fma(k[i],
     * d[r], state[i][r]), y[r] = fma(state[i][r], q[i], y[r]).
     *
     * y may be v.
     */
    void (*delta_step)(float *state, const float *k, const float *q, const float *v, uint32_t n,
                       const float *decay, float beta, float *y);

    /*
     * A token's step of a recurrent state that only decays, for 16 values r of a head.
     * state[n][16], k, q [n], v, y [16]: y[r] = 0, then for i = 0..n-1: state[i][r] = fma(k[i],
     * v[r], state[i][r] * decay), y[r] = fma(state[i][r], q[i], y[r]).
     *
     * y may be v.
     */
    void (*scan_step)(float *state, const float *k, const float *q, const float *v, uint32_t n,
                      float decay, float *y);

    /*
     * The same for a state whose cells each decay by their own factor, for 16 values r. state,
     * rates [n][16], k, q [n], steps, v, y [16]: y[r] = 0, then for i = 0..n-1: e =
     * moe_expf(-(rates[i][r] * steps[r])), state[i][r] = fma(k[i], v[r], state[i][r] * e), y[r] =
     * fma(state[i][r], q[i], y[r]).
     *
     * y may be v.
     */
    void (*select_step)(float *state, const float *rates, const float *steps, const float *k,
                        const float *q, const float *v, uint32_t n, float *y);

    /*
     * A Hadamard rotation in place, which is its own inverse but for rounding: x is cut into pieces
     * from its front on, each of the largest power of two up to 128 that is left. In a piece of w,
     * for s = 1, 2, 4, ... w / 2 each pair x[i], x[i + s] (of i without the bit s) becomes their
     * sum and their difference, and then every number x * (1 / sqrt(w)), each step rounded.
     */
    void (*turn)(float *x, uint32_t n);

    /* f32 to f16 bits, round to nearest even (float16.h), and back. */
    void (*f32_to_f16)(const float *x, uint32_t n, uint16_t *y);
    void (*f16_to_f32)(const uint16_t *x, uint32_t n, float *y);
};

/* Index of a layout kind in panel[], -1 for an unknown kind: those that take floats first
 * (kern_panel.h). Variations of a kind share its functions, which see by the layout which one they
 * are given. */
int moe_kern_layout_index(uint16_t kind);

/* The table in use: from the start that of the highest level that this processor has. */
extern struct moe_kern moe_kern;

/* Fills moe_kern for another `level` and those below it; MOE_ERR_DEVICE when this machine lacks it.
 * Do not call it while kernels run. */
int moe_kern_select(enum moe_cpu_level level, struct moe_err *err);

/* Fills a caller's table, with which tests compare levels. */
int moe_kern_fill(struct moe_kern *kern, enum moe_cpu_level level, struct moe_err *err);

/*
 * e^x, the same bits everywhere. x is clamped to [-87.3, 88.5] (the result is a normal number); n =
 * x * log2(e) rounded to the nearest integer (even on ties),
 * r = fma(n, -ln2_high, x), r = fma(n, -ln2_low, r), a polynomial of degree 6 in r by fma (Horner),
 * scaled by 2^n. Relative error below 2e-7. NaN gives NaN. The vector variants repeat these steps;
 * the constants are in kern_math.h.
 */
float moe_expf(float x);

/* The variants; each overwrites its slots. Variants for another architecture do nothing. */
void moe_kern_fill_ref(struct moe_kern *kern);
void moe_kern_fill_avx2(struct moe_kern *kern);
void moe_kern_fill_avx512(struct moe_kern *kern);
void moe_kern_fill_neon(struct moe_kern *kern);
void moe_kern_fill_neon_dot(struct moe_kern *kern);

#endif
