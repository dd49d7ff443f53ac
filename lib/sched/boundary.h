/*
 * Boundary: how many of the first layers are shallow (Fate 4.4). Pure.
 */
#ifndef MOE_SCHED_BOUNDARY_H
#define MOE_SCHED_BOUNDARY_H

#include <stdint.h>

#include "record/statistics.h"

/* Fate reads L off a figure of the layers' prediction accuracies: shallow layers are those before
 * the step. Here it is the split whose two means explain the accuracies best (least squares), among
 * those whose first mean is the lower one. Layers whose accuracy is not known (below 0) at the
 * beginning, since nothing is before the first, are shallow whatever the others are, and take no
 * part in that; further on they count as 0. 0: there is no step, or nothing is known. accuracy:
 * [n_layers]. */
uint32_t moe_boundary(const double *accuracy, uint32_t n_layers);

/* The same by the accuracies of statistics: of the next layer's router on this layer's gate input,
 * as many experts as are chosen (Fate fig. 7). With an encoder, of the decoder's layers, from its
 * first on. UINT32_MAX: they predicted nothing. */
uint32_t moe_boundary_of_statistics(const struct moe_statistics *s);

/* Each layer's accuracy of a predictor: the share of its experts among as many predicted; -1 where
 * nothing was predicted. accuracy: [n_layers]. */
void moe_layer_accuracies(const struct moe_statistics *s, enum moe_predictor predictor,
                          double *accuracy);

#endif
