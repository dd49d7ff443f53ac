/*
 * Functions that CUDA kernels compile too, so that processor and GPU share one source of their
 * arithmetic: write `static inline MOE_DEVICE_CODE`.
 */
#ifndef MOE_BASE_DEVICE_CODE_H
#define MOE_BASE_DEVICE_CODE_H

#ifdef __CUDACC__
#define MOE_DEVICE_CODE __host__ __device__
#else
#define MOE_DEVICE_CODE
#endif

#endif
