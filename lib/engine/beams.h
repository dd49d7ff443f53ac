/*
 * Beam search: the continuation of the highest score that goes on from the best few at every token,
 * instead of one token after the other. As Hugging Face's generation defines it (transformers 5,
 * generation/utils.py, _beam_search): a text's score is the sum of its tokens' log probabilities,
 * that of the token that ends it with them, divided by its length to the power of the penalty. Of
 * the candidates of a step, those among the best n that end a text are kept, at most n in all; the
 * best n that do not end go on.
 *
 * Beams are sequences side by side, computed in one pass; one that forks shares the blocks of the
 * KV cache. Deterministic: of equal scores the smaller beam's is better, then the smaller token.
 */
#ifndef MOE_ENGINE_BEAMS_H
#define MOE_ENGINE_BEAMS_H

#include "engine/answer.h"
#include "infer/session.h"

enum { MOE_MAX_BEAMS = 256 };

/* Bytes that a search takes beside a session with passes of `batch` rows. */
uint64_t moe_beams_bytes(const struct moe_config *config, const struct moe_beam_options *options,
                         uint32_t context, uint32_t batch);

/* Searches and takes the best continuation into an answer that has begun, without
 * moe_answer_end. `history` is computed in sequence 0, and grows by it; row `last` of the
 * last pass is its last. logits: room for a row. Sequence 0 keeps the prompt, or nothing; others
 * have nothing, before and after. */
int moe_beams_search(struct moe_session *s, struct moe_ids *history, struct moe_answer *answer,
                     float *logits, uint32_t last, struct moe_err *err);

#endif
