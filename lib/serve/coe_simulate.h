/*
 * Simulator: requests over time through dispatch and pools on a modelled machine. It needs no
 * model; the same inputs always give the same figures.
 *
 * Executors on one processor compute in turn, or so many of them at a time as teams of its threads
 * do, each as fast as the costs of its team say. Loads from the disk follow one another,
 * and so do those from the host's memory to a processor. What is read from the disk passes through
 * the host's memory, where there is such a tier, and stays there as long as it can.
 */
#ifndef MOE_SERVE_COE_SIMULATE_H
#define MOE_SERVE_COE_SIMULATE_H

#include "serve/coe_collection.h"
#include "serve/coe_dispatch.h"

/* A request that comes at a time, for the first of these experts; its result is for the next, until
 * MOE_COE_NONE. */
struct moe_coe_arrival {
    double at;
    const uint32_t *path; /* borrowed */
};

struct moe_coe_machine {
    uint32_t n_processors;
    const uint32_t *processor_of; /* [n_executors] */
    const uint32_t *at_a_time;    /* [n_processors] executors that compute side by side; NULL: 1 */
    uint64_t host_bytes;          /* of the tier above the disk; 0: there is none */
    enum moe_coe_evict host_evict;
    bool prefetch; /* the next expert loads while the present one computes */
    bool place;    /* pools, then the host's tier, are filled before the first request */
    /* What scheduling a request takes, one after the other; it delays the request and, as it is the
     * host that schedules, what this processor computes. 0: all was scheduled in advance (5.3). */
    double schedule_seconds;
    uint32_t host_processor; /* MOE_COE_NONE: no executor runs there */
};

struct moe_coe_simulated {
    double seconds; /* from the first arrival to the last result */
    uint64_t results;
    uint64_t switches;  /* experts loaded while requests were served */
    uint64_t from_host; /* of these */
    uint64_t computed;  /* requests, follow-ons too */
    uint64_t batches;
    double wait_seconds; /* of executors for loads, summed */
    double compute_seconds;
    double latency_seconds; /* mean, from a request's coming to its last result */
};

/* arrivals: by rising time. options.in_host and ctx are the simulator's own. */
int moe_coe_simulate(const struct moe_coe_options *options, const struct moe_coe_machine *machine,
                     const struct moe_coe_arrival *arrivals, uint64_t n_arrivals,
                     struct moe_coe_simulated *out, struct moe_err *err);

/* Tasks: requests as a collection's quantities and shares have them come, drawn by a seed. */

struct moe_coe_task {
    uint32_t n; /* requests */
    struct moe_coe_arrival *arrivals;
    uint32_t *steps; /* what their paths point into */
};

/* n requests, one each `interval` seconds. Where they begin follows the routes' quantities or,
 * where not all say theirs, the probabilities of the experts that no result leads to; where results
 * go on follows the shares of the rules, in their order (one that says none takes all that is
 * left). The same inputs always give the same task. MOE_ERR_USAGE: neither quantities nor
 * probabilities. */
int moe_coe_task_draw(struct moe_coe_task *t, const struct moe_coe_collection *c,
                      const struct moe_coe_experts *all, uint32_t n, double interval, uint64_t seed,
                      struct moe_err *err);
void moe_coe_task_release(struct moe_coe_task *t);

#endif
