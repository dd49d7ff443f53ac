/*
 * Generation: a conversation's tokens in, new tokens out, one at a time to a callback.
 */
#ifndef MOE_ENGINE_GENERATE_H
#define MOE_ENGINE_GENERATE_H

#include <stdint.h>

#include "base/err.h"
#include "engine/answer.h"
#include "run/session.h"
#include "sample/sampler.h"
#include "text/tokenizer.h"

/*
 * `history` holds the whole context; its first *n_done ids are already in the session's sequence 0
 * (kept in step here). Computes the rest in batches, then generates, appending each new id to
 * history. At least one id must be new. With LongRoPE all of a text is computed again when it grows
 * beyond the original context (*n_done starts anew). With beams (engine/beams.h) the best text of a
 * search is the answer, and the sampler is not asked: it may be NULL. With an encoder
 * history is the decoder's, which begins with its first token. On MOE_ERR_* the context remains
 * usable up to *n_done.
 */
int moe_generate(struct moe_session *s, struct moe_sampler *sampler, struct moe_ids *history,
                 uint64_t *n_done, const struct moe_generate_options *options,
                 enum moe_stop_reason *why, struct moe_err *err);

#endif
