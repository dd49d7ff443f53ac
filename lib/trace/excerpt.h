/*
 * Excerpts: which tokens of a trace are used where all of them would take too long. Sequences are
 * whole and from all over the trace, for texts of one kind are often next to each other.
 */
#ifndef MOE_PLAN_EXCERPT_H
#define MOE_PLAN_EXCERPT_H

#include <stdint.h>

#include "base/err.h"
#include "trace/trace.h"

struct moe_excerpt {
    uint32_t every;      /* 3: every third sequence, from the first one on; 0: all */
    uint64_t max_tokens; /* at most so many; 0: all */
    uint64_t first;      /* the sequence to begin with */
    uint32_t cut;        /* at most so many tokens of a sequence; 0: all */
    uint64_t warm;       /* so many of its first sequences fill caches and are not counted */
    uint32_t prompt;     /* a replay makes one prompt of so many tokens of it, text after text, and
                            decodes none; where they run out they come again. 0: as recorded */
};

/* Whether a sequence of the excerpt only fills caches. */
static inline bool moe_excerpt_warms(struct moe_excerpt e, uint64_t sequence)
{
    return (sequence - e.first) / (e.every ? e.every : 1) < e.warm;
}

/* An excerpt of at most so many tokens; 0: all. */
struct moe_excerpt moe_excerpt_of(const struct moe_trace *trace, uint64_t max_tokens);

/* Call it before the first token; parts: what to read of each token (moe_trace_want). */
void moe_excerpt_begin(struct moe_trace *trace, struct moe_excerpt excerpt, uint32_t parts);
/* Like moe_trace_next, of the excerpt. *taken counts its tokens; begin with 0. */
int moe_excerpt_next(struct moe_trace *trace, struct moe_excerpt excerpt, uint64_t *taken,
                     const struct moe_trace_token **token, struct moe_err *err);

#endif
