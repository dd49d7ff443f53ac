/*
 * The text that moe-run continues or answers, and the format it is wrapped in.
 */
#ifndef CMD_PROMPT_H
#define CMD_PROMPT_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/chat.h"

/* `text` where it is given, else what `file` holds, else standard input ("-" or NULL); NUL-
 * terminated in `out`. */
int prompt_read(const char *text, const char *file, struct moe_buf *out, struct moe_err *err);

/* The chat format: the one called `name`; with NULL what the model's own template (`of_model`, "":
 * none) is recognised as, with a note when it is none that is known. *format NULL: plain text. */
int prompt_format(const char *name, bool raw, const char *of_model, const char *pack,
                  const struct moe_chat_format **format, struct moe_err *err);

#endif
