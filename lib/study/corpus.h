/*
 * Texts, or pairs, as token ids in memory, document by document or window by window
 * (study/documents.h), to be run more than once. Of a pair the document is the target, from the
 * decoder's first token on.
 */
#ifndef MOE_STUDY_CORPUS_H
#define MOE_STUDY_CORPUS_H

#include <stdint.h>

#include "base/err.h"
#include "study/documents.h"

struct moe_corpus_text {
    const char *path; /* borrowed from the caller */
    uint32_t first_document, n_documents;
    uint64_t n_predicted; /* tokens that are predicted: all but each document's first */
    uint64_t hash;        /* of its ids, those of sources included */
};

/* What a pair has beside its target's ids: where it begins in the corpus. */
struct moe_corpus_pair {
    uint64_t source; /* in source_ids */
    uint64_t text;   /* in target_text */
};

struct moe_corpus {
    uint32_t n_texts, n_documents;
    uint64_t n_tokens, n_predicted;
    uint32_t longest; /* tokens of a document */
    struct moe_left_out left_out;
    struct moe_corpus_text *texts;
    uint64_t *first; /* [n_documents + 1] of a document's ids */
    uint32_t *ids;
    /* Of pairs; else 0 and NULL. */
    uint64_t n_source_tokens, n_text_bytes;
    uint32_t longest_source;       /* tokens */
    struct moe_corpus_pair *pairs; /* [n_documents + 1] */
    uint32_t *source_ids;
    char *target_text; /* of all, a NUL behind each */
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

/* Tokens of a document's source. */
static inline uint32_t moe_corpus_source(const struct moe_corpus *c, uint32_t document)
{
    return (uint32_t)(c->pairs[document + 1].source - c->pairs[document].source);
}

/* Counts what moe_corpus_read would read: *out gets the numbers alone. *bytes: to keep it;
 * *reading: to read it, beside these. Of a text that is longer than may_hold (engine.h) the numbers
 * are those that it has at most. */
int moe_corpus_survey(struct moe_corpus *out, uint64_t *bytes, uint64_t *reading,
                      const struct moe_documents *documents, const char *const *paths,
                      uint32_t n_paths, uint64_t may_hold, struct moe_err *err);
/* Documents of at least two tokens, in the order of the files. documents->what does not matter.
 * Errors of reading; MOE_ERR_FORMAT: a file with nothing to predict. *out is the caller's to free.
 */
int moe_corpus_read(struct moe_corpus **out, const struct moe_documents *documents,
                    const char *const *paths, uint32_t n_paths, struct moe_err *err);
/* Keeps documents at even distances, as many as have at most so many tokens together; not of pairs.
 * The texts' own figures (struct moe_corpus_text) stay as they were read. */
void moe_corpus_thin_out(struct moe_corpus *corpus, uint64_t most_tokens);
void moe_corpus_free(struct moe_corpus *corpus); /* NULL is fine */

#endif
