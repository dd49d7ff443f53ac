/* Lines: requests read from a file or pipe, results written to one. */
#define _POSIX_C_SOURCE 200809L /* poll */
#define _POSIX_C_SOURCE 200809L /* ftruncate */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/json.h"
#include "fmt/json_scan.h"
#include "serve/lines.h"

enum { READ_PIECE = 64 << 10, INPUT_LOOK_MS = 100 /* between checks of the stop flag */ };

/* ---- Lines of a file or pipe ---- */

int lines_input_open(struct lines_input *in, const char *path, struct moe_err *err)
{
    uint64_t size;
    *in = (struct lines_input){.name = path, .fd = STDIN_FILENO};
    if (!moe_buf_reserve(&in->held, READ_PIECE))
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: its lines", path);
    if (strcmp(path, "-") == 0) {
        in->name = "standard input";
        return MOE_OK;
    }
    struct stat st;
    bool special = stat(path, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode));
    in->fd = special ? open(path, O_RDONLY | O_CLOEXEC) : moe_file_open(path, &size, err);
    if (special && in->fd < 0) {
        char text[128];
        return moe_fail(err, MOE_ERR_IO, "%s: cannot open: %s", path,
                        moe_errno_text(errno, text, sizeof text));
    }
    return in->fd < 0 ? in->fd : MOE_OK;
}

void lines_input_close(struct lines_input *in)
{
    if (in->fd > STDIN_FILENO)
        close(in->fd);
    moe_buf_release(&in->held);
}

/* Waits for bytes and reads some; sets `ended` at the end. */
static int take_more(struct lines_input *in, const volatile sig_atomic_t *stop, struct moe_err *err)
{
    struct pollfd file = {.fd = in->fd, .events = POLLIN};
    char text[128];
    memmove(in->held.data, in->held.data + in->start, in->held.size - in->start);
    in->held.size -= in->start;
    in->start = 0;
    uint8_t *to = moe_buf_reserve(&in->held, READ_PIECE);
    if (!to)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: a line", in->name);
    for (;;) {
        if (stop && *stop)
            return moe_fail(err, MOE_ERR_INTERRUPTED, "interrupted");
        int ready = poll(&file, 1, INPUT_LOOK_MS);
        if (ready == 0 || (ready < 0 && errno == EINTR))
            continue;
        ssize_t n = ready < 0 ? -1 : read(in->fd, to, READ_PIECE);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return moe_fail(err, MOE_ERR_IO, "%s: cannot read: %s", in->name,
                            moe_errno_text(errno, text, sizeof text));
        in->ended = n == 0;
        in->held.size += (uint64_t)n;
        return MOE_OK;
    }
}

static int hand_out(struct lines_input *in, uint64_t n, uint64_t with_end, const char **line,
                    uint64_t *length)
{
    static const char mark[] = "\xef\xbb\xbf"; /* some editors begin a text with it */
    const char *text = (const char *)in->held.data + in->start;
    bool too_long = in->passing || n > MOE_LINES_MAX_BYTES;
    in->start += with_end;
    in->passing = false;
    if (in->n_lines++ == 0 && n >= 3 && memcmp(text, mark, 3) == 0) {
        text += 3;
        n -= 3;
    }
    *line = too_long ? "" : text;
    *length = too_long ? 0 : n;
    return too_long ? LINES_INPUT_TOO_LONG : LINES_INPUT_LINE;
}

int lines_input_next(struct lines_input *in, const volatile sig_atomic_t *stop, const char **line,
                     uint64_t *n, struct moe_err *err)
{
    uint64_t looked = 0;
    for (;;) {
        uint64_t left = in->held.size - in->start;
        const uint8_t *from = in->held.data + in->start;
        const uint8_t *end = left > looked ? memchr(from + looked, '\n', left - looked) : NULL;
        if (end)
            return hand_out(in, (uint64_t)(end - from), (uint64_t)(end - from) + 1, line, n);
        if (in->ended && (left || in->passing))
            return hand_out(in, left, left, line, n);
        if (in->ended)
            return LINES_INPUT_END;
        looked = left;
        if (left > MOE_LINES_MAX_BYTES) { /* only its end still matters */
            in->passing = true;
            in->start = in->held.size;
            looked = 0;
        }
        MOE_TRY(take_more(in, stop, err));
    }
}

/* A short file that is read whole takes less than what may be held of a long one. */
uint64_t moe_lines_bytes(const char *input)
{
    struct stat st;
    uint64_t most = 16 << 20;
    if (stat(input, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size > most / 8)
        return most;
    return (1 << 20) + 7 * (uint64_t)st.st_size;
}

/* ---- A line's contents ---- */

int lines_read_id(char **id, const char *line, uint64_t n, struct moe_err *err)
{
    struct moe_json_scan s;
    struct moe_buf key = {0};
    bool own = false;
    int status = MOE_OK;
    *id = NULL;
    moe_json_scan_begin(&s, "", line, n, false, NULL);
    if (moe_json_scan_peek(&s) == MOE_JSON_OBJECT)
        moe_json_scan_enter(&s);
    while (status == MOE_OK && moe_json_scan_next(&s, &key)) {
        bool custom = strcmp((const char *)key.data, "custom_id") == 0;
        bool wanted = custom || (!own && strcmp((const char *)key.data, "id") == 0);
        enum moe_json_kind kind = moe_json_scan_peek(&s);
        uint64_t length;
        const char *value = moe_json_scan_raw(&s, &length);
        if (!wanted || s.status != MOE_OK || (kind != MOE_JSON_TEXT && kind != MOE_JSON_NUMBER))
            continue;
        own = custom;
        free(*id);
        if (!(*id = moe_strndup(value, length, err)))
            status = MOE_ERR_MEMORY;
    }
    moe_buf_release(&key);
    if (s.status == MOE_ERR_MEMORY)
        status = moe_fail(err, s.status, "out of memory: a request's id");
    return status;
}

static int refuse_id(const json_t *line, struct moe_err *err)
{
    static const char *const keys[] = {"custom_id", "id"};
    for (int i = 0; i < 2; i++) {
        const json_t *id = json_object_get(line, keys[i]);
        if (id && !json_is_null(id) && !json_is_string(id) && !json_is_integer(id) &&
            !moe_json_digits(id))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "the request: '%s' is neither a text nor a whole number", keys[i]);
    }
    return MOE_OK;
}

/* Finds a body's API: by the line's url, else by its keys. */
static int find_kind(const json_t *line, const json_t *body, enum moe_request_kind *kind,
                     struct moe_err *err)
{
    static const char *const urls[] = {
        [MOE_REQUEST_CHAT] = "/v1/chat/completions",
        [MOE_REQUEST_TEXT] = "/v1/completions",
    };
    const json_t *url = line != body ? json_object_get(line, "url") : NULL;
    const char *text = json_string_value(url);
    *kind = json_object_get(body, "messages") ? MOE_REQUEST_CHAT : MOE_REQUEST_TEXT;
    if (!url || json_is_null(url)) {
        if (json_object_get(body, "messages") || json_object_get(body, "prompt"))
            return MOE_OK;
        return moe_fail(err, MOE_ERR_FORMAT, "the request: neither 'messages' nor 'prompt'");
    }
    for (int i = 0; text && i < 2; i++)
        if (strcmp(text, urls[i]) == 0) {
            *kind = (enum moe_request_kind)i;
            return MOE_OK;
        }
    return moe_fail(err, MOE_ERR_FORMAT, "the request: 'url' is neither %s nor %s",
                    urls[MOE_REQUEST_CHAT], urls[MOE_REQUEST_TEXT]);
}

static int read_tree(struct moe_request **out, const json_t *line, struct moe_allowance *allowance,
                     struct moe_err *err)
{
    const json_t *body = json_object_get(line, "body"), *method = json_object_get(line, "method");
    enum moe_request_kind kind = MOE_REQUEST_CHAT;
    if (!json_is_object(line))
        return moe_fail(err, MOE_ERR_FORMAT, "the request is not a JSON object");
    MOE_TRY(refuse_id(line, err));
    if (!body)
        body = line;
    else if (method && !json_is_null(method) &&
             !(json_is_string(method) && strcmp(json_string_value(method), "POST") == 0))
        return moe_fail(err, MOE_ERR_FORMAT, "the request: 'method' is not POST");
    if (!json_is_object(body))
        return moe_fail(err, MOE_ERR_FORMAT, "the request: 'body' is not an object");
    MOE_TRY(find_kind(line, body, &kind, err));
    return moe_request_read(out, kind, body, allowance, err);
}

int lines_read_request(struct moe_request **out, const char *line, uint64_t n,
                       struct moe_allowance *allowance, struct moe_err *err)
{
    struct json_t *tree;
    *out = NULL;
    int status = moe_json_parse(&tree, "the request", line, n, MOE_REQUEST_MEMORY, err);
    if (status == MOE_OK)
        status = read_tree(out, tree, allowance, err);
    moe_json_free(tree);
    if (status != MOE_OK)
        return status;
    (*out)->stream = (*out)->stream_usage = false;
    status = lines_read_id(&(*out)->id, line, n, err);
    if (status != MOE_OK) {
        moe_request_free(*out);
        *out = NULL;
    }
    return status;
}

/* ---- Output ---- */

enum { WRITE_PIECE = 256 << 10 };

/* ---- Existing results ---- */

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

/* Reads line `at` of the output, n bytes. */
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
                        "%s: line %" PRIu64
                        " is not a result of requests, so the file is not continued",
                        out->options->output, at);
    return set_mark(out, line, mark, err);
}

/* Reads all whole lines; out->size becomes the end of the last. */
static int read_results(struct lines_output *out, struct moe_err *err)
{
    struct moe_buf held = {0};
    struct stat st;
    uint64_t at = 0, n_lines = 0, size = fstat(out->file.fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    int status = MOE_OK;
    while (at < size && status == MOE_OK) {
        uint64_t n = size - at < WRITE_PIECE ? size - at : WRITE_PIECE, looked = held.size,
                 start = 0;
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

static int resume_output(struct lines_output *out, struct moe_err *err)
{
    char text[128];
    MOE_TRY(moe_outfile_continue(&out->file, out->options->output, err));
    MOE_TRY(read_results(out, err));
    if (ftruncate(out->file.fd, (off_t)out->size) != 0)
        return moe_fail(err, MOE_ERR_IO, "%s: cannot cut off the unfinished line: %s",
                        out->options->output, moe_errno_text(errno, text, sizeof text));
    return MOE_OK;
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
                        "%s: exists; --resume serves the requests that have no result in it", path);
    if (there) {
        status = resume_output(out, err);
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
                        "%s: has a result of line %" PRIu64 " with another custom_id than "
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
    MOE_TRY(moe_outfile_write(&out->file, line->data, line->size, out->size, err));
    out->size += line->size;
    return MOE_OK;
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
