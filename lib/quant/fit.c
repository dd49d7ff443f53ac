/* Fits codes and scales of a block: round to nearest, linear, HQQ. */
#include "quant/fit.h"

#include <math.h>

#include "quant/quantize.h"

/* Rounds m down and d up, so that every weight lies between the first and the last level and no
 * error exceeds d / 2. Levels that f16 holds exactly are recovered. */
void moe_quant_fit_rtn(const float *w, uint32_t n, int bits, uint16_t *d, uint16_t *m,
                       uint8_t *codes)
{
    float low, high, top = (float)((1 << bits) - 1);
    moe_fit_range(w, n, &low, &high);
    *m = moe_f16_down(low);
    *d = moe_fit_scale(high - moe_f16_to_f32(*m), top);
    moe_fit_codes(w, n, moe_f16_to_f32(*d), moe_f16_to_f32(*m), 0, top, codes);
}

/* ---- Linear ---- */

/* Sets the code of zero to 2^(bits-1) and m = -2^(bits-1) * d, exact in f16 because a power of two
 * only moves the exponent: a weight of zero stays exactly zero. Never uses the lowest code, which
 * makes the levels symmetric. */
void moe_quant_fit_linear(const float *w, uint32_t n, int bits, uint16_t *d, uint16_t *m,
                          uint8_t *codes)
{
    float low, high, zero = (float)(1 << (bits - 1));
    moe_fit_range(w, n, &low, &high);
    float largest = high > -low ? high : -low;
    *d = moe_fit_scale(largest, zero - 1);
    float scale = moe_f16_to_f32(*d);
    *m = *d ? moe_f32_to_f16(-zero * scale) : 0;
    /* Where every weight is zero, d is zero too, and the codes stay those of zero. */
    moe_fit_codes(w, n, scale, -zero * scale, *d ? 1 : zero, 2 * zero - 1, codes);
}

/*
 * Half-quadratic quantization (Badri and Shaji, 2023), with the scale of rtn and the zero point
 * found by alternating two steps:
 *
 *     e = W - W_r                        error under the current zero point
 *     W_e = shrink(e)                    the part of the error that is accepted
 *     z moves by the mean of e - W_e     the zero point balances the rest
 *
 * with shrink(x) = sign(x) * max(0, |x| - |x|^(p-1) / beta). Two observations make it short. First,
 * e - W_e = sign(e) * min(|e|, |e|^(p-1) / beta): small errors pull with their full size, large
 * ones less the larger they are. That is the sparsity: outliers do not move the levels. Second,
 * errors are measured in steps of the code, not in units of the weight. So the codes of a group do
 * not change when its weights are multiplied by a power of two, and beta = 10 means the same in
 * every layer: errors above a sixth of a step count as large.
 *
 * Instead of z this file moves m = -z * d; w - m loses no digits where a group lies far from zero.
 */

enum {
    STEPS = 20,
    STRETCH = 128 * MOE_FIT_CHUNK /* how far sums run in single precision */
};
static const float P = 0.7f, BETA = 10, BETA_GROWTH = 1.01f;

/* a^(P-1) for a >= 0, relative error below 2e-4; large but finite for a = 0. Approximates log2 and
 * exp2 by polynomials around 1 and 0 (Chebyshev interpolation), in operations every vector unit
 * has. */
static inline float power(float a)
{
    uint32_t bits = moe_f32_bits(a);
    /* The exponent that leaves a mantissa in [sqrt(1/2), sqrt(2)). */
    uint32_t exponent = (bits + (0x3f800000u - 0x3f3504f3u)) >> 23;
    float f = moe_bits_f32(bits - (exponent << 23) + 0x3f800000u) - 1;
    float log2_f = f * (1.44230705f + f * (-0.72469985f + f * (0.51018324f + f * -0.32262359f)));
    float y = (P - 1) * ((float)((int32_t)exponent - 127) + log2_f);
    float shifted = y + 12582912.0f;
    float r = y - (shifted - 12582912.0f);
    float scale = moe_bits_f32((moe_f32_bits(shifted) - 0x4b400000u + 127) << 23);
    return scale * (0.99992456f + r * (0.69313673f + r * (0.24263948f + r * 0.05583828f)));
}

/* Sums over the group, in steps of the code: *error of |e|, *pull of e - shrink(e). */
MOE_CLONES
static void evaluate(const float *w, uint32_t n, float inverse, float m, float top,
                     float inverse_beta, double *error, double *pull)
{
    *error = *pull = 0;
    for (uint32_t from = 0; from < n; from += STRETCH) {
        float chunk[MOE_FIT_CHUNK], errors[MOE_FIT_CHUNK] = {0}, pulls[MOE_FIT_CHUNK] = {0};
        for (uint32_t i = from; i < n && i < from + STRETCH; i += MOE_FIT_CHUNK) {
            moe_fit_load(w + i, n - i, m, chunk); /* a weight of m adds nothing */
            for (int j = 0; j < MOE_FIT_CHUNK; j++) {
                float v = (chunk[j] - m) * inverse;
                float e = v - moe_fit_code(v, 0, top);
                float a = fabsf(e), limit = power(a) * inverse_beta;
                errors[j] += a;
                pulls[j] += copysignf(a < limit ? a : limit, e);
            }
        }
        *error += moe_fit_sum(errors);
        *pull += moe_fit_sum(pulls);
    }
}

/* Finds the offset with the least mean absolute error among those the solver visits from `start`
 * on, whose error is *start_error (a sum, in steps of the code). As in the published method, it
 * stops once the error no longer falls. */
static inline float best_offset(const float *w, uint32_t n, float d, float start, float top,
                                double *start_error)
{
    float m = start, best = start, inverse_beta = 1 / BETA;
    double least = INFINITY;
    for (int step = 0; step < STEPS; step++) {
        double error, pull;
        evaluate(w, n, 1 / d, m, top, inverse_beta, &error, &pull);
        if (step == 0)
            *start_error = error;
        if (!(error < least))
            break;
        least = error;
        best = m;
        m += d * (float)(pull / n);
        inverse_beta /= BETA_GROWTH;
    }
    return best;
}

void moe_quant_fit_hqq(const float *w, uint32_t n, int bits, uint16_t *d, uint16_t *m,
                       uint8_t *codes)
{
    moe_quant_fit_rtn(w, n, bits, d, m, codes);
    if (*d == 0)
        return;
    float scale = moe_f16_to_f32(*d), top = (float)((1 << bits) - 1);
    double start_error, error, pull;
    float best = best_offset(w, n, scale, moe_f16_to_f32(*m), top, &start_error);
    uint16_t moved = moe_f32_to_f16(best);
    if (moved == *m)
        return;
    /* Rounding the offset to f16 may lose the gain. */
    evaluate(w, n, 1 / scale, moe_f16_to_f32(moved), top, 0, &error, &pull);
    if (!(error < start_error))
        return;
    *m = moved;
    moe_fit_codes(w, n, scale, moe_f16_to_f32(moved), 0, top, codes);
}
