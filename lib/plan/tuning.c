/* Tuning. */
#include "plan/tuning.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "plan/fitting.h"
#include "plan/simulate.h"

/* ---- One expert's points ---- */

struct points {
    const uint64_t *bytes; /* [n_variants] */
    const double *loss;    /* [n_variants]; ignored at upper, which is the origin */
    uint32_t n, upper;
};

static double loss_at(const struct points *p, uint32_t v)
{
    return v == p->upper ? 0 : p->loss[v];
}

static bool dominated(const struct points *p, uint32_t v)
{
    for (uint32_t u = p->upper; u < v; u++)
        if (p->bytes[u] && p->bytes[u] <= p->bytes[v] && loss_at(p, u) <= loss_at(p, v))
            return true;
    return false;
}

/* The next corner of the hull after variant v: the one of least loss per byte saved, among equals
 * the smallest step; n: there is none. */
static uint32_t next_corner(const struct points *p, uint32_t v, double *slope)
{
    uint32_t best = p->n;
    for (uint32_t u = v + 1; u < p->n; u++) {
        if (p->bytes[u] == 0 || p->bytes[u] >= p->bytes[v] || dominated(p, u))
            continue;
        double s = (loss_at(p, u) - loss_at(p, v)) / (double)(p->bytes[v] - p->bytes[u]);
        if (best == p->n || s < *slope || (s == *slope && p->bytes[u] > p->bytes[best])) {
            best = u;
            *slope = s;
        }
    }
    return best;
}

/* ---- All steps ---- */

struct ranked {
    struct moe_step step;
    double slope;
    uint32_t number; /* among its expert's */
};

static int by_slope(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->slope != y->slope)
        return x->slope < y->slope ? -1 : 1;
    if (x->step.expert != y->step.expert)
        return x->step.expert < y->step.expert ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Writes an expert's steps in their order; returns how many. */
static uint32_t descend_steps(const struct points *p, uint32_t expert, double weight,
                              struct ranked *out)
{
    uint32_t n = 0;
    double slope = 0, least = -INFINITY;
    if (weight == 0 || p->bytes[p->upper] == 0)
        return 0;
    for (uint32_t v = p->upper, next; (next = next_corner(p, v, &slope)) < p->n; v = next) {
        /* The slopes of a hull rise; rounding must not change the order of an expert's steps. */
        least = fmax(least, slope / weight);
        out[n] = (struct ranked){
            .step = {.expert = expert,
                     .variant = (uint8_t)next,
                     .loss = loss_at(p, next) - loss_at(p, v),
                     .bytes = weight * (double)(p->bytes[v] - p->bytes[next])},
            .slope = least,
            .number = n,
        };
        n++;
    }
    return n;
}

static int check(const struct moe_stairs *s, struct moe_err *err)
{
    if (s->n_variants > UINT8_MAX || s->upper >= s->n_variants)
        return moe_fail(err, MOE_ERR_USAGE, "steps from variant %u of %u cannot be", s->upper,
                        s->n_variants);
    for (uint32_t e = 0; e < s->n_experts; e++) {
        if (s->weight && !(s->weight[e] >= 0 && isfinite(s->weight[e])))
            return moe_fail(err, MOE_ERR_USAGE, "expert %u: a weight of %g cannot be", e,
                            s->weight[e]);
        for (uint32_t v = s->upper + 1; v < s->n_variants; v++) {
            uint64_t at = (uint64_t)e * s->n_variants + v;
            if (s->bytes[at] && !isfinite(s->loss[at]))
                return moe_fail(err, MOE_ERR_USAGE,
                                "expert %u: its loss at variant %u is not a number", e, v);
        }
    }
    return MOE_OK;
}

int moe_steps_make(struct moe_step **steps, uint64_t *n, const struct moe_stairs *s,
                   struct moe_err *err)
{
    *steps = NULL;
    *n = 0;
    int status = check(s, err);
    if (status != MOE_OK)
        return status;
    uint64_t most = (uint64_t)s->n_experts * (s->n_variants - 1 - s->upper), made = 0;
    struct ranked *ranked = moe_alloc(most, sizeof *ranked, err);
    *steps = moe_alloc(most, sizeof **steps, err);
    if (!ranked || !*steps) {
        free(ranked);
        free(*steps);
        *steps = NULL;
        return MOE_ERR_MEMORY;
    }
    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint64_t at = (uint64_t)e * s->n_variants;
        struct points p = {s->bytes + at, s->loss + at, s->n_variants, s->upper};
        made += descend_steps(&p, e, s->weight ? s->weight[e] : 1, ranked + made);
    }
    qsort(ranked, made, sizeof *ranked, by_slope);
    for (uint64_t i = 0; i < made; i++)
        (*steps)[i] = ranked[i].step;
    *n = made;
    free(ranked);
    return MOE_OK;
}

double moe_steps_take(const struct moe_step *steps, uint64_t k, uint32_t upper, uint32_t n_experts,
                      uint8_t *variants)
{
    double loss = 0;
    memset(variants, (int)upper, n_experts);
    for (uint64_t i = 0; i < k; i++) {
        variants[steps[i].expert] = steps[i].variant;
        loss += steps[i].loss;
    }
    return loss;
}

/* ---- Tuning ---- */

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
    double cost;    /* mean over sizes of penalties relative to the default's: is minimized */
};

struct tuner {
    const struct moe_tuning *in;
    struct moe_strategy strategy; /* loads only on demand: equation 3 is about eviction */
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
static int descend_point(struct tuner *t, struct point *at, struct moe_err *err)
{
    struct point next;
    int status = look_around(t, at, &next, err);
    while (status == MOE_OK && next.cost < at->cost) {
        *at = next;
        status = look_around(t, at, &next, err);
    }
    return status;
}

/* The strategy's own weights, then each policy by itself. */
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
    for (uint32_t i = 0; i < N_STARTS; i++) {
        struct point p = start_of(t, i);
        MOE_TRY(try_point(t, &p, err));
        MOE_TRY(descend_point(t, &p, err));
        if (p.cost < best.cost)
            best = p;
    }
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
