/*
 * Vocabulary: a tokenizer's tokens in the order of their bytes, each with the number of first bytes
 * it shares with the one before: a trie without nodes. It leaves out special tokens, but for marks,
 * and those without bytes. Immutable; borrows its tokenizer.
 */
#ifndef MOE_GRAMMAR_CONSTRAINT_H
#define MOE_GRAMMAR_CONSTRAINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

struct moe_vocabulary {
    const struct moe_tokenizer *tokenizer;
    uint32_t *ids;       /* [n] */
    uint16_t *shared;    /* [n] */
    uint32_t n, longest; /* bytes of the longest token */
    uint32_t n_logits;   /* the model's: all ids lie below, also the tokenizer's */
};

/* n_logits: the model's; tokens of the tokenizer beyond it are left out. marks: special tokens that
 * answers show (engine/answer.h), NULL: none. */
int moe_vocabulary_new(struct moe_vocabulary **out, const struct moe_tokenizer *tokenizer,
                       uint32_t n_logits, const struct moe_ids *marks, struct moe_err *err);
void moe_vocabulary_free(struct moe_vocabulary *v); /* NULL is fine */
/* Memory of a vocabulary, also while it is built. */
uint64_t moe_vocabulary_bytes(uint32_t n_logits);

/*
 * Constraint: holds one answer to a grammar. It tracks where the answer is and which tokens may
 * come next: its own thread finds that out while the model computes their logits, and results are
 * kept. Used by one thread, beside its own.
 */

struct moe_constraint;

/* Borrows both. */
int moe_constraint_new(struct moe_constraint **out, const struct moe_grammar *g,
                       const struct moe_vocabulary *v, struct moe_err *err);
void moe_constraint_free(struct moe_constraint *c);
/* Upper bound of a constraint's memory, without what it borrows. */
uint64_t moe_constraint_bytes(uint32_t n_logits);

/* Begins another answer. */
void moe_constraint_restart(struct moe_constraint *c);
/* Begins to find out which tokens may come next. begins: the answer has not begun, and its text
 * starts anew (moe_tokenizer_said). ends(ctx, id): tokens that end an answer, allowed only where it
 * may end; called now. */
void moe_constraint_prepare(struct moe_constraint *c, bool begins,
                            bool (*ends)(const void *ctx, uint32_t id), const void *ctx);

struct moe_allowed {
    const uint64_t *bits; /* one bit per id: bit id % 64 of word id / 64 */
    uint64_t n;           /* allowed tokens; 0: none fits */
    bool may_end;         /* the answer may end here */
};
/* Waits until the tokens are known. `out` is valid until the next call. MOE_ERR_LIMIT: the grammar
 * leaves too many ways open. */
int moe_constraint_allowed(struct moe_constraint *c, struct moe_allowed *out, struct moe_err *err);

/* Continues the answer with these bytes of an allowed token, and begins to find out what may
 * follow. MOE_ERR_USAGE: they do not fit; MOE_ERR_LIMIT as above. */
int moe_constraint_take(struct moe_constraint *c, const uint8_t *bytes, uint64_t n,
                        struct moe_err *err);
/* Whether the answer may go on with these bytes. */
bool moe_constraint_fits(struct moe_constraint *c, const uint8_t *bytes, uint64_t n);
/* Whether the answer is complete: nothing can follow. */
bool moe_constraint_is_complete(const struct moe_constraint *c);

/* What it did since the last question. */
struct moe_constraint_figures {
    uint64_t tokens; /* tokens for which allowed ones were asked */
    uint64_t masks;  /* new masks among these */
    double seconds;  /* finding them */
    double waited;   /* by callers */
};
struct moe_constraint_figures moe_constraint_count(struct moe_constraint *c);

#endif
