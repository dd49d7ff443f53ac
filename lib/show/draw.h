/*
 * Drawing for terminals: figures as text, bars, shades, and paragraphs broken into lines.
 */
#ifndef MOE_SHOW_DRAW_H
#define MOE_SHOW_DRAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* What is drawn on. */
struct moe_screen {
    uint32_t columns; /* MOE_LEAST_COLUMNS to MOE_MOST_COLUMNS */
    bool blocks;      /* with block characters (UTF-8), else plain ASCII */
    bool colour;      /* with the colours of terminals */
};
enum { MOE_LEAST_COLUMNS = 60, MOE_USUAL_COLUMNS = 80, MOE_MOST_COLUMNS = 200 };
/* For what is no terminal. */
#define MOE_PLAIN_SCREEN ((struct moe_screen){.columns = MOE_USUAL_COLUMNS})

/* The columns of something that has `usual` of them on a screen of MOE_USUAL_COLUMNS and takes what
 * a wider one adds, but at most `most`; a narrower one takes away, but leaves a third. */
uint32_t moe_draw_columns(struct moe_screen screen, uint32_t usual, uint32_t most);

/* A figure as text in `room`, which is returned. A speed or a share below 0 or NAN is not known:
 * "?". */
char *moe_format_speed(double tokens_per_second, char room[32]); /* "39.5", "3.95" */
char *moe_format_percent(double share, char room[32]);           /* "70.0%" */
char *moe_format_rate(double bytes_per_second, char room[32]);   /* "1.20 GB/s", "16.0 MB/s" */
char *moe_format_seconds(double seconds, char room[32]);         /* "1.25 ms", "16.0 us" */
char *moe_format_duration(double seconds, char room[32]);        /* "4.2 s", "17 min", "3.2 h" */
/* The same to two significant digits, for what is estimated: "1100", "39", "4.0", "0.17"; "55%",
 * "3.1%"; "5.5 ms". Sizes have three: "28.2 MiB", "316 MiB". */
char *moe_format_about(double x, char room[32]);
char *moe_format_about_share(double share, char room[32]);
char *moe_format_about_seconds(double seconds, char room[32]);
char *moe_format_about_bytes(double bytes, char room[32]);
/* Layers [first, first + n): "3", "3-5". */
char *moe_format_layers(uint32_t first, uint32_t n, char room[32]);

/* A share in percent at the right of a column so wide; "-" where it is not known (below 0 or
 * NAN). */
void moe_draw_percent(struct moe_buf *out, double share, int width);

/* A bar of share * width cells, in eighths of a cell where its blocks allow it, else to the nearest
 * whole one; nothing for what is not a number. Shares above 1 are drawn as 1. */
void moe_draw_bar(struct moe_buf *out, double share, uint32_t width, struct moe_screen screen);

/* One character for an amount beside a usual one: a blank for up to an eighth of it, then up to a
 * half of it, up to all of it, up to twice as much, more. */
const char *moe_draw_shade(double amount, double usual, struct moe_screen screen);
/* ... which of them, 0 the blank. */
enum { MOE_SHADES = 5 };

enum { MOE_DRAW_TEXT = 2048 };

/* What writes text for people: where to, and what that is drawn on. */
struct moe_pen {
    struct moe_buf *out;
    struct moe_screen screen;
};

/* A paragraph of ASCII text in lines of at most the screen's columns, but no more than are read
 * with ease (MOE_TEXT_COLUMNS), each after `indent` blanks. A word that is longer than a line is
 * cut. The formatted text has at most MOE_DRAW_TEXT bytes; the rest is cut off. */
enum { MOE_TEXT_COLUMNS = 120 };
void moe_say(const struct moe_pen *pen, uint32_t indent, const char *format, ...) MOE_PRINTF(3, 4);
/* The same, where the first line begins with `first` (at most `indent` wide; NULL: blanks). */
void moe_draw_paragraph(struct moe_buf *out, struct moe_screen screen, const char *first,
                        uint32_t indent, const char *text);

/* A strategy's spelling, at most `most` bytes of it, in lines as above: broken before '+',
 * elsewhere only where a part is longer than a line. */
void moe_draw_spelling(struct moe_buf *out, struct moe_screen screen, const char *first,
                       uint32_t indent, const char *text, size_t most);

/* "±", or "+-" on a screen without Unicode. */
const char *moe_draw_plus_minus(struct moe_screen screen);

/* A table of figures as text, for a screen (moe_draw_table) and for a page (show/html.h): row 0 has
 * the heads, the first column names, the others figures at the right. Columns that a screen has no
 * room for are left out, the last first. */
enum { MOE_TABLE_COLUMNS = 7, MOE_TABLE_ROWS = 40, MOE_TABLE_CELL = 64 };
struct moe_table {
    uint32_t n_columns, n_rows;
    char cells[MOE_TABLE_ROWS][MOE_TABLE_COLUMNS][MOE_TABLE_CELL];
    double bars[MOE_TABLE_ROWS]; /* share of the longest; 0: none */
    uint32_t marked;             /* the present state's row; 0: none */
};
/* Begins one with these heads, one for each column. */
void moe_table_begin(struct moe_table *t, uint32_t n_columns, const char *const *heads);
/* A row more with these cells, as many as there are columns; what has no room is cut. */
void moe_table_row(struct moe_table *t, double bar, const char *const *cells);
void moe_draw_table(struct moe_buf *out, struct moe_screen screen, const struct moe_table *t);

/* Breaks the lines of a text (UTF-8, each character a column wide; terminal sequences none) that
 * are wider than the screen, at the last blank that fits, and indents what goes on by 4 more than
 * the line, or to a table's second column (after two blanks). *text is replaced. */
void moe_draw_fit(struct moe_buf *text, struct moe_screen screen);

#endif
