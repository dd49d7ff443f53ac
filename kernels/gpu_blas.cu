/* Finds cuBLAS when a program asks for it; the tests link their own. */
#include "gpu_blas.cuh"

#ifdef MOE_BLAS_LINKED /* the tests' own (tests/shim) */

const struct gpu_blas *gpu_blas_load(struct moe_err *err)
{
    static const struct gpu_blas linked = {cublasGetStatusString, cublasCreate,       cublasDestroy,
                                           cublasSetStream,       cublasSetWorkspace, cublasGemmEx};
    (void)err;
    return &linked;
}

#else

#include <dlfcn.h>

#define TEXT(x) #x
#define LIBRARY_OF(major) "libcublas.so." TEXT(major)

/* False when the library lacks it. */
template <typename FUNCTION> static bool find(void *library, const char *name, FUNCTION *function)
{
    *(void **)function = dlsym(library, name);
    return *function != NULL;
}

const struct gpu_blas *gpu_blas_load(struct moe_err *err)
{
    static const char name[] = LIBRARY_OF(CUBLAS_VER_MAJOR);
    static struct gpu_blas blas;
    if (blas.gemm)
        return &blas;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        moe_fail(err, MOE_ERR_DEVICE, "cuBLAS cannot be loaded: %s", dlerror());
        return NULL;
    }
    if (find(library, "cublasGetStatusString", &blas.status_text) &&
        find(library, "cublasCreate_v2", &blas.create) &&
        find(library, "cublasDestroy_v2", &blas.destroy) &&
        find(library, "cublasSetStream_v2", &blas.set_stream) &&
        find(library, "cublasSetWorkspace_v2", &blas.set_workspace) &&
        find(library, "cublasGemmEx", &blas.gemm))
        return &blas;
    blas.gemm = NULL;
    dlclose(library);
    moe_fail(err, MOE_ERR_DEVICE, "%s lacks functions that products in bf16 need", name);
    return NULL;
}

#endif
