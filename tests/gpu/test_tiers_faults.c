#define _POSIX_C_SOURCE 200809L
/*
 * What goes wrong on the way to a GPU: slow copies, a lost device, read errors, damaged packs.
 * Wrong bytes never arrive, every wait ends with the reason, and everything closes. And the loader
 * that copies, by itself.
 */
#include "base/file.h"

#include "tiers_fixture.h"

static struct moe_gpu *gpu;
static char path[128];
static struct moe_pack *pack;
static struct tiers_truth truth;

static int open_all(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    pack = tiers_pack(path, 0);
    assert_ok(moe_gpu_open(&gpu, 0, &err), &err);
    tiers_truth_open(&truth, pack, gpu);
    return 0;
}

static int close_all(void **state)
{
    moe_pack_close(pack);
    unlink(path);
    tiers_truth_close(&truth, gpu);
    assert_int_equal(moe_gpu_allocated_bytes(gpu), 0);
    moe_gpu_close(gpu);
    return 0;
}

static bool on_shim(void)
{
    return strncmp(moe_gpu_info(gpu)->name, "shim", 4) == 0;
}

/* A few slots, and half of the experts in host memory. */
static struct moe_cache_options some_options(struct moe_gpu *on)
{
    uint64_t least, all;
    struct moe_cache_options o = {
        .cache_bytes = 20 * moe_cache_slot_bytes(pack, 0),
        .n_working = 4,
        .top_k = TOP_K,
        .gpu = on,
        .loader = {.verify = true},
    };
    moe_cache_host_bytes(pack, &o, &least, &all);
    o.host_bytes = (least + all) / 2;
    return o;
}

/* ---- Slow and lost ---- */

/* Copies that take their time are waited for, asleep, and those given up in the middle of one do no
 * harm. */
static void slow_copies_bring_the_same_bytes(void **state)
{
    struct moe_err err = {0};
    struct moe_strategy prefetch;
    struct moe_cache_options o = some_options(gpu);
    if (!on_shim())
        skip();
    moe_strategy_find("prefetch", &prefetch);
    o.strategy = &prefetch;
    o.loader.piece_bytes = 8192;
    setenv("MOE_SHIM_COPY_RATE", "60000000", 1);
    struct tiers_drive d = {.gpu = gpu,
                            .truth = &truth,
                            .random = 9,
                            .experts = tiers_open(pack, &o),
                            .predicts = true};
    for (int i = 0; i < 4; i++)
        assert_ok(tiers_pass(&d, &err), &err);
    moe_experts_close(d.experts);
    unsetenv("MOE_SHIM_COPY_RATE");
    double least = (double)d.phase.bytes_uploaded / 60e6;
    assert_true(d.phase.host_hits > 0 && d.phase.disk_loads > 0);
    assert_true(d.phase.read_seconds > 0.9 * least);
    assert_true(d.phase.stall_bytes > 0 && d.phase.stall_seconds > 0);
}

/* The shim's device works again; the first call may still report the old failure. */
static void find_device_again(void)
{
    struct moe_gpu *again = NULL;
    unsetenv("MOE_SHIM_FAIL");
    if (moe_gpu_open(&again, 0, NULL) == MOE_OK)
        moe_gpu_close(again);
}

/* The device is lost at some copy, at the opening or later: one sentence of its own. */
static void a_lost_device_ends_everything_with_one_error(void **state)
{
    int n_opened = 0, n_refused = 0;
    struct moe_strategy filled;
    if (!on_shim())
        skip();
    moe_strategy_find("lru", &filled);
    filled.init = MOE_INIT_LAYERWISE; /* copies begin while opening */
    for (int when = 1; when < 4000; when = when * 2 + 1) {
        struct moe_err err = {0};
        struct moe_gpu *lost = NULL;
        char fail[64];
        assert_ok(moe_gpu_open(&lost, 0, &err), &err);
        struct moe_cache_options o = some_options(lost);
        o.strategy = &filled;
        struct tiers_drive d = {
            .gpu = lost, .truth = &truth, .random = (uint64_t)when, .loses_device = true};
        snprintf(fail, sizeof fail, "cudaMemcpyAsync:%d", when);
        setenv("MOE_SHIM_FAIL", fail, 1);
        int status = moe_experts_open_cached(&d.experts, pack, TOP_K, &o, NULL, &err);
        n_refused += status != MOE_OK;
        n_opened += status == MOE_OK;
        for (int i = 0; i < 100 && status == MOE_OK; i++)
            status = tiers_pass(&d, &err);
        assert_int_equal(status, MOE_ERR_DEVICE);
        assert_non_null(strstr(err.text, "CUDA device 0 failed: cudaMemcpyAsync"));
        if (d.experts) { /* and again, whatever is asked */
            err = (struct moe_err){0};
            assert_int_equal(tiers_pass(&d, &err), MOE_ERR_DEVICE);
            assert_non_null(strstr(err.text, "CUDA device 0 failed"));
        }
        moe_experts_close(d.experts);
        moe_gpu_close(lost);
        find_device_again();
    }
    print_message("# lost %d times while opening, %d times later\n", n_refused, n_opened);
    assert_true(n_opened > 3 && n_refused > 3);
}

static void a_device_lost_while_experts_become_resident(void **state)
{
    if (!on_shim())
        skip();
    for (int when = 1; when < LAYERS * EXPERTS; when = when * 3) {
        struct moe_err err = {0};
        struct moe_gpu *lost = NULL;
        struct moe_experts *experts = NULL;
        char fail[64];
        assert_ok(moe_gpu_open(&lost, 0, &err), &err);
        snprintf(fail, sizeof fail, "cudaMemcpyAsync:%d", when);
        setenv("MOE_SHIM_FAIL", fail, 1);
        assert_fails(moe_experts_open_resident(&experts, pack, 0, lost, NULL, &err), MOE_ERR_DEVICE,
                     "CUDA device 0 failed", &err);
        assert_null(experts);
        moe_gpu_close(lost);
        find_device_again();
    }
}

static void too_little_device_memory_is_one_error(void **state)
{
    struct moe_err err = {0};
    struct moe_experts *experts = NULL;
    const struct moe_cache_options o = some_options(gpu);
    if (!on_shim())
        skip();
    setenv("MOE_SHIM_MEMORY", "100000", 1);
    assert_fails(moe_experts_open_cached(&experts, pack, TOP_K, &o, NULL, &err), MOE_ERR_MEMORY,
                 "CUDA device 0", &err);
    assert_fails(moe_experts_open_resident(&experts, pack, 0, gpu, NULL, &err), MOE_ERR_MEMORY,
                 "CUDA device 0", &err);
    unsetenv("MOE_SHIM_MEMORY");
}

static void too_little_host_memory_is_one_error(void **state)
{
    struct moe_err err = {0};
    struct moe_experts *experts = NULL;
    struct moe_cache_options o = some_options(gpu);
    uint64_t least, all;
    moe_cache_host_bytes(pack, &o, &least, &all);
    o.host_bytes = least - 1;
    assert_fails(moe_experts_open_cached(&experts, pack, TOP_K, &o, NULL, &err), MOE_ERR_LIMIT,
                 "of host memory", &err);
    assert_null(experts);
}

/* ---- From disk ---- */

struct broken {
    bool now;
};

static int fail_now(void *ctx, uint64_t offset, uint64_t n_bytes)
{
    return ((const struct broken *)ctx)->now ? -5 /* EIO */ : 0;
}

/* A read error ends the pass; once the disk works again, so does the cache. */
static void a_read_error_ends_the_pass_and_nothing_else(void **state)
{
    struct moe_err err = {0};
    struct broken broken = {false};
    uint64_t least, all;
    struct moe_cache_options o = some_options(gpu);
    o.loader.backend = MOE_LOAD_URING; /* asked on this thread */
    o.loader.fault = fail_now;
    o.loader.fault_ctx = &broken;
    moe_cache_host_bytes(pack, &o, &least, &all);
    o.host_bytes = least;
    struct moe_experts *experts = NULL;
    if (moe_experts_open_cached(&experts, pack, TOP_K, &o, NULL, &err) != MOE_OK) {
        print_message("# %s\n", err.text);
        skip();
    }
    struct tiers_drive d = {.gpu = gpu, .truth = &truth, .random = 4, .experts = experts};
    for (int round = 0; round < 6; round++) {
        broken.now = true;
        assert_fails(tiers_pass(&d, &err), MOE_ERR_IO, "expert ", &err);
        assert_non_null(strstr(err.text, "layer "));
        broken.now = false;
        assert_ok(tiers_pass(&d, &err), &err);
    }
    moe_experts_close(d.experts);
}

/* The pack with one byte changed in an expert. */
static struct moe_pack *damaged_pack(char to[128], uint32_t layer, uint32_t expert)
{
    struct moe_err err = {0};
    struct moe_pack *damaged = NULL;
    uint64_t n = moe_pack_file_bytes(pack);
    uint8_t *bytes = moe_pages_alloc(n, &err);
    assert_ok(moe_file_pread(moe_pack_fd(pack), path, bytes, n, 0, &err), &err);
    bytes[moe_pack_expert(pack, layer, expert, 0)->segments[0].offset + 100] ^= 4;
    snprintf(to, 128, "/tmp/moe-tiers-damaged-%d.moe", (int)getpid());
    FILE *file = fopen(to, "wb");
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
    moe_pages_free(bytes, n);
    assert_ok(moe_pack_open(&damaged, to, &err), &err);
    return damaged;
}

/* With all experts in host memory that shows at once, with a few when the expert is asked for. */
static void damaged_bytes_do_not_arrive(void **state)
{
    struct moe_err err = {0};
    char where[128];
    uint64_t least, all;
    struct moe_pack *damaged = damaged_pack(where, LAYERS - 1, EXPERTS - 1);
    struct moe_cache_options o = some_options(gpu);
    struct moe_experts *experts = NULL;
    moe_cache_host_bytes(damaged, &o, &least, &all);
    o.host_bytes = all;
    assert_fails(moe_experts_open_cached(&experts, damaged, TOP_K, &o, NULL, &err), MOE_ERR_FORMAT,
                 "layer 11 expert 31 variant", &err);
    assert_non_null(strstr(err.text, "damaged"));
    o.host_bytes = least;
    struct tiers_drive d = {
        .gpu = gpu, .truth = &truth, .random = 6, .experts = tiers_open(damaged, &o)};
    int status = MOE_OK;
    for (int i = 0; i < 100 && status == MOE_OK; i++)
        status = tiers_pass(&d, &err);
    assert_int_equal(status, MOE_ERR_FORMAT);
    assert_non_null(strstr(err.text, "layer 11 expert 31 variant"));
    assert_non_null(strstr(err.text, "damaged"));
    moe_experts_close(d.experts);
    assert_fails(moe_experts_open_resident(&experts, damaged, 0, gpu, NULL, &err), MOE_ERR_FORMAT,
                 "layer 11 expert 31", &err);
    moe_pack_close(damaged);
    unlink(where);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_copies_bring_the_same_bytes),
        cmocka_unit_test(a_lost_device_ends_everything_with_one_error),
        cmocka_unit_test(a_device_lost_while_experts_become_resident),
        cmocka_unit_test(too_little_device_memory_is_one_error),
        cmocka_unit_test(too_little_host_memory_is_one_error),
        cmocka_unit_test(a_read_error_ends_the_pass_and_nothing_else),
        cmocka_unit_test(damaged_bytes_do_not_arrive),
    };
    return cmocka_run_group_tests_name("tiers_faults", tests, open_all, close_all);
}
