/* The shim's cuBLAS. */
#include "base/float16.h"
#include "cublas_v2.h"
#include "shim_runtime.h"

struct shim_blas {
    cudaStream_t stream;
    bool has_workspace;
};

const char *cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    default:
        return "the library was not initialized, or the device failed";
    }
}

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    *handle = NULL;
    if (shim_enter("cublasCreate"))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new shim_blas();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->has_workspace = false;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t n_bytes)
{
    if ((uintptr_t)workspace % 256 || !shim_is_device(workspace, n_bytes))
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->has_workspace = true;
    return CUBLAS_STATUS_SUCCESS;
}

struct operand {
    const void *data;
    cudaDataType type;
    bool transposed;
    int stride; /* from column to column, as it lies */

    float at(int row, int col) const
    {
        size_t i = transposed ? (size_t)row * (size_t)stride + (size_t)col
                              : (size_t)col * (size_t)stride + (size_t)row;
        if (type == CUDA_R_32F)
            return ((const float *)data)[i];
        uint16_t bits = ((const uint16_t *)data)[i];
        return type == CUDA_R_16F ? moe_f16_to_f32(bits) : moe_bf16_to_f32(bits);
    }
};

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType type_a, int lda, const void *b, cudaDataType type_b,
                            int ldb, const void *beta, void *c, cudaDataType type_c, int ldc,
                            cublasComputeType_t, cublasGemmAlgo_t)
{
    if (shim_enter("cublasGemmEx"))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!handle->has_workspace || type_c != CUDA_R_32F || m < 0 || n < 0 || k < 0 || ldc < m ||
        lda < (op_a == CUBLAS_OP_N ? m : k) || ldb < (op_b == CUBLAS_OP_N ? k : n))
        return CUBLAS_STATUS_INVALID_VALUE;
    operand left = {a, type_a, op_a == CUBLAS_OP_T, lda};
    operand right = {b, type_b, op_b == CUBLAS_OP_T, ldb};
    float scale = *(const float *)alpha, keep = *(const float *)beta;
    shim_ask(handle->stream, 0, [=] {
        for (int col = 0; col < n; col++)
            for (int row = 0; row < m; row++) {
                float sum = 0, *to = (float *)c + (size_t)col * (size_t)ldc + row;
                for (int i = 0; i < k; i++)
                    sum += left.at(row, i) * right.at(i, col);
                *to = scale * sum + (keep != 0 ? keep * *to : 0);
            }
    });
    return CUBLAS_STATUS_SUCCESS;
}
