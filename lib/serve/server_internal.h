/*
 * State of a server: what its files share.
 *
 * One mutex guards dispatch, the list of requests and the counts. A job belongs to the queue in
 * which it waits, under the mutex, and from then on to the executor that took it. Events are told
 * without the mutex.
 */
#ifndef MOE_SERVE_SERVER_INTERNAL_H
#define MOE_SERVE_SERVER_INTERNAL_H

#include <pthread.h>

#include "base/buf.h"
#include "engine/batch.h"
#include "engine/memory.h"
#include "prompt/chat.h"
#include "serve/coe_costs.h"
#include "serve/coe_dispatch.h"
#include "serve/server.h"

struct asked;
struct executor;
struct host_tier; /* serve/server_internal.h */

enum job_state { JOB_WAITS, JOB_TAKEN, JOB_ENDED };

/* A choice of a request, on its way through one model after another. */
struct job {
    struct moe_coe_request queued; /* first: a job is found from it; names its model */
    struct asked *of;
    uint32_t choice;
    enum job_state state;
    uint32_t executor; /* where it waits or runs */
    bool cancelled;
    struct job *next_cancelled;
    double came, began; /* to this queue; its computation */
    /* While it runs. */
    struct executor *x;
    uint64_t in_batch;                  /* its number in the batch; 0: it is in none */
    struct moe_changes changes, before; /* of its models' passes; of the session's before it */
    const char **stops;
    struct moe_constraint *constraint; /* NULL: any answer will do */
    bool holds;                        /* its text, until it is known to be final */
    struct moe_buf text;
    struct moe_buf said;  /* struct moe_token_said, held likewise */
    struct moe_buf route; /* names, NUL-terminated once it is told */
};

/* A request until its last choice has ended. */
struct asked {
    uint64_t id;
    uint32_t slot;  /* in the server's list */
    uint64_t bytes; /* that it takes */
    struct moe_request *request;
    struct moe_server_events events;
    double came;
    pthread_mutex_t telling; /* one event at a time */
    uint32_t n_left;
    struct job jobs[]; /* [request->n] */
};

struct model {
    char *name, *path;
    bool goes_on; /* results may go to another one */
    char *broken; /* why it cannot be opened, as was found at the start; NULL: it can */
    int broken_status;
    uint32_t kind;             /* of the server's needs: models of one architecture share them */
    struct moe_needs_on on[2]; /* what it takes on the processor, on a GPU (engine/memory.h) */
    uint64_t file_bytes;
    struct moe_sampler_options sampling; /* as its makers published it */
};

enum loaded_state { MODEL_ABSENT, MODEL_LOADING, MODEL_READY, MODEL_FAILED };

/* A model in an executor's memory. Its state is guarded by the mutex, the rest belongs to the
 * thread that loads it while it is LOADING, and to the executor when it is READY. */
struct loaded {
    enum loaded_state state;
    bool leaves;               /* it has to go before another one is loaded */
    struct moe_engine *engine; /* READY */
    bool from_host;            /* it came from the host tier */
    uint64_t read_bytes;       /* from disk, for it */
    struct moe_chat *chat;     /* NULL: it has none, or ... */
    struct moe_err no_chat;    /* ... none that can be used: why (status MOE_OK: it has none) */
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
    uint64_t expert_bytes, batch_bytes; /* of memory: for models, for what computes with one; of a
                                           GPU's where it computes on one */
    /* ... and then of main memory beside these: for models, of which it has room for so many. */
    uint64_t host_expert_bytes, host_batch_bytes;
    uint32_t most_models;
    struct loaded *loaded; /* [n_models] */
    pthread_t loader;      /* loads the next model while one computes */
    bool has_loader;
    pthread_cond_t load, is_loaded;
    uint32_t to_load; /* by the loader; MOE_COE_NONE: it is idle */
    uint32_t model;   /* whose batch is open; MOE_COE_NONE: none */
    struct moe_batch *batch;
    uint32_t room;         /* jobs that the batch takes side by side */
    uint32_t n_running;    /* ... that it has */
    struct job *cancelled; /* waiting or running ones that are to end */
    struct moe_server_executor_counts counts;
    struct moe_stats seen; /* of its session, that the server's figures have */
    struct moe_changes seen_changes;
    uint64_t preempted_before; /* by batches that are closed */
};

struct moe_server {
    struct moe_server_options options; /* complete */
    struct moe_buf template;           /* the text of options.template_file */
    struct moe_coe_collection *own;    /* of one pack; NULL: the caller's */
    const struct moe_coe_collection *collection;
    uint32_t n_models, n_executors, n_kinds;
    struct model *models;
    struct moe_needs *needs; /* [n_kinds] */
    struct executor *executors;
    struct moe_gpu *gpu; /* where executors compute on one: to be asked; engines open their own */
    uint64_t gpu_bytes;  /* the budget of its memory; 0: there is none */
    uint64_t host_bytes; /* of main memory, for packs above the disk */
    struct host_tier *host;
    bool whole; /* one model's engine has all memory, on a GPU: it is opened with its session */
    struct moe_coe_experts *all; /* as dispatch sees the models */
    uint64_t *sizes;             /* [n_executors][n_models] there */
    const uint64_t *size_rows[MOE_SERVER_MAX_EXECUTORS];
    struct moe_coe_cost *costs[MOE_COE_MAX_PROCESSORS]; /* [kinds of `all`] each: cpu, cuda */
    uint32_t processors[MOE_COE_MAX_PROCESSORS];        /* ... and their numbers for dispatch */
    uint64_t request_bytes, request_bytes_max;          /* that requests take; and may */
    pthread_mutex_t mutex;
    pthread_cond_t idle;
    struct moe_coe_dispatch *dispatch;
    struct asked **slots; /* [n_slots] NULL: free */
    uint32_t n_slots, *free_slots, n_free;
    uint64_t n_asked; /* so far */
    bool closing;
    double opened;
    uint64_t memory_bytes, floor_bytes; /* the budget, and the smallest that works */
    struct moe_server_counts counts;
};

/* Dispatching: what serve/coe_dispatch.h needs to know of a server's models, executors and their
 * costs.
 */

/* Opens the dispatch, once memory is divided. */
int dispatching_open(struct moe_server *s, struct moe_err *err);
void dispatching_close(struct moe_server *s);

/* A batch of n jobs took so long, or a model to load: what is predicted from then on follows what
 * is seen, unless the costs were measured before. Under the mutex. */
void dispatching_learn_batch(struct executor *x, uint32_t model, uint32_t n, double seconds);
void dispatching_learn_load(struct executor *x, uint32_t model, double seconds);

/* Executors: threads that take batches from their queue and compute them. */

/* Loads a model before the thread is started; its state says how that went. */
void executor_load(struct executor *x, uint32_t model);
/* Starts the thread. */
int executor_start(struct executor *x, struct moe_err *err);
/* Waits for its end, once the server is closing, and frees what the thread held. */
void executor_join(struct executor *x);

/*
 * The tier above the disk (CoServe 4.1, 4.3), where executors compute on a GPU, which has memory of
 * its own: packs in main memory, whole as their files are. A pack that is loaded from disk onto the
 * GPU passes through it and stays, so that once it has left the GPU it is loaded from here. Who
 * leaves the tier is decided as for the executors' own memories (serve/coe_dispatch.h).
 */

/* Opens it in s->host, once the dispatch is; where there is no room for it, nothing. */
int host_tier_open(struct moe_server *s, struct moe_err *err);
void host_tier_close(struct moe_server *s);

/* Whether a model's pack is there. Under the mutex. */
bool host_tier_has(const struct moe_server *s, uint32_t model);
/* Memory that packs in it take, and how many these are. Under the mutex. */
void host_tier_count(const struct moe_server *s, uint64_t *bytes, uint32_t *n);

/* A model's pack, held there until it is released: *was_there, or read from disk now. may_read
 * false: only where it is there. image->bytes NULL: it is not, or has no room; then nothing is
 * held.
 */
int host_tier_hold(struct moe_server *s, uint32_t model, bool may_read,
                   struct moe_pack_image *image, bool *was_there, struct moe_err *err);
/* keep false: it is damaged, and leaves. */
void host_tier_release(struct moe_server *s, uint32_t model, bool keep);

/* Reads the likeliest packs that are not there into what room is left. One that cannot be read is
 * left out. MOE_ERR_INTERRUPTED. */
int host_tier_fill(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err);

/* Jobs: requests as the server keeps them, and their choices as they run. */

/* A request in the server's list, its jobs not queued. Under the mutex. MOE_ERR_LIMIT: the list is
 * full. */
int asked_new(struct asked **out, struct moe_server *s, struct moe_request *r,
              const struct moe_server_events *events, struct moe_err *err);
/* Takes it off the list and frees it, without the caller's request where it is still theirs. Under
 * the mutex. */
void asked_free(struct moe_server *s, struct asked *a, bool with_request);
/* The request of that id; NULL: it has ended. Under the mutex. */
struct asked *asked_find(const struct moe_server *s, uint64_t id);

/* Puts a job into the queue of the executor that is to have it. Under the mutex. */
int job_queue(struct moe_server *s, struct job *j, struct moe_err *err);
/* Adds a job to the executor's batch, or ends it with what hinders that. In the executor's thread,
 * as the following. */
void job_begin(struct executor *x, struct job *j);
/* Ends a job that is not in a batch: MOE_OK with MOE_STOP_USER. */
void job_end(struct executor *x, struct job *j, int status, const struct moe_err *err);
/* Takes what the executor's session has counted since then into the server's figures. Under the
 * mutex. */
void job_count(struct executor *x);
/* Ends a job that runs. */
void job_stop(struct executor *x, struct job *j);

/* Memory: what models take, and who gets how much of the process's and of a GPU's. */

/* Looks at every model: what it takes, and which cannot be opened. Before other threads run. */
int memory_survey(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err);

/* Divides the budgets (server_memory.c). Main memory: first the program and waiting requests, then
 * executors by equal parts, of each one part for models and one for what computes with them. A
 * GPU's: likewise among the executors that compute on it; what these have of main memory beside
 * what they need there is one tier for packs above the disk. MOE_ERR_LIMIT: too small. */
int memory_divide(struct moe_server *s, struct moe_err *err);

/* The session of a model on an executor, within the part for what computes. */
int memory_session(const struct executor *x, const struct model *m, struct moe_session_options *o,
                   struct moe_err *err);
/* Of all kinds of models, in the calling thread's team: the least room that a session works in, and
 * what all sequences take with whole contexts. */
void memory_of_batches(const struct moe_server *s, bool on_gpu, struct moe_session_room *least,
                       struct moe_session_room *full);
/* What a model's engine takes of the memory where the executor computes. */
uint64_t memory_of_model(const struct executor *x, const struct model *m);
/* Whether all its experts are there; else it keeps them in a cache. */
bool memory_is_whole(const struct executor *x, const struct model *m);
/* Whether the host tier is for the model: engines on a GPU have all its experts there. */
bool memory_in_tier(const struct moe_server *s, uint32_t model);

/* Models: which there are, and having them in an executor's memory. */

/* The models of the options, by name. */
int models_list(struct moe_server *s, struct moe_err *err);
void models_free(struct moe_server *s);

/* Has a model in the executor's memory. On errors it is not there. */
int model_load(struct executor *x, uint32_t model, const struct moe_progress *progress,
               struct moe_err *err);
/* Takes it out, where it is. */
void model_unload(struct executor *x, uint32_t model);

#endif
