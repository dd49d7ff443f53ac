#include <math.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "quant/ggml.h"
#include "quant/ggml_bits.h"

/* Sets d and m, rounded to f16 where they must be. */
static enum moe_ggml_carry set_scales(struct moe_group_codes *out, float d, float m)
{
    uint16_t d16 = moe_f32_to_f16(d), m16 = moe_f32_to_f16(m);
    float d_back = moe_f16_to_f32(d16), m_back = moe_f16_to_f32(m16);
    if (!isfinite(d_back) || !isfinite(m_back))
        return MOE_GGML_CARRY_NO;
    out->d = d16;
    out->m = m16;
    return d_back == d && m_back == m ? MOE_GGML_CARRY_EXACT : MOE_GGML_CARRY_ROUNDED;
}

/* Signed values, shifted up to be codes. */
static enum moe_ggml_carry set_signed(struct moe_group_codes *out, uint8_t *codes,
                                      const int8_t *values, float d)
{
    for (int i = 0; i < MOE_GGML_GROUP; i++)
        codes[i] = (uint8_t)(values[i] + 128);
    return set_scales(out, d, -128 * d);
}

static enum moe_ggml_carry set_table(struct moe_group_codes *out, uint8_t *codes,
                                     const uint8_t *nibbles, const int8_t table[16], float d)
{
    int8_t values[MOE_GGML_GROUP];
    uint8_t q[MOE_GGML_GROUP];
    ggml_nibbles(nibbles, q);
    for (int i = 0; i < MOE_GGML_GROUP; i++)
        values[i] = table[q[i]];
    return set_signed(out, codes, values, d);
}

enum moe_ggml_carry moe_ggml_group(const struct moe_ggml_type *type, const uint8_t *block,
                                   uint32_t g, uint8_t codes[MOE_GGML_GROUP],
                                   struct moe_group_codes *out)
{
    float d = moe_f16_to_f32(moe_get_u16(block)), m;
    enum moe_ggml_carry carry;
    out->codes = codes;
    switch (type->number) {
    case MOE_GGML_Q8_0:
        return set_signed(out, codes, (const int8_t *)block + 2, d);
    case MOE_GGML_IQ4_NL:
        return set_table(out, codes, block + 2, ggml_iq4_nl_values, d);
    case MOE_GGML_MXFP4: /* an exponent below f16's would lose everything */
        carry = set_table(out, codes, block + 1, moe_mxfp4_twice, moe_mxfp4_scale(block[0]));
        return carry == MOE_GGML_CARRY_EXACT ? carry : MOE_GGML_CARRY_NO;
    case MOE_GGML_Q4_0:
        ggml_nibbles(block + 2, codes);
        return set_scales(out, d, -8 * d);
    case MOE_GGML_Q5_0:
        ggml_five_bits(block + 2, codes);
        return set_scales(out, d, -16 * d);
    case MOE_GGML_Q4_1:
        ggml_nibbles(block + 4, codes);
        return set_scales(out, d, moe_f16_to_f32(moe_get_u16(block + 2)));
    case MOE_GGML_Q5_1:
        ggml_five_bits(block + 4, codes);
        return set_scales(out, d, moe_f16_to_f32(moe_get_u16(block + 2)));
    case MOE_GGML_Q4_K:
    case MOE_GGML_Q5_K:
        ggml_k_group(block, type->number == MOE_GGML_Q5_K ? 5 : 4, g, codes, &d, &m);
        return set_scales(out, d, -m);
    default:
        return MOE_GGML_CARRY_NO;
    }
}

void moe_ggml_mxfp4(const uint8_t *block, uint8_t codes[MOE_GGML_GROUP], uint8_t *exponent)
{
    *exponent = block[0];
    ggml_nibbles(block + 1, codes);
}

void moe_ggml_mxfp4_from_pairs(const uint8_t pairs[16], uint8_t exponent, uint8_t *block)
{
    block[0] = exponent;
    for (int i = 0; i < 16; i++) {
        int low = pairs[i / 2] >> i % 2 * 4 & 15, high = pairs[8 + i / 2] >> i % 2 * 4 & 15;
        block[1 + i] = (uint8_t)(low | high << 4);
    }
}
