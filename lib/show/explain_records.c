/* Statistics, traces and plans of collections explained: what they say for planning. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/text.h"
#include "fmt/emit.h"
#include "plan/routing_figures.h"
#include "profile/statistics_figures.h"
#include "sched/strategy.h"
#include "serve/coe_dispatch.h"
#include "show/draw.h"
#include "show/explain.h"
#include "show/show.h"

enum { BAR = 30, LAYER_LINES = 16 };

/* Each layer's accuracy of gate-1, owned, and the boundary that follows. */
static int boundary_of(const struct moe_statistics *s, double **accuracy, uint32_t *boundary,
                       struct moe_err *err)
{
    *accuracy = moe_alloc(s->shape.n_layers, sizeof **accuracy, err);
    if (!*accuracy)
        return MOE_ERR_MEMORY;
    moe_layer_accuracies(s, MOE_PREDICT_GATE_1, *accuracy);
    *boundary = moe_boundary(*accuracy, s->shape.n_layers);
    return MOE_OK;
}

/* ---- Text ---- */

/* A line of a table: the shares in percent, the first of them as a bar. */
static void put_shares(struct moe_buf *out, const char *name, const double *shares, int n,
                       struct moe_screen screen)
{
    moe_buf_printf(out, "  %-12s", name);
    for (int i = 0; i < n; i++)
        moe_draw_percent(out, shares[i], 8);
    moe_buf_text(out, "  ");
    moe_draw_bar(out, shares[0], moe_draw_columns(screen, BAR, 2 * BAR), screen);
    moe_buf_text(out, "\n");
}

/* What follows from them, first. */
static void put_answer(const struct moe_statistics *s, const struct moe_pen *pen)
{
    const double skew = moe_figure_skew(s, MOE_ALL_LAYERS);
    const double ahead = moe_figure_accuracy(s, MOE_ALL_LAYERS, MOE_PREDICT_GATE_1).in_k;
    char room[32];
    if (!isnan(skew))
        moe_say(pen, 0,
                "%s keeping experts in memory: the busiest quarter of them does %s of the work "
                "(25%% if all were used alike).",
                skew >= 0.35 ? "Worth" : "Hardly worth", moe_format_about_share(skew, room));
    if (!isnan(ahead))
        moe_say(
            pen, 0,
            "%s reading them ahead: %s of a layer's experts are guessed right one layer before.",
            ahead >= 0.5 ? "Worth" : "Hardly worth", moe_format_about_share(ahead, room));
    moe_buf_text(pen->out, "\n");
}

static void put_uses(const struct moe_statistics *s, const struct moe_pen *pen)
{
    struct moe_reuse_figures reuse = moe_figure_reuse(s, MOE_ALL_LAYERS);
    moe_say(pen, 0,
            "%" PRIu64 " text%s of at most %" PRIu32 " tokens, %" PRIu64
            " tokens in all, through %" PRIu32 " layers of %" PRIu32
            " experts (blocks of weights); a token uses %" PRIu32 " of them.",
            s->totals[MOE_TOTAL_DOCUMENTS], s->totals[MOE_TOTAL_DOCUMENTS] == 1 ? "" : "s",
            s->shape.max_tokens, s->totals[MOE_TOTAL_TOKENS], s->shape.n_layers, s->shape.n_experts,
            s->shape.top_k);
    moe_buf_text(pen->out, "\nWhat a cache can count on\n");
    moe_say(pen, 2,
            "The busiest quarter of a layer's experts does %.1f%% of its work over all texts, "
            "%.1f%% within a text; with even use it would do 25%%.",
            100 * moe_figure_skew(s, MOE_ALL_LAYERS),
            100 * moe_figure_document_skew(s, MOE_ALL_LAYERS));
    moe_say(pen, 2,
            "Of a token's experts %.1f%% were also used by the token before it; by chance it would "
            "be %.1f%%.",
            100 * reuse.active, 100 * reuse.chance);
    if (!isnan(moe_figure_similarity(s).whole)) /* else no text has both */
        moe_say(pen, 2,
                "The use of experts in a prompt and that in the rest of its text agree by %.3f, "
                "where 1 means alike.",
                moe_figure_similarity(s).whole);
    moe_say(pen, 2, "%s",
            moe_statistics_has_decoded(s)
                ? "Where experts are placed by frequency (--init, --alloc), the rest of each text "
                  "counts, not its prompt."
                : "Where experts are placed by frequency (--init, --alloc), prompts count as well: "
                  "all of each text is prompt.");
}

static void put_predictors(const struct moe_statistics *s, const struct moe_pen *pen)
{
    moe_say(pen, 0,
            "\nGuesses before a layer's router has chosen: share of its %" PRIu32
            " experts that are among as many guessed, and among the likeliest quarter of all",
            s->shape.top_k);
    for (enum moe_predictor p = 0; p < MOE_N_PREDICTORS; p++) {
        struct moe_accuracy_figures a = moe_figure_accuracy(s, MOE_ALL_LAYERS, p);
        if (isnan(a.in_k))
            continue;
        const double shares[] = {a.in_k, a.in_p75};
        put_shares(pen->out, moe_predictor_name(p), shares, 2, pen->screen);
    }
    moe_say(pen, 2,
            "previous: the experts of the token before. token: those of the same token where it "
            "came last. gate-N: the layer's own router, on what the router N layers before saw; "
            "residual-N: on the stream there; attention: on what goes into its attention, "
            "attention-N: N layers before.");
}

static int put_heat(const struct moe_statistics *s, const struct moe_pen *pen, struct moe_err *err)
{
    struct moe_heat heat;
    int status = moe_heat_of_counts(&heat, s->series[MOE_S_ACTIVATIONS], s->shape.n_layers,
                                    s->shape.n_experts, err);
    if (status == MOE_OK)
        moe_explain_heat(&heat, pen->screen, pen->out);
    moe_heat_release(&heat);
    return status;
}

/* Unknown layers count as 0, as for the boundary. */
static double mean(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] > 0 ? x[i] : 0;
    return sum / n;
}

static void put_layers(const struct moe_statistics *s, const double *accuracy, uint32_t boundary,
                       const struct moe_pen *pen)
{
    uint32_t n = s->shape.n_layers, step = (n + LAYER_LINES - 1) / LAYER_LINES;
    moe_buf_text(pen->out,
                 "\nBy layer, guessed from what the router of the layer before saw (gate-1)\n");
    for (uint32_t l = 0; l < n; l += step) {
        uint32_t of = l + step < n ? step : n - l;
        char name[32];
        double share = of == 1 ? accuracy[l] : mean(accuracy + l, of);
        put_shares(pen->out, moe_format_layers(l, of, name), &share, 1, pen->screen);
    }
    if (boundary)
        moe_say(pen, 2,
                "Clearly harder to guess than the others: the first %" PRIu32
                " (%.1f%% on average against %.1f%%; a layer without guesses counts as 0). --alloc "
                "shallow:%" PRIu32 " keeps all their experts, where memory allows.",
                boundary, 100 * mean(accuracy, boundary),
                100 * mean(accuracy + boundary, n - boundary), boundary);
    else
        moe_say(pen, 2, "The first layers are not clearly harder to guess than the others.");
}

void moe_explain_heat(const struct moe_heat *heat, struct moe_screen screen, struct moe_buf *out)
{
    const struct moe_pen pen = {out, screen};
    uint32_t experts = moe_heat_experts(heat, screen);
    moe_buf_text(out, "\nHow often each expert is used, layers down, experts across\n");
    moe_draw_heat(heat, screen, out);
    moe_say(
        &pen, 2,
        "%s: as often as if all were used alike, to twice that; %s more; the fainter, the less.%s",
        moe_draw_shade(1.5, 1, screen), moe_draw_shade(3, 1, screen),
        experts > 1 ? " A column is the mean of several experts." : "");
}

int moe_explain_statistics(const struct moe_statistics *s, struct moe_screen screen,
                           struct moe_buf *out, struct moe_buf *picture, struct moe_err *err)
{
    const struct moe_pen pen = {out, screen};
    double *accuracy = NULL;
    uint32_t boundary = 0;
    int status = boundary_of(s, &accuracy, &boundary, err);
    if (status == MOE_OK) {
        put_answer(s, &pen);
        put_uses(s, &pen);
        put_predictors(s, &pen);
        put_layers(s, accuracy, boundary, &pen);
        status = put_heat(s, &(struct moe_pen){picture, screen}, err);
        moe_buf_text(picture, "\nNext: moe-plan PACK --memory SIZE --stats STATS\n");
    }
    free(accuracy);
    return status;
}

/* ---- For scripts ---- */

/* null for what is not known. */
static void put_number(struct moe_emit *e, const char *key, double x)
{
    moe_emit_rounded(e, key, 9, x < 0 ? (double)NAN : x);
}

int moe_explain_statistics_json(const struct moe_statistics *s, struct moe_buf *out,
                                struct moe_err *err)
{
    struct moe_reuse_figures reuse = moe_figure_reuse(s, MOE_ALL_LAYERS);
    double *accuracy = NULL;
    uint32_t boundary = 0;
    struct moe_emit e;
    struct moe_heat heat;
    int status = boundary_of(s, &accuracy, &boundary, err);
    if (status != MOE_OK)
        return status;
    status = moe_heat_of_counts(&heat, s->series[MOE_S_ACTIVATIONS], s->shape.n_layers,
                                s->shape.n_experts, err);
    if (status != MOE_OK) {
        free(accuracy);
        return status;
    }
    moe_emit_begin_json(&e, out, MOE_EMIT_LINE);
    moe_emit_u64(&e, "texts", s->totals[MOE_TOTAL_DOCUMENTS]);
    moe_emit_u64(&e, "tokens", s->totals[MOE_TOTAL_TOKENS]);
    moe_emit_u64(&e, "moe_layers", s->shape.n_layers);
    moe_emit_u64(&e, "experts", s->shape.n_experts);
    moe_emit_u64(&e, "experts_per_token", s->shape.top_k);
    put_number(&e, "skew", moe_figure_skew(s, MOE_ALL_LAYERS));
    put_number(&e, "document_skew", moe_figure_document_skew(s, MOE_ALL_LAYERS));
    put_number(&e, "reuse", reuse.active);
    put_number(&e, "reuse_by_chance", reuse.chance);
    put_number(&e, "prompt_to_rest", moe_figure_similarity(s).whole);
    moe_emit_text(&e, "placement_by", moe_statistics_has_decoded(s) ? "decode" : "all");
    moe_emit_open_map(&e, "predictors");
    for (enum moe_predictor p = 0; p < MOE_N_PREDICTORS; p++) {
        struct moe_accuracy_figures a = moe_figure_accuracy(s, MOE_ALL_LAYERS, p);
        moe_emit_open_map(&e, moe_predictor_name(p));
        put_number(&e, "in_k", a.in_k);
        put_number(&e, "in_p75", a.in_p75);
        moe_emit_close(&e);
    }
    moe_emit_close(&e);
    moe_emit_open_list(&e, "layers");
    for (uint32_t l = 0; l < s->shape.n_layers; l++)
        put_number(&e, NULL, accuracy[l]);
    moe_emit_close(&e);
    moe_emit_u64(&e, "boundary", boundary);
    moe_heat_json(&e, "use", &heat);
    moe_heat_release(&heat);
    free(accuracy);
    return moe_emit_end(&e, err);
}

/* What a trace says for planning, as text and as JSON. */

static void put_use(const struct moe_routing_figures *f, const struct moe_pen *pen)
{
    double chance = f->n_experts ? (double)f->top_k / f->n_experts : 0;
    moe_buf_text(pen->out, "What a cache can count on\n");
    if (!isnan(f->busiest))
        moe_say(pen, 2,
                "The busiest quarter of a layer's experts does %.1f%% of its work; with even use "
                "it would do 25%%.",
                100 * f->busiest);
    if (!isnan(f->reuse))
        moe_say(pen, 2,
                "Of a token's experts %.1f%% were also used by the token before it; by chance it "
                "would be %.1f%%.",
                100 * f->reuse, 100 * chance);
    if (!isnan(f->accuracy[0]))
        moe_say(pen, 2,
                "Of a layer's experts %.1f%% are guessed right a layer earlier, by running its "
                "router on what the one before saw: they can be read ahead.",
                100 * f->accuracy[0]);
    else
        moe_say(
            pen, 2,
            "It has no scores: strategies that predict from routers cannot be simulated on it.");
}

static void put_text(const struct moe_trace *t, const struct moe_routing_figures *f,
                     const struct moe_pen *pen)
{
    moe_say(pen, 0,
            "A trace: which experts (blocks of weights) a model chose, token by token, so that any "
            "way of keeping them in memory can be tried without the model.");
    moe_buf_text(pen->out, "\n");
    put_use(f, pen);
    struct moe_buf shown = {0};
    moe_show_trace(t, &shown);
    moe_draw_fit(&shown, pen->screen);
    moe_buf_text(pen->out, "\n");
    moe_buf_append(pen->out, shown.data, shown.size);
    pen->out->failed |= shown.failed;
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
    const struct moe_pen pen = {out, screen};
    struct moe_routing_figures_tally tally;
    struct moe_heat heat = {0};
    int status;
    MOE_STEP(moe_routing_figures_tally_trace(&tally, t, err));
    MOE_STEP(moe_heat_of_counts(&heat, tally.activations, tally.n_layers, tally.n_experts, err));
    const struct moe_routing_figures f = moe_routing_figures_of_tally(&tally);
    if (json) {
        MOE_STEP(put_json(t, &f, &heat, out, err));
    } else {
        put_text(t, &f, &pen);
        moe_explain_heat(&heat, screen, picture);
        moe_buf_text(picture, "\nNext: moe-plan --simulate TRACE --memory 10%,25%,50%\n");
    }
out:
    moe_heat_release(&heat);
    moe_routing_figures_tally_release(&tally);
    return status;
}

/* ---- Collections ---- */

static void put_executors(const struct moe_coe_plan *plan, struct moe_buf *out)
{
    char experts[32], batches[32];
    bool teams = false;
    for (uint32_t i = 0; i < plan->n_executors; i++)
        teams = teams || plan->executors[i].threads;
    moe_buf_printf(out, "\nExecutors          for experts   for batches   experts in all%s\n",
                   teams ? "   threads" : "");
    for (uint32_t i = 0; i < plan->n_executors; i++) {
        const struct moe_coe_plan_executors *e = &plan->executors[i];
        moe_buf_printf(out, "  %2" PRIu32 " on %-10s %12s  %12s   %14" PRIu32, e->number, e->device,
                       moe_format_bytes(e->expert_bytes, experts),
                       moe_format_bytes(e->batch_bytes, batches), e->experts);
        if (e->threads)
            moe_buf_printf(out, "   %7" PRIu32, e->threads);
        moe_buf_text(out, "\n");
    }
    if (plan->host_bytes)
        moe_buf_printf(out, "  above the disk   %12s\n",
                       moe_format_bytes(plan->host_bytes, experts));
    if (plan->n_batches)
        moe_buf_text(out, "\nLargest batches\n");
    for (uint32_t i = 0; i < plan->n_batches; i++)
        moe_buf_printf(out, "  %-24s on %-6s %6" PRIu32 "\n", plan->batches[i].architecture,
                       plan->batches[i].device, plan->batches[i].requests);
}

static void put_ways(const struct moe_coe_plan *plan, const struct moe_pen *pen)
{
    static const char *const leaves[] = {
        [MOE_COE_LRU] = "the one that was not used for the longest time",
        [MOE_COE_FIFO] = "the one that was loaded first",
        [MOE_COE_TWO_STAGE] = "first those that only follow others which are not in memory, the "
                              "largest first, then the least probable",
        [MOE_COE_QUEUE] =
            "of those that no request waits for, first those that only follow others "
            "which are not in memory, the largest first, then the least probable, and "
            "last of all the one whose requests come last"};
    const struct moe_coe_schedule *s = moe_coe_schedule_find(plan->schedule);
    enum moe_coe_evict evict = MOE_COE_LRU;
    moe_coe_evict_find(plan->evict, &evict);
    moe_buf_text(pen->out, "\n");
    moe_say(pen, 0, "Requests go %s (%s). Where an expert needs room, %s leaves (%s).%s",
            s ? s->what : "?", plan->schedule, leaves[evict], plan->evict,
            plan->prefetch ? " The next expert loads while the present one computes." : "");
}

/* Whether the same executors did better with another number of experts. */
static bool is_beaten(const struct moe_coe_plan *plan, const struct moe_coe_plan_trial *t)
{
    bool beaten = false;
    for (uint32_t i = 0; i < plan->n_trials; i++) {
        const struct moe_coe_plan_trial *other = &plan->trials[i];
        beaten |= other != t && other->cuda == t->cuda && other->cpu == t->cpu &&
                  (other->throughput > t->throughput ||
                   (other->throughput == t->throughput && other < t));
    }
    return beaten;
}

/* A row for each combination of executors, at its best. */
static void put_trials(const struct moe_coe_plan *plan, const struct moe_pen *pen)
{
    double most = 0;
    bool counted = false;
    for (uint32_t i = 0; i < plan->n_trials; i++) {
        most = plan->trials[i].throughput > most ? plan->trials[i].throughput : most;
        counted = counted || plan->trials[i].experts;
    }
    if (plan->n_trials)
        moe_buf_printf(pen->out, "\nExecutors%-15sresults/s\n", counted ? "; experts" : " tried");
    for (uint32_t i = 0; i < plan->n_trials; i++) {
        const struct moe_coe_plan_trial *t = &plan->trials[i];
        if (is_beaten(plan, t))
            continue;
        moe_buf_printf(pen->out, "  %2" PRIu32 " cuda, %2" PRIu32 " cpu", t->cuda, t->cpu);
        if (t->experts)
            moe_buf_printf(pen->out, "; %-4" PRIu32 "%10.4g  ", t->experts, t->throughput);
        else
            moe_buf_printf(pen->out, "  %14.4g  ", t->throughput);
        moe_draw_bar(pen->out, most > 0 ? t->throughput / most : 0,
                     moe_draw_columns(pen->screen, 30, 60), pen->screen);
        moe_buf_text(pen->out, "\n");
    }
    if (plan->n_points)
        moe_buf_text(pen->out, "\nExperts in memory       results/s\n");
    most = 0;
    for (uint32_t i = 0; i < plan->n_points; i++)
        most = plan->points[i].throughput > most ? plan->points[i].throughput : most;
    for (uint32_t i = 0; i < plan->n_points; i++) {
        const struct moe_coe_plan_point *p = &plan->points[i];
        moe_buf_printf(pen->out, "  %15" PRIu32 "  %14.4g  ", p->experts, p->throughput);
        moe_draw_bar(pen->out, most > 0 ? p->throughput / most : 0,
                     moe_draw_columns(pen->screen, 30, 60), pen->screen);
        moe_buf_text(pen->out, "\n");
    }
}

void moe_explain_coe_plan(const struct moe_coe_plan *plan, struct moe_screen screen,
                          struct moe_buf *out)
{
    const struct moe_pen pen = {out, screen};
    char memory[32];
    moe_say(&pen, 0, "Plan for %s on %s, in %s",
            plan->collection[0] ? plan->collection : "a collection",
            plan->machine[0] ? plan->machine : "a machine",
            moe_format_bytes(plan->memory_bytes, memory));
    put_executors(plan, out);
    put_ways(plan, &pen);
    if (plan->n_reasons)
        moe_buf_text(out, "\nWhy\n");
    for (uint32_t i = 0; i < plan->n_reasons; i++)
        moe_say(&pen, 2, "%s: %s.", plan->reasons[i].about, plan->reasons[i].text);
    put_trials(plan, &pen);
    if (plan->throughput > 0)
        moe_buf_printf(out, "\nExpected of the sample: %.4g results/s, %" PRIu64 " switches.\n",
                       plan->throughput, plan->switches);
}
