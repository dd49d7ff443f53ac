/* Whether a strategy can run on this pack and device, and what its open choices become. */
#ifndef MOE_ENGINE_ENGINE_STRATEGY_H
#define MOE_ENGINE_ENGINE_STRATEGY_H

#include "engine/memory.h"

/* Settles in->strategy and fits it to pack, statistics and device. all_fit: all experts fit into
 * memory at their best variant. MOE_ERR_USAGE with the reason where it cannot run. */
int moe_engine_resolve(struct moe_resolved *out, const struct moe_memory_inputs *in, bool all_fit,
                       struct moe_err *err);

/* What it comes to, for exactness.h. Borrows both. */
struct moe_terms moe_engine_terms(const struct moe_resolved *r, const struct moe_memory_inputs *in);

/* o->follows: a token has as many experts from now on as one of that trace. MOE_ERR_USAGE: it is of
 * another model, or one that the model cannot follow. */
int moe_engine_take_trace(struct moe_model *model, const struct moe_engine_options *o,
                          struct moe_err *err);

/* o->ahead: the layer that drafts is part of the model from now on. MOE_ERR_USAGE: the options have
 * what does not go with it, or it would compute on a GPU. */
int moe_engine_take_ahead(struct moe_model *model, const struct moe_engine_options *o, bool on_gpu,
                          struct moe_err *err);

#endif
