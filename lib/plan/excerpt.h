/*
 * Excerpts: which tokens of a trace are taken where all of them would take too long. Sequences are
 * taken whole and from all over the trace, for texts of one kind often lie together.
 */
#ifndef MOE_PLAN_EXCERPT_H
#define MOE_PLAN_EXCERPT_H

#include <stdint.h>

#include "base/err.h"
#include "record/trace.h"

struct moe_excerpt {
    uint32_t every;      /* each so manieth sequence, from the first one on; 0: all */
    uint64_t max_tokens; /* no more of these; 0: all */
    uint64_t first;      /* sequence to begin with */
    uint32_t cut;        /* no more of a sequence's tokens than these; 0: all */
    uint64_t warm;       /* the first so many of the sequences taken fill caches, uncounted */
};

/* Whether a sequence that is taken is one of the first, which are not counted. */
static inline bool moe_excerpt_warms(struct moe_excerpt e, uint64_t sequence)
{
    return (sequence - e.first) / (e.every ? e.every : 1) < e.warm;
}

/* Of at most so many tokens; 0: all. */
struct moe_excerpt moe_excerpt_of(const struct moe_trace *trace, uint64_t max_tokens);

/* Before the excerpt's first token; parts: what is wanted of each (moe_trace_want). */
void moe_excerpt_begin(struct moe_trace *trace, struct moe_excerpt excerpt, uint32_t parts);
/* Like moe_trace_next, of the excerpt. *taken counts its tokens, from 0 on. */
int moe_excerpt_next(struct moe_trace *trace, struct moe_excerpt excerpt, uint64_t *taken,
                     const struct moe_trace_token **token, struct moe_err *err);

#endif
