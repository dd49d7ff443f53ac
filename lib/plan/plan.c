/*
 * Plans, and their file, moe-plan(5): its tables, and what must hold across their members.
 */
#include "plan/plan.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "plan/plan_file.h"
#include "trace/trace.h"

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
};

static int check_shape(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    struct moe_err why = {0};
    int status = set_up(record, &why);
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
    FIELD("batch_tokens", memory.batch),    FIELD("kv", kv),
};

static int check_parts(struct moe_record_reader *r, struct moe_yaml_node *map,
                       const struct moe_plan_memory *m)
{
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
    FIELD("device", evidence.device),
    FIELD("times_measured", evidence.times_measured),
    FIELD("times_stated", evidence.times_stated),
    FIELD("link_stated", evidence.link_stated),
    FIELD("times_spread", evidence.times_spread),
    FIELD("manner_known", evidence.manner_known),
    FIELD("calibration", evidence.calibration),
    FIELD("calibration_texts", evidence.calibration_texts),
};
static const struct moe_record evidence_record = {MOE_RECORD(evidence_members)};

static const struct moe_member loss_members[] = {
    NEEDED(moe_plan_loss, "part", part),
    NEEDED(moe_plan_loss, "tokens", tokens),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_plan_loss, "nll_percent", nll_percent, -HUGE_VAL, HUGE_VAL),
    NEEDED(moe_plan_loss, "nll_error_percent", nll_error),
    NEEDED(moe_plan_loss, "top1_points", top1_points),
    NEEDED(moe_plan_loss, "top1_error_points", top1_error),
};
static const struct moe_record loss_record = {MOE_RECORD(loss_members)};

/* ---- What is expected ---- */

static const struct moe_member expected_members[] = {
    FIGURE(moe_plan, "decode_tokens_per_second", expected.decode_tokens_per_second),
    FIGURE(moe_plan, "decode_error", expected.decode_error),
    FIGURE(moe_plan, "prefill_tokens_per_second", expected.prefill_tokens_per_second),
    SHARE(moe_plan, "hit_rate", expected.hit_rate),
    SHARE(moe_plan, "optimal_hit_rate", expected.optimal_hit_rate),
    SHARE(moe_plan, "accuracy", expected.accuracy),
    FIGURE(moe_plan, "bytes_per_token", expected.bytes_per_token),
    FIGURE(moe_plan, "compute_seconds", expected.compute_seconds),
    FIGURE(moe_plan, "handling_seconds", expected.handling_seconds),
    FIGURE(moe_plan, "stall_seconds", expected.stall_seconds),
    FIGURE(moe_plan, "host_seconds", expected.host_seconds),
    FIGURE(moe_plan, "prefill_compute_seconds", expected.prefill_compute_seconds),
    FIGURE(moe_plan, "prefill_handling_seconds", expected.prefill_handling_seconds),
    FIGURE(moe_plan, "prefill_stall_seconds", expected.prefill_stall_seconds),
    FIGURE(moe_plan, "prefill_host_seconds", expected.prefill_host_seconds),
    FIGURE(moe_plan, "loads_per_token", expected.loads_per_token),
    FIGURE(moe_plan, "link_seconds", expected.link_seconds),
    FIGURE(moe_plan, "compute_limit_seconds", expected.compute_limit_seconds),
    FIGURE(moe_plan, "link_limit_seconds", expected.link_limit_seconds),
};
static const struct moe_record expected_record = {MOE_RECORD(expected_members)};

static const struct moe_member layer_members[] = {
    SHARE(moe_plan_layer, "hit_rate", hit_rate),
    SHARE(moe_plan_layer, "accuracy", accuracy),
    FIGURE(moe_plan_layer, "stall_seconds", stall_seconds),
};
static const struct moe_record layer_record = {MOE_RECORD(layer_members)};

/* Layers of which nothing is known are left out. */
static int read_layers(struct moe_record_reader *r, struct moe_yaml_node *root,
                       const struct moe_member *m, void *record)
{
    struct moe_plan *p = record;
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0;
    int status = moe_yaml_get_list(r->doc, root, m->key, false, &list, &n, r->err);
    if (status == MOE_OK && n > p->n_layers)
        return moe_yaml_fail(r->doc, list, r->err,
                             "'layers' must not have more than %" PRIu32 " items", p->n_layers);
    for (struct moe_yaml_node *item = list ? moe_yaml_first(list) : NULL; item && status == MOE_OK;
         item = moe_yaml_next(item)) {
        uint32_t l = 0;
        status = moe_yaml_item_map(r->doc, item, r->err);
        if (status == MOE_OK)
            status = moe_yaml_get_u32(r->doc, item, "layer", p->n_layers - 1, true, &l, r->err);
        if (status == MOE_OK && moe_record_is_there(&layer_record, &p->layers[l]))
            status = moe_yaml_fail(r->doc, item, r->err, "layer %" PRIu32 " is there twice", l);
        if (status == MOE_OK)
            status = moe_record_read_map(r, item, &layer_record, &p->layers[l]);
    }
    return status;
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

/* ---- A plan of which nothing is known ---- */

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
    moe_record_clear(&expected_record, p);
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

struct moe_components moe_plan_components(const struct moe_plan *plan, bool prompts)
{
    const struct moe_plan_expected *e = &plan->expected;
    return (struct moe_components){{
        [MOE_COMPONENT_COMPUTE] = prompts ? e->prefill_compute_seconds : e->compute_seconds,
        [MOE_COMPONENT_HANDLING] = prompts ? e->prefill_handling_seconds : e->handling_seconds,
        [MOE_COMPONENT_STALL] = prompts ? e->prefill_stall_seconds : e->stall_seconds,
        [MOE_COMPONENT_HOST] = prompts ? e->prefill_host_seconds : e->host_seconds,
    }};
}

void moe_plan_free(struct moe_plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; i < MOE_MAX_CLASSES; i++)
        free(plan->pools[i].per_layer);
    free(plan->contents);
    free(plan->layers);
    free(plan->tried);
    free(plan);
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
    MOE_SECTION(MOE_IF_SET, "expected", 0, expected_record),
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
static const struct moe_record_format plan_format = {"moe-plan",     "Plan",       MOE_PLAN_VERSION,
                                                     MAX_FILE_BYTES, &plan_record, NULL};

int moe_plan_write(const struct moe_plan *plan, struct moe_buf *out, struct moe_err *err)
{
    return moe_record_write(&plan_format, plan, false, out, err);
}

int moe_plan_write_json(const struct moe_plan *plan, struct moe_buf *out, struct moe_err *err)
{
    return moe_record_write(&plan_format, plan, true, out, err);
}

static int finish(struct moe_plan **out, struct moe_plan *plan, int status)
{
    *out = status == MOE_OK ? plan : NULL;
    if (status != MOE_OK)
        moe_plan_free(plan);
    return status;
}

int moe_plan_parse(struct moe_plan **out, const char *name, const void *text, uint64_t n,
                   struct moe_err *err)
{
    struct moe_plan *plan = moe_alloc(1, sizeof *plan, err);
    return finish(out, plan,
                  plan ? moe_record_parse(&plan_format, plan, name, text, n, err) : MOE_ERR_MEMORY);
}

int moe_plan_read(struct moe_plan **out, const char *path, struct moe_err *err)
{
    struct moe_plan *plan = moe_alloc(1, sizeof *plan, err);
    return finish(out, plan,
                  plan ? moe_record_read(&plan_format, plan, path, err) : MOE_ERR_MEMORY);
}
