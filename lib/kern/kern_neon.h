/*
 * Shared by the two AArch64 variants: taking codes out of units, and scaling integer sums. A
 * panel's 16 rows are four registers ("quarters") of 4 rows.
 */
#ifndef MOE_KERN_KERN_NEON_H
#define MOE_KERN_KERN_NEON_H

#include <arm_neon.h>

#include "kern/kern_math.h"
#include "kern/kern_panel.h"

/* Rows 4h..4h+3 of quad `s` (columns 4s..4s+3) of a step, a byte per code (for MXFP4 its v):
 * signed, and for Q8 minus 128, since the multiplications here are of signed bytes. */
MOE_TEMPLATE int8x16_t quad(int kind, const uint8_t *step, const uint8_t *plane, int s, int h)
{
    const uint8_t *quarter = step + 16 * h;
    if (kind == MOE_LAYOUT_Q8)
        return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(quarter + s * MOE_UNIT), vdupq_n_u8(128)));
    if (kind == MOE_LAYOUT_Q4 || kind == MOE_LAYOUT_MXFP4) {
        uint8x16_t two = vld1q_u8(quarter + s / 2 * MOE_UNIT);
        uint8x16_t codes = s % 2 ? vshlq_u8(two, vdupq_n_s8(-4)) : vandq_u8(two, vdupq_n_u8(15));
        return kind == MOE_LAYOUT_Q4 ? vreinterpretq_s8_u8(codes)
                                     : vqtbl1q_s8(vld1q_s8(moe_mxfp4_twice), codes);
    }
    /* A negative count shifts to the right; constants become immediate shifts where they exist. */
    uint8x16_t four = vld1q_u8(quarter + s / 4 * MOE_UNIT);
    uint8x16_t low = vandq_u8(vshlq_u8(four, vdupq_n_s8((int8_t)(-2 * (s % 4)))), vdupq_n_u8(3));
    if (kind == MOE_LAYOUT_Q2)
        return vreinterpretq_s8_u8(low);
    uint8x16_t high = vshlq_u8(vld1q_u8(plane + 16 * h), vdupq_n_s8((int8_t)(2 - s)));
    return vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(high, vdupq_n_u8(4))));
}

/* The start of a block's sums, when its activations add up to `total`: corrects for quad()'s
 * offset. */
MOE_TEMPLATE int32x4_t block_start(int kind, int32_t total)
{
    return vdupq_n_s32(kind == MOE_LAYOUT_Q8 ? 128 * total : 0);
}

MOE_TEMPLATE float32x4_t half_scales(const uint8_t *f16)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(f16)));
}

/* moe_mxfp4_scale of the exponents of rows 4h..4h+3. */
MOE_TEMPLATE float32x4_t mxfp4_scales(const uint8_t *e, int h)
{
    uint16x8_t half = vmovl_u8(vld1_u8(e + h / 2 * 8));
    uint32x4_t bits = vmovl_u16(h % 2 ? vget_high_u16(half) : vget_low_u16(half));
    bits = vmaxq_u32(vshlq_n_u32(bits, 23), vdupq_n_u32(1u << 22));
    return vmulq_n_f32(vreinterpretq_f32_u32(bits), 0.5f);
}

/* Adds the products of block b of a record to out, rows 4h..4h+3. */
MOE_TEMPLATE float32x4_t scaled(int kind, float32x4_t out, const uint8_t *head, uint32_t b, int h,
                                int32x4_t sum, float s, float z)
{
    if (kind == MOE_LAYOUT_MXFP4) {
        float32x4_t d = mxfp4_scales(head + b * MOE_PANEL_ROWS, h);
        return vfmaq_f32(out, vmulq_n_f32(d, s), vcvtq_f32_s32(sum));
    }
    out = vfmaq_f32(out, vmulq_n_f32(half_scales(head + 8 * h), s), vcvtq_f32_s32(sum));
    return vfmaq_n_f32(out, half_scales(head + 2 * MOE_PANEL_ROWS + 8 * h), z);
}

/*
 * Computes a quantized panel for the first n inputs at `tile`, a tile of nt, with the variant's
 * block_sums(kind, nt, n, block, codes, q, totals, sum[][4]).
 */
#define MOE_NEON_QUANT_BODY(PART)                                                                  \
    MOE_TEMPLATE void quant_part(int kind, int nt, int n, uint32_t block, MOE_PANEL_PARAMS)        \
    {                                                                                              \
        struct moe_tile in = *tile;                                                                \
        float32x4_t out[PART][4];                                                                  \
        for (int t = 0; t < n; t++)                                                                \
            for (int h = 0; h < 4; h++)                                                            \
                out[t][h] = vdupq_n_f32(0);                                                        \
        for (uint32_t first = 0; first < cols;) {                                                  \
            struct moe_record rec =                                                                \
                moe_record_next(kind, layout.group, block, cols, &panel, &first);                  \
            for (uint32_t b = 0; b < rec.blocks; b++) {                                            \
                int32x4_t sum[PART][4];                                                            \
                block_sums(kind, nt, n, block, rec.codes, in.q, in.sum, sum);                      \
                for (int t = 0; t < n; t++)                                                        \
                    for (int h = 0; h < 4; h++)                                                    \
                        out[t][h] =                                                                \
                            scaled(kind, out[t][h], rec.head, b, h, sum[t][h], in.s[t], in.z[t]);  \
                rec.codes += moe_block_bytes(kind, block);                                         \
                moe_tile_step(&in, nt, block);                                                     \
            }                                                                                      \
        }                                                                                          \
        for (int t = 0; t < n; t++)                                                                \
            for (int h = 0; h < 4; h++)                                                            \
                vst1q_f32(y + (uint64_t)t * y_stride + 4 * h, out[t][h]);                          \
    }                                                                                              \
    MOE_TEMPLATE void quant_body(int kind, int nt, uint32_t block, MOE_PANEL_PARAMS)               \
    {                                                                                              \
        const int n = nt < PART ? nt : PART;                                                       \
        struct moe_tile part = *tile;                                                              \
        for (int t = 0; t < nt; t += n, y += (uint64_t)n * y_stride) {                             \
            quant_part(kind, nt, n, block, panel, layout, cols, &part, y, y_stride);               \
            part.q += 4 * n;                                                                       \
            part.s += n;                                                                           \
            part.z += n;                                                                           \
            part.sum += n;                                                                         \
        }                                                                                          \
    }

#endif
