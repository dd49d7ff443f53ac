#include "study/documents.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

/* The next line that holds only the separator, at or after `from`; *after: what follows it. */
static uint64_t find_separator(const char *text, uint64_t n, uint64_t from, const char *separator,
                               uint64_t *after)
{
    uint64_t length = strlen(separator);
    for (uint64_t line = from; line < n;) {
        const char *newline = memchr(text + line, '\n', n - line);
        uint64_t end = newline ? (uint64_t)(newline - text) : n;
        if (end - line == length && memcmp(text + line, separator, length) == 0) {
            *after = newline ? end + 1 : n;
            return line;
        }
        line = end + 1;
    }
    *after = n;
    return n;
}

/* A text being cut into documents. */
struct cutting {
    struct moe_buf file;
    char *separator;
    uint32_t eos;
    uint64_t after;      /* what is left */
    uint64_t begin, end; /* of the document at hand */
};

static void cutting_release(struct cutting *c)
{
    free(c->separator);
    moe_buf_release(&c->file);
}

static int cutting_open(struct cutting *c, const struct moe_documents *d, const char *path,
                        struct moe_err *err)
{
    int64_t eos = moe_tokenizer_separator(d->tokenizer);
    if (eos < 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the model has no end-of-text token to separate documents");
    uint32_t length = 0;
    const uint8_t *bytes = moe_tokenizer_bytes(d->tokenizer, (uint32_t)eos, &length);
    c->eos = (uint32_t)eos;
    int status = moe_file_read_all(path, MOE_MAX_TEXT_BYTES, &c->file, err);
    if (status == MOE_OK && !(c->separator = moe_strndup((const char *)bytes, length, err)))
        status = MOE_ERR_MEMORY;
    return status;
}

/* The next document that is not empty. */
static bool next_document(struct cutting *c)
{
    const char *text = (const char *)c->file.data;
    while (c->after < c->file.size) {
        c->begin = c->after;
        c->end = find_separator(text, c->file.size, c->begin, c->separator, &c->after);
        if (c->end > c->begin && text[c->end - 1] == '\n')
            c->end--;
        if (c->end > c->begin)
            return true;
    }
    return false;
}

int moe_documents_count(const struct moe_documents *d, const char *path, uint64_t *n,
                        uint64_t *fingerprint, struct moe_err *err)
{
    struct cutting c = {0};
    int status = cutting_open(&c, d, path, err);
    *n = *fingerprint = 0;
    while (status == MOE_OK && next_document(&c)) {
        *fingerprint = moe_hash64_chain(*fingerprint, c.file.data + c.begin, c.end - c.begin);
        ++*n;
        if (moe_progress_stopped(d->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    cutting_release(&c);
    return status;
}

int moe_documents_each(const struct moe_documents *d, const char *path,
                       int (*fn)(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err),
                       void *ctx, struct moe_err *err)
{
    struct cutting c = {0};
    struct moe_ids ids = {0};
    int status = cutting_open(&c, d, path, err);
    while (status == MOE_OK && next_document(&c)) {
        ids.n = 0;
        status = moe_ids_push(&ids, c.eos, err);
        if (status == MOE_OK)
            status = moe_tokenizer_encode(d->tokenizer, (const char *)c.file.data + c.begin,
                                          c.end - c.begin, false, &ids, err);
        if (status == MOE_OK)
            status = fn(ctx, ids.ids, ids.n < d->max_tokens ? ids.n : d->max_tokens, err);
        moe_progress_report(d->progress, d->what, c.after, c.file.size);
        if (status == MOE_OK && moe_progress_stopped(d->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    moe_ids_release(&ids);
    cutting_release(&c);
    return status;
}
