/*
 * Manner: a few figures of how a model uses its experts, enough to draw a trace of another model
 * that behaves alike (synthesis.h).
 */
#ifndef MOE_PLAN_ROUTING_FIGURES_H
#define MOE_PLAN_ROUTING_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "record/statistics.h"
#include "record/trace.h"

enum { MOE_FIGURES_AHEAD = 3 }; /* layers that predictors look back, at most */

/* Shares from 0 to 1. */
struct moe_routing_figures {
    uint32_t n_experts, top_k; /* of the model whose manner it is; 0: of the one it is asked for */
    double reuse;   /* of a token's experts, used by the token before in the same layer */
    double busiest; /* of activations, on the busiest quarter of a layer's experts */
    double accuracy[MOE_FIGURES_AHEAD]; /* of a layer's experts among as many foretold by the gate's
                                          input one, two, three layers before */
};

/* Of the bundled model on its own texts: what is taken where nothing is known. */
extern const struct moe_routing_figures moe_routing_figures_bundled;

/* To a model with other numbers of experts: what is above chance stays the same share of what is
 * possible above chance. Of reuse and accuracies chance is k/E and 1 is possible; of the busiest
 * quarter of q = ceil(E/4) experts chance is q/E and min(q, k)/k is possible. */
void moe_routing_figures_move(struct moe_routing_figures *m, uint32_t n_experts, uint32_t top_k);

/* From statistics; what they do not have is the bundled model's, moved. */
void moe_routing_figures_of_statistics(struct moe_routing_figures *out,
                                       const struct moe_statistics *s);
/* From a trace, read once from its beginning (imported ones have no predictions: accuracies are
 * then the bundled model's; *known_accuracy says so). Errors of the trace's reader. */
int moe_routing_figures_of_trace(struct moe_routing_figures *out, bool *known_accuracy,
                                 struct moe_trace *trace, struct moe_err *err);

/* ---- Counting ---- */

struct moe_routing_figures_tally {
    uint32_t n_layers, n_experts, top_k;
    uint64_t *activations; /* [n_layers][n_experts] */
    uint32_t *mark; /* [n_experts] `now` where the token-layer at work has chosen the expert */
    uint32_t now;
    uint64_t could_reuse, reused; /* activations */
    uint64_t could_predict[MOE_FIGURES_AHEAD], foretold[MOE_FIGURES_AHEAD];
};

/* Released with moe_routing_figures_tally_release, also after a failure. */
int moe_routing_figures_tally_init(struct moe_routing_figures_tally *t, uint32_t n_layers,
                                   uint32_t n_experts, uint32_t top_k, struct moe_err *err);
void moe_routing_figures_tally_release(struct moe_routing_figures_tally *t);
void moe_routing_figures_tally_clear(struct moe_routing_figures_tally *t);
/* One layer of a token. chosen: [top_k]; before: what the token before chose there, or NULL;
 * foretold: by whom looks back 1, 2, 3 layers, the best first, [n_predicted] each or NULL. */
void moe_routing_figures_tally_add(struct moe_routing_figures_tally *t, uint32_t layer,
                                   const uint16_t *chosen, const uint16_t *before,
                                   const uint16_t *const foretold[MOE_FIGURES_AHEAD],
                                   uint32_t n_predicted);
/* NAN: nothing of the kind was counted. */
struct moe_routing_figures moe_routing_figures_of_tally(const struct moe_routing_figures_tally *t);

#endif
