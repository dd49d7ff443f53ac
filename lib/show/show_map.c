/* A bit map as tables and pictures; a calibration's forecast. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "fmt/emit.h"
#include "show/draw.h"
#include "show/show.h"

enum { PER_LINE = 64, MOST_PER_LINE = 128 }; /* experts */

/* Of losses in the metric; of the tolerance, and losses as the judge has them. */
static const char *metric_unit(const struct moe_map *map)
{
    return map->metric == MOE_METRIC_NLL ? "%" : " points";
}

static const char *unit(const struct moe_map *map)
{
    return map->judge == MOE_JUDGE_ROUGE2     ? " points of Rouge-2"
           : map->judge == MOE_JUDGE_ACCURACY ? " points of accuracy"
                                              : metric_unit(map);
}

/* By the judge; that of a single document is unknown. */
static const char *format_error(const struct moe_map *map, const struct moe_loss *loss,
                                char room[32])
{
    if (loss->documents == 1)
        return "unknown";
    snprintf(room, 32, "%.2f", moe_map_loss_error(map, loss));
    return room;
}

/* "+1.93% +- 0.08   2.10 +- 0.30": loss of nats; and of top-1 agreement in points, or what the
 * judge has where it looks at answers. The errors of a single document are unknown. */
static void put_loss(const struct moe_map *map, struct moe_buf *out, const struct moe_loss *loss)
{
    bool answers = map->judge != MOE_JUDGE_NATS;
    const double other = answers ? moe_map_loss(map, loss) : loss->top1_points;
    if (loss->documents == 1)
        moe_buf_printf(out, "%+7.2f%% unknown  %5.2f unknown", loss->nll_percent, other);
    else
        moe_buf_printf(out, "%+7.2f%% +- %4.2f  %5.2f +- %4.2f", loss->nll_percent, loss->nll_error,
                       other, answers ? moe_map_loss_error(map, loss) : loss->top1_error);
}

static const char *loss_heading(const struct moe_map *map)
{
    return map->judge == MOE_JUDGE_ROUGE2     ? "nats more        Rouge-2 less"
           : map->judge == MOE_JUDGE_ACCURACY ? "nats more        accuracy less"
                                              : "nats more        top-1 changed";
}

/* ---- Pictures ---- */

/* A variant as one character: a bitwidth of one digit as itself, others as letters. */
static char sign_of(const struct moe_map *map, uint32_t variant)
{
    const char *name = map->variants[variant];
    return strlen(name) == 1 ? name[0] : (char)('a' + variant);
}

/* Lines of each layer's experts, every one drawn by `put`. */
static void put_picture(const struct moe_map *map, struct moe_screen screen, struct moe_buf *out,
                        void (*put)(const struct moe_map *map, uint64_t expert, const void *ctx,
                                    struct moe_buf *out),
                        const void *ctx)
{
    uint32_t per_line = moe_draw_columns(screen, PER_LINE, MOST_PER_LINE);
    for (uint32_t layer = 0; layer < map->n_layers; layer++)
        for (uint32_t first = 0; first < map->n_experts; first += per_line) {
            if (first == 0)
                moe_buf_printf(out, "  %4" PRIu32 " |", map->model_layer[layer]);
            else
                moe_buf_text(out, "       |");
            for (uint32_t e = first; e < map->n_experts && e < first + per_line; e++)
                put(map, (uint64_t)layer * map->n_experts + e, ctx, out);
            moe_buf_text(out, "|\n");
        }
}

struct heat {
    double mean;
    struct moe_screen screen;
};

static void put_heat(const struct moe_map *map, uint64_t expert, const void *ctx,
                     struct moe_buf *out)
{
    const struct heat *h = ctx;
    double nats = map->importances.nats[expert];
    if (!map->importances.known[expert])
        moe_buf_text(out, "?");
    else
        moe_buf_text(out, nats < 0 ? "-" : moe_draw_shade(nats, h->mean, h->screen));
}

static void put_bits(const struct moe_map *map, uint64_t expert, const void *ctx,
                     struct moe_buf *out)
{
    moe_buf_printf(out, "%c", sign_of(map, map->choice.variant[expert]));
}

/* ---- Sections ---- */

static void put_texts(const struct moe_map *map, struct moe_buf *out)
{
    moe_buf_text(out, "Texts                          documents    tokens  loss of the choice\n");
    for (uint32_t i = 0; i < map->n_texts; i++) {
        const struct moe_map_text *t = &map->texts[i];
        moe_buf_printf(out, "  %-28.28s %9" PRIu64 " %9" PRIu64 "  ", t->name, t->documents,
                       t->tokens);
        if (t->known)
            put_loss(map, out, &t->loss);
        moe_buf_text(out, t->check ? "  (check)\n" : "\n");
    }
}

static void put_uniform(const struct moe_map *map, struct moe_buf *out)
{
    char bytes[32];
    char dense[MOE_WIDTH_BYTES];
    int width = 6, dense_width = 2; /* of the variants' names, of the dense part's */
    for (uint32_t i = 0; i < map->n_uniform; i++) {
        const int n = (int)strlen(map->uniform[i].experts),
                  m = (int)strlen(moe_format_width((int)map->uniform[i].dense_bits, dense));
        width = n > width ? n : width;
        dense_width = m > dense_width ? m : dense_width;
    }
    moe_buf_printf(out, "\nUniform bitwidths, over the highest %*s  %s\n", width + dense_width + 2,
                   "bytes", loss_heading(map));
    for (uint32_t i = 0; i < map->n_uniform; i++) {
        const struct moe_uniform *r = &map->uniform[i];
        moe_buf_printf(out, "  experts %-*s dense %-*s        %12s  ", width, r->experts,
                       dense_width, moe_format_width((int)r->dense_bits, dense),
                       moe_format_bytes(r->bytes, bytes));
        put_loss(map, out, &r->loss);
        moe_buf_text(out, "\n");
    }
}

static void put_importances(const struct moe_map *map, struct moe_screen screen,
                            struct moe_buf *out)
{
    const struct moe_importances *m = &map->importances;
    uint64_t n = (uint64_t)map->n_layers * map->n_experts, known = 0, gains = 0;
    struct heat heat = {0, screen};
    double most = 0, sum = 0;
    for (uint64_t e = 0; e < n; e++) {
        known += m->known[e];
        gains += m->known[e] && m->nats[e] < 0;
        heat.mean += m->known[e] ? fabs(m->nats[e]) : 0;
        sum += m->known[e] ? m->nats[e] : 0;
        most = m->known[e] && m->nats[e] > most ? m->nats[e] : most;
    }
    heat.mean /= known ? (double)known : 1;
    moe_buf_printf(out,
                   "\nImportance, %s: nats that the texts lose when one expert alone is at %s, the "
                   "others at %s\n  %" PRIu64 " of %" PRIu64
                   " experts; mean magnitude %.3f, largest %.3f, sum %.2f; %" PRIu64 " gain (-)\n",
                   !m->exact               ? "estimated"
                   : m->adaptive.estimated ? "measured where it decides"
                                           : "measured",
                   map->variants[m->lower], map->variants[m->upper], known, n, heat.mean, most, sum,
                   gains);
    if (m->adaptive.estimated)
        moe_buf_printf(out,
                       "  %" PRIu64 " measured, %" PRIu64
                       " estimated within a factor of %.1f; %" PRIu64
                       " could have another bitwidth\n",
                       m->adaptive.measured, m->adaptive.estimated, exp(2 * m->adaptive.spread),
                       m->adaptive.open);
    put_picture(map, screen, out, put_heat, &heat);
    moe_buf_printf(out,
                   "  layers down, experts across; %s: up to twice the mean; ?: not measured; -: a "
                   "gain\n",
                   moe_draw_shade(1.5, 1, screen));
}

static void put_choice(const struct moe_map *map, struct moe_screen screen, struct moe_buf *out)
{
    const struct moe_map_choice *c = &map->choice;
    uint64_t n = (uint64_t)map->n_layers * map->n_experts;
    char all[32], experts[32], target[32], dense[MOE_WIDTH_BYTES];
    if (map->target_bytes)
        moe_buf_printf(out, "\nChoice for a pack of at most %s",
                       moe_format_bytes(map->target_bytes, target));
    else
        moe_buf_printf(out, "\nChoice for a tolerance of %g%s", map->tolerance, unit(map));
    moe_format_width((int)c->dense_bits, dense);
    moe_buf_printf(out, ": weights of %s, experts %s, dense %s%s",
                   moe_format_bytes(c->expert_bytes + c->dense_bytes, all),
                   moe_format_bytes(c->expert_bytes, experts), dense, moe_bits_unit(dense));
    if (c->dense_bits != map->pack_dense_bits && !moe_bits_kind((int)c->dense_bits) &&
        map->dense_method[0])
        moe_buf_printf(out, " by %s", map->dense_method);
    moe_buf_text(out, "\n");
    moe_buf_printf(out, "                 %s\n  on the texts ", loss_heading(map));
    put_loss(map, out, &c->loss);
    moe_buf_printf(out, "   (predicted from importances: %+.2f%s)\n", c->expected,
                   metric_unit(map));
    if (c->check.tokens) {
        moe_buf_text(out, "  on checks    ");
        put_loss(map, out, &c->check);
        moe_buf_text(out, "\n");
    }
    if (!map->target_bytes && c->check.tokens && moe_map_loss(map, &c->check) > map->tolerance)
        moe_buf_text(out, "  The tolerance does not hold on the checks.\n");
    put_picture(map, screen, out, put_bits, NULL);
    for (uint32_t v = 0; v < map->n_variants; v++) {
        uint64_t count = 0;
        for (uint64_t e = 0; e < n; e++)
            count += c->variant[e] == v;
        if (count)
            moe_buf_printf(out, "  %c: %s%s%s%s, %" PRIu64 " experts\n", sign_of(map, v),
                           map->variants[v], moe_bits_unit(map->variants[v]),
                           map->methods[v][0] ? " by " : "", map->methods[v], count);
    }
}

static void put_fate(const struct moe_map *map, struct moe_buf *out)
{
    const struct moe_map_fate *f = &map->fate;
    moe_buf_printf(out,
                   "\nPrompts: the least popular %.0f%% of a layer's experts at %s, the others at "
                   "%s\n        ",
                   100 * f->share, map->variants[f->low], map->variants[f->high]);
    put_loss(map, out, &f->loss);
    if (f->check.tokens) {
        moe_buf_text(out, "   on checks ");
        put_loss(map, out, &f->check);
    }
    moe_buf_text(out, "\n  share  least popular first                  most popular first\n");
    for (uint32_t i = 0; i < f->n_points; i++) {
        moe_buf_printf(out, "  %4.0f%%  ", 100 * f->points[i].share);
        put_loss(map, out, &f->points[i].unpopular);
        if (f->points[i].popular.tokens) {
            moe_buf_text(out, "   ");
            put_loss(map, out, &f->points[i].popular);
        }
        moe_buf_text(out, "\n");
    }
}

static void put_hobbit(const struct moe_map *map, struct moe_buf *out)
{
    const struct moe_map_hobbit *h = &map->hobbit;
    moe_buf_printf(out,
                   "\nMisses: T1 %.2f, T2 %.2f: %.1f%% of activations at %s, %.1f%% at %s, %.1f%% "
                   "left out, if nothing were cached\n        ",
                   h->t1, h->t2, 100 * h->high_share, map->variants[h->high], 100 * h->low_share,
                   map->variants[h->low], 100 * h->skipped_share);
    put_loss(map, out, &h->loss);
    moe_buf_text(out, "\n");
    if (h->n_cuts)
        moe_buf_text(out, "  share  at low precision                      left out\n");
    for (uint32_t i = 0; i < h->n_cuts; i++) {
        moe_buf_printf(out, "  %4.1f%%  ", 100 * h->cuts[i].share);
        put_loss(map, out, &h->cuts[i].low);
        moe_buf_text(out, "   ");
        put_loss(map, out, &h->cuts[i].skipped);
        moe_buf_text(out, "\n");
    }
    if (h->weighed)
        moe_buf_printf(out,
                       "  weights lru %.3f, lfu %.3f, lhu %.3f, fld %.3f, low pool %.0f%%: a miss "
                       "penalty of %.4f instead of %.4f\n",
                       h->weights[MOE_WEIGHT_LRU], h->weights[MOE_WEIGHT_LFU],
                       h->weights[MOE_WEIGHT_LHU], h->weights[MOE_WEIGHT_FLD], 100 * h->low_pool,
                       h->penalty, h->default_penalty);
}

static void put_routing(const struct moe_map *map, struct moe_buf *out)
{
    const struct moe_map_routing *r = &map->routing;
    char bytes[32];
    moe_buf_printf(out,
                   "\nRouting for a tolerance of %g%s: experts in a cache of %s are preferred by "
                   "%.2f spreads\n        ",
                   r->tolerance, metric_unit(map), moe_format_bytes(r->cache_bytes, bytes),
                   r->lambda);
    put_loss(map, out, &r->loss);
    if (r->check.tokens) {
        moe_buf_text(out, "   on checks ");
        put_loss(map, out, &r->check);
    }
    moe_buf_text(out, "\n  lambda  loaded a token  replaced\n");
    for (uint32_t i = 0; i < r->n_points; i++) {
        const struct moe_map_preference *p = &r->points[i];
        moe_buf_printf(out, "  %6.2f  %14s  %7.1f%%  ", p->lambda,
                       moe_format_bytes((uint64_t)p->bytes_per_token, bytes),
                       100 * p->replaced_share);
        put_loss(map, out, &p->loss);
        moe_buf_text(out, "\n");
    }
}

/* By both texts and checks. */
static double worse_loss(const struct moe_map *map, const struct moe_map_saving *way)
{
    double loss = moe_loss_in(&way->loss, map->metric),
           check = moe_loss_in(&way->check, map->metric);
    return way->check.tokens && check > loss ? check : loss;
}

/* What loads least within some losses. */
static void put_best_savings(const struct moe_map *map, const struct moe_map_savings *s,
                             struct moe_buf *out)
{
    static const double tolerances[] = {0.5, 1, 2, 5};
    char bytes[32];
    for (size_t t = 0; t < sizeof tolerances / sizeof *tolerances; t++) {
        const struct moe_map_saving *best = NULL;
        for (uint32_t i = 0; i < s->n_ways; i++)
            if (worse_loss(map, &s->ways[i]) <= tolerances[t] &&
                (!best || s->ways[i].bytes_per_token < best->bytes_per_token))
                best = &s->ways[i];
        if (best)
            moe_buf_printf(out, "  least within %g%s: %s, %s\n", tolerances[t], metric_unit(map),
                           moe_format_bytes((uint64_t)best->bytes_per_token, bytes),
                           best->strategy);
    }
}

static void put_savings(const struct moe_map *map, const struct moe_map_savings *s,
                        struct moe_buf *out)
{
    char cache[32], bytes[32];
    moe_buf_printf(out,
                   "\nLoading less, in a cache of %s (%s a token are loaded where nothing is "
                   "approximated)\n  loaded a token  changed  %s  strategy\n",
                   moe_format_bytes(s->cache_bytes, cache),
                   moe_format_bytes((uint64_t)s->exact_bytes_per_token, bytes), loss_heading(map));
    for (uint32_t i = 0; i < s->n_ways; i++) {
        const struct moe_map_saving *way = &s->ways[i];
        moe_buf_printf(out, "  %14s  %6.1f%%  ",
                       moe_format_bytes((uint64_t)way->bytes_per_token, bytes),
                       100 * way->changed_share);
        put_loss(map, out, &way->loss);
        if (way->check.tokens) {
            moe_buf_text(out, "   on checks ");
            put_loss(map, out, &way->check);
        }
        moe_buf_printf(out, "  %s\n", way->strategy);
    }
    put_best_savings(map, s, out);
}

/* ---- Whole ---- */

void moe_show_map(const struct moe_map *map, struct moe_screen screen, struct moe_buf *out)
{
    put_texts(map, out);
    if (map->n_uniform)
        put_uniform(map, out);
    if (map->importances.there)
        put_importances(map, screen, out);
    if (map->choice.there)
        put_choice(map, screen, out);
    if (map->fate.there)
        put_fate(map, out);
    if (map->hobbit.there)
        put_hobbit(map, out);
    if (map->routing.there)
        put_routing(map, out);
    for (uint32_t i = 0; i < map->n_savings; i++)
        put_savings(map, &map->savings[i], out);
}

static void put_unheld(const char *what, double tolerance, const char *in, double texts,
                       const struct moe_loss *check, double on_checks, struct moe_buf *out)
{
    if (check->tokens && on_checks > tolerance)
        moe_buf_printf(out,
                       "%sthe tolerance of %g%s does not hold on the checks%s: %+.2f%s there, "
                       "%+.2f%s on the texts",
                       out->size ? "; " : "", tolerance, in, what, on_checks, in, texts, in);
}

void moe_show_map_unheld(const struct moe_map *map, struct moe_buf *out)
{
    const struct moe_map_choice *c = &map->choice;
    const struct moe_map_fate *f = &map->fate;
    const struct moe_map_routing *r = &map->routing;
    if (c->there)
        put_unheld("", map->tolerance, unit(map), moe_map_loss(map, &c->loss), &c->check,
                   moe_map_loss(map, &c->check), out);
    if (f->there)
        put_unheld(" for prompts at low precision", map->tolerance, unit(map),
                   moe_map_loss(map, &f->loss), &f->check, moe_map_loss(map, &f->check), out);
    if (r->there)
        put_unheld(" for routing", r->tolerance, metric_unit(map),
                   moe_loss_in(&r->loss, map->metric), &r->check,
                   moe_loss_in(&r->check, map->metric), out);
}

void moe_show_map_line(const struct moe_map *map, struct moe_buf *out)
{
    const struct moe_map_choice *c = &map->choice;
    char bytes[32], before[32];
    if (!c->there && !map->importances.there) {
        moe_buf_text(out, "what loading less loses, in ");
        if (map->n_savings == 1)
            moe_buf_text(out, "one cache");
        else
            moe_buf_printf(out, "%u caches", map->n_savings);
        return;
    }
    if (!c->there) {
        moe_buf_text(out, moe_map_complete(map) ? "importances of all experts"
                                                : "importances of some experts");
        if (map->importances.there && !moe_shards_whole(&map->importances.shards)) {
            moe_buf_text(out, ", ");
            moe_shards_print(&map->importances.shards, out);
        }
        return;
    }
    char room[2][32];
    moe_buf_printf(out, "weights of %s instead of %s, %+.2f%s (standard error %s)",
                   moe_format_bytes(c->expert_bytes + c->dense_bytes, bytes),
                   moe_format_bytes(map->uniform[0].bytes, before), moe_map_loss(map, &c->loss),
                   unit(map), format_error(map, &c->loss, room[0]));
    if (map->importances.adaptive.estimated)
        moe_buf_printf(
            out, "; %" PRIu64 " of %" PRIu64 " experts measured, %" PRIu64 " others could change",
            map->importances.adaptive.measured, (uint64_t)map->n_layers * map->n_experts,
            map->importances.adaptive.open);
    if (c->check.tokens)
        moe_buf_printf(out, "; on the checks %+.2f%s (%s)", moe_map_loss(map, &c->check), unit(map),
                       format_error(map, &c->check, room[1]));
}

/* ---- Forecasts ---- */

static void put_passes(const char *name, double passes, double seconds, const char *what,
                       struct moe_buf *out)
{
    char room[32];
    moe_buf_printf(out, "%-9s %s (%.*f passes): %s\n", name, moe_format_duration(seconds, room),
                   passes < 10 ? 1 : 0, passes, what);
}

/* As many as there are at most. */
static void put_decoding(const char *name, double passes, double seconds, const char *what,
                         struct moe_buf *out)
{
    char room[32];
    if (passes > 0)
        moe_buf_printf(out, "%-9s up to %s (%.*f passes, a token at a time): %s\n", name,
                       moe_format_duration(seconds, room), passes < 10 ? 1 : 0, passes, what);
}

void moe_show_forecast(const struct moe_forecast *f, struct moe_buf *out)
{
    char least[32], whole[32], budget[32], room[32];
    moe_buf_printf(out, "documents %" PRIu64 ", with %" PRIu64 " tokens to predict\n", f->documents,
                   f->tokens);
    moe_buf_printf(out, "memory    at least %s; %s keep all experts loaded",
                   moe_format_bytes(f->least, least), moe_format_bytes(f->whole, whole));
    if (f->budget != UINT64_MAX)
        moe_buf_printf(out, "; the budget is %s", moe_format_bytes(f->budget, budget));
    moe_buf_printf(out, "\nexperts   %" PRIu64, f->in_shard);
    if (f->n_shards > 1)
        moe_buf_printf(out, " of %" PRIu64 ", in shard %" PRIu32 " of %" PRIu32, f->experts,
                       f->shard + 1, f->n_shards);
    if (f->known)
        moe_buf_printf(out, "; %" PRIu64 " known already", f->known);
    moe_buf_printf(out, "\na pass    %s over all texts (%" PRIu64 " of them were tried)\n",
                   moe_format_duration(f->pass_seconds, room), f->tried);
    put_passes("first", f->before, f->before * f->pass_seconds, "references, uniform bitwidths",
               out);
    if (f->search > 0)
        put_passes("then", f->search, f->search * f->pass_seconds, "importances", out);
    if (f->n_shards > 1)
        put_passes("all", f->total, f->total * f->pass_seconds, "both, of all shards together",
                   out);
    put_decoding("routing", f->routing, f->routing_seconds, "how far to prefer cached experts",
                 out);
    put_decoding("savings", f->savings, f->savings_seconds, "ways to load less", out);
    if (f->chooses)
        moe_buf_text(out, "last      the choice, whose passes depend on what is found\n");
}

int moe_show_forecast_json(const struct moe_forecast *f, struct moe_buf *out, struct moe_err *err)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_INDENTED);
    moe_emit_u64(&e, "documents", f->documents);
    moe_emit_u64(&e, "tokens", f->tokens);
    moe_emit_u64(&e, "documents_tried", f->tried);
    if (f->budget == UINT64_MAX)
        moe_emit_null(&e, "memory_budget");
    else
        moe_emit_u64(&e, "memory_budget", f->budget);
    moe_emit_u64(&e, "memory_least", f->least);
    moe_emit_u64(&e, "memory_all_experts", f->whole);
    moe_emit_u64(&e, "shard", f->shard + 1);
    moe_emit_u64(&e, "shards", f->n_shards);
    moe_emit_u64(&e, "experts", f->experts);
    moe_emit_u64(&e, "experts_in_shard", f->in_shard);
    moe_emit_u64(&e, "experts_known", f->known);
    moe_emit_rounded(&e, "pass_seconds", 4, f->pass_seconds);
    moe_emit_rounded(&e, "passes_before", 4, f->before);
    moe_emit_rounded(&e, "passes_importances", 4, f->search);
    moe_emit_rounded(&e, "seconds", 4, (f->before + f->search) * f->pass_seconds);
    moe_emit_rounded(&e, "seconds_all_shards", 4, f->total * f->pass_seconds);
    moe_emit_rounded(&e, "passes_routing_most", 4, f->routing);
    moe_emit_rounded(&e, "seconds_routing_most", 4, f->routing_seconds);
    moe_emit_rounded(&e, "passes_savings_most", 4, f->savings);
    moe_emit_rounded(&e, "seconds_savings_most", 4, f->savings_seconds);
    moe_emit_bool(&e, "chooses", f->chooses);
    return moe_emit_end(&e, err);
}
