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
                                                       float gate, float up)
{
    float v;
    if (how.kind == MOE_ACT_SWIGLU_CLAMPED)
        return moe_math_swiglu_clamped(gate, up, how.alpha, how.limit);
    if (dev_is_gated(how))
        return moe_math_swiglu(gate, up);
    v = moe_math_relu(up);
    return fmaf(v, v, 0.0f);
}

/* 64 columns of an activation, by a warp. */
static __device__ __forceinline__ void dev_activate_chunk(const struct dev_activate &a,
                                                          uint64_t row, uint32_t chunk)
{
    float *gate = a.gate + row * a.stride, gates[2] = {}, ups[2] = {}, values[2];
    const float *up = a.up + row * a.stride;
    uint32_t first = chunk * DEV_PREPARE_CHUNK + threadIdx.x % DEV_WARP;
    for (int half = 0; half < 2; half++) {
        uint32_t column = first + half * DEV_PREPARE_HALF;
        if (column < a.mid.cols) {
            gates[half] = dev_is_gated(a.how) ? gate[column] : 0.0f;
            ups[half] = up[column];
        }
    }
    for (int half = 0; half < 2; half++) {
        uint32_t column = first + half * DEV_PREPARE_HALF;
        values[half] = 0;
        if (column < a.mid.cols)
            gate[column] = values[half] = dev_activation(a.how, gates[half], ups[half]);
    }
    dev_prepare_values(values, chunk, a.mid, row);
}

#endif
