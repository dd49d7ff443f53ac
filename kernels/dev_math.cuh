/* The fixed tree that joins 16 running sums (kern/kern_math.h), over lanes of a warp. */
#ifndef MOE_KERNELS_DEV_MATH_CUH
#define MOE_KERNELS_DEV_MATH_CUH

#include <cuda_runtime.h>

/* Each half of the warp holds 16 running sums, one per lane; all lanes get their half's total. The
 * tree's sums are symmetric: lane i and lane i ^ h both have the sum of the two, in one rounding.
 */
static __device__ __forceinline__ float dev_join16(float sum)
{
    for (int half = 8; half > 0; half /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, half);
    return sum;
}

#endif
