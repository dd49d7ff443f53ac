/* What a conversion rounded again, for its report. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "convert/convert_parts.h"

void convert_add_error(struct moe_quant_error *sum, const struct moe_quant_error *more)
{
    sum->sum_squared_error += more->sum_squared_error;
    sum->sum_squared_weight += more->sum_squared_weight;
    sum->output_plain += more->output_plain;
    sum->output_improved += more->output_improved;
}

/* The name without what tells layers and experts apart: what follows its last number, without
 * ".weight". "blk.3.ffn_down_exps.weight" is "ffn_down_exps". */
static void kind_of(const char *name, char out[48])
{
    const char *from = name, *end = name + strlen(name);
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, "."), digits = strspn(p, "0123456789");
        const char *next = p[n] ? p + n + 1 : p + n;
        if (n > 0 && digits == n && *next)
            from = next;
        p = next;
    }
    if (end - from > 7 && strcmp(end - 7, ".weight") == 0)
        end -= 7;
    snprintf(out, 48, "%.*s", (int)(end - from), from);
}

/* The rounding of that type to so many bits; the last one, of any, where there is no room. */
static struct moe_rounding *find(struct moe_convert_report *report, const char *type, int bits)
{
    uint32_t i = 0;
    while (i < report->n_roundings &&
           (strcmp(report->roundings[i].from, type) != 0 || report->roundings[i].bits != bits))
        i++;
    if (i == MOE_ROUNDINGS)
        return &report->roundings[MOE_ROUNDINGS - 1];
    struct moe_rounding *r = &report->roundings[i];
    if (i == report->n_roundings) {
        snprintf(r->from, sizeof r->from, "%s", type);
        r->bits = bits;
        report->n_roundings++;
    }
    return r;
}

void convert_note_rounding(struct converter *c, const struct row_source *source, int bits,
                           const struct moe_quant_error *error)
{
    char kind[48];
    uint32_t i = 0;
    if (!source->type || error->sum_squared_error == 0)
        return;
    struct moe_rounding *r = find(c->report, source->type, bits);
    convert_add_error(&r->error, error);
    kind_of(source->part ? source->part : source->name, kind);
    while (i < r->n_names && strcmp(r->names[i].name, kind) != 0)
        i++;
    if (i == MOE_ROUNDED_NAMES) {
        r->n_others++;
        return;
    }
    struct moe_rounded_name *name = &r->names[i];
    uint64_t whole = moe_hash64(source->name, strlen(source->name));
    if (i == r->n_names) {
        snprintf(name->name, sizeof name->name, "%s", kind);
        r->n_names++;
    }
    /* A layer's experts follow each other. */
    if (name->n == 0 || name->last != whole)
        name->n++;
    name->last = whole;
}
