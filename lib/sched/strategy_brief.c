#include "sched/strategy_brief.h"

#include <stdio.h>
#include <string.h>

static void replace(char *text, char from, char to)
{
    for (; *text; text++)
        *text = *text == from ? to : *text;
}

/* "cache=lrfu", or "protect" for a flag that is on. */
static int parse_part(const char *item, struct moe_strategy *out, uint32_t *named,
                      struct moe_err *err)
{
    char option[32], value[MOE_STRATEGY_BRIEF], why[128];
    enum moe_part part;
    size_t n = strcspn(item, "=");
    snprintf(option, sizeof option, "%.*s", (int)n, item);
    if (!moe_strategy_part_find(option, &part))
        return moe_fail(err, MOE_ERR_USAGE, "'%s' is not a part (--strategy help lists them)",
                        option);
    snprintf(value, sizeof value, "%s", item[n] ? item + n + 1 : "on");
    replace(value, ';', ',');
    if (!moe_strategy_set(out, part, value, why))
        return moe_fail(err, MOE_ERR_USAGE, "%s: '%s' %s", option, value, why);
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
    if (!moe_strategy_row(item, out))
        return moe_fail(err, MOE_ERR_USAGE, "'%s' is not a row (--strategy help lists them)", item);
    while (text[n] && status == MOE_OK) {
        text += n + 1;
        n = strcspn(text, "+");
        snprintf(item, sizeof item, "%.*s", (int)n, text);
        status = parse_part(item, out, named, err);
    }
    return status;
}

void moe_strategy_brief(const struct moe_strategy *s, char *out)
{
    struct moe_strategy row = {0};
    char mine[MOE_PART_TEXT_BYTES], rows[MOE_PART_TEXT_BYTES];
    if (s->name)
        moe_strategy_row(s->name, &row);
    size_t n = (size_t)snprintf(out, MOE_STRATEGY_BRIEF, "%s", s->name ? s->name : "none");
    for (enum moe_part part = 0; part < MOE_N_PARTS && n < MOE_STRATEGY_BRIEF; part++) {
        moe_strategy_part_text(s, part, mine);
        moe_strategy_part_text(&row, part, rows);
        if (strcmp(mine, rows) == 0)
            continue;
        replace(mine, ',', ';');
        n += (size_t)snprintf(out + n, MOE_STRATEGY_BRIEF - n, "+%s=%s",
                              moe_strategy_part_at(part)->option, mine);
    }
}
