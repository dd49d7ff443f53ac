/*
 * JSON lines: many requests from a file or pipe, one a line, and one line for each result as soon
 * as it is there.
 *
 * A request's line is a body of either API (request.h) with an id, "custom_id" or "id", a text or
 * whole number; or a line of OpenAI's batch files: {"custom_id", "method", "url", "body"}. Its
 * result is
 *
 *     {"id": "batch_req_7", "custom_id": "a", "response": {"status_code": 200, "request_id",
 *      "body": {...}}, "error": null}
 *
 * where 7 is the number of the request's line and the body is that of reply.h, never a stream. If
 * passes that the request took part in did something that may have changed results, for it or for
 * those side by side, a last member "inexact" has the counts. A bad request gets "response": null
 * and an "error", and others are served. Empty lines count and have no result.
 *
 * Requests are read ahead of those that run, up to a number and bytes; a client that does not send
 * or does not take results delays reading, not running requests.
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
    MOE_LINES_AHEAD = 128,           /* requests read whose results are not written */
    MOE_LINES_AHEAD_BYTES = 4 << 20, /* ... and bytes of their lines, except for a single one */
    MOE_LINES_MAX_BYTES = 4 << 20,   /* a line's */
    MOE_LINES_MAX_LINES = 1 << 27,   /* in a file whose results may be continued */
};

struct moe_lines_options {
    const char *input; /* path; "-": standard input */
    /* Results are appended to this file, which may exist only with `resume`: requests that have a
     * result there are not served again, and an incomplete last line is cut off. Each result is one
     * write; so whenever a run is killed, it and the one that continues serve every request once.
     * Requests that fail, through no fault of theirs, have no result there. NULL: `put` gets them,
     * and those as errors. */
    const char *output;
    bool resume;
    /* Gets a line with its newline, in its own thread; a negative result ends the run. */
    int (*put)(void *ctx, const void *line, uint64_t n, struct moe_err *err);
    void *ctx;
    const volatile sig_atomic_t *stop; /* set by a signal handler; may be NULL */
};

struct moe_lines_counts {
    uint64_t n_served;  /* results that are answers */
    uint64_t n_refused; /* results that are errors */
    uint64_t n_failed;  /* requests that the model or the machine failed */
    struct moe_err why; /* the first of these did */
    uint64_t n_before;  /* requests that already had a result */
};

/* Upper bound of its memory beside the server. */
uint64_t moe_lines_bytes(const char *input);

/* Serves all requests; returns once their results are written. MOE_ERR_INTERRUPTED: *stop was set;
 * results that had ended by then are written. MOE_ERR_USAGE: the output exists and may not be
 * continued, or holds results of other requests. */
int moe_lines_serve(struct moe_server *server, const struct moe_lines_options *options,
                    struct moe_lines_counts *counts, struct moe_err *err);

/* Lines of requests, read from a file or pipe. */

struct lines_input {
    const char *name; /* for error texts */
    int fd;
    struct moe_buf held; /* bytes read */
    uint64_t start;      /* ... and used up so far */
    uint64_t n_lines;    /* lines taken: the last one's number */
    bool ended, passing; /* passing: skipping the rest of a line that is too long */
};

int lines_input_open(struct lines_input *in, const char *path, struct moe_err *err);
void lines_input_close(struct lines_input *in);

enum { LINES_INPUT_END = 0, LINES_INPUT_LINE = 1, LINES_INPUT_TOO_LONG = 2 };
/* Waits for the next line and returns it without its newline, valid until the next call. Or a
 * negative status: MOE_ERR_INTERRUPTED, *stop was set; MOE_ERR_IO. */
int lines_input_next(struct lines_input *in, const volatile sig_atomic_t *stop, const char **line,
                     uint64_t *n, struct moe_err *err);

/* The line's id as JSON, in a new text (free() it), even if something after it is damaged; NULL:
 * none. */
int lines_read_id(char **id, const char *line, uint64_t n, struct moe_err *err);
/* Reads the request in a line (moe_request_parse). */
int lines_read_request(struct moe_request **out, const char *line, uint64_t n,
                       struct moe_allowance *allowance, struct moe_err *err);

/* Lines of results: written, and found again by a run that continues. */

struct lines_output {
    const struct moe_lines_options *options;
    struct moe_outfile file; /* if there is one */
    uint64_t size;           /* bytes in the file */
    uint32_t *marks;         /* [n_marks] by line: hash of its request's id; 0: no result */
    uint64_t n_marks;
};

int lines_output_open(struct lines_output *out, const struct moe_lines_options *options,
                      struct moe_err *err);
/* Whether the request of that line and id (NULL: none) has a result. MOE_ERR_USAGE: a different one
 * has. */
int lines_output_has(const struct lines_output *out, uint64_t line, const char *id, bool *has,
                     struct moe_err *err);
/* Writes a result, a line with its newline. */
int lines_output_put(struct lines_output *out, const struct moe_buf *line, struct moe_err *err);
/* Flushes if `status` is MOE_OK; closes in any case. */
int lines_output_close(struct lines_output *out, int status, struct moe_err *err);

/* Begins a result's "id"; the line's number follows. */
#define LINES_RESULT_ID "batch_req_"

#endif
