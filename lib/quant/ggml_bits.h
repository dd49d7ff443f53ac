/* Bit patterns of ggml's blocks, shared by decoding and carrying over. Internal to ggml*.c. */
#ifndef MOE_QUANT_GGML_BITS_H
#define MOE_QUANT_GGML_BITS_H

#include <stdint.h>

#include "base/bytes.h"
#include "base/float16.h"

static const int8_t ggml_iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};
/* 16 bytes: columns 0 to 15 in their low halves, 16 to 31 in their high ones. */
static inline void ggml_nibbles(const uint8_t *from, uint8_t q[32])
{
    for (int i = 0; i < 16; i++) {
        q[i] = from[i] & 15;
        q[16 + i] = from[i] >> 4;
    }
}

/* The fifth bits of 32 columns, then their nibbles. */
static inline void ggml_five_bits(const uint8_t *from, uint8_t q[32])
{
    uint32_t high = moe_get_u32(from);
    ggml_nibbles(from + 4, q);
    for (int i = 0; i < 32; i++)
        q[i] |= (high >> i & 1) << 4;
}

/* Group g of 8 of a Q4_K (bits 4) or Q5_K (5) block: w = d * q - m. Layout: d, dmin, 12 bytes with
 * 8 scales and 8 minima of 6 bits, [32 bytes of fifth bits, bit g for group g,] 128 bytes of
 * nibbles, two groups in 32 bytes. */
static inline void ggml_k_group(const uint8_t *block, int bits, uint32_t g, uint8_t q[32], float *d,
                                float *m)
{
    const uint8_t *scales = block + 4, *high = block + 16, *low = bits == 5 ? high + 32 : high;
    uint32_t scale, minimum;
    if (g < 4) {
        scale = scales[g] & 63;
        minimum = scales[4 + g] & 63;
    } else {
        scale = (scales[4 + g] & 15u) | (scales[g - 4] >> 6u) << 4;
        minimum = (scales[4 + g] >> 4u) | (scales[g] >> 6u) << 4;
    }
    *d = moe_f16_to_f32(moe_get_u16(block)) * (float)scale;
    *m = moe_f16_to_f32(moe_get_u16(block + 2)) * (float)minimum;
    for (uint32_t i = 0; i < 32; i++) {
        q[i] = low[g / 2 * 32 + i] >> g % 2 * 4 & 15;
        if (bits == 5)
            q[i] |= (high[i] >> g & 1) << 4;
    }
}

#endif
