/*
 * AArch64 without extensions; kern_neon_dot.c has the dot products.
 */
#include "kern/kern_panel.h"

#if defined(__ARM_NEON) && defined(__aarch64__)

#include "kern/kern_neon.h"

enum { FLOAT_PART = 4, PART = 2 /* inputs computed at a time: 16 sums either way */ };

/* ---- Panels ---- */

/* Rows 4h to 4h + 3 of column `c` of a panel of the KV cache's codes. */
MOE_TEMPLATE float32x4_t cell_column(int kind, const uint8_t *panel, const float *scales,
                                     uint32_t c, int h)
{
    const bool keys = moe_cells_are_keys(kind), four = moe_cells_have_four(kind);
    uint32_t word;
    memcpy(&word, moe_cells_at(kind, panel, c) + 4 * (four && !keys ? h % 2 : h), sizeof word);
    if (four)
        word = (keys ? c % 2 : h >= 2) ? word >> 4 & 0x0f0f0f0fu : word & 0x0f0f0f0fu;
    uint8x8_t codes = vreinterpret_u8_u32(vdup_n_u32(word));
    int8x8_t numbers =
        four ? vqtbl1_s8(vld1q_s8(moe_iq4_numbers), codes) : vreinterpret_s8_u8(codes);
    int32x4_t wide = vmovl_s16(vget_low_s16(vmovl_s8(numbers)));
    float32x4_t scale = keys ? vld1q_f32(scales + c / 32 * 16 + 4 * h) : vdupq_n_f32(scales[c]);
    return vmulq_f32(vcvtq_f32_s32(wide), scale);
}

/* The same of a scaled kind's column without its scales, of F8 as f16. */
MOE_TEMPLATE float32x4_t scaled_column(int kind, const uint8_t *at, int h)
{
    if (kind == MOE_LAYOUT_NF4 || kind == MOE_LAYOUT_FP4) {
        const float *numbers = kind == MOE_LAYOUT_NF4 ? moe_nf4_numbers : moe_fp4_numbers;
        float four[4];
        for (int i = 0; i < 4; i++)
            four[i] = numbers[at[i] >> (h < 2 ? 0 : 4) & 15];
        return vld1q_f32(four);
    }
    uint32_t word;
    memcpy(&word, at, sizeof word);
    int16x4_t codes = vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word))));
    if (kind == MOE_LAYOUT_I8)
        return vcvtq_f32_s32(vmovl_s16(codes));
    uint16x4_t half = vand_u16(vreinterpret_u16_s16(vshl_n_s16(codes, 7)), vdup_n_u16(0xbfff));
    return vcvt_f32_f16(vreinterpret_f16_u16(half));
}

/* Rows 4h..4h+3 of the scales of the group from column `first` on. */
MOE_TEMPLATE float32x4_t scaled_scale(int kind, struct moe_layout layout, const uint8_t *panel,
                                      uint32_t first, int h)
{
    const float *at = (const float *)(const void *)panel + moe_scaled_place(layout, first, 0);
    float32x4_t scale = layout.kind == MOE_LAYOUT_F8_B ? vdupq_n_f32(*at) : vld1q_f32(at + 4 * h);
    return vmulq_n_f32(scale, moe_scaled_unit(kind));
}

/* Rows 4h..4h+3 of column `c` of a float panel, of scaled kinds without its scales. */
MOE_TEMPLATE float32x4_t float_column(int kind, const uint8_t *panel, const float *scales,
                                      uint32_t c, int h)
{
    if (moe_cells_any(kind))
        return cell_column(kind, panel, scales, c, h);
    const uint8_t *at = moe_float_at(kind, panel, c, 4 * h);
    if (moe_kind_is_scaled(kind))
        return scaled_column(kind, at, h);
    if (kind == MOE_LAYOUT_F32)
        return vreinterpretq_f32_u8(vld1q_u8(at));
    uint16x4_t half = vreinterpret_u16_u8(vld1_u8(at));
    if (kind == MOE_LAYOUT_F16)
        return vcvt_f32_f16(vreinterpret_f16_u16(half));
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}

/* Computes the first n inputs at x, in a tile of nt. */
MOE_TEMPLATE void float_part(int kind, int nt, int n, const uint8_t *panel,
                             struct moe_layout layout, const float *scales, uint32_t cols,
                             const float *x, float *y, uint64_t y_stride)
{
    const bool scaled = moe_kind_is_scaled(kind);
    const uint8_t *codes = scaled ? panel + moe_scaled_front(layout, cols) : panel;
    float32x4_t sum[FLOAT_PART][4], scale[4];
    MOE_UNROLL
    for (int t = 0; t < n; t++)
        for (int h = 0; h < 4; h++)
            sum[t][h] = vdupq_n_f32(0);
    for (uint32_t first = 0, end; first < cols; first = end) {
        end = moe_scaled_end(kind, layout, first, cols);
        for (int h = 0; h < 4; h++)
            scale[h] = scaled ? scaled_scale(kind, layout, panel, first, h) : vdupq_n_f32(0);
        for (uint32_t c = first; c < end; c++, x += nt)
            MOE_UNROLL
        for (int h = 0; h < 4; h++) {
            float32x4_t w = float_column(kind, codes, scales, c, h);
            w = scaled ? vmulq_f32(w, scale[h]) : w;
            MOE_UNROLL
            for (int t = 0; t < n; t++)
                sum[t][h] = vfmaq_n_f32(sum[t][h], w, x[t]);
        }
    }
    MOE_UNROLL
    for (int t = 0; t < n; t++)
        for (int h = 0; h < 4; h++)
            vst1q_f32(y + (uint64_t)t * y_stride + 4 * h, sum[t][h]);
}

MOE_TEMPLATE void float_panel(int kind, int nt, MOE_PANEL_PARAMS)
{
    const int n = nt < FLOAT_PART ? nt : FLOAT_PART;
    for (int t = 0; t < nt; t += n)
        float_part(kind, nt, n, panel, layout, tile->s, cols, tile->x + t,
                   y + (uint64_t)t * y_stride, y_stride);
}

/* Quads s and s+1 of a step, rows 4h..4h+3. Two products of at most 128 * 127 fit into 16 bits;
 * then neighbours are added into 32: lanes are (row, column pair), two registers per quarter. */
MOE_TEMPLATE void multiply_two(int kind, int nt, int n, const uint8_t *step, const uint8_t *plane,
                               int s, int h, const int8_t *q, int32x4_t pair[PART][4][2])
{
    int8x16_t w0 = quad(kind, step, plane, s, h), w1 = quad(kind, step, plane, s + 1, h);
    MOE_UNROLL
    for (int t = 0; t < n; t++) {
        int32_t word0, word1;
        memcpy(&word0, q + (s * nt + t) * 4, 4);
        memcpy(&word1, q + ((s + 1) * nt + t) * 4, 4);
        int8x16_t v0 = vreinterpretq_s8_s32(vdupq_n_s32(word0));
        int8x16_t v1 = vreinterpretq_s8_s32(vdupq_n_s32(word1));
        int16x8_t low = vmull_s8(vget_low_s8(w0), vget_low_s8(v0));
        int16x8_t high = vmull_high_s8(w0, v0);
        low = vmlal_s8(low, vget_low_s8(w1), vget_low_s8(v1));
        high = vmlal_high_s8(high, w1, v1);
        pair[t][h][0] = vpadalq_s16(pair[t][h][0], low);
        pair[t][h][1] = vpadalq_s16(pair[t][h][1], high);
    }
}

/* Sums of the columns of scale number p of a block into sum[t][h]. */
MOE_TEMPLATE void scale_sums(int kind, int nt, int n, uint32_t block, const uint8_t *codes, int p,
                             const struct moe_tile *in, int32x4_t sum[PART][4])
{
    const int quads = moe_scale_quads(kind);
    const int8_t *q = in->q;
    const uint8_t *plane = codes + block / MOE_STEP * moe_step_bytes(kind);
    int32x4_t pair[PART][4][2];
    MOE_UNROLL
    for (int i = 0; i < n * 4; i++)
        pair[i / 4][i % 4][0] = pair[i / 4][i % 4][1] = vdupq_n_s32(0);
    for (uint32_t step = 0; step < block / MOE_STEP; step++) {
        MOE_UNROLL
        for (int i = 0; i < quads * 2; i++) /* every other quad, times quarters */
            multiply_two(kind, nt, n, codes, plane, p * quads + i / 4 * 2, i % 4, q, pair);
        codes += moe_step_bytes(kind);
        plane += moe_high_step_bytes(kind);
        q += MOE_STEP * nt;
    }
    MOE_UNROLL
    for (int t = 0; t < n; t++) {
        int32x4_t start = sums_start(kind, &in->sum[t], p);
        MOE_UNROLL
        for (int h = 0; h < 4; h++)
            sum[t][h] = vaddq_s32(vpaddq_s32(pair[t][h][0], pair[t][h][1]), start);
    }
}

MOE_NEON_QUANT_BODY(PART)
MOE_PANEL_BLOCKS
MOE_PANEL_FLOATS
MOE_PANEL_QUANTS(MOE_PANEL_EACH_QUANT)

/* Quantizes the `block` values at x into quads that lie `stride` bytes apart. */
static void quantize_block(const float *x, uint32_t block, uint32_t stride, int8_t *q, float *s,
                           float *z, struct moe_sums *sum)
{
    uint32x4_t largest = vdupq_n_u32(0);
    for (uint32_t c = 0; c < block; c += 4) {
        uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(x + c));
        largest = vmaxq_u32(largest, vandq_u32(bits, vdupq_n_u32(0x7fffffff)));
    }
    uint32_t bits = vmaxvq_u32(largest);
    float inverse = moe_math_quant_inverse(bits);
    /* A block that is not finite must give zeros, not the conversion of an infinity. */
    int32x4_t finite = vdupq_n_s32(bits < 0x7f800000u ? -1 : 0), sums = vdupq_n_s32(0);
    int32x4_t half = sums;
    for (uint32_t c = 0; c < block; c += 4, q += stride) {
        half = c == block / 2 ? sums : half;
        int32x4_t code = vandq_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + c), inverse)), finite);
        sums = vaddq_s32(sums, code);
        int16x4_t words = vmovn_s32(code);
        int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
        int32_t four = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
        memcpy(q, &four, 4);
    }
    const int32_t all = vaddvq_s32(sums);
    moe_math_quant_scale(bits, all, s, z);
    *sum = moe_sums_of(all, vaddvq_s32(half), *s);
}

static void quantize(const float *x, uint32_t cols, uint32_t block, int nt, int t, int8_t *q,
                     float *s, float *z, struct moe_sums *sum)
{
    const uint32_t stride = 4 * (uint32_t)nt;
    q += 4 * t, s += t, z += t, sum += t;
    for (; cols >= block; cols -= block, x += block, q += block * nt, s += nt, z += nt, sum += nt)
        quantize_block(x, block, stride, q, s, z, sum);
    if (cols > 0) {
        float last[64] = {0};
        memcpy(last, x, cols * sizeof *x);
        quantize_block(last, block, stride, q, s, z, sum);
    }
}

/* ---- Vectors: the last few elements by the scalar forms ---- */

/* The steps of moe_math_exp; NEON's min and max let a NaN through. */
static inline float32x4_t exp4(float32x4_t x)
{
    x = vmaxq_f32(x, vdupq_n_f32(MOE_EXP_LOW));
    x = vminq_f32(x, vdupq_n_f32(MOE_EXP_HIGH));
    int32x4_t i = vcvtnq_s32_f32(vmulq_n_f32(x, MOE_EXP_LOG2E));
    float32x4_t n = vcvtq_f32_s32(i);
    float32x4_t r = vfmaq_n_f32(x, n, -MOE_EXP_LN2_HIGH);
    r = vfmaq_n_f32(r, n, -MOE_EXP_LN2_LOW);
    float32x4_t p = vdupq_n_f32(MOE_EXP_C6);
    p = vfmaq_f32(vdupq_n_f32(MOE_EXP_C5), p, r);
    p = vfmaq_f32(vdupq_n_f32(MOE_EXP_C4), p, r);
    p = vfmaq_f32(vdupq_n_f32(MOE_EXP_C3), p, r);
    p = vfmaq_f32(vdupq_n_f32(MOE_EXP_C2), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(i, 23)));
}

static void store_lanes(float lane[MOE_LANES], const float32x4_t sum[4])
{
    for (int h = 0; h < 4; h++)
        vst1q_f32(lane + 4 * h, sum[h]);
}

static float dot(const float *x, const float *y, uint32_t n)
{
    float32x4_t sum[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int h = 0; h < 4; h++)
            sum[h] = vfmaq_f32(sum[h], vld1q_f32(x + i + 4 * h), vld1q_f32(y + i + 4 * h));
    float lane[MOE_LANES];
    store_lanes(lane, sum);
    for (; i < n; i++)
        lane[i % MOE_LANES] = fmaf(x[i], y[i], lane[i % MOE_LANES]);
    return moe_math_join(lane);
}

static void rms_norm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    float r = moe_math_rms_scale(dot(x, x, n), n, eps);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(y + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), r), vld1q_f32(w + i)));
    for (; i < n; i++)
        y[i] = x[i] * r * w[i];
}

static float largest_of(const float *x, uint32_t n)
{
    float32x4_t four = vdupq_n_f32(x[0]);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        four = vmaxq_f32(four, vld1q_f32(x + i));
    float largest = vmaxvq_f32(four);
    for (; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    return largest;
}

/* Whole rounds of lanes, between the partial ones at both ends. */
static float exp_sum(float *x, uint32_t begin, uint32_t end, float *largest)
{
    float lane[MOE_LANES] = {0};
    uint32_t i = begin + (MOE_LANES - begin % MOE_LANES) % MOE_LANES;
    i = i < end ? i : end;
    *largest = largest_of(x + begin, end - begin);
    moe_math_exp_lanes(x, begin, i, *largest, lane);
    float32x4_t shift = vdupq_n_f32(*largest), sum[4];
    for (int h = 0; h < 4; h++)
        sum[h] = vld1q_f32(lane + 4 * h);
    for (; i + 16 <= end; i += 16)
        for (int h = 0; h < 4; h++) {
            float32x4_t e = exp4(vsubq_f32(vld1q_f32(x + i + 4 * h), shift));
            sum[h] = vaddq_f32(sum[h], e);
            vst1q_f32(x + i + 4 * h, e);
        }
    store_lanes(lane, sum);
    moe_math_exp_lanes(x, i, end, *largest, lane);
    return moe_math_join(lane);
}

static void softmax(float *x, uint32_t n)
{
    float largest, sum = exp_sum(x, 0, n, &largest);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(x + i, vdivq_f32(vld1q_f32(x + i), vdupq_n_f32(sum)));
    for (; i < n; i++)
        x[i] /= sum;
}

static inline float32x4_t silu4(float32x4_t v)
{
    return vdivq_f32(v, vaddq_f32(vdupq_n_f32(1.0f), exp4(vnegq_f32(v))));
}

static void swiglu(const float *gate, const float *up, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(y + i, vmulq_f32(silu4(vld1q_f32(gate + i)), vld1q_f32(up + i)));
    for (; i < n; i++)
        y[i] = moe_math_swiglu(gate[i], up[i]);
}

static void silu(const float *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(y + i, silu4(vld1q_f32(x + i)));
    for (; i < n; i++)
        y[i] = moe_math_silu(x[i]);
}

/* Chooses instead of taking the maximum, which would make zeros of both signs positive. */
static void relu(const float *x, uint32_t n, float *y)
{
    const float32x4_t zero = vdupq_n_f32(0);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t v = vld1q_f32(x + i);
        vst1q_f32(y + i, vbslq_f32(vcltq_f32(v, zero), zero, v));
    }
    for (; i < n; i++)
        y[i] = moe_math_relu(x[i]);
}

static void tanh_of(const float *x, uint32_t n, float *y)
{
    const float32x4_t one = vdupq_n_f32(1.0f);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t v = vld1q_f32(x + i);
        float32x4_t t = exp4(vmulq_n_f32(vabsq_f32(v), -2.0f));
        float32x4_t r = vdivq_f32(vsubq_f32(one, t), vaddq_f32(one, t));
        vst1q_f32(y + i, vbslq_f32(vdupq_n_u32(0x80000000u), v, r));
    }
    for (; i < n; i++)
        y[i] = moe_math_tanh(x[i]);
}

static void axpy(float a, const float *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(y + i, vfmaq_n_f32(vld1q_f32(y + i), vld1q_f32(x + i), a));
    for (; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

static void vec_add(const float *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(y + i, vaddq_f32(vld1q_f32(y + i), vld1q_f32(x + i)));
    for (; i < n; i++)
        y[i] += x[i];
}

static void mul_add(const float *a, const float *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(y + i, vfmaq_f32(vld1q_f32(y + i), vld1q_f32(a + i), vld1q_f32(x + i)));
    for (; i < n; i++)
        y[i] = fmaf(a[i], x[i], y[i]);
}

static void rope(float *x, const float *cs, uint32_t n)
{
    uint32_t half = n / 2, i = 0;
    for (; i + 4 <= half; i += 4) {
        float32x4x2_t turn = vld2q_f32(cs + 2 * i); /* cosines, sines */
        float32x4_t a = vld1q_f32(x + i), b = vld1q_f32(x + half + i);
        float32x4_t bs = vmulq_f32(b, turn.val[1]), as = vmulq_f32(a, turn.val[1]);
        vst1q_f32(x + i, vfmaq_f32(vnegq_f32(bs), a, turn.val[0]));
        vst1q_f32(x + half + i, vfmaq_f32(as, b, turn.val[0]));
    }
    for (; i < half; i++)
        moe_math_rotate(&x[i], &x[i + half], cs[2 * i], cs[2 * i + 1]);
}

static void delta_step(float *state, const float *k, const float *q, const float *v, uint32_t n,
                       const float *decay, float beta, float *y)
{
    for (int part = 0; part < 16; part += 4) {
        float32x4_t m = vdupq_n_f32(0), sum = vdupq_n_f32(0);
        for (uint32_t i = 0; i < n; i++) {
            float *at = state + (uint64_t)i * 16 + part;
            float32x4_t s = vmulq_n_f32(vld1q_f32(at), decay[i]);
            vst1q_f32(at, s);
            m = vfmaq_n_f32(m, s, k[i]);
        }
        float32x4_t d = vmulq_n_f32(vsubq_f32(vld1q_f32(v + part), m), beta);
        for (uint32_t i = 0; i < n; i++) {
            float *at = state + (uint64_t)i * 16 + part;
            float32x4_t s = vfmaq_n_f32(vld1q_f32(at), d, k[i]);
            vst1q_f32(at, s);
            sum = vfmaq_n_f32(sum, s, q[i]);
        }
        vst1q_f32(y + part, sum);
    }
}

static void scan_step(float *state, const float *k, const float *q, const float *v, uint32_t n,
                      float decay, float *y)
{
    for (int part = 0; part < 16; part += 4) {
        float32x4_t value = vld1q_f32(v + part), sum = vdupq_n_f32(0);
        for (uint32_t i = 0; i < n; i++) {
            float *at = state + (uint64_t)i * 16 + part;
            float32x4_t s = vfmaq_n_f32(vmulq_n_f32(vld1q_f32(at), decay), value, k[i]);
            vst1q_f32(at, s);
            sum = vfmaq_n_f32(sum, s, q[i]);
        }
        vst1q_f32(y + part, sum);
    }
}

static void select_step(float *state, const float *rates, const float *steps, const float *k,
                        const float *q, const float *v, uint32_t n, float *y)
{
    for (int part = 0; part < 16; part += 4) {
        float32x4_t value = vld1q_f32(v + part), sum = vdupq_n_f32(0);
        float32x4_t step = vnegq_f32(vld1q_f32(steps + part));
        for (uint32_t i = 0; i < n; i++) {
            float *at = state + (uint64_t)i * 16 + part;
            float32x4_t rate = vld1q_f32(rates + (uint64_t)i * 16 + part);
            float32x4_t kept = vmulq_f32(vld1q_f32(at), exp4(vmulq_f32(rate, step)));
            float32x4_t s = vfmaq_n_f32(kept, value, k[i]);
            vst1q_f32(at, s);
            sum = vfmaq_n_f32(sum, s, q[i]);
        }
        vst1q_f32(y + part, sum);
    }
}

static void f32_to_f16(const float *x, uint32_t n, uint16_t *y)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    for (; i < n; i++)
        y[i] = moe_f32_to_f16(x[i]);
}

static void f16_to_f32(const uint16_t *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(y + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x + i))));
    for (; i < n; i++)
        y[i] = moe_f16_to_f32(x[i]);
}

void moe_kern_fill_neon(struct moe_kern *kern)
{
    fill_float_panels(kern);
    fill_quant_panels(kern);
    kern->quantize = quantize;
    kern->rms_norm = rms_norm;
    kern->exp_sum = exp_sum;
    kern->softmax = softmax;
    kern->swiglu = swiglu;
    kern->silu = silu;
    kern->relu = relu;
    kern->tanh = tanh_of;
    kern->axpy = axpy;
    kern->add = vec_add;
    kern->mul_add = mul_add;
    kern->rope = rope;
    kern->dot = dot;
    kern->delta_step = delta_step;
    kern->scan_step = scan_step;
    kern->select_step = select_step;
    kern->f32_to_f16 = f32_to_f16;
    kern->f16_to_f32 = f16_to_f32;
}

#else

void moe_kern_fill_neon(struct moe_kern *kern)
{
    (void)kern;
}

#endif
