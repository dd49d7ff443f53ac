#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/bytes.h"
#include "text/tokenizer_steps.h"

/* Every character below U+0300 is composed already; those begin with bytes below 0xcc. */
static bool is_surely_composed(const char *text, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if ((uint8_t)text[i] >= 0xcc)
            return false;
    }
    return true;
}

static int compose(const char *text, uint64_t n, struct moe_buf *out, struct moe_err *err)
{
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t size = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n,
                                         &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (size < 0)
        return moe_fail(err, size == UTF8PROC_ERROR_NOMEM ? MOE_ERR_MEMORY : MOE_ERR_LIMIT,
                        "a text of %llu bytes cannot be brought to NFC: %s", (unsigned long long)n,
                        utf8proc_errmsg(size));
    moe_buf_append(out, composed, (uint64_t)size);
    free(composed);
    return MOE_OK;
}

static void replace(const struct moe_step *step, const char *text, uint64_t n, struct moe_buf *out)
{
    uint64_t size = step->text.size;
    for (uint64_t at = 0; at < n;) {
        const char *found = memchr(text + at, step->text.data[0], n - at);
        uint64_t end = found ? (uint64_t)(found - text) : n;
        moe_buf_append(out, text + at, end - at);
        at = end;
        if (!found)
            break;
        if (size <= n - at && memcmp(found, step->text.data, size) == 0) {
            moe_buf_append(out, step->other.data, step->other.size);
            at += size;
        } else {
            moe_buf_u8(out, (uint8_t)text[at++]);
        }
    }
}

uint64_t moe_steps_memory(const struct moe_steps *steps, uint64_t *n)
{
    enum {
        DECOMPOSED = 8,
        COMPOSED = 3
    }; /* bytes of a byte: UTF-32 of a canonical decomposition */
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < steps->n; i++) {
        const struct moe_step *step = &steps->steps[i];
        switch (step->kind) {
        case MOE_STEP_NFC:
            bytes += DECOMPOSED * *n;
            *n *= COMPOSED;
            break;
        case MOE_STEP_REPLACE: /* the text replaced is not empty */
            if (step->other.size > step->text.size)
                *n = (*n / step->text.size + 1) * step->other.size;
            break;
        case MOE_STEP_METASPACE:
            *n = (*n + 1) * strlen(MOE_METASPACE);
            break;
        case MOE_STEP_PREPEND:
        case MOE_STEP_PREFIX_SPACE:
            *n += step->text.size + 1;
            break;
        default:
            continue; /* pieces lie in the text */
        }
        bytes += moe_buf_room(*n);
    }
    return bytes;
}

int moe_normalize(const struct moe_steps *steps, const char *text, uint64_t n, struct moe_buf *out,
                  const char **result, uint64_t *result_n, struct moe_err *err)
{
    struct moe_buf next = {0};
    int status = MOE_OK;
    *result = text;
    *result_n = n;
    for (uint32_t i = 0; i < steps->n && status == MOE_OK && *result_n; i++) {
        const struct moe_step *step = &steps->steps[i];
        moe_buf_clear(&next);
        if (step->kind == MOE_STEP_NFC) {
            if (is_surely_composed(*result, *result_n))
                continue;
            status = compose(*result, *result_n, &next, err);
        } else if (step->kind == MOE_STEP_PREPEND) {
            moe_buf_append(&next, step->text.data, step->text.size);
            moe_buf_append(&next, *result, *result_n);
        } else {
            replace(step, *result, *result_n, &next);
        }
        if (next.failed)
            status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
        struct moe_buf done = *out;
        *out = next;
        next = done;
        *result = (const char *)out->data;
        *result_n = out->size;
    }
    moe_buf_release(&next);
    return status;
}
