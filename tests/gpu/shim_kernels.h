/* Small kernels with which test_shim.c tries the shim, and through which tests of kernels see
 * internal state; all of them run on a GPU, too. */
#ifndef TESTS_GPU_SHIM_KERNELS_H
#define TESTS_GPU_SHIM_KERNELS_H

#include <stdint.h>

#include "gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[b] = sum of in[b * n .. b * n + n), by a tree over dynamic shared memory; n: a power of two,
 * at most 1024. */
void try_block_sum(struct moe_gpu *g, const int32_t *in, uint32_t n_blocks, uint32_t n,
                   int32_t *out);
/* What the shuffles give to each of 64 lanes that hold 100 + lane: out[4][64], xor 5, down 3, up 3,
 * from lane 7; then, in the fifth 64, the sum of the squares of the warp's lanes. */
void try_shuffles(struct moe_gpu *g, int32_t *out);
/* out[i] += 1 for i < n, by blocks whose last threads have nothing to do; three dimensions. */
void try_ragged(struct moe_gpu *g, int32_t *out, uint32_t n);
/* out[0] = number of threads that ran, out[1] = the largest of their numbers, by atomics. */
void try_atomics(struct moe_gpu *g, uint32_t *out, uint32_t n_blocks, uint32_t n);
/* c[16][8] += a[16][32] b[32][8] by one warp. */
void try_mma(struct moe_gpu *g, const uint8_t *a, const int8_t *b, int32_t *c, bool a_signed);
/* out[0] = dev_dp4a(a, b, c), out[1] = dev_dp4a_ss. */
void try_dp4a(struct moe_gpu *g, uint32_t a, int32_t b, int32_t c, int32_t *out);
/* out[i] = the fixed tree's sum of in[i / 16 * 16 ..+ 16), i < 32. */
void try_join16(struct moe_gpu *g, const float *in, float *out);
/* out[i] = in[n - 1 - i] by way of shared memory, with or (wrongly) without a barrier. */
void try_reverse(struct moe_gpu *g, const int32_t *in, int32_t *out, uint32_t n, bool barrier);
/* Each of two blocks: out[i] = in[n - 1 - i], out[n + i] = in[2 n - 1 - i] for i < n, by way of
 * copies into shared memory in two groups, waiting for the first before it is read, or (wrongly)
 * afterwards. Blocks follow each other in out. */
void try_copies(struct moe_gpu *g, const int32_t *in, int32_t *out, uint32_t n, bool wait);

/* How many of the counters at which blocks arrive (dev_arrivals.cuh) are not 0 now. */
uint32_t try_arrivals(struct moe_gpu *g);

/* Kernels that break a rule, by one block of 64 threads; never for a GPU, but for the last, which
 * writes to `out` though it is no memory: a GPU is lost by it. */
enum try_fault {
    TRY_ENDED_BEFORE_BARRIER,
    TRY_OTHER_BARRIER,
    TRY_LANES_ABSENT,
    TRY_PART_OF_A_WARP,
    TRY_BARRIER_AND_SHUFFLE,
    TRY_COPY_LEFT,
    TRY_OVERRUN,
    TRY_WILD_WRITE,
};
void try_fault(struct moe_gpu *g, enum try_fault fault, int32_t *out);

#ifdef __cplusplus
}
#endif

#endif
