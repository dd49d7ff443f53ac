/*
 * Generator: new tokens after texts, of one or of many side by side (continuous batching). A step
 * decodes a token of every running text in one pass, so that weights are read, and experts loaded,
 * once for all of them; prompts are computed in pieces between these steps, so that running answers
 * do not stall. A text's tokens are those that it would get by itself, with every strategy that is
 * exact.
 *
 * Texts run in the session's sequences, with blocks of its KV cache. A request that finds no room
 * waits, first come, first served. When running texts outgrow the cache, the youngest gives its
 * blocks back and waits in front; what is lost of it is computed again later.
 *
 * A text that begins like one that was computed before takes over what is still in the cache
 * (infer/session.h), whether that one runs or has ended. A text that could take over what a running
 * one is about to compute waits for it, and others may pass.
 *
 * With an encoder a prompt is a source, which a pass over whole sources computes before the text is
 * decoded; nothing is taken over from other texts then. Nor is it where a prompt sees all of itself
 * (prefix_lm): it is computed in one pass, not in pieces.
 *
 * Where a request wants drafts (engine/draft.h), a step may decode several tokens of its text: the
 * drafted ones are rows of the same pass, and wrong ones are taken back. The more texts share a
 * pass, the shorter are their drafts.
 *
 * Everything happens in moe_generator_step, in the caller's thread.
 */
#ifndef MOE_ENGINE_GENERATE_H
#define MOE_ENGINE_GENERATE_H

#include <stdint.h>

#include "base/err.h"
#include "engine/answer.h"
#include "engine/sampler.h"
#include "infer/session.h"

/* How a request ended. */
struct moe_generate_result {
    enum moe_stop_reason why;  /* where status is MOE_OK */
    const char *stop_text;     /* of MOE_STOP_TEXT: the one of options.stop_texts that appeared */
    int status;                /* else: it failed, others did not */
    const struct moe_err *err; /* then; valid for the call; without text where one of the options'
                                  functions failed, which knows why */
    const uint32_t *ids;       /* [n_ids] the text, prompt and answer; valid for the call */
    uint64_t n_ids;
    uint64_t n_prompt, n_tokens;
    uint64_t n_cached;   /* of the prompt's: computed for another text before */
    uint64_t n_drafted;  /* tokens; 0 without drafts */
    uint64_t n_accepted; /* ... that were right */
    double ttft_seconds; /* from options.started to the first token; 0: there was none */
    double seconds;      /* ... to the end */
};

/* Positions that were computed for a request, also those that were so before and were lost. */
struct moe_generate_work {
    uint64_t read, decoded; /* as prompt; one by one */
};

struct moe_generate_request {
    const uint32_t *prompt; /* [n_prompt] ids, of the source where there is an encoder; copied */
    uint64_t n_prompt;
    uint32_t target; /* with an encoder: what its text begins with behind the decoder's first token
                        (moe_prompt_source); 0: nothing */
    struct moe_sampler *sampler; /* owned by the generator from then on, freed at the end */
    /* Its texts are borrowed until the end, its `text` must not call back. */
    struct moe_generate_options options;
    /* Whose text it is: it takes over nothing of others' texts, nor they of it. */
    uint64_t owner;
    struct moe_generate_work *work; /* counts what is computed for it; NULL: nobody asks */
    /* The last call for this request; gets options.ctx. May add requests. */
    void (*ended)(void *ctx, const struct moe_generate_result *result);
};

struct moe_generator;

/* Bytes that a generator over all sequences of a session with these options (complete) takes beside
 * it, with the samplers and texts of all that run. */
uint64_t moe_generator_bytes(const struct moe_config *config,
                             const struct moe_session_options *session);

/* A generator that runs n_texts at a time, in the first sequences of a session, which it borrows.
 * prompt_rows: of prompts between two steps at most; 0: as many as a pass takes. */
int moe_generator_open(struct moe_generator **out, struct moe_session *s, uint32_t n_texts,
                       uint32_t prompt_rows, struct moe_err *err);
/* Frees it without telling requests that have not ended. NULL is fine. */
void moe_generator_close(struct moe_generator *g);

/* Adds a request; *id names it. MOE_ERR_LIMIT: the prompt does not fit the context, or the whole KV
 * cache; MOE_ERR_USAGE: it is empty. On errors the sampler stays the caller's. */
int moe_generator_add(struct moe_generator *g, const struct moe_generate_request *request,
                      uint64_t *id, struct moe_err *err);
/* Ends a request with MOE_STOP_USER, if it has not ended yet. Not from its own functions. */
void moe_generator_cancel(struct moe_generator *g, uint64_t id);

/* Has a running request rest: its sequence is free for others, and what remains is its text, of
 * moe_generator_rest_bytes at most. False: it does not run. */
bool moe_generator_rest(struct moe_generator *g, uint64_t id);
uint64_t moe_generator_rest_bytes(const struct moe_generator *g);
/* Has a resting request go on, in front of those that wait. */
void moe_generator_resume(struct moe_generator *g, uint64_t id);

/* A sequence that no text has, until the next step; UINT32_MAX: there is none. */
uint32_t moe_generator_free_sequence(const struct moe_generator *g);

/* Computes a token of every running text, and a piece of waiting prompts. A failure ends the
 * requests concerned; the generator goes on. */
void moe_generator_step(struct moe_generator *g);

struct moe_generator_state {
    uint32_t n_running;
    uint64_t n_waiting;
    uint64_t n_preempted; /* times that a text gave its blocks back, so far */
};
const struct moe_generator_state *moe_generator_state(const struct moe_generator *g);

/*
 * Generates one text in sequence 0 and leaves it there. `history` is all of it: the sequence keeps
 * what it has of it (moe_sequence_sync), at least one id is computed, and each new id is appended.
 * With beams (engine/beams.h) the best text of a search is the answer, and the sampler may be NULL.
 * With an encoder history is the decoder's, which begins with its first token. The sampler is
 * borrowed. After MOE_ERR_* the sequence has what was computed, and err no text where one of the
 * options' functions failed.
 */
int moe_generate(struct moe_session *s, struct moe_sampler *sampler, struct moe_ids *history,
                 const struct moe_generate_options *options, enum moe_stop_reason *why,
                 struct moe_err *err);

#endif
