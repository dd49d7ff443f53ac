/* A device from the host's side (gpu.h): memory, copies, marks, graphs. */
#define _GNU_SOURCE
#include "device_fixture.h"

static void test_info(void **state)
{
    struct moe_gpu *g = opened();
    struct moe_gpu_info info;
    assert_int_equal(moe_gpu_describe(0, &info), 0);
    assert_string_equal(info.name, moe_gpu_info(g)->name);
    assert_true(info.n_processors > 0 && info.compute_major > 0);
    assert_true(info.memory_free_bytes <= info.memory_bytes);
    assert_int_equal(moe_gpu_describe(moe_gpu_count(), &info), -1);
    moe_gpu_close(g);
    moe_gpu_close(NULL);
}

static void test_memory(void **state)
{
    struct moe_gpu *g = opened();
    struct moe_err err;
    static const uint64_t sizes[] = {1, 255, 4096, 100001};
    uint8_t back[100001];
    void *p[N_ITEMS(sizes)];
    uint64_t sum = 0;
    for (size_t i = 0; i < N_ITEMS(sizes); i++) {
        p[i] = moe_gpu_alloc(g, sizes[i], &err);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 256, 0);
        assert_int_equal(moe_gpu_allocated_bytes(g), sum += sizes[i]);
        memset(back, 1, sizeof back);
        moe_gpu_download(g, MOE_GPU_COPY, back, p[i], sizes[i]);
        assert_ok(moe_gpu_finish(g, &err), &err);
        for (uint64_t k = 0; k < sizes[i]; k++)
            assert_int_equal(back[k], 0);
    }
    for (size_t i = 0; i < N_ITEMS(sizes); i++)
        moe_gpu_free(g, p[i], sizes[i]);
    moe_gpu_free(g, NULL, 0);
    assert_int_equal(moe_gpu_allocated_bytes(g), 0);
    moe_gpu_close(g);
}

static void test_streams(void **state)
{
    check_add_one();
}

static void test_inner_copies(void **state)
{
    struct moe_gpu *g = opened();
    struct moe_err err;
    uint8_t there[1000], back[1000] = {0};
    for (size_t i = 0; i < sizeof there; i++)
        there[i] = (uint8_t)(i * 7);
    uint8_t *a = moe_gpu_alloc(g, sizeof there, &err), *b = moe_gpu_alloc(g, sizeof there, &err);
    assert_true(a && b);
    moe_gpu_upload(g, MOE_GPU_COMPUTE, a, there, sizeof there);
    moe_gpu_copy(g, MOE_GPU_COMPUTE, b + 1, a, sizeof there - 1);
    moe_gpu_download(g, MOE_GPU_COMPUTE, back, b, sizeof back);
    assert_ok(moe_gpu_finish(g, &err), &err);
    assert_int_equal(back[0], 0);
    assert_memory_equal(back + 1, there, sizeof there - 1);
    moe_gpu_free(g, a, sizeof there);
    moe_gpu_free(g, b, sizeof there);
    moe_gpu_close(g);
}

static void test_untimed_marks(void **state)
{
    struct moe_gpu *g = opened();
    struct moe_gpu_mark *a, *b;
    struct moe_err err;
    assert_ok(moe_gpu_mark_open(&a, g, false, &err), &err);
    assert_ok(moe_gpu_mark_open(&b, g, true, &err), &err);
    assert_true(moe_gpu_mark_passed(a)); /* never set */
    assert_ok(moe_gpu_mark_wait(a, &err), &err);
    moe_gpu_mark_set(a, MOE_GPU_COPY);
    assert_ok(moe_gpu_mark_wait(a, &err), &err);
    assert_true(moe_gpu_mark_seconds(a, b) < 0);
    assert_ok(moe_gpu_status(g, &err), &err);
    moe_gpu_mark_close(a);
    moe_gpu_mark_close(b);
    moe_gpu_mark_close(NULL);
    moe_gpu_close(g);
}

static void test_graphs(void **state)
{
    struct moe_gpu *g = opened();
    struct moe_gpu_graph *graph;
    struct moe_err err;
    static int32_t host[N];
    void *device = moe_gpu_alloc(g, N_BYTES, &err);
    assert_non_null(device);
    moe_gpu_graph_begin(g);
    for (uint32_t n = N; n > N - 3; n--) /* each with arguments of its own */
        try_ragged(g, device, n);
    assert_ok(moe_gpu_graph_end(g, &graph, &err), &err);
    moe_gpu_download(g, MOE_GPU_COMPUTE, host, device, N_BYTES);
    assert_ok(moe_gpu_finish(g, &err), &err);
    assert_int_equal(host[0], 0); /* recorded, not done */
    for (int round = 0; round < 5; round++)
        moe_gpu_graph_run(g, graph);
    moe_gpu_download(g, MOE_GPU_COMPUTE, host, device, N_BYTES);
    assert_ok(moe_gpu_finish(g, &err), &err);
    for (int i = 0; i < N; i++)
        assert_int_equal(host[i], 5 * (N - i < 3 ? N - i : 3));
    moe_gpu_zero(g, MOE_GPU_COMPUTE, device, N_BYTES);
    moe_gpu_graph_run(g, graph);
    moe_gpu_download(g, MOE_GPU_COMPUTE, host, device, N_BYTES);
    assert_ok(moe_gpu_finish(g, &err), &err);
    assert_int_equal(host[0], 3);
    moe_gpu_graph_close(graph);
    moe_gpu_graph_close(NULL);
    moe_gpu_free(g, device, N_BYTES);
    moe_gpu_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),         cmocka_unit_test(test_memory),
        cmocka_unit_test(test_streams),      cmocka_unit_test(test_untimed_marks),
        cmocka_unit_test(test_inner_copies), cmocka_unit_test(test_graphs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
