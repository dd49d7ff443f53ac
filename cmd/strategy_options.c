/* Options of strategies and devices, for all programs that take them. */
#include "strategy_options.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "pack/pack.h"
#include "sched/exactness.h"
#include "show/show.h"

void strategy_note_map(const struct moe_pack *pack, double tolerance)
{
    const uint32_t i = moe_pack_map_taken(pack);
    struct moe_buf text = {0};
    if (i == UINT32_MAX && moe_pack_map_at(pack, 0).tolerance > 100 * tolerance)
        cli_note(
            "--tolerance %g%%: the pack's first map is for %g%s, so experts stay at their best "
            "precision",
            100 * tolerance, moe_pack_map_at(pack, 0).tolerance,
            moe_pack_map_at(pack, 0).points ? " points" : "% of the nats");
    else if (i == UINT32_MAX)
        cli_note("--tolerance %g%%: all experts fit at their best precision", 100 * tolerance);
    else
        moe_show_pack_map(pack, i, &text);
    moe_buf_u8(&text, 0);
    if (text.size > 1 && !text.failed)
        cli_note("%s", (const char *)text.data);
    moe_buf_release(&text);
}

/* ---- Options ---- */

static bool set_flag(const char *text, void *to, struct moe_err *why)
{
    *(const char **)to = "on";
    return true;
}

const struct cli_option *strategy_part_options(struct strategy_options *o)
{
    static struct cli_option options[MOE_N_PARTS + 4]; /* the last one is CLI_END */
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        const struct moe_strategy_part *p = moe_strategy_part_at(part);
        options[part] = (struct cli_option){.kind = p->arg ? CLI_TEXT : CLI_CUSTOM,
                                            .name = p->name,
                                            .arg = p->arg,
                                            .to = &o->parts[part],
                                            .parse = set_flag};
    }
    options[MOE_N_PARTS] = (struct cli_option){CLI_OPT_TEXT(0, "without", "PARTS", &o->without)};
    options[MOE_N_PARTS + 1] = (struct cli_option){CLI_OPT_TEXT(0, "low", "VARIANT", &o->low)};
    options[MOE_N_PARTS + 2] =
        (struct cli_option){CLI_OPT_U32(0, "staging", "N", &o->staging, 0, 65536)};
    return options;
}

bool strategy_device(const char *text, void *to, struct moe_err *why)
{
    return moe_device_parse(text, to, why);
}

bool strategy_kv(const char *text, void *to, struct moe_err *why)
{
    uint16_t kind = moe_kv_kind_find(text);
    moe_fail(why, MOE_ERR_USAGE, "is not " MOE_KV_KINDS);
    *(uint16_t *)to = kind;
    return kind != MOE_LAYOUT_NONE;
}

static const char *const drafters[] = {"none", "ngram", "mtp", NULL};

const char *strategy_drafter_word(int i)
{
    return drafters[i];
}

bool strategy_drafter(const char *text, void *to, struct moe_err *why)
{
    struct strategy_drafter *d = to;
    int i = 0;
    while (drafters[i] && strcmp(drafters[i], text) != 0)
        i++;
    *d = (struct strategy_drafter){.name = i > 0 ? text : NULL, .drafts = i > 0, .ahead = i > 1};
    if (!drafters[i])
        d->head = text;
    moe_fail(why, MOE_ERR_USAGE, "is not none, ngram, mtp or the file of a head that drafts");
    return !d->head || access(text, F_OK) == 0;
}

void strategy_say_drafts(const struct strategy_drafter *d, uint32_t batch)
{
    if (d->drafts && batch == 1)
        cli_note("--batch 1: nothing is drafted, as a pass has no room for a token beside the next "
                 "one");
}

int strategy_check_kv(const struct strategy_options *o)
{
    if (o->device.cuda && !o->device.automatic && !moe_kv_on_gpu(o->kv_kind))
        return cli_misuse(MOE_KV_ON_GPU, moe_kv_kind_name(o->kv_kind));
    if (o->exact && moe_kv_is_inexact(moe_kv_kind_name(o->kv_kind)))
        return cli_misuse("option --exact forbids what may change results: --kv %s",
                          moe_kv_kind_name(o->kv_kind));
    return -1;
}

const char *strategy_device_word(int i)
{
    static const char *const words[] = {"cpu", "cuda", "auto", NULL};
    return words[i];
}

const char *strategy_word(int i)
{
    static const char *const others[] = {"auto", "help"};
    return i < 2 ? others[i] : moe_strategy_name_at(i - 2);
}

/* ---- Applying ---- */

static int apply_name(const char *text, struct moe_strategy *out, uint32_t *named,
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
    struct moe_err why;
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        if (!o->parts[part])
            continue;
        if (!moe_strategy_set(out, part, o->parts[part], &why))
            return moe_fail(err, MOE_ERR_USAGE, "option --%s: '%s' %s",
                            moe_strategy_part_at(part)->name, o->parts[part], why.text);
        *named |= 1u << part;
    }
    return MOE_OK;
}

static int apply_without(const char *list, struct moe_strategy *out, struct moe_err *err)
{
    enum moe_part part;
    char name[32];
    for (const char *at = list; at; at = *at ? at + 1 : NULL) {
        int n = (int)strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", n, at);
        if (!moe_strategy_part_find(name, &part))
            return moe_fail(err, MOE_ERR_USAGE,
                            "option --without: '%.*s' is not a part (--strategy help lists them)",
                            n, at);
        moe_strategy_set(out, part, moe_strategy_part_at(part)->off, NULL);
        at += n;
    }
    return MOE_OK;
}

int strategy_options_apply(const struct strategy_options *o, struct moe_strategy *out,
                           bool *automatic, struct moe_err *err)
{
    uint32_t named = 0;
    MOE_TRY(apply_name(o->strategy, out, &named, err));
    MOE_TRY(apply_parts(o, out, &named, err));
    if (o->map)
        moe_calibration_apply(o->map, named, out);
    if (o->without)
        MOE_TRY(apply_without(o->without, out, err));
    *automatic = named == 0 && !o->without && (!o->strategy || strcmp(o->strategy, "auto") == 0);
    moe_strategy_drop_idle(out, named);
    MOE_TRY(moe_strategy_settle(out, err));
    if (o->exact) { /* the engine says what falls back */
        struct moe_strategy fallen = *out;
        const struct moe_terms terms = {.strategy = &fallen, .any_pack = true};
        moe_strategy_make_exact(&fallen);
        MOE_TRY(moe_exactness_check(&terms, err));
    }
    return MOE_OK;
}

/* ---- --strategy help ---- */

enum { COLUMN = 28 };

bool strategy_wants_help(const struct strategy_options *o)
{
    return o->strategy && strcmp(o->strategy, "help") == 0;
}

/* Prints `text` indented by `indent`, in lines broken at spaces that `mark` follows; `first` begins
 * the first of them. */
static void print_wrapped(const char *first, const char *text, int indent, const char *mark)
{
    int room = (int)cli_screen(STDOUT_FILENO).columns - indent;
    size_t n_mark = strlen(mark);
    while (*text) {
        int n = (int)strlen(text);
        if (n > room)
            for (n = room; n > 0 && (text[n] != ' ' || strncmp(text + n + 1, mark, n_mark)); n--)
                ;
        if (n == 0)
            n = room;
        printf("%-*s%.*s\n", indent, first, n, text);
        first = "";
        text += n;
        text += strspn(text, " ");
    }
}

static void print_strategy(const char *name)
{
    struct moe_strategy s;
    struct moe_buf parts = {0};
    moe_strategy_find(name, &s);
    cli_say("  %-9s %s\n", name, s.describe);
    moe_strategy_describe(&s, &parts);
    if (!parts.failed && !s.resident)
        print_wrapped("", (const char *)parts.data, 12, "--");
    moe_buf_release(&parts);
}

enum under_exact { STAYS = 0, DOES_WITHOUT, REFUSED, N_UNDER_EXACT };

/* What becomes of a strategy under --exact. */
static enum under_exact under_exact(const char *name)
{
    struct moe_strategy s;
    const struct moe_terms terms = {.strategy = &s, .any_pack = true};
    moe_strategy_find(name, &s);
    if (moe_exactness_of(&terms).exact)
        return STAYS;
    moe_strategy_make_exact(&s);
    return moe_exactness_of(&terms).exact ? DOES_WITHOUT : REFUSED;
}

static void print_exactness(void)
{
    static const char *const left[N_UNDER_EXACT] = {"  stay as they are", "  do without",
                                                    "  are refused"};
    printf("\nWith --exact, which forbids what may change results:\n");
    for (enum under_exact what = 0; what < N_UNDER_EXACT; what++) {
        struct moe_buf names = {0};
        for (int i = 0; moe_strategy_name_at(i); i++)
            if (under_exact(moe_strategy_name_at(i)) == what)
                moe_buf_printf(&names, "%s%s", names.size ? ", " : "", moe_strategy_name_at(i));
        if (!names.failed)
            print_wrapped(left[what], names.size ? (const char *)names.data : "-", COLUMN + 1, "");
        moe_buf_release(&names);
    }
}

static void print_part(enum moe_part part)
{
    const struct moe_strategy_part *p = moe_strategy_part_at(part);
    char left[64], words[MOE_PART_TEXT_BYTES];
    snprintf(left, sizeof left, "      --%s%s%s", p->name, p->arg ? " " : "", p->arg ? p->arg : "");
    cli_say("%-*s %s\n", COLUMN, left, p->help);
    if (p->arg) {
        moe_strategy_part_values(part, words);
        print_wrapped("", words, COLUMN + 1, "");
    }
    if (p->inexact)
        cli_say("%*smay change results%s%s\n", COLUMN + 1, "",
                strcmp(p->inexact, "any") ? ": " : "", strcmp(p->inexact, "any") ? p->inexact : "");
}

void strategy_print_help(void)
{
    cli_say("--strategy NAME: auto chooses; any other name is in this table. Parts change it,\n"
            "as in fate+cache=lrfu+prefetch=percentile:75;slack, or as options of their own.\n"
            "Parts without a strategy change lru; parts that no longer apply are ignored.\n"
            "moe-strategies(7) explains all of them.\n\n"
            "Strategies:\n");
    for (int i = 0; moe_strategy_name_at(i); i++)
        print_strategy(moe_strategy_name_at(i));
    printf("\nParts:\n");
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        print_part(part);
    cli_say("%-*s %s\n", COLUMN, "      --without PARTS", "switch parts off: prefetch,protect");
    printf("\nWith them:\n");
    cli_say("%-*s %s\n", COLUMN, "      --calibration MAP",
            "moe-run: values that moe-calibrate found");
    cli_say("%-*s %s\n", COLUMN, "      --low VARIANT", "the lower precision [the pack's last]");
    cli_say("%-*s %s\n", COLUMN, "      --staging N",
            "slots that prefetched experts alone have [0]");
    print_exactness();
}
