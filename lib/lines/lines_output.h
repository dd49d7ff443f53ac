/* Lines of results: written, and found again by a run that goes on. */
#ifndef MOE_LINES_LINES_OUTPUT_H
#define MOE_LINES_LINES_OUTPUT_H

#include "base/buf.h"
#include "base/file.h"
#include "lines/lines.h"

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
