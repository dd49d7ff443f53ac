/*
 * Routing rows, a warp each (dev_route.cuh), and softmax of rows.
 */
#include "dev_route.cuh"
#include "gpu_context.cuh"

static __global__ void __launch_bounds__(DEV_WARP) route_kernel(struct moe_gpu_router r)
{
    MOE_DYNAMIC_SHARED(float, shared);
    dev_route_row(r, blockIdx.x, shared);
}

extern "C" void moe_gpu_route(struct moe_gpu *g, const struct moe_gpu_router *r, uint32_t n)
{
    if (n > 0)
        MOE_LAUNCH(g, route_kernel, n, DEV_WARP, dev_route_bytes(r->n_experts), *r);
}

/* ---- Softmax of rows ---- */

enum { SOFTMAX_THREADS = 256 };

static __global__ void __launch_bounds__(SOFTMAX_THREADS)
    softmax_kernel(float *rows, uint64_t stride, uint32_t cols, const float *bias)
{
    __shared__ struct dev_stage stage;
    float *x = rows + blockIdx.x * stride, largest = -INFINITY;
    for (uint32_t i = threadIdx.x; i < cols; i += blockDim.x) {
        float v = bias ? x[i] + bias[i] : x[i];
        x[i] = v;
        largest = v > largest ? v : largest;
    }
    largest = dev_block_max(&stage, largest);
    float sum = dev_block_sum<false>(
        &stage, cols, [&](uint32_t i) { return x[i]; },
        [&](uint32_t i, float v) { return x[i] = moe_math_exp(v - largest); });
    for (uint32_t i = threadIdx.x; i < cols; i += blockDim.x)
        x[i] /= sum;
}

extern "C" void moe_gpu_softmax(struct moe_gpu *g, float *x, uint64_t stride, uint32_t n,
                                uint32_t cols, const float *bias)
{
    if (n > 0)
        MOE_LAUNCH(g, softmax_kernel, n, SOFTMAX_THREADS, 0, x, stride, cols, bias);
}
