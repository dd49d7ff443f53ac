/*
 * Draws the scores of synthesis.h: documents, layers and tokens of the model described there.
 * Internal to synthesis*.c.
 */
#ifndef MOE_PLAN_SYNTHESIS_DRAW_H
#define MOE_PLAN_SYNTHESIS_DRAW_H

#include <stdint.h>

#include "base/err.h"
#include "plan/routing_figures.h"

struct draw_sizes {
    double skew;
    double correlation; /* of what is not popularity, from one token to the next: 0 to 1 */
    double noise[MOE_FIGURES_AHEAD]; /* of predictors, as a multiple of the scores' own spread */
};

/* One layer of the present document. */
struct draw_layer {
    uint64_t random, random_noise;
    uint32_t n_tokens;                 /* drawn so far */
    float *popular, *document, *state; /* [n_experts] */
};

struct draw {
    uint32_t n_layers, n_experts;
    uint64_t seed;
    struct draw_sizes sizes;
    float *quantiles; /* [n_experts] of the normal distribution */
    struct draw_layer *layers;
    float *block; /* holds the layers' arrays */
};

/* Released with draw_release, also after a failure. Each layer's popular experts are drawn. */
int draw_init(struct draw *d, uint32_t n_layers, uint32_t n_experts, uint64_t seed,
              struct moe_err *err);
void draw_release(struct draw *d);

/* Begins a document in the first `n_layers` layers. The same number is the same document. */
void draw_begin(struct draw *d, uint32_t n_layers, uint64_t document);
/* The next token of a layer: scores [n_experts], of a spread that does not depend on the sizes;
 * predicted: [MOE_FIGURES_AHEAD][stride], the scores as predictors see them, or NULL. Later draws
 * do not depend on whether predictions were asked for. */
void draw_token(struct draw *d, uint32_t layer, float *scores, float *predicted, uint64_t stride);

#endif
