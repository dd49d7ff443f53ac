/*
 * Ordinary attention's queries, keys and values after their products: what infer/cpu_projections.c
 * does to a head, by a warp.
 */
#ifndef MOE_KERNELS_DEV_HEADS_CUH
#define MOE_KERNELS_DEV_HEADS_CUH

#include <cuda_runtime.h>

#include "dev_vector.cuh"
#include "gpu_ops.h"

enum dev_heads_kind { DEV_QUERIES, DEV_KEYS, DEV_VALUES, DEV_HEADS_KINDS };

/* The queries, the keys or the values of one row, as their products left them. */
struct dev_heads {
    const float *x, *bias, *norm; /* norm NULL: none */
    uint32_t n_heads, rotated;    /* rotated: dimensions of a head */
};

static __device__ __forceinline__ struct dev_heads dev_heads_of(const struct moe_gpu_heads &h,
                                                                int kind, uint64_t row)
{
    bool normed = h.qk_norm != MOE_QK_NORM_NONE;
    if (kind == DEV_QUERIES)
        return {h.q + row * h.q_stride, h.q_bias, normed ? h.q_norm : NULL, h.n_heads, h.rope_dim};
    if (kind == DEV_KEYS)
        return {h.k + row * h.k_stride, h.k_bias, normed ? h.k_norm : NULL, h.n_kv_heads,
                h.rope_dim};
    return {h.v + row * h.v_stride, h.v_bias, NULL, h.n_kv_heads, 0};
}

static __device__ __forceinline__ float dev_biased(const struct dev_heads &p, uint32_t i)
{
    return p.bias ? p.x[i] + p.bias[i] : p.x[i];
}

/* Cosines and sines for a row, out of the rotary table. */
static __device__ __forceinline__ const float *
dev_angles(const float *table, uint32_t rope_dim, uint32_t original, const struct moe_gpu_row &at)
{
    return table + (uint64_t)moe_math_rope_row(original, at.length, at.position) * rope_dim;
}

/* The scale of a norm over all heads of a row, 0 without one. All threads of a block call and get
 * it. */
static __device__ __forceinline__ float dev_norm_heads(const struct moe_gpu_heads &h, int kind,
                                                       uint64_t row, struct dev_stage *stage)
{
    struct dev_heads p = dev_heads_of(h, kind, row);
    if (!p.norm || h.qk_norm != MOE_QK_NORM_FULL)
        return 0;
    uint32_t width = p.n_heads * h.head_dim;
    float squares = dev_block_sum<true>(
        stage, width, [&](uint32_t i) { return dev_biased(p, i); },
        [](uint32_t, float v) { return v; });
    return moe_math_rms_scale(squares, width, h.eps);
}

/* Calls put(d, v) for all dimensions d of a row's head, by the threads of a warp. r: as from
 * dev_norm_heads. */
template <typename Put>
static __device__ __forceinline__ void dev_finish_head(const struct moe_gpu_heads &h, int kind,
                                                       uint64_t row, uint32_t head, float r,
                                                       Put put)
{
    const struct dev_heads p = dev_heads_of(h, kind, row);
    uint32_t lane = threadIdx.x % DEV_WARP, first = head * h.head_dim, half = p.rotated / 2;
    const float *angles = dev_angles(h.rope, h.rope_dim, h.rope_original, h.rows[row]);
    const float *norm = p.norm;
    bool scaled = kind == DEV_QUERIES && h.q_factors;
    float factor = scaled ? h.q_factors[h.rows[row].position] : 1;
    if (norm && h.qk_norm == MOE_QK_NORM_FULL) {
        norm += first;
    } else if (norm) {
        float squares =
            dev_warp_squares(h.head_dim, [&](uint32_t d) { return dev_biased(p, first + d); });
        r = moe_math_rms_scale(squares, h.head_dim, h.eps);
    }
    auto value = [&](uint32_t d) {
        float v = dev_biased(p, first + d);
        v = norm ? v * r * norm[d] : v;
        return h.clip > 0 ? moe_math_clamp(v, h.clip) : v;
    };
    for (uint32_t i = lane; i < half; i += DEV_WARP) {
        float a = value(i), b = value(i + half);
        moe_math_rotate(&a, &b, angles[2 * i], angles[2 * i + 1]);
        put(i, a * factor);
        put(i + half, b * factor);
    }
    for (uint32_t d = p.rotated + lane; d < h.head_dim; d += DEV_WARP)
        put(d, value(d) * factor);
}

#endif
