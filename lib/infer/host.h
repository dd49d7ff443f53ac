/*
 * Host: a second processor that computes experts in its own memory, beside the device that runs the
 * model: threads of its own, each with one expert at a time, first come, first served. On the test
 * device (--device test:SPEED,LINK) it is one thread, slowed down so that the device computes SPEED
 * times as fast. Jobs are submitted and waited for by one thread.
 *
 * Sources: Fiddler's idea as DAOP and HOBBIT 5.4 describe it; DAOP IV-C (pre-calculation).
 */
#ifndef MOE_INFER_HOST_H
#define MOE_INFER_HOST_H

#include "infer/expert_compute.h"

struct moe_host;

struct moe_host_job {
    struct moe_expert_view view; /* weights stay until the job is done */
    const float *x;              /* inputs, copied when the job is submitted */
    uint64_t x_stride;
    const uint32_t *rows; /* n of them, or NULL: 0..n-1 */
    const float *scales;  /* of these, or NULL; they stay until the job is done */
    uint32_t n;
    float *out; /* [n][out_stride], written by the host's thread */
    uint64_t out_stride;
};

struct moe_host_shape {
    uint32_t max_rows;           /* of one job */
    uint32_t max_jobs;           /* under way at a time */
    uint64_t max_rows_under_way; /* of these together */
    uint32_t n_threads;
};

/* slowdown >= 1: a job takes that many times its own time, the processor time of its thread;
 * sleeps below 100 microseconds are made up for after a later job. */
int moe_host_open(struct moe_host **out, const struct moe_config *config,
                  const struct moe_host_shape *shape, double slowdown, struct moe_err *err);
void moe_host_close(struct moe_host *h); /* waits for its jobs; NULL is fine */
uint64_t moe_host_bytes(const struct moe_config *config, const struct moe_host_shape *shape);

/* Begins a job; *ticket names it. MOE_ERR_LIMIT: too many jobs or rows are under way, or
 * it has too many rows. */
int moe_host_submit(struct moe_host *h, const struct moe_host_job *job, uint32_t *ticket,
                    struct moe_err *err);
/* Waits until that job (and all before it) is done; returns how long the caller slept, in seconds.
 */
double moe_host_wait(struct moe_host *h, uint32_t ticket);
/* Seconds its threads have computed (and been slowed down) so far, added up. */
double moe_host_busy_seconds(struct moe_host *h);

#endif
