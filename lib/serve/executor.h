/* Executors: threads that take batches from their queue and compute them. */
#ifndef MOE_SERVE_EXECUTOR_H
#define MOE_SERVE_EXECUTOR_H

#include "serve/state.h"

/* Starts the thread. */
int executor_start(struct executor *x, struct moe_err *err);
/* Waits for its end, once the server is closing, and frees what the thread held. */
void executor_join(struct executor *x);

#endif
