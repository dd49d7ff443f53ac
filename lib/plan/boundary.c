#include "plan/boundary.h"

#include <math.h>

#include "record/statistics_figures.h"

/* Relative differences below this are rounding. */
static const double ROUNDING = 1e-9;

static double known(double accuracy)
{
    return accuracy > 0 ? accuracy : 0;
}

uint32_t moe_boundary(const double *accuracy, uint32_t n_layers)
{
    double total = 0, before = 0, best = 0;
    uint32_t boundary = 0;
    for (uint32_t i = 0; i < n_layers; i++)
        total += known(accuracy[i]);
    for (uint32_t n = 1; n < n_layers; n++) {
        before += known(accuracy[n - 1]);
        double n_after = n_layers - n, after = total - before;
        double rise = after / n_after - before / n;
        /* How much smaller the sum of squares is with two means than with one. */
        double gain = rise * rise * n * n_after / n_layers;
        if (rise > ROUNDING && gain > best * (1 + ROUNDING)) {
            best = gain;
            boundary = n;
        }
    }
    return boundary;
}

void moe_layer_accuracies(const struct moe_statistics *s, enum moe_predictor predictor,
                          double *accuracy)
{
    for (uint32_t layer = 0; layer < s->shape.n_layers; layer++) {
        double share = moe_figure_accuracy(s, layer, predictor).in_k;
        accuracy[layer] = isnan(share) ? -1 : share;
    }
}
