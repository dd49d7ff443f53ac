#define _POSIX_C_SOURCE 200809L /* ftruncate */
#include "lines/lines_output.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/text.h"
#include "fmt/json_scan.h"

enum { PIECE = 256 << 10 };

/* ---- What stands there ---- */

static uint32_t mark_of(const char *id, uint64_t n)
{
    uint32_t mark = (uint32_t)moe_hash64(id, n);
    return mark ? mark : 1;
}

static const char none[] = "null"; /* the id of a request without one */

static int set_mark(struct lines_output *out, uint64_t line, uint32_t mark, struct moe_err *err)
{
    if (line >= out->n_marks) {
        uint64_t n = line < 512 ? 1024 : 2 * line;
        uint32_t *marks = realloc(out->marks, n * sizeof *marks);
        if (!marks)
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory: which requests are served");
        memset(marks + out->n_marks, 0, (n - out->n_marks) * sizeof *marks);
        out->marks = marks;
        out->n_marks = n;
    }
    out->marks[line] = mark;
    return MOE_OK;
}

/* Line `at` of the output, n bytes. */
static int read_result(struct lines_output *out, const char *text, uint64_t n, uint64_t at,
                       struct moe_err *err)
{
    struct moe_json_scan s;
    struct moe_buf key = {0}, id = {0};
    uint64_t line = 0, n_prefix = strlen(LINES_RESULT_ID);
    uint32_t mark = mark_of(none, strlen(none));
    moe_json_scan_begin(&s, "", text, n, false, NULL);
    if (moe_json_scan_peek(&s) == MOE_JSON_OBJECT)
        moe_json_scan_enter(&s);
    while (moe_json_scan_next(&s, &key)) {
        const char *name = (const char *)key.data;
        if (strcmp(name, "id") == 0 && moe_json_scan_peek(&s) == MOE_JSON_TEXT) {
            moe_json_scan_text(&s, &id);
            if (s.status == MOE_OK && strncmp((char *)id.data, LINES_RESULT_ID, n_prefix) == 0)
                moe_parse_u64((char *)id.data + n_prefix, &line);
        } else if (strcmp(name, "custom_id") == 0) {
            uint64_t length;
            const char *value = moe_json_scan_raw(&s, &length);
            if (s.status == MOE_OK)
                mark = mark_of(value, length);
        } else {
            moe_json_scan_skip(&s);
        }
    }
    moe_buf_release(&key);
    moe_buf_release(&id);
    if (s.status == MOE_ERR_MEMORY)
        return moe_fail(err, s.status, "%s: out of memory", out->options->output);
    if (moe_json_scan_end(&s) != MOE_OK || line == 0 || line > MOE_LINES_MAX_LINES)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: line %" PRIu64 " is not a result of requests, so it is not gone on "
                        "with",
                        out->options->output, at);
    return set_mark(out, line, mark, err);
}

/* Reads all whole lines; out->size is where the last ends. */
static int read_results(struct lines_output *out, struct moe_err *err)
{
    struct moe_buf held = {0};
    struct stat st;
    uint64_t at = 0, n_lines = 0, size = fstat(out->file.fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    int status = MOE_OK;
    while (at < size && status == MOE_OK) {
        uint64_t n = size - at < PIECE ? size - at : PIECE, looked = held.size, start = 0;
        uint8_t *to = moe_buf_reserve(&held, n);
        if (!to) {
            status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", out->options->output);
            break;
        }
        status = moe_file_pread(out->file.fd, out->options->output, to, n, at, err);
        at += n;
        held.size += n;
        const uint8_t *end;
        while (status == MOE_OK &&
               (end = memchr(held.data + looked, '\n', held.size - looked)) != NULL) {
            uint64_t stop = (uint64_t)(end - held.data);
            status =
                read_result(out, (const char *)held.data + start, stop - start, ++n_lines, err);
            start = looked = stop + 1;
        }
        memmove(held.data, held.data + start, held.size - start);
        held.size -= start;
        out->size += start;
    }
    moe_buf_release(&held);
    return status;
}

/* ---- Opening ---- */

static int go_on(struct lines_output *out, struct moe_err *err)
{
    char text[128];
    int status = moe_outfile_continue(&out->file, out->options->output, err);
    if (status != MOE_OK)
        return status;
    status = read_results(out, err);
    if (status == MOE_OK && ftruncate(out->file.fd, (off_t)out->size) != 0)
        status = moe_fail(err, MOE_ERR_IO, "%s: cannot cut off what is unfinished: %s",
                          out->options->output, moe_errno_text(errno, text, sizeof text));
    return status;
}

int lines_output_open(struct lines_output *out, const struct moe_lines_options *options,
                      struct moe_err *err)
{
    const char *path = options->output;
    struct stat st;
    *out = (struct lines_output){.options = options, .file = {.fd = -1}};
    if (!path)
        return MOE_OK;
    bool there = stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
    int status;
    if (there && !options->resume)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: is there; --resume serves the requests that have no result in it",
                        path);
    if (there) {
        status = go_on(out, err);
    } else {
        status = moe_outfile_open(&out->file, path, err);
        if (status == MOE_OK)
            status = moe_outfile_publish(&out->file, err);
    }
    if (status != MOE_OK)
        lines_output_close(out, status, err);
    return status;
}

/* ---- Writing ---- */

int lines_output_has(const struct lines_output *out, uint64_t line, const char *id, bool *has,
                     struct moe_err *err)
{
    const char *text = id ? id : none;
    uint32_t mark = line < out->n_marks ? out->marks[line] : 0;
    *has = mark != 0;
    if (mark && mark != mark_of(text, strlen(text)))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: has a result of line %" PRIu64 " that is of another custom_id than "
                        "%.200s: it was made from other requests",
                        out->options->output, line, text);
    return MOE_OK;
}

int lines_output_put(struct lines_output *out, const struct moe_buf *line, struct moe_err *err)
{
    const struct moe_lines_options *o = out->options;
    if (line->failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: a result");
    if (!o->output)
        return o->put(o->ctx, line->data, line->size, err);
    int status = moe_outfile_write(&out->file, line->data, line->size, out->size, err);
    out->size += line->size;
    return status;
}

int lines_output_close(struct lines_output *out, int status, struct moe_err *err)
{
    if (out->file.fd >= 0 && status == MOE_OK)
        status = moe_outfile_sync(&out->file, err);
    if (out->options->output)
        moe_outfile_abort(&out->file); /* it has its name, and stays */
    free(out->marks);
    out->marks = NULL;
    return status;
}
