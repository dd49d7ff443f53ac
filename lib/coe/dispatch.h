/*
 * Dispatch: which executor computes a request, and what an executor does next (dependency-aware
 * request scheduling, 4.2). The same decisions serve a simulation and a server: times come from the
 * caller's clock, and loading and computing are the caller's.
 *
 * An executor has a queue, a pool of experts and a processor. It takes a batch from its queue
 * (moe_coe_next), has the expert loaded where it is not in the pool, computes, and says so
 * (moe_coe_done). While it computes, the expert of the next group may be loaded (moe_coe_prefetch).
 */
#ifndef MOE_COE_DISPATCH_H
#define MOE_COE_DISPATCH_H

#include "base/err.h"
#include "coe/pool.h"
#include "coe/queue.h"

enum moe_coe_assign {
    MOE_COE_ASSIGN_ROUND_ROBIN,
    /* To where the fewest requests wait or are being computed; of equals to the first. */
    MOE_COE_ASSIGN_FEWEST,
    /* To the least total time of all executors; of equals, where it adds the least latency. */
    MOE_COE_ASSIGN_LEAST,
};

struct moe_coe_executor_options {
    const struct moe_coe_cost *costs; /* [n_kinds] of its processor; borrowed */
    uint64_t expert_bytes;            /* of memory for experts */
    uint64_t batch_bytes;             /* ... and for what a batch takes beside its expert */
    uint32_t processor;               /* as experts name those that must not run them */
};

struct moe_coe_options {
    const struct moe_coe_experts *all; /* borrowed */
    uint32_t n_executors;
    const struct moe_coe_executor_options *executors; /* [n_executors]; copied */
    /* Bytes of experts on each executor, [n_executors][all->n]; borrowed. NULL: as experts say. */
    const uint64_t *const *sizes;
    bool arrange;
    enum moe_coe_assign assign;
    enum moe_coe_evict evict;
    /* Whether an expert lies in the host's memory; NULL: none does. */
    bool (*in_host)(const void *ctx, uint32_t expert);
    const void *ctx;
};

struct moe_coe_dispatch;

/* MOE_ERR_LIMIT: an expert is larger than the memory for experts of an executor that may run it.
 * MOE_ERR_USAGE: no executor may run an expert. */
int moe_coe_dispatch_open(struct moe_coe_dispatch **out, const struct moe_coe_options *options,
                          struct moe_err *err);
void moe_coe_dispatch_close(struct moe_coe_dispatch *d); /* NULL is fine */

/* Puts experts into the pools before anything runs: in falling probability, round-robin over the
 * executors, until the memory is full (4.1). fn is told of each. */
int moe_coe_place(struct moe_coe_dispatch *d,
                  void (*fn)(void *ctx, uint32_t executor, uint32_t expert), void *ctx,
                  struct moe_err *err);

/* Chooses an executor for the request and queues it there. */
int moe_coe_submit(struct moe_coe_dispatch *d, struct moe_coe_request *r, double now,
                   uint32_t *executor, struct moe_err *err);

/* What an executor is to do. */
struct moe_coe_batch {
    uint32_t expert, n;
    struct moe_coe_request *requests; /* a list of n */
    bool load;               /* the expert has to be loaded first; it is in the pool then */
    const uint32_t *evicted; /* [n_evicted] who leaves for it; until the next call */
    uint32_t n_evicted;
};

/* The executor, which computes nothing, takes its next batch at time `now`; its expert is held
 * until moe_coe_done. False: nobody waits. */
bool moe_coe_next(struct moe_coe_dispatch *d, uint32_t executor, double now,
                  struct moe_coe_batch *batch);
/* The batch is computed. */
void moe_coe_done(struct moe_coe_dispatch *d, uint32_t executor, double now);
/* ... or ended with its expert, which could not be loaded: that is not in the pool any more. */
void moe_coe_failed(struct moe_coe_dispatch *d, uint32_t executor, double now);

/* Further requests for the expert that the executor computes, at most `most`: they join its batch.
 */
struct moe_coe_request *moe_coe_more(struct moe_coe_dispatch *d, uint32_t executor, uint32_t most,
                                     uint32_t *n);
/* A request that waits leaves its queue. */
void moe_coe_withdraw(struct moe_coe_dispatch *d, uint32_t executor, struct moe_coe_request *r);
/* Of the requests for other experts than this one, that which comes next; NULL: none waits. */
const struct moe_coe_request *moe_coe_other(const struct moe_coe_dispatch *d, uint32_t executor,
                                            uint32_t expert);
/* The group that comes next gives way to all others of the queue. */
void moe_coe_give_way(struct moe_coe_dispatch *d, uint32_t executor);
/* The expert that comes next; MOE_COE_NONE: nobody waits. */
uint32_t moe_coe_first(const struct moe_coe_dispatch *d, uint32_t executor);

/* The expert of the group that comes next, where it is not in the pool and there is room beside the
 * one that computes: it is put there, to be loaded now, and held until its batch. what: its expert
 * and who leaves for it. False: there is nothing to load. */
bool moe_coe_prefetch(struct moe_coe_dispatch *d, uint32_t executor, struct moe_coe_batch *what);

struct moe_coe_pool *moe_coe_pool_of(struct moe_coe_dispatch *d, uint32_t executor);
uint64_t moe_coe_waiting(const struct moe_coe_dispatch *d, uint32_t executor);

#endif
