/*
 * A page of HTML that needs nothing else: no network, no script, pictures as SVG, readable from 400
 * pixels on, light or dark as the reader's system is. Text from files goes through moe_page_text
 * or the functions above it, which escape: no name can become markup.
 */
#ifndef MOE_SHOW_HTML_H
#define MOE_SHOW_HTML_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "show/draw.h"
#include "show/explain.h"

struct moe_page {
    struct moe_buf *out; /* borrowed; its failure is the page's */
};

/* Head, style and the first heading; to moe_page_end. */
void moe_page_begin(struct moe_page *p, struct moe_buf *out, const char *title);
void moe_page_end(struct moe_page *p);

/* Text to read: what would be markup is escaped, control characters and bytes that are
 * no UTF-8 become U+FFFD. */
void moe_page_text(struct moe_page *p, const char *text);
/* A paragraph; at most 4096 bytes of it. */
void moe_page_say(struct moe_page *p, const char *format, ...) MOE_PRINTF(2, 3);
/* Preformatted text, folded away under `title`. */
void moe_page_lines(struct moe_page *p, const char *title, const char *text);

void moe_page_open_section(struct moe_page *p, const char *title);
void moe_page_close_section(struct moe_page *p);

/* All of a table, its present row in bold. Columns after the first hold figures. */
void moe_page_table(struct moe_page *p, const struct moe_table *t);
/* A paragraph in small print: what the words of a picture or a table mean. */
void moe_page_note(struct moe_page *p, const char *text);
/* What a page says first, in large print. */
void moe_page_answer(struct moe_page *p, const char *text);

/*
 * The pictures of a page, as SVG with a title and, on each cell and point, its figure.
 */

/* A heat map: dark (on a dark page light) from twice the usual on. caption: what it shows, and
 * `columns`: what its columns are called, NULL: by number. Large ones have cells of several layers
 * and experts, whose mean they show: at most MOE_HEAT_LINES x MOE_PAGE_COLUMNS cells. */
enum { MOE_PAGE_COLUMNS = 128 };
void moe_page_heat(struct moe_page *p, const struct moe_heat *heat, const char *caption,
                   const char *const *columns);

/* Parts of a whole side by side, at most MOE_EXPLAINED_PARTS, and a table of them. */
void moe_page_parts(struct moe_page *p, const struct moe_explained_part *parts, uint32_t n,
                    const char *caption, char *(*format)(double amount, char room[32]));

/* A curve through n points, x rising, y from 0 on; `now` on the x axis is marked. Both axes have
 * names, with their unit, and figures: the x axis at the points that have room for them. */
struct moe_page_curve {
    const char *caption, *x_name, *y_name, *now_name;
    uint32_t n;
    const double *x, *y;
    double now;
    bool logarithmic; /* the x axis */
    char *(*format_x)(double x, char room[32]);
};
void moe_page_curve(struct moe_page *p, const struct moe_page_curve *curve);

/* Bars over time: values[n] of at most `most`. */
void moe_page_strip(struct moe_page *p, const double *values, uint32_t n, double most,
                    const char *caption);

/* One kind of file each, drawn into a page that was begun. */

/* Read the file and draw its sections. Errors of reading it. */
int page_plan(struct moe_page *p, const char *path, struct moe_err *err);
int page_statistics(struct moe_page *p, const char *path, struct moe_err *err);
int page_trace(struct moe_page *p, const char *path, struct moe_err *err);
int page_map(struct moe_page *p, const char *path, struct moe_err *err);
int page_device(struct moe_page *p, const char *path, struct moe_err *err);
/* A file of at most 64 MiB. MOE_ERR_FORMAT: not a list of events. */
int page_timeline(struct moe_page *p, const char *path, struct moe_err *err);

/*
 * A page about whatever file it is given: a plan, statistics, a trace, a bit map, a device profile.
 * The figures are those of the terminal's explanations, whose words end each page.
 */

/* timeline: what moe-run --trace-events wrote, drawn below; or NULL. Appends the page to `out`
 * (the caller looks at its failure). Errors of reading; a file that is none of these is read as
 * statistics. MOE_ERR_USAGE: what a cache has learnt, which has no page. */
int moe_page_of_file(const char *path, const char *timeline, struct moe_buf *out,
                     struct moe_err *err);

#endif
