/* Opens what moe-plan plans with: model, statistics, trace, pace. */
#include "plan_inputs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "cache/learnt.h"
#include "cli.h"
#include "plan/synthesis.h"
#include "profile/document_split.h"
#include "profile/statistics.h"
#include "tune/device_bench.h"

/* ---- The trace ---- */

/* Of a synthetic trace: enough decoded tokens for an error of two points in the hit rate. */
enum { SEQUENCES = 24, PROMPT_TOKENS = 32, DECODED_TOKENS = 112 };

static bool has_same_shape(const struct moe_trace_shape *a, const struct moe_inventory *b)
{
    return a->n_layers == b->n_layers && a->n_encoder == b->n_encoder &&
           a->n_experts == b->n_experts && a->top_k == b->top_k &&
           memcmp(a->is_static, b->is_static, a->n_layers) == 0;
}

static int refuse_trace(const struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_trace_shape *s = moe_trace_shape(in->trace);
    return moe_fail(err, MOE_ERR_USAGE,
                    "%s: a trace of %u layers of %u experts, %u a token; %s has %u of %u, %u",
                    in->options->trace, s->n_layers, s->n_experts, s->top_k, in->name,
                    in->inventory->n_layers, in->inventory->n_experts, in->inventory->top_k);
}

/* How experts are used: from statistics, else from a trace of another model, else as in the bundled
 * model. */
static int find_figures(struct plan_inputs *in, struct moe_routing_figures *out,
                        struct moe_err *err)
{
    bool known_accuracy;
    *out = moe_routing_figures_bundled;
    in->evidence.manner_known = in->statistics || in->trace;
    if (in->statistics)
        moe_routing_figures_of_statistics(out, in->statistics);
    else if (in->trace)
        return moe_routing_figures_of_trace(out, &known_accuracy, in->trace, err);
    return MOE_OK;
}

/* Of a model without weights nothing was ever counted: other texts are drawn in the same manner. */
static int begin_statistics(struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_inventory *inv = in->inventory;
    const struct moe_statistics_shape shape = {
        .n_layers = inv->n_layers,
        .n_experts = inv->n_experts,
        .top_k = inv->top_k,
        .n_encoder = inv->n_encoder,
        .max_tokens = PROMPT_TOKENS + DECODED_TOKENS,
        .prompt_percent = 100 * PROMPT_TOKENS / (PROMPT_TOKENS + DECODED_TOKENS),
    };
    return inv->top_k <= MOE_STATISTICS_MAX_TOP_K ? moe_statistics_new(&in->statistics, &shape, err)
                                                  : MOE_OK;
}

static int write_drawn(struct plan_inputs *in, const struct moe_synthesis *synthesis,
                       const char *path, struct moe_err *err)
{
    struct moe_routing_figures reached;
    MOE_TRY(moe_synthesize_trace(path, synthesis, &reached, err));
    return moe_trace_open(&in->trace, path, err);
}

/* ... into a file that has no name. */
static int write_nameless(struct plan_inputs *in, const struct moe_synthesis *synthesis,
                          struct moe_err *err)
{
    const char *dir = getenv("TMPDIR");
    char path[MOE_DESCRIPTOR_PATH];
    dir = dir && *dir ? dir : "/tmp";
    int fd = moe_file_nameless(dir, path, err);
    if (fd < 0)
        return fd;
    int status = write_drawn(in, synthesis, path, err);
    close(fd);
    if (status != MOE_OK)
        moe_err_rename(err, path, dir);
    return status;
}

/* Draws a trace. */
static int draw_trace(struct plan_inputs *in, struct moe_err *err)
{
    const char *kept = in->options->drawn;
    struct moe_synthesis synthesis = {
        .shape = {.n_layers = in->inventory->n_layers,
                  .n_encoder = in->inventory->n_encoder,
                  .n_experts = in->inventory->n_experts,
                  .top_k = in->inventory->top_k,
                  .loop = in->inventory->loop},
        .sequences = SEQUENCES,
        .prompt_tokens = PROMPT_TOKENS,
        .decoded_tokens = DECODED_TOKENS,
        .seed = in->options->seed,
        .progress = cli_progress(),
    };
    memcpy(synthesis.shape.is_static, in->inventory->is_static, in->inventory->n_layers);
    MOE_TRY(find_figures(in, &synthesis.figures, err));
    if (!in->statistics && in->options->shape)
        MOE_TRY(begin_statistics(in, err));
    synthesis.statistics = in->options->strategy.statistics ? NULL : in->statistics;
    moe_trace_close(in->trace);
    in->trace = NULL;
    MOE_TRY(kept ? write_drawn(in, &synthesis, kept, err) : write_nameless(in, &synthesis, err));
    cli_note("no trace of this model: drawing one at random that resembles %s",
             in->options->strategy.statistics ? in->options->strategy.statistics
             : in->options->trace             ? in->options->trace
                                              : "the bundled model");
    return MOE_OK;
}

/* Statistics of the trace's own documents would know what comes in it: those of every other
 * document then score the rest. */
static int split_documents(struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_origins *trace = moe_trace_origins(in->trace);
    if (!in->statistics || !trace || !moe_split_shared(&in->statistics->origins, trace) ||
        in->inventory->n_encoder || moe_trace_totals(in->trace)->sequences < 2)
        return MOE_OK;
    const struct moe_excerpt counted = moe_split_counted(in->excerpt);
    in->excerpt = moe_split_judged(in->excerpt);
    cli_note("%s was made from texts of %s: half of the trace is simulated, with statistics of the "
             "other half",
             in->options->strategy.statistics, in->options->trace);
    return moe_split_count(&in->scoring, in->trace, counted, &in->statistics->shape, err);
}

/* The tokens of the trace that are used. */
static int count_tokens(struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_trace_token *token;
    struct moe_plan_evidence *e = &in->evidence;
    int status = MOE_OK;
    in->excerpt = moe_excerpt_of(in->trace, in->options->max_tokens);
    status = split_documents(in, err);
    if (status != MOE_OK)
        return status;
    moe_excerpt_begin(in->trace, in->excerpt, 0);
    while ((status = moe_excerpt_next(in->trace, in->excerpt, &e->trace_tokens, &token, err)) ==
               MOE_OK &&
           token) {
        e->trace_prompt_tokens += token->prompt;
        e->trace_sequences += token->index == 0;
    }
    return status;
}

static int plan_trace_open(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    if (o->trace && !in->trace)
        MOE_TRY(moe_trace_open(&in->trace, o->trace, err));
    bool own = in->trace && has_same_shape(moe_trace_shape(in->trace), in->inventory);
    if (in->trace && !own && !o->shape)
        return refuse_trace(in, err);
    if (own && o->drawn)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: is a trace of this model, so there is none to draw (--draw-trace)",
                        o->trace);
    if (own)
        snprintf(in->evidence.trace, sizeof in->evidence.trace, "%s", o->trace);
    else
        MOE_TRY(draw_trace(in, err));
    return count_tokens(in, err);
}

/* ---- The machine ---- */

/* Of the host's memory, experts behind an accelerator may take so much. */
#define HOST_SHARE 0.9

static struct moe_weights weights_of(const struct plan_inputs *in)
{
    struct moe_weights w = {
        .n_layers = in->config.n_layers ? in->config.n_layers : in->inventory->n_layers,
        .n_moe_layers = in->inventory->n_layers,
        .top_k = in->inventory->top_k,
        .attention_bytes = in->bytes.attention,
        .router_bytes = in->bytes.router,
        .shared_bytes = in->bytes.shared,
        .dense_bytes = in->bytes.dense_ff,
        .head_bytes = in->bytes.head,
        .n_variants = in->inventory->n_variants,
    };
    for (uint32_t v = 0; v < w.n_variants; v++)
        w.expert_bytes[v] = moe_inventory_mean_bytes(in->inventory, v);
    return w;
}

/* What the profile says of this model in the words of others. A pack's times are measured. */
static const struct moe_device_timed *timed(const struct plan_inputs *in)
{
    const struct moe_inventory *inv = in->inventory;
    if (in->options->pack || in->options->strategy.device.test || !in->device)
        return NULL;
    return moe_device_find_timed(in->device, inv->n_layers, inv->n_experts, inv->top_k);
}

/* Bytes per second of loads as asked for, or as the profile says of this model; 0: neither. */
static double load_rate(const struct plan_inputs *in)
{
    const struct plan_options *o = in->options;
    const struct moe_device_timed *t = timed(in);
    if (o->strategy.device.test)
        return o->strategy.device.link_rate;
    if (o->load_seconds > 0)
        return moe_inventory_mean_load(in->inventory, 0) / o->load_seconds;
    if (!(o->link_rate > 0) && t && t->load.value > 0)
        return t->load_bytes.value / t->load.value;
    return o->link_rate;
}

/* A machine known only by the time of a layer: the bandwidth is set so that reading a layer's
 * weights takes that time. */
static int pace_of_layer(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    struct moe_weights w = weights_of(in);
    uint64_t bytes = w.attention_bytes + w.shared_bytes + w.top_k * w.expert_bytes[0];
    struct moe_device *d = calloc(1, sizeof *d);
    if (!d)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    in->evidence.times_stated = true;
    snprintf(d->name, sizeof d->name, "layers of %g s", o->layer_seconds);
    d->host.memory_bytes_per_second.value =
        (double)bytes / (o->layer_seconds * MOE_PACE_BANDWIDTH_SHARE);
    in->device = d;
    return moe_pace_of_bandwidth(&in->pace, d, &w, MOE_TIER_STORAGE, load_rate(in), err);
}

/* A pack is planned for the processor that runs it (or a test device, which the processor plays)
 * where no GPU is named, and so is anything on a machine that was measured just now. A model
 * without a pack, which nothing here runs, is planned for all that a profile describes, its
 * accelerator included, unless the processor is named. */
static enum moe_device_tier tier_of(const struct plan_inputs *in)
{
    const struct plan_options *o = in->options;
    bool described = !o->pack && o->profile && !o->on_cpu && !o->strategy.device.test;
    return in->device ? moe_pace_tier(in->device, described || o->strategy.device.cuda)
                      : MOE_TIER_STORAGE;
}

static bool plan_machine_has_gpu(const struct plan_inputs *in)
{
    return tier_of(in) == MOE_TIER_HOST;
}

/* A profile of a pack that keeps maps has times of its variants. The experts of a map are of these:
 * with their mean bytes "map" is a variant that was not measured (moe_pace_of_device). */
static void describe_map(struct moe_device *d, const struct moe_inventory *inventory)
{
    struct moe_device_model *m = &d->model;
    int found = moe_device_variant(d, MOE_MAP_VARIANT);
    uint32_t v = found < 0 ? m->n_variants : (uint32_t)found;
    if (inventory->n_variants == 0 || strcmp(inventory->variants[0], MOE_MAP_VARIANT) != 0 ||
        v == MOE_DEVICE_MAX_VARIANTS || (found >= 0 && moe_device_expert_line(d, v).n > 0))
        return;
    if (found < 0)
        m->n_variants++;
    m->variants[v] = (struct moe_device_variant){
        .name = MOE_MAP_VARIANT,
        .bytes = {.value = (double)moe_inventory_mean_bytes(inventory, 0)},
    };
}

static int pace_of_profile(struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_device *d = in->device;
    double rate = load_rate(in);
    bool measured_here = tier_of(in) == MOE_TIER_STORAGE; /* a profile times a model's layers on the
                                                             processor */
    in->evidence.times_measured = measured_here && d->has_model &&
                                  d->model.source_fingerprint != 0 &&
                                  d->model.source_fingerprint == in->source_fingerprint;
    describe_map(in->device, in->inventory);
    if (in->evidence.times_measured)
        return moe_pace_of_device(&in->pace, d,
                                  (const char(*)[MOE_NAME_BYTES])in->inventory->variants,
                                  in->inventory->n_variants, rate, err);
    const struct moe_weights w = weights_of(in);
    return moe_pace_of_bandwidth(&in->pace, d, &w, tier_of(in), rate, err);
}

static int measure_machine(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    const struct moe_device_bench_options what = {.pack = o->pack, .progress = cli_progress()};
    cli_note("measuring this machine (moe-profile --device%s%s -o DEVICE saves the result for "
             "--device-profile DEVICE)",
             o->pack ? " " : "", o->pack ? o->pack : "");
    if (o->strategy.device.test) /* one core for the device, one for the host */
        moe_par_set_threads(1);
    return moe_device_bench(&what, &in->device, err);
}

static int copy_device(struct plan_inputs *in, struct moe_err *err)
{
    in->device = moe_alloc(1, sizeof *in->device, err);
    if (!in->device)
        return MOE_ERR_MEMORY;
    *in->device = *in->options->device;
    return MOE_OK;
}

int plan_pace_of(const struct plan_inputs *in, const struct moe_device *d, struct moe_pace *out,
                 struct moe_err *err)
{
    struct plan_inputs other = *in;
    other.device = (struct moe_device *)d; /* only read */
    MOE_TRY(pace_of_profile(&other, err));
    *out = other.pace;
    return MOE_OK;
}

/* The time of a layer beside a profile: as asked for, or as the profile says of this model. */
static void set_layer(struct plan_inputs *in)
{
    const struct plan_options *o = in->options;
    const struct moe_device_timed *t = timed(in);
    double seconds = o->layer_seconds > 0 ? o->layer_seconds : t ? t->layer.value : 0;
    if (!o->profile || !(seconds > 0))
        return;
    moe_pace_set_layer(&in->pace, in->inventory->top_k, seconds);
    in->evidence.times_stated = true;
}

static int plan_machine_open(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    if (o->strategy.device.cuda && o->pack)
        MOE_TRY(moe_config_check_gpu(&in->config, o->pack, err));
    if (o->layer_seconds > 0 && !o->profile)
        MOE_TRY(pace_of_layer(in, err));
    else {
        MOE_TRY(o->device    ? copy_device(in, err)
                : o->profile ? moe_device_read(&in->device, o->profile, err)
                             : measure_machine(in, err));
        MOE_TRY(pace_of_profile(in, err));
    }
    if (o->strategy.device.cuda && tier_of(in) != MOE_TIER_HOST)
        return moe_fail(err, MOE_ERR_USAGE,
                        "device profile '%s': no GPU with memory of its own (--device cuda)",
                        in->device->name);
    if (o->strategy.device.cuda && o->pack && !(in->pace.storage_rate > 0))
        return moe_fail(err, MOE_ERR_USAGE,
                        "device profile '%s': no rate of storage, which is behind the host's "
                        "memory (moe-profile --device measures it)",
                        in->device->name);
    struct moe_err why;
    if (o->shape && plan_machine_has_gpu(in) &&
        moe_config_check_gpu(&in->config, o->shape, &why) != MOE_OK)
        cli_note("moe-run computes it on the processor only, which --device cpu plans for: %s",
                 why.text);
    const struct moe_device *d = in->device;
    double host = d->host.memory_bytes_per_second.value;
    if (o->strategy.device.test) {
        in->pace.host_slowdown = o->strategy.device.speed;
        in->pace.loads = (struct moe_link_costs){/* its loads take nobody's time */
                                                 .interruptions = in->pace.loads.interruptions};
    } else if (tier_of(in) == MOE_TIER_HOST && host > 0 &&
               d->accelerator.memory_bytes_per_second.value > 0)
        in->pace.host_slowdown = d->accelerator.memory_bytes_per_second.value / host;
    in->evidence.link_stated = load_rate(in) > 0 || !moe_device_load_measured(d, tier_of(in));
    in->evidence.loads_over_bus = plan_machine_has_gpu(in);
    in->evidence.times_spread = moe_device_spread(d);
    if (in->evidence.times_measured)
        in->evidence.threads = (uint32_t)d->host.threads.value;
    set_layer(in);
    in->host_bytes = (uint64_t)(HOST_SHARE * d->host.memory_bytes.value);
    if (in->host_bytes == 0 && !o->pack) /* a pack's is named */
        in->pace.storage_rate = 0;       /* how much the host holds is not known: everything */
    snprintf(in->evidence.device, sizeof in->evidence.device, "%.*s", MOE_PLAN_TEXT - 1, d->name);
    return MOE_OK;
}

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

/* memory_bytes is 0 for a budget of experts. --simulate sets its sizes later; 1 means a budget of
 * the process until then. */
static struct moe_engine_options engine_options(const struct plan_options *o,
                                                enum plan_budget budget)
{
    return (struct moe_engine_options){
        .memory_bytes = budget == PLAN_OF_EXPERTS ? 0
                        : o->memory               ? o->memory
                                                  : 1,
        .gpu_memory_bytes = o->gpu_memory,
        .expert_memory_bytes = o->expert_memory,
        .tolerance = o->calibration ? 0 : o->tolerance,
        .exact = o->strategy.exact,
        .kv_beside = true,
        .reserve_kv = o->reserve_kv,
        .low_variant = o->strategy.low,
        .staging = o->strategy.staging,
        .device = o->strategy.device,
        .ahead = o->draft.ahead,
        .drafter = o->draft.head,
        .link_rate = o->link_rate,
        .seed = o->seed,
        .session = {.context = o->context,
                    .n_sequences = 1,
                    .batch = o->batch,
                    .kv_kind = o->strategy.kv_kind,
                    .takes_back = o->draft.drafts,
                    .n_snapshots = MOE_SNAPSHOTS},
        .context_cap = MOST_CONTEXT,
        .beside = room_for_text,
        .beside_ctx = (void *)o,
    };
}

/* Refuses what moe-run would refuse without a plan, before the machine is measured. */
static int check_budget(const struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_fitter *f = &in->fitters[PLAN_OF_PROCESS];
    struct moe_strategy wanted = in->options->wanted;
    struct moe_fitted fitted;
    struct moe_err why = {0};
    if (!wanted.name && in->options->shape) /* of those that are tried it takes least */
        moe_strategy_find("lru", &wanted);
    int status = in->options->memory ? f->fit(f->ctx, &wanted, NULL, &fitted, &why) : MOE_OK;
    if (status != MOE_ERR_LIMIT) /* the rest may depend on what is not open yet */
        return MOE_OK;
    *err = why;
    return status;
}

/* A pack of drawn weights serves rehearsals: a trace whose tokens choose more or fewer experts is
 * planned as moe-run --follow computes it. */
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
    const enum plan_budget asked = o->memory ? PLAN_OF_PROCESS : PLAN_OF_EXPERTS;
    for (int i = 0; i < PLAN_N_BUDGETS && status == MOE_OK; i++) {
        const enum plan_budget b = (asked + i) % PLAN_N_BUDGETS;
        struct moe_engine_options eo = engine_options(o, b);
        eo.follows = follows ? moe_trace_shape(follows) : NULL;
        eo.follows_name = o->trace;
        if (b != asked) /* the same map */
            eo.of_fingerprint = moe_pack_fingerprint(moe_pack_fit_model(in->packs[asked])->pack);
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
    if (o->tolerance > 0 && !o->calibration)
        strategy_note_map(model->pack, o->tolerance);
    const uint32_t map = moe_pack_map_taken(model->pack);
    if (map != UINT32_MAX) {
        const struct moe_pack_map taken = moe_pack_map_at(model->pack, map);
        in->evidence.map_tolerance = taken.tolerance;
        in->evidence.map_loss = taken.loss;
        strcpy(in->evidence.map_unit, taken.points ? "points" : "percent");
    }
    if (in->drawn)
        cli_detail("%s: its weights were drawn (moe-quantize --synthesize)", o->pack);
    status = check_experts(in, err);
    if (status == MOE_OK)
        status = check_budget(in, err);
    const struct moe_bits usual = {4, 4};
    return status == MOE_OK ? moe_shape_bytes(&in->bytes, &in->config, usual, 8, GROUP, err)
                            : status;
}

/* Bytes of a cell with its share of a scale, for keys and values, which are as many. */
static double cell_bytes(uint16_t kind)
{
    const uint16_t keys = moe_kv_of_keys(kind), values = moe_kv_of_values(kind);
    const uint32_t dim = 64; /* any whole groups */
    const uint64_t bytes = moe_kv_panel_bytes(keys, dim) + moe_kv_panel_bytes(values, dim);
    return (double)bytes / (2 * MOE_PANEL_ROWS * dim);
}

/* Sets the memory of a model without weights, experts left out, and which blocks of its KV cache
 * slots can lend memory to; a trace does not say it. */
static struct moe_plan_memory shape_memory(const struct plan_inputs *in, struct moe_loan *blocks)
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
        .kv_kind = o->strategy.kv_kind ? o->strategy.kv_kind : MOE_KV_DEFAULT,
        .whole_windows = plan_machine_has_gpu(in),
    };
    if (!o->shape)
        return m;
    m.program = SHAPE_PROGRAM;
    m.dense = in->bytes.dense;
    m.kv = moe_session_kv_bytes(&in->config, &so);
    m.work = moe_session_bytes(&in->config, &so) - m.kv;
    if (in->shape.n_kinds)
        m.kv = moe_shape_file_kv_bytes(&in->shape, m.context, cell_bytes(so.kv_kind));
    const struct moe_kv kv = moe_kv_shape(&in->config, &so);
    const uint32_t n = kv.whole.n_blocks;
    if (n > 1 && !o->reserve_kv && !so.whole_windows)
        *blocks = (struct moe_loan){
            .n_blocks = n,
            .block_positions = kv.block_positions,
            .block_bytes = in->shape.n_kinds ? m.kv / n : moe_kv_block_bytes(&kv),
        };
    return m;
}

/* The bytes of a model whose experts have the bits that the user wrote. */
static int shape_bytes(struct plan_inputs *in, const char *experts, struct moe_err *err)
{
    struct moe_bits bits;
    char kinds[MOE_BITS_KINDS_BYTES];
    if (!moe_parse_bits(experts, &bits))
        return moe_fail(err, MOE_ERR_USAGE,
                        "'%.20s' is not a bitwidth of experts: name one of 32, 16, 8, 6, 5, 4, 3, "
                        "2, %s, or two like 4d8",
                        experts, moe_format_bits_kinds(kinds));
    return moe_shape_file_bytes(&in->bytes, &in->shape, bits, (uint32_t)in->options->dense_bits,
                                GROUP, err);
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

/* A map belongs to a model; its packs may have other precisions. */
static int check_map(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    const struct moe_map *map = o->strategy.map;
    const struct moe_inventory *inv = in->inventory;
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
    snprintf(in->evidence.calibration, sizeof in->evidence.calibration, "%s", o->calibration);
    return MOE_OK;
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

/* Before anything is measured: a file of another model is known at once. */
static int open_learnt(struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_inventory *inv = in->inventory;
    const struct moe_learnt_origin model = {in->source_fingerprint, in->name, inv->n_layers,
                                            inv->n_experts, inv->top_k};
    struct moe_learnt_about about = {0};
    const char *path = in->options->learn;
    if (!path)
        return MOE_OK;
    MOE_TRY(moe_learnt_describe(&about, path, &model, err));
    const uint64_t most = sizeof in->evidence.learnt - 1, n = strlen(path);
    memcpy(in->evidence.learnt, path,
           moe_utf8_complete((const uint8_t *)path, n < most ? n : most));
    in->evidence.learnt_tokens = about.n_tokens;
    return MOE_OK;
}

/* A GPU that is named, or that a profile describes. */
static int check_kv(const struct plan_inputs *in, struct moe_err *err)
{
    const struct strategy_options *o = &in->options->strategy;
    bool on_gpu = o->device.cuda || plan_machine_has_gpu(in);
    if (!on_gpu || moe_kv_on_gpu(o->kv_kind))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE, MOE_KV_ON_GPU, moe_kv_kind_name(o->kv_kind));
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
        };
        in->shapes[b].memory = shape_memory(in, &in->shapes[b].kv);
        in->shapes[b].memory.total = b == PLAN_OF_EXPERTS ? 0 : o->memory ? o->memory : 1;
        in->fitters[b] = moe_fitter_of_shape(&in->shapes[b]);
    }
}

int plan_inputs_open(struct plan_inputs *in, const struct plan_options *o, struct moe_err *err)
{
    *in = (struct plan_inputs){.options = o};
    int status;
    MOE_STEP(open_model(in, err));
    MOE_STEP(check_map(in, err));
    MOE_STEP(open_statistics(in, err));
    MOE_STEP(open_learnt(in, err));
    const bool described = o->device || o->profile || o->layer_seconds > 0;
    if (described)
        MOE_STEP(plan_machine_open(in, err));
    if (o->shape && o->memory > 1 && !o->device) { /* neither several budgets nor machines */
        set_fitters(in);
        MOE_STEP(check_budget(in, err)); /* what must be drawn or measured takes long */
    }
    MOE_STEP(plan_trace_open(in, err));
    MOE_STEP(moe_lookups_read(&in->lookups, in->trace, in->excerpt, err));
    if (!described)
        MOE_STEP(plan_machine_open(in, err));
    MOE_STEP(check_kv(in, err));
    set_fitters(in);
out:
    cli_progress_done();
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
    for (uint32_t i = 0; i < in->n_elsewhere; i++)
        moe_pack_fit_close(in->elsewhere[i].pack);
}

int plan_memory_beside(const struct plan_inputs *in, uint32_t batch, struct moe_plan_memory *out,
                       struct moe_err *err)
{
    const struct moe_fit_room room = {.batch = batch};
    struct moe_strategy lru;
    struct moe_fitted fitted;
    const struct moe_fitter *f = &in->fitters[PLAN_OF_PROCESS];
    *out = in->shapes[PLAN_OF_PROCESS].memory;
    if (in->options->pack || batch) {
        moe_strategy_find("lru", &lru);
        MOE_TRY(f->fit(f->ctx, &lru, batch ? &room : NULL, &fitted, err));
        *out = fitted.memory;
        out->kv += out->kv_lent;
        out->kv_lent = 0;
    }
    return MOE_OK;
}

/* The machine's pace with the pack's experts at other precisions. */
static int pace_elsewhere(const struct plan_inputs *in, struct plan_elsewhere *e,
                          struct moe_err *err)
{
    struct plan_inputs other = *in;
    other.inventory = moe_pack_fit_inventory(e->pack);
    MOE_TRY(pace_of_profile(&other, err));
    set_layer(&other);
    e->pace = in->pace;
    e->pace.n_variants = other.pace.n_variants;
    memcpy(e->pace.experts, other.pace.experts, sizeof e->pace.experts);
    return MOE_OK;
}

/* Opens the pack with the map that it takes in so much memory (planner.h). */
static int model_at(void *ctx, uint64_t bytes, struct moe_planner_model *out, struct moe_err *err)
{
    struct plan_inputs *in = ctx;
    const struct plan_options *o = in->options;
    struct plan_elsewhere *e = in->elsewhere;
    const uint32_t most = sizeof in->elsewhere / sizeof in->elsewhere[0];
    while (e < in->elsewhere + in->n_elsewhere && e->bytes != bytes)
        e++;
    if (e == in->elsewhere + most)
        return MOE_OK;
    if (e == in->elsewhere + in->n_elsewhere) {
        struct moe_engine_options eo =
            engine_options(o, o->memory ? PLAN_OF_PROCESS : PLAN_OF_EXPERTS);
        *(o->strategy.device.cuda ? &eo.gpu_memory_bytes
          : eo.memory_bytes       ? &eo.memory_bytes
                                  : &eo.expert_memory_bytes) = bytes;
        MOE_TRY(moe_pack_fit_open(&e->pack, o->pack, &eo, err));
        e->bytes = bytes;
        in->n_elsewhere++;
        moe_pack_fit_statistics(e->pack, in->statistics);
        MOE_TRY(pace_elsewhere(in, e, err));
    }
    const struct moe_pack *pack = moe_pack_fit_model(e->pack)->pack;
    const uint32_t map = moe_pack_map_taken(pack);
    if (moe_pack_fingerprint(pack) == in->fingerprint)
        return MOE_OK;
    out->inventory = moe_pack_fit_inventory(e->pack);
    out->fitter = moe_pack_fit_fitter(e->pack);
    out->pace = &e->pace;
    if (map == UINT32_MAX)
        snprintf(out->precision, sizeof out->precision, "experts at %.16s%s",
                 out->inventory->variants[0], moe_bits_unit(out->inventory->variants[0]));
    else
        snprintf(out->precision, sizeof out->precision, "map for %g%s",
                 moe_pack_map_at(pack, map).tolerance,
                 moe_pack_map_at(pack, map).points ? " points" : "%");
    return MOE_OK;
}

struct moe_planner plan_planner(const struct plan_inputs *in, enum plan_budget budget)
{
    const bool maps = in->options->pack && in->options->tolerance > 0 && !in->options->calibration;
    return (struct moe_planner){
        .model_at = maps ? model_at : NULL,
        .model_ctx = (void *)in,
        .inventory = in->inventory,
        .fitter = in->fitters[budget],
        .trace = in->trace,
        .excerpt = in->excerpt,
        .lookups = in->lookups,
        .statistics = in->statistics,
        .scoring = in->scoring,
        .learnt = in->options->learn,
        .pace = &in->pace,
        .host_bytes = in->host_bytes,
        .exact = in->options->strategy.exact,
        .batch_named = in->options->batch > 0,
        .prompt_tokens = in->options->prompt_tokens,
        .seed = in->options->seed,
        .progress = cli_progress(),
    };
}
