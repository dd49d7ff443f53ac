/*
 * Fitting a pack: what the engine would make of a strategy and a budget, without loading anything.
 * For the planner (plan/fitting.h).
 */
#ifndef MOE_ENGINE_FIT_PACK_H
#define MOE_ENGINE_FIT_PACK_H

#include "engine/engine.h"
#include "plan/fitting.h"

struct moe_pack_fit;

/* Opens the pack's directory. `options`: as for moe_engine_open; what they borrow stays borrowed.
 * The process counts with what is computed for it, whatever options->program_bytes is. With
 * options->device.cuda for a GPU that need not be here: options->gpu_memory_bytes is named, and
 * moe_fitted.memory is the GPU's, .host the process's. With options->ahead the layer that drafts
 * is counted in all sizes, and is none of the inventory's. */
int moe_pack_fit_open(struct moe_pack_fit **out, const char *path,
                      const struct moe_engine_options *options, struct moe_err *err);
void moe_pack_fit_close(struct moe_pack_fit *f); /* NULL is fine */

struct moe_fitter moe_pack_fit_fitter(struct moe_pack_fit *f);
const struct moe_inventory *moe_pack_fit_inventory(const struct moe_pack_fit *f);
const struct moe_model *moe_pack_fit_model(const struct moe_pack_fit *f);
/* For strategies that need statistics; borrowed. */
void moe_pack_fit_statistics(struct moe_pack_fit *f, const struct moe_statistics *statistics);

#endif
