/*
 * Device bench: measures this machine for a device profile (profile/device.h), with a pack also the
 * pieces of its model's layers.
 *
 * Every figure is the median of at least 5 runs, with the smallest and the largest. What a load and
 * a layer cost is measured the way moe-run works: loads go through io/loader.h past the page cache
 * where the file system allows it; layers go through the forward pass (infer/session.h) in turn,
 * with experts in turn: more than fit the processor's caches, if the pack has them.
 */
#ifndef MOE_TUNE_DEVICE_BENCH_H
#define MOE_TUNE_DEVICE_BENCH_H

#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "io/loader.h"
#include "pack/pack.h"
#include "profile/device.h"

struct moe_device_bench_options {
    const char *pack; /* path; NULL: no model, and loads of 4 MiB */
    const char *dir;  /* where a scratch file is written, read and removed; NULL: read
                         the pack itself, or without one the current directory */
    const struct moe_progress *progress;
};

/* *out is released with free(). Kernels have been selected. */
int moe_device_bench(const struct moe_device_bench_options *options, struct moe_device **out,
                     struct moe_err *err);

/*
 * How fast this machine reads its memory: the limit of everything that reads each weight once.
 */

/* Bytes that do not fit this machine's caches, with a margin. */
uint64_t moe_cold_bytes(void);

/* One timed pass of all threads (moe_par_threads) over n bytes, in bytes per second. n is a
 * multiple of 256 and at least moe_cold_bytes, else the caches are measured. `data` is 64-byte
 * aligned. */
double moe_read_rate(const void *data, uint64_t n_bytes);

/*
 * Where the loads of the device bench come from and go to: whole experts of a pack, or a scratch
 * file; buffers as a run's slots are.
 */

enum { DEVICE_IN_FLIGHT = 8 }; /* loads at a time, at most */

struct device_place {
    uint64_t offset, n_bytes;
};

struct device_reads {
    int fd;
    bool own_fd;
    const char *path;
    struct device_place *places;
    uint64_t n, largest, random;
    uint8_t *buffers; /* n_buffers of `largest` bytes, used in turn */
    uint64_t n_buffers, next_buffer;
    struct moe_loader *loader; /* of DEVICE_IN_FLIGHT requests, which checks nothing */
};

#endif
