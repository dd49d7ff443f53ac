#include "study/corpus.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "study/documents.h"

enum { ROOM = 64 };

/* A corpus that grows. */
struct reading {
    struct moe_corpus *corpus;
    uint64_t ids_room, documents_room;
};

static int grow(void **array, uint64_t *room, uint64_t needed, uint64_t item, struct moe_err *err)
{
    if (needed <= *room)
        return MOE_OK;
    uint64_t wanted = needed + needed / 2 + ROOM, bytes;
    void *more = moe_mul_u64(wanted, item, &bytes) ? realloc(*array, bytes) : NULL;
    if (!more)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the texts' tokens");
    *array = more;
    *room = wanted;
    return MOE_OK;
}

static int add_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    struct reading *r = ctx;
    struct moe_corpus *c = r->corpus;
    struct moe_corpus_text *text = &c->texts[c->n_texts - 1];
    if (n < 2)
        return MOE_OK; /* nothing to predict */
    if (c->n_documents == UINT32_MAX - 2)
        return moe_fail(err, MOE_ERR_USAGE, "%s: too many documents", text->path);
    int status = grow((void **)&c->ids, &r->ids_room, c->n_tokens + n, sizeof *c->ids, err);
    if (status == MOE_OK)
        status = grow((void **)&c->first, &r->documents_room, (uint64_t)c->n_documents + 2,
                      sizeof *c->first, err);
    if (status != MOE_OK)
        return status;
    memcpy(c->ids + c->n_tokens, ids, n * sizeof *ids);
    c->first[c->n_documents] = c->n_tokens;
    c->first[++c->n_documents] = c->n_tokens += n;
    c->n_predicted += n - 1;
    c->longest = n > c->longest ? (uint32_t)n : c->longest;
    text->n_documents++;
    text->n_predicted += n - 1;
    text->hash = moe_hash64_chain(text->hash, ids, n * sizeof *ids);
    return MOE_OK;
}

/* ---- Counting ---- */

static int count_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    (void)ids, (void)err;
    struct moe_corpus *c = ctx;
    if (n < 2)
        return MOE_OK;
    c->n_documents++;
    c->n_tokens += n;
    c->n_predicted += n - 1;
    c->longest = n > c->longest ? (uint32_t)n : c->longest;
    return MOE_OK;
}

int moe_corpus_survey(struct moe_corpus *out, uint64_t *bytes, uint64_t *reading,
                      const struct moe_tokenizer *tokenizer, const char *const *paths,
                      uint32_t n_paths, uint32_t max_tokens, uint64_t may_hold,
                      const struct moe_progress *progress, struct moe_err *err)
{
    const struct moe_documents documents = {
        .tokenizer = tokenizer,
        .max_tokens = max_tokens,
        .what = "counting tokens",
        .progress = progress,
    };
    struct moe_documents_size size;
    *out = (struct moe_corpus){.n_texts = n_paths};
    int status = moe_documents_survey(&documents, paths, n_paths, may_hold, &size, err);
    if (status == MOE_OK && size.bytes > may_hold) {
        out->n_documents = size.n < UINT32_MAX ? (uint32_t)size.n : UINT32_MAX;
        out->n_tokens = out->n_predicted = size.most_ids;
        out->longest = max_tokens;
    } else {
        for (uint32_t i = 0; i < n_paths && status == MOE_OK; i++)
            status = moe_documents_each(&documents, paths[i], count_document, out, err);
    }
    uint64_t room = out->n_tokens + out->n_tokens / 2 + ROOM; /* as grow() takes it */
    *reading = size.bytes;
    *bytes = room * sizeof *out->ids +
             (3 * ((uint64_t)out->n_documents + 2) / 2 + ROOM) * sizeof *out->first;
    return status;
}

int moe_corpus_read(struct moe_corpus **out, const struct moe_tokenizer *tokenizer,
                    const char *const *paths, uint32_t n_paths, uint32_t max_tokens,
                    const struct moe_progress *progress, struct moe_err *err)
{
    struct reading r = {.corpus = moe_alloc(1, sizeof *r.corpus, err)};
    const struct moe_documents documents = {
        .tokenizer = tokenizer,
        .max_tokens = max_tokens,
        .what = "reading texts",
        .progress = progress,
    };
    *out = NULL;
    if (!r.corpus)
        return MOE_ERR_MEMORY;
    r.corpus->texts = moe_alloc(n_paths, sizeof *r.corpus->texts, err);
    int status = r.corpus->texts ? MOE_OK : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n_paths && status == MOE_OK; i++) {
        struct moe_corpus_text *text = &r.corpus->texts[r.corpus->n_texts++];
        text->path = paths[i];
        text->first_document = r.corpus->n_documents;
        status = moe_documents_each(&documents, paths[i], add_document, &r, err);
        if (status == MOE_OK && text->n_documents == 0)
            status = moe_fail(err, MOE_ERR_FORMAT, "%s: has no text to predict", paths[i]);
    }
    if (status == MOE_OK)
        *out = r.corpus;
    else
        moe_corpus_free(r.corpus);
    return status;
}

void moe_corpus_thin_out(struct moe_corpus *c, uint64_t most_tokens)
{
    if (c->n_tokens <= most_tokens)
        return;
    uint64_t share = most_tokens, of = c->n_tokens, at = 0;
    uint32_t kept = 0, n = c->n_documents;
    c->longest = 0;
    for (uint64_t d = 0; d < n; d++) {
        uint32_t length = moe_corpus_length(c, (uint32_t)d);
        if ((d + 1) * share / of == d * share / of || at + length > most_tokens)
            continue;
        memmove(c->ids + at, c->ids + c->first[d], length * sizeof *c->ids);
        c->first[kept++] = at;
        at += length;
        c->longest = length > c->longest ? length : c->longest;
    }
    c->first[kept] = at;
    c->n_documents = kept;
    c->n_tokens = at;
    c->n_predicted = at - kept;
}

void moe_corpus_free(struct moe_corpus *corpus)
{
    if (!corpus)
        return;
    free(corpus->texts);
    free(corpus->first);
    free(corpus->ids);
    free(corpus);
}
