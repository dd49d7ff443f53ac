/* Routing statistics as tables and pictures, and as JSON. */
#include "show/show.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "cache/learnt.h"
#include "fmt/emit.h"
#include "profile/statistics_figures.h"
#include "show/draw.h"
#include "show/explain.h"

enum { BAR_WIDTH = 40 };

/* ---- For a person ---- */

static void put_percent(struct moe_buf *out, double x)
{
    moe_draw_percent(out, x, 7);
}

static void put_cosine(struct moe_buf *out, double x)
{
    if (isnan(x))
        moe_buf_text(out, "      -");
    else
        moe_buf_printf(out, "  %5.3f", x);
}

static void put_layer(const struct moe_statistics *s, uint32_t layer, struct moe_buf *out)
{
    struct moe_accuracy_figures gate = moe_figure_accuracy(s, layer, MOE_PREDICT_GATE_1);
    struct moe_accuracy_figures residual = moe_figure_accuracy(s, layer, MOE_PREDICT_RESIDUAL_1);
    struct moe_accuracy_figures before = moe_figure_accuracy(s, layer, MOE_PREDICT_PREVIOUS);
    struct moe_reuse_figures reuse = moe_figure_reuse(s, layer);
    if (layer == MOE_ALL_LAYERS)
        moe_buf_text(out, "  all");
    else
        moe_buf_printf(out, "%5" PRIu32, layer);
    put_percent(out, moe_figure_skew(s, layer));
    put_percent(out, moe_figure_document_skew(s, layer));
    put_cosine(out, moe_figure_cosine(s, layer, MOE_COSINE_GATE_1));
    put_percent(out, gate.top1);
    put_percent(out, gate.in_k);
    put_percent(out, gate.in_p75);
    put_percent(out, residual.top1);
    put_percent(out, residual.in_k);
    put_percent(out, before.in_k);
    put_percent(out, reuse.best);
    put_cosine(out, moe_figure_correlation(s, layer));
    moe_buf_text(out, "\n");
}

static void put_layers(const struct moe_statistics *s, struct moe_buf *out)
{
    moe_buf_printf(
        out,
        "\nLayers (of %" PRIu32 " experts, %" PRIu32 " per token)\n"
        "       busiest quarter    this gate's   predicted by this gate on the last    last  best\n"
        "         of experts      input to the  layer's gate input     its residual   token  used  "
        " "
        "w ~ |y|\n"
        "layer   text    doc.     last one's   top1  in k   in p75   top1   in k    in k again\n",
        s->shape.n_experts, s->shape.top_k);
    for (uint32_t l = 0; l < s->shape.n_layers; l++)
        put_layer(s, l, out);
    put_layer(s, MOE_ALL_LAYERS, out);
}

static int put_map(const struct moe_statistics *s, struct moe_screen screen, struct moe_buf *out,
                   struct moe_err *err)
{
    struct moe_heat heat;
    screen.colour = false; /* names from files are beside it */
    int status = moe_heat_of_counts(&heat, s->series[MOE_S_ACTIVATIONS], s->shape.n_layers,
                                    s->shape.n_experts, err);
    if (status == MOE_OK) {
        moe_buf_printf(out,
                       "\nActivations: layers down, experts across (%" PRIu32
                       " a column); %s: from chance to twice it\n",
                       moe_heat_experts(&heat, screen), moe_draw_shade(1.5, 1, screen));
        moe_draw_heat(&heat, screen, out);
    }
    moe_heat_release(&heat);
    return status;
}

static void put_bar(struct moe_buf *out, const char *name, double share, struct moe_screen screen)
{
    if (isnan(share))
        return;
    moe_buf_printf(out, "  %-14s %5.1f%% ", name, 100 * share);
    moe_draw_bar(out, share, moe_draw_columns(screen, BAR_WIDTH, 2 * BAR_WIDTH), screen);
    moe_buf_text(out, "\n");
}

static void put_predictors(const struct moe_statistics *s, struct moe_screen screen,
                           struct moe_buf *out)
{
    moe_buf_printf(out,
                   "\nPredictors: share of a token's %" PRIu32 " experts among as many predicted\n",
                   s->shape.top_k);
    for (int p = 0; p < MOE_N_PREDICTORS; p++)
        put_bar(out, moe_predictor_name(p), moe_figure_accuracy(s, MOE_ALL_LAYERS, p).in_k, screen);
    moe_buf_text(out, "  predictor         top1   in k  in 2k in p75 prompt\n");
    for (int p = 0; p < MOE_N_PREDICTORS; p++) {
        struct moe_accuracy_figures a = moe_figure_accuracy(s, MOE_ALL_LAYERS, p);
        if (isnan(a.top1))
            continue;
        moe_buf_printf(out, "  %-14s", moe_predictor_name(p));
        put_percent(out, a.top1);
        put_percent(out, a.in_k);
        put_percent(out, a.in_2k);
        put_percent(out, a.in_p75);
        put_percent(out, a.prompt);
        moe_buf_text(out, "\n");
    }
}

/* A number as text; "-" where it is not known. */
struct figure {
    char text[32];
};

static struct figure fixed(double x, int decimals)
{
    struct figure f = {"-"};
    if (!isnan(x))
        snprintf(f.text, sizeof f.text, "%.*f", decimals, x);
    return f;
}

static struct figure percent(double x)
{
    struct figure f = {"-"};
    if (!isnan(x))
        snprintf(f.text, sizeof f.text, "%.1f%%", 100 * x);
    return f;
}

static int put_rest(const struct moe_statistics *s, struct moe_buf *out, struct moe_err *err)
{
    struct moe_reuse_figures reuse = moe_figure_reuse(s, MOE_ALL_LAYERS);
    struct moe_similarity_figures like = moe_figure_similarity(s);
    struct moe_path_figures paths;
    double shares[MOE_POPULARITY_POINTS];
    MOE_TRY(moe_figure_paths(s, &paths, err));
    moe_figure_popularity(s, MOE_ALL_LAYERS, shares);
    moe_buf_printf(out, "\nSimilarity of a gate's input to other inputs (cosine)\n ");
    moe_buf_printf(out, " gate 1, 2, 3 layers before: %s %s %s;",
                   fixed(moe_figure_cosine(s, MOE_ALL_LAYERS, MOE_COSINE_GATE_1), 3).text,
                   fixed(moe_figure_cosine(s, MOE_ALL_LAYERS, MOE_COSINE_GATE_2), 3).text,
                   fixed(moe_figure_cosine(s, MOE_ALL_LAYERS, MOE_COSINE_GATE_3), 3).text);
    moe_buf_printf(out, " this layer's attention %s, the last one's %s\n",
                   fixed(moe_figure_cosine(s, MOE_ALL_LAYERS, MOE_COSINE_ATTN), 3).text,
                   fixed(moe_figure_cosine(s, MOE_ALL_LAYERS, MOE_COSINE_ATTN_1), 3).text);
    moe_buf_printf(out,
                   "Token to token: experts used again %s (chance %s), the best %s, any "
                   "%s (chance %s)\n",
                   percent(reuse.active).text, percent(reuse.chance).text, percent(reuse.best).text,
                   percent(reuse.any).text, percent(reuse.any_chance).text);
    if (!isnan(like.whole)) /* else no document has both */
        moe_buf_printf(
            out,
            "Prompt and rest of a document: similarity %s; windows of %d tokens against\n"
            "  the prompt %s, against the last window %s\n",
            fixed(like.whole, 3).text, MOE_DRIFT_WINDOW, fixed(like.drift, 3).text,
            fixed(like.next, 3).text);
    moe_buf_printf(out,
                   "Least popular 10%%, 30%%, 50%% of a document's experts: %s, %s, %s of "
                   "its activations\n",
                   percent(shares[0]).text, percent(shares[2]).text, percent(shares[4]).text);
    moe_buf_printf(out,
                   "Rank-1 paths: %" PRIu64 " different%s, the 20%% most frequent hold %s of "
                   "tokens\n  (log-log slope %s); two layers predict the third in %s\n",
                   paths.n_paths, paths.sampled ? " in the sample kept" : "",
                   percent(paths.top_fifth).text, fixed(paths.slope, 2).text,
                   percent(paths.rank1_right).text);
    moe_buf_text(out, "Mean weight by rank:");
    for (uint32_t k = 0; k < s->shape.top_k; k++)
        moe_buf_printf(out, " %s", fixed(moe_figure_weight(s, MOE_ALL_LAYERS, k), 3).text);
    moe_buf_text(out, "\n");
    if (s->shape.top_k > 1)
        moe_buf_printf(out, "HOBBIT's scores of ranks from 2 on: %s up to 0.6, %s up to 0.9\n",
                       percent(moe_figure_scores_below(s, MOE_ALL_LAYERS, 0.6)).text,
                       percent(moe_figure_scores_below(s, MOE_ALL_LAYERS, 0.9)).text);
    return MOE_OK;
}

int moe_show_statistics(const struct moe_statistics *s, struct moe_screen screen,
                        struct moe_buf *out, struct moe_err *err)
{
    moe_buf_printf(out,
                   "%" PRIu64 " document%s, %" PRIu64 " tokens (at most %" PRIu32
                   " a document); %" PRIu32 " MoE layers, %" PRIu32 " experts, %" PRIu32
                   " per token\n",
                   s->totals[MOE_TOTAL_DOCUMENTS], s->totals[MOE_TOTAL_DOCUMENTS] == 1 ? "" : "s",
                   s->totals[MOE_TOTAL_TOKENS], s->shape.max_tokens, s->shape.n_layers,
                   s->shape.n_experts, s->shape.top_k);
    moe_origins_print(&s->origins, out);
    put_layers(s, out);
    int status = put_map(s, screen, out, err);
    put_predictors(s, screen, out);
    return status == MOE_OK ? put_rest(s, out, err) : status;
}

/* ---- For scripts ---- */

/* null for what was not measured. */
static void put_number(struct moe_emit *e, const char *key, double value)
{
    moe_emit_rounded(e, key, 9, value);
}

static void put_json_predictor(struct moe_emit *e, const struct moe_statistics *s, uint32_t layer,
                               enum moe_predictor p)
{
    struct moe_accuracy_figures a = moe_figure_accuracy(s, layer, p);
    moe_emit_open_map(e, moe_predictor_name(p));
    put_number(e, "top1", a.top1);
    put_number(e, "in_k", a.in_k);
    put_number(e, "in_2k", a.in_2k);
    put_number(e, "in_p75", a.in_p75);
    put_number(e, "prompt", a.prompt);
    moe_emit_close(e);
}

static void put_json_layer(struct moe_emit *e, const char *key, const struct moe_statistics *s,
                           uint32_t layer)
{
    static const char *const cosine_names[MOE_N_COSINES] = {"gate-1", "gate-2", "gate-3",
                                                            "attention", "attention-1"};
    struct moe_reuse_figures reuse = moe_figure_reuse(s, layer);
    double shares[MOE_POPULARITY_POINTS];
    moe_emit_open_map(e, key);
    put_number(e, "skew", moe_figure_skew(s, layer));
    put_number(e, "document_skew", moe_figure_document_skew(s, layer));
    put_number(e, "weight_norm_correlation", moe_figure_correlation(s, layer));
    moe_emit_open_map(e, "cosine");
    for (int c = 0; c < MOE_N_COSINES; c++)
        put_number(e, cosine_names[c], moe_figure_cosine(s, layer, c));
    moe_emit_close(e);
    moe_emit_open_map(e, "predictors");
    for (int p = 0; p < MOE_N_PREDICTORS; p++)
        put_json_predictor(e, s, layer, p);
    moe_emit_close(e);
    moe_emit_open_map(e, "reuse");
    put_number(e, "active", reuse.active);
    put_number(e, "best", reuse.best);
    put_number(e, "any", reuse.any);
    put_number(e, "best_was_active", reuse.was);
    moe_emit_close(e);
    moe_emit_open_list(e, "popularity");
    moe_figure_popularity(s, layer, shares);
    for (int i = 0; i < MOE_POPULARITY_POINTS; i++)
        put_number(e, NULL, isnan(shares[i]) ? 0 : shares[i]);
    moe_emit_close(e);
    moe_emit_open_list(e, "weight_by_rank");
    for (uint32_t k = 0; k < s->shape.top_k; k++)
        put_number(e, NULL, moe_figure_weight(s, layer, k));
    moe_emit_close(e);
    moe_emit_close(e);
}

int moe_show_statistics_json(const struct moe_statistics *s, struct moe_buf *out,
                             struct moe_err *err)
{
    struct moe_similarity_figures like = moe_figure_similarity(s);
    struct moe_path_figures paths;
    struct moe_record_writer w = {.whole = s};
    struct moe_emit *e = &w.emit;
    MOE_TRY(moe_figure_paths(s, &paths, err));
    moe_emit_begin_json(e, out, MOE_EMIT_COMPACT);
    moe_emit_u64(e, "documents", s->totals[MOE_TOTAL_DOCUMENTS]);
    moe_emit_u64(e, "tokens", s->totals[MOE_TOTAL_TOKENS]);
    moe_emit_u64(e, "moe_layers", s->shape.n_layers);
    moe_emit_u64(e, "experts", s->shape.n_experts);
    moe_emit_u64(e, "experts_per_token", s->shape.top_k);
    moe_record_write_map(&w, &moe_origins_record, &s->origins);
    moe_emit_open_map(e, "similarity");
    put_number(e, "prompt_to_rest", like.whole);
    put_number(e, "windows_to_prompt", like.drift);
    put_number(e, "windows_to_last", like.next);
    moe_emit_close(e);
    moe_emit_open_map(e, "paths");
    moe_emit_u64(e, "whole", paths.n_paths);
    moe_emit_bool(e, "sampled", paths.sampled);
    put_number(e, "top_fifth", paths.top_fifth);
    put_number(e, "slope", paths.slope);
    put_number(e, "rank1_right", paths.rank1_right);
    moe_emit_close(e);
    put_json_layer(e, "all", s, MOE_ALL_LAYERS);
    moe_emit_open_list(e, "layers");
    for (uint32_t l = 0; l < s->shape.n_layers; l++)
        put_json_layer(e, NULL, s, l);
    moe_emit_close(e);
    return moe_emit_end(e, err);
}

/* ---- What a cache has learnt ---- */

int moe_show_learnt(const char *path, bool json, struct moe_buf *out, struct moe_err *err)
{
    struct moe_learnt_about about = {0};
    struct moe_emit e;
    char source[24], size[32];
    MOE_TRY(moe_learnt_describe(&about, path, NULL, err));
    const uint64_t n_remembered =
        about.n_tokens < about.n_remembered ? about.n_tokens : about.n_remembered;
    snprintf(source, sizeof source, "%016" PRIx64, about.source);
    if (json) {
        moe_emit_begin_json(&e, out, MOE_EMIT_INDENTED);
        moe_emit_text(&e, "format", "moe-learn");
        moe_emit_text(&e, "source_fingerprint", source);
        moe_emit_u64(&e, "moe_layers", about.n_layers);
        moe_emit_u64(&e, "experts", about.n_experts);
        moe_emit_u64(&e, "experts_per_token", about.top_k);
        moe_emit_u64(&e, "tokens", about.n_tokens);
        moe_emit_u64(&e, "remembered_tokens", n_remembered);
        moe_emit_u64(&e, "bytes", about.bytes);
        return moe_emit_end(&e, err);
    }
    moe_buf_printf(out,
                   "%s: what a cache has learnt of a model's choices, for --learn\n"
                   "model    %s, %" PRIu32 " layers of %" PRIu32 " experts, %" PRIu32 " a token\n"
                   "learnt   from %" PRIu64 " tokens; of the last %" PRIu64
                   " every choice is remembered\n"
                   "size     %s\n",
                   path, about.source ? source : "not known", about.n_layers, about.n_experts,
                   about.top_k, about.n_tokens, n_remembered, moe_format_bytes(about.bytes, size));
    return MOE_OK;
}
