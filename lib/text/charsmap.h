/*
 * SentencePiece's compiled normalization rules ("precompiled_charsmap"): a double-array trie
 * (darts-clone) from short texts to places in a list of replacements.
 *
 *   u32 bytes of the trie, its units (u32, little-endian), then replacements, each ended by a NUL
 *
 * Applied as in huggingface/tokenizers (the crate spm_precompiled): a grapheme of up to five bytes
 * becomes the replacement of its shortest beginning that has one; otherwise, and in longer
 * graphemes, each character is replaced by itself.
 */
#ifndef MOE_TEXT_CHARSMAP_H
#define MOE_TEXT_CHARSMAP_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum { MOE_CHARSMAP_MAX = 1 << 24 }; /* bytes; published ones have 300,000 */

struct moe_charsmap {
    const uint8_t *units; /* borrowed, 4 bytes each */
    const char *texts;    /* borrowed */
    uint64_t n_units, n_text;
};

/* Checks n bytes and opens them as a map, which borrows them. */
int moe_charsmap_open(struct moe_charsmap *map, const void *data, uint64_t n, struct moe_err *err);
/* Appends n bytes of valid UTF-8 after replacement. */
void moe_charsmap_apply(const struct moe_charsmap *map, const char *text, uint64_t n,
                        struct moe_buf *out);

#endif
