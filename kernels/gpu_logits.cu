/*
 * After the head's product: bias and scale, the most likely token.
 *
 * argmax has one block of 1024 threads per row: a vocabulary of 150000 is 600 KB that one processor
 * reads in some ten microseconds. Spreading it over blocks needs a second launch, which takes about
 * as long to start.
 */
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

enum { ARGMAX_THREADS = 1024 };

static __global__ void __launch_bounds__(ARGMAX_THREADS)
    argmax_kernel(const float *logits, uint64_t stride, uint32_t vocab, uint32_t *ids)
{
    __shared__ uint32_t ranks[DEV_WARP], indices[DEV_WARP]; /* of warps */
    const float *x = logits + blockIdx.x * stride;
    uint32_t rank = 0, index = UINT32_MAX, warp = threadIdx.x / DEV_WARP;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < vocab; i += ARGMAX_THREADS)
        dev_keep_better(&rank, &index, dev_rank(x[i]), i);
    dev_warp_best(&rank, &index);
    if (threadIdx.x % DEV_WARP == 0) {
        ranks[warp] = rank;
        indices[warp] = index;
    }
    __syncthreads();
    if (warp > 0)
        return;
    rank = ranks[threadIdx.x];
    index = indices[threadIdx.x];
    dev_warp_best(&rank, &index);
    if (threadIdx.x == 0)
        ids[blockIdx.x] = rank == DEV_RANK_NAN ? UINT32_MAX : index;
}

extern "C" void moe_gpu_argmax(struct moe_gpu *g, const float *logits, uint64_t stride, uint32_t n,
                               uint32_t vocab, uint32_t *ids)
{
    if (n > 0)
        MOE_LAUNCH(g, argmax_kernel, n, ARGMAX_THREADS, 0, logits, stride, vocab, ids);
}
