/*
 * CUDA's language as the tests have it: kernels/ compiled for the processor (g++ -x c++).
 *
 * A block's threads are fibers (shim_block.cc); what they meet at is checked: all threads of a
 * block at the same __syncthreads, all 32 lanes of a warp at the same shuffle. What is wrong ends
 * the program with one line. Threads continue in an order that alternates from meeting to meeting,
 * and blocks run in a permuted one, so that a missing barrier or a race between blocks shows.
 * Dynamic shared memory is garbage at a block's start and has exactly the bytes asked for, so that
 * the address sanitizer sees what runs over; static shared memory keeps what the last block left.
 * How much of that a kernel has is not known here: one with dynamic memory counts as having 1 KiB
 * of it, which is more than any has (cuobjdump --dump-resource-usage).
 */
#ifndef TESTS_SHIM_CUDA_RUNTIME_H
#define TESTS_SHIM_CUDA_RUNTIME_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <tuple>
#include <type_traits>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline /* not always: compiling takes twice as long then */
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __shared__ static /* one grid is at work at a time */

/* ---- Types ---- */

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
};

#define SHIM_VECTOR_2(type, name)                                                                  \
    struct alignas(2 * sizeof(type)) name {                                                        \
        type x, y;                                                                                 \
    };                                                                                             \
    static inline name make_##name(type x, type y)                                                 \
    {                                                                                              \
        return {x, y};                                                                             \
    }
#define SHIM_VECTOR_4(type, name)                                                                  \
    struct alignas(4 * sizeof(type)) name {                                                        \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name make_##name(type x, type y, type z, type w)                                 \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
SHIM_VECTOR_2(int, int2)
SHIM_VECTOR_2(unsigned, uint2)
SHIM_VECTOR_2(float, float2)
SHIM_VECTOR_4(int, int4)
SHIM_VECTOR_4(unsigned, uint4)
SHIM_VECTOR_4(float, float4)
SHIM_VECTOR_4(unsigned char, uchar4)

/* ---- A thread's view ---- */

extern __thread uint3 threadIdx, blockIdx;
extern __thread dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* All threads of the block, the lanes of a warp. */
void shim_sync_block(int line);
void shim_sync_warp(unsigned mask, int line);
static inline void __syncthreads(int line = __builtin_LINE())
{
    shim_sync_block(line);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE())
{
    shim_sync_warp(mask, line);
}

/* Blocks run one after the other: what one wrote, the next ones see. */
static inline void __threadfence(void)
{
}

/* The 32 lanes' values of a shuffle; stays until the caller meets its warp again. */
const uint32_t *shim_exchange(unsigned mask, uint32_t value, int line);
/* This thread's lane of its warp. */
unsigned shim_lane(void);

template <class T> static inline T shim_shuffle(unsigned mask, T value, unsigned from, int line)
{
    static_assert(sizeof(T) == 4, "shuffles move 4 bytes");
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t *lanes = shim_exchange(mask, bits, line);
    if (from < warpSize)
        memcpy(&value, &lanes[from], sizeof bits);
    return value;
}
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int from, int line = __builtin_LINE())
{
    return shim_shuffle(mask, value, (unsigned)from % warpSize, line);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int line = __builtin_LINE())
{
    return shim_shuffle(mask, value, shim_lane() ^ (unsigned)bits, line);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int line = __builtin_LINE())
{
    return shim_shuffle(mask, value, shim_lane() + by, line);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int line = __builtin_LINE())
{
    return shim_shuffle(mask, value, shim_lane() - by, line);
}

/* Copies into shared memory (kernels/dev_copy.cuh). */
void shim_copy(void *to, const void *from, int n_bytes);
void shim_copies_end(void);
void shim_copies_wait(unsigned n_under_way);

/* c += a b over the warp's fragments of a 16 x 32 and a 32 x 8 matrix of bytes, laid out as the PTX
 * ISA has them (mma.m16n8k32); a is signed or not, b is signed. */
void shim_mma(int32_t c[4], const uint32_t a[4], const uint32_t b[2], bool a_signed, int line);

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T atomicAdd(T *p, std::common_type_t<T> value)
{
    static_assert(std::is_integral_v<T>, "a float's sum would depend on the order");
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicMax(T *p, std::common_type_t<T> value)
{
    T old = *p;
    while (old < value &&
           !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return old;
}

template <class To, class From> static inline To shim_bits_as(From from)
{
    To to;
    static_assert(sizeof to == sizeof from, "");
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline int __float_as_int(float v)
{
    return shim_bits_as<int>(v);
}
static inline unsigned __float_as_uint(float v)
{
    return shim_bits_as<unsigned>(v);
}
static inline float __int_as_float(int v)
{
    return shim_bits_as<float>(v);
}
static inline float __uint_as_float(unsigned v)
{
    return shim_bits_as<float>(v);
}

#define SHIM_MIN_MAX(type)                                                                         \
    static inline type min(type a, type b)                                                         \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    static inline type max(type a, type b)                                                         \
    {                                                                                              \
        return a < b ? b : a;                                                                      \
    }
SHIM_MIN_MAX(int)
SHIM_MIN_MAX(unsigned)
SHIM_MIN_MAX(unsigned long)

/* ---- Starting kernels ---- */

/* The dynamic shared memory of the block at work. */
void *shim_shared(void);
#define MOE_DYNAMIC_SHARED(type, name) type *name = (type *)shim_shared()

/* Whether the program has code for the device. */
bool shim_has_code(void);

/* Runs a grid now: `thread` once for each. */
void shim_run_grid(const char *name, dim3 grid, dim3 block, size_t shared_bytes,
                   const std::function<void()> &thread);
/* Asks it of the stream (or records it). */
void shim_ask_grid(cudaStream_t stream, const char *name, const void *kernel, dim3 grid, dim3 block,
                   size_t shared_bytes, std::function<void()> thread);

/* Bytes of dynamic shared memory that a kernel may have beyond the usual. */
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value);

struct cudaFuncAttributes {
    int maxThreadsPerBlock;
};
template <class... P>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*)(P...))
{
    attributes->maxThreadsPerBlock = 1024;
    return shim_has_code() ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}

/* What a kernel is called with is copied here, as a real start copies it. */
template <class T> struct shim_same {
    typedef T type;
};
template <class... P>
void shim_launch(cudaStream_t stream, const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                 size_t shared_bytes, typename shim_same<P>::type... arguments)
{
    static_assert((std::is_trivially_copyable_v<P> && ...), "arguments of kernels are plain data");
    std::tuple<P...> copy(arguments...);
    static_assert(sizeof copy <= 4096, "arguments of a kernel have at most 4096 bytes");
    shim_ask_grid(stream, name, (const void *)kernel, grid, block, shared_bytes,
                  [kernel, copy] { std::apply(kernel, copy); });
}

#define MOE_LAUNCH(g, kernel, grid, block, shared_bytes, ...)                                      \
    do {                                                                                           \
        if (gpu_ready(g) && gpu_allow_shared(g, kernel, shared_bytes)) {                           \
            (g)->n_launches++;                                                                     \
            shim_launch((g)->streams[MOE_GPU_COMPUTE], #kernel, kernel, grid, block, shared_bytes, \
                        ##__VA_ARGS__);                                                            \
            gpu_asked(g, MOE_GPU_COMPUTE, cudaGetLastError(), #kernel);                            \
        }                                                                                          \
    } while (0)

#endif
