/*
 * Quantizing inputs of products by the threads of a block: kern.h's quantize, to the bit, into both
 * byte forms of struct moe_gpu_act at once.
 *
 * A warp takes a chunk of 64 columns, two values a lane: a block of the 64-column form and two of
 * the other. Largest magnitudes and sums are whole numbers, so they may be joined in any order.
 */
#ifndef MOE_KERNELS_DEV_PREPARE_CUH
#define MOE_KERNELS_DEV_PREPARE_CUH

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#include "gpu_ops.h"
#include "kern/kern_math.h"

enum { DEV_PREPARE_CHUNK = 64, DEV_WARP = 32, DEV_PREPARE_HALF = DEV_PREPARE_CHUNK / 2 };
#define DEV_FULL_MASK 0xffffffffu

/* Over the values of a warp's lanes, in all lanes: the largest, the least, the sum. Devices
 * from 8.0 on have an instruction for each. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
static __device__ __forceinline__ uint32_t dev_warp_largest(uint32_t v)
{
    return __reduce_max_sync(DEV_FULL_MASK, v);
}

static __device__ __forceinline__ uint32_t dev_warp_least(uint32_t v)
{
    return __reduce_min_sync(DEV_FULL_MASK, v);
}

static __device__ __forceinline__ int32_t dev_warp_sum(int32_t v)
{
    return __reduce_add_sync(DEV_FULL_MASK, v);
}
#else
static __device__ __forceinline__ uint32_t dev_warp_largest(uint32_t v)
{
    for (int offset = DEV_WARP / 2; offset > 0; offset /= 2) {
        uint32_t other = __shfl_xor_sync(DEV_FULL_MASK, v, offset);
        v = other > v ? other : v;
    }
    return v;
}

static __device__ __forceinline__ uint32_t dev_warp_least(uint32_t v)
{
    return ~dev_warp_largest(~v);
}

static __device__ __forceinline__ int32_t dev_warp_sum(int32_t v)
{
    for (int offset = DEV_WARP / 2; offset > 0; offset /= 2)
        v += __shfl_xor_sync(DEV_FULL_MASK, v, offset);
    return v;
}
#endif

static __device__ __forceinline__ int32_t dev_quant_code(float v, float inverse)
{
    return inverse > 0 ? (int32_t)rintf(v * inverse) : 0;
}

/* Chunk `chunk` of input i, one warp: values[0] is column chunk * 64 + lane, values[1] the one 32
 * further on; 0 past the input's end. */
static __device__ __forceinline__ void dev_prepare_values(const float values[2], uint32_t chunk,
                                                          const struct moe_gpu_act &act, uint64_t i)
{
    uint32_t lane = threadIdx.x % DEV_WARP, largest[2];
    for (int half = 0; half < 2; half++)
        largest[half] = dev_warp_largest(moe_f32_bits(values[half]) & 0x7fffffffu);

    const struct moe_gpu_bytes &wide = act.bytes[MOE_GPU_BLOCK_64];
    if (wide.q) {
        uint64_t blocks = (act.cols + DEV_PREPARE_CHUNK - 1) / DEV_PREPARE_CHUNK;
        uint64_t at = i * blocks + chunk;
        uint32_t most = largest[0] > largest[1] ? largest[0] : largest[1];
        float inverse = moe_math_quant_inverse(most);
        int32_t sum = 0;
        for (int half = 0; half < 2; half++) {
            int32_t code = dev_quant_code(values[half], inverse);
            wide.q[at * DEV_PREPARE_CHUNK + half * DEV_PREPARE_HALF + lane] = (int8_t)code;
            sum += code;
        }
        sum = dev_warp_sum(sum);
        if (lane == 0)
            moe_math_quant_scale(most, sum, &wide.s[at], &wide.z[at]);
    }

    const struct moe_gpu_bytes &narrow = act.bytes[MOE_GPU_BLOCK_32];
    if (narrow.q) {
        uint32_t blocks = (act.cols + DEV_PREPARE_HALF - 1) / DEV_PREPARE_HALF;
        for (int half = 0; half < 2 && 2 * chunk + half < blocks; half++) {
            uint64_t at = i * blocks + 2 * chunk + half;
            int32_t code = dev_quant_code(values[half], moe_math_quant_inverse(largest[half]));
            int32_t sum = dev_warp_sum(code);
            narrow.q[at * DEV_PREPARE_HALF + lane] = (int8_t)code;
            if (lane == 0)
                moe_math_quant_scale(largest[half], sum, &narrow.s[at], &narrow.z[at]);
        }
    }
}

/* Chunks that an input of act has. */
static inline __host__ __device__ uint32_t dev_prepare_chunks(uint32_t cols)
{
    return (cols + DEV_PREPARE_CHUNK - 1) / DEV_PREPARE_CHUNK;
}

/* Whether act has room for any byte form. */
static inline __host__ __device__ bool dev_prepare_wanted(const struct moe_gpu_act &act)
{
    return act.bytes[MOE_GPU_BLOCK_32].q || act.bytes[MOE_GPU_BLOCK_64].q;
}

/* Chunk `chunk` of input i, whose values lie at x (memory of any kind), by one warp. */
static __device__ __forceinline__ void dev_prepare_chunk(const float *x, uint32_t chunk,
                                                         const struct moe_gpu_act &act, uint64_t i)
{
    uint32_t column = chunk * DEV_PREPARE_CHUNK + threadIdx.x % DEV_WARP;
    float values[2] = {
        column < act.cols ? x[column] : 0.0f,
        column + DEV_PREPARE_HALF < act.cols ? x[column + DEV_PREPARE_HALF] : 0.0f,
    };
    dev_prepare_values(values, chunk, act, i);
}

/* Prepares input i, whose act.cols values lie at x (shared or global), in the byte forms that have
 * room, with all threads of a block: blockDim.x is a multiple of 32, its other dimensions are 1.
 * The caller makes x complete and visible to all threads (by a barrier). */
static __device__ __forceinline__ void dev_prepare_row(const float *x,
                                                       const struct moe_gpu_act &act, uint64_t i)
{
    if (!dev_prepare_wanted(act))
        return;
    for (uint32_t chunk = threadIdx.x / DEV_WARP; chunk < dev_prepare_chunks(act.cols);
         chunk += blockDim.x / DEV_WARP)
        dev_prepare_chunk(x, chunk, act, i);
}

#endif
