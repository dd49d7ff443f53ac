/*
 * A device inside the backend: its streams, its first failure, and how kernels are started. The
 * tests' shim (tests/shim) has its own cuda_runtime.h with the same names, MOE_LAUNCH and
 * MOE_DYNAMIC_SHARED; everything else in kernels/ is compiled unchanged there.
 */
#ifndef MOE_KERNELS_GPU_CONTEXT_CUH
#define MOE_KERNELS_GPU_CONTEXT_CUH

#include <cuda_runtime.h>

#include "gpu.h"
#include "gpu_blas.cuh"
#include "gpu_ops.h"

/* REFUSED: a call failed while recording. The device gets no more work until the recording ends. */
enum gpu_recording { RECORDING_NONE, RECORDING_GOES_ON, RECORDING_REFUSED };

/* Host memory to be page-locked, piece by piece, and how much of it is. */
struct gpu_pin {
    uint8_t *at;
    uint64_t n_bytes, n_locked;
};

enum { GPU_STAGING_ROOMS = 4 };

struct moe_gpu {
    int index;
    struct moe_gpu_info info;
    cudaStream_t streams[MOE_GPU_N_STREAMS];
    uint64_t allocated_bytes;
    bool one_by_one; /* MOE_GPU_SYNC=1: every call waits for its work */
    struct gpu_pin *pins;
    uint32_t n_pins;
    /* For copies of memory that could not be page-locked; NULL: all could, or there is no room. */
    uint8_t *staging;
    cudaEvent_t staged[GPU_STAGING_ROOMS]; /* after the last copy from each */
    uint64_t unlocked_bytes, n_staged;
    struct moe_err failure;       /* the first; status MOE_OK: none */
    enum gpu_recording recording; /* of a graph */
    const char *refused_call;     /* RECORDING_REFUSED: which, and how */
    cudaError_t refused_with;
    uint64_t budget_bytes; /* limit of graphs with all allocated memory; 0: none */
    uint64_t n_launches;   /* of kernels */
    uint32_t *arrivals;    /* [GPU_ARRIVALS] of blocks (dev_arrivals.cuh); zeros between kernels */
    /* Prefill by cuBLAS (gpu_bf16.cu). */
    enum moe_gpu_math math;
    cublasHandle_t blas; /* NULL until it is needed */
    const struct gpu_blas *blas_functions;
    void *math_scratch;
    uint64_t math_scratch_bytes, bf16_rows;
    uint32_t bf16_from_rows; /* the rule which products these are */
    uint64_t bf16_from_work;
};

enum { GPU_ARRIVALS = MOE_GPU_OWN_BYTES / sizeof(uint32_t) };

/* False once the device has failed: it gets no more work. */
static inline bool gpu_works(const struct moe_gpu *g)
{
    return g->failure.status == MOE_OK;
}

/* Keeps the first failure; `what` names the call. While a graph is recorded the failure belongs to
 * the recording, and the device continues. Returns whether all is well. */
bool gpu_note(struct moe_gpu *g, cudaError_t result, const char *what);

/* The same for a call that gave work to the stream. With MOE_GPU_SYNC=1 waits for it, so that a
 * kernel's error has its name. */
bool gpu_asked(struct moe_gpu *g, enum moe_gpu_stream stream, cudaError_t result, const char *what);

/* Makes the device the calling thread's current one; false if it or the recording has failed. */
bool gpu_ready(struct moe_gpu *g);

/* moe_gpu_describe, with the reason if it fails. */
cudaError_t gpu_describe(int index, struct moe_gpu_info *info);

#ifdef __CUDACC__
#define MOE_NOINLINE __noinline__
#else
#define MOE_NOINLINE __attribute__((noinline))
#define __grid_constant__
#endif

/* Shared memory of a block: what every device allows by default, static and dynamic together, and
 * more than any kernel with dynamic memory has as static (cuobjdump --dump-resource-usage shows
 * it). A kernel that requests more gets 64 KiB on the smallest supported device. */
enum { GPU_USUAL_SHARED = 48 << 10, GPU_STATIC_SHARED = 1 << 10 };

/* Call before a kernel starts with that much dynamic shared memory: requests it if it may be more
 * than the default. False: not allowed. */
template <class KERNEL>
static inline bool gpu_allow_shared(struct moe_gpu *g, KERNEL kernel, uint64_t bytes)
{
    return bytes + GPU_STATIC_SHARED <= GPU_USUAL_SHARED ||
           gpu_note(g,
                    cudaFuncSetAttribute((const void *)kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                    "cudaFuncSetAttribute");
}

#ifndef MOE_LAUNCH
/* Starts a kernel on the compute stream: grid and block as dim3 or numbers, bytes of dynamic shared
 * memory (at most 63 KiB), arguments. A template's name with a comma goes in parentheses. */
#define MOE_LAUNCH(g, kernel, grid, block, shared_bytes, ...)                                      \
    do {                                                                                           \
        if (gpu_ready(g) && gpu_allow_shared(g, kernel, shared_bytes)) {                           \
            (g)->n_launches++;                                                                     \
            (kernel)<<<grid, block, shared_bytes, (g)->streams[MOE_GPU_COMPUTE]>>>(__VA_ARGS__);   \
            gpu_asked(g, MOE_GPU_COMPUTE, cudaGetLastError(), #kernel);                            \
        }                                                                                          \
    } while (0)
/* Declares `type *name`: a kernel's dynamic shared memory, 16-byte aligned. */
#define MOE_DYNAMIC_SHARED(type, name)                                                             \
    extern __shared__ __align__(16) unsigned char moe_dynamic_shared[];                            \
    type *name = reinterpret_cast<type *>(moe_dynamic_shared)
#endif

#endif
