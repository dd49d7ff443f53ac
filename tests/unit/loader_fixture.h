/* A file of known contents for the loader's tests: extents of all sizes, some compressed, the last
 * one ending the file without padding. */
#ifndef TESTS_UNIT_LOADER_FIXTURE_H
#define TESTS_UNIT_LOADER_FIXTURE_H

#include <unistd.h>
#include <zstd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "io/loader.h"

#include "../test.h"

enum {
    N_EXTENTS = 48,
    MAX_RAW = 200 * 1024,
    STAGING_BYTES = 128 * 1024, /* room for one large compressed extent, or several small ones */
};

struct extent {
    struct moe_load load; /* without `to` */
    uint8_t *raw;
    bool compressed;
};

struct fixture {
    char path[64];
    int fd;
    uint8_t *copy; /* of the file */
    uint64_t copy_bytes;
    struct extent extents[N_EXTENTS];
    uint8_t *buffers[N_EXTENTS]; /* MAX_RAW rounded up, each */
};

static inline void fixture_fill(uint8_t *to, uint64_t n, bool compressible, uint64_t *random)
{
    for (uint64_t i = 0; i < n; i++)
        to[i] = (uint8_t)(compressible ? test_random(random) % 5 * 37 : test_random(random));
}

static inline void fixture_extent(struct fixture *f, int i, uint64_t *random)
{
    struct extent *e = &f->extents[i];
    uint64_t raw_bytes = 1 + test_random(random) % MAX_RAW;
    if (i % 5 == 0)
        raw_bytes = i == 0 ? MAX_RAW : 4096 * (uint64_t)i; /* no padding */
    e->compressed = i % 4 == 1;
    e->raw = malloc(raw_bytes);
    fixture_fill(e->raw, raw_bytes, e->compressed, random);
    uint8_t *at = f->copy + f->copy_bytes;
    uint64_t stored = raw_bytes;
    if (e->compressed)
        stored = ZSTD_compress(at, raw_bytes + 1000, e->raw, raw_bytes, 1);
    else
        memcpy(at, e->raw, raw_bytes);
    assert_true(!e->compressed || stored < raw_bytes);
    e->load = (struct moe_load){.offset = f->copy_bytes,
                                .stored_bytes = stored,
                                .raw_bytes = raw_bytes,
                                .checksum = moe_hash64(at, stored),
                                .tag = (uint64_t)i};
    f->copy_bytes += i + 1 < N_EXTENTS ? moe_round_up(stored, 4096) : stored;
}

static inline void fixture_open(struct fixture *f)
{
    struct moe_err err;
    uint64_t random = 7;
    memset(f, 0, sizeof *f);
    f->copy = moe_pages_alloc((uint64_t)N_EXTENTS * (MAX_RAW + 8192), &err);
    for (int i = 0; i < N_EXTENTS; i++) {
        fixture_extent(f, i, &random);
        f->buffers[i] = moe_pages_alloc(MAX_RAW + 4096, &err);
    }
    /* Beside the build's output: /tmp may be a memory file system. */
    strcpy(f->path, "build/loader-XXXXXX");
    f->fd = mkstemp(f->path);
    if (f->fd < 0)
        f->fd = mkstemp(strcpy(f->path, "/tmp/loader-XXXXXX"));
    assert_true(f->fd >= 0);
    assert_int_equal(pwrite(f->fd, f->copy, f->copy_bytes, 0), f->copy_bytes);
    fsync(f->fd);
}

static inline void fixture_close(struct fixture *f)
{
    close(f->fd);
    unlink(f->path);
    moe_pages_free(f->copy, (uint64_t)N_EXTENTS * (MAX_RAW + 8192));
    for (int i = 0; i < N_EXTENTS; i++) {
        free(f->extents[i].raw);
        moe_pages_free(f->buffers[i], MAX_RAW + 4096);
    }
}

/* Small pieces, so that everything has many. */
static inline struct moe_loader_options fixture_options(const struct fixture *f)
{
    return (struct moe_loader_options){.fd = f->fd,
                                       .path = f->path,
                                       .verify = true,
                                       .n_requests = N_EXTENTS,
                                       .queue_depth = 4,
                                       .piece_bytes = 16384,
                                       .compressed_bytes = STAGING_BYTES};
}

static inline struct moe_loader *fixture_loader(const struct moe_loader_options *options)
{
    struct moe_err err;
    struct moe_loader *l = NULL;
    assert_ok(moe_loader_open(&l, options, &err), &err);
    return l;
}

/* Submits a load of extent i into buffer i, which is filled with other bytes first. */
static inline uint32_t fixture_submit(struct fixture *f, struct moe_loader *l, int i,
                                      enum moe_load_priority priority, float score)
{
    struct moe_err err;
    struct moe_load load = f->extents[i].load;
    uint32_t handle = 0;
    load.to = f->buffers[i];
    load.priority = priority;
    load.score = score;
    memset(load.to, 0x5a, MAX_RAW + 4096);
    assert_ok(moe_loader_submit(l, &load, &handle, &err), &err);
    assert_int_not_equal(handle, 0);
    return handle;
}

/* The bytes arrived, and nothing was written past the room they were given. */
static inline void fixture_check(const struct fixture *f, int i)
{
    const struct extent *e = &f->extents[i];
    assert_int_equal(memcmp(f->buffers[i], e->raw, e->load.raw_bytes), 0);
    const uint8_t *past = f->buffers[i] + moe_round_up(e->load.raw_bytes, 4096);
    const uint8_t *end = f->buffers[i] + MAX_RAW + 4096;
    if (past < end && (*past != 0x5a || memcmp(past, past + 1, end - past - 1) != 0))
        fail_msg("extent %d: bytes past its room were written", i);
}

/* Of the test program: cmocka_run_group_tests(tests, open_all, close_all). */
static struct fixture f;

static inline int open_all(void **state)
{
    fixture_open(&f);
    return 0;
}

static inline int close_all(void **state)
{
    fixture_close(&f);
    return 0;
}

#endif
