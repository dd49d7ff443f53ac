/* /system, /file, /reset: what the conversation is made of. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "cli.h"
#include "commands.h"
#include "engine/prompt.h"

int command_reset(struct console *c, const char *arg, struct moe_err *err)
{
    if (console_has_encoder(c)) {
        console_tell(c, "there is nothing to forget: each input is a source of its own");
        return 0;
    }
    moe_conversation_reset(c->r->conversation);
    console_tell(c, "the context is empty");
    return 0;
}

int command_system(struct console *c, const char *arg, struct moe_err *err)
{
    const struct moe_conversation *talk = c->r->conversation;
    const char *system = moe_conversation_system_text(talk),
               *own = talk->chat ? moe_chat_own_system(talk->chat) : NULL;
    if (console_has_encoder(c))
        console_tell(c, "there is no place for a system text: each input is a source of its own");
    else if (!*arg && system)
        fprintf(stderr, "%s\n", system);
    else if (!*arg && own)
        console_tell(c, "the template's own: %s", own);
    else if (!*arg)
        console_tell(c, "there is no system text; /system TEXT sets one, /system - removes it");
    else if (moe_conversation_system(c->r->conversation, strcmp(arg, "-") ? arg : NULL, err) !=
             MOE_OK)
        cli_error(err);
    else
        console_tell(c, "a new conversation begins");
    return 0;
}

/* ---- Files ---- */

/* Bytes of a text that may fit the context: few tokens have more than eight. */
static uint64_t most_bytes(uint32_t context)
{
    uint64_t bytes = 8 * (uint64_t)context;
    return bytes > 128 << 10 ? bytes : 128 << 10;
}

static int read_text(const struct moe_session *s, const char *path, struct moe_buf *out,
                     struct moe_err *err)
{
    struct moe_tokenizer_survey survey = {0};
    uint64_t size = 0, most = most_bytes(s->context);
    char a[32], b[32];
    int fd = moe_file_open(path, &size, err);
    if (fd < 0)
        return fd;
    close(fd);
    if (size > most)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "%s: %s of text do not fit the context of %" PRIu32
                        " tokens (at most %s are read; -c sets a longer one)",
                        path, moe_format_bytes(size, a), s->context, moe_format_bytes(most, b));
    MOE_TRY(moe_file_read_all(path, most, out, err));
    if (out->size == 0 || memchr(out->data, 0, out->size))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: not text: %s", path,
                        out->size ? "it contains NUL bytes" : "it is empty");
    MOE_TRY(moe_tokenizer_look(s->model->tokenizer, (const char *)out->data, out->size, out->size,
                               &survey, err));
    if (survey.least_ids > s->context) {
        moe_prompt_too_long(&s->model->config, survey.least_ids, true, s->context, err);
        return moe_err_prefix(err, "%s", path);
    }
    return MOE_OK;
}

int command_file(struct console *c, const char *arg, struct moe_err *err)
{
    const char *home = getenv("HOME");
    struct moe_buf path = {0}, text = {0};
    char size[32];
    if (!*arg || strcmp(arg, "-") == 0) {
        if (*arg)
            moe_buf_release(&c->files);
        if (c->files.size)
            console_tell(c, "%s of files join your next message; /file - drops them",
                         moe_format_bytes(c->files.size, size));
        else
            console_tell(c, "no file waits for your next message; /file PATH adds one");
        return 0;
    }
    bool at_home = strncmp(arg, "~/", 2) == 0 && home;
    moe_buf_printf(&path, "%s%s", at_home ? home : "", arg + at_home);
    int status = path.failed
                     ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: a path")
                     : read_text(c->r->conversation->session, (const char *)path.data, &text, err);
    if (status == MOE_OK) {
        moe_buf_append(&c->files, text.data, text.size);
        if (text.data[text.size - 1] != '\n')
            moe_buf_u8(&c->files, '\n');
        console_tell(c, "%s: %s, joins your next message", arg, moe_format_bytes(text.size, size));
    } else {
        cli_error(err);
    }
    moe_buf_release(&path);
    moe_buf_release(&text);
    return c->files.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: a file's text") : 0;
}
