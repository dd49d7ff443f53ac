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
            gate[column] = values[half] =
                a.how.clamped
                    ? moe_math_swiglu_clamped(gate[column], up[column], a.how.alpha, a.how.limit)
                    : moe_math_swiglu(gate[column], up[column]);
    }
    dev_prepare_values(values, chunk, a.mid, row);
}

#endif
