#define _GNU_SOURCE /* _SC_LEVEL3_CACHE_SIZE, _SC_PHYS_PAGES */
#include "bench/device_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/par.h"
#include "bench/bench.h"
#include "bench/device_private.h"
#include "bench/read_rate.h"
#include "kern/kern.h"

enum {
    MEMORY_RUNS = 9,
    MODEL_SECONDS = 9,
};

/* ---- The host ---- */

void moe_device_cpu_name(char name[MOE_DEVICE_TEXT])
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
    moe_device_cpu_name(h->name);
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
    moe_device_cpu_name(cpu);
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
    int status = d ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK && options->pack)
        status = moe_pack_open(&pack, options->pack, err);
    if (status == MOE_OK)
        status =
            moe_device_measure_storage(&d->storage, pack, options->dir, options->progress, err);
    if (status == MOE_OK)
        status = measure_host(&d->host, options->progress, err);
    if (status == MOE_OK)
        moe_device_measure_gpu(&d->accelerator);
    if (status == MOE_OK && options->pack) {
        status = moe_device_measure_model(&d->model, options->pack, MODEL_SECONDS,
                                          options->progress, err);
        d->has_model = true;
    }
    moe_pack_close(pack);
    if (status != MOE_OK) {
        free(d);
        return status;
    }
    moe_device_describe(d->name, d->source);
    *out = d;
    return MOE_OK;
}
