/*
 * Device bench: measures this machine for a device profile (record/device.h), with a pack also the
 * pieces of its model's layers.
 *
 * Every figure is the median of at least 5 runs, with the smallest and the largest. What a load and
 * a layer cost is measured the way moe-run works: loads go through io/loader.h past the page cache
 * where the file system allows it; layers go through the forward pass (run/session.h) in turn, with
 * experts in turn: more than fit the processor's caches, where the pack has so many.
 */
#ifndef MOE_BENCH_DEVICE_BENCH_H
#define MOE_BENCH_DEVICE_BENCH_H

#include "base/err.h"
#include "base/progress.h"
#include "record/device.h"

struct moe_device_bench_options {
    const char *pack; /* path; NULL: no model, and loads of 4 MiB */
    const char *dir;  /* where a scratch file is written, read and removed; NULL: read
                         the pack itself, or without one the current directory */
    const struct moe_progress *progress;
};

/* *out is released with free(). Kernels have been selected. */
int moe_device_bench(const struct moe_device_bench_options *options, struct moe_device **out,
                     struct moe_err *err);

#endif
