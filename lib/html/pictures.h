/*
 * The pictures of a page, as SVG with a title and, on each cell and point, its figure.
 */
#ifndef MOE_HTML_PICTURES_H
#define MOE_HTML_PICTURES_H

#include "html/page.h"
#include "show/heat.h"

/* A heat map: dark (on a dark page light) from twice the usual on. caption: what it shows, and
 * `columns`: what its columns are called, NULL: by number. Large ones have cells of several layers
 * and experts, whose mean they show: at most MOE_HEAT_LINES x MOE_PAGE_COLUMNS cells. */
enum { MOE_PAGE_COLUMNS = 128 };
void moe_page_heat(struct moe_page *p, const struct moe_heat *heat, const char *caption,
                   const char *const *columns);

/* Parts of a whole side by side, at most MOE_PAGE_PARTS, and a table of them. */
enum { MOE_PAGE_PARTS = 6 };
struct moe_page_part {
    const char *name;
    double amount;
};
void moe_page_parts(struct moe_page *p, const struct moe_page_part *parts, uint32_t n,
                    const char *caption, char *(*format)(double amount, char room[32]));

/* A curve through n points, x rising, y from 0 on; `now` on the x axis is marked. Both axes have
 * names, with their unit, and figures: the x axis at the points, as far as there is room. */
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

#endif
