/* Counts how a trace routes, and makes figures of the counts. */
#include "plan/routing_figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "profile/statistics_figures.h"

/* moe-profile --show, over all layers: tests/models/tiny-moe at 4 bits on tests/data/stories, math
 * and code.calib.txt (180 documents, 34815 tokens). */
const struct moe_routing_figures moe_routing_figures_bundled = {
    .n_experts = 32,
    .top_k = 4,
    .reuse = 0.283,
    .busiest = 0.331,
    .accuracy = {0.764, 0.683, 0.620},
};

/* ---- Other numbers of experts ---- */

struct range {
    double chance, most;
};

static struct range range_of_match(double n_experts, double top_k)
{
    return (struct range){top_k / n_experts, 1};
}

static struct range range_of_busiest(double n_experts, double top_k)
{
    double quarter = ceil(n_experts / 4);
    return (struct range){quarter / n_experts, fmin(quarter, top_k) / top_k};
}

static double move(double value, struct range from, struct range to)
{
    double above = from.most > from.chance ? (value - from.chance) / (from.most - from.chance) : 0;
    return fmax(0, to.chance + above * (to.most - to.chance));
}

void moe_routing_figures_move(struct moe_routing_figures *m, uint32_t n_experts, uint32_t top_k)
{
    bool same =
        (m->n_experts == 0 && m->top_k == 0) || (m->n_experts == n_experts && m->top_k == top_k);
    struct range from = range_of_match(m->n_experts, m->top_k),
                 to = range_of_match(n_experts, top_k);
    if (!same) {
        m->reuse = move(m->reuse, from, to);
        for (int i = 0; i < MOE_FIGURES_AHEAD; i++)
            m->accuracy[i] = move(m->accuracy[i], from, to);
        m->busiest = move(m->busiest, range_of_busiest(m->n_experts, m->top_k),
                          range_of_busiest(n_experts, top_k));
    }
    m->n_experts = n_experts;
    m->top_k = top_k;
}

static void fill_gap(double *figure, double bundled)
{
    if (isnan(*figure))
        *figure = bundled;
}

/* Figures that are NAN become the bundled model's. */
static void fill_gaps(struct moe_routing_figures *m)
{
    struct moe_routing_figures bundled = moe_routing_figures_bundled;
    moe_routing_figures_move(&bundled, m->n_experts, m->top_k);
    fill_gap(&m->reuse, bundled.reuse);
    fill_gap(&m->busiest, bundled.busiest);
    for (int i = 0; i < MOE_FIGURES_AHEAD; i++)
        fill_gap(&m->accuracy[i], bundled.accuracy[i]);
}

/* ---- Counting ---- */

int moe_routing_figures_tally_init(struct moe_routing_figures_tally *t, uint32_t n_layers,
                                   uint32_t n_experts, uint32_t top_k, struct moe_err *err)
{
    *t = (struct moe_routing_figures_tally){
        .n_layers = n_layers, .n_experts = n_experts, .top_k = top_k};
    t->activations = moe_alloc((uint64_t)n_layers * n_experts, sizeof *t->activations, err);
    t->mark = moe_alloc(n_experts, sizeof *t->mark, err);
    return t->activations && t->mark ? MOE_OK : MOE_ERR_MEMORY;
}

void moe_routing_figures_tally_release(struct moe_routing_figures_tally *t)
{
    free(t->activations);
    free(t->mark);
    *t = (struct moe_routing_figures_tally){0};
}

void moe_routing_figures_tally_clear(struct moe_routing_figures_tally *t)
{
    struct moe_routing_figures_tally empty = {.n_layers = t->n_layers,
                                              .n_experts = t->n_experts,
                                              .top_k = t->top_k,
                                              .activations = t->activations,
                                              .mark = t->mark};
    *t = empty;
    memset(t->activations, 0, (uint64_t)t->n_layers * t->n_experts * sizeof *t->activations);
    memset(t->mark, 0, t->n_experts * sizeof *t->mark);
}

/* How many of `experts` are among the present choice. */
static uint32_t n_marked(const struct moe_routing_figures_tally *t, const uint16_t *experts,
                         uint32_t n)
{
    uint32_t marked = 0;
    for (uint32_t i = 0; i < n; i++)
        marked += t->mark[experts[i]] == t->now;
    return marked;
}

void moe_routing_figures_tally_add(struct moe_routing_figures_tally *t, uint32_t layer,
                                   const uint16_t *chosen, const uint16_t *before,
                                   const uint16_t *const predicted[MOE_FIGURES_AHEAD],
                                   uint32_t n_predicted)
{
    uint32_t k = t->top_k, n = n_predicted < k ? n_predicted : k;
    if (++t->now == 0) { /* once in 2^32 */
        memset(t->mark, 0, t->n_experts * sizeof *t->mark);
        t->now = 1;
    }
    for (uint32_t i = 0; i < k; i++) {
        t->activations[(uint64_t)layer * t->n_experts + chosen[i]]++;
        t->mark[chosen[i]] = t->now;
    }
    if (before) {
        t->could_reuse += k;
        t->reused += n_marked(t, before, k);
    }
    for (int i = 0; i < MOE_FIGURES_AHEAD; i++)
        if (predicted[i]) {
            t->could_predict[i] += k;
            t->predicted[i] += n_marked(t, predicted[i], n);
        }
}

static double share(uint64_t part, uint64_t of)
{
    return of > 0 ? (double)part / (double)of : NAN;
}

struct moe_routing_figures moe_routing_figures_of_tally(const struct moe_routing_figures_tally *t)
{
    struct moe_routing_figures m = {
        .n_experts = t->n_experts,
        .top_k = t->top_k,
        .reuse = share(t->reused, t->could_reuse),
        .busiest = moe_busiest_share(t->activations, t->n_layers, t->n_experts),
    };
    for (int i = 0; i < MOE_FIGURES_AHEAD; i++)
        m.accuracy[i] = share(t->predicted[i], t->could_predict[i]);
    return m;
}

/* ---- From statistics and traces ---- */

void moe_routing_figures_of_statistics(struct moe_routing_figures *out,
                                       const struct moe_statistics *s)
{
    *out = (struct moe_routing_figures){
        .n_experts = s->shape.n_experts,
        .top_k = s->shape.top_k,
        .reuse = moe_figure_reuse(s, MOE_ALL_LAYERS).active,
        .busiest = moe_figure_skew(s, MOE_ALL_LAYERS),
    };
    for (int i = 0; i < MOE_FIGURES_AHEAD; i++)
        out->accuracy[i] =
            moe_figure_accuracy(s, MOE_ALL_LAYERS, (enum moe_predictor)(MOE_PREDICT_GATE_1 + i))
                .in_k;
    fill_gaps(out);
}

/* before: [n_layers][top_k] what the token before chose; MOE_NO_EXPERT first: no such token. */
static void add_token(struct moe_routing_figures_tally *t, const struct moe_trace *trace,
                      bool first, uint16_t *before)
{
    uint32_t k = t->top_k, keep = moe_trace_shape(trace)->keep;
    for (uint32_t layer = 0; layer < t->n_layers; layer++, before += k) {
        struct moe_trace_step step = moe_trace_step(trace, layer);
        const uint16_t *predicted[MOE_FIGURES_AHEAD];
        for (int i = 0; i < MOE_FIGURES_AHEAD; i++)
            predicted[i] = step.predicted[MOE_PREDICT_GATE_1 + i].experts;
        if (!step.experts) {
            before[0] = MOE_NO_EXPERT;
            continue;
        }
        bool has_before = !first && before[0] != MOE_NO_EXPERT;
        moe_routing_figures_tally_add(t, layer, step.experts, has_before ? before : NULL, predicted,
                                      keep);
        memcpy(before, step.experts, k * sizeof *before);
    }
}

int moe_routing_figures_tally_trace(struct moe_routing_figures_tally *t, struct moe_trace *trace,
                                    struct moe_err *err)
{
    const struct moe_trace_shape *s = moe_trace_shape(trace);
    const struct moe_trace_token *token = NULL;
    int status = moe_routing_figures_tally_init(t, s->n_layers, s->n_experts, s->top_k, err);
    uint16_t *before = NULL;
    if (status == MOE_OK &&
        !(before = moe_alloc((uint64_t)s->n_layers * s->top_k, sizeof *before, err)))
        status = MOE_ERR_MEMORY;
    moe_trace_rewind(trace);
    while (status == MOE_OK && (status = moe_trace_next(trace, &token, err)) == MOE_OK && token)
        add_token(t, trace, token->index == 0, before);
    free(before);
    return status;
}

int moe_routing_figures_of_trace(struct moe_routing_figures *out, bool *known_accuracy,
                                 struct moe_trace *trace, struct moe_err *err)
{
    struct moe_routing_figures_tally t;
    int status = moe_routing_figures_tally_trace(&t, trace, err);
    if (status == MOE_OK) {
        *out = moe_routing_figures_of_tally(&t);
        *known_accuracy = !isnan(out->accuracy[0]);
        fill_gaps(out);
    }
    moe_routing_figures_tally_release(&t);
    return status;
}
