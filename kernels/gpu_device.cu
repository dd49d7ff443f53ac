/*
 * A device from the host's side: opening, memory, streams, marks, graphs.
 */
#include "gpu_context.cuh"

#include <chrono>
#include <stdlib.h>
#include <string.h>

/* ---- Failures ---- */

/* An error inside a running kernel: any later call reports it. */
static bool comes_from_a_kernel(cudaError_t error)
{
    switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
        return true;
    default:
        return false;
    }
}

bool gpu_note(struct moe_gpu *g, cudaError_t result, const char *what)
{
    if (result != cudaSuccess && g->recording == RECORDING_GOES_ON) {
        g->recording = RECORDING_REFUSED;
        g->refused_call = what;
        g->refused_with = result;
    }
    if (result != cudaSuccess && gpu_works(g) && g->recording == RECORDING_NONE) {
        bool named = g->one_by_one || !comes_from_a_kernel(result);
        moe_fail(&g->failure, MOE_ERR_DEVICE,
                 "CUDA device %d failed: %s%s: %s (%sstart again, or with --device cpu)", g->index,
                 what, named ? "" : " or a kernel before it", cudaGetErrorString(result),
                 named ? "" : "MOE_GPU_SYNC=1 finds which; ");
    }
    return result == cudaSuccess;
}

bool gpu_asked(struct moe_gpu *g, enum moe_gpu_stream stream, cudaError_t result, const char *what)
{
    if (result == cudaSuccess && g->one_by_one && g->recording == RECORDING_NONE)
        result = cudaStreamSynchronize(g->streams[stream]);
    return gpu_note(g, result, what);
}

bool gpu_ready(struct moe_gpu *g)
{
    return gpu_works(g) && g->recording != RECORDING_REFUSED &&
           gpu_note(g, cudaSetDevice(g->index), "cudaSetDevice");
}

/* Whether a call was merely refused, so that the device continues: fatal errors repeat in every
 * later call. Forgets the call's error. */
static bool only_refused(struct moe_gpu *g, const char *what)
{
    (void)cudaGetLastError();
    cudaError_t state = cudaStreamQuery(g->streams[MOE_GPU_COPY]);
    if (state == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* the runtime keeps it like any other */
        return true;
    }
    return gpu_note(g, state, what);
}

extern "C" int moe_gpu_status(const struct moe_gpu *g, struct moe_err *err)
{
    return gpu_works(g) ? MOE_OK : moe_fail(err, g->failure.status, "%s", g->failure.text);
}

/* ---- Opening ---- */

static __global__ void first_kernel(void)
{
}

/* CUDA calls both an old driver and none at all insufficient. */
static int no_driver(struct moe_err *err)
{
    int version = 0;
    (void)cudaDriverGetVersion(&version);
    if (version == 0)
        return moe_fail(err, MOE_ERR_DEVICE, "no CUDA device: no driver is installed");
    return moe_fail(err, MOE_ERR_DEVICE,
                    "no CUDA device: the driver knows CUDA up to %d.%d, this program was built "
                    "with %s (update the driver)",
                    version / 1000, version / 10 % 100, moe_gpu_build());
}

static int find_device(int index, struct moe_err *err)
{
    int n = 0;
    cudaError_t result = cudaGetDeviceCount(&n);
    if (result == cudaSuccess && index >= 0 && index < n)
        return MOE_OK;
    (void)cudaGetLastError();
    if (result == cudaErrorInsufficientDriver)
        return no_driver(err);
    if (result != cudaSuccess)
        return moe_fail(err, MOE_ERR_DEVICE, "no CUDA device: %s", cudaGetErrorString(result));
    if (n < 2)
        return moe_fail(err, MOE_ERR_DEVICE, "no CUDA device %d: there is %s", index,
                        n ? "one, number 0" : "none");
    return moe_fail(err, MOE_ERR_DEVICE, "no CUDA device %d: there are %d, numbered from 0", index,
                    n);
}

/* Makes the streams, and runs a first kernel: it shows whether the program has code for the device.
 */
static int start_device(struct moe_gpu *g, struct moe_err *err)
{
    if (!gpu_ready(g))
        return moe_gpu_status(g, err);
    if (cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync)) /* cores are for computing */
        (void)cudaGetLastError();
    for (int i = 0; i < MOE_GPU_N_STREAMS; i++)
        gpu_note(g, cudaStreamCreateWithFlags(&g->streams[i], cudaStreamNonBlocking),
                 "cudaStreamCreateWithFlags");
    gpu_note(g, gpu_describe(g->index, &g->info), "cudaGetDeviceProperties");
    cudaFuncAttributes attributes;
    cudaError_t has_code = cudaFuncGetAttributes(&attributes, first_kernel);
    (void)cudaGetLastError(); /* the first kernel reports any other error */
    if (has_code == cudaErrorNoKernelImageForDevice)
        return moe_fail(
            err, MOE_ERR_DEVICE,
            "this program has no code for CUDA device %d (%s, compute capability %d.%d)", g->index,
            g->info.name, g->info.compute_major, g->info.compute_minor);
    if (gpu_note(g, cudaMalloc((void **)&g->arrivals, MOE_GPU_OWN_BYTES), "cudaMalloc"))
        gpu_note(g, cudaMemsetAsync(g->arrivals, 0, MOE_GPU_OWN_BYTES, g->streams[MOE_GPU_COMPUTE]),
                 "cudaMemsetAsync");
    MOE_LAUNCH(g, first_kernel, 1, 1, 0);
    return moe_gpu_finish(g, err);
}

extern "C" int moe_gpu_open(struct moe_gpu **out, int index, struct moe_err *err)
{
    int status = find_device(index, err);
    if (status != MOE_OK)
        return status;
    struct moe_gpu *g = (struct moe_gpu *)calloc(1, sizeof *g);
    if (!g)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory opening CUDA device %d", index);
    const char *one_by_one = getenv("MOE_GPU_SYNC");
    g->index = index;
    g->one_by_one = one_by_one && strcmp(one_by_one, "1") == 0;
    moe_gpu_set_bf16_rule(g, MOE_GPU_BF16_ROWS, MOE_GPU_BF16_WORK);
    status = start_device(g, err);
    if (status != MOE_OK) {
        moe_gpu_close(g);
        return status;
    }
    *out = g;
    return MOE_OK;
}

static void close_staging(struct moe_gpu *g);

extern "C" void moe_gpu_close(struct moe_gpu *g)
{
    if (!g)
        return;
    (void)moe_gpu_finish(g, NULL);
    /* Also after a failure: frees what can still be freed. */
    (void)cudaSetDevice(g->index);
    if (g->blas)
        g->blas_functions->destroy(g->blas);
    for (int i = 0; i < MOE_GPU_N_STREAMS; i++)
        if (g->streams[i])
            cudaStreamDestroy(g->streams[i]);
    if (g->arrivals)
        cudaFree(g->arrivals);
    close_staging(g);
    (void)cudaGetLastError();
    free(g->pins);
    free(g);
}

extern "C" const struct moe_gpu_info *moe_gpu_info(const struct moe_gpu *g)
{
    return &g->info;
}

/* ---- Memory ---- */

static void *no_memory(struct moe_gpu *g, uint64_t n_bytes, struct moe_err *err)
{
    size_t left = 0, all = 0;
    if (!only_refused(g, "cudaMalloc") ||
        !gpu_note(g, cudaMemGetInfo(&left, &all), "cudaMemGetInfo"))
        moe_gpu_status(g, err);
    else
        moe_fail(
            err, MOE_ERR_MEMORY,
            "CUDA device %d: %llu bytes are needed, %llu of %llu are free (lower --gpu-memory?)",
            g->index, (unsigned long long)n_bytes, (unsigned long long)left,
            (unsigned long long)all);
    return NULL;
}

extern "C" void *moe_gpu_alloc(struct moe_gpu *g, uint64_t n_bytes, struct moe_err *err)
{
    void *p = NULL;
    if (!gpu_ready(g)) {
        moe_gpu_status(g, err);
        return NULL;
    }
    if (cudaMalloc(&p, n_bytes ? n_bytes : 1) != cudaSuccess)
        return no_memory(g, n_bytes, err);
    /* On a stream independent of our two. */
    if (!gpu_note(g, cudaMemsetAsync(p, 0, n_bytes, 0), "cudaMemsetAsync") ||
        !gpu_note(g, cudaStreamSynchronize(0), "cudaStreamSynchronize")) {
        cudaFree(p);
        moe_gpu_status(g, err);
        return NULL;
    }
    g->allocated_bytes += n_bytes;
    return p;
}

extern "C" void moe_gpu_free(struct moe_gpu *g, void *p, uint64_t n_bytes)
{
    if (!p)
        return;
    (void)cudaSetDevice(g->index);
    gpu_note(g, cudaFree(p), "cudaFree");
    g->allocated_bytes -= n_bytes;
}

extern "C" uint64_t moe_gpu_launches(const struct moe_gpu *g)
{
    return g->n_launches;
}

extern "C" uint64_t moe_gpu_allocated_bytes(const struct moe_gpu *g)
{
    return g->allocated_bytes;
}

/* ---- Page-locked memory ---- */

static const uint64_t PIN_BYTES = 64 << 20;    /* page-locked at a time */
static const uint64_t STAGING_BYTES = 1 << 20; /* in each staging room */

/* Frees the rooms; copies from them have arrived. */
static void close_staging(struct moe_gpu *g)
{
    for (int i = 0; i < GPU_STAGING_ROOMS; i++)
        if (g->staged[i])
            cudaEventDestroy(g->staged[i]);
    if (g->staging)
        cudaFreeHost(g->staging);
    g->staging = NULL;
}

/* Without that memory CUDA stages copies itself, and each call waits. */
static void open_staging(struct moe_gpu *g)
{
    bool made = true;
    if (g->staging)
        return;
    for (int i = 0; i < GPU_STAGING_ROOMS && made; i++)
        if (!g->staged[i])
            made = !cudaEventCreateWithFlags(&g->staged[i],
                                             cudaEventBlockingSync | cudaEventDisableTiming);
    void *rooms = NULL;
    if (made && cudaMallocHost(&rooms, GPU_STAGING_ROOMS * STAGING_BYTES) == cudaSuccess)
        g->staging = (uint8_t *)rooms;
    (void)cudaGetLastError();
}

/* The pieces that are page-locked. */
static void unlock(struct moe_gpu *g, const struct gpu_pin *pin)
{
    for (uint64_t at = 0; at < pin->n_locked; at += PIN_BYTES)
        gpu_note(g, cudaHostUnregister(pin->at + at), "cudaHostUnregister");
}

static bool room_for_pin(struct moe_gpu *g)
{
    struct gpu_pin *more = (struct gpu_pin *)realloc(g->pins, (g->n_pins + 1) * sizeof *g->pins);
    if (more)
        g->pins = more;
    return more != NULL;
}

extern "C" int moe_gpu_pin(struct moe_gpu *g, void *p, uint64_t n_bytes, struct moe_err *err)
{
    struct gpu_pin pin = {(uint8_t *)p, n_bytes, 0};
    bool refused = false;
    if (!gpu_ready(g))
        return moe_gpu_status(g, err);
    if (!room_for_pin(g))
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for page-locked memory");
    while (pin.n_locked < n_bytes && !refused) {
        uint64_t left = n_bytes - pin.n_locked, n = left < PIN_BYTES ? left : PIN_BYTES;
        refused = cudaHostRegister(pin.at + pin.n_locked, n, cudaHostRegisterPortable);
        if (!refused)
            pin.n_locked += n;
    }
    if (refused && !only_refused(g, "cudaHostRegister")) {
        unlock(g, &pin);
        return moe_gpu_status(g, err);
    }
    if (refused)
        open_staging(g);
    g->pins[g->n_pins++] = pin;
    g->unlocked_bytes += n_bytes - pin.n_locked;
    return MOE_OK;
}

extern "C" void moe_gpu_unpin(struct moe_gpu *g, void *p)
{
    uint32_t i = 0;
    while (p && i < g->n_pins && g->pins[i].at != p)
        i++;
    if (!p || i == g->n_pins)
        return;
    (void)cudaSetDevice(g->index);
    unlock(g, &g->pins[i]);
    g->unlocked_bytes -= g->pins[i].n_bytes - g->pins[i].n_locked;
    g->pins[i] = g->pins[--g->n_pins];
}

extern "C" uint64_t moe_gpu_unlocked_bytes(const struct moe_gpu *g)
{
    return g->unlocked_bytes;
}

/* How many of the n bytes one copy may take: CUDA refuses a range that is
 * page-locked in part. *locked: whether they are, or moe_gpu_pin was never asked for them. */
static uint64_t copied_at_once(const struct moe_gpu *g, const uint8_t *p, uint64_t n, bool *locked)
{
    *locked = true;
    for (const struct gpu_pin *pin = g->pins; pin < g->pins + g->n_pins; pin++) {
        if (p < pin->at || p >= pin->at + pin->n_bytes)
            continue;
        uint64_t at = (uint64_t)(p - pin->at), end = (at / PIN_BYTES + 1) * PIN_BYTES;
        *locked = at < pin->n_locked;
        if (!*locked)
            return n;
        end = end < pin->n_locked ? end : pin->n_locked;
        return n < end - at ? n : end - at;
    }
    return n;
}

/* ---- Streams ---- */

/* Copies through a page-locked room, as much as it holds: returns how much. */
static uint64_t upload_staged(struct moe_gpu *g, enum moe_gpu_stream stream, void *to,
                              const void *from, uint64_t n_bytes)
{
    uint32_t room = g->n_staged++ % GPU_STAGING_ROOMS;
    uint8_t *by = g->staging + (uint64_t)room * STAGING_BYTES;
    uint64_t n = n_bytes < STAGING_BYTES ? n_bytes : STAGING_BYTES;
    if (!gpu_note(g, cudaEventSynchronize(g->staged[room]), "cudaEventSynchronize"))
        return n;
    memcpy(by, from, n);
    gpu_asked(g, stream, cudaMemcpyAsync(to, by, n, cudaMemcpyHostToDevice, g->streams[stream]),
              "cudaMemcpyAsync to the device");
    gpu_note(g, cudaEventRecord(g->staged[room], g->streams[stream]), "cudaEventRecord");
    return n;
}

extern "C" void moe_gpu_upload(struct moe_gpu *g, enum moe_gpu_stream stream, void *to,
                               const void *from, uint64_t n_bytes)
{
    uint8_t *at = (uint8_t *)to;
    const uint8_t *source = (const uint8_t *)from;
    bool locked;
    for (uint64_t n; n_bytes > 0 && gpu_ready(g); at += n, source += n, n_bytes -= n) {
        n = copied_at_once(g, source, n_bytes, &locked);
        if (!locked && g->staging)
            n = upload_staged(g, stream, at, source, n);
        else
            gpu_asked(g, stream,
                      cudaMemcpyAsync(at, source, n, cudaMemcpyHostToDevice, g->streams[stream]),
                      "cudaMemcpyAsync to the device");
    }
}

extern "C" void moe_gpu_download(struct moe_gpu *g, enum moe_gpu_stream stream, void *to,
                                 const void *from, uint64_t n_bytes)
{
    uint8_t *at = (uint8_t *)to;
    const uint8_t *source = (const uint8_t *)from;
    bool locked;
    for (uint64_t n; n_bytes > 0 && gpu_ready(g); at += n, source += n, n_bytes -= n) {
        n = copied_at_once(g, at, n_bytes, &locked);
        gpu_asked(g, stream,
                  cudaMemcpyAsync(at, source, n, cudaMemcpyDeviceToHost, g->streams[stream]),
                  "cudaMemcpyAsync from the device");
    }
}

extern "C" void moe_gpu_copy(struct moe_gpu *g, enum moe_gpu_stream stream, void *to,
                             const void *from, uint64_t n_bytes)
{
    if (gpu_ready(g))
        gpu_asked(g, stream,
                  cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDeviceToDevice, g->streams[stream]),
                  "cudaMemcpyAsync inside the device");
}

extern "C" void moe_gpu_zero(struct moe_gpu *g, enum moe_gpu_stream stream, void *to,
                             uint64_t n_bytes)
{
    if (gpu_ready(g))
        gpu_asked(g, stream, cudaMemsetAsync(to, 0, n_bytes, g->streams[stream]),
                  "cudaMemsetAsync");
}

/* Polls for a while before the caller sleeps: waking up takes as long as a layer's kernels. */
template <class QUERY> static void spin(QUERY query)
{
    const std::chrono::microseconds a_while(200);
    const auto begun = std::chrono::steady_clock::now();
    cudaError_t result = query();
    while (result == cudaErrorNotReady && std::chrono::steady_clock::now() - begun < a_while)
        result = query();
    if (result == cudaErrorNotReady)
        (void)cudaGetLastError(); /* or the next kernel's start would be blamed for it */
}

extern "C" int moe_gpu_wait(struct moe_gpu *g, enum moe_gpu_stream stream, struct moe_err *err)
{
    cudaStream_t s = g->streams[stream];
    if (gpu_ready(g)) {
        spin([s] { return cudaStreamQuery(s); });
        gpu_note(g, cudaStreamSynchronize(s), "cudaStreamSynchronize");
    }
    return moe_gpu_status(g, err);
}

extern "C" int moe_gpu_finish(struct moe_gpu *g, struct moe_err *err)
{
    for (int i = 0; i < MOE_GPU_N_STREAMS; i++)
        moe_gpu_wait(g, (enum moe_gpu_stream)i, NULL);
    return moe_gpu_status(g, err);
}

/* ---- Marks ---- */

struct moe_gpu_mark {
    struct moe_gpu *gpu;
    cudaEvent_t event;
    bool timed, set;
};

extern "C" int moe_gpu_mark_open(struct moe_gpu_mark **out, struct moe_gpu *g, bool timed,
                                 struct moe_err *err)
{
    struct moe_gpu_mark *m = (struct moe_gpu_mark *)calloc(1, sizeof *m);
    if (!m)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for a mark");
    unsigned flags = cudaEventBlockingSync | (timed ? 0 : cudaEventDisableTiming);
    m->gpu = g;
    m->timed = timed;
    if (!gpu_ready(g) ||
        !gpu_note(g, cudaEventCreateWithFlags(&m->event, flags), "cudaEventCreateWithFlags")) {
        free(m);
        return moe_gpu_status(g, err);
    }
    *out = m;
    return MOE_OK;
}

extern "C" void moe_gpu_mark_close(struct moe_gpu_mark *m)
{
    if (!m)
        return;
    gpu_note(m->gpu, cudaEventDestroy(m->event), "cudaEventDestroy");
    free(m);
}

extern "C" void moe_gpu_mark_set(struct moe_gpu_mark *m, enum moe_gpu_stream stream)
{
    struct moe_gpu *g = m->gpu;
    if (gpu_ready(g))
        m->set |= gpu_note(g, cudaEventRecord(m->event, g->streams[stream]), "cudaEventRecord");
}

extern "C" bool moe_gpu_mark_passed(struct moe_gpu_mark *m)
{
    if (!gpu_works(m->gpu))
        return true;
    cudaError_t result = cudaEventQuery(m->event);
    if (result == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* or the next kernel's start would be blamed for it */
        return false;
    }
    gpu_note(m->gpu, result, "cudaEventQuery");
    return true;
}

extern "C" int moe_gpu_mark_wait(struct moe_gpu_mark *m, struct moe_err *err)
{
    if (gpu_works(m->gpu)) {
        spin([m] { return cudaEventQuery(m->event); });
        gpu_note(m->gpu, cudaEventSynchronize(m->event), "cudaEventSynchronize");
    }
    return moe_gpu_status(m->gpu, err);
}

extern "C" void moe_gpu_stream_after(struct moe_gpu *g, enum moe_gpu_stream stream,
                                     struct moe_gpu_mark *m)
{
    if (gpu_ready(g))
        gpu_note(g, cudaStreamWaitEvent(g->streams[stream], m->event, 0), "cudaStreamWaitEvent");
}

extern "C" double moe_gpu_mark_seconds(struct moe_gpu_mark *from, struct moe_gpu_mark *to)
{
    float milliseconds = 0;
    bool timed = from->timed && to->timed && from->set && to->set;
    if (!timed || !gpu_works(from->gpu)) /* CUDA calls it an error to query the others */
        return -1;
    if (cudaEventElapsedTime(&milliseconds, from->event, to->event) != cudaSuccess) {
        (void)cudaGetLastError();
        return -1;
    }
    return 1e-3 * milliseconds;
}

/* ---- Graphs ---- */

struct moe_gpu_graph {
    struct moe_gpu *gpu;
    cudaGraphExec_t exec;
    uint64_t n_bytes; /* counted for it */
};

extern "C" void moe_gpu_set_budget(struct moe_gpu *g, uint64_t n_bytes)
{
    g->budget_bytes = n_bytes;
}

extern "C" void moe_gpu_graph_begin(struct moe_gpu *g)
{
    if (!gpu_ready(g))
        return;
    g->recording = RECORDING_GOES_ON;
    if (g->one_by_one)
        gpu_note(g, cudaErrorNotSupported, "MOE_GPU_SYNC=1");
    else
        gpu_note(
            g,
            cudaStreamBeginCapture(g->streams[MOE_GPU_COMPUTE], cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture");
}

/* Ends the recording; NULL: unusable. The stream needs this to be usable again. */
static cudaGraph_t end_capture(struct moe_gpu *g)
{
    cudaGraph_t graph = NULL;
    (void)cudaSetDevice(g->index);
    cudaError_t result = cudaStreamEndCapture(g->streams[MOE_GPU_COMPUTE], &graph);
    if (gpu_note(g, result, "cudaStreamEndCapture") && g->recording == RECORDING_GOES_ON)
        return graph;
    if (graph)
        cudaGraphDestroy(graph);
    return NULL;
}

/* Whether the budget has room for the graph; sets made->n_bytes. */
static bool has_room(struct moe_gpu *g, cudaGraph_t graph, struct moe_gpu_graph *made)
{
    size_t n_nodes = 0;
    if (!gpu_note(g, cudaGraphGetNodes(graph, NULL, &n_nodes), "cudaGraphGetNodes"))
        return false;
    made->n_bytes = n_nodes * MOE_GPU_NODE_BYTES;
    uint64_t taken = MOE_GPU_OWN_BYTES + g->allocated_bytes;
    return !g->budget_bytes ||
           (taken <= g->budget_bytes && made->n_bytes <= g->budget_bytes - taken);
}

/* Explains why there is no graph: a lost device reports that itself. */
static int no_graph(struct moe_gpu *g, const struct moe_gpu_graph *made, struct moe_err *err)
{
    bool refused = g->recording == RECORDING_REFUSED;
    g->recording = RECORDING_NONE;
    if (!gpu_works(g) || (refused && !only_refused(g, g->refused_call)))
        return moe_gpu_status(g, err);
    if (refused)
        return moe_fail(err, MOE_ERR_MEMORY, "CUDA device %d: no recording: %s: %s", g->index,
                        g->refused_call, cudaGetErrorString(g->refused_with));
    return moe_fail(err, MOE_ERR_MEMORY,
                    "CUDA device %d: no recording: it may take %llu bytes, %llu of %llu are taken",
                    g->index, (unsigned long long)made->n_bytes,
                    (unsigned long long)(MOE_GPU_OWN_BYTES + g->allocated_bytes),
                    (unsigned long long)g->budget_bytes);
}

extern "C" int moe_gpu_graph_end(struct moe_gpu *g, struct moe_gpu_graph **out, struct moe_err *err)
{
    struct moe_gpu_graph *made = (struct moe_gpu_graph *)calloc(1, sizeof *made);
    cudaGraph_t graph = g->recording != RECORDING_NONE ? end_capture(g) : NULL;
    int status = MOE_OK;
    if (!made)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory for a graph");
    else if (!graph || !has_room(g, graph, made) ||
             !gpu_note(g, cudaGraphInstantiateWithFlags(&made->exec, graph, 0),
                       "cudaGraphInstantiateWithFlags"))
        status = no_graph(g, made, err);
    g->recording = RECORDING_NONE;
    if (graph)
        cudaGraphDestroy(graph);
    if (status == MOE_OK) {
        made->gpu = g;
        g->allocated_bytes += made->n_bytes;
        *out = made;
    } else {
        free(made);
    }
    return status;
}

extern "C" void moe_gpu_graph_run(struct moe_gpu *g, struct moe_gpu_graph *graph)
{
    if (gpu_ready(g))
        gpu_asked(g, MOE_GPU_COMPUTE, cudaGraphLaunch(graph->exec, g->streams[MOE_GPU_COMPUTE]),
                  "cudaGraphLaunch");
}

extern "C" void moe_gpu_graph_close(struct moe_gpu_graph *graph)
{
    if (!graph)
        return;
    gpu_note(graph->gpu, cudaGraphExecDestroy(graph->exec), "cudaGraphExecDestroy");
    graph->gpu->allocated_bytes -= graph->n_bytes;
    free(graph);
}
