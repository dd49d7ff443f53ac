/*
 * Whole strategies as text.
 */
#include "sched/strategy.h"

#include <stdio.h>
#include <string.h>

/* ---- In one word ---- */

static void replace(char *text, char from, char to)
{
    for (; *text; text++)
        *text = *text == from ? to : *text;
}

/* "cache=lrfu", or "protect" for a flag that is on. */
static int parse_part(const char *item, struct moe_strategy *out, uint32_t *named,
                      struct moe_err *err)
{
    char name[32], value[MOE_STRATEGY_BRIEF], why[128];
    enum moe_part part;
    size_t n = strcspn(item, "=");
    snprintf(name, sizeof name, "%.*s", (int)n, item);
    if (!moe_strategy_part_find(name, &part))
        return moe_fail(err, MOE_ERR_USAGE, "'%s' is not a part (--strategy help lists them)",
                        name);
    const char *alone = moe_strategy_part_at(part)->alone;
    snprintf(value, sizeof value, "%s", item[n] ? item + n + 1 : alone ? alone : "on");
    replace(value, ';', ',');
    if (!moe_strategy_set(out, part, value, why))
        return moe_fail(err, MOE_ERR_USAGE, "%s: '%s' %s", name, value, why);
    *named |= 1u << part;
    return MOE_OK;
}

int moe_strategy_parse(const char *text, struct moe_strategy *out, uint32_t *named,
                       struct moe_err *err)
{
    char item[MOE_STRATEGY_BRIEF];
    int status = MOE_OK;
    *named = 0;
    if (strlen(text) >= sizeof item)
        return moe_fail(err, MOE_ERR_USAGE, "'%.40s...' is too long for a strategy", text);
    size_t n = strcspn(text, "+");
    snprintf(item, sizeof item, "%.*s", (int)n, text);
    if (!moe_strategy_find(item, out))
        return moe_fail(err, MOE_ERR_USAGE, "'%s' is not a strategy (--strategy help lists them)",
                        item);
    while (text[n] && status == MOE_OK) {
        text += n + 1;
        n = strcspn(text, "+");
        snprintf(item, sizeof item, "%.*s", (int)n, text);
        status = parse_part(item, out, named, err);
    }
    return status;
}

void moe_strategy_brief(const struct moe_strategy *s, char out[MOE_STRATEGY_BRIEF])
{
    struct moe_strategy preset = {0};
    char mine[MOE_PART_TEXT_BYTES], its[MOE_PART_TEXT_BYTES];
    if (s->name)
        moe_strategy_find(s->name, &preset);
    size_t n = (size_t)snprintf(out, MOE_STRATEGY_BRIEF, "%s", s->name ? s->name : "none");
    for (enum moe_part part = 0; part < MOE_N_PARTS && n < MOE_STRATEGY_BRIEF; part++) {
        moe_strategy_part_text(s, part, mine);
        moe_strategy_part_text(&preset, part, its);
        if (strcmp(mine, its) == 0)
            continue;
        replace(mine, ',', ';');
        n += (size_t)snprintf(out + n, MOE_STRATEGY_BRIEF - n, "+%s=%s",
                              moe_strategy_part_at(part)->name, mine);
    }
}

/* How many parts differ from those of the row that names it. */
static uint32_t n_differing(const struct moe_strategy *s)
{
    char brief[MOE_STRATEGY_BRIEF];
    uint32_t n = 0;
    moe_strategy_brief(s, brief);
    for (const char *plus = strchr(brief, '+'); plus; plus = strchr(plus + 1, '+'))
        n++;
    return n;
}

void moe_strategy_name_nearest(struct moe_strategy *s)
{
    const struct moe_strategy from = *s;
    uint32_t least = n_differing(s);
    for (int i = 0; moe_strategy_name_at(i); i++) {
        struct moe_strategy row = {0}, named = from;
        moe_strategy_find(moe_strategy_name_at(i), &row);
        named.name = row.name;
        named.describe = row.describe;
        /* What is no part must be the row's, too: a file has nothing else to tell it by. */
        bool alike = row.resident == from.resident && row.host_falls_back == from.host_falls_back &&
                     row.host_decodes_only == from.host_decodes_only &&
                     row.prefill_falls_back == from.prefill_falls_back;
        if (alike && n_differing(&named) < least) {
            least = n_differing(&named);
            *s = named;
        }
    }
}

/* ---- As options ---- */

void moe_strategy_describe(const struct moe_strategy *s, struct moe_buf *out)
{
    if (s->resident) {
        moe_buf_text(out, "--strategy resident");
        return;
    }
    uint64_t began = out->size;
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        char text[MOE_PART_TEXT_BYTES];
        if (!moe_strategy_has(s, part) && part != MOE_PART_CACHE)
            continue;
        moe_strategy_part_text(s, part, text);
        const struct moe_strategy_part *shown = moe_strategy_part_at(part);
        moe_buf_printf(out, "%s--%s%s%s", out->size > began ? " " : "", shown->name,
                       shown->arg ? " " : "", shown->arg ? text : "");
    }
}
