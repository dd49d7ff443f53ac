/*
 * Synthesis: a routing trace for a model that nobody has run, drawn at random from a few figures of
 * a real one: how unevenly experts are used, how much a token repeats of the one before, how well
 * the next layer's experts are foretold. An assumption, and to be called one.
 *
 * Model: expert e of layer l has, at token t of a document, the score
 *     skew * popular[l][e] + topic * document[l][e] + state_t[l][e],
 * popular drawn once, document once a document, state a first-order autoregression over tokens; all
 * from normal distributions. The top_k best are chosen; a predictor sees the scores with noise
 * added, of the size that gives its accuracy. Layers do not know of each other, so the paths of
 * such a trace foretell nothing.
 */
#ifndef MOE_PLAN_SYNTHESIS_H
#define MOE_PLAN_SYNTHESIS_H

#include <stdint.h>

#include "base/err.h"
#include "plan/routing_figures.h"
#include "record/trace.h"

struct moe_synthesis {
    struct moe_trace_shape shape; /* keep and predictors are set here: gate-1 to gate-3 */
    struct moe_routing_figures
        manner; /* moved to the shape (manner.h) where it is another model's */
    uint32_t sequences, prompt_tokens, decoded_tokens; /* of each sequence */
    uint64_t seed;
};

/* Writes the trace: the same figures always give the same file. The sizes of the parts of a score
 * are found by bisection on a short trial; *reached receives what the whole trace then has (the
 * accuracy of looking back further than there are layers: what the trial had; reuse of sequences of
 * one token: NAN). What cannot be comes as near as it can: experts used again less often than their
 * popularity alone makes them, or used evenly in a few sequences of a few topics. MOE_ERR_USAGE: a
 * shape that no trace can have, no tokens, or shares that are none. */
int moe_synthesise(const char *path, const struct moe_synthesis *synthesis,
                   struct moe_routing_figures *reached, struct moe_err *err);

#endif
