/*
 * Server: requests of many callers to the models of a collection, within one memory budget
 * (CoServe, https://doi.org/10.1145/3676641.3715986). One pack is a collection of one.
 *
 * Executors, one thread each with its own team, take requests from queues that serve/coe_dispatch.h
 * fills, and answer those for one model side by side (engine/generate.h). An answer is bit for bit
 * what the model would give on its own. Every function may be called from any thread.
 */
#ifndef MOE_SERVE_SERVER_H
#define MOE_SERVE_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/allowance.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/progress.h"
#include "engine/answer.h"
#include "engine/engine.h"
#include "ranks/ranks.h"
#include "serve/coe_collection.h"
#include "serve/coe_costs.h"
#include "serve/coe_dispatch.h"
#include "serve/coe_plan.h"
#include "serve/prompt_cache.h"
#include "serve/request.h"

enum {
    MOE_SERVER_MAX_EXECUTORS = 64,
    MOE_SERVER_SEQUENCES = 8,
    MOE_SERVER_MAX_QUEUE = 1024,
};

struct moe_server_executor {
    struct moe_device_choice device; /* on a GPU: that of engine.device */
    int n_threads;                   /* 0: an equal part of the process's */
};

struct moe_server_options {
    /* What is served: a collection, borrowed, whose packs' paths are relative to `directory` (NULL:
     * as they are); or one pack. */
    const struct moe_coe_collection *collection;
    const char *directory, *pack;
    const char
        *name; /* name of the one pack's model; NULL: its file's, without directory and ending */

    /* How models are opened; memory_bytes is the whole process's, gpu_memory_bytes that of all
     * executors on the GPU, session.context each sequence's (0: the model's, at most context_cap).
     * Borrowed while the server is open. */
    struct moe_engine_options engine;
    const char *template_file; /* chat template of all models; NULL: each model's own */
    /* One pack answers only to its own name and aliases, not to any other; a collection to any. */
    bool strict_names, any_name;
    /* Other names of models, "NAME=MODEL", or of one pack "NAME"; NULL-terminated; NULL: none. */
    const char *const *aliases;

    const struct moe_server_executor *executors; /* [n_executors]; 0: one on engine.device */
    uint32_t n_executors;
    const struct moe_coe_schedule *schedule; /* NULL: "coserve" */
    enum moe_coe_evict evict;
    const struct moe_coe_costs
        *costs; /* for the collection's models on this machine; NULL: measured while serving */
    const struct moe_coe_plan
        *plan;             /* decides on executors and their memory; NULL: the options do */
    uint32_t draft;        /* most tokens of a draft (engine/answer.h), by the drafting layer if
                              engine.ahead; 0: none */
    uint32_t sequences;    /* side by side, for each executor; 0: MOE_SERVER_SEQUENCES */
    uint32_t max_queue;    /* unfinished requests; 0: MOE_SERVER_MAX_QUEUE */
    double expert_share;   /* share of an executor's memory for models; 0: 75% */
    double patience;       /* seconds after which a request for another model goes first; 0: 10 */
    bool no_prefetch;      /* does not load the next model while one computes */
    uint64_t beside_bytes; /* of the process's memory, for the caller */
    struct moe_prompt_cache_options prompt_cache; /* directory NULL: none */
};

struct moe_token_said;  /* engine/answer.h */
struct moe_answer_part; /* prompt/chat_answer.h */

/* A choice's end. */
struct moe_server_result {
    int status;                /* MOE_OK, or why it failed; other choices did not */
    const struct moe_err *err; /* if it failed */
    enum moe_stop_reason why;  /* if it did not */
    const char *stop_text;     /* of MOE_STOP_TEXT: the request's that appeared; NULL: the chat's */
    uint64_t n_prompt, n_tokens;
    /* Of other tasks than answers: the prompt's ids, the text of ids; what they are by. */
    const uint32_t *ids;
    const struct moe_buf *text;
    const struct moe_tokenizer *tokenizer;
    uint32_t context;
    const double *state; /* [n_state] of MEAN and LAST */
    uint32_t n_state;
    uint64_t n_cached;              /* prompt tokens reused from earlier */
    uint64_t n_drafted, n_accepted; /* draft tokens; accepted ones */
    double ttft_seconds;            /* from its arrival to the first token; 0: none */
    double seconds;                 /* ... to its end */
    double queue_seconds;           /* ... to the beginning of its computation */
    const char *model;              /* that answered */
    const char *route;              /* the models it passed through, "router > math" */
    /* Changes in the passes that it took part in, for all that ran side by side; if it reused
     * earlier computations, also in those before. */
    struct moe_changes changes;
};

/* Events of a request, called in the server's threads, one at a time for a request. They must not
 * block and may only call submit and cancel of the server. All may be NULL. */
struct moe_server_events {
    void *ctx;
    /* Who asks: clients share what the server has, and only requests of one owner what was computed
     * of prompts. 0: nobody in particular. */
    uint64_t client, owner;
    /* Of moe_server_submit_body: the body has been read; a failure refuses the request. */
    int (*read)(void *ctx, struct moe_request *r, struct moe_err *err);
    /* ... it is refused, and forgotten. MOE_ERR_LIMIT: the queue is full. */
    void (*refused)(void *ctx, const struct moe_err *why);
    /* The answer to a prompt of n_prompt tokens begins; of choices that other models go on with,
     * for each model. notes: what of its tools' schemas is kept in a wider sense; NULL: nothing. */
    void (*begun)(void *ctx, uint64_t n_prompt, uint32_t n_left_out, const char *notes);
    /* Final text in whole UTF-8 characters, of chats told apart (prompt/chat_answer.h); held back
     * while results of the model may still go to another model. */
    void (*part)(void *ctx, uint32_t choice, const struct moe_answer_part *part);
    /* Each token before its text, if logprobs are wanted. */
    void (*token)(void *ctx, uint32_t choice, const struct moe_token_said *token);
    /* Once for each choice; after the last one the request is forgotten. */
    void (*ended)(void *ctx, uint32_t choice, const struct moe_server_result *result);
};

struct moe_server;

/* MOE_ERR_LIMIT when memory is too small: the text names the smallest that works. A model of a
 * collection that cannot be opened fails only when it is asked for. */
int moe_server_open(struct moe_server **out, const struct moe_server_options *options,
                    const struct moe_progress *progress, struct moe_err *err);
/* If MOE_OK, the server owns the request. *id names it (may be NULL). MOE_ERR_LIMIT: the queue is
 * full; MOE_ERR_USAGE: no such model, or no rule accepts it. */
int moe_server_submit(struct moe_server *s, struct moe_request *r,
                      const struct moe_server_events *events, uint64_t *id, struct moe_err *err);
/* The same of a body that is still to be read, in a thread of the server's own and within what
 * reading may cost; takes the body if MOE_OK. What is wrong with it `refused` tells, which must not
 * be NULL. MOE_ERR_LIMIT: the queue is full. */
int moe_server_submit_body(struct moe_server *s, enum moe_request_kind kind, struct moe_buf *body,
                           const struct moe_server_events *events, uint64_t *id,
                           struct moe_err *err);
/* Refuses the requests that are not read yet, before the server is closed. */
void moe_server_refuse_unread(struct moe_server *s);
/* What reading one request may cost. */
struct moe_allowance moe_server_allowance(const struct moe_server *s);
/* Ends a request soon, with MOE_STOP_USER, if it has not ended yet. */
void moe_server_cancel(struct moe_server *s, uint64_t id);
/* Waits until all submitted requests have ended. Must not be called from an event. */
void moe_server_drain(struct moe_server *s);
/* Ends all requests with MOE_STOP_USER, waits for them, and frees. NULL is fine. */
void moe_server_close(struct moe_server *s);

/* Names of models, then "auto" if rules lead to them, then aliases; NULL past the end. */
const char *moe_server_model(const struct moe_server *s, uint32_t i);

/* What is known of a model before anyone asks it. */
struct moe_server_model {
    const char *name;  /* that is asked for */
    const char *model; /* ... and the model's own; NULL: rules lead to one */
    int64_t modified;  /* its file's time, in seconds since 1970 */
    bool loaded;       /* an executor has it */
    /* Since it was first loaded: whether its template can be used, has a place for tools, writes
     * thoughts. */
    bool chats, calls, thinks;
    /* 0 where it could not be opened yet, or rules choose. */
    uint64_t file_bytes, fingerprint, parameters;
    uint32_t context, most_context; /* of a sequence here; that the model was made for */
    uint32_t vocab, hidden, n_layers;
    /* "" likewise; its makers' name, as of struct moe_needs. */
    const char *family, *weights, *format;
    const struct moe_sampler_options *sampling; /* as published; NULL likewise */
};
/* Describes the i-th name: as above, and then the aliases. False: past the end. */
bool moe_server_describe(struct moe_server *s, uint32_t i, struct moe_server_model *out);
/* ... or the name that a client asks for. listed: only names above, unless the server was told to
 * take any (any_name). MOE_ERR_USAGE: it is not served. */
int moe_server_describe_name(struct moe_server *s, const char *name, bool listed,
                             struct moe_server_model *out, struct moe_err *err);

/* Whether the GPU has failed, or another rank, with what failed as *err: requests for it fail from
 * then on, and only another process can use it. */
bool moe_server_has_failed(struct moe_server *s, struct moe_err *err);
/* Appends the chat template of a model that is loaded, or the options'. */
void moe_server_template(struct moe_server *s, const char *name, struct moe_buf *out);
/* Answers computed side by side, by one executor. */
uint32_t moe_server_sequences(const struct moe_server *s);

/* ---- Counts since the server was opened ---- */

struct moe_server_executor_counts {
    const char *device;      /* "cpu", "cuda" */
    const char *model;       /* computing now; NULL: none */
    uint32_t running;        /* choices being computed */
    uint64_t waiting;        /* choices in its queue */
    uint64_t switches;       /* changes from one model to another */
    uint64_t loads;          /* models loaded, including those before the first request */
    uint64_t prefetched;     /* loaded while another one computed */
    uint64_t host_loads;     /* loaded from main memory; the others came from disk */
    uint64_t bytes_read;     /* from disk */
    uint64_t models_bytes;   /* memory of loaded models */
    uint64_t batch_bytes;    /* ... and of their computation */
    double busy_seconds;     /* computing */
    double load_seconds;     /* waiting for a model */
    double schedule_seconds; /* scheduling */
};

struct moe_server_counts {
    double seconds;
    uint64_t requests;                    /* accepted */
    uint64_t refused;                     /* because the queue was full */
    uint64_t ended, failed, cancelled;    /* choices */
    uint64_t waiting, running, preempted; /* choices; see engine/generate.h */
    uint64_t rested;                      /* times that one gave its place to another client's */
    uint64_t ousted;                      /* requests that others took the place of in the queue */
    uint64_t follow_ons;                  /* results that went to another model */
    uint64_t prompt_tokens, generated_tokens, cached_tokens;
    bool keeps_prompts; /* on disk: */
    struct moe_prompt_cache_counts prompt_cache;
    uint64_t drafted_tokens, accepted_tokens; /* by drafts; accepted ones */
    uint64_t stopped_drafts;                  /* answers whose drafts stopped */
    uint64_t activations, hits;               /* of experts within models; those found in memory */
    bool exact_required;                      /* --exact */
    struct moe_changes changes;               /* that may have changed results */
    char inexact[MOE_EXACTNESS_WHY]; /* options of models that may change results; "": none */
    uint64_t memory_bytes;           /* the budget; UINT64_MAX: unknown */
    uint64_t rss_bytes, floor_bytes; /* the process now; the smallest budget that works */
    uint64_t gpu_bytes;              /* the budget of a GPU's memory; 0: none computes */
    uint64_t host_bytes, host_taken; /* main memory for packs above the disk; the part used */
    uint32_t host_models;            /* packs there */
    double schedule_seconds;         /* assigning requests and choosing batches */
    uint32_t n_executors;
    struct moe_server_executor_counts executors[MOE_SERVER_MAX_EXECUTORS];
    uint32_t n_ranks; /* other processes that compute experts */
    struct moe_rank_report ranks[MOE_MAX_RANKS];
};
void moe_server_count(struct moe_server *s, struct moe_server_counts *out);

#endif
