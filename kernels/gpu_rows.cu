/*
 * Between the products: adding to the residual stream, norms, the end of a MoE layer.
 *
 * add_norm has one block per row, because a norm needs the whole row: residual, norm and the byte
 * forms are one launch instead of four, and the row stays in the cache of its processor. Its time
 * in decode is the chain of cols / 16 fma per lane that the definition requires (a few hundred
 * nanoseconds at 4096 columns) beside two passes over the row. combine is a thread per value; with
 * few rows the block that finishes last continues with their norm.
 */
#include "dev_arrivals.cuh"
#include "dev_rows.cuh"
#include "gpu_context.cuh"

/* ---- Adding and norm ---- */

enum { NORM_THREADS = 512 };

static __global__ void __launch_bounds__(NORM_THREADS) add_norm_kernel(struct moe_gpu_norm n)
{
    __shared__ struct dev_stage stage;
    dev_add_norm_row(n, blockIdx.x, &stage);
}

extern "C" void moe_gpu_add_norm(struct moe_gpu *g, const struct moe_gpu_norm *norm, uint32_t n)
{
    if (n > 0)
        MOE_LAUNCH(g, add_norm_kernel, n, NORM_THREADS, 0, *norm);
}

/* ---- The end of a MoE layer ---- */

enum { COMBINE_THREADS = 128 };

static __global__ void combine_kernel(struct moe_gpu_combine c)
{
    uint32_t i = blockIdx.y * COMBINE_THREADS + threadIdx.x;
    if (i < c.cols)
        dev_combine_value(c, blockIdx.x, i);
}

static __global__ void combine_norm_kernel(struct moe_gpu_combine c, struct moe_gpu_norm norm,
                                           uint32_t *arrivals)
{
    __shared__ struct dev_stage stage;
    uint32_t row = blockIdx.x, i = blockIdx.y * COMBINE_THREADS + threadIdx.x;
    if (i < c.cols)
        dev_combine_value(c, row, i);
    if (dev_last_arrival(arrivals + row, gridDim.y))
        dev_add_norm_row(norm, row, &stage);
}

extern "C" void moe_gpu_combine(struct moe_gpu *g, const struct moe_gpu_combine *c,
                                const struct moe_gpu_norm *norm, uint32_t n)
{
    dim3 grid(n, (c->cols + COMBINE_THREADS - 1) / COMBINE_THREADS);
    if (n > 0 && norm && n <= MOE_GPU_JOINED_ROWS) {
        MOE_LAUNCH(g, combine_norm_kernel, grid, COMBINE_THREADS, 0, *c, *norm, g->arrivals);
        return;
    }
    if (n > 0)
        MOE_LAUNCH(g, combine_kernel, grid, COMBINE_THREADS, 0, *c);
    if (norm)
        moe_gpu_add_norm(g, norm, n);
}
