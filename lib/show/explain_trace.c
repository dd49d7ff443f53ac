/* What a trace says for planning, as text and as JSON. */
#include <inttypes.h>
#include <math.h>

#include "fmt/emit.h"
#include "plan/routing_figures.h"
#include "show/draw.h"
#include "show/explain.h"
#include "show/heat.h"
#include "show/show_trace.h"

static void put_use(const struct moe_routing_figures *f, struct moe_screen screen,
                    struct moe_buf *out)
{
    double chance = f->n_experts ? (double)f->top_k / f->n_experts : 0;
    moe_buf_text(out, "What a cache can count on\n");
    if (!isnan(f->busiest))
        moe_draw_paragraph(out, screen, NULL, 2,
                           "The busiest quarter of a layer's experts does %.1f%% of its work; with "
                           "even use it would do 25%%.",
                           100 * f->busiest);
    if (!isnan(f->reuse))
        moe_draw_paragraph(out, screen, NULL, 2,
                           "Of a token's experts %.1f%% were also used by the token before it; by "
                           "chance it would be %.1f%%.",
                           100 * f->reuse, 100 * chance);
    if (!isnan(f->accuracy[0]))
        moe_draw_paragraph(out, screen, NULL, 2,
                           "Of a layer's experts %.1f%% are guessed right a layer earlier, by "
                           "running its router on what the one before saw: they can be read ahead.",
                           100 * f->accuracy[0]);
    else
        moe_draw_paragraph(out, screen, NULL, 2,
                           "It has no scores: strategies that predict from routers cannot be "
                           "simulated on it.");
}

static void put_text(const struct moe_trace *t, const struct moe_routing_figures *f,
                     struct moe_screen screen, struct moe_buf *out)
{
    moe_draw_paragraph(out, screen, NULL, 0,
                       "A trace: which experts (blocks of weights) a model chose, token by token, "
                       "so that any way of keeping them in memory can be tried without the model.");
    moe_buf_text(out, "\n");
    put_use(f, screen, out);
    struct moe_buf shown = {0};
    moe_show_trace(t, &shown);
    moe_draw_fit(&shown, screen);
    moe_buf_text(out, "\n");
    moe_buf_append(out, shown.data, shown.size);
    out->failed |= shown.failed;
    moe_buf_release(&shown);
}

static int put_json(const struct moe_trace *t, const struct moe_routing_figures *f,
                    const struct moe_heat *heat, struct moe_buf *out, struct moe_err *err)
{
    struct moe_buf shown = {0};
    struct moe_emit e;
    moe_show_trace_json(t, &shown);
    moe_emit_begin_json(&e, out, MOE_EMIT_LINE);
    if (!shown.failed && shown.size)
        moe_emit_json(&e, "trace", shown.data, shown.size - 1); /* without its newline */
    moe_emit_rounded(&e, "skew", 9, f->busiest);
    moe_emit_rounded(&e, "reuse", 9, f->reuse);
    moe_emit_open_line_list(&e, "predicted");
    for (int i = 0; i < MOE_FIGURES_AHEAD; i++)
        moe_emit_rounded(&e, NULL, 9, f->accuracy[i]);
    moe_emit_close(&e);
    moe_heat_json(&e, "use", heat);
    out->failed |= shown.failed;
    moe_buf_release(&shown);
    return moe_emit_end(&e, err);
}

int moe_explain_trace(struct moe_trace *t, bool json, struct moe_screen screen, struct moe_buf *out,
                      struct moe_buf *picture, struct moe_err *err)
{
    struct moe_routing_figures_tally tally;
    struct moe_heat heat = {0};
    int status = moe_routing_figures_tally_trace(&tally, t, err);
    if (status == MOE_OK)
        status = moe_heat_of_counts(&heat, tally.activations, tally.n_layers, tally.n_experts, err);
    if (status == MOE_OK) {
        const struct moe_routing_figures f = moe_routing_figures_of_tally(&tally);
        if (json) {
            status = put_json(t, &f, &heat, out, err);
        } else {
            put_text(t, &f, screen, out);
            moe_explain_heat(&heat, screen, picture);
            moe_buf_text(picture, "\nNext: moe-plan --simulate TRACE --memory 10%,25%,50%\n");
        }
    }
    moe_heat_release(&heat);
    moe_routing_figures_tally_release(&tally);
    return status;
}
