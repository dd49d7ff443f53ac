#include "quant/ggml.h"

#include <stddef.h>
#include <string.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "quant/ggml_bits.h"

static float f16_at(const uint8_t *p)
{
    return moe_f16_to_f32(moe_get_u16(p));
}

/* ---- Single values ---- */

static void decode_f32(const uint8_t *block, float *out)
{
    *out = moe_bits_f32(moe_get_u32(block));
}

static void decode_f16(const uint8_t *block, float *out)
{
    *out = f16_at(block);
}

static void decode_bf16(const uint8_t *block, float *out)
{
    *out = moe_bf16_to_f32(moe_get_u16(block));
}

/* ---- Blocks of 32 ---- */

static void decode_q8_0(const uint8_t *block, float *out)
{
    float d = f16_at(block);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)block[2 + i];
}

static void decode_q4_0(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = f16_at(block);
    ggml_nibbles(block + 2, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(q[i] - 8);
}

static void decode_q4_1(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = f16_at(block), m = f16_at(block + 2);
    ggml_nibbles(block + 4, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)q[i] + m;
}

static void decode_q5_0(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = f16_at(block);
    ggml_five_bits(block + 2, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(q[i] - 16);
}

static void decode_q5_1(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = f16_at(block), m = f16_at(block + 2);
    ggml_five_bits(block + 4, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)q[i] + m;
}

static void decode_iq4_nl(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = f16_at(block);
    ggml_nibbles(block + 2, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)ggml_iq4_nl_values[q[i]];
}

static void decode_mxfp4(const uint8_t *block, float *out)
{
    uint8_t q[32];
    float d = moe_mxfp4_scale(block[0]);
    ggml_nibbles(block + 1, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)moe_mxfp4_twice[q[i]];
}

/* ---- Blocks of 256 ---- */

/* scales[16] (low bits: scale, high bits: minimum), q[64], d, dmin; 16 groups of 16. */
static void decode_q2_k(const uint8_t *block, float *out)
{
    const uint8_t *q = block + 16;
    float d = f16_at(block + 80), dmin = f16_at(block + 82);
    for (int i = 0; i < 256; i++) {
        uint8_t scale = block[i / 16];
        int code = q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        out[i] = d * (float)(scale & 15) * (float)code - dmin * (float)(scale >> 4);
    }
}

/* high bits[32], q[64], scales[12], d; 16 groups of 16. */
static void decode_q3_k(const uint8_t *block, float *out)
{
    const uint8_t *high = block, *q = block + 32, *scales = block + 96;
    float d = f16_at(block + 108);
    for (int i = 0; i < 256; i++) {
        int g = i / 16;
        int low4 = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
        int scale = (low4 | (scales[8 + g % 4] >> g / 4 * 2 & 3) << 4) - 32;
        int code = q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        code -= (high[i % 32] >> i / 32 & 1) ? 0 : 4;
        out[i] = d * (float)scale * (float)code;
    }
}

static void decode_q4_or_5_k(const uint8_t *block, int bits, float *out)
{
    for (uint32_t g = 0; g < 8; g++) {
        uint8_t q[32];
        float d, m;
        ggml_k_group(block, bits, g, q, &d, &m);
        for (int i = 0; i < 32; i++)
            out[32 * g + i] = d * (float)q[i] - m;
    }
}

static void decode_q4_k(const uint8_t *block, float *out)
{
    decode_q4_or_5_k(block, 4, out);
}

static void decode_q5_k(const uint8_t *block, float *out)
{
    decode_q4_or_5_k(block, 5, out);
}

/* low bits[128], high bits[64], scales[16], d; 16 groups of 16. */
static void decode_q6_k(const uint8_t *block, float *out)
{
    const uint8_t *low = block, *high = block + 128, *scales = block + 192;
    float d = f16_at(block + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, at = i % 128;
        int code = low[64 * half + at % 64] >> at / 64 * 4 & 15;
        code |= (high[32 * half + at % 32] >> at / 32 * 2 & 3) << 4;
        out[i] = d * (float)(int8_t)scales[i / 16] * (float)(code - 32);
    }
}

/* ---- The table ---- */

static const struct moe_ggml_type types[] = {
    {MOE_GGML_F32, "F32", 1, 4, decode_f32, 0},
    {MOE_GGML_F16, "F16", 1, 2, decode_f16, 0},
    {MOE_GGML_BF16, "BF16", 1, 2, decode_bf16, 0},
    {MOE_GGML_Q8_0, "Q8_0", 32, 34, decode_q8_0, 8},
    {MOE_GGML_Q4_0, "Q4_0", 32, 18, decode_q4_0, 4},
    {MOE_GGML_Q4_1, "Q4_1", 32, 20, decode_q4_1, 4},
    {MOE_GGML_Q5_0, "Q5_0", 32, 22, decode_q5_0, 8},
    {MOE_GGML_Q5_1, "Q5_1", 32, 24, decode_q5_1, 8},
    {MOE_GGML_Q2_K, "Q2_K", 256, 84, decode_q2_k, 0},
    {MOE_GGML_Q3_K, "Q3_K", 256, 110, decode_q3_k, 0},
    {MOE_GGML_Q4_K, "Q4_K", 256, 144, decode_q4_k, 4},
    {MOE_GGML_Q5_K, "Q5_K", 256, 176, decode_q5_k, 8},
    {MOE_GGML_Q6_K, "Q6_K", 256, 210, decode_q6_k, 0},
    {MOE_GGML_IQ4_NL, "IQ4_NL", 32, 18, decode_iq4_nl, 8},
    {MOE_GGML_MXFP4, "MXFP4", 32, 17, decode_mxfp4, 8},
    /* By size only, so that files that hold one are listed and checked. */
    {9, "Q8_1", 32, 40, NULL, 0},
    {15, "Q8_K", 256, 292, NULL, 0},
    {16, "IQ2_XXS", 256, 66, NULL, 0},
    {17, "IQ2_XS", 256, 74, NULL, 0},
    {18, "IQ3_XXS", 256, 98, NULL, 0},
    {19, "IQ1_S", 256, 50, NULL, 0},
    {21, "IQ3_S", 256, 110, NULL, 0},
    {22, "IQ2_S", 256, 82, NULL, 0},
    {23, "IQ4_XS", 256, 136, NULL, 0},
    {24, "I8", 1, 1, NULL, 0},
    {25, "I16", 1, 2, NULL, 0},
    {26, "I32", 1, 4, NULL, 0},
    {27, "I64", 1, 8, NULL, 0},
    {28, "F64", 1, 8, NULL, 0},
    {29, "IQ1_M", 256, 56, NULL, 0},
    {34, "TQ1_0", 256, 54, NULL, 0},
    {35, "TQ2_0", 256, 66, NULL, 0},
    {40, "NVFP4", 64, 36, NULL, 0},
    {41, "Q1_0", 128, 18, NULL, 0},
};

enum { N_TYPES = sizeof types / sizeof types[0] };

const struct moe_ggml_type *moe_ggml_find(uint32_t number)
{
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].number == number)
            return &types[i];
    return NULL;
}

void moe_ggml_decode(const struct moe_ggml_type *type, const uint8_t *blocks, uint64_t n,
                     float *out)
{
    switch (type->number) { /* the most common and smallest, without a call for each */
    case MOE_GGML_F32:
        for (uint64_t i = 0; i < n; i++)
            decode_f32(blocks + 4 * i, out + i);
        return;
    case MOE_GGML_F16:
        for (uint64_t i = 0; i < n; i++)
            decode_f16(blocks + 2 * i, out + i);
        return;
    case MOE_GGML_BF16:
        for (uint64_t i = 0; i < n; i++)
            decode_bf16(blocks + 2 * i, out + i);
        return;
    }
    /* No block is longer than its values: while block i is copied out first, writing its values
     * cannot reach block i + 1. */
    uint8_t block[MOE_GGML_MAX_BLOCK_BYTES];
    for (uint64_t i = 0; i < n; i++) {
        memcpy(block, blocks + i * type->bytes, type->bytes);
        type->decode(block, out + i * type->items);
    }
}
