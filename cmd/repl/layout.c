/* Columns and lines of what libedit shows. */
#define _XOPEN_SOURCE 700 /* wcwidth */
#include "layout.h"

#include <stdbool.h>
#include <wctype.h>

static void break_line(struct place *p)
{
    *p = (struct place){p->row + 1, 0};
}

static void advance(struct place *p, int columns, int width)
{
    if (p->column + columns > width)
        break_line(p);
    p->column += columns;
    if (p->column >= width)
        break_line(p);
}

/* Columns of a character at this column, as libedit shows it: ^X, \U+1234, \U+12345. */
static int columns_of(wchar_t c, int column)
{
    if (c == L'\t')
        return 8 - column % 8;
    if (iswprint((wint_t)c))
        return wcwidth(c);
    return iswcntrl((wint_t)c) ? 2 : c > 0xffff ? 8 : 7;
}

/*
 * Terminals join rows for their new width where one went on to the next by itself. That it did not
 * where libedit drew a row without the blanks in which it ends.
 */
struct place layout_end(const struct layout *l, int width)
{
    struct place drawn = {0}, now = {0};
    int blanks = 0; /* at the end, which the terminal may not have */
    advance(&drawn, l->n_prompt, l->drawn_width);
    advance(&now, l->n_prompt, width);
    for (size_t i = 0; i < l->n; i++) {
        wchar_t c = l->text[i];
        int row = drawn.row, columns = columns_of(c, drawn.column);
        if (c == L'\n') {
            break_line(&drawn);
            break_line(&now);
            blanks = 0;
            continue;
        }
        advance(&drawn, columns, l->drawn_width);
        if (c == L' ') {
            bool cut = drawn.row > row && i < l->n_drawn && width != l->drawn_width;
            blanks = cut ? 0 : blanks + 1;
            if (cut && now.column > 0)
                break_line(&now);
            continue;
        }
        for (; blanks > 0; blanks--)
            advance(&now, 1, width);
        advance(&now, columns, width);
    }
    for (; blanks > 0; blanks--)
        advance(&now, 1, width);
    return now;
}
