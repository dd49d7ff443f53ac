/*
 * Merging traces by their origins: documents come in the order of one run, each from the trace of
 * its shard.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "trace/trace_reader.h"
#include "trace/trace_writer.h"

struct merging {
    uint32_t n;
    struct moe_trace **traces; /* [n] in front of the sequence that comes next */
    struct moe_origins origins;
    struct moe_trace_writer *writer;
};

/* All of it is read once; what follows needs no more than its frames. */
static int check_trace(struct moe_trace *t, struct moe_err *err)
{
    const struct moe_trace_token *token;
    uint64_t all = moe_origins_documents(&t->origins);
    int status = MOE_OK;
    if (t->origins.n == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: does not say which shard of which texts it is (imported, or of an "
                        "earlier version), so it cannot be merged",
                        t->path);
    if (t->totals.sequences != all)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: was left by an interrupted run, with %" PRIu64 " of %" PRIu64
                        " documents; --resume finishes it",
                        t->path, t->totals.sequences, all);
    do
        status = moe_trace_next(t, &token, err);
    while (status == MOE_OK && token);
    moe_trace_rewind(t);
    trace_release_room(t);
    return status;
}

static int open_one(struct merging *m, const char *path, struct moe_err *err)
{
    struct moe_trace *t;
    int status = moe_trace_open(&t, path, err);
    if (status != MOE_OK)
        return status;
    m->traces[m->n++] = t;
    moe_origins_name(&t->origins, t->path);
    status = check_trace(t, err);
    if (status == MOE_OK && !trace_same_shape(&t->shape, &m->traces[0]->shape))
        status =
            moe_fail(err, MOE_ERR_USAGE,
                     "%s: is of another model than %s, or has other scores or sizes of experts",
                     path, m->traces[0]->path);
    if (status == MOE_OK && moe_origins_join(&m->origins, &t->origins, err) != MOE_OK)
        status = moe_err_prefix(err, "%s", path);
    return status;
}

/* Copies the frames of a trace's next sequence under a new number. */
static int copy_sequence(struct moe_trace *t, struct moe_trace_writer *w, struct moe_err *err)
{
    uint32_t n = t->layout.frame_tokens, sequence = 0;
    int status = MOE_OK;
    for (bool first = true; n == t->layout.frame_tokens && t->at < t->file_bytes; first = false) {
        uint64_t stored;
        status = trace_read_frame(
            t, TRACE_TOKENS_HEAD_BYTES + t->layout.frame_tokens * t->layout.token_bytes, &stored,
            err);
        if (status != MOE_OK)
            break;
        if (first)
            sequence = moe_get_u32(t->raw.data);
        else if (moe_get_u32(t->raw.data) != sequence)
            break;
        n = moe_get_u32(t->raw.data + 8);
        t->at += stored;
        status = trace_write_frame(w, &t->raw, first, err);
        if (status != MOE_OK)
            break;
    }
    moe_buf_release(&t->raw);
    moe_buf_release(&t->stored);
    return status;
}

/* The documents of an origin, each from the trace that holds its shard. */
static int copy_documents(struct merging *m, const struct moe_origin *whole, struct moe_err *err)
{
    struct moe_trace **holds = NULL; /* [n_shards] */
    uint32_t n_shards = 0;
    int status = MOE_OK;
    for (uint32_t i = 0; i < m->n && status == MOE_OK; i++) {
        const struct moe_origin *o = moe_origins_find(&m->traces[i]->origins, whole);
        if (o && !holds) {
            n_shards = o->shards.n;
            holds = moe_alloc(n_shards, sizeof *holds, err);
            status = holds ? MOE_OK : MOE_ERR_MEMORY;
        }
        for (uint32_t s = 0; o && holds && s < o->shards.n_held; s++)
            holds[o->shards.held[s]] = m->traces[i];
    }
    for (uint64_t d = 0; d < whole->documents && status == MOE_OK; d++)
        if (holds[d % n_shards])
            status = copy_sequence(holds[d % n_shards], m->writer, err);
    free(holds);
    return status;
}

static int write_all(struct merging *m, const char *to, struct moe_err *err)
{
    int status = moe_trace_create(&m->writer, to, &m->traces[0]->shape, err);
    if (status == MOE_OK)
        status = moe_trace_set_origins(m->writer, &m->origins, err);
    for (uint32_t i = 0; i < m->origins.n && status == MOE_OK; i++)
        status = copy_documents(m, &m->origins.items[i], err);
    if (status == MOE_OK)
        return moe_trace_commit(m->writer, err);
    moe_trace_abort(m->writer);
    return status;
}

int moe_trace_merge(const char *const *paths, uint32_t n, const char *to, bool partial,
                    struct moe_err *err)
{
    struct merging m = {.traces = moe_alloc(n, sizeof *m.traces, err)};
    int status = m.traces ? MOE_OK : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n && status == MOE_OK; i++)
        status = open_one(&m, paths[i], err);
    if (status == MOE_OK)
        status = moe_origins_check(&m.origins, partial, err);
    if (status == MOE_OK)
        status = write_all(&m, to, err);
    while (m.n > 0)
        moe_trace_close(m.traces[--m.n]);
    moe_origins_release(&m.origins);
    free(m.traces);
    return status;
}
