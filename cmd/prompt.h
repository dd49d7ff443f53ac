/*
 * The text that moe-run continues or answers.
 */
#ifndef CMD_PROMPT_H
#define CMD_PROMPT_H

#include "base/buf.h"
#include "base/err.h"

/* `text` where it is given, else what `file` holds, else standard input ("-" or NULL); NUL-
 * terminated in `out`. */
int prompt_read(const char *text, const char *file, struct moe_buf *out, struct moe_err *err);

#endif
