/*
 * Drafts while a text is generated: made (engine/draft.h, or by a layer of the model that drafts,
 * infer/forward.h), computed with the next token, and taken back where they were wrong.
 */
#ifndef MOE_ENGINE_DRAFTING_H
#define MOE_ENGINE_DRAFTING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/answer.h"
#include "engine/draft.h"
#include "infer/session.h"
#include "text/tokenizer.h"

struct moe_drafting {
    struct moe_draft draft;
    bool ahead; /* a layer of the model drafts */
};

/* Whether the session can compute the drafts that an answer's options want. MOE_ERR_*: why not. */
int moe_drafting_check(const struct moe_session *s, const struct moe_generate_options *options,
                       struct moe_err *err);

/* How many tokens may be drafted after the text: what a pass of so many rows, with n_again tokens
 * that are computed again, the context, the answer and, with LongRoPE, the frequencies of its rows
 * have room for. far: the text is beyond rope_original. */
uint64_t moe_drafting_room(const struct moe_answer *answer, const struct moe_ids *history,
                           uint32_t rows, uint32_t n_again, bool far);

/* The first of a row's largest logits. */
uint32_t moe_drafting_likeliest(const float *logits, uint32_t n);

/* No draft yet. most: tokens of one, 0: there are none. */
void moe_drafting_begin(struct moe_drafting *d, uint32_t most, bool ahead);

/* A layer that drafts reads what the last pass has computed, as far as it is among the first n_done
 * tokens of the text and the next ones are known: before the next pass, or its keys and values have
 * a gap. *n_read: rows of it. Nothing without such a layer. */
int moe_drafting_read(struct moe_session *s, const struct moe_ids *history, uint64_t n_done,
                      uint32_t *n_read, struct moe_err *err);

/* Drafts what follows the text, of which all but the last token are computed, at most `room` tokens
 * (which may be none). logits: room for a row. */
int moe_drafting_make(struct moe_drafting *d, struct moe_session *s, const struct moe_ids *history,
                      uint64_t room, float *logits, struct moe_err *err);

/* Computes the text from *n_done on, which then has all of it, with the draft as the rows behind
 * its last token, which is row *last of the pass. Of these rows only the last of the text is a
 * token that was not computed before. Recurrent states can go back to where they stood. */
int moe_drafting_compute(struct moe_drafting *d, struct moe_session *s,
                         const struct moe_ids *history, uint64_t *n_done, uint32_t *last,
                         struct moe_err *err);

#endif
