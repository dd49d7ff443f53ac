/*
 * Prompts: the ids that an answer goes on from, of a chat or of plain text.
 */
#ifndef MOE_ENGINE_PROMPT_H
#define MOE_ENGINE_PROMPT_H

#include "base/buf.h"
#include "base/err.h"
#include "infer/session.h"
#include "prompt/chat.h"
#include "text/tokenizer.h"

/* The chat of a template (a text of n bytes), or of the model's own where template is NULL; `name`
 * begins error texts. *out NULL: there is none. Release it with moe_chat_free. */
int moe_prompt_open_chat(struct moe_chat **out, const struct moe_model *model, const char *name,
                         const char *template, uint64_t n, struct moe_err *err);
/* Appends the ids of what was rendered, from byte `known` on; `words` are its spans that come from
 * the caller's texts. */
int moe_prompt_encode(const struct moe_model *model, const struct moe_buf *rendered,
                      const struct moe_buf *words, uint64_t known, struct moe_ids *ids,
                      struct moe_err *err);
/* MOE_ERR_LIMIT, with both numbers, and which -c would do where the model can take that many;
 * `least`: the prompt has n tokens or more, and takes at least that -c. */
int moe_prompt_too_long(const struct moe_config *config, uint64_t n, bool least, uint64_t context,
                        struct moe_err *err);
/* MOE_ERR_LIMIT: n bytes of text make more ids than `context`, which is seen without making them,
 * or making them takes more memory than `most_bytes`. */
int moe_prompt_check_length(const struct moe_model *model, const char *text, uint64_t n,
                            uint64_t context, uint64_t most_bytes, struct moe_err *err);
/* How many of a chat's ids, which end as `rendered` does, its next turn will begin with, whatever
 * is answered and asked: a template may write what opens an answer, and thoughts before it,
 * otherwise by then. For models with recurrent states (moe_generate_options.again); 0 for others.
 */
uint64_t moe_prompt_again(const struct moe_model *model, const struct moe_chat *chat,
                          const struct moe_chat_input *input, const struct moe_buf *rendered,
                          const struct moe_ids *ids);
/* Appends the ids of a chat, with what opens the answer, or, where it `continues`, up to the end of
 * the last message's text, and sets *again to how many of all ids its next turn begins with (NULL:
 * not wanted). MOE_ERR_LIMIT: one of its texts alone does not fit `context`. MOE_ERR_UNSUPPORTED:
 * the model has an encoder, or the template does not write that text as it is. */
int moe_prompt_chat(const struct moe_model *model, const struct moe_chat *chat,
                    const struct moe_chat_input *input, uint64_t context, struct moe_ids *ids,
                    uint64_t *again, struct moe_err *err);
/* The same of a conversation that may be too long. Where it does not leave `room` of the context,
 * oldest turns are left out, and then behind the last question the oldest answers with what tools
 * said to their calls, as few as leave it, or all where none do and the rest fits by itself; system
 * texts and the last question stay. *n_left_out: messages. MOE_ERR_LIMIT: the rest does not fit. */
int moe_prompt_chat_end(const struct moe_model *model, const struct moe_chat *chat,
                        const struct moe_chat_input *input, uint64_t context, uint64_t room,
                        struct moe_ids *ids, uint64_t *again, uint32_t *n_left_out,
                        struct moe_err *err);
/* Appends the ids of n bytes of plain text, or of what an encoder reads, with the tokens that the
 * tokenizer's files put around a text. */
int moe_prompt_plain(const struct moe_model *model, const char *text, uint64_t n,
                     struct moe_ids *ids, struct moe_err *err);

/* Languages of a translation, by their tokens' names ("fra_Latn"). NULL: the one that the
 * tokenizer's files put before a source; the model's answer_start. */
struct moe_languages {
    const char *source, *target;
};
/* The token of a language. MOE_ERR_USAGE: the tokenizer has no such one; MOE_ERR_UNSUPPORTED: the
 * model has no encoder, or its sources begin with none. */
int moe_prompt_language(const struct moe_model *model, const char *name, uint32_t *id,
                        struct moe_err *err);
/* As moe_prompt_plain, of a source in that language. *target: the token that the decoder's text
 * begins with behind its first one; 0: none. Errors also as of moe_prompt_language. */
int moe_prompt_source(const struct moe_model *model, const struct moe_languages *languages,
                      const char *text, uint64_t n, struct moe_ids *ids, uint32_t *target,
                      struct moe_err *err);

/* The same of a text behind a prefix that sees all of itself (prefix_lm): what begins a text, the
 * prefix, the tokenizer's last token, the text. prefix NULL: all of the text is that prefix, as of
 * moe_prompt_plain. MOE_ERR_UNSUPPORTED: the model's texts have none. */
int moe_prompt_prefixed(const struct moe_model *model, const char *prefix, const char *text,
                        uint64_t n, struct moe_ids *ids, struct moe_err *err);

/* The same of what comes between a text and `suffix`, as models write it that fill in the middle:
 * between marks that their tokenizers have as tokens. MOE_ERR_UNSUPPORTED: it has none of those
 * that are known. */
int moe_prompt_between(const struct moe_model *model, const char *text, uint64_t n,
                       const char *suffix, struct moe_ids *ids, struct moe_err *err);
/* Puts other files before such a prompt, by the marks that the tokenizer has between files: the
 * last of those with which it has no more than `context` ids, and whose ids take no more than
 * most_bytes to make. */
struct moe_prompt_file {
    const char *name, *text;
};
int moe_prompt_files(const struct moe_model *model, const struct moe_prompt_file *files, uint32_t n,
                     uint64_t context, uint64_t most_bytes, struct moe_ids *ids,
                     struct moe_err *err);
/* Appends the tokens that end what such a model fills in, beside those that end all of its texts.
 */
int moe_prompt_between_ends(const struct moe_model *model, struct moe_ids *ends,
                            struct moe_err *err);

/* A prompt that sees all of itself (prefix_lm), of n ids: the prefix is what comes before the
 * tokenizer's last token, GPTSAN's separator, or without one all of it. */
void moe_prompt_mark(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint64_t n);

/* The caller's stop texts and the chat's (NULL: none), NULL-terminated; free() it. NULL: out of
 * memory. */
const char **moe_prompt_stops(const char *const *stops, const struct moe_chat *chat,
                              struct moe_err *err);

#endif
