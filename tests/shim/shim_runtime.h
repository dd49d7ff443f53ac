/* What the parts of the shim's runtime share. */
#ifndef TESTS_SHIM_SHIM_RUNTIME_H
#define TESTS_SHIM_SHIM_RUNTIME_H

#include <functional>

#include "cuda_runtime_api.h"

/* To be called first by everything that can fail: the error that the environment or an earlier
 * failure has for this call. */
cudaError_t shim_enter(const char *name);
#define SHIM_ENTER()                                                                               \
    do {                                                                                           \
        cudaError_t error_ = shim_enter(__func__);                                                 \
        if (error_ != cudaSuccess)                                                                 \
            return error_;                                                                         \
    } while (0)
/* Remembers the error for cudaGetLastError; returns it. */
cudaError_t shim_failed(cudaError_t error);

bool shim_lost(void); /* the environment has had a call fail for good */

/* A number from the environment. */
double shim_setting(const char *name, double otherwise);

int shim_device(void); /* the current one */

/* Whether all the bytes belong to one allocation of a device; to page-locked memory. */
bool shim_is_device(const void *p, size_t n_bytes);
bool shim_is_pinned(const void *p, size_t n_bytes);
/* Whether some of the bytes are registered, and others not or by another call. */
bool shim_is_partly_pinned(const void *p, size_t n_bytes);

/* Asks it of the stream: done in its turn, and not before that many seconds after what came before
 * it. In a stream that records, it becomes part of the graph. */
void shim_ask(cudaStream_t stream, double seconds, std::function<void()> work);
/* Kernels and copies go to streams of the current device that exist. */
cudaError_t shim_check_stream(cudaStream_t stream);
/* Besides: waiting for a stream that records would be waiting for nothing. */
cudaError_t shim_check_waiting(cudaStream_t stream);
/* Waits for all that was asked of the stream. */
void shim_drain(cudaStream_t stream);
void shim_drain_all(void);

#endif
