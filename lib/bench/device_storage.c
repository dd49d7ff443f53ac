/*
 * Loads of expert size through the loader, as moe-run makes them: several at a time, at random
 * places; a few at once; and what they take of the thread that waits for them. Every kind has its
 * run in each round, and figures are medians of the rounds: what slows a machine for a second (the
 * host of a virtual one, a disk's own work) then is in one run of each, not in all runs of one.
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
    N_BURSTS = 4, /* kinds */
    N_SIZES = 3,  /* of loads that are handled */
    MAX_ROUNDS = 9,
    LEAST_ROUNDS = 5, /* where they take more than MOST_SECONDS */
    PAGE_READS = 16,  /* of a run that measures the latency */
    BURSTS = 20,      /* of a run: one takes well under a millisecond where loads are small */
    TOGETHER = 4,     /* loads handled that are asked for at once, as by a layer */
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
    int status = run_loads(r, 1, MOE_LOAD_ALIGN, PAGE_READS, &run, err);
    to->latency[to->n] = run.seconds;
    for (int i = 0; i < N_DEPTHS && status == MOE_OK; i++) {
        status = run_loads(r, depths[i], 0, depths[i], &run, err);
        to->rate[i][to->n] = run.bytes_per_second;
        to->seconds[i][to->n] = run.seconds;
        if (status == MOE_OK && moe_progress_stopped(progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    return status;
}

/* ---- Bursts ---- */

/* Asks for so many loads at once and waits; adds when the first and the last had come. */
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

/* Loads of the first n_bytes of TOGETHER places from `at` on, and waits for them. With
 * `tell`, their checksums are set, else they are checked if `l` checks. */
static int load_together(struct device_reads *r, struct moe_loader *l, uint32_t at,
                         uint64_t n_bytes, uint64_t *checksums, bool tell, struct moe_err *err)
{
    uint8_t *to[TOGETHER];
    uint32_t handle;
    int status = MOE_OK;
    moe_loader_hold(l);
    for (uint32_t i = 0; i < TOGETHER && status == MOE_OK; i++) {
        to[i] = device_reads_buffer(r);
        const struct moe_load load = {.offset = r->places[(at + i) % r->n].offset,
                                      .stored_bytes = n_bytes,
                                      .raw_bytes = n_bytes,
                                      .checksum = checksums[at + i],
                                      .to = to[i],
                                      .priority = MOE_LOAD_DEMAND};
        status = moe_loader_submit(l, &load, &handle, err);
    }
    moe_loader_let_go(l);
    if (status == MOE_OK)
        status = device_reads_wait(r, l, TOGETHER, NULL, err);
    for (uint32_t i = 0; i < TOGETHER && tell && status == MOE_OK; i++)
        checksums[at + i] = moe_hash64(to[i], n_bytes);
    return status;
}

/* Loads of one size, each of which is checked as moe-run does. */
struct handled {
    uint64_t n_bytes;
    uint64_t checksums[HANDLED];
};

static int load_handled(struct device_reads *r, struct moe_loader *l, struct handled *h, bool tell,
                        struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t i = 0; i < HANDLED && status == MOE_OK; i += TOGETHER)
        status = load_together(r, l, i, h->n_bytes, h->checksums, tell, err);
    return status;
}

/* Pages, a quarter of the smallest expert and all of it; fewer sizes where these are the same.
 * Their checksums are told by loads that nobody checks. Returns how many sizes in *n. */
static int open_handled(struct device_reads *r, struct handled *h, uint32_t *n, struct moe_err *err)
{
    uint64_t least = UINT64_MAX;
    int status = MOE_OK;
    for (uint64_t i = 0; i < r->n; i++)
        least = r->places[i].n_bytes < least ? r->places[i].n_bytes : least;
    const uint64_t sizes[N_SIZES] = {MOE_LOAD_ALIGN, least / 4, least};
    *n = 0;
    for (int i = 0; i < N_SIZES && status == MOE_OK; i++) {
        uint64_t n_bytes = sizes[i] & ~(uint64_t)(MOE_LOAD_ALIGN - 1);
        if (n_bytes <= (*n ? h[*n - 1].n_bytes : 0))
            continue;
        h[*n] = (struct handled){.n_bytes = n_bytes};
        status = load_handled(r, r->loader, &h[(*n)++], true, err);
    }
    return status;
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
    int status = device_reads_open(&r, pack, dir, progress, err);
    if (status == MOE_OK) {
        const struct moe_loader_options options = {
            .fd = r.fd, .path = r.path, .n_requests = TOGETHER, .verify = true};
        status = moe_loader_open(&checking, &options, err);
    }
    if (status == MOE_OK)
        status = open_handled(&r, handled, &n_handled, err);
    if (status == MOE_OK)
        status = run_rounds(&r, checking, handled, n_handled, &rounds, progress, err);
    if (status == MOE_OK) {
        const struct moe_loader_stats *stats = moe_loader_stats(r.loader);
        set_figures(s, &rounds, device_reads_mean_bytes(&r), handled, n_handled);
        s->direct = stats->direct;
        snprintf(s->source, sizeof s->source, "loads at random places of %s, %s, %s",
                 r.own_fd ? "a scratch file" : "the pack, whole experts",
                 stats->direct ? "past the page cache"
                               : "through the page cache, dropped after each load",
                 stats->uring ? "io_uring" : "threads in pread");
    }
    moe_loader_close(checking);
    device_reads_close(&r);
    return status;
}
