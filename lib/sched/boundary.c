#include "sched/boundary.h"

#include <math.h>

#include "record/statistics_figures.h"

/* Relative differences below this are rounding. */
static const double ROUNDING = 1e-9;

/* Accuracies of layers; below 0: not known. */
struct accuracies {
    double (*at)(const void *of, uint32_t layer);
    const void *of;
};

static double known(const struct accuracies *a, uint32_t layer)
{
    double accuracy = a->at(a->of, layer);
    return accuracy > 0 ? accuracy : 0;
}

static uint32_t find(const struct accuracies *a, uint32_t n_layers)
{
    double total = 0, before = 0, best = 0;
    uint32_t first = 0;
    while (first < n_layers && a->at(a->of, first) < 0)
        first++;
    uint32_t n_known = n_layers - first, boundary = n_known ? first : 0;
    for (uint32_t i = first; i < n_layers; i++)
        total += known(a, i);
    for (uint32_t n = 1; n < n_known; n++) {
        before += known(a, first + n - 1);
        double n_after = n_known - n, after = total - before;
        double rise = after / n_after - before / n;
        /* How much smaller the sum of squares is with two means than with one. */
        double gain = rise * rise * n * n_after / n_known;
        if (rise > ROUNDING && gain > best * (1 + ROUNDING)) {
            best = gain;
            boundary = first + n;
        }
    }
    return boundary;
}

static double in_list(const void *of, uint32_t layer)
{
    return ((const double *)of)[layer];
}

uint32_t moe_boundary(const double *accuracy, uint32_t n_layers)
{
    return find(&(struct accuracies){in_list, accuracy}, n_layers);
}

/* ---- Of statistics ---- */

static double accuracy_at(const struct moe_statistics *s, enum moe_predictor predictor,
                          uint32_t layer)
{
    double share = moe_figure_accuracy(s, layer, predictor).in_k;
    return isnan(share) ? -1 : share;
}

/* Of the decoder's layers, counted from its first. */
static double by_gate(const void *of, uint32_t layer)
{
    const struct moe_statistics *s = of;
    return accuracy_at(s, MOE_PREDICT_GATE_1, s->shape.n_encoder + layer);
}

uint32_t moe_boundary_of_statistics(const struct moe_statistics *s)
{
    uint32_t n_layers = s->shape.n_layers - s->shape.n_encoder;
    bool any = false;
    for (uint32_t layer = 0; layer < n_layers; layer++)
        any |= by_gate(s, layer) >= 0;
    return any ? find(&(struct accuracies){by_gate, s}, n_layers) : UINT32_MAX;
}

void moe_layer_accuracies(const struct moe_statistics *s, enum moe_predictor predictor,
                          double *accuracy)
{
    for (uint32_t layer = 0; layer < s->shape.n_layers; layer++)
        accuracy[layer] = accuracy_at(s, predictor, layer);
}
