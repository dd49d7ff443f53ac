/*
 * State of a server: what its files share. Internal to the floor.
 *
 * One mutex guards dispatch, the list of requests and the counts. A job belongs to the queue in
 * which it waits, under the mutex, and from then on to the executor that took it. Events are told
 * without the mutex.
 */
#ifndef MOE_SERVE_STATE_H
#define MOE_SERVE_STATE_H

#include <pthread.h>

#include "base/buf.h"
#include "chat/chat.h"
#include "coe/costs.h"
#include "coe/dispatch.h"
#include "engine/batch.h"
#include "engine/engine_share.h"
#include "serve/server.h"

struct asked;
struct executor;
struct host_tier; /* serve/host_tier.h */

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
    uint32_t kind;       /* of the server's needs: models of one architecture share them */
    uint64_t all, least; /* of memory, with all its experts there; that works (engine_share.h) */
    uint64_t directory;  /* of these */
    uint64_t file_bytes;
    bool resident;                       /* with `all`, no expert of it is in a cache */
    struct moe_sampler_options sampling; /* as its makers published it */
    struct moe_engine_gpu_needs gpu;     /* what it takes where it computes on one */
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
    struct moe_engine_needs *needs; /* [n_kinds] */
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

#endif
