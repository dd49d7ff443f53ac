/*
 * Between the products: a row's residual and norm by the threads of a block, one value of a MoE
 * layer's sum by a thread.
 */
#ifndef MOE_KERNELS_DEV_ROWS_CUH
#define MOE_KERNELS_DEV_ROWS_CUH

#include "dev_prepare.cuh"
#include "dev_vector.cuh"

/* moe_gpu_add_norm of one row. All threads call; what they and others wrote is visible to all. */
static __device__ __forceinline__ void dev_add_norm_row(const struct moe_gpu_norm &n, uint64_t row,
                                                        struct dev_stage *stage)
{
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
        float mean = dev_block_sum<false>(stage, n.cols, updated) / (float)n.cols;
        float squares = dev_block_sum<true>(stage, n.cols, [&](uint32_t i) { return h[i] - mean; });
        float r = moe_math_rms_scale(squares, n.cols, n.eps);
        for (uint32_t i = threadIdx.x; i < n.cols; i += blockDim.x)
            x[i] = fmaf((h[i] - mean) * r, n.weights[i], n.bias[i]);
    } else {
        float squares = dev_block_sum<true>(stage, n.cols, updated);
        float r = moe_math_rms_scale(squares, n.cols, n.eps);
        for (uint32_t i = threadIdx.x; i < n.cols; i += blockDim.x)
            x[i] = h[i] * r * n.weights[i];
    }
    __syncthreads();
    dev_prepare_row(x, n.out, row);
}

/* moe_gpu_combine of value i of a row. */
static __device__ __forceinline__ void dev_combine_value(const struct moe_gpu_combine &c,
                                                         uint64_t row, uint32_t i)
{
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

#endif
