/*
 * Texts as token ids in memory, document by document (study/documents.h), to be run more than once.
 */
#ifndef MOE_STUDY_CORPUS_H
#define MOE_STUDY_CORPUS_H

#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "text/tokenizer.h"

struct moe_corpus_text {
    const char *path; /* borrowed from the caller */
    uint32_t first_document, n_documents;
    uint64_t n_predicted; /* tokens that are predicted: all but each document's first */
    uint64_t hash;        /* of its ids */
};

struct moe_corpus {
    uint32_t n_texts, n_documents;
    uint64_t n_tokens, n_predicted;
    uint32_t longest; /* tokens of a document */
    struct moe_corpus_text *texts;
    uint64_t *first; /* [n_documents + 1] of a document's ids */
    uint32_t *ids;
};

static inline uint32_t moe_corpus_length(const struct moe_corpus *c, uint32_t document)
{
    return (uint32_t)(c->first[document + 1] - c->first[document]);
}
/* Where a document's predictions begin among those of the whole corpus. */
static inline uint64_t moe_corpus_prediction(const struct moe_corpus *c, uint32_t document)
{
    return c->first[document] - document;
}

/* Counts what moe_corpus_read would read: *out gets the numbers alone. *bytes: to keep it;
 * *reading: to read it, beside these. Of a text that is longer than may_hold (engine.h) the numbers
 * are those that it has at most. */
int moe_corpus_survey(struct moe_corpus *out, uint64_t *bytes, uint64_t *reading,
                      const struct moe_tokenizer *tokenizer, const char *const *paths,
                      uint32_t n_paths, uint32_t max_tokens, uint64_t may_hold,
                      const struct moe_progress *progress, struct moe_err *err);
/* Documents of at least two tokens, each cut to max_tokens, in the order of the files. Errors of
 * reading; MOE_ERR_FORMAT: a file with nothing to predict. *out is the caller's to free. */
int moe_corpus_read(struct moe_corpus **out, const struct moe_tokenizer *tokenizer,
                    const char *const *paths, uint32_t n_paths, uint32_t max_tokens,
                    const struct moe_progress *progress, struct moe_err *err);
/* Keeps documents at even distances, as many as have at most so many tokens together. The texts'
 * own figures (struct moe_corpus_text) stay as they were read. */
void moe_corpus_thin_out(struct moe_corpus *corpus, uint64_t most_tokens);
void moe_corpus_free(struct moe_corpus *corpus); /* NULL is fine */

#endif
