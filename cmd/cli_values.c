/* What options set: texts to numbers, sizes, rates, shares, choices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli_private.h"
#include "quant/bits.h"
#include "quant/quantize.h"
#include "serve/coe_dispatch.h"

static int refuse_value(const struct cli_option *o, const char *text, const char *why)
{
    if (!text)
        return cli_misuse("option --%s %s", o->name, why);
    return cli_misuse("option --%s: '%s' %s", o->name, text, why);
}

static int set_whole(const struct cli_option *o, const char *text)
{
    uint64_t value;
    if (!moe_parse_u64(text, &value) || value < o->min || value > o->max) {
        char why[96];
        if (o->max == UINT64_MAX && text && strspn(text, "0123456789") < strlen(text))
            snprintf(why, sizeof why, "is not a whole number from %llu up",
                     (unsigned long long)o->min);
        else
            snprintf(why, sizeof why, "is not a whole number from %llu to %llu",
                     (unsigned long long)o->min, (unsigned long long)o->max);
        return refuse_value(o, text, why);
    }
    if (o->kind == CLI_U32)
        *(uint32_t *)o->to = (uint32_t)value;
    else
        *(uint64_t *)o->to = value;
    return CLI_DONE;
}

static int set_real(const struct cli_option *o, const char *text)
{
    double value;
    bool share = o->kind == CLI_SHARE;
    if (!(share ? moe_parse_share(text, &value) : moe_parse_double(text, &value)) ||
        value < o->low || value > o->high) {
        char why[96];
        snprintf(why, sizeof why, "is not a %s from %g to %g",
                 share ? "share (5% or 0.05)" : "number", o->low, o->high);
        return refuse_value(o, text, why);
    }
    *(double *)o->to = value;
    return CLI_DONE;
}

/* Names the words that the option takes. */
static int refuse_unlisted(const struct cli_option *o, const char *text)
{
    char why[256] = "is not one of";
    const char *word;
    for (int i = 0; (word = o->word ? o->word(i) : o->choices[i]) != NULL; i++) {
        size_t n = strlen(why);
        snprintf(why + n, sizeof why - n, "%s %s", i ? "," : "", word);
    }
    return refuse_value(o, text, why);
}

static int set_choice(const struct cli_option *o, const char *text)
{
    for (int i = 0; o->choices[i]; i++) {
        if (strcmp(text, o->choices[i]) == 0) {
            *(int *)o->to = i;
            return CLI_DONE;
        }
    }
    return refuse_unlisted(o, text);
}

static int set_custom(const struct cli_option *o, const char *text)
{
    struct moe_err why = {0};
    if (o->parse(text, o->to, &why))
        return CLI_DONE;
    return why.text[0] ? refuse_value(o, text, why.text) : refuse_unlisted(o, text);
}

static int add_text(const struct cli_option *o, const char *text)
{
    struct cli_texts *list = o->to;
    const char **items = realloc(list->items, ((size_t)list->n + 2) * sizeof *items);
    if (!items) {
        struct moe_err err;
        moe_fail(&err, MOE_ERR_MEMORY, "out of memory while reading the command line");
        return cli_error(&err);
    }
    items[list->n++] = text;
    items[list->n] = NULL;
    list->items = items;
    return CLI_DONE;
}

int cli_set(const struct cli_option *o, const char *text)
{
    if (text && !*text && cli_names_file(o))
        return refuse_value(o, text, "names no file");
    switch (o->kind) {
    case CLI_FLAG:
        *(bool *)o->to = true;
        return CLI_DONE;
    case CLI_TEXT:
        *(const char **)o->to = text;
        return CLI_DONE;
    case CLI_TEXTS:
        return add_text(o, text);
    case CLI_U32:
    case CLI_U64:
        return set_whole(o, text);
    case CLI_DOUBLE:
    case CLI_SHARE:
        return set_real(o, text);
    case CLI_BYTES:
    case CLI_BYTES0:
        if (o->kind == CLI_BYTES0 && strcmp(text, "0") == 0) {
            *(uint64_t *)o->to = 0;
            return CLI_DONE;
        }
        return moe_parse_bytes(text, o->to)
                   ? CLI_DONE
                   : refuse_value(o, text, "is not a size like 512M or 4GiB");
    case CLI_RATE:
        return moe_parse_rate(text, o->to) ? CLI_DONE
                                           : refuse_value(o, text, "is not a rate like 2GB/s");
    case CLI_CHOICE:
        return set_choice(o, text);
    case CLI_CUSTOM:
        return set_custom(o, text);
    default: /* not an option */
        return CLI_MISUSE;
    }
}

bool cli_parse_method(const char *text, void *to, struct moe_err *why)
{
    return (*(const struct moe_quant_method **)to = moe_quant_method_find(text)) != NULL;
}

bool cli_parse_width(const char *text, void *to, struct moe_err *why)
{
    const int bits = moe_parse_width(text);
    if (!bits) {
        char kinds[MOE_BITS_KINDS_BYTES];
        moe_fail(why, MOE_ERR_USAGE, "is not one of 32, 16, 8, 6, 5, 4, 3, 2, 1, %s",
                 moe_format_bits_kinds(kinds));
        return false;
    }
    *(int *)to = bits;
    return true;
}

const char *cli_method_word(int i)
{
    const struct moe_quant_method *method = moe_quant_method_at(i);
    return !method ? NULL : method->trellis ? "best" : method->name;
}

const char *cli_schedule_word(int i)
{
    const struct moe_coe_schedule *schedule = moe_coe_schedule_at((uint32_t)i);
    return schedule ? schedule->name : NULL;
}

const char *cli_evict_word(int i)
{
    return moe_coe_evict_at((uint32_t)i);
}
