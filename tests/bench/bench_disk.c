/*
 * What the disk gives, and at which queue depth and piece size: the loader's defaults come from
 * here.
 *
 *   bench_disk [DIR] [SIZE]      DIR: where to put the file (build), SIZE: its bytes (1G)
 *
 * Reads 4 MiB requests spread over a file that it creates and removes. Prints bandwidth per
 * backend, queue depth and piece size, ratios to the best of the same run, CPU time per gigabyte,
 * what small pages cost, what the checksum costs, and how much CPU time a throttled wait takes.
 * Rounds are interleaved (every cell is measured once per round) and the median over rounds is
 * shown.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"

#include "bench_reads.h"

enum {
    REQUEST_BYTES = 4 << 20,
    N_BUFFERS = READS_AT_A_TIME,
    N_PREFETCHES = 8,
    N_DEMANDS = 15,
    N_ROUNDS = 5,
    N_BURSTS = 20,
    N_DEPTHS = 6,
    N_PIECES = 7,
    CELL_BYTES = 128 << 20, /* read for one figure */
};

static const uint32_t depths[N_DEPTHS] = {1, 2, 4, 8, 16, 32};

struct bench {
    char path[512];
    int fd;
    uint64_t n_slots; /* requests the file has room for */
    struct moe_load *loads;
    uint8_t *buffers;
    uint64_t random; /* of the contents */
    struct reads reads;
};

static void die(const struct moe_err *err)
{
    fprintf(stderr, "bench_disk: %s\n", err->text);
    exit(1);
}

static void create(struct bench *b, const char *dir, uint64_t bytes)
{
    struct moe_err err;
    snprintf(b->path, sizeof b->path, "%s/bench_disk.XXXXXX", dir);
    b->fd = mkstemp(b->path);
    b->n_slots = bytes / REQUEST_BYTES;
    b->loads = moe_alloc(b->n_slots, sizeof *b->loads, &err);
    b->buffers = moe_pages_alloc((uint64_t)N_BUFFERS * REQUEST_BYTES, &err);
    if (b->fd < 0 || !b->loads || !b->buffers) {
        perror(b->path);
        exit(1);
    }
    for (uint64_t i = 0; i < b->n_slots; i++) {
        for (uint64_t j = 0; j < REQUEST_BYTES; j += 8) {
            uint64_t x = next_random(&b->random);
            memcpy(b->buffers + j, &x, 8);
        }
        b->loads[i] = (struct moe_load){.offset = i * REQUEST_BYTES,
                                        .stored_bytes = REQUEST_BYTES,
                                        .checksum = moe_hash64(b->buffers, REQUEST_BYTES)};
        if (pwrite(b->fd, b->buffers, REQUEST_BYTES, (off_t)(i * REQUEST_BYTES)) != REQUEST_BYTES) {
            perror(b->path);
            unlink(b->path);
            exit(1);
        }
    }
    fsync(b->fd);
    posix_fadvise(b->fd, 0, 0, POSIX_FADV_DONTNEED);
    b->reads = (struct reads){b->loads, b->n_slots, REQUEST_BYTES, 88172645463325252u};
}

static void submit(struct bench *b, struct moe_loader *l, uint64_t buffer,
                   enum moe_load_priority priority)
{
    struct moe_err err;
    if (reads_submit(&b->reads, l, b->buffers + buffer * REQUEST_BYTES, buffer, priority, &err) !=
        MOE_OK)
        die(&err);
}

static struct read_figures measure(struct bench *b, struct moe_loader_options o, uint64_t bytes)
{
    struct moe_err err;
    struct read_figures f;
    o.fd = b->fd;
    o.path = b->path;
    if (reads_measure(&b->reads, o, bytes, &f, &err) != MOE_OK)
        die(&err);
    return f;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values)
{
    double sorted[N_ROUNDS];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, N_ROUNDS, sizeof *sorted, by_value);
    return sorted[N_ROUNDS / 2];
}

static void grid(struct bench *b, enum moe_load_backend backend, const char *name)
{
    static double rate[N_DEPTHS][N_PIECES][N_ROUNDS], cpu[N_DEPTHS][N_PIECES][N_ROUNDS];
    double best = 0;
    for (int k = 0; k < N_ROUNDS; k++)
        for (int d = 0; d < N_DEPTHS; d++)
            for (int p = 0; p < N_PIECES; p++) {
                struct moe_loader_options o = {
                    .backend = backend, .queue_depth = depths[d], .piece_bytes = 65536u << p};
                struct read_figures f = measure(b, o, CELL_BYTES);
                rate[d][p][k] = f.bytes_per_second;
                cpu[d][p][k] = f.cpu_per_gb;
            }
    for (int d = 0; d < N_DEPTHS; d++)
        for (int p = 0; p < N_PIECES; p++)
            best = median(rate[d][p]) > best ? median(rate[d][p]) : best;
    printf("\n%s: share of its best, %.0f MB/s (CPU ms per GB)\ndepth", name, best / 1e6);
    for (int p = 0; p < N_PIECES; p++)
        printf("%10uK   ", 64u << p);
    for (int d = 0; d < N_DEPTHS; d++) {
        printf("\n%5u", depths[d]);
        for (int p = 0; p < N_PIECES; p++)
            printf("  %4.2f (%4.0f) ", median(rate[d][p]) / best, 1e3 * median(cpu[d][p]));
    }
    printf("\n");
}

/* How long a demand takes that comes when prefetches fill the queue; `overtakes` false: as if it
 * had to wait for its turn after them. */
static double demand_seconds(struct bench *b, struct moe_loader_options o, bool overtakes)
{
    struct moe_err err;
    struct moe_loader *l;
    struct moe_load_done done[N_BUFFERS];
    double times[N_DEMANDS];
    o.fd = b->fd;
    o.path = b->path;
    o.n_requests = N_BUFFERS;
    if (moe_loader_open(&l, &o, &err) != MOE_OK)
        die(&err);
    for (int k = 0; k < N_DEMANDS; k++) {
        uint32_t n_left = N_PREFETCHES + 1;
        for (uint64_t i = 1; i <= N_PREFETCHES; i++)
            submit(b, l, i, MOE_LOAD_PREFETCH);
        double start = moe_seconds();
        submit(b, l, 0, overtakes ? MOE_LOAD_DEMAND : MOE_LOAD_PREFETCH);
        while (n_left > 0) {
            uint32_t n = moe_loader_wait(l, done, N_BUFFERS);
            for (uint32_t i = 0; i < n; i++, n_left--)
                if (done[i].tag == 0)
                    times[k] = moe_seconds() - start;
        }
    }
    moe_loader_close(l);
    qsort(times, N_DEMANDS, sizeof *times, by_value);
    return times[N_DEMANDS / 2];
}

/* Candidates for the defaults: bandwidth against the time a demand waits. */
static void candidates(struct bench *b)
{
    static const uint32_t tried[][2] = {{2, 1024}, {4, 256},  {4, 512},  {4, 1024}, {8, 256},
                                        {8, 512},  {8, 1024}, {16, 256}, {32, 128}};
    enum { N_TRIED = sizeof tried / sizeof *tried };
    double rate[N_TRIED][N_ROUNDS], demand[N_TRIED][N_ROUNDS], turn[N_TRIED][N_ROUNDS], best = 0;
    for (int k = 0; k < N_ROUNDS; k++)
        for (int i = 0; i < N_TRIED; i++) {
            struct moe_loader_options o = {.queue_depth = tried[i][0],
                                           .piece_bytes = tried[i][1] << 10};
            rate[i][k] = measure(b, o, CELL_BYTES).bytes_per_second;
            demand[i][k] = demand_seconds(b, o, true);
            turn[i][k] = demand_seconds(b, o, false);
        }
    for (int i = 0; i < N_TRIED; i++)
        best = median(rate[i]) > best ? median(rate[i]) : best;
    printf(
        "\na 4 MiB demand after %d prefetches of 4 MiB (ms; in its turn: if it did not overtake)\n"
        "depth  piece  bandwidth  overtaking  in its turn  ratio\n",
        N_PREFETCHES);
    for (int i = 0; i < N_TRIED; i++)
        printf("%5u %5uK  %9.2f  %10.2f  %11.2f  %5.2f\n", tried[i][0], tried[i][1],
               median(rate[i]) / best, 1e3 * median(demand[i]), 1e3 * median(turn[i]),
               median(turn[i]) / median(demand[i]));
}

/* Milliseconds until n loads have come that were asked for at once, on average. */
static double burst(struct bench *b, struct moe_loader *l, uint8_t *buffers, uint64_t n)
{
    struct moe_err err;
    struct moe_load_done done[N_BUFFERS];
    double start = moe_seconds();
    for (int k = 0; k < N_BURSTS; k++) {
        for (uint64_t i = 0; i < n; i++)
            if (reads_submit(&b->reads, l, buffers + i * REQUEST_BYTES, i, MOE_LOAD_DEMAND, &err) !=
                MOE_OK)
                die(&err);
        for (uint64_t over = 0; over < n;)
            over += moe_loader_wait(l, done, N_BUFFERS);
    }
    return 1e3 * (moe_seconds() - start) / N_BURSTS;
}

/* The same reads into small and into huge pages, as far as the system has them. */
static void pages(struct bench *b)
{
    static const uint64_t numbers[] = {1, 8};
    struct moe_err err;
    struct moe_loader *l;
    const uint64_t n_bytes = (uint64_t)N_BUFFERS * REQUEST_BYTES;
    uint8_t *buffers[2] = {moe_pages_alloc(n_bytes, &err), b->buffers};
    double ms[2][2][N_ROUNDS];
    const struct moe_loader_options o = {.fd = b->fd, .path = b->path, .n_requests = N_BUFFERS};
    if (!buffers[0] || moe_loader_open(&l, &o, &err) != MOE_OK)
        die(&err);
    madvise(buffers[0], n_bytes, MADV_NOHUGEPAGE);
    for (int i = 0; i < 2; i++)
        memset(buffers[i], 1, n_bytes);
    for (int k = 0; k < N_ROUNDS; k++)
        for (int j = 0; j < 2; j++)
            for (int i = 0; i < 2; i++)
                ms[i][j][k] = burst(b, l, buffers[i], numbers[j]);
    printf("\nloads of 4 MiB asked for at once  small pages, ms  huge pages, ms  ratio\n");
    for (int j = 0; j < 2; j++)
        printf("%32u  %15.2f  %14.2f  %5.2f\n", (unsigned)numbers[j], median(ms[0][j]),
               median(ms[1][j]), median(ms[0][j]) / median(ms[1][j]));
    moe_loader_close(l);
    moe_pages_free(buffers[0], n_bytes);
}

/* The defaults, and what each thing costs: medians of interleaved rounds. */
static void details(struct bench *b)
{
    static const struct {
        const char *name;
        struct moe_loader_options options;
    } rows[] = {
        {"io_uring (or what there is)", {0}},
        {"pread threads", {.backend = MOE_LOAD_PREAD}},
        {"io_uring, checksums", {.verify = true}},
        {"pread threads, checksums", {.backend = MOE_LOAD_PREAD, .verify = true}},
        {"io_uring, page cache, cold", {.buffered = true}},
        {"io_uring, 200 MB/s asked for", {.rate = 200e6}},
        {"pread threads, 200 MB/s asked for", {.backend = MOE_LOAD_PREAD, .rate = 200e6}},
    };
    enum { N_ROWS = sizeof rows / sizeof *rows };
    double rate[N_ROWS][N_ROUNDS], ratio[N_ROWS][N_ROUNDS], cpu[N_ROWS][N_ROUNDS],
        asleep[N_ROWS][N_ROUNDS], wait_cpu[N_ROWS][N_ROUNDS], verify[N_ROUNDS];
    for (int k = 0; k < N_ROUNDS; k++)
        for (int i = 0; i < N_ROWS; i++) {
            struct read_figures f = measure(b, rows[i].options, 2ull * CELL_BYTES);
            rate[i][k] = f.bytes_per_second;
            ratio[i][k] = f.bytes_per_second / rate[0][k];
            cpu[i][k] = f.cpu_per_gb;
            asleep[i][k] = f.wait_share;
            wait_cpu[i][k] = f.wait_cpu_share;
            if (i == 2)
                verify[k] = f.verify_bytes_per_second;
        }
    printf(
        "\nwith the defaults                       MB/s  ratio  CPU ms/GB  asleep  CPU in wait\n");
    for (int i = 0; i < N_ROWS; i++)
        printf("%-36s %7.0f  %5.2f  %9.0f  %5.1f%%  %10.1f%%\n", rows[i].name,
               median(rate[i]) / 1e6, median(ratio[i]), 1e3 * median(cpu[i]),
               100 * median(asleep[i]), 100 * median(wait_cpu[i]));
    printf("the checksum by itself: %.0f MB/s\n", median(verify) / 1e6);
}

int main(int argc, char **argv)
{
    struct bench b = {.random = 88172645463325252u};
    uint64_t bytes = 1u << 30;
    if (argc > 3 || (argc == 3 && !moe_parse_bytes(argv[2], &bytes)) || bytes < REQUEST_BYTES) {
        fprintf(stderr, "usage: bench_disk [DIR] [SIZE]\n");
        return 2;
    }
    create(&b, argc > 1 ? argv[1] : "build", bytes);
    pages(&b);
    grid(&b, MOE_LOAD_AUTO, "io_uring (or what there is)");
    grid(&b, MOE_LOAD_PREAD, "pread threads");
    candidates(&b);
    details(&b);
    close(b.fd);
    unlink(b.path);
    free(b.loads);
    moe_pages_free(b.buffers, (uint64_t)N_BUFFERS * REQUEST_BYTES);
    return 0;
}
