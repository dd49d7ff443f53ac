#include "base/line.h"

#include <math.h>

void moe_line_add(struct moe_line *line, double x, double y)
{
    if (!(y > 0) || !(x > 0) || line->n == MOE_LINE_POINTS ||
        (line->n > 0 && !(x > line->x[line->n - 1])))
        return;
    line->x[line->n] = x;
    line->y[line->n++] = y;
}

double moe_line_at(const struct moe_line *line, double at)
{
    const double *x = line->x, *y = line->y;
    if (line->n == 0)
        return NAN;
    if (at <= x[0])
        return y[0];
    if (line->n == 1)
        return y[0] * at / x[0];
    uint32_t i = 1;
    while (i + 1 < line->n && at > x[i])
        i++;
    double slope = (y[i] - y[i - 1]) / (x[i] - x[i - 1]);
    if (at > x[i] && slope < 0)
        slope = 0;
    return at > x[i] ? y[i] + slope * (at - x[i]) : y[i - 1] + slope * (at - x[i - 1]);
}
