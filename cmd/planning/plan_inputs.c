/* Opens what moe-plan plans with: model, statistics, trace, pace. */
#include "plan_inputs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli.h"
#include "drafters.h"
#include "plan_machine.h"
#include "plan_trace.h"

enum {
    SHAPE_PROGRAM = 32 << 20, /* bytes of a process that runs a model: buffers, libraries */
    MOST_CONTEXT = 4096,      /* without -c */
    SHAPE_BATCH = 256,
    GROUP = 64, /* columns that share a scale, as moe-quantize has it */
};

/* ---- The model ---- */

static int check_experts(const struct plan_inputs *in, struct moe_err *err)
{
    return in->config.n_experts
               ? MOE_OK
               : moe_fail(err, MOE_ERR_USAGE, "%s: a model without experts has nothing to plan",
                          in->name);
}

static uint64_t room_for_text(const void *ctx, const struct moe_model *model, uint32_t batch)
{
    const struct plan_options *o = ctx;
    uint32_t most = model->config.context_max;
    (void)batch;
    most = most < MOST_CONTEXT ? most : MOST_CONTEXT;
    return moe_engine_text_room(o->context ? o->context : most);
}

/* memory_bytes is 0 for a budget of experts. --simulate sets its sizes later: until then 1 stands
 * for a budget of the process. */
static struct moe_engine_options engine_options(const struct plan_options *o,
                                                enum plan_budget budget)
{
    return (struct moe_engine_options){
        .memory_bytes = budget == PLAN_OF_EXPERTS ? 0
                        : o->memory               ? o->memory
                                                  : 1,
        .gpu_memory_bytes = o->gpu_memory,
        .expert_memory_bytes = o->expert_memory,
        .exact = o->strategy.exact,
        .kv_beside = true,
        .low_variant = o->strategy.low,
        .staging = o->strategy.staging,
        .device = o->strategy.device,
        .ahead = o->draft == DRAFT_MTP,
        .link_rate = o->link_rate,
        .seed = o->seed,
        .session = {.context = o->context,
                    .n_sequences = 1,
                    .batch = o->batch,
                    .kv_kind = o->strategy.kv_kind,
                    .takes_back = o->draft != DRAFT_NONE},
        .context_cap = MOST_CONTEXT,
        .beside = room_for_text,
        .beside_ctx = (void *)o,
    };
}

/* Refuses what moe-run would refuse without a plan, before the machine is measured. */
static int check_budget(const struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_fitter *f = &in->fitters[PLAN_OF_PROCESS];
    struct moe_fitted fitted;
    struct moe_err why = {0};
    int status =
        in->options->memory ? f->fit(f->ctx, &in->options->wanted, NULL, &fitted, &why) : MOE_OK;
    if (status != MOE_ERR_LIMIT) /* the rest may depend on what is not open yet */
        return MOE_OK;
    *err = why;
    return status;
}

/* A pack of drawn weights is there to be rehearsed: a trace whose tokens choose more or fewer
 * experts is planned for as moe-run --follow computes it. */
static int look_at_trace(const struct plan_options *o, struct moe_trace **trace,
                         struct moe_err *err)
{
    struct moe_pack *pack = NULL;
    int status = o->trace ? moe_pack_open(&pack, o->pack, err) : MOE_OK;
    if (status == MOE_OK && pack && moe_pack_synthesized(pack).is)
        status = moe_trace_open(trace, o->trace, err);
    moe_pack_close(pack);
    return status;
}

/* Comes first, while the process is still as small as moe-run's. */
static int open_pack(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    struct moe_trace *follows = NULL;
    int status = look_at_trace(o, &follows, err);
    for (enum plan_budget b = 0; b < PLAN_N_BUDGETS && status == MOE_OK; b++) {
        struct moe_engine_options eo = engine_options(o, b);
        eo.follows = follows ? moe_trace_shape(follows) : NULL;
        eo.follows_name = o->trace;
        status = moe_pack_fit_open(&in->packs[b], o->pack, &eo, err);
        if (status == MOE_OK)
            in->fitters[b] = moe_pack_fit_fitter(in->packs[b]);
    }
    moe_trace_close(follows);
    if (status != MOE_OK)
        return status;
    const struct moe_model *model = moe_pack_fit_model(in->packs[0]);
    in->config = model->config;
    in->inventory = moe_pack_fit_inventory(in->packs[0]);
    in->fingerprint = moe_pack_fingerprint(model->pack);
    in->source_fingerprint = moe_pack_source_fingerprint(model->pack);
    in->drawn = moe_pack_synthesized(model->pack).is;
    if (in->drawn)
        cli_detail("%s: its weights were drawn (moe-quantize --synthesize)", o->pack);
    status = check_experts(in, err);
    if (status == MOE_OK)
        status = check_budget(in, err);
    const struct moe_bits usual = {4, 4};
    return status == MOE_OK ? moe_shape_bytes(&in->bytes, &in->config, usual, 8, GROUP, err)
                            : status;
}

/* Memory of a model without weights, without its experts; a trace alone says nothing of it. */
static struct moe_plan_memory shape_memory(const struct plan_inputs *in)
{
    const struct plan_options *o = in->options;
    uint32_t most = in->config.context_max < MOST_CONTEXT ? in->config.context_max : MOST_CONTEXT;
    struct moe_plan_memory m = {
        .context = o->context ? o->context : most,
        .batch = o->batch ? o->batch : SHAPE_BATCH,
    };
    const struct moe_session_options so = {
        .context = m.context,
        .n_sequences = 1,
        .batch = m.batch,
        .kv_kind = o->strategy.kv_kind,
        .whole_windows = plan_machine_has_gpu(in),
    };
    if (!o->shape)
        return m;
    m.program = SHAPE_PROGRAM;
    m.dense = in->bytes.dense;
    m.kv = moe_session_kv_bytes(&in->config, &so);
    m.work = moe_session_bytes(&in->config, &so) - m.kv;
    if (in->shape.n_kinds)
        m.kv = moe_shape_file_kv_bytes(&in->shape, m.context,
                                       o->strategy.kv_kind
                                           ? (uint32_t)moe_layout_bits(o->strategy.kv_kind) / 8
                                           : sizeof(float));
    return m;
}

/* The bytes of a model whose experts have the bits that the user wrote. */
static int shape_bytes(struct plan_inputs *in, const char *experts, struct moe_err *err)
{
    struct moe_bits bits;
    if (!moe_parse_bits(experts, &bits))
        return moe_fail(err, MOE_ERR_USAGE,
                        "'%.20s' is not a bitwidth of experts: name 16, 8, 4, 3 or 2, or two like "
                        "4d8",
                        experts);
    return moe_shape_file_bytes(&in->bytes, &in->shape, bits, in->options->dense_bits, GROUP, err);
}

static int open_shape(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    char variants[2][MOE_NAME_BYTES] = {{0}};
    uint64_t bytes[2];
    const char *comma = strchr(o->expert_bits, ',');
    uint32_t n = comma ? 2 : 1;
    snprintf(variants[0], sizeof variants[0], "%.*s", (int)strcspn(o->expert_bits, ","),
             o->expert_bits);
    snprintf(variants[1], sizeof variants[1], "%s", comma ? comma + 1 : "");
    MOE_TRY(moe_shape_file_read(&in->shape, o->shape, err));
    in->config = in->shape.config;
    for (uint32_t v = n; v-- > 0;) {
        MOE_TRY(shape_bytes(in, variants[v], err));
        bytes[v] = in->bytes.expert;
    }
    MOE_TRY(check_experts(in, err));
    MOE_TRY(moe_inventory_uniform(&in->own, in->config.n_moe_layers, in->config.n_experts,
                                  in->config.top_k, (const char(*)[MOE_NAME_BYTES])variants, bytes,
                                  n, err));
    moe_inventory_set_model(&in->own, &in->config);
    if (!in->shape.runs)
        cli_note("%s: moe-run cannot run it yet: %s", o->shape, in->shape.why);
    return MOE_OK;
}

static int open_model(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    snprintf(in->name, sizeof in->name, "%s", o->pack ? o->pack : o->shape ? o->shape : o->trace);
    if (o->pack)
        return open_pack(in, err);
    in->inventory = &in->own;
    if (o->shape)
        return open_shape(in, err);
    int status = moe_trace_open(&in->trace, o->trace, err);
    if (status != MOE_OK)
        return status;
    struct moe_err why = {0};
    status = moe_inventory_of_trace(&in->own, moe_trace_shape(in->trace), o->expert_size, &why);
    return status == MOE_OK ? MOE_OK : moe_fail(err, status, "%s: %s", o->trace, why.text);
}

/* A map belongs to a model, whatever precisions the pack has. */
static int check_map(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    const struct moe_map *map = o->strategy.map;
    const struct moe_inventory *inv = in->inventory;
    struct moe_buf texts = {0};
    if (!map)
        return MOE_OK;
    if (map->source_fingerprint != in->source_fingerprint || map->n_layers != inv->n_layers ||
        map->n_experts != inv->n_experts || map->top_k != inv->top_k)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: a bit map of another model (%016" PRIx64 ", %" PRIu32
                        " layers of %" PRIu32 " experts) than %s (%016" PRIx64 ", %" PRIu32
                        " of %" PRIu32 ")",
                        o->calibration, map->source_fingerprint, map->n_layers, map->n_experts,
                        in->name, in->source_fingerprint, inv->n_layers, inv->n_experts);
    for (uint32_t i = 0; i < map->n_texts; i++)
        if (!map->texts[i].check)
            moe_buf_printf(&texts, "%s%s", texts.size ? ", " : "", map->texts[i].name);
    uint64_t room = sizeof in->evidence.calibration_texts - 1;
    uint64_t n = moe_utf8_complete(texts.data, texts.size < room ? texts.size : room);
    int status = texts.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
    if (status == MOE_OK && n)
        memcpy(in->evidence.calibration_texts, texts.data, n);
    snprintf(in->evidence.calibration, sizeof in->evidence.calibration, "%s", o->calibration);
    moe_buf_release(&texts);
    return status;
}

/* ---- Opening ---- */

static int open_statistics(struct plan_inputs *in, struct moe_err *err)
{
    const char *path = in->options->strategy.statistics;
    if (!path)
        return MOE_OK;
    MOE_TRY(moe_statistics_read(&in->statistics, path, err));
    const struct moe_statistics_shape *s = &in->statistics->shape;
    if (s->n_layers != in->inventory->n_layers || s->n_experts != in->inventory->n_experts ||
        s->top_k != in->inventory->top_k)
        return moe_fail(
            err, MOE_ERR_USAGE,
            "%s: statistics of %u layers of %u experts, %u a token; %s has %u of %u, %u", path,
            s->n_layers, s->n_experts, s->top_k, in->name, in->inventory->n_layers,
            in->inventory->n_experts, in->inventory->top_k);
    snprintf(in->evidence.statistics, sizeof in->evidence.statistics, "%s", path);
    in->evidence.statistics_tokens = in->statistics->totals[MOE_TOTAL_TOKENS];
    return MOE_OK;
}

/* A GPU that is named, or that a profile describes. */
static int check_kv(const struct plan_inputs *in, struct moe_err *err)
{
    const struct strategy_options *o = &in->options->strategy;
    bool on_gpu = o->device.cuda || plan_machine_has_gpu(in);
    if (on_gpu || o->kv_kind == MOE_LAYOUT_NONE || o->kv_kind == MOE_LAYOUT_F32)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE, MOE_KV_ON_CPU, moe_layout_name(o->kv_kind));
}

/* Once everything that strategies depend on is known. */
static void set_fitters(struct plan_inputs *in)
{
    const struct plan_options *o = in->options;
    for (enum plan_budget b = 0; b < PLAN_N_BUDGETS; b++) {
        if (o->pack) {
            moe_pack_fit_statistics(in->packs[b], in->statistics);
            continue;
        }
        in->shapes[b] = (struct moe_shape_fit){
            .inventory = in->inventory,
            .statistics = in->statistics,
            .has_host = in->pace.host_slowdown > 0,
            .exact = o->strategy.exact,
            .low = o->strategy.low,
            .staging = o->strategy.staging,
            .expert_memory = o->expert_memory,
            .memory = shape_memory(in),
        };
        in->shapes[b].memory.total = b == PLAN_OF_EXPERTS ? 0 : o->memory ? o->memory : 1;
        in->fitters[b] = moe_fitter_of_shape(&in->shapes[b]);
    }
}

int plan_inputs_open(struct plan_inputs *in, const struct plan_options *o, struct moe_err *err)
{
    *in = (struct plan_inputs){.options = o};
    int status = open_model(in, err);
    if (status == MOE_OK)
        status = check_map(in, err);
    if (status == MOE_OK)
        status = open_statistics(in, err);
    if (status == MOE_OK)
        status = plan_trace_open(in, err);
    if (status == MOE_OK)
        status = moe_lookups_read(&in->lookups, in->trace, in->excerpt, err);
    if (status == MOE_OK)
        status = plan_machine_open(in, err);
    cli_progress_done();
    if (status == MOE_OK)
        status = check_kv(in, err);
    if (status == MOE_OK)
        set_fitters(in);
    return status;
}

void plan_inputs_close(struct plan_inputs *in)
{
    moe_lookups_free(in->lookups);
    moe_trace_close(in->trace);
    moe_statistics_free(in->statistics);
    moe_statistics_free(in->scoring);
    moe_inventory_release(&in->own);
    free(in->device);
    for (enum plan_budget b = 0; b < PLAN_N_BUDGETS; b++)
        moe_pack_fit_close(in->packs[b]);
}

struct moe_planner plan_planner(const struct plan_inputs *in, enum plan_budget budget)
{
    return (struct moe_planner){
        .inventory = in->inventory,
        .fitter = in->fitters[budget],
        .trace = in->trace,
        .excerpt = in->excerpt,
        .lookups = in->lookups,
        .statistics = in->statistics,
        .scoring = in->scoring,
        .pace = &in->pace,
        .host_bytes = in->host_bytes,
        .exact = in->options->strategy.exact,
        .batch_named = in->options->batch > 0,
        .prompt_tokens = in->options->prompt_tokens,
        .seed = in->options->seed,
        .progress = cli_progress(),
    };
}
