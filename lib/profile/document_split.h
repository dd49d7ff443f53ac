/*
 * Documents to plan on and to judge by. Statistics that count the documents of a trace know what
 * comes in it, and a strategy that goes by them looks better on it than on any other text: a trace
 * must therefore judge by other documents than were counted.
 */
#ifndef MOE_PROFILE_DOCUMENT_SPLIT_H
#define MOE_PROFILE_DOCUMENT_SPLIT_H

#include <stdbool.h>

#include "base/err.h"
#include "profile/origins.h"
#include "profile/statistics.h"
#include "profile/trace.h"

/* Whether both hold a document of the same run of texts. False where either's are not known. */
bool moe_split_shared(const struct moe_origins *a, const struct moe_origins *b);

/* Every other sequence of an excerpt: those to judge by, and the others to count. */
struct moe_excerpt moe_split_judged(struct moe_excerpt excerpt);
struct moe_excerpt moe_split_counted(struct moe_excerpt excerpt);

/* Counts statistics of the excerpt's sequences: choices and weights, without predictions. shape: of
 * statistics of the same model, without an encoder; longer sequences are cut to its max_tokens.
 * MOE_ERR_USAGE: a trace of another shape, or one with gaps. */
int moe_split_count(struct moe_statistics **out, struct moe_trace *trace,
                    struct moe_excerpt excerpt, const struct moe_statistics_shape *shape,
                    struct moe_err *err);

#endif
