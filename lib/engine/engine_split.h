/*
 * The split of an engine's memory: strategy and sizes, decided before anything is loaded. Internal
 * to the engine and to whoever plans for it (engine/fit_pack.h).
 */
#ifndef MOE_ENGINE_ENGINE_SPLIT_H
#define MOE_ENGINE_ENGINE_SPLIT_H

#include "engine/engine.h"

/* Whether a strategy does anything ahead of the router or beside the device. */
bool moe_engine_needs_ahead(const struct moe_strategy *s);

/* Threads that compute experts beside the device, where a strategy does. */
uint32_t moe_engine_host_threads(const struct moe_engine *e);

/* For an engine whose model's directory is open: fills strategy, budget and fallback, completes the
 * session's options, sizes the cache. MOE_ERR_LIMIT when the budget is too small, MOE_ERR_USAGE
 * where the strategy cannot run. */
int moe_engine_split(struct moe_engine *e, const struct moe_engine_options *options,
                     struct moe_session_options *session, struct moe_cache_options *cache,
                     struct moe_err *err);

#endif
