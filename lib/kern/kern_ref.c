/* The reference: the meaning of every slot of the kernel table, in plain sequential C. Written to
 * be read, not to be fast. */
#include "base/bytes.h"
#include "kern/kern_math.h"
#include "kern/kern_panel.h"

float moe_expf(float x)
{
    return moe_math_exp(x);
}

/* ---- Panels ---- */

static float cell_weight(int kind, const uint8_t *panel, const float *scales, uint32_t c, int r)
{
    const uint8_t *codes = moe_cells_at(kind, panel, c);
    const bool keys = moe_cells_are_keys(kind), four = moe_cells_have_four(kind);
    bool high = keys ? c % 2 : r >= 8;
    int number = !four  ? (int8_t)codes[r]
                 : high ? moe_iq4_numbers[codes[keys ? r : r - 8] >> 4]
                        : moe_iq4_numbers[codes[r] & 15];
    return (float)number * (keys ? scales[c / 32 * MOE_PANEL_ROWS + (uint32_t)r] : scales[c]);
}

static float scaled_weight(struct moe_layout layout, const uint8_t *panel, uint32_t cols,
                           uint32_t c, uint32_t r)
{
    const uint8_t *codes = panel + moe_scaled_front(layout, cols);
    return moe_scaled_number(layout.kind, moe_scaled_code(layout.kind, codes, c, r)) *
           moe_bits_f32(moe_get_u32(panel + 4 * moe_scaled_place(layout, c, r)));
}

static float float_weight(int kind, struct moe_layout layout, const uint8_t *panel, uint32_t cols,
                          const float *scales, uint32_t c, int r)
{
    if (moe_cells_any(kind))
        return cell_weight(kind, panel, scales, c, r);
    if (moe_kind_is_scaled(kind))
        return scaled_weight(layout, panel, cols, c, (uint32_t)r);
    uint64_t i = (uint64_t)c * MOE_PANEL_ROWS + (uint32_t)r;
    if (kind == MOE_LAYOUT_F32)
        return moe_bits_f32(moe_get_u32(panel + 4 * i));
    uint16_t half = moe_get_u16(panel + 2 * i);
    return kind == MOE_LAYOUT_F16 ? moe_f16_to_f32(half) : moe_bf16_to_f32(half);
}

MOE_TEMPLATE void float_panel(int kind, int nt, MOE_PANEL_PARAMS)
{
    for (int t = 0; t < nt; t++)
        for (int r = 0; r < MOE_PANEL_ROWS; r++) {
            float sum = 0;
            for (uint32_t c = 0; c < cols; c++)
                sum = fmaf(float_weight(kind, layout, panel, cols, tile->s, c, r),
                           tile->x[(uint64_t)c * nt + t], sum);
            y[t * y_stride + r] = sum;
        }
}

/* Sum of v * xq over `columns` columns from `first` on, of the block whose scale is in `at`;
 * `q` points at the block's part of the byte tile. */
static int32_t block_sum(int kind, struct moe_place at, uint32_t block, uint32_t first,
                         uint32_t columns, int r, const int8_t *q, int nt, int t)
{
    uint32_t b = at.i / (uint32_t)moe_kind_scales(kind);
    int32_t sum = 0;
    for (uint32_t c = first; c < first + columns; c++)
        sum += moe_layout_number(kind,
                                 moe_kind_code(kind, at.head, b, at.codes, block, (uint32_t)r, c)) *
               q[(c / 4 * (uint32_t)nt + (uint32_t)t) * 4 + c % 4];
    return sum;
}

static float quant_row(int kind, int nt, int t, int r, const uint8_t *panel,
                       struct moe_layout layout, uint32_t cols, const struct moe_tile *tile)
{
    const uint32_t block = moe_layout_block(layout), scales = (uint32_t)moe_kind_scales(kind);
    const uint32_t columns = block / scales;
    const uint8_t *front = panel;
    struct moe_tile in = *tile;
    float y = 0;
    panel += moe_kind_front(layout.kind);
    for (uint32_t first = 0; first < cols;) {
        struct moe_record rec = moe_record_next(kind, layout.group, block, cols, &panel, &first);
        for (uint32_t b = 0; b < rec.blocks; b++) {
            for (uint32_t p = 0; p < scales; p++) {
                struct moe_place place = moe_record_scale(kind, &rec, b, p);
                struct moe_scales w =
                    moe_kind_scale(layout.kind, place.head, place.codes, (int)place.i, (uint32_t)r);
                int32_t sum = block_sum(kind, place, block, p * columns, columns, r, in.q, nt, t);
                y = fmaf(w.d * in.s[t], (float)sum, y);
                if (moe_kind_has_offset(kind))
                    y = fmaf(w.m, moe_scale_z(kind, &in, t, (int)p), y);
            }
            rec.codes += moe_kind_block_bytes(kind, block);
            moe_tile_step(&in, nt, block);
        }
    }
    return moe_kind_front(layout.kind) ? y * moe_bits_f32(moe_get_u32(front + 4 * r)) : y;
}

MOE_TEMPLATE void quant_panel(int kind, int nt, MOE_PANEL_PARAMS)
{
    for (int t = 0; t < nt; t++)
        for (int r = 0; r < MOE_PANEL_ROWS; r++)
            y[t * y_stride + r] = quant_row(kind, nt, t, r, panel, layout, cols, tile);
}

MOE_PANEL_FLOATS
MOE_PANEL_QUANTS(MOE_PANEL_EACH_QUANT)

static void quantize(const float *x, uint32_t cols, uint32_t block, int nt, int t, int8_t *q,
                     float *s, float *z, struct moe_sums *sum)
{
    for (uint32_t b = 0; b * block < cols; b++) {
        uint32_t first = b * block, n = cols - first < block ? cols - first : block;
        /* As unsigned integers, magnitudes are in order, with infinity and NaN above all others. */
        uint32_t largest = 0;
        for (uint32_t c = 0; c < n; c++) {
            uint32_t magnitude = moe_f32_bits(x[first + c]) & 0x7fffffffu;
            largest = magnitude > largest ? magnitude : largest;
        }
        float inverse = moe_math_quant_inverse(largest);
        int32_t total = 0, half = 0;
        for (uint32_t c = 0; c < block; c++) {
            int32_t code = c < n && inverse > 0 ? (int32_t)rintf(x[first + c] * inverse) : 0;
            q[((first + c) / 4 * (uint32_t)nt + (uint32_t)t) * 4 + c % 4] = (int8_t)code;
            total += code;
            half += c < block / 2 ? code : 0;
        }
        moe_math_quant_scale(largest, total, &s[b * nt + t], &z[b * nt + t]);
        sum[b * nt + t] = moe_sums_of(total, half, s[b * nt + t]);
    }
}

/* ---- Vectors ---- */

static float dot(const float *x, const float *y, uint32_t n)
{
    float lane[MOE_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        lane[i % MOE_LANES] = fmaf(x[i], y[i], lane[i % MOE_LANES]);
    return moe_math_join(lane);
}

static void rms_norm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    float r = moe_math_rms_scale(dot(x, x, n), n, eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * r * w[i];
}

static void layer_norm(const float *x, const float *w, const float *b, uint32_t n, float eps,
                       float *y)
{
    float sums[MOE_LANES] = {0}, squares[MOE_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        sums[i % MOE_LANES] += x[i];
    float mean = moe_math_join(sums) / (float)n;
    for (uint32_t i = 0; i < n; i++)
        squares[i % MOE_LANES] = fmaf(x[i] - mean, x[i] - mean, squares[i % MOE_LANES]);
    float r = moe_math_rms_scale(moe_math_join(squares), n, eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = fmaf((x[i] - mean) * r, w[i], b[i]);
}

static float exp_sum(float *x, uint32_t begin, uint32_t end, float *largest)
{
    float lane[MOE_LANES] = {0};
    *largest = x[begin];
    for (uint32_t i = begin + 1; i < end; i++)
        *largest = x[i] > *largest ? x[i] : *largest;
    moe_math_exp_lanes(x, begin, end, *largest, lane);
    return moe_math_join(lane);
}

static void softmax(float *x, uint32_t n)
{
    float largest, sum = exp_sum(x, 0, n, &largest);
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

static void swiglu(const float *gate, const float *up, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = moe_math_swiglu(gate[i], up[i]);
}

static void swiglu_clamped(const float *gate, const float *up, uint32_t n, float alpha, float limit,
                           float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = moe_math_swiglu_clamped(gate[i], up[i], alpha, limit);
}

static void silu(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = moe_math_silu(x[i]);
}

static void relu(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = moe_math_relu(x[i]);
}

static void tanh_of(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = moe_math_tanh(x[i]);
}

static void axpy(float a, const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

static void vec_add(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void mul_add(const float *a, const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = fmaf(a[i], x[i], y[i]);
}

static void scale(float a, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] *= a;
}

static void clamp(float limit, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = moe_math_clamp(y[i], limit);
}

static void rope(float *x, const float *cs, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++)
        moe_math_rotate(&x[i], &x[i + n / 2], cs[2 * i], cs[2 * i + 1]);
}

static void delta_step(float *state, const float *k, const float *q, const float *v, uint32_t n,
                       const float *decay, float beta, float *y)
{
    for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++) {
        float m = 0, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            float *s = state + (uint64_t)i * MOE_PANEL_ROWS + r;
            *s *= decay[i];
            m = fmaf(*s, k[i], m);
        }
        float d = (v[r] - m) * beta;
        for (uint32_t i = 0; i < n; i++) {
            float *s = state + (uint64_t)i * MOE_PANEL_ROWS + r;
            *s = fmaf(k[i], d, *s);
            sum = fmaf(*s, q[i], sum);
        }
        y[r] = sum;
    }
}

static void scan_step(float *state, const float *k, const float *q, const float *v, uint32_t n,
                      float decay, float *y)
{
    for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++) {
        float value = v[r], sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            float *s = state + (uint64_t)i * MOE_PANEL_ROWS + r;
            *s = fmaf(k[i], value, *s * decay);
            sum = fmaf(*s, q[i], sum);
        }
        y[r] = sum;
    }
}

static void select_step(float *state, const float *rates, const float *steps, const float *k,
                        const float *q, const float *v, uint32_t n, float *y)
{
    for (uint32_t r = 0; r < MOE_PANEL_ROWS; r++) {
        float value = v[r], sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t at = (uint64_t)i * MOE_PANEL_ROWS + r;
            state[at] = fmaf(k[i], value, state[at] * moe_math_exp(-(rates[at] * steps[r])));
            sum = fmaf(state[at], q[i], sum);
        }
        y[r] = sum;
    }
}

static void f32_to_f16(const float *x, uint32_t n, uint16_t *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = moe_f32_to_f16(x[i]);
}

static void f16_to_f32(const uint16_t *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = moe_f16_to_f32(x[i]);
}

void moe_kern_fill_ref(struct moe_kern *kern)
{
    fill_float_panels(kern);
    fill_quant_panels(kern);
    memset(kern->few_panels, 0, sizeof kern->few_panels);
    memset(kern->unpack, 0, sizeof kern->unpack);
    kern->quantize = quantize;
    kern->rms_norm = rms_norm;
    kern->layer_norm = layer_norm;
    kern->exp_sum = exp_sum;
    kern->softmax = softmax;
    kern->swiglu = swiglu;
    kern->swiglu_clamped = swiglu_clamped;
    kern->silu = silu;
    kern->relu = relu;
    kern->tanh = tanh_of;
    kern->axpy = axpy;
    kern->add = vec_add;
    kern->mul_add = mul_add;
    kern->scale = scale;
    kern->clamp = clamp;
    kern->rope = rope;
    kern->dot = dot;
    kern->delta_step = delta_step;
    kern->scan_step = scan_step;
    kern->select_step = select_step;
    kern->f32_to_f16 = f32_to_f16;
    kern->f16_to_f32 = f16_to_f32;
}
