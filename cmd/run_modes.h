/* What moe-run does with an opened model: one answer, vectors, measurements. */
#ifndef CMD_RUN_MODES_H
#define CMD_RUN_MODES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/conversation.h"
#include "engine/encode.h"
#include "engine/engine.h"
#include "tune/followed_run.h"

/* ---- The one answer of -p, -f or standard input (answer_once.c) ---- */

/* Asks `text` (NULL: what the conversation ends with) with the options of the command line and
 * prints the answer, which follows the constraint (NULL: there is none). started: moe_seconds()
 * when the program began. What the session counted is in its stats. A negative status without a
 * text in err: standard output failed, and cli_finish says so. */
int answer_once(const struct moe_engine *engine, struct moe_conversation *talk, const char *text,
                struct moe_constraint *constraint, double started, struct moe_err *err);

/* ---- Vectors of texts by models with an encoder, a line of JSON each (encode_texts.c) ---- */

/* That the command line's options are such as a model with an encoder, or one without, has. */
int encode_check_options(const char *pack, const struct moe_config *c, bool encodes,
                         struct moe_err *err);

/* Writes {"tokens", "pooling", "embedding"} for the text (NUL-terminated) if it is one, else for
 * each of its lines. MOE_ERR_LIMIT names the first line that does not fit the context; those before
 * it have been written. */
int encode_texts(struct moe_session *s, const struct moe_buf *text, bool one,
                 enum moe_pooling pooling, struct moe_err *err);

/*
 * Measuring runs (measure.c): each prints its result on stdout and leaves its figures in the
 * session's statistics.
 */

struct measure_perplexity_options {
    uint32_t max_doc_tokens;
    uint32_t max_windows;  /* of a document; 0: all */
    uint32_t window;       /* not 0: windows of this many tokens instead of documents */
    double decode_share;   /* of a document's tokens, computed one by one */
    const char *token_log; /* file for the nats and the most likely id of each token, or NULL */
    const char *logits, *against; /* tune/perplexity.h */
    bool answers;                 /* of pairs: judges answers, too */
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
