/*
 * The search of --strategy auto: the strategies of the table first, then parts of the fastest.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "plan/planner.h"
#include "plan/planner_internal.h"
#include "sched/exactness.h"
#include "sched/history.h"
#include "sched/strategy.h"

enum {
    MOST_ROUNDS = 4,            /* through all parts */
    TRIAL_TOKEN_LAYERS = 60000, /* of the trace, for each trial */
    KEPT_BYTES = 128 << 20,     /* of the trace, between trials */
};
/* A smaller gain is not worth another part. */
static const double LEAST_GAIN = 1.003;
/* A change that makes the strategy so much slower is not tried again when other parts have changed:
 * parts change what another one gains by less. */
static const double HOPELESS = 0.98;

#define SEARCHING "searching for the fastest strategy"

/* The values tried for each part. Strategies of the table may have others. */
static const struct change {
    enum moe_part part;
    const char *text;
    bool measured; /* tried only with a calibration, as it found best */
} changes[] = {
    {MOE_PART_CACHE, "lru", false},
    {MOE_PART_CACHE, "lrfu", false},
    {MOE_PART_CACHE, "transition", false},
    {MOE_PART_CACHE, "learned", false},
    {MOE_PART_CACHE, "arc", false},
    {MOE_PART_CACHE, "hobbit", false},
    {MOE_PART_PREDICT, "none", false},
    {MOE_PART_PREDICT, "gate-next", false},
    {MOE_PART_PREDICT, "gate-ahead:2", false},
    {MOE_PART_PREDICT, "gate-residual", false},
    {MOE_PART_PREFETCH, "none", false},
    {MOE_PART_PREFETCH, "all", false},
    {MOE_PART_PREFETCH, "percentile:75", false},
    {MOE_PART_PREFETCH, "percentile:75,slack", false},
    {MOE_PART_PREFETCH, "all,slack", false},
    {MOE_PART_PREFETCH, "count:1", false},
    {MOE_PART_PREFETCH, "count:2", false},
    {MOE_PART_PREFETCH, "count:2,all", false},
    {MOE_PART_PREFETCH, "until-router,all", false},
    {MOE_PART_PROTECT, "on", false},
    {MOE_PART_PROTECT, "off", false},
    {MOE_PART_ALLOC, "global", false},
    {MOE_PART_ALLOC, "per-layer", false},
    {MOE_PART_ALLOC, "shallow:1", false},
    {MOE_PART_ALLOC, "shallow:2", false},
    {MOE_PART_ALLOC, "shallow", false},
    {MOE_PART_INIT, "empty", false},
    {MOE_PART_INIT, "frequency", false},
    {MOE_PART_KEEP_RECORDS, "on", false},
    {MOE_PART_PREFILL, "popularity", false},
    {MOE_PART_PREFILL, "routed-order", false},
    {MOE_PART_PREFILL, "hybrid", true},
    {MOE_PART_ON_MISS, "load", true},
    {MOE_PART_ON_MISS, "load-low", true},
    {MOE_PART_ON_MISS, "compute-host,load-low", true},
    {MOE_PART_PREFER_CACHED, "0", true},
    {MOE_PART_PREFER_CACHED, "auto", true},
};
enum { N_CHANGES = sizeof changes / sizeof changes[0] };

struct search {
    const struct moe_planner *planner;      /* on fewer tokens */
    struct moe_strategy ways[MOE_MAX_WAYS]; /* to load less, within a tolerance */
    uint32_t n_ways;
    struct moe_plan *plan;
    struct moe_strategy best;
    double worth;
    bool hopeless[N_CHANGES];
    uint32_t n_steps, n_done, n_shown;
};

static bool was_tried(const struct moe_plan *plan, const char *brief)
{
    for (uint32_t i = 0; i < plan->n_tried; i++)
        if (strcmp(plan->tried[i].strategy, brief) == 0)
            return true;
    return false;
}

/* Keeps the list sorted, the fastest first; among equals the one found first. */
static void remember_tried(struct moe_plan *plan, const struct moe_plan_tried *tried)
{
    uint32_t at = plan->n_tried < MOE_PLAN_MAX_TRIED ? plan->n_tried : MOE_PLAN_MAX_TRIED - 1;
    plan->n_tried = at + 1;
    for (; at > 0 && plan->tried[at - 1].decode_tokens_per_second < tried->decode_tokens_per_second;
         at--)
        plan->tried[at] = plan->tried[at - 1];
    plan->tried[at] = *tried;
}

/* Speed, minus up to a fiftieth for a link that is always busy: among equals the one that loads
 * less is safer, in case loads turn out slower than simulated. */
static double worth_of(const struct moe_trial_run *t)
{
    const struct moe_simulated_phase *d = &t->simulated.decode;
    double busy = d->seconds > 0 ? d->link_seconds / d->seconds : 0;
    return moe_trial_tokens_per_second(t) * (1 - 0.02 * busy);
}

/* Plans chosen here need no other file: predictions by paths need statistics, and so do the
 * frequencies of edgemoe's cache. */
static bool needs_statistics(const struct moe_strategy *s)
{
    return moe_predicts_from_paths(s->predict) || s->cache == &moe_policy_edgemoe ||
           s->cache == &moe_policy_edgemoe_literal;
}

/* *worth: 0 if it cannot run here or was tried before, which is no error. */
static int try_one(struct search *s, const struct moe_strategy *strategy, double *worth,
                   struct moe_err *err)
{
    struct moe_plan_tried tried;
    struct moe_trial_run t;
    *worth = 0;
    moe_strategy_brief(strategy, tried.strategy);
    if (needs_statistics(strategy) || was_tried(s->plan, tried.strategy))
        return MOE_OK;
    int status = moe_planner_try(s->planner, strategy, 0, 0, &t, NULL, err);
    if (status == MOE_ERR_USAGE || status == MOE_ERR_LIMIT)
        return MOE_OK;
    if (status != MOE_OK)
        return status;
    *worth = worth_of(&t);
    tried.decode_tokens_per_second = moe_trial_tokens_per_second(&t);
    tried.hit_rate = moe_trial_hit_rate(&t);
    remember_tried(s->plan, &tried);
    return MOE_OK;
}

static int report(struct search *s, struct moe_err *err)
{
    const struct moe_progress *progress = s->planner->progress;
    if (++s->n_done > s->n_shown)
        moe_progress_report(progress, SEARCHING, s->n_done, s->n_steps);
    return moe_progress_stopped(progress) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped") : MOE_OK;
}

/* The i-th of the table as it is tried: `plain`, and with a calibration, by its findings, `found`.
 */
static void from_table(const struct search *s, int i, struct moe_strategy *plain,
                       struct moe_strategy *found)
{
    const struct moe_calibration *c = s->planner->calibration;
    moe_strategy_find(moe_strategy_name_at(i), plain);
    *found = *plain;
    if (c) {
        moe_strategy_fall_back(plain);
        plain->cache_bits = 0;
        moe_calibration_apply(c->map, 0, found);
    }
}

/* Finds the ways to load less that are tolerable in the cache that a strategy leaves. */
static int find_ways(struct search *s, const struct moe_strategy *strategy, struct moe_err *err)
{
    const struct moe_planner *p = s->planner;
    struct moe_fitted f;
    s->n_ways = 0;
    if (!p->calibration || p->calibration->tolerance <= 0)
        return MOE_OK;
    MOE_TRY(p->fitter.fit(p->fitter.ctx, strategy, NULL, &f, err));
    return moe_calibration_ways(p->calibration, p->inventory, planner_cache_bytes(p, &f.pools),
                                s->ways, &s->n_ways, err);
}

/* Simulates n candidates side by side, before they are looked at one by one. */
static int try_ahead(struct search *s, const struct moe_strategy *candidates, uint32_t n,
                     struct moe_err *err)
{
    struct moe_trial *trials = moe_alloc(n ? n : 1, sizeof *trials, err);
    uint32_t n_trials = 0;
    if (!trials)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        char brief[MOE_STRATEGY_BRIEF];
        moe_strategy_brief(&candidates[i], brief);
        if (!needs_statistics(&candidates[i]) && !was_tried(s->plan, brief))
            trials[n_trials++] = moe_trial_of(s->planner, &candidates[i], 0, 0);
    }
    int status =
        moe_trials_ahead(s->planner, trials, n_trials, SEARCHING, s->n_done, s->n_steps, err);
    s->n_shown = s->n_done + n_trials;
    free(trials);
    return status;
}

/* Every strategy of the table; with a calibration both without and with its findings. */
static int try_table(struct search *s, struct moe_err *err)
{
    const struct moe_calibration *c = s->planner->calibration;
    const bool both = c && c->tolerance <= 0;
    uint32_t n_names = 0, n = 0;
    while (moe_strategy_name_at((int)n_names))
        n_names++;
    struct moe_strategy *all = moe_alloc(2 * (uint64_t)n_names, sizeof *all, err);
    if (!all)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n_names; i++, n += 1 + both)
        from_table(s, (int)i, &all[n], &all[n + 1]);
    int status;
    MOE_STEP(try_ahead(s, all, n, err));
    for (uint32_t i = 0; i < n; i++) {
        double worth;
        MOE_STEP(try_one(s, &all[i], &worth, err));
        if (worth > s->worth) {
            s->best = all[i];
            s->worth = worth;
        }
        if (!both || i % 2)
            MOE_STEP(report(s, err));
    }
out:
    free(all);
    return status;
}

/* A strategy that loads at low precision needs a pool for it, and skips as HOBBIT does. */
static void load_low(struct moe_strategy *s)
{
    struct moe_strategy hobbit;
    moe_strategy_find("hobbit", &hobbit);
    s->low_pool = hobbit.low_pool;
    s->skip_below = hobbit.skip_below;
    s->by_scores = false; /* the map's thresholds take their place */
}

/* Changes one part; false: the change makes no sense or does not apply. */
static bool change(const struct search *search, struct moe_strategy *s, uint32_t i)
{
    const struct moe_calibration *c = search->planner->calibration;
    struct moe_err ignored;
    const struct moe_strategy before = *s;
    const bool by_map = c && c->tolerance <= 0;
    if (changes[i].measured && !by_map)
        return false;
    if (!moe_strategy_set(s, changes[i].part, changes[i].text, NULL))
        return false;
    /* A new prediction is useless without a prefetch. */
    if (changes[i].part == MOE_PART_PREDICT && before.predict == MOE_PREDICT_BY_NOTHING)
        moe_strategy_set(s, MOE_PART_PREFETCH, "all", NULL);
    if (changes[i].part == MOE_PART_PREFETCH && s->predict == MOE_PREDICT_BY_NOTHING)
        return false;
    /* Whether there is a host is the strategy's to say. */
    if (s->miss_place == MOE_MISS_COMPUTE_HOST && before.miss_place != MOE_MISS_COMPUTE_HOST)
        return false;
    if (changes[i].part == MOE_PART_ON_MISS && s->miss_precision == MOE_MISS_BY_SCORE)
        load_low(s);
    else if (changes[i].part == MOE_PART_ON_MISS)
        s->skip_below = 0;
    if (by_map)
        moe_calibration_apply(c->map, 0, s);
    moe_strategy_drop_idle(s, 0);
    if (moe_strategy_settle(s, &ignored) != MOE_OK)
        return false;
    moe_strategy_name_nearest(s);
    return true;
}

/* Has it load less; false: it cannot. */
static bool approximate(struct moe_strategy *s, const struct moe_strategy *way)
{
    struct moe_err ignored;
    moe_calibration_take(s, way);
    if (moe_strategy_settle(s, &ignored) != MOE_OK)
        return false;
    moe_strategy_name_nearest(s);
    return true;
}

/* Changes parts of the best strategy, the best change of a round first, until none gains. */
static int improve(struct search *s, struct moe_err *err)
{
    struct moe_strategy candidates[N_CHANGES + MOE_MAX_WAYS];
    uint32_t changed[N_CHANGES];
    int status = find_ways(s, &s->best, err);
    for (uint32_t round = 0; round < MOST_ROUNDS && status == MOE_OK; round++) {
        struct moe_strategy winner = s->best;
        double best = s->worth;
        uint32_t n = 0;
        for (uint32_t i = 0; i < N_CHANGES; i++) {
            candidates[n] = s->best;
            changed[n] = i;
            n += !s->hopeless[i] && change(s, &candidates[n], i);
        }
        const uint32_t n_changed = n;
        for (uint32_t i = 0; i < s->n_ways; i++) {
            candidates[n] = s->best;
            n += approximate(&candidates[n], &s->ways[i]);
        }
        status = try_ahead(s, candidates, n, err);
        for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
            double found = 0;
            status = try_one(s, &candidates[i], &found, err);
            if (status == MOE_OK)
                status = report(s, err);
            if (i < n_changed && found > 0 && found < s->worth * HOPELESS)
                s->hopeless[changed[i]] = true;
            if (found > best) {
                winner = candidates[i];
                best = found;
            }
        }
        s->n_done += N_CHANGES + MOE_MAX_WAYS - n; /* those that do not apply */
        if (best <= s->worth * LEAST_GAIN)
            break;
        s->best = winner;
        s->worth = best;
    }
    return status;
}

static int refuse_trace(struct moe_err *err)
{
    return moe_fail(
        err, MOE_ERR_USAGE,
        "the part of the trace that is simulated decodes no token, so strategies cannot "
        "be compared: raise --max-tokens, or record a trace with answers");
}

/* Nothing can run: the sentence is that of the strategy that needs least, which says how much.
 * Where even that fits, no token was decoded by which strategies could be judged. */
static int refuse_search(const struct moe_planner *p, struct moe_err *err)
{
    struct moe_strategy lru;
    struct moe_fitted ignored;
    moe_strategy_find("lru", &lru);
    MOE_TRY(p->fitter.fit(p->fitter.ctx, &lru, NULL, &ignored, err));
    if (p->calibration)
        return moe_fail(err, MOE_ERR_LIMIT, "no strategy can run in this memory");
    return refuse_trace(err);
}

struct moe_excerpt planner_excerpt(const struct moe_planner *p)
{
    const struct moe_trace_totals *all = moe_trace_totals(p->trace);
    const uint64_t most =
        p->trial_tokens ? p->trial_tokens : TRIAL_TOKEN_LAYERS / p->inventory->n_layers + 1;
    struct moe_excerpt e = p->excerpt;
    const uint64_t every = e.every ? e.every : 1, there = all->tokens / every;
    const uint64_t n = e.max_tokens && e.max_tokens < there ? e.max_tokens : there;
    const uint64_t times = (n + most - 1) / most;
    if (n <= most)
        return e;
    e.max_tokens = most;
    if (every * times <= all->sequences) /* else a few long sequences */
        e.every = (uint32_t)(every * times);
    return e;
}

int moe_planner_search(const struct moe_planner *p, struct moe_plan *plan,
                       struct moe_strategy *best, struct moe_err *err)
{
    struct moe_planner fewer = *p;
    struct search s = {.planner = &fewer, .plan = plan};
    fewer.excerpt = planner_excerpt(p);
    fewer.lookups = NULL;
    if (p->exact)
        fewer.calibration = NULL;
    s.n_steps = MOST_ROUNDS * (N_CHANGES + MOE_MAX_WAYS);
    free(plan->tried);
    plan->n_tried = 0;
    plan->tried = moe_alloc(MOE_PLAN_MAX_TRIED, sizeof *plan->tried, err);
    if (!plan->tried)
        return MOE_ERR_MEMORY;
    MOE_TRY(try_table(&s, err));
    if (s.worth <= 0)
        MOE_TRY(refuse_search(p, err));
    if (!s.best.resident)
        MOE_TRY(improve(&s, err));
    *best = s.best;
    return MOE_OK;
}

/* One strategy in the simulator. */

double moe_trial_tokens_per_second(const struct moe_trial_run *t)
{
    const struct moe_simulated_phase *d = &t->simulated.decode;
    return d->seconds > 0 ? (double)d->tokens / d->seconds : 0;
}

double moe_trial_hit_rate(const struct moe_trial_run *t)
{
    const struct moe_counts *c = &t->simulated.decode.experts;
    return c->activations ? (double)(c->cache_hits + c->prefetch_hits) / (double)c->activations : 0;
}

/* Everything in memory from the start: a cache of all there is, filled. */
static void make_resident(const struct moe_planner *p, struct moe_strategy *s,
                          struct moe_pools *pools)
{
    moe_strategy_find("lru", s);
    s->init = MOE_INIT_LAYERWISE;
    moe_pools_size(pools, p->inventory, s, 0, 0, moe_inventory_all_bytes(p->inventory, 0), 1);
}

uint32_t planner_n_cached(const struct moe_pools *pools)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < pools->n_classes; c++)
        n += pools->pools[c].n_cache;
    return n;
}

uint64_t planner_cache_bytes(const struct moe_planner *p, const struct moe_pools *pools)
{
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < pools->n_classes; c++)
        bytes += pools->pools[c].n_cache * p->inventory->classes[c].slot_bytes;
    return bytes;
}

double planner_load_seconds(const struct moe_planner *p, const struct moe_pace *pace,
                            uint32_t variant)
{
    double bytes = moe_inventory_mean_load(p->inventory, variant);
    return bytes / pace->load_rate + ceil(bytes / MOE_LINK_PIECE_BYTES) * pace->loads.piece;
}

static int find_optimum(const struct moe_planner *p, struct moe_trial_run *t, struct moe_err *err)
{
    uint64_t hits, n = p->lookups ? moe_lookups_decoded(p->lookups) : 0;
    t->optimal_hit_rate = -1;
    if (n == 0)
        return MOE_OK;
    int status = moe_optimal_hits(
        p->lookups, planner_n_cached(&t->fitted.pools) + t->fitted.staging, &hits, err);
    if (status == MOE_OK)
        t->optimal_hit_rate = (double)hits / (double)n;
    return status;
}

struct moe_trials {
    uint64_t n_run; /* simulations of the present step */
    enum planner_step step;
    const struct moe_inventory *inventory;
    struct moe_trace *trace;
    int n_readers;
    struct moe_trace *readers[MOE_MAX_THREADS]; /* by thread; the first is the planner's */
    struct remembered *first;
    struct moe_tapes *tapes;
};

/* An inventory made for one alternative is gone after it. */
static bool is_known(const struct moe_planner *p)
{
    return p->trials && p->inventory == p->trials->inventory && p->trace == p->trials->trace;
}

int planner_prepare(const struct moe_planner *p, const struct moe_strategy *strategy,
                    uint64_t bytes, double load_rate, struct planner_prepared *out,
                    struct moe_err *err)
{
    out->run = (struct moe_trial_run){.optimal_hit_rate = -1};
    struct moe_fitted *f = &out->run.fitted;
    const struct moe_fit_room room = {bytes, p->batch};
    MOE_TRY(p->fitter.fit(p->fitter.ctx, strategy, &room, f, err));
    if (p->exact) {
        const struct moe_terms terms = moe_terms_of(&f->strategy, p->inventory, f->high);
        MOE_TRY(moe_exactness_check(&terms, err));
    }
    if (p->calibration && !p->any_loss)
        MOE_TRY(moe_calibration_check(p->calibration, &f->strategy, p->inventory,
                                      planner_cache_bytes(p, &f->pools), f->high, f->low, err));
    const struct moe_statistics *known = p->scoring ? p->scoring : p->statistics;
    out->pace = *p->pace;
    out->strategy = f->strategy;
    out->pools = f->pools;
    if (load_rate > 0)
        out->pace.load_rate = load_rate;
    if (f->strategy.resident)
        make_resident(p, &out->strategy, &out->pools);
    out->in = (struct moe_simulation){
        .trace = p->trace,
        .excerpt = p->excerpt,
        .scheduler = {.inventory = p->inventory,
                      .strategy = &out->strategy,
                      .high = f->high,
                      .low = f->low,
                      .pools = &out->pools,
                      .frequency = known ? known->series[MOE_S_ACTIVATIONS] : NULL,
                      .placement = known ? moe_statistics_placement(known) : NULL,
                      .layer_seconds = moe_pace_layer(&out->pace, f->high, p->inventory->top_k),
                      .load_seconds = planner_load_seconds(p, &out->pace, f->high),
                      .seed = p->seed},
        .statistics = known,
        .tapes = p->trials && p->trace == p->trials->trace ? p->trials->tapes : NULL,
        .learnt = p->learnt,
        .pace = &out->pace,
        .host_bytes = f->host.total ? f->host_bytes : p->host_bytes,
        .batch = f->memory.batch ? f->memory.batch : 1,
        .progress = p->progress,
    };
    return MOE_OK;
}

int planner_run(const struct moe_planner *p, struct planner_prepared *t,
                struct moe_simulated_layer *layers, struct moe_err *err)
{
    int status = moe_simulate(&t->in, &t->run.simulated, layers, err);
    return status == MOE_OK ? find_optimum(p, &t->run, err) : status;
}

/* ---- Several machines ---- */

static int prepare_machine(const struct moe_planner *p, const struct moe_strategy *strategy,
                           bool automatic, struct planner_prepared *out, struct moe_err *err)
{
    struct moe_strategy resident;
    struct moe_err ignored;
    if (automatic && moe_strategy_find("resident", &resident) &&
        planner_prepare(p, &resident, 0, 0, out, &ignored) == MOE_OK)
        return MOE_OK;
    return planner_prepare(p, strategy, 0, 0, out, err);
}

int moe_planner_try_machines(const struct moe_planner_machines *m,
                             const struct moe_strategy *strategy, bool automatic,
                             struct moe_trial_run *runs, struct moe_simulated_work *work,
                             struct moe_err *err)
{
    struct planner_prepared *all = moe_alloc(m->n, sizeof *all, err);
    struct moe_simulated_rank *ranks = moe_alloc(m->n, sizeof *ranks, err);
    int status = all && ranks ? MOE_OK : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < m->n && status == MOE_OK; i++) {
        status = prepare_machine(&m->planners[i], strategy, automatic, &all[i], err);
        if (status != MOE_OK && m->n > 1)
            moe_err_prefix(err, "machine '%s'", m->names[i]);
        if (i > 0)
            ranks[i - 1] = (struct moe_simulated_rank){&all[i].in, m->wires[i]};
    }
    if (status == MOE_OK) {
        memset(work, 0, m->n * sizeof *work);
        struct moe_simulation *in = &all[0].in;
        in->holders = m->n > 1 ? m->holders : NULL;
        in->attends = m->n > 1 ? m->attends : NULL;
        in->owners = m->n > 1 ? m->owners : NULL;
        in->ranks = ranks;
        in->n_ranks = m->n - 1;
        in->row_bytes = m->row_bytes;
        in->work = work + 1;
        status = moe_simulate(in, &all[0].run.simulated, NULL, err);
    }
    if (status == MOE_OK && all[0].run.simulated.decode.tokens == 0)
        status = refuse_trace(err);
    for (uint32_t i = 0; i < m->n && status == MOE_OK; i++)
        runs[i] = all[i].run;
    free(all);
    free(ranks);
    return status;
}

/* ---- Trials ---- */

/* Everything that a simulation depends on, but what is the planner's for good. Compared byte by
 * byte: padding that differs costs another simulation, nothing else. */
struct key {
    struct moe_strategy strategy; /* without its name, and what changes nothing */
    struct moe_pools pools;
    struct moe_pace pace;
    uint64_t max_tokens, first, warm; /* of the excerpt, and */
    uint32_t every, cut, cold, prompt;
    uint64_t host_bytes, seed;
    const struct moe_statistics *statistics;
    uint32_t high, low, batch;
};

struct remembered {
    struct remembered *next;
    struct key key;
    struct moe_simulated simulated;
    const struct moe_lookups *lookups; /* that the optimum was sought by; NULL: it was not */
    double optimal_hit_rate;
};

int moe_trials_open(struct moe_trials **out, const struct moe_planner *p, struct moe_err *err)
{
    int status = MOE_OK, threads = moe_par_threads();
    *out = NULL;
    struct moe_trials *t = moe_alloc(1, sizeof *t, err);
    if (!t)
        return MOE_ERR_MEMORY;
    t->inventory = p->inventory;
    t->readers[t->n_readers++] = t->trace = p->trace;
    status = moe_trace_keep(p->trace, KEPT_BYTES, err);
    if (status == MOE_OK)
        status = moe_tapes_open(&t->tapes, KEPT_BYTES, err);
    while (t->n_readers < threads && status == MOE_OK) {
        status = moe_trace_another(&t->readers[t->n_readers], p->trace, err);
        t->n_readers += status == MOE_OK;
    }
    if (status == MOE_OK)
        *out = t;
    else
        moe_trials_close(t);
    return status;
}

void moe_trials_close(struct moe_trials *t)
{
    if (!t)
        return;
    while (t->first) {
        struct remembered *r = t->first;
        t->first = r->next;
        free(r);
    }
    for (int i = 1; i < t->n_readers; i++)
        moe_trace_close(t->readers[i]);
    moe_tapes_close(t->tapes);
    free(t);
}

/* ---- What was simulated ---- */

static void set_key(struct key *k, const struct moe_planner *p, const struct planner_prepared *t)
{
    const struct moe_excerpt *e = &t->in.excerpt;
    memset(k, 0, sizeof *k);
    k->strategy = t->strategy;
    k->strategy.name = k->strategy.describe = NULL;
    k->strategy.boundary_from = k->strategy.thresholds_from = MOE_DECIDED_BY_NAME;
    if (t->strategy.cache && (t->strategy.cache->follow || !t->strategy.cache->needs_usage))
        k->strategy.keep_records = false; /* it judges by none that ends with a text */
    k->pools = t->pools;
    k->pace = t->pace;
    k->max_tokens = e->max_tokens;
    k->first = e->first;
    k->warm = e->warm;
    k->every = e->every;
    k->cut = e->cut;
    k->cold = e->cold;
    k->prompt = e->prompt;
    k->host_bytes = t->in.host_bytes;
    k->seed = p->seed;
    k->statistics = t->in.statistics;
    k->high = t->run.fitted.high;
    k->low = t->run.fitted.low;
    k->batch = t->in.batch;
}

static const struct remembered *find_remembered(const struct moe_planner *p, const struct key *key)
{
    const struct remembered *r = p->trials->first;
    while (r &&
           (memcmp(&r->key, key, sizeof *key) != 0 || (p->lookups && p->lookups != r->lookups)))
        r = r->next;
    return r;
}

/* Whether the same was simulated before: then it sets t->run. */
static bool recall(const struct moe_planner *p, struct planner_prepared *t)
{
    struct key key;
    if (!is_known(p))
        return false;
    set_key(&key, p, t);
    const struct remembered *r = find_remembered(p, &key);
    if (r) {
        t->run.simulated = r->simulated;
        t->run.optimal_hit_rate = p->lookups ? r->optimal_hit_rate : -1;
    }
    return r != NULL;
}

/* Without memory for it, it is forgotten. */
static void remember_trial(const struct moe_planner *p, const struct planner_prepared *t)
{
    struct moe_err ignored;
    struct remembered *r = is_known(p) ? moe_alloc(1, sizeof *r, &ignored) : NULL;
    if (!r)
        return;
    set_key(&r->key, p, t);
    r->simulated = t->run.simulated;
    r->lookups = p->lookups;
    r->optimal_hit_rate = t->run.optimal_hit_rate;
    r->next = p->trials->first;
    p->trials->first = r;
}

/* How much of making a plan a step is, about: simulations, of few tokens or for as long. */
static const uint64_t sizes[PLANNER_N_STEPS] = {
    [PLANNER_BATCH] = 10,        [PLANNER_PLAN] = 5,    [PLANNER_TEXTS] = 6,
    [PLANNER_BOUNDARIES] = 4,    [PLANNER_MEMORY] = 11, [PLANNER_LINKS] = 5,
    [PLANNER_ALTERNATIVES] = 14, [PLANNER_DOUBTS] = 4,
};

void planner_begin_step(const struct moe_planner *p, enum planner_step step)
{
    if (!p->trials)
        return;
    p->trials->step = step;
    p->trials->n_run = 0;
}

/* n_run: simulations of the present step. */
static void show_progress(const struct moe_planner *p, uint64_t n_run)
{
    uint64_t total = 0, done = 0;
    for (enum planner_step step = 0; step < PLANNER_N_STEPS; step++) {
        const uint64_t of_step = n_run < sizes[step] ? n_run : sizes[step];
        done += step < p->trials->step ? sizes[step] : step == p->trials->step ? of_step : 0;
        total += sizes[step];
    }
    moe_progress_report(p->progress, "trying other budgets", done, total);
}

int moe_planner_try(const struct moe_planner *p, const struct moe_strategy *strategy,
                    uint64_t bytes, double load_rate, struct moe_trial_run *out,
                    struct moe_simulated_layer *layers, struct moe_err *err)
{
    struct planner_prepared t;
    int status = planner_prepare(p, strategy, bytes, load_rate, &t, err);
    if (status == MOE_OK && (layers || !recall(p, &t))) {
        status = planner_run(p, &t, layers, err);
        if (status == MOE_OK)
            remember_trial(p, &t);
        if (p->shows_progress && p->trials)
            show_progress(p, ++p->trials->n_run);
    }
    *out = t.run;
    return status;
}

/* ---- Side by side ---- */

struct side {
    struct moe_planner planner;
    struct planner_prepared prepared;
    struct key key;
    int status;
    struct moe_err err;
};

struct crowd {
    struct side *sides;
    struct moe_trials *trials;
    const struct moe_progress *progress;
    const char *what;
    uint64_t done, total;
};

static void run_sides(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct crowd *c = ctx;
    for (int64_t i = begin; i < end; i++) {
        struct side *s = &c->sides[i];
        s->prepared.in.trace = c->trials->readers[thread];
        s->status = planner_run(&s->planner, &s->prepared, NULL, &s->err);
        uint64_t done = __atomic_add_fetch(&c->done, 1, __ATOMIC_RELAXED);
        if (thread == 0 && c->what) /* that which the planner runs on */
            moe_progress_report(c->progress, c->what, done, c->total);
        else if (thread == 0 && s->planner.shows_progress)
            show_progress(&s->planner, c->trials->n_run + done);
    }
}

/* Sets a side to what is not simulated yet; false: it is, cannot run, or an earlier one is it. */
static bool set_side(struct side *sides, uint32_t n, const struct moe_planner *p,
                     const struct moe_trial *trial)
{
    struct side *s = &sides[n];
    struct moe_err ignored;
    s->planner = *p;
    s->planner.excerpt = trial->excerpt;
    s->planner.batch = trial->batch;
    s->planner.pace = trial->pace;
    if (planner_prepare(&s->planner, trial->strategy, trial->bytes, trial->load_rate, &s->prepared,
                        &ignored) != MOE_OK)
        return false;
    set_key(&s->key, &s->planner, &s->prepared);
    bool known = find_remembered(p, &s->key) != NULL;
    for (uint32_t i = 0; i < n && !known; i++)
        known = memcmp(&sides[i].key, &s->key, sizeof s->key) == 0;
    return !known;
}

int moe_trials_ahead(const struct moe_planner *p, const struct moe_trial *trials, uint32_t n,
                     const char *what, uint64_t done, uint64_t total, struct moe_err *err)
{
    int status = MOE_OK;
    uint32_t n_sides = 0;
    if (!is_known(p) || p->trials->n_readers < 2 || n < 2)
        return MOE_OK;
    struct side *sides = moe_alloc(n, sizeof *sides, err);
    if (!sides)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        n_sides += set_side(sides, n_sides, p, &trials[i]);
    struct crowd crowd = {sides, p->trials, p->progress, what, done, total};
    int before = moe_par_set_team(p->trials->n_readers);
    moe_par_for(n_sides, 1, run_sides, &crowd);
    moe_par_set_team(before);
    p->trials->n_run += n_sides;
    for (uint32_t i = 0; i < n_sides && status == MOE_OK; i++)
        if (sides[i].status == MOE_OK) {
            remember_trial(&sides[i].planner, &sides[i].prepared);
        } else if (sides[i].status != MOE_ERR_USAGE && sides[i].status != MOE_ERR_LIMIT) {
            *err = sides[i].err;
            status = sides[i].status;
        }
    free(sides);
    return status;
}
