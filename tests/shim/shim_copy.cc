/* Copies and zeros of the shim. */
#include <string.h>

#include "shim_runtime.h"

static double link_seconds(size_t n_bytes)
{
    double rate = shim_setting("MOE_SHIM_COPY_RATE", 0);
    return rate > 0 ? (double)n_bytes / rate : 0;
}

static cudaError_t copy(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                        cudaStream_t stream)
{
    if (!n_bytes)
        return cudaSuccess;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (shim_is_device(to, n_bytes) != to_device || shim_is_device(from, n_bytes) != from_device)
        return shim_failed(cudaErrorInvalidValue);
    if ((!to_device && shim_is_partly_pinned(to, n_bytes)) ||
        (!from_device && shim_is_partly_pinned(from, n_bytes)))
        return shim_failed(cudaErrorInvalidValue);
    bool paged = (!to_device && !shim_is_pinned(to, n_bytes)) ||
                 (!from_device && !shim_is_pinned(from, n_bytes));
    if (paged && shim_setting("MOE_SHIM_PINNED_ONLY", 0))
        return shim_failed(cudaErrorInvalidValue);
    if (shim_check_stream(stream))
        return cudaPeekAtLastError();
    shim_ask(stream, to_device && from_device ? 0 : link_seconds(n_bytes),
             [=] { memcpy(to, from, n_bytes); });
    /* Memory that can be paged cannot be copied later. */
    if (paged)
        return shim_check_waiting(stream) ? cudaPeekAtLastError()
                                          : (shim_drain(stream), cudaSuccess);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    SHIM_ENTER();
    return copy(to, from, n_bytes, kind, stream);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind)
{
    SHIM_ENTER();
    cudaError_t error = copy(to, from, n_bytes, kind, NULL);
    shim_drain(NULL);
    return error;
}

static cudaError_t fill(void *to, int value, size_t n_bytes, cudaStream_t stream)
{
    if (!n_bytes)
        return cudaSuccess;
    if (!shim_is_device(to, n_bytes))
        return shim_failed(cudaErrorInvalidValue);
    if (shim_check_stream(stream))
        return cudaPeekAtLastError();
    shim_ask(stream, 0, [=] { memset(to, value, n_bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t n_bytes, cudaStream_t stream)
{
    SHIM_ENTER();
    return fill(to, value, n_bytes, stream);
}
