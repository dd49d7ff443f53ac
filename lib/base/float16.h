/*
 * MOE_DEVICE_CODE marks functions that CUDA kernels compile too, so that processor and GPU share
 * one source of their arithmetic: write `static inline MOE_DEVICE_CODE`.
 */
#ifndef MOE_BASE_FLOAT16_H
#define MOE_BASE_FLOAT16_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MOE_DEVICE_CODE __host__ __device__
#else
#define MOE_DEVICE_CODE
#endif

/*
 * Half-precision numbers as they lie in files: IEEE binary16 ("f16") and bfloat16 ("bf16").
 *
 * Plain integer code, the same on every machine; the vector kernels use the hardware's conversions,
 * which agree with these bit for bit (round to nearest, ties to even; NaN stays NaN).
 */

static inline MOE_DEVICE_CODE uint32_t moe_f32_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static inline MOE_DEVICE_CODE float moe_bits_f32(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline MOE_DEVICE_CODE float moe_bf16_to_f32(uint16_t h)
{
    return moe_bits_f32((uint32_t)h << 16);
}

static inline MOE_DEVICE_CODE uint16_t moe_f32_to_bf16(float v)
{
    uint32_t bits = moe_f32_bits(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40); /* quiet: rounding could turn a NaN into infinity */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline MOE_DEVICE_CODE float moe_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31, mantissa = h & 0x3ffu;
    if (exponent == 31)
        return moe_bits_f32(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
    if (exponent)
        return moe_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
    /* Zero and subnormals: mantissa * 2^-24 is exact in f32. */
    float v = (float)mantissa * 0x1p-24f;
    return moe_bits_f32(sign | moe_f32_bits(v));
}

static inline MOE_DEVICE_CODE uint16_t moe_f32_to_f16(float v)
{
    uint32_t bits = moe_f32_bits(v), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude >= 0x38800000u) { /* normal in f16: at least 2^-14 */
        uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
        return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
    }
    /* Subnormal: adding 0.5 leaves the value, rounded to a multiple of 2^-24, in the low bits. */
    float shifted = moe_bits_f32(magnitude) + 0.5f;
    return (uint16_t)(sign | (moe_f32_bits(shifted) - 0x3f000000u));
}

/* The nearest half-precision number. */
static inline MOE_DEVICE_CODE float moe_round_f16(float v)
{
    return moe_f16_to_f32(moe_f32_to_f16(v));
}

#endif
