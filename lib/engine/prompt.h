/*
 * Prompts: the ids that an answer goes on from, of a chat's turns or of plain text.
 */
#ifndef MOE_ENGINE_PROMPT_H
#define MOE_ENGINE_PROMPT_H

#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "run/session.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* Appends the turns as the format renders them for this model, with what opens the answer; `words`
 * gets the spans that come from turns, or is NULL. */
int moe_prompt_render(const struct moe_model *model, const struct moe_chat_format *format,
                      const struct moe_chat_turn *turns, int n_turns, struct tm today,
                      struct moe_buf *out, struct moe_buf *words, struct moe_err *err);
/* Appends the ids of what was rendered, from byte `known` on. */
int moe_prompt_encode(const struct moe_model *model, const struct moe_buf *rendered,
                      const struct moe_buf *words, uint64_t known, struct moe_ids *ids,
                      struct moe_err *err);
/* Appends the ids of a whole chat. MOE_ERR_UNSUPPORTED: the model has an encoder. */
int moe_prompt_chat(const struct moe_model *model, const struct moe_chat_format *format,
                    const struct moe_chat_turn *turns, int n_turns, struct moe_ids *ids,
                    struct moe_err *err);
/* Appends the ids of n bytes of plain text, after the token that begins a text where there is one;
 * with an encoder, of a source. */
int moe_prompt_plain(const struct moe_model *model, const char *text, uint64_t n,
                     struct moe_ids *ids, struct moe_err *err);

/* The same of a text behind a prefix that sees all of itself (prefix_lm): what begins a text, the
 * prefix, the tokenizer's last token, the text. prefix NULL: all of the text is that prefix, as of
 * moe_prompt_plain. MOE_ERR_UNSUPPORTED: the model's texts have none. */
int moe_prompt_prefixed(const struct moe_model *model, const char *prefix, const char *text,
                        uint64_t n, struct moe_ids *ids, struct moe_err *err);

/* Appends the ids of n bytes of text as an encoder reads it, with the tokens that the tokenizer
 * puts around a whole text. */
int moe_prompt_source(const struct moe_model *model, const char *text, uint64_t n,
                      struct moe_ids *ids, struct moe_err *err);

/* A prompt that sees all of itself (prefix_lm), of n ids: the prefix is what stands before the
 * tokenizer's last token, GPTSAN's separator, or without one all of it. */
void moe_prompt_mark(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint64_t n);

/* The caller's stop texts and the format's (NULL: none), NULL-terminated; free() it. NULL: out of
 * memory. */
const char **moe_prompt_stops(const char *const *stops, const struct moe_chat_format *format,
                              struct moe_err *err);

#endif
