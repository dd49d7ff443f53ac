#include "coe/window.h"

#include <math.h>
#include <stdbool.h>

#include "base/random.h"

/* The line of least squares through the first n points, at x. */
static double line_at(const struct moe_coe_window *w, uint32_t n, double x)
{
    double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
    for (uint32_t i = 0; i < n; i++) {
        mean_x += w->experts[i] / (double)n;
        mean_y += w->throughput[i] / n;
    }
    for (uint32_t i = 0; i < n; i++) {
        xx += (w->experts[i] - mean_x) * (w->experts[i] - mean_x);
        xy += (w->experts[i] - mean_x) * (w->throughput[i] - mean_y);
    }
    return mean_y + (xx > 0 ? xy / xx : 0) * (x - mean_x);
}

int moe_coe_slide(const struct moe_coe_window_options *options,
                  int (*measure)(void *ctx, uint32_t n_experts, double *throughput,
                                 struct moe_err *err),
                  void *ctx, struct moe_coe_window *out, struct moe_err *err)
{
    uint32_t first = options->first ? options->first : 15;
    uint32_t fitted = options->fitted ? options->fitted : 2;
    double margin = options->margin > 0 ? options->margin : 0.05;
    double size = first, end = 0;
    uint64_t random = options->seed;
    *out = (struct moe_coe_window){0};
    if (first > 99)
        return moe_fail(err, MOE_ERR_USAGE, "a first window of %u experts does not decay (1 to 99)",
                        first);
    for (bool rises = true;
         rises && out->upper < options->most && out->n_points < MOE_COE_MAX_POINTS;) {
        uint32_t n = out->n_points;
        end += size > 1 ? size : 1;
        size *= 1 - first / 100.0;
        out->lower = out->upper;
        out->upper = end < options->most ? (uint32_t)ceil(end) : options->most;
        out->experts[n] = out->upper;
        int status = measure(ctx, out->upper, &out->throughput[n], err);
        if (status != MOE_OK)
            return status;
        out->n_points++;
        if (n < fitted)
            continue;
        out->expected = line_at(out, fitted, out->upper);
        rises = out->expected - out->throughput[n] <= margin * fabs(out->expected);
    }
    out->chosen = out->lower + 1 + (uint32_t)(moe_random_next(&random) % (out->upper - out->lower));
    return MOE_OK;
}
