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
    /* In the place of what is not there, something to read that does not count. */
    const float *add = n.add ? n.add + row * n.add_stride : h;
    const float *add_bias = n.add_bias ? n.add_bias : h;
    struct before {
        float h, add, bias;
    };
    auto load = [&](uint32_t i) { return before{h[i], add[i], add_bias[i]}; };
    auto updated = [&](const before &v) {
        return n.add ? fmaf(n.add_scale, n.add_bias ? v.add + v.bias : v.add, v.h) : v.h;
    };
    if (!n.weights) {
        dev_block_map(n.cols, load, [&](uint32_t i, const before &v) { h[i] = updated(v); });
        return;
    }
    float mean = 0, *x = n.out.x + row * n.out.x_stride;
    if (n.layer)
        mean = dev_block_sum<false>(stage, n.cols, load,
                                    [&](uint32_t, const before &v) { return updated(v); }) /
               (float)n.cols;
    float squares = dev_block_sum<true>(
        stage, n.cols, load, [&](uint32_t, const before &v) { return updated(v) - mean; });
    float r = moe_math_rms_scale(squares, n.cols, n.eps);
    const float *bias = n.layer ? n.bias : n.weights;
    struct all {
        before b;
        float weight, bias;
    };
    /* Where it has room, the norm goes into the stage, too: its byte forms are made of that. */
    bool staged = n.cols <= DEV_STAGE;
    dev_block_map(
        n.cols,
        [&](uint32_t i) {
            return all{load(i), n.weights[i], bias[i]};
        },
        [&](uint32_t i, const all &v) {
            float now = updated(v.b);
            float normed = n.layer ? fmaf((now - mean) * r, v.weight, v.bias) : now * r * v.weight;
            if (n.add)
                h[i] = now;
            x[i] = normed;
            if (staged)
                stage->values[i] = normed;
        });
    __syncthreads();
    dev_prepare_row(staged ? stage->values : x, n.out, row);
}

/* moe_gpu_combine of value i of a row. */
static __device__ __forceinline__ void dev_combine_value(const struct moe_gpu_combine &c,
                                                         uint64_t row, uint32_t i)
{
    float *h = &c.h[row * c.h_stride + i], before = *h, acc = 0;
#pragma unroll 8
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
    *h = fmaf(c.residual_scale, acc, before);
}

#endif
