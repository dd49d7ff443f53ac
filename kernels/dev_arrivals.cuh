/*
 * Handing over within one launch, without waiting: each block counts itself at a counter once its
 * results are written, and the last one continues with the results of all. What would have been a
 * separate launch becomes the end of the one before.
 */
#ifndef MOE_KERNELS_DEV_ARRIVALS_CUH
#define MOE_KERNELS_DEV_ARRIVALS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Whether this block is the last of n to arrive at the counter, which is then reset to 0 for later
 * kernels. All threads call, in blocks of one dimension. The last block's threads see what the
 * other blocks wrote before, but not through __ldg. */
static __device__ __forceinline__ bool dev_last_arrival(uint32_t *counter, uint32_t n)
{
    __shared__ bool last;
    __syncthreads(); /* all threads have written, and read `last` of an earlier call */
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(counter, 1u) + 1 == n;
        if (last) {
            *counter = 0;
            __threadfence();
        }
    }
    __syncthreads();
    return last;
}

#endif
