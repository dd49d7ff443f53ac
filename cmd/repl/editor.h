/*
 * The line editor of the interactive prompt: libedit, with what is pasted as one text, Ctrl-C,
 * Ctrl-Z and resizing that leave the screen as it should be, completion, and the history.
 */
#ifndef CMD_REPL_EDITOR_H
#define CMD_REPL_EDITOR_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "choices.h"

struct editor;

/* `choose` fills in the completions for `text`, the line up to the cursor; for Tab. */
int editor_open(struct editor **out, void (*choose)(void *ctx, const char *text, struct choices *c),
                void *ctx, struct moe_err *err);
void editor_close(struct editor *e); /* NULL is fine */

enum reading {
    READ_LINE,
    READ_DROPPED,   /* Ctrl-C: what was typed is dropped */
    READ_CANCELLED, /* Ctrl-C with nothing typed */
    READ_END,
};

/* How much of a line was pasted. */
struct pasted {
    bool some;
    bool start; /* the line begins with it */
};

/* Reads a line, which may have several where they were pasted, and appends it to *to without its
 * last newline. */
enum reading editor_read(struct editor *e, const char *prompt, struct moe_buf *to,
                         struct pasted *pasted);

/* Adds to the history, on disk too. */
void editor_remember(struct editor *e, const char *input);

#endif
