/* A plan's explanation as text. */
#define _POSIX_C_SOURCE 200809L /* strnlen */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "sched/strategy.h"
#include "show/draw.h"
#include "show/explain.h"
#include "show/explain_parts.h"

enum {
    BAR = 24,
    LAYER_ROWS = 12,
    STEP_ROWS = 6,
    TRIED_ROWS = 3,
    TRIED_NAME = 118, /* two lines */
    NAME = 48,        /* of what files may make as long as they like */
    SOURCE_NAME = 24, /* ... in passing */
};

struct screen {
    const struct moe_plan *plan;
    bool blocks;
    struct moe_buf *out;
};

/* ---- What is planned ---- */

/* Bytes of a name that are shown, of so many at most. */
static int shown_of(const char *name, size_t most)
{
    return (int)moe_utf8_complete((const uint8_t *)name, strnlen(name, most));
}

static int shown(const char *name)
{
    return shown_of(name, NAME);
}

static void put_head(const struct screen *s)
{
    const struct moe_plan *p = s->plan;
    const struct moe_plan_expected *e = &p->expected;
    char memory[32], room[3][32];
    uint64_t bytes = p->memory.total ? p->memory.total : p->memory.experts;
    const char *name = p->pack[0] ? p->pack : "a model", *device = p->evidence.device;
    moe_draw_paragraph(s->out, NULL, 0, "Plan for %.*s in %s%s%s%.*s", shown(name), name,
                       moe_format_bytes(bytes, memory), p->memory.total ? "" : " of experts",
                       device[0] ? ", on " : "", shown(device), device);
    if (e->decode_tokens_per_second > 0)
        moe_draw_paragraph(s->out, NULL, 0,
                           "Expected: %s tokens/s of an answer, %s tokens/s of a prompt; %s of "
                           "experts found in memory",
                           moe_show_speed(e->decode_tokens_per_second, room[0]),
                           moe_show_speed(e->prefill_tokens_per_second, room[1]),
                           moe_show_percent(e->hit_rate, room[2]));
}

static void put_strategy(const struct screen *s)
{
    const struct moe_plan *p = s->plan;
    struct moe_buf text = {0};
    char brief[MOE_STRATEGY_BRIEF];
    moe_strategy_brief(&p->strategy, brief);
    moe_explain_strategy(&p->strategy, moe_explain_slots(p).n_cache, &text);
    moe_draw_paragraph(s->out, NULL, 0, "Strategy %s%s%s%s%s%s", brief,
                       p->high[0] ? "; experts at " : "", p->high, p->high[0] ? " bits" : "",
                       p->low[0] ? ", low " : "", p->low);
    moe_draw_paragraph(s->out, NULL, 2,
                       "In each of %" PRIu32 " layers there are %" PRIu32
                       " experts, blocks of weights, of which a token uses %" PRIu32 ".",
                       p->n_layers, p->n_experts, p->top_k);
    if (!text.failed)
        moe_draw_paragraph(s->out, NULL, 2, "%s", (const char *)text.data);
    moe_buf_release(&text);
}

/* What a bit map says of the parts that may change results, in one paragraph. */
static void put_losses(const struct screen *s)
{
    const struct moe_plan *p = s->plan;
    const struct moe_plan_evidence *e = &p->evidence;
    struct moe_buf text = {0};
    for (uint32_t i = 0; i < p->n_losses; i++) {
        const struct moe_plan_loss *l = &p->losses[i];
        bool on_miss = strcmp(l->part, moe_strategy_part_at(MOE_PART_ON_MISS)->name) == 0;
        moe_buf_printf(&text,
                       "%s by --%.*s: %s%+.3g%% (+-%.3g) nats/token, %.3g%% other top "
                       "tokens",
                       i ? ";" : "Results may change", shown(l->part), l->part,
                       on_miss ? "at worst " : "", l->nll_percent, l->nll_error, l->top1_points);
    }
    int first = (int)strcspn(e->calibration_texts, ","); /* of several texts the first is named */
    first = first < SOURCE_NAME ? first : shown_of(e->calibration_texts, SOURCE_NAME);
    if (p->n_losses && !text.failed)
        moe_draw_paragraph(s->out, NULL, 2, "%s. From %" PRIu64 " tokens of %.*s%s.",
                           (const char *)text.data, p->losses[0].tokens, first,
                           e->calibration_texts, e->calibration_texts[first] ? " and others" : "");
    moe_buf_release(&text);
}

/* ---- Memory ---- */

static void put_share(const struct screen *s, const char *name, uint64_t bytes, uint64_t all)
{
    char room[32];
    double share = (double)bytes / (double)all;
    moe_buf_printf(s->out, "  %-26s %12s %5.1f%%  ", name, moe_format_bytes(bytes, room),
                   100 * share);
    moe_draw_bar(s->out, share, BAR, s->blocks);
    moe_buf_text(s->out, "\n");
}

static void put_memory(const struct screen *s)
{
    const struct moe_plan_memory *m = &s->plan->memory;
    struct moe_explain_slots slots = moe_explain_slots(s->plan);
    uint64_t used = m->program + m->dense + m->kv + m->work + m->experts;
    uint64_t all = m->total > used ? m->total : used;
    char name[64], room[4][32];
    if (all == 0)
        return;
    moe_buf_text(s->out, "\nWhere the memory goes\n");
    put_share(s, "program", m->program, all);
    put_share(s, "weights outside experts", m->dense, all);
    snprintf(name, sizeof name, "context of %" PRIu32, m->context);
    put_share(s, name, m->kv, all);
    snprintf(name, sizeof name, "batches of %" PRIu32, m->batch);
    put_share(s, name, m->work, all);
    put_share(s, "experts", m->experts, all);
    if (m->total > used)
        put_share(s, "nothing", m->total - used, all);
    if (s->plan->n_pools)
        moe_draw_paragraph(
            s->out, NULL, 2,
            "%" PRIu64 " slots keep experts (%s), %" PRIu64 " pass them through (%s). That is "
            "%.1f%% of all %" PRIu64 " experts (%s), %.2f times what a token visits (%s).",
            slots.n_cache, moe_format_bytes(slots.cache_bytes, room[0]), slots.n_working,
            moe_format_bytes(slots.working_bytes, room[1]), 100 * slots.share, slots.n_experts,
            moe_format_bytes(m->all, room[2]), slots.tokens, moe_format_bytes(m->token, room[3]));
    if (m->floor)
        moe_draw_paragraph(s->out, NULL, 2, "The smallest budget that works is %s.",
                           moe_format_bytes(m->floor, room[0]));
}

/* ---- Layers ---- */

static void put_layer_row(const struct screen *s, uint32_t first, uint32_t n)
{
    struct moe_explain_layers l = moe_explain_layers(s->plan, first, n);
    char name[32], slots[16] = "shared";
    if (n == 1)
        snprintf(name, sizeof name, "%" PRIu32, first);
    else
        snprintf(name, sizeof name, "%" PRIu32 "-%" PRIu32, first, first + n - 1);
    if (l.own_slots)
        snprintf(slots, sizeof slots, "%" PRIu64, l.slots);
    moe_buf_printf(s->out, "  %7s %7s %7" PRIu64, name, slots, l.filled);
    if (l.accuracy < 0)
        moe_buf_text(s->out, "        -");
    else
        moe_buf_printf(s->out, "   %5.1f%%", 100 * l.accuracy);
    moe_buf_printf(s->out, " %9.3f ms", 1e3 * l.stall_seconds);
    if (l.hit_rate < 0) {
        moe_buf_text(s->out, "       -\n");
        return;
    }
    moe_buf_printf(s->out, "  %5.1f%% ", 100 * l.hit_rate);
    moe_draw_bar(s->out, l.hit_rate, BAR, s->blocks);
    moe_buf_text(s->out, "\n");
}

static void put_boundaries(const struct screen *s)
{
    const struct moe_plan *p = s->plan;
    char by_accuracy[32] = "unknown", by_stall[32] = "unknown";
    if (p->boundary_accuracy != UINT32_MAX)
        snprintf(by_accuracy, sizeof by_accuracy, "%" PRIu32, p->boundary_accuracy);
    if (p->boundary_stall != UINT32_MAX)
        snprintf(by_stall, sizeof by_stall, "%" PRIu32, p->boundary_stall);
    moe_draw_paragraph(s->out, NULL, 2,
                       "Loaded: before the first token. First layers that deserve all their "
                       "experts in memory, being hard to foresee: %s by accuracy, %s by least "
                       "waiting.",
                       by_accuracy, by_stall);
}

static void put_layers(const struct screen *s)
{
    const struct moe_plan *p = s->plan;
    if (p->n_pools == 0)
        return;
    uint32_t step = (p->n_layers + LAYER_ROWS - 1) / LAYER_ROWS;
    moe_buf_text(s->out, "\nLayers with experts\n"
                         "    layer   slots  loaded foreseen        waits  found in memory\n");
    for (uint32_t l = 0; l < p->n_layers; l += step)
        put_layer_row(s, l, l + step < p->n_layers ? step : p->n_layers - l);
    put_boundaries(s);
}

/* ---- What bounds the speed ---- */

static void put_bound(const struct screen *s, const char *name, double seconds, double total)
{
    double share = seconds / total;
    moe_buf_printf(s->out, "  %-40s %9.3f ms %5.1f%% ", name, 1e3 * seconds, 100 * share);
    moe_draw_bar(s->out, share, 16, s->blocks);
    moe_buf_text(s->out, "\n");
}

static void put_verdict(const struct screen *s, const struct moe_plan_bounds *b)
{
    static const char *const advice[MOE_N_BOUNDS] = {
        [MOE_BOUND_COMPUTATION] =
            "Computation is the largest part: a faster processor or fewer bits help more than "
            "memory; however much memory there is, it stays below %s tokens/s.",
        [MOE_BOUND_LINK] =
            "The link is the largest part: more memory, a faster disk or bus, or fewer bits help; "
            "no cache or prediction gets above %s tokens/s here.",
        [MOE_BOUND_FORESIGHT] =
            "Foresight is the largest part: better choice of what to keep and to load ahead could "
            "bring up to %s tokens/s.",
    };
    char speed[32];
    double at_least = b->seconds[MOE_BOUND_COMPUTATION];
    if (b->largest != MOE_BOUND_COMPUTATION)
        at_least += b->seconds[MOE_BOUND_LINK];
    moe_show_speed(at_least > 0 ? 1 / at_least : 0, speed);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    moe_draw_paragraph(s->out, NULL, 2, advice[b->largest], speed);
#pragma GCC diagnostic pop
}

static void put_loads(const struct screen *s)
{
    const struct moe_plan *p = s->plan;
    const struct moe_plan_expected *e = &p->expected;
    char bytes[32], rate[32], room[3][32];
    if (e->bytes_per_token >= 0)
        moe_draw_paragraph(
            s->out, NULL, 2,
            "A token loads %s; the link (%s) is busy %s of the time. Found in memory: %s; a cache "
            "that knows the future, but loads only on demand: %s.",
            moe_format_bytes((uint64_t)e->bytes_per_token, bytes),
            moe_show_rate(p->pace.load_rate, rate),
            moe_show_percent(e->link_seconds * e->decode_tokens_per_second, room[0]),
            moe_show_percent(e->hit_rate, room[1]), moe_show_percent(e->optimal_hit_rate, room[2]));
    moe_draw_paragraph(s->out, NULL, 2,
                       "A layer takes %.3f ms, loading an expert %.3f ms: %" PRIu32
                       " loads hide behind a layer.",
                       1e3 * p->layer_seconds, 1e3 * p->load_seconds, p->slack_loads);
    if (e->accuracy >= 0)
        moe_draw_paragraph(s->out, NULL, 2, "Of a layer's experts %.1f%% are foreseen.",
                           100 * e->accuracy);
}

static void put_bounds(const struct screen *s)
{
    const struct moe_plan_expected *e = &s->plan->expected;
    struct moe_plan_bounds b = moe_plan_bounds(s->plan);
    if (b.total <= 0)
        return;
    moe_buf_text(s->out, "\nWhat bounds the speed\n");
    moe_draw_paragraph(s->out, NULL, 2,
                       "A token takes %.3f ms: %.3f computing, %.3f waiting for experts, %.3f for "
                       "the host. The same time by its causes:",
                       1e3 * b.total, 1e3 * fmax(0, e->compute_seconds),
                       1e3 * fmax(0, e->stall_seconds), 1e3 * fmax(0, e->host_seconds));
    put_bound(s, "computation, all experts in memory", b.seconds[MOE_BOUND_COMPUTATION], b.total);
    put_bound(s, "the link, even knowing the future", b.seconds[MOE_BOUND_LINK], b.total);
    put_bound(s, "foresight, what knowing it would save", b.seconds[MOE_BOUND_FORESIGHT], b.total);
    put_verdict(s, &b);
    if (s->plan->n_pools)
        put_loads(s);
}

/* ---- What more would give ---- */

typedef char *(*format_amount)(double amount, char room[32]);

static char *format_memory(double amount, char room[32])
{
    return moe_format_bytes((uint64_t)amount, room);
}

static void put_step(const struct screen *s, const struct moe_plan_step *step, bool now,
                     double most, format_amount format)
{
    char amount[32], speed[32], found[32];
    moe_buf_printf(s->out, "  %c %12s %8s tokens/s  %6s found ", now ? '>' : ' ',
                   format(step->amount, amount),
                   moe_show_speed(step->decode_tokens_per_second, speed),
                   moe_show_percent(step->hit_rate, found));
    moe_draw_bar(s->out, most > 0 ? step->decode_tokens_per_second / most : 0, BAR, s->blocks);
    moe_buf_text(s->out, "\n");
}

static bool is_now(const struct moe_plan_step *step, double now)
{
    return step->amount > 0.999 * now && step->amount < 1.001 * now;
}

/* Row i of so many of n steps, evenly from the first to the last; the present one takes the place
 * of the one nearest to it. */
static uint32_t pick_step(const struct moe_plan_step *steps, uint32_t n, uint32_t rows, uint32_t i,
                          double now)
{
    uint32_t at = rows < 2 ? 0 : i * (n - 1) / (rows - 1), present = 0;
    while (present < n && !is_now(&steps[present], now))
        present++;
    bool nearest = present < n;
    for (uint32_t other = 0; other < rows && nearest; other++) {
        uint32_t x = rows < 2 ? 0 : other * (n - 1) / (rows - 1);
        uint32_t distance = x > present ? x - present : present - x;
        uint32_t mine = at > present ? at - present : present - at;
        nearest = mine < distance || (mine == distance && i <= other);
    }
    return nearest ? present : at;
}

static void put_steps(const struct screen *s, const char *title, const struct moe_plan_step *steps,
                      uint32_t n, double now, format_amount format)
{
    const struct moe_plan_step *next = moe_plan_next_step(steps, n, now);
    double speed = s->plan->expected.decode_tokens_per_second, most = speed;
    uint32_t rows = n < STEP_ROWS ? n : STEP_ROWS;
    char room[2][32];
    if (n == 0)
        return;
    moe_buf_printf(s->out, "\n%s (now %s)\n", title, format(now, room[0]));
    for (uint32_t i = 0; i < n; i++)
        most = steps[i].decode_tokens_per_second > most ? steps[i].decode_tokens_per_second : most;
    for (uint32_t i = 0; i < rows; i++) {
        const struct moe_plan_step *step = &steps[pick_step(steps, n, rows, i, now)];
        put_step(s, step, is_now(step, now), most, format);
    }
    if (next && speed > 0)
        moe_draw_paragraph(s->out, NULL, 2, "The next step up, %s, gives %s tokens/s: %+.1f%%.",
                           format(next->amount, room[0]),
                           moe_show_speed(next->decode_tokens_per_second, room[1]),
                           100 * (next->decode_tokens_per_second / speed - 1));
}

static void put_more(const struct screen *s)
{
    const struct moe_plan *p = s->plan;
    put_steps(s, p->memory.total ? "More memory or less" : "More memory for experts or less",
              p->memory_steps, p->n_memory_steps,
              (double)(p->memory.total ? p->memory.total : p->memory.experts), format_memory);
    put_steps(s, "A faster link or a slower one", p->rate_steps, p->n_rate_steps, p->pace.load_rate,
              moe_show_rate);
}

static void put_tried(const struct screen *s)
{
    const struct moe_plan *p = s->plan;
    char speed[32], found[32];
    if (p->n_tried == 0)
        return;
    moe_buf_printf(s->out,
                   "\nTried in the simulator: %" PRIu32 ", the fastest, on a part of a long trace\n"
                   "   tokens/s   found\n",
                   p->n_tried);
    for (uint32_t i = 0; i < p->n_tried && i < TRIED_ROWS; i++) {
        const struct moe_plan_tried *t = &p->tried[i];
        char first[80];
        snprintf(first, sizeof first, "  %9s  %6s  ",
                 moe_show_speed(t->decode_tokens_per_second, speed),
                 moe_show_percent(t->hit_rate, found));
        moe_draw_paragraph(s->out, first, 21, "%.*s", TRIED_NAME, t->strategy);
    }
}

/* ---- What it rests on ---- */

static void put_assumption(const struct screen *s, const char *first, enum moe_assumption what)
{
    const struct moe_plan_evidence *e = &s->plan->evidence;
    switch (what) {
    case MOE_ASSUME_ROUTING:
        moe_draw_paragraph(s->out, first, 5,
                           "Which experts are used is made up, in the manner of the bundled model: "
                           "a trace of your own text (moe-profile --text --trace) replaces it.");
        break;
    case MOE_ASSUME_BANDWIDTH:
        moe_draw_paragraph(s->out, first, 5,
                           "Times follow from memory bandwidth alone: measured ones (moe-profile "
                           "--device PACK) replace them.");
        break;
    case MOE_ASSUME_FIGURES:
        moe_draw_paragraph(s->out, first, 5,
                           "Which experts are used is made up, in the manner of figures of a real "
                           "model: a trace (moe-profile --text --trace) replaces it.");
        break;
    case MOE_ASSUME_FEW_TOKENS:
        moe_draw_paragraph(s->out, first, 5,
                           "The trace has few tokens: the share found in memory may be off by %.1f "
                           "points for that alone.",
                           100 * moe_plan_hit_rate_error(s->plan));
        break;
    case MOE_ASSUME_NO_STATISTICS:
        moe_draw_paragraph(s->out, first, 5,
                           "There were no statistics: what needs them was not tried.");
        break;
    case MOE_ASSUME_ALIKE:
        moe_draw_paragraph(s->out, first, 5,
                           "Other texts use the experts as the trace's do (%" PRIu64
                           " tokens in %" PRIu64 " texts, %" PRIu64
                           " of prompts; the share found is good to %.1f points).",
                           e->trace_tokens, e->trace_sequences, e->trace_prompt_tokens,
                           100 * moe_plan_hit_rate_error(s->plan));
        break;
    case MOE_N_ASSUMPTIONS:
        break;
    }
}

static void put_assumptions(const struct screen *s, uint32_t most)
{
    enum moe_assumption what[MOE_N_ASSUMPTIONS];
    uint32_t n = moe_plan_assumptions(s->plan, what);
    moe_buf_text(s->out, most == 1 ? "\nIts weakest assumption\n"
                                   : "\nIts assumptions, the weakest first\n");
    for (uint32_t i = 0; i < n && i < most; i++) {
        char number[16];
        snprintf(number, sizeof number, "  %" PRIu32 ".", i + 1);
        put_assumption(s, number, what[i]);
    }
}

/* ---- All of it ---- */

void moe_explain_plan(const struct moe_plan *plan, bool blocks, struct moe_buf *out)
{
    const struct screen s = {plan, blocks, out};
    put_head(&s);
    put_strategy(&s);
    put_losses(&s);
    put_memory(&s);
    put_bounds(&s);
    put_layers(&s);
    put_more(&s);
    put_tried(&s);
    put_assumptions(&s, MOE_N_ASSUMPTIONS);
}

void moe_explain_plan_briefly(const struct moe_plan *plan, bool blocks, struct moe_buf *out)
{
    const struct screen s = {plan, blocks, out};
    put_head(&s);
    put_strategy(&s);
    put_losses(&s);
    put_memory(&s);
    put_bounds(&s);
    put_assumptions(&s, 1);
}
