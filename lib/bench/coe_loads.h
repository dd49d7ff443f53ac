/* Loads of an expert model: what having it in memory takes (CoServe 4.5). */
#ifndef MOE_BENCH_COE_LOADS_H
#define MOE_BENCH_COE_LOADS_H

#include "base/progress.h"
#include "engine/engine.h"

struct moe_coe_load {
    double disk, host; /* seconds, from there; host: 0 where it computes in the host's memory */
    uint64_t bytes;    /* of memory that it takes where it computes */
};

/* Opens an engine of these options, from the disk; onto a GPU, which has memory of its own, through
 * main memory, as a server does it, and then from there alone. */
int moe_coe_measure_load(struct moe_coe_load *out, const char *path,
                         const struct moe_engine_options *options,
                         const struct moe_progress *progress, struct moe_err *err);

#endif
