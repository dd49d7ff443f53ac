/*
 * Rows of the embedding, straight from its layout: quant/layout.h's moe_layout_load_row, a thread
 * per value.
 *
 * A row of a panel is spread over the panel's units, so a row of 4-bit weights touches eight times
 * its bytes; at some kilobytes a token that is cheaper than a second copy of the embedding.
 */
#include "dev_product.cuh"
#include "dev_weights.cuh"
#include "gpu_context.cuh"

enum { EMBED_THREADS = 128 };

struct embed {
    struct moe_mat mat;
    uint64_t panel_bytes, block_bytes; /* of a block 0 where there are none */
    const struct moe_gpu_row *rows;
    float scale;
    float *h;
    uint64_t h_stride;
};

static __device__ float float_at(const struct embed &e, const uint8_t *panel, uint32_t r,
                                 uint32_t c)
{
    const struct moe_layout own = e.mat.layout;
#define AT(as, run)                                                                                \
    return dev_float_weight<as>(dev_find_floats<as>(panel, own.kind, own.group, e.mat.cols), c, r)
    DEV_BY_FLOAT(own.kind, AT);
#undef AT
    return 0;
}

/* moe_layout_number, of whose tables the device has none. */
static __device__ int32_t number_of(int kind, uint32_t code)
{
    uint32_t four = 0, low = code & (moe_kind_is_iq3(kind) ? 7 : 3);
    const uint32_t second = code >> moe_code_high_at(kind);
    if (moe_kind_is_e2m1(kind))
        four = dev_table_four<MOE_LAYOUT_MXFP4>(code);
    else if (moe_kind_is_iq4(kind))
        four = dev_table_four<MOE_LAYOUT_IQ4_NL>(code);
    else if (moe_kind_is_iq2k(kind))
        four = dev_numbers_of<MOE_LAYOUT_IQ2_K>(code);
    else if (moe_kind_is_iq3k(kind))
        four = dev_numbers_of<MOE_LAYOUT_IQ3_K>(code);
    else if (moe_kind_is_iq5k(kind))
        four = dev_numbers_of<MOE_LAYOUT_IQ5_K>(code);
    else if (kind == MOE_LAYOUT_IQ6_K)
        four = dev_numbers_of<MOE_LAYOUT_IQ6_K>(code);
    else if (kind == MOE_LAYOUT_Q1_0)
        return code ? 1 : -1;
    else if (moe_kind_is_iq1(kind))
        four = dev_grid_numbers<MOE_LAYOUT_IQ1_S>(low, second);
    else if (moe_kind_is_iq2(kind))
        four = dev_grid_numbers<MOE_LAYOUT_IQ2_S>(low, second);
    else if (kind == MOE_LAYOUT_IQ3_XXS)
        four = dev_grid_numbers<MOE_LAYOUT_IQ3_XXS>(low, second);
    else if (kind == MOE_LAYOUT_IQ3_S)
        four = dev_grid_numbers<MOE_LAYOUT_IQ3_S>(low, second);
    else
        return (int32_t)code - moe_kind_zero(kind);
    return (int8_t)four;
}

static __device__ float quantized_at(const struct embed &e, const uint8_t *panel, uint32_t r,
                                     uint32_t c)
{
    const int kind = e.mat.layout.kind;
    uint32_t block = moe_layout_block(e.mat.layout), span = moe_kind_span(kind);
    uint32_t full = span                 ? moe_kind_record(kind) * span
                    : e.mat.layout.group ? e.mat.layout.group
                                         : e.mat.cols;
    uint32_t first = c / full * full, n = min(full, e.mat.cols - first), at = c - first;
    const uint8_t *front = panel;
    panel += moe_kind_front(kind);
    const uint8_t *record = panel + c / full *
                                        (moe_kind_head_bytes(kind, (full + block - 1) / block) +
                                         (full + block - 1) / block * e.block_bytes);
    const uint8_t *codes = record + moe_kind_head_bytes(kind, (n + block - 1) / block);
    codes += at / block * e.block_bytes;
    const uint8_t *head =
        span ? record + at / span * (moe_kind_head(kind) * MOE_PANEL_ROWS) : record;
    int32_t code =
        moe_kind_code(kind, head, span ? at % span / block : 0, codes, block, r, at % block);
    uint32_t run = block / (uint32_t)moe_kind_scales(kind);
    struct moe_scales w = moe_kind_scale(kind, head, codes, span ? (int)(at % span / run) : 0, r);
    float number = (float)number_of(kind, (uint32_t)code), v = w.d * number;
    v = moe_kind_shift(kind) ? fmaf(w.d, number, w.m) : moe_kind_has_offset(kind) ? v + w.m : v;
    return moe_kind_front(kind) ? v * __ldg((const float *)front + r) : v;
}

static __global__ void embed_kernel(struct embed e)
{
    uint64_t i = blockIdx.x;
    uint32_t c = blockIdx.y * EMBED_THREADS + threadIdx.x, token = e.rows[i].token;
    if (c >= e.mat.cols)
        return;
    const uint8_t *panel = e.mat.data + token / MOE_PANEL_ROWS * e.panel_bytes;
    uint32_t r = token % MOE_PANEL_ROWS;
    float v = e.block_bytes ? quantized_at(e, panel, r, c) : float_at(e, panel, r, c);
    e.h[i * e.h_stride + c] = v * e.scale;
}

extern "C" void moe_gpu_embed(struct moe_gpu *g, const struct moe_mat *embed,
                              const struct moe_gpu_row *rows, uint32_t n, float scale, float *h,
                              uint64_t h_stride)
{
    struct embed e = {
        *embed,
        moe_layout_panel_bytes(embed->layout, embed->cols),
        moe_layout_takes_floats(embed->layout.kind) ? 0 : moe_layout_block_bytes(embed->layout),
        rows,
        scale,
        h,
        h_stride};
    if (n > 0)
        MOE_LAUNCH(g, embed_kernel, dim3(n, (embed->cols + EMBED_THREADS - 1) / EMBED_THREADS),
                   EMBED_THREADS, 0, e);
}
