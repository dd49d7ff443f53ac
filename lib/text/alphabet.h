/*
 * GPT-2's alphabet: one character for each byte, in which byte-level vocabularies are spelled.
 */
#ifndef MOE_TEXT_ALPHABET_H
#define MOE_TEXT_ALPHABET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* Appends n bytes as characters: UTF-8, at most twice as long. */
void moe_alphabet_write(const char *text, uint64_t n, struct moe_buf *out);
/* Appends the bytes that n bytes of characters spell; false (and nothing appended) if a character
 * is not in the alphabet. */
bool moe_alphabet_read(const char *text, uint64_t n, struct moe_buf *out);

#endif
