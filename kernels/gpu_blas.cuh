/*
 * cuBLAS, loaded when it is first needed: it takes some hundred megabytes of the host's memory,
 * which a program that never uses bf16 should not pay for.
 */
#ifndef MOE_KERNELS_GPU_BLAS_CUH
#define MOE_KERNELS_GPU_BLAS_CUH

#include <cublas_v2.h>

#include "base/err.h"

struct gpu_blas {
    const char *(*status_text)(cublasStatus_t status);
    cublasStatus_t (*create)(cublasHandle_t *handle);
    cublasStatus_t (*destroy)(cublasHandle_t handle);
    cublasStatus_t (*set_stream)(cublasHandle_t handle, cudaStream_t stream);
    cublasStatus_t (*set_workspace)(cublasHandle_t handle, void *workspace, size_t n_bytes);
    cublasStatus_t (*gemm)(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                           int m, int n, int k, const void *alpha, const void *a,
                           cudaDataType type_a, int lda, const void *b, cudaDataType type_b,
                           int ldb, const void *beta, void *c, cudaDataType type_c, int ldc,
                           cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
};

/* The library's functions, for the rest of the process; NULL: it was not found, and `err` says
 * where it was looked for. */
const struct gpu_blas *gpu_blas_load(struct moe_err *err);

#endif
