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
 * rows, which are in one pass then, and a decoder's row on its sequence's source as well.
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
/* ... and those of them, on the processor, that a pass of n_rows uses row by row. */
uint64_t moe_session_rows_bytes(const struct moe_config *config,
                                const struct moe_session_options *options, uint32_t n_rows);
/* The KV cache, that of sources included, which grows into its room as positions are filled: part
 * of these bytes, or of the GPU's. */
uint64_t moe_session_kv_bytes(const struct moe_config *config,
                              const struct moe_session_options *options);
/* Its shape (infer/kv.h), without that of sources. */
struct moe_kv moe_session_kv(const struct moe_config *config,
                             const struct moe_session_options *options);
/* Bytes of the GPU's memory, KV cache included; 0 without one. */
uint64_t moe_session_gpu_bytes(const struct moe_config *config,
                               const struct moe_session_options *options);
int moe_session_open(struct moe_session **out, struct moe_model *model, struct moe_experts *experts,
                     const struct moe_session_options *options, struct moe_err *err);
void moe_session_close(struct moe_session *s);

/*
 * Sequences. One is a text as far as it is computed: moe_forward appends its rows, and the session
 * knows their ids. A row at an earlier position replaces the text from there on.
 */

/* Positions of its text. */
uint32_t moe_sequence_length(const struct moe_session *s, uint32_t sequence);
/* How many of n ids its text begins with. */
uint32_t moe_sequence_common(const struct moe_session *s, uint32_t sequence, const uint32_t *ids,
                             uint32_t n);

/* Turns the sequence to a text of n ids: it keeps what it has of it, or, if that is nothing, gets
 * what any text in the KV cache has in common with it, and room for n_positions. The caller
 * computes the text from *n_done on, which is n - 1 at most: the last id's logits are wanted.
 * MOE_ERR_LIMIT: there is no room.
 *
 * Another text's positions are of use where their keys and values are the same: on the same side of
 * LongRoPE's original context; with an encoder, for the same encoding of a source; with recurrent
 * states up to the last snapshot; and never where a prompt sees all of itself
 * (moe_sequence_prompt).
 */
int moe_sequence_sync(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint32_t n,
                      uint32_t n_positions, uint32_t *n_done, struct moe_err *err);
/* Names the owner of the sequence's texts from now on; it loses those of another. Nothing is taken
 * over from another owner's texts. 0, at first: who names none. */
void moe_sequence_own(struct moe_session *s, uint32_t sequence, uint64_t owner);
/* Takes the text back to its first n positions, or to fewer, from which it can go on; returns how
 * many. With 0 the sequence has nothing any more, no blocks of the KV cache either. Recurrent
 * states go back only to where they were kept (infer/recurrent.h); windows that lie apart to where
 * their positions still are (infer/kv_pool.h). */
uint32_t moe_sequence_rewind(struct moe_session *s, uint32_t sequence, uint32_t n);
/* What moe_sequence_rewind would return, without going back to states that were kept. */
uint32_t moe_sequence_from(const struct moe_session *s, uint32_t sequence, uint32_t n);
/* Keeps the recurrent states that the sequence has now, in place of those kept before, so that it
 * can come back to them while it has this text. Options: takes_back. */
void moe_sequence_keep(struct moe_session *s, uint32_t sequence);
/* Keeps a copy of the recurrent states that the sequence has now, for every text of its owner that
 * begins like this one, in place of the one that is needed least; `likely`: one will. Options:
 * n_snapshots. */
void moe_sequence_snapshot(struct moe_session *s, uint32_t sequence, bool likely);

/* What the sequence has of its first n positions, or as many of them as can go on elsewhere:
 * out->n. MOE_ERR_UNSUPPORTED: it lies in a GPU's memory, or belongs to a source or a prompt that
 * sees all of itself, without which it means nothing. */
int moe_sequence_save(const struct moe_session *s, uint32_t sequence, uint32_t n,
                      struct moe_kept *out, struct moe_err *err);
/* Gives the sequence a text of n ids that was computed elsewhere: `fill` puts the pieces where they
 * belong. far: they are of a text beyond rope_original. After an error it has nothing. ids NULL:
 * positions before n hold whatever lies in memory, since the time of passes is measured, and not
 * their results. */
typedef int moe_sequence_fill(void *ctx, const struct moe_kept *pieces, struct moe_err *err);
int moe_sequence_load(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint32_t n,
                      bool far, moe_sequence_fill *fill, void *ctx, struct moe_err *err);

/* With kv_grows: the blocks of the KV cache that are marked (moe_kv_need) take memory, which slots
 * lend from the next pass on, or now; with `drops` the others give back theirs. */
void moe_session_hold(struct moe_session *s, bool drops, bool now);
/* Appends a row that went through all layers to its text. Of moe_forward. */
void moe_sequence_append(struct moe_session *s, const struct moe_row *row);
/* Takes blocks of the KV cache for the sequence's first n_positions, as moe_forward does for its
 * rows. MOE_ERR_LIMIT, of moe_forward too: not enough are free. */
int moe_sequence_reserve(struct moe_session *s, uint32_t sequence, uint32_t n_positions,
                         struct moe_err *err);
/* Sequence `to`, which has nothing, goes on from the first n_positions of `from`: whole blocks are
 * shared, so that a text forks without being computed again. Recurrent states fork at the text's
 * end. MOE_ERR_LIMIT as above. */
int moe_sequence_fork(struct moe_session *s, uint32_t from, uint32_t to, uint32_t n_positions,
                      struct moe_err *err);
/* What moe_sequence_sync would find of an owner's n ids for a sequence that has nothing; 0 with an
 * encoder, where that depends on the sequence. */
uint32_t moe_sequence_known(const struct moe_session *s, uint64_t owner, const uint32_t *ids,
                            uint32_t n);

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

/* What the head takes of a row of the last moe_forward, which must have ended with the last layer:
 * its state behind the last norm, [hidden], valid until the next call. Only where s->stages->last
 * is there. */
const float *moe_last_state(struct moe_session *s, uint32_t row);

/* The likeliest token after a row of the last moe_forward, chosen on the device: only where
 * s->stages->greedy is there. Fails where a device does. */
int moe_greedy(struct moe_session *s, uint32_t row, uint32_t *token, struct moe_err *err);

#endif
