/*
 * Routing figures: a few numbers on how a model uses its experts, enough to draw a trace of another
 * model that behaves alike (synthesis.h).
 */
#ifndef MOE_PLAN_ROUTING_FIGURES_H
#define MOE_PLAN_ROUTING_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "profile/statistics.h"
#include "profile/trace.h"

enum { MOE_FIGURES_AHEAD = 3 }; /* how many layers ahead predictors look, at most */

/* Shares from 0 to 1. */
struct moe_routing_figures {
    uint32_t n_experts, top_k; /* of the model they are from; 0: of the one they are used for */
    double reuse;   /* of a token's experts, those that the token before used in the same layer */
    double busiest; /* of activations, on the busiest quarter of a layer's experts */
    double accuracy[MOE_FIGURES_AHEAD]; /* of a layer's experts, those among as many predicted from
                                           the gate's input one, two, three layers before */
};

/* Of the bundled model on its own texts: the default where nothing is known. */
extern const struct moe_routing_figures moe_routing_figures_bundled;

/* Converts the figures to a model with other numbers of experts: the excess over chance stays the
 * same share of the largest possible excess. For reuse and accuracies chance is k/E and the most is
 * 1; for the busiest quarter of q = ceil(E/4) experts chance is q/E and the most is min(q, k)/k. */
void moe_routing_figures_move(struct moe_routing_figures *m, uint32_t n_experts, uint32_t top_k);

/* From statistics; figures they lack are the bundled model's, converted. */
void moe_routing_figures_of_statistics(struct moe_routing_figures *out,
                                       const struct moe_statistics *s);
/* From a trace, which is read once from its beginning. Imported traces have no predictions: their
 * accuracies are the bundled model's, and *known_accuracy is false. Errors of the trace's reader.
 */
int moe_routing_figures_of_trace(struct moe_routing_figures *out, bool *known_accuracy,
                                 struct moe_trace *trace, struct moe_err *err);

/* ---- Counting ---- */

struct moe_routing_figures_tally {
    uint32_t n_layers, n_experts, top_k;
    uint64_t *activations; /* [n_layers][n_experts] */
    uint32_t *mark; /* [n_experts] `now` for experts that the present token chose in this layer */
    uint32_t now;
    uint64_t could_reuse, reused; /* activations */
    uint64_t could_predict[MOE_FIGURES_AHEAD], predicted[MOE_FIGURES_AHEAD];
};

/* Released with moe_routing_figures_tally_release, also after a failure. */
int moe_routing_figures_tally_init(struct moe_routing_figures_tally *t, uint32_t n_layers,
                                   uint32_t n_experts, uint32_t top_k, struct moe_err *err);
void moe_routing_figures_tally_release(struct moe_routing_figures_tally *t);
void moe_routing_figures_tally_clear(struct moe_routing_figures_tally *t);
/* Counts one layer of a token. chosen: [top_k]; before: the choice of the token before there, or
 * NULL; predicted: from 1, 2, 3 layers before, the best first, [n_predicted] each or NULL. */
void moe_routing_figures_tally_add(struct moe_routing_figures_tally *t, uint32_t layer,
                                   const uint16_t *chosen, const uint16_t *before,
                                   const uint16_t *const predicted[MOE_FIGURES_AHEAD],
                                   uint32_t n_predicted);
/* Begins a tally and counts a whole trace, from its beginning; released like the others, also after
 * a failure. Errors of the trace's reader. */
int moe_routing_figures_tally_trace(struct moe_routing_figures_tally *t, struct moe_trace *trace,
                                    struct moe_err *err);
/* A figure that counted nothing is NAN. */
struct moe_routing_figures moe_routing_figures_of_tally(const struct moe_routing_figures_tally *t);

#endif
