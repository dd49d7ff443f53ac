/* Lists GPUs and measures their links. */
#include <stdio.h>
#include <string.h>

#include "gpu_context.cuh"

/* Clears the error of a call that may fail, so that the next check of a launch does not report it.
 */
static cudaError_t clear_error(cudaError_t result)
{
    if (result != cudaSuccess)
        (void)cudaGetLastError();
    return result;
}

extern "C" const char *moe_gpu_build(void)
{
    static char version[16];
    snprintf(version, sizeof version, "%d.%d", CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100);
    return version;
}

extern "C" int moe_gpu_count(void)
{
    int n = 0;
    return clear_error(cudaGetDeviceCount(&n)) == cudaSuccess ? n : 0;
}

cudaError_t gpu_describe(int index, struct moe_gpu_info *info)
{
    cudaDeviceProp prop;
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t result = clear_error(cudaGetDeviceProperties(&prop, index));
    if (result == cudaSuccess)
        result = clear_error(cudaSetDevice(index));
    if (result == cudaSuccess)
        result = clear_error(cudaMemGetInfo(&free_bytes, &total_bytes));
    if (result != cudaSuccess)
        return result;
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "%.127s", prop.name);
    info->memory_bytes = total_bytes;
    info->memory_free_bytes = free_bytes;
    info->compute_major = prop.major;
    info->compute_minor = prop.minor;
    info->n_processors = prop.multiProcessorCount;
    info->unified = prop.integrated != 0;
    return cudaSuccess;
}

extern "C" int moe_gpu_describe(int index, struct moe_gpu_info *info)
{
    if (index < 0 || index >= moe_gpu_count())
        return -1;
    return gpu_describe(index, info) == cudaSuccess ? 0 : -1;
}

/* The time of one copy by the device's own clock; negative when it failed. */
static double time_copy(void *to, const void *from, size_t n_bytes, cudaEvent_t begin,
                        cudaEvent_t end)
{
    float milliseconds = 0;
    if (cudaEventRecord(begin, 0) != cudaSuccess ||
        cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyHostToDevice, 0) != cudaSuccess ||
        cudaEventRecord(end, 0) != cudaSuccess || cudaEventSynchronize(end) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, begin, end) != cudaSuccess)
        return -1;
    return 1e-3 * milliseconds;
}

extern "C" int moe_gpu_copy_seconds(int index, uint64_t n_bytes, int n_runs, double *seconds)
{
    void *from = NULL, *to = NULL;
    cudaEvent_t begin = NULL, end = NULL;
    bool good = index >= 0 && index < moe_gpu_count() && cudaSetDevice(index) == cudaSuccess &&
                cudaMallocHost(&from, n_bytes) == cudaSuccess &&
                cudaMalloc(&to, n_bytes) == cudaSuccess && cudaEventCreate(&begin) == cudaSuccess &&
                cudaEventCreate(&end) == cudaSuccess;
    if (good)
        memset(from, 1, n_bytes);
    for (int i = -1; good && i < n_runs; i++) {
        double took = time_copy(to, from, n_bytes, begin, end);
        good = took > 0;
        if (good && i >= 0)
            seconds[i] = took;
    }
    if (end)
        cudaEventDestroy(end);
    if (begin)
        cudaEventDestroy(begin);
    cudaFree(to);
    cudaFreeHost(from);
    (void)cudaGetLastError();
    return good ? 0 : -1;
}
