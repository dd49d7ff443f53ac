/*
 * Texts and numbers as YAML and JSON write them.
 */
#ifndef MOE_FMT_SCALAR_H
#define MOE_FMT_SCALAR_H

#include <stdbool.h>

#include "base/buf.h"

/* Appends a text in double quotes, or in YAML plain where it is a word that reads as just that
 * text. Bytes that are not UTF-8 come out as '?'. */
void moe_scalar_text(struct moe_buf *out, const char *text, bool json);
/* n bytes in JSON's quotes, whatever they are: NULs are characters, and what is not UTF-8 comes out
 * as U+FFFD. */
void moe_scalar_bytes(struct moe_buf *out, const void *bytes, uint64_t n);
/* A finite double with as few digits as give it back exactly; whole numbers below a million in
 * full.
 */
void moe_scalar_double(struct moe_buf *out, double value);

#endif
