/*
 * Feed-forward of a layer: the experts that the router chose, as they become ready, and the shared
 * expert; or that of a dense layer. What is computed where is the device's (layer/stages.h).
 */
#ifndef MOE_RUN_FEED_FORWARD_H
#define MOE_RUN_FEED_FORWARD_H

#include "run/session.h"

/* The part of it before attention, in a layer with experts whose router stands there
 * (router_early): it chooses, its experts are asked for, and come while attention is computed. */
int moe_feed_forward_early(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                           uint32_t n_rows, struct moe_phase_stats *phase, struct moe_err *err);
/* The residual stream receives its output. */
int moe_feed_forward(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_phase_stats *phase, struct moe_err *err);
/* Counts the activations of so many MoE layers that a device computed by itself. */
void moe_feed_forward_count_alone(struct moe_session *s, struct moe_phase_stats *phase,
                                  uint32_t n_layers, uint32_t n_rows);

#endif
