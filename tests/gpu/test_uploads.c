#define _POSIX_C_SOURCE 200809L
/* The loader that copies from memory to a GPU, by itself: every byte, urgency, what is given up,
 * refused or waited for. */
#include <math.h>

#include "base/mem.h"
#include "gpu.h"
#include "io/loader.h"

#include "../test.h"

static struct moe_gpu *gpu;

static int open_all(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_gpu_open(&gpu, 0, &err), &err);
    return 0;
}

static int close_all(void **state)
{
    assert_int_equal(moe_gpu_allocated_bytes(gpu), 0);
    moe_gpu_close(gpu);
    return 0;
}

static bool on_shim(void)
{
    return strncmp(moe_gpu_info(gpu)->name, "shim", 4) == 0;
}

enum { N_LOADS = 40, ROOM = 256 * 1024 };

struct copies {
    struct moe_loader *loader;
    uint8_t *from, *to, *back; /* N_LOADS times ROOM; on the device; as it came back */
    uint64_t bytes[N_LOADS];
    uint32_t handles[N_LOADS];
    bool done[N_LOADS];
};

static void copies_open(struct copies *c, const struct moe_loader_options *o)
{
    struct moe_err err = {0};
    uint64_t random = 8, n = (uint64_t)N_LOADS * ROOM;
    memset(c, 0, sizeof *c);
    c->from = moe_pages_alloc(n, &err);
    c->back = moe_pages_alloc(n, &err);
    assert_ok(moe_gpu_pin(gpu, c->from, n, &err), &err);
    c->to = moe_gpu_alloc(gpu, n, &err);
    for (uint64_t i = 0; i < n; i += 8)
        memcpy(c->from + i, &(uint64_t){test_random(&random)}, 8);
    for (int i = 0; i < N_LOADS; i++)
        c->bytes[i] = 1 + test_random(&random) % ROOM;
    assert_ok(moe_loader_open(&c->loader, o, &err), &err);
}

static void copies_close(struct copies *c)
{
    uint64_t n = (uint64_t)N_LOADS * ROOM;
    moe_loader_close(c->loader);
    moe_gpu_unpin(gpu, c->from);
    moe_pages_free(c->from, n);
    moe_pages_free(c->back, n);
    moe_gpu_free(gpu, c->to, n);
}

static void copies_submit(struct copies *c, int i, enum moe_load_priority priority)
{
    struct moe_err err = {0};
    const struct moe_load load = {.stored_bytes = c->bytes[i],
                                  .raw_bytes = c->bytes[i],
                                  .from = c->from + (uint64_t)i * ROOM,
                                  .to = c->to + (uint64_t)i * ROOM,
                                  .priority = priority,
                                  .tag = (uint64_t)i};
    assert_ok(moe_loader_submit(c->loader, &load, &c->handles[i], &err), &err);
}

/* What is done is on the device. */
static void copies_check(struct copies *c)
{
    struct moe_err err = {0};
    moe_gpu_download(gpu, MOE_GPU_COMPUTE, c->back, c->to, (uint64_t)N_LOADS * ROOM);
    assert_ok(moe_gpu_finish(gpu, &err), &err);
    for (int i = 0; i < N_LOADS; i++)
        if (c->done[i])
            assert_memory_equal(c->back + (uint64_t)i * ROOM, c->from + (uint64_t)i * ROOM,
                                c->bytes[i]);
}

static const struct moe_loader_options *copy_options(void)
{
    static struct moe_loader_options o;
    o = (struct moe_loader_options){
        .gpu = gpu, .path = "experts", .n_requests = N_LOADS, .piece_bytes = 16384};
    return &o;
}

/* Demands are done before prefetches of before, and cancelled ones are not or whole. How many come
 * too late for either goes by the link's speed: on the shim's it is known. */
static void copies_keep_to_their_urgency(void **state)
{
    enum { CANCELLED = 10, N_CANCELLED = 5, PROMOTED = 3 };
    struct copies c;
    struct moe_load_done done[N_LOADS];
    copies_open(&c, copy_options());
    setenv("MOE_SHIM_COPY_RATE", "400000000", 1);
    for (int i = 0; i < N_LOADS; i++)
        copies_submit(&c, i, i < N_LOADS / 2 ? MOE_LOAD_PREFETCH : MOE_LOAD_DEMAND);
    moe_loader_promote(c.loader, c.handles[PROMOTED], MOE_LOAD_DEMAND, 0);
    uint32_t n_reported = 0, n;
    uint32_t turn[N_LOADS] = {0}; /* in which they were reported, from 1 on */
    for (int i = CANCELLED; i < CANCELLED + N_CANCELLED; i++)
        if (moe_loader_cancel(c.loader, c.handles[i]))
            turn[i] = UINT32_MAX;
    while ((n = moe_loader_wait(c.loader, done, N_LOADS)) > 0) {
        for (uint32_t k = 0; k < n; k++) {
            int i = (int)done[k].tag;
            bool cancelled = i >= CANCELLED && i < CANCELLED + N_CANCELLED;
            assert_int_equal(turn[i], 0);
            turn[i] = ++n_reported;
            c.done[i] = done[k].status == MOE_OK;
            if (!c.done[i])
                assert_true(cancelled && done[k].status == MOE_ERR_INTERRUPTED);
        }
    }
    unsetenv("MOE_SHIM_COPY_RATE");
    uint32_t last_demand = 0, n_late = 0, n_given_up = 0;
    for (int i = 0; i < N_LOADS; i++) {
        assert_true(turn[i] > 0);
        n_given_up += !c.done[i];
        if ((i == PROMOTED || i >= N_LOADS / 2) && turn[i] > last_demand)
            last_demand = turn[i];
    }
    for (int i = 0; i < N_LOADS / 2; i++)
        n_late += c.done[i] && turn[i] > last_demand;
    print_message("# %u prefetches after all demands, %u given up\n", n_late, n_given_up);
    if (on_shim()) {
        /* All but those whose pieces were under way when the demands came. */
        assert_true(n_late >= N_LOADS / 2 - 1 - N_CANCELLED - 8);
        assert_int_equal(n_given_up, N_CANCELLED);
        assert_int_equal(moe_loader_stats(c.loader)->cancelled, N_CANCELLED);
    }
    copies_check(&c);
    copies_close(&c);
}

static int refuse_some(void *ctx, uint64_t offset, uint64_t n_bytes)
{
    return ++*(int *)ctx % 50 == 0 ? -22 : 0; /* EINVAL: is not tried again */
}

static void refused_copies_fail_alone(void **state)
{
    struct copies c;
    struct moe_load_done done;
    int asked = 0, n_failed = 0;
    struct moe_loader_options o = *copy_options();
    o.fault = refuse_some;
    o.fault_ctx = &asked;
    copies_open(&c, &o);
    for (int i = 0; i < N_LOADS; i++)
        copies_submit(&c, i, MOE_LOAD_DEMAND);
    while (moe_loader_wait(c.loader, &done, 1) > 0) {
        c.done[done.tag] = done.status == MOE_OK;
        n_failed += done.status == MOE_ERR_IO;
        assert_true(done.status == MOE_OK || done.status == MOE_ERR_IO);
    }
    assert_true(n_failed > 0 && n_failed < N_LOADS);
    copies_check(&c);
    copies_close(&c);
}

/* A wait with a limit comes back, and one without gets what is left. */
static void waits_end_in_time(void **state)
{
    struct copies c;
    struct moe_load_done done;
    if (!on_shim())
        skip();
    copies_open(&c, copy_options());
    c.bytes[0] = ROOM;
    setenv("MOE_SHIM_COPY_RATE", "5000000", 1);
    copies_submit(&c, 0, MOE_LOAD_DEMAND);
    assert_int_equal(moe_loader_wait_for(c.loader, &done, 1, 0), 0);
    assert_int_equal(moe_loader_wait_for(c.loader, &done, 1, 1e-3), 0);
    assert_int_equal(moe_loader_wait(c.loader, &done, 1), 1);
    c.done[0] = true;
    unsetenv("MOE_SHIM_COPY_RATE");
    assert_int_equal(moe_loader_wait_for(c.loader, &done, 1, INFINITY), 0); /* nothing is left */
    copies_check(&c);
    copies_close(&c);
}

static void what_makes_no_sense_is_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_loader *l = NULL;
    struct moe_loader_options o = *copy_options();
    o.verify = true;
    assert_fails(moe_loader_open(&l, &o, &err), MOE_ERR_USAGE, "not verified", &err);
    o = *copy_options();
    o.compressed_bytes = 4096;
    assert_fails(moe_loader_open(&l, &o, &err), MOE_ERR_USAGE, "or decoded", &err);
    struct copies c;
    uint32_t handle;
    copies_open(&c, copy_options());
    struct moe_load load = {.stored_bytes = 10, .raw_bytes = 10, .to = c.to};
    assert_fails(moe_loader_submit(c.loader, &load, &handle, &err), MOE_ERR_USAGE, "memory", &err);
    load.from = c.from;
    load.raw_bytes = 20;
    assert_fails(moe_loader_submit(c.loader, &load, &handle, &err), MOE_ERR_USAGE, "compressed",
                 &err);
    copies_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_keep_to_their_urgency),
        cmocka_unit_test(refused_copies_fail_alone),
        cmocka_unit_test(waits_end_in_time),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests_name("uploads", tests, open_all, close_all);
}
