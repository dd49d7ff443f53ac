/* A plan's speed as text: what limits it, layer by layer, and what more memory would give. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "show/draw.h"
#include "show/explain_plan.h"

enum {
    CAUSE_BAR = 16,
    LAYER_LINES = 12,
    BEFORE_BAR = 56, /* columns of a layer's line */
    STEP_LINES = 5,
    TRIED_LINES = 3,
    TRIED_NAME = 118, /* two lines */
};

/* ---- What limits the speed ---- */

static void put_bound(const struct explanation *x, const char *name, double seconds, double total)
{
    double share = seconds / total;
    bool wide = x->screen.columns >= MOE_USUAL_COLUMNS; /* else without a bar */
    moe_buf_printf(x->out, wide ? "  %-40s %9.3f ms %5.1f%% " : "  %-39s%8.3f ms %5.1f%%", name,
                   1e3 * seconds, 100 * share);
    if (wide)
        moe_draw_bar(x->out, share, moe_draw_columns(x->screen, CAUSE_BAR, 2 * CAUSE_BAR),
                     x->screen);
    moe_buf_text(x->out, "\n");
}

static void put_verdict(const struct explanation *x, const struct moe_plan_bounds *b)
{
    static const char *const limits[MOE_N_BOUNDS] = {
        [MOE_BOUND_COMPUTATION] =
            "Computation is the largest part: with any amount of memory the speed stays below",
        [MOE_BOUND_LINK] = "The link is the largest part: with this memory, no choice of what to "
                           "keep gets above",
        [MOE_BOUND_PREDICTION] =
            "Imperfect caching and prediction are the largest part: if it were known what the text "
            "will use, this memory could give up to",
    };
    char speed[32];
    double at_least = b->seconds[MOE_BOUND_COMPUTATION];
    if (b->largest != MOE_BOUND_COMPUTATION)
        at_least += b->seconds[MOE_BOUND_LINK];
    moe_draw_paragraph(x->out, x->screen, NULL, 2, "%s %s tokens/s.", limits[b->largest],
                       moe_format_speed(at_least > 0 ? 1 / at_least : 0, speed));
}

static void put_loads(const struct explanation *x)
{
    const struct moe_plan *p = x->plan;
    const struct moe_plan_expected *e = &p->expected;
    char bytes[32], rate[32], room[3][32];
    if (e->bytes_per_token >= 0)
        moe_draw_paragraph(
            x->out, x->screen, NULL, 2,
            "A token loads %s; the link (%s) is busy %s of the time. Found in memory: %s; by a "
            "cache "
            "that knows the future but loads only on demand: %s.",
            moe_format_bytes_of(e->bytes_per_token, bytes),
            moe_format_rate(p->pace.load_rate, rate),
            moe_format_percent(e->link_seconds * e->decode_tokens_per_second, room[0]),
            moe_format_percent(e->hit_rate, room[1]),
            moe_format_percent(e->optimal_hit_rate, room[2]));
    if (p->pace.storage_rate > 0)
        moe_draw_paragraph(
            x->out, x->screen, NULL, 2,
            "The link goes from main memory to the GPU, %.1f us for each piece beside "
            "its bytes; what is not in main memory comes from storage first (%s). "
            "Launching a layer's experts takes %.1f us.",
            1e6 * p->pace.loads.piece, moe_format_rate(p->pace.storage_rate, rate),
            1e6 * p->pace.joint);
    char loads[16] = "no";
    if (p->slack_loads)
        snprintf(loads, sizeof loads, "%" PRIu32, p->slack_loads);
    moe_draw_paragraph(x->out, x->screen, NULL, 2,
                       "A layer takes %.3f ms, loading an expert %.3f ms: %s load%s in its time.",
                       1e3 * p->layer_seconds, 1e3 * p->load_seconds, loads,
                       p->slack_loads < 2 ? " fits" : "s fit");
    if (e->accuracy >= 0)
        moe_draw_paragraph(x->out, x->screen, NULL, 2, "Of a layer's experts %.1f%% are predicted.",
                           100 * e->accuracy);
}

void explain_bounds(const struct explanation *x)
{
    const struct moe_plan_expected *e = &x->plan->expected;
    struct moe_plan_bounds b = moe_plan_bounds(x->plan);
    if (b.total <= 0)
        return;
    moe_buf_text(x->out, "\nWhat limits the speed (the link: the disk or bus that experts are "
                         "loaded over)\n");
    moe_draw_paragraph(x->out, x->screen, NULL, 2,
                       "A token takes %.3f ms: %.3f computing, %.3f handling loads, %.3f waiting "
                       "for experts, %.3f waiting for the host. The same time by cause:",
                       1e3 * b.total, 1e3 * fmax(0, e->compute_seconds),
                       1e3 * fmax(0, e->handling_seconds), 1e3 * fmax(0, e->stall_seconds),
                       1e3 * fmax(0, e->host_seconds));
    put_bound(x, "computation, with all experts in memory", b.seconds[MOE_BOUND_COMPUTATION],
              b.total);
    put_bound(x, "the link, even with perfect caching", b.seconds[MOE_BOUND_LINK], b.total);
    put_bound(x, "imperfect caching and prediction", b.seconds[MOE_BOUND_PREDICTION], b.total);
    put_verdict(x, &b);
    explain_advice(x);
    if (x->plan->n_pools)
        put_loads(x);
}

/* ---- Layers ---- */

static void put_span(const struct explanation *x, uint32_t first, uint32_t n)
{
    struct moe_plan_span l = moe_plan_span(x->plan, first, n);
    uint32_t bar = moe_draw_columns(x->screen, EXPLAIN_BAR, 2 * EXPLAIN_BAR);
    uint32_t room = x->screen.columns - BEFORE_BAR;
    char name[32], slots[16] = "shared";
    if (l.own_slots)
        snprintf(slots, sizeof slots, "%" PRIu64, l.slots);
    moe_buf_printf(x->out, "  %7s %7s %7" PRIu64, moe_format_layers(first, n, name), slots,
                   l.filled);
    moe_draw_percent(x->out, l.accuracy, 10);
    moe_buf_printf(x->out, " %8.3f ms", 1e3 * l.stall_seconds);
    moe_draw_percent(x->out, l.hit_rate, 8);
    moe_buf_text(x->out, " ");
    moe_draw_bar(x->out, l.hit_rate, bar < room ? bar : room, x->screen);
    moe_buf_text(x->out, "\n");
}

static void put_boundaries(const struct explanation *x)
{
    const struct moe_plan *p = x->plan;
    char by_accuracy[32] = "unknown", by_stall[32] = "unknown";
    if (p->boundary_accuracy != UINT32_MAX)
        snprintf(by_accuracy, sizeof by_accuracy, "%" PRIu32, p->boundary_accuracy);
    if (p->boundary_stall != UINT32_MAX)
        snprintf(by_stall, sizeof by_stall, "%" PRIu32, p->boundary_stall);
    moe_draw_paragraph(x->out, x->screen, NULL, 2,
                       "Loaded: before the first token. First layers whose experts are hard to "
                       "predict and deserve to be all in memory: %s by accuracy, %s by least "
                       "waiting.",
                       by_accuracy, by_stall);
}

void explain_layers(const struct explanation *x)
{
    const struct moe_plan *p = x->plan;
    if (p->n_pools == 0)
        return;
    uint32_t step = (p->n_layers + LAYER_LINES - 1) / LAYER_LINES;
    moe_buf_printf(x->out,
                   "\nLayers with experts\n"
                   "    layer   slots  loaded predicted       waits  found%s\n",
                   x->screen.columns >= MOE_USUAL_COLUMNS ? " in memory" : "");
    for (uint32_t l = 0; l < p->n_layers; l += step)
        put_span(x, l, l + step < p->n_layers ? step : p->n_layers - l);
    put_boundaries(x);
}

/* ---- What more would give ---- */

typedef char *(*format_amount)(double amount, char room[32]);

static char *format_memory(double amount, char room[32])
{
    return moe_format_bytes_of(amount, room);
}

static void put_step(const struct explanation *x, const struct moe_plan_step *step, bool now,
                     double most, format_amount format)
{
    char amount[32], speed[32], found[32];
    moe_buf_printf(x->out, "  %c %12s %8s tokens/s  %6s found ", now ? '>' : ' ',
                   format(step->amount, amount),
                   moe_format_speed(step->decode_tokens_per_second, speed),
                   moe_format_percent(step->hit_rate, found));
    moe_draw_bar(x->out, most > 0 ? step->decode_tokens_per_second / most : 0,
                 moe_draw_columns(x->screen, EXPLAIN_BAR, 2 * EXPLAIN_BAR), x->screen);
    moe_buf_text(x->out, "\n");
}

static bool is_now(const struct moe_plan_step *step, double now)
{
    return step->amount > 0.999 * now && step->amount < 1.001 * now;
}

/* Which of n steps line i of `lines` shows: evenly from the first to the last, but the present step
 * takes the place of the one nearest to it. */
static uint32_t pick_step(const struct moe_plan_step *steps, uint32_t n, uint32_t lines, uint32_t i,
                          double now)
{
    uint32_t at = lines < 2 ? 0 : i * (n - 1) / (lines - 1), present = 0;
    while (present < n && !is_now(&steps[present], now))
        present++;
    bool nearest = present < n;
    for (uint32_t other = 0; other < lines && nearest; other++) {
        uint32_t x = lines < 2 ? 0 : other * (n - 1) / (lines - 1);
        uint32_t distance = x > present ? x - present : present - x;
        uint32_t mine = at > present ? at - present : present - at;
        nearest = mine < distance || (mine == distance && i <= other);
    }
    return nearest ? present : at;
}

static void put_steps(const struct explanation *x, const char *title,
                      const struct moe_plan_step *steps, uint32_t n, double now,
                      format_amount format)
{
    const struct moe_plan_step *next = moe_plan_next_step(steps, n, now);
    double speed = x->plan->expected.decode_tokens_per_second, most = speed;
    uint32_t lines = n < STEP_LINES ? n : STEP_LINES;
    char room[2][32];
    if (n == 0)
        return;
    moe_buf_printf(x->out, "\n%s (now %s)\n", title, format(now, room[0]));
    for (uint32_t i = 0; i < n; i++)
        most = steps[i].decode_tokens_per_second > most ? steps[i].decode_tokens_per_second : most;
    for (uint32_t i = 0; i < lines; i++) {
        const struct moe_plan_step *step = &steps[pick_step(steps, n, lines, i, now)];
        put_step(x, step, is_now(step, now), most, format);
    }
    if (next && speed > 0)
        moe_draw_paragraph(x->out, x->screen, NULL, 2,
                           "The next step up, %s, gives %s tokens/s: %+.1f%%.",
                           format(next->amount, room[0]),
                           moe_format_speed(next->decode_tokens_per_second, room[1]),
                           100 * (next->decode_tokens_per_second / speed - 1));
}

void explain_steps(const struct explanation *x)
{
    const struct moe_plan *p = x->plan;
    put_steps(x, p->memory.total ? "More memory or less" : "More memory for experts or less",
              p->memory_steps, p->n_memory_steps,
              (double)(p->memory.total ? p->memory.total : p->memory.experts), format_memory);
    put_steps(x, "A faster link or a slower one", p->rate_steps, p->n_rate_steps, p->pace.load_rate,
              moe_format_rate);
}

void explain_tried(const struct explanation *x)
{
    const struct moe_plan *p = x->plan;
    char speed[32], found[32];
    if (p->n_tried == 0)
        return;
    moe_buf_printf(x->out,
                   "\nThe fastest of %" PRIu32
                   " strategies tried in the simulator (on part of a long trace)\n"
                   "   tokens/s   found\n",
                   p->n_tried);
    for (uint32_t i = 0; i < p->n_tried && i < TRIED_LINES; i++) {
        const struct moe_plan_tried *t = &p->tried[i];
        char first[80];
        snprintf(first, sizeof first, "  %9s  %6s  ",
                 moe_format_speed(t->decode_tokens_per_second, speed),
                 moe_format_percent(t->hit_rate, found));
        moe_draw_paragraph(x->out, x->screen, first, 21, "%.*s", TRIED_NAME, t->strategy);
    }
}
