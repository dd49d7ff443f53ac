#include "engine/engine_size.h"

#include <string.h>

#include "base/par.h"
#include "engine/engine_share.h"
#include "gpu.h"
#include "layer/host_routers.h"
#include "run/pass_strategy.h"

enum {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    PROGRAM_BYTES = 40 << 20, /* with what a sanitizer keeps beside it */
#else
    /* Resident pages of code, libraries and their data, and the first of the heap: at most 5 MiB
     * were seen (Debian 12, x86-64). Where a process has more, a run counts that. */
    PROGRAM_BYTES = 6 << 20,
#endif
    CUDA_BYTES = 2 << 20,     /* ... of a build with CUDA on top; 1.5 MiB were seen */
    PROGRAM_MARGIN = 3 << 20, /* what malloc, the line editor and the like add to the RSS we see */
    THREAD_BYTES = 256 << 10, /* of a thread's stack and heap that are touched */
    LOGITS_ROWS = 4,          /* logits, sampler's candidates: rows of the vocabulary */
    MEASURE_BYTES = 1 << 20,  /* rows that a perplexity run keeps */
    DEFAULT_BATCH = 256,
    GPU_BATCH = 512,       /* an expert that was brought serves more rows */
    SMALL_BATCH = 16,      /* the smallest that is chosen, and the step to the next */
    WORK_SHARE = 8,        /* of a budget, for the buffers of a batch that is chosen */
    EXPERTS_SHARE = 2,     /* times what a batch takes more than the smallest, for experts */
    MAX_HOST_THREADS = 16, /* a few experts of a layer are missing at a time */
};

bool moe_engine_takes_part(const struct moe_strategy *s)
{
    return s->predict != MOE_PREDICT_BY_NOTHING || moe_strategy_recalls(s) || s->needs_host ||
           s->gate_below > 0 || s->prefer > 0;
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

uint64_t moe_engine_program_bytes(const struct moe_model *model, bool for_gpu)
{
    bool has_cuda = for_gpu || strcmp(moe_gpu_build(), "none") != 0;
    return PROGRAM_BYTES + (has_cuda ? CUDA_BYTES : 0) + moe_model_directory_bytes(model);
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

/* A batch's budget, and the least total that it is chosen for. */
struct sized {
    struct moe_budget budget;
    uint64_t beside, work, from; /* of the memory where the slots are */
};

static struct sized size_batch(const struct moe_split_inputs *in, struct moe_session_options so,
                               const struct moe_strategy *strategy, uint32_t batch, uint64_t least,
                               uint64_t work_first)
{
    bool on_gpu = in->gpu != NULL;
    so.batch = batch;
    struct sized s = {.budget = moe_engine_size(in, &so, strategy)};
    uint64_t work = on_gpu ? s.budget.gpu.work : s.budget.work;
    s.beside = moe_budget_beside_slots(&s.budget, on_gpu);
    uint64_t extra = work > work_first ? EXPERTS_SHARE * (work - work_first) : 0;
    uint64_t experts = extra > in->all ? in->all : extra;
    experts = experts > least ? experts : least;
    s.from = WORK_SHARE * work > s.beside + experts ? WORK_SHARE * work : s.beside + experts;
    s.work = work;
    return s;
}

/* Batches rise by small steps, and what a step takes is kept free just below the budget that it
 * comes with: so both the batch and the experts' memory never shrink as the budget grows. */
struct moe_budget moe_engine_size_batch(const struct moe_split_inputs *in,
                                        struct moe_session_options so,
                                        const struct moe_strategy *strategy, uint64_t least_experts,
                                        uint64_t *most_experts)
{
    bool on_gpu = in->gpu != NULL;
    uint64_t total = on_gpu ? in->gpu_total : in->total;
    /* What must stand in one pass. */
    uint32_t whole = in->model->config.n_encoder   ? so.source_context
                     : in->model->config.prefix_lm ? so.context
                                                   : 0;
    uint32_t most = on_gpu ? GPU_BATCH : DEFAULT_BATCH;
    uint32_t first = so.batch ? so.batch : whole > SMALL_BATCH ? whole : SMALL_BATCH;
    uint64_t least = least_experts < in->all ? least_experts : in->all;
    first = first < whole ? whole : first;
    most = so.batch || most < first ? first : most;
    struct sized s = size_batch(in, so, strategy, first, least, UINT64_MAX);
    const uint64_t floor = s.beside + least, work_first = s.work;
    *most_experts = UINT64_MAX;
    for (uint32_t batch = first; batch < most;) {
        batch = batch + SMALL_BATCH < most ? batch + SMALL_BATCH : most;
        struct sized next = size_batch(in, so, strategy, batch, least, work_first);
        if (next.from > total) {
            *most_experts = next.from - next.beside;
            break;
        }
        s = next;
    }
    *(on_gpu ? &s.budget.gpu.floor : &s.budget.floor) = floor;
    return s.budget;
}

bool moe_engine_all_fit(const struct moe_split_inputs *in)
{
    struct moe_session_options so = in->session;
    if (so.batch == 0)
        so.batch = SMALL_BATCH;
    struct moe_budget b = moe_engine_size(in, &so, NULL);
    return moe_engine_has_room_for_all(in, moe_budget_beside_slots(&b, in->gpu != NULL));
}
