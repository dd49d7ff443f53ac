#include "prompt.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli.h"

enum { MAX_PROMPT_BYTES = 256 << 20 };

static int read_stdin(struct moe_buf *out, struct moe_err *err)
{
    for (;;) {
        uint8_t *to = moe_buf_reserve(out, 65536);
        if (!to)
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the text on standard input");
        ssize_t n = read(STDIN_FILENO, to, 65536);
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
        if (out->size > MAX_PROMPT_BYTES)
            return moe_fail(err, MOE_ERR_USAGE, "standard input: more than 256 MiB of text");
    }
}

int prompt_read(const char *text, const char *file, struct moe_buf *out, struct moe_err *err)
{
    int status = MOE_OK;
    if (text)
        moe_buf_text(out, text);
    else if (file && strcmp(file, "-") != 0)
        status = moe_file_read_all(file, MAX_PROMPT_BYTES, out, err);
    else
        status = read_stdin(out, err);
    if (status == MOE_OK && out->size && memchr(out->data, 0, out->size))
        status = moe_fail(err, MOE_ERR_FORMAT, "the prompt is not text: it contains NUL bytes");
    moe_buf_u8(out, 0);
    if (status == MOE_OK && out->failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the prompt");
    return status;
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
