#include "show/show_forecast.h"

#include <inttypes.h>

#include "base/text.h"
#include "fmt/emit.h"
#include "show/draw.h"

static void put_passes(const struct moe_forecast *f, const char *name, double passes,
                       const char *what, struct moe_buf *out)
{
    char room[32];
    moe_buf_printf(out, "%-9s %s (%.*f passes)%s\n", name,
                   moe_format_duration(passes * f->pass_seconds, room), passes < 10 ? 1 : 0, passes,
                   what);
}

void moe_show_forecast(const struct moe_forecast *f, struct moe_buf *out)
{
    char least[32], whole[32], budget[32], room[32];
    moe_buf_printf(out, "texts     %" PRIu64 " documents, %" PRIu64 " tokens to predict\n",
                   f->documents, f->tokens);
    moe_buf_printf(out, "memory    at least %s; %s keep all experts loaded",
                   moe_format_bytes(f->least, least), moe_format_bytes(f->whole, whole));
    if (f->budget != UINT64_MAX)
        moe_buf_printf(out, "; the budget is %s", moe_format_bytes(f->budget, budget));
    moe_buf_printf(out, "\nexperts   %" PRIu64, f->in_shard);
    if (f->n_shards > 1)
        moe_buf_printf(out, " of %" PRIu64 ", in shard %" PRIu32 " of %" PRIu32, f->experts,
                       f->shard + 1, f->n_shards);
    if (f->known)
        moe_buf_printf(out, "; %" PRIu64 " known already", f->known);
    moe_buf_printf(out, "\na pass    %s over all texts (%" PRIu64 " documents were tried)\n",
                   moe_format_duration(f->pass_seconds, room), f->tried);
    put_passes(f, "first", f->before, ": references, uniform bitwidths", out);
    put_passes(f, "then", f->search, ": importances", out);
    if (f->n_shards > 1)
        put_passes(f, "all", f->total, ": both, of all shards together", out);
    if (f->chooses)
        moe_buf_text(out, "at last   the choice, whose passes depend on what is found\n");
}

int moe_show_forecast_json(const struct moe_forecast *f, struct moe_buf *out, struct moe_err *err)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_INDENTED);
    moe_emit_u64(&e, "documents", f->documents);
    moe_emit_u64(&e, "tokens", f->tokens);
    moe_emit_u64(&e, "documents_tried", f->tried);
    if (f->budget == UINT64_MAX)
        moe_emit_null(&e, "memory_budget");
    else
        moe_emit_u64(&e, "memory_budget", f->budget);
    moe_emit_u64(&e, "memory_least", f->least);
    moe_emit_u64(&e, "memory_all_experts", f->whole);
    moe_emit_u64(&e, "shard", f->shard + 1);
    moe_emit_u64(&e, "shards", f->n_shards);
    moe_emit_u64(&e, "experts", f->experts);
    moe_emit_u64(&e, "experts_in_shard", f->in_shard);
    moe_emit_u64(&e, "experts_known", f->known);
    moe_emit_rounded(&e, "pass_seconds", 4, f->pass_seconds);
    moe_emit_rounded(&e, "passes_before", 4, f->before);
    moe_emit_rounded(&e, "passes_importances", 4, f->search);
    moe_emit_rounded(&e, "seconds", 4, (f->before + f->search) * f->pass_seconds);
    moe_emit_rounded(&e, "seconds_all_shards", 4, f->total * f->pass_seconds);
    moe_emit_bool(&e, "chooses", f->chooses);
    return moe_emit_end(&e, err);
}
