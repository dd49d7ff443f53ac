/* Where there is no device, too little memory, a slow link, or a device that is lost: rehearsed on
 * the shim, by the settings of tests/shim/cuda_runtime_api.h. */
#define _GNU_SOURCE /* setenv */
#include "device_fixture.h"
#include "gpu_ops.h"

static const char *const settings[] = {"MOE_SHIM_DEVICES", "MOE_SHIM_MEMORY",    "MOE_SHIM_OLD",
                                       "MOE_SHIM_FAIL",    "MOE_SHIM_COPY_RATE", "MOE_SHIM_LATE",
                                       "MOE_SHIM_COMPUTE", "MOE_SHIM_PINNED",    "MOE_GPU_SYNC"};

static int forget_settings(void **state)
{
    for (size_t i = 0; i < N_ITEMS(settings); i++)
        unsetenv(settings[i]);
    return 0;
}

/* The rehearsals are for the shim. */
static void need_shim(void)
{
    struct moe_gpu_info info;
    forget_settings(NULL);
    if (moe_gpu_describe(0, &info) != 0 || strncmp(info.name, "shim", 4) != 0)
        skip();
}

static void test_no_device(void **state)
{
    struct moe_gpu *g = NULL;
    struct moe_err err;
    need_shim();
    setenv("MOE_SHIM_DEVICES", "0", 1);
    assert_int_equal(moe_gpu_count(), 0);
    assert_fails(moe_gpu_open(&g, 0, &err), MOE_ERR_DEVICE, "no CUDA device: no CUDA-capable",
                 &err);
    setenv("MOE_SHIM_DEVICES", "-1", 1);
    assert_fails(moe_gpu_open(&g, 0, &err), MOE_ERR_DEVICE, "no driver is installed", &err);
    setenv("MOE_SHIM_DEVICES", "1", 1);
    assert_fails(moe_gpu_open(&g, 1, &err), MOE_ERR_DEVICE,
                 "no CUDA device 1: there is one, number 0", &err);
    setenv("MOE_SHIM_DEVICES", "2", 1);
    assert_fails(moe_gpu_open(&g, 3, &err), MOE_ERR_DEVICE, "no CUDA device 3: there are 2", &err);
    assert_fails(moe_gpu_open(&g, -1, &err), MOE_ERR_DEVICE, "no CUDA device -1", &err);
    setenv("MOE_SHIM_OLD", "1", 1);
    assert_fails(moe_gpu_open(&g, 0, &err), MOE_ERR_DEVICE,
                 "this program has no code for CUDA device 0 (shim 0, compute capability 8.0)",
                 &err);
    assert_null(g);
}

static void test_two_devices(void **state)
{
    struct moe_gpu *g[2];
    struct moe_err err;
    int32_t host[2][N];
    void *device[2];
    need_shim();
    setenv("MOE_SHIM_DEVICES", "2", 1);
    setenv("MOE_SHIM_MEMORY", "14192", 1);
    for (int i = 0; i < 2; i++) {
        assert_ok(moe_gpu_open(&g[i], i, &err), &err);
        assert_non_null(device[i] = moe_gpu_alloc(g[i], N_BYTES, &err));
    }
    for (int i = 0; i < 3; i++)
        try_ragged(g[i % 2], device[i % 2], N);
    for (int i = 0; i < 2; i++) {
        moe_gpu_download(g[i], MOE_GPU_COMPUTE, host[i], device[i], N_BYTES);
        moe_gpu_free(g[i], device[i], N_BYTES);
        assert_ok(moe_gpu_finish(g[i], &err), &err);
        moe_gpu_close(g[i]);
        assert_int_equal(host[i][N - 1], 2 - i);
    }
}

static void test_too_little_memory(void **state)
{
    struct moe_gpu *g;
    struct moe_err err;
    need_shim();
    setenv("MOE_SHIM_MEMORY", "108192", 1); /* 100000 beside the device's own */
    g = opened();
    void *first = moe_gpu_alloc(g, 60000, &err);
    assert_non_null(first);
    assert_null(moe_gpu_alloc(g, 50000, &err));
    assert_int_equal(err.status, MOE_ERR_MEMORY);
    assert_non_null(strstr(err.text, "50000 bytes are needed, 40000 of 108192 are free"));
    assert_ok(moe_gpu_status(g, &err), &err); /* it goes on */
    moe_gpu_free(g, first, 60000);
    void *second = moe_gpu_alloc(g, 50000, &err);
    assert_non_null(second);
    moe_gpu_free(g, second, 50000);
    moe_gpu_close(g);
}

/* What the system refuses to page-lock is copied all the same: through the staging, or where that
 * is refused, too, while the call waits. Copies across the end of what is page-locked are divided.
 */
static void test_refused_pinning(void **state)
{
    enum { PIECE = 64 << 20, STAGING = 4 << 20, BYTES = PIECE + STAGING + (1 << 20) };
    static const struct {
        uint64_t limit, unlocked;
    } cases[] = {{BYTES + STAGING, 0},
                 {PIECE + STAGING, BYTES - PIECE},
                 {PIECE, BYTES - PIECE},
                 {STAGING, BYTES},
                 {0, BYTES}};
    uint8_t *host = host_pages(BYTES), *back = host_pages(BYTES);
    need_shim();
    for (uint64_t i = 0; i < BYTES; i += 64)
        host[i] = (uint8_t)(i >> 6 ^ i >> 14 ^ i >> 22);
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_gpu *g = opened();
        struct moe_err err;
        char limit[32];
        snprintf(limit, sizeof limit, "%llu", (unsigned long long)cases[i].limit);
        setenv("MOE_SHIM_PINNED", limit, 1);
        setenv("MOE_SHIM_LATE", "1", 1);
        uint8_t *device = moe_gpu_alloc(g, BYTES, &err);
        assert_non_null(device);
        assert_ok(moe_gpu_pin(g, host, BYTES, &err), &err);
        assert_int_equal(moe_gpu_unlocked_bytes(g), cases[i].unlocked);
        for (uint64_t at = 0, n; at < BYTES; at += n) {
            n = at + 3 * (PIECE / 4) < BYTES ? 3 * (PIECE / 4) : BYTES - at;
            moe_gpu_upload(g, MOE_GPU_COPY, device + at, host + at, n);
        }
        assert_ok(moe_gpu_finish(g, &err), &err);
        moe_gpu_download(g, MOE_GPU_COPY, back, device, BYTES);
        assert_ok(moe_gpu_finish(g, &err), &err);
        assert_memory_equal(back, host, BYTES);
        moe_gpu_zero(g, MOE_GPU_COPY, device, BYTES);
        moe_gpu_download(g, MOE_GPU_COPY, host, device, BYTES);
        assert_ok(moe_gpu_finish(g, &err), &err);
        assert_int_equal(host[64], 0);
        memcpy(host, back, BYTES);
        moe_gpu_unpin(g, host);
        assert_int_equal(moe_gpu_unlocked_bytes(g), 0);
        moe_gpu_free(g, device, BYTES);
        moe_gpu_close(g);
        forget_settings(NULL);
    }
    munmap(host, BYTES);
    munmap(back, BYTES);
}

/* A copy that takes its time: a mark tells, a stream that waits gets all, one that does not sees
 * what was there before. */
static void test_slow_copies(void **state)
{
    struct moe_gpu *g;
    struct moe_gpu_mark *before, *mark;
    struct moe_err err;
    int32_t *host = host_pages(4096), *seen = host_pages(4096);
    need_shim();
    g = opened();
    void *device = moe_gpu_alloc(g, 4096, &err);
    assert_non_null(device);
    assert_ok(moe_gpu_pin(g, host, 4096, &err), &err);
    assert_ok(moe_gpu_mark_open(&before, g, true, &err), &err);
    assert_ok(moe_gpu_mark_open(&mark, g, true, &err), &err);
    host[0] = 41;
    setenv("MOE_SHIM_COPY_RATE", "8192", 1); /* 4096 bytes in half a second */
    moe_gpu_mark_set(before, MOE_GPU_COPY);
    moe_gpu_upload(g, MOE_GPU_COPY, device, host, 4096);
    moe_gpu_mark_set(mark, MOE_GPU_COPY);
    assert_false(moe_gpu_mark_passed(mark));
    unsetenv("MOE_SHIM_COPY_RATE");
    moe_gpu_download(g, MOE_GPU_COMPUTE, seen, device, 4096);
    assert_int_equal(seen[0], 0); /* nobody waited */
    moe_gpu_stream_after(g, MOE_GPU_COMPUTE, mark);
    try_ragged(g, device, 1);
    moe_gpu_download(g, MOE_GPU_COMPUTE, seen, device, 4096);
    assert_int_equal(seen[0], 42);
    assert_true(moe_gpu_mark_passed(mark));
    assert_true(moe_gpu_mark_seconds(before, mark) >= 0.499);
    moe_gpu_mark_close(before);
    moe_gpu_mark_close(mark);
    moe_gpu_unpin(g, host);
    moe_gpu_free(g, device, 4096);
    moe_gpu_close(g);
    munmap(host, 4096);
    munmap(seen, 4096);
}

/* A wait asks again and again before it sleeps: the third question is where the device is lost. And
 * it is for one stream. */
static void test_waits_begin_awake(void **state)
{
    static const char *const questions[] = {"cudaEventQuery:3", "cudaStreamQuery:3"};
    int32_t *host = host_pages(4096);
    need_shim();
    for (int i = 0; i < 2; i++) {
        struct moe_gpu *g = opened();
        struct moe_gpu_mark *mark;
        struct moe_err err;
        void *device = moe_gpu_alloc(g, 4096, &err);
        assert_non_null(device);
        assert_ok(moe_gpu_pin(g, host, 4096, &err), &err);
        assert_ok(moe_gpu_mark_open(&mark, g, false, &err), &err);
        /* 4096 bytes in 2 seconds: longer than a busy machine pauses. */
        setenv("MOE_SHIM_COPY_RATE", "2000", 1);
        moe_gpu_upload(g, MOE_GPU_COPY, device, host, 4096);
        moe_gpu_mark_set(mark, MOE_GPU_COPY);
        assert_ok(moe_gpu_wait(g, MOE_GPU_COMPUTE, &err), &err);
        assert_false(moe_gpu_mark_passed(mark));
        setenv("MOE_SHIM_FAIL", questions[i], 1);
        int status = i ? moe_gpu_wait(g, MOE_GPU_COPY, &err) : moe_gpu_mark_wait(mark, &err);
        assert_int_equal(status, MOE_ERR_DEVICE);
        moe_gpu_mark_close(mark);
        moe_gpu_unpin(g, host);
        moe_gpu_free(g, device, 4096);
        moe_gpu_close(g);
        forget_settings(NULL);
        check_add_one();
    }
    munmap(host, 4096);
}

static void test_late_work(void **state)
{
    need_shim();
    setenv("MOE_SHIM_LATE", "1", 1);
    check_add_one();
}

/* Every call that can fail, one after the other: the first failure is reported, the rest is
 * dropped, nothing is left over, and afterwards a device works again. */
static void test_lost_device(void **state)
{
    static const char *const calls[] = {
        "cudaSetDevice",       "cudaMemcpyAsync",      "cudaLaunchKernel", "cudaEventRecord",
        "cudaStreamWaitEvent", "cudaEventSynchronize", "cudaEventQuery",   "cudaStreamSynchronize"};
    struct moe_err err;
    static int32_t host[N];
    need_shim();
    for (size_t i = 0; i < N_ITEMS(calls); i++) {
        struct moe_gpu *g = opened();
        struct moe_gpu_mark *mark;
        char fault[64];
        assert_ok(moe_gpu_mark_open(&mark, g, false, &err), &err);
        void *device = moe_gpu_alloc(g, N_BYTES, &err);
        assert_non_null(device);
        snprintf(fault, sizeof fault, "%s:1", calls[i]);
        setenv("MOE_SHIM_FAIL", fault, 1);
        moe_gpu_upload(g, MOE_GPU_COPY, device, host, N_BYTES);
        moe_gpu_mark_set(mark, MOE_GPU_COPY);
        moe_gpu_stream_after(g, MOE_GPU_COMPUTE, mark);
        try_ragged(g, device, N);
        assert_true(moe_gpu_mark_passed(mark));
        moe_gpu_mark_wait(mark, &err);
        const char *words =
            strcmp(calls[i], "cudaLaunchKernel") == 0 ? "failed: ragged or a kernel" : calls[i];
        assert_fails(moe_gpu_finish(g, &err), MOE_ERR_DEVICE, words, &err);
        assert_fails(moe_gpu_status(g, &err), MOE_ERR_DEVICE, "CUDA device 0 failed", &err);
        assert_fails(moe_gpu_mark_wait(mark, &err), MOE_ERR_DEVICE, words, &err);
        assert_null(moe_gpu_alloc(g, 1, &err));
        assert_int_equal(err.status, MOE_ERR_DEVICE);
        assert_fails(moe_gpu_pin(g, host, 4096, &err), MOE_ERR_DEVICE, words, &err);
        moe_gpu_mark_close(mark);
        moe_gpu_free(g, device, N_BYTES);
        moe_gpu_close(g);
        unsetenv("MOE_SHIM_FAIL");
        check_add_one();
    }
}

/* A kernel that fails while it runs is found by whatever waits next, unless everything is waited
 * for: then the error has its name, and recordings are not made. */
static void test_a_kernel_that_fails(void **state)
{
    need_shim();
    for (int by_one = 0; by_one < 2; by_one++) {
        struct moe_gpu_graph *graph = NULL;
        struct moe_err err = {0};
        if (by_one)
            setenv("MOE_GPU_SYNC", "1", 1);
        struct moe_gpu *g = opened();
        int32_t *device = moe_gpu_alloc(g, N_BYTES, &err);
        assert_non_null(device);
        setenv("MOE_SHIM_LATE", "1", 1);
        setenv("MOE_SHIM_FAIL", "in ragged:2", 1);
        for (int i = 0; i < 3; i++) {
            try_ragged(g, device, N);
            moe_gpu_zero(g, MOE_GPU_COMPUTE, device, N_BYTES);
        }
        assert_fails(moe_gpu_finish(g, &err), MOE_ERR_DEVICE,
                     by_one ? "failed: ragged: unspecified launch failure (start again"
                            : "failed: cudaStreamSynchronize or a kernel before it: unspecified "
                              "launch failure (MOE_GPU_SYNC=1 finds which; start again",
                     &err);
        moe_gpu_free(g, device, N_BYTES);
        moe_gpu_close(g);
        unsetenv("MOE_SHIM_FAIL");
        unsetenv("MOE_SHIM_LATE");
        g = opened();
        device = moe_gpu_alloc(g, N_BYTES, &err);
        moe_gpu_graph_begin(g);
        try_ragged(g, device, N);
        int status = moe_gpu_graph_end(g, &graph, &err);
        assert_int_equal(status, by_one ? MOE_ERR_MEMORY : MOE_OK);
        if (by_one)
            assert_non_null(strstr(err.text, "no recording: MOE_GPU_SYNC=1"));
        assert_ok(moe_gpu_finish(g, &err), &err);
        moe_gpu_graph_close(graph);
        moe_gpu_free(g, device, N_BYTES);
        moe_gpu_close(g);
    }
}

/* Whatever fails while opening or recording: one message, nothing left over. */
static void test_failures_everywhere(void **state)
{
    static const char *const calls[] = {"cudaGetDeviceCount",
                                        "cudaSetDevice",
                                        "cudaGetDeviceProperties",
                                        "cudaMemGetInfo",
                                        "cudaLaunchKernel",
                                        "cudaStreamCreateWithFlags",
                                        "cudaMalloc",
                                        "cudaMemsetAsync",
                                        "cudaStreamBeginCapture",
                                        "cudaStreamEndCapture",
                                        "cudaEventCreateWithFlags",
                                        "cudaGraphInstantiateWithFlags",
                                        "cudaGraphLaunch",
                                        "cudaStreamSynchronize"};
    need_shim();
    for (size_t i = 0; i < N_ITEMS(calls); i++) {
        char fault[64];
        int n_failed = 0;
        for (int nth = 1; nth <= 3; nth++) {
            struct moe_gpu *g = NULL;
            struct moe_gpu_graph *graph = NULL;
            struct moe_gpu_mark *mark = NULL;
            struct moe_err err = {0};
            void *device = NULL;
            snprintf(fault, sizeof fault, "%s:%d", calls[i], nth);
            setenv("MOE_SHIM_FAIL", fault, 1);
            int status = moe_gpu_open(&g, 0, &err);
            if (status == MOE_OK && !(device = moe_gpu_alloc(g, 4096, &err)))
                status = err.status;
            if (status == MOE_OK)
                status = moe_gpu_mark_open(&mark, g, true, &err);
            if (status == MOE_OK) {
                moe_gpu_graph_begin(g);
                try_ragged(g, device, 3);
                status = moe_gpu_graph_end(g, &graph, &err);
            }
            if (status == MOE_OK) {
                moe_gpu_graph_run(g, graph);
                status = moe_gpu_finish(g, &err);
            }
            if (status != MOE_OK) {
                n_failed++;
                assert_int_equal(status, MOE_ERR_DEVICE);
                assert_int_equal(err.status, status);
                assert_non_null(strstr(err.text, "CUDA device"));
            }
            moe_gpu_graph_close(graph);
            moe_gpu_mark_close(mark);
            if (g)
                moe_gpu_free(g, device, 4096);
            moe_gpu_close(g);
        }
        if (!n_failed)
            fail_msg("%s was never called", calls[i]);
    }
}

/* ---- What is refused, and no loss ---- */

/* A recording of so many kernels, each of which adds one to the first numbers. */
static int record(struct moe_gpu *g, void *device, int n_kernels, struct moe_gpu_graph **out,
                  struct moe_err *err)
{
    moe_gpu_graph_begin(g);
    for (int i = 0; i < n_kernels; i++)
        try_ragged(g, device, 3);
    return moe_gpu_graph_end(g, out, err);
}

static int32_t first_of(struct moe_gpu *g, const void *device)
{
    struct moe_err err;
    int32_t first = -1;
    moe_gpu_download(g, MOE_GPU_COMPUTE, &first, device, sizeof first);
    assert_ok(moe_gpu_finish(g, &err), &err);
    return first;
}

/* A device that makes no graph of what was recorded goes on: one by one, or with a later one. */
static void test_refused_recordings(void **state)
{
    static const struct {
        const char *fault, *words;
    } cases[] = {
        {"cudaGraphInstantiateWithFlags:1:once", "cudaGraphInstantiateWithFlags: out of memory"},
        {"cudaGraphGetNodes:1:once", "cudaGraphGetNodes: out of memory"},
        {"cudaStreamBeginCapture:1:once", "cudaStreamBeginCapture: out of memory"},
        {"cudaStreamEndCapture:1:once", "cudaStreamEndCapture: out of memory"},
        {"cudaLaunchKernel:2:once", "ragged: out of memory"},
    };
    need_shim();
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_gpu_graph *graph = NULL;
        struct moe_err err = {0};
        struct moe_gpu *g = opened();
        void *device = moe_gpu_alloc(g, N_BYTES, &err);
        assert_non_null(device);
        uint64_t taken = moe_gpu_allocated_bytes(g);
        setenv("MOE_SHIM_FAIL", cases[i].fault, 1);
        assert_fails(record(g, device, 3, &graph, &err), MOE_ERR_MEMORY, cases[i].words, &err);
        assert_null(graph);
        assert_ok(moe_gpu_status(g, &err), &err);
        assert_int_equal(moe_gpu_allocated_bytes(g), taken);
        assert_int_equal(first_of(g, device), 0); /* nothing of it was done */
        try_ragged(g, device, 3);
        assert_int_equal(first_of(g, device), 1);
        assert_ok(record(g, device, 3, &graph, &err), &err);
        moe_gpu_graph_run(g, graph);
        assert_int_equal(first_of(g, device), 4);
        moe_gpu_graph_close(graph);
        moe_gpu_free(g, device, N_BYTES);
        moe_gpu_close(g);
        unsetenv("MOE_SHIM_FAIL");
    }
}

/* Graphs count, and are not made where the budget or the device has no room for them. */
static void test_memory_of_graphs(void **state)
{
    struct moe_gpu_graph *two = NULL, *other = NULL;
    struct moe_gpu_info before, after;
    struct moe_err err = {0};
    need_shim();
    struct moe_gpu *g = opened();
    void *device = moe_gpu_alloc(g, N_BYTES, &err);
    assert_non_null(device);
    moe_gpu_set_budget(g, MOE_GPU_OWN_BYTES + N_BYTES + 2 * MOE_GPU_NODE_BYTES);
    assert_fails(record(g, device, 3, &two, &err), MOE_ERR_MEMORY,
                 "no recording: it may take 196608 bytes, 12192 of 143264 are taken", &err);
    assert_int_equal(moe_gpu_describe(0, &before), 0);
    assert_ok(record(g, device, 2, &two, &err), &err);
    assert_int_equal(moe_gpu_allocated_bytes(g), N_BYTES + 2 * MOE_GPU_NODE_BYTES);
    assert_int_equal(moe_gpu_describe(0, &after), 0);
    assert_true(after.memory_free_bytes < before.memory_free_bytes);
    assert_true(before.memory_free_bytes - after.memory_free_bytes <= 2 * MOE_GPU_NODE_BYTES);
    assert_fails(record(g, device, 1, &other, &err), MOE_ERR_MEMORY, "no recording", &err);
    moe_gpu_graph_close(two);
    assert_int_equal(moe_gpu_allocated_bytes(g), N_BYTES);
    assert_ok(record(g, device, 1, &other, &err), &err);
    moe_gpu_graph_run(g, other);
    assert_int_equal(first_of(g, device), 1);
    moe_gpu_graph_close(other);
    moe_gpu_set_budget(g, 0);
    setenv("MOE_SHIM_MEMORY", "20000", 1);
    assert_fails(record(g, device, 3, &two, &err), MOE_ERR_MEMORY, "out of memory", &err);
    assert_int_equal(first_of(g, device), 1);
    moe_gpu_free(g, device, N_BYTES);
    moe_gpu_close(g);
}

/* What only asks, and may be told no, leaves nothing behind for the next kernel to be blamed for.
 */
static void test_questions_leave_no_errors(void **state)
{
    struct moe_gpu_info info;
    struct moe_gpu_mark *mark;
    struct moe_err err;
    double seconds;
    void *pages = host_pages(4096), *slow = host_pages(4096);
    need_shim();
    struct moe_gpu *g = opened();
    void *device = moe_gpu_alloc(g, N_BYTES, &err);
    assert_non_null(device);
    assert_ok(moe_gpu_mark_open(&mark, g, false, &err), &err);

    setenv("MOE_SHIM_FAIL", "cudaGetDeviceCount:1:once", 1);
    assert_int_equal(moe_gpu_count(), 0);
    try_ragged(g, device, 3);
    setenv("MOE_SHIM_FAIL", "cudaGetDeviceProperties:1:once", 1);
    assert_int_equal(moe_gpu_describe(0, &info), -1);
    try_ragged(g, device, 3);
    setenv("MOE_SHIM_FAIL", "cudaMemGetInfo:1:once", 1);
    assert_int_equal(moe_gpu_describe(0, &info), -1);
    try_ragged(g, device, 3);
    setenv("MOE_SHIM_FAIL", "cudaMalloc:1:once", 1);
    assert_int_equal(moe_gpu_copy_seconds(0, 4096, 1, &seconds), -1);
    try_ragged(g, device, 3);
    setenv("MOE_SHIM_FAIL", "cudaHostRegister:1:once", 1);
    assert_ok(moe_gpu_pin(g, pages, 4096, &err), &err);
    assert_int_equal(moe_gpu_unlocked_bytes(g), 4096);
    moe_gpu_unpin(g, pages);
    try_ragged(g, device, 3);
    assert_int_equal(first_of(g, device), 5);
    unsetenv("MOE_SHIM_FAIL");

    /* A mark that is not passed yet, and a refusal while a copy goes on. */
    assert_ok(moe_gpu_pin(g, slow, 4096, &err), &err);
    setenv("MOE_SHIM_COPY_RATE", "20000", 1); /* 3000 bytes in 0.15 seconds */
    moe_gpu_upload(g, MOE_GPU_COPY, device, slow, 3000);
    moe_gpu_mark_set(mark, MOE_GPU_COPY);
    assert_false(moe_gpu_mark_passed(mark));
    try_ragged(g, device, 3);
    assert_ok(moe_gpu_status(g, &err), &err);
    assert_null(moe_gpu_alloc(g, UINT64_MAX / 2, &err));
    assert_int_equal(err.status, MOE_ERR_MEMORY);
    try_ragged(g, device, 3);
    assert_ok(moe_gpu_finish(g, &err), &err);
    unsetenv("MOE_SHIM_COPY_RATE");
    moe_gpu_mark_close(mark);
    moe_gpu_unpin(g, slow);
    moe_gpu_free(g, device, N_BYTES);
    moe_gpu_close(g);
    munmap(pages, 4096);
    munmap(slow, 4096);
}

/* Products in bf16 are for tensor cores that have it. */
static void test_no_bf16(void **state)
{
    struct moe_err err;
    need_shim();
    setenv("MOE_SHIM_COMPUTE", "7.5", 1);
    struct moe_gpu *g = opened();
    assert_fails(moe_gpu_set_math(g, MOE_GPU_MATH_BF16, NULL, 0, &err), MOE_ERR_USAGE,
                 "CUDA device 0 (shim 0, compute capability 7.5) has no tensor cores for bf16: "
                 "--bf16-prompts needs 8.0 or later",
                 &err);
    assert_ok(moe_gpu_set_math(g, MOE_GPU_MATH_PORTABLE, NULL, 0, &err), &err);
    moe_gpu_close(g);
    setenv("MOE_SHIM_COMPUTE", "12.0", 1);
    g = opened();
    assert_ok(moe_gpu_set_math(g, MOE_GPU_MATH_BF16, NULL, 0, &err), &err);
    moe_gpu_close(g);
}

/* Opening asks, too. */
static void test_opening_leaves_no_errors(void **state)
{
    need_shim();
    setenv("MOE_SHIM_FAIL", "cudaSetDeviceFlags:1:once", 1);
    check_add_one();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_no_device, forget_settings),
        cmocka_unit_test_teardown(test_two_devices, forget_settings),
        cmocka_unit_test_teardown(test_too_little_memory, forget_settings),
        cmocka_unit_test_teardown(test_refused_pinning, forget_settings),
        cmocka_unit_test_teardown(test_slow_copies, forget_settings),
        cmocka_unit_test_teardown(test_waits_begin_awake, forget_settings),
        cmocka_unit_test_teardown(test_late_work, forget_settings),
        cmocka_unit_test_teardown(test_lost_device, forget_settings),
        cmocka_unit_test_teardown(test_a_kernel_that_fails, forget_settings),
        cmocka_unit_test_teardown(test_failures_everywhere, forget_settings),
        cmocka_unit_test_teardown(test_refused_recordings, forget_settings),
        cmocka_unit_test_teardown(test_memory_of_graphs, forget_settings),
        cmocka_unit_test_teardown(test_questions_leave_no_errors, forget_settings),
        cmocka_unit_test_teardown(test_opening_leaves_no_errors, forget_settings),
        cmocka_unit_test_teardown(test_no_bf16, forget_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
