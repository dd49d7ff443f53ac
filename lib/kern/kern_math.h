/*
 * Arithmetic shared by all variants: constants and steps of moe_expf, the fixed tree that joins 16
 * running sums, and scalar forms of the elementwise slots, with which the vector variants finish
 * the last few elements. Written with fmaf, never a * b + c: the meaning does not depend on the
 * instruction set a file is compiled for.
 */
#ifndef MOE_KERN_KERN_MATH_H
#define MOE_KERN_KERN_MATH_H

#include <math.h>
#include <stdint.h>

#include "base/float16.h"

enum { MOE_LANES = 16 };

/* A block whose largest magnitude is below this counts as zeros: 127 / a must stay finite. */
#define MOE_QUANT_TINY 0x1p-100f

/*
 * e^x = 2^n * e^r, |r| <= ln(2)/2. ln2_high has 15 bits, so n * ln2_high is exact; the polynomial
 * is 1 + r + r^2 (c2 + c3 r + c4 r^2 + c5 r^3 + c6 r^4), a Chebyshev fit on [-0.35, 0.35] with an
 * error of 9e-9 before rounding.
 */
#define MOE_EXP_LOW -87.3f
#define MOE_EXP_HIGH 88.5f
#define MOE_EXP_LOG2E 0x1.715476p+0f
#define MOE_EXP_LN2_HIGH 0x1.62e4p-1f
#define MOE_EXP_LN2_LOW 0x1.7f7d1cp-20f
#define MOE_EXP_C2 0x1p-1f
#define MOE_EXP_C3 0x1.5554d8p-3f
#define MOE_EXP_C4 0x1.555516p-5f
#define MOE_EXP_C5 0x1.12105cp-7f
#define MOE_EXP_C6 0x1.6d15f8p-10f

static inline MOE_DEVICE_CODE float moe_math_exp(float x)
{
    if (x != x)
        return x;
    x = x < MOE_EXP_LOW ? MOE_EXP_LOW : x > MOE_EXP_HIGH ? MOE_EXP_HIGH : x;
    float n = rintf(x * MOE_EXP_LOG2E);
    float r = fmaf(n, -MOE_EXP_LN2_HIGH, x);
    r = fmaf(n, -MOE_EXP_LN2_LOW, r);
    float p = MOE_EXP_C6;
    p = fmaf(p, r, MOE_EXP_C5);
    p = fmaf(p, r, MOE_EXP_C4);
    p = fmaf(p, r, MOE_EXP_C3);
    p = fmaf(p, r, MOE_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* 2^n by adding to the exponent: the clamp keeps the result normal. */
    return moe_bits_f32(moe_f32_bits(p) + ((uint32_t)(int32_t)n << 23));
}

/* Joins 16 running sums: lane i += lane i+8, then i+4, i+2, i+1. Destroys `lane`. */
static inline MOE_DEVICE_CODE float moe_math_join(float lane[MOE_LANES])
{
    for (int half = MOE_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/*
 * Codes of the KV cache (infer/kv.h): a group of numbers as codes of 8 or 4 bits and a scale, f16.
 * With m the number of the largest magnitude, of equal ones the first:
 *
 *   8 bits   the scale is |m| / 127; a code is the number divided by that, rounded to the nearest
 *            (even), and at least -127 and at most 127
 *   4 bits   codes stand for the numbers of moe_iq4_numbers (quant/layout.h). Two scales are
 *            tried, m / -127 and m / -134: that with the smaller sum of squared errors, of equal
 *            ones the first. A code is that of the number nearest to x / scale, of two the lesser.
 *            An error is fma(-number, scale, x); their squares have a 16-lane fma sum
 *
 * Scales are rounded to f16, and at most 65504. Of a NaN the scale is NaN, so that it shows; where
 * the scale is 0, so is every cell.
 */
enum { MOE_CELL_SCALES = 2 };

static inline MOE_DEVICE_CODE float moe_math_cell_largest(const float *x, uint32_t n)
{
    float m = 0;
    for (uint32_t i = 0; i < n; i++)
        if ((moe_f32_bits(x[i]) & 0x7fffffffu) > (moe_f32_bits(m) & 0x7fffffffu))
            m = x[i];
    return m;
}

/* The i-th scale to try. */
static inline MOE_DEVICE_CODE uint16_t moe_math_cell_scale(int bits, float m, int i)
{
    float scale = bits == 8 ? fabsf(m) / 127 : m / (i == 0 ? -127.0f : -134.0f);
    scale = scale > 65504.0f ? 65504.0f : scale < -65504.0f ? -65504.0f : scale;
    return moe_f32_to_f16(scale);
}

static inline MOE_DEVICE_CODE int moe_math_cell_code(int bits, float x, float scale)
{
    const float between[15] = {-115.5f, -93.5f, -74,   -57,   -42, -28.5f, -16, -4.5f,
                               7,       19,     31.5f, 45.5f, 61,  79,     101};
    float at = scale == 0 ? 0 : x / scale, code = rintf(at);
    int n = 0;
    if (bits == 8)
        return code != code ? 0 : (int)(code < -127 ? -127 : code > 127 ? 127 : code);
    for (int i = 0; i < 15; i++)
        n += at > between[i];
    return n;
}

/* The Hadamard rotation of the kernel table's `turn`: its piece of n numbers that are left, and
 * what they are multiplied by. */
static inline MOE_DEVICE_CODE uint32_t moe_math_turn_piece(uint32_t n)
{
    uint32_t piece = 128;
    while (piece > n)
        piece /= 2;
    return piece;
}

static inline MOE_DEVICE_CODE float moe_math_turn_scale(uint32_t piece)
{
    return 1.0f / sqrtf((float)piece);
}

/* x[i] = e^(x[i] - largest) for begin <= i < end, added to lane i % MOE_LANES. */
static inline MOE_DEVICE_CODE void moe_math_exp_lanes(float *x, uint32_t begin, uint32_t end,
                                                      float largest, float lane[MOE_LANES])
{
    for (uint32_t i = begin; i < end; i++) {
        x[i] = moe_math_exp(x[i] - largest);
        lane[i % MOE_LANES] += x[i];
    }
}

/* 1 / sqrt(sum/n + eps), every step rounded. */
static inline MOE_DEVICE_CODE float moe_math_rms_scale(float sum, uint32_t n, float eps)
{
    return 1.0f / sqrtf(sum / (float)n + eps);
}

static inline MOE_DEVICE_CODE float moe_math_silu(float x)
{
    return x / (1.0f + moe_math_exp(-x));
}

static inline MOE_DEVICE_CODE float moe_math_swiglu(float gate, float up)
{
    return moe_math_silu(gate) * up;
}

static inline MOE_DEVICE_CODE float moe_math_tanh(float x)
{
    float t = moe_math_exp(-2.0f * fabsf(x));
    return copysignf((1.0f - t) / (1.0f + t), x);
}

static inline MOE_DEVICE_CODE float moe_math_sigmoid(float x)
{
    return 1.0f / (1.0f + moe_math_exp(-x));
}

/*
 * ln(1 + e^x) = max(x, 0) + ln(1 + t), t = e^-|x|; ln(1 + t) = 2 artanh(s), s = t / (2 + t) up to
 * 1/3, by the first nine terms of its series: relative error below 3e-7.
 */
static inline MOE_DEVICE_CODE float moe_math_softplus(float x)
{
    float t = moe_math_exp(-fabsf(x)), s = t / (2.0f + t), z = s * s, p = 1.0f / 17;
    for (int odd = 15; odd > 0; odd -= 2)
        p = fmaf(p, z, 1.0f / (float)odd);
    return (x > 0.0f ? x : 0.0f) + 2.0f * s * p;
}

static inline MOE_DEVICE_CODE float moe_math_relu(float x)
{
    return x < 0.0f ? 0.0f : x;
}

/* NaN passes through both. */
static inline MOE_DEVICE_CODE float moe_math_at_most(float x, float limit)
{
    return x > limit ? limit : x;
}

static inline MOE_DEVICE_CODE float moe_math_clamp(float x, float limit)
{
    x = moe_math_at_most(x, limit);
    return x < -limit ? -limit : x;
}

static inline MOE_DEVICE_CODE float moe_math_swiglu_clamped(float gate, float up, float alpha,
                                                            float limit)
{
    float g = moe_math_at_most(gate, limit), u = moe_math_clamp(up, limit);
    return g / (1.0f + moe_math_exp(-(alpha * g))) * (u + 1.0f);
}

/* The row of a model's rotary table (infer/model.h) for a position in a text of `length` positions;
 * a length of 0: the text ends at that position. original: rope_original of the description; 0: the
 * table has one set. */
static inline MOE_DEVICE_CODE uint32_t moe_math_rope_row(uint32_t original, uint32_t length,
                                                         uint32_t position)
{
    return (length ? length : position + 1) > original ? original + position : position;
}

/* Rotates the pair (*a, *b). */
static inline MOE_DEVICE_CODE void moe_math_rotate(float *a, float *b, float c, float s)
{
    float a0 = *a, b0 = *b;
    *a = fmaf(a0, c, -(b0 * s));
    *b = fmaf(b0, c, a0 * s);
}

/* Scale and sum of a block whose largest magnitude has the bits `largest`, quantized by the factor
 * of moe_math_quant_inverse, with codes that add up to `sum`. */
static inline MOE_DEVICE_CODE void moe_math_quant_scale(uint32_t largest, int32_t sum, float *s,
                                                        float *z)
{
    *s = largest < 0x7f800000u ? moe_bits_f32(largest) / 127.0f : NAN;
    *z = *s * (float)sum;
}

/* The factor for a block whose largest magnitude has the bits `largest`; 0 for one without
 * information: too small, or not finite. */
static inline MOE_DEVICE_CODE float moe_math_quant_inverse(uint32_t largest)
{
    float a = moe_bits_f32(largest);
    return largest < 0x7f800000u && a >= MOE_QUANT_TINY ? 127.0f / a : 0.0f;
}

#endif
