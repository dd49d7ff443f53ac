#include "study/documents.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
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

int moe_documents_each(const struct moe_documents *d, const char *path,
                       int (*fn)(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err),
                       void *ctx, struct moe_err *err)
{
    struct moe_buf file = {0};
    struct moe_ids ids = {0};
    char *separator = NULL;
    int64_t eos = moe_tokenizer_separator(d->tokenizer);
    if (eos < 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the model has no end-of-text token to separate documents");
    uint32_t length = 0;
    const uint8_t *bytes = moe_tokenizer_bytes(d->tokenizer, (uint32_t)eos, &length);
    int status = moe_file_read_all(path, MOE_MAX_TEXT_BYTES, &file, err);
    if (status == MOE_OK && !(separator = moe_strndup((const char *)bytes, length, err)))
        status = MOE_ERR_MEMORY;
    const char *text = (const char *)file.data;
    for (uint64_t begin = 0, after; begin < file.size && status == MOE_OK; begin = after) {
        uint64_t end = find_separator(text, file.size, begin, separator, &after);
        if (end > begin && text[end - 1] == '\n')
            end--;
        if (end == begin)
            continue;
        ids.n = 0;
        status = moe_ids_push(&ids, (uint32_t)eos, err);
        if (status == MOE_OK)
            status =
                moe_tokenizer_encode(d->tokenizer, text + begin, end - begin, false, &ids, err);
        if (status == MOE_OK)
            status = fn(ctx, ids.ids, ids.n < d->max_tokens ? ids.n : d->max_tokens, err);
        moe_progress_report(d->progress, d->what, after, file.size);
        if (status == MOE_OK && moe_progress_stopped(d->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    free(separator);
    moe_ids_release(&ids);
    moe_buf_release(&file);
    return status;
}
