/*
 * Server: requests of many callers to the models of a collection, within one budget of memory
 * (CoServe, https://doi.org/10.1145/3676641.3715986). One pack is a collection of one.
 *
 * Executors, a thread each with a team of its own, take requests from queues that
 * serve/coe_dispatch.h fills, and answer those to one model side by side (engine/batch.h). An
 * answer is what the model would give alone, bit for bit. Every function may be called from any
 * thread.
 */
#ifndef MOE_SERVE_SERVER_H
#define MOE_SERVE_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "engine/answer.h"
#include "engine/engine.h"
#include "serve/coe_collection.h"
#include "serve/coe_costs.h"
#include "serve/coe_dispatch.h"
#include "serve/coe_plan.h"
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
    /* What is served: a collection, borrowed, whose packs' paths begin in `directory` (NULL: as
     * they are); or one pack. */
    const struct moe_coe_collection *collection;
    const char *directory, *pack;
    const char *name; /* of the one pack's model; NULL: its file's, without directory and ending */

    /* How models are opened; memory_bytes is that of the whole process, gpu_memory_bytes of all its
     * executors on the GPU, session.context is each sequence's (0: the model's, at most
     * context_cap). Borrowed while the server is open. */
    struct moe_engine_options engine;
    const char *template_file; /* chat template of all models; NULL: each its own */
    bool strict_names; /* one pack answers to its own name alone, not to whatever is asked for */

    const struct moe_server_executor *executors; /* [n_executors]; 0: one on engine.device */
    uint32_t n_executors;
    const struct moe_coe_schedule *schedule; /* NULL: "coserve" */
    enum moe_coe_evict evict;
    const struct moe_coe_costs *costs; /* of the collection's models here; NULL: as they show */
    const struct moe_coe_plan *plan;   /* says executors and their memory; NULL: the options do */
    uint32_t draft; /* tokens of a draft at most (engine/answer.h), by the layer that drafts where
                       engine.ahead; 0: none */
    uint32_t sequences;    /* side by side, of each executor; 0: MOE_SERVER_SEQUENCES */
    uint32_t max_queue;    /* requests that have not ended; 0: MOE_SERVER_MAX_QUEUE */
    double expert_share;   /* of an executor's memory, for models; 0: 75% */
    double patience;       /* seconds after which who waits for another model goes first; 0: 10 */
    bool no_prefetch;      /* the next model is not loaded while one computes */
    uint64_t beside_bytes; /* of the process's memory for the caller's own use */
};

struct moe_token_said; /* engine/answer.h */

/* How a choice of a request ended. */
struct moe_server_result {
    int status;                /* MOE_OK, or why it failed; others did not */
    const struct moe_err *err; /* then */
    enum moe_stop_reason why;  /* else */
    uint64_t n_prompt, n_tokens;
    uint64_t n_cached;              /* tokens of the prompt that were not computed again */
    uint64_t n_drafted, n_accepted; /* tokens of drafts; of these, that were right */
    double ttft_seconds;            /* from its coming to the first token; 0: there was none */
    double seconds;                 /* ... to its end */
    double queue_seconds;           /* ... to the beginning of its computation */
    const char *model;              /* that answered */
    const char *route;              /* the models that it went through, "router > math" */
    /* What was done in the passes that it took part in, of all that ran side by side; where it took
     * over what was computed before, in those before, too. */
    struct moe_changes changes;
};

/* What a request hears, in threads of the server: of one request never two things at once. They
 * must not block, and of the server may call submit and cancel alone. All may be NULL. */
struct moe_server_events {
    void *ctx;
    /* Text as it is certain, whole UTF-8 characters; that of a model whose results may go on to
     * another comes when it is known that it does not. */
    void (*text)(void *ctx, uint32_t choice, const char *bytes, uint64_t n);
    /* Where logprobs are wanted: each token, before its text. */
    void (*token)(void *ctx, uint32_t choice, const struct moe_token_said *token);
    /* Once for each choice; after the last the request is forgotten. */
    void (*ended)(void *ctx, uint32_t choice, const struct moe_server_result *result);
};

struct moe_server;

/* MOE_ERR_LIMIT when the memory is too small: the text names the smallest that works. A model of a
 * collection that cannot be opened fails alone, when it is asked. */
int moe_server_open(struct moe_server **out, const struct moe_server_options *options,
                    const struct moe_progress *progress, struct moe_err *err);
/* The request is the server's from then on, where MOE_OK. *id names it (may be NULL).
 * MOE_ERR_LIMIT: the queue is full; MOE_ERR_USAGE: there is no such model, or no rule takes it. */
int moe_server_submit(struct moe_server *s, struct moe_request *r,
                      const struct moe_server_events *events, uint64_t *id, struct moe_err *err);
/* Ends it soon, with MOE_STOP_USER, if it has not ended yet. */
void moe_server_cancel(struct moe_server *s, uint64_t id);
/* Waits until everything that was submitted has ended. Not from an event. */
void moe_server_drain(struct moe_server *s);
/* Ends what has not ended, with MOE_STOP_USER, waits for it, and frees. NULL is fine. */
void moe_server_close(struct moe_server *s);

/* The models by their names, then, where rules lead to them, "auto" for these; NULL past the end.
 */
const char *moe_server_model(const struct moe_server *s, uint32_t i);
/* How model i draws tokens where a request does not say; NULL: it is not known, as of "auto". */
const struct moe_sampler_options *moe_server_sampling(const struct moe_server *s, uint32_t i);

/* ---- Figures, since the server was opened ---- */

struct moe_server_executor_counts {
    const char *device;      /* "cpu", "cuda" */
    const char *model;       /* that it computes; NULL: none */
    uint32_t running;        /* choices that it computes */
    uint64_t waiting;        /* ... that are in its queue */
    uint64_t switches;       /* times that it went over to another model */
    uint64_t loads;          /* models loaded, those before the first request included */
    uint64_t prefetched;     /* of these, while another one computed */
    uint64_t host_loads;     /* ... and from main memory; the others are from disk */
    uint64_t bytes_read;     /* from disk */
    uint64_t models_bytes;   /* of memory that models take now */
    uint64_t batch_bytes;    /* ... and what computes with one */
    double busy_seconds;     /* it computed */
    double load_seconds;     /* it waited for a model */
    double schedule_seconds; /* it decided what to do */
};

struct moe_server_counts {
    double seconds;
    uint64_t requests;                    /* taken */
    uint64_t refused;                     /* by a full queue */
    uint64_t ended, failed, cancelled;    /* choices */
    uint64_t waiting, running, preempted; /* choices; see engine/batch.h */
    uint64_t follow_ons;                  /* results that went on to another model */
    uint64_t prompt_tokens, generated_tokens, cached_tokens;
    uint64_t drafted_tokens, accepted_tokens; /* by drafts; of these, that were right */
    uint64_t activations, hits;               /* of experts within models; those found in memory */
    bool exact_required;                      /* --exact */
    struct moe_changes changes;               /* what was done that may have changed results */
    char inexact[MOE_EXACTNESS_WHY]; /* what models were opened with that may; "": nothing */
    uint64_t memory_bytes;           /* the budget; UINT64_MAX: not known */
    uint64_t rss_bytes, floor_bytes; /* the process now; the smallest budget that works */
    uint64_t gpu_bytes;              /* the budget of a GPU's memory; 0: none computes */
    uint64_t host_bytes, host_taken; /* of main memory for packs above the disk; that they take */
    uint32_t host_models;            /* packs there */
    double schedule_seconds;         /* assigning, and deciding what comes next */
    uint32_t n_executors;
    struct moe_server_executor_counts executors[MOE_SERVER_MAX_EXECUTORS];
};
void moe_server_count(struct moe_server *s, struct moe_server_counts *out);

#endif
