/* Exits with 0 where a GPU can be opened; else says why it cannot. */
#include <stdio.h>

#include "gpu.h"

int main(void)
{
    struct moe_gpu *gpu;
    struct moe_err err;
    if (moe_gpu_open(&gpu, 0, &err) != MOE_OK) {
        puts(err.text);
        return 1;
    }
    moe_gpu_close(gpu);
    return 0;
}
