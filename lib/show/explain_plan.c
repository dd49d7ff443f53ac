/* A plan's explanation: its parts, for text and for pages (show/html_pages.c), and all of it as
 * text. Figures are simulated: two significant digits. */
#define _POSIX_C_SOURCE 200809L /* strnlen */

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "fmt/emit.h"
#include "sched/strategy.h"
#include "show/draw.h"
#include "show/explain.h"
#include "show/explain_figures.h"

enum {
    NAME = 48,        /* bytes shown of names, which may be long in files */
    SOURCE_NAME = 24, /* ... mentioned in passing */
    LAYER_LINES = 12,
    STEP_LINES = 5,
    TRIED_LINES = 3,
    TRIED_NAME = 118,
};

/* Bytes of a name to show: whole characters, at most `most`. */
static int shown(const char *name, size_t most)
{
    return (int)moe_utf8_complete((const uint8_t *)name, strnlen(name, most));
}

/* Takes over what was collected, as a paragraph, and releases it. */
static void put_text(const struct moe_pen *pen, const char *first, uint32_t indent,
                     struct moe_buf *text)
{
    if (!text->failed && text->size)
        moe_draw_paragraph(pen->out, pen->screen, first, indent, (const char *)text->data);
    pen->out->failed |= text->failed;
    moe_buf_release(text);
}

/* Reading ahead takes others from there, too, but no token waits for these. */
static void put_missing(const struct moe_plan *p, struct moe_buf *out)
{
    const double skipped = fmax(0, p->expected.skipped_rate);
    char share[32] = "some", left_out[32];
    if (p->expected.hit_rate >= 0)
        moe_format_about_share(1 - p->expected.hit_rate - (p->strategy.needs_host ? 0 : skipped),
                               share);
    if (p->strategy.needs_host)
        moe_buf_printf(out, "%s of a token's experts are not in the device's memory.", share);
    else
        moe_buf_printf(out, "a token waits for %s of its experts to be %s%s%s.", share,
                       moe_plan_over_bus(p) ? "brought from main memory" : "read from the disk",
                       skipped > 0 ? ", and leaves out " : "",
                       skipped > 0 ? moe_format_about_share(skipped, left_out) : "");
}

/* "+-0.25", of a loss in percent. */
static const char *format_error(double error, struct moe_screen screen, char room[32])
{
    if (!(error >= 0))
        return "error unknown";
    snprintf(room, 32, "%s%.3g", moe_draw_plus_minus(screen), error);
    return room;
}

/* ---- The answer ---- */

/* "1.6 times as fast", "4% faster". */
static void put_times(double times, struct moe_buf *out)
{
    char room[32];
    if (times > 0.75 && times < 1.25)
        moe_buf_printf(out, "%.0f%% %s", 100 * fabs(times - 1), times < 1 ? "slower" : "faster");
    else
        moe_buf_printf(out, "%s times as fast", moe_format_about(times, room));
}

/* "(+4.2)", in the unit of the whole, or with its own. */
static void put_difference(double from, double to, struct moe_buf *out)
{
    char all[32], apart[32];
    moe_format_about_bytes(to, all);
    moe_format_about_bytes(fabs(to - from), apart);
    const char *unit = strchr(apart, ' ');
    if (strcmp(unit, strchr(all, ' ')) == 0)
        apart[unit - apart] = 0;
    moe_buf_printf(out, "%s (%c%s)", all, to < from ? '-' : '+', apart);
}

/* The step from which on everything is in memory; NULL: none was simulated. */
static const struct moe_plan_step *step_with_all(const struct moe_plan *p)
{
    const struct moe_plan_step *last =
        p->n_memory_steps ? &p->memory_steps[p->n_memory_steps - 1] : NULL;
    return last && last->hit_rate > 1 - 1e-9 && last->decode_tokens_per_second > 0 ? last : NULL;
}

static void answer_all_in_memory(const struct moe_plan *p, struct moe_buf *out)
{
    const struct moe_plan_step *all = step_with_all(p);
    const double now = moe_plan_budget(p);
    moe_buf_text(out, "All experts are in memory. More memory would not help");
    if (all && all->amount < 0.99 * now) {
        char room[32];
        moe_buf_printf(out, "; %s is enough", moe_format_about_bytes(all->amount, room));
    }
    moe_buf_text(out, ".");
    for (uint32_t i = 0; i < p->n_alternatives; i++) {
        const struct moe_plan_alternative *a = &p->alternatives[i];
        char room[32];
        if (a->what != MOE_ALTERNATIVE_MEMORY || a->times >= 1 ||
            (all && a->amount >= all->amount)) /* enough, as was said */
            continue;
        moe_buf_printf(out, " %s%s%s would be ", moe_format_about_bytes(a->amount, room),
                       a->precision[0] ? " with the " : "", a->precision);
        if (!(a->decode_tokens_per_second >= 0))
            moe_buf_text(out, "less than the smallest that works");
        else if (fabs(moe_plan_gain(p, a->decode_tokens_per_second)) < 0.005)
            moe_buf_text(out, "as fast");
        else
            put_times(1 + moe_plan_gain(p, a->decode_tokens_per_second), out);
        moe_buf_text(out, ".");
    }
}

void moe_explain_answer(const struct moe_plan *p, struct moe_buf *out)
{
    enum { SLOW = 115 /* percent of this speed with all experts in memory */ };
    const struct moe_plan_step *all = step_with_all(p);
    const double speed = p->expected.decode_tokens_per_second;
    const struct moe_plan_bounds b = moe_plan_bounds(p);
    const double computing = b.seconds[MOE_BOUND_COMPUTATION];
    const double times = all && speed > 0 ? all->decode_tokens_per_second / speed
                         : computing > 0  ? b.total / computing
                                          : 0;
    if (!(speed > 0)) {
        moe_buf_text(out, "The plan does not say how fast it is.");
        return;
    }
    if (p->strategy.resident || p->n_pools == 0) {
        answer_all_in_memory(p, out);
        return;
    }
    moe_buf_text(out, times > 0 && times < SLOW / 100.0
                          ? "Almost as fast as with all experts in memory, though "
                          : "Slow because ");
    put_missing(p, out);
    if (!all || !(all->amount > moe_plan_budget(p)) || times < 1.005)
        return;
    moe_buf_text(out, " ");
    put_difference(moe_plan_budget(p), all->amount, out);
    moe_buf_text(out, " holds all of them: ");
    put_times(times, out);
    moe_buf_text(out, ".");
}

void moe_explain_speed(const struct moe_plan *p, bool prompts, struct moe_buf *out)
{
    static const char *const when[MOE_N_ASSUMPTIONS] = {
        [MOE_ASSUME_ROUTING] = "with other texts",
        [MOE_ASSUME_FIGURES] = "with other texts",
        [MOE_ASSUME_FEW_TOKENS] = "with other texts",
        [MOE_ASSUME_ALIKE] = "with other texts",
        [MOE_ASSUME_BANDWIDTH] = "if computing takes longer",
        [MOE_ASSUME_NOMINAL] = "if loading is slower than stated",
        [MOE_ASSUME_QUIET] = "if the machine is busy",
    };
    const struct moe_plan_expected *e = &p->expected;
    char room[32], low[32] = "";
    moe_format_about(prompts ? e->prefill_tokens_per_second : e->decode_tokens_per_second, room);
    moe_buf_printf(out, "about %s tokens/s", room);
    if (prompts && p->evidence.prompt_tokens)
        moe_buf_printf(out, ", for a prompt of %" PRIu32 " tokens", p->evidence.prompt_tokens);
    if (prompts)
        return;
    const struct moe_plan_doubt *d = p->n_doubts ? &p->doubts[0] : NULL;
    if (d && d->decode_tokens_per_second >= 0)
        moe_format_about(d->decode_tokens_per_second, low);
    if (low[0] && when[d->what] && strcmp(low, room) != 0)
        moe_buf_printf(out, ", %s %s", low, when[d->what]);
}

void moe_explain_first(const struct moe_plan *p, struct moe_buf *out)
{
    char room[2][32];
    const struct moe_plan_expected *e = &p->first;
    if (!(e->decode_tokens_per_second > 0))
        return;
    moe_buf_printf(out, "about %s tokens/s, %s of the experts in memory: the cache begins %s",
                   moe_format_about(e->decode_tokens_per_second, room[0]),
                   moe_format_about_share(e->hit_rate, room[1]),
                   p->n_contents ? "with what it is filled with" : "empty");
    const char *learnt = moe_path_name(p->evidence.learnt);
    if (learnt[0])
        moe_buf_printf(out, ", but knows of %" PRIu64 " tokens (--learn %.*s)",
                       p->evidence.learnt_tokens, shown(learnt, SOURCE_NAME), learnt);
}

/* ---- Parts of a whole ---- */

MOE_PRINTF(4, 5)
static void add_part(struct moe_explained_part *out, uint32_t *n, double amount, const char *name,
                     ...)
{
    va_list args;
    if (!(amount > 0))
        return;
    va_start(args, name);
    vsnprintf(out[*n].name, sizeof out[*n].name, name, args);
    va_end(args);
    out[(*n)++].amount = amount;
}

uint32_t moe_explain_memory(const struct moe_plan *p, const struct moe_plan_memory *m,
                            struct moe_explained_part out[MOE_EXPLAINED_PARTS])
{
    const uint64_t used = m->program + m->dense + m->kv + m->work + m->experts;
    uint32_t n = 0;
    add_part(out, &n, (double)m->program, "the program");
    add_part(out, &n, (double)m->dense, "weights that every token uses");
    add_part(out, &n, (double)m->kv, "the text: a context of %" PRIu32 " tokens%s%s", m->context,
             p->kv[0] ? " as " : "", p->kv);
    if (m->lent)
        add_part(out, &n, (double)m->work, "buffers");
    else
        add_part(out, &n, (double)m->work, "buffers for %" PRIu32 " prompt tokens", m->batch);
    add_part(out, &n, (double)(m->experts - m->lent - m->kv_lent), "experts");
    add_part(out, &n, (double)m->lent, "experts, or buffers for %" PRIu32 " prompt tokens",
             m->batch);
    add_part(out, &n, (double)m->kv_lent, "experts, until the text needs it");
    add_part(out, &n, m->total > used ? (double)(m->total - used) : 0, "unused");
    return n;
}

uint32_t moe_explain_time(const struct moe_plan *p,
                          struct moe_explained_part out[MOE_EXPLAINED_PARTS])
{
    static const char *const names[MOE_N_BOUNDS] = {
        [MOE_BOUND_COMPUTATION] = "computing",
        [MOE_BOUND_LINK] = "reading that nobody could avoid",
        [MOE_BOUND_PREDICTION] = "reading that a perfect guess would have saved",
    };
    const struct moe_plan_bounds b = moe_plan_bounds(p);
    uint32_t n = 0;
    for (enum moe_bound i = 0; i < MOE_N_BOUNDS; i++)
        if (b.seconds[i] >= 0.0005 * b.total)
            add_part(out, &n, b.seconds[i], "%s", names[i]);
    return n;
}

/* As lines with bars. format: of an amount. */
static void put_parts(const struct moe_pen *pen, const struct moe_explained_part *parts, uint32_t n,
                      char *(*format)(double, char[32]))
{
    static const char *const heads[3] = {"", "", ""};
    struct moe_table t;
    double all = 0;
    for (uint32_t i = 0; i < n; i++)
        all += parts[i].amount;
    moe_table_begin(&t, 3, heads);
    for (uint32_t i = 0; i < n; i++) {
        char room[2][32];
        const char *const cells[3] = {parts[i].name, format(parts[i].amount, room[0]),
                                      moe_format_about_share(parts[i].amount / all, room[1])};
        moe_table_row(&t, parts[i].amount / all, cells);
    }
    moe_draw_table(pen->out, pen->screen, &t);
}

/* ---- What more would give ---- */

static bool is_now(const struct moe_plan_step *step, double now)
{
    return step->amount > 0.999 * now && step->amount < 1.001 * now;
}

/* Which of n steps line i of `lines` shows: evenly from the first to the last, but the present step
 * takes the place of the one nearest to it. Of the last only if it is that: there all experts are
 * in memory. */
static uint32_t pick_step(const struct moe_plan_step *steps, uint32_t n, uint32_t lines, uint32_t i,
                          double now)
{
    uint32_t at = lines < 2 ? 0 : i * (n - 1) / (lines - 1), present = 0;
    while (present < n && !is_now(&steps[present], now))
        present++;
    const uint32_t most = present + 1 < n ? lines - 1 : lines;
    bool nearest = present < n && i < most;
    for (uint32_t other = 0; other < most && nearest; other++) {
        uint32_t x = lines < 2 ? 0 : other * (n - 1) / (lines - 1);
        uint32_t distance = x > present ? x - present : present - x;
        uint32_t mine = at > present ? at - present : present - at;
        nearest = mine < distance || (mine == distance && i <= other);
    }
    return nearest ? present : at;
}

static bool steps_table(const char *head, const struct moe_plan_step *steps, uint32_t n,
                        uint32_t most, double now, double speed, char *(*format)(double, char[32]),
                        struct moe_table *t)
{
    const char *const heads[] = {head, "tokens/s", "in memory"};
    const uint32_t lines = n < most ? n : most;
    double fastest = speed;
    if (n < 2)
        return false;
    for (uint32_t i = 0; i < n; i++)
        fastest = fmax(fastest, steps[i].decode_tokens_per_second);
    moe_table_begin(t, 3, heads);
    for (uint32_t i = 0; i < lines; i++) {
        const struct moe_plan_step *step = &steps[pick_step(steps, n, lines, i, now)];
        char room[3][32];
        const char *const cells[] = {format(step->amount, room[0]),
                                     moe_format_about(step->decode_tokens_per_second, room[1]),
                                     moe_format_about_share(step->hit_rate, room[2])};
        if (is_now(step, now))
            t->marked = t->n_rows;
        moe_table_row(t, fastest > 0 ? step->decode_tokens_per_second / fastest : 0, cells);
    }
    return true;
}

bool moe_explain_memory_steps(const struct moe_plan *p, uint32_t most, struct moe_table *t)
{
    return steps_table("memory", p->memory_steps, p->n_memory_steps, most, moe_plan_budget(p),
                       p->expected.decode_tokens_per_second, moe_format_about_bytes, t);
}

bool moe_explain_link_steps(const struct moe_plan *p, uint32_t most, struct moe_table *t)
{
    return steps_table(moe_plan_over_bus(p) ? "bus" : "disk", p->rate_steps, p->n_rate_steps, most,
                       p->pace.load_rate, p->expected.decode_tokens_per_second, moe_format_rate, t);
}

static void put_steps(const struct moe_plan *p, const struct moe_pen *pen)
{
    const double now = moe_plan_budget(p), speed = p->expected.decode_tokens_per_second;
    const struct moe_plan_step *next = moe_plan_next_step(p->memory_steps, p->n_memory_steps, now);
    struct moe_table t;
    char room[2][32];
    if (moe_explain_memory_steps(p, STEP_LINES, &t)) {
        moe_buf_printf(pen->out, "\n%s\n",
                       p->memory.total ? "More memory or less" : "More memory for experts or less");
        moe_draw_table(pen->out, pen->screen, &t);
        const double gain = next && speed > 0 ? next->decode_tokens_per_second / speed - 1 : 0;
        if (fabs(gain) >= 0.005) /* no "+0%" */
            moe_say(pen, 2, "The next step up, %s: about %s tokens/s, %+.0f%%.",
                    moe_format_about_bytes(next->amount, room[0]),
                    moe_format_about(next->decode_tokens_per_second, room[1]), 100 * gain);
    }
    if (moe_explain_link_steps(p, STEP_LINES, &t)) {
        moe_buf_printf(pen->out, "\nA faster %s or a slower one\n",
                       moe_plan_over_bus(p) ? "bus" : "disk");
        moe_draw_table(pen->out, pen->screen, &t);
    }
}

/* "twice the memory, 60.0 MiB". */
static void name_alternative(const struct moe_plan *p, const struct moe_plan_alternative *a,
                             char out[MOE_TABLE_CELL])
{
    char n[32], room[32];
    snprintf(n, sizeof n, "%.2g times", a->times);
    if (fabs(a->times - 2) < 1e-9)
        strcpy(n, "twice");
    else if (fabs(a->times - 0.5) < 1e-9)
        strcpy(n, "half");
    switch (a->what) {
    case MOE_ALTERNATIVE_MEMORY:
        moe_format_about_bytes(a->amount, room);
        snprintf(out, MOE_TABLE_CELL, "%.12s the memory, %.12s%s%.20s", n, room,
                 a->precision[0] ? ", " : "", a->precision);
        break;
    case MOE_ALTERNATIVE_LINK:
        moe_format_rate(a->amount, room);
        snprintf(out, MOE_TABLE_CELL, "%s as fast a %s, %s", n,
                 moe_plan_over_bus(p) ? "bus" : "disk", room);
        break;
    case MOE_ALTERNATIVE_PROCESSOR:
        snprintf(out, MOE_TABLE_CELL, "%s as fast a processor", n);
        break;
    case MOE_ALTERNATIVE_EXPERTS:
        snprintf(out, MOE_TABLE_CELL, "experts at %.16s%s (*)", a->precision,
                 moe_bits_unit(a->precision));
        break;
    case MOE_ALTERNATIVE_CONTEXT:
        snprintf(out, MOE_TABLE_CELL, "%s the context, %.0f tokens", n, a->amount);
        break;
    default:
        snprintf(out, MOE_TABLE_CELL, "%.0f prompt tokens at a time", a->amount);
        break;
    }
}

static void alternative_row(struct moe_table *t, const char *name, double speed, double gain,
                            double prompt, double bytes, double found)
{
    char room[5][32];
    snprintf(room[1], sizeof room[1], "%+.0f%%", round(100 * gain) + 0.0); /* never "-0%" */
    const char *const cells[] = {name,
                                 moe_format_about(speed, room[0]),
                                 isnan(gain) ? "" : room[1],
                                 moe_format_about(prompt, room[2]),
                                 bytes > 0    ? moe_format_about_bytes(bytes, room[3])
                                 : bytes == 0 ? "nothing"
                                              : "?",
                                 moe_format_about_share(found, room[4])};
    moe_table_row(t, 0, cells);
}

bool moe_explain_alternatives(const struct moe_plan *p, struct moe_table *t, struct moe_buf *same)
{
    static const char *const heads[] = {"", "tokens/s", "change", "prompt", "reads", "found"};
    const struct moe_plan_expected *e = &p->expected;
    moe_table_begin(t, sizeof heads / sizeof *heads, heads);
    alternative_row(t, "as planned", e->decode_tokens_per_second, (double)NAN,
                    e->prefill_tokens_per_second, e->bytes_per_token, e->hit_rate);
    for (uint32_t i = 0; i < p->n_alternatives; i++) {
        const struct moe_plan_alternative *a = &p->alternatives[i];
        const double gain = moe_plan_gain(p, a->decode_tokens_per_second);
        const double prompt = e->prefill_tokens_per_second > 0
                                  ? a->prefill_tokens_per_second / e->prefill_tokens_per_second - 1
                                  : 0;
        char name[MOE_TABLE_CELL];
        name_alternative(p, a, name);
        if (!(a->decode_tokens_per_second >= 0)) {
            const char *const cells[] = {name, "-", "", "", "", ""};
            moe_table_row(t, 0, cells);
        } else if (fabs(gain) < 0.005 && fabs(prompt) < 0.005) {
            moe_buf_printf(same, "%s%s", same->size ? "; " : "", name);
        } else {
            alternative_row(t, name, a->decode_tokens_per_second, gain,
                            a->prefill_tokens_per_second, a->bytes_per_token, a->hit_rate);
        }
    }
    return t->n_rows > 2;
}

/* Says what coarser weights cost, which (*) in the table marks. */
static void explain_coarser(const struct moe_plan *p, struct moe_screen screen, struct moe_buf *out)
{
    bool unknown = false, any = false;
    char room[32];
    for (uint32_t i = 0; i < p->n_alternatives; i++) {
        const struct moe_plan_alternative *a = &p->alternatives[i];
        if (a->what != MOE_ALTERNATIVE_EXPERTS)
            continue;
        if (a->loss_tokens)
            moe_buf_printf(out,
                           "%s%.16s%s: %+.3g%% (%s) nats/token, how much a text surprises "
                           "the model, on %" PRIu64 " tokens",
                           any ? "; " : "(*) Fewer bits change what the model says. ", a->precision,
                           moe_bits_unit(a->precision), a->loss_percent,
                           format_error(a->loss_error, screen, room), a->loss_tokens);
        else
            unknown = true;
        any |= a->loss_tokens > 0;
    }
    moe_buf_text(out, any ? "." : "");
    if (unknown)
        moe_buf_text(out, any ? " Others were not measured (moe-calibrate)."
                              : "(*) Fewer bits change what the model says; by how much was not "
                                "measured (moe-calibrate).");
}

static void put_alternatives(const struct moe_plan *p, const struct moe_pen *pen)
{
    struct moe_table t;
    struct moe_buf same = {0}, coarser = {0};
    char room[32];
    bool less = false, too_many = false, slower = false;
    if (p->n_alternatives == 0)
        return;
    moe_buf_text(pen->out,
                 "\nWhat if one thing were different (reads: by a token; found: experts in "
                 "memory)\n");
    if (moe_explain_alternatives(p, &t, &same))
        moe_draw_table(pen->out, pen->screen, &t);
    for (uint32_t i = 0; i < p->n_alternatives; i++) {
        const struct moe_plan_alternative *a = &p->alternatives[i];
        const bool works = a->decode_tokens_per_second >= 0;
        less |= a->what == MOE_ALTERNATIVE_MEMORY && !works;
        too_many |= a->what == MOE_ALTERNATIVE_BATCH && !works;
        slower |= (a->what == MOE_ALTERNATIVE_PROCESSOR || a->what == MOE_ALTERNATIVE_LINK) &&
                  a->times > 1 && works && moe_plan_gain(p, a->decode_tokens_per_second) < -0.005;
    }
    if (less && p->memory.floor && !p->strategy.resident)
        moe_say(pen, 2, "-: less than the smallest that works, %s.",
                moe_format_about_bytes((double)p->memory.floor, room));
    if (too_many)
        moe_say(pen, 2, "-: there is no room to compute this many prompt tokens at a time.");
    if (slower && p->pace.loads.late > 0)
        moe_say(pen, 2,
                "What is faster may come out slower here: a token then waits at other times, and "
                "every wait ends %s late, as other programs ran while the machine was measured.",
                moe_format_about_seconds(p->pace.loads.late, room));
    if (same.size && !same.failed)
        moe_say(pen, 2, "No difference: %s.", (const char *)same.data);
    pen->out->failed |= same.failed;
    moe_buf_release(&same);
    explain_coarser(p, pen->screen, &coarser);
    put_text(pen, NULL, 2, &coarser);
}

/* ---- Layers ---- */

bool moe_explain_layers(const struct moe_plan *p, uint32_t most, struct moe_table *t)
{
    const struct moe_plan_span all = moe_plan_span(p, 0, p->n_layers);
    const char *heads[MOE_TABLE_COLUMNS] = {"layer", "in memory", "waits"};
    uint32_t step = (p->n_layers + most - 1) / most, n = 3;
    const uint32_t guessed = all.accuracy >= 0 ? n++ : 0, slots = all.own_slots ? n++ : 0,
                   filled = all.filled ? n++ : 0;
    if (p->n_pools == 0)
        return false;
    heads[guessed ? guessed : MOE_TABLE_COLUMNS - 1] = "guessed";
    heads[slots ? slots : MOE_TABLE_COLUMNS - 1] = "slots";
    heads[filled ? filled : MOE_TABLE_COLUMNS - 1] = "at the start";
    moe_table_begin(t, n, heads);
    for (uint32_t at = 0; at < p->n_layers; at += step) {
        const uint32_t end = at + step < p->n_layers ? at + step : p->n_layers;
        const struct moe_plan_span l = moe_plan_span(p, at, end - at);
        char room[6][32];
        const char *cells[MOE_TABLE_COLUMNS] = {
            moe_format_layers(at, end - at, room[0]), moe_format_about_share(l.hit_rate, room[1]),
            l.stall_seconds > 0 ? moe_format_about_seconds(l.stall_seconds, room[2]) : "-"};
        snprintf(room[4], sizeof room[4], "%" PRIu64, l.slots);
        snprintf(room[5], sizeof room[5], "%" PRIu64, l.filled);
        if (guessed)
            cells[guessed] = l.accuracy >= 0 ? moe_format_about_share(l.accuracy, room[3]) : "-";
        if (slots)
            cells[slots] = room[4];
        if (filled)
            cells[filled] = room[5];
        moe_table_row(t, l.hit_rate, cells);
    }
    return true;
}

static void put_layers(const struct moe_plan *p, const struct moe_pen *pen)
{
    static const double HARDER = 0.05; /* to guess, as a share of the experts */
    struct moe_table t;
    if (!moe_explain_layers(p, LAYER_LINES, &t))
        return;
    moe_buf_text(pen->out, "\nLayers with experts\n");
    moe_draw_table(pen->out, pen->screen, &t);
    moe_say(
        pen, 2,
        "In memory: of the experts that its tokens use. Waits: for the others, for each token.%s%s",
        p->expected.accuracy >= 0 ? " Guessed: before its router has chosen." : "",
        p->n_contents ? " At the start: loaded before the first token." : "");
    const uint32_t n = p->boundary_accuracy;
    if (n > 0 && n <= p->n_layers / 2 &&
        moe_plan_span(p, n, p->n_layers - n).accuracy - moe_plan_span(p, 0, n).accuracy >= HARDER)
        moe_say(pen, 2,
                p->boundary_accuracy == 1 ? "What the first layer will use is hard to guess."
                                          : "What the first %" PRIu32
                                            " layers will use is hard to guess.",
                p->boundary_accuracy);
}

/* ---- Where memory and time go ---- */

static void put_memory(const struct moe_plan *p, const struct moe_pen *pen)
{
    const struct moe_plan_memory *m = &p->memory;
    const struct moe_plan_slots slots = moe_plan_slots(p);
    struct moe_explained_part parts[MOE_EXPLAINED_PARTS];
    uint32_t n = moe_explain_memory(p, m, parts);
    char room[3][32];
    if (n == 0)
        return;
    moe_buf_text(pen->out,
                 p->host.total ? "\nWhere the GPU's memory goes\n" : "\nWhere the memory goes\n");
    put_parts(pen, parts, n, moe_format_about_bytes);
    moe_say(pen, 2,
            "Experts are blocks of weights: each of %" PRIu32 " layers has %" PRIu32
            ", a token uses %" PRIu32 " of them.",
            p->n_layers, p->n_experts, p->top_k);
    if (p->n_repeated)
        moe_say(pen, 2,
                "%" PRIu32 " of these layers are earlier ones again, with the same experts.",
                p->n_repeated);
    if (p->n_pools)
        moe_say(pen, 2,
                "%" PRIu64 " of all %" PRIu64
                " experts (%s of %s) have room at a time, %s times what a token uses.",
                slots.n_cache, slots.n_experts,
                moe_format_about_bytes((double)slots.cache_bytes, room[0]),
                moe_format_about_bytes((double)m->all, room[1]),
                moe_format_about(slots.tokens, room[2]));
    if (p->n_pools && (double)m->experts > (double)slots.cache_bytes)
        moe_say(pen, 2, "Another %s take in experts that are being read or computed.",
                moe_format_about_bytes((double)m->experts - (double)slots.cache_bytes, room[0]));
    if (m->floor && !p->strategy.resident)
        moe_say(pen, 2, "The smallest budget that works is %s.",
                moe_format_about_bytes((double)m->floor, room[0]));
    if (p->host.total) {
        moe_buf_text(pen->out, "\nWhere main memory goes\n");
        put_parts(pen, parts, moe_explain_memory(p, &p->host, parts), moe_format_about_bytes);
    }
}

/* What the processors do meanwhile; nothing is said of what takes no time. */
static void put_components(const struct moe_plan *p, double total, const struct moe_pen *pen)
{
    const struct moe_plan_expected *e = &p->expected;
    const struct {
        const char *what;
        double seconds;
    } parts[] = {
        {p->pace.loads.interruptions > 1 ? "computes, interrupted by other programs" : "computes",
         e->compute_seconds},
        {"asks for experts and takes them in", e->handling_seconds},
        {moe_plan_over_bus(p) ? "waits for the bus" : "waits for the disk", e->stall_seconds},
        {"waits for the host", e->host_seconds}};
    struct moe_buf text = {0};
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char room[32];
        if (!(parts[i].seconds >= 0.0005 * total))
            continue;
        moe_buf_printf(&text, "%s %s: %s", n++ ? ";" : "Meanwhile the processor", parts[i].what,
                       moe_format_about_seconds(parts[i].seconds, room));
    }
    moe_buf_text(&text, ".");
    if (n > 1)
        put_text(pen, NULL, 2, &text);
    moe_buf_release(&text);
}

static void put_reading(const struct moe_plan *p, const struct moe_pen *pen)
{
    const struct moe_plan_expected *e = &p->expected;
    const char *link = moe_plan_over_bus(p) ? "bus" : "disk";
    const bool beside = p->pace.loads.piece > 0 && !(p->pace.storage_rate > 0); /* is said below */
    char room[5][32];
    if (e->bytes_per_token > 0)
        moe_say(pen, 2, "A token reads %s; the %s (%s%s%s) is busy %s of the time.",
                moe_format_about_bytes(e->bytes_per_token, room[0]), link,
                moe_format_rate(p->pace.load_rate, room[1]), beside ? ", beside " : "",
                beside ? strcat(moe_format_about_seconds(p->pace.loads.piece, room[3]), " a read")
                       : "",
                moe_format_about_share(fmin(1, e->link_seconds * e->decode_tokens_per_second),
                                       room[2]));
    if (e->hit_rate >= 0 && e->optimal_hit_rate >= 0)
        moe_say(pen, 2,
                "%s of the experts are in memory when they are needed; %s would be if the cache "
                "knew the text but read nothing ahead.",
                moe_format_about_share(e->hit_rate, room[0]),
                moe_format_about_share(e->optimal_hit_rate, room[1]));
    if (e->accuracy >= 0)
        moe_say(pen, 2, "%s of a layer's experts are guessed before its router has chosen.",
                moe_format_about_share(e->accuracy, room[0]));
    if (p->layer_seconds > 0 && p->load_seconds > 0)
        moe_say(pen, 2, "A layer computes for %s, reading an expert takes %s.",
                moe_format_about_seconds(p->layer_seconds, room[0]),
                moe_format_about_seconds(p->load_seconds, room[1]));
    if (p->pace.storage_rate > 0)
        moe_say(pen, 2,
                "The bus goes from main memory to the GPU, %s for each piece beside its bytes; "
                "what is not in main memory comes from the disk first (%s). Launching a layer's "
                "experts takes %s.",
                moe_format_about_seconds(p->pace.loads.piece, room[0]),
                moe_format_rate(p->pace.storage_rate, room[1]),
                moe_format_about_seconds(p->pace.joint, room[2]));
}

static void put_time(const struct moe_plan *p, const struct moe_pen *pen)
{
    const struct moe_plan_bounds b = moe_plan_bounds(p);
    const double least = b.seconds[MOE_BOUND_COMPUTATION] + b.seconds[MOE_BOUND_LINK];
    struct moe_explained_part parts[MOE_EXPLAINED_PARTS];
    char room[32];
    if (b.total <= 0)
        return;
    moe_buf_printf(pen->out, "\nWhere a token's time goes, %s\n",
                   moe_format_about_seconds(b.total, room));
    put_parts(pen, parts, moe_explain_time(p, parts), moe_format_about_seconds);
    if (p->n_pools && least > 0 && b.seconds[MOE_BOUND_PREDICTION] >= 0.005 * b.total)
        moe_say(pen, 2, "Upper bound for this memory, not reachable: about %s tokens/s.",
                moe_format_about(1 / least, room));
    put_components(p, b.total, pen);
    if (p->n_pools)
        put_reading(p, pen);
}

/* ---- What it rests on ---- */

/* By how much it is taken not to hold, and what the speed would be then. */
static void put_doubt(const struct moe_plan *plan, enum moe_assumption what, struct moe_buf *text)
{
    const struct moe_plan_doubt *d = moe_plan_doubt_of(plan, what);
    char off[80], speed[32];
    if (!d || d->decode_tokens_per_second < 0)
        return;
    double percent = 100 * d->by;
    switch (what) {
    case MOE_ASSUME_BANDWIDTH:
        snprintf(off, sizeof off, "If computing takes %.0f%% longer", percent);
        break;
    case MOE_ASSUME_NOMINAL:
        snprintf(off, sizeof off, "If loading is %.0f%% slower", percent);
        break;
    case MOE_ASSUME_QUIET:
        snprintf(off, sizeof off, "If everything takes %.0f%% longer", percent);
        break;
    default:
        snprintf(off, sizeof off, "If %.2g points fewer are in memory", percent);
        break;
    }
    moe_buf_printf(text, " %s: about %s tokens/s, %+.0f%%.", off,
                   moe_format_about(d->decode_tokens_per_second, speed),
                   100 * moe_plan_gain(plan, d->decode_tokens_per_second));
}

void moe_explain_assumption(const struct moe_plan *plan, enum moe_assumption what,
                            struct moe_screen screen, struct moe_buf *text)
{
    static const char *const texts[MOE_N_ASSUMPTIONS] = {
        [MOE_ASSUME_ROUTING] = "Which experts a text uses was drawn at random, in the bundled "
                               "model's manner: a trace of your own text (moe-profile --text "
                               "--trace) replaces it.",
        [MOE_ASSUME_BANDWIDTH] = "Times are computed from memory bandwidth only: measured ones "
                                 "(moe-profile --device PACK) replace them.",
        [MOE_ASSUME_NOMINAL] = "The disk or bus is as fast as stated, not as measured; few are "
                               "(moe-profile --device measures).",
        [MOE_ASSUME_FIGURES] = "Which experts a text uses was drawn at random, in the manner that "
                               "statistics say: a trace (moe-profile --text --trace) replaces it.",
        [MOE_ASSUME_QUIET] = "The machine is not busy. It was while it was measured: runs of the "
                             "same measurement differed.",
        [MOE_ASSUME_NO_STATISTICS] =
            "There were no statistics: strategies that need them were not tried.",
    };
    const struct moe_plan_evidence *e = &plan->evidence;
    const double points = 100 * moe_plan_hit_rate_error(plan);
    if (texts[what])
        moe_buf_text(text, texts[what]);
    else if (what == MOE_ASSUME_FEW_TOKENS)
        moe_buf_printf(text,
                       "The trace has few tokens: the share of experts in memory is known to %s "
                       "%.2g points.",
                       moe_draw_plus_minus(screen), points);
    else
        moe_buf_printf(text,
                       "Other texts use the experts as those of the trace do: %" PRIu64
                       " text%s, %" PRIu64 " tokens, of them %" PRIu64 " in prompts.",
                       e->trace_sequences, e->trace_sequences == 1 ? "" : "s", e->trace_tokens,
                       e->trace_prompt_tokens);
    put_doubt(plan, what, text);
}

static void put_assumptions(const struct moe_plan *p, uint32_t most, const struct moe_pen *pen)
{
    enum moe_assumption what[MOE_N_ASSUMPTIONS];
    uint32_t n = moe_plan_assumptions(p, what);
    moe_buf_text(pen->out, most == 1 ? "\nWhat it assumes, above all\n"
                                     : "\nWhat it assumes, the weakest first\n");
    for (uint32_t i = 0; i < n && i < most; i++) {
        char number[16];
        struct moe_buf text = {0};
        snprintf(number, sizeof number, "  %" PRIu32 ".", i + 1);
        moe_explain_assumption(p, what[i], pen->screen, &text);
        put_text(pen, most == 1 ? NULL : number, most == 1 ? 2 : 5, &text);
    }
}

/* ---- What is planned ---- */

static void put_head(const struct moe_plan *p, const struct moe_pen *pen)
{
    struct moe_buf answer = {0}, text = {0};
    const char *name = p->pack[0] ? p->pack : "a model", *device = p->evidence.device;
    char room[2][32], memory[96];
    moe_explain_answer(p, &answer);
    put_text(pen, NULL, 0, &answer);
    moe_format_about_bytes(moe_plan_budget(p), room[0]);
    snprintf(memory, sizeof memory, "%s%s", room[0], p->memory.total ? "" : " for experts");
    if (p->host.total)
        snprintf(memory, sizeof memory, "%s of a GPU and %s of main memory", room[0],
                 moe_format_about_bytes((double)p->host.total, room[1]));
    moe_buf_text(pen->out, "\n");
    moe_say(pen, 0, "%.*s in %s%s%.*s: simulated", shown(name, NAME), name, memory,
            device[0] ? ", on " : "", shown(device, NAME), device);
    if (!(p->expected.decode_tokens_per_second > 0))
        return;
    moe_explain_speed(p, false, &text);
    put_text(pen, "  an answer", 13, &text);
    moe_explain_first(p, &text);
    put_text(pen, "  the first", 13, &text);
    if (p->expected.prefill_tokens_per_second > 0)
        moe_explain_speed(p, true, &text);
    put_text(pen, "  a prompt", 13, &text);
}

/* What a bit map says about the parts that may change results, in one paragraph. */
static void put_losses(const struct moe_plan *p, const struct moe_pen *pen)
{
    const struct moe_plan_evidence *e = &p->evidence;
    struct moe_buf text = {0};
    for (uint32_t i = 0; i < p->n_losses; i++) {
        const struct moe_plan_loss *l = &p->losses[i];
        char room[32];
        bool on_miss = strcmp(l->part, moe_strategy_part_at(MOE_PART_ON_MISS)->name) == 0;
        moe_buf_printf(&text,
                       "%s through --%.*s: %s%+.3g%% (%s) nats/token, %.3g%% other top "
                       "tokens",
                       i ? ";" : "Inexact: what the model says may change", shown(l->part, NAME),
                       l->part, on_miss && e->tolerance <= 0 ? "at worst " : "", l->nll_percent,
                       format_error(l->nll_error, pen->screen, room), l->top1_points);
    }
    int first = (int)strcspn(e->calibration_texts, ","); /* of several texts the first is named */
    first = first < SOURCE_NAME ? first : shown(e->calibration_texts, SOURCE_NAME);
    if (p->n_losses && e->tolerance > 0)
        moe_buf_printf(&text, ", where --tolerance allowed %.3g%%", e->tolerance);
    if (p->n_losses)
        moe_buf_printf(&text,
                       ". Measured on %" PRIu64 " tokens of %.*s%s. Nats/token: how much a text "
                       "surprises the model.",
                       p->losses[0].tokens, first, e->calibration_texts,
                       e->calibration_texts[first] ? " and others" : "");
    put_text(pen, NULL, 2, &text);
}

static void put_strategy(const struct moe_plan *p, const struct moe_pen *pen)
{
    const struct moe_terms terms = moe_plan_terms(p);
    struct moe_buf text = {0};
    char brief[MOE_STRATEGY_BRIEF];
    moe_buf_text(pen->out, "\nHow it works\n");
    const char *unit = strcmp(p->evidence.map_unit, "points") == 0 ? " points" : "% of the nats";
    if (p->evidence.map_tolerance > 0)
        moe_buf_printf(
            &text,
            "Experts have the precisions of the pack's map for a tolerance of %g%s, which lost "
            "%+.2f%s on its texts; in other memory or with another tolerance they may have "
            "others. ",
            p->evidence.map_tolerance, unit, p->evidence.map_loss, unit);
    else if (p->high[0])
        moe_buf_printf(&text, "Experts are stored at %s%s%s%s. ", p->high, moe_bits_unit(p->high),
                       p->low[0] ? ", some are taken at " : "", p->low);
    moe_explain_strategy(&terms, moe_plan_slots(p).n_cache, p->n_experts, &text);
    put_text(pen, NULL, 2, &text);
    moe_strategy_brief(&p->strategy, brief);
    moe_buf_text(pen->out, "  As moe-run --strategy spells it:\n");
    moe_draw_spelling(pen->out, pen->screen, NULL, 4, brief, SIZE_MAX);
    if (p->evidence.learnt[0])
        moe_say(pen, 2, "Its cache begins with what it has learnt: moe-run --learn %s",
                p->evidence.learnt);
}

static void put_tried(const struct moe_plan *p, const struct moe_pen *pen)
{
    char speed[32];
    if (p->n_tried < 2)
        return;
    moe_buf_printf(pen->out,
                   "\nThe fastest of %" PRIu32 " strategies tried, on all of the trace or a part "
                   "(tokens/s)\n",
                   p->n_tried);
    for (uint32_t i = 0; i < p->n_tried && i < TRIED_LINES; i++) {
        const struct moe_plan_tried *t = &p->tried[i];
        char first[48];
        snprintf(first, sizeof first, "  %6s  ",
                 moe_format_about(t->decode_tokens_per_second, speed));
        moe_draw_spelling(pen->out, pen->screen, first, 10, t->strategy, TRIED_NAME);
    }
}

/* ---- All of it ---- */

void moe_explain_plan(const struct moe_plan *plan, struct moe_screen screen, struct moe_buf *out)
{
    const struct moe_pen pen = {out, screen};
    put_head(plan, &pen);
    put_losses(plan, &pen);
    put_memory(plan, &pen);
    put_time(plan, &pen);
    put_steps(plan, &pen);
    put_alternatives(plan, &pen);
    put_layers(plan, &pen);
    put_assumptions(plan, MOE_N_ASSUMPTIONS, &pen);
    put_tried(plan, &pen);
    put_strategy(plan, &pen);
}

void moe_explain_plan_briefly(const struct moe_plan *plan, struct moe_screen screen,
                              struct moe_buf *out)
{
    const struct moe_pen pen = {out, screen};
    put_head(plan, &pen);
    put_losses(plan, &pen);
    put_memory(plan, &pen);
    put_time(plan, &pen);
    put_assumptions(plan, 1, &pen);
    put_strategy(plan, &pen);
}

/* A plan's explanation for scripts. */

static void put_number(struct moe_emit *e, const char *key, double x)
{
    moe_emit_rounded(e, key, 17, x);
}

static void put_next(struct moe_emit *e, const char *key, const struct moe_plan_step *step,
                     double speed)
{
    if (!step) {
        moe_emit_null(e, key);
        return;
    }
    moe_emit_open_map(e, key);
    put_number(e, "amount", step->amount);
    put_number(e, "decode_tokens_per_s", step->decode_tokens_per_second);
    put_number(e, "hit_rate", step->hit_rate);
    put_number(e, "gain", speed > 0 ? step->decode_tokens_per_second / speed - 1 : 0);
    moe_emit_close(e);
}

/* The plan itself, as its file has it in JSON. */
static int put_plan(struct moe_emit *e, const struct moe_plan *plan, struct moe_err *err)
{
    struct moe_buf json = {0};
    int status = moe_plan_write(plan, true, &json, err);
    if (status == MOE_OK)
        moe_emit_json(e, "plan", json.data, json.size - 1); /* without its newline */
    moe_buf_release(&json);
    return status;
}

static void put_bounds(struct moe_emit *e, const struct moe_plan *plan)
{
    static const char *const seconds[MOE_N_BOUNDS] = {"computation_seconds", "link_seconds",
                                                      "prediction_seconds"};
    static const char *const names[MOE_N_BOUNDS] = {"computation", "link", "prediction"};
    struct moe_plan_bounds b = moe_plan_bounds(plan);
    moe_emit_open_map(e, "bounds");
    put_number(e, "total_seconds", b.total);
    for (enum moe_bound i = 0; i < MOE_N_BOUNDS; i++)
        put_number(e, seconds[i], b.seconds[i]);
    moe_emit_text(e, "largest", names[b.largest]);
    moe_emit_close(e);
}

static void put_exactness(struct moe_emit *e, const struct moe_plan *plan)
{
    const struct moe_terms terms = moe_plan_terms(plan);
    const struct moe_exactness x = moe_exactness_of(&terms);
    moe_emit_open_map(e, "exact");
    moe_emit_bool(e, "as_asked", x.exact);
    moe_emit_text(e, "why", x.why);
    moe_emit_close(e);
}

static void put_slots(struct moe_emit *e, const struct moe_plan *plan)
{
    struct moe_plan_slots slots = moe_plan_slots(plan);
    moe_emit_open_map(e, "slots");
    moe_emit_u64(e, "cache", slots.n_cache);
    moe_emit_u64(e, "working", slots.n_working);
    moe_emit_u64(e, "cache_bytes", slots.cache_bytes);
    put_number(e, "share", slots.share);
    put_number(e, "tokens", slots.tokens);
    moe_emit_close(e);
}

static void put_assumptions_json(struct moe_emit *e, const struct moe_plan *plan)
{
    enum moe_assumption what[MOE_N_ASSUMPTIONS];
    uint32_t n = moe_plan_assumptions(plan, what);
    moe_emit_open_list(e, "assumptions");
    for (uint32_t i = 0; i < n; i++)
        moe_emit_text(e, NULL, moe_assumption_name(what[i]));
    moe_emit_close(e);
}

static void put_advice(struct moe_emit *e, const struct moe_plan *plan)
{
    struct moe_advice advice[MOE_PLAN_MAX_ALTERNATIVES];
    uint32_t n = moe_plan_advice(plan, advice);
    moe_emit_open_list(e, "advice");
    for (uint32_t i = 0; i < n; i++) {
        moe_emit_open_map(e, NULL);
        moe_emit_text(e, "what", moe_alternative_name(advice[i].what));
        put_number(e, "amount", advice[i].amount);
        put_number(e, "times", advice[i].times);
        if (advice[i].precision[0])
            moe_emit_text(e, "precision", advice[i].precision);
        put_number(e, "gain", advice[i].gain);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

int moe_explain_plan_json(const struct moe_plan *plan, struct moe_buf *out, struct moe_err *err)
{
    double speed = plan->expected.decode_tokens_per_second;
    struct moe_buf answer = {0};
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_LINE);
    MOE_TRY(put_plan(&e, plan, err));
    moe_explain_answer(plan, &answer);
    moe_emit_text(&e, "answer", answer.failed ? "" : (const char *)answer.data);
    out->failed |= answer.failed;
    moe_buf_release(&answer);
    put_exactness(&e, plan);
    put_bounds(&e, plan);
    put_slots(&e, plan);
    put_number(&e, "hit_rate_error", moe_plan_hit_rate_error(plan));
    put_next(&e, "next_memory",
             moe_plan_next_step(plan->memory_steps, plan->n_memory_steps, moe_plan_budget(plan)),
             speed);
    put_next(&e, "next_rate",
             moe_plan_next_step(plan->rate_steps, plan->n_rate_steps, plan->pace.load_rate), speed);
    put_advice(&e, plan);
    put_assumptions_json(&e, plan);
    return moe_emit_end(&e, err);
}

/* ---- The strategy ---- */

static void say_shallow(const struct moe_strategy *s, uint64_t n_slots, uint32_t n_experts,
                        struct moe_buf *out)
{
    char first[48] = "layer, which is";
    if (s->boundary > 1)
        snprintf(first, sizeof first, "%" PRIu32 " layers, which are", s->boundary);
    if (s->boundary == 0)
        moe_buf_text(out, ", as many for each layer: the first are no harder to guess");
    else if (n_slots < (uint64_t)s->boundary * n_experts)
        moe_buf_printf(out,
                       ", as far as they go for the first %s the hardest to guess, none for "
                       "the rest",
                       first);
    else
        moe_buf_printf(out,
                       ", enough for all experts of the first %s the hardest to guess, the "
                       "rest in equal parts",
                       first);
    if (moe_strategy_boundary_from(s))
        moe_buf_printf(out, " (%s)", moe_strategy_boundary_from(s));
}

static void say_cache(const struct moe_strategy *s, uint64_t n_slots, uint32_t n_experts,
                      struct moe_buf *out)
{
    if (!s->cache || n_slots == 0) {
        moe_buf_text(out, "No expert is kept once its layer is computed.");
        return;
    }
    moe_buf_printf(out, "%" PRIu64 " slots keep experts", n_slots);
    switch (s->alloc) {
    case MOE_ALLOC_GLOBAL:
        moe_buf_text(out, ", shared by all layers: those that use theirs more hold more");
        break;
    case MOE_ALLOC_PER_LAYER:
        moe_buf_text(out, ", as many for each layer");
        break;
    case MOE_ALLOC_SHALLOW:
        say_shallow(s, n_slots, n_experts, out);
        break;
    case MOE_ALLOC_FREQUENCY:
        moe_buf_text(out,
                     ", in equal parts, and what remains for the layers with the busiest experts");
        break;
    }
    moe_buf_printf(out, ". When they are full: %s.", s->cache->describe);
}

static void say_init(const struct moe_strategy *s, struct moe_buf *out)
{
    if (!s->cache || s->init == MOE_INIT_EMPTY)
        return;
    static const char *const words[] = {
        [MOE_INIT_FREQUENCY] =
            " At the start they hold the experts that the statistics saw most often.",
        [MOE_INIT_LAYERWISE] = " At the start they are filled layer by layer.",
        [MOE_INIT_ENCODER] =
            " At the start they hold an encoder's experts, layer by layer, and then "
            "those that the statistics saw most often.",
    };
    moe_buf_text(out, words[s->init]);
}

static void say_source(const struct moe_strategy *s, struct moe_buf *out)
{
    static const char *const words[] = {
        [MOE_PREDICT_BY_NOTHING] = "",
        [MOE_PREDICT_BY_PREVIOUS] = "the experts of the token before are expected again",
        [MOE_PREDICT_BY_TOKEN] = "a token's experts are expected to be those of its last use, and "
                                 "a new token's those of the token before",
        [MOE_PREDICT_BY_PATH] = "the next layer's experts are predicted from this layer's, by how "
                                "often they followed each other in the statistics",
        [MOE_PREDICT_BY_KEYS] = "the next layer's experts are predicted from the best ones of the "
                                "last two layers, by the statistics",
        [MOE_PREDICT_BY_REQUESTS] = "later layers' experts are predicted to be those of the "
                                    "earlier request that is most like this one",
        [MOE_PREDICT_BY_GATE] = "the next layer's router runs early, on this layer's input",
        [MOE_PREDICT_BY_RESIDUAL] = "the next layer's router runs early, on the residual stream as "
                                    "it is now",
        [MOE_PREDICT_BY_ATTENTION] = "a layer's router runs before its attention, on the "
                                     "attention's input",
        [MOE_PREDICT_BY_ATTENTION_BEFORE] = "the next layer's router runs early, on this layer's "
                                            "attention input",
    };
    moe_buf_text(out, words[s->predict]);
    if (s->first_by_token)
        moe_buf_text(out, ", and the first layer's experts are expected to be those of the token's "
                          "last use");
    if (s->depth > 1)
        moe_buf_printf(out, ", up to %" PRIu32 " layers ahead", s->depth);
}

/* Says which of the predicted experts are read ahead, by the limits that the strategy has. */
static void say_limits(const struct moe_prefetch_limits *l, struct moe_buf *out)
{
    moe_buf_text(out, "; those that are absent are read ahead");
    if (l->percentile > 0)
        moe_buf_printf(out, ", of all experts' scores only those above %.3g%% of them",
                       l->percentile);
    if (l->count)
        moe_buf_printf(out, ", %" PRIu32 " a layer at most", l->count);
    if (l->slack)
        moe_buf_text(out, ", as many as can be read while a layer computes");
    if (l->slack && l->slack_least)
        moe_buf_printf(out, " but %" PRIu32 " in any case", l->slack_least);
    if (l->until_router)
        moe_buf_text(out, ", one after the other until the router has chosen");
    if (l->measured)
        moe_buf_text(out, ", as long as that is measured to gain");
}

static void say_prefetch(const struct moe_strategy *s, struct moe_buf *out)
{
    if (s->stream) {
        moe_buf_text(out, " Every layer is loaded whole, one after the other, whatever its router "
                          "chooses; the next one comes while a layer computes.");
        return;
    }
    if (s->predict == MOE_PREDICT_BY_NOTHING) {
        moe_buf_text(out, " Nothing is read ahead.");
        return;
    }
    moe_buf_text(out, " While a layer computes, ");
    say_source(s, out);
    if (moe_strategy_has(s, MOE_PART_PREFETCH))
        say_limits(&s->prefetch, out);
    moe_buf_text(out, ".");
    if (s->precalculate)
        moe_buf_text(out,
                     " Predicted experts that are absent are computed early on the host, from the "
                     "input of the layer before.");
}

static void say_miss(const struct moe_strategy *s, struct moe_buf *out)
{
    static const char *const precisions[][2] = {
        [MOE_MISS_BEST] = {" A layer waits for its absent experts.", "."},
        [MOE_MISS_BY_SCORE] = {" An absent expert that matters little is loaded at the low "
                               "precision.",
                               ", at the low precision if it matters little."},
        [MOE_MISS_EMERGENCY] = {" An absent expert is loaded at the low precision.",
                                ", at the low precision."},
    };
    bool host = s->miss_place == MOE_MISS_COMPUTE_HOST;
    if (host)
        moe_buf_text(out, s->host_falls_back
                              ? " An absent expert is computed on the host, or, without a device "
                                "beside it, loaded and dropped"
                              : " An absent expert is computed on the host, where it lies");
    moe_buf_text(out, precisions[s->miss_precision][host]);
    if (s->miss_precision == MOE_MISS_BY_SCORE)
        moe_buf_printf(
            out,
            " It matters little where those ranked higher have more than %.3g%% of the weight.",
            100 * s->high_up_to);
    if (s->skip_below > 0)
        moe_buf_printf(out, " Absent ones in the last %.3g%% of the weight are left out.",
                       100 * s->skip_below);
    if (moe_strategy_thresholds_from(s))
        moe_buf_printf(out, " These thresholds: %s.", moe_strategy_thresholds_from(s));
    if (s->gate_below > 0)
        moe_buf_printf(out,
                       " A decoded token does without the experts in the last %.3g%% of its "
                       "weight.",
                       100 * s->gate_below);
    if (s->prefer > 0)
        moe_buf_printf(out,
                       " A decoded token's routers choose by scores that are %.3g spreads higher "
                       "for experts in the cache; their strongest %u stay.",
                       s->prefer, s->prefer_keeps);
}

static void say_prefill(const struct moe_strategy *s, struct moe_buf *out)
{
    if (s->prefill == MOE_PREFILL_POPULARITY)
        moe_buf_text(out, " In a prompt the experts that most tokens use come first.");
    if (s->prefill == MOE_PREFILL_HYBRID)
        moe_buf_printf(out,
                       " In a prompt the experts that most tokens use come first, the last "
                       "%.3g%% of them at the low precision.",
                       100 * s->low_share);
}

void moe_explain_exactness(const struct moe_exactness *x, struct moe_buf *out)
{
    if (x->exact)
        moe_buf_text(out, "None of this changes what the model says.");
    else
        moe_buf_printf(out, "This may change what the model says: %s.", x->why);
}

void moe_explain_strategy(const struct moe_terms *terms, uint64_t n_slots, uint32_t n_experts,
                          struct moe_buf *out)
{
    const struct moe_strategy *s = terms->strategy;
    const struct moe_exactness x = moe_exactness_of(terms);
    if (s->resident) {
        moe_buf_text(out, "All experts are in memory from the start: nothing is loaded later.");
        return;
    }
    say_cache(s, n_slots, n_experts, out);
    say_init(s, out);
    say_prefetch(s, out);
    say_miss(s, out);
    say_prefill(s, out);
    moe_buf_text(out, " ");
    moe_explain_exactness(&x, out);
}
