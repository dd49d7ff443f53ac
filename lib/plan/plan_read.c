/*
 * Reads plans, and believes nothing in them.
 */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "plan/plan_reader.h"

enum { MAX_FILE_BYTES = 16 << 20 };

/* ---- Shape, memory, strategy ---- */

static int read_shape(struct plan_reader *r)
{
    struct moe_plan found = {0};
    struct moe_yaml_node *map = NULL;
    int status = moe_yaml_get_map(r->doc, r->root, "shape", true, &map, r->err);
    if (status == MOE_OK)
        status = plan_read_members(r, map, &plan_shape, &found);
    if (status == MOE_OK && !moe_plan_shape_fits(found.n_layers, found.n_experts, found.top_k))
        status = moe_yaml_fail(r->doc, map, r->err,
                               "no plan has %" PRIu32 " layers of %" PRIu32 " experts, %" PRIu32
                               " per token",
                               found.n_layers, found.n_experts, found.top_k);
    return status == MOE_OK
               ? moe_plan_new(&r->plan, found.n_layers, found.n_experts, found.top_k, r->err)
               : status;
}

static int read_memory(struct plan_reader *r)
{
    const struct moe_plan_memory *m = &r->plan->memory;
    int status = plan_read_section(r, "memory", &plan_memory);
    uint64_t parts = m->program + m->dense + m->kv + m->work + m->experts; /* 2^53 each at most */
    if (status == MOE_OK && m->total && parts > m->total)
        status =
            moe_yaml_fail(r->doc, moe_yaml_get(r->root, "memory"), r->err,
                          "the parts have %" PRIu64 " bytes, the total %" PRIu64, parts, m->total);
    return status;
}

static int read_part(struct plan_reader *r, struct moe_yaml_node *parts, enum moe_part part)
{
    const struct moe_strategy_part *shown = moe_strategy_part_at(part);
    const char *text = NULL;
    char why[128];
    bool on = false;
    bool required = part == MOE_PART_CACHE && !r->plan->strategy.resident;
    int status = shown->arg ? moe_yaml_get_text(r->doc, parts, shown->name, required, &text, r->err)
                            : moe_yaml_get_bool(r->doc, parts, shown->name, false, &on, r->err);
    if (on)
        text = "on";
    if (status == MOE_OK && text && !moe_strategy_set(&r->plan->strategy, part, text, why))
        status = moe_yaml_fail(r->doc, moe_yaml_get(parts, shown->name), r->err, "'%s': '%.60s' %s",
                               shown->name, text, why);
    return status;
}

static int check_strategy(struct plan_reader *r, struct moe_yaml_node *map)
{
    struct moe_strategy *s = &r->plan->strategy;
    struct moe_err why = {0};
    if (moe_strategy_settle(s, &why) != MOE_OK)
        return moe_yaml_fail(r->doc, map, r->err, "%s", why.text);
    if (s->alloc == MOE_ALLOC_SHALLOW && s->boundary == MOE_SHALLOW_AUTO)
        return moe_yaml_fail(r->doc, map, r->err, "'alloc' must have its number: shallow:L");
    if (s->precalculate && s->precalculate_from == MOE_PRECALCULATE_AUTO)
        return moe_yaml_fail(r->doc, map, r->err, "'precalculate-from' is missing");
    return MOE_OK;
}

static int read_strategy(struct plan_reader *r)
{
    struct moe_strategy *s = &r->plan->strategy;
    struct moe_yaml_node *map = NULL, *parts = NULL;
    const char *row = NULL;
    char why[128];
    int status = moe_yaml_get_map(r->doc, r->root, "strategy", true, &map, r->err);
    if (status == MOE_OK)
        status = plan_read_members(r, map, &plan_precision, r->plan);
    if (status == MOE_OK)
        status = moe_yaml_get_text(r->doc, map, "row", false, &row, r->err);
    if (row && !moe_strategy_find(row, s))
        return moe_yaml_fail(r->doc, moe_yaml_get(map, "row"), r->err,
                             "'%.60s' is no row of the table of strategies", row);
    if (status == MOE_OK)
        status = moe_yaml_get_map(r->doc, map, "parts", !s->resident, &parts, r->err);
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        moe_strategy_set(s, part, moe_strategy_part_at(part)->off, why);
    for (enum moe_part part = 0; part < MOE_N_PARTS && parts && status == MOE_OK; part++)
        status = read_part(r, parts, part);
    return status == MOE_OK ? check_strategy(r, parts ? parts : map) : status;
}

/* ---- Times ---- */

static int read_doubles(struct plan_reader *r, struct moe_yaml_node *list, double *out)
{
    int status = MOE_OK;
    for (struct moe_yaml_node *m = moe_yaml_first(list); m && status == MOE_OK;
         m = moe_yaml_next(m))
        status = moe_yaml_item_double(r->doc, m, out++, r->err);
    return status;
}

/* `rows` and `seconds`; without points where both are missing. */
static int read_line(struct plan_reader *r, struct moe_yaml_node *map, struct moe_line *line)
{
    struct moe_yaml_node *rows = NULL, *seconds = NULL;
    uint64_t n_rows = 0, n_seconds = 0;
    int status = moe_yaml_get_list(r->doc, map, "rows", false, &rows, &n_rows, r->err);
    if (status == MOE_OK)
        status = moe_yaml_get_list(r->doc, map, "seconds", false, &seconds, &n_seconds, r->err);
    if (status == MOE_OK && n_rows != n_seconds)
        return moe_yaml_fail(r->doc, map, r->err, "'rows' and 'seconds' differ in length");
    if (status == MOE_OK && n_rows > MOE_LINE_POINTS)
        return moe_yaml_fail(r->doc, rows, r->err, "'rows' must not have more than %d items",
                             MOE_LINE_POINTS);
    if (status != MOE_OK || n_rows == 0)
        return status;
    status = read_doubles(r, rows, line->x);
    if (status == MOE_OK)
        status = read_doubles(r, seconds, line->y);
    line->n = (uint32_t)n_rows;
    for (uint32_t i = 0; i < line->n && status == MOE_OK; i++) {
        if (line->x[i] <= (i ? line->x[i - 1] : 0))
            status = moe_yaml_fail(r->doc, rows, r->err, "'rows' must be above 0 and rising");
        else if (line->y[i] < 0)
            status = moe_yaml_fail(r->doc, seconds, r->err, "'seconds' must be at least 0");
    }
    return status;
}

static int read_variant(struct plan_reader *r, struct moe_yaml_node *item, uint32_t i)
{
    static const struct plan_member name = {"precision", PLAN_TEXT, 0, MOE_PACK_NAME_BYTES, true};
    struct moe_plan *p = r->plan;
    int status = plan_read_text(r, item, &name, p->variants[i]);
    for (uint32_t j = 0; j < i && status == MOE_OK; j++)
        if (strcmp(p->variants[i], p->variants[j]) == 0)
            status = moe_yaml_fail(r->doc, item, r->err, "precision '%s' is there twice",
                                   p->variants[i]);
    return status == MOE_OK ? read_line(r, item, &p->pace.experts[i]) : status;
}

static int read_times(struct plan_reader *r)
{
    struct moe_plan *p = r->plan;
    struct moe_yaml_node *map = NULL;
    int status = moe_yaml_get_map(r->doc, r->root, "times", false, &map, r->err);
    if (!map)
        return status;
    status = plan_read_members(r, map, &plan_times, p);
    for (enum moe_piece piece = 0; piece < MOE_N_PIECES && status == MOE_OK; piece++) {
        struct moe_yaml_node *line = NULL;
        status = moe_yaml_get_map(r->doc, map, moe_piece_name(piece), false, &line, r->err);
        if (line)
            status = read_line(r, line, &p->pace.pieces[piece]);
    }
    if (status == MOE_OK)
        status = plan_read_items(r, map, "experts", MOE_PACK_MAX_VARIANTS, read_variant,
                                 &p->pace.n_variants);
    return status;
}

/* ---- What is expected ---- */

static int read_layer(struct plan_reader *r, struct moe_yaml_node *item, uint32_t i)
{
    struct moe_plan *p = r->plan;
    uint32_t layer = 0;
    int status = moe_yaml_get_u32(r->doc, item, "layer", p->n_layers - 1, true, &layer, r->err);
    if (status == MOE_OK && plan_any_there(&plan_layer, &p->layers[layer]))
        return moe_yaml_fail(r->doc, item, r->err, "layer %" PRIu32 " is there twice", layer);
    return status == MOE_OK ? plan_read_members(r, item, &plan_layer, &p->layers[layer]) : status;
}

static int read_step(struct plan_reader *r, struct moe_yaml_node *item,
                     const struct plan_table *table, struct moe_plan_step *steps, uint32_t i)
{
    plan_forget(table, &steps[i]);
    int status = plan_read_members(r, item, table, &steps[i]);
    if (status == MOE_OK && steps[i].amount <= (i ? steps[i - 1].amount : 0))
        status = moe_yaml_fail(r->doc, item, r->err, "'%s' must be above 0 and rising",
                               table->members[0].key);
    return status;
}

static int read_memory_step(struct plan_reader *r, struct moe_yaml_node *item, uint32_t i)
{
    return read_step(r, item, &plan_memory_step, r->plan->memory_steps, i);
}

static int read_rate_step(struct plan_reader *r, struct moe_yaml_node *item, uint32_t i)
{
    return read_step(r, item, &plan_rate_step, r->plan->rate_steps, i);
}

static int read_outlook(struct plan_reader *r)
{
    struct moe_plan *p = r->plan;
    struct moe_yaml_node *map = NULL;
    int status = moe_yaml_get_map(r->doc, r->root, "outlook", false, &map, r->err);
    if (!map)
        return status;
    status =
        plan_read_items(r, map, "memory", MOE_PLAN_MAX_STEPS, read_memory_step, &p->n_memory_steps);
    if (status == MOE_OK)
        status =
            plan_read_items(r, map, "link", MOE_PLAN_MAX_STEPS, read_rate_step, &p->n_rate_steps);
    return status;
}

static int read_tried_item(struct plan_reader *r, struct moe_yaml_node *item, uint32_t i)
{
    struct moe_plan_tried *tried = r->plan->tried;
    plan_forget(&plan_tried, &tried[i]);
    int status = plan_read_members(r, item, &plan_tried, &tried[i]);
    if (status == MOE_OK && i &&
        tried[i].decode_tokens_per_second > tried[i - 1].decode_tokens_per_second)
        status = moe_yaml_fail(r->doc, item, r->err, "what was tried must stand the fastest first");
    return status;
}

static int read_tried(struct plan_reader *r)
{
    if (!moe_yaml_get(r->root, "tried"))
        return MOE_OK;
    r->plan->tried = moe_alloc(MOE_PLAN_MAX_TRIED, sizeof *r->plan->tried, r->err);
    return r->plan->tried ? plan_read_items(r, r->root, "tried", MOE_PLAN_MAX_TRIED,
                                            read_tried_item, &r->plan->n_tried)
                          : MOE_ERR_MEMORY;
}

static int read_loss(struct plan_reader *r, struct moe_yaml_node *item, uint32_t i)
{
    return plan_read_members(r, item, &plan_loss, &r->plan->losses[i]);
}

/* ---- All ---- */

static int read_plan(struct plan_reader *r)
{
    uint32_t n_layers;
    int status = moe_yaml_check_format(r->doc, "moe-plan", MOE_PLAN_VERSION, NULL, r->err);
    if (status == MOE_OK)
        status = read_shape(r);
    if (status == MOE_OK)
        status = plan_read_section(r, "pack", &plan_pack);
    if (status == MOE_OK)
        status = read_memory(r);
    if (status == MOE_OK)
        status = read_strategy(r);
    if (status == MOE_OK)
        status = plan_read_slots(r);
    if (status == MOE_OK)
        status = plan_read_contents(r);
    if (status == MOE_OK)
        status = plan_read_section(r, "prefetch", &plan_prefetch);
    if (status == MOE_OK)
        status = plan_read_section(r, "boundary", &plan_boundary);
    if (status == MOE_OK)
        status = read_times(r);
    if (status == MOE_OK)
        status = plan_read_section(r, "evidence", &plan_evidence);
    if (status == MOE_OK)
        status = plan_read_items(r, r->root, "losses", MOE_PLAN_MAX_LOSSES, read_loss,
                                 &r->plan->n_losses);
    if (status == MOE_OK)
        status = plan_read_section(r, "expected", &plan_expected);
    if (status == MOE_OK)
        status = plan_read_items(r, r->root, "layers", r->plan->n_layers, read_layer, &n_layers);
    if (status == MOE_OK)
        status = read_outlook(r);
    if (status == MOE_OK)
        status = read_tried(r);
    return status == MOE_OK ? moe_yaml_check_known(r->doc, r->err) : status;
}

/* Ends the document. */
static int finish(struct moe_plan **out, struct moe_yaml *doc, struct moe_err *err)
{
    struct plan_reader r = {.doc = doc, .root = moe_yaml_root(doc), .err = err};
    int status = read_plan(&r);
    moe_yaml_free(doc);
    if (status != MOE_OK) {
        moe_plan_free(r.plan);
        return status;
    }
    *out = r.plan;
    return MOE_OK;
}

int moe_plan_parse(struct moe_plan **out, const char *name, const void *text, uint64_t n,
                   struct moe_err *err)
{
    struct moe_yaml *doc;
    *out = NULL;
    int status = moe_yaml_parse(&doc, name, text, n, err);
    return status == MOE_OK ? finish(out, doc, err) : status;
}

int moe_plan_read(struct moe_plan **out, const char *path, struct moe_err *err)
{
    struct moe_yaml *doc;
    *out = NULL;
    int status = moe_yaml_read(&doc, path, MAX_FILE_BYTES, err);
    return status == MOE_OK ? finish(out, doc, err) : status;
}
