/*
 * Structure: whether what a model writes still closes what it opens. Low bitwidths can leave nats
 * per token fine and break brackets, quotes and final answers.
 *
 * A document's first tokens are the prompt; it is continued greedily until the end-of-text token or
 * a limit; document and continuation together are then judged as text.
 */
#ifndef MOE_STUDY_STRUCTURE_H
#define MOE_STUDY_STRUCTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "record/map.h"
#include "run/session.h"
#include "study/corpus.h"

/*
 * What a text is like as it stands, prose or code alike. Pure. The rules, byte by byte from the
 * front:
 *
 *   - A straight double quote opens a string and the next one closes it, over line ends too; so do
 *     three of them, and three apostrophes. Within a string nothing else counts, and a backslash
 *     takes the next byte's meaning away.
 *   - A single apostrophe is no quote: in English it rarely is one.
 *   - Outside strings ( [ { open and ) ] } close; what closes must be the partner of the last one
 *     open. Deeper than 256 counts as never closed.
 *   - Outside strings the typographic quotes, U+201C and U+201D, open and close too, apart from the
 *     brackets.
 */
struct moe_closure {
    bool brackets; /* every bracket has its partner */
    bool quotes;   /* no string is left open; typographic quotes are balanced, none closing first */
    bool answer;   /* the last line that is not blank is "#### " and a number: digits with commas
                      and points after the first, perhaps a minus before it */
};
struct moe_closure moe_closure_of(const char *text, uint64_t n);

struct moe_structure_options {
    uint32_t documents;  /* of each text, the first ones; 0: all */
    double prompt_share; /* of a document's tokens, above 0 up to 1; at least 2 of them */
    uint32_t max_new;    /* tokens to write at most, at least 1 */
    const struct moe_progress *progress;
    /* A document (of the corpus) with its continuation, in the order in which they are done. May be
     * NULL. */
    void (*wrote)(void *ctx, uint32_t document, const char *text, uint64_t n, bool ended);
    void *ctx;
};

/* Continues documents of text number `text` of the corpus and counts, as many side by side as the
 * session has sequences: each comes out as it would alone (and as greedy generation writes it),
 * where the session's experts do not depend on the batch. They are at whatever precision its
 * provider gives, or its assigner says. out->experts is the caller's. answers is UINT32_MAX where
 * no document of the text has a final-answer line. ended: those that came to the end-of-text token
 * before max_new or the context's end. MOE_ERR_LIMIT: a prompt longer than the context. */
int moe_structure_measure(struct moe_session *s, const struct moe_corpus *corpus, uint32_t text,
                          const struct moe_structure_options *options,
                          struct moe_map_structure *out, struct moe_err *err);

/* The same counts of the documents as they are in the corpus, for comparison; ended: all. One that
 * the corpus cut short may leave open what the whole one closes. */
int moe_structure_originals(const struct moe_tokenizer *tokenizer, const struct moe_corpus *corpus,
                            uint32_t text, uint32_t documents, struct moe_map_structure *out,
                            struct moe_err *err);

#endif
