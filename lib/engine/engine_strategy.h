/*
 * Whether a strategy can run on this pack and device, and what its open choices become. Internal to
 * the engine.
 */
#ifndef MOE_ENGINE_ENGINE_STRATEGY_H
#define MOE_ENGINE_ENGINE_STRATEGY_H

#include "engine/engine.h"

/* Settles the options' strategy (not an automatic one) and fits it to pack, statistics and device:
 * e->strategy, e->fallback; *high and *low are the variants it takes. fits: all experts fit into
 * memory at their best precision. MOE_ERR_USAGE or MOE_ERR_UNSUPPORTED with the reason where it
 * cannot run. */
int moe_engine_resolve(struct moe_engine *e, const struct moe_engine_options *o, bool fits,
                       uint32_t *high, uint32_t *low, struct moe_err *err);

#endif
