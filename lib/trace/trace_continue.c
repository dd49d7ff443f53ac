/* Going on with a trace that a run saved on the way, after the documents that it is known to hold.
 */
#define _DEFAULT_SOURCE /* ftruncate */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "trace/trace_reader.h"
#include "trace/trace_writer.h"

/* Reads up to the end of what the totals count, and checks it. */
static int find_end(struct moe_trace *t, const struct moe_trace_totals *until, struct moe_err *err)
{
    int status = MOE_OK;
    moe_trace_rewind(t);
    while (status == MOE_OK &&
           (t->met.sequences < until->sequences || t->met.tokens < until->tokens)) {
        if (t->at == t->file_bytes)
            return moe_fail(err, MOE_ERR_USAGE, "%s: holds fewer documents than it should",
                            t->path);
        status = trace_read_tokens(t, err);
    }
    if (status == MOE_OK &&
        (t->met.sequences != until->sequences || t->met.tokens != until->tokens))
        status = moe_fail(err, MOE_ERR_USAGE, "%s: holds other documents than it should", t->path);
    return status;
}

int moe_trace_continue(struct moe_trace_writer **out, struct moe_trace *from,
                       const struct moe_trace_shape *shape, const struct moe_trace_totals *until,
                       struct moe_err *err)
{
    char text[128];
    *out = NULL;
    if (!trace_same_shape(shape, &from->shape))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: a trace of another model or with other scores cannot go on here",
                        from->path);
    int status = find_end(from, until, err);
    if (status == MOE_OK)
        status = trace_writer_continue(out, from->path, shape, err);
    if (status != MOE_OK)
        return status;
    struct moe_trace_writer *w = *out;
    w->at = from->at;
    w->totals = from->met;
    w->n_origins = from->origins.n;
    if (ftruncate(w->file.fd, (off_t)w->at) != 0) {
        status = moe_fail(err, MOE_ERR_IO, "%s: cannot be cut to %" PRIu64 " bytes: %s", from->path,
                          w->at, moe_errno_text(errno, text, sizeof text));
        moe_trace_abort(w);
        *out = NULL;
    }
    return status;
}
