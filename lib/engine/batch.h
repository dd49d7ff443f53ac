/*
 * Batch: many answers of one model side by side (continuous batching). A step decodes a token of
 * every running sequence in one pass, so that weights are read, and experts loaded, once for all of
 * them; prompts are computed in pieces between these steps, so that running answers do not stall. A
 * sequence's tokens are those that it would get alone, with every strategy that is exact.
 *
 * Sequences run in the session's, with blocks of its KV cache. Who comes when there is no room
 * waits, in the order of coming. When running ones grow beyond the cache, the youngest gives its
 * blocks back and waits in front; what is lost of its text is computed again later.
 *
 * A text that begins like one that was computed before takes over what is still in the cache
 * (infer/kv.h), be that running or ended. One that could take over what a running sequence is about
 * to compute waits for it, and others may pass.
 *
 * With an encoder a prompt is a source, which a pass over whole sources computes before the
 * sequence decodes; nothing is taken over from other texts then. So it is where a prompt sees all
 * of itself (prefix_lm): it is computed in one pass, not in pieces.
 *
 * Where a request wants drafts (engine/drafting.h), a step may decode several tokens of its
 * sequence: the drafted ones stand in the same pass, and those that are wrong are taken back. The
 * more sequences share a pass, the shorter are their drafts (engine/batch.c).
 *
 * Everything happens in moe_batch_step, in the caller's thread.
 */
#ifndef MOE_ENGINE_BATCH_H
#define MOE_ENGINE_BATCH_H

#include <stdint.h>

#include "base/err.h"
#include "engine/answer.h"
#include "engine/sampler.h"
#include "infer/session.h"

/* How a request ended. */
struct moe_batch_result {
    enum moe_stop_reason why;  /* where status is MOE_OK */
    int status;                /* else: it failed, others did not */
    const struct moe_err *err; /* then; valid for the call */
    uint64_t n_prompt, n_tokens;
    uint64_t n_cached;   /* of the prompt's: computed for another text before */
    uint64_t n_drafted;  /* tokens; 0 without drafts */
    uint64_t n_accepted; /* ... that were right */
    double ttft_seconds; /* from options.started to the first token; 0: there was none */
    double seconds;      /* ... to the end */
};

struct moe_batch_request {
    const uint32_t *prompt; /* [n_prompt] ids, of the source where there is an encoder; copied */
    uint64_t n_prompt;
    struct moe_sampler *sampler; /* owned by the batch from then on, freed at the end */
    /* As of moe_generate; its texts are borrowed until the end, its `text` must not call back. */
    struct moe_generate_options options;
    /* The last that is heard of it; gets options.ctx. May add requests. */
    void (*ended)(void *ctx, const struct moe_batch_result *result);
};

struct moe_batch;

/* Bytes that a batch takes beside a session with these options (complete), with the samplers and
 * texts of all that run. */
uint64_t moe_batch_bytes(const struct moe_config *config,
                         const struct moe_session_options *session);

/* A batch over all sequences of a session, borrowed. prompt_rows: of prompts between two steps at
 * most; 0: as many as a pass takes. */
int moe_batch_open(struct moe_batch **out, struct moe_session *s, uint32_t prompt_rows,
                   struct moe_err *err);
/* Frees; who has not ended is not told. NULL is fine. */
void moe_batch_close(struct moe_batch *b);

/* Adds a request; *id names it. MOE_ERR_LIMIT: the prompt does not fit the context, or the whole KV
 * cache; MOE_ERR_USAGE: it is empty. On errors the sampler stays the caller's. */
int moe_batch_add(struct moe_batch *b, const struct moe_batch_request *request, uint64_t *id,
                  struct moe_err *err);
/* Ends a request with MOE_STOP_USER, if it has not ended yet. Not while it is being told. */
void moe_batch_cancel(struct moe_batch *b, uint64_t id);

/* A token for every running sequence, and a piece of waiting prompts. What fails ends the requests
 * concerned; the batch goes on. */
void moe_batch_step(struct moe_batch *b);

struct moe_batch_state {
    uint32_t n_running; /* sequences that have begun */
    uint64_t n_waiting;
    uint64_t n_preempted; /* times that a sequence gave its blocks back, so far */
};
const struct moe_batch_state *moe_batch_state(const struct moe_batch *b);

#endif
