/* Exactness: what was asked for or done that may change results. */
#include "sched/exactness.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- As asked ---- */

struct moe_terms moe_terms_of(const struct moe_strategy *strategy,
                              const struct moe_inventory *inventory, uint32_t high)
{
    struct moe_terms t = {.strategy = strategy};
    if (strategy->resident || moe_inventory_is_best(inventory, high))
        return t;
    t.kept = inventory->variants[high];
    t.best = inventory->variants[0];
    return t;
}

/* Appends to a text of `size` bytes; what does not fit is cut off. */
__attribute__((format(printf, 3, 4))) static void add(char *text, size_t size, const char *format,
                                                      ...)
{
    size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, size - n, format, args);
    va_end(args);
}

/* A part that is set, as an option. */
static void add_part(const struct moe_strategy *s, enum moe_part part, char why[MOE_EXACTNESS_WHY])
{
    const struct moe_strategy_part *p = moe_strategy_part_at(part);
    char text[MOE_PART_TEXT_BYTES];
    moe_strategy_part_text(s, part, text);
    add(why, MOE_EXACTNESS_WHY, "%s--%s%s%s", why[0] ? " " : "", p->name, p->arg ? " " : "",
        p->arg ? text : "");
}

/* Whether a part as it is set may change results. Bits to keep do only where they are in effect. */
static bool part_counts(const struct moe_terms *t, enum moe_part part)
{
    bool in_effect = part != MOE_PART_CACHE_BITS || t->any_pack || t->kept;
    return in_effect && moe_strategy_part_inexact(t->strategy, part);
}

bool moe_kv_is_inexact(const char *name)
{
    return name && strchr(name, 'q');
}

struct moe_exactness moe_exactness_of(const struct moe_terms *t)
{
    struct moe_exactness x = {0};
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        if (!part_counts(t, part))
            continue;
        x.parts |= 1u << part;
        add_part(t->strategy, part, x.why);
    }
    const char *comma = x.why[0] ? ", " : "";
    if (t->kept && t->best)
        add(x.why, sizeof x.why, "%sexperts kept at '%s' where the pack has '%s'", comma, t->kept,
            t->best);
    else if (t->kept)
        add(x.why, sizeof x.why, "%sexperts kept at '%s'", comma, t->kept);
    comma = x.why[0] ? ", " : "";
    if (t->host_beside_gpu)
        add(x.why, sizeof x.why, "%sexperts computed on the host instead of the GPU", comma);
    comma = x.why[0] ? ", " : "";
    if (t->bf16_prompts)
        add(x.why, sizeof x.why, "%s--bf16-prompts", comma);
    comma = x.why[0] ? ", " : "";
    if (moe_kv_is_inexact(t->kv))
        add(x.why, sizeof x.why, "%s--kv %s", comma, t->kv);
    x.exact = x.why[0] == 0;
    return x;
}

int moe_exactness_check(const struct moe_terms *t, struct moe_err *err)
{
    static const char forbids[] = "option --exact forbids what may change results:";
    const struct moe_exactness x = moe_exactness_of(t);
    char names[256] = "";
    if (x.exact)
        return MOE_OK;
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        if (x.parts >> part & 1)
            add(names, sizeof names, "%s%s", names[0] ? "," : "", moe_strategy_part_at(part)->name);
    if (t->planned && (names[0] || t->kept || moe_kv_is_inexact(t->kv)))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s the plan has %s (moe-plan --exact makes one without)", forbids, x.why);
    if (names[0])
        return moe_fail(err, MOE_ERR_USAGE, "%s %s (without these: --without %s)", forbids, x.why,
                        names);
    return moe_fail(err, MOE_ERR_USAGE, "%s %s", forbids, x.why);
}

const char *moe_strategy_make_exact(struct moe_strategy *s)
{
    const char *changed = NULL;
    if (s->cache_bits) {
        s->cache_bits = 0;
        changed = "experts are kept at their best precision: --exact";
    }
    if (s->prefill == MOE_PREFILL_HYBRID && s->prefill_falls_back) {
        moe_strategy_fall_back(s);
        changed = "prompts at one precision: --exact";
    }
    return changed;
}

/* ---- As done ---- */

static const struct {
    const char *key, *what;
} changes[MOE_N_CHANGES] = {
    [MOE_CHANGE_LOW_PRECISION] = {"low_precision", "at low precision"},
    [MOE_CHANGE_SKIPPED] = {"skipped", "left out"},
    [MOE_CHANGE_PRECALCULATED] = {"precalculated", "from an earlier state"},
    [MOE_CHANGE_SUBSTITUTED] = {"substituted", "not the router's choice"},
    [MOE_CHANGE_ON_HOST] = {"on_host", "on the host beside a GPU"},
    [MOE_CHANGE_BF16_ROWS] = {"bf16_rows", "rows in bf16"},
    [MOE_CHANGE_KV_ROWS] = {"kv_rows", "rows with keys and values of fewer bits"},
};

const char *moe_change_key(enum moe_change change)
{
    return changes[change].key;
}

void moe_changes_add_counts(struct moe_changes *sum, const struct moe_counts *n, bool on_gpu)
{
    const struct moe_changes part = {
        .activations = n->activations,
        .of = {[MOE_CHANGE_LOW_PRECISION] = n->low_precision,
               [MOE_CHANGE_SKIPPED] = n->skipped,
               [MOE_CHANGE_PRECALCULATED] = n->precalculated,
               [MOE_CHANGE_SUBSTITUTED] = n->substituted,
               [MOE_CHANGE_ON_HOST] = on_gpu ? n->host_computed : 0},
    };
    moe_changes_add(sum, &part);
}

void moe_changes_add(struct moe_changes *sum, const struct moe_changes *part)
{
    sum->activations += part->activations;
    for (int i = 0; i < MOE_N_CHANGES; i++)
        sum->of[i] += part->of[i];
}

struct moe_changes moe_changes_since(const struct moe_changes *now,
                                     const struct moe_changes *before)
{
    struct moe_changes since = {.activations = now->activations - before->activations};
    for (int i = 0; i < MOE_N_CHANGES; i++)
        since.of[i] = now->of[i] - before->of[i];
    return since;
}

bool moe_changes_none(const struct moe_changes *c)
{
    uint64_t sum = 0;
    for (int i = 0; i < MOE_N_CHANGES; i++)
        sum += c->of[i];
    return sum == 0;
}

int moe_changes_check(const struct moe_changes *c, struct moe_err *err)
{
    char list[MOE_EXACTNESS_WHY] = "";
    if (moe_changes_none(c))
        return MOE_OK;
    for (int i = 0; i < MOE_N_CHANGES; i++)
        if (c->of[i]) /* rows are no activations */
            add(list, sizeof list, "%s %" PRIu64 " %s",
                i >= MOE_CHANGE_BF16_ROWS ? ";"
                : list[0]                 ? ","
                                          : "",
                c->of[i], changes[i].what);
    return moe_fail(err, MOE_ERR_LIMIT, "option --exact did not hold: of %" PRIu64 " activations%s",
                    c->activations, list);
}
