/*
 * How many experts stay in memory if large batches could take all of it: a window slides over their
 * number, narrower at each step, until throughput no longer rises as before (CoServe 4.4).
 */
#ifndef MOE_SERVE_COE_PLAN_H
#define MOE_SERVE_COE_PLAN_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "serve/coe_costs.h"

enum { MOE_COE_MAX_POINTS = 64 };

struct moe_coe_window_options {
    uint32_t first;  /* size of the first window; 0: 15, as in 5.3; at most 99 */
    uint32_t fitted; /* N: the trend is the line through the N points before; 0: 2 */
    double margin;   /* share by which the next point may lie below it; 0: 5% */
    uint32_t most;   /* experts that fit into memory and collection, at least 1 */
    uint64_t seed;   /* for the choice within the window */
};

struct moe_coe_window {
    uint32_t n_points; /* upper bounds that were tried, and their throughput */
    uint32_t experts[MOE_COE_MAX_POINTS];
    double throughput[MOE_COE_MAX_POINTS];
    uint32_t lower, upper; /* the last window */
    double expected;       /* f(upper), by the trend; 0: too few points */
    uint32_t chosen;       /* lower < chosen <= upper */
};

/* measure: the throughput with a number of experts in memory. Window k is [b, b + first *
 * factor^k], b the end of the one before, factor = 1 - first / 100 (equation 1); it stops where
 * (f(N + 1) - measured) / f(N + 1) > margin (equations 2 and 3), or at `most`. */
int moe_coe_slide(const struct moe_coe_window_options *options,
                  int (*measure)(void *ctx, uint32_t n_experts, double *throughput,
                                 struct moe_err *err),
                  void *ctx, struct moe_coe_window *out, struct moe_err *err);

/*
 * Plan of a collection: how a machine's memory is divided among executors, and within each among
 * experts and batches, and why (CoServe 4.4, 4.5). moe-plan --coe makes it, moe-serve follows it.
 * moe-coe(5) describes the file.
 */

enum { MOE_COE_MAX_EXECUTORS = 64, MOE_COE_MAX_REASONS = 64, MOE_COE_MAX_TRIALS = 256 };

/* The executors of a processor, all alike. */
struct moe_coe_plan_executors {
    char device[16]; /* "cpu", "cuda" */
    uint32_t number;
    uint32_t threads;      /* of each; 0: not given */
    uint64_t expert_bytes; /* of each, for experts */
    uint64_t batch_bytes;  /* ... and for a batch beside its expert */
    uint32_t experts;      /* experts that fit into all of them together */
};

/* The most requests of an expert in one pass, by its costs and by the memory for batches. */
struct moe_coe_plan_batch {
    char architecture[64], device[16];
    uint32_t requests;
};

/* The decay window on a processor (4.4): options, the last window, and the choice in it. */
struct moe_coe_plan_window {
    char device[16]; /* "": not needed */
    uint32_t first, fitted;
    double margin;
    uint64_t seed;
    uint32_t lower, upper;
    double expected; /* by the trend, at `upper`; 0: too few points */
    uint32_t chosen;
};

/* Throughput of the sample of requests with a number of experts in memory, or of executors. */
struct moe_coe_plan_point {
    uint32_t experts;
    double throughput; /* results per second */
};
struct moe_coe_plan_trial {
    uint32_t cuda, cpu;
    uint32_t experts; /* in memory, by the window; 0: as many as that begins with */
    double throughput;
};

struct moe_coe_plan_reason {
    char about[32], text[512];
};

struct moe_coe_plan {
    char machine[320], collection[320], costs[320]; /* what it was made for */
    char schedule[16], evict[16];                   /* by the names of serve/coe_dispatch.h */
    bool prefetch;         /* the next expert loads while the current one computes */
    uint64_t memory_bytes; /* total that it was made for */
    uint64_t host_bytes;   /* of the tier of experts above the disk; 0: none */
    uint32_t n_executors, n_batches, n_points, n_trials, n_reasons;
    struct moe_coe_plan_executors *executors;
    struct moe_coe_plan_batch *batches;
    struct moe_coe_plan_window window;
    struct moe_coe_plan_point *points;
    struct moe_coe_plan_trial *trials;
    struct moe_coe_plan_reason *reasons;
    double throughput; /* expected for the sample, results per second; 0: not simulated */
    uint64_t switches; /* ... and experts loaded meanwhile */
};

/* Reads a file. MOE_ERR_FORMAT with line and column. The caller frees *out. */
int moe_coe_plan_read(struct moe_coe_plan **out, const char *path, struct moe_err *err);
extern const struct moe_record_format moe_coe_plan_format;
/* Appends the file, or the same as JSON. */
int moe_coe_plan_write(const struct moe_coe_plan *p, bool json, struct moe_buf *out,
                       struct moe_err *err);
/* An empty plan, with room in each list for as many entries as a file may have. */
int moe_coe_plan_new(struct moe_coe_plan **out, struct moe_err *err);
void moe_coe_plan_free(struct moe_coe_plan *p); /* NULL is fine */

/* Adds a reason if there is room; cuts one that is too long. */
void moe_coe_plan_because(struct moe_coe_plan *p, const char *about, const char *format, ...)
    MOE_PRINTF(3, 4);

#endif
