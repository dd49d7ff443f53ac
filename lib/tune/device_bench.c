/* How fast this machine is. */
#define _GNU_SOURCE /* _SC_LEVEL3_CACHE_SIZE, _SC_PHYS_PAGES */

#include "tune/device_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/par.h"
#include "gpu.h"
#include "gpu_ops.h"
#include "kern/kern.h"
#include "tune/bench.h"
#include "tune/device_internal.h"

enum {
    MEMORY_RUNS = 9,
    MODEL_SECONDS = 9,
};

/* ---- The host ---- */

/* "model name" of /proc/cpuinfo on x86, "Model" (the board) on ARM; "" where there is neither. */
static void cpu_name(char name[MOE_DEVICE_TEXT])
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    name[0] = '\0';
    while (f && !name[0] && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (!colon || (strncmp(line, "model name", 10) != 0 && strncmp(line, "Model\t", 6) != 0))
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(name, MOE_DEVICE_TEXT, "%.200s", colon);
    }
    if (f)
        fclose(f);
}

static int measure_host(struct moe_device_host *h, const struct moe_progress *progress,
                        struct moe_err *err)
{
    double rates[MEMORY_RUNS];
    uint64_t n = moe_cold_bytes() & ~UINT64_C(255);
    uint8_t *buffer = moe_pages_alloc(n, err);
    if (!buffer)
        return MOE_ERR_MEMORY;
    memset(buffer, 1, n);
    moe_read_rate(buffer, n);
    for (uint32_t i = 0; i < MEMORY_RUNS; i++) {
        moe_progress_report(progress, "reading memory", i, MEMORY_RUNS);
        rates[i] = moe_read_rate(buffer, n);
    }
    moe_pages_free(buffer, n);
    cpu_name(h->name);
    snprintf(h->cpu_level, sizeof h->cpu_level, "%s", moe_cpu_level_name(moe_kern.level));
    h->cores.value = moe_cores_available();
    h->threads.value = moe_par_threads();
    h->memory_bytes.value = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    moe_bench_set_figure(&h->memory_bytes_per_second, rates, MEMORY_RUNS);
    return MOE_OK;
}

/* ---- All of it ---- */

void moe_device_describe(char name[MOE_DEVICE_TEXT], char source[MOE_DEVICE_TEXT])
{
    char date[32] = "", cpu[MOE_DEVICE_TEXT];
    time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local))
        strftime(date, sizeof date, " on %Y-%m-%d", &local);
    cpu_name(cpu);
    snprintf(name, MOE_DEVICE_TEXT, "%.200s, %d cores", cpu[0] ? cpu : "CPU",
             moe_cores_available());
    snprintf(source, MOE_DEVICE_TEXT,
             "measured by moe-profile " MOE_VERSION "%s; each value is the median of its runs",
             date);
}

int moe_device_bench(const struct moe_device_bench_options *options, struct moe_device **out,
                     struct moe_err *err)
{
    struct moe_pack *pack = NULL;
    *out = NULL;
    struct moe_device *d = moe_alloc(1, sizeof *d, err);
    int status;
    MOE_STEP(d ? MOE_OK : MOE_ERR_MEMORY);
    if (options->pack)
        MOE_STEP(moe_pack_open(&pack, options->pack, err));
    MOE_STEP(moe_device_measure_storage(&d->storage, pack, options->dir, options->progress, err));
    MOE_STEP(measure_host(&d->host, options->progress, err));
    moe_device_measure_gpu(&d->accelerator);
    if (options->pack) {
        MOE_STEP(moe_device_measure_model(&d->model, options->pack, MODEL_SECONDS,
                                          options->progress, err));
        d->has_model = true;
    }
out:
    moe_pack_close(pack);
    if (status != MOE_OK) {
        free(d);
        return status;
    }
    moe_device_describe(d->name, d->source);
    *out = d;
    return MOE_OK;
}

/*
 * What a GPU takes for what plans count (sched/pace.h): its memory, the link, the pieces of a load,
 * a launch, a router's round trip. A figure that cannot be measured is left out.
 */

enum {
    RUNS = 9,
    BYTES = 64 << 20,
    N_PIECES = 256,
    PIECE_BYTES = 4096,
    N_LAUNCHES = 256,
    N_TRIPS = 50,
    TRIP_BYTES = 256, /* the choices of a row, or what the host answers */
    NORM_COLS = 64,   /* of a kernel with next to nothing to do */
};

struct gpu_bench {
    struct moe_gpu *gpu;
    struct moe_gpu_mark *from, *to;
    uint8_t *host, *device; /* [BYTES]; [2][BYTES] */
    bool pinned;
};

static int open_bench(struct gpu_bench *b, struct moe_err *err)
{
    MOE_TRY(moe_gpu_open(&b->gpu, 0, err));
    MOE_TRY(moe_gpu_mark_open(&b->from, b->gpu, true, err));
    MOE_TRY(moe_gpu_mark_open(&b->to, b->gpu, true, err));
    if (!(b->device = moe_gpu_alloc(b->gpu, 2 * (uint64_t)BYTES, err)) ||
        !(b->host = moe_pages_alloc(BYTES, err)))
        return MOE_ERR_MEMORY;
    memset(b->host, 1, BYTES);
    MOE_TRY(moe_gpu_pin(b->gpu, b->host, BYTES, err));
    b->pinned = true;
    return MOE_OK;
}

static void close_bench(struct gpu_bench *b)
{
    moe_gpu_mark_close(b->from);
    moe_gpu_mark_close(b->to);
    if (b->pinned)
        moe_gpu_unpin(b->gpu, b->host);
    if (b->host)
        moe_pages_free(b->host, BYTES);
    if (b->device)
        moe_gpu_free(b->gpu, b->device, 2 * (uint64_t)BYTES);
    moe_gpu_close(b->gpu);
}

/* ---- What is asked of it ---- */

static void copy_inside(const struct gpu_bench *b)
{
    moe_gpu_copy(b->gpu, MOE_GPU_COMPUTE, b->device + BYTES, b->device, BYTES);
}

static void upload_pieces(const struct gpu_bench *b)
{
    for (uint64_t i = 0; i < N_PIECES; i++)
        moe_gpu_upload(b->gpu, MOE_GPU_COPY, b->device + i * PIECE_BYTES, b->host + i * PIECE_BYTES,
                       PIECE_BYTES);
}

static void launch(const struct gpu_bench *b)
{
    float *rows = (float *)b->device;
    const struct moe_gpu_norm norm = {
        .h = rows,
        .h_stride = NORM_COLS,
        .cols = NORM_COLS,
        .weights = rows + NORM_COLS,
        .eps = 1e-6f,
        .out = {.cols = NORM_COLS, .x = rows + 2 * NORM_COLS, .x_stride = NORM_COLS},
    };
    moe_gpu_add_norm(b->gpu, &norm, 1);
}

static void launch_many(const struct gpu_bench *b)
{
    for (int i = 0; i < N_LAUNCHES; i++)
        launch(b);
}

/* ---- What it takes ---- */

/* By the device's own clock, RUNS times after one that does not count. False: it cannot. */
static bool time_work(const struct gpu_bench *b, enum moe_gpu_stream stream,
                      void (*ask)(const struct gpu_bench *b), double seconds[RUNS])
{
    struct moe_err unsaid;
    for (int i = -1; i < RUNS; i++) {
        moe_gpu_mark_set(b->from, stream);
        ask(b);
        moe_gpu_mark_set(b->to, stream);
        if (moe_gpu_mark_wait(b->to, &unsaid) != MOE_OK)
            return false;
        double took = moe_gpu_mark_seconds(b->from, b->to);
        if (!(took > 0))
            return false;
        if (i >= 0)
            seconds[i] = took;
    }
    return true;
}

/* Times by the host's clock how a kernel's result comes to the waiting host and an answer goes
 * back, without the kernel, which plans count apart. */
static bool time_trips(const struct gpu_bench *b, double launch_seconds, double seconds[RUNS])
{
    struct moe_err unsaid;
    for (int i = -1; i < RUNS; i++) {
        double began = moe_seconds();
        for (int trip = 0; trip < N_TRIPS; trip++) {
            launch(b);
            moe_gpu_download(b->gpu, MOE_GPU_COMPUTE, b->host, b->device, TRIP_BYTES);
            moe_gpu_mark_set(b->to, MOE_GPU_COMPUTE);
            if (moe_gpu_mark_wait(b->to, &unsaid) != MOE_OK)
                return false;
            moe_gpu_upload(b->gpu, MOE_GPU_COMPUTE, b->device, b->host, TRIP_BYTES);
        }
        if (moe_gpu_finish(b->gpu, &unsaid) != MOE_OK)
            return false;
        if (i >= 0)
            seconds[i] = (moe_seconds() - began) / N_TRIPS - launch_seconds;
    }
    return true;
}

static void set_rate(struct moe_figure *f, double bytes, double seconds[RUNS])
{
    for (int i = 0; i < RUNS; i++)
        seconds[i] = bytes / seconds[i];
    moe_bench_set_figure(f, seconds, RUNS);
}

/* Seconds of one of n, without what their bytes take. */
static void set_each(struct moe_figure *f, double n, double bytes_seconds, double seconds[RUNS])
{
    static const double nothing = 1e-9;
    for (int i = 0; i < RUNS; i++) {
        double each = seconds[i] / n - bytes_seconds;
        seconds[i] = each > nothing ? each : nothing;
    }
    moe_bench_set_figure(f, seconds, RUNS);
}

void moe_device_measure_gpu(struct moe_device_accelerator *a)
{
    struct gpu_bench b = {0};
    struct moe_gpu_info info;
    struct moe_err unsaid;
    double seconds[RUNS];
    if (moe_gpu_count() == 0 || moe_gpu_describe(0, &info) != 0)
        return;
    snprintf(a->name, sizeof a->name, "%s", info.name);
    a->memory_bytes.value = (double)info.memory_bytes;
    a->shares_memory = info.unified;
    if (moe_gpu_copy_seconds(0, BYTES, RUNS, seconds) == 0)
        set_rate(&a->link_bytes_per_second, BYTES, seconds);
    if (open_bench(&b, &unsaid) != MOE_OK)
        goto out;
    if (time_work(&b, MOE_GPU_COMPUTE, copy_inside, seconds))
        set_rate(&a->memory_bytes_per_second, 2.0 * BYTES, seconds); /* read and written */
    if (a->link_bytes_per_second.value > 0 && time_work(&b, MOE_GPU_COPY, upload_pieces, seconds))
        set_each(&a->link_piece_seconds, N_PIECES, PIECE_BYTES / a->link_bytes_per_second.value,
                 seconds);
    if (time_work(&b, MOE_GPU_COMPUTE, launch_many, seconds))
        set_each(&a->launch_seconds, N_LAUNCHES, 0, seconds);
    if (a->launch_seconds.value > 0 && time_trips(&b, a->launch_seconds.value, seconds))
        set_each(&a->trip_seconds, 1, 0, seconds);
    snprintf(a->source, sizeof a->source,
             "copies of %d MiB inside it and from page-locked memory, pieces of %d bytes, kernels "
             "with next to nothing to do",
             BYTES >> 20, PIECE_BYTES);
out:
    close_bench(&b);
}
