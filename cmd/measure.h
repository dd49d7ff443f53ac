/*
 * The measuring runs of moe-run: each prints its result on stdout and leaves its figures in the
 * session's statistics.
 */
#ifndef CMD_MEASURE_H
#define CMD_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/engine.h"
#include "tune/followed_run.h"

struct measure_perplexity_options {
    uint32_t max_doc_tokens;
    uint32_t max_windows;  /* of a document; 0: all */
    uint32_t window;       /* not 0: windows of this many tokens instead of documents */
    double decode_share;   /* of a document's tokens, computed one by one */
    const char *token_log; /* file for the nats and the most likely id of each token, or NULL */
    bool answers;          /* of pairs: judges answers, too */
    bool json;
};

/* moe_perplexity_survey with these options. */
int measure_perplexity_survey(const char *path, const struct measure_perplexity_options *options,
                              const struct moe_model *model, const struct moe_engine_room *room,
                              uint64_t *bytes, struct moe_err *err);
/* Mean nats per token of the text file `path`, or of its pairs where the model has an encoder. */
int measure_perplexity(struct moe_session *s, const char *path,
                       const struct measure_perplexity_options *options, struct moe_err *err);

struct measure_speed_options {
    uint32_t prompt_tokens, decode_tokens, n_runs;
    const char *text; /* what the prompt is made of; NULL: tokens drawn at random */
    bool json;
};

/* Tokens per second of prefill and decode, over several runs. */
int measure_speed(struct moe_session *s, const struct measure_speed_options *options,
                  struct moe_err *err);

/* A trace to follow, opened before the engine: an excerpt of at most max_tokens. */
struct measure_trace {
    const char *path;
    struct moe_trace *trace;
    struct moe_excerpt excerpt;
    struct moe_followed_survey survey;
};
int measure_trace_open(struct measure_trace *t, const char *path, uint64_t max_tokens,
                       struct moe_err *err);
/* Tokens per second of its passes; the session's statistics get its name. */
int measure_followed(const struct moe_engine *e, const struct measure_trace *t, bool json,
                     struct moe_err *err);

/* Prints the token ids of `text`. Reads only the pack's tokenizer. */
int measure_ids(const char *pack_path, const char *text, struct moe_err *err);

#endif
