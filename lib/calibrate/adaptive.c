#include "calibrate/adaptive.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

/* ---- The line ---- */

/* false: the expert says nothing about the line. */
static bool point(double estimate, double nats, double error, double *x, double *y)
{
    double figure = nats > error ? nats : error;
    if (estimate <= 0 || figure <= 0)
        return false;
    *x = log(estimate);
    *y = log(figure);
    return true;
}

struct moe_importance_line moe_importance_fit(const double *estimates, const double *nats,
                                              const double *errors, const uint8_t *asked,
                                              uint64_t n)
{
    struct moe_importance_line line = {0, 1, 0};
    double count = 0, mean_x = 0, mean_y = 0, xx = 0, xy = 0, left = 0, x, y;
    for (uint64_t i = 0; i < n; i++)
        if (asked[i] && point(estimates[i], nats[i], errors[i], &x, &y)) {
            count++;
            mean_x += x;
            mean_y += y;
        }
    if (count == 0)
        return line;
    mean_x /= count;
    mean_y /= count;
    for (uint64_t i = 0; i < n; i++)
        if (asked[i] && point(estimates[i], nats[i], errors[i], &x, &y)) {
            xx += (x - mean_x) * (x - mean_x);
            xy += (x - mean_x) * (y - mean_y);
        }
    line.slope = count > 2 && xx > 0 ? xy / xx : 1;
    line.base = mean_y - line.slope * mean_x;
    for (uint64_t i = 0; i < n; i++)
        if (asked[i] && point(estimates[i], nats[i], errors[i], &x, &y))
            left += (y - line.base - line.slope * x) * (y - line.base - line.slope * x);
    line.spread = sqrt(left / (count > 3 ? count - 2 : 1));
    return line;
}

double moe_importance_on_line(const struct moe_importance_line *line, double estimate)
{
    return estimate > 0 ? exp(line->base + line->slope * log(estimate)) : 0;
}

/* ---- Which to measure ---- */

struct ranked {
    double value;
    uint64_t index;
};

static int by_value(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

int moe_importance_sample(uint8_t *asked, const double *estimates, uint64_t n, uint64_t count,
                          struct moe_err *err)
{
    struct ranked *ranked = moe_alloc(n, sizeof *ranked, err);
    if (!ranked)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n; i++)
        ranked[i] = (struct ranked){estimates[i], i};
    qsort(ranked, n, sizeof *ranked, by_value);
    count = count < n ? count : n;
    for (uint64_t i = 0; i < count; i++)
        asked[ranked[(2 * i + 1) * n / (2 * count)].index] = 1;
    free(ranked);
    return MOE_OK;
}

uint64_t moe_importance_open(const uint8_t *asked, const double *distances, uint64_t n,
                             double reach)
{
    uint64_t open = 0;
    for (uint64_t i = 0; i < n; i++)
        open += !asked[i] && distances[i] < reach;
    return open;
}

int moe_importance_ask(uint8_t *asked, const double *distances, uint64_t n, double reach,
                       uint64_t count, struct moe_err *err)
{
    uint64_t n_open = 0;
    struct ranked *open = moe_alloc(n, sizeof *open, err);
    if (!open)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n; i++)
        if (!asked[i] && distances[i] < reach)
            open[n_open++] = (struct ranked){distances[i], i};
    qsort(open, n_open, sizeof *open, by_value);
    for (uint64_t i = 0; i < count && i < n_open; i++)
        asked[open[i].index] = 1;
    free(open);
    return MOE_OK;
}
