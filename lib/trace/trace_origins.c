/* The origins of a trace: the frame that says them. */
#include "base/bytes.h"
#include "base/mem.h"
#include "trace/trace_reader.h"
#include "trace/trace_writer.h"

void trace_put_origins(const struct moe_origins *origins, struct moe_buf *raw)
{
    for (uint32_t i = 0; i < origins->n; i++) {
        const struct moe_origin *o = &origins->items[i];
        moe_buf_u64(raw, o->pack_fingerprint);
        moe_buf_u64(raw, o->options_fingerprint);
        moe_buf_u64(raw, o->documents);
        moe_buf_u32(raw, o->n_texts);
        moe_buf_u32(raw, o->shards.n);
        moe_buf_u32(raw, o->shards.n_held);
        moe_buf_u32(raw, 0);
        for (uint32_t t = 0; t < o->n_texts; t++)
            moe_buf_u64(raw, o->texts[t]);
        for (uint32_t s = 0; s < o->shards.n_held; s++)
            moe_buf_u32(raw, o->shards.held[s] + 1);
    }
}

static int take_origin(struct moe_trace *t, struct moe_cursor *c, struct moe_origin *o,
                       struct moe_err *err)
{
    o->pack_fingerprint = moe_cursor_u64(c);
    o->options_fingerprint = moe_cursor_u64(c);
    o->documents = moe_cursor_u64(c);
    uint32_t n_texts = moe_cursor_u32(c);
    o->shards.n = moe_cursor_u32(c);
    uint32_t n_held = moe_cursor_u32(c);
    if (moe_cursor_u32(c) != 0 || n_texts == 0 || n_texts > MOE_MAX_ORIGIN_TEXTS || n_held == 0 ||
        n_held > MOE_MAX_SHARDS || o->documents > MOE_MAX_ORIGIN_DOCUMENTS)
        return trace_damaged(t, err, "an origin with absurd numbers");
    if (8 * (uint64_t)n_texts + 4 * (uint64_t)n_held > moe_cursor_left(c))
        return trace_damaged(t, err, "an origin that is cut off");
    o->texts = moe_alloc(n_texts, sizeof *o->texts, err);
    o->shards.held = moe_alloc(n_held, sizeof *o->shards.held, err);
    if (!o->texts || !o->shards.held)
        return MOE_ERR_MEMORY;
    while (o->n_texts < n_texts)
        o->texts[o->n_texts++] = moe_cursor_u64(c);
    while (o->shards.n_held < n_held) /* 0 becomes too large a number */
        o->shards.held[o->shards.n_held++] = moe_cursor_u32(c) - 1;
    return MOE_OK;
}

int trace_take_origins(struct moe_trace *t, uint32_t n, struct moe_err *err)
{
    uint64_t stored;
    if (n == 0)
        return MOE_OK;
    int status = trace_read_frame(t, TRACE_MAX_ORIGINS_BYTES, &stored, err);
    if (status != MOE_OK)
        return status;
    struct moe_cursor c = moe_cursor_over(t->raw.data, t->raw.size);
    t->origins.items = moe_alloc(n, sizeof *t->origins.items, err);
    if (!t->origins.items)
        return MOE_ERR_MEMORY;
    while (t->origins.n < n && status == MOE_OK)
        status = take_origin(t, &c, &t->origins.items[t->origins.n++], err);
    if (status != MOE_OK)
        return status;
    const char *problem = moe_origins_problem(&t->origins);
    if (!problem && (c.failed || moe_cursor_left(&c) > 0))
        problem = "not as long as its origins";
    if (!problem && t->totals.sequences > moe_origins_documents(&t->origins))
        problem = "more sequences than its shards have documents";
    if (problem)
        return trace_damaged(t, err, problem);
    t->at += stored;
    return MOE_OK;
}

const struct moe_origins *moe_trace_origins(const struct moe_trace *t)
{
    return &t->origins;
}
