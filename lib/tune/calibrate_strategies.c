/*
 * HOBBIT's thresholds: an activation whose score s (equation 2, select.h) is above T1 is
 * computed at the low precision, one above T2 not at all. Measured as though every activation were
 * a miss, so a run with any cache loses less. Thresholds are whole hundredths.
 *
 * Scores depend on the model (many experts make flat gates), so T1 and T2 are searched for: of the
 * pairs whose loss is within the tolerance the one with the least to load, where a low expert
 * counts B_l / B_h and a skipped one nothing (3.4).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/config.h" /* MOE_MAX_TOP_K */
#include "plan/tuning.h"
#include "sched/select.h"
#include "tune/adaptive.h"
#include "tune/calibrate_internal.h"

/* Shares of activations that the curve of fig. 3b and the search for T2 take. */
static const double cut_shares[] = {0.05, 0.1, 0.2, 0.3, 0.5};
static const double skip_shares[] = {0, 0.01, 0.02, 0.05, 0.1};

/* Scores of all activations, in hundredths: bin b holds those above b - 1 and up to b hundredths.
 */
enum { N_BINS = 101 };

struct rule {
    uint32_t top_k, high, low;
    double t1, t2;
    uint64_t *bins; /* counts scores; NULL: not counted */
};

static uint32_t bin_of(float score)
{
    uint32_t bin = (uint32_t)ceilf(score * 100 - 1e-4f);
    return bin < N_BINS ? bin : N_BINS - 1;
}

static void assign_by_score(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                            const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    const struct rule *r = ctx;
    float scores[MOE_MAX_TOP_K];
    for (uint64_t row = 0; row < n_rows; row++) {
        moe_unimportance(weights + row * r->top_k, r->top_k, scores);
        for (uint32_t k = 0; k < r->top_k; k++) {
            enum moe_importance class_ = moe_importance_of(scores[k], r->t1, r->t2);
            variants[row * r->top_k + k] = (uint8_t)(class_ == MOE_IMPORTANT        ? r->high
                                                     : class_ == MOE_LESS_IMPORTANT ? r->low
                                                                                    : MOE_LEFT_OUT);
            if (r->bins && job->tag != MOE_TAG_ANSWER) /* these are more of the same */
                r->bins[bin_of(scores[k])]++;
        }
    }
}

struct search {
    struct calibration *c;
    struct rule rule;
    uint64_t bins[N_BINS];
    double total;
    double low_cost; /* of a low load, a high one being 1 */
    uint64_t n_measured;
};

/* Share of the activations whose score is above `hundredths` / 100. */
static double share_above(const struct search *s, uint32_t hundredths)
{
    uint64_t n = 0;
    for (uint32_t b = hundredths + 1; b < N_BINS; b++)
        n += s->bins[b];
    return (double)n / s->total;
}

/* The lowest threshold above which no more than that share lies. */
static uint32_t threshold_of(const struct search *s, double share)
{
    uint32_t t = 0;
    while (t < 100 && share_above(s, t) > share)
        t++;
    return t;
}

static int measure_hobbit(struct search *s, uint32_t t1, uint32_t t2, struct moe_loss *loss,
                          struct moe_err *err)
{
    const struct moe_rule rule = {&s->rule, assign_by_score};
    s->rule.t1 = t1 / 100.0;
    s->rule.t2 = t2 / 100.0;
    moe_progress_report(s->c->options->progress, "thresholds", s->n_measured, s->n_measured + 10);
    s->n_measured++;
    return calibrate_measure(s->c, &s->c->own, false, &rule, loss, NULL, err);
}

/* Scores are those of the high precision everywhere. */
static int count_scores(struct search *s, struct moe_err *err)
{
    struct moe_map_hobbit *hobbit = &s->c->map->hobbit;
    struct moe_loss loss;
    s->rule.bins = s->bins;
    int status = measure_hobbit(s, 100, 100, &loss, err);
    s->rule.bins = NULL;
    double ranked = 0; /* activations of rank 2 on: the best of a token has score 0 */
    for (uint32_t b = 0; b < N_BINS; b++) {
        s->total += (double)s->bins[b];
        ranked += b ? (double)s->bins[b] : 0;
    }
    for (uint32_t b = 0; b < MOE_SCORE_BINS; b++)
        hobbit->scores[b] = ranked > 0 ? (double)s->bins[b + 1] / ranked : 0;
    hobbit->loss = loss;
    return status;
}

static int measure_cuts(struct search *s, struct moe_err *err)
{
    struct moe_map_hobbit *hobbit = &s->c->map->hobbit;
    int status = MOE_OK;
    hobbit->n_cuts = 0;
    for (size_t i = 0; i < sizeof cut_shares / sizeof *cut_shares && status == MOE_OK; i++) {
        uint32_t t = threshold_of(s, cut_shares[i]);
        struct moe_map_cut *cut = &hobbit->cuts[hobbit->n_cuts];
        cut->share = share_above(s, t);
        if (cut->share == 0 || (hobbit->n_cuts && cut->share <= cut[-1].share))
            continue; /* scores are too coarse for it */
        status = measure_hobbit(s, t, 100, &cut->low, err);
        if (status == MOE_OK)
            status = measure_hobbit(s, t, t, &cut->skipped, err);
        hobbit->n_cuts++;
    }
    return status;
}

/* For one T2 the lowest T1 within the tolerance; a better pair replaces what hobbit holds. */
static int seek_t1(struct search *s, uint32_t t2, double *least, struct moe_err *err)
{
    struct moe_map_hobbit *hobbit = &s->c->map->hobbit;
    struct moe_loss loss, best = {0};
    uint32_t low = 0, high = t2;
    int status = measure_hobbit(s, t2, t2, &loss, err);
    if (status != MOE_OK || !calibrate_within(s->c, &loss))
        return status; /* skipping loses too much by itself */
    best = loss;
    while (low < high) {
        uint32_t t1 = low + (high - low) / 2;
        status = measure_hobbit(s, t1, t2, &loss, err);
        if (status != MOE_OK)
            return status;
        if (calibrate_within(s->c, &loss)) {
            high = t1;
            best = loss;
        } else {
            low = t1 + 1;
        }
    }
    double skipped = share_above(s, t2), lowered = share_above(s, high) - skipped;
    double cost = 1 - skipped - lowered * (1 - s->low_cost);
    if (cost >= *least)
        return MOE_OK;
    *least = cost;
    hobbit->t1 = high / 100.0;
    hobbit->t2 = t2 / 100.0;
    hobbit->high_share = 1 - skipped - lowered;
    hobbit->low_share = lowered;
    hobbit->skipped_share = skipped;
    hobbit->loss = best;
    return MOE_OK;
}

int calibrate_hobbit(struct calibration *c, struct moe_err *err)
{
    struct moe_map_hobbit *hobbit = &c->map->hobbit;
    struct search s = {
        .c = c,
        .rule = {.top_k = c->map->top_k, .high = c->upper, .low = c->lower},
        .low_cost =
            (double)calibrate_all_bytes(c, c->lower) / (double)calibrate_all_bytes(c, c->upper),
    };
    double least = INFINITY;
    int status = count_scores(&s, err);
    hobbit->t1 = hobbit->t2 = hobbit->high_share = 1;
    hobbit->low_share = hobbit->skipped_share = 0;
    hobbit->high = c->upper;
    hobbit->low = c->lower;
    if (status == MOE_OK)
        status = measure_cuts(&s, err);
    for (size_t i = 0; i < sizeof skip_shares / sizeof *skip_shares && status == MOE_OK; i++) {
        uint32_t t2 = threshold_of(&s, skip_shares[i]);
        if (i > 0 && t2 == threshold_of(&s, skip_shares[i - 1]))
            continue; /* scores are too coarse for it */
        status = seek_t1(&s, t2, &least, err);
    }
    hobbit->there = status == MOE_OK;
    return status;
}

/* ---- Weights and pools, found on a trace (plan/tuning.h) ---- */

/* Of the trace: enough for penalties to settle, few enough to try hundreds of settings. */
enum { TOKEN_LAYERS = 20000 };
/* Sizes of the cache, in the experts that one token visits. */
static const double demands[] = {1, 2, 4};
enum { N_SIZES = sizeof demands / sizeof *demands };

/* The strategy hobbit with the thresholds that were found. */
static int settle_strategy(const struct moe_map_hobbit *hobbit, struct moe_strategy *out,
                           struct moe_err *err)
{
    if (!moe_strategy_find("hobbit", out))
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "there is no strategy hobbit");
    out->high_up_to = hobbit->t1;
    out->skip_below = 1 - hobbit->t2;
    out->by_scores = out->skip_by_scores = false;
    return moe_strategy_settle(out, err);
}

static int check_shape(const struct calibration *c, const struct moe_trace_shape *shape,
                       struct moe_err *err)
{
    if (shape->source_fingerprint != c->map->source_fingerprint ||
        shape->n_layers != c->map->n_layers || shape->n_experts != c->map->n_experts ||
        shape->top_k != c->map->top_k)
        return moe_fail(err, MOE_ERR_USAGE, "%s: is a trace of another model", c->options->trace);
    return MOE_OK;
}

int calibrate_weights(struct calibration *c, struct moe_err *err)
{
    struct moe_map_hobbit *hobbit = &c->map->hobbit;
    struct moe_inventory inventory = {0};
    struct moe_trace *trace = NULL;
    struct moe_strategy strategy;
    struct moe_tuned tuned;
    uint64_t sizes[N_SIZES];
    int status;
    MOE_STEP(moe_trace_open(&trace, c->options->trace, err));
    MOE_STEP(check_shape(c, moe_trace_shape(trace), err));
    MOE_STEP(
        moe_inventory_of_pack(&inventory, c->model->pack, c->map->top_k, &c->model->config, err));
    MOE_STEP(settle_strategy(hobbit, &strategy, err));
    double token = (double)moe_inventory_slot_bytes(&inventory, hobbit->high) * c->map->top_k *
                   c->map->n_layers;
    for (int i = 0; i < N_SIZES; i++)
        sizes[i] = (uint64_t)(demands[i] * token);
    const struct moe_tuning tuning = {
        .inventory = &inventory,
        .trace = trace,
        .excerpt = moe_excerpt_of(trace, TOKEN_LAYERS / c->map->n_layers + 1),
        .strategy = strategy,
        .high = hobbit->high,
        .low = hobbit->low,
        .cache_bytes = sizes,
        .n_sizes = N_SIZES,
        .progress = c->options->progress,
    };
    MOE_STEP(moe_tune_hobbit(&tuning, &tuned, err));
    hobbit->weighed = true;
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
        hobbit->weights[i] = tuned.weights[i];
    hobbit->low_pool = tuned.low_pool;
    hobbit->penalty = tuned.penalty;
    hobbit->default_penalty = tuned.default_penalty;
out:
    moe_inventory_release(&inventory);
    moe_trace_close(trace);
    return status;
}

/*
 * Fate's hybrid share: in each layer of a prompt the least popular share p of the active experts
 * may be at the low precision (Fate 4.5). The curve takes them in both orders (fig. 10); p is the
 * largest share, in whole percents, within the tolerance. A document is one prompt, and of a pair
 * so are source and target each.
 */

enum { CURVE_POINTS = 11 };

struct hybrid {
    uint32_t n_experts, top_k, n_encoder;
    uint32_t high, low;
    double share;
    bool popular_first;
    uint32_t *rows, *active; /* [n_experts] of the active experts */
    uint8_t *is_low;         /* [n_experts] the same; then [n_experts] the variant of each expert */
};

static void assign_hybrid(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                          const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    const struct hybrid *h = ctx;
    uint64_t n_pairs = (uint64_t)n_rows * h->top_k;
    uint8_t *variant_of = h->is_low + h->n_experts;
    uint32_t *counts = h->active; /* by expert first, then compacted */
    uint32_t n = 0;
    /* An answer is decoded at the high precision throughout. */
    bool decoded = job->tag == MOE_TAG_ANSWER && layer >= h->n_encoder;
    memset(counts, 0, h->n_experts * sizeof *counts);
    for (uint64_t i = 0; i < n_pairs; i++)
        counts[chosen[i]]++;
    for (uint32_t e = 0; e < h->n_experts; e++) {
        if (counts[e] == 0)
            continue;
        h->rows[n] = h->popular_first ? UINT32_MAX - counts[e] : counts[e];
        h->active[n++] = e; /* n <= e: what is overwritten has been read */
    }
    moe_least_popular(h->rows, n, decoded ? 0 : h->share, h->is_low);
    for (uint32_t i = 0; i < n; i++)
        variant_of[h->active[i]] = (uint8_t)(h->is_low[i] ? h->low : h->high);
    for (uint64_t i = 0; i < n_pairs; i++)
        variants[i] = variant_of[chosen[i]];
}

static int measure_on(struct calibration *c, struct hybrid *h, bool check, double share,
                      bool popular_first, struct moe_loss *loss, struct moe_err *err)
{
    const struct moe_rule rule = {h, assign_hybrid};
    h->share = share;
    h->popular_first = popular_first;
    return calibrate_measure(c, &c->own, check, &rule, loss, NULL, err);
}

static int measure_fate(struct calibration *c, struct hybrid *h, double share, bool popular_first,
                        struct moe_loss *loss, struct moe_err *err)
{
    return measure_on(c, h, false, share, popular_first, loss, err);
}

static int curve(struct calibration *c, struct hybrid *h, struct moe_err *err)
{
    struct moe_map_fate *fate = &c->map->fate;
    int status = MOE_OK;
    for (uint32_t i = 0; i < CURVE_POINTS && status == MOE_OK; i++) {
        struct moe_map_point *p = &fate->points[i];
        p->share = (double)i / (CURVE_POINTS - 1);
        status = measure_fate(c, h, p->share, false, &p->unpopular, err);
        if (status == MOE_OK && (i == 0 || i + 1 == CURVE_POINTS))
            p->popular = p->unpopular; /* none or all of them: no order */
        else if (status == MOE_OK)
            status = measure_fate(c, h, p->share, true, &p->popular, err);
        fate->n_points = i + 1;
        moe_progress_report(c->options->progress, "unpopular experts", i + 1, CURVE_POINTS);
    }
    return status;
}

/* Bisection over whole percents; 0 where no share is within the tolerance. */
static int seek(struct calibration *c, struct hybrid *h, struct moe_err *err)
{
    struct moe_map_fate *fate = &c->map->fate;
    uint32_t low = 0, high = 100;
    fate->loss = fate->points[0].unpopular;
    while (low < high) {
        uint32_t percent = low + (high - low + 1) / 2;
        struct moe_loss loss;
        int status = measure_fate(c, h, percent / 100.0, false, &loss, err);
        if (status != MOE_OK)
            return status;
        if (calibrate_within(c, &loss)) {
            low = percent;
            fate->loss = loss;
        } else {
            high = percent - 1;
        }
    }
    fate->share = low / 100.0;
    return MOE_OK;
}

int calibrate_fate(struct calibration *c, struct moe_err *err)
{
    struct moe_map_fate *fate = &c->map->fate;
    uint32_t n = c->map->n_experts;
    struct hybrid h = {.n_experts = n,
                       .top_k = c->map->top_k,
                       .n_encoder = c->model->config.n_encoder,
                       .high = c->upper,
                       .low = c->lower};
    h.rows = moe_alloc(n, sizeof *h.rows, err);
    h.active = moe_alloc(n, sizeof *h.active, err);
    h.is_low = moe_alloc(2 * (uint64_t)n, 1, err);
    int status;
    MOE_STEP(h.rows && h.active && h.is_low ? curve(c, &h, err) : MOE_ERR_MEMORY);
    MOE_STEP(seek(c, &h, err));
    if (c->check)
        MOE_STEP(measure_on(c, &h, true, fate->share, false, &fate->check, err));
out:
    fate->there = status == MOE_OK;
    fate->high = c->upper;
    fate->low = c->lower;
    free(h.rows);
    free(h.active);
    free(h.is_low);
    return status;
}

/*
 * Adaptive exactness: all importances estimated, then those measured that decide (adaptive.h).
 * First a sample; then, twice, bitwidths are chosen by what is known and the experts measured that
 * are nearest to the boundary between the steps taken and those that were not, as far as a share of
 * the experts goes that may be measured. The last choice holds.
 *
 * Which experts are measured follows from figures alone. A run that goes on from what another one
 * measured decides all of it again and only measures less.
 */

enum { ROUNDS = 2, SAMPLE_OF = 4 /* the sample is a quarter of what may be measured */ };

struct adaptive {
    struct calibration *c;
    struct moe_map *proxy; /* the estimates */
    uint64_t n, most;      /* experts; that may be measured */
    uint8_t *asked;        /* [n] */
    double *figures;       /* [n] measured, or on the line */
    double *distances;     /* [n] */
    struct moe_importance_line line;
    uint64_t open; /* experts that could have another bitwidth */
};

static int allocate_adaptive(struct adaptive *a, struct moe_err *err)
{
    const struct moe_map *map = a->c->map;
    MOE_TRY(moe_map_new(&a->proxy, map->n_layers, map->n_experts, map->top_k, err));
    memcpy(a->proxy->model_layer, map->model_layer, map->n_layers * sizeof *map->model_layer);
    a->proxy->n_variants = map->n_variants;
    a->asked = moe_alloc(a->n, sizeof *a->asked, err);
    a->figures = moe_alloc(a->n, sizeof *a->figures, err);
    a->distances = moe_alloc(a->n, sizeof *a->distances, err);
    return a->asked && a->figures && a->distances ? MOE_OK : MOE_ERR_MEMORY;
}

static uint64_t count_set(const uint8_t *bytes, uint64_t n)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += bytes[i];
    return sum;
}

/* The experts of the first measurements; with those that no document visits, which cost nothing. */
static int begin_adaptive(struct adaptive *a, struct moe_err *err)
{
    uint64_t sample = a->most / SAMPLE_OF;
    int status = moe_importance_sample(a->asked, a->proxy->importances.nats, a->n,
                                       sample > 8 ? sample : 8, err);
    for (uint64_t i = 0; i < a->n; i++)
        if (a->proxy->importances.visited[i] == 0 && !a->asked[i]) {
            a->asked[i] = 1;
            a->most++;
        }
    return status;
}

/* The bitwidths by what was measured and, of the other experts, what the line says. */
static int choose_measured(struct adaptive *a, struct moe_err *err)
{
    const struct moe_importances *m = &a->c->map->importances;
    const double *estimates = a->proxy->importances.nats;
    a->line = moe_importance_fit(estimates, m->nats, m->error, a->asked, a->n);
    for (uint64_t i = 0; i < a->n; i++)
        a->figures[i] = a->asked[i] ? m->nats[i] : moe_importance_on_line(&a->line, estimates[i]);
    a->c->figures = a->figures;
    int status = calibrate_choose(a->c, a->distances, err);
    a->c->figures = NULL;
    a->open =
        moe_importance_open(a->asked, a->distances, a->n, MOE_ADAPTIVE_SPREADS * a->line.spread);
    return status;
}

/* Asks for the nearest that are open; false: there are none, or no more may be. */
static bool ask(struct adaptive *a, uint32_t round, int *status, struct moe_err *err)
{
    uint64_t measured = count_set(a->asked, a->n);
    uint64_t room = a->most > measured ? a->most - measured : 0;
    if (a->open == 0 || round == ROUNDS || room == 0)
        return false;
    uint64_t more = (room + ROUNDS - round - 1) / (ROUNDS - round);
    *status = moe_importance_ask(a->asked, a->distances, a->n,
                                 MOE_ADAPTIVE_SPREADS * a->line.spread, more, err);
    return *status == MOE_OK;
}

/* Estimates go into the map beside the measurements; what an earlier run measured that was not
 * asked for goes, as if it had not. */
static void settle(struct adaptive *a)
{
    struct moe_importances *m = &a->c->map->importances;
    for (uint64_t i = 0; i < a->n; i++) {
        m->estimated[i] = !a->asked[i];
        if (a->asked[i])
            continue;
        m->known[i] = 1;
        m->nats[i] = a->figures[i];
        m->error[i] = a->figures[i] * a->line.spread;
        m->changed[i] = 0;
        m->visited[i] = a->proxy->importances.visited[i];
    }
    m->adaptive = (struct moe_adaptive){
        .measured = count_set(a->asked, a->n),
        .estimated = a->n - count_set(a->asked, a->n),
        .open = a->open,
        .spread = a->line.spread,
    };
}

int calibrate_adaptive(struct calibration *c, const struct moe_quality *base,
                       const struct moe_importance_options *options, struct moe_err *err)
{
    struct adaptive a = {.c = c, .n = (uint64_t)c->map->n_layers * c->map->n_experts};
    struct moe_importance_options of_asked = *options;
    a.most = (uint64_t)ceil(c->options->measured_share * (double)a.n);
    int status;
    MOE_STEP(allocate_adaptive(&a, err));
    of_asked.asked = a.asked;
    MOE_STEP(moe_importance_proxy(a.proxy, c->own.rerun, base, options, err));
    MOE_STEP(begin_adaptive(&a, err));
    uint32_t round = 0;
    do {
        MOE_STEP(moe_importance_exact(c->map, c->own.rerun, base, &of_asked, err));
        MOE_STEP(choose_measured(&a, err));
    } while (ask(&a, round++, &status, err));
    if (status == MOE_OK)
        settle(&a);
out:
    moe_map_free(a.proxy);
    free(a.asked);
    free(a.figures);
    free(a.distances);
    return status;
}

/* ---- Adaptive choices: the line ---- */

/* false: the expert says nothing about the line. */
static bool point(double estimate, double nats, double error, double *x, double *y)
{
    double figure = nats > error ? nats : error;
    if (estimate <= 0 || figure <= 0)
        return false;
    *x = log(estimate);
    *y = log(figure);
    return true;
}

struct moe_importance_line moe_importance_fit(const double *estimates, const double *nats,
                                              const double *errors, const uint8_t *asked,
                                              uint64_t n)
{
    struct moe_importance_line line = {0, 1, 0};
    double count = 0, mean_x = 0, mean_y = 0, xx = 0, xy = 0, left = 0, x, y;
    for (uint64_t i = 0; i < n; i++)
        if (asked[i] && point(estimates[i], nats[i], errors[i], &x, &y)) {
            count++;
            mean_x += x;
            mean_y += y;
        }
    if (count == 0)
        return line;
    mean_x /= count;
    mean_y /= count;
    for (uint64_t i = 0; i < n; i++)
        if (asked[i] && point(estimates[i], nats[i], errors[i], &x, &y)) {
            xx += (x - mean_x) * (x - mean_x);
            xy += (x - mean_x) * (y - mean_y);
        }
    line.slope = count > 2 && xx > 0 ? xy / xx : 1;
    line.base = mean_y - line.slope * mean_x;
    for (uint64_t i = 0; i < n; i++)
        if (asked[i] && point(estimates[i], nats[i], errors[i], &x, &y))
            left += (y - line.base - line.slope * x) * (y - line.base - line.slope * x);
    line.spread = sqrt(left / (count > 3 ? count - 2 : 1));
    return line;
}

double moe_importance_on_line(const struct moe_importance_line *line, double estimate)
{
    return estimate > 0 ? exp(line->base + line->slope * log(estimate)) : 0;
}

/* ---- Which to measure ---- */

struct ranked {
    double value;
    uint64_t index;
};

static int by_value(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

int moe_importance_sample(uint8_t *asked, const double *estimates, uint64_t n, uint64_t count,
                          struct moe_err *err)
{
    struct ranked *ranked = moe_alloc(n, sizeof *ranked, err);
    if (!ranked)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n; i++)
        ranked[i] = (struct ranked){estimates[i], i};
    qsort(ranked, n, sizeof *ranked, by_value);
    count = count < n ? count : n;
    for (uint64_t i = 0; i < count; i++)
        asked[ranked[(2 * i + 1) * n / (2 * count)].index] = 1;
    free(ranked);
    return MOE_OK;
}

uint64_t moe_importance_open(const uint8_t *asked, const double *distances, uint64_t n,
                             double reach)
{
    uint64_t open = 0;
    for (uint64_t i = 0; i < n; i++)
        open += !asked[i] && distances[i] < reach;
    return open;
}

int moe_importance_ask(uint8_t *asked, const double *distances, uint64_t n, double reach,
                       uint64_t count, struct moe_err *err)
{
    uint64_t n_open = 0;
    struct ranked *open = moe_alloc(n, sizeof *open, err);
    if (!open)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n; i++)
        if (!asked[i] && distances[i] < reach)
            open[n_open++] = (struct ranked){distances[i], i};
    qsort(open, n_open, sizeof *open, by_value);
    for (uint64_t i = 0; i < count && i < n_open; i++)
        asked[open[i].index] = 1;
    free(open);
    return MOE_OK;
}
