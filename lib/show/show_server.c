/* A server's counters as a JSON object. */
#include "show/show_server.h"

#include "base/mem.h"
#include "fmt/emit.h"
#include "serve/reply.h"

static void emit_executor(struct moe_emit *e, const struct moe_server_executor_counts *x)
{
    moe_emit_open_line_map(e, NULL);
    moe_emit_text(e, "device", x->device ? x->device : "cpu");
    moe_emit_u64(e, "switches", x->switches);
    moe_emit_u64(e, "loads", x->loads);
    moe_emit_u64(e, "host_loads", x->host_loads);
    moe_emit_u64(e, "prefetched", x->prefetched);
    moe_emit_u64(e, "bytes_read", x->bytes_read);
    moe_emit_rounded(e, "busy_seconds", 6, x->busy_seconds);
    moe_emit_rounded(e, "load_seconds", 6, x->load_seconds);
    moe_emit_rounded(e, "schedule_seconds", 6, x->schedule_seconds);
    moe_emit_close(e);
}

static void emit_exactness(struct moe_emit *e, const struct moe_server_counts *c)
{
    moe_emit_open_map(e, "exact");
    moe_emit_bool(e, "required", c->exact_required);
    moe_emit_bool(e, "as_asked", c->inexact[0] == 0);
    moe_emit_bool(e, "as_done", moe_changes_none(&c->changes));
    moe_emit_text(e, "why", c->inexact);
    moe_reply_emit_changes(e, &c->changes);
    moe_emit_close(e);
}

int moe_show_server_json(const struct moe_server_counts *c, struct moe_buf *out,
                         struct moe_err *err)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_INDENTED);
    moe_emit_rounded(&e, "seconds", 6, c->seconds);
    moe_emit_u64(&e, "requests", c->requests);
    moe_emit_u64(&e, "refused", c->refused);
    moe_emit_u64(&e, "ended", c->ended);
    moe_emit_u64(&e, "failed", c->failed);
    moe_emit_u64(&e, "cancelled", c->cancelled);
    moe_emit_u64(&e, "preempted", c->preempted);
    moe_emit_u64(&e, "follow_ons", c->follow_ons);
    moe_emit_u64(&e, "prompt_tokens", c->prompt_tokens);
    moe_emit_u64(&e, "cached_tokens", c->cached_tokens);
    moe_emit_u64(&e, "generated_tokens", c->generated_tokens);
    moe_emit_u64(&e, "drafted_tokens", c->drafted_tokens);
    moe_emit_u64(&e, "accepted_tokens", c->accepted_tokens);
    moe_emit_rounded(&e, "schedule_seconds", 6, c->schedule_seconds);
    if (c->memory_bytes == UINT64_MAX)
        moe_emit_null(&e, "memory_bytes");
    else
        moe_emit_u64(&e, "memory_bytes", c->memory_bytes);
    moe_emit_u64(&e, "floor_bytes", c->floor_bytes);
    moe_emit_u64(&e, "peak_rss_bytes", moe_peak_rss_bytes());
    moe_emit_u64(&e, "gpu_memory_bytes", c->gpu_bytes);
    moe_emit_u64(&e, "host_tier_bytes", c->host_bytes);
    moe_emit_u64(&e, "host_tier_models", c->host_models);
    emit_exactness(&e, c);
    moe_emit_open_list(&e, "executors");
    for (uint32_t i = 0; i < c->n_executors; i++)
        emit_executor(&e, &c->executors[i]);
    moe_emit_close(&e);
    return moe_emit_end(&e, err);
}
