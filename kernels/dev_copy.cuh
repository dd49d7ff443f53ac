/*
 * Asynchronous copies from a device's memory into shared memory. Copies requested since the last
 * dev_copies_end() form a group; groups arrive in order. Arrived data is visible to the requesting
 * thread, and to others after a barrier that it meets afterwards. Devices older than 8.0 copy at
 * once.
 */
#ifndef MOE_KERNELS_DEV_COPY_CUH
#define MOE_KERNELS_DEV_COPY_CUH

#include <cuda_runtime.h>
#include <stdint.h>

template <int N> struct dev_copied {
    typedef uint4 type;
};
template <> struct dev_copied<4> {
    typedef uint32_t type;
};
template <> struct dev_copied<8> {
    typedef uint2 type;
};

/* N bytes: 4, 8 or 16; both addresses are multiples of N. */
template <int N> static __device__ __forceinline__ void dev_copy(void *to, const void *from)
{
    static_assert(N == 4 || N == 8 || N == 16, "sizes that there are");
#ifndef __CUDACC__
    shim_copy(to, from, N);
#elif __CUDA_ARCH__ >= 800
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    if (N == 16) /* bypasses the first-level cache: weights are read once */
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(N)
                     : "memory");
#else
    typedef typename dev_copied<N>::type type;
    *(type *)to = __ldg((const type *)from);
#endif
}

static __device__ __forceinline__ void dev_copies_end(void)
{
#ifndef __CUDACC__
    shim_copies_end();
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most N of this thread's groups are in flight. */
template <int N> static __device__ __forceinline__ void dev_copies_wait(void)
{
#ifndef __CUDACC__
    shim_copies_wait(N);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

#endif
