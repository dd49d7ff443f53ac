/* The GPU of a build without CUDA: there is none. */
#include "gpu.h"

const char *moe_gpu_build(void)
{
    return "none";
}

int moe_gpu_count(void)
{
    return 0;
}

int moe_gpu_describe(int index, struct moe_gpu_info *info)
{
    (void)index;
    (void)info;
    return -1;
}

int moe_gpu_copy_seconds(int index, uint64_t n_bytes, int n_runs, double *seconds)
{
    (void)index;
    (void)n_bytes;
    (void)n_runs;
    (void)seconds;
    return -1;
}
