/* Memory: what models take, and who gets how much of the process's and of a GPU's. */
#ifndef MOE_SERVE_MEMORY_H
#define MOE_SERVE_MEMORY_H

#include "serve/state.h"

/* Looks at every model: what it takes, and which cannot be opened. Before other threads run. */
int memory_survey(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err);

/* Divides the budgets (memory_divide.c). Main memory: first the program and waiting requests, then
 * executors by equal parts, of each one part for models and one for what computes with them. A
 * GPU's: likewise among the executors that compute on it; what these have of main memory beside
 * what they need there is one tier for packs above the disk. MOE_ERR_LIMIT: too small. */
int memory_divide(struct moe_server *s, struct moe_err *err);

/* The session of a model on an executor, within the part for what computes. */
int memory_session(const struct executor *x, const struct model *m, struct moe_session_options *o,
                   struct moe_err *err);
/* Of all kinds of models, in the calling thread's team: the least room that a session works in, and
 * what all sequences take with whole contexts. */
void memory_of_batches(const struct moe_server *s, bool on_gpu, struct moe_session_room *least,
                       struct moe_session_room *full);
/* What a model's engine takes of the memory where the executor computes. */
uint64_t memory_of_model(const struct executor *x, const struct model *m);
/* Whether all its experts are there; else it keeps them in a cache. */
bool memory_is_whole(const struct executor *x, const struct model *m);
/* Whether the host tier is for the model: engines on a GPU have all its experts there. */
bool memory_in_tier(const struct moe_server *s, uint32_t model);

#endif
