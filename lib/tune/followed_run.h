/*
 * A session that follows a trace: pass by pass what the trace's model did, so that loads, hits and
 * waits are those of that model on this disk, in this memory, by this processor.
 */
#ifndef MOE_TUNE_FOLLOWED_RUN_H
#define MOE_TUNE_FOLLOWED_RUN_H

#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "infer/state.h"
#include "profile/trace.h"

/* What an excerpt is, before it is followed. */
struct moe_followed_survey {
    uint64_t sequences, prompt_tokens, decode_tokens;
    uint32_t longest; /* positions that a session needs */
};
/* Reads the excerpt. */
int moe_followed_look(struct moe_trace *trace, struct moe_excerpt excerpt,
                      struct moe_followed_survey *out, struct moe_err *err);

struct moe_followed {
    struct moe_trace *trace; /* rewound */
    struct moe_excerpt excerpt;
    const struct moe_strategy *strategy;     /* the session's, as it runs */
    const struct moe_statistics *statistics; /* for its predictions; NULL: none */
    const struct moe_progress *progress;
};

/* Computes every pass of the excerpt, in batches of the session at most: prompts, and each decoded
 * token with its logits. Tokens are drawn, always the same ones: the trace has none. The session's
 * statistics say what it took; sequence 0 is used. */
int moe_bench_follow(struct moe_session *s, const struct moe_followed *followed,
                     struct moe_err *err);

#endif
