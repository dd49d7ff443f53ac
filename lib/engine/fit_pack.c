#include "engine/fit_pack.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/engine_split.h"
#include "experts/expert_pools.h"

enum { SLACK = 1 << 20 /* of a plan's budget: the program's own size varies from run to run */ };

struct moe_pack_fit {
    struct moe_engine engine; /* its model and what a split decides, no more */
    struct moe_engine_options options;
    struct moe_inventory inventory;
};

int moe_pack_fit_open(struct moe_pack_fit **out, const char *path,
                      const struct moe_engine_options *options, struct moe_err *err)
{
    *out = NULL;
    struct moe_pack_fit *f = moe_alloc(1, sizeof *f, err);
    if (!f)
        return MOE_ERR_MEMORY;
    f->options = *options;
    int status = moe_model_open_directory(&f->engine.model, path, err);
    if (status == MOE_OK)
        status = moe_inventory_of_pack(&f->inventory, f->engine.model->pack,
                                       f->engine.model->config.top_k, err);
    if (status != MOE_OK) {
        moe_pack_fit_close(f);
        return status;
    }
    f->options.program_bytes = moe_rss_bytes() + SLACK;
    *out = f;
    return MOE_OK;
}

void moe_pack_fit_close(struct moe_pack_fit *f)
{
    if (!f)
        return;
    moe_inventory_release(&f->inventory);
    moe_model_close(f->engine.model);
    free(f);
}

static int fit_pack(void *ctx, const struct moe_strategy *wanted, uint64_t bytes,
                    struct moe_fitted *out, struct moe_err *err)
{
    struct moe_pack_fit *f = ctx;
    struct moe_engine_options o = f->options;
    struct moe_session_options so = o.session;
    struct moe_cache_options cache;
    struct moe_expert_pools pools;
    *out = (struct moe_fitted){.strategy = *wanted};
    if (bytes && o.memory_bytes)
        o.memory_bytes = bytes;
    else if (bytes)
        o.expert_memory_bytes = bytes;
    o.strategy = *wanted;
    out->named = o.expert_memory_bytes;
    f->engine.fallback = NULL;
    if (so.context == 0 || so.context > f->engine.model->config.context_max)
        so.context = moe_engine_context(f->engine.model, &o);
    int status = moe_engine_split(&f->engine, &o, &so, &cache, err);
    if (status != MOE_OK)
        return status;
    const struct moe_budget *b = &f->engine.budget;
    out->strategy = f->engine.strategy;
    out->high = cache.high;
    out->low = cache.low;
    out->memory = (struct moe_plan_memory){
        .total = o.memory_bytes,
        .program = b->program,
        .dense = b->dense,
        .kv = b->kv,
        .work = b->work,
        .experts = b->experts,
        .floor = b->floor,
        .token = b->token,
        .all = b->all,
        .context = so.context,
        .batch = b->batch,
    };
    bool has_room =
        b->floor <= b->total && (!o.expert_memory_bytes || o.expert_memory_bytes >= b->all);
    if (out->strategy.resident)
        return has_room ? MOE_OK : moe_fail(err, MOE_ERR_LIMIT, "not all experts fit");
    moe_expert_pools_size(&pools, f->engine.model->pack, &f->inventory, &cache);
    out->pools = pools.pools;
    out->staging = cache.n_staging;
    return MOE_OK;
}

struct moe_fitter moe_pack_fit_fitter(struct moe_pack_fit *f)
{
    return (struct moe_fitter){f, fit_pack};
}

const char *moe_pack_fit_fallback(const struct moe_pack_fit *f)
{
    return f->engine.fallback;
}

const struct moe_inventory *moe_pack_fit_inventory(const struct moe_pack_fit *f)
{
    return &f->inventory;
}

const struct moe_model *moe_pack_fit_model(const struct moe_pack_fit *f)
{
    return f->engine.model;
}

void moe_pack_fit_statistics(struct moe_pack_fit *f, const struct moe_statistics *statistics)
{
    f->options.statistics = statistics;
}
