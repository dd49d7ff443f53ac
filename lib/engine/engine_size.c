#include "engine/engine_size.h"

#include "base/par.h"
#include "engine/engine_share.h"
#include "gpu.h"
#include "layer/host_routers.h"
#include "run/pass_strategy.h"

enum {
    PROGRAM_MARGIN = 3 << 20, /* what malloc, the line editor and the like add to the RSS we see */
    THREAD_BYTES = 256 << 10, /* of a thread's stack and heap that are touched */
    LOGITS_ROWS = 4,          /* logits, sampler's candidates: rows of the vocabulary */
    MEASURE_BYTES = 5 << 20,  /* logits of a perplexity run */
    DEFAULT_BATCH = 256,
    GPU_BATCH = 512, /* an expert that was brought serves more rows */
    SMALL_BATCH = 16,
    MAX_HOST_THREADS = 16, /* a few experts of a layer are missing at a time */
};

bool moe_engine_takes_part(const struct moe_strategy *s)
{
    return s->predict != MOE_PREDICT_BY_NOTHING || s->needs_host || s->gate_below > 0 ||
           s->prefer > 0;
}

uint32_t moe_engine_host_threads(bool on_gpu)
{
    int spare = moe_cores_available() - 1;
    if (!on_gpu) /* the test device's host is one core */
        return 1;
    return spare < 1 ? 1 : spare > MAX_HOST_THREADS ? MAX_HOST_THREADS : (uint32_t)spare;
}

uint64_t moe_budget_on_host(const struct moe_budget *b)
{
    return b->program + b->dense + b->kv + b->work;
}

uint64_t moe_budget_beside_slots(const struct moe_budget *b, bool on_gpu)
{
    return on_gpu ? b->gpu.dense + b->gpu.kv + b->gpu.work : moe_budget_on_host(b);
}

bool moe_engine_has_room_for_all(const struct moe_split_inputs *in, uint64_t beside)
{
    return (!in->expert_memory || in->expert_memory >= in->all) &&
           beside + in->all <= (in->gpu ? in->gpu_total : in->total);
}

uint64_t moe_engine_process_bytes(void)
{
    return PROGRAM_MARGIN + (uint64_t)moe_par_threads() * THREAD_BYTES;
}

struct moe_budget moe_engine_size(const struct moe_split_inputs *in,
                                  const struct moe_session_options *so,
                                  const struct moe_strategy *strategy)
{
    const struct moe_model *m = in->model;
    const struct moe_config *c = &m->config;
    const struct moe_engine_options *o = in->options;
    uint64_t logits_bytes = LOGITS_ROWS * moe_logits_stride(c) * sizeof(float);
    uint64_t kv = moe_session_kv_bytes(c, so);
    struct moe_budget b = {
        .total = in->total,
        .program = in->program +
                   (o->shares ? 0 : moe_engine_process_bytes() + MEASURE_BYTES + logits_bytes),
        .dense = in->gpu ? moe_model_gpu_host_bytes(m, so->context)
                         : moe_model_load_bytes(m, so->context),
        .kv = in->gpu || o->shares ? 0 : kv,
        .work = o->beside ? o->beside(o->beside_ctx, m, so->batch) : 0,
        .token = in->token,
        .all = in->all,
        .batch = so->batch,
    };
    if (!o->shares)
        b.work += moe_session_bytes(c, so) - b.kv;
    if (so->predict_depth > 0)
        b.dense += moe_host_routers_bytes(m);
    if (strategy && moe_engine_takes_part(strategy) && !o->shares)
        b.work += moe_pass_strategy_bytes(m, so->batch, strategy,
                                          moe_engine_host_threads(in->gpu != NULL));
    if (in->gpu)
        b.gpu = (struct moe_gpu_budget){
            .total = in->gpu_total,
            .dense = m->weights_bytes,
            .kv = o->shares ? 0 : kv,
            .work = MOE_GPU_OWN_BYTES + (o->shares ? 0 : moe_session_gpu_bytes(c, so) - kv),
        };
    return b;
}

struct moe_budget moe_engine_size_batch(const struct moe_split_inputs *in,
                                        struct moe_session_options so,
                                        const struct moe_strategy *strategy, uint64_t least_experts)
{
    bool choose = so.batch == 0, on_gpu = in->gpu != NULL;
    /* What must stand in one pass. */
    uint32_t whole = in->model->config.n_encoder   ? so.source_context
                     : in->model->config.prefix_lm ? so.context
                                                   : 0;
    uint64_t least = least_experts < in->all ? least_experts : in->all;
    so.batch = choose ? (on_gpu ? GPU_BATCH : DEFAULT_BATCH) : so.batch;
    for (;; so.batch /= 2) {
        so.batch = so.batch < whole ? whole : so.batch;
        struct moe_budget b = moe_engine_size(in, &so, strategy);
        uint64_t floor = moe_budget_beside_slots(&b, on_gpu) + least;
        uint64_t work = on_gpu ? b.gpu.work : b.work, total = on_gpu ? b.gpu.total : b.total;
        *(on_gpu ? &b.gpu.floor : &b.floor) = floor;
        if (!choose || so.batch <= SMALL_BATCH || so.batch == whole ||
            (work <= total / 8 && floor <= total))
            return b;
    }
}

bool moe_engine_all_fit(const struct moe_split_inputs *in)
{
    struct moe_session_options so = in->session;
    if (so.batch == 0)
        so.batch = SMALL_BATCH;
    struct moe_budget b = moe_engine_size(in, &so, NULL);
    return moe_engine_has_room_for_all(in, moe_budget_beside_slots(&b, in->gpu != NULL));
}
