/*
 * HOBBIT's thresholds: an activation whose score s (equation 2, precision.h) is above T1 is
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
#include "calibrate/calibrate_private.h"
#include "model/config.h" /* MOE_MAX_TOP_K */
#include "plan/tuning.h"
#include "sched/precision.h"

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

/* Share of the activations whose score is above so many hundredths. */
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

static int measure(struct search *s, uint32_t t1, uint32_t t2, struct moe_loss *loss,
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
    int status = measure(s, 100, 100, &loss, err);
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
        status = measure(s, t, 100, &cut->low, err);
        if (status == MOE_OK)
            status = measure(s, t, t, &cut->skipped, err);
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
    int status = measure(s, t2, t2, &loss, err);
    if (status != MOE_OK || !calibrate_within(s->c, &loss))
        return status; /* skipping alone loses too much */
    best = loss;
    while (low < high) {
        uint32_t t1 = low + (high - low) / 2;
        status = measure(s, t1, t2, &loss, err);
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
    int status = moe_trace_open(&trace, c->options->trace, err);
    if (status == MOE_OK)
        status = check_shape(c, moe_trace_shape(trace), err);
    if (status == MOE_OK)
        status = moe_inventory_of_pack(&inventory, c->model->pack, c->map->top_k, err);
    if (status == MOE_OK)
        status = settle_strategy(hobbit, &strategy, err);
    if (status == MOE_OK) {
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
        status = moe_tune_hobbit(&tuning, &tuned, err);
    }
    if (status == MOE_OK) {
        hobbit->weighed = true;
        for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
            hobbit->weights[i] = tuned.weights[i];
        hobbit->low_pool = tuned.low_pool;
        hobbit->penalty = tuned.penalty;
        hobbit->default_penalty = tuned.default_penalty;
    }
    moe_inventory_release(&inventory);
    moe_trace_close(trace);
    return status;
}
