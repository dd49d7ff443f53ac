/*
 * Loads of expert size through the loader, as moe-run makes them: several at a time, at random
 * places.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "bench/bench.h"
#include "bench/device_private.h"
#include "io/loader.h"
#include "io/scratch.h"

enum {
    N_DEPTHS = 4,
    MAX_IN_FLIGHT = 8,
    DEFAULT_READ = 4 << 20, /* where no pack says how large an expert is */
    SCRATCH_READS = 32,
    SCRATCH_LEAST = 64 << 20,
    PAGE_READS = 16, /* of a run that measures the latency */
    HANDLING_SIZES = 3,
    HANDLING_LOADS = 8, /* of a run */
    HANDLING_RUNS = 9,
};

static const uint32_t depths[N_DEPTHS] = {1, 2, 4, MAX_IN_FLIGHT};

#define RUN_SECONDS 0.1 /* and at least as many loads as are in flight */

struct place {
    uint64_t offset, n_bytes;
};

struct reads {
    int fd;
    bool own_fd;
    const char *path;
    struct place *places;
    uint64_t n, largest, random;
    uint8_t *buffers;
    struct moe_loader *loader;
};

/* ---- Places ---- */

/* Every expert of the pack at the best variant it has: segments that follow each other. */
static int find_experts(struct reads *r, const struct moe_pack *pack, struct moe_err *err)
{
    uint32_t n_layers = moe_pack_n_layers(pack), n_experts = moe_pack_n_experts(pack);
    r->places = moe_alloc((uint64_t)n_layers * n_experts, sizeof *r->places, err);
    if (!r->places)
        return MOE_ERR_MEMORY;
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (uint32_t expert = 0; expert < n_experts; expert++) {
            uint32_t variant = moe_pack_usable_variant(pack, layer, expert, 0);
            if (variant == UINT32_MAX)
                continue;
            const struct moe_expert_extent *e = moe_pack_expert(pack, layer, expert, variant);
            uint32_t last = moe_pack_class_at(pack, e->class_index)->n_segments - 1;
            uint64_t end = moe_round_up(e->segments[last].offset + e->segments[last].stored_bytes,
                                        MOE_PACK_ALIGN);
            r->places[r->n++] = (struct place){e->segments[0].offset, end - e->segments[0].offset};
        }
    r->fd = moe_pack_fd(pack);
    r->path = moe_pack_path(pack);
    return MOE_OK;
}

static int make_scratch(struct reads *r, const char *dir, uint64_t n_bytes,
                        const struct moe_progress *progress, struct moe_err *err)
{
    r->n = SCRATCH_LEAST / n_bytes > SCRATCH_READS ? SCRATCH_LEAST / n_bytes : SCRATCH_READS;
    r->places = moe_alloc(r->n, sizeof *r->places, err);
    if (!r->places)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < r->n; i++)
        r->places[i] = (struct place){i * n_bytes, n_bytes};
    r->fd = moe_scratch_open(dir, r->n * n_bytes, NULL, 0, progress, err);
    r->own_fd = r->fd >= 0;
    r->path = dir;
    return r->fd < 0 ? r->fd : MOE_OK;
}

static uint64_t mean_bytes(const struct reads *r)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < r->n; i++)
        sum += r->places[i].n_bytes;
    return r->n ? sum / r->n : 0;
}

static int open_reads(struct reads *r, const struct moe_pack *pack, const char *dir,
                      const struct moe_progress *progress, struct moe_err *err)
{
    uint64_t unit = DEFAULT_READ;
    int status = MOE_OK;
    if (pack && moe_pack_n_experts(pack)) {
        status = find_experts(r, pack, err);
        unit = r->n ? moe_round_up(mean_bytes(r), MOE_PACK_ALIGN) : unit;
    }
    if (status == MOE_OK && (dir || r->n == 0)) {
        free(r->places);
        r->places = NULL;
        status = make_scratch(r, dir ? dir : ".", unit, progress, err);
    }
    if (status != MOE_OK)
        return status;
    /* What is read at a time must fit in memory, however large an expert is. */
    uint64_t most = (moe_available_bytes() / 4 / MAX_IN_FLIGHT) & ~(uint64_t)(MOE_LOAD_ALIGN - 1);
    for (uint64_t i = 0; i < r->n; i++) {
        struct place *p = &r->places[i];
        p->n_bytes = p->n_bytes > most && most > 0 ? most : p->n_bytes;
        r->largest = p->n_bytes > r->largest ? p->n_bytes : r->largest;
    }
    r->buffers = moe_pages_alloc(MAX_IN_FLIGHT * r->largest, err);
    const struct moe_loader_options options = {
        .fd = r->fd, .path = r->path, .n_requests = MAX_IN_FLIGHT};
    return r->buffers ? moe_loader_open(&r->loader, &options, err) : MOE_ERR_MEMORY;
}

static void close_reads(struct reads *r)
{
    moe_loader_close(r->loader);
    moe_pages_free(r->buffers, MAX_IN_FLIGHT * r->largest);
    free(r->places);
    if (r->own_fd)
        close(r->fd);
}

/* ---- Reading ---- */

/* Requests a random place, or its first n_bytes, into buffer number `buffer`. */
static int submit(struct reads *r, uint32_t buffer, uint64_t n_bytes, struct moe_err *err)
{
    /* Knuth's MMIX constants. */
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    const struct place *p = &r->places[(r->random >> 33) % r->n];
    uint64_t n = n_bytes ? n_bytes : p->n_bytes;
    uint32_t handle;
    const struct moe_load load = {
        .offset = p->offset,
        .stored_bytes = n,
        .raw_bytes = n,
        .to = r->buffers + buffer * r->largest,
        .priority = MOE_LOAD_DEMAND,
        .tag = (uint64_t)buffer << 48 | n,
    };
    return moe_loader_submit(r->loader, &load, &handle, err);
}

struct run {
    double bytes_per_second, seconds; /* of all; of one load, on average */
};

/* Keeps `depth` loads under way for a while. */
static int run_loads(struct reads *r, uint32_t depth, uint64_t n_bytes, uint32_t least,
                     struct run *out, struct moe_err *err)
{
    double asked[MAX_IN_FLIGHT], began = moe_seconds(), now = began, waited = 0;
    uint64_t n_done = 0, n_under_way = 0, bytes = 0;
    int status = MOE_OK;
    for (uint32_t i = 0; i < depth && status == MOE_OK; i++, n_under_way++) {
        asked[i] = moe_seconds();
        status = submit(r, i, n_bytes, err);
    }
    while (n_under_way > 0 && status == MOE_OK) {
        struct moe_load_done done[MAX_IN_FLIGHT];
        uint32_t n = moe_loader_wait(r->loader, done, MAX_IN_FLIGHT);
        now = moe_seconds();
        for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
            uint32_t buffer = (uint32_t)(done[i].tag >> 48);
            n_under_way--;
            n_done++;
            bytes += done[i].tag & ((UINT64_C(1) << 48) - 1);
            waited += now - asked[buffer];
            if (done[i].status != MOE_OK)
                status =
                    moe_fail(err, done[i].status, "%s: %s", r->path, moe_loader_error(r->loader));
            else if (n_done + n_under_way < least || now - began < RUN_SECONDS) {
                asked[buffer] = now;
                status = submit(r, buffer, n_bytes, err);
                n_under_way++;
            }
        }
    }
    if (status == MOE_OK)
        *out = (struct run){(double)bytes / (now - began), waited / (double)n_done};
    return status;
}

static int run_all(struct reads *r, struct moe_device_storage *s,
                   const struct moe_progress *progress, struct moe_err *err)
{
    double rate[N_DEPTHS][DEVICE_RUNS], seconds[N_DEPTHS][DEVICE_RUNS], latency[DEVICE_RUNS];
    struct run run = {0};
    int status = run_loads(r, 1, MOE_LOAD_ALIGN, PAGE_READS, &run, err); /* does not count */
    for (int k = 0; k < DEVICE_RUNS && status == MOE_OK; k++) {
        moe_progress_report(progress, "reading", (uint64_t)k, DEVICE_RUNS);
        status = run_loads(r, 1, MOE_LOAD_ALIGN, PAGE_READS, &run, err);
        latency[k] = run.seconds;
        for (int i = 0; i < N_DEPTHS && status == MOE_OK; i++) {
            status = run_loads(r, depths[i], 0, depths[i], &run, err);
            rate[i][k] = run.bytes_per_second;
            seconds[i][k] = run.seconds;
            if (status == MOE_OK && moe_progress_stopped(progress))
                status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
        }
    }
    if (status != MOE_OK)
        return status;
    moe_bench_set_figure(&s->latency_seconds, latency, DEVICE_RUNS);
    for (int i = 0; i < N_DEPTHS; i++) {
        s->reads[i].in_flight = depths[i];
        moe_bench_set_figure(&s->reads[i].bytes_per_second, rate[i], DEVICE_RUNS);
        moe_bench_set_figure(&s->reads[i].seconds, seconds[i], DEVICE_RUNS);
    }
    s->n_reads = N_DEPTHS;
    return MOE_OK;
}

/* ---- What a load takes of the thread that waits for it ---- */

/* One load of the place's first n_bytes, checked; `checksum` NULL: without, and sets what it is. */
static int load_once(struct reads *r, struct moe_loader *l, const struct place *p, uint64_t n_bytes,
                     uint64_t *checksum, bool check, struct moe_err *err)
{
    const struct moe_load load = {.offset = p->offset,
                                  .stored_bytes = n_bytes,
                                  .raw_bytes = n_bytes,
                                  .checksum = *checksum,
                                  .to = r->buffers,
                                  .priority = MOE_LOAD_DEMAND};
    struct moe_load_done done;
    uint32_t handle;
    int status = moe_loader_submit(l, &load, &handle, err);
    if (status == MOE_OK && moe_loader_wait(l, &done, 1) == 1 && done.status != MOE_OK)
        status = moe_fail(err, done.status, "%s: %s", r->path, moe_loader_error(l));
    if (status == MOE_OK && !check)
        *checksum = moe_hash64(r->buffers, n_bytes);
    return status;
}

/* Loads of one size, one after the other. */
static int run_handling(struct reads *r, struct moe_loader *checking, uint64_t n_bytes,
                        struct moe_device_handling *out, struct moe_err *err)
{
    uint64_t checksums[HANDLING_LOADS] = {0};
    double seconds[HANDLING_RUNS];
    int status = MOE_OK;
    for (uint32_t i = 0; i < HANDLING_LOADS && status == MOE_OK; i++)
        status = load_once(r, r->loader, &r->places[i % r->n], n_bytes, &checksums[i], false, err);
    for (uint32_t k = 0; k < HANDLING_RUNS && status == MOE_OK; k++) {
        double before = moe_loader_stats(checking)->work_seconds;
        for (uint32_t i = 0; i < HANDLING_LOADS && status == MOE_OK; i++)
            status =
                load_once(r, checking, &r->places[i % r->n], n_bytes, &checksums[i], true, err);
        seconds[k] = (moe_loader_stats(checking)->work_seconds - before) / HANDLING_LOADS;
    }
    out->bytes = n_bytes;
    if (status == MOE_OK)
        moe_bench_set_figure(&out->seconds, seconds, HANDLING_RUNS);
    return status;
}

/* Every load is checked, as moe-run does. */
static int measure_handling(struct reads *r, struct moe_device_storage *s, struct moe_err *err)
{
    const struct moe_loader_options options = {
        .fd = r->fd, .path = r->path, .n_requests = 1, .verify = true};
    struct moe_loader *checking = NULL;
    uint64_t least = UINT64_MAX, sizes[HANDLING_SIZES];
    for (uint64_t i = 0; i < r->n; i++)
        least = r->places[i].n_bytes < least ? r->places[i].n_bytes : least;
    sizes[2] = least & ~(uint64_t)(MOE_LOAD_ALIGN - 1);
    sizes[1] = (least / 4) & ~(uint64_t)(MOE_LOAD_ALIGN - 1);
    sizes[0] = MOE_LOAD_ALIGN;
    int status = moe_loader_open(&checking, &options, err);
    for (int i = 0; i < HANDLING_SIZES && status == MOE_OK; i++)
        if (s->n_handling == 0 ? sizes[i] > 0 : sizes[i] > s->handling[s->n_handling - 1].bytes)
            status = run_handling(r, checking, sizes[i], &s->handling[s->n_handling++], err);
    moe_loader_close(checking);
    return status;
}

int moe_device_measure_storage(struct moe_device_storage *s, const struct moe_pack *pack,
                               const char *dir, const struct moe_progress *progress,
                               struct moe_err *err)
{
    struct reads r = {.fd = -1};
    int status = open_reads(&r, pack, dir, progress, err);
    if (status == MOE_OK)
        status = run_all(&r, s, progress, err);
    if (status == MOE_OK)
        status = measure_handling(&r, s, err);
    if (status == MOE_OK) {
        const struct moe_loader_stats *stats = moe_loader_stats(r.loader);
        s->direct = stats->direct;
        s->read_bytes.value = (double)mean_bytes(&r);
        snprintf(s->source, sizeof s->source, "loads at random places of %s, %s, %s",
                 r.own_fd ? "a scratch file" : "the pack, whole experts",
                 stats->direct ? "past the page cache"
                               : "through the page cache, dropped after each load",
                 stats->uring ? "io_uring" : "threads in pread");
    }
    close_reads(&r);
    return status;
}
