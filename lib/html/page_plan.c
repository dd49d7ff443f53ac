/* A plan as a page. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "html/pages.h"
#include "html/pictures.h"
#include "show/explain.h"
#include "show/explain_figures.h"

static char *format_bytes(double bytes, char room[32])
{
    return moe_format_bytes_of(bytes, room);
}

static void put_head(struct moe_page *p, const struct moe_plan *plan)
{
    char room[4][32];
    const struct moe_plan_expected *e = &plan->expected;
    moe_page_say(
        p,
        "%s in %s%s%s: %s tokens/s of an answer, %s tokens/s of a prompt; %s of experts "
        "found in memory.",
        plan->pack[0] ? plan->pack : "A model",
        format_bytes((double)(plan->memory.total ? plan->memory.total : plan->memory.experts),
                     room[0]),
        plan->evidence.device[0] ? ", on " : "", plan->evidence.device,
        moe_format_speed(e->decode_tokens_per_second, room[1]),
        moe_format_speed(e->prefill_tokens_per_second, room[2]),
        moe_format_percent(e->hit_rate, room[3]));
}

static void put_memory(struct moe_page *p, const struct moe_plan *plan)
{
    const struct moe_plan_memory *m = &plan->memory;
    uint64_t used = m->program + m->dense + m->kv + m->work + m->experts;
    const struct moe_page_part parts[] = {
        {"program", (double)m->program},
        {"weights outside experts", (double)m->dense},
        {"context", (double)m->kv},
        {"batches", (double)m->work},
        {"experts", (double)m->experts},
        {"unused", m->total > used ? (double)(m->total - used) : 0},
    };
    moe_page_open_section(p, "Where the memory goes");
    moe_page_parts(p, parts, sizeof parts / sizeof parts[0], "The memory of the plan",
                   format_bytes);
    moe_page_close_section(p);
}

static void put_bounds(struct moe_page *p, const struct moe_plan *plan)
{
    const struct moe_plan_bounds b = moe_plan_bounds(plan);
    const struct moe_page_part parts[] = {
        {"computation, with all experts in memory", b.seconds[MOE_BOUND_COMPUTATION]},
        {"the link, even with perfect caching", b.seconds[MOE_BOUND_LINK]},
        {"imperfect caching and prediction", b.seconds[MOE_BOUND_PREDICTION]},
    };
    if (b.total <= 0)
        return;
    moe_page_open_section(p, "What limits the speed");
    moe_page_parts(p, parts, sizeof parts / sizeof parts[0], "The time of a token, by cause",
                   moe_format_seconds);
    moe_page_close_section(p);
}

static int put_layers(struct moe_page *p, const struct moe_plan *plan, struct moe_err *err)
{
    static const char *const columns[] = {"found in memory", "predicted"};
    struct moe_heat heat = {0};
    bool known = false;
    int status = moe_heat_init(&heat, plan->n_layers, 2, err);
    for (uint32_t l = 0; l < plan->n_layers && status == MOE_OK; l++) {
        const double of[2] = {plan->layers[l].hit_rate, plan->layers[l].accuracy};
        for (int i = 0; i < 2; i++) {
            heat.values[2 * (uint64_t)l + (uint64_t)i] = of[i] >= 0 ? of[i] : (double)NAN;
            known |= of[i] >= 0;
        }
    }
    heat.usual = 0.5;
    if (known && status == MOE_OK) {
        moe_page_open_section(p, "Layers with experts");
        moe_page_heat(p, &heat,
                      "Layers down; left: share of experts found in memory, right: share "
                      "predicted. Darker (on a dark page lighter): more",
                      columns);
        moe_page_close_section(p);
    }
    moe_heat_release(&heat);
    return status;
}

static void put_steps(struct moe_page *p, const char *title, const char *caption,
                      const char *now_name, const struct moe_plan_step *steps, uint32_t n,
                      double now, char *(*format)(double, char[32]))
{
    static const char *const heads[] = {"", "tokens/s", "found"};
    double x[MOE_PLAN_MAX_STEPS], y[MOE_PLAN_MAX_STEPS];
    if (n == 0)
        return;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = steps[i].amount;
        y[i] = steps[i].decode_tokens_per_second;
    }
    const struct moe_page_curve curve = {caption, now_name, n, x, y, now, format};
    moe_page_open_section(p, title);
    moe_page_curve(p, &curve);
    moe_page_open_table(p, heads, 3);
    for (uint32_t i = 0; i < n; i++) {
        char room[3][32];
        const char *const cells[] = {format(x[i], room[0]), moe_format_speed(y[i], room[1]),
                                     moe_format_percent(steps[i].hit_rate, room[2])};
        moe_page_row(p, cells, 3);
    }
    moe_page_close_table(p);
    moe_page_close_section(p);
}

static void put_alternatives(struct moe_page *p, const struct moe_plan *plan)
{
    static const char *const heads[] = {"", "tokens/s", "change", "prompt/s", "found"};
    if (plan->n_alternatives == 0)
        return;
    moe_page_open_section(p, "What if one thing were otherwise");
    moe_page_open_table(p, heads, 5);
    for (uint32_t i = 0; i < plan->n_alternatives; i++) {
        const struct moe_plan_alternative *a = &plan->alternatives[i];
        double gain = moe_plan_gain(plan, a->decode_tokens_per_second);
        bool works = a->decode_tokens_per_second >= 0;
        char name[80], room[3][32], change[32] = "?";
        moe_explain_alternative(a->what, a->amount, a->times, a->precision, name);
        if (!isnan(gain))
            snprintf(change, sizeof change, "%+.1f%%", 100 * gain);
        const char *const cells[] = {
            name, works ? moe_format_speed(a->decode_tokens_per_second, room[0]) : "does not work",
            works ? change : "",
            works ? moe_format_speed(a->prefill_tokens_per_second, room[1]) : "",
            works ? moe_format_percent(a->hit_rate, room[2]) : ""};
        moe_page_row(p, cells, 5);
    }
    moe_page_close_table(p);
    moe_page_close_section(p);
}

static void put_assumptions(struct moe_page *p, const struct moe_plan *plan)
{
    static const char *const heads[] = {"the weakest first", "tokens/s without it"};
    enum moe_assumption what[MOE_N_ASSUMPTIONS];
    uint32_t n = moe_plan_assumptions(plan, what);
    moe_page_open_section(p, "Its assumptions");
    moe_page_open_table(p, heads, 2);
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_plan_doubt *d = moe_plan_doubt_of(plan, what[i]);
        struct moe_buf text = {0};
        char room[32];
        moe_explain_assumption(plan, what[i], &text);
        const char *const cells[] = {text.failed ? "" : (const char *)text.data,
                                     d ? moe_format_speed(d->decode_tokens_per_second, room) : ""};
        moe_page_row(p, cells, 2);
        p->out->failed |= text.failed;
        moe_buf_release(&text);
    }
    moe_page_close_table(p);
    moe_page_close_section(p);
}

static void put_words(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_buf text = {0};
    moe_explain_plan(plan, MOE_PLAIN_SCREEN, &text);
    if (!text.failed && text.size)
        moe_page_lines(p, "The same in words", (const char *)text.data);
    p->out->failed |= text.failed;
    moe_buf_release(&text);
}

int page_plan(struct moe_page *p, const char *path, struct moe_err *err)
{
    struct moe_plan *plan = NULL;
    int status = moe_plan_read(&plan, path, err);
    if (status == MOE_OK) {
        put_head(p, plan);
        put_memory(p, plan);
        put_bounds(p, plan);
        put_steps(p, "More memory or less", "Tokens per second over memory", "the budget",
                  plan->memory_steps, plan->n_memory_steps,
                  (double)(plan->memory.total ? plan->memory.total : plan->memory.experts),
                  format_bytes);
        put_steps(p, "A faster link or a slower one", "Tokens per second over the link's rate",
                  "the link", plan->rate_steps, plan->n_rate_steps, plan->pace.load_rate,
                  moe_format_rate);
        put_alternatives(p, plan);
        put_assumptions(p, plan);
        status = put_layers(p, plan, err);
        put_words(p, plan);
    }
    moe_plan_free(plan);
    return status;
}
