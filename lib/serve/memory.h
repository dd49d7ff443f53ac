/* Memory: what models take, and who gets how much of the process's. */
#ifndef MOE_SERVE_MEMORY_H
#define MOE_SERVE_MEMORY_H

#include "serve/state.h"

/* Looks at every model: what it takes, and which cannot be opened. Before other threads run. */
int memory_survey(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err);

/* Divides the budget: first the program and waiting requests, then executors by equal parts, of
 * each one part for models and one for what computes with them. MOE_ERR_LIMIT: too small. */
int memory_divide(struct moe_server *s, struct moe_err *err);

/* The session of a model on an executor, within the part for what computes. */
int memory_session(const struct executor *x, const struct model *m, struct moe_session_options *o,
                   struct moe_err *err);
/* What a model's engine takes on the executor; less than `all`: it keeps experts in a cache. */
uint64_t memory_of_model(const struct executor *x, const struct model *m);

#endif
