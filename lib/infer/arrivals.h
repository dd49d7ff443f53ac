/*
 * Weights that arrive behind what computes with them: threads read them item by item, in order, but
 * first what somebody waits for.
 */
#ifndef MOE_INFER_ARRIVALS_H
#define MOE_INFER_ARRIVALS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"

struct moe_arrivals;

/* n items that are not there yet. read: has item `which` at its place when it returns, and adds
 * its bytes to *bytes; called on several threads, for an item that could not be read once more.
 * MOE_ERR_INTERRUPTED, where the `stop` of those who wait is set: the item is read later. */
int moe_arrivals_open(struct moe_arrivals **out, uint64_t n,
                      int (*read)(void *ctx, uint64_t which, uint64_t *bytes, struct moe_err *err),
                      void *ctx, struct moe_err *err);
/* Waits for the threads, which begin nothing more. NULL is fine. */
void moe_arrivals_close(struct moe_arrivals *a);
/* Before reading begins: there is nothing to read for an item. */
void moe_arrivals_leave_out(struct moe_arrivals *a, uint64_t which);

/* Reads all items on that many threads. progress: by bytes of `total`, which `what` names. */
int moe_arrivals_read(struct moe_arrivals *a, int threads, const struct moe_progress *progress,
                      const char *what, uint64_t total, struct moe_err *err);
/* Has them read by that many threads of their own; where there can be none, reads them. progress:
 * told by those who wait, whom its `stop` ends with MOE_ERR_INTERRUPTED: reading goes on. Borrowed
 * until all is closed. */
int moe_arrivals_begin(struct moe_arrivals *a, int threads, const struct moe_progress *progress,
                       const char *what, uint64_t total, struct moe_err *err);

/* Whether all have arrived. */
bool moe_arrivals_complete(const struct moe_arrivals *a);
bool moe_arrivals_has(struct moe_arrivals *a, uint64_t which);
uint64_t moe_arrivals_bytes(const struct moe_arrivals *a); /* read so far */
/* These n are read first; the list is borrowed until the next call. */
void moe_arrivals_ask(struct moe_arrivals *a, const uint64_t *which, uint64_t n);
/* Returns when one of these n > 0 is there. What could not be read is read again, for its error. */
int moe_arrivals_await_any(struct moe_arrivals *a, const uint64_t *which, uint64_t n,
                           struct moe_err *err);
/* Returns when items [first, end) are there; reads what nobody has begun to read. */
int moe_arrivals_await(struct moe_arrivals *a, uint64_t first, uint64_t end, struct moe_err *err);

#endif
