/*
 * Shared by the fits: rounding f16 to the safe side, and arithmetic on chunks of weights.
 *
 * A group is walked in chunks of MOE_FIT_CHUNK weights, the last one filled up with copies of its
 * first weight. Loops over a chunk have a constant length and no branches, so that compilers turn
 * them into vector code; sums over a chunk are halved in a fixed order, so that every instruction
 * set gives the same bits.
 */
#ifndef MOE_QUANT_FIT_H
#define MOE_QUANT_FIT_H

#include <stdint.h>
#include <string.h>

#include "base/cpu.h"
#include "base/float16.h"

enum { MOE_FIT_CHUNK = 32 }; /* divides every group size but a short last group's */

/* The smallest f16 that is not below v, for |v| <= 65504 (zero is always +0). */
static inline uint16_t moe_f16_up(float v)
{
    uint16_t h = moe_f32_to_f16(v);
    if (moe_f16_to_f32(h) < v)
        h = h == 0x8000 ? 1 : h & 0x8000 ? h - 1 : h + 1;
    return h == 0x8000 ? 0 : h;
}

/* The largest f16 that is not above v, for |v| <= 65504 (zero is always +0). */
static inline uint16_t moe_f16_down(float v)
{
    uint16_t h = moe_f16_up(-v);
    return h ? h ^ 0x8000 : 0;
}

/* The scale that lets `steps` steps span `range`. The last digits of f32 are noise of the division
 * and must not push a scale that f16 holds exactly to the next one. */
static inline uint16_t moe_fit_scale(float range, float steps)
{
    return moe_f16_up(range / steps * (1 - 0x1p-22f));
}

/* 0 for d = 0, so that a group without spread gets codes 0. */
static inline float moe_fit_inverse(float d)
{
    return d > 0 ? 1 / d : 0;
}

/* The nearest integer (ties to even) of v in [0, 2^22): adding 1.5 * 2^23 leaves it in the low
 * bits. Plain SSE2 has no instruction for it. */
static inline float moe_fit_round(float v)
{
    return (v + 12582912.0f) - 12582912.0f;
}

static inline float moe_fit_min(float a, float b)
{
    return a < b ? a : b;
}

static inline float moe_fit_max(float a, float b)
{
    return a > b ? a : b;
}

/* The code, as a float, that is nearest to v in [bottom, top]. */
static inline float moe_fit_code(float v, float bottom, float top)
{
    return moe_fit_round(moe_fit_min(moe_fit_max(v, bottom), top));
}

/* Copies min(n, chunk) weights and fills up with `fill`; returns how many were copied. */
static inline uint32_t moe_fit_load(const float *w, uint32_t n, float fill,
                                    float chunk[MOE_FIT_CHUNK])
{
    if (n >= MOE_FIT_CHUNK) {
        memcpy(chunk, w, MOE_FIT_CHUNK * sizeof *w);
        return MOE_FIT_CHUNK;
    }
    for (uint32_t i = 0; i < MOE_FIT_CHUNK; i++)
        chunk[i] = i < n ? w[i] : fill;
    return n;
}

/* The sum of a chunk, in a fixed order. */
static inline double moe_fit_sum(const float chunk[MOE_FIT_CHUNK])
{
    float quarter[8];
    for (int i = 0; i < 8; i++)
        quarter[i] = (chunk[i] + chunk[i + 8]) + (chunk[i + 16] + chunk[i + 24]);
    return ((double)(quarter[0] + quarter[4]) + (double)(quarter[1] + quarter[5])) +
           ((double)(quarter[2] + quarter[6]) + (double)(quarter[3] + quarter[7]));
}

/* Smallest and largest of n > 0 weights. */
static inline void moe_fit_range(const float *w, uint32_t n, float *lowest, float *highest)
{
    float chunk[MOE_FIT_CHUNK], low[MOE_FIT_CHUNK], high[MOE_FIT_CHUNK], low8[8], high8[8];
    moe_fit_load(w, n, w[0], low);
    memcpy(high, low, sizeof high);
    for (uint32_t i = MOE_FIT_CHUNK; i < n; i += MOE_FIT_CHUNK) {
        moe_fit_load(w + i, n - i, w[0], chunk);
        for (int j = 0; j < MOE_FIT_CHUNK; j++) {
            low[j] = moe_fit_min(chunk[j], low[j]);
            high[j] = moe_fit_max(chunk[j], high[j]);
        }
    }
    for (int j = 0; j < 8; j++) {
        low8[j] =
            moe_fit_min(moe_fit_min(low[j], low[j + 8]), moe_fit_min(low[j + 16], low[j + 24]));
        high8[j] =
            moe_fit_max(moe_fit_max(high[j], high[j + 8]), moe_fit_max(high[j + 16], high[j + 24]));
    }
    *lowest = low8[0];
    *highest = high8[0];
    for (int j = 1; j < 8; j++) {
        *lowest = moe_fit_min(*lowest, low8[j]);
        *highest = moe_fit_max(*highest, high8[j]);
    }
}

/* The nearest codes of n weights under w ~ d * q + m, q in [bottom, top]. */
static inline void moe_fit_codes(const float *w, uint32_t n, float d, float m, float bottom,
                                 float top, uint8_t *codes)
{
    float inverse = moe_fit_inverse(d), chunk[MOE_FIT_CHUNK];
    uint8_t out[MOE_FIT_CHUNK];
    for (uint32_t i = 0; i < n; i += MOE_FIT_CHUNK) {
        uint32_t here = moe_fit_load(w + i, n - i, m, chunk);
        for (int j = 0; j < MOE_FIT_CHUNK; j++) {
            float v = (chunk[j] - m) * inverse;
            out[j] = (uint8_t)(int)moe_fit_code(v, bottom, top);
        }
        memcpy(codes + i, out, here);
    }
}

#endif
