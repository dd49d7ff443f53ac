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

/* The format of that name ("chatml", "mistral", "llama2", "llama3", "phi3", "deepseek", "zephyr"),
 * or NULL. */
const struct moe_chat_format *moe_chat_find(const char *name);
const struct moe_chat_format *moe_chat_at(int i); /* NULL past the end */
const char *moe_chat_name(const struct moe_chat_format *format);

/* The format a Jinja source means, or NULL when it is none we know. */
const struct moe_chat_format *moe_chat_recognise(const char *jinja);

/* Appends the text of turns[first..n) in order, as the template would render the whole
 * conversation, and, with add_prompt, what opens the assistant's answer. `first` > 0 continues a
 * conversation whose earlier turns are already in the context. bos/eos are the texts of those
 * tokens ("" for none). The result is to be encoded with parse_special. */
void moe_chat_render(const struct moe_chat_format *format, const struct moe_chat_turn *turns, int n,
                     int first, bool add_prompt, const char *bos, const char *eos,
                     struct moe_buf *out);

/* Texts that end an answer in this format besides the model's eos; NULL-terminated. */
const char *const *moe_chat_stops(const struct moe_chat_format *format);

#endif
