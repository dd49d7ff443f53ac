/*
 * What the two AArch64 variants share: taking codes out of units, and scaling integer sums. A
 * panel's 16 rows are four registers ("quarters") of 4 rows.
 */
#ifndef MOE_KERN_KERN_NEON_H
#define MOE_KERN_KERN_NEON_H

#include <arm_neon.h>

#include "kern/kern_math.h"
#include "kern/kern_panel.h"

/* Rows 4h..4h+3 of quad `s` (columns 4s..4s+3) of a step, a byte per code: signed, and for Q8 less
 * 128, since the multiplications here are of signed bytes. */
MOE_TEMPLATE int8x16_t quad(int kind, const uint8_t *step, const uint8_t *plane, int s, int h)
{
    const uint8_t *quarter = step + 16 * h;
    if (kind == MOE_LAYOUT_Q8)
        return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(quarter + s * MOE_UNIT), vdupq_n_u8(128)));
    if (kind == MOE_LAYOUT_Q4) {
        uint8x16_t two = vld1q_u8(quarter + s / 2 * MOE_UNIT);
        uint8x16_t codes = s % 2 ? vshlq_u8(two, vdupq_n_s8(-4)) : vandq_u8(two, vdupq_n_u8(15));
        return vreinterpretq_s8_u8(codes);
    }
    /* A negative count shifts to the right; constants become immediate shifts where they exist. */
    uint8x16_t four = vld1q_u8(quarter + s / 4 * MOE_UNIT);
    uint8x16_t low = vandq_u8(vshlq_u8(four, vdupq_n_s8((int8_t)(-2 * (s % 4)))), vdupq_n_u8(3));
    if (kind == MOE_LAYOUT_Q2)
        return vreinterpretq_s8_u8(low);
    uint8x16_t high = vshlq_u8(vld1q_u8(plane + 16 * h), vdupq_n_s8((int8_t)(2 - s)));
    return vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(high, vdupq_n_u8(4))));
}

/* 128 times the sum of the `block` activations of one input of a tile of nt: what quad() took off
 * Q8 codes. 0 for the other kinds. */
MOE_TEMPLATE int32_t taken_off(int kind, int nt, const int8_t *q, uint32_t block)
{
    int32_t sum = 0;
    if (kind == MOE_LAYOUT_Q8)
        for (uint32_t i = 0; i < block / 4; i++, q += 4 * nt)
            sum += q[0] + q[1] + q[2] + q[3];
    return 128 * sum;
}

/* Adds d * s * sum + m * z to out, rows 4h..4h+3. */
MOE_TEMPLATE float32x4_t scaled(float32x4_t out, const uint8_t *head, int h, int32x4_t sum, float s,
                                float z)
{
    float32x4_t d = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(head + 8 * h)));
    float32x4_t m = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(head + 2 * MOE_PANEL_ROWS + 8 * h)));
    out = vfmaq_f32(out, vmulq_n_f32(d, s), vcvtq_f32_s32(sum));
    return vfmaq_n_f32(out, m, z);
}

/*
 * A quantized panel for the inputs t0..t0+n-1 of a tile of nt, with the variant's
 * block_sums(kind, nt, n, codes, steps, q, sum[][4]).
 */
#define MOE_NEON_QUANT_PANEL(PART)                                                                 \
    MOE_TEMPLATE void quant_part(int kind, int nt, int n, int t0, MOE_PANEL_PARAMS)                \
    {                                                                                              \
        const uint32_t block = moe_layout_block(layout), steps = block / MOE_STEP;                 \
        const uint32_t block_bytes = (uint32_t)moe_layout_block_bytes(layout);                     \
        const int8_t *q = tile->q + 4 * t0;                                                        \
        const float *s = tile->s + t0, *z = tile->z + t0;                                          \
        float32x4_t out[PART][4];                                                                  \
        for (int t = 0; t < n; t++)                                                                \
            for (int h = 0; h < 4; h++)                                                            \
                out[t][h] = vdupq_n_f32(0);                                                        \
        for (uint32_t first = 0; first < cols;) {                                                  \
            struct moe_record rec =                                                                \
                moe_record_next(&panel, &first, layout, cols, block, block_bytes);                 \
            for (uint32_t b = 0; b < rec.blocks; b++) {                                            \
                int32x4_t sum[PART][4];                                                            \
                block_sums(kind, nt, n, rec.codes, steps, q, sum);                                 \
                for (int t = 0; t < n; t++)                                                        \
                    for (int h = 0; h < 4; h++)                                                    \
                        out[t][h] = scaled(out[t][h], rec.head, h, sum[t][h], s[t], z[t]);         \
                rec.codes += block_bytes;                                                          \
                q += block * (uint32_t)nt;                                                         \
                s += nt;                                                                           \
                z += nt;                                                                           \
            }                                                                                      \
        }                                                                                          \
        for (int t = 0; t < n; t++)                                                                \
            for (int h = 0; h < 4; h++)                                                            \
                vst1q_f32(y + (uint64_t)(t0 + t) * y_stride + 4 * h, out[t][h]);                   \
    }                                                                                              \
    MOE_TEMPLATE void quant_panel(int kind, int nt, MOE_PANEL_PARAMS)                              \
    {                                                                                              \
        const int n = nt < PART ? nt : PART;                                                       \
        for (int t = 0; t < nt; t += n)                                                            \
            quant_part(kind, nt, n, t, MOE_PANEL_ARGS);                                            \
    }

#endif
