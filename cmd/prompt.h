/*
 * The text that moe-run continues or answers, and the format it is wrapped in.
 */
#ifndef CMD_PROMPT_H
#define CMD_PROMPT_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/chat.h"

/* Reads the prompt into `out`, NUL-terminated: `text` if it is not NULL, else the file, else ("-"
 * or NULL) standard input. MOE_ERR_FORMAT: it contains NUL bytes. */
int prompt_read(const char *text, const char *file, struct moe_buf *out, struct moe_err *err);

/* The chat format called `name`; if NULL, the one that the model's own template (`of_model`, "" if
 * it has none) is recognised as, with a note if it is unknown. *format NULL: plain text. */
int prompt_format(const char *name, bool raw, const char *of_model, const char *pack,
                  const struct moe_chat_format **format, struct moe_err *err);

#endif
