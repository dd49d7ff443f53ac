/*
 * Where a line that libedit shows ends on the screen, also after the terminal has become wider or
 * narrower and has laid out anew what it shows.
 */
#ifndef CMD_REPL_LAYOUT_H
#define CMD_REPL_LAYOUT_H

#include <stddef.h>
#include <wchar.h>

struct layout {
    int n_prompt;        /* its columns */
    const wchar_t *text; /* [n], borrowed */
    size_t n;
    size_t n_drawn;  /* of them, those that were drawn row by row, not as they were typed */
    int drawn_width; /* of the terminal then */
};

struct place {
    int row, column; /* from the prompt's beginning */
};

/* The end of the text in a terminal that has `width` columns now. */
struct place layout_end(const struct layout *l, int width);

#endif
