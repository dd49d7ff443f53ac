/*
 * Streams, events and graphs of the shim. A stream is a queue; what is at its front is done as soon
 * as its time has come, which without the environment's asking is at once. Nothing runs by itself:
 * queues move in the calls that ask or wait.
 */
#include <deque>
#include <map>
#include <mutex>
#include <stdint.h>
#include <string.h>
#include <string>
#include <time.h>
#include <vector>

#include "cuda_runtime.h"
#include "shim_runtime.h"

enum kind { WORK, MARK, AWAIT };

struct request {
    kind what;
    std::function<void()> run; /* WORK */
    double asked, seconds;     /* when; how long it takes */
    cudaEvent_t event;         /* MARK, AWAIT */
    uint64_t turn;             /* of the event, which may be set again later */
};

struct shim_stream {
    int device;
    std::deque<request> queue;
    double free_at; /* when the last was done */
    cudaGraph_t recording;
};

struct shim_event {
    cudaStream_t stream;    /* where it was set last */
    uint64_t asked, passed; /* how often it was set; how many of these the stream has passed */
    double at;
    unsigned flags;
};

enum { NODE_BYTES = 10 << 10 }; /* of a graph that can be started */

struct shim_graph {
    std::vector<std::function<void()>> steps;
    void *memory; /* of the device */
};

static std::recursive_mutex lock;
typedef std::lock_guard<std::recursive_mutex> holding;
static std::vector<cudaStream_t> streams;

static double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void doze()
{
    struct timespec t = {0, 50000};
    nanosleep(&t, NULL);
}

static cudaStream_t some(cudaStream_t stream)
{
    static shim_stream *otherwise;
    if (stream)
        return stream;
    if (!otherwise) {
        otherwise = new shim_stream();
        streams.push_back(otherwise);
    }
    return otherwise;
}

/* ---- Queues move ---- */

/* Does the front of the queue if it can be done now. */
static bool step(shim_stream *s)
{
    if (s->queue.empty())
        return false;
    request &r = s->queue.front();
    double begun = s->free_at > r.asked ? s->free_at : r.asked;
    if (r.what == AWAIT && r.event->passed < r.turn)
        return false;
    if (r.what == WORK && r.seconds > 0 && now() < begun + r.seconds)
        return false;
    request mine = std::move(r);
    s->queue.pop_front();
    s->free_at = begun;
    if (mine.what == AWAIT && mine.event->at > begun) {
        s->free_at = mine.event->at;
    } else if (mine.what == MARK) {
        mine.event->passed = mine.turn;
        mine.event->at = begun;
    } else if (mine.what == WORK) {
        mine.run();
        s->free_at = mine.seconds > 0 ? begun + mine.seconds : now();
    }
    return true;
}

/* Goes on with a stream, and with those that it waits for, as far as time allows. */
static void advance(shim_stream *s)
{
    for (;;) {
        while (step(s))
            ;
        if (s->queue.empty() || s->queue.front().what != AWAIT)
            return;
        const request &r = s->queue.front();
        advance(r.event->stream);
        if (r.event->passed < r.turn)
            return;
    }
}

static void ask(shim_stream *s, request r)
{
    r.asked = now();
    s->queue.push_back(std::move(r));
    if (!shim_setting("MOE_SHIM_LATE", 0))
        for (shim_stream *one : streams)
            advance(one);
}

void shim_ask(cudaStream_t stream, double seconds, std::function<void()> work)
{
    holding hold(lock);
    shim_stream *s = some(stream);
    if (s->recording)
        s->recording->steps.push_back(std::move(work));
    else
        ask(s, {WORK, std::move(work), 0, seconds, NULL, 0});
}

static bool is_there(shim_stream *s)
{
    for (shim_stream *one : streams)
        if (one == s)
            return true;
    return false;
}

/* Waits until all that was asked of the stream has been done; a lost device drops it. Another
 * thread may end the stream meanwhile. */
void shim_drain(cudaStream_t stream)
{
    for (;;) {
        {
            holding hold(lock);
            shim_stream *s = some(stream);
            if (!is_there(s))
                return;
            if (shim_lost())
                s->queue.clear();
            advance(s);
            if (s->queue.empty())
                return;
        }
        doze();
    }
}

void shim_drain_all()
{
    std::vector<cudaStream_t> all;
    {
        holding hold(lock);
        all = streams;
    }
    for (cudaStream_t s : all)
        shim_drain(s);
}

/* ---- Streams ---- */

/* After a wait, in which a kernel may have failed. */
static cudaError_t lost_meanwhile()
{
    return shim_lost() ? shim_failed(cudaErrorLaunchFailure) : cudaSuccess;
}

cudaError_t shim_check_stream(cudaStream_t stream)
{
    holding hold(lock);
    shim_stream *s = some(stream);
    return is_there(s) && (!stream || s->device == shim_device())
               ? cudaSuccess
               : shim_failed(cudaErrorInvalidResourceHandle);
}

cudaError_t shim_check_waiting(cudaStream_t stream)
{
    cudaError_t error = shim_check_stream(stream);
    return !error && some(stream)->recording ? shim_failed(cudaErrorStreamCaptureUnsupported)
                                             : error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    SHIM_ENTER();
    (void)flags;
    holding hold(lock);
    *stream = new shim_stream();
    (*stream)->device = shim_device();
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t error = shim_enter("cudaStreamDestroy");
    shim_drain(stream);
    holding hold(lock);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == stream)
            streams.erase(streams.begin() + (long)i);
    delete stream->recording;
    delete stream;
    return error;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    SHIM_ENTER();
    if (shim_check_waiting(stream))
        return cudaPeekAtLastError();
    holding hold(lock);
    advance(some(stream));
    return some(stream)->queue.empty() ? cudaSuccess : shim_failed(cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    SHIM_ENTER();
    if (shim_check_waiting(stream))
        return cudaPeekAtLastError();
    shim_drain(stream);
    return lost_meanwhile();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    SHIM_ENTER();
    (void)flags;
    if (shim_check_waiting(stream))
        return cudaPeekAtLastError();
    holding hold(lock);
    if (event->passed < event->asked)
        ask(some(stream), {AWAIT, nullptr, 0, 0, event, event->asked});
    return cudaSuccess;
}

/* ---- Events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    SHIM_ENTER();
    *event = new shim_event();
    (*event)->flags = flags;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t error = shim_enter("cudaEventDestroy");
    shim_drain_all();
    delete event;
    return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    SHIM_ENTER();
    if (shim_check_waiting(stream))
        return cudaPeekAtLastError();
    holding hold(lock);
    event->stream = some(stream);
    ask(event->stream, {MARK, nullptr, 0, 0, event, ++event->asked});
    return cudaSuccess;
}

static bool passed(cudaEvent_t event)
{
    holding hold(lock);
    if (event->passed < event->asked)
        advance(event->stream);
    return event->passed >= event->asked;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    SHIM_ENTER();
    return passed(event) ? cudaSuccess : shim_failed(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    SHIM_ENTER();
    while (!passed(event))
        doze();
    return lost_meanwhile();
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    SHIM_ENTER();
    if (!from->asked || !to->asked || (from->flags | to->flags) & cudaEventDisableTiming)
        return shim_failed(cudaErrorInvalidResourceHandle);
    if (!passed(from) || !passed(to))
        return shim_failed(cudaErrorNotReady);
    *milliseconds = (float)(1e3 * (to->at - from->at));
    return cudaSuccess;
}

/* ---- Kernels ---- */

bool shim_has_code()
{
    return !shim_setting("MOE_SHIM_OLD", 0);
}

enum { USUAL_SHARED = 48 << 10, MOST_SHARED = 64 << 10, STATIC_SHARED = 1 << 10 };
static std::map<const void *, size_t> allowed_shared; /* of kernels that asked */

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    SHIM_ENTER();
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > MOST_SHARED - STATIC_SHARED)
        return shim_failed(cudaErrorInvalidValue);
    holding hold(lock);
    allowed_shared[kernel] = (size_t)value;
    return cudaSuccess;
}

static bool has_shared(const void *kernel, size_t bytes)
{
    holding hold(lock);
    auto asked = allowed_shared.find(kernel);
    return !bytes || bytes + STATIC_SHARED <= USUAL_SHARED ||
           (asked != allowed_shared.end() && bytes <= asked->second);
}

static cudaError_t check_grid(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!shim_has_code())
        return cudaErrorNoKernelImageForDevice;
    if (!grid.x || grid.x > INT32_MAX || !grid.y || grid.y > 65535 || !grid.z || grid.z > 65535 ||
        !threads || threads > 1024 || block.z > 64)
        return cudaErrorInvalidConfiguration;
    return has_shared(kernel, shared_bytes) ? cudaSuccess : cudaErrorInvalidValue;
}

void shim_ask_grid(cudaStream_t stream, const char *name, const void *kernel, dim3 grid, dim3 block,
                   size_t shared_bytes, std::function<void()> thread)
{
    cudaError_t error = shim_enter("cudaLaunchKernel");
    if (!error)
        error = shim_check_stream(stream);
    if (!error)
        error = check_grid(kernel, grid, block, shared_bytes);
    if (error)
        shim_failed(error);
    else
        shim_ask(stream, 0, [=] {
            if (shim_enter((std::string("in ") + name).c_str()) == cudaSuccess)
                shim_run_grid(name, grid, block, shared_bytes, thread);
        });
}

/* ---- Graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    SHIM_ENTER();
    (void)mode;
    if (!stream || shim_check_waiting(stream))
        return shim_failed(cudaErrorStreamCaptureUnsupported);
    stream->recording = new shim_graph();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaError_t error = shim_enter("cudaStreamEndCapture");
    *graph = stream->recording;
    stream->recording = NULL;
    if (error) {
        delete *graph;
        *graph = NULL;
        return error;
    }
    return *graph ? cudaSuccess : shim_failed(cudaErrorIllegalState);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    SHIM_ENTER();
    if (nodes)
        return shim_failed(cudaErrorInvalidValue); /* only their number is asked for */
    *n = graph->steps.size();
    return cudaSuccess;
}

/* Like the real one it takes memory of the device for every node. */
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags)
{
    SHIM_ENTER();
    (void)flags;
    void *taken = NULL;
    if (cudaMalloc(&taken, graph->steps.size() * NODE_BYTES) != cudaSuccess)
        return cudaPeekAtLastError();
    *exec = new shim_graph(*graph);
    (*exec)->memory = taken;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    SHIM_ENTER();
    if (shim_check_stream(stream))
        return cudaPeekAtLastError();
    for (const auto &one : exec->steps)
        shim_ask(stream, 0, one);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    cudaError_t error = cudaFree(exec->memory);
    delete exec;
    return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
