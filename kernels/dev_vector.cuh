/*
 * Reductions over vectors as kern.h defines them, by a warp or by a block.
 *
 * A sum of 16 running sums is a chain per lane: element i is added to lane i % 16 after element
 * i - 16, so 16 threads add, and others cannot share these additions. They keep the elements ready
 * in shared memory, for whole blocks, piece by piece.
 */
#ifndef MOE_KERNELS_DEV_VECTOR_CUH
#define MOE_KERNELS_DEV_VECTOR_CUH

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#include "dev_math.cuh"
#include "dev_prepare.cuh" /* DEV_WARP, DEV_FULL_MASK */
#include "kern/kern_math.h"

enum { DEV_STAGE = 2048, DEV_MAX_WARPS = 32, DEV_BATCH = 8, DEV_FETCH = 32 };
static_assert(DEV_STAGE % (DEV_FETCH * MOE_LANES) == 0, "fetched in whole groups");

/* Shared memory of a block's reductions. */
struct dev_stage {
    float values[DEV_STAGE];
    float of_warps[DEV_MAX_WARPS];
    float result;
};

/* Floats as whole numbers in their order: both zeros are the same, NaN lies above all others, none
 * is 0. */
#define DEV_RANK_NAN 0xffffffffu
static __device__ __forceinline__ uint32_t dev_rank(float v)
{
    uint32_t bits = moe_f32_bits(v + 0.0f);
    return v != v ? DEV_RANK_NAN : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

/* Keeps the better of two candidates in the first: the higher rank, among equals the lower index.
 */
static __device__ __forceinline__ void dev_keep_better(uint32_t *rank, uint32_t *index,
                                                       uint32_t rank_b, uint32_t index_b)
{
    if (rank_b > *rank || (rank_b == *rank && index_b < *index)) {
        *rank = rank_b;
        *index = index_b;
    }
}

/* ---- By a warp ----
 * All 32 threads call. */

/* The largest of the threads' values, in all threads; NaN does not count. */
static __device__ __forceinline__ float dev_warp_max(float v)
{
    for (int offset = DEV_WARP / 2; offset > 0; offset /= 2) {
        float other = __shfl_xor_sync(DEV_FULL_MASK, v, offset);
        v = other > v || v != v ? other : v;
    }
    return v;
}

/* The best of the threads' candidates, in all threads. */
static __device__ __forceinline__ void dev_warp_best(uint32_t *rank, uint32_t *index)
{
    uint32_t best = dev_warp_largest(*rank);
    *index = dev_warp_least(*rank == best ? *index : UINT32_MAX);
    *rank = best;
}

/* Joins the running sums that threads 0 to 15 hold by the fixed tree; the sum is in all threads. */
static __device__ __forceinline__ float dev_warp_join(float lane)
{
    return __shfl_sync(DEV_FULL_MASK, dev_join16(lane), 0);
}

/* The 16-lane fma sum of the squares of value(i), i < n. */
template <typename Value>
static __device__ __forceinline__ float dev_warp_squares(uint32_t n, Value value)
{
    float sum = 0;
    uint32_t lane = threadIdx.x % DEV_WARP;
    if (lane < MOE_LANES) {
#pragma unroll 4
        for (uint32_t i = lane; i < n; i += MOE_LANES) {
            float v = value(i);
            sum = fmaf(v, v, sum);
        }
    }
    return dev_warp_join(sum);
}

/* ---- By a block ----
 * All threads call; blockDim.x is a multiple of 32 and the only dimension. There are barriers
 * inside: what threads wrote before is visible to all others afterwards. */

/* Calls keep(i, load(i)), i < n, in thread i % blockDim.x. Several values are loaded before any is
 * kept, so that the device's memory is awaited once for all of them: load only reads, without
 * conditions if it can; past the end it reads the last one again. */
template <typename Load, typename Keep>
static __device__ __forceinline__ void dev_block_map(uint32_t n, Load load, Keep keep)
{
    for (uint32_t first = threadIdx.x; first < n; first += DEV_BATCH * blockDim.x) {
        decltype(load(0u)) loaded[DEV_BATCH];
#pragma unroll
        for (uint32_t k = 0; k < DEV_BATCH; k++)
            loaded[k] = load(min(first + k * blockDim.x, n - 1));
#pragma unroll
        for (uint32_t k = 0; k < DEV_BATCH; k++)
            if (first + k * blockDim.x < n)
                keep(first + k * blockDim.x, loaded[k]);
    }
}

/* The largest of the threads' values, in all threads; NaN does not count. */
static __device__ __forceinline__ float dev_block_max(struct dev_stage *stage, float v)
{
    uint32_t n_warps = blockDim.x / DEV_WARP, warp = threadIdx.x / DEV_WARP;
    v = dev_warp_max(v);
    __syncthreads();
    if (threadIdx.x % DEV_WARP == 0)
        stage->of_warps[warp] = v;
    __syncthreads();
    v = stage->of_warps[0];
    for (uint32_t i = 1; i < n_warps; i++)
        v = stage->of_warps[i] > v || v != v ? stage->of_warps[i] : v;
    return v;
}

/* The 16-lane sum of value(i, load(i)), i < n, or the fma sum of its squares, in all threads. load
 * is as for dev_block_map; value is called once for each i, in thread i % blockDim.x if blockDim.x
 * divides DEV_STAGE: it may have side effects that this thread relies on later. */
template <bool SQUARES, typename Load, typename Value>
static __device__ __forceinline__ float dev_block_sum(struct dev_stage *stage, uint32_t n,
                                                      Load load, Value value)
{
    float sum = 0;
    for (uint32_t first = 0; first < n; first += DEV_STAGE) {
        uint32_t m = n - first < DEV_STAGE ? n - first : (uint32_t)DEV_STAGE;
        __syncthreads();
        dev_block_map(
            m, [&](uint32_t i) { return load(first + i); },
            [&](uint32_t i, const auto &v) { stage->values[i] = value(first + i, v); });
        __syncthreads();
        for (uint32_t i = threadIdx.x; threadIdx.x < MOE_LANES && i < m;
             i += DEV_FETCH * MOE_LANES) {
            float v[DEV_FETCH];
#pragma unroll
            for (uint32_t k = 0; k < DEV_FETCH; k++) /* some perhaps past m, within the stage */
                v[k] = stage->values[i + k * MOE_LANES];
#pragma unroll
            for (uint32_t k = 0; k < DEV_FETCH; k++)
                if (i + k * MOE_LANES < m)
                    sum = SQUARES ? fmaf(v[k], v[k], sum) : sum + v[k];
        }
    }
    if (threadIdx.x < DEV_WARP) {
        sum = dev_warp_join(sum);
        if (threadIdx.x == 0)
            stage->result = sum;
    }
    __syncthreads();
    return stage->result;
}

#endif
