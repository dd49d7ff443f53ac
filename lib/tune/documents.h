/*
 * Texts as documents, separated by lines that hold only the end-of-text token's text. Each is
 * tokenized by itself (its trailing newline before the separator belongs to the separator) and
 * prefixed with the token that begins a text where the tokenizer adds one, else with end-of-text.
 * One of more than max_tokens is cut into windows of that length, the last of them shorter: each is
 * a document of its own, with the prefix before it.
 *
 * Or as pairs of a source and a target: lines of JSON, {"source": TEXT, "target": TEXT}, for models
 * with an encoder. Each text is tokenized as a whole, special tokens that it names being these (T5:
 * <extra_id_0>), with the tokens that end it (</s>), and cut to max_tokens; a target is prefixed
 * with the decoder's first token. Members "source_language" and "target_language" name the tokens
 * that stand in place of those that the tokenizer puts before both (NLLB), null is none; others are
 * ignored.
 *
 * A file is read through a window, one document at a time is in memory, and of its ids only those
 * that are wanted: a text takes what its longest document takes, which a survey says beforehand.
 */
#ifndef MOE_TUNE_DOCUMENTS_H
#define MOE_TUNE_DOCUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "text/tokenizer.h"

/* What readers leave out. */
struct moe_left_out {
    uint64_t tokens, of; /* of all tokens, prefixes not counted */
    uint64_t documents;  /* that are not whole; of pairs, texts */
};

struct moe_documents {
    const struct moe_tokenizer *tokenizer;
    uint32_t max_tokens; /* at least 2: of a document or window, the prefix included; of a pair, per
                            source and per target */
    uint32_t max_windows;   /* of a document, the first ones: what follows is left out; 0: all */
    const char *separator;  /* of documents, in place of the end-of-text token's text; NULL: that */
    bool pairs;             /* the files hold pairs: a document is a line that is not empty */
    uint32_t decoder_start; /* of pairs */
    uint32_t answer_start;  /* ... of no language, in place of the tokenizer's; 0: that one */
    const char *what;       /* being done, for the progress bar */
    const struct moe_progress *progress;
    struct moe_left_out *left_out; /* added to by what reads all of a file; NULL: not counted */
};

/* What texts take in memory. */
struct moe_documents_size {
    uint64_t n;         /* documents and windows that are not empty, at most */
    uint64_t most_ids;  /* at most, of all of these together */
    uint64_t longest;   /* bytes of the longest */
    uint64_t all_bytes; /* of all of them */
    uint64_t bytes;     /* to read any of them and encode it */
};

/* Looks at the documents of the files. One of more bytes than may_hold is not read whole: then
 * `bytes` is the most that such a document can take. */
int moe_documents_survey(const struct moe_documents *documents, const char *const *paths,
                         uint32_t n_paths, uint64_t may_hold, struct moe_documents_size *out,
                         struct moe_err *err);
/* Counts the documents and windows that moe_documents_each or moe_pairs_each would give;
 * *fingerprint is of the documents' bytes, in order: 0 where there are none. */
int moe_documents_count(const struct moe_documents *documents, const char *path, uint64_t *n,
                        uint64_t *fingerprint, struct moe_err *err);
/* Calls fn with the ids of each document or window of the file, in order, until one fails; empty
 * documents are left out. MOE_ERR_INTERRUPTED when the user asked to stop, between two of them. */
int moe_documents_each(const struct moe_documents *documents, const char *path,
                       int (*fn)(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err),
                       void *ctx, struct moe_err *err);

/* A pair: the source's ids, and the target's from the decoder's first token on, which is no part of
 * its text. Borrowed while it is looked at. */
struct moe_pair {
    const uint32_t *source, *target;
    uint32_t n_source, n_target; /* at least 1 and 2 */
    const char *target_text;     /* UTF-8 with a NUL behind it, not cut */
};

/* The same for files of pairs. MOE_ERR_FORMAT: a line is no such object; its number is said. */
int moe_pairs_each(const struct moe_documents *documents, const char *path,
                   int (*fn)(void *ctx, const struct moe_pair *pair, struct moe_err *err),
                   void *ctx, struct moe_err *err);

/*
 * Texts, or pairs, as token ids in memory, document by document or window by window, to be run more
 * than once. Of a pair the document is the target, from the decoder's first token on.
 */

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

/* Counts what moe_corpus_read would read: *out gets only the numbers. *bytes: to keep it; *reading:
 * to read it, beside these. For a text longer than may_hold (engine.h) the numbers are upper
 * bounds. */
int moe_corpus_survey(struct moe_corpus *out, uint64_t *bytes, uint64_t *reading,
                      const struct moe_documents *documents, const char *const *paths,
                      uint32_t n_paths, uint64_t may_hold, struct moe_err *err);
/* Documents of at least two tokens, in the order of the files. documents->what does not matter.
 * Errors of reading; MOE_ERR_FORMAT: a file with nothing to predict. *out is the caller's to free.
 */
int moe_corpus_read(struct moe_corpus **out, const struct moe_documents *documents,
                    const char *const *paths, uint32_t n_paths, struct moe_err *err);
/* Keeps documents at even distances, with at most max_tokens together; not for pairs. The texts'
 * own figures (struct moe_corpus_text) stay as they were read. */
void moe_corpus_thin_out(struct moe_corpus *corpus, uint64_t most_tokens);
void moe_corpus_free(struct moe_corpus *corpus); /* NULL is fine */

#endif
