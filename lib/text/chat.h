/*
 * Chat templates: the families' formats, recognised from a checkpoint's Jinja template by what it
 * says and rendered by our own code (no Jinja interpreter). A template that none of the formats
 * renders exactly is not recognised.
 *
 * What templates leave to options is rendered at its default: no tools, no documents, and of Qwen3
 * enable_thinking unset (the model decides whether to think).
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

struct moe_chat_format; /* one row of the table in chat.c */

/* The format of that name ("chatml", "qwen3", "mistral", "gpt-oss", ... as the table in chat.c has
 * them), or NULL. */
const struct moe_chat_format *moe_chat_find(const char *name);
const struct moe_chat_format *moe_chat_at(int i); /* NULL past the end */
const char *moe_chat_name(const struct moe_chat_format *format);

/* Appends the chat template (Jinja source) of a checkpoint's directory: chat_template.jinja, or
 * tokenizer_config.json's chat_template (the one named "default" of a list). Nothing is appended
 * where there is none. */
int moe_chat_read_template(const char *dir, struct moe_buf *out, struct moe_err *err);

/* The format a Jinja source means, or NULL when it is none we know (or memory is short). */
const struct moe_chat_format *moe_chat_recognise(const char *jinja);

/* What templates fill in besides the turns. */
struct moe_chat_facts {
    const char *bos, *eos; /* texts of these tokens, "" for none */
    struct tm today;       /* year, month and day: some templates' system texts tell the date */
};

/* The local date; where the environment has SOURCE_DATE_EPOCH (seconds since 1970, UTC) that day,
 * so that a text which tells the date can be made again. */
struct tm moe_chat_today(void);

/* Appends the conversation as the template would render it and, with add_prompt, what opens the
 * assistant's answer. A turn may be rendered otherwise once others follow it (thoughts are dropped,
 * a system text moves to the last question). Without add_prompt the turns are as they stand before
 * a next one, also where the template would end a conversation differently.
 *
 * `words` (may be NULL) gets a struct moe_span for every piece that is a turn's text and not the
 * template's, for moe_tokenizer_encode_chat: marks in it are not meant as such. */
void moe_chat_render(const struct moe_chat_format *format, const struct moe_chat_turn *turns, int n,
                     bool add_prompt, const struct moe_chat_facts *facts, struct moe_buf *out,
                     struct moe_buf *words);

/* Texts that end an answer in this format besides the model's eos; NULL-terminated. */
const char *const *moe_chat_stops(const struct moe_chat_format *format);

#endif
