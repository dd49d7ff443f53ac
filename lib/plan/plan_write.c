/*
 * Plans as YAML, lists of numbers in one line each; or on one line as JSON.
 */
#include "fmt/emit.h"
#include "plan/plan_format.h"

static void put_member(struct moe_emit *e, const struct plan_member *m, const void *value)
{
    switch (m->kind) {
    case PLAN_TEXT:
        moe_emit_text(e, m->key, value);
        break;
    case PLAN_COUNT:
    case PLAN_LAYERS:
        moe_emit_u64(e, m->key, *(const uint32_t *)value);
        break;
    case PLAN_WHOLE:
        moe_emit_u64(e, m->key, *(const uint64_t *)value);
        break;
    case PLAN_AMOUNT:
    case PLAN_FIGURE:
    case PLAN_SHARE:
    case PLAN_CHANGE:
        moe_emit_double(e, m->key, *(const double *)value);
        break;
    case PLAN_FLAG:
        moe_emit_bool(e, m->key, *(const bool *)value);
        break;
    case PLAN_FINGERPRINT:
        moe_emit_fingerprint(e, m->key, *(const uint64_t *)value);
        break;
    }
}

static void put_members(struct moe_emit *e, const struct plan_table *table, const void *from)
{
    for (size_t i = 0; i < table->n; i++) {
        const struct plan_member *m = &table->members[i];
        const void *value = (const char *)from + m->at;
        if (m->required || plan_is_there(m, value))
            put_member(e, m, value);
    }
}

static void put_section(struct moe_emit *e, const char *key, const struct plan_table *table,
                        const struct moe_plan *p)
{
    if (!plan_any_there(table, p))
        return;
    moe_emit_open_map(e, key);
    put_members(e, table, p);
    moe_emit_close(e);
}

static void put_strategy(struct moe_emit *e, const struct moe_plan *p)
{
    const struct moe_strategy *s = &p->strategy;
    moe_emit_open_map(e, "strategy");
    if (s->name)
        moe_emit_text(e, "row", s->name);
    put_members(e, &plan_precision, p);
    if (!s->resident) {
        moe_emit_open_map(e, "parts");
        for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
            char text[MOE_PART_TEXT_BYTES];
            if (!moe_strategy_has(s, part) && part != MOE_PART_CACHE)
                continue;
            const struct moe_strategy_part *shown = moe_strategy_part_at(part);
            moe_strategy_part_text(s, part, text);
            if (shown->arg)
                moe_emit_text(e, shown->name, text);
            else
                moe_emit_bool(e, shown->name, true);
        }
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

static void put_slots(struct moe_emit *e, const struct moe_plan *p)
{
    if (p->n_pools == 0)
        return;
    moe_emit_open_list(e, "slots");
    for (uint32_t i = 0; i < p->n_pools; i++) {
        moe_emit_open_map(e, NULL);
        put_members(e, &plan_pool, &p->pools[i]);
        if (p->pools[i].per_layer)
            moe_emit_u32s(e, "per_layer", p->pools[i].per_layer, p->n_layers);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

static bool is_layer_by_layer(const struct moe_plan *p)
{
    for (uint32_t i = 1; i < p->n_contents; i++)
        if (p->contents[i] / p->n_experts < p->contents[i - 1] / p->n_experts)
            return false;
    return true;
}

static void put_contents(struct moe_emit *e, const struct moe_plan *p)
{
    if (p->n_contents == 0)
        return;
    moe_emit_open_map(e, "contents");
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

static void put_line(struct moe_emit *e, const struct moe_line *line)
{
    moe_emit_doubles(e, "rows", line->x, line->n);
    moe_emit_doubles(e, "seconds", line->y, line->n);
}

static void put_pieces(struct moe_emit *e, const struct moe_pace *pace)
{
    for (enum moe_piece piece = 0; piece < MOE_N_PIECES; piece++) {
        if (pace->pieces[piece].n == 0)
            continue;
        moe_emit_open_map(e, moe_piece_name(piece));
        put_line(e, &pace->pieces[piece]);
        moe_emit_close(e);
    }
}

static void put_times(struct moe_emit *e, const struct moe_plan *p)
{
    const struct moe_pace *pace = &p->pace;
    bool any = pace->n_variants > 0 || plan_any_there(&plan_times, p);
    for (int i = 0; i < MOE_N_PIECES; i++)
        any |= pace->pieces[i].n > 0;
    if (!any)
        return;
    moe_emit_open_map(e, "times");
    put_members(e, &plan_times, p);
    put_pieces(e, pace);
    if (pace->n_variants) {
        moe_emit_open_list(e, "experts");
        for (uint32_t v = 0; v < pace->n_variants; v++) {
            moe_emit_open_map(e, NULL);
            moe_emit_text(e, "precision", p->variants[v]);
            if (pace->experts[v].n)
                put_line(e, &pace->experts[v]);
            moe_emit_close(e);
        }
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

static void put_layers(struct moe_emit *e, const struct moe_plan *p)
{
    bool any = false;
    for (uint32_t l = 0; l < p->n_layers; l++)
        any |= plan_any_there(&plan_layer, &p->layers[l]);
    if (!any)
        return;
    moe_emit_open_list(e, "layers");
    for (uint32_t l = 0; l < p->n_layers; l++) {
        if (!plan_any_there(&plan_layer, &p->layers[l]))
            continue;
        moe_emit_open_line_map(e, NULL);
        moe_emit_u64(e, "layer", l);
        put_members(e, &plan_layer, &p->layers[l]);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

/* A list of items in a line each; nothing where there are none. */
static void put_items(struct moe_emit *e, const char *key, const struct plan_table *table,
                      const void *items, size_t item_bytes, uint32_t n)
{
    if (n == 0)
        return;
    moe_emit_open_list(e, key);
    for (uint32_t i = 0; i < n; i++) {
        moe_emit_open_line_map(e, NULL);
        put_members(e, table, (const char *)items + i * item_bytes);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

static void put_outlook(struct moe_emit *e, const struct moe_plan *p)
{
    if (p->n_memory_steps + p->n_rate_steps == 0)
        return;
    moe_emit_open_map(e, "outlook");
    put_items(e, "memory", &plan_memory_step, p->memory_steps, sizeof p->memory_steps[0],
              p->n_memory_steps);
    put_items(e, "link", &plan_rate_step, p->rate_steps, sizeof p->rate_steps[0], p->n_rate_steps);
    moe_emit_close(e);
}

static int put_plan(const struct moe_plan *p, struct moe_buf *out, bool json, struct moe_err *err)
{
    struct moe_emit e;
    moe_emit_begin(&e, out, json, "Plan: see moe-plan(5).", "moe-plan", MOE_PLAN_VERSION);
    put_section(&e, "pack", &plan_pack, p);
    put_section(&e, "shape", &plan_shape, p);
    put_section(&e, "memory", &plan_memory, p);
    put_strategy(&e, p);
    put_slots(&e, p);
    put_contents(&e, p);
    put_section(&e, "prefetch", &plan_prefetch, p);
    put_section(&e, "boundary", &plan_boundary, p);
    put_times(&e, p);
    put_section(&e, "evidence", &plan_evidence, p);
    put_items(&e, "losses", &plan_loss, p->losses, sizeof p->losses[0], p->n_losses);
    put_section(&e, "expected", &plan_expected, p);
    put_layers(&e, p);
    put_outlook(&e, p);
    put_items(&e, "tried", &plan_tried, p->tried, sizeof p->tried[0], p->n_tried);
    return moe_emit_end(&e, err);
}

int moe_plan_write(const struct moe_plan *plan, struct moe_buf *out, struct moe_err *err)
{
    return put_plan(plan, out, false, err);
}

int moe_plan_write_json(const struct moe_plan *plan, struct moe_buf *out, struct moe_err *err)
{
    return put_plan(plan, out, true, err);
}
