/*
 * The strategy in the file of a plan: the entry of the table that it began as, and its parts; and
 * what following it comes to.
 */
#include <stdio.h>
#include <string.h>

#include "plan/plan_file.h"

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
    char why[128];
    bool on = false;
    bool required = part == MOE_PART_CACHE && !s->resident;
    int status = shown->arg ? moe_yaml_get_text(r->doc, parts, shown->name, required, &text, r->err)
                            : moe_yaml_get_bool(r->doc, parts, shown->name, false, &on, r->err);
    if (on)
        text = "on";
    if (status == MOE_OK && text && !moe_strategy_set(s, part, text, why))
        status = moe_yaml_fail(r->doc, moe_yaml_get(parts, shown->name), r->err, "'%s': '%.60s' %s",
                               shown->name, text, why);
    return status;
}

/* A part that the file does not name is off, even where the strategy has it. */
static int read_parts(struct moe_record_reader *r, struct moe_yaml_node *map,
                      const struct moe_member *m, void *record)
{
    struct moe_strategy *s = &((struct moe_plan *)record)->strategy;
    struct moe_yaml_node *parts = NULL;
    char why[128];
    int status = moe_yaml_get_map(r->doc, map, m->key, !s->resident, &parts, r->err);
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        moe_strategy_set(s, part, moe_strategy_part_at(part)->off, why);
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

/* Of `shallow`: "statistics" or "eighth"; left out where the strategy names L. */
static const char *const boundary_words[] = {NULL, "statistics", "eighth"};

static int read_boundary_from(struct moe_record_reader *r, struct moe_yaml_node *map,
                              const struct moe_member *m, void *record)
{
    struct moe_strategy *s = &((struct moe_plan *)record)->strategy;
    const char *text = NULL;
    int status = moe_yaml_get_text(r->doc, map, m->key, false, &text, r->err);
    if (status != MOE_OK || !text)
        return status;
    for (int i = MOE_BOUNDARY_STATISTICS; i <= MOE_BOUNDARY_EIGHTH; i++)
        if (strcmp(text, boundary_words[i]) == 0)
            s->boundary_from = (enum moe_boundary_from)i;
    if (s->boundary_from == MOE_BOUNDARY_NAMED)
        status = moe_yaml_fail(r->doc, moe_yaml_get(map, m->key), r->err,
                               "'%s' must be statistics or eighth", m->key);
    return status;
}

static void write_boundary_from(struct moe_record_writer *w, const struct moe_member *m,
                                const void *record)
{
    const struct moe_strategy *s = &((const struct moe_plan *)record)->strategy;
    if (moe_strategy_boundary_from(s))
        moe_emit_text(&w->emit, m->key, boundary_words[s->boundary_from]);
}

static const struct moe_member_own boundary_from = {read_boundary_from, write_boundary_from, NULL};

static const struct moe_member strategy_members[] = {
    MOE_OWN("row", 0, row),
    FIELD("precision", high),
    FIELD("low_precision", low),
    MOE_OWN("parts", 0, parts),
    MOE_OWN("boundary_from", 0, boundary_from), /* after the parts, which reset it */
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
    if (s->precalculate && s->precalculate_from == MOE_PRECALCULATE_AUTO)
        return moe_yaml_fail(r->doc, at, r->err, "'precalculate-from' is missing");
    return MOE_OK;
}

const struct moe_record plan_strategy_record = {MOE_RECORD(strategy_members), check_strategy};

/* ---- What it comes to ---- */

struct moe_terms moe_plan_terms(const struct moe_plan *p)
{
    const struct moe_strategy *s = &p->strategy;
    struct moe_terms t = {.strategy = s, .planned = true};
    char bits[16];
    t.kv = p->kv[0] && strcmp(p->kv, "f32") != 0 ? p->kv : NULL;
    snprintf(bits, sizeof bits, "%u", s->cache_bits);
    bool knows_best = p->pace.n_variants > 0;
    bool below = knows_best ? strcmp(p->high, p->variants[0]) != 0 : strcmp(p->high, bits) == 0;
    if (!s->resident && p->high[0] && below) {
        t.kept = p->high;
        t.best = knows_best ? p->variants[0] : NULL;
    }
    return t;
}
