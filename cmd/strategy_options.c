#include "strategy_options.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "sched/strategy.h"

enum { MAX_GPU = 1023 };

/* ---- Texts ---- */

bool strategy_flag(const char *text, void *to, char why[128])
{
    *(const char **)to = "on";
    return true;
}

bool strategy_device(const char *text, void *to, char why[128])
{
    struct device_option *device = to;
    char speed[32];
    const char *numbers = strncmp(text, "test:", 5) == 0 ? text + 5 : "";
    size_t n = strcspn(numbers, ",");
    if (strcmp(text, "cpu") == 0) {
        *device = (struct device_option){.kind = DEVICE_CPU};
        return true;
    }
    if (strcmp(text, "auto") == 0) {
        *device = (struct device_option){.kind = DEVICE_CUDA, .automatic = true};
        return true;
    }
    if (strncmp(text, "cuda", 4) == 0 && (text[4] == 0 || text[4] == ':')) {
        uint64_t index = 0;
        *device = (struct device_option){.kind = DEVICE_CUDA};
        if (text[4] == 0 || (moe_parse_u64(text + 5, &index) && index <= MAX_GPU)) {
            device->index = (int)index;
            return true;
        }
    }
    if (n < sizeof speed && numbers[n]) {
        memcpy(speed, numbers, n);
        speed[n] = 0;
        device->kind = DEVICE_TEST;
        if (moe_parse_double(speed, &device->speed) && device->speed >= 1 &&
            moe_parse_rate(numbers + n + 1, &device->link_rate))
            return true;
    }
    snprintf(why, 128,
             "is not cpu, cuda[:N], auto or test:SPEED,LINK, as test:4,2GB/s with a SPEED from 1 "
             "up");
    return false;
}

/* ---- Applying ---- */

static int apply_row(const char *text, struct moe_strategy *out, uint32_t *named,
                     struct moe_err *err)
{
    if (!text || strcmp(text, "auto") == 0)
        text = "lru";
    int status = moe_strategy_parse(text, out, named, err);
    return status == MOE_OK ? status : moe_err_prefix(err, "option --strategy");
}

static int apply_parts(const struct strategy_options *o, struct moe_strategy *out, uint32_t *named,
                       struct moe_err *err)
{
    char why[128];
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        if (!o->parts[part])
            continue;
        if (!moe_strategy_set(out, part, o->parts[part], why))
            return moe_fail(err, MOE_ERR_USAGE, "option --%s: '%s' %s",
                            moe_strategy_part_at(part)->name, o->parts[part], why);
        *named |= 1u << part;
    }
    return MOE_OK;
}

static int apply_without(const char *list, struct moe_strategy *out, struct moe_err *err)
{
    enum moe_part part;
    char name[32], why[128];
    for (const char *at = list; at; at = *at ? at + 1 : NULL) {
        int n = (int)strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", n, at);
        if (!moe_strategy_part_find(name, &part))
            return moe_fail(err, MOE_ERR_USAGE,
                            "option --without: '%.*s' is not a part (--strategy help lists them)",
                            n, at);
        moe_strategy_set(out, part, moe_strategy_part_at(part)->off, why);
        at += n;
    }
    return MOE_OK;
}

int strategy_options_apply(const struct strategy_options *o, struct moe_strategy *out,
                           bool *automatic, struct moe_err *err)
{
    uint32_t named = 0;
    int status = apply_row(o->strategy, out, &named, err);
    if (status == MOE_OK)
        status = apply_parts(o, out, &named, err);
    if (status == MOE_OK && o->map)
        moe_calibration_apply(o->map, named, out);
    if (status == MOE_OK && o->without)
        status = apply_without(o->without, out, err);
    if (status != MOE_OK)
        return status;
    *automatic = named == 0 && !o->without && (!o->strategy || strcmp(o->strategy, "auto") == 0);
    moe_strategy_drop_idle(out, named);
    status = moe_strategy_settle(out, err);
    if (status == MOE_OK && o->exact) { /* what falls back the engine will say */
        struct moe_strategy fallen = *out;
        moe_strategy_fall_back(&fallen);
        status = moe_strategy_check_exact(&fallen, err);
    }
    return status;
}

/* ---- --strategy help ---- */

enum { WIDTH = 80, COLUMN = 28 };

bool strategy_wants_help(const struct strategy_options *o)
{
    return o->strategy && strcmp(o->strategy, "help") == 0;
}

/* Prints `text` behind `indent` blanks, broken at spaces that `mark` follows. */
static void print_wrapped(const char *text, int indent, const char *mark)
{
    int room = WIDTH - indent;
    size_t n_mark = strlen(mark);
    while (*text) {
        int n = (int)strlen(text);
        if (n > room)
            for (n = room; n > 0 && (text[n] != ' ' || strncmp(text + n + 1, mark, n_mark)); n--)
                ;
        if (n == 0)
            n = room;
        printf("%*s%.*s\n", indent, "", n, text);
        text += n;
        text += strspn(text, " ");
    }
}

static void print_row(const char *name)
{
    struct moe_strategy s;
    struct moe_buf parts = {0};
    moe_strategy_find(name, &s);
    printf("  %-9s %s\n", name, s.describe);
    moe_strategy_describe(&s, &parts);
    if (!parts.failed && !s.resident)
        print_wrapped((const char *)parts.data, 12, "--");
    moe_buf_release(&parts);
}

static void print_part(enum moe_part part)
{
    const struct moe_strategy_part *p = moe_strategy_part_at(part);
    char left[64], words[MOE_PART_TEXT_BYTES];
    snprintf(left, sizeof left, "      --%s%s%s", p->name, p->arg ? " " : "", p->arg ? p->arg : "");
    printf("%-*s %s\n", COLUMN, left, p->help);
    if (!p->arg)
        return;
    moe_strategy_part_values(part, words);
    print_wrapped(words, COLUMN + 1, "");
}

void strategy_print_help(void)
{
    printf("--strategy NAME: auto chooses; any other name is a row of this table. Options of\n"
           "parts change a row, or lru where none is named; what loses its use is dropped.\n"
           "A row may bring its parts: fate+cache=lrfu+prefetch=percentile:75;slack.\n\n"
           "Rows:\n");
    for (int i = 0; moe_strategy_name_at(i); i++)
        print_row(moe_strategy_name_at(i));
    printf("\nParts:\n");
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        print_part(part);
    printf("%-*s %s\n", COLUMN, "      --without PARTS", "switch parts off: prefetch,protect");
    printf("\nWhat they are served with:\n");
    printf("%-*s %s\n", COLUMN, "      --low VARIANT", "the lower precision [the pack's last]");
    printf("%-*s %s\n", COLUMN, "      --staging N", "slots for experts loaded ahead [top_k]");
}
