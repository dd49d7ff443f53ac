/*
 * Chat templates: the families' formats, recognised from the text of a checkpoint's Jinja template
 * and rendered by our own code (no Jinja interpreter). A template that no format renders exactly is
 * not recognised.
 *
 * Options of templates have their defaults: no tools, no documents, and for Qwen3 enable_thinking
 * unset (the model decides whether to think).
 */
#ifndef MOE_TEXT_CHAT_H
#define MOE_TEXT_CHAT_H

#include <stdbool.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"

enum moe_chat_role { MOE_CHAT_SYSTEM, MOE_CHAT_USER, MOE_CHAT_ASSISTANT };

struct moe_chat_turn {
    enum moe_chat_role role;
    const char *text;
};

struct moe_chat_format; /* an entry of the table in chat.c */

/* The format of that name ("chatml", "qwen3", "mistral", "gpt-oss", ...; the table in chat.c), or
 * NULL. */
const struct moe_chat_format *moe_chat_find(const char *name);
const struct moe_chat_format *moe_chat_at(int i); /* NULL past the end */
const char *moe_chat_name(const struct moe_chat_format *format);

/* Appends the chat template (Jinja source) of a checkpoint's directory: chat_template.jinja, or
 * tokenizer_config.json's chat_template (the one named "default" of a list). Nothing is appended
 * where there is none. */
int moe_chat_read_template(const char *dir, struct moe_buf *out, struct moe_err *err);

/* The format that a Jinja template renders, or NULL when it is not a known one (or memory is
 * short). */
const struct moe_chat_format *moe_chat_recognise(const char *jinja);

/* What templates fill in, apart from the turns. */
struct moe_chat_facts {
    const char *bos, *eos; /* texts of these tokens, "" for none */
    struct tm today;       /* year, month and day: some templates' system texts have the date */
};

/* The local date, or that of SOURCE_DATE_EPOCH in the environment (seconds since 1970, UTC), so
 * that a text with the date can be reproduced. */
struct tm moe_chat_today(void);

/* Appends the conversation as the template would render it and, with add_prompt, what opens the
 * assistant's answer. A turn may be rendered otherwise once others follow it (thoughts are dropped,
 * a system text moves to the last question). Without add_prompt the turns are as they stand before
 * a next one, also where the template would end a conversation differently.
 *
 * `words` (may be NULL) gets a struct moe_span for every piece that is a turn's text and not the
 * template's, for moe_tokenizer_encode_chat: special tokens spelled in it are plain text. */
void moe_chat_render(const struct moe_chat_format *format, const struct moe_chat_turn *turns, int n,
                     bool add_prompt, const struct moe_chat_facts *facts, struct moe_buf *out,
                     struct moe_buf *words);

/* Texts that end an answer in this format, in addition to the model's eos; NULL-terminated. */
const char *const *moe_chat_stops(const struct moe_chat_format *format);

#endif
