/*
 * A pack's image is read in few sweeps (CoServe 4.3): an engine that loads all of a model
 * at once reads its directory, and then the weights by rising offsets, but for two returns, each
 * byte once.
 */
#define _GNU_SOURCE /* syscall */
#include "model_fixture.h"

#include <sys/syscall.h>

#include "engine/engine.h"

/* ---- What is read ---- */

enum { MOST_READS = 1 << 16 };

static struct {
    uint64_t offset, bytes;
} reads[MOST_READS];
static uint32_t n_reads;

/* The library's own reads come here. */
ssize_t pread(int fd, void *to, size_t n, off_t offset);
ssize_t pread(int fd, void *to, size_t n, off_t offset)
{
    ssize_t got = syscall(SYS_pread64, fd, to, n, offset);
    if (got > 0 && n_reads < MOST_READS) {
        reads[n_reads].offset = (uint64_t)offset;
        reads[n_reads++].bytes = (uint64_t)got;
    }
    return got;
}

/* Where the directory begins, behind all weights, and what the weights take that are loaded. */
static void look_at(const char *path, uint64_t *directory, uint64_t *bytes)
{
    struct moe_pack *pack;
    struct moe_err err;
    *directory = *bytes = 0;
    assert_ok(moe_pack_open(&pack, path, &err), &err);
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_extent *x = &moe_pack_tensor_at(pack, i)->extent;
        *bytes += x->stored_bytes;
        *directory =
            x->offset + x->stored_bytes > *directory ? x->offset + x->stored_bytes : *directory;
    }
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++)
        for (uint32_t expert = 0; expert < moe_pack_n_experts(pack); expert++)
            for (uint32_t variant = 0; variant < moe_pack_n_variants(pack); variant++) {
                const struct moe_expert_extent *e = moe_pack_expert(pack, layer, expert, variant);
                const struct moe_expert_class *c = moe_pack_class_at(pack, e->class_index);
                for (uint32_t i = 0; i < c->n_segments; i++) {
                    const struct moe_extent *x = &e->segments[i];
                    *bytes += variant == 0 ? x->stored_bytes : 0;
                    *directory = x->offset + x->stored_bytes > *directory
                                     ? x->offset + x->stored_bytes
                                     : *directory;
                }
            }
    moe_pack_close(pack);
}

/* ---- Loading ---- */

/* What opening needs, matrices in the order of a pass, then the head and the table of tokens;
 * several threads read parts that lie near each other. */
enum { MOST_RETURNS = 2, NEAR = 2 << 20 };

static void load(const char *experts, bool compressed)
{
    char path[128];
    struct moe_convert_options options = pack_options(experts, 8);
    struct moe_engine *e;
    struct moe_err err;
    uint64_t directory, wanted, got = 0, at = 0;
    uint32_t returns = 0;
    options.zstd_level = compressed ? 3 : 0;
    snprintf(path, sizeof path, "/tmp/moe-sweep-%d.moe", (int)getpid());
    bundled_pack(path, &options);
    look_at(path, &directory, &wanted);
    const struct moe_engine_options o = {.memory_bytes = 1ull << 30, .session = {.context = 64}};
    n_reads = 0;
    assert_ok(moe_engine_open(&e, path, &o, NULL, &err), &err);
    assert_true(n_reads < MOST_READS);
    moe_engine_close(e);
    unlink(path);
    for (uint32_t i = 0; i < n_reads; i++) {
        uint64_t end = reads[i].offset + reads[i].bytes;
        if (reads[i].offset >= directory || end <= 4096) /* the directory, the header */
            continue;
        if (reads[i].offset + NEAR < at && ++returns > MOST_RETURNS)
            fail_msg("%s: read %u at %llu, behind one that ended at %llu", experts, i,
                     (unsigned long long)reads[i].offset, (unsigned long long)at);
        at = end;
        got += reads[i].bytes;
    }
    assert_int_equal(got, wanted);
}

static void weights_are_read_in_three_sweeps(void **state)
{
    (void)state;
    load("8", false);
    load("8,4,2", false); /* of which the best is loaded */
    load("8", true);
}

/* ... and what is compressed has room in the budget while it is read. */
static void staging_is_in_the_budget(void **state)
{
    enum { PROGRAM = 12345 };
    (void)state;
    for (int compressed = 0; compressed < 2; compressed++) {
        char path[128];
        struct moe_convert_options options = pack_options("8", 8);
        struct moe_engine_options o = {.memory_bytes = 256 << 20,
                                       .session = {.context = 64},
                                       .shares = true,
                                       .program_bytes = PROGRAM};
        struct moe_engine *e;
        struct moe_err err;
        uint64_t largest = 0;
        options.zstd_level = compressed ? 3 : 0;
        snprintf(path, sizeof path, "/tmp/moe-sweep-%d.moe", (int)getpid());
        bundled_pack(path, &options);
        moe_strategy_find("resident", &o.strategy);
        assert_ok(moe_engine_open(&e, path, &o, NULL, &err), &err);
        for (uint32_t i = 0; i < moe_pack_n_tensors(e->model->pack); i++) {
            const struct moe_extent *x = &moe_pack_tensor_at(e->model->pack, i)->extent;
            if (x->stored_bytes < x->raw_bytes && x->stored_bytes > largest)
                largest = x->stored_bytes;
        }
        assert_true(compressed ? largest > 100000 : largest == 0);
        assert_int_equal(e->budget.host.program, PROGRAM + largest);
        moe_engine_close(e);
        unlink(path);
    }
}

static int open_all(void **state)
{
    struct moe_err err;
    (void)state;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_are_read_in_three_sweeps),
                                       cmocka_unit_test(staging_is_in_the_budget)};
    return cmocka_run_group_tests_name("sweep", tests, open_all, NULL);
}
