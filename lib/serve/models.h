/* Models: which there are, and having them in an executor's memory. */
#ifndef MOE_SERVE_MODELS_H
#define MOE_SERVE_MODELS_H

#include "serve/state.h"

/* The models of the options, by name. */
int models_list(struct moe_server *s, struct moe_err *err);
void models_free(struct moe_server *s);

/* Has a model in the executor's memory. On errors it is not there. */
int model_load(struct executor *x, uint32_t model, const struct moe_progress *progress,
               struct moe_err *err);
/* Takes it out, where it is. */
void model_unload(struct executor *x, uint32_t model);

#endif
