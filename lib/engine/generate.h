/*
 * Generation: a conversation's tokens in, new tokens out, one at a time to a callback.
 */
#ifndef MOE_ENGINE_GENERATE_H
#define MOE_ENGINE_GENERATE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/sampler.h"
#include "run/session.h"
#include "text/tokenizer.h"

enum moe_stop_reason {
    MOE_STOP_EOS,     /* the model ended its text */
    MOE_STOP_LENGTH,  /* as many tokens as asked for */
    MOE_STOP_CONTEXT, /* the context is full */
    MOE_STOP_TEXT,    /* a stop text appeared (it is not shown) */
    MOE_STOP_USER,    /* *stop was set */
};

struct moe_generate_options {
    uint64_t max_tokens; /* UINT64_MAX: until something else stops it */
    bool ignore_eos;
    const char *const *stop_texts;     /* NULL-terminated; NULL: none */
    const volatile sig_atomic_t *stop; /* set by a signal handler; may be NULL */
    double started;                    /* moe_seconds() when the request came; for ttft */
    /* Bytes of the answer as they are certain: whole UTF-8 characters, never part of a stop text.
     * Bytes that begin no character come as they are, and so does one unfinished at the end. A
     * negative result ends the answer with that status. */
    int (*text)(void *ctx, const char *bytes, uint64_t n);
    void *ctx;
};

/*
 * `history` holds the whole context; its first *n_done ids are already in the session's sequence 0
 * (kept in step here). Computes the rest in batches, then generates, appending each new id to
 * history. At least one id must be new. With LongRoPE all of a text is computed again when it grows
 * beyond the original context (*n_done starts anew). On MOE_ERR_* the context remains usable up to
 * *n_done.
 */
int moe_generate(struct moe_session *s, struct moe_sampler *sampler, struct moe_ids *history,
                 uint64_t *n_done, const struct moe_generate_options *options,
                 enum moe_stop_reason *why, struct moe_err *err);

#endif
