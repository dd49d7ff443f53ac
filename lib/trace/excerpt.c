#include "trace/excerpt.h"

struct moe_excerpt moe_excerpt_of(const struct moe_trace *trace, uint64_t max_tokens)
{
    uint64_t tokens = moe_trace_totals(trace)->tokens;
    struct moe_excerpt e = {.max_tokens = max_tokens};
    if (max_tokens && tokens > max_tokens)
        e.every = (uint32_t)((tokens + max_tokens - 1) / max_tokens);
    if (e.every > moe_trace_totals(trace)->sequences)
        e.every = 0; /* a few long sequences */
    return e;
}

void moe_excerpt_begin(struct moe_trace *trace, struct moe_excerpt e, uint32_t parts)
{
    moe_trace_rewind(trace);
    moe_trace_want(trace, parts, e.first, e.every ? e.every : e.first ? 1 : 0);
}

static bool is_taken(const struct moe_excerpt *e, const struct moe_trace_token *t)
{
    return t->sequence >= e->first && (!e->every || (t->sequence - e->first) % e->every == 0) &&
           (!e->cut || t->index < e->cut);
}

int moe_excerpt_next(struct moe_trace *trace, struct moe_excerpt e, uint64_t *taken,
                     const struct moe_trace_token **token, struct moe_err *err)
{
    int status;
    *token = NULL;
    if (e.max_tokens && *taken == e.max_tokens)
        return MOE_OK;
    do
        status = moe_trace_next(trace, token, err);
    while (status == MOE_OK && *token && !is_taken(&e, *token));
    *taken += status == MOE_OK && *token;
    return status;
}
