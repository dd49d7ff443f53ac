/*
 * The GPU, as seen from C: no CUDA types, so that callers need no #ifdef.
 *
 * Built with CUDA the functions are in gpu_*.cu; without, gpu_none.c answers every one of them with
 * "no device". Which of the two is linked is the build's choice (Makefile, CUDA=auto|0|1).
 */
#ifndef MOE_KERNELS_GPU_H
#define MOE_KERNELS_GPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "none", or the CUDA version this program was built with, as "13.0". */
const char *moe_gpu_build(void);

struct moe_gpu_info {
    char name[128];
    uint64_t memory_bytes;      /* in all */
    uint64_t memory_free_bytes; /* now */
    int compute_major, compute_minor;
};

/* How many devices the driver offers; 0 without a driver, a device, or CUDA. */
int moe_gpu_count(void);

/* Describes device `index`. 0 on success, -1 when there is no such device. */
int moe_gpu_describe(int index, struct moe_gpu_info *info);

/* Copies n_bytes from page-locked host memory to device `index`, n_runs times after one that does
 * not count, and writes what each took. 0 on success, -1 when there is no such device or too little
 * memory. */
int moe_gpu_copy_seconds(int index, uint64_t n_bytes, int n_runs, double *seconds);

#ifdef __cplusplus
}
#endif

#endif
