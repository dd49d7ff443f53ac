/* A plan's explanation as text. */
#define _POSIX_C_SOURCE 200809L /* strnlen */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "sched/strategy.h"
#include "show/draw.h"
#include "show/explain.h"
#include "show/explain_plan.h"

/* Bytes shown of names, which may be long in files. */
enum {
    NAME = 48,
    SOURCE_NAME = 24, /* mentioned in passing */
};

/* ---- What is planned ---- */

/* Bytes of a name to show: whole characters, at most so many bytes. */
static int shown_of(const char *name, size_t most)
{
    return (int)moe_utf8_complete((const uint8_t *)name, strnlen(name, most));
}

static int shown(const char *name)
{
    return shown_of(name, NAME);
}

static void put_head(const struct explanation *x)
{
    const struct moe_plan *p = x->plan;
    const struct moe_plan_expected *e = &p->expected;
    char memory[96], host[32], room[3][32];
    uint64_t bytes = p->memory.total ? p->memory.total : p->memory.experts;
    const char *name = p->pack[0] ? p->pack : "a model", *device = p->evidence.device;
    moe_format_bytes(bytes, room[0]);
    if (p->host.total)
        snprintf(memory, sizeof memory, "%s of a GPU and %s of main memory", room[0],
                 moe_format_bytes(p->host.total, host));
    else
        snprintf(memory, sizeof memory, "%s%s", room[0], p->memory.total ? "" : " of experts");
    moe_draw_paragraph(x->out, x->screen, NULL, 0, "Plan for %.*s in %s%s%.*s", shown(name), name,
                       memory, device[0] ? ", on " : "", shown(device), device);
    if (e->decode_tokens_per_second > 0)
        moe_draw_paragraph(x->out, x->screen, NULL, 0,
                           "Expected: %s tokens/s of an answer, %s tokens/s of a prompt; %s of "
                           "experts found in memory",
                           moe_format_speed(e->decode_tokens_per_second, room[0]),
                           moe_format_speed(e->prefill_tokens_per_second, room[1]),
                           moe_format_percent(e->hit_rate, room[2]));
}

static void put_strategy(const struct explanation *x)
{
    const struct moe_plan *p = x->plan;
    struct moe_buf text = {0};
    char brief[MOE_STRATEGY_BRIEF];
    moe_strategy_brief(&p->strategy, brief);
    const struct moe_terms terms = moe_plan_terms(p);
    moe_explain_strategy(&terms, moe_plan_slots(p).n_cache, p->n_experts, &text);
    moe_draw_paragraph(x->out, x->screen, NULL, 0, "Strategy %s%s%s%s%s%s", brief,
                       p->high[0] ? "; experts at " : "", p->high, p->high[0] ? " bits" : "",
                       p->low[0] ? ", low " : "", p->low);
    moe_draw_paragraph(x->out, x->screen, NULL, 2,
                       "Each of %" PRIu32 " layers has %" PRIu32
                       " experts (blocks of weights); a token uses %" PRIu32 ".",
                       p->n_layers, p->n_experts, p->top_k);
    if (!text.failed)
        moe_draw_paragraph(x->out, x->screen, NULL, 2, "%s", (const char *)text.data);
    x->out->failed |= text.failed;
    moe_buf_release(&text);
}

/* What a bit map says about the parts that may change results, in one paragraph. */
static void put_losses(const struct explanation *x)
{
    const struct moe_plan *p = x->plan;
    const struct moe_plan_evidence *e = &p->evidence;
    struct moe_buf text = {0};
    for (uint32_t i = 0; i < p->n_losses; i++) {
        const struct moe_plan_loss *l = &p->losses[i];
        bool on_miss = strcmp(l->part, moe_strategy_part_at(MOE_PART_ON_MISS)->name) == 0;
        moe_buf_printf(&text,
                       "%s through --%.*s: %s%+.3g%% (+-%.3g) nats/token, %.3g%% other top "
                       "tokens",
                       i ? ";" : "Results may change", shown(l->part), l->part,
                       on_miss ? "at worst " : "", l->nll_percent, l->nll_error, l->top1_points);
    }
    int first = (int)strcspn(e->calibration_texts, ","); /* of several texts the first is named */
    first = first < SOURCE_NAME ? first : shown_of(e->calibration_texts, SOURCE_NAME);
    if (p->n_losses && !text.failed)
        moe_draw_paragraph(x->out, x->screen, NULL, 2,
                           "%s. Measured on %" PRIu64 " tokens of %.*s%s. Nats/token: how much a "
                           "text surprises the model.",
                           (const char *)text.data, p->losses[0].tokens, first,
                           e->calibration_texts, e->calibration_texts[first] ? " and others" : "");
    x->out->failed |= text.failed;
    moe_buf_release(&text);
}

/* ---- Memory ---- */

static void put_share(const struct explanation *x, const char *name, uint64_t bytes, uint64_t all)
{
    char room[32];
    double share = (double)bytes / (double)all;
    moe_buf_printf(x->out, "  %-26s %12s %5.1f%%  ", name, moe_format_bytes(bytes, room),
                   100 * share);
    moe_draw_bar(x->out, share, moe_draw_columns(x->screen, EXPLAIN_BAR, 2 * EXPLAIN_BAR),
                 x->screen);
    moe_buf_text(x->out, "\n");
}

static void put_split(const struct explanation *x, const char *title,
                      const struct moe_plan_memory *m)
{
    uint64_t used = m->program + m->dense + m->kv + m->work + m->experts;
    uint64_t all = m->total > used ? m->total : used;
    char name[64];
    moe_buf_printf(x->out, "\n%s\n", title);
    put_share(x, "program", m->program, all);
    put_share(x, "weights outside experts", m->dense, all);
    snprintf(name, sizeof name, "context of %" PRIu32 "%s%s", m->context,
             m->kv && x->plan->kv[0] ? " as " : "", m->kv ? x->plan->kv : "");
    put_share(x, name, m->kv, all);
    snprintf(name, sizeof name, "batches of %" PRIu32, m->batch);
    put_share(x, name, m->work, all);
    put_share(x, "experts", m->experts, all);
    if (m->total > used)
        put_share(x, "unused", m->total - used, all);
}

static void put_memory(const struct explanation *x)
{
    const struct moe_plan_memory *m = &x->plan->memory, *host = &x->plan->host;
    struct moe_plan_slots slots = moe_plan_slots(x->plan);
    char room[4][32];
    if (m->total + m->program + m->dense + m->kv + m->work + m->experts == 0)
        return;
    put_split(x, host->total ? "Where the GPU's memory goes" : "Where the memory goes", m);
    if (x->plan->n_pools)
        moe_draw_paragraph(x->out, x->screen, NULL, 2,
                           "%" PRIu64 " slots keep experts (%s): %.1f%% of all %" PRIu64
                           " experts (%s), %.2f times what a token uses (%s). %" PRIu64
                           " are scratch space (%s).",
                           slots.n_cache, moe_format_bytes(slots.cache_bytes, room[0]),
                           100 * slots.share, slots.n_experts, moe_format_bytes(m->all, room[1]),
                           slots.tokens, moe_format_bytes(m->token, room[2]), slots.n_working,
                           moe_format_bytes(slots.working_bytes, room[3]));
    if (m->floor)
        moe_draw_paragraph(
            x->out, x->screen, NULL, 2,
            x->plan->strategy.resident
                ? "In less than %s not all experts fit: another plan would load some."
                : "The smallest budget that works is %s.",
            moe_format_bytes(m->floor, room[0]));
    if (host->total)
        put_split(x, "Where main memory goes", host);
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
        snprintf(off, sizeof off, "If the link is %.0f%% slower", percent);
        break;
    case MOE_ASSUME_QUIET:
        snprintf(off, sizeof off, "If everything takes %.0f%% longer", percent);
        break;
    default:
        snprintf(off, sizeof off, "If %.1f points fewer are found", percent);
        break;
    }
    moe_buf_printf(text, " %s: %s tokens/s, %+.1f%%.", off,
                   moe_format_speed(d->decode_tokens_per_second, speed),
                   100 * moe_plan_gain(plan, d->decode_tokens_per_second));
}

void moe_explain_assumption(const struct moe_plan *plan, enum moe_assumption what,
                            struct moe_buf *text)
{
    static const char *const texts[MOE_N_ASSUMPTIONS] = {
        [MOE_ASSUME_ROUTING] = "Which experts a text uses was drawn at random, in the bundled "
                               "model's manner: a trace of your own text (moe-profile --text "
                               "--trace) replaces it.",
        [MOE_ASSUME_BANDWIDTH] = "Times are computed from memory bandwidth alone: measured ones "
                                 "(moe-profile --device PACK) replace them.",
        [MOE_ASSUME_NOMINAL] = "The link is as fast as stated, not as measured; few reach what is "
                               "stated (moe-profile --device measures).",
        [MOE_ASSUME_FIGURES] = "Which experts a text uses was drawn at random, in the manner that "
                               "statistics say: a trace (moe-profile --text --trace) replaces it.",
        [MOE_ASSUME_QUIET] = "Runs of the same measurement differed: the machine was busy with "
                             "other things when it was measured, or will be.",
        [MOE_ASSUME_NO_STATISTICS] =
            "There were no statistics: strategies that need them were not tried.",
    };
    const struct moe_plan_evidence *e = &plan->evidence;
    double points = 100 * moe_plan_hit_rate_error(plan);
    if (texts[what])
        moe_buf_text(text, texts[what]);
    else if (what == MOE_ASSUME_FEW_TOKENS)
        moe_buf_printf(text,
                       "The trace has few tokens: the share found in memory may be off by %.1f "
                       "points for that reason alone.",
                       points);
    else
        moe_buf_printf(text,
                       "Other texts use the experts as those of the trace do (%" PRIu64
                       " tokens in %" PRIu64 " texts, %" PRIu64
                       " in prompts; the share found is good to %.1f points).",
                       e->trace_tokens, e->trace_sequences, e->trace_prompt_tokens, points);
    put_doubt(plan, what, text);
}

static void put_assumption(const struct explanation *x, const char *first, enum moe_assumption what)
{
    struct moe_buf text = {0};
    moe_explain_assumption(x->plan, what, &text);
    if (!text.failed)
        moe_draw_paragraph(x->out, x->screen, first, 5, "%s", (const char *)text.data);
    x->out->failed |= text.failed;
    moe_buf_release(&text);
}

static void put_assumptions(const struct explanation *x, uint32_t most)
{
    enum moe_assumption what[MOE_N_ASSUMPTIONS];
    uint32_t n = moe_plan_assumptions(x->plan, what);
    moe_buf_text(x->out, most == 1 ? "\nIts weakest assumption\n"
                                   : "\nIts assumptions, the weakest first\n");
    for (uint32_t i = 0; i < n && i < most; i++) {
        char number[16];
        snprintf(number, sizeof number, "  %" PRIu32 ".", i + 1);
        put_assumption(x, number, what[i]);
    }
}

/* ---- All of it ---- */

static void put_first_screen(const struct explanation *x)
{
    put_head(x);
    put_strategy(x);
    put_losses(x);
    put_memory(x);
    explain_bounds(x);
}

void moe_explain_plan(const struct moe_plan *plan, struct moe_screen screen, struct moe_buf *out)
{
    const struct explanation x = {plan, screen, out};
    put_first_screen(&x);
    explain_layers(&x);
    explain_alternatives(&x);
    explain_steps(&x);
    explain_tried(&x);
    put_assumptions(&x, MOE_N_ASSUMPTIONS);
}

void moe_explain_plan_briefly(const struct moe_plan *plan, struct moe_screen screen,
                              struct moe_buf *out)
{
    const struct explanation x = {plan, screen, out};
    put_first_screen(&x);
    put_assumptions(&x, 1);
}
