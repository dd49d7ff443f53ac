/*
 * Drawing for terminals: bars, and paragraphs broken into lines. `blocks`: with block characters
 * (UTF-8), else plain ASCII.
 */
#ifndef MOE_SHOW_DRAW_H
#define MOE_SHOW_DRAW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* A bar of share * width cells, in eighths of a cell where blocks allow it, else to the nearest
 * whole one; nothing for what is not a number. Shares above 1 are drawn as 1. */
void moe_draw_bar(struct moe_buf *out, double share, uint32_t width, bool blocks);

enum { MOE_DRAW_WIDTH = 80, MOE_DRAW_TEXT = 2048 };

/* A paragraph of ASCII text in lines of at most MOE_DRAW_WIDTH columns: the first behind `first`
 * (at most `indent` wide; NULL: blanks), the others behind `indent` blanks. A word that is longer
 * is cut. The formatted text has at most MOE_DRAW_TEXT bytes; what is longer is cut off. */
void moe_draw_paragraph(struct moe_buf *out, const char *first, uint32_t indent, const char *format,
                        ...) MOE_PRINTF(4, 5);

#endif
