/*
 * Synthesis: a routing trace for a model that was never run, drawn at random from a few figures of
 * a real one: how unevenly experts are used, how many experts a token shares with the one before,
 * how well the next layers' experts are predicted. The result is an assumption: say so where it is
 * used.
 *
 * Model: expert e of layer l has, at token t of a document, the score
 *     skew * popular[l][e] + topic * document[l][e] + state_t[l][e],
 * popular drawn once, document once per document, state a first-order autoregression over tokens;
 * all from normal distributions. The top_k best are chosen; a predictor sees the scores with as
 * much noise added as gives its accuracy. Layers are independent, so paths predict nothing in such
 * a trace.
 */
#ifndef MOE_PLAN_SYNTHESIS_H
#define MOE_PLAN_SYNTHESIS_H

#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "plan/routing_figures.h"
#include "profile/statistics.h"
#include "profile/trace.h"

struct moe_synthesis {
    struct moe_trace_shape shape;       /* keep and predictors are set here: gate-1 to gate-3 */
    struct moe_routing_figures figures; /* converted to the shape if they are of another model */
    uint32_t sequences, prompt_tokens, decoded_tokens; /* of each sequence */
    uint64_t seed;
    struct moe_statistics *statistics; /* counts as many other documents of the model; NULL: none */
    const struct moe_progress *progress; /* NULL: none */
};

/* Writes the trace: the same figures always give the same file. Bisection on a short trial finds
 * how large each part of a score is; *reached receives the figures of the whole trace (accuracies
 * of more layers ahead than there are: the trial's; reuse in sequences of one token: NAN).
 * Impossible figures are approached as far as possible: reuse below what popularity causes by
 * itself, or even use in a few sequences of a few topics. MOE_ERR_USAGE: a shape that no trace can
 * have, no tokens, or figures that are no shares. MOE_ERR_INTERRUPTED. */
int moe_synthesize_trace(const char *path, const struct moe_synthesis *synthesis,
                         struct moe_routing_figures *reached, struct moe_err *err);

#endif
