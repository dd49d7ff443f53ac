#include "study/corpus.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum { ROOM = 64 };

/* A corpus that grows. */
struct reading {
    struct moe_corpus *corpus;
    uint64_t ids_room, documents_room, pairs_room, sources_room, text_room;
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

/* The pair becomes document number n_documents. */
static int add_pair(void *ctx, const struct moe_pair *pair, struct moe_err *err)
{
    struct reading *r = ctx;
    struct moe_corpus *c = r->corpus;
    struct moe_corpus_text *text = &c->texts[c->n_texts - 1];
    uint64_t n = pair->n_source, n_bytes = strlen(pair->target_text) + 1;
    int status = grow((void **)&c->source_ids, &r->sources_room, c->n_source_tokens + n,
                      sizeof *c->source_ids, err);
    if (status == MOE_OK)
        status = grow((void **)&c->target_text, &r->text_room, c->n_text_bytes + n_bytes, 1, err);
    if (status == MOE_OK)
        status = grow((void **)&c->pairs, &r->pairs_room, (uint64_t)c->n_documents + 2,
                      sizeof *c->pairs, err);
    if (status != MOE_OK)
        return status;
    memcpy(c->source_ids + c->n_source_tokens, pair->source, n * sizeof *pair->source);
    memcpy(c->target_text + c->n_text_bytes, pair->target_text, n_bytes);
    c->pairs[c->n_documents] = (struct moe_corpus_pair){c->n_source_tokens, c->n_text_bytes};
    c->n_source_tokens += n;
    c->n_text_bytes += n_bytes;
    c->pairs[c->n_documents + 1] = (struct moe_corpus_pair){c->n_source_tokens, c->n_text_bytes};
    c->longest_source = n > c->longest_source ? (uint32_t)n : c->longest_source;
    text->hash = moe_hash64_chain(text->hash, pair->source, n * sizeof *pair->source);
    return add_document(r, pair->target, pair->n_target, err);
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

static int count_pair(void *ctx, const struct moe_pair *pair, struct moe_err *err)
{
    struct moe_corpus *c = ctx;
    c->n_source_tokens += pair->n_source;
    c->n_text_bytes += strlen(pair->target_text) + 1;
    c->longest_source = pair->n_source > c->longest_source ? pair->n_source : c->longest_source;
    return count_document(c, pair->target, pair->n_target, err);
}

/* What it has at most, without having been read. */
static void count_most(struct moe_corpus *c, const struct moe_documents *d,
                       const struct moe_documents_size *size)
{
    c->n_documents = size->n < UINT32_MAX ? (uint32_t)size->n : UINT32_MAX;
    c->n_tokens = c->n_predicted = size->most_ids;
    c->longest = d->max_tokens;
    c->n_source_tokens = d->pairs ? size->most_ids : 0;
    c->n_text_bytes = d->pairs ? size->all_bytes : 0;
    c->longest_source = d->pairs ? d->max_tokens : 0;
}

/* Bytes of a growing array of n items. */
static uint64_t room_bytes(uint64_t n, uint64_t item)
{
    return (n + n / 2 + ROOM) * item;
}

int moe_corpus_survey(struct moe_corpus *out, uint64_t *bytes, uint64_t *reading,
                      const struct moe_documents *how, const char *const *paths, uint32_t n_paths,
                      uint64_t may_hold, struct moe_err *err)
{
    struct moe_documents documents = *how;
    struct moe_documents_size size;
    documents.what = "counting tokens";
    *out = (struct moe_corpus){.n_texts = n_paths};
    int status = moe_documents_survey(&documents, paths, n_paths, may_hold, &size, err);
    bool counted = size.bytes <= may_hold;
    if (status == MOE_OK && !counted)
        count_most(out, &documents, &size);
    for (uint32_t i = 0; i < n_paths && status == MOE_OK && counted; i++)
        status = documents.pairs
                     ? moe_pairs_each(&documents, paths[i], count_pair, out, err)
                     : moe_documents_each(&documents, paths[i], count_document, out, err);
    *reading = size.bytes;
    *bytes = room_bytes(out->n_tokens, sizeof *out->ids) +
             room_bytes((uint64_t)out->n_documents + 2, sizeof *out->first);
    if (documents.pairs)
        *bytes += room_bytes(out->n_source_tokens, sizeof *out->source_ids) +
                  room_bytes(out->n_text_bytes, 1) +
                  room_bytes((uint64_t)out->n_documents + 2, sizeof *out->pairs);
    return status;
}

int moe_corpus_read(struct moe_corpus **out, const struct moe_documents *how,
                    const char *const *paths, uint32_t n_paths, struct moe_err *err)
{
    struct reading r = {.corpus = moe_alloc(1, sizeof *r.corpus, err)};
    struct moe_documents documents = *how;
    documents.what = documents.pairs ? "reading pairs" : "reading texts";
    *out = NULL;
    if (!r.corpus)
        return MOE_ERR_MEMORY;
    documents.left_out = &r.corpus->left_out;
    r.corpus->texts = moe_alloc(n_paths, sizeof *r.corpus->texts, err);
    int status = r.corpus->texts ? MOE_OK : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n_paths && status == MOE_OK; i++) {
        struct moe_corpus_text *text = &r.corpus->texts[r.corpus->n_texts++];
        text->path = paths[i];
        text->first_document = r.corpus->n_documents;
        status = documents.pairs ? moe_pairs_each(&documents, paths[i], add_pair, &r, err)
                                 : moe_documents_each(&documents, paths[i], add_document, &r, err);
        if (status == MOE_OK && text->n_documents == 0)
            status = moe_fail(err, MOE_ERR_FORMAT, "%s: has no %s to predict", paths[i],
                              documents.pairs ? "pair" : "text");
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
    free(corpus->pairs);
    free(corpus->source_ids);
    free(corpus->target_text);
    free(corpus);
}
