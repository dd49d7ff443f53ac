/*
 * The search of --strategy auto: the strategies of the table first, then parts of the best ones.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "plan/planner.h"
#include "sched/choice_history.h"
#include "sched/strategy.h"

enum {
    N_STARTS = 2,                /* strategies of which parts are changed */
    MOST_ROUNDS = 4,             /* through all parts */
    SEARCH_TOKEN_LAYERS = 60000, /* of the trace, for each trial */
};
/* A smaller gain is not worth another part. */
static const double LEAST_GAIN = 1.003;

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
    const struct moe_planner *planner; /* on fewer tokens */
    struct moe_plan *plan;
    struct moe_strategy best[N_STARTS];
    double worth[N_STARTS]; /* descending */
    uint32_t n_steps, n_done;
};

static bool was_tried(const struct moe_plan *plan, const char *brief)
{
    for (uint32_t i = 0; i < plan->n_tried; i++)
        if (strcmp(plan->tried[i].strategy, brief) == 0)
            return true;
    return false;
}

/* Keeps the list sorted, the fastest first; among equals the one found first. */
static void remember(struct moe_plan *plan, const struct moe_plan_tried *tried)
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
    remember(s->plan, &tried);
    return MOE_OK;
}

static int report(struct search *s, struct moe_err *err)
{
    const struct moe_progress *progress = s->planner->progress;
    moe_progress_report(progress, "searching for the fastest strategy", ++s->n_done, s->n_steps);
    return moe_progress_stopped(progress) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped") : MOE_OK;
}

/* Inserts it into the best few, by worth. */
static void rank(struct search *s, const struct moe_strategy *strategy, double worth)
{
    uint32_t at = N_STARTS;
    while (at > 0 && worth > s->worth[at - 1])
        at--;
    if (at == N_STARTS)
        return;
    for (uint32_t i = N_STARTS - 1; i > at; i--) {
        s->best[i] = s->best[i - 1];
        s->worth[i] = s->worth[i - 1];
    }
    s->best[at] = *strategy;
    s->worth[at] = worth;
}

static int try_and_rank(struct search *s, const struct moe_strategy *strategy, struct moe_err *err)
{
    double worth;
    int status = try_one(s, strategy, &worth, err);
    if (status == MOE_OK && worth > 0)
        rank(s, strategy, worth);
    return status;
}

/* Every strategy of the table; with a calibration both without and with its findings. */
static int try_table(struct search *s, struct moe_err *err)
{
    const struct moe_calibration *c = s->planner->calibration;
    int status = MOE_OK;
    for (int i = 0; moe_strategy_name_at(i) && status == MOE_OK; i++) {
        struct moe_strategy plain, found;
        moe_strategy_find(moe_strategy_name_at(i), &plain);
        found = plain;
        if (c) {
            moe_strategy_fall_back(&plain);
            plain.cache_bits = 0;
        }
        status = try_and_rank(s, &plain, err);
        if (c)
            moe_calibration_apply(c->map, 0, &found);
        if (c && status == MOE_OK)
            status = try_and_rank(s, &found, err);
        if (status == MOE_OK)
            status = report(s, err);
    }
    return status;
}

/* A strategy that loads at low precision needs a pool for it, and skips as HOBBIT does. */
static void load_low(struct moe_strategy *s)
{
    struct moe_strategy hobbit;
    moe_strategy_find("hobbit", &hobbit);
    s->low_pool = hobbit.low_pool;
    s->skip_below = hobbit.skip_below;
}

/* Changes one part; false: the change makes no sense or does not apply. */
static bool change(const struct search *search, struct moe_strategy *s, uint32_t i)
{
    const struct moe_calibration *c = search->planner->calibration;
    char why[128];
    struct moe_err ignored;
    const struct moe_strategy before = *s;
    if (changes[i].measured && !c)
        return false;
    if (!moe_strategy_set(s, changes[i].part, changes[i].text, why))
        return false;
    /* A new prediction is useless without a prefetch. */
    if (changes[i].part == MOE_PART_PREDICT && before.predict == MOE_PREDICT_BY_NOTHING)
        moe_strategy_set(s, MOE_PART_PREFETCH, "all", why);
    if (changes[i].part == MOE_PART_PREFETCH && s->predict == MOE_PREDICT_BY_NOTHING)
        return false;
    /* Whether there is a host is the strategy's to say. */
    if (s->miss_place == MOE_MISS_COMPUTE_HOST && before.miss_place != MOE_MISS_COMPUTE_HOST)
        return false;
    if (changes[i].part == MOE_PART_ON_MISS && s->miss_precision == MOE_MISS_BY_SCORE)
        load_low(s);
    else if (changes[i].part == MOE_PART_ON_MISS)
        s->skip_below = 0;
    if (c)
        moe_calibration_apply(c->map, 0, s);
    moe_strategy_drop_idle(s, 0);
    return moe_strategy_settle(s, &ignored) == MOE_OK;
}

/* Changes parts of a strategy, the best change of a round first, until none gains. */
static int improve(struct search *s, struct moe_strategy *strategy, double *worth,
                   struct moe_err *err)
{
    for (uint32_t round = 0; round < MOST_ROUNDS; round++) {
        struct moe_strategy winner = *strategy;
        double best = *worth;
        for (uint32_t i = 0; i < N_CHANGES; i++) {
            struct moe_strategy candidate = *strategy;
            double found = 0;
            int status = change(s, &candidate, i) ? try_one(s, &candidate, &found, err) : MOE_OK;
            if (status == MOE_OK)
                status = report(s, err);
            if (status != MOE_OK)
                return status;
            if (found > best) {
                winner = candidate;
                best = found;
            }
        }
        if (best <= *worth * LEAST_GAIN)
            break;
        *strategy = winner;
        *worth = best;
    }
    return MOE_OK;
}

int moe_planner_search(const struct moe_planner *p, struct moe_plan *plan,
                       struct moe_strategy *best, struct moe_err *err)
{
    struct moe_planner fewer = *p;
    struct search s = {.planner = &fewer, .plan = plan};
    uint64_t most = SEARCH_TOKEN_LAYERS / p->inventory->n_layers + 1;
    if (!fewer.excerpt.max_tokens || fewer.excerpt.max_tokens > most)
        fewer.excerpt = moe_excerpt_of(p->trace, most);
    fewer.lookups = NULL;
    if (p->exact)
        fewer.calibration = NULL;
    s.n_steps = N_STARTS * MOST_ROUNDS * N_CHANGES;
    free(plan->tried);
    plan->n_tried = 0;
    plan->tried = moe_alloc(MOE_PLAN_MAX_TRIED, sizeof *plan->tried, err);
    if (!plan->tried)
        return MOE_ERR_MEMORY;
    int status = try_table(&s, err);
    if (status == MOE_OK && s.worth[0] <= 0)
        status = moe_fail(err, MOE_ERR_LIMIT, "no strategy can run in this memory");
    for (uint32_t i = 0; i < N_STARTS && status == MOE_OK; i++)
        if (s.worth[i] > 0 && !s.best[i].resident)
            status = improve(&s, &s.best[i], &s.worth[i], err);
    if (status == MOE_OK)
        *best = s.worth[1] > s.worth[0] ? s.best[1] : s.best[0];
    return status;
}

/* ---- Batch and staging ---- */

/* Of one batch and staging: seconds of the trace's prompts and answers, 0 where it cannot run, and
 * of these those that computing prompts takes. */
struct timed {
    double seconds, prompts;
    struct moe_fitted fitted;
};

static int time_room(const struct moe_planner *p, const struct moe_strategy *strategy,
                     struct timed *out, struct moe_err *err)
{
    struct moe_trial_run t;
    int status = moe_planner_try(p, strategy, 0, 0, &t, NULL, err);
    *out = (struct timed){0};
    if (status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE)
        return MOE_OK;
    *out = (struct timed){t.simulated.prefill.seconds + t.simulated.decode.seconds,
                          t.simulated.prefill.compute_seconds, t.fitted};
    return status;
}

/* Times p's batch with each number of slots for prefetches, from the given one on; *first: with the
 * fitter's, which is number 0. The fastest so far goes to `best`, with its time in *least. */
static int time_batch(struct moe_planner *p, const struct moe_strategy *strategy, bool stages,
                      size_t from, struct timed *first, double *least, struct moe_planner *best,
                      struct moe_err *err)
{
    static const uint32_t times[] = {0, 2, 4}; /* top_k; 0: the fitter's */
    int status = MOE_OK;
    for (size_t i = from; i < (stages ? sizeof times / sizeof *times : 1) && status == MOE_OK;
         i++) {
        struct timed t;
        p->staging = times[i] * p->inventory->top_k;
        status = time_room(p, strategy, &t, err);
        if (i == 0)
            *first = t;
        if (status == MOE_OK && t.seconds > 0 && t.seconds < *least) {
            *least = t.seconds;
            best->batch = p->batch;
            best->staging = p->staging;
        }
        if (status == MOE_OK && moe_progress_stopped(p->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    return status;
}

int moe_planner_search_room(struct moe_planner *p, const struct moe_strategy *strategy,
                            struct moe_err *err)
{
    static const uint32_t batches[] = {16, 32, 64, 96, 128, 192, 256, 512};
    struct moe_planner t = *p;
    struct timed own, now;
    double least, prompts = -1;
    t.lookups = NULL;
    t.batch = t.staging = 0;
    p->batch = p->staging = 0;
    int status = time_room(&t, strategy, &own, err);
    if (status != MOE_OK || own.seconds <= 0 || !own.fitted.memory.total)
        return status;
    bool stages = own.fitted.staging > 0 && !own.fitted.strategy.stream;
    least = own.seconds;
    status = time_batch(&t, strategy, stages, 1, &own, &least, p, err);
    for (size_t i = 0; !p->batch_named && i < sizeof batches / sizeof *batches; i++) {
        if (status != MOE_OK)
            break;
        t.batch = batches[i];
        status = time_batch(&t, strategy, stages, 0, &now, &least, p, err);
        /* Prompts that stand in one pass gain nothing from more room for it. */
        if (now.seconds <= 0 || now.prompts == prompts)
            break;
        prompts = now.prompts;
    }
    return status;
}
