/* The loop of the interactive prompt: inputs are read and become commands or messages. */
#include "repl.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"
#include "console.h"

/* ---- Reading ---- */

static bool is_fence(const struct console *c, uint64_t line)
{
    return strcmp((const char *)c->text.data + line, "\"\"\"") == 0;
}

/* Reads lines up to the next that is only """. */
static enum reading read_block(struct console *c)
{
    moe_buf_clear(&c->text);
    c->verbatim = true;
    for (;;) {
        uint64_t line = c->text.size;
        struct pasted pasted = {0};
        enum reading got = editor_read(c->editor, ". ", &c->text, &pasted);
        if (got != READ_LINE || c->text.failed)
            return got;
        if (!pasted.some && c->text.size > line && is_fence(c, line)) {
            /* Without the newline before the fence. */
            c->text.size = line ? line - 1 : 0;
            c->text.data[c->text.size] = 0;
            return READ_LINE;
        }
        moe_buf_u8(&c->text, '\n');
    }
}

/* Reads an input into c->text: a line or what was pasted, continued lines, or a block between lines
 * of """. Pasted text is never a command or one of these marks. */
static enum reading read_input(struct console *c)
{
    struct pasted pasted = {0};
    moe_buf_clear(&c->text);
    enum reading got = READ_LINE;
    if (c->has_next) {
        moe_buf_append(&c->text, c->next.data, c->next.size);
        pasted = c->next_pasted;
        c->has_next = false;
    } else {
        got = editor_read(c->editor, "> ", &c->text, &pasted);
    }
    c->verbatim = pasted.start;
    if (!c->text.data)
        moe_buf_text(&c->text, ""); /* room for an empty line's NUL */
    if (got == READ_LINE && !pasted.some && !c->text.failed && is_fence(c, 0))
        return read_block(c);
    while (got == READ_LINE && !pasted.some && c->text.size && !c->text.failed &&
           c->text.data[c->text.size - 1] == '\\') {
        c->text.data[c->text.size - 1] = '\n';
        got = editor_read(c->editor, ". ", &c->text, &pasted);
    }
    return got;
}

/* ---- The loop ---- */

/* A message: texts of files first. */
static int answer(struct console *c, const char *input, struct moe_err *err)
{
    if (c->files.size == 0)
        return console_answer(c, input[0] ? input : NULL, err);
    if (input[0])
        moe_buf_printf(&c->files, "\n%s", input);
    if (c->files.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the message");
    int status = console_answer(c, (const char *)c->files.data, err);
    moe_buf_release(&c->files);
    return status;
}

/* 0: go on; 1: leave; negative: fatal. */
static int handle_input(struct console *c, enum reading got, struct moe_err *err)
{
    if (got == READ_END) {
        fputc('\n', stderr);
        return 1;
    }
    if (got == READ_DROPPED) {
        c->leaving = false;
        return 0;
    }
    if (got == READ_CANCELLED) {
        bool again = c->leaving;
        c->leaving = true;
        if (!again)
            console_tell(c, "(Ctrl-C again, Ctrl-D or /quit leaves)");
        return again;
    }
    c->leaving = false;
    if (c->text.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the input");
    char *input = (char *)c->text.data;
    editor_remember(c->editor, input);
    if (input[0] == '/' && !c->verbatim)
        return commands_run(c, input, err);
    return answer(c, input, err);
}

int repl_run(struct repl *repl)
{
    struct console c = {.r = repl, .colour = cli_may_colour(STDERR_FILENO)};
    struct moe_err err = {0};
    cli_catch_interrupt(true);
    int status;
    MOE_STEP(editor_open(&c.editor, commands_choose, &c, &err));
    MOE_STEP(console_new_sampler(&c, &err));
    commands_greet(&c);
    while (true)
        MOE_STEP(handle_input(&c, read_input(&c), &err));
out:
    editor_close(c.editor);
    settings_release(&c);
    moe_sampler_free(c.sampler);
    moe_buf_release(&c.text);
    moe_buf_release(&c.files);
    moe_buf_release(&c.next);
    return status < 0 ? cli_error(&err) : CLI_DONE;
}
