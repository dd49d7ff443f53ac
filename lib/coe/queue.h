/*
 * Queue: the requests that wait for an executor, in groups of neighbours that use the same expert
 * (request arranging and splitting, 4.2). Every operation takes constant time.
 */
#ifndef MOE_COE_QUEUE_H
#define MOE_COE_QUEUE_H

#include "base/err.h"
#include "coe/experts.h"

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
uint32_t moe_coe_queue_second(const struct moe_coe_queue *q);
/* Takes at most `most` requests of the first group out, as a list in the order of their coming.
 * *n: how many; NULL: the queue is empty. */
struct moe_coe_request *moe_coe_queue_take(struct moe_coe_queue *q, uint32_t most, uint32_t *n);
/* The same of the expert's requests that come next: those behind the first group only where
 * requests are arranged. NULL: none waits there. */
struct moe_coe_request *moe_coe_queue_take_of(struct moe_coe_queue *q, uint32_t expert,
                                              uint32_t most, uint32_t *n);
/* Takes out a request that waits. */
void moe_coe_queue_remove(struct moe_coe_queue *q, struct moe_coe_request *r);
/* The first request of the first group that is another expert's; NULL: none. */
const struct moe_coe_request *moe_coe_queue_other(const struct moe_coe_queue *q, uint32_t expert);
/* The first group goes behind all others. */
void moe_coe_queue_rotate(struct moe_coe_queue *q);
uint64_t moe_coe_queue_length(const struct moe_coe_queue *q);

#endif
