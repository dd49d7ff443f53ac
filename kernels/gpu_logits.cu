/*
 * After the head's product: bias and scale, the most likely token.
 *
 * argmax of few rows spreads each over blocks; the last block to end compares the bests of all: one
 * processor took 63 us on a H200 to read a vocabulary of 150000.
 */
#include "dev_arrivals.cuh"
#include "dev_vector.cuh"
#include "gpu_context.cuh"

/* ---- Bias and scale ---- */

enum { FINISH_THREADS = 256 };

static __global__ void finish_logits_kernel(float *logits, uint64_t stride, uint32_t vocab,
                                            const float *bias, float scale)
{
    float *x = logits + blockIdx.x * stride;
    uint32_t i = blockIdx.y * FINISH_THREADS + threadIdx.x;
    if (i < vocab)
        x[i] = (bias ? x[i] + bias[i] : x[i]) * scale;
}

extern "C" void moe_gpu_finish_logits(struct moe_gpu *g, float *logits, uint64_t stride, uint32_t n,
                                      uint32_t vocab, const float *bias, float scale)
{
    if (n > 0 && (bias || scale != 1))
        MOE_LAUNCH(g, finish_logits_kernel, dim3(n, (vocab + FINISH_THREADS - 1) / FINISH_THREADS),
                   FINISH_THREADS, 0, logits, stride, vocab, bias, scale);
}

/* ---- The largest ---- */

enum {
    ARGMAX_THREADS = 1024,
    ARGMAX_EACH = 4, /* logits of a thread, where a row has blocks enough */
    ARGMAX_BLOCKS = 64,
    ARGMAX_ROWS = 8, /* that are spread over blocks */
};

/* The best of a block's part of a row. */
struct part_best {
    uint32_t rank, index;
};

static_assert(ARGMAX_ROWS * (1 + 2 * ARGMAX_BLOCKS) <= GPU_ARRIVALS, "room for each row's bests");

/* arrivals: ARGMAX_ROWS counters, then bests; unused where a row has one block. */
static __global__ void __launch_bounds__(ARGMAX_THREADS)
    argmax_kernel(const float *logits, uint64_t stride, uint32_t vocab, uint32_t *arrivals,
                  uint32_t *ids)
{
    __shared__ struct part_best warps[DEV_WARP];
    const float *x = logits + blockIdx.y * stride;
    struct part_best best = {0, UINT32_MAX};
    uint32_t warp = threadIdx.x / DEV_WARP, lane = threadIdx.x % DEV_WARP, n = gridDim.x;
    uint32_t step = n * ARGMAX_THREADS;
#pragma unroll 4
    for (uint32_t i = blockIdx.x * ARGMAX_THREADS + threadIdx.x; i < vocab; i += step)
        dev_keep_better(&best.rank, &best.index, dev_rank(x[i]), i);
    dev_warp_best(&best.rank, &best.index);
    if (lane == 0)
        warps[warp] = best;
    __syncthreads();
    if (warp == 0) {
        best = warps[lane];
        dev_warp_best(&best.rank, &best.index);
    }
    if (n > 1) {
        struct part_best *bests =
            (struct part_best *)(arrivals + ARGMAX_ROWS) + blockIdx.y * ARGMAX_BLOCKS;
        if (threadIdx.x == 0)
            bests[blockIdx.x] = best;
        if (!dev_last_arrival(&arrivals[blockIdx.y], n) || warp > 0)
            return;
        best = {0, UINT32_MAX};
        for (uint32_t i = lane; i < n; i += DEV_WARP) {
            dev_keep_better(&best.rank, &best.index, bests[i].rank, bests[i].index);
            bests[i] = {0, 0}; /* as other kernels expect their counters */
        }
        dev_warp_best(&best.rank, &best.index);
    }
    if (threadIdx.x == 0)
        ids[blockIdx.y] = best.rank == DEV_RANK_NAN ? UINT32_MAX : best.index;
}

extern "C" void moe_gpu_argmax(struct moe_gpu *g, const float *logits, uint64_t stride, uint32_t n,
                               uint32_t vocab, uint32_t *ids)
{
    uint32_t blocks = (vocab - 1) / (ARGMAX_THREADS * ARGMAX_EACH) + 1;
    if (n > ARGMAX_ROWS)
        blocks = 1;
    else if (blocks > ARGMAX_BLOCKS)
        blocks = ARGMAX_BLOCKS;
    if (n > 0)
        MOE_LAUNCH(g, argmax_kernel, dim3(blocks, n), ARGMAX_THREADS, 0, logits, stride, vocab,
                   g->arrivals, ids);
}
