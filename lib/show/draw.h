/*
 * Drawing for terminals: figures as text, bars, shades, and paragraphs broken into lines. `blocks`:
 * with block characters (UTF-8), else plain ASCII.
 */
#ifndef MOE_SHOW_DRAW_H
#define MOE_SHOW_DRAW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* A figure as text in `room`, which is returned. A speed or a share below 0 or NAN is not known:
 * "?". */
char *moe_format_speed(double tokens_per_second, char room[32]); /* "39.5", "3.95" */
char *moe_format_percent(double share, char room[32]);           /* "70.0%" */
char *moe_format_rate(double bytes_per_second, char room[32]);   /* "1.20 GB/s", "16.0 MB/s" */
char *moe_format_seconds(double seconds, char room[32]);         /* "1.25 ms", "16.0 us" */
/* Layers [first, first + n): "3", "3-5". */
char *moe_format_layers(uint32_t first, uint32_t n, char room[32]);

/* A share in percent at the right of a column so wide; "-" where it is not known (below 0 or
 * NAN). */
void moe_draw_percent(struct moe_buf *out, double share, int width);

/* A bar of share * width cells, in eighths of a cell where blocks allow it, else to the nearest
 * whole one; nothing for what is not a number. Shares above 1 are drawn as 1. */
void moe_draw_bar(struct moe_buf *out, double share, uint32_t width, bool blocks);

/* One character for an amount beside a usual one: a blank for up to an eighth of it, then up to a
 * half of it, up to all of it, up to twice as much, more. */
const char *moe_draw_shade(double amount, double usual, bool blocks);

enum { MOE_DRAW_WIDTH = 80, MOE_DRAW_TEXT = 2048 };

/* A paragraph of ASCII text in lines of at most MOE_DRAW_WIDTH columns: the first line begins with
 * `first` (at most `indent` wide; NULL: blanks), the others with `indent` blanks. A word that is
 * longer than a line is cut. The formatted text has at most MOE_DRAW_TEXT bytes; the rest is cut
 * off. */
void moe_draw_paragraph(struct moe_buf *out, const char *first, uint32_t indent, const char *format,
                        ...) MOE_PRINTF(4, 5);

#endif
