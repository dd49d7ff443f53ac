/* What statistics say for planning, as text and as JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "fmt/emit.h"
#include "record/statistics_figures.h"
#include "sched/boundary.h"
#include "show/draw.h"
#include "show/explain.h"
#include "show/heat.h"

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
static void put_answer(const struct moe_statistics *s, struct moe_screen screen,
                       struct moe_buf *out)
{
    const double skew = moe_figure_skew(s, MOE_ALL_LAYERS);
    const double ahead = moe_figure_accuracy(s, MOE_ALL_LAYERS, MOE_PREDICT_GATE_1).in_k;
    char room[32];
    if (!isnan(skew))
        moe_draw_paragraph(out, screen, NULL, 0,
                           "%s keeping experts in memory: the busiest quarter of them does %s of "
                           "the work (25%% if all were used alike).",
                           skew >= 0.35 ? "Worth" : "Hardly worth",
                           moe_format_about_share(skew, room));
    if (!isnan(ahead))
        moe_draw_paragraph(out, screen, NULL, 0,
                           "%s reading them ahead: %s of a layer's experts are guessed right one "
                           "layer before.",
                           ahead >= 0.5 ? "Worth" : "Hardly worth",
                           moe_format_about_share(ahead, room));
    moe_buf_text(out, "\n");
}

static void put_uses(const struct moe_statistics *s, struct moe_screen screen, struct moe_buf *out)
{
    struct moe_reuse_figures reuse = moe_figure_reuse(s, MOE_ALL_LAYERS);
    moe_draw_paragraph(out, screen, NULL, 0,
                       "%" PRIu64 " text%s of at most %" PRIu32 " tokens, %" PRIu64
                       " tokens in all, through %" PRIu32 " layers of %" PRIu32
                       " experts (blocks of weights); a token uses %" PRIu32 " of them.",
                       s->totals[MOE_TOTAL_DOCUMENTS],
                       s->totals[MOE_TOTAL_DOCUMENTS] == 1 ? "" : "s", s->shape.max_tokens,
                       s->totals[MOE_TOTAL_TOKENS], s->shape.n_layers, s->shape.n_experts,
                       s->shape.top_k);
    moe_buf_text(out, "\nWhat a cache can count on\n");
    moe_draw_paragraph(out, screen, NULL, 2,
                       "The busiest quarter of a layer's experts does %.1f%% of its work over all "
                       "texts, %.1f%% within a text; with even use it would do 25%%.",
                       100 * moe_figure_skew(s, MOE_ALL_LAYERS),
                       100 * moe_figure_document_skew(s, MOE_ALL_LAYERS));
    moe_draw_paragraph(
        out, screen, NULL, 2,
        "Of a token's experts %.1f%% were also used by the token before it; by chance "
        "it would be %.1f%%.",
        100 * reuse.active, 100 * reuse.chance);
    if (!isnan(moe_figure_similarity(s).whole)) /* else no text has both */
        moe_draw_paragraph(
            out, screen, NULL, 2,
            "The use of experts in a prompt and that in the rest of its text agree by "
            "%.3f, where 1 means alike.",
            moe_figure_similarity(s).whole);
    moe_draw_paragraph(out, screen, NULL, 2, "%s",
                       moe_statistics_has_decoded(s)
                           ? "Where experts are placed by frequency (--init, --alloc), the rest of "
                             "each text counts, not its prompt."
                           : "Where experts are placed by frequency (--init, --alloc), prompts "
                             "count as well: the rest of the texts was not counted apart (an "
                             "earlier version made the statistics, or all of a text is prompt).");
}

static void put_predictors(const struct moe_statistics *s, struct moe_screen screen,
                           struct moe_buf *out)
{
    moe_draw_paragraph(
        out, screen, NULL, 0,
        "\nGuesses before a layer's router has chosen: share of its %" PRIu32
        " experts that are among as many guessed, and among the likeliest quarter of "
        "all",
        s->shape.top_k);
    for (enum moe_predictor p = 0; p < MOE_N_PREDICTORS; p++) {
        struct moe_accuracy_figures a = moe_figure_accuracy(s, MOE_ALL_LAYERS, p);
        if (isnan(a.in_k))
            continue;
        const double shares[] = {a.in_k, a.in_p75};
        put_shares(out, moe_predictor_name(p), shares, 2, screen);
    }
    moe_draw_paragraph(
        out, screen, NULL, 2,
        "previous: the experts of the token before. token: those of the same token "
        "where it came last. gate-N: the layer's own router, on what the router N "
        "layers before saw; residual-N: on the stream there; attention: on what goes "
        "into its attention, attention-N: N layers before.");
}

static int put_heat(const struct moe_statistics *s, struct moe_screen screen, struct moe_buf *out,
                    struct moe_err *err)
{
    struct moe_heat heat;
    int status = moe_heat_of_counts(&heat, s->series[MOE_S_ACTIVATIONS], s->shape.n_layers,
                                    s->shape.n_experts, err);
    if (status == MOE_OK)
        moe_explain_heat(&heat, screen, out);
    moe_heat_release(&heat);
    return status;
}

/* Layers of which nothing is known count as 0, as for the boundary. */
static double mean(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] > 0 ? x[i] : 0;
    return sum / n;
}

static void put_layers(const struct moe_statistics *s, const double *accuracy, uint32_t boundary,
                       struct moe_screen screen, struct moe_buf *out)
{
    uint32_t n = s->shape.n_layers, step = (n + LAYER_LINES - 1) / LAYER_LINES;
    moe_buf_text(out,
                 "\nBy layer, guessed from what the router of the layer before saw (gate-1)\n");
    for (uint32_t l = 0; l < n; l += step) {
        uint32_t of = l + step < n ? step : n - l;
        char name[32];
        double share = of == 1 ? accuracy[l] : mean(accuracy + l, of);
        put_shares(out, moe_format_layers(l, of, name), &share, 1, screen);
    }
    if (boundary)
        moe_draw_paragraph(out, screen, NULL, 2,
                           "Clearly harder to guess than the others: the first %" PRIu32
                           " (%.1f%% on average against %.1f%%; a layer without guesses counts as "
                           "0). --alloc shallow:%" PRIu32 " keeps all their experts, where memory "
                           "allows.",
                           boundary, 100 * mean(accuracy, boundary),
                           100 * mean(accuracy + boundary, n - boundary), boundary);
    else
        moe_draw_paragraph(out, screen, NULL, 2,
                           "The first layers are not clearly harder to guess than the others.");
}

void moe_explain_heat(const struct moe_heat *heat, struct moe_screen screen, struct moe_buf *out)
{
    uint32_t experts = moe_heat_experts(heat, screen);
    moe_buf_text(out, "\nHow often each expert is used, layers down, experts across\n");
    moe_draw_heat(heat, screen, out);
    moe_draw_paragraph(
        out, screen, NULL, 2,
        "%s: as often as if all were used alike, to twice that; %s more; the fainter, "
        "the less.%s",
        moe_draw_shade(1.5, 1, screen), moe_draw_shade(3, 1, screen),
        experts > 1 ? " A column is the mean of several experts." : "");
}

int moe_explain_statistics(const struct moe_statistics *s, struct moe_screen screen,
                           struct moe_buf *out, struct moe_buf *picture, struct moe_err *err)
{
    double *accuracy = NULL;
    uint32_t boundary = 0;
    int status = boundary_of(s, &accuracy, &boundary, err);
    if (status == MOE_OK) {
        put_answer(s, screen, out);
        put_uses(s, screen, out);
        put_predictors(s, screen, out);
        put_layers(s, accuracy, boundary, screen, out);
        status = put_heat(s, screen, picture, err);
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
