/*
 * Products of bytes with 32-bit sums: four at a time, and by the tensor cores. All are exact, so
 * any thread may add any part. The tests' shim has its own.
 */
#ifndef MOE_KERNELS_DEV_INTEGER_CUH
#define MOE_KERNELS_DEV_INTEGER_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Whether the code being compiled may use dev_mma_*: from compute capability 8.0 on. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define DEV_HAS_MMA 1
#else
#define DEV_HAS_MMA 0
#endif

/* sum + the products of the four bytes of a (unsigned) and of b (signed). */
static __device__ __forceinline__ int32_t dev_dp4a(uint32_t a, int32_t b, int32_t sum)
{
#ifdef __CUDACC__
    int32_t result;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
    return result;
#else
    for (int k = 0; k < 4; k++)
        sum += (int32_t)(uint8_t)(a >> 8 * k) * (int8_t)((uint32_t)b >> 8 * k);
    return sum;
#endif
}

/* The same with both signed. */
static __device__ __forceinline__ int32_t dev_dp4a_ss(int32_t a, int32_t b, int32_t sum)
{
#ifdef __CUDACC__
    int32_t result;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
    return result;
#else
    for (int k = 0; k < 4; k++)
        sum += (int8_t)((uint32_t)a >> 8 * k) * (int8_t)((uint32_t)b >> 8 * k);
    return sum;
#endif
}

/*
 * c += a b, by all lanes of a warp together: a is 16 x 32 bytes, b 32 x 8, c 16 x 8 sums. With g =
 * lane / 4 and t = lane % 4 a lane holds, four bytes to a register, lowest first,
 *
 *     a[0] row g      columns 4t .. 4t+3       a[2] row g      columns 16+4t .. 16+4t+3
 *     a[1] row g + 8  columns 4t .. 4t+3       a[3] row g + 8  columns 16+4t .. 16+4t+3
 *     b[0] rows 4t .. 4t+3 of column g         b[1] rows 16+4t .. 16+4t+3 of column g
 *     c[0], c[1] row g, columns 2t, 2t+1       c[2], c[3] row g + 8, columns 2t, 2t+1
 *
 * Only where DEV_HAS_MMA: code for older devices stops the kernel here.
 */
#ifdef __CUDACC__
#if DEV_HAS_MMA
#define DEV_MMA(type, c, a, b)                                                                     \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 "                                   \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                          \
        : "+r"((c)[0]), "+r"((c)[1]), "+r"((c)[2]), "+r"((c)[3])                                   \
        : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
#else
#define DEV_MMA(type, c, a, b) __trap()
#endif
static __device__ __forceinline__ void dev_mma_u8s8(int32_t c[4], const uint32_t a[4],
                                                    const uint32_t b[2])
{
    DEV_MMA("u8", c, a, b);
}
static __device__ __forceinline__ void dev_mma_s8s8(int32_t c[4], const uint32_t a[4],
                                                    const uint32_t b[2])
{
    DEV_MMA("s8", c, a, b);
}
#else
static inline void dev_mma_u8s8(int32_t c[4], const uint32_t a[4], const uint32_t b[2],
                                int line = __builtin_LINE())
{
    shim_mma(c, a, b, false, line);
}
static inline void dev_mma_s8s8(int32_t c[4], const uint32_t a[4], const uint32_t b[2],
                                int line = __builtin_LINE())
{
    shim_mma(c, a, b, true, line);
}
#endif

#endif
