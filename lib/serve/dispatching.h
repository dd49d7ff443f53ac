/* Dispatching: what coe/dispatch.h needs to know of a server's models, executors and their costs.
 */
#ifndef MOE_SERVE_DISPATCHING_H
#define MOE_SERVE_DISPATCHING_H

#include "serve/state.h"

/* Opens the dispatch, once memory is divided. */
int dispatching_open(struct moe_server *s, struct moe_err *err);
void dispatching_close(struct moe_server *s);

/* A batch of n jobs took so long, or a model to load: what is predicted from then on follows what
 * is seen, unless the costs were measured before. Under the mutex. */
void dispatching_learn_batch(struct executor *x, uint32_t model, uint32_t n, double seconds);
void dispatching_learn_load(struct executor *x, uint32_t model, double seconds);

#endif
