/*
 * Pool: the experts that an executor has in memory, and which of them leave when another is needed
 * (expert management, 4.3). Memory is counted in bytes.
 */
#ifndef MOE_SERVE_COE_DISPATCH_H
#define MOE_SERVE_COE_DISPATCH_H

#include "base/err.h"
#include "serve/coe_collection.h"

enum moe_coe_evict {
    MOE_COE_LRU,
    MOE_COE_FIFO,
    /* First experts that only follow others while none of these is in memory, the largest first;
     * then by rising probability. */
    MOE_COE_TWO_STAGE,
};

struct moe_coe_pool;

/* An empty pool of so many bytes over experts that are borrowed. */
int moe_coe_pool_open(struct moe_coe_pool **out, const struct moe_coe_experts *all, uint64_t bytes,
                      enum moe_coe_evict evict, struct moe_err *err);
/* What experts take in this pool, [n], borrowed, where that is not what they say themselves: before
 * any is in it. One that is larger than the pool never gets there. */
void moe_coe_pool_set_sizes(struct moe_coe_pool *p, const uint64_t *sizes);
void moe_coe_pool_close(struct moe_coe_pool *p); /* NULL is fine */

bool moe_coe_pool_has(const struct moe_coe_pool *p, uint32_t expert);
uint64_t moe_coe_pool_free_bytes(const struct moe_coe_pool *p);
/* What it takes, or would take. */
uint64_t moe_coe_pool_size(const struct moe_coe_pool *p, uint32_t expert);
/* The likeliest expert that is not there, and for which there is room; MOE_COE_NONE. */
uint32_t moe_coe_pool_likeliest(const struct moe_coe_pool *p);

/* An expert in the pool is used. */
void moe_coe_pool_use(struct moe_coe_pool *p, uint32_t expert);
/* Held experts stay: one that computes, or is being loaded. Holds count. */
void moe_coe_pool_hold(struct moe_coe_pool *p, uint32_t expert);
void moe_coe_pool_release(struct moe_coe_pool *p, uint32_t expert);

/* Makes room for an expert that is not in the pool and puts it there, as used now. Those that left
 * are evicted[0..*n_evicted), room for as many as there are experts. False, and nothing changes:
 * even without all that are not held there is no room. */
bool moe_coe_pool_admit(struct moe_coe_pool *p, uint32_t expert, uint32_t *evicted,
                        uint32_t *n_evicted);

/* An expert leaves the pool, held or not: it could not be loaded. */
void moe_coe_pool_drop(struct moe_coe_pool *p, uint32_t expert);

/*
 * Queue: the requests that wait for an executor, in groups of neighbours that use the same expert
 * (request arranging and splitting, 4.2). Every operation takes constant time.
 */

struct moe_coe_group;

/* A request in the queue; its memory is the caller's, until it is taken out. */
struct moe_coe_request {
    struct moe_coe_request *next, *previous; /* the queue's */
    struct moe_coe_group *group;             /* ... where it waits */
    uint32_t expert;
    double predicted; /* latency that it adds to its queue */
};

struct moe_coe_queue;

/* arrange: a request goes behind those that wait for the same expert; else to the end. */
int moe_coe_queue_open(struct moe_coe_queue **out, uint32_t n_experts, bool arrange,
                       struct moe_err *err);
void moe_coe_queue_close(struct moe_coe_queue *q); /* NULL is fine; requests stay the caller's */

int moe_coe_queue_push(struct moe_coe_queue *q, struct moe_coe_request *r, struct moe_err *err);
/* Whether a request for the expert waits; it would be computed with, or after, that one. */
bool moe_coe_queue_waits(const struct moe_coe_queue *q, uint32_t expert);
/* The experts of the first group, and of the one after it; MOE_COE_NONE: there is none. */
uint32_t moe_coe_queue_first(const struct moe_coe_queue *q);
/* Takes at most `most` requests of the first group out, as a list in the order of their coming.
 * *n: how many; NULL: the queue is empty. */
struct moe_coe_request *moe_coe_queue_take(struct moe_coe_queue *q, uint32_t most, uint32_t *n);
uint64_t moe_coe_queue_length(const struct moe_coe_queue *q);

/*
 * Dispatch: which executor computes a request, and what an executor does next (dependency-aware
 * request scheduling, 4.2). The same decisions serve a simulation and a server: times come from the
 * caller's clock, and loading and computing are the caller's.
 *
 * An executor has a queue, a pool of experts and a processor. It takes a batch from its queue
 * (moe_coe_next), has the expert loaded where it is not in the pool, computes, and says so
 * (moe_coe_done). While it computes, the expert of the next group may be loaded (moe_coe_prefetch).
 */

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

uint64_t moe_coe_waiting(const struct moe_coe_dispatch *d, uint32_t executor);

/*
 * Names of how requests are scheduled and experts evicted, as options and plans spell them.
 */

struct moe_coe_schedule {
    const char *name;
    enum moe_coe_assign assign;
    bool arrange;
    const char *what; /* for people: "to each executor in turn" */
};

/* By number, from 0; NULL: there are no more. */
const struct moe_coe_schedule *moe_coe_schedule_at(uint32_t i);
const char *moe_coe_evict_at(uint32_t i); /* of enum moe_coe_evict */

/* NULL: there is none by that name. */
const struct moe_coe_schedule *moe_coe_schedule_find(const char *name);
/* False: there is none by that name. */
bool moe_coe_evict_find(const char *name, enum moe_coe_evict *out);

#endif
