/* Which GPUs are there. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "gpu.h"

extern "C" const char *moe_gpu_build(void)
{
    static char version[16];
    snprintf(version, sizeof version, "%d.%d", CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100);
    return version;
}

extern "C" int moe_gpu_count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

extern "C" int moe_gpu_describe(int index, struct moe_gpu_info *info)
{
    cudaDeviceProp prop;
    size_t free_bytes = 0, total_bytes = 0;
    if (index < 0 || index >= moe_gpu_count() ||
        cudaGetDeviceProperties(&prop, index) != cudaSuccess)
        return -1;
    if (cudaSetDevice(index) != cudaSuccess ||
        cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        return -1;
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "%s", prop.name);
    info->memory_bytes = total_bytes;
    info->memory_free_bytes = free_bytes;
    info->compute_major = prop.major;
    info->compute_minor = prop.minor;
    return 0;
}
