/* Disks and links: rates, reads, loads. */
#define _GNU_SOURCE /* _SC_LEVEL3_CACHE_SIZE */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/par.h"
#include "infer/experts.h"
#include "io/loader.h"
#include "io/scratch.h"
#include "tune/bench.h"
#include "tune/device_bench.h"
#include "tune/device_internal.h"

enum { COLD_LEAST = 64 << 20, COLD_MOST = 512 << 20 };

static volatile uint64_t sink; /* sums go here so that they are computed */

/* Items of 256 bytes, in 32 sums that do not wait for each other. */
static void read_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const uint64_t *data = ctx;
    uint64_t sums[32] = {0}, sum = 0;
    for (const uint64_t *p = data + begin * 32; p < data + end * 32; p += 32)
        for (int i = 0; i < 32; i++)
            sums[i] += p[i];
    for (int i = 0; i < 32; i++)
        sum += sums[i];
    sink = sum;
}

double moe_read_rate(const void *data, uint64_t n_bytes)
{
    double began = moe_seconds();
    moe_par_for((int64_t)(n_bytes / 256), 256, read_range, (void *)(uintptr_t)data);
    return (double)n_bytes / (moe_seconds() - began);
}

uint64_t moe_cold_bytes(void)
{
    long cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    uint64_t bytes = cache > 0 ? 3 * (uint64_t)cache : COLD_LEAST;
    uint64_t available = moe_available_bytes();
    bytes = bytes < COLD_LEAST ? COLD_LEAST : bytes > COLD_MOST ? COLD_MOST : bytes;
    return available / 4 < bytes ? available / 4 : bytes;
}

/* ---- Reads ---- */

enum {
    DEFAULT_READ = 4 << 20, /* where no pack says how large an expert is */
    SCRATCH_READS = 32,
    SCRATCH_LEAST = 64 << 20,
};

/* ---- Places ---- */

/* Where the experts of a checkpoint in place lie, as far as they are in one file. */
static int find_ranges(struct device_reads *r, const struct moe_pack *pack, struct moe_err *err)
{
    const struct moe_arranger *a = moe_pack_arranger(pack);
    uint32_t n_layers = moe_pack_n_layers(pack), n_experts = moe_pack_n_experts(pack), n;
    struct moe_file_range ranges[MOE_MAX_RANGES];
    uint32_t file = UINT32_MAX;
    r->places = moe_alloc((uint64_t)n_layers * n_experts, sizeof *r->places, err);
    if (!r->places)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n_layers * n_experts; i++) {
        const struct moe_expert_extent *e = moe_pack_expert(pack, i / n_experts, i % n_experts, 0);
        if (!e->present)
            continue;
        MOE_TRY(a->ranges(a->ctx, e->segments[0].offset, ranges, &n, err));
        file = file == UINT32_MAX ? ranges[0].file : file;
        uint64_t begin = moe_range_begin(&ranges[0]), end = ranges[0].offset + ranges[0].bytes;
        end -= end % MOE_PACK_ALIGN; /* the file may end with it */
        if (ranges[0].file == file && end > begin)
            r->places[r->n++] = (struct device_place){begin, end - begin};
    }
    r->fd = r->n ? a->fd(a->ctx, file, &r->path) : -1;
    return MOE_OK;
}

/* Every expert of the pack at the best variant it has: segments that follow each other. */
static int find_experts(struct device_reads *r, const struct moe_pack *pack, struct moe_err *err)
{
    uint32_t n_layers = moe_pack_n_layers(pack), n_experts = moe_pack_n_experts(pack);
    if (moe_pack_arranger(pack))
        return find_ranges(r, pack, err);
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
            r->places[r->n++] =
                (struct device_place){e->segments[0].offset, end - e->segments[0].offset};
        }
    r->fd = moe_pack_fd(pack);
    r->path = moe_pack_path(pack);
    return MOE_OK;
}

static int make_scratch(struct device_reads *r, const char *dir, uint64_t n_bytes,
                        const struct moe_progress *progress, struct moe_err *err)
{
    r->n = SCRATCH_LEAST / n_bytes > SCRATCH_READS ? SCRATCH_LEAST / n_bytes : SCRATCH_READS;
    r->places = moe_alloc(r->n, sizeof *r->places, err);
    if (!r->places)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < r->n; i++)
        r->places[i] = (struct device_place){i * n_bytes, n_bytes};
    r->fd = moe_scratch_open(dir, r->n * n_bytes, NULL, 0, progress, err);
    r->own_fd = r->fd >= 0;
    r->path = dir;
    return r->fd < 0 ? r->fd : MOE_OK;
}

/* On average over the places. */
static uint64_t device_reads_mean_bytes(const struct device_reads *r)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < r->n; i++)
        sum += r->places[i].n_bytes;
    return r->n ? sum / r->n : 0;
}

/* Opens the pack's experts, or a scratch file in `dir` where there is no pack or `dir` is given. *r
 * is zero except fd, -1. Call device_reads_close also after a failure. */
static int device_reads_open(struct device_reads *r, const struct moe_pack *pack, const char *dir,
                             const struct moe_progress *progress, struct moe_err *err)
{
    uint64_t unit = DEFAULT_READ;
    int status = MOE_OK;
    if (pack && moe_pack_n_experts(pack)) {
        status = find_experts(r, pack, err);
        unit = r->n ? moe_round_up(device_reads_mean_bytes(r), MOE_PACK_ALIGN) : unit;
    }
    if (status == MOE_OK && (dir || r->n == 0)) {
        free(r->places);
        r->places = NULL;
        status = make_scratch(r, dir ? dir : ".", unit, progress, err);
    }
    if (status != MOE_OK)
        return status;
    /* What is read at a time must fit in memory, however large an expert is. */
    uint64_t most =
        (moe_available_bytes() / 4 / DEVICE_IN_FLIGHT) & ~(uint64_t)(MOE_LOAD_ALIGN - 1);
    for (uint64_t i = 0; i < r->n; i++) {
        struct device_place *p = &r->places[i];
        p->n_bytes = p->n_bytes > most && most > 0 ? most : p->n_bytes;
        r->largest = p->n_bytes > r->largest ? p->n_bytes : r->largest;
    }
    /* As many as the caches do not hold, in huge pages as a run's slots: reads into small pages
     * have more places to fill and may take twice as long. */
    r->n_buffers = DEVICE_IN_FLIGHT + moe_cold_bytes() / r->largest;
    r->buffers = moe_pages_alloc(r->n_buffers * r->largest, err);
    if (!r->buffers)
        return MOE_ERR_MEMORY;
    memset(r->buffers, 0, r->n_buffers * r->largest); /* the pages are there */
    const struct moe_loader_options options = {
        .fd = r->fd, .path = r->path, .n_requests = DEVICE_IN_FLIGHT};
    return moe_loader_open(&r->loader, &options, err);
}

/* The next buffer: of `largest` bytes, not used again before many others. */
static uint8_t *device_reads_buffer(struct device_reads *r)
{
    return r->buffers + r->next_buffer++ % r->n_buffers * r->largest;
}

static void device_reads_close(struct device_reads *r)
{
    moe_loader_close(r->loader);
    moe_pages_free(r->buffers, r->n_buffers * r->largest);
    free(r->places);
    if (r->own_fd)
        close(r->fd);
}

/* ---- Loads ---- */

/* Requests a random place, or its first n_bytes, as load `number` of those in flight: tag's upper
 * 16 bits, the lower are how many bytes. */
static int device_reads_submit(struct device_reads *r, uint32_t number, uint64_t n_bytes,
                               struct moe_err *err)
{
    /* Knuth's MMIX constants. */
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    const struct device_place *p = &r->places[(r->random >> 33) % r->n];
    uint64_t n = n_bytes ? n_bytes : p->n_bytes;
    uint32_t handle;
    const struct moe_load load = {
        .offset = p->offset,
        .stored_bytes = n,
        .raw_bytes = n,
        .to = device_reads_buffer(r),
        .priority = MOE_LOAD_DEMAND,
        .tag = (uint64_t)number << 48 | n,
    };
    return moe_loader_submit(r->loader, &load, &handle, err);
}

/* Waits for n loads of `l`; *first, if not NULL: when one of them had come. */
static int device_reads_wait(struct device_reads *r, struct moe_loader *l, uint32_t n,
                             double *first, struct moe_err *err)
{
    struct moe_load_done done[DEVICE_IN_FLIGHT];
    for (uint32_t n_done = 0; n_done < n;) {
        uint32_t more = moe_loader_wait(l, done, DEVICE_IN_FLIGHT);
        if (n_done == 0 && first)
            *first = moe_seconds();
        n_done += more;
        for (uint32_t i = 0; i < more; i++) {
            if (done[i].status != MOE_OK)
                return moe_fail(err, done[i].status, "%s: %s", r->path, moe_loader_error(l));
        }
    }
    return MOE_OK;
}

/*
 * Loads of expert size through the loader, as moe-run makes them: several at a time, at random
 * places; a few at once; and what they take of the thread that waits for them. Every kind has its
 * run in each round, and figures are medians of the rounds: what slows a machine for a second (the
 * host of a virtual one, a disk's own work) then is in one run of each, not in all runs of one.
 */

enum {
    N_DEPTHS = 4,
    N_BURSTS = 4, /* kinds */
    N_SIZES = 3,  /* of loads that are handled */
    MAX_ROUNDS = 9,
    LEAST_ROUNDS = 5, /* where they take more than MOST_SECONDS */
    PAGE_READS = 16,  /* of a run that measures the latency */
    BURSTS = 20,      /* of a run: one takes well under a millisecond where loads are small */
    HANDLED = 16,     /* of a run */
};

/* Of a run, and at least as many loads as are in flight; of all rounds. */
static const double RUN_SECONDS = 0.06, MOST_SECONDS = 4;

static const uint32_t depths[N_DEPTHS] = {1, 2, 4, DEVICE_IN_FLIGHT};

static const struct {
    uint32_t loads;
    bool whole; /* experts; else pages */
} bursts[N_BURSTS] = {{1, true}, {DEVICE_IN_FLIGHT, true}, {1, false}, {DEVICE_IN_FLIGHT, false}};

/* What each round measured. */
struct rounds {
    uint32_t n;
    double latency[MAX_ROUNDS];
    double rate[N_DEPTHS][MAX_ROUNDS], seconds[N_DEPTHS][MAX_ROUNDS];
    double first[N_BURSTS][MAX_ROUNDS], all[N_BURSTS][MAX_ROUNDS];
    double handling[N_SIZES][MAX_ROUNDS];
};

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

/* A round's: of pages one by one, of experts at each depth. */
static int run_reads(struct device_reads *r, struct rounds *to, const struct moe_progress *progress,
                     struct moe_err *err)
{
    struct run run = {0};
    MOE_TRY(run_loads(r, 1, MOE_LOAD_ALIGN, PAGE_READS, &run, err));
    to->latency[to->n] = run.seconds;
    for (int i = 0; i < N_DEPTHS; i++) {
        MOE_TRY(run_loads(r, depths[i], 0, depths[i], &run, err));
        to->rate[i][to->n] = run.bytes_per_second;
        to->seconds[i][to->n] = run.seconds;
        if (moe_progress_stopped(progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    return MOE_OK;
}

/* ---- Bursts ---- */

/* Asks for n loads at once and waits; adds the times when the first and the last came. */
static int run_burst(struct device_reads *r, uint32_t loads, uint64_t n_bytes, double *first,
                     double *all, struct moe_err *err)
{
    double began = moe_seconds(), came = began;
    int status = MOE_OK;
    moe_loader_hold(r->loader);
    for (uint32_t i = 0; i < loads && status == MOE_OK; i++)
        status = device_reads_submit(r, i, n_bytes, err);
    moe_loader_let_go(r->loader);
    if (status == MOE_OK)
        status = device_reads_wait(r, r->loader, loads, &came, err);
    *first += came - began;
    *all += moe_seconds() - began;
    return status;
}

/* A round's: means of bursts of each kind in turn. */
static int run_bursts(struct device_reads *r, struct rounds *to, struct moe_err *err)
{
    double began = moe_seconds();
    int n = 0, status = MOE_OK;
    while (n < BURSTS && (n == 0 || moe_seconds() - began < RUN_SECONDS)) {
        for (int i = 0; i < N_BURSTS && status == MOE_OK; i++)
            status = run_burst(r, bursts[i].loads, bursts[i].whole ? 0 : MOE_LOAD_ALIGN,
                               &to->first[i][to->n], &to->all[i][to->n], err);
        if (status != MOE_OK)
            return status;
        n++;
    }
    for (int i = 0; i < N_BURSTS; i++)
        to->first[i][to->n] /= n, to->all[i][to->n] /= n;
    return MOE_OK;
}

/* ---- What a load takes of the thread that waits for it ---- */

/* Times loads of one size, each checked as moe-run does. */
struct handled {
    uint64_t n_bytes;
    uint64_t checksums[HANDLED];
};

/* Loads the first bytes of HANDLED places, one after the other: in a run, too, most loads are asked
 * for and waited for by themselves. With `tell`, their checksums are set, else they are checked if
 * `l` checks. */
static int load_handled(struct device_reads *r, struct moe_loader *l, struct handled *h, bool tell,
                        struct moe_err *err)
{
    for (uint32_t i = 0; i < HANDLED; i++) {
        uint32_t handle;
        const struct moe_load load = {.offset = r->places[i % r->n].offset,
                                      .stored_bytes = h->n_bytes,
                                      .raw_bytes = h->n_bytes,
                                      .checksum = h->checksums[i],
                                      .to = device_reads_buffer(r),
                                      .priority = MOE_LOAD_DEMAND};
        MOE_TRY(moe_loader_submit(l, &load, &handle, err));
        MOE_TRY(device_reads_wait(r, l, 1, NULL, err));
        if (tell)
            h->checksums[i] = moe_hash64(load.to, h->n_bytes);
    }
    return MOE_OK;
}

/* Chooses sizes: a page, a quarter of the smallest expert, all of it; fewer where these are equal.
 * Loads that are not checked give their checksums. *n: how many sizes. */
static int open_handled(struct device_reads *r, struct handled *h, uint32_t *n, struct moe_err *err)
{
    uint64_t least = UINT64_MAX;
    for (uint64_t i = 0; i < r->n; i++)
        least = r->places[i].n_bytes < least ? r->places[i].n_bytes : least;
    const uint64_t sizes[N_SIZES] = {MOE_LOAD_ALIGN, least / 4, least};
    *n = 0;
    for (int i = 0; i < N_SIZES; i++) {
        uint64_t n_bytes = sizes[i] & ~(uint64_t)(MOE_LOAD_ALIGN - 1);
        if (n_bytes <= (*n ? h[*n - 1].n_bytes : 0))
            continue;
        h[*n] = (struct handled){.n_bytes = n_bytes};
        MOE_TRY(load_handled(r, r->loader, &h[(*n)++], true, err));
    }
    return MOE_OK;
}

/* A round's. */
static int run_handling(struct device_reads *r, struct moe_loader *checking, struct handled *h,
                        uint32_t n, struct rounds *to, struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        double before = moe_loader_stats(checking)->work_seconds;
        status = load_handled(r, checking, &h[i], false, err);
        to->handling[i][to->n] = (moe_loader_stats(checking)->work_seconds - before) / HANDLED;
    }
    return status;
}

/* ---- All of it ---- */

static int run_rounds(struct device_reads *r, struct moe_loader *checking, struct handled *h,
                      uint32_t n_handled, struct rounds *to, const struct moe_progress *progress,
                      struct moe_err *err)
{
    struct run unused;
    int status = run_loads(r, 1, MOE_LOAD_ALIGN, PAGE_READS, &unused, err); /* wakes the disk */
    double began = moe_seconds();
    while (status == MOE_OK && to->n < MAX_ROUNDS &&
           (to->n < LEAST_ROUNDS || moe_seconds() - began < MOST_SECONDS)) {
        moe_progress_report(progress, "reading", to->n, MAX_ROUNDS);
        status = run_reads(r, to, progress, err);
        if (status == MOE_OK)
            status = run_bursts(r, to, err);
        if (status == MOE_OK)
            status = run_handling(r, checking, h, n_handled, to, err);
        to->n++;
    }
    return status;
}

static void set_figures(struct moe_device_storage *s, struct rounds *of, uint64_t mean_bytes,
                        const struct handled *h, uint32_t n_handled)
{
    s->read_bytes.value = (double)mean_bytes;
    moe_bench_set_figure(&s->latency_seconds, of->latency, of->n);
    for (int i = 0; i < N_DEPTHS; i++) {
        s->reads[i].in_flight = depths[i];
        moe_bench_set_figure(&s->reads[i].bytes_per_second, of->rate[i], of->n);
        moe_bench_set_figure(&s->reads[i].seconds, of->seconds[i], of->n);
    }
    s->n_reads = N_DEPTHS;
    for (int i = 0; i < N_BURSTS; i++) {
        struct moe_device_burst *b = &s->bursts[i];
        b->loads = bursts[i].loads;
        b->bytes = bursts[i].whole ? mean_bytes : MOE_LOAD_ALIGN;
        moe_bench_set_figure(&b->first_seconds, of->first[i], of->n);
        moe_bench_set_figure(&b->seconds, of->all[i], of->n);
    }
    s->n_bursts = N_BURSTS;
    for (uint32_t i = 0; i < n_handled; i++) {
        s->handling[i].bytes = h[i].n_bytes;
        moe_bench_set_figure(&s->handling[i].seconds, of->handling[i], of->n);
    }
    s->n_handling = n_handled;
}

int moe_device_measure_storage(struct moe_device_storage *s, const struct moe_pack *pack,
                               const char *dir, const struct moe_progress *progress,
                               struct moe_err *err)
{
    struct device_reads r = {.fd = -1};
    struct rounds rounds = {.n = 0};
    struct handled handled[N_SIZES];
    struct moe_loader *checking = NULL;
    uint32_t n_handled = 0;
    int status;
    MOE_STEP(device_reads_open(&r, pack, dir, progress, err));
    const struct moe_loader_options options = {
        .fd = r.fd, .path = r.path, .n_requests = 1, .verify = true};
    MOE_STEP(moe_loader_open(&checking, &options, err));
    MOE_STEP(open_handled(&r, handled, &n_handled, err));
    MOE_STEP(run_rounds(&r, checking, handled, n_handled, &rounds, progress, err));
    const struct moe_loader_stats *stats = moe_loader_stats(r.loader);
    set_figures(s, &rounds, device_reads_mean_bytes(&r), handled, n_handled);
    s->direct = stats->direct;
    snprintf(s->source, sizeof s->source, "loads at random places of %s, %s, %s",
             r.own_fd ? "a scratch file" : "the pack, whole experts",
             stats->direct ? "past the page cache"
                           : "through the page cache, dropped after each load",
             stats->uring ? "io_uring" : "threads in pread");
out:
    moe_loader_close(checking);
    device_reads_close(&r);
    return status;
}

/*
 * Loads beside computation, for the device bench: what computing takes while loads go on.
 */

enum { LEAST_LOADS = 8, MAX_LOADS = 64 };

struct device_loads {
    const struct moe_pack *pack;
    uint32_t variant;
    struct moe_loader *loader;
    uint8_t *buffers; /* of `largest` bytes each */
    uint64_t largest, stored;
    uint32_t n_buffers, n_requests, n_under_way;
    uint32_t *free, next, n_free; /* a ring of buffers: n_free from `next` on */
    uint64_t random;
    enum device_loading how;
};

/* The largest first segment of the variant: bytes in memory and in the file. */
static void find_largest(struct device_loads *l)
{
    for (uint32_t layer = 0; layer < moe_pack_n_layers(l->pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(l->pack); e++) {
            if (!moe_pack_expert(l->pack, layer, e, l->variant)->present)
                continue;
            const struct moe_expert_segment which = {layer, e, l->variant, 0};
            const struct moe_load load = moe_expert_load(l->pack, &which);
            uint64_t raw = moe_round_up(load.raw_bytes, MOE_LOAD_ALIGN);
            uint64_t stored = moe_round_up(load.stored_bytes, MOE_LOAD_ALIGN);
            l->largest = raw > l->largest ? raw : l->largest;
            if (load.stored_bytes < load.raw_bytes && stored > l->stored)
                l->stored = stored;
        }
}

int moe_device_loads_open(struct device_loads **out, const struct moe_pack *pack, uint32_t variant,
                          uint32_t top_k, struct moe_err *err)
{
    struct device_loads *l = moe_alloc(1, sizeof *l, err);
    *out = NULL;
    if (!l)
        return MOE_ERR_MEMORY;
    l->pack = pack;
    l->variant = variant;
    l->n_requests = top_k > LEAST_LOADS ? top_k : LEAST_LOADS;
    l->n_requests = l->n_requests < MAX_LOADS ? l->n_requests : MAX_LOADS;
    find_largest(l);
    if (moe_pack_arranger(pack))
        l->stored = moe_pack_arranger(pack)->most_bytes;
    if (l->largest == 0) {
        free(l);
        return MOE_OK;
    }
    const struct moe_loader_options options = {.fd = moe_pack_fd(pack),
                                               .path = moe_pack_path(pack),
                                               .verify = true,
                                               .n_requests = l->n_requests,
                                               .compressed_bytes = l->n_requests * l->stored,
                                               .arranger = moe_pack_arranger(pack)};
    /* As many as the caches do not hold, each in its turn, as a run's slots are: what is loaded
     * into a few buffers over and over stays in the caches and leaves the memory to computing. */
    l->n_buffers = l->n_requests + (uint32_t)(moe_cold_bytes() / l->largest);
    l->buffers = moe_pages_alloc(l->n_buffers * l->largest, err);
    l->free = moe_alloc(l->n_buffers, sizeof *l->free, err);
    int status =
        l->buffers && l->free ? moe_loader_open(&l->loader, &options, err) : MOE_ERR_MEMORY;
    if (l->buffers)
        memset(l->buffers, 0, l->n_buffers * l->largest); /* the pages are there */
    while (l->free && l->n_free < l->n_buffers) {
        l->free[l->n_free] = l->n_free;
        l->n_free++;
    }
    *out = l;
    return status;
}

void moe_device_loads_close(struct device_loads *l)
{
    if (!l)
        return;
    moe_loader_close(l->loader); /* first: it writes into the buffers */
    moe_pages_free(l->buffers, l->n_buffers * l->largest);
    free(l->free);
    free(l);
}

/* A load of an expert drawn at random. */
static int submit(struct device_loads *l, struct moe_err *err)
{
    struct moe_expert_segment which = {.variant = l->variant};
    do { /* Knuth's MMIX constants */
        l->random = l->random * 6364136223846793005u + 1442695040888963407u;
        which.layer = (uint32_t)(l->random >> 33) % moe_pack_n_layers(l->pack);
        which.expert = (uint32_t)(l->random >> 48) % moe_pack_n_experts(l->pack);
    } while (!moe_pack_expert(l->pack, which.layer, which.expert, l->variant)->present);
    uint32_t buffer = l->free[l->next], handle;
    l->next = (l->next + 1) % l->n_buffers;
    l->n_free--;
    struct moe_load load = moe_expert_load(l->pack, &which);
    load.to = l->buffers + buffer * l->largest;
    load.priority = MOE_LOAD_PREFETCH;
    load.tag = buffer;
    l->n_under_way++;
    return moe_loader_submit(l->loader, &load, &handle, err);
}

static int take_loads(struct device_loads *l, const struct moe_load_done *done, uint32_t n,
                      struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t i = 0; i < n; i++) {
        l->free[(l->next + l->n_free++) % l->n_buffers] = (uint32_t)done[i].tag;
        l->n_under_way--;
        if (done[i].status != MOE_OK)
            status = moe_fail(err, done[i].status, "%s: %s", moe_pack_path(l->pack),
                              moe_loader_error(l->loader));
    }
    return status;
}

int moe_device_loads_set(struct device_loads *l, enum device_loading how, struct moe_err *err)
{
    while (l->n_under_way > 0) {
        struct moe_load_done done;
        MOE_TRY(take_loads(l, &done, moe_loader_wait(l->loader, &done, 1), err));
    }
    l->how = how;
    return moe_device_loads_poll(l, err);
}

int moe_device_loads_poll(struct device_loads *l, struct moe_err *err)
{
    struct moe_load_done done[MAX_LOADS];
    if (l->how != DEVICE_BACKGROUND)
        return MOE_OK;
    int status = take_loads(l, done, moe_loader_poll(l->loader, done, MAX_LOADS), err);
    moe_loader_hold(l->loader);
    while (status == MOE_OK && l->n_under_way < l->n_requests)
        status = submit(l, err);
    moe_loader_let_go(l->loader);
    return status;
}

double moe_device_loads_seconds(const struct device_loads *l)
{
    const struct moe_loader_stats *s = moe_loader_stats(l->loader);
    return s->work_seconds + s->wait_seconds;
}
