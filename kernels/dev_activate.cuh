/*
 * Between a feed-forward's products: the activation of gate and up, and its byte forms.
 */
#ifndef MOE_KERNELS_DEV_ACTIVATE_CUH
#define MOE_KERNELS_DEV_ACTIVATE_CUH

#include "dev_prepare.cuh"

struct dev_activate {
    float *gate; /* [activations][stride], becomes the activation */
    const float *up;
    uint64_t stride;
    struct moe_gpu_activation how;
    struct moe_gpu_act mid;
};

/* Whether there is a gate beside up. */
static inline __host__ __device__ bool dev_is_gated(const struct moe_gpu_activation &how)
{
    return how.kind != MOE_ACT_RELU2;
}

/* Of a column of gate and up. */
static __device__ __forceinline__ float dev_activation(const struct moe_gpu_activation &how,
                                                       const float *gate, const float *up)
{
    float v;
    if (how.kind == MOE_ACT_SWIGLU_CLAMPED)
        return moe_math_swiglu_clamped(*gate, *up, how.alpha, how.limit);
    if (dev_is_gated(how))
        return moe_math_swiglu(*gate, *up);
    v = moe_math_relu(*up);
    return fmaf(v, v, 0.0f);
}

/* 64 columns of an activation, by a warp. */
static __device__ __forceinline__ void dev_activate_chunk(const struct dev_activate &a,
                                                          uint64_t row, uint32_t chunk)
{
    float *gate = a.gate + row * a.stride, values[2];
    const float *up = a.up + row * a.stride;
    for (int half = 0; half < 2; half++) {
        uint32_t column =
            chunk * DEV_PREPARE_CHUNK + half * DEV_PREPARE_HALF + threadIdx.x % DEV_WARP;
        values[half] = 0;
        if (column < a.mid.cols)
            gate[column] = values[half] = dev_activation(a.how, &gate[column], &up[column]);
    }
    dev_prepare_values(values, chunk, a.mid, row);
}

#endif
