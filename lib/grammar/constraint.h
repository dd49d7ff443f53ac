/*
 * Vocabulary: a tokenizer's tokens in the order of their bytes, each with how many of its first
 * bytes the one before has too: what a trie would hold, without its nodes. Special tokens, and
 * those without bytes, are not in it. Immutable; borrows its tokenizer.
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
    uint32_t n_logits;   /* of the model: ids are below, those of the tokenizer too */
};

/* n_logits: of the model, whose tokens those of the tokenizer beyond are not. */
int moe_vocabulary_new(struct moe_vocabulary **out, const struct moe_tokenizer *tokenizer,
                       uint32_t n_logits, struct moe_err *err);
void moe_vocabulary_free(struct moe_vocabulary *v); /* NULL is fine */
/* Memory of one, while it is made too. */
uint64_t moe_vocabulary_bytes(uint32_t n_logits);

/*
 * Constraint: a grammar as it constrains one answer. It knows where the answer is, and which tokens
 * may come next: a thread of its own finds that out while the model computes their logits, and
 * what has been found out once is kept. Belongs to one thread, beside its own.
 */

struct moe_constraint;

/* Both are borrowed. NULL is fine for _free. */
int moe_constraint_new(struct moe_constraint **out, const struct moe_grammar *g,
                       const struct moe_vocabulary *v, struct moe_err *err);
void moe_constraint_free(struct moe_constraint *c);
/* Memory that one takes at most, without what it borrows. */
uint64_t moe_constraint_bytes(uint32_t n_logits);

/* Another answer begins. */
void moe_constraint_restart(struct moe_constraint *c);
/* Begins to find out which tokens may come next. begins: nothing of the answer was said, which is a
 * text by itself (moe_tokenizer_said). ends(ctx, id): those that end an answer, which may come
 * where it may end, and only there; asked now. */
void moe_constraint_prepare(struct moe_constraint *c, bool begins,
                            bool (*ends)(const void *ctx, uint32_t id), const void *ctx);

struct moe_allowed {
    const uint64_t *bits; /* of ids: bit id % 64 of word id / 64 */
    uint64_t n;           /* of them; 0: no token fits */
    bool may_end;         /* the answer may end here */
};
/* Waits until that is known. `out` is valid until the next call. MOE_ERR_LIMIT: the grammar leaves
 * too many ways open. */
int moe_constraint_allowed(struct moe_constraint *c, struct moe_allowed *out, struct moe_err *err);

/* The answer goes on with these bytes of an allowed token, and what may follow them is being found
 * out. MOE_ERR_USAGE: they do not fit; MOE_ERR_LIMIT as above. */
int moe_constraint_take(struct moe_constraint *c, const uint8_t *bytes, uint64_t n,
                        struct moe_err *err);
/* Whether the answer is whole, and nothing can follow. */
bool moe_constraint_is_complete(const struct moe_constraint *c);

/* What it did since it was asked last. */
struct moe_constraint_figures {
    uint64_t tokens; /* for which the allowed ones were asked */
    uint64_t masks;  /* of them: not known from an earlier one */
    double seconds;  /* finding them out */
    double waited;   /* of who asked */
};
struct moe_constraint_figures moe_constraint_count(struct moe_constraint *c);

#endif
