/* Jobs: requests as the server keeps them, and their choices as they run. */
#ifndef MOE_SERVE_JOB_H
#define MOE_SERVE_JOB_H

#include "serve/state.h"

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

#endif
