/* What was measured, as pages: statistics, a trace, a bit map, a device profile. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "html/pages.h"
#include "html/pictures.h"
#include "plan/routing_figures.h"
#include "record/statistics_figures.h"
#include "show/explain.h"
#include "show/show_statistics.h"

#define SHADES_OF_USE                                                                              \
    "Layers down, experts across. The middle shade: used as all are on average; the strongest: "   \
    "twice as often or more. A cell's figure is its share of the layer's work"

/* Releases the words. */
static void put_words(struct moe_page *p, struct moe_buf *text)
{
    if (!text->failed && text->size)
        moe_page_lines(p, "The same in words", (const char *)text->data);
    p->out->failed |= text->failed;
    moe_buf_release(text);
}

static int put_use(struct moe_page *p, const uint64_t *counts, uint32_t n_layers,
                   uint32_t n_experts, struct moe_err *err)
{
    struct moe_heat heat = {0};
    int status = moe_heat_of_counts(&heat, counts, n_layers, n_experts, err);
    if (status == MOE_OK) {
        moe_page_open_section(p, "Which experts are used");
        moe_page_heat(p, &heat, SHADES_OF_USE, NULL);
        moe_page_close_section(p);
    }
    moe_heat_release(&heat);
    return status;
}

/* ---- Statistics ---- */

enum { REUSES = 4 };

static void get_reuse(const struct moe_statistics *s, uint32_t layer, double out[REUSES])
{
    struct moe_reuse_figures r = moe_figure_reuse(s, layer);
    out[0] = r.active;
    out[1] = r.best;
    out[2] = r.any;
    out[3] = moe_figure_skew(s, layer);
}

static void get_accuracy(const struct moe_statistics *s, uint32_t layer, double *out)
{
    for (int i = 0; i < MOE_N_PREDICTORS; i++)
        out[i] = moe_figure_accuracy(s, layer, (enum moe_predictor)i).in_k;
}

/* Shares by layer, and a table of those over all layers. */
static int put_shares(struct moe_page *p, const struct moe_statistics *s, const char *title,
                      const char *caption, const char *const *names, uint32_t n,
                      void (*get)(const struct moe_statistics *s, uint32_t layer, double *out),
                      struct moe_err *err)
{
    static const char *const heads[] = {"columns from the left", "all layers"};
    struct moe_heat heat = {0};
    double all[MOE_N_PREDICTORS + REUSES];
    int status = moe_heat_init(&heat, s->shape.n_layers, n, err);
    if (status == MOE_OK) {
        for (uint32_t l = 0; l < s->shape.n_layers; l++)
            get(s, l, heat.values + (uint64_t)l * n);
        heat.usual = 0.5;
        get(s, MOE_ALL_LAYERS, all);
        moe_page_open_section(p, title);
        moe_page_heat(p, &heat, caption, names);
        moe_page_open_table(p, heads, 2);
        for (uint32_t i = 0; i < n; i++) {
            char room[32];
            const char *const cells[] = {names[i], moe_format_percent(all[i], room)};
            moe_page_row(p, cells, 2);
        }
        moe_page_close_table(p);
        moe_page_close_section(p);
    }
    moe_heat_release(&heat);
    return status;
}

int page_statistics(struct moe_page *p, const char *path, struct moe_err *err)
{
    static const char *const reuses[REUSES] = {
        "experts that the token before used", "the token before's best, used again",
        "any of the token before's, used again", "work of the busiest quarter"};
    const char *predictors[MOE_N_PREDICTORS];
    struct moe_statistics *s = NULL;
    struct moe_buf words = {0};
    int status = moe_statistics_read(&s, path, err);
    for (int i = 0; i < MOE_N_PREDICTORS; i++)
        predictors[i] = moe_predictor_name((enum moe_predictor)i);
    if (status == MOE_OK) {
        moe_page_say(p,
                     "%" PRIu64 " document%s, %" PRIu64 " tokens; %" PRIu32 " MoE layers, %" PRIu32
                     " experts, %" PRIu32 " per token.",
                     s->totals[MOE_TOTAL_DOCUMENTS], s->totals[MOE_TOTAL_DOCUMENTS] == 1 ? "" : "s",
                     s->totals[MOE_TOTAL_TOKENS], s->shape.n_layers, s->shape.n_experts,
                     s->shape.top_k);
        status =
            put_use(p, s->series[MOE_S_ACTIVATIONS], s->shape.n_layers, s->shape.n_experts, err);
    }
    if (status == MOE_OK)
        status = put_shares(p, s, "Which are used again",
                            "Layers down; the strongest shade is 100%, unknown shares are grey",
                            reuses, REUSES, get_reuse, err);
    if (status == MOE_OK)
        status = put_shares(p, s, "How well they are predicted",
                            "Share of a token's experts among as many predicted. Layers down, "
                            "predictors across; the strongest shade is 100%, unknown shares are "
                            "grey",
                            predictors, MOE_N_PREDICTORS, get_accuracy, err);
    if (status == MOE_OK)
        status = moe_show_statistics(s, MOE_PLAIN_SCREEN, &words, err);
    put_words(p, &words);
    moe_statistics_free(s);
    return status;
}

/* ---- A trace ---- */

static void put_trace_figures(struct moe_page *p, const struct moe_routing_figures *f)
{
    static const char *const heads[] = {"", "share"};
    static const char *const names[2 + MOE_FIGURES_AHEAD] = {
        "work of the busiest quarter of a layer's experts",
        "a token's experts that the token before used", "experts predicted a layer ahead",
        "... two layers", "... three layers"};
    const double shares[2 + MOE_FIGURES_AHEAD] = {f->busiest, f->reuse, f->accuracy[0],
                                                  f->accuracy[1], f->accuracy[2]};
    moe_page_open_section(p, "What a cache can count on");
    moe_page_open_table(p, heads, 2);
    for (int i = 0; i < 2 + MOE_FIGURES_AHEAD; i++) {
        char room[32];
        const char *const cells[] = {names[i], moe_format_percent(shares[i], room)};
        moe_page_row(p, cells, 2);
    }
    moe_page_close_table(p);
    moe_page_close_section(p);
}

int page_trace(struct moe_page *p, const char *path, struct moe_err *err)
{
    struct moe_trace *t = NULL;
    struct moe_routing_figures_tally tally = {0};
    struct moe_buf words = {0}, picture = {0};
    int status = moe_trace_open(&t, path, err);
    if (status == MOE_OK)
        status = moe_routing_figures_tally_trace(&tally, t, err);
    if (status == MOE_OK)
        status = put_use(p, tally.activations, tally.n_layers, tally.n_experts, err);
    if (status == MOE_OK) {
        const struct moe_routing_figures f = moe_routing_figures_of_tally(&tally);
        put_trace_figures(p, &f);
        status = moe_explain_trace(t, false, MOE_PLAIN_SCREEN, &words, &picture, err);
    }
    put_words(p, &words);
    moe_buf_release(&picture);
    moe_routing_figures_tally_release(&tally);
    moe_trace_close(t);
    return status;
}

/* ---- A bit map ---- */

static int put_importances(struct moe_page *p, const struct moe_map *map, struct moe_err *err)
{
    const struct moe_importances *m = &map->importances;
    uint64_t n = (uint64_t)map->n_layers * map->n_experts, known = 0;
    struct moe_heat heat = {0};
    int status = moe_heat_init(&heat, map->n_layers, map->n_experts, err);
    if (status == MOE_OK) {
        heat.names = map->model_layer;
        heat.usual = 0;
        for (uint64_t e = 0; e < n; e++) {
            known += m->known[e];
            heat.values[e] = m->known[e] ? m->nats[e] : (double)NAN;
            heat.usual += m->known[e] ? fabs(m->nats[e]) : 0;
        }
        heat.usual /= known ? (double)known : 1;
        moe_page_open_section(p, !m->exact ? "How much each expert's precision matters, estimated"
                                 : m->adaptive.estimated
                                     ? "How much each expert's precision matters, measured where "
                                       "it decides, else estimated"
                                     : "How much each expert's precision matters");
        moe_page_heat(p, &heat,
                      "Nats that the texts lose when one expert alone is at the lowest precision. "
                      "Layers down, experts across; the strongest shade: twice the mean or more; "
                      "orange: a gain; grey: not known",
                      NULL);
        moe_page_close_section(p);
    }
    moe_heat_release(&heat);
    return status;
}

static int put_choice(struct moe_page *p, const struct moe_map *map, struct moe_err *err)
{
    static const char *const heads[] = {"bits", "experts"};
    uint64_t n = (uint64_t)map->n_layers * map->n_experts, counts[MOE_PACK_MAX_VARIANTS] = {0};
    struct moe_heat heat = {0};
    int status = moe_heat_init(&heat, map->n_layers, map->n_experts, err);
    if (status == MOE_OK) {
        heat.names = map->model_layer;
        heat.usual = map->n_variants / 2.0;
        for (uint64_t e = 0; e < n; e++) {
            heat.values[e] = map->n_variants - map->choice.variant[e];
            counts[map->choice.variant[e]]++;
        }
        moe_page_open_section(p, "The precision that was chosen");
        moe_page_heat(p, &heat,
                      "Layers down, experts across; the stronger the shade, the more bits. A "
                      "cell's figure: 1 for the fewest bits, then rising",
                      NULL);
        moe_page_open_table(p, heads, 2);
        for (uint32_t v = 0; v < map->n_variants; v++) {
            char room[32];
            snprintf(room, sizeof room, "%" PRIu64, counts[v]);
            const char *const cells[] = {map->variants[v], room};
            moe_page_row(p, cells, 2);
        }
        moe_page_close_table(p);
        moe_page_close_section(p);
    }
    moe_heat_release(&heat);
    return status;
}

int page_map(struct moe_page *p, const char *path, struct moe_err *err)
{
    struct moe_map *map = NULL;
    struct moe_buf words = {0};
    int status = moe_map_read(&map, path, err);
    if (status == MOE_OK && map->importances.there)
        status = put_importances(p, map, err);
    if (status == MOE_OK && map->choice.there)
        status = put_choice(p, map, err);
    if (status == MOE_OK)
        moe_explain_map(map, MOE_PLAIN_SCREEN, &words);
    put_words(p, &words);
    moe_map_free(map);
    return status;
}

/* ---- A device profile ---- */

int page_device(struct moe_page *p, const char *path, struct moe_err *err)
{
    static const char *const heads[] = {"requests in flight", "reading", "each takes"};
    struct moe_device *d = NULL;
    struct moe_buf words = {0};
    int status = moe_device_read(&d, path, err);
    if (status == MOE_OK && d->storage.n_reads) {
        moe_page_open_section(p, "Reading from storage");
        moe_page_open_table(p, heads, 3);
        for (uint32_t i = 0; i < d->storage.n_reads; i++) {
            char room[3][32];
            snprintf(room[0], sizeof room[0], "%" PRIu32, d->storage.reads[i].in_flight);
            const char *const cells[] = {
                room[0], moe_format_rate(d->storage.reads[i].bytes_per_second.value, room[1]),
                moe_format_seconds(d->storage.reads[i].seconds.value, room[2])};
            moe_page_row(p, cells, 3);
        }
        moe_page_close_table(p);
        moe_page_close_section(p);
    }
    if (status == MOE_OK) {
        moe_explain_device(d, MOE_PLAIN_SCREEN, &words);
        put_words(p, &words);
    }
    free(d);
    return status;
}
