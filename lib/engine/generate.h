/*
 * Generation: a conversation's tokens in, new tokens out, one at a time to a callback.
 */
#ifndef MOE_ENGINE_GENERATE_H
#define MOE_ENGINE_GENERATE_H

#include <stdint.h>

#include "base/err.h"
#include "engine/answer.h"
#include "engine/sampler.h"
#include "infer/session.h"
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

/*
 * What an encoder makes of a text: rows of a source, and its output pooled to one vector.
 */

/* MOE_ERR_LIMIT where a source of n ids does not fit the session; MOE_ERR_USAGE where it is empty.
 */
int moe_check_source(const struct moe_session *s, uint64_t n, struct moe_err *err);
/* The rows [n] of a source. */
void moe_source_rows(struct moe_row *rows, uint32_t source, const uint32_t *ids, uint32_t n);

/* What becomes of the rows of a source, the tokens that end it among them. */
enum moe_pooling {
    MOE_POOL_MEAN,
    MOE_POOL_FIRST,
    MOE_POOL_LAST,
};

/* Bytes that pooling takes beside a session whose passes have `batch` rows. */
uint64_t moe_encode_bytes(const struct moe_config *config, uint32_t batch);
/* Encodes n ids as source 0 and pools the encoder's normalized output to out[hidden]. Errors as of
 * moe_check_source, and of the pass. */
int moe_encode_pooled(struct moe_session *s, const uint32_t *ids, uint64_t n,
                      enum moe_pooling pooling, float *out, struct moe_err *err);

#endif
