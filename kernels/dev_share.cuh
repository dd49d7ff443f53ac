/*
 * Adds integers over the lanes of a warp so that every lane ends up with some of the sums: half as
 * many shuffles as giving all sums to all lanes, and the work on them is spread, too.
 */
#ifndef MOE_KERNELS_DEV_SHARE_CUH
#define MOE_KERNELS_DEV_SHARE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/*
 * Adds v[0 .. HAVE) over the lanes whose numbers differ in the bits HIGH, HIGH/2, ..., LOW (powers
 * of two). At every bit a lane keeps the lower or the upper half of its values, by that bit of its
 * number; once it has one, all keep it. The sums a lane is left with begin at v[0]; returns the
 * index of the first. *owner: set to false in all but one of the lanes that hold the same sum.
 */
template <int HAVE, int HIGH, int LOW>
static __device__ __forceinline__ uint32_t dev_share_sums(int32_t *v, uint32_t lane, bool *owner)
{
    if constexpr (HIGH < LOW) {
        return 0;
    } else if constexpr (HAVE > 1) {
        const int half = HAVE / 2;
        bool upper = lane & HIGH;
#pragma unroll
        for (int k = 0; k < half; k++) {
            int32_t give = upper ? v[k] : v[k + half];
            v[k] = (upper ? v[k + half] : v[k]) + __shfl_xor_sync(0xffffffffu, give, HIGH);
        }
        return (upper ? half : 0) + dev_share_sums<half, HIGH / 2, LOW>(v, lane, owner);
    } else {
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], HIGH);
        if (lane & HIGH)
            *owner = false;
        return dev_share_sums<1, HIGH / 2, LOW>(v, lane, owner);
    }
}

#endif
