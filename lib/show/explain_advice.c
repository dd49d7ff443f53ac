/* What would help, and what each alternative would give: a plan's what-ifs as text. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "show/draw.h"
#include "show/explain.h"
#include "show/explain_plan.h"

enum { MOST_ADVICE = 4 };

static const char *multiple(double times, char room[32])
{
    if (fabs(times - 2) < 1e-9)
        return "twice";
    if (fabs(times - 0.5) < 1e-9)
        return "half";
    snprintf(room, 32, "%.2g times", times);
    return room;
}

void moe_explain_alternative(enum moe_alternative what, double amount, double times,
                             const char *precision, char out[80])
{
    char room[2][32];
    const char *n = multiple(times, room[0]);
    switch (what) {
    case MOE_ALTERNATIVE_MEMORY:
        snprintf(out, 80, "%s the memory, %s", n, moe_format_bytes_of(amount, room[1]));
        break;
    case MOE_ALTERNATIVE_LINK:
        snprintf(out, 80, "%s the link, %s", n, moe_format_rate(amount, room[1]));
        break;
    case MOE_ALTERNATIVE_PROCESSOR:
        snprintf(out, 80, "%s the processor's speed", n);
        break;
    case MOE_ALTERNATIVE_EXPERTS:
        snprintf(out, 80, "experts of %.12s bits", precision);
        break;
    case MOE_ALTERNATIVE_CONTEXT:
        snprintf(out, 80, "%s the context, %.0f", n, amount);
        break;
    default:
        snprintf(out, 80, "prompts in batches of %.0f", amount);
        break;
    }
}

/* ---- What helps ---- */

void explain_advice(const struct explanation *x)
{
    struct moe_advice advice[MOE_PLAN_MAX_ALTERNATIVES];
    struct moe_buf text = {0};
    uint32_t n = moe_plan_advice(x->plan, advice);
    bool known = x->plan->n_alternatives || x->plan->n_memory_steps || x->plan->n_rate_steps;
    for (uint32_t i = 0; i < n && i < MOST_ADVICE; i++) {
        char name[80];
        moe_explain_alternative(advice[i].what, advice[i].amount, advice[i].times,
                                advice[i].precision, name);
        moe_buf_printf(&text, "%s%s (%s%+.1f%%%s)", i ? ", " : "", name,
                       advice[i].at_most ? "at most " : "", 100 * advice[i].gain,
                       advice[i].what == MOE_ALTERNATIVE_EXPERTS ? ", results change" : "");
    }
    if (n && !text.failed)
        moe_draw_paragraph(x->out, x->screen, NULL, 2, "What helps most, each alone: %s.",
                           (const char *)text.data);
    else if (known && !text.failed)
        moe_draw_paragraph(x->out, x->screen, NULL, 2,
                           "Nothing that was simulated alone makes it more than %.0f%% faster.",
                           100 * MOE_ADVICE_GAIN);
    x->out->failed |= text.failed;
    moe_buf_release(&text);
}

/* ---- The table ---- */

static void put_row(const struct explanation *x, const char *name, double speed, double gain,
                    double prompt, double bytes, double found)
{
    char room[3][32], change[16] = "";
    bool wide = x->screen.columns >= MOE_USUAL_COLUMNS;
    if (!isnan(gain))
        snprintf(change, sizeof change, "%+.1f%%", 100 * gain);
    moe_buf_printf(x->out, "  %-29s %8s %8s", name, moe_format_speed(speed, room[0]), change);
    if (wide)
        moe_buf_printf(x->out, " %9s", moe_format_speed(prompt, room[1]));
    moe_buf_printf(x->out, " %*s", wide ? 11 : 10,
                   bytes >= 0 ? moe_format_bytes_of(bytes, room[2]) : "?");
    if (wide)
        moe_draw_percent(x->out, found, 7);
    moe_buf_text(x->out, "\n");
}

static void put_refusal(const struct explanation *x, const struct moe_plan_alternative *a,
                        const char *name)
{
    char room[32];
    uint64_t floor = x->plan->memory.floor;
    moe_buf_printf(x->out, "  %-29s does not work", name);
    if (a->what == MOE_ALTERNATIVE_MEMORY && floor && !x->plan->strategy.resident)
        moe_buf_printf(x->out, ": at least %s", moe_format_bytes(floor, room));
    moe_buf_text(x->out, "\n");
}

static void put_losses(const struct explanation *x)
{
    const struct moe_plan *p = x->plan;
    struct moe_buf text = {0};
    bool unknown = false;
    for (uint32_t i = 0; i < p->n_alternatives; i++) {
        const struct moe_plan_alternative *a = &p->alternatives[i];
        if (a->what != MOE_ALTERNATIVE_EXPERTS)
            continue;
        if (a->loss_tokens)
            moe_buf_printf(&text,
                           "%s%.12s bits: %+.3g%% (+-%.3g) nats/token, on %" PRIu64 " tokens",
                           text.size ? "; " : "", a->precision, a->loss_percent, a->loss_error,
                           a->loss_tokens);
        else
            unknown = true;
    }
    if (text.size && !text.failed)
        moe_draw_paragraph(x->out, x->screen, NULL, 2,
                           "What coarser weights cost (nats/token: how much a text surprises the "
                           "model): %s.",
                           (const char *)text.data);
    if (unknown)
        moe_draw_paragraph(x->out, x->screen, NULL, 2,
                           "Fewer bits change what the model says; by how much%s was not measured "
                           "(moe-calibrate).",
                           text.size ? " at the others" : "");
    x->out->failed |= text.failed;
    moe_buf_release(&text);
}

void explain_alternatives(const struct explanation *x)
{
    const struct moe_plan *p = x->plan;
    const struct moe_plan_expected *e = &p->expected;
    bool wide = x->screen.columns >= MOE_USUAL_COLUMNS;
    if (p->n_alternatives == 0)
        return;
    moe_buf_text(x->out, "\nWhat if one thing were otherwise (simulated; loads: of a token)");
    moe_buf_printf(x->out, "\n  %-29s %8s %8s%s %*s%s\n", "", "tokens/s", "",
                   wide ? "  prompt/s" : "", wide ? 11 : 10, "loads", wide ? "  found" : "");
    put_row(x, "as planned", e->decode_tokens_per_second, NAN, e->prefill_tokens_per_second,
            e->bytes_per_token, e->hit_rate);
    for (uint32_t i = 0; i < p->n_alternatives; i++) {
        const struct moe_plan_alternative *a = &p->alternatives[i];
        char name[80];
        moe_explain_alternative(a->what, a->amount, a->times, a->precision, name);
        if (a->decode_tokens_per_second >= 0)
            put_row(x, name, a->decode_tokens_per_second,
                    moe_plan_gain(p, a->decode_tokens_per_second), a->prefill_tokens_per_second,
                    a->bytes_per_token, a->hit_rate);
        else
            put_refusal(x, a, name);
    }
    put_losses(x);
}
