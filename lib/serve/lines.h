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
#ifndef MOE_SERVE_LINES_H
#define MOE_SERVE_LINES_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "serve/request.h"

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

/* Lines of requests: taken from a file or pipe, and read. */

struct lines_input {
    const char *name; /* for error texts */
    int fd;
    struct moe_buf held; /* bytes that were read ... */
    uint64_t start;      /* ... of which these are done with */
    uint64_t n_lines;    /* taken so far: the last one's number */
    bool ended, passing; /* passing: the rest of a line that is too long */
};

int lines_input_open(struct lines_input *in, const char *path, struct moe_err *err);
void lines_input_close(struct lines_input *in);

enum { LINES_INPUT_END = 0, LINES_INPUT_LINE = 1, LINES_INPUT_TOO_LONG = 2 };
/* The next line, until the call after it, without its newline; waits for it. Or a negative status:
 * MOE_ERR_INTERRUPTED, *stop was set; MOE_ERR_IO. */
int lines_input_next(struct lines_input *in, const volatile sig_atomic_t *stop, const char **line,
                     uint64_t *n, struct moe_err *err);

/* The line's id as JSON, in a text of its own (free() it), also where something behind it is
 * damaged; NULL: it has none. */
int lines_read_id(char **id, const char *line, uint64_t n, struct moe_err *err);
/* The request in a line. */
int lines_read_request(struct moe_request **out, const char *line, uint64_t n, struct moe_err *err);

/* Lines of results: written, and found again by a run that goes on. */

struct lines_output {
    const struct moe_lines_options *options;
    struct moe_outfile file; /* where there is one */
    uint64_t size;           /* of what stands in it */
    uint32_t *marks;         /* [n_marks] by line: of its request's id; 0: it has no result */
    uint64_t n_marks;
};

int lines_output_open(struct lines_output *out, const struct moe_lines_options *options,
                      struct moe_err *err);
/* Whether the request of that line and id (NULL: none) has a result. MOE_ERR_USAGE: another one has
 * it. */
int lines_output_has(const struct lines_output *out, uint64_t line, const char *id, bool *has,
                     struct moe_err *err);
/* Writes a result, a line with its newline. */
int lines_output_put(struct lines_output *out, const struct moe_buf *line, struct moe_err *err);
/* Flushes where `status` is MOE_OK; closes in any case. */
int lines_output_close(struct lines_output *out, int status, struct moe_err *err);

/* The beginning of a result's "id"; the line's number follows. */
#define LINES_RESULT_ID "batch_req_"

#endif
