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
