/* An engine whose experts, or layers, are shared out among ranks (ranks/ranks.h). */
#ifndef MOE_ENGINE_ENGINE_RANKS_H
#define MOE_ENGINE_ENGINE_RANKS_H

#include "engine/engine.h"

/* Meets the other ranks and leaves the model's pack with the experts of this one, and the model
 * with its layers where whole ones are shared out. own: the options, which ranks other than 0
 * complete by what rank 0 says. MOE_ERR_USAGE, MOE_ERR_UNSUPPORTED: what does not go with ranks;
 * MOE_ERR_INTERRUPTED: rank 0 has ended. */
int moe_engine_join_ranks(struct moe_model *model, struct moe_engine_options *own,
                          struct moe_err *err);

/* On a rank other than 0: has rank 0 send what a pack needs to be opened to a file in that
 * directory, where it is not there yet; *path: the file, free() it; *begun_now: it was not there.
 * pack: the path that rank 0 has. MOE_ERR_USAGE: another file is there; MOE_ERR_IO: the directory
 * cannot be written. */
int moe_engine_begin_spread(char **path, bool *begun_now, struct moe_ranks *ranks,
                            const char *directory, const char *pack, struct moe_err *err);
/* Removes a file that was begun now, unless experts have come to it. */
void moe_engine_undo_spread(const char *path);

#endif
