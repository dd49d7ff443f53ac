/*
 * Stores a vocabulary in a tokenizer: shared by the readers of tokenizer.json and of GGUF.
 *
 * Set the tokenizer's model and flags first (they say how tokens are spelled), then store all
 * tokens, then look up merges among them. Names are those of files and begin error texts.
 */
#ifndef MOE_TEXT_VOCAB_STORE_H
#define MOE_TEXT_VOCAB_STORE_H

#include "text/internal.h"

/* The token of one id as in the file. */
struct moe_vocab_entry {
    const char *text; /* borrowed, not terminated */
    uint64_t n;
    uint8_t flags; /* enum moe_token_flag; 0 with a text: the token only decodes */
};

/* Stores the texts and flags of entries[0..tok->n_tokens), after moe_tokenizer_allocate, and makes
 * moe_tokenizer_lookup work. In a byte model the tokens that are not added are spelled in GPT-2's
 * alphabet and become their bytes; one with another character only decodes. */
int moe_vocab_store(struct moe_tokenizer *tok, const char *name,
                    const struct moe_vocab_entry *entries, struct moe_err *err);

/* A unigram model's score as huggingface/tokenizers has it after reading it from a file. Its parser
 * (serde_json without "float_roundtrip") rounds the digits to a double, then their quotient by a
 * power of ten, and so misses some numbers by one in the last place. That decides between ways
 * through a text that are equally good but for rounding, such as "l" and "ll" or "ll" and "l". */
double moe_vocab_score(double score);

/* Makes room for n merges, all zero. */
int moe_vocab_reserve_merges(struct moe_tokenizer *tok, const char *name, uint64_t n,
                             struct moe_err *err);
/* Finds the merge of two tokens, spelled as entries are; false if one of the three is not a token.
 */
bool moe_vocab_merge(const struct moe_tokenizer *tok, const char *left, uint64_t left_n,
                     const char *right, uint64_t right_n, struct moe_buf *scratch,
                     struct moe_bpe_merge *out);
/* The same for "LEFT RIGHT". */
bool moe_vocab_merge_line(const struct moe_tokenizer *tok, const char *line, uint64_t n,
                          struct moe_buf *scratch, struct moe_bpe_merge *out);
/* Fails because of merge i, for which one of the above returned false. */
int moe_vocab_no_merge(const char *name, uint64_t i, const struct moe_buf *scratch,
                       struct moe_err *err);

#endif
