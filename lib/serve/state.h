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
#include "coe/dispatch.h"
#include "engine/batch.h"
#include "serve/server.h"

struct asked;
struct executor;

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
    uint64_t in_batch; /* its number in the batch; 0: it is in none */
    const char **stops;
    bool holds; /* its text, until it is known to be final */
    struct moe_buf text;
    struct moe_buf said;  /* struct moe_token_said, held likewise */
    struct moe_buf route; /* names, NUL-terminated once it is told */
};

/* A request until its last choice has ended. */
struct asked {
    uint64_t id;
    uint32_t slot; /* in the server's list */
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
};

/* A model in an executor's memory. */
struct loaded {
    struct moe_engine *engine; /* NULL: it is not there */
    const struct moe_chat_format *format;
};

struct executor {
    struct moe_server *server;
    uint32_t index;
    struct moe_server_executor options;
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    struct loaded *loaded; /* [n_models] */
    uint32_t model;        /* whose batch is open; MOE_COE_NONE: none */
    struct moe_batch *batch;
    uint32_t n_running;    /* jobs of the batch */
    struct job *cancelled; /* waiting or running ones that are to end */
    struct moe_server_executor_counts counts;
    struct moe_stats seen;     /* of its session, that the server's figures have */
    uint64_t preempted_before; /* by batches that are closed */
};

struct moe_server {
    struct moe_server_options options; /* complete */
    uint32_t n_models, n_executors;
    struct model *models;
    struct executor *executors;
    struct moe_coe_expert *experts; /* [n_models], as dispatch sees them */
    struct moe_coe_experts all;
    struct moe_coe_cost cost;
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
