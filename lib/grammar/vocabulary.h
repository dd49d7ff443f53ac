/*
 * Vocabulary: a tokenizer's tokens in the order of their bytes, each with how many of its first
 * bytes the one before has too: what a trie would hold, without its nodes. Special tokens, and
 * those without bytes, are not in it. Immutable; borrows its tokenizer.
 */
#ifndef MOE_GRAMMAR_VOCABULARY_H
#define MOE_GRAMMAR_VOCABULARY_H

#include <stdint.h>

#include "base/err.h"
#include "text/tokenizer.h"

struct moe_vocabulary {
    const struct moe_tokenizer *tokenizer;
    uint32_t *ids;       /* [n] */
    uint16_t *shared;    /* [n] */
    uint32_t n, longest; /* bytes of the longest token */
    uint32_t n_logits;   /* of the model: ids are below, those of the tokenizer too */
};

/* n_logits: of the model, whose tokens those of the tokenizer beyond are not. */
int moe_vocabulary_new(struct moe_vocabulary **out, const struct moe_tokenizer *tokenizer,
                       uint32_t n_logits, struct moe_err *err);
void moe_vocabulary_free(struct moe_vocabulary *v); /* NULL is fine */
/* Memory of one, while it is made too. */
uint64_t moe_vocabulary_bytes(uint32_t n_logits);

#endif
