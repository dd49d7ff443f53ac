#include "plan/tuning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "plan/fitting.h"
#include "plan/simulate.h"

enum {
    BATCH = 256, /* rows of a prompt's pass */
    N_STARTS = 1 + MOE_HOBBIT_WEIGHTS,
    USUAL_POINTS = 200, /* tried by a search */
    MOST_POINTS = 4096, /* a search ends long before */
};
static const double WEIGHT_STEP = 1.0 / 8, POOL_STEP = 1.0 / 20, MOST_LOW_POOL = 0.5;
/* Nearer points are the same: coordinates are sums of fractions. */
static const double SAME = 1e-9;

struct point {
    double weights[MOE_HOBBIT_WEIGHTS], low_pool;
    double penalty; /* mean over sizes */
    double cost;    /* mean over sizes of penalties relative to the default's: is minimised */
};

struct tuner {
    const struct moe_tuning *in;
    struct moe_strategy strategy; /* loads on demand alone: equation 3 is about eviction */
    struct moe_pace pace;         /* then decides nothing */
    double high_bytes;            /* mean of a load */
    double *defaults;             /* [n_sizes] penalties */
    struct point *tried;          /* [MOST_POINTS], the default first */
    uint32_t n_tried;
};

/* ---- One point ---- */

/* The miss penalty is the bytes loaded, in units of a load at high precision: a load at low
 * precision counts B_l / B_h. */
static int find_penalty(const struct tuner *t, const struct point *p, uint64_t bytes,
                        double *penalty, struct moe_err *err)
{
    const struct moe_tuning *in = t->in;
    struct moe_strategy strategy = t->strategy;
    struct moe_simulated out;
    struct moe_pools pools;
    memcpy(strategy.weights, p->weights, sizeof strategy.weights);
    strategy.low_pool = p->low_pool;
    int status = moe_strategy_settle(&strategy, err);
    if (status != MOE_OK)
        return status;
    struct moe_slots slots =
        moe_slots_of(&strategy, bytes, true, moe_inventory_slot_bytes(in->inventory, in->high),
                     in->inventory->top_k, 0);
    moe_pools_size(&pools, in->inventory, &strategy, in->high, in->low, slots.cache_bytes,
                   slots.working);
    const struct moe_simulation simulation = {
        .trace = in->trace,
        .excerpt = in->excerpt,
        .scheduler = {.inventory = in->inventory,
                      .strategy = &strategy,
                      .high = in->high,
                      .low = in->low,
                      .pools = &pools},
        .pace = &t->pace,
        .batch = BATCH,
        .piece_bytes = UINT32_MAX,
        .progress = in->progress,
    };
    status = moe_simulate(&simulation, &out, NULL, err);
    if (status != MOE_OK)
        return status;
    uint64_t n = out.decode.experts.activations;
    if (n == 0)
        return moe_fail(err, MOE_ERR_USAGE, "the trace has no decoded token to tune by");
    *penalty = (double)out.decode.bytes / t->high_bytes / (double)n;
    return MOE_OK;
}

static bool is_same(const struct point *a, const struct point *b)
{
    bool same = fabs(a->low_pool - b->low_pool) < SAME;
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
        same &= fabs(a->weights[i] - b->weights[i]) < SAME;
    return same;
}

/* Penalty and cost of a point; none is simulated twice. The first one is the default, whose
 * penalties are the units of cost. */
static int try_point(struct tuner *t, struct point *p, struct moe_err *err)
{
    const struct moe_tuning *in = t->in;
    for (uint32_t i = 0; i < t->n_tried; i++)
        if (is_same(&t->tried[i], p)) {
            *p = t->tried[i];
            return MOE_OK;
        }
    if (t->n_tried == MOST_POINTS)
        return moe_fail(err, MOE_ERR_LIMIT, "tuning does not end");
    p->penalty = p->cost = 0;
    for (uint32_t i = 0; i < in->n_sizes; i++) {
        double penalty;
        int status = find_penalty(t, p, in->cache_bytes[i], &penalty, err);
        if (status != MOE_OK)
            return status;
        if (t->n_tried == 0)
            t->defaults[i] = penalty;
        p->penalty += penalty / in->n_sizes;
        if (t->defaults[i] > 0)
            p->cost += penalty / t->defaults[i] / in->n_sizes;
        else
            p->cost += (penalty > 0 ? INFINITY : 1.0) / in->n_sizes;
    }
    /* A gain at sizes with few misses must not cost more than it saves elsewhere. */
    if (t->n_tried && p->penalty > t->tried[0].penalty)
        p->cost = INFINITY;
    t->tried[t->n_tried++] = *p;
    moe_progress_report(in->progress, "tuning the cache's weights", t->n_tried,
                        t->n_tried < USUAL_POINTS ? USUAL_POINTS : t->n_tried + 1);
    return MOE_OK;
}

/* ---- The search ---- */

/* The best point within one step: part of a weight moves to another, or the low pool grows or
 * shrinks. */
static int look_around(struct tuner *t, const struct point *from, struct point *best,
                       struct moe_err *err)
{
    bool takes_low = t->strategy.needs_low && t->in->low > t->in->high;
    struct point to;
    int status = MOE_OK;
    *best = *from;
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
        for (int j = 0; j < MOE_HOBBIT_WEIGHTS; j++) {
            double step = fmin(WEIGHT_STEP, from->weights[i]);
            if (i == j || step < SAME)
                continue;
            to = *from;
            to.weights[i] -= step;
            to.weights[j] += step;
            status = try_point(t, &to, err);
            if (status != MOE_OK)
                return status;
            if (to.cost < best->cost)
                *best = to;
        }
    for (int up = 0; up < 2 && takes_low; up++) {
        to = *from;
        to.low_pool = up ? fmin(from->low_pool + POOL_STEP, MOST_LOW_POOL)
                         : fmax(from->low_pool - POOL_STEP, 0);
        if (to.low_pool < SAME) /* a rest of rounding */
            to.low_pool = 0;
        status = try_point(t, &to, err);
        if (status != MOE_OK)
            return status;
        if (to.cost < best->cost)
            *best = to;
    }
    return MOE_OK;
}

/* Downhill until no step gains. */
static int descend(struct tuner *t, struct point *at, struct moe_err *err)
{
    struct point next;
    int status = look_around(t, at, &next, err);
    while (status == MOE_OK && next.cost < at->cost) {
        *at = next;
        status = look_around(t, at, &next, err);
    }
    return status;
}

/* The strategy's own weights, then each policy alone. */
static struct point start_of(const struct tuner *t, uint32_t i)
{
    const double *own = moe_strategy_weights(&t->strategy);
    struct point p = {.low_pool = t->strategy.low_pool};
    for (uint32_t k = 0; k < MOE_HOBBIT_WEIGHTS; k++)
        p.weights[k] = i ? k == i - 1 : own ? own[k] : 1.0 / MOE_HOBBIT_WEIGHTS;
    return p;
}

static int search(struct tuner *t, struct moe_tuned *out, struct moe_err *err)
{
    struct point best = {.cost = INFINITY};
    int status = MOE_OK;
    for (uint32_t i = 0; i < N_STARTS && status == MOE_OK; i++) {
        struct point p = start_of(t, i);
        status = try_point(t, &p, err);
        if (status == MOE_OK)
            status = descend(t, &p, err);
        if (status == MOE_OK && p.cost < best.cost)
            best = p;
    }
    if (status != MOE_OK)
        return status;
    memcpy(out->weights, best.weights, sizeof out->weights);
    out->low_pool = best.low_pool;
    out->penalty = best.penalty;
    out->default_penalty = t->tried[0].penalty;
    out->n_tried = t->n_tried;
    return MOE_OK;
}

/* ---- Tuning ---- */

/* The strategy without predictions and prefetches. */
static int set_strategy(struct tuner *t, struct moe_err *err)
{
    struct moe_strategy *s = &t->strategy;
    *s = t->in->strategy;
    if (s->resident || s->cache != &moe_policy_hobbit)
        return moe_fail(err, MOE_ERR_USAGE, "only --cache hobbit has weights to tune");
    if (t->in->n_sizes == 0)
        return moe_fail(err, MOE_ERR_USAGE, "tuning needs a cache size");
    s->predict = MOE_PREDICT_BY_NOTHING;
    s->first_by_token = false;
    s->depth = 0;
    s->prefetch = (struct moe_prefetch_limits){0};
    moe_strategy_drop_idle(s, 0);
    return moe_strategy_settle(s, err);
}

int moe_tune_hobbit(const struct moe_tuning *in, struct moe_tuned *out, struct moe_err *err)
{
    struct tuner t = {
        .in = in,
        .pace = {.n_variants = in->inventory->n_variants, .load_rate = 1e9},
        .high_bytes = moe_inventory_mean_load(in->inventory, in->high),
    };
    *out = (struct moe_tuned){0};
    int status = set_strategy(&t, err);
    if (status != MOE_OK)
        return status;
    t.defaults = moe_alloc(in->n_sizes, sizeof *t.defaults, err);
    t.tried = moe_alloc(MOST_POINTS, sizeof *t.tried, err);
    status = t.defaults && t.tried ? search(&t, out, err) : MOE_ERR_MEMORY;
    free(t.defaults);
    free(t.tried);
    return status;
}
