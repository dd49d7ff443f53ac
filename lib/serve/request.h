/*
 * Request: what a client asks for, read from the body of OpenAI's API: /v1/chat/completions or
 * /v1/completions. The limits and what a missing key means are the API's (/v1/completions ends
 * after 16 tokens), but for temperature and top_p, which are then the model's as moe-run has them.
 * top_k, min_p, repeat_penalty (or repetition_penalty) and ignore_eos are added; so is draft, which
 * is on where the server drafts.
 *
 * response_format, and llama.cpp's json_schema and grammar, say what an answer may be (grammar/).
 *
 * Keys that nobody knows are ignored, as compatible servers do. What would change the answer and is
 * not done here (logit_bias, ...) is refused; every sentence has the key in
 * single quotes.
 */
#ifndef MOE_SERVE_REQUEST_H
#define MOE_SERVE_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/sampler.h"

struct json_t;
struct moe_grammar;

enum moe_request_kind { MOE_REQUEST_CHAT, MOE_REQUEST_TEXT };

enum {
    MOE_REQUEST_MEMORY = 32 << 20, /* of a body's values, while it is read */
    MOE_REQUEST_MAX_CHOICES = 128,
    MOE_REQUEST_MAX_STOPS = 16,
    MOE_REQUEST_MAX_TOP_LOGPROBS = 20,
    MOE_REQUEST_MAX_FIELDS = 64,
    MOE_REQUEST_MAX_VARIABLES = 64,
};

struct moe_request_field {
    char *name, *text;
};

struct moe_request { /* owns all that it points at */
    enum moe_request_kind kind;
    char *model; /* asked for; NULL: whatever there is */

    /* CHAT: the conversation as prompt/chat.h has it, with all its members; variables are those of
     * "chat_template_kwargs", and "reasoning_effort". */
    struct json_t *messages, *tools, *variables; /* tools, variables: NULL for none */
    uint64_t chat_bytes;                         /* that they take in memory */
    char *question;                              /* the last user's text; NULL: none */
    /* TEXT: a prompt, NUL-terminated, or NULL: its ids. */
    char *prompt;
    uint64_t n_prompt;
    char *prefix_text; /* before it (moe_prompt_prefixed); NULL: none */
    uint32_t *ids;
    uint64_t n_ids;

    struct moe_sampler_options sampling; /* what is asked for; with a random seed where none is */
    uint64_t max_tokens;                 /* UINT64_MAX: until something else ends it */
    const char **stops;                  /* NULL-terminated, texts owned; never NULL */
    uint32_t n_stops;
    uint32_t n; /* choices wanted; choice i is drawn with moe_request_seed(r, i) */
    bool stream, stream_usage;
    bool logprobs;         /* of every token ... */
    uint32_t top_logprobs; /* ... and of so many that were likeliest in its place */
    bool ignore_eos, echo; /* echo: TEXT, the prompt comes first */
    bool draft;            /* where the server drafts, for this one too */

    struct moe_grammar *grammar; /* that the answer follows; NULL: any does */
    char *id; /* of JSON lines: the value of "custom_id" or "id", as JSON; NULL: none */
    struct moe_request_field *fields; /* "metadata" */
    uint32_t n_fields;
};

/* Reads a body of n bytes. MOE_ERR_FORMAT: it is no JSON, or asks for what cannot be; on errors
 * *out is NULL. */
int moe_request_parse(struct moe_request **out, enum moe_request_kind kind, const void *json,
                      uint64_t n, struct moe_err *err);
/* The same of a body that is parsed already (fmt/json.h), which is only borrowed. */
int moe_request_read(struct moe_request **out, enum moe_request_kind kind,
                     const struct json_t *body, struct moe_err *err);
void moe_request_free(struct moe_request *r); /* NULL is fine */

/* Memory that a request takes while it waits, and its grammar's constraints while it runs. */
uint64_t moe_request_bytes(const struct moe_request *r);

uint64_t moe_request_seed(const struct moe_request *r, uint32_t choice);

/* What routing rules look at: "prompt" (the last user's text, or the prompt), "model", else what
 * "metadata" has under that name. NULL: none. */
const char *moe_request_field(const struct moe_request *r, const char *name);

#endif
