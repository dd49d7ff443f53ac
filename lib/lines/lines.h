/*
 * JSON lines: many requests from a file or pipe, a line each, and a line for each result as it is
 * there.
 *
 * A request's line is a body of either API (request.h) with an id of its own, "custom_id" or "id",
 * a text or whole number; or a line of OpenAI's batch files: {"custom_id", "method", "url",
 * "body"}. Its result is
 *
 *     {"id": "batch_req_7", "custom_id": "a", "response": {"status_code": 200, "request_id",
 *      "body": {...}}, "error": null}
 *
 * where 7 is the number of the request's line and the body is that of reply.h, never a stream.
 * Where something that may have changed results was done in the passes that the request took part
 * in, for it or for those side by side, a last member "inexact" has the counts. A
 * bad request gets "response": null and an "error", and others are served. Empty lines count, and
 * have no result.
 *
 * Requests are read ahead of those that run, so many and so many bytes at most; a client that does
 * not send or does not take results holds up reading, not what runs.
 */
#ifndef MOE_LINES_LINES_H
#define MOE_LINES_LINES_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct moe_server;

enum {
    MOE_LINES_AHEAD = 128,           /* requests that are read and whose results are not written */
    MOE_LINES_AHEAD_BYTES = 4 << 20, /* ... and their lines' bytes, but for a single one */
    MOE_LINES_MAX_BYTES = 4 << 20,   /* of a line */
    MOE_LINES_MAX_LINES = 1 << 27,   /* of a file whose results may be gone on with */
};

struct moe_lines_options {
    const char *input; /* path; "-": standard input */
    /* Results go to the end of this file, which is there already only with `resume`: then what has
     * a result in it is not served again, and a last line without its end is cut off. Each result
     * is one write; so whenever a run is killed, it and the one that goes on serve every request
     * once. NULL: they are given to `put`. */
    const char *output;
    bool resume;
    /* Gets a line with its newline, in a thread of its own; a negative result ends the run. */
    int (*put)(void *ctx, const void *line, uint64_t n, struct moe_err *err);
    void *ctx;
    const volatile sig_atomic_t *stop; /* set by a signal handler; may be NULL */
};

struct moe_lines_counts {
    uint64_t n_served;  /* results that are answers */
    uint64_t n_refused; /* ... that are errors */
    uint64_t n_before;  /* requests that had a result before */
};

/* Memory that it takes at most beside the server. */
uint64_t moe_lines_bytes(const char *input);

/* Serves all requests; returns when their results are written. MOE_ERR_INTERRUPTED: *stop was set;
 * what had ended by then is written. MOE_ERR_USAGE: the output is there, and not to be gone on
 * with, or holds results of other requests. */
int moe_lines_serve(struct moe_server *server, const struct moe_lines_options *options,
                    struct moe_lines_counts *counts, struct moe_err *err);

#endif
