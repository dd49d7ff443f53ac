/*
 * Between the products: adding to the residual stream, norms, the end of a MoE layer.
 *
 * add_norm has one block per row, because a norm needs the whole row: residual, norm and the byte
 * forms are one launch instead of four, and the row stays in the cache of its processor. Its time
 * in decode is the chain of cols / 16 fma per lane that the definition requires (a few hundred
 * nanoseconds at 4096 columns) beside two passes over the row. combine is a thread per value, or
 * the beginning of such a block where a norm follows.
 */
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

enum { COMBINE_THREADS = 128, COMBINE_BATCH = 4 };

static __global__ void combine_kernel(struct moe_gpu_combine c)
{
    uint32_t i = blockIdx.y * COMBINE_THREADS + threadIdx.x;
    if (i < c.cols)
        dev_combine_values<1>(c, blockIdx.x, i, 1);
}

static __global__ void __launch_bounds__(NORM_THREADS)
    combine_norm_kernel(struct moe_gpu_combine c, struct moe_gpu_norm norm)
{
    __shared__ struct dev_stage stage;
    for (uint32_t i = threadIdx.x; i < c.cols; i += COMBINE_BATCH * NORM_THREADS)
        dev_combine_values<COMBINE_BATCH>(c, blockIdx.x, i, NORM_THREADS);
    __syncthreads();
    dev_add_norm_row(norm, blockIdx.x, &stage);
}

extern "C" void moe_gpu_combine(struct moe_gpu *g, const struct moe_gpu_combine *c,
                                const struct moe_gpu_norm *norm, uint32_t n)
{
    dim3 grid(n, (c->cols + COMBINE_THREADS - 1) / COMBINE_THREADS);
    if (n == 0)
        return;
    if (norm)
        MOE_LAUNCH(g, combine_norm_kernel, n, NORM_THREADS, 0, *c, *norm);
    else
        MOE_LAUNCH(g, combine_kernel, grid, COMBINE_THREADS, 0, *c);
}
