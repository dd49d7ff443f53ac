/*
 * The interactive prompt's state, shared by its loop (repl.c), its answers (answer.c) and its
 * commands (commands.c and the files of commands.h).
 */
#ifndef CMD_REPL_CONSOLE_H
#define CMD_REPL_CONSOLE_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "editor.h"
#include "repl.h"

struct console {
    struct repl *r;
    struct editor *editor;
    struct moe_sampler *sampler;
    struct moe_buf text;  /* the input so far */
    struct moe_buf files; /* texts of /file, which join the next message */
    struct moe_buf next;  /* where has_next: a line that was read already, the next input's first */
    struct pasted next_pasted;
    bool has_next;
    bool verbatim; /* it was pasted, or stood between lines of """: a slash does not begin a
                      command */
    char **stops;  /* stop texts where /stop has changed them, NULL-terminated */
    size_t n_stops;
    bool leaving; /* Ctrl-C was pressed at an empty prompt */
    bool colour;
};

/* Prints lines of the program's on stderr, as everything but answers: stdout may be a file although
 * stdin is a terminal. Broken between words at the terminal's width. */
void console_print(const char *text);
/* The same for a formatted line, dim. */
void console_tell(const struct console *c, const char *format, ...) MOE_PRINTF(2, 3);

/* Whether each input is a source of its own, without a history. */
bool console_has_encoder(const struct console *c);

/* Answers `text`, or continues the last answer if NULL. Only a write error on stdout is fatal. */
int console_answer(struct console *c, const char *text, struct moe_err *err);

/* Replaces the sampler by one with the current options. */
int console_new_sampler(struct console *c, struct moe_err *err);

#endif
