/*
 * Simulator: requests over time through dispatch and pools on a modelled machine. It needs no
 * model; the same inputs always give the same figures.
 *
 * Executors on one processor compute in turn, or as many at a time as there are teams of its
 * threads, each as fast as its team's costs. Loads from disk follow one another, and so do those
 * from the host's memory to a processor. Everything read from disk passes through the host's
 * memory, if there is such a tier, and stays there as long as it can.
 */
#ifndef MOE_SERVE_COE_SIMULATE_H
#define MOE_SERVE_COE_SIMULATE_H

#include "serve/coe_collection.h"
#include "serve/coe_dispatch.h"

/* A request that arrives at a time for the first of these experts; each result goes to the next,
 * until MOE_COE_NONE. */
struct moe_coe_arrival {
    double at;
    const uint32_t *path; /* borrowed */
};

struct moe_coe_machine {
    uint32_t n_processors;
    const uint32_t *processor_of; /* [n_executors] */
    const uint32_t *at_a_time;    /* [n_processors] executors that compute side by side; NULL: 1 */
    uint64_t host_bytes;          /* of the tier above the disk; 0: none */
    enum moe_coe_evict host_evict;
    bool prefetch; /* the next expert loads while the current one computes */
    bool place;    /* pools, then the host's tier, are filled before the first request */
    /* Scheduling time of a request, one after the other; it delays the request and, since the host
     * schedules, what this processor computes. 0: everything was scheduled in advance (5.3). */
    double schedule_seconds;
    uint32_t host_processor; /* MOE_COE_NONE: no executor runs there */
};

struct moe_coe_simulated {
    double seconds; /* from the first arrival to the last result */
    uint64_t results;
    uint64_t switches;  /* experts loaded while requests were served */
    uint64_t from_host; /* from the host's memory */
    uint64_t computed;  /* requests, including follow-ons */
    uint64_t batches;
    double wait_seconds; /* of executors for loads, summed */
    double compute_seconds;
    double latency_seconds; /* mean, from a request's arrival to its last result */
};

/* arrivals: by rising time. The simulator sets options.in_host and ctx. */
int moe_coe_simulate(const struct moe_coe_options *options, const struct moe_coe_machine *machine,
                     const struct moe_coe_arrival *arrivals, uint64_t n_arrivals,
                     struct moe_coe_simulated *out, struct moe_err *err);

/* Tasks: requests drawn by a seed from a collection's quantities and shares. */

struct moe_coe_task {
    uint32_t n; /* requests */
    struct moe_coe_arrival *arrivals;
    uint32_t *steps; /* their paths point into this */
};

/* Draws n requests, one each `interval` seconds. Their first experts follow the routes' quantities
 * or, if some are missing, the probabilities of experts that no result leads to; their paths follow
 * the shares of the rules, in order (a rule without one takes the rest). The same inputs always
 * give the same task. MOE_ERR_USAGE: neither quantities nor probabilities. */
int moe_coe_task_draw(struct moe_coe_task *t, const struct moe_coe_collection *c,
                      const struct moe_coe_experts *all, uint32_t n, double interval, uint64_t seed,
                      struct moe_err *err);
void moe_coe_task_release(struct moe_coe_task *t);

#endif
