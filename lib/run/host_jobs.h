/*
 * Host jobs: experts that the host computes beside the device (experts/host.h), and when each is
 * done, by the clock or on the modelled clock of a lockstep run.
 */
#ifndef MOE_RUN_HOST_JOBS_H
#define MOE_RUN_HOST_JOBS_H

#include "experts/host.h"
#include "run/session.h"

struct moe_host_jobs {
    struct moe_session *session; /* borrowed */
    struct moe_host *host;       /* NULL: there is none */
    bool any;                    /* begun since the last wait for all */
    uint32_t last_ticket;        /* of these */
    double free_at;              /* lockstep: when the host has done all of them */
};

/* One job: to be waited for once. */
struct moe_host_ticket {
    uint32_t ticket;
    double due; /* lockstep: when it is done on the modelled clock */
};

/* slowdown: as moe_host_open (experts/host.h). */
int moe_host_jobs_open(struct moe_host_jobs *jobs, struct moe_session *session, double slowdown,
                       uint32_t n_threads, struct moe_err *err);
void moe_host_jobs_close(struct moe_host_jobs *jobs); /* waits for those under way */
uint64_t moe_host_jobs_bytes(const struct moe_config *config, uint32_t batch, uint32_t n_threads);

/* One expert for some rows of the states' xn; out: [n][states' stride]. */
struct moe_host_rows {
    const uint32_t *rows; /* NULL: 0..n-1 */
    const float *scales;  /* as moe_expert_compute's; they stay until the job is done */
    uint32_t n;
    float *out;
};
int moe_host_jobs_begin(struct moe_host_jobs *jobs, const struct moe_expert_view *view,
                        const struct moe_host_rows *rows, struct moe_host_ticket *ticket,
                        struct moe_err *err);
/* Returns for how many seconds it waited. */
double moe_host_jobs_wait(struct moe_host_jobs *jobs, const struct moe_host_ticket *ticket);
/* Waits for all, which write into buffers of the pass that began them. */
void moe_host_jobs_wait_all(struct moe_host_jobs *jobs);

#endif
