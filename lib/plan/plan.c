/*
 * Plans, and their file, moe-plan(5): its tables, and what must hold across their members.
 */
#include "plan/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "profile/trace.h"

/*
 * What the sources of plans share.
 */
/* Entries of tables. Members of the plan itself by what is left out: 0, "" or false; figures below
 * 0. */
#define FIELD(key, field) MOE_FIELD(MOE_IF_SET, struct moe_plan, key, field)
#define NEEDED(type, key, field) MOE_FIELD(MOE_ALWAYS, struct type, key, field)
#define FIGURE(type, key, field) MOE_FIELD(MOE_IF_KNOWN, struct type, key, field)
#define SHARE(type, key, field) MOE_FIELD_IN(MOE_IF_KNOWN, struct type, key, field, 0, 1)

/* Sections of struct moe_plan. */
static const struct moe_record plan_strategy_record, plan_times_record;
/* Slots of a size class, and the cache's first contents, which are read after all slots, shape,
 * memory and strategy. */
static const struct moe_record plan_pool_record;
static const struct moe_member_own plan_contents;
/* Lists of struct moe_plan. */
static const struct moe_record plan_alternative_record, plan_doubt_record;
/* Checks that all slots fit in the memory for experts. */
static int plan_check_slots(struct moe_record_reader *r, struct moe_yaml_node *root);

enum { MAX_FILE_BYTES = 16 << 20 };

static int set_up(struct moe_plan *p, struct moe_err *err);

/* ---- Pack, shape, memory ---- */

static const struct moe_member pack_members[] = {
    FIELD("name", pack),
    MOE_FINGERPRINT(MOE_IF_SET, struct moe_plan, "fingerprint", pack_fingerprint),
};
static const struct moe_record pack_record = {MOE_RECORD(pack_members)};

static const struct moe_member shape_members[] = {
    NEEDED(moe_plan, "moe_layers", n_layers),
    NEEDED(moe_plan, "experts", n_experts),
    NEEDED(moe_plan, "experts_per_token", top_k),
    FIELD("repeated_layers", n_repeated),
};

static int check_shape(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    struct moe_err why = {0};
    const struct moe_plan *p = record;
    int status = set_up(record, &why);
    if (status == MOE_OK && p->n_repeated >= p->n_layers)
        return moe_yaml_fail(r->doc, map, r->err, "'repeated_layers' must be below 'moe_layers'");
    if (status == MOE_ERR_USAGE)
        return moe_yaml_fail(r->doc, map, r->err, "%s", why.text);
    return status == MOE_OK ? MOE_OK : moe_fail(r->err, status, "%s", why.text);
}

static const struct moe_record shape_record = {MOE_RECORD(shape_members), check_shape};

static const struct moe_member memory_members[] = {
    FIELD("total_bytes", memory.total),     FIELD("program_bytes", memory.program),
    FIELD("dense_bytes", memory.dense),     FIELD("kv_bytes", memory.kv),
    FIELD("work_bytes", memory.work),       FIELD("experts_bytes", memory.experts),
    FIELD("floor_bytes", memory.floor),     FIELD("token_experts_bytes", memory.token),
    FIELD("all_experts_bytes", memory.all), FIELD("context_tokens", memory.context),
    FIELD("batch_tokens", memory.batch),    FIELD("lent_bytes", memory.lent),
    FIELD("kv_lent_bytes", memory.kv_lent), FIELD("kv", kv),
};

static int check_parts(struct moe_record_reader *r, struct moe_yaml_node *map,
                       const struct moe_plan_memory *m)
{
    if (m->lent > m->experts || m->kv_lent > m->experts - m->lent)
        return moe_yaml_fail(r->doc, map, r->err,
                             "'lent_bytes' are %" PRIu64 ", 'kv_lent_bytes' %" PRIu64
                             ", 'experts_bytes' %" PRIu64,
                             m->lent, m->kv_lent, m->experts);
    uint64_t parts = m->program + m->dense + m->kv + m->work + m->experts; /* 2^53 each at most */
    if (m->total && parts > m->total)
        return moe_yaml_fail(r->doc, map, r->err,
                             "the parts have %" PRIu64 " bytes, the total %" PRIu64, parts,
                             m->total);
    return MOE_OK;
}

static int check_memory(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    return check_parts(r, map, &((const struct moe_plan *)record)->memory);
}

static const struct moe_record memory_record = {MOE_RECORD(memory_members), check_memory};

static const struct moe_member host_members[] = {
    NEEDED(moe_plan, "total_bytes", host.total),
    FIELD("program_bytes", host.program),
    FIELD("dense_bytes", host.dense),
    FIELD("kv_bytes", host.kv),
    FIELD("work_bytes", host.work),
    FIELD("experts_bytes", host.experts),
    FIELD("floor_bytes", host.floor),
};

static int check_host(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    return check_parts(r, map, &((const struct moe_plan *)record)->host);
}

static const struct moe_record host_record = {MOE_RECORD(host_members), check_host};

/* ---- Prefetching ---- */

static const struct moe_member prefetch_members[] = {
    FIELD("layer_seconds", layer_seconds),
    FIELD("load_seconds", load_seconds),
    NEEDED(moe_plan, "loads", slack_loads),
};
static const struct moe_record prefetch_record = {MOE_RECORD(prefetch_members)};

static const struct moe_member boundary_members[] = {
    FIGURE(moe_plan, "by_accuracy", boundary_accuracy),
    FIGURE(moe_plan, "by_stall", boundary_stall),
};

static int check_boundary(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_plan *p = record;
    uint32_t unused = 0;
    int status = moe_yaml_get_u32(r->doc, map, "by_accuracy", p->n_layers, false, &unused, r->err);
    return status == MOE_OK
               ? moe_yaml_get_u32(r->doc, map, "by_stall", p->n_layers, false, &unused, r->err)
               : status;
}

static const struct moe_record boundary_record = {MOE_RECORD(boundary_members), check_boundary};

/* ---- What the plan rests on ---- */

static const struct moe_member evidence_members[] = {
    FIELD("trace", evidence.trace),
    FIELD("trace_sequences", evidence.trace_sequences),
    FIELD("trace_tokens", evidence.trace_tokens),
    FIELD("trace_prompt_tokens", evidence.trace_prompt_tokens),
    FIELD("prompt_tokens", evidence.prompt_tokens),
    FIELD("statistics", evidence.statistics),
    FIELD("statistics_tokens", evidence.statistics_tokens),
    FIELD("learnt", evidence.learnt),
    FIELD("learnt_tokens", evidence.learnt_tokens),
    FIELD("device", evidence.device),
    FIELD("threads", evidence.threads),
    FIELD("times_measured", evidence.times_measured),
    FIELD("times_stated", evidence.times_stated),
    FIELD("link_stated", evidence.link_stated),
    FIELD("loads_over_bus", evidence.loads_over_bus),
    FIELD("times_spread", evidence.times_spread),
    FIELD("manner_known", evidence.manner_known),
    FIELD("calibration", evidence.calibration),
    FIELD("calibration_texts", evidence.calibration_texts),
    FIELD("tolerance", evidence.tolerance),
    FIELD("map_tolerance", evidence.map_tolerance),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_plan, "map_loss", evidence.map_loss, -HUGE_VAL, HUGE_VAL),
    FIELD("map_unit", evidence.map_unit),
};
static const struct moe_record evidence_record = {MOE_RECORD(evidence_members)};

static const struct moe_member loss_members[] = {
    NEEDED(moe_plan_loss, "part", part),
    NEEDED(moe_plan_loss, "tokens", tokens),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_plan_loss, "nll_percent", nll_percent, -HUGE_VAL, HUGE_VAL),
    FIGURE(moe_plan_loss, "nll_error_percent", nll_error),
    NEEDED(moe_plan_loss, "top1_points", top1_points),
    FIGURE(moe_plan_loss, "top1_error_points", top1_error),
};
static const struct moe_record loss_record = {MOE_RECORD(loss_members)};

/* ---- What is expected ---- */

static const struct moe_member expected_members[] = {
    FIGURE(moe_plan_expected, "decode_tokens_per_second", decode_tokens_per_second),
    FIGURE(moe_plan_expected, "decode_error", decode_error),
    FIGURE(moe_plan_expected, "prefill_tokens_per_second", prefill_tokens_per_second),
    SHARE(moe_plan_expected, "hit_rate", hit_rate),
    SHARE(moe_plan_expected, "optimal_hit_rate", optimal_hit_rate),
    SHARE(moe_plan_expected, "accuracy", accuracy),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_plan_expected, "skipped_rate", skipped_rate, 0, 1),
    FIGURE(moe_plan_expected, "bytes_per_token", bytes_per_token),
    FIGURE(moe_plan_expected, "compute_seconds", compute_seconds),
    FIGURE(moe_plan_expected, "handling_seconds", handling_seconds),
    FIGURE(moe_plan_expected, "stall_seconds", stall_seconds),
    FIGURE(moe_plan_expected, "host_seconds", host_seconds),
    FIGURE(moe_plan_expected, "prefill_compute_seconds", prefill_compute_seconds),
    FIGURE(moe_plan_expected, "prefill_handling_seconds", prefill_handling_seconds),
    FIGURE(moe_plan_expected, "prefill_stall_seconds", prefill_stall_seconds),
    FIGURE(moe_plan_expected, "prefill_host_seconds", prefill_host_seconds),
    FIGURE(moe_plan_expected, "loads_per_token", loads_per_token),
    FIGURE(moe_plan_expected, "link_seconds", link_seconds),
    FIGURE(moe_plan_expected, "compute_limit_seconds", compute_limit_seconds),
    FIGURE(moe_plan_expected, "link_limit_seconds", link_limit_seconds),
};
static const struct moe_record expected_record = {MOE_RECORD(expected_members)};

static const struct moe_member layer_members[] = {
    SHARE(moe_plan_layer, "hit_rate", hit_rate),
    SHARE(moe_plan_layer, "accuracy", accuracy),
    FIGURE(moe_plan_layer, "stall_seconds", stall_seconds),
};
static const struct moe_record layer_record = {MOE_RECORD(layer_members)};

/* Leaves out layers that nothing is known about. */
static int read_layers(struct moe_record_reader *r, struct moe_yaml_node *root,
                       const struct moe_member *m, void *record)
{
    struct moe_plan *p = record;
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0;
    MOE_TRY(moe_yaml_get_list(r->doc, root, m->key, false, &list, &n, r->err));
    if (n > p->n_layers)
        return moe_yaml_fail(r->doc, list, r->err,
                             "'layers' must not have more than %" PRIu32 " items", p->n_layers);
    for (struct moe_yaml_node *item = list ? moe_yaml_first(list) : NULL; item;
         item = moe_yaml_next(item)) {
        uint32_t l = 0;
        MOE_TRY(moe_yaml_item_map(r->doc, item, r->err));
        MOE_TRY(moe_yaml_get_u32(r->doc, item, "layer", p->n_layers - 1, true, &l, r->err));
        if (moe_record_is_there(&layer_record, &p->layers[l]))
            return moe_yaml_fail(r->doc, item, r->err, "layer %" PRIu32 " occurs twice", l);
        MOE_TRY(moe_record_read_map(r, item, &layer_record, &p->layers[l]));
    }
    return MOE_OK;
}

static void write_layers(struct moe_record_writer *w, const struct moe_member *m,
                         const void *record)
{
    const struct moe_plan *p = record;
    moe_emit_open_list(&w->emit, m->key);
    for (uint32_t l = 0; l < p->n_layers; l++) {
        if (!moe_record_is_there(&layer_record, &p->layers[l]))
            continue;
        moe_emit_open_line_map(&w->emit, NULL);
        moe_emit_u64(&w->emit, "layer", l);
        moe_record_write_map(w, &layer_record, &p->layers[l]);
        moe_emit_close(&w->emit);
    }
    moe_emit_close(&w->emit);
}

static bool has_layers(const struct moe_member *m, const void *record)
{
    const struct moe_plan *p = record;
    bool any = false;
    (void)m;
    for (uint32_t l = 0; l < p->n_layers; l++)
        any |= moe_record_is_there(&layer_record, &p->layers[l]);
    return any;
}

static const struct moe_member_own layers = {read_layers, write_layers, has_layers};

static const struct moe_member memory_step_members[] = {
    MOE_RISING_FIELD(struct moe_plan_step, "bytes", amount, MOE_ABOVE_0, HUGE_VAL),
    FIGURE(moe_plan_step, "decode_tokens_per_second", decode_tokens_per_second),
    SHARE(moe_plan_step, "hit_rate", hit_rate),
};
static const struct moe_member rate_step_members[] = {
    MOE_RISING_FIELD(struct moe_plan_step, "bytes_per_second", amount, MOE_ABOVE_0, HUGE_VAL),
    FIGURE(moe_plan_step, "decode_tokens_per_second", decode_tokens_per_second),
    SHARE(moe_plan_step, "hit_rate", hit_rate),
};
static const struct moe_record memory_step_record = {MOE_RECORD(memory_step_members)};
static const struct moe_record rate_step_record = {MOE_RECORD(rate_step_members)};

static const struct moe_member outlook_members[] = {
    MOE_LINE_LIST(struct moe_plan, "memory", memory_steps, n_memory_steps, memory_step_record),
    MOE_LINE_LIST(struct moe_plan, "link", rate_steps, n_rate_steps, rate_step_record),
};
static const struct moe_record outlook_record = {MOE_RECORD(outlook_members)};

static const struct moe_member tried_members[] = {
    NEEDED(moe_plan_tried, "strategy", strategy),
    FIGURE(moe_plan_tried, "decode_tokens_per_second", decode_tokens_per_second),
    SHARE(moe_plan_tried, "hit_rate", hit_rate),
};

static int check_tried(struct moe_record_reader *r, struct moe_yaml_node *item, void *record)
{
    const struct moe_plan_tried *tried = record;
    if (tried > ((const struct moe_plan *)r->whole)->tried &&
        tried->decode_tokens_per_second > tried[-1].decode_tokens_per_second)
        return moe_yaml_fail(r->doc, item, r->err, "strategies tried must come fastest first");
    return MOE_OK;
}

static const struct moe_record tried_record = {MOE_RECORD(tried_members), check_tried};

/* ---- A plan without figures ---- */

bool moe_plan_shape_fits(uint32_t n_layers, uint32_t n_experts, uint32_t top_k)
{
    return n_layers > 0 && n_layers <= MOE_PLAN_MAX_LAYERS && top_k > 0 && top_k <= n_experts &&
           (uint64_t)n_layers * n_experts <= MOE_RECORD_MAX_EXPERTS;
}

static int set_up(struct moe_plan *p, struct moe_err *err)
{
    if (!moe_plan_shape_fits(p->n_layers, p->n_experts, p->top_k))
        return moe_fail(err, MOE_ERR_USAGE, "no plan has %u layers of %u experts, %u per token",
                        p->n_layers, p->n_experts, p->top_k);
    moe_record_clear(&boundary_record, p);
    moe_record_clear(&expected_record, &p->expected);
    moe_record_clear(&expected_record, &p->first);
    p->layers = moe_alloc(p->n_layers, sizeof *p->layers, err);
    if (!p->layers)
        return MOE_ERR_MEMORY;
    for (uint32_t l = 0; l < p->n_layers; l++)
        moe_record_clear(&layer_record, &p->layers[l]);
    return MOE_OK;
}

int moe_plan_new(struct moe_plan **out, uint32_t n_layers, uint32_t n_experts, uint32_t top_k,
                 struct moe_err *err)
{
    struct moe_plan *p = moe_alloc(1, sizeof *p, err);
    int status = p ? MOE_OK : MOE_ERR_MEMORY;
    if (p) {
        p->n_layers = n_layers;
        p->n_experts = n_experts;
        p->top_k = top_k;
        status = set_up(p, err);
    }
    *out = status == MOE_OK ? p : NULL;
    if (status != MOE_OK)
        moe_plan_free(p);
    return status;
}

struct moe_components moe_plan_components(const struct moe_plan_expected *e, bool prompts)
{
    return (struct moe_components){{
        [MOE_COMPONENT_COMPUTE] = prompts ? e->prefill_compute_seconds : e->compute_seconds,
        [MOE_COMPONENT_HANDLING] = prompts ? e->prefill_handling_seconds : e->handling_seconds,
        [MOE_COMPONENT_STALL] = prompts ? e->prefill_stall_seconds : e->stall_seconds,
        [MOE_COMPONENT_HOST] = prompts ? e->prefill_host_seconds : e->host_seconds,
    }};
}

double moe_plan_hit_rate_error(const struct moe_plan *plan)
{
    const struct moe_plan_evidence *e = &plan->evidence;
    double h = plan->expected.hit_rate;
    if (e->trace_tokens <= e->trace_prompt_tokens || !(h >= 0 && h <= 1))
        return 1;
    return 2 * sqrt(h * (1 - h) / (double)(e->trace_tokens - e->trace_prompt_tokens));
}

/* ---- The file ---- */

static const struct moe_member plan_members[] = {
    MOE_SECTION(MOE_IF_SET, "pack", 0, pack_record),
    MOE_SECTION(MOE_ALWAYS, "shape", 0, shape_record),
    MOE_SECTION(MOE_IF_SET, "memory", 0, memory_record),
    MOE_SECTION(MOE_IF_SET, "host_memory", 0, host_record),
    MOE_SECTION(MOE_ALWAYS, "strategy", 0, plan_strategy_record),
    MOE_LIST(struct moe_plan, "slots", pools, n_pools, plan_pool_record),
    MOE_OWN("contents", 0, plan_contents),
    MOE_SECTION(MOE_IF_SET, "prefetch", 0, prefetch_record),
    MOE_SECTION(MOE_IF_SET, "boundary", 0, boundary_record),
    MOE_SECTION(MOE_IF_SET, "times", 0, plan_times_record),
    MOE_SECTION(MOE_IF_SET, "evidence", 0, evidence_record),
    MOE_LINE_LIST(struct moe_plan, "losses", losses, n_losses, loss_record),
    MOE_SECTION(MOE_IF_SET, "expected", offsetof(struct moe_plan, expected), expected_record),
    MOE_SECTION(MOE_IF_SET, "expected_first", offsetof(struct moe_plan, first), expected_record),
    MOE_OWN("layers", 0, layers),
    MOE_SECTION(MOE_IF_SET, "outlook", 0, outlook_record),
    MOE_LINE_LIST(struct moe_plan, "alternatives", alternatives, n_alternatives,
                  plan_alternative_record),
    MOE_LINE_LIST(struct moe_plan, "doubts", doubts, n_doubts, plan_doubt_record),
    MOE_OWNED_LINE_LIST(struct moe_plan, "tried", tried, n_tried, tried_record, MOE_PLAN_MAX_TRIED),
};

static int check_plan(struct moe_record_reader *r, struct moe_yaml_node *root, void *record)
{
    (void)record;
    return plan_check_slots(r, root);
}

static const struct moe_record plan_record = {MOE_RECORD(plan_members), check_plan};

static void release_plan(void *whole)
{
    struct moe_plan *plan = whole;
    for (int i = 0; i < MOE_MAX_CLASSES; i++)
        free(plan->pools[i].per_layer);
    free(plan->contents);
    free(plan->layers);
    free(plan->tried);
}

const struct moe_record_format moe_plan_format = {.name = "moe-plan",
                                                  .title = "Plan",
                                                  .version = MOE_PLAN_VERSION,
                                                  .max_bytes = MAX_FILE_BYTES,
                                                  .record = &plan_record,
                                                  .bytes = sizeof(struct moe_plan),
                                                  .release = release_plan};

int moe_plan_write(const struct moe_plan *plan, bool json, struct moe_buf *out, struct moe_err *err)
{
    return moe_record_write(&moe_plan_format, plan, json, out, err);
}

int moe_plan_read(struct moe_plan **out, const char *path, struct moe_err *err)
{
    return moe_record_read(&moe_plan_format, out, path, err);
}

void moe_plan_free(struct moe_plan *plan)
{
    moe_record_free(&moe_plan_format, plan);
}

/*
 * In the file of a plan: what else could be, and what is taken for granted, each with the speed
 * that the simulator found for it.
 */

static const char *const alternative_names[MOE_N_ALTERNATIVES] = {"memory",  "link",    "processor",
                                                                  "experts", "context", "batch"};

const char *moe_alternative_name(enum moe_alternative what)
{
    return alternative_names[what];
}

static const char *const assumption_names[MOE_N_ASSUMPTIONS] = {
    [MOE_ASSUME_ROUTING] = "routing-of-another-model",
    [MOE_ASSUME_BANDWIDTH] = "times-from-bandwidth",
    [MOE_ASSUME_NOMINAL] = "link-as-stated",
    [MOE_ASSUME_FIGURES] = "routing-drawn",
    [MOE_ASSUME_QUIET] = "machine-quiet",
    [MOE_ASSUME_FEW_TOKENS] = "few-tokens",
    [MOE_ASSUME_NO_STATISTICS] = "no-statistics",
    [MOE_ASSUME_ALIKE] = "texts-alike",
};

const char *moe_assumption_name(enum moe_assumption what)
{
    return assumption_names[what];
}

/* ---- Alternatives ---- */

static const struct moe_member alternative_members[] = {
    MOE_NAME(MOE_ALWAYS, struct moe_plan_alternative, "what", what, alternative_names),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_plan_alternative, "amount", amount, MOE_ABOVE_0, HUGE_VAL),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_plan_alternative, "times", times, MOE_ABOVE_0, HUGE_VAL),
    MOE_FIELD(MOE_IF_SET, struct moe_plan_alternative, "precision", precision),
    MOE_FIELD(MOE_IF_SET, struct moe_plan_alternative, "strategy", strategy),
    FIGURE(moe_plan_alternative, "decode_tokens_per_second", decode_tokens_per_second),
    FIGURE(moe_plan_alternative, "prefill_tokens_per_second", prefill_tokens_per_second),
    SHARE(moe_plan_alternative, "hit_rate", hit_rate),
    FIGURE(moe_plan_alternative, "bytes_per_token", bytes_per_token),
    MOE_FIELD(MOE_IF_SET, struct moe_plan_alternative, "loss_tokens", loss_tokens),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_plan_alternative, "loss_percent", loss_percent, -HUGE_VAL,
                 HUGE_VAL),
    FIGURE(moe_plan_alternative, "loss_error_percent", loss_error),
};
static const struct moe_record plan_alternative_record = {MOE_RECORD(alternative_members)};

/* ---- Doubts ---- */

static const struct moe_member doubt_members[] = {
    MOE_NAME(MOE_ALWAYS, struct moe_plan_doubt, "assumption", what, assumption_names),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_plan_doubt, "by", by, MOE_ABOVE_0, HUGE_VAL),
    FIGURE(moe_plan_doubt, "decode_tokens_per_second", decode_tokens_per_second),
};

/* Each assumption once: what explains them has room for no more. */
static int check_doubt(struct moe_record_reader *r, struct moe_yaml_node *item, void *record)
{
    const struct moe_plan *p = r->whole;
    const struct moe_plan_doubt *d = record;
    for (const struct moe_plan_doubt *other = p->doubts; other < d; other++)
        if (other->what == d->what)
            return moe_yaml_fail(r->doc, item, r->err, "assumption '%s' occurs twice",
                                 moe_assumption_name(d->what));
    return MOE_OK;
}

static const struct moe_record plan_doubt_record = {MOE_RECORD(doubt_members), check_doubt};

/*
 * Slots in the file of a plan, and the cache's first contents.
 */

/* ---- Slots ---- */

static int read_per_layer(struct moe_record_reader *r, struct moe_yaml_node *item,
                          const struct moe_member *m, void *record)
{
    const struct moe_plan *p = r->whole;
    struct moe_plan_pool *pool = record;
    struct moe_yaml_node *list = NULL;
    uint64_t sum = 0;
    if (!moe_yaml_get(item, m->key))
        return MOE_OK;
    int status = moe_yaml_get_list_of(r->doc, item, m->key, p->n_layers, &list, r->err);
    if (status != MOE_OK)
        return status;
    pool->per_layer = moe_alloc(p->n_layers, sizeof *pool->per_layer, r->err);
    if (!pool->per_layer)
        return MOE_ERR_MEMORY;
    status = moe_yaml_list_u32s(r->doc, list, p->n_experts, false, pool->per_layer, r->err);
    for (uint32_t l = 0; l < p->n_layers; l++)
        sum += pool->per_layer[l];
    if (status == MOE_OK && sum != pool->n_cache)
        status = moe_yaml_fail(r->doc, list, r->err,
                               "the layers have %" PRIu64 " slots, 'cache_slots' are %" PRIu32, sum,
                               pool->n_cache);
    return status;
}

static void write_per_layer(struct moe_record_writer *w, const struct moe_member *m,
                            const void *record)
{
    const struct moe_plan *p = w->whole;
    const struct moe_plan_pool *pool = record;
    if (pool->per_layer)
        moe_emit_u32s(&w->emit, m->key, pool->per_layer, p->n_layers);
}

static const struct moe_member_own per_layer = {read_per_layer, write_per_layer, NULL};

static const struct moe_member pool_members[] = {
    MOE_FIELD(MOE_ALWAYS, struct moe_plan_pool, "slot_bytes", slot_bytes),
    MOE_FIELD(MOE_ALWAYS, struct moe_plan_pool, "cache_slots", n_cache),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_plan_pool, "working_slots", n_working, 0,
                 MOE_RECORD_MAX_EXPERTS),
    MOE_OWN("per_layer", 0, per_layer),
};

static int check_pool(struct moe_record_reader *r, struct moe_yaml_node *item, void *record)
{
    const struct moe_plan *p = r->whole;
    /* Each expert may be there at two precisions, stored alike. */
    uint64_t most = 2 * (uint64_t)p->n_layers * p->n_experts;
    if (((const struct moe_plan_pool *)record)->n_cache <= most)
        return MOE_OK;
    return moe_yaml_fail(r->doc, item, r->err,
                         "'cache_slots' must not be more than %" PRIu64
                         ", twice as many as there are experts",
                         most);
}

static const struct moe_record plan_pool_record = {MOE_RECORD(pool_members), check_pool};

static int plan_check_slots(struct moe_record_reader *r, struct moe_yaml_node *root)
{
    const struct moe_plan *p = r->whole;
    uint64_t bytes = 0, of_pool;
    bool fit = true;
    if (p->n_pools == 0)
        return MOE_OK;
    if (p->strategy.resident)
        return moe_yaml_fail(r->doc, moe_yaml_get(root, "slots"), r->err,
                             "the strategy 'resident' has no slots");
    for (uint32_t i = 0; i < p->n_pools && fit; i++)
        fit = moe_mul_u64(p->pools[i].slot_bytes,
                          (uint64_t)p->pools[i].n_cache + p->pools[i].n_working, &of_pool) &&
              moe_add_u64(bytes, of_pool, &bytes);
    if (!fit || (p->memory.experts && bytes > p->memory.experts))
        return moe_yaml_fail(r->doc, moe_yaml_get(root, "slots"), r->err,
                             "the slots have more bytes than 'experts_bytes' of the memory");
    return MOE_OK;
}

/* ---- Contents ---- */

/* The lists of the layers, one after the other in experts[]; ends[l]: where those of l end. */
static int read_layers_contents(struct moe_record_reader *r, struct moe_yaml_node *list,
                                uint32_t *experts, uint32_t *ends, uint32_t *seen)
{
    const struct moe_plan *p = r->whole;
    uint32_t n = 0, layer = 0;
    int status = MOE_OK;
    for (struct moe_yaml_node *m = moe_yaml_first(list); m && status == MOE_OK;
         m = moe_yaml_next(m), layer++) {
        uint32_t first = n;
        uint64_t slots = 0;
        for (uint32_t i = 0; i < p->n_pools; i++)
            slots += p->pools[i].per_layer ? p->pools[i].per_layer[layer] : p->pools[i].n_cache;
        if (moe_yaml_length(m) > slots)
            return moe_yaml_fail(r->doc, m, r->err,
                                 "layer %" PRIu32 " has more contents than slots", layer);
        status = moe_yaml_list_u32s(r->doc, m, p->n_experts - 1, false, experts + n, r->err);
        n += (uint32_t)moe_yaml_length(m);
        ends[layer] = n;
        for (uint32_t i = first; i < n && status == MOE_OK; i++) {
            if (seen[experts[i]] == layer + 1)
                status =
                    moe_yaml_fail(r->doc, m, r->err, "expert %" PRIu32 " occurs twice", experts[i]);
            seen[experts[i]] = layer + 1;
        }
    }
    return status;
}

/* Brings the experts of the layers into the order in which they are loaded: in `order` the layer of
 * each; NULL: layer by layer. */
static int order_contents(struct moe_record_reader *r, struct moe_yaml_node *order,
                          const uint32_t *experts, const uint32_t *ends)
{
    struct moe_plan *p = r->whole;
    uint32_t *taken = moe_alloc(p->n_layers, sizeof *taken, r->err);
    uint32_t i = 0;
    int status = taken ? MOE_OK : MOE_ERR_MEMORY;
    for (uint32_t l = 0; l < p->n_layers && taken; l++)
        for (taken[l] = l ? ends[l - 1] : 0; !order && i < ends[l]; i++)
            p->contents[i] = l * p->n_experts + experts[i];
    for (struct moe_yaml_node *m = order ? moe_yaml_first(order) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        uint64_t l = 0;
        status = moe_yaml_item_u64(r->doc, m, p->n_layers - 1, &l, r->err);
        if (status == MOE_OK && taken[l] == ends[l])
            status = moe_yaml_fail(r->doc, m, r->err,
                                   "layer %" PRIu64 " is named more often than it has contents", l);
        if (status == MOE_OK)
            p->contents[i++] = (uint32_t)l * p->n_experts + experts[taken[l]++];
    }
    free(taken);
    return status;
}

static int count_contents(struct moe_record_reader *r, struct moe_yaml_node *list)
{
    struct moe_plan *p = r->whole;
    uint64_t n = 0, slots = 0;
    int status = MOE_OK;
    for (uint32_t i = 0; i < p->n_pools; i++)
        slots += p->pools[i].n_cache;
    for (struct moe_yaml_node *m = moe_yaml_first(list); m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        status = moe_yaml_item_list(r->doc, m, r->err);
        n += moe_yaml_length(m);
    }
    if (status == MOE_OK && n > slots)
        status = moe_yaml_fail(r->doc, list, r->err,
                               "there are %" PRIu64 " experts for %" PRIu64 " slots", n, slots);
    p->n_contents = status == MOE_OK ? (uint32_t)n : 0;
    return status;
}

static int read_contents(struct moe_record_reader *r, struct moe_yaml_node *root,
                         const struct moe_member *m, void *record)
{
    struct moe_plan *p = record;
    struct moe_yaml_node *map = NULL, *list = NULL, *order = NULL;
    uint32_t *experts = NULL, *ends = NULL, *seen = NULL;
    int status = moe_yaml_get_map(r->doc, root, m->key, false, &map, r->err);
    if (!map)
        return status;
    MOE_STEP(moe_yaml_get_list_of(r->doc, map, "layers", p->n_layers, &list, r->err));
    MOE_STEP(count_contents(r, list));
    if (moe_yaml_get(map, "order"))
        MOE_STEP(moe_yaml_get_list_of(r->doc, map, "order", p->n_contents, &order, r->err));
    p->contents = moe_alloc(p->n_contents, sizeof *p->contents, r->err);
    experts = moe_alloc(p->n_contents, sizeof *experts, r->err);
    ends = moe_alloc(p->n_layers, sizeof *ends, r->err);
    seen = moe_alloc(p->n_experts, sizeof *seen, r->err);
    MOE_STEP(p->contents && experts && ends && seen ? MOE_OK : MOE_ERR_MEMORY);
    MOE_STEP(read_layers_contents(r, list, experts, ends, seen));
    MOE_STEP(order_contents(r, order, experts, ends));
out:
    free(experts);
    free(ends);
    free(seen);
    return status;
}

static bool is_layer_by_layer(const struct moe_plan *p)
{
    for (uint32_t i = 1; i < p->n_contents; i++)
        if (p->contents[i] / p->n_experts < p->contents[i - 1] / p->n_experts)
            return false;
    return true;
}

static void write_contents(struct moe_record_writer *w, const struct moe_member *m,
                           const void *record)
{
    const struct moe_plan *p = record;
    struct moe_emit *e = &w->emit;
    if (p->n_contents == 0)
        return;
    moe_emit_open_map(e, m->key);
    moe_emit_open_list(e, "layers");
    for (uint32_t l = 0; l < p->n_layers; l++) {
        moe_emit_open_line_list(e, NULL);
        for (uint32_t i = 0; i < p->n_contents; i++)
            if (p->contents[i] / p->n_experts == l)
                moe_emit_u64(e, NULL, p->contents[i] % p->n_experts);
        moe_emit_close(e);
    }
    moe_emit_close(e);
    if (!is_layer_by_layer(p)) {
        moe_emit_open_line_list(e, "order");
        for (uint32_t i = 0; i < p->n_contents; i++)
            moe_emit_u64(e, NULL, p->contents[i] / p->n_experts);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

static const struct moe_member_own plan_contents = {read_contents, write_contents, NULL};

/*
 * The strategy in the file of a plan: the entry of the table that it began as, and its parts; and
 * what following it comes to.
 */

static int read_row(struct moe_record_reader *r, struct moe_yaml_node *map,
                    const struct moe_member *m, void *record)
{
    struct moe_strategy *s = &((struct moe_plan *)record)->strategy;
    const char *name = NULL;
    int status = moe_yaml_get_text(r->doc, map, m->key, false, &name, r->err);
    if (name && !moe_strategy_find(name, s))
        status = moe_yaml_fail(r->doc, moe_yaml_get(map, m->key), r->err,
                               "there is no strategy '%.60s'", name);
    return status;
}

static void write_row(struct moe_record_writer *w, const struct moe_member *m, const void *record)
{
    const struct moe_plan *p = record;
    if (p->strategy.name)
        moe_emit_text(&w->emit, m->key, p->strategy.name);
}

static const struct moe_member_own row = {read_row, write_row, NULL};

static int read_part(struct moe_record_reader *r, struct moe_yaml_node *parts,
                     struct moe_strategy *s, enum moe_part part)
{
    const struct moe_strategy_part *shown = moe_strategy_part_at(part);
    const char *text = NULL;
    struct moe_err why;
    bool on = false;
    bool required = part == MOE_PART_CACHE && !s->resident;
    int status = shown->arg ? moe_yaml_get_text(r->doc, parts, shown->name, required, &text, r->err)
                            : moe_yaml_get_bool(r->doc, parts, shown->name, false, &on, r->err);
    if (on)
        text = "on";
    if (status == MOE_OK && text && !moe_strategy_set(s, part, text, &why))
        status = moe_yaml_fail(r->doc, moe_yaml_get(parts, shown->name), r->err, "'%s': '%.60s' %s",
                               shown->name, text, why.text);
    return status;
}

/* A part that the file does not name is off, even where the strategy has it. */
static int read_parts(struct moe_record_reader *r, struct moe_yaml_node *map,
                      const struct moe_member *m, void *record)
{
    struct moe_strategy *s = &((struct moe_plan *)record)->strategy;
    struct moe_yaml_node *parts = NULL;
    int status = moe_yaml_get_map(r->doc, map, m->key, !s->resident, &parts, r->err);
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        moe_strategy_set(s, part, moe_strategy_part_at(part)->off, NULL);
    for (enum moe_part part = 0; part < MOE_N_PARTS && parts && status == MOE_OK; part++)
        status = read_part(r, parts, s, part);
    return status;
}

static void write_parts(struct moe_record_writer *w, const struct moe_member *m, const void *record)
{
    const struct moe_strategy *s = &((const struct moe_plan *)record)->strategy;
    if (s->resident)
        return;
    moe_emit_open_map(&w->emit, m->key);
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        char text[MOE_PART_TEXT_BYTES];
        if (!moe_strategy_has(s, part) && part != MOE_PART_CACHE)
            continue;
        const struct moe_strategy_part *shown = moe_strategy_part_at(part);
        moe_strategy_part_text(s, part, text);
        if (shown->arg)
            moe_emit_text(&w->emit, shown->name, text);
        else
            moe_emit_bool(&w->emit, shown->name, true);
    }
    moe_emit_close(&w->emit);
}

static const struct moe_member_own parts = {read_parts, write_parts, NULL};

/* What decided what the strategy left open; left out where it names it. */
static const char *const boundary_words[] = {"named", "statistics", "eighth"};
static const char *const threshold_words[] = {"named", "statistics", "mixtral"};

static const struct moe_member strategy_members[] = {
    MOE_OWN("row", 0, row),
    FIELD("precision", high),
    FIELD("low_precision", low),
    MOE_OWN("parts", 0, parts),
    /* After the parts, which reset these. */
    MOE_NAME(MOE_IF_SET, struct moe_plan, "boundary_from", strategy.boundary_from, boundary_words),
    MOE_NAME(MOE_IF_SET, struct moe_plan, "thresholds_from", strategy.thresholds_from,
             threshold_words),
};

static int check_strategy(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    struct moe_strategy *s = &((struct moe_plan *)record)->strategy;
    struct moe_yaml_node *at = moe_yaml_get(map, "parts");
    struct moe_err why = {0};
    at = at ? at : map;
    if (moe_strategy_settle(s, &why) != MOE_OK)
        return moe_yaml_fail(r->doc, at, r->err, "%s", why.text);
    if (s->alloc == MOE_ALLOC_SHALLOW && s->boundary == MOE_SHALLOW_AUTO)
        return moe_yaml_fail(r->doc, at, r->err, "'alloc' must have its number: shallow:L");
    if (s->by_scores)
        return moe_yaml_fail(r->doc, at, r->err, "'on-miss' must have its number: load-low:T1");
    if (s->skip_by_scores)
        return moe_yaml_fail(r->doc, at, r->err, "'skip-below' must be a number");
    if (s->precalculate && s->precalculate_from == MOE_PRECALCULATE_AUTO)
        return moe_yaml_fail(r->doc, at, r->err, "'precalculate-from' is missing");
    return MOE_OK;
}

static const struct moe_record plan_strategy_record = {MOE_RECORD(strategy_members),
                                                       check_strategy};

/* ---- What it comes to ---- */

struct moe_terms moe_plan_terms(const struct moe_plan *p)
{
    const struct moe_strategy *s = &p->strategy;
    struct moe_terms t = {.strategy = s, .planned = true};
    t.kv = p->kv;
    bool knows_best = p->pace.n_variants > 0;
    bool below = knows_best ? strcmp(p->high, p->variants[0]) != 0
                            : moe_bits_are(p->high, (int)s->cache_bits);
    if (!s->resident && p->high[0] && below) {
        t.kept = p->high;
        t.best = knows_best ? p->variants[0] : NULL;
    }
    return t;
}

/*
 * The times in the file of a plan: for each piece of a layer and an expert of each variant, seconds
 * by rows of the batch.
 */

static int read_numbers(struct moe_record_reader *r, struct moe_yaml_node *map, const char *key,
                        double *out, uint32_t *n)
{
    struct moe_yaml_node *list = NULL;
    uint64_t found = 0;
    int status;
    MOE_STEP(moe_yaml_get_list(r->doc, map, key, false, &list, &found, r->err));
    if (found > MOE_LINE_POINTS)
        MOE_STEP(moe_yaml_fail(r->doc, list, r->err, "'%s' must not have more than %d items", key,
                               MOE_LINE_POINTS));
    if (list)
        MOE_STEP(moe_yaml_list_doubles(r->doc, list, 0, out, r->err));
out:
    *n = (uint32_t)found;
    return status;
}

/* `rows` and `seconds`; without points where both are missing. */
static int read_line(struct moe_record_reader *r, struct moe_yaml_node *map, struct moe_line *line)
{
    uint32_t n_seconds = 0;
    MOE_TRY(read_numbers(r, map, "rows", line->x, &line->n));
    MOE_TRY(read_numbers(r, map, "seconds", line->y, &n_seconds));
    if (line->n != n_seconds)
        return moe_yaml_fail(r->doc, map, r->err, "'rows' and 'seconds' differ in length");
    for (uint32_t i = 0; i < line->n; i++) {
        if (line->x[i] <= (i ? line->x[i - 1] : 0))
            return moe_yaml_fail(r->doc, moe_yaml_get(map, "rows"), r->err,
                                 "'rows' must be above 0 and rising");
    }
    return MOE_OK;
}

static void write_line(struct moe_emit *e, const struct moe_line *line)
{
    moe_emit_doubles(e, "rows", line->x, line->n);
    moe_emit_doubles(e, "seconds", line->y, line->n);
}

static int read_pieces(struct moe_record_reader *r, struct moe_yaml_node *map,
                       const struct moe_member *m, void *record)
{
    struct moe_pace *pace = &((struct moe_plan *)record)->pace;
    int status = MOE_OK;
    (void)m;
    for (enum moe_piece piece = 0; piece < MOE_N_PIECES && status == MOE_OK; piece++) {
        struct moe_yaml_node *line = NULL;
        status = moe_yaml_get_map(r->doc, map, moe_piece_name(piece), false, &line, r->err);
        if (line)
            status = read_line(r, line, &pace->pieces[piece]);
    }
    return status;
}

static void write_pieces(struct moe_record_writer *w, const struct moe_member *m,
                         const void *record)
{
    const struct moe_pace *pace = &((const struct moe_plan *)record)->pace;
    (void)m;
    for (enum moe_piece piece = 0; piece < MOE_N_PIECES; piece++) {
        if (pace->pieces[piece].n == 0)
            continue;
        moe_emit_open_map(&w->emit, moe_piece_name(piece));
        write_line(&w->emit, &pace->pieces[piece]);
        moe_emit_close(&w->emit);
    }
}

static bool has_pieces(const struct moe_member *m, const void *record)
{
    const struct moe_pace *pace = &((const struct moe_plan *)record)->pace;
    bool any = false;
    (void)m;
    for (int i = 0; i < MOE_N_PIECES; i++)
        any |= pace->pieces[i].n > 0;
    return any;
}

static const struct moe_member_own pieces = {read_pieces, write_pieces, has_pieces};

/* Items are in two arrays: names in the plan, lines in its pace. */
static const struct moe_member variant_name =
    MOE_FIELD(MOE_ALWAYS, struct moe_plan, "precision", variants[0]);

static int read_variant(struct moe_record_reader *r, struct moe_yaml_node *item, struct moe_plan *p,
                        uint32_t v)
{
    MOE_TRY(moe_yaml_item_map(r->doc, item, r->err));
    MOE_TRY(moe_record_read_member(r, item, &variant_name, (char *)p + sizeof p->variants[0] * v));
    for (uint32_t i = 0; i < v; i++)
        if (strcmp(p->variants[v], p->variants[i]) == 0)
            return moe_yaml_fail(r->doc, item, r->err, "precision '%s' occurs twice",
                                 p->variants[v]);
    return read_line(r, item, &p->pace.experts[v]);
}

static int read_variants(struct moe_record_reader *r, struct moe_yaml_node *map,
                         const struct moe_member *m, void *record)
{
    struct moe_plan *p = record;
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0;
    MOE_TRY(moe_yaml_get_list(r->doc, map, m->key, false, &list, &n, r->err));
    if (n > MOE_MAX_VARIANTS)
        return moe_yaml_fail(r->doc, list, r->err, "'%s' must not have more than %d items", m->key,
                             MOE_MAX_VARIANTS);
    for (struct moe_yaml_node *item = list ? moe_yaml_first(list) : NULL; item;
         item = moe_yaml_next(item))
        MOE_TRY(read_variant(r, item, p, p->pace.n_variants++));
    return MOE_OK;
}

static void write_variants(struct moe_record_writer *w, const struct moe_member *m,
                           const void *record)
{
    const struct moe_plan *p = record;
    moe_emit_open_list(&w->emit, m->key);
    for (uint32_t v = 0; v < p->pace.n_variants; v++) {
        moe_emit_open_map(&w->emit, NULL);
        moe_emit_text(&w->emit, variant_name.key, p->variants[v]);
        if (p->pace.experts[v].n)
            write_line(&w->emit, &p->pace.experts[v]);
        moe_emit_close(&w->emit);
    }
    moe_emit_close(&w->emit);
}

static bool has_variants(const struct moe_member *m, const void *record)
{
    (void)m;
    return ((const struct moe_plan *)record)->pace.n_variants > 0;
}

static const struct moe_member_own variants = {read_variants, write_variants, has_variants};

#define IN_FLIGHT(key, field) MOE_FIELD_IN(MOE_IF_SET, struct moe_plan, key, field, 0, 65535)
static const struct moe_member times_members[] = {
    FIELD("load_bytes_per_second", pace.load_rate),
    FIELD("load_piece_seconds", pace.loads.piece),
    FIELD("storage_bytes_per_second", pace.storage_rate),
    FIELD("storage_piece_seconds", pace.storage_piece_seconds),
    FIELD("joint_seconds", pace.joint),
    FIELD("head_seconds", pace.head),
    FIELD("predict_seconds", pace.predict),
    FIELD("host_slowdown", pace.host_slowdown),
    FIELD("attend_seconds", pace.attend),
    FIELD("positions", pace.positions),
    FIELD("load_latency_seconds", pace.loads.latency),
    IN_FLIGHT("demands_in_flight", pace.loads.demands_in_flight),
    IN_FLIGHT("prefetches_in_flight", pace.loads.prefetches_in_flight),
    FIELD("handling_seconds", pace.loads.handling),
    FIELD("handling_seconds_per_byte", pace.loads.handling_byte),
    FIELD("loading_slowdown", pace.loads.slowdown),
    FIELD("wake_seconds", pace.loads.wake),
    FIELD("late_seconds", pace.loads.late),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_plan, "interruptions", pace.loads.interruptions, 1,
                 HUGE_VAL),
    MOE_OWN(NULL, 0, pieces),
    MOE_OWN("experts", 0, variants),
};
static const struct moe_record plan_times_record = {MOE_RECORD(times_members)};
