#include "bench/coe_lines.h"

#include <inttypes.h>
#include <string.h>

#include "lines/lines.h"
#include "lines/lines_input.h"

static int read_line(struct moe_request **q, const char *path, uint64_t number, int got,
                     const char *text, uint64_t n, struct moe_err *err)
{
    struct moe_err why;
    if (got == LINES_INPUT_TOO_LONG)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: line %" PRIu64 ": the request is longer than %d MiB", path, number,
                        MOE_LINES_MAX_BYTES >> 20);
    int status = lines_read_request(q, text, n, &why);
    return status == MOE_OK
               ? MOE_OK
               : moe_fail(err, status, "%s: line %" PRIu64 ": %s", path, number, why.text);
}

static bool is_blank(const char *line, uint64_t n)
{
    uint64_t i = 0;
    while (i < n && strchr(" \t\r", line[i]) && line[i])
        i++;
    return i == n;
}

int moe_coe_each_sample(const char *path,
                        int (*fn)(void *ctx, uint64_t line, struct moe_request **request,
                                  struct moe_err *err),
                        void *ctx, const struct moe_progress *progress, struct moe_err *err)
{
    struct lines_input in;
    const char *line;
    uint64_t n, found = 0;
    int got = LINES_INPUT_END, status = lines_input_open(&in, path, err);
    while (status == MOE_OK && (got = lines_input_next(&in, progress ? progress->stop : NULL, &line,
                                                       &n, err)) > LINES_INPUT_END) {
        struct moe_request *q = NULL;
        if (got == LINES_INPUT_LINE && is_blank(line, n))
            continue;
        found++;
        status = read_line(&q, path, in.n_lines, got, line, n, err);
        if (status == MOE_OK)
            status = fn(ctx, in.n_lines, &q, err);
        moe_request_free(q);
        moe_progress_report(progress, "sample requests", found, 0);
        if (status == MOE_OK && moe_progress_stopped(progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    lines_input_close(&in);
    status = status == MOE_OK && got < 0 ? got : status;
    return status == MOE_OK && found == 0
               ? moe_fail(err, MOE_ERR_FORMAT, "%s: there are no requests", path)
               : status;
}
