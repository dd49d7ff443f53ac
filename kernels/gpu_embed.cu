/*
 * Rows of the embedding, straight from its layout: quant/layout.h's moe_layout_load_row, a thread
 * per value.
 *
 * A row of a panel is spread over the panel's units, so a row of 4-bit weights touches eight times
 * its bytes; at some kilobytes a token that is cheaper than a second copy of the embedding.
 */
#include "dev_weights.cuh"
#include "gpu_context.cuh"

enum { EMBED_THREADS = 128 };

struct embed {
    struct moe_mat mat;
    uint64_t panel_bytes, block_bytes;
    const struct moe_gpu_row *rows;
    float scale;
    float *h;
    uint64_t h_stride;
};

static __device__ float float_at(uint32_t kind, const uint8_t *panel, uint64_t i)
{
    if (kind == MOE_LAYOUT_F32)
        return dev_float_weight<MOE_LAYOUT_F32>(panel, i);
    return kind == MOE_LAYOUT_F16 ? dev_float_weight<MOE_LAYOUT_F16>(panel, i)
                                  : dev_float_weight<MOE_LAYOUT_BF16>(panel, i);
}

/* The code in row r, column c of a block. */
static __device__ uint32_t code_at(uint32_t kind, const uint8_t *codes, uint32_t block, uint32_t r,
                                   uint32_t c)
{
    uint32_t byte = r * 4 + c % 4;
    if (kind == MOE_LAYOUT_Q8)
        return codes[c / 4 * DEV_UNIT + byte];
    if (kind == MOE_LAYOUT_Q4 || kind == MOE_LAYOUT_MXFP4)
        return codes[c / 8 * DEV_UNIT + byte] >> c % 8 / 4 * 4 & 15;
    uint32_t low = codes[c / 16 * DEV_UNIT + byte] >> c % 16 / 4 * 2 & 3;
    if (kind == MOE_LAYOUT_Q2)
        return low;
    const uint8_t *plane = codes + block / 16 * DEV_UNIT;
    return low | (plane[c / 32 * DEV_UNIT + byte] >> c % 32 / 4 & 1u) << 2;
}

static __device__ float quantized_at(const struct embed &e, const uint8_t *panel, uint32_t r,
                                     uint32_t c)
{
    struct moe_layout layout = e.mat.layout;
    bool mx = layout.kind == MOE_LAYOUT_MXFP4;
    uint32_t block = moe_layout_block(layout);
    uint32_t cols = mx ? (uint32_t)MOE_MX_RECORD : layout.group ? layout.group : e.mat.cols;
    uint64_t record_bytes = DEV_HEAD + (cols + block - 1) / block * e.block_bytes;
    const uint8_t *record = panel + c / cols * record_bytes;
    uint32_t at = c % cols;
    uint32_t code =
        code_at(layout.kind, record + DEV_HEAD + at / block * e.block_bytes, block, r, at % block);
    if (mx)
        return moe_mxfp4_scale(record[at / block * MOE_PANEL_ROWS + r]) *
               (float)(int8_t)dev_mxfp4_four(code);
    const uint16_t *head = (const uint16_t *)record;
    return dev_f16(head[r]) * (float)code + dev_f16(head[MOE_PANEL_ROWS + r]);
}

static __global__ void embed_kernel(struct embed e)
{
    uint64_t i = blockIdx.x;
    uint32_t c = blockIdx.y * EMBED_THREADS + threadIdx.x, token = e.rows[i].token;
    if (c >= e.mat.cols)
        return;
    const uint8_t *panel = e.mat.data + token / MOE_PANEL_ROWS * e.panel_bytes;
    uint32_t r = token % MOE_PANEL_ROWS, kind = e.mat.layout.kind;
    bool is_float = kind == MOE_LAYOUT_F32 || kind == MOE_LAYOUT_F16 || kind == MOE_LAYOUT_BF16;
    float v = is_float ? float_at(kind, panel, (uint64_t)c * MOE_PANEL_ROWS + r)
                       : quantized_at(e, panel, r, c);
    e.h[i * e.h_stride + c] = v * e.scale;
}

extern "C" void moe_gpu_embed(struct moe_gpu *g, const struct moe_mat *embed,
                              const struct moe_gpu_row *rows, uint32_t n, float scale, float *h,
                              uint64_t h_stride)
{
    struct embed e = {*embed,
                      moe_layout_panel_bytes(embed->layout, embed->cols),
                      moe_layout_block_bytes(embed->layout),
                      rows,
                      scale,
                      h,
                      h_stride};
    if (n > 0)
        MOE_LAUNCH(g, embed_kernel, dim3(n, (embed->cols + EMBED_THREADS - 1) / EMBED_THREADS),
                   EMBED_THREADS, 0, e);
}
