/* Errors, devices and memory of the shim. */
#include "shim_runtime.h"

#include <map>
#include <mutex>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>

enum { MAX_DEVICES = 8, GARBAGE = 0xa5 };

/* ---- Failures ---- */

static thread_local cudaError_t last_error;
static thread_local int current;

double shim_setting(const char *name, double otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atof(text) : otherwise;
}

/* MOE_SHIM_FAIL: the call that it names and what has become of it. */
static struct {
    std::mutex lock;
    std::string text, name;
    long left; /* calls until it fails */
    bool once, lost;
} fault;

static void read_fault(const char *text)
{
    fault.text = text;
    fault.lost = false;
    last_error = cudaSuccess;
    size_t colon = fault.text.find(':');
    fault.name = fault.text.substr(0, colon);
    fault.left = colon == std::string::npos ? 1 : atol(text + colon + 1);
    fault.once = fault.text.find(":once") != std::string::npos;
}

cudaError_t shim_failed(cudaError_t error)
{
    last_error = error;
    return error;
}

cudaError_t shim_enter(const char *name)
{
    const char *text = getenv("MOE_SHIM_FAIL");
    std::lock_guard<std::mutex> hold(fault.lock);
    if (fault.text != (text ? text : ""))
        read_fault(text ? text : "");
    if (!fault.lost && fault.name == name && --fault.left == 0) {
        if (fault.once)
            return shim_failed(cudaErrorMemoryAllocation);
        fault.lost = true;
    }
    return fault.lost ? shim_failed(cudaErrorLaunchFailure) : cudaSuccess;
}

bool shim_lost()
{
    std::lock_guard<std::mutex> hold(fault.lock);
    return fault.lost;
}

cudaError_t cudaGetLastError()
{
    cudaError_t error = last_error;
    if (!shim_lost())
        last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError()
{
    return last_error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
#define ERROR(name, text)                                                                          \
    {                                                                                              \
        name, #name, text                                                                          \
    }
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInsufficientDriver,
          "CUDA driver version is insufficient for CUDA runtime version"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorNoKernelImageForDevice,
          "no kernel image is available for execution on the device"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered,
          "part or all of the requested memory range is already mapped"),
    ERROR(cudaErrorHostMemoryNotRegistered,
          "pointer does not correspond to a registered memory region"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
};

const char *cudaGetErrorName(cudaError_t error)
{
    for (const auto &e : errors)
        if (e.error == error)
            return e.name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (const auto &e : errors)
        if (e.error == error)
            return e.text;
    return "unrecognized error code";
}

/* ---- Devices ---- */

static int n_devices()
{
    int n = (int)shim_setting("MOE_SHIM_DEVICES", 1);
    return n < 0 ? 0 : n < MAX_DEVICES ? n : MAX_DEVICES;
}

static bool has_driver()
{
    return shim_setting("MOE_SHIM_DEVICES", 1) >= 0;
}

static size_t memory_bytes()
{
    return (size_t)shim_setting("MOE_SHIM_MEMORY", 0x1p33);
}

static size_t used_bytes[MAX_DEVICES];
static std::mutex memory_lock; /* of what is here and of the extents below */

cudaError_t cudaGetDeviceCount(int *n)
{
    SHIM_ENTER();
    *n = n_devices();
    if (!has_driver())
        return shim_failed(cudaErrorInsufficientDriver);
    return *n ? cudaSuccess : shim_failed(cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    SHIM_ENTER();
    if (device < 0 || device >= n_devices())
        return shim_failed(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "shim %d", device);
    double capability = shim_setting("MOE_SHIM_COMPUTE", 8);
    prop->major = (int)capability;
    prop->minor = (int)(10 * capability + 0.5) % 10;
    prop->multiProcessorCount = 4;
    prop->integrated = shim_setting("MOE_SHIM_UNIFIED", 0) > 0;
    prop->totalGlobalMem = memory_bytes();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    SHIM_ENTER();
    if (device < 0 || device >= n_devices())
        return shim_failed(n_devices() ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    SHIM_ENTER();
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    SHIM_ENTER();
    *device = current;
    return cudaSuccess;
}

int shim_device()
{
    return current;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = has_driver() ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    SHIM_ENTER();
    *total_bytes = memory_bytes();
    std::lock_guard<std::mutex> hold(memory_lock);
    *free_bytes = *total_bytes > used_bytes[current] ? *total_bytes - used_bytes[current] : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    SHIM_ENTER();
    shim_drain_all();
    return cudaSuccess;
}

/* ---- Memory ---- */

struct extent {
    size_t n_bytes;
    int device;
};
typedef std::map<uintptr_t, extent> extents;
static extents device_memory, pinned_memory;

/* The extent that holds the byte, or end(). */
static extents::iterator find(extents &all, const void *p)
{
    extents::iterator it = all.upper_bound((uintptr_t)p);
    if (it == all.begin())
        return all.end();
    --it;
    return (uintptr_t)p < it->first + it->second.n_bytes ? it : all.end();
}

static bool holds(extents &all, const void *p, size_t n_bytes)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    extents::iterator it = find(all, p);
    return it != all.end() && (uintptr_t)p + n_bytes <= it->first + it->second.n_bytes;
}

bool shim_is_device(const void *p, size_t n_bytes)
{
    return holds(device_memory, p, n_bytes);
}

bool shim_is_pinned(const void *p, size_t n_bytes)
{
    return holds(pinned_memory, p, n_bytes);
}

bool shim_is_partly_pinned(const void *p, size_t n_bytes)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    uintptr_t end = (uintptr_t)p + n_bytes;
    extents::iterator it = find(pinned_memory, p);
    if (it != pinned_memory.end())
        return end > it->first + it->second.n_bytes;
    it = pinned_memory.upper_bound((uintptr_t)p);
    return it != pinned_memory.end() && it->first < end;
}

/* Aligned as CUDA's, with exactly the bytes asked for. */
static void *garbage(size_t n_bytes, size_t alignment)
{
    void *p = NULL;
    if (posix_memalign(&p, alignment, n_bytes) != 0)
        return NULL;
    memset(p, GARBAGE, n_bytes);
    return p;
}

cudaError_t cudaMalloc(void **p, size_t n_bytes)
{
    SHIM_ENTER();
    *p = NULL;
    if (!n_bytes)
        return cudaSuccess;
    std::lock_guard<std::mutex> hold(memory_lock);
    if (n_bytes > memory_bytes() || used_bytes[current] > memory_bytes() - n_bytes ||
        !(*p = garbage(n_bytes, 256)))
        return shim_failed(cudaErrorMemoryAllocation);
    used_bytes[current] += n_bytes;
    device_memory[(uintptr_t)*p] = {n_bytes, current};
    return cudaSuccess;
}

/* Real memory is given back even when the device is lost: the tests run on. */
cudaError_t cudaFree(void *p)
{
    cudaError_t error = shim_enter("cudaFree");
    if (!p)
        return error;
    shim_drain_all();
    std::lock_guard<std::mutex> hold(memory_lock);
    extents::iterator it = device_memory.find((uintptr_t)p);
    if (it == device_memory.end())
        return shim_failed(cudaErrorInvalidValue);
    used_bytes[it->second.device] -= it->second.n_bytes;
    device_memory.erase(it);
    free(p);
    return error;
}

cudaError_t cudaMallocHost(void **p, size_t n_bytes)
{
    SHIM_ENTER();
    *p = garbage(n_bytes, 4096);
    if (!*p)
        return shim_failed(cudaErrorMemoryAllocation);
    std::lock_guard<std::mutex> hold(memory_lock);
    pinned_memory[(uintptr_t)*p] = {n_bytes, current};
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    cudaError_t error = p ? cudaHostUnregister(p) : cudaSuccess;
    free(p);
    return error;
}

cudaError_t cudaHostRegister(void *p, size_t n_bytes, unsigned flags)
{
    SHIM_ENTER();
    (void)flags;
    if (!p || !n_bytes || (uintptr_t)p % 4096)
        return shim_failed(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(memory_lock);
    extents::iterator next = pinned_memory.lower_bound((uintptr_t)p);
    if (find(pinned_memory, p) != pinned_memory.end() ||
        (next != pinned_memory.end() && next->first < (uintptr_t)p + n_bytes))
        return shim_failed(cudaErrorHostMemoryAlreadyRegistered);
    size_t registered = n_bytes;
    for (const auto &one : pinned_memory)
        registered += one.second.n_bytes;
    if ((double)registered > shim_setting("MOE_SHIM_PINNED", 0x1p60))
        return shim_failed(cudaErrorMemoryAllocation);
    pinned_memory[(uintptr_t)p] = {n_bytes, current};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    cudaError_t error = shim_enter("cudaHostUnregister");
    shim_drain_all();
    std::lock_guard<std::mutex> hold(memory_lock);
    if (!pinned_memory.erase((uintptr_t)p))
        return shim_failed(cudaErrorHostMemoryNotRegistered);
    return error;
}
