/* What the tests of a device share. _GNU_SOURCE is defined before (MAP_ANONYMOUS). */
#ifndef TESTS_GPU_DEVICE_FIXTURE_H
#define TESTS_GPU_DEVICE_FIXTURE_H

#include "../test.h"

#include <sys/mman.h>

#include "gpu.h"
#include "shim_kernels.h"

enum { N = 1000, N_BYTES = N * sizeof(int32_t) };

static inline struct moe_gpu *opened(void)
{
    struct moe_gpu *g = NULL;
    struct moe_err err;
    assert_ok(moe_gpu_open(&g, 0, &err), &err);
    return g;
}

static inline void *host_pages(uint64_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

/* Up by one stream, plus one and down by the other, ordered by marks alone. */
static inline void add_one(struct moe_gpu *g, int32_t *host, void *device)
{
    struct moe_gpu_mark *up, *down;
    struct moe_err err;
    assert_ok(moe_gpu_mark_open(&up, g, true, &err), &err);
    assert_ok(moe_gpu_mark_open(&down, g, true, &err), &err);
    moe_gpu_upload(g, MOE_GPU_COPY, device, host, N_BYTES);
    moe_gpu_mark_set(up, MOE_GPU_COPY);
    moe_gpu_stream_after(g, MOE_GPU_COMPUTE, up);
    try_ragged(g, device, N);
    moe_gpu_download(g, MOE_GPU_COMPUTE, host, device, N_BYTES);
    moe_gpu_mark_set(down, MOE_GPU_COMPUTE);
    assert_ok(moe_gpu_mark_wait(down, &err), &err);
    assert_true(moe_gpu_mark_passed(up) && moe_gpu_mark_passed(down));
    assert_true(moe_gpu_mark_seconds(up, down) >= 0);
    moe_gpu_mark_close(up);
    moe_gpu_mark_close(down);
}

static inline void check_add_one(void)
{
    struct moe_gpu *g = opened();
    struct moe_err err;
    static int32_t plain[N];
    int32_t *pinned = host_pages(8192);
    void *device = moe_gpu_alloc(g, N_BYTES, &err);
    assert_non_null(device);
    assert_ok(moe_gpu_pin(g, pinned, 8192, &err), &err);
    for (int i = 0; i < N; i++)
        plain[i] = pinned[i] = i;
    for (int round = 0; round < 3; round++) {
        add_one(g, pinned, device);
        add_one(g, plain, device);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(pinned[i], i + 3);
        assert_int_equal(plain[i], i + 3);
    }
    moe_gpu_unpin(g, pinned);
    moe_gpu_unpin(g, NULL);
    moe_gpu_free(g, device, N_BYTES);
    moe_gpu_close(g);
    munmap(pinned, 8192);
}

#endif
