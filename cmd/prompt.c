#include "prompt.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "cli.h"

enum {
    MAX_PROMPT_BYTES = 256 << 20,
    PIECE = 65536,

    /* Of a prompt's text at most: itself, its turn, the conversation's rendering and the one before
     * it, in buffers that double. What one takes up to MARGIN is within every budget's margin. */
    COPIES = 8,
    MARGIN = 1 << 20,
    /* A prompt up to here is tokenized, and its tokens counted, whatever the context. */
    SHORT = 64 << 10,
};

static int too_long(const char *what, uint64_t n, uint64_t may_hold, struct moe_err *err)
{
    char size[32], room[32];
    if (n > MAX_PROMPT_BYTES)
        return moe_fail(err, MOE_ERR_USAGE, "%s: more than 256 MiB of text", what);
    return moe_fail(err, MOE_ERR_LIMIT,
                    "%s: %s of text or more do not fit the %s that the budget has for it (a larger "
                    "--memory holds more)",
                    what, moe_format_bytes(n, size), moe_format_bytes(may_hold, room));
}

static int read_stdin(uint64_t may_hold, struct moe_buf *out, struct moe_err *err)
{
    for (;;) {
        uint8_t *to = moe_buf_reserve(out, PIECE);
        if (!to)
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the text on standard input");
        ssize_t n = read(STDIN_FILENO, to, PIECE);
        if (n < 0 && cli_may_retry(STDIN_FILENO, false))
            continue;
        if (n < 0) {
            char text[128];
            return moe_fail(err, MOE_ERR_IO, "standard input: %s",
                            moe_errno_text(errno, text, sizeof text));
        }
        if (n == 0)
            return MOE_OK;
        out->size += (uint64_t)n;
        if (out->size > MAX_PROMPT_BYTES || out->size > may_hold)
            return too_long("standard input", out->size, may_hold, err);
    }
}

static int read_file(struct prompt *p, const char *path, uint64_t may_hold, struct moe_err *err)
{
    uint64_t n = 0;
    int fd = moe_file_open(path, &n, err);
    if (fd < 0)
        return fd;
    close(fd);
    if (n > MAX_PROMPT_BYTES)
        return too_long(path, n, may_hold, err);
    if (n > may_hold) {
        p->unread = n;
        return MOE_OK;
    }
    return moe_file_read_all(path, MAX_PROMPT_BYTES, &p->text, err);
}

int prompt_read(struct prompt *p, const char *text, const char *file, uint64_t may_hold,
                struct moe_err *err)
{
    struct moe_buf *out = &p->text;
    int status = MOE_OK;
    if (text)
        moe_buf_text(out, text);
    else if (file && strcmp(file, "-") != 0)
        status = read_file(p, file, may_hold, err);
    else
        status = read_stdin(may_hold, out, err);
    if (status == MOE_OK && out->size && memchr(out->data, 0, out->size))
        status = moe_fail(err, MOE_ERR_FORMAT, "the prompt is not text: it contains NUL bytes");
    moe_buf_u8(out, 0);
    if (status == MOE_OK && out->failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the prompt");
    return status;
}

int prompt_survey(struct prompt *p, const struct moe_tokenizer *tok, uint64_t most_tokens,
                  bool whole, struct moe_err *err)
{
    uint64_t n = p->unread ? p->unread : p->text.size - 1;
    struct moe_tokenizer_survey survey = {.longest_piece = UINT64_MAX};
    int status = p->unread ? MOE_OK
                           : moe_tokenizer_look(tok, (const char *)p->text.data, n, most_tokens + 1,
                                                &survey, err);
    if (status == MOE_OK && whole && n > SHORT && survey.least_ids > most_tokens)
        status = moe_fail(err, MOE_ERR_LIMIT,
                          "the prompt of more than %" PRIu64
                          " tokens does not fit the context of %" PRIu64,
                          survey.least_ids - 1, most_tokens);
    uint64_t piece = survey.longest_piece < n ? survey.longest_piece : n;
    uint64_t ids = most_tokens < n ? most_tokens : n;
    p->bytes = (whole ? COPIES : 2) * n + moe_tokenizer_memory(tok, n, survey.longest_piece) +
               2 * (ids + piece) * sizeof(uint32_t);
    p->bytes -= p->bytes < MARGIN ? p->bytes : MARGIN;
    return status;
}

int prompt_check_read(const struct prompt *p, uint64_t may_hold, struct moe_err *err)
{
    return p->unread ? too_long("the prompt", p->unread, may_hold, err) : MOE_OK;
}

int prompt_format(const char *name, bool raw, const char *of_model, const char *pack,
                  const struct moe_chat_format **format, struct moe_err *err)
{
    *format = NULL;
    if (name) {
        *format = moe_chat_find(name);
        struct moe_buf names = {0};
        for (int i = 0; moe_chat_at(i); i++)
            moe_buf_printf(&names, "%s %s", i ? "," : "", moe_chat_name(moe_chat_at(i)));
        int status = MOE_OK;
        if (!*format)
            status = moe_fail(err, MOE_ERR_USAGE,
                              "option --chat-template: '%s' is not one of%s (see moe-run --help)",
                              name, names.failed ? "" : (const char *)names.data);
        moe_buf_release(&names);
        return status;
    }
    if (raw || !of_model[0])
        return MOE_OK;
    *format = moe_chat_recognise(of_model);
    if (!*format)
        cli_note("%s: its chat template is not a known one: continuing plain text "
                 "(--chat-template names one)",
                 pack);
    return MOE_OK;
}
