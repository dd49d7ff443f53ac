#include "engine/fit_pack.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/engine_size.h"
#include "engine/engine_split.h"
#include "engine/engine_strategy.h"

struct moe_pack_fit {
    struct moe_model *model; /* its directory */
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
    f->options.follows = NULL; /* borrowed while opening */
    int status = moe_model_open_directory(&f->model, path, err);
    struct moe_err other; /* a trace of another model may show the manner of one */
    if (status == MOE_OK && options->follows)
        moe_engine_take_trace(f->model, options, &other);
    if (status == MOE_OK)
        status = moe_inventory_of_pack(&f->inventory, f->model->pack, f->model->config.top_k, err);
    if (status == MOE_OK && options->ahead) /* counted, but no layer of those that are planned */
        status = moe_engine_take_ahead(f->model, options, options->device.cuda, err);
    if (status != MOE_OK) {
        moe_pack_fit_close(f);
        return status;
    }
    moe_inventory_set_encoder(&f->inventory, f->model->config.n_encoder);
    moe_inventory_set_static(&f->inventory, f->model->config.layer_is_static);
    f->inventory.routes_early = f->model->config.router_early;
    f->options.program_bytes = moe_engine_program_bytes(f->model, options->device.cuda);
    *out = f;
    return MOE_OK;
}

void moe_pack_fit_close(struct moe_pack_fit *f)
{
    if (!f)
        return;
    moe_inventory_release(&f->inventory);
    moe_model_close(f->model);
    free(f);
}

/* Sizes depend on there being a GPU, and on the bytes that are named of it; nothing is asked of it.
 * So one that is only described, here or on another machine, is any address. */
static struct moe_gpu *described_gpu(const struct moe_engine_options *o)
{
    static uint64_t stand_in;
    return o->device.cuda ? (struct moe_gpu *)&stand_in : NULL;
}

/* Where the slots are, and what lies behind that. */
static void set_memories(struct moe_fitted *out, const struct moe_engine_options *o,
                         const struct moe_split *split)
{
    const struct moe_budget *b = &split->budget;
    const struct moe_gpu_budget *g = &b->gpu;
    const struct moe_plan_memory host = {
        .total = o->memory_bytes,
        .program = b->program,
        .dense = b->dense,
        .kv = b->kv,
        .work = b->work,
        .experts = b->experts,
        .floor = b->floor,
    };
    out->memory = host;
    if (o->device.cuda) {
        uint64_t tables = moe_expert_pools_beside_bytes(&split->pools);
        out->host = host;
        out->host_bytes = split->cache.host_bytes > tables ? split->cache.host_bytes - tables : 0;
        out->memory = (struct moe_plan_memory){
            .total = g->total,
            .dense = g->dense,
            .kv = g->kv,
            .work = g->work,
            .experts = g->experts,
            .floor = g->floor,
        };
    }
    out->memory.token = b->token;
    out->memory.all = b->all;
    out->memory.context = split->session.context;
    out->memory.batch = b->batch;
}

static int fit_pack(void *ctx, const struct moe_strategy *wanted, const struct moe_fit_room *room,
                    struct moe_fitted *out, struct moe_err *err)
{
    struct moe_pack_fit *f = ctx;
    struct moe_engine_options o = f->options;
    struct moe_split split;
    const uint64_t bytes = room ? room->bytes : 0;
    uint64_t floor = 0, host_floor = 0;
    if (room && room->batch) {
        const struct moe_fit_room own = {.bytes = bytes, .staging = room->staging};
        int status = fit_pack(ctx, wanted, &own, out, err);
        if (status != MOE_OK)
            return status;
        floor = out->memory.floor;
        host_floor = out->host.floor;
        o.session.batch = room->batch;
    }
    if (room && room->staging)
        o.staging = room->staging;
    if (bytes && o.device.cuda)
        o.gpu_memory_bytes = bytes;
    else if (bytes && o.memory_bytes)
        o.memory_bytes = bytes;
    else if (bytes)
        o.expert_memory_bytes = bytes;
    o.strategy = *wanted;
    *out = (struct moe_fitted){.strategy = *wanted, .named = o.expert_memory_bytes};
    int status = moe_engine_split(&split, f->model, described_gpu(&o), &o, err);
    if (status != MOE_OK)
        return status;
    out->strategy = split.resolved.strategy;
    out->high = split.cache.high;
    out->low = split.cache.low;
    out->pools = split.pools.pools;
    out->staging = split.cache.n_staging;
    set_memories(out, &o, &split);
    const struct moe_budget *b = &split.budget;
    bool has_room =
        b->floor <= b->total && (!o.expert_memory_bytes || o.expert_memory_bytes >= b->all);
    if (out->strategy.resident && !has_room)
        return moe_fail(err, MOE_ERR_LIMIT, "not all experts fit");
    if (room && room->batch) {
        out->memory.floor = floor;
        out->host.floor = host_floor;
    }
    return MOE_OK;
}

struct moe_fitter moe_pack_fit_fitter(struct moe_pack_fit *f)
{
    return (struct moe_fitter){f, fit_pack};
}

const struct moe_inventory *moe_pack_fit_inventory(const struct moe_pack_fit *f)
{
    return &f->inventory;
}

const struct moe_model *moe_pack_fit_model(const struct moe_pack_fit *f)
{
    return f->model;
}

void moe_pack_fit_statistics(struct moe_pack_fit *f, const struct moe_statistics *statistics)
{
    f->options.statistics = statistics;
}
