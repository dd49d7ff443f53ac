#include "engine/engine_share.h"

#include <inttypes.h>

#include "base/mem.h"
#include "engine/batch.h"
#include "engine/engine_size.h"
#include "engine/engine_split.h"
#include "engine/engine_strategy.h"
#include "run/pass_strategy.h"

enum {
    DEFAULT_BATCH = 256,
    SMALL_BATCH = 16,
    HEAP_UNIT = 64 << 10, /* the same model twice differs by less */
};
#define ALL_THERE_IS (UINT64_MAX / 4) /* bytes: more than any machine has */

/* ---- Weights ---- */

/* Of a split with the least and with all memory. */
static int split_twice(struct moe_engine_needs *out, const struct moe_model *model,
                       const struct moe_engine_options *options, struct moe_err *err)
{
    struct moe_engine_options o = *options;
    struct moe_split split;
    o.memory_bytes = 1;
    int status = moe_engine_split(&split, model, NULL, &o, err);
    if (status != MOE_OK && status != MOE_ERR_LIMIT)
        return status;
    out->least = split.budget.floor;
    const struct moe_strategy *s = &split.resolved.strategy;
    if (moe_engine_takes_part(s))
        out->pass_bytes =
            moe_pass_strategy_bytes(model, o.session.batch ? o.session.batch : DEFAULT_BATCH, s,
                                    moe_engine_host_threads(false));
    /* Enough for everything, in a cache too. */
    o.memory_bytes = out->all = out->least + 2 * split.budget.all;
    status = moe_engine_split(&split, model, NULL, &o, err);
    const struct moe_budget *b = &split.budget;
    out->resident = s->resident;
    if (s->resident)
        out->all = b->program + b->dense + b->experts;
    out->least = out->least < out->all ? out->least : out->all;
    return status;
}

/* The same of a GPU's memory, with all of the host's. */
static int split_on_gpu(struct moe_engine_gpu_needs *out, const struct moe_model *model,
                        struct moe_gpu *gpu, const struct moe_engine_options *options,
                        struct moe_err *err)
{
    struct moe_engine_options o = *options;
    struct moe_split split;
    const struct moe_budget *b = &split.budget;
    const struct moe_strategy *s = &split.resolved.strategy;
    o.memory_bytes = ALL_THERE_IS;
    o.gpu_memory_bytes = 1;
    int status = moe_engine_split(&split, model, gpu, &o, err);
    if (status != MOE_OK && status != MOE_ERR_LIMIT)
        return status;
    out->least = b->gpu.floor;
    out->host_least = b->floor;
    out->host_all = moe_budget_on_host(b) + b->experts;
    out->session = (struct moe_session_needs){
        split.session.needs_rows, split.session.predict_residual, split.session.predict_depth};
    if (moe_engine_takes_part(s))
        out->pass_bytes =
            moe_pass_strategy_bytes(model, o.session.batch ? o.session.batch : DEFAULT_BATCH, s,
                                    moe_engine_host_threads(true));
    o.gpu_memory_bytes = out->all = out->least + 2 * b->all;
    status = moe_engine_split(&split, model, gpu, &o, err);
    out->resident = s->resident;
    if (s->resident)
        out->all = moe_budget_beside_slots(b, true) + b->gpu.experts;
    out->least = out->least < out->all ? out->least : out->all;
    const uint64_t staging = moe_pack_staging_bytes(model->pack);
    out->passing = model->largest_tensor_bytes + b->experts + staging;
    out->kept = moe_budget_on_host(b) - model->largest_tensor_bytes - staging;
    return status;
}

int moe_engine_needs_of(struct moe_engine_needs *out, const char *path,
                        const struct moe_engine_options *options, struct moe_gpu *gpu,
                        struct moe_err *err)
{
    struct moe_engine_options o = *options;
    struct moe_model *model;
    uint64_t before = moe_heap_bytes();
    *out = (struct moe_engine_needs){0};
    int status = moe_model_open_directory(&model, path, err);
    if (status != MOE_OK)
        return status;
    if (options->ahead && (status = moe_engine_take_ahead(model, options, gpu != NULL, err)) < 0) {
        moe_model_close(model);
        return status;
    }
    uint64_t after = moe_heap_bytes();
    out->config = model->config;
    out->sampling = model->sampling;
    out->directory = moe_round_up(after > before ? after - before : 0, HEAP_UNIT);
    out->file_bytes = moe_pack_file_bytes(model->pack);
    o.shares = true;
    o.program_bytes = out->directory;
    status = split_twice(out, model, &o, err);
    if (status == MOE_OK && gpu)
        status = split_on_gpu(&out->gpu, model, gpu, &o, err);
    moe_model_close(model);
    return status;
}

/* ---- Sessions ---- */

uint64_t moe_engine_session_bytes(const struct moe_engine_needs *needs,
                                  const struct moe_session_options *o, bool cached)
{
    uint64_t session = moe_session_bytes(&needs->config, o), sum;
    uint64_t pass = o->gpu ? needs->gpu.pass_bytes : needs->pass_bytes;
    uint64_t beside = moe_batch_bytes(&needs->config, o) + (cached ? pass : 0);
    return moe_add_u64(session, beside, &sum) ? sum : UINT64_MAX;
}

static bool has_room(const struct moe_session_options *o, const struct moe_engine_needs *needs,
                     bool cached, struct moe_session_room room)
{
    return moe_engine_session_bytes(needs, o, cached) <= room.host &&
           moe_session_gpu_bytes(&needs->config, o) <= room.gpu;
}

/* With as many blocks as there is room for, from `least` on; false: there is none for these. */
static bool fill(struct moe_session_options *o, const struct moe_engine_needs *needs, bool cached,
                 struct moe_session_room room, uint32_t least, uint32_t most)
{
    o->kv_blocks = least;
    if (!has_room(o, needs, cached, room))
        return false;
    for (uint32_t low = least, high = most; low < high;) {
        o->kv_blocks = low + (high - low + 1) / 2;
        if (has_room(o, needs, cached, room))
            low = o->kv_blocks;
        else
            high = o->kv_blocks - 1;
        o->kv_blocks = low;
    }
    return true;
}

/* Large passes where half of the cache has room beside them; else small ones. */
static bool fit(struct moe_session_options *o, const struct moe_engine_needs *needs, bool cached,
                struct moe_session_room room)
{
    uint32_t each = moe_kv_shape(&needs->config, o).per_sequence, all = each * o->n_sequences;
    uint32_t named = o->batch, least = SMALL_BATCH;
    least = o->n_sequences > least ? o->n_sequences : least;
    uint32_t half = all / 2 > each ? all / 2 : each;
    for (o->batch = named ? named : DEFAULT_BATCH; o->batch >= least; o->batch /= 2) {
        if (fill(o, needs, cached, room, half, all))
            return true;
        if (named)
            break;
    }
    o->batch = named ? named : least;
    if (o->batch >= o->n_sequences && fill(o, needs, cached, room, each, all))
        return true;
    o->batch = named;
    return false;
}

int moe_engine_fit_session(struct moe_session_options *o, const struct moe_engine_needs *needs,
                           bool cached, struct moe_session_room room,
                           struct moe_session_room *least, struct moe_err *err)
{
    if (o->kv_kind == MOE_LAYOUT_NONE)
        o->kv_kind = MOE_LAYOUT_F32;
    if (o->gpu && cached) {
        o->needs_rows = needs->gpu.session.rows;
        o->predict_depth = needs->gpu.session.predict_depth;
        o->predict_residual = needs->gpu.session.residual;
    }
    struct moe_session_options one = *o;
    one.n_sequences = 1;
    one.batch = o->batch ? o->batch : SMALL_BATCH;
    one.kv_blocks = moe_kv_shape(&needs->config, &one).per_sequence;
    least->host = moe_engine_session_bytes(needs, &one, cached);
    least->gpu = moe_session_gpu_bytes(&needs->config, &one);
    for (; o->n_sequences > 0; o->n_sequences /= 2)
        if (fit(o, needs, cached, room))
            return MOE_OK;
    bool on_gpu = least->gpu > room.gpu;
    return moe_fail(err, MOE_ERR_LIMIT,
                    "a session of %u positions takes %" PRIu64 " bytes%s, and there are %" PRIu64,
                    one.context, on_gpu ? least->gpu : least->host, on_gpu ? " on the GPU" : "",
                    on_gpu ? room.gpu : room.host);
}
