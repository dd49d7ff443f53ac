/*
 * What the two AArch64 variants share: taking codes out of units, and scaling integer sums. A
 * panel's 16 rows are four registers ("quarters") of 4 rows.
 */
#ifndef MOE_KERN_KERN_NEON_H
#define MOE_KERN_KERN_NEON_H

#include <arm_neon.h>

#include "kern/kern_math.h"
#include "kern/kern_panel.h"

/* `bits` bits from bit `from` of each byte on, moved to bit `to` of a byte. A negative count shifts
 * to the right; constants become immediate shifts where they exist. */
MOE_TEMPLATE uint8x16_t take_bits(uint8x16_t bytes, int bits, int from, int to)
{
    uint8x16_t moved = vshlq_u8(bytes, vdupq_n_s8((int8_t)(to - from)));
    return vandq_u8(moved, vdupq_n_u8((uint8_t)(((1 << bits) - 1) << to)));
}

/* Rows 4h..4h+3 of quad `s` (columns 4s..4s+3) of a step: signed bytes, since the multiplications
 * here are of such, numbers from a table or codes; these less 128 if they have 8 bits. */
MOE_TEMPLATE int8x16_t quad(int kind, const uint8_t *step, const uint8_t *plane, int s, int h)
{
    const int bits = moe_code_plane(kind), n = 8 / bits; /* quads in a unit */
    const int more = moe_code_high_plane(kind);
    uint8x16_t codes = vld1q_u8(step + 16 * h + s / n * MOE_UNIT);
    if (bits == 8)
        return vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(128)));
    codes = take_bits(codes, bits, s % n * bits, 0);
    if (more) {
        const int columns = 8 / more;
        uint8x16_t high = vld1q_u8(plane + 16 * h + s / columns * MOE_UNIT);
        codes = vorrq_u8(codes, take_bits(high, more, s % columns * more, moe_code_high_at(kind)));
    }
    const int8_t *numbers = moe_kind_numbers(kind);
    if (!numbers)
        return vreinterpretq_s8_u8(codes);
    if (moe_kind_is_iq5k(kind))
        return vqtbl2q_s8(vld1q_s8_x2(numbers), codes);
    if (kind == MOE_LAYOUT_IQ6_K)
        return vqtbl4q_s8(vld1q_s8_x4(numbers), codes);
    return vqtbl1q_s8(vld1q_s8(numbers), codes);
}

/* Where the sums of scale number p of a block start: corrects for what quad() adds to numbers. */
MOE_TEMPLATE int32x4_t sums_start(int kind, const struct moe_sums *sums, int p)
{
    const int offset = moe_kind_zero(kind) - (moe_code_plane(kind) == 8 ? 128 : 0);
    return vdupq_n_s32(offset ? moe_scale_less(kind, sums, p, offset) : 0);
}

MOE_TEMPLATE float32x4_t half_scales(const uint8_t *f16)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(f16)));
}

/* Bytes 4h..4h+3 of the 16 at `bytes`. */
MOE_TEMPLATE uint32x4_t four_bytes(const uint8_t *bytes, int h)
{
    uint16x8_t half = vmovl_u8(vld1_u8(bytes + h / 2 * 8));
    return vmovl_u16(h % 2 ? vget_high_u16(half) : vget_low_u16(half));
}

/* moe_kind_packed_number of rows 4h..4h+3. */
MOE_TEMPLATE uint32x4_t packed_number(int kind, const uint8_t *numbers, uint32_t i, int h)
{
    const int more = moe_kind_packed_high(kind);
    uint32x4_t low = four_bytes(moe_packed_low(numbers, i), h);
    low = vandq_u32(vshlq_u32(low, vdupq_n_s32(-(int)(i % 2 * 4))), vdupq_n_u32(15));
    if (more) {
        uint32x4_t high = four_bytes(moe_packed_more(kind, numbers, i), h);
        high = vandq_u32(vshlq_u32(high, vdupq_n_s32(-moe_packed_more_at(kind, i))),
                         vdupq_n_u32((1u << more) - 1));
        low = vorrq_u32(low, vshlq_n_u32(high, 4));
    }
    return low;
}

/* e of a scale, of rows 4h..4h+3, where it is in one(n). */
MOE_TEMPLATE uint32x4_t shift_bit(int kind, const uint8_t *numbers, uint32_t i, int h)
{
    const uint32_t at = (uint32_t)moe_kind_shifts_at(kind) + i / 8;
    uint32x4_t bits = four_bytes(numbers + at * MOE_PANEL_ROWS, h);
    return vandq_u32(vshlq_u32(bits, vdupq_n_s32(-(int)(i % 8))), vdupq_n_u32(1));
}

struct row_scales {
    float32x4_t d, m;
};

/* A scale of rows 4h..4h+3: moe_kind_scale. */
MOE_TEMPLATE struct row_scales read_scale(int kind, struct moe_place at, int h)
{
    const uint8_t *numbers = moe_place_numbers(kind, at);
    const bool k_min = moe_kind_span(kind) && moe_kind_has_min(kind);
    const int step = moe_kind_scale_step(kind), zero = moe_kind_scale_zero(kind);
    struct row_scales scale = {vdupq_n_f32(0), vdupq_n_f32(0)};
    int32x4_t s;
    uint32x4_t t = vdupq_n_u32(0);
    if (moe_kind_is_e2m1(kind)) {
        uint32x4_t bits = four_bytes(at.head + at.i * MOE_PANEL_ROWS, h);
        const bool mx = kind == MOE_LAYOUT_MXFP4;
        bits = mx ? vmaxq_u32(vshlq_n_u32(bits, 23), vdupq_n_u32(1u << 22)) : vshlq_n_u32(bits, 20);
        scale.d = vmulq_n_f32(vreinterpretq_f32_u32(bits), mx ? 0.5f : 0x1p119f);
        return scale;
    }
    scale.d = moe_kind_has_d(kind) ? half_scales(at.head + 8 * h) : vdupq_n_f32(1);
    if (moe_kind_has_min(kind))
        scale.m = half_scales(at.head + 2 * MOE_PANEL_ROWS + 8 * h);
    if (moe_kind_shift(kind) && !moe_kind_scale_has_e(kind))
        t = shift_bit(kind, numbers, at.i, h);
    if (moe_kind_packed(kind)) {
        s = vreinterpretq_s32_u32(packed_number(kind, numbers, at.i, h));
        if (k_min)
            t = packed_number(kind, numbers, 8 + at.i, h);
    } else if (kind == MOE_LAYOUT_IQ1_KT) {
        t = vandq_u32(four_bytes(numbers + at.i * MOE_PANEL_ROWS, h), vdupq_n_u32(15));
        s = vreinterpretq_s32_u32(t);
    } else if (kind == MOE_LAYOUT_IQ4_KT) {
        for (int j = 3; j >= 0; j--) {
            uint8x16_t word = vld1q_u8(at.codes + j * MOE_UNIT + 16 * h);
            t = vsliq_n_u32(vshrq_n_u32(vreinterpretq_u32_u8(word), 30), t, 2);
        }
        s = vreinterpretq_s32_u32(vshrq_n_u32(t, 1));
    } else if (moe_kind_scale_unit(kind) > 0) {
        uint8_t bytes[MOE_PANEL_ROWS];
        moe_grid_scales(kind, at, 0, MOE_PANEL_ROWS, bytes);
        s = vreinterpretq_s32_u32(four_bytes(bytes, h));
        s = vaddq_s32(vaddq_s32(s, s), vdupq_n_s32(1));
        scale.d = vmulq_n_f32(scale.d, moe_kind_scale_unit(kind));
    } else if (moe_kind_scale_has_e(kind)) {
        t = four_bytes(numbers + at.i * MOE_PANEL_ROWS, h);
        s = vreinterpretq_s32_u32(vshrq_n_u32(t, 1));
        t = vandq_u32(t, vdupq_n_u32(1));
    } else if (kind == MOE_LAYOUT_Q6_K || kind == MOE_LAYOUT_IQ6_K) {
        s = vreinterpretq_s32_u32(four_bytes(numbers + at.i * MOE_PANEL_ROWS, h));
        s = vshrq_n_s32(vshlq_n_s32(s, 24), 24);
    } else if (kind == MOE_LAYOUT_Q2_K) {
        t = four_bytes(numbers + at.i * MOE_PANEL_ROWS, h);
        s = vreinterpretq_s32_u32(vandq_u32(t, vdupq_n_u32(15)));
        t = vshrq_n_u32(t, 4);
    } else {
        return scale;
    }
    if (kind == MOE_LAYOUT_IQ1_KT ||
        kind == MOE_LAYOUT_IQ2_KT) { /* a table's, of the lowest bytes */
        s = vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(moe_iq4_numbers), vreinterpretq_u8_s32(s)));
        s = vshrq_n_s32(vshlq_n_s32(s, 24), 24);
    }
    if (step == 2)
        s = vaddq_s32(s, s);
    if (zero)
        s = vsubq_s32(s, vdupq_n_s32(zero));
    scale.d = vmulq_f32(scale.d, vcvtq_f32_s32(s));
    if (moe_kind_shift(kind))
        scale.m = vmulq_f32(scale.d, vcvtq_f32_u32(vmulq_n_u32(t, (uint32_t)moe_kind_shift(kind))));
    else if (k_min)
        scale.m = vnegq_f32(vmulq_f32(scale.m, vcvtq_f32_u32(t)));
    return scale;
}

/* Makes d and m of the head's d and its zero points, of rows 4h..4h+3: moe_zero_scales. */
MOE_TEMPLATE struct row_scales read_zeros(const uint8_t *head, int h, struct row_scales scale)
{
    const uint8_t *words = head + 2 * MOE_PANEL_ROWS + 8 * h;
    uint32x4_t word = vmovl_u16(vreinterpret_u16_u8(vld1_u8(words)));
    uint32x4_t power = vsubq_u32(vdupq_n_u32(127), vshrq_n_u32(word, 9));
    float32x4_t zero = vcvtq_f32_u32(vandq_u32(word, vdupq_n_u32(511)));
    scale.d = vmulq_f32(scale.d, vreinterpretq_f32_u32(vshlq_n_u32(power, 23)));
    scale.m = vnegq_f32(vmulq_f32(scale.d, zero));
    return scale;
}

/* Adds the products of a scale to out, rows 4h..4h+3. */
MOE_TEMPLATE float32x4_t scaled(int kind, float32x4_t out, struct row_scales scale, int32x4_t sum,
                                float s, float z)
{
    out = vfmaq_f32(out, vmulq_n_f32(scale.d, s), vcvtq_f32_s32(sum));
    return moe_kind_has_offset(kind) ? vfmaq_n_f32(out, scale.m, z) : out;
}

/*
 * A quantized panel for the first n inputs of what `tile` points at, in a tile of nt, with the
 * variant's scale_sums(kind, nt, n, block, codes, p, in, sum[][4]).
 */
#define MOE_NEON_QUANT_BODY(PART)                                                                  \
    MOE_TEMPLATE void quant_part(int kind, int nt, int n, uint32_t block, MOE_PANEL_PARAMS)        \
    {                                                                                              \
        const float *front = (const float *)panel;                                                 \
        const bool zeros = !moe_kind_span(kind) && moe_kind_has_zeros(layout.kind);                \
        struct moe_tile in = *tile;                                                                \
        float32x4_t out[PART][4];                                                                  \
        struct moe_code_units units[2];                                                            \
        panel += moe_kind_front(layout.kind);                                                      \
        for (int t = 0; t < n; t++)                                                                \
            for (int h = 0; h < 4; h++)                                                            \
                out[t][h] = vdupq_n_f32(0);                                                        \
        for (uint32_t first = 0; first < cols;) {                                                  \
            struct moe_record rec =                                                                \
                moe_record_next(kind, layout.group, block, cols, &panel, &first);                  \
            for (uint32_t b = 0; b < rec.blocks; b++) {                                            \
                const uint8_t *codes = moe_record_codes(kind, &rec, b, units);                     \
                for (int p = 0; p < moe_kind_scales(kind); p++) {                                  \
                    const struct moe_place at = moe_record_scale(kind, &rec, b, (uint32_t)p);      \
                    int32x4_t sum[PART][4];                                                        \
                    scale_sums(kind, nt, n, block, codes, p, &in, sum);                            \
                    for (int h = 0; h < 4; h++) {                                                  \
                        struct row_scales scale = read_scale(kind, at, h);                         \
                        if (zeros)                                                                 \
                            scale = read_zeros(rec.head, h, scale);                                \
                        for (int t = 0; t < n; t++)                                                \
                            out[t][h] = scaled(kind, out[t][h], scale, sum[t][h], in.s[t],         \
                                               moe_scale_z(kind, &in, t, p));                      \
                    }                                                                              \
                }                                                                                  \
                rec.codes += moe_kind_block_bytes(kind, block);                                    \
                moe_tile_step(&in, nt, block);                                                     \
            }                                                                                      \
        }                                                                                          \
        for (int t = 0; t < n; t++)                                                                \
            for (int h = 0; h < 4; h++) {                                                          \
                if (moe_kind_may_have_front(kind) && moe_kind_front(layout.kind))                  \
                    out[t][h] = vmulq_f32(out[t][h], vld1q_f32(front + 4 * h));                    \
                vst1q_f32(y + (uint64_t)t * y_stride + 4 * h, out[t][h]);                          \
            }                                                                                      \
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
