/*
 * Inputs of products into their byte forms.
 *
 * A warp takes 64 columns of one input, so that even a single input spreads over the device: its
 * work is a few loads and ten shuffles, its time the launch's. One block per input
 * would take one round per 512 columns where this takes one in all.
 */
#include "dev_prepare.cuh"
#include "gpu_context.cuh"

enum { PREPARE_WARPS = 4 };

struct prepare {
    const float *x;
    uint64_t stride;
    uint32_t n, part_stride;
    struct moe_gpu_act act;
};

static __global__ void prepare_kernel(struct prepare p)
{
    uint32_t chunk = blockIdx.y * PREPARE_WARPS + threadIdx.x / DEV_WARP;
    if (chunk >= dev_prepare_chunks(p.act.cols))
        return; /* a whole warp */
    uint64_t row = blockIdx.x % p.n, part = blockIdx.x / p.n;
    dev_prepare_chunk(p.x + row * p.stride + part * p.part_stride, chunk, p.act, blockIdx.x);
}

extern "C" void moe_gpu_prepare(struct moe_gpu *g, const float *x, uint64_t stride, uint32_t n,
                                uint32_t n_parts, uint32_t part_stride,
                                const struct moe_gpu_act *act)
{
    struct prepare p = {x, stride, n, part_stride, *act};
    uint32_t chunks = dev_prepare_chunks(act->cols);
    if (dev_prepare_wanted(*act) && n > 0 && n_parts > 0 && chunks > 0)
        MOE_LAUNCH(g, prepare_kernel,
                   dim3(n * n_parts, (chunks + PREPARE_WARPS - 1) / PREPARE_WARPS),
                   PREPARE_WARPS * DEV_WARP, 0, p);
}
