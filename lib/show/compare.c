/* A plan beside another plan or beside its run: the figures, as text and as JSON. */
#define _POSIX_C_SOURCE 200809L /* strtok_r */
#include "show/compare.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "fmt/emit.h"
#include "fmt/json.h"
#include "infer/kv.h"
#include "show/explain_figures.h"

enum { MAX_BYTES = 1 << 20 };

bool moe_run_figures_is(const char *path)
{
    char text[64] = "";
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    return text[strspn(text, " \t\r\n")] == '{';
}

/* A number that is not below 0; missing: -1. */
static int get_number(const char *name, const json_t *object, const char *key, double *out,
                      struct moe_err *err)
{
    *out = -1;
    MOE_TRY(moe_json_get_double(name, object, key, false, out, err));
    if (*out < 0 && *out != -1)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is %g, expected 0 or more", name, key, *out);
    return MOE_OK;
}

static double per_token(double x, double tokens)
{
    return x >= 0 && tokens > 0 ? x / tokens : -1;
}

static int read_phase(struct moe_run_phase *p, const char *name, const json_t *root,
                      const char *key, struct moe_err *err)
{
    const json_t *object = json_object_get(root, key);
    double loads = -1, read = -1, displaced = -1;
    if (!json_is_object(object))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: no '%s': not what moe-run --stats-json writes",
                        name, key);
    struct {
        const char *key;
        double *to;
    } const members[] = {
        {"tokens", &p->tokens},      {"tokens_per_s", &p->tokens_per_second},
        {"hit_rate", &p->hit_rate},  {"bytes_per_token", &p->bytes_per_token},
        {"loads", &loads},           {"read_s", &read},
        {"displaced_s", &displaced},
    };
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof members / sizeof members[0] && status == MOE_OK; i++)
        status = get_number(name, object, members[i].key, members[i].to, err);
    for (enum moe_component c = 0; c < MOE_N_COMPONENTS && status == MOE_OK; c++) {
        double seconds = -1;
        status = get_number(name, object, moe_component_name(c)->run_key, &seconds, err);
        p->components.seconds[c] = per_token(seconds, p->tokens);
    }
    p->loads_per_token = per_token(loads, p->tokens);
    p->link_seconds = per_token(read, p->tokens);
    p->displaced_seconds = per_token(displaced, p->tokens);
    return status;
}

/* As much of it as there is room for, in whole characters. */
static void copy_text(char *to, size_t size, const char *text)
{
    const size_t n = strlen(text);
    const uint64_t kept = moe_utf8_complete((const uint8_t *)text, n < size ? n : size - 1);
    snprintf(to, size, "%.*s", (int)kept, text);
}

int moe_run_figures_read(struct moe_run_figures *out, const char *path, struct moe_err *err)
{
    json_t *root = NULL;
    char fingerprint[17];
    *out = (struct moe_run_figures){.memory_bytes = 0};
    const struct {
        const char *key;
        char *to;
        size_t size;
    } texts[] = {
        {"strategy", out->strategy, sizeof out->strategy},
        {"parts", out->parts, sizeof out->parts},
        {"kv", out->kv, sizeof out->kv},
        {"expert_precision", out->precision, sizeof out->precision},
        {"model", out->model, sizeof out->model},
        {"fingerprint", fingerprint, sizeof fingerprint},
        {"learnt", out->learnt, sizeof out->learnt},
    };
    const struct {
        const char *key;
        double *to;
    } numbers[] = {
        {"memory_budget_bytes", &out->memory_bytes},
        {"context_tokens", &out->context},
        {"batch_tokens", &out->batch},
        {"threads", &out->threads},
        {"cache_slots", &out->cache_slots},
        {"answers", &out->answers},
        {"learnt_tokens", &out->learnt_tokens},
    };
    int status;
    MOE_STEP(moe_json_read(&root, path, MAX_BYTES, MOE_JSON_CONFIG_MEMORY, err));
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const char *text = NULL;
        MOE_STEP(moe_json_get_text(path, root, texts[i].key, i == 0, &text, err));
        copy_text(texts[i].to, texts[i].size, text ? text : "");
    }
    out->fingerprint = strtoull(fingerprint, NULL, 16);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        MOE_STEP(get_number(path, root, numbers[i].key, numbers[i].to, err));
    MOE_STEP(read_phase(&out->decode, path, root, "decode", err));
    MOE_STEP(read_phase(&out->prefill, path, root, "prefill", err));
out:
    moe_json_free(root);
    return status;
}

/* ---- Comparison ---- */

enum {
    INDENT = 27,
    SHORT = 28,  /* two texts that have room in a line */
    ENOUGH = 50, /* tokens */
    MANY = 10,   /* times as much are said as such, less as a change */
};
static const double ALIKE = 0.25;      /* lengths of prompts that differ by such a share */
static const double NOTEWORTHY = 0.02; /* such a share of a token's time */

/* ---- Figures ---- */

static void add_figure(struct moe_comparison *c, const char *name, const char *key,
                       enum moe_compared_unit unit, bool component, double a, double b)
{
    if ((!(a >= 0) && !(b >= 0)) || c->n == MOE_COMPARED_FIGURES)
        return;
    c->figures[c->n++] = (struct moe_compared){name, key, unit, component, {a, b}};
}

/* What is expected of a phase in the form of a run's. */
static struct moe_run_phase phase_of(const struct moe_plan_expected *e, bool prompts)
{
    struct moe_run_phase phase = {
        .tokens_per_second = prompts ? e->prefill_tokens_per_second : e->decode_tokens_per_second,
        .components = moe_plan_components(e, prompts),
        .hit_rate = prompts ? -1 : e->hit_rate,
        .bytes_per_token = prompts ? -1 : e->bytes_per_token,
        .loads_per_token = prompts ? -1 : e->loads_per_token,
        .link_seconds = prompts ? -1 : e->link_seconds,
    };
    if (prompts && phase.tokens_per_second == 0) /* no prompt was simulated */
        phase.tokens_per_second = -1;
    return phase;
}

static double token_seconds(const struct moe_run_phase *p)
{
    return p->tokens_per_second > 0 ? 1 / p->tokens_per_second : -1;
}

static void add_phase(struct moe_comparison *c, const struct moe_run_phase *a,
                      const struct moe_run_phase *b, bool prompts)
{
    add_figure(c, prompts ? "tokens/s of a prompt" : "tokens/s of an answer",
               prompts ? "prefill_tokens_per_s" : "decode_tokens_per_s", MOE_COMPARED_SPEED, false,
               a->tokens_per_second, b->tokens_per_second);
    add_figure(c, "a token takes", "token_s", MOE_COMPARED_SECONDS, false, token_seconds(a),
               token_seconds(b));
    for (enum moe_component i = 0; i < MOE_N_COMPONENTS; i++) {
        const struct moe_component_name *name = moe_component_name(i);
        double x = a->components.seconds[i], y = b->components.seconds[i];
        if (x > 0 || y > 0)
            add_figure(c, name->name, name->run_key, MOE_COMPARED_SECONDS, true, x, y);
    }
    if (prompts)
        return;
    add_figure(c, "experts found in memory", "hit_rate", MOE_COMPARED_SHARE, false, a->hit_rate,
               b->hit_rate);
    add_figure(c, "loaded for a token", "bytes_per_token", MOE_COMPARED_BYTES, false,
               a->bytes_per_token, b->bytes_per_token);
    add_figure(c, "loads for a token", "loads_per_token", MOE_COMPARED_NUMBER, false,
               a->loads_per_token, b->loads_per_token);
    add_figure(c, "the link is busy", "link_s", MOE_COMPARED_SECONDS, false, a->link_seconds,
               b->link_seconds);
}

static void add_setting(struct moe_comparison *c, const char *name, const char *a, const char *b)
{
    struct moe_compared_setting *s = &c->settings[c->n_settings++];
    s->name = name;
    snprintf(s->values[0], sizeof s->values[0], "%s", a);
    snprintf(s->values[1], sizeof s->values[1], "%s", b);
}

static void add_bytes(struct moe_comparison *c, const char *name, double a, double b)
{
    char room[2][32];
    add_setting(c, name, a > 0 ? moe_format_bytes((uint64_t)a, room[0]) : "-",
                b > 0 ? moe_format_bytes((uint64_t)b, room[1]) : "-");
}

static void add_number(struct moe_comparison *c, const char *name, double a, double b)
{
    char x[32], y[32];
    snprintf(x, sizeof x, "%.0f", a);
    snprintf(y, sizeof y, "%.0f", b);
    add_setting(c, name, x, y);
}

/* Where both are known. */
static void add_known(struct moe_comparison *c, const char *name, double a, double b)
{
    if (a > 0 && b >= 0)
        add_number(c, name, a, b);
}

static const char *kv_of(const struct moe_plan *p)
{
    return p->kv[0] ? p->kv : moe_kv_kind_name(MOE_KV_DEFAULT);
}

static void add_rate(struct moe_comparison *c, const char *name, double a, double b)
{
    char room[2][32];
    add_setting(c, name, moe_format_rate(a, room[0]), moe_format_rate(b, room[1]));
}

/* How other programs slowed the machines that the plans were made for. */
static void add_pace(struct moe_comparison *c, const struct moe_plan *a, const struct moe_plan *b)
{
    const struct moe_link_costs *x = &a->pace.loads, *y = &b->pace.loads;
    char texts[2][32];
    snprintf(texts[0], sizeof texts[0], "%.1f times", fmax(1, x->interruptions));
    snprintf(texts[1], sizeof texts[1], "%.1f times", fmax(1, y->interruptions));
    add_setting(c, "other programs slow it", texts[0], texts[1]);
    snprintf(texts[0], sizeof texts[0], "%.2f ms", 1e3 * x->late);
    snprintf(texts[1], sizeof texts[1], "%.2f ms", 1e3 * y->late);
    add_setting(c, "a wait ends late by", texts[0], texts[1]);
}

/* Packs are compared by their fingerprints, where both are known, and named by their files. */
static void add_model(struct moe_comparison *c, const char *a, uint64_t a_print, const char *b,
                      uint64_t b_print)
{
    const bool known = a_print && b_print, same_name = strcmp(a, b) == 0;
    char texts[2][MOE_PLAN_TEXT + 32];
    snprintf(texts[0], sizeof texts[0], "%s", a);
    snprintf(texts[1], sizeof texts[1], "%s", known && a_print == b_print ? a : b);
    if (known && a_print != b_print && same_name) {
        snprintf(texts[0], sizeof texts[0], "%s (%016" PRIx64 ")", a, a_print);
        snprintf(texts[1], sizeof texts[1], "%s (%016" PRIx64 ")", b, b_print);
    }
    add_setting(c, "model", texts[0], texts[1]);
}

/* What the caches begin with: file and tokens. */
static void add_learnt(struct moe_comparison *c, const char *a, double a_tokens, const char *b,
                       double b_tokens)
{
    char texts[2][MOE_PLAN_TEXT + 48] = {"nothing", "nothing"};
    if (a[0])
        snprintf(texts[0], sizeof texts[0], "%s, %.0f tokens", moe_path_name(a), a_tokens);
    if (b[0])
        snprintf(texts[1], sizeof texts[1], "%s, %.0f tokens", moe_path_name(b), b_tokens);
    add_setting(c, "learnt (--learn)", texts[0], texts[1]);
}

void moe_compare_plans(const struct moe_plan *a, const struct moe_plan *b,
                       struct moe_comparison *out)
{
    const struct moe_run_phase answers[2] = {phase_of(&a->expected, false),
                                             phase_of(&b->expected, false)};
    const struct moe_run_phase prompts[2] = {phase_of(&a->expected, true),
                                             phase_of(&b->expected, true)};
    char brief[2][MOE_STRATEGY_BRIEF];
    *out = (struct moe_comparison){.same_plan = true};
    moe_strategy_brief(&a->strategy, brief[0]);
    moe_strategy_brief(&b->strategy, brief[1]);
    add_model(out, a->pack, a->pack_fingerprint, b->pack, b->pack_fingerprint);
    add_bytes(out, "memory", (double)a->memory.total, (double)b->memory.total);
    add_setting(out, "strategy", brief[0], brief[1]);
    add_learnt(out, a->evidence.learnt, (double)a->evidence.learnt_tokens, b->evidence.learnt,
               (double)b->evidence.learnt_tokens);
    add_setting(out, "bits of experts", a->high, b->high);
    add_number(out, "slots that keep experts", (double)moe_plan_slots(a).n_cache,
               (double)moe_plan_slots(b).n_cache);
    add_number(out, "context", a->memory.context, b->memory.context);
    add_number(out, "batches of a prompt", a->memory.batch, b->memory.batch);
    add_setting(out, "keys and values", kv_of(a), kv_of(b));
    add_rate(out, "link", a->pace.load_rate, b->pace.load_rate);
    add_pace(out, a, b);
    add_phase(out, &answers[0], &answers[1], false);
    out->n_decode = out->n;
    add_phase(out, &prompts[0], &prompts[1], true);
}

/* A run's strategy, by its name and parts as statistics have them, in the words of plans. */
static void brief_of_run(const struct moe_run_figures *run, const struct moe_strategy *planned,
                         char out[MOE_STRATEGY_BRIEF])
{
    struct moe_strategy s = {0};
    struct moe_buf same = {0};
    char parts[sizeof run->parts];
    snprintf(parts, sizeof parts, "%s", run->parts);
    const bool known = moe_strategy_find(run->strategy, &s);
    moe_strategy_describe(planned, &same);
    const char *name = planned->name ? planned->name : "none";
    if (strcmp(run->strategy, name) == 0 && same.data && !same.failed &&
        strcmp(run->parts, (const char *)same.data) == 0)
        s = *planned; /* what no option says included */
    else if (known && !s.resident)
        s = (struct moe_strategy){.name = s.name};
    char *rest = parts, *word = s.resident ? NULL : strtok_r(rest, " ", &rest);
    while (word && s.name && strncmp(word, "--", 2) == 0) {
        enum moe_part part;
        char *value = strtok_r(NULL, " ", &rest);
        bool valued = value && strncmp(value, "--", 2) != 0;
        if (moe_strategy_part_find(word + 2, &part))
            moe_strategy_set(&s, part, valued ? value : "on", NULL);
        word = valued ? strtok_r(NULL, " ", &rest) : value;
    }
    if (s.name)
        moe_strategy_brief(&s, out);
    else
        snprintf(out, MOE_STRATEGY_BRIEF, "%s", run->strategy);
    moe_buf_release(&same);
}

/* Settings of a run that do not follow from what there was room for. */
static void add_run_settings(struct moe_comparison *c, const struct moe_plan *plan,
                             const struct moe_run_figures *run)
{
    char brief[2][MOE_STRATEGY_BRIEF];
    snprintf(brief[0], sizeof brief[0], "%s", plan->strategy.name ? plan->strategy.name : "none");
    snprintf(brief[1], sizeof brief[1], "%s", run->strategy);
    if (run->parts[0]) { /* statistics of long ago say the name alone */
        moe_strategy_brief(&plan->strategy, brief[0]);
        brief_of_run(run, &plan->strategy, brief[1]);
    }
    if (plan->pack_fingerprint && run->fingerprint)
        add_model(c, plan->pack, plan->pack_fingerprint, run->model, run->fingerprint);
    add_bytes(c, "memory", (double)plan->memory.total, run->memory_bytes);
    add_setting(c, "strategy", brief[0], brief[1]);
    if (run->precision[0] && plan->high[0])
        add_setting(c, "bits of experts", plan->high, run->precision);
    add_known(c, "context", plan->memory.context, run->context);
    add_known(c, "batches of a prompt", plan->memory.batch, run->batch);
    if (run->kv[0])
        add_setting(c, "keys and values", kv_of(plan), run->kv);
    add_known(c, "threads", plan->evidence.threads, run->threads);
}

void moe_compare_run(const struct moe_plan *plan, const struct moe_run_figures *run,
                     struct moe_comparison *out)
{
    const bool first = run->answers == 1 && plan->first.decode_tokens_per_second > 0;
    const struct moe_run_phase answers = phase_of(first ? &plan->first : &plan->expected, false),
                               prompts = phase_of(&plan->expected, true);
    *out = (struct moe_comparison){
        .measured = true,
        .tokens = run->decode.tokens,
        .prompt_tokens = {plan->evidence.prompt_tokens,
                          run->answers > 0 ? run->prefill.tokens / run->answers : 0},
        .first = first,
        .same_plan = true};
    if (run->decode.displaced_seconds * run->decode.tokens_per_second > NOTEWORTHY)
        out->displaced_seconds = run->decode.displaced_seconds;
    add_run_settings(out, plan, run);
    for (uint32_t i = 0; i < out->n_settings; i++) {
        char(*values)[MOE_COMPARED_TEXT] = out->settings[i].values;
        out->same_plan &= strcmp(values[0], values[1]) == 0 || strcmp(values[0], "-") == 0 ||
                          strcmp(values[1], "-") == 0;
    }
    /* A file that has learnt more since is still what the plan counts on. */
    out->same_plan &= strcmp(moe_path_name(plan->evidence.learnt), moe_path_name(run->learnt)) == 0;
    add_learnt(out, plan->evidence.learnt, (double)plan->evidence.learnt_tokens, run->learnt,
               run->learnt_tokens);
    add_known(out, "slots that keep experts", (double)moe_plan_slots(plan).n_cache,
              run->cache_slots);
    add_known(out, "tokens of a prompt", out->prompt_tokens[0], out->prompt_tokens[1]);
    add_phase(out, &answers, &run->decode, false);
    out->n_decode = out->n;
    add_phase(out, &prompts, &run->prefill, true);
}

double moe_compared_change(const struct moe_compared *c)
{
    double a = c->values[0], b = c->values[1];
    return a > 0 && b >= 0 ? b / a - 1 : (double)NAN;
}

const struct moe_compared *moe_compared_most(const struct moe_comparison *c)
{
    const struct moe_compared *most = NULL;
    double largest = 0;
    for (uint32_t i = 0; i < c->n_decode; i++) {
        const struct moe_compared *f = &c->figures[i];
        double apart = fabs(f->values[1] - f->values[0]);
        if (f->component && f->values[0] >= 0 && f->values[1] >= 0 && apart > largest) {
            largest = apart;
            most = f;
        }
    }
    return most;
}

/* ---- As text ---- */

static const char *format_figure(double x, enum moe_compared_unit unit, char room[32])
{
    if (!(x >= 0))
        return "-";
    switch (unit) {
    case MOE_COMPARED_SPEED:
        return moe_format_speed(x, room);
    case MOE_COMPARED_SECONDS:
        snprintf(room, 32, "%.3f ms", 1e3 * x);
        return room;
    case MOE_COMPARED_SHARE:
        return moe_format_percent(x, room);
    case MOE_COMPARED_BYTES:
        return moe_format_bytes((uint64_t)x, room);
    default:
        snprintf(room, 32, "%.2f", x);
        return room;
    }
}

static void put_figure(const struct moe_compared *f, bool wide, struct moe_buf *out)
{
    char room[2][32], change[32] = "", name[48];
    double share = moe_compared_change(f);
    snprintf(name, sizeof name, "%s%s", f->component ? "  " : "", f->name);
    if (f->unit == MOE_COMPARED_SHARE && f->values[0] >= 0 && f->values[1] >= 0)
        snprintf(change, sizeof change, "%+.1f %s", 100 * (f->values[1] - f->values[0]),
                 wide ? "points" : "pts");
    else if (share >= MANY - 1)
        snprintf(change, sizeof change, "%.0f times", 1 + share);
    else if (!isnan(share))
        snprintf(change, sizeof change, "%+.1f%%", 100 * share);
    moe_buf_printf(out, wide ? "  %-28s %12s %12s" : "  %-26s %10s %10s", name,
                   format_figure(f->values[0], f->unit, room[0]),
                   format_figure(f->values[1], f->unit, room[1]));
    moe_buf_printf(out, !change[0] ? "\n" : wide ? "  %12s\n" : " %9s\n", change);
}

static void put_settings(const struct moe_comparison *c, const struct moe_pen *pen)
{
    uint32_t same = 0;
    for (uint32_t i = 0; i < c->n_settings; i++) {
        const struct moe_compared_setting *s = &c->settings[i];
        bool is_short = strlen(s->values[0]) + strlen(s->values[1]) < SHORT;
        char first[32], both[SHORT + 8];
        snprintf(first, sizeof first, "  %s", s->name);
        if (strcmp(s->values[0], s->values[1]) == 0) {
            same++;
        } else if (is_short) {
            snprintf(both, sizeof both, "%s  ->  %s", s->values[0], s->values[1]);
            moe_draw_paragraph(pen->out, pen->screen, first, INDENT, both);
        } else if (strchr(s->values[0], ' ')) {
            moe_draw_paragraph(pen->out, pen->screen, first, INDENT, s->values[0]);
            moe_draw_paragraph(pen->out, pen->screen, "     ->", INDENT, s->values[1]);
        } else {
            moe_draw_spelling(pen->out, pen->screen, first, INDENT, s->values[0], SIZE_MAX);
            moe_draw_spelling(pen->out, pen->screen, "     ->", INDENT, s->values[1], SIZE_MAX);
        }
    }
    if (same == c->n_settings)
        moe_buf_text(pen->out, "  none of their settings\n");
}

/* Whether prompts are about as long; all that are not known are. */
static bool prompts_compare(const struct moe_comparison *c)
{
    const double a = c->prompt_tokens[0], b = c->prompt_tokens[1];
    return a <= 0 || b <= 0 || fabs(a - b) <= ALIKE * fmax(a, b);
}

/* What the figures come to. */
static void put_verdict(const struct moe_comparison *c, const struct moe_pen *pen)
{
    const struct moe_compared *most = moe_compared_most(c);
    double change = c->n ? moe_compared_change(&c->figures[0]) : (double)NAN;
    const char *who = c->measured ? "The run was" : "The second plan is";
    const char *than = c->measured ? "than planned" : "than the first";
    if (isnan(change))
        moe_say(pen, 0, "One of the two does not know the speed of an answer.");
    else if (fabs(change) < 0.005)
        moe_say(pen, 0, "%s as fast as %s.", who, c->measured ? "planned" : "the first");
    else
        moe_say(pen, 0, "%s %.1f%% %s %s.", who, 100 * fabs(change),
                change > 0 ? "faster" : "slower", than);
    if (most)
        moe_say(pen, 0, "What differs most in a token's time is %s: %.3f ms instead of %.3f.",
                most->name, 1e3 * most->values[1], 1e3 * most->values[0]);
    if (c->measured && c->tokens >= 0 && c->tokens < ENOUGH)
        moe_say(pen, 0,
                "The run decoded %.0f tokens: too few to judge a plan by; moe-run -n %d or more is "
                "better.",
                c->tokens, ENOUGH + 1 /* the prompt gives the first */);
    if (c->measured && !c->same_plan)
        moe_say(pen, 0, "The run had other settings: it did not follow this plan.");
    if (c->first)
        moe_say(pen, 0,
                "Planned is a first answer, because the run gave only one: both begin with the "
                "cache as a start leaves it, filled or empty.");
    if (c->displaced_seconds > 0)
        moe_say(
            pen, 0,
            "%.1f ms of a token's time were lost to other programs, or to waiting for a thread.",
            1e3 * c->displaced_seconds);
    if (!prompts_compare(c))
        moe_say(pen, 0,
                "Prompts do not compare: the plan's have %.0f tokens, the run's %.0f, and in "
                "short ones a token waits longer for experts.",
                c->prompt_tokens[0], c->prompt_tokens[1]);
}

void moe_draw_comparison(const struct moe_comparison *c, struct moe_screen screen,
                         struct moe_buf *out)
{
    const struct moe_pen pen = {out, screen};
    bool wide = screen.columns >= MOE_USUAL_COLUMNS;
    const char *heads[2] = {c->measured ? "planned" : "first", c->measured ? "measured" : "second"};
    put_verdict(c, &pen);
    moe_buf_printf(out, "\nWhat differs in the %s\n", c->measured ? "plan and the run" : "plans");
    put_settings(c, &pen);
    moe_buf_printf(out, wide ? "\n%-30s %12s %12s  %12s\n" : "\n%-28s %10s %10s %9s\n",
                   "What a token takes", heads[0], heads[1], "change");
    for (uint32_t i = 0; i < (prompts_compare(c) ? c->n : c->n_decode); i++) {
        if (i == c->n_decode)
            moe_buf_text(out, "\n");
        put_figure(&c->figures[i], wide, out);
    }
}

/* ---- For scripts ---- */

static void put_json(struct moe_emit *e, const struct moe_compared *f)
{
    moe_emit_open_line_map(e, f->key);
    moe_emit_rounded(e, "first", 9, f->values[0] >= 0 ? f->values[0] : (double)NAN);
    moe_emit_rounded(e, "second", 9, f->values[1] >= 0 ? f->values[1] : (double)NAN);
    moe_emit_rounded(e, "change", 9, moe_compared_change(f));
    moe_emit_close(e);
}

int moe_comparison_json(const struct moe_comparison *c, struct moe_buf *out, struct moe_err *err)
{
    const struct moe_compared *most = moe_compared_most(c);
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_INDENTED);
    moe_emit_text(&e, "second", c->measured ? "run" : "plan");
    if (c->measured) {
        moe_emit_bool(&e, "same_plan", c->same_plan);
        moe_emit_text(&e, "planned", c->first ? "first" : "expected");
        moe_emit_rounded(&e, "tokens", 9, c->tokens);
    }
    moe_emit_open_map(&e, "settings");
    for (uint32_t i = 0; i < c->n_settings; i++) {
        moe_emit_open_line_list(&e, c->settings[i].name);
        moe_emit_text(&e, NULL, c->settings[i].values[0]);
        moe_emit_text(&e, NULL, c->settings[i].values[1]);
        moe_emit_close(&e);
    }
    moe_emit_close(&e);
    moe_emit_open_map(&e, "decode");
    for (uint32_t i = 0; i < c->n_decode; i++)
        put_json(&e, &c->figures[i]);
    moe_emit_close(&e);
    moe_emit_open_map(&e, "prefill");
    for (uint32_t i = c->n_decode; i < c->n; i++)
        put_json(&e, &c->figures[i]);
    moe_emit_close(&e);
    if (most)
        moe_emit_text(&e, "differs_most", most->key);
    return moe_emit_end(&e, err);
}
