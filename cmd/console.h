/*
 * The interactive prompt's state, shared by its loop (repl.c) and its commands (repl_commands.c).
 */
#ifndef CMD_CONSOLE_H
#define CMD_CONSOLE_H

#include <histedit.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "repl.h"

struct console {
    struct repl *r;
    EditLine *el;
    History *history;
    char *history_path; /* NULL: not kept */
    struct moe_sampler *sampler;
    const char *prompt;  /* of the line being read */
    struct moe_buf text; /* the input so far */
    bool verbatim;       /* it came between lines of """: a slash is no command */
    bool leaving;        /* Ctrl-C was pressed at an empty prompt */
    bool colour;
};

/* A line from the program, not from the model. Everything but answers goes to stderr: stdout may be
 * a file although stdin is a terminal. */
void console_tell(const struct console *c, const char *text);

/* Asks, or continues when text is NULL. Only a write error on stdout is fatal. */
int console_answer(struct console *c, const char *text, struct moe_err *err);

/* A sampler by the options as they are now, in the place of the old one. */
int console_new_sampler(struct console *c, struct moe_err *err);

/* Runs "/NAME ARGUMENT" (changes the line). 0: go on; 1: leave; negative: a fatal error, in err. */
int console_command(struct console *c, char *line, struct moe_err *err);

#endif
