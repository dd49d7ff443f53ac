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
       then by rising probability. */
    MOE_COE_TWO_STAGE,
    /* The same of those that no request in the executor's queue waits for; where all are waited
       for, the one whose requests come last. */
    MOE_COE_QUEUE,
};

struct moe_coe_pool;

/* Opens an empty pool of `bytes` bytes over borrowed experts. */
int moe_coe_pool_open(struct moe_coe_pool **out, const struct moe_coe_experts *all, uint64_t bytes,
                      enum moe_coe_evict evict, struct moe_err *err);
/* Sets the experts' sizes in this pool, [n], borrowed, if they differ from the experts' own; before
 * any is in it. One larger than the pool never gets in. */
void moe_coe_pool_set_sizes(struct moe_coe_pool *p, const uint64_t *sizes);
void moe_coe_pool_close(struct moe_coe_pool *p); /* NULL is fine */

bool moe_coe_pool_has(const struct moe_coe_pool *p, uint32_t expert);
uint64_t moe_coe_pool_free_bytes(const struct moe_coe_pool *p);
/* The bytes it takes, or would take. */
uint64_t moe_coe_pool_size(const struct moe_coe_pool *p, uint32_t expert);
/* The likeliest expert that is not there and fits; MOE_COE_NONE. */
uint32_t moe_coe_pool_likeliest(const struct moe_coe_pool *p);

/* Notes that an expert in the pool is used. */
void moe_coe_pool_use(struct moe_coe_pool *p, uint32_t expert);
/* Keeps an expert that computes or is being loaded. Holds count. */
void moe_coe_pool_hold(struct moe_coe_pool *p, uint32_t expert);
void moe_coe_pool_release(struct moe_coe_pool *p, uint32_t expert);

/* Makes room for an expert that is not in the pool and adds it, as used now. evicted[0..*n_evicted)
 * are those that left, room for all experts. False, and nothing changes, if evicting all experts
 * without holds would not suffice. */
bool moe_coe_pool_admit(struct moe_coe_pool *p, uint32_t expert, uint32_t *evicted,
                        uint32_t *n_evicted);

/* Removes an expert, held or not: it could not be loaded. */
void moe_coe_pool_drop(struct moe_coe_pool *p, uint32_t expert);

/*
 * Queue: requests that wait for an executor, in groups of neighbours that use the same expert
 * (request arranging and splitting, 4.2). Every operation takes constant time, but for a look at
 * each client that waits in a group.
 */

struct moe_coe_lane;

/* Whose requests they are. Within a group the next one is of who has the fewest that run, and of
 * these of who was given the least. The caller owns it while a request of it waits. */
struct moe_coe_client {
    uint32_t running; /* requests taken out, until the caller counts them out again */
    double given;     /* as the caller counts it */
};
/* Whether `a` comes before `b`; NULL: requests of nobody in particular, as of one client. */
bool moe_coe_client_before(const struct moe_coe_client *a, const struct moe_coe_client *b);

/* A request in the queue; the caller owns its memory, until it is taken out. */
struct moe_coe_request {
    struct moe_coe_request *next, *previous; /* the queue's */
    struct moe_coe_lane *lane;               /* its place in the queue */
    struct moe_coe_client *client;           /* NULL: nobody in particular */
    uint32_t expert;
    double predicted; /* latency that it adds to its queue */
};

struct moe_coe_queue;

/* arrange: a request joins those waiting for the same expert; else it goes to the end. */
int moe_coe_queue_open(struct moe_coe_queue **out, uint32_t n_experts, bool arrange,
                       struct moe_err *err);
void moe_coe_queue_close(struct moe_coe_queue *q); /* NULL is fine; the caller keeps the requests */

int moe_coe_queue_push(struct moe_coe_queue *q, struct moe_coe_request *r, struct moe_err *err);
/* Whether a request for the expert waits; another would be computed with it or after it. */
bool moe_coe_queue_waits(const struct moe_coe_queue *q, uint32_t expert);
/* The expert of the first group; MOE_COE_NONE: empty. */
uint32_t moe_coe_queue_first(const struct moe_coe_queue *q);
/* Takes at most `most` requests of the first group out, as a list: of each client in order of
 * arrival. *n: how many; NULL: the queue is empty. */
struct moe_coe_request *moe_coe_queue_take(struct moe_coe_queue *q, uint32_t most, uint32_t *n);
uint64_t moe_coe_queue_length(const struct moe_coe_queue *q);

/*
 * Dispatch: which executor computes a request, and what an executor does next (dependency-aware
 * request scheduling, 4.2). The same decisions serve a simulation and a server: times come from the
 * caller's clock, and the caller loads and computes.
 *
 * An executor has a queue, a pool of experts and a processor. It takes a batch from its queue
 * (moe_coe_next), has the expert loaded if it is not in the pool, computes, and reports that
 * (moe_coe_done). While it computes, the expert of the next group may be loaded (moe_coe_prefetch).
 */

enum moe_coe_assign {
    MOE_COE_ASSIGN_ROUND_ROBIN,
    /* The executor with the fewest waiting and computing requests; the first among equals. */
    MOE_COE_ASSIGN_FEWEST,
    /* The least total time over all executors; among equals, the least added latency. */
    MOE_COE_ASSIGN_LEAST,
    /* Where the expert is or is waited for, unless another executor is done much sooner: an expert
       is loaded once, where MOE_COE_ASSIGN_LEAST loads it on several executors. */
    MOE_COE_ASSIGN_HOME,
};

struct moe_coe_executor_options {
    const struct moe_coe_cost *costs; /* [n_kinds] on its processor; borrowed */
    uint64_t expert_bytes;            /* of memory for experts */
    uint64_t batch_bytes;             /* ... and for a batch beside its expert */
    uint32_t processor;               /* as in moe_coe_expert.not_on */
};

struct moe_coe_options {
    const struct moe_coe_experts *all; /* borrowed */
    uint32_t n_executors;
    const struct moe_coe_executor_options *executors; /* [n_executors]; copied */
    /* Bytes of experts on each executor, [n_executors][all->n]; borrowed. NULL: the experts' own.
     */
    const uint64_t *const *sizes;
    bool arrange;
    enum moe_coe_assign assign;
    enum moe_coe_evict evict;
    /* Whether an expert is in the host's memory; NULL: none is. */
    bool (*in_host)(const void *ctx, uint32_t expert);
    const void *ctx;
};

struct moe_coe_dispatch;

/* MOE_ERR_LIMIT: an expert is larger than the expert memory of an executor that may run it.
 * MOE_ERR_USAGE: no executor may run an expert. */
int moe_coe_dispatch_open(struct moe_coe_dispatch **out, const struct moe_coe_options *options,
                          struct moe_err *err);
void moe_coe_dispatch_close(struct moe_coe_dispatch *d); /* NULL is fine */

/* Fills the pools before anything runs: by falling probability, round-robin over the executors,
 * until memory is full (4.1). Calls fn for each expert. */
int moe_coe_place(struct moe_coe_dispatch *d,
                  void (*fn)(void *ctx, uint32_t executor, uint32_t expert), void *ctx,
                  struct moe_err *err);

/* Chooses an executor for the request and queues it there. */
int moe_coe_submit(struct moe_coe_dispatch *d, struct moe_coe_request *r, double now,
                   uint32_t *executor, struct moe_err *err);

/* An executor's next work. */
struct moe_coe_batch {
    uint32_t expert, n;
    struct moe_coe_request *requests; /* a list of n */
    bool load;                        /* the expert must be loaded first; it is in the pool then */
    const uint32_t *evicted;          /* [n_evicted] evicted for it; valid until the next call */
    uint32_t n_evicted;
};

/* Gives an idle executor its next batch at time `now`; holds its expert until moe_coe_done. False:
 * no request waits. */
bool moe_coe_next(struct moe_coe_dispatch *d, uint32_t executor, double now,
                  struct moe_coe_batch *batch);
/* Reports that the batch is computed. */
void moe_coe_done(struct moe_coe_dispatch *d, uint32_t executor, double now);
/* Reports that its expert could not be loaded; it leaves the pool. */
void moe_coe_failed(struct moe_coe_dispatch *d, uint32_t executor, double now);

/* An expert that was placed could not be loaded: it leaves the pool. */
void moe_coe_forget(struct moe_coe_dispatch *d, uint32_t executor, uint32_t expert);
/* Whether an expert is in any pool. */
bool moe_coe_is_placed(const struct moe_coe_dispatch *d, uint32_t expert);

/* Further requests for the executor's current expert, at most `most`, which join its batch. */
struct moe_coe_request *moe_coe_more(struct moe_coe_dispatch *d, uint32_t executor, uint32_t most,
                                     uint32_t *n);
/* Whose request moe_coe_more would give first. False: it would give none. */
bool moe_coe_more_of(const struct moe_coe_dispatch *d, uint32_t executor,
                     const struct moe_coe_client **client);
/* Removes a waiting request from its queue. */
void moe_coe_withdraw(struct moe_coe_dispatch *d, uint32_t executor, struct moe_coe_request *r);
/* The next request for another expert than this one; NULL: none waits. */
const struct moe_coe_request *moe_coe_other(const struct moe_coe_dispatch *d, uint32_t executor,
                                            uint32_t expert);
/* Lets the next group give way to all others of the queue. */
void moe_coe_give_way(struct moe_coe_dispatch *d, uint32_t executor);
/* The expert that comes next; MOE_COE_NONE: no request waits. */
uint32_t moe_coe_first(const struct moe_coe_dispatch *d, uint32_t executor);

/* Puts the expert of the next group into the pool, to be loaded now, if it is not there and fits
 * beside the one that computes; holds it until its batch. what: the expert and those evicted for
 * it. False: nothing to load. */
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
