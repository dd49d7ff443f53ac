/*
 * A device for the tests in tests/gpu, and memory of it that knows when something was written past
 * its end. The tests are plain C against kernels/gpu.h; they run on the shim (tests/shim) and,
 * where there is one, on a GPU.
 */
#ifndef TESTS_GPU_FIXTURE_H
#define TESTS_GPU_FIXTURE_H

#include "../test.h"

#include "gpu.h"
#include "gpu_ops.h"

/* Device 0 for a group of tests (cmocka's group setup and teardown), in *state. */
static inline int gpu_fixture_open(void **state)
{
    struct moe_err err;
    struct moe_gpu *g = NULL;
    assert_ok(moe_gpu_open(&g, 0, &err), &err);
    *state = g;
    return 0;
}

static inline int gpu_fixture_close(void **state)
{
    moe_gpu_close(*state);
    return 0;
}

/* Memory of the device between two guards. What tests take of it in a row is freed at once. */
enum { GPU_GUARD_BYTES = 256, GPU_MAX_TAKEN = 256 };
#define GPU_GUARD_BYTE 0xa5

struct gpu_taken {
    struct moe_gpu *g;
    int n;
    struct {
        uint8_t *at; /* the guard in front */
        uint64_t n_bytes;
    } list[GPU_MAX_TAKEN];
};

static inline void gpu_put(struct moe_gpu *g, void *to, const void *from, uint64_t n_bytes)
{
    if (n_bytes)
        moe_gpu_upload(g, MOE_GPU_COMPUTE, to, from, n_bytes);
}

/* Waits for what was asked and copies memory of the device to the host. */
static inline void gpu_get(struct moe_gpu *g, void *to, const void *from, uint64_t n_bytes)
{
    struct moe_err err;
    if (n_bytes)
        moe_gpu_download(g, MOE_GPU_COMPUTE, to, from, n_bytes);
    assert_ok(moe_gpu_finish(g, &err), &err);
}

/* The same bytes at two places of the device, or of two. */
static inline void gpu_same(struct moe_gpu *g, const void *at, struct moe_gpu *other,
                            const void *want_at, uint64_t n_bytes)
{
    uint8_t *got = malloc(n_bytes + 1), *want = malloc(n_bytes + 1);
    assert_true(got && want);
    gpu_get(g, got, at, n_bytes);
    gpu_get(other, want, want_at, n_bytes);
    assert_memory_equal(got, want, n_bytes);
    free(got);
    free(want);
}

/* n_bytes of the device filled from `from`, or with guard bytes when it is NULL. 256-byte
 * aligned. */
static inline void *gpu_take(struct gpu_taken *t, const void *from, uint64_t n_bytes)
{
    struct moe_err err;
    uint64_t all = n_bytes + 2 * GPU_GUARD_BYTES;
    uint8_t *at = moe_gpu_alloc(t->g, all, &err), *fill = malloc(all);
    if (!at)
        fail_msg("%s", err.text);
    assert_true(fill && t->n < GPU_MAX_TAKEN);
    memset(fill, GPU_GUARD_BYTE, all);
    if (from && n_bytes)
        memcpy(fill + GPU_GUARD_BYTES, from, n_bytes);
    gpu_put(t->g, at, fill, all);
    assert_ok(moe_gpu_finish(t->g, &err), &err);
    free(fill);
    t->list[t->n].at = at;
    t->list[t->n++].n_bytes = n_bytes;
    return at + GPU_GUARD_BYTES;
}

/* Checks the guards of everything taken, and frees it. */
static inline void gpu_give_back(struct gpu_taken *t)
{
    for (; t->n > 0; t->n--) {
        uint8_t *at = t->list[t->n - 1].at, guard[2][GPU_GUARD_BYTES];
        uint64_t n_bytes = t->list[t->n - 1].n_bytes;
        gpu_get(t->g, guard[0], at, GPU_GUARD_BYTES);
        gpu_get(t->g, guard[1], at + GPU_GUARD_BYTES + n_bytes, GPU_GUARD_BYTES);
        for (int i = 0; i < 2 * GPU_GUARD_BYTES; i++)
            if (guard[i / GPU_GUARD_BYTES][i % GPU_GUARD_BYTES] != GPU_GUARD_BYTE)
                fail_msg("a kernel wrote %s an array of %llu bytes (the %d. taken)",
                         i < GPU_GUARD_BYTES ? "before" : "after", (unsigned long long)n_bytes,
                         t->n);
        moe_gpu_free(t->g, at, n_bytes + 2 * GPU_GUARD_BYTES);
    }
}

/* The same bits; any NaN is like any other, since machines differ in the ones they make. -1: all
 * are, else the index of the first that differs. */
static inline int64_t floats_differ(const float *a, const float *b, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(a[i] != a[i] && b[i] != b[i]))
            return (int64_t)i;
    return -1;
}

#define assert_same_floats(got, want, n)                                                           \
    do {                                                                                           \
        int64_t at_ = floats_differ(got, want, n);                                                 \
        if (at_ >= 0)                                                                              \
            fail_msg("%s[%lld] is %a, should be %a", #got, (long long)at_, (double)(got)[at_],     \
                     (double)(want)[at_]);                                                         \
    } while (0)

#endif
