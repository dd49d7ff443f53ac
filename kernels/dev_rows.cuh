/*
 * Between the products: a row's residual and norm by the threads of a block, one value of a MoE
 * layer's sum by a thread.
 */
#ifndef MOE_KERNELS_DEV_ROWS_CUH
#define MOE_KERNELS_DEV_ROWS_CUH

#include "dev_prepare.cuh"
#include "dev_vector.cuh"

/* moe_gpu_add_norm for one row. All threads call; their earlier writes are visible to all. */
static __device__ __forceinline__ void dev_add_norm_row(const struct moe_gpu_norm &n, uint64_t row,
                                                        struct dev_stage *stage)
{
    /* Copies, which stores through h and x cannot change: n may lie in memory. */
    float *h = n.h + row * n.h_stride;
    const uint32_t cols = n.cols;
    const bool adds = n.add, is_biased = n.add_bias, layer = n.layer;
    const float scale = n.add_scale;
    /* Instead of a missing operand, something to read that does not count. */
    const float *add = adds ? n.add + row * n.add_stride : h;
    const float *add_bias = is_biased ? n.add_bias : h;
    struct before {
        float h, add, bias;
    };
    auto load = [&](uint32_t i) { return before{h[i], add[i], add_bias[i]}; };
    auto updated = [&](const before &v) {
        return adds ? fmaf(scale, is_biased ? v.add + v.bias : v.add, v.h) : v.h;
    };
    if (!n.weights) {
        dev_block_map(cols, load, [&](uint32_t i, const before &v) { h[i] = updated(v); });
        return;
    }
    const float *weights = n.weights, *bias = layer ? n.bias : weights;
    float mean = 0, *x = n.out.x + row * n.out.x_stride;
    if (layer)
        mean = dev_block_sum<false>(stage, cols, load,
                                    [&](uint32_t, const before &v) { return updated(v); }) /
               (float)cols;
    float squares = dev_block_sum<true>(
        stage, cols, load, [&](uint32_t, const before &v) { return updated(v) - mean; });
    float r = moe_math_rms_scale(squares, cols, n.eps);

    /* If it fits, the norm also goes into the stage: its byte forms are made from there. */
    bool staged = cols <= DEV_STAGE;
    auto finish = [&](uint32_t i, float now, float weight, float b) {
        float normed = layer ? fmaf((now - mean) * r, weight, b) : now * r * weight;
        if (adds)
            h[i] = now;
        x[i] = normed;
        if (staged)
            stage->values[i] = normed;
    };
    struct all {
        before b;
        float weight, bias;
    };
    if (staged && !layer) /* the sums are still there */
        dev_block_map(
            cols, [&](uint32_t i) { return weights[i]; },
            [&](uint32_t i, float weight) { finish(i, stage->values[i], weight, 0); });
    else
        dev_block_map(
            cols,
            [&](uint32_t i) {
                return all{load(i), weights[i], bias[i]};
            },
            [&](uint32_t i, const all &v) { finish(i, updated(v.b), v.weight, v.bias); });
    __syncthreads();
    dev_prepare_row(staged ? stage->values : x, n.out, row);
}

/* moe_gpu_combine of N values of a row, each `step` after the one before it; those past the end in
 * vain. What it reads is loaded for all of them before any is stored. */
template <int N>
static __device__ __forceinline__ void
dev_combine_values(const struct moe_gpu_combine &c, uint64_t row, uint32_t first, uint32_t step)
{
    float *h = c.h + row * c.h_stride, before[N], acc[N];
    uint32_t at[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        at[i] = min(first + i * step, c.cols - 1);
        before[i] = h[at[i]];
        acc[i] = 0;
    }
#pragma unroll 4
    for (uint32_t k = 0; k < c.top_k; k++) {
        uint64_t slot = row * c.top_k + k;
        const float weight = c.weights[slot];
        slot = c.slot_of ? c.slot_of[slot] : slot;
#pragma unroll
        for (int i = 0; i < N; i++)
            acc[i] = fmaf(weight, c.outputs[slot * c.out_stride + at[i]], acc[i]);
    }
    if (c.shared) {
        float scale = 1;
        if (c.shared_scale)
            scale = 1.0f / (1.0f + moe_math_exp(-c.shared_scale[row * MOE_PANEL_ROWS]));
#pragma unroll
        for (int i = 0; i < N; i++)
            acc[i] = fmaf(scale, c.shared[row * c.shared_stride + at[i]], acc[i]);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (first + i * step < c.cols)
            h[at[i]] = fmaf(c.residual_scale, acc[i], before[i]);
}

#endif
