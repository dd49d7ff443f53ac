/*
 * Chat templates: the common families' formats, recognised from a checkpoint's Jinja template by
 * their marks and rendered by our own code (no Jinja interpreter).
 */
#ifndef MOE_MODEL_CHAT_H
#define MOE_MODEL_CHAT_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"

enum moe_chat_role { MOE_CHAT_SYSTEM, MOE_CHAT_USER, MOE_CHAT_ASSISTANT };

struct moe_chat_turn {
    enum moe_chat_role role;
    const char *text;
};

struct moe_chat_format; /* one row of the table in chat.c */

/* The format of that name ("chatml", "mistral", "llama2", "llama3", "phi3", "deepseek", "zephyr",
 * "tulu", "qwen2", "mistral-spaced"), or NULL. */
const struct moe_chat_format *moe_chat_find(const char *name);
const struct moe_chat_format *moe_chat_at(int i); /* NULL past the end */
const char *moe_chat_name(const struct moe_chat_format *format);

/* Appends the chat template (Jinja source) of a checkpoint's directory: chat_template.jinja, or
 * tokenizer_config.json's chat_template (the one named "default" of a list). Nothing is appended
 * where there is none. */
int moe_chat_read_template(const char *dir, struct moe_buf *out, struct moe_err *err);

/* The format a Jinja source means, or NULL when it is none we know. */
const struct moe_chat_format *moe_chat_recognise(const char *jinja);

/* Appends what turns[first..n) add to the conversation as the template would render it, and, with
 * add_prompt, what opens the assistant's answer. With `first` > 0 the earlier turns are in the
 * context already: turns [0, first) without a prompt, then [first, n), give the same text as all at
 * once. A system text that the format folds into the user turn behind it appears with that turn.
 * bos/eos are the texts of those tokens ("" for none).
 *
 * `words` (may be NULL) gets a struct moe_span for every piece that is a turn's text and not the
 * template's, for moe_tokenizer_encode_chat: marks in it are not meant as such. */
void moe_chat_render(const struct moe_chat_format *format, const struct moe_chat_turn *turns, int n,
                     int first, bool add_prompt, const char *bos, const char *eos,
                     struct moe_buf *out, struct moe_buf *words);

/* Texts that end an answer in this format besides the model's eos; NULL-terminated. */
const char *const *moe_chat_stops(const struct moe_chat_format *format);

#endif
