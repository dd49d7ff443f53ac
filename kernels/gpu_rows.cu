/*
 * Between the products: adding to the residual stream, norms, the end of a MoE layer.
 *
 * add_norm has one block per row, because a norm needs the whole row: residual, norm and the byte
 * forms are one launch instead of four, and the row stays in the cache of its processor. Its time
 * in decode is the chain of cols / 16 fma per lane that the definition asks for (a few hundred
 * nanoseconds at 4096 columns) beside two passes over the row. combine is a thread per value.
 * Written without a GPU at hand: it has run on none, there are no figures.
 */
#include "dev_prepare.cuh"
#include "dev_vector.cuh"
#include "gpu_context.cuh"

/* ---- Adding and norm ---------------------------------------------------------------------------
 */

enum { NORM_THREADS = 512 };

static __global__ void __launch_bounds__(NORM_THREADS) add_norm_kernel(struct moe_gpu_norm n)
{
    __shared__ struct dev_stage stage;
    uint64_t row = blockIdx.x;
    float *h = n.h + row * n.h_stride;
    const float *add = n.add ? n.add + row * n.add_stride : NULL;

    auto updated = [&](uint32_t i) {
        float v = h[i];
        if (add) {
            v = fmaf(n.add_scale, n.add_bias ? add[i] + n.add_bias[i] : add[i], v);
            h[i] = v;
        }
        return v;
    };
    if (!n.weights) {
        for (uint32_t i = threadIdx.x; i < n.cols; i += blockDim.x)
            updated(i);
        return;
    }
    float *x = n.out.x + row * n.out.x_stride;
    if (n.layer) {
        float mean = dev_block_sum<false>(&stage, n.cols, updated) / (float)n.cols;
        float squares =
            dev_block_sum<true>(&stage, n.cols, [&](uint32_t i) { return h[i] - mean; });
        float r = moe_math_rms_scale(squares, n.cols, n.eps);
        for (uint32_t i = threadIdx.x; i < n.cols; i += blockDim.x)
            x[i] = fmaf((h[i] - mean) * r, n.weights[i], n.bias[i]);
    } else {
        float squares = dev_block_sum<true>(&stage, n.cols, updated);
        float r = moe_math_rms_scale(squares, n.cols, n.eps);
        for (uint32_t i = threadIdx.x; i < n.cols; i += blockDim.x)
            x[i] = h[i] * r * n.weights[i];
    }
    __syncthreads();
    dev_prepare_row(x, n.out, row);
}

extern "C" void moe_gpu_add_norm(struct moe_gpu *g, const struct moe_gpu_norm *norm, uint32_t n)
{
    if (n > 0)
        MOE_LAUNCH(g, add_norm_kernel, n, NORM_THREADS, 0, *norm);
}

/* ---- The end of a MoE layer --------------------------------------------------------------------
 */

enum { COMBINE_THREADS = 128 };

static __global__ void combine_kernel(struct moe_gpu_combine c)
{
    uint64_t row = blockIdx.x;
    uint32_t i = blockIdx.y * COMBINE_THREADS + threadIdx.x;
    if (i >= c.cols)
        return;
    float acc = 0;
#pragma unroll 4
    for (uint32_t k = 0; k < c.top_k; k++) {
        uint64_t at = row * c.top_k + k, slot = c.slot_of ? c.slot_of[at] : at;
        acc = fmaf(c.weights[at], c.outputs[slot * c.out_stride + i], acc);
    }
    if (c.shared) {
        float scale = 1;
        if (c.shared_scale)
            scale = 1.0f / (1.0f + moe_math_exp(-c.shared_scale[row * MOE_PANEL_ROWS]));
        acc = fmaf(scale, c.shared[row * c.shared_stride + i], acc);
    }
    float *h = &c.h[row * c.h_stride + i];
    *h = fmaf(c.residual_scale, acc, *h);
}

extern "C" void moe_gpu_combine(struct moe_gpu *g, const struct moe_gpu_combine *c, uint32_t n)
{
    if (n > 0)
        MOE_LAUNCH(g, combine_kernel, dim3(n, (c->cols + COMBINE_THREADS - 1) / COMBINE_THREADS),
                   COMBINE_THREADS, 0, *c);
}
