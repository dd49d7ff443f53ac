/*
 * Routers' scores on the processor, and the norms that their inputs have.
 */
#ifndef MOE_RUN_ROUTER_H
#define MOE_RUN_ROUTER_H

#include "kern/matmul.h"
#include "run/model.h"

/* One row of the residual stream under a norm of the model's kind; bias NULL where it has none. */
void moe_norm_row(const struct moe_config *c, const float *h, const float *weights,
                  const float *bias, float *out);

/* A layer's router on some inputs, prepared for its weights: scores[act->n][router_stride], its
 * bias included. */
struct moe_router_use {
    const struct moe_layer *layer;
    const struct moe_act *act;
    float *scores;
};
/* n <= MOE_MAX_ROUTERS of them in one product. */
enum { MOE_MAX_ROUTERS = 8 };
void moe_router_scores(const struct moe_router_use *uses, uint32_t n, uint64_t router_stride);

/* Floats from one row of routers' scores to the next. */
static inline uint64_t moe_router_stride(const struct moe_config *c)
{
    return moe_round_up(c->n_experts ? c->n_experts : 1, MOE_PANEL_ROWS);
}

#endif
