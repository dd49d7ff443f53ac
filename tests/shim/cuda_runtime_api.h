/*
 * CUDA's runtime as the tests have it: devices, memory and streams played by the processor. Only
 * the names that kernels/ uses, with the meaning (and the error values) of the real ones.
 *
 * Work asked of a stream is done at once, unless the environment asks for trouble; it is looked at
 * in every call, and counting begins again whenever a variable changes:
 *
 *   MOE_SHIM_DEVICES=N        devices there are (1); -1: there is no driver either
 *   MOE_SHIM_MEMORY=BYTES     memory of each (8 GiB); cudaMalloc fails beyond it
 *   MOE_SHIM_PINNED=BYTES     how much of the host's memory can be registered (all)
 *   MOE_SHIM_PINNED_ONLY=1    copies of memory of the host's that is not registered fail
 *   MOE_SHIM_COMPUTE=M.N      their compute capability (8.0)
 *   MOE_SHIM_UNIFIED=1        their memory is the host's
 *   MOE_SHIM_OLD=1            the program has no code for the devices' architecture
 *   MOE_SHIM_FAIL=NAME:N      the Nth call of NAME (a kernel's start: cudaLaunchKernel) fails, and
 *                             everything after it: the device is lost
 *   MOE_SHIM_FAIL=NAME:N:once only this one call fails
 *   MOE_SHIM_FAIL=in KERNEL:N the Nth run of the kernel: the device is lost while it computes, and
 *                             the next call, or with MOE_SHIM_LATE the next that waits, finds it
 *   MOE_SHIM_COPY_RATE=BYTES  per second: copies take their time and are done when it is over
 *   MOE_SHIM_LATE=1           work is done when somebody waits for it or asks for it, not before
 *
 * Memory begins as garbage. Copies check that what is said to be a device's memory is, and that the
 * host's is registered, by one call, or not at all. There is no
 * cudaMemset: it goes to the legacy default stream, which the backend's streams do not wait for.
 */
#ifndef TESTS_SHIM_CUDA_RUNTIME_API_H
#define TESTS_SHIM_CUDA_RUNTIME_API_H

#include <stddef.h>

#define CUDART_VERSION 13000

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorECCUncorrectable = 214,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchTimeout = 702,
    cudaErrorAssert = 710,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorHardwareStackError = 714,
    cudaErrorIllegalInstruction = 715,
    cudaErrorMisalignedAddress = 716,
    cudaErrorInvalidAddressSpace = 717,
    cudaErrorInvalidPc = 718,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorIllegalState = 401,
};

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault,
};

enum { cudaDeviceScheduleBlockingSync = 4 };
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };

struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount, integrated;
    size_t totalGlobalMem;
};

typedef struct shim_stream *cudaStream_t;
typedef struct shim_event *cudaEvent_t;
typedef struct shim_graph *cudaGraph_t;
typedef struct shim_graph *cudaGraphExec_t;
typedef struct shim_node *cudaGraphNode_t;

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaDeviceSynchronize(void);

cudaError_t cudaMalloc(void **p, size_t n_bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **p, size_t n_bytes);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t n_bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *p);
template <class T> cudaError_t cudaMalloc(T **p, size_t n_bytes)
{
    return cudaMalloc((void **)p, n_bytes);
}
template <class T> cudaError_t cudaMallocHost(T **p, size_t n_bytes)
{
    return cudaMallocHost((void **)p, n_bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = 0);
cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind);
cudaError_t cudaMemsetAsync(void *to, int value, size_t n_bytes, cudaStream_t stream = 0);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = 0);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

#endif
