/*
 * Loads of expert size through the loader, as moe-run makes them: several at a time, at random
 * places.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/hash.h"
#include "bench/bench.h"
#include "bench/device_private.h"
#include "bench/device_reads.h"
#include "io/loader.h"

enum {
    N_DEPTHS = 4,
    PAGE_READS = 16, /* of a run that measures the latency */
    BURSTS = 20,     /* of a run: one takes well under a millisecond where loads are small */
    HANDLING_SIZES = 3,
    HANDLING_TOGETHER = 4, /* asked for at once, as by a layer */
    HANDLING_LOADS = 16,   /* of a run */
    HANDLING_RUNS = 9,
};

static const uint32_t depths[N_DEPTHS] = {1, 2, 4, DEVICE_IN_FLIGHT};

#define RUN_SECONDS 0.1 /* and at least as many loads as are in flight */

/* ---- Reading ---- */

struct run {
    double bytes_per_second, seconds; /* of all; of one load, on average */
};

/* Keeps `depth` loads under way for a while. */
static int run_loads(struct device_reads *r, uint32_t depth, uint64_t n_bytes, uint32_t least,
                     struct run *out, struct moe_err *err)
{
    double asked[DEVICE_IN_FLIGHT], began = moe_seconds(), now = began, waited = 0;
    uint64_t n_done = 0, n_under_way = 0, bytes = 0;
    int status = MOE_OK;
    for (uint32_t i = 0; i < depth && status == MOE_OK; i++, n_under_way++) {
        asked[i] = moe_seconds();
        status = device_reads_submit(r, i, n_bytes, err);
    }
    while (n_under_way > 0 && status == MOE_OK) {
        struct moe_load_done done[DEVICE_IN_FLIGHT];
        uint32_t n = moe_loader_wait(r->loader, done, DEVICE_IN_FLIGHT);
        now = moe_seconds();
        for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
            uint32_t number = (uint32_t)(done[i].tag >> 48);
            n_under_way--;
            n_done++;
            bytes += done[i].tag & ((UINT64_C(1) << 48) - 1);
            waited += now - asked[number];
            if (done[i].status != MOE_OK)
                status =
                    moe_fail(err, done[i].status, "%s: %s", r->path, moe_loader_error(r->loader));
            else if (n_done + n_under_way < least || now - began < RUN_SECONDS) {
                asked[number] = now;
                status = device_reads_submit(r, number, n_bytes, err);
                n_under_way++;
            }
        }
    }
    if (status == MOE_OK)
        *out = (struct run){(double)bytes / (now - began), waited / (double)n_done};
    return status;
}

static int run_all(struct device_reads *r, struct moe_device_storage *s,
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

/* ---- Bursts ---- */

/* Asks for so many loads at once and waits; adds when the first and the last had come. */
static int run_burst(struct device_reads *r, uint32_t loads, uint64_t n_bytes, double *first,
                     double *all, struct moe_err *err)
{
    double began = moe_seconds(), came = began;
    int status = MOE_OK;
    for (uint32_t i = 0; i < loads && status == MOE_OK; i++)
        status = device_reads_submit(r, i, n_bytes, err);
    if (status == MOE_OK)
        status = device_reads_wait(r, r->loader, loads, &came, err);
    *first += came - began;
    *all += moe_seconds() - began;
    return status;
}

/* Means of a run; bursts of each kind in turn, for a disk may change from one moment to the next.
 */
static int run_bursts(struct device_reads *r, struct moe_device_storage *s, struct moe_err *err)
{
    enum { N_KINDS = 4 };
    static const struct {
        uint32_t loads;
        bool whole;
    } kinds[N_KINDS] = {{1, true}, {DEVICE_IN_FLIGHT, true}, {1, false}, {DEVICE_IN_FLIGHT, false}};
    double first[N_KINDS][DEVICE_RUNS] = {0}, all[N_KINDS][DEVICE_RUNS] = {0};
    int status = MOE_OK;
    for (int k = 0; k < DEVICE_RUNS; k++) {
        double began = moe_seconds();
        int n = 0;
        while (n < BURSTS && (n == 0 || moe_seconds() - began < RUN_SECONDS)) {
            for (int i = 0; i < N_KINDS && status == MOE_OK; i++)
                status = run_burst(r, kinds[i].loads, kinds[i].whole ? 0 : MOE_LOAD_ALIGN,
                                   &first[i][k], &all[i][k], err);
            if (status != MOE_OK)
                return status;
            n++;
        }
        for (int i = 0; i < N_KINDS; i++)
            first[i][k] /= n, all[i][k] /= n;
    }
    for (int i = 0; i < N_KINDS; i++) {
        struct moe_device_burst *b = &s->bursts[i];
        b->loads = kinds[i].loads;
        b->bytes = kinds[i].whole ? device_reads_mean_bytes(r) : MOE_LOAD_ALIGN;
        moe_bench_set_figure(&b->first_seconds, first[i], DEVICE_RUNS);
        moe_bench_set_figure(&b->seconds, all[i], DEVICE_RUNS);
    }
    s->n_bursts = N_KINDS;
    return MOE_OK;
}

/* ---- What a load takes of the thread that waits for it ---- */

/* Loads of the first n_bytes of HANDLING_TOGETHER places from `at` on, and waits for them. With
 * `tell`, their checksums are set, else they are checked if `l` checks. */
static int load_together(struct device_reads *r, struct moe_loader *l, uint32_t at,
                         uint64_t n_bytes, uint64_t *checksums, bool tell, struct moe_err *err)
{
    uint8_t *to[HANDLING_TOGETHER];
    uint32_t handle;
    int status = MOE_OK;
    for (uint32_t i = 0; i < HANDLING_TOGETHER && status == MOE_OK; i++) {
        to[i] = device_reads_buffer(r);
        const struct moe_load load = {.offset = r->places[(at + i) % r->n].offset,
                                      .stored_bytes = n_bytes,
                                      .raw_bytes = n_bytes,
                                      .checksum = checksums[at + i],
                                      .to = to[i],
                                      .priority = MOE_LOAD_DEMAND};
        status = moe_loader_submit(l, &load, &handle, err);
    }
    if (status == MOE_OK)
        status = device_reads_wait(r, l, HANDLING_TOGETHER, NULL, err);
    for (uint32_t i = 0; i < HANDLING_TOGETHER && tell && status == MOE_OK; i++)
        checksums[at + i] = moe_hash64(to[i], n_bytes);
    return status;
}

/* Loads of one size. The first time they are not checked: it tells their checksums. */
static int run_handling(struct device_reads *r, struct moe_loader *checking, uint64_t n_bytes,
                        struct moe_device_handling *out, struct moe_err *err)
{
    uint64_t checksums[HANDLING_LOADS] = {0};
    double seconds[HANDLING_RUNS];
    int status = MOE_OK;
    for (uint32_t i = 0; i < HANDLING_LOADS && status == MOE_OK; i += HANDLING_TOGETHER)
        status = load_together(r, r->loader, i, n_bytes, checksums, true, err);
    for (uint32_t k = 0; k < HANDLING_RUNS && status == MOE_OK; k++) {
        double before = moe_loader_stats(checking)->work_seconds;
        for (uint32_t i = 0; i < HANDLING_LOADS && status == MOE_OK; i += HANDLING_TOGETHER)
            status = load_together(r, checking, i, n_bytes, checksums, false, err);
        seconds[k] = (moe_loader_stats(checking)->work_seconds - before) / HANDLING_LOADS;
    }
    out->bytes = n_bytes;
    if (status == MOE_OK)
        moe_bench_set_figure(&out->seconds, seconds, HANDLING_RUNS);
    return status;
}

/* Every load is checked, as moe-run does. */
static int measure_handling(struct device_reads *r, struct moe_device_storage *s,
                            struct moe_err *err)
{
    const struct moe_loader_options options = {
        .fd = r->fd, .path = r->path, .n_requests = HANDLING_TOGETHER, .verify = true};
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
    struct device_reads r = {.fd = -1};
    int status = device_reads_open(&r, pack, dir, progress, err);
    if (status == MOE_OK)
        status = run_all(&r, s, progress, err);
    if (status == MOE_OK)
        status = run_bursts(&r, s, err);
    if (status == MOE_OK)
        status = measure_handling(&r, s, err);
    if (status == MOE_OK) {
        const struct moe_loader_stats *stats = moe_loader_stats(r.loader);
        s->direct = stats->direct;
        s->read_bytes.value = (double)device_reads_mean_bytes(&r);
        snprintf(s->source, sizeof s->source, "loads at random places of %s, %s, %s",
                 r.own_fd ? "a scratch file" : "the pack, whole experts",
                 stats->direct ? "past the page cache"
                               : "through the page cache, dropped after each load",
                 stats->uring ? "io_uring" : "threads in pread");
    }
    device_reads_close(&r);
    return status;
}
