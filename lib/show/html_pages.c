/* One page for each kind of file. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "cache/learnt.h"
#include "fmt/json.h"
#include "fmt/timeline.h"
#include "fmt/yaml.h"
#include "plan/routing_figures.h"
#include "profile/statistics_figures.h"
#include "profile/trace.h"
#include "show/draw.h"
#include "show/explain.h"
#include "show/explain_figures.h"
#include "show/html.h"
#include "show/show.h"

int moe_page_of_file(const char *path, const char *timeline, struct moe_buf *out,
                     struct moe_err *err)
{
    static const struct {
        const char *format, *title;
        int (*draw)(struct moe_page *p, const char *path, struct moe_err *err);
    } known[] = {
        {"moe-plan", "Plan", page_plan},
        {"moe-map", "Bit map", page_map},
        {"moe-device", "Device profile", page_device},
        {"moe-stats", "Statistics", page_statistics}, /* last: what else is read as */
    };
    enum { LAST = sizeof known / sizeof known[0] - 1 };
    struct moe_page page;
    char title[300];
    bool trace = moe_trace_is(path);
    size_t i = 0;
    if (moe_learnt_is(path))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: what a cache has learnt has no page: leave out --html", path);
    while (!trace && i < LAST && !moe_yaml_file_is(path, known[i].format))
        i++;
    snprintf(title, sizeof title, "%s: %s", trace ? "Trace" : known[i].title, moe_path_name(path));
    moe_page_begin(&page, out, title);
    int status = (trace ? page_trace : known[i].draw)(&page, path, err);
    if (status == MOE_OK && timeline)
        status = page_timeline(&page, timeline, err);
    moe_page_end(&page);
    return status;
}

/* A plan as a page: what its text says (show/explain_plan.c), with pictures. */

static const struct moe_screen unicode = {.columns = MOE_USUAL_COLUMNS, .blocks = true};

/* Folds the words away under the title, and releases them. */
static void put_words(struct moe_page *p, const char *title, struct moe_buf *text)
{
    if (!text->failed && text->size)
        moe_page_lines(p, title, (const char *)text->data);
    p->out->failed |= text->failed;
    moe_buf_release(text);
}

static void put_head(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_buf answer = {0}, speed = {0}, prompt = {0};
    char room[32];
    moe_explain_answer(plan, &answer);
    moe_explain_speed(plan, false, &speed);
    if (plan->first.decode_tokens_per_second > 0)
        moe_buf_text(&speed, ". The first: ");
    moe_explain_first(plan, &speed);
    moe_explain_speed(plan, true, &prompt);
    p->out->failed |= answer.failed || speed.failed || prompt.failed;
    if (!p->out->failed) {
        moe_page_answer(p, (const char *)answer.data);
        moe_page_say(p, "%s in %s%s%s, simulated. An answer: %s. A prompt: %s.",
                     plan->pack[0] ? plan->pack : "A model",
                     moe_format_about_bytes(moe_plan_budget(plan), room),
                     plan->evidence.device[0] ? ", on " : "", plan->evidence.device,
                     (const char *)speed.data, (const char *)prompt.data);
    }
    moe_buf_release(&answer);
    moe_buf_release(&speed);
    moe_buf_release(&prompt);
}

static void put_parts(struct moe_page *p, const char *title, const char *caption,
                      const struct moe_explained_part *parts, uint32_t n,
                      char *(*format)(double, char[32]), const char *note)
{
    if (n == 0)
        return;
    moe_page_open_section(p, title);
    moe_page_parts(p, parts, n, caption, format);
    moe_page_note(p, note);
    moe_page_close_section(p);
}

static void put_memory(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_explained_part parts[MOE_EXPLAINED_PARTS];
    char note[256];
    snprintf(note, sizeof note,
             "Experts are blocks of weights: each of %" PRIu32 " layers has %" PRIu32
             ", a token uses %" PRIu32 " of them. Those that have no room are read when they are "
             "needed.",
             plan->n_layers, plan->n_experts, plan->top_k);
    put_parts(p, "Where the memory goes", "The memory of the plan", parts,
              moe_explain_memory(plan, &plan->memory, parts), moe_format_about_bytes, note);
    if (plan->host.total)
        put_parts(p, "Where main memory goes", "The memory beside the GPU's", parts,
                  moe_explain_memory(plan, &plan->host, parts), moe_format_about_bytes,
                  "Experts here wait to be brought to the GPU.");
}

static void put_time(struct moe_page *p, const struct moe_plan *plan)
{
    const struct moe_plan_bounds b = moe_plan_bounds(plan);
    struct moe_explained_part parts[MOE_EXPLAINED_PARTS];
    char title[64], room[32];
    if (b.total <= 0)
        return;
    snprintf(title, sizeof title, "Where a token's time goes, %s",
             moe_format_about_seconds(b.total, room));
    put_parts(p, title, "The time of a token, by cause", parts, moe_explain_time(plan, parts),
              moe_format_about_seconds,
              "Computing: what it would take with every expert in memory. Nobody could avoid: what "
              "must be read even if the cache knew the text, as long as it reads nothing ahead. A "
              "perfect guess: the rest, if it were known what the text will use.");
}

static void put_layers(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_table t;
    if (!moe_explain_layers(plan, MOE_TABLE_ROWS - 1, &t))
        return;
    moe_page_open_section(p, "Layers with experts");
    moe_page_table(p, &t);
    moe_page_note(p, "In memory: of the experts that a layer's tokens use. Waits: for the others, "
                     "for each token. Guessed: before the layer's router has chosen; that can be "
                     "read ahead.");
    moe_page_close_section(p);
}

/* A curve, with the table of its points. */
static void put_steps(struct moe_page *p, const char *title, struct moe_page_curve curve,
                      const struct moe_plan_step *steps, uint32_t n, bool known,
                      const struct moe_table *t, const char *note)
{
    double x[MOE_PLAN_MAX_STEPS], y[MOE_PLAN_MAX_STEPS];
    if (!known)
        return;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = steps[i].amount;
        y[i] = steps[i].decode_tokens_per_second;
    }
    curve.n = n;
    curve.x = x;
    curve.y = y;
    curve.y_name = "tokens/s of an answer";
    moe_page_open_section(p, title);
    moe_page_curve(p, &curve);
    moe_page_table(p, t);
    moe_page_note(p, note);
    moe_page_close_section(p);
}

static void put_outlook(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_table t;
    bool known = moe_explain_memory_steps(plan, MOE_PLAN_MAX_STEPS, &t);
    const struct moe_page_curve memory = {.caption = "Tokens per second over memory",
                                          .x_name = plan->memory.total ? "memory of the process"
                                                                       : "memory for experts",
                                          .now_name = "planned",
                                          .now = moe_plan_budget(plan),
                                          .format_x = moe_format_about_bytes};
    put_steps(p, "More memory or less", memory, plan->memory_steps, plan->n_memory_steps, known, &t,
              "In memory: of the experts that a token uses, when they are needed.");
    known = moe_explain_link_steps(plan, MOE_PLAN_MAX_STEPS, &t);
    const struct moe_page_curve link = {
        .caption = "Tokens per second over the rate at which experts are read",
        .x_name = "experts are read at (each mark: twice as fast)",
        .now_name = "planned",
        .now = plan->pace.load_rate,
        .logarithmic = true,
        .format_x = moe_format_rate};
    put_steps(p,
              moe_plan_over_bus(plan) ? "A faster bus or a slower one"
                                      : "A faster disk or a slower one",
              link, plan->rate_steps, plan->n_rate_steps, known, &t,
              "What else limits the speed shows where the curve becomes flat.");
}

static void put_alternatives(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_table t;
    struct moe_buf same = {0};
    if (plan->n_alternatives == 0)
        return;
    moe_page_open_section(p, "What if one thing were different");
    if (moe_explain_alternatives(plan, &t, &same))
        moe_page_table(p, &t);
    if (same.size && !same.failed)
        moe_page_say(p, "No difference: %s.", (const char *)same.data);
    p->out->failed |= same.failed;
    moe_page_note(p, "Prompt: tokens/s of one. Reads: by a token of an answer. Found: experts in "
                     "memory when they are "
                     "needed. -: less memory than the smallest that works. (*) Fewer bits change "
                     "what the model says; moe-calibrate measures by how much.");
    moe_buf_release(&same);
    moe_page_close_section(p);
}

static void put_assumptions(struct moe_page *p, const struct moe_plan *plan)
{
    enum moe_assumption what[MOE_N_ASSUMPTIONS];
    uint32_t n = moe_plan_assumptions(plan, what);
    moe_page_open_section(p, "What it assumes, the weakest first");
    for (uint32_t i = 0; i < n; i++) {
        struct moe_buf text = {0};
        moe_explain_assumption(plan, what[i], unicode, &text);
        p->out->failed |= text.failed;
        if (!text.failed)
            moe_page_say(p, "%" PRIu32 ". %s", i + 1, (const char *)text.data);
        moe_buf_release(&text);
    }
    moe_page_close_section(p);
}

int page_plan(struct moe_page *p, const char *path, struct moe_err *err)
{
    struct moe_plan *plan = NULL;
    struct moe_buf words = {0};
    int status = moe_plan_read(&plan, path, err);
    if (status == MOE_OK) {
        put_head(p, plan);
        put_memory(p, plan);
        put_time(p, plan);
        put_outlook(p, plan);
        put_alternatives(p, plan);
        put_layers(p, plan);
        put_assumptions(p, plan);
        moe_explain_plan(plan, unicode, &words);
        put_words(p, "The same in words, and how it works", &words);
    }
    moe_plan_free(plan);
    return status;
}

/* What was measured, as pages: statistics, a trace, a bit map, a device profile. */

#define SHADES_OF_USE                                                                              \
    "Layers down, experts across. The middle shade: used as all are on average; the strongest: "   \
    "twice as often or more. A cell's figure is its share of the layer's work"

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

/* A table of n shares. */
static void put_share_table(struct moe_page *p, const char *const heads[2],
                            const char *const *names, const double *shares, uint32_t n)
{
    struct moe_table t;
    moe_table_begin(&t, 2, heads);
    for (uint32_t i = 0; i < n; i++) {
        char room[32];
        const char *const cells[] = {names[i], moe_format_percent(shares[i], room)};
        moe_table_row(&t, 0, cells);
    }
    moe_page_table(p, &t);
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
        put_share_table(p, heads, names, all, n);
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
    for (int i = 0; i < MOE_N_PREDICTORS; i++)
        predictors[i] = moe_predictor_name((enum moe_predictor)i);
    int status;
    MOE_STEP(moe_statistics_read(&s, path, err));
    moe_page_say(p,
                 "%" PRIu64 " document%s, %" PRIu64 " tokens; %" PRIu32 " MoE layers, %" PRIu32
                 " experts, %" PRIu32 " per token.",
                 s->totals[MOE_TOTAL_DOCUMENTS], s->totals[MOE_TOTAL_DOCUMENTS] == 1 ? "" : "s",
                 s->totals[MOE_TOTAL_TOKENS], s->shape.n_layers, s->shape.n_experts,
                 s->shape.top_k);
    MOE_STEP(put_use(p, s->series[MOE_S_ACTIVATIONS], s->shape.n_layers, s->shape.n_experts, err));
    MOE_STEP(put_shares(p, s, "Which are used again",
                        "Layers down; the strongest shade is 100%, unknown shares are grey", reuses,
                        REUSES, get_reuse, err));
    MOE_STEP(put_shares(p, s, "How well they are predicted",
                        "Share of a token's experts among as many predicted. Layers down, "
                        "predictors across; the strongest shade is 100%, unknown shares are grey",
                        predictors, MOE_N_PREDICTORS, get_accuracy, err));
    MOE_STEP(moe_show_statistics(s, MOE_PLAIN_SCREEN, &words, err));
out:
    put_words(p, "The same in words", &words);
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
    put_share_table(p, heads, names, shares, 2 + MOE_FIGURES_AHEAD);
    moe_page_close_section(p);
}

int page_trace(struct moe_page *p, const char *path, struct moe_err *err)
{
    struct moe_trace *t = NULL;
    struct moe_routing_figures_tally tally = {0};
    struct moe_buf words = {0}, picture = {0};
    int status;
    MOE_STEP(moe_trace_open(&t, path, err));
    MOE_STEP(moe_routing_figures_tally_trace(&tally, t, err));
    MOE_STEP(put_use(p, tally.activations, tally.n_layers, tally.n_experts, err));
    const struct moe_routing_figures f = moe_routing_figures_of_tally(&tally);
    put_trace_figures(p, &f);
    MOE_STEP(moe_explain_trace(t, false, MOE_PLAIN_SCREEN, &words, &picture, err));
out:
    put_words(p, "The same in words", &words);
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
    uint64_t n = (uint64_t)map->n_layers * map->n_experts, counts[MOE_MAX_VARIANTS] = {0};
    struct moe_heat heat = {0};
    struct moe_table t;
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
        moe_table_begin(&t, 2, heads);
        for (uint32_t v = 0; v < map->n_variants; v++) {
            char room[32];
            snprintf(room, sizeof room, "%" PRIu64, counts[v]);
            const char *const cells[] = {map->variants[v], room};
            moe_table_row(&t, 0, cells);
        }
        moe_page_table(p, &t);
        moe_page_close_section(p);
    }
    moe_heat_release(&heat);
    return status;
}

int page_map(struct moe_page *p, const char *path, struct moe_err *err)
{
    struct moe_map *map = NULL;
    struct moe_buf words = {0};
    int status;
    MOE_STEP(moe_map_read(&map, path, err));
    if (map->importances.there)
        MOE_STEP(put_importances(p, map, err));
    if (map->choice.there)
        MOE_STEP(put_choice(p, map, err));
    moe_explain_map(map, MOE_PLAIN_SCREEN, &words);
out:
    put_words(p, "The same in words", &words);
    moe_map_free(map);
    return status;
}

/* ---- A device profile ---- */

int page_device(struct moe_page *p, const char *path, struct moe_err *err)
{
    static const char *const heads[] = {"requests in flight", "reading", "each takes"};
    struct moe_device *d = NULL;
    struct moe_buf words = {0};
    struct moe_table t;
    int status;
    MOE_STEP(moe_device_read(&d, path, err));
    if (d->storage.n_reads) {
        moe_page_open_section(p, "Reading from storage");
        moe_table_begin(&t, 3, heads);
        for (uint32_t i = 0; i < d->storage.n_reads; i++) {
            char room[3][32];
            snprintf(room[0], sizeof room[0], "%" PRIu32, d->storage.reads[i].in_flight);
            const char *const cells[] = {
                room[0], moe_format_rate(d->storage.reads[i].bytes_per_second.value, room[1]),
                moe_format_seconds(d->storage.reads[i].seconds.value, room[2])};
            moe_table_row(&t, 0, cells);
        }
        moe_page_table(p, &t);
        moe_page_close_section(p);
    }
    moe_explain_device(d, MOE_PLAIN_SCREEN, &words);
    put_words(p, "The same in words", &words);
out:
    free(d);
    return status;
}

/* A run's events (moe-run --trace-events) as strips over time. However many there are, they are
 * summed up in a fixed number of moments. */

enum { MOMENTS = 240, MAX_BYTES = 64 << 20, MAX_MEMORY = 512 << 20, TRACKS = MOE_TRACK_LOAD };

struct tally {
    double begin, end; /* microseconds */
    /* How many events are under way, a change at a time: within the moment, and for all after. */
    double within[TRACKS][MOMENTS], after[TRACKS][MOMENTS + 1];
};

static double number_of(const json_t *event, const char *key)
{
    const json_t *x = json_object_get(event, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

/* What an event says: 'X', 'b', 'e'; 0: nothing that is drawn. */
static char phase_of(const json_t *event, double *at, double *seconds, int *track)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));
    double tid = number_of(event, "tid");
    *at = number_of(event, "ts");
    *seconds = number_of(event, "dur");
    if (!phase || strlen(phase) != 1 || !strchr("Xbe", phase[0]) || !(tid >= 1 && tid <= TRACKS) ||
        !isfinite(*at) || (phase[0] == 'X' && !(*seconds >= 0)))
        return 0;
    *track = (int)tid - 1;
    return phase[0];
}

/* One more (or fewer) from then to the end. */
static void count_change(struct tally *t, int track, double at, double by)
{
    double moment = (at - t->begin) / (t->end - t->begin) * MOMENTS;
    if (!(moment < MOMENTS))
        return;
    int i = moment > 0 ? (int)moment : 0;
    t->within[track][i] += by * (i + 1 - fmax(0, moment));
    t->after[track][i + 1] += by;
}

static void put_track(struct moe_page *p, struct tally *t, int track)
{
    static const char *const captions[TRACKS] = {"Computation: share of the time",
                                                 "Waiting for experts: share of the time",
                                                 "Loads in flight"};
    double under_way = 0, most = 1, values[MOMENTS];
    for (int i = 0; i < MOMENTS; i++) {
        under_way += t->after[track][i];
        values[i] = fmax(0, under_way + t->within[track][i]);
        most = track + 1 == MOE_TRACK_LOAD && values[i] > most ? values[i] : most;
    }
    char caption[120], room[32];
    snprintf(caption, sizeof caption, "%s; full height: %s", captions[track],
             track + 1 == MOE_TRACK_LOAD ? moe_format_speed(most, room) : "all of it");
    moe_page_strip(p, values, MOMENTS, most, caption);
}

int page_timeline(struct moe_page *p, const char *path, struct moe_err *err)
{
    json_t *events = NULL;
    struct tally t = {.begin = INFINITY, .end = -INFINITY};
    double at, length;
    int track;
    int status;
    MOE_STEP(moe_json_read(&events, path, MAX_BYTES, MAX_MEMORY, err));
    if (!json_is_array(events))
        MOE_STEP(moe_fail(err, MOE_ERR_FORMAT,
                          "%s: not a list of events, as moe-run --trace-events writes", path));
    for (size_t i = 0; i < json_array_size(events); i++)
        if (phase_of(json_array_get(events, i), &at, &length, &track)) {
            t.begin = fmin(t.begin, at);
            t.end = fmax(t.end, isnan(length) ? at : at + length);
        }
    if (!(isfinite(t.end - t.begin) && t.end > t.begin))
        MOE_STEP(moe_fail(err, MOE_ERR_FORMAT,
                          "%s: no events of a run, as moe-run --trace-events writes", path));
    for (size_t i = 0; i < json_array_size(events); i++) {
        char phase = phase_of(json_array_get(events, i), &at, &length, &track);
        if (phase)
            count_change(&t, track, at, phase == 'e' ? -1 : 1);
        if (phase == 'X')
            count_change(&t, track, at + length, -1);
    }
out:
    if (status == MOE_OK) {
        char room[32];
        moe_page_open_section(p, "A run over time");
        moe_page_say(p, "%s from the left to the right.",
                     moe_format_seconds(1e-6 * (t.end - t.begin), room));
        for (int i = 0; i < TRACKS; i++)
            put_track(p, &t, i);
        moe_page_close_section(p);
    }
    moe_json_free(events);
    return status;
}
