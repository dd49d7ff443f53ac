/*
 * Line: interpolates a quantity that was measured at a few points.
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

/* Adds a point after the others. Ignores one without a figure (x or y not above 0, or NAN) and one
 * whose x is not above the last one's. */
void moe_line_add(struct moe_line *line, double x, double y);

/* Linear between two points; before the first, its y; after the last, with the slope of the last
 * two, but never falling; with a single point, proportional to x. NAN without points. */
double moe_line_at(const struct moe_line *line, double x);

#endif
