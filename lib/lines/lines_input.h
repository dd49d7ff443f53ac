/* Lines of requests: taken from a file or pipe, and read. */
#ifndef MOE_LINES_LINES_INPUT_H
#define MOE_LINES_LINES_INPUT_H

#include <signal.h>

#include "base/buf.h"
#include "serve/request.h"

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

#endif
