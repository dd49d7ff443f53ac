/*
 * The interactive prompt's state, shared by its loop (repl.c) and its commands (commands.c).
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
    char *history_path; /* NULL: there is none */
    struct moe_sampler *sampler;
    const char *prompt;  /* of the line being read */
    struct moe_buf text; /* the input so far */
    bool verbatim;       /* it stood between lines of """: a slash does not begin a command */
    bool leaving;        /* Ctrl-C was pressed at an empty prompt */
    bool colour;
};

/* Prints a line of the program's on stderr, as everything but answers: stdout may be a file
 * although stdin is a terminal. */
void console_tell(const struct console *c, const char *text);

/* Says what was opened. */
void console_greet(const struct console *c);

/* Answers `text`, or continues the last answer if NULL. Only a write error on stdout is fatal. */
int console_answer(struct console *c, const char *text, struct moe_err *err);

/* Replaces the sampler by one with the current options. */
int console_new_sampler(struct console *c, struct moe_err *err);

/* Runs "/NAME ARGUMENT" (changes the line). 0: go on; 1: leave; negative: a fatal error, in err. */
int console_command(struct console *c, char *line, struct moe_err *err);

#endif
