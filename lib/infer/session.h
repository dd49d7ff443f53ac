/*
 * Session: the state of computing with a model. KV cache for one or more sequences, scratch memory,
 * the forward pass.
 *
 * The forward pass takes rows of (sequence, position, token) and a range of layers. One function
 * serves prefill, single tokens, several sequences at once, and re-runs from a layer on with
 * given hidden states. A row's result depends on the rows before it in its own sequence only, and
 * with LongRoPE on which side of the original context the text's length is: not on the batch, the
 * thread count, the context's size, or where experts came from. Where a model's rows see the whole
 * of a text (an encoder's source, infer/forward.h; a prompt, prefix_lm), it depends on all of these
 * rows, which stand in one pass then, and a decoder's row on its sequence's source as well.
 */
#ifndef MOE_INFER_SESSION_H
#define MOE_INFER_SESSION_H

#include <stdint.h>

#include "base/err.h"
#include "infer/experts.h"
#include "infer/kv.h"
#include "infer/model.h"
#include "infer/recurrent.h"
#include "infer/state.h"

/* Bytes of memory that a session with these options allocates, those of a GPU apart: the same code
 * sizes and allocates. UINT64_MAX: they overflow. */
uint64_t moe_session_bytes(const struct moe_config *config,
                           const struct moe_session_options *options);
/* The KV cache, that of sources included, which grows into its room as positions are filled: part
 * of these bytes, or of the GPU's. */
uint64_t moe_session_kv_bytes(const struct moe_config *config,
                              const struct moe_session_options *options);
/* Bytes of the GPU's memory, KV cache included; 0 without one. */
uint64_t moe_session_gpu_bytes(const struct moe_config *config,
                               const struct moe_session_options *options);
int moe_session_open(struct moe_session **out, struct moe_model *model, struct moe_experts *experts,
                     const struct moe_session_options *options, struct moe_err *err);
void moe_session_close(struct moe_session *s);

/* A sequence takes blocks of the KV cache as its rows are computed. `reserve` takes them before,
 * for its first n_positions; `end` gives all of them back: its next row is at position 0.
 * MOE_ERR_LIMIT, of moe_forward too: not so many are free. */
int moe_sequence_reserve(struct moe_session *s, uint32_t sequence, uint32_t n_positions,
                         struct moe_err *err);
void moe_sequence_end(struct moe_session *s, uint32_t sequence);

/* What was computed of a text need not be computed again by another sequence that begins like it
 * (infer/kv.h). `computed` remembers rows of the last moe_forward, which must have gone through all
 * layers from their tokens on. `begin` reserves n_positions, at least n, of a sequence that has
 * none, for a text of n ids: its first *n_known positions, at most n - 1, hold what they should.
 * `known` says how many that would be.
 *
 * With an encoder that holds among sequences that attend to the same encoding of a source, so that
 * `known`, which has no sequence, says 0; a prompt that sees all of itself is never known. */
void moe_sequence_computed(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows);
int moe_sequence_begin(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint32_t n,
                       uint32_t n_positions, uint32_t *n_known, struct moe_err *err);
uint32_t moe_sequence_known(const struct moe_session *s, const uint32_t *ids, uint32_t n);

/* Sequence `to`, which has no blocks, goes on from the first n_positions of `from`: what is whole
 * of them both share, so that a text forks without being computed again. MOE_ERR_LIMIT as above. */
int moe_sequence_fork(struct moe_session *s, uint32_t from, uint32_t to, uint32_t n_positions,
                      struct moe_err *err);

/* With recurrent states (infer/recurrent.h) a text goes on from the last position that was computed
 * of it, or begins anew: nothing is known of other sequences' texts, `fork` takes all positions of
 * `from` or leaves a sequence that begins anew, and this says where to go on to compute position n:
 * n, or 0. With windows that lie apart (infer/kv_pool.h) it may also be a position between. */
uint32_t moe_sequence_from(const struct moe_session *s, uint32_t sequence, uint32_t n);
/* A sequence is to compute this position next, with whatever stands there of
 * those before: its time is measured, not its result. */
int moe_sequence_stand(struct moe_session *s, uint32_t sequence, uint32_t position,
                       struct moe_err *err);
/* What is computed of the sequence at positions [begin, end) is a prompt: it may go on from its
 * beginning or its end later, and what takes little memory is kept for that. */
void moe_sequence_prompted(struct moe_session *s, uint32_t sequence, uint32_t begin, uint32_t end);

/* What a draft in vain has changed is taken back: `mark` keeps the states of a sequence, which
 * stand behind its first n positions; `back` is as moe_sequence_from, but where they stand
 * elsewhere and were marked at no more than n positions of the same text, they stand there again.
 * Options: takes_back. */
void moe_sequence_mark(struct moe_session *s, uint32_t sequence, uint32_t n);
uint32_t moe_sequence_back(struct moe_session *s, uint32_t sequence, uint32_t n);

/* What sequence 0 has of its first n positions, to be kept elsewhere or to come from there.
 * MOE_ERR_UNSUPPORTED: it lies in a GPU's memory, or belongs to a source or a prompt that sees all
 * of itself, without which it means nothing. */
int moe_sequence_pieces(const struct moe_session *s, uint32_t n, struct moe_kept *out,
                        struct moe_err *err);
/* The same, of as many of these as can be kept: n, or, where states stand elsewhere, those that
 * they were marked at, or 0; of windows that lie apart, those up to the first block without a slot.
 */
int moe_sequence_kept(const struct moe_session *s, uint32_t n, struct moe_kept *out,
                      struct moe_err *err);
/* Room for the pieces of n positions, from which a sequence will go on. */
int moe_sequence_hold(struct moe_session *s, uint32_t sequence, uint32_t n, struct moe_err *err);
/* A sequence goes on from n positions whose pieces were put there. far: they are of a text beyond
 * rope_original. */
void moe_sequence_put(struct moe_session *s, uint32_t sequence, uint32_t n, bool far);

/*
 * Computes rows (n_rows <= batch) through layers [layer_begin, layer_end).
 * hidden_in: states [n_rows][moe_config_state_width] to start from; NULL: the embedding of the
 * rows' tokens. hidden_out: if not NULL, receives the states after layer_end - 1, as wide.
 * Statistics go to the named phase. With an encoder (infer/forward.h): the decoder's layers are
 * those from n_encoder on, each row's sequence attending to a source that is encoded; the encoder's
 * are computed in the phase MOE_ENCODE, over whole sources.
 */
int moe_forward(struct moe_session *s, enum moe_phase phase, const struct moe_row *rows,
                uint32_t n_rows, uint32_t layer_begin, uint32_t layer_end, const float *hidden_in,
                float *hidden_out, struct moe_err *err);

/* A tokenizer may know tokens that the model has no embedding for: MOE_ERR_FORMAT where a text has
 * one, and the first of these is named. */
int moe_check_ids(const struct moe_model *model, const uint32_t *ids, uint64_t n,
                  struct moe_err *err);

/* Logits of rows [first, first + n) of the last moe_forward, which must have ended with the last
 * layer: logits[i * moe_logits_stride + token]. Fails where a device does. */
int moe_logits(struct moe_session *s, uint32_t first, uint32_t n, float *logits,
               struct moe_err *err);

/* The likeliest token after a row of the last moe_forward, chosen on the device: only where
 * s->stages->greedy is there. Fails where a device does. */
int moe_greedy(struct moe_session *s, uint32_t row, uint32_t *token, struct moe_err *err);

#endif
