/*
 * What a disk gives: extents of a file read through the loader, all of its queue busy throughout.
 * Shared by bench_disk and bench_offload, so that both speak of the same bandwidth.
 */
#ifndef TESTS_BENCH_READS_H
#define TESTS_BENCH_READS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "io/loader.h"

enum { READS_AT_A_TIME = 16 };

struct reads {
    const struct moe_load *loads; /* offset, sizes and checksum of each extent; uncompressed */
    uint64_t n_loads;
    uint64_t largest; /* of them, in raw bytes */
    uint64_t random;  /* not 0; which extent is next */
};

struct read_figures {
    double bytes_per_second, cpu_per_gb, wait_share, wait_cpu_share, verify_bytes_per_second;
};

/* User and system time of all threads. */
static inline double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static inline int reads_submit(struct reads *r, struct moe_loader *l, uint8_t *buffer, uint64_t tag,
                               enum moe_load_priority priority, struct moe_err *err)
{
    uint32_t handle;
    struct moe_load load = r->loads[next_random(&r->random) % r->n_loads];
    load.raw_bytes = load.stored_bytes;
    load.to = buffer;
    load.priority = priority;
    load.tag = tag;
    return moe_loader_submit(l, &load, &handle, err);
}

/* Reads about `bytes`, extents drawn at random, READS_AT_A_TIME asked for at any moment. `o` needs
 * fd and path only. */
static inline int reads_measure(struct reads *r, struct moe_loader_options o, uint64_t bytes,
                                struct read_figures *out, struct moe_err *err)
{
    struct moe_loader *l = NULL;
    struct moe_load_done done[READS_AT_A_TIME];
    uint64_t room = moe_round_up(r->largest, MOE_LOAD_ALIGN), n_started = 0, n_over = 0;
    uint64_t n_total = bytes / r->largest + 1;
    double wait_cpu = 0;
    uint8_t *buffers = moe_pages_alloc(READS_AT_A_TIME * room, err);
    o.n_requests = READS_AT_A_TIME;
    if (buffers) /* pages are made now, not while the clock runs */
        memset(buffers, 1, READS_AT_A_TIME * room);
    int status = buffers ? moe_loader_open(&l, &o, err) : MOE_ERR_MEMORY;
    double start = moe_seconds(), cpu = cpu_seconds();
    for (; n_started < READS_AT_A_TIME && n_started < n_total && status == MOE_OK; n_started++)
        status = reads_submit(r, l, buffers + n_started * room, n_started, MOE_LOAD_DEMAND, err);
    while (n_over < n_total && status == MOE_OK) {
        double before = cpu_seconds();
        uint32_t n = moe_loader_wait(l, done, READS_AT_A_TIME);
        wait_cpu += cpu_seconds() - before;
        for (uint32_t i = 0; i < n && status == MOE_OK; i++, n_over++) {
            if (done[i].status != MOE_OK)
                status = moe_fail(err, done[i].status, "%s", moe_loader_error(l));
            else if (n_started < n_total && ++n_started)
                status = reads_submit(r, l, buffers + done[i].tag * room, done[i].tag,
                                      MOE_LOAD_DEMAND, err);
        }
    }
    if (status == MOE_OK) {
        const struct moe_loader_stats *s = moe_loader_stats(l);
        double seconds = moe_seconds() - start, all = (double)s->bytes_read;
        *out = (struct read_figures){.bytes_per_second = all / seconds,
                                     .cpu_per_gb = (cpu_seconds() - cpu) / (all / 1e9),
                                     .wait_share = s->wait_seconds / seconds,
                                     .wait_cpu_share = wait_cpu / seconds,
                                     .verify_bytes_per_second =
                                         s->verify_seconds > 0 ? all / s->verify_seconds : 0};
    }
    moe_loader_close(l);
    moe_pages_free(buffers, READS_AT_A_TIME * room);
    return status;
}

#endif
