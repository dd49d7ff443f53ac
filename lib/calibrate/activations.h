/*
 * Activations: what a feed-forward's down projection is given, as second moments over many tokens.
 */
#ifndef MOE_CALIBRATE_ACTIVATIONS_H
#define MOE_CALIBRATE_ACTIVATIONS_H

#include <stdint.h>

#include "base/err.h"
#include "experts/expert_compute.h"
#include "kern/inputs.h"

/* Memory for a few hundred tokens' activations at a time. */
struct moe_activations {
    const struct moe_config *config; /* borrowed */
    uint8_t *block;
    uint64_t ff_stride;
    float *gate, *up; /* [tokens at a time][ff_stride] */
    struct moe_inputs inputs;
};

/* The matrices of a feed-forward. */
struct moe_ffn {
    struct moe_mat gate, up;            /* gate.data NULL: the activation has no gate */
    const struct moe_expert_view *view; /* of an expert, with its biases; NULL: not an expert's */
};

int moe_activations_open(struct moe_activations *a, const struct moe_config *config,
                         struct moe_err *err);
void moe_activations_close(struct moe_activations *a);

/* Adds the second moments of n tokens' activations to moments[width][width], where width is
 * ffn->up.rows. inputs: [tokens][hidden], of which `rows` lists n; NULL: the first n. */
void moe_activations_add(struct moe_activations *a, const struct moe_ffn *ffn, const float *inputs,
                         const uint32_t *rows, uint32_t n, double *moments);

#endif
