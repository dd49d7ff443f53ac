/* Executors: threads that take batches from their queue and compute them. */
#ifndef MOE_SERVE_EXECUTOR_H
#define MOE_SERVE_EXECUTOR_H

#include "serve/state.h"

/* Loads a model before the thread is started; its state says how that went. */
void executor_load(struct executor *x, uint32_t model);
/* Starts the thread. */
int executor_start(struct executor *x, struct moe_err *err);
/* Waits for its end, once the server is closing, and frees what the thread held. */
void executor_join(struct executor *x);

#endif
