/*
 * Line: a quantity that was measured at a few points, in between and beyond them.
 */
#ifndef MOE_BASE_LINE_H
#define MOE_BASE_LINE_H

#include <stdint.h>

enum { MOE_LINE_POINTS = 8 };

/* Points of rising x, n at most MOE_LINE_POINTS. */
struct moe_line {
    uint32_t n;
    double x[MOE_LINE_POINTS], y[MOE_LINE_POINTS];
};

/* Adds a point behind the others. One without a figure (y not above 0, or NAN), and one that does
 * not lie behind the last, is left out. */
void moe_line_add(struct moe_line *line, double x, double y);

/* Between two points the straight line; before the first as the first; beyond the last on as
 * between the last two, but never falling; of a single point proportional. NAN without points. */
double moe_line_at(const struct moe_line *line, double x);

#endif
