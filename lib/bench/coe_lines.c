#include "bench/coe_lines.h"

#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "lines/lines_input.h"

enum { MAX_FILE_BYTES = 1 << 30 };

static int read_line(struct moe_request **q, const char *path, uint64_t number, const char *text,
                     uint64_t n, struct moe_err *err)
{
    struct moe_err why;
    int status = lines_read_request(q, text, n, &why);
    return status == MOE_OK
               ? MOE_OK
               : moe_fail(err, status, "%s: line %" PRIu64 ": %s", path, number, why.text);
}

int moe_coe_each_sample(const char *path,
                        int (*fn)(void *ctx, uint64_t line, struct moe_request **request,
                                  struct moe_err *err),
                        void *ctx, const struct moe_progress *progress, struct moe_err *err)
{
    struct moe_buf text = {0};
    uint64_t number = 0, found = 0;
    int status = moe_file_read_all(path, MAX_FILE_BYTES, &text, err);
    const char *begin = (const char *)text.data, *at = begin, *end = begin + text.size;
    while (status == MOE_OK && at < end) {
        struct moe_request *q = NULL;
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        uint64_t n = (uint64_t)((newline ? newline : end) - at);
        number++;
        if (strspn(at, " \t\r") < n) {
            found++;
            status = read_line(&q, path, number, at, n, err);
            if (status == MOE_OK)
                status = fn(ctx, number, &q, err);
            moe_request_free(q);
        }
        at = newline ? newline + 1 : end;
        moe_progress_report(progress, "sample requests", (uint64_t)(at - begin), text.size);
        if (status == MOE_OK && moe_progress_stopped(progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    moe_buf_release(&text);
    return status == MOE_OK && found == 0
               ? moe_fail(err, MOE_ERR_FORMAT, "%s: there are no requests", path)
               : status;
}
