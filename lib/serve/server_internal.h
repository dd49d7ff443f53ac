/*
 * State of a server, shared by its files.
 *
 * One mutex guards dispatch, the list of requests and the counts. A waiting job belongs to its
 * queue, under the mutex, and from then on to the executor that took it. Events are called without
 * the mutex.
 */
#ifndef MOE_SERVE_SERVER_INTERNAL_H
#define MOE_SERVE_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "engine/generate.h"
#include "engine/memory.h"
#include "prompt/chat.h"
#include "serve/coe_costs.h"
#include "serve/coe_dispatch.h"
#include "serve/server.h"

enum { SERVER_LEAST_READING = 1 << 20 /* bytes for reading a request, at least */ };

struct request;
struct executor;
struct host_tier; /* server_memory.c */

enum job_state { JOB_WAITS, JOB_TAKEN, JOB_ENDED };

/* Who has requests that have not ended, or had and was given more than those who have. */
struct client {
    struct moe_coe_client turn; /* .given: positions computed for it */
    uint64_t id;
    uint32_t n_requests, n_choices; /* that have not ended; one of a request that is not read */
    struct client *next;
};

/* A choice of a request, passing through one model after another. */
struct job {
    struct moe_coe_request queued; /* first: a job is found from it; names its model */
    struct request *of;
    uint32_t choice;
    enum job_state state;
    uint32_t executor; /* where it waits or runs */
    bool cancelled;
    bool taken; /* counted in its client's turn */
    struct job *next_cancelled;
    double came, began; /* in this queue; its computation */
    /* While it runs. */
    struct executor *x;
    uint64_t in_batch;                         /* its number in the batch; 0: not in one */
    struct job *next;                          /* in the batch */
    bool rests;                                /* ... but gave its place to another client's */
    struct moe_generate_work work, turn_began; /* so far; when it last got a place */
    double billed;                             /* of the work, to its client */
    struct moe_changes changes, before;        /* in its models' passes; the session's before it */
    const char **stops;
    struct moe_logit_bias *biases;     /* of its model's tokens */
    struct moe_ids stop_ids;           /* with those that end what is between two texts */
    struct moe_constraint *constraint; /* NULL: unconstrained */
    bool holds;                        /* holds text back until it is known to be final */
    struct moe_answer_reader *reader;  /* of a chat's answer; NULL: none */
    enum moe_chat_thought thought;     /* ... before it */
    double *pooled; /* [n_pooled] the mean of states so far, or the last; NULL: not wanted */
    uint32_t n_pooled;
    struct moe_buf text;
    struct moe_buf said;  /* struct moe_token_said, held back likewise */
    struct moe_buf route; /* names, NUL-terminated at the end */
};

/* A request until its last choice has ended. */
struct request {
    uint64_t id;
    uint32_t slot;               /* in the server's list */
    uint64_t bytes;              /* its memory */
    struct moe_request *request; /* NULL: it is still to be read */
    struct moe_server_events events;
    struct client *client;
    uint32_t n_counted; /* among the client's choices */
    double came;
    pthread_mutex_t telling; /* held during an event */
    uint32_t n_left, n_told; /* choices that have not ended; whose end was told */
    struct job *jobs;        /* [request->n] */
    atomic_bool cancelled;
    /* Before it is read. */
    enum moe_request_kind kind;
    struct moe_buf body;
    bool waits_to_be_read;
    struct request *next_to_read; /* or the next that was ousted */
    /* The prompt for a model, which its choices share. */
    pthread_mutex_t preparing;
    struct moe_ids ids;
    uint64_t again;      /* of these, that the next turn begins with */
    uint32_t target;     /* what an encoder's answer begins with (moe_prompt_source); 0: nothing */
    uint32_t n_left_out; /* messages, since they did not fit */
    uint32_t n_begun;    /* choices that have had it */
    uint32_t ids_of;     /* the model; MOE_COE_NONE: not prepared */
    uint32_t ids_input;  /* which of the request's inputs */
    struct moe_grammar **calls; /* [n_models] that answers follow where they may call tools; NULL:
                                   none */
    struct moe_err why;         /* status MOE_OK: `ids` are there */
};

/* Requests that wait to be read. */
struct to_read {
    struct request *first, **last;
};

struct model {
    char *name, *path;
    bool goes_on;          /* results may go to another model */
    atomic_bool is_broken; /* it could not be opened at the start, nor since */
    char *broken;          /* why; NULL: it could */
    int broken_status;
    uint32_t kind; /* index in the server's needs, shared by models of one architecture */
    struct moe_needs_on on[2]; /* what it takes on the processor, on a GPU (engine/memory.h) */
    uint64_t file_bytes, fingerprint, parameters;
    char weights[MOE_NAME_BYTES];
    const char *format;
    struct moe_sampler_options sampling; /* as published */
    bool chats, calls, thinks;           /* once it has been loaded; under the mutex */
};

/* Another name of a model. */
struct alias {
    char *name;
    uint32_t model;
};

enum loaded_state { MODEL_ABSENT, MODEL_LOADING, MODEL_READY, MODEL_FAILED };

/* A model in an executor's memory. The mutex guards its state; the rest belongs to the loading
 * thread while LOADING, and to the executor when READY. */
struct loaded {
    enum loaded_state state;
    bool leaves;               /* it must leave before another one is loaded */
    struct moe_engine *engine; /* READY */
    bool from_host;            /* loaded from the host tier */
    uint64_t read_bytes;       /* from disk, for it */
    struct moe_chat *chat;     /* NULL: it has none, or ... */
    struct moe_err no_chat;    /* ... why it cannot be used (status MOE_OK: it has none) */
    int status;                /* FAILED: why */
    char *why;
};

struct executor {
    struct moe_server *server;
    uint32_t index;
    struct moe_server_executor options;
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    uint64_t expert_bytes, batch_bytes; /* memory for models, and for computing with one; the GPU's
                                           if it computes there */
    /* ... and then main memory beside these; for models, with room for most_models. */
    uint64_t host_expert_bytes, host_batch_bytes;
    uint32_t most_models;
    struct loaded *loaded; /* [n_models] */
    pthread_t loader;      /* loads the next model while one computes */
    bool has_loader;
    pthread_cond_t load, is_loaded;
    uint32_t to_load; /* for the loader; MOE_COE_NONE: idle */
    uint32_t model;   /* whose batch is open; MOE_COE_NONE: none */
    struct moe_generator *batch;
    uint32_t room;      /* jobs that the batch takes side by side */
    uint32_t n_running; /* ... that it has, also those that rest */
    uint32_t n_resting;
    struct job *jobs;      /* these */
    struct job *cancelled; /* waiting or running jobs to end */
    struct moe_server_executor_counts counts;
    struct moe_stats seen; /* its session's counts already in the server's */
    struct moe_changes seen_changes;
    uint64_t preempted_before;        /* in closed batches */
    struct moe_prompt_waiting unkept; /* for the disk, of the batch's model */
};

struct moe_server {
    struct moe_server_options options; /* with defaults filled in */
    struct moe_buf template;           /* text of options.template_file */
    struct moe_coe_collection *own;    /* for one pack; NULL: the caller's */
    const struct moe_coe_collection *collection;
    uint32_t n_models, n_executors, n_kinds;
    struct model *models;
    struct alias *aliases;
    uint32_t n_aliases;
    struct moe_needs *needs; /* [n_kinds] */
    struct executor *executors;
    struct moe_gpu *gpu;    /* if executors compute on one: to measure it; engines open their own */
    uint64_t gpu_bytes;     /* budget of its memory; 0: none */
    struct moe_err failure; /* of the GPU or another rank; MOE_OK: they work */
    const struct moe_progress *opening; /* while it opens; NULL: nobody looks */
    volatile sig_atomic_t ends;         /* passes that wait for weights do so no longer */
    struct moe_progress passes;
    uint64_t host_bytes; /* main memory for packs above the disk */
    struct host_tier *host;
    struct moe_prompt_cache *prompt_cache; /* NULL: there is none */
    bool whole; /* the one model's engine has all memory, on a GPU: it is opened with its session */
    struct moe_coe_experts *all; /* the models as dispatch sees them */
    uint64_t *sizes;             /* [n_executors][n_models] on each executor */
    const uint64_t *size_rows[MOE_SERVER_MAX_EXECUTORS];
    struct moe_coe_cost *costs[MOE_COE_MAX_PROCESSORS]; /* [kinds of `all`] each: cpu, cuda */
    uint32_t processors[MOE_COE_MAX_PROCESSORS];        /* ... and dispatch's numbers for them */
    uint64_t request_bytes, request_bytes_max;          /* memory of requests, and its limit */
    uint64_t large_bytes;                               /* ... of large ones, and of what rests */
    uint64_t reading_bytes; /* that reading a request may take: the reader, and each executor for
                               a prompt */
    pthread_mutex_t mutex;
    pthread_cond_t idle;
    struct moe_coe_dispatch *dispatch;
    pthread_t reader; /* reads bodies */
    bool has_reader;
    pthread_cond_t wants_reading;
    struct to_read quick, slow; /* slow: what takes more than a moment */
    struct request **slots;     /* [n_slots] NULL: free */
    uint32_t n_slots, *free_slots, n_free;
    uint32_t n_unlisted; /* requests that have ended, whose events are not over */
    uint64_t n_requests; /* so far */
    struct client *clients;
    bool closing;
    double opened;
    uint64_t memory_bytes, floor_bytes; /* the budget, and the smallest that works */
    struct moe_server_counts counts;
};

/* Dispatching: a server's models, executors and their costs for serve/coe_dispatch.h. */

/* Opens the dispatch, after memory is divided. */
int dispatching_open(struct moe_server *s, struct moe_err *err);
void dispatching_close(struct moe_server *s);

/* Executors: threads that take batches from their queues and compute them. */

/* Loads a model before the thread starts; its state tells the result. */
void executor_load(struct executor *x, uint32_t model);
/* Starts the thread. */
int executor_start(struct executor *x, struct moe_err *err);
/* Waits for its end, once the server closes, and frees what the thread held. */
void executor_join(struct executor *x);

/*
 * The tier above the disk (CoServe 4.1, 4.3), for executors on a GPU with its own memory: packs in
 * main memory, whole as their files are. A pack loaded from disk to the GPU passes through it and
 * stays, so that it can be loaded from here after leaving the GPU. Eviction follows the same policy
 * as in the executors' own memories (serve/coe_dispatch.h).
 */

/* Opens it in s->host, after the dispatch; does nothing if there is no room for it. */
int host_tier_open(struct moe_server *s, struct moe_err *err);
void host_tier_close(struct moe_server *s);

/* Whether a model's pack is there. Under the mutex. */
bool host_tier_has(const struct moe_server *s, uint32_t model);
/* Memory of its packs, and their number. Under the mutex. */
void host_tier_count(const struct moe_server *s, uint64_t *bytes, uint32_t *n);

/* Holds a model's pack until it is released: *was_there, or read from disk now. may_read false:
 * only if it is there. image->bytes NULL: it is not, or has no room; then nothing is held. */
int host_tier_hold(struct moe_server *s, uint32_t model, bool may_read,
                   struct moe_pack_image *image, bool *was_there, struct moe_err *err);
/* keep false: it is damaged, and leaves. */
void host_tier_release(struct moe_server *s, uint32_t model, bool keep);

/* Fills the remaining room with the likeliest packs. Skips one that cannot be read.
 * MOE_ERR_INTERRUPTED. */
int host_tier_fill(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err);

/* Requests as the server keeps them, and their choices as jobs. */

/* The thread that reads bodies, until the server closes. */
void *requests_read(void *server);
/* Ends the jobs of a request that have not ended, or its reading. Under the mutex. */
void request_cancel(struct moe_server *s, struct request *a);

/* Adds a job to the executor's batch, or ends it with the error. Called in the executor's thread,
 * like the following. */
void job_begin(struct executor *x, struct job *j);
/* Ends a job that is not in a batch: MOE_OK with MOE_STOP_USER. */
void job_end(struct executor *x, struct job *j, int status, const struct moe_err *err);
/* Adds what the executor's session has counted since the last call to the server's counts. Under
 * the mutex. */
void job_count(struct executor *x);
/* Counts what was computed for it since the last call as given to its client. Under the mutex. */
void job_bill(struct job *j);
/* Has a running job rest, so that another client's gets its place. Under the mutex. False: there is
 * no memory for what it keeps. */
bool job_rest(struct executor *x, struct job *j);
/* Has it go on. The mutex is held before and after. */
void job_resume(struct executor *x, struct job *j);
/* Ends a running job. */
void job_stop(struct executor *x, struct job *j);

/* Memory: what models take, and how the process's and a GPU's memory is divided. */

/* Finds every model's needs, and which cannot be opened. Call it before other threads run. */
int memory_survey(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err);

/* Divides the budgets (server_memory.c). Main memory: first the program and waiting requests, then
 * executors by equal parts, of each one part for models and one for what computes with them. A
 * GPU's: likewise among the executors that compute on it; what these have of main memory beside
 * what they need there is one tier for packs above the disk. MOE_ERR_LIMIT: too small. */
int memory_divide(struct moe_server *s, struct moe_err *err);

/* The context of sequences of a model of these needs. */
uint32_t memory_context(const struct moe_server *s, const struct moe_needs *needs);
/* The session of a model on an executor, within the part for computing. */
int memory_session(const struct executor *x, const struct model *m, struct moe_session_options *o,
                   struct moe_err *err);
/* For all kinds of models, in the calling thread's team: the least room that a session works in,
 * and the most that all sequences use with whole contexts. */
void memory_of_batches(const struct moe_server *s, bool on_gpu, struct moe_session_room *least,
                       struct moe_session_room *full);
/* A model's engine's memory where the executor computes. */
uint64_t memory_of_model(const struct executor *x, const struct model *m);
/* The same as dispatch counts it. */
uint64_t memory_as_listed(const struct executor *x, const struct model *m);
/* Looks again at a model that could not be opened at the start. It can be used from now on if
 * memory was divided for models like it. */
void memory_look_again(struct moe_server *s, uint32_t model);
/* Whether all its experts are there; otherwise they are in a cache. */
bool memory_is_whole(const struct executor *x, const struct model *m);
/* Whether the model uses the host tier: engines on a GPU have all experts there. */
bool memory_in_tier(const struct moe_server *s, uint32_t model);

/* Names of models (model_names.c). */

/* Reads the options' aliases, once models are listed. */
int aliases_list(struct moe_server *s, struct moe_err *err);
void aliases_free(struct moe_server *s);
/* The model that a request is for, by its name or by rules. */
int model_choose(const struct moe_server *s, struct moe_request *r, uint32_t *model,
                 struct moe_err *err);
/* Whether replies to a request for this name (NULL: none) have it as their model's. */
bool model_answers_as(const struct moe_server *s, const char *name);

/* Models: their list, and loading them into an executor's memory. */

/* Lists the models of the options, by name. */
int models_list(struct moe_server *s, struct moe_err *err);
void models_free(struct moe_server *s);

/* Removes a model, if it is there. */
void model_unload(struct executor *x, uint32_t model);

#endif
