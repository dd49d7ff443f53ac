/*
 * Request: what a client asks for, read from the body of OpenAI's /v1/chat/completions or
 * /v1/completions. Limits and the meaning of missing keys are the API's (/v1/completions ends after
 * 16 tokens), except for what says how tokens are drawn, which is then the model's, as in moe-run.
 * Added are llama.cpp's keys for that (moe_sampling_field) and other names of them, vLLM's
 * ignore_eos, min_tokens and stop_token_ids, and draft, which is on if the server drafts.
 *
 * response_format, and llama.cpp's json_schema and grammar, restrict the answer (grammar/).
 *
 * Unknown keys are ignored, as compatible servers do, and noted. Keys that ask for another answer
 * than can be given (functions, images, ...) are refused; every error names the key in single
 * quotes.
 */
#ifndef MOE_SERVE_REQUEST_H
#define MOE_SERVE_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/allowance.h"
#include "base/err.h"
#include "engine/sampler.h"

struct json_t;
struct moe_grammar;

/* What a body is; those from MESSAGES on become chats or texts while they are read (api_*.c). */
enum moe_request_kind {
    MOE_REQUEST_CHAT,
    MOE_REQUEST_TEXT,
    MOE_REQUEST_MESSAGES,
    MOE_REQUEST_COUNT,
    MOE_REQUEST_RESPONSES,
    MOE_REQUEST_TOKENIZE,
    MOE_REQUEST_DETOKENIZE,
    MOE_REQUEST_COMPLETION,
    MOE_REQUEST_INFILL,
    MOE_REQUEST_OLLAMA_CHAT,
    MOE_REQUEST_OLLAMA_GENERATE,
    MOE_REQUEST_EMBEDDINGS,
    MOE_REQUEST_OLLAMA_EMBED,
    MOE_REQUEST_OLLAMA_EMBEDDINGS,
    MOE_REQUEST_KINDS,
};

/* What is wanted of the model. */
enum moe_request_task {
    MOE_TASK_ANSWER,
    MOE_TASK_IDS,  /* those of the prompt; nothing is computed */
    MOE_TASK_TEXT, /* of the prompt's ids */
    MOE_TASK_MEAN, /* of the states of an input's tokens behind the last norm */
    MOE_TASK_LAST, /* ... that of the last token */
};

/* A text whose states are wanted, or its ids. */
struct moe_request_input {
    char *text; /* NUL-terminated; NULL: ids */
    uint64_t n; /* bytes, or ids */
    uint32_t *ids;
};

/* In whose form a reply is; NULL: OpenAI's completions. */
struct moe_reply_api;
const struct moe_reply_api *moe_request_api(enum moe_request_kind kind);

enum {
    MOE_REQUEST_MEMORY = 32 << 20, /* for a body's values, while it is read */
    MOE_REQUEST_MAX_CHOICES = 128,
    MOE_REQUEST_MAX_INPUTS = 2048,
    MOE_REQUEST_MAX_FILES = 256,
    MOE_REQUEST_MAX_REPLY_BYTES = 4 << 20, /* of vectors, prompts and ids that replies give back */
    MOE_REQUEST_MAX_STOPS = 16,
    MOE_REQUEST_MAX_STOP_BYTES = 1 << 10,
    MOE_REQUEST_MAX_TOP_LOGPROBS = 20,
    MOE_REQUEST_MAX_FIELDS = 64,
    MOE_REQUEST_MAX_VARIABLES = 64,
    MOE_REQUEST_IGNORED = 256,
    MOE_REQUEST_MAX_BIASES = 1024,
    MOE_REQUEST_MAX_BIASED_BYTES = 16 << 10, /* of their texts together */
    MOE_REQUEST_MAX_STOP_IDS = 64,
    MOE_REQUEST_MAX_BREAKERS = 32,
    MOE_REQUEST_MAX_BREAKER_BYTES = 64,
};

/* What "logit_bias" adds to a token, or to each token of a text. */
struct moe_request_bias {
    char *text; /* NULL: `token` says it */
    struct moe_logit_bias token;
};

struct moe_request_field {
    char *name, *text;
};

/* Another file than that whose middle is wanted (moe_prompt_files). */
struct moe_request_file {
    char *name, *text;
};

struct moe_request {            /* owns everything it points at */
    enum moe_request_kind kind; /* CHAT or TEXT */
    const struct moe_reply_api *api;
    enum moe_request_task task;
    bool bare, special; /* of IDS and a text: without what begins and ends texts; special tokens
                           spelled there count as such */
    char *model;        /* the name asked for; NULL: any */

    /* CHAT: the conversation as in prompt/chat.h, with all its members; variables are those of
     * "chat_template_kwargs", and "reasoning_effort". */
    struct json_t *messages, *tools, *variables; /* tools, variables: NULL for none */
    bool continues;                              /* the answer goes on with the last message */
    bool truncates;  /* its oldest turns are left out where it is too long (moe_prompt_chat_end) */
    bool no_thought; /* is wanted, by one of the variables */
    bool must_call, parallel_calls; /* "tool_choice" is "required" or a function; several at once */
    struct json_t *callable;        /* those of the tools that may be called; NULL: none */
    uint64_t chat_bytes;            /* their memory */
    char *question;                 /* the last user's text; NULL: none */
    /* TEXT: prompts, and of the tasks MEAN and LAST what is pooled: at least one. */
    struct moe_request_input *inputs;
    uint32_t n_inputs;
    char *source_language, *target_language; /* struct moe_languages; NULL: none */
    char *prefix_text; /* precedes the one text (moe_prompt_prefixed); NULL: none */
    char *suffix; /* follows the texts, and the answers lie between (moe_prompt_between); NULL: none
                   */

    struct moe_request_file *files; /* go before what is between texts, the nearest last */
    uint32_t n_files;

    struct moe_sampler_options sampling; /* as asked for, with a random seed if none is */
    struct moe_request_bias *biases;     /* in place of sampling.biases */
    uint32_t n_biases;
    const char **breakers;   /* sampling.dry_breakers, owned; NULL: the usual ones */
    uint64_t max_tokens;     /* UINT64_MAX: no limit */
    uint64_t thought_tokens; /* of its thought; UINT64_MAX: no limit */
    uint32_t min_tokens;
    uint32_t *stop_ids; /* tokens that end it */
    uint32_t n_stop_ids;
    const char **stops; /* NULL-terminated, owns the texts; never NULL */
    uint32_t n_stops;
    /* Choices computed: of all prompts, and of each; choice i is of prompt i / n_each, and drawn
     * with moe_request_seed(r, i). The reply has n_shown of each, the likeliest by token. */
    uint32_t n, n_each, n_shown;
    bool stream, stream_usage;
    bool logprobs;         /* report each token's ... */
    uint32_t top_logprobs; /* ... and the likeliest in its place */
    bool ignore_eos, echo; /* echo: TEXT, the prompt comes first */
    bool draft;            /* drafts are allowed if the server drafts */

    char ignored[MOE_REQUEST_IGNORED]; /* names of keys that had no effect, "user, store" */
    /* Of Responses: the one that this goes on from (NULL: none), how many messages come before that
     * conversation, and whether to keep the response. */
    char *before;
    uint32_t n_instructions;
    bool refers; /* to items of earlier responses (moe_request_refer) */
    bool keeps;
    char *asked; /* of other APIs: JSON, members that replies give back; NULL: none */

    struct moe_grammar *grammar; /* holds the answer; NULL: free */
    char *id; /* JSON lines: the value of "custom_id" or "id", as JSON; NULL: none */
    struct moe_request_field *fields; /* "metadata" */
    uint32_t n_fields;
};

/* Reads a body of n bytes, within an allowance (NULL: the usual one). MOE_ERR_FORMAT: not JSON, or
 * not possible; MOE_ERR_INTERRUPTED: cancelled; *out is NULL on errors. */
int moe_request_parse(struct moe_request **out, enum moe_request_kind kind, const void *json,
                      uint64_t n, struct moe_allowance *allowance, struct moe_err *err);
/* The same from a parsed body (fmt/json.h), which is only borrowed. */
int moe_request_read(struct moe_request **out, enum moe_request_kind kind,
                     const struct json_t *body, struct moe_allowance *allowance,
                     struct moe_err *err);
void moe_request_free(struct moe_request *r); /* NULL is fine */

/* Memory of a waiting request, including its grammar's constraints once it runs. */
uint64_t moe_request_bytes(const struct moe_request *r);

/* Puts the messages of an earlier conversation, JSON, before those of the request, behind its
 * instructions. */
int moe_request_go_on(struct moe_request *r, const void *conversation, uint64_t n,
                      struct moe_err *err);

/* Puts the items of earlier responses in the place of what refers to them. find: appends the
 * response, JSON, that has an item with this id; false: there is none. */
int moe_request_refer(struct moe_request *r,
                      bool (*find)(void *ctx, const char *item, struct moe_buf *response),
                      void *ctx, struct moe_err *err);

/* Its messages but for its instructions, n of them, as JSON, which counts among its bytes; free().
 * NULL: out of memory. */
char *moe_request_conversation(struct moe_request *r, uint32_t *n);

/* Adds a key with the `path` before it to those that had no effect. */
void moe_request_ignore(char ignored[MOE_REQUEST_IGNORED], const char *path, const char *key);

uint64_t moe_request_seed(const struct moe_request *r, uint32_t choice);

/* A value for routing rules: "prompt" (the last user's text, or the first prompt), "model", or a
 * member of "metadata". NULL: none. */
const char *moe_request_field(const struct moe_request *r, const char *name);

#endif
