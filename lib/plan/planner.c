/*
 * A plan made of one strategy. The search, with its simulations, is in planner_search.c.
 */
#include "plan/planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "model/shape.h"
#include "pack/map.h"
#include "plan/planner_internal.h"
#include "sched/placement.h"
#include "sched/strategy.h"

enum {
    MOST_BOUNDARIES = 16, /* tried; with more layers, not every one */
    BOUNDARIES_AT_ONCE = 2,
    N_PARTS = 4, /* of the trace, to see how far texts differ */
    N_COLD = 8,  /* texts that are each a first answer */
};

/* ---- Parts of the plan ---- */

static int set_slots(const struct moe_planner *p, const struct moe_fitted *f,
                     const uint64_t *frequency, struct moe_plan *plan, struct moe_err *err)
{
    const struct moe_inventory *inv = p->inventory;
    plan->n_pools = f->strategy.resident ? 0 : f->pools.n_classes;
    for (uint32_t c = 0; c < plan->n_pools; c++) {
        struct moe_plan_pool *pool = &plan->pools[c];
        *pool = (struct moe_plan_pool){inv->classes[c].slot_bytes, f->pools.pools[c].n_cache,
                                       f->pools.pools[c].n_working, NULL};
        if (f->strategy.alloc == MOE_ALLOC_GLOBAL || pool->n_cache == 0)
            continue;
        pool->per_layer = moe_alloc(inv->n_layers, sizeof *pool->per_layer, err);
        if (!pool->per_layer)
            return MOE_ERR_MEMORY;
        moe_allocate_owners(&f->strategy, inv, pool->n_cache, frequency, pool->per_layer);
        pool->n_cache = 0; /* no layer takes more than it has experts */
        for (uint32_t layer = 0; layer < inv->n_layers; layer++)
            pool->n_cache += pool->per_layer[layer];
    }
    return MOE_OK;
}

/* Keeps those of n keys, in their order, for which there are slots; returns how many. taken:
 * [classes][layers], zero. */
static uint32_t keep_what_fits(const struct moe_planner *p, const struct moe_fitted *f,
                               const struct moe_plan *plan, uint32_t *keys, uint32_t n,
                               uint32_t *taken)
{
    const struct moe_inventory *inv = p->inventory;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t layer = keys[i] / inv->n_experts;
        uint32_t v = moe_inventory_usable(inv, keys[i], f->high);
        if (v == UINT32_MAX)
            continue; /* no expert's: its layer is an earlier one again */
        uint32_t c = (uint32_t)(moe_inventory_class(inv, keys[i], v) - inv->classes);
        const struct moe_plan_pool *pool = &plan->pools[c];
        uint32_t *of_class = taken + (uint64_t)c * inv->n_layers;
        uint32_t *used = &of_class[pool->per_layer ? layer : 0];
        if (*used == (pool->per_layer ? pool->per_layer[layer] : pool->n_cache))
            continue;
        ++*used;
        keys[kept++] = keys[i];
    }
    return kept;
}

static int set_contents(const struct moe_planner *p, const struct moe_fitted *f,
                        const uint64_t *frequency, struct moe_plan *plan, struct moe_err *err)
{
    const struct moe_inventory *inv = p->inventory;
    uint32_t n_keys = moe_inventory_n_keys(inv);
    plan->n_contents = 0;
    free(plan->contents);
    plan->contents = NULL;
    if (f->strategy.resident || f->strategy.init == MOE_INIT_EMPTY)
        return MOE_OK;
    uint32_t *order = moe_alloc(n_keys, sizeof *order, err);
    uint32_t *taken = moe_alloc((uint64_t)inv->n_classes * inv->n_layers, sizeof *taken, err);
    plan->contents = moe_alloc(n_keys, sizeof *plan->contents, err);
    int status = order && taken && plan->contents ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK) {
        uint32_t n = moe_initial(f->strategy.init, NULL, n_keys, inv->n_layers, inv->n_encoder,
                                 inv->n_experts, frequency, plan->contents, order);
        plan->n_contents = keep_what_fits(p, f, plan, plan->contents, n, taken);
    }
    free(order);
    free(taken);
    return status;
}

static void set_layers(const struct moe_simulated *s, const struct moe_simulated_layer *layers,
                       struct moe_plan *plan)
{
    double tokens = (double)s->decode.tokens;
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        const struct moe_simulated_layer *l = &layers[i];
        plan->layers[i] = (struct moe_plan_layer){
            .hit_rate = l->activations ? (double)l->hits / (double)l->activations : -1,
            .accuracy = l->predicted ? (double)l->predicted_right / (double)l->predicted : -1,
            .stall_seconds = tokens > 0 ? l->stall_seconds / tokens : -1,
        };
    }
}

/* Below 0 where there was no token. */
static double per_token(double seconds, const struct moe_simulated_phase *phase)
{
    return phase->tokens ? seconds / (double)phase->tokens : -1;
}

static void set_expected(const struct moe_planner *p, const struct moe_trial_run *t,
                         const struct moe_simulated_phase *pre, double compute_limit,
                         struct moe_plan_expected *e)
{
    const struct moe_simulated_phase *d = &t->simulated.decode;
    const struct moe_inventory *inv = p->inventory;
    double n = (double)d->tokens;
    uint64_t predicted = d->experts.predicted;
    *e = (struct moe_plan_expected){
        .decode_tokens_per_second = moe_trial_tokens_per_second(t),
        .prefill_tokens_per_second = pre->seconds > 0 ? (double)pre->tokens / pre->seconds : -1,
        .hit_rate = moe_trial_hit_rate(t),
        .optimal_hit_rate = t->optimal_hit_rate,
        .accuracy = predicted ? (double)d->experts.predicted_right / (double)predicted : -1,
        .skipped_rate = d->experts.activations
                            ? (double)d->experts.skipped / (double)d->experts.activations
                            : 0,
        .bytes_per_token = (double)d->bytes / n,
        .compute_seconds = d->compute_seconds / n,
        .handling_seconds = d->handling_seconds / n,
        .stall_seconds = d->stall_seconds / n,
        .host_seconds = d->host_seconds / n,
        .link_seconds = d->link_seconds / n,
        .compute_limit_seconds = compute_limit,
        .link_limit_seconds = -1,
        .decode_error = -1,
        .loads_per_token = (double)d->experts.loads / n,
        .prefill_compute_seconds = per_token(pre->compute_seconds, pre),
        .prefill_handling_seconds = per_token(pre->handling_seconds, pre),
        .prefill_stall_seconds = per_token(pre->stall_seconds, pre),
        .prefill_host_seconds = per_token(pre->host_seconds, pre),
    };
    if (t->optimal_hit_rate >= 0)
        e->link_limit_seconds = (1 - t->optimal_hit_rate) * inv->top_k *
                                (inv->n_layers - inv->n_encoder) *
                                planner_load_seconds(p, p->pace, t->fitted.high);
    if (t->fitted.strategy.resident)
        e->link_limit_seconds = 0;
}

/* Seconds per token with every expert in memory, by the simulator's clock: only computation, by a
 * thread that never sleeps. */
static double compute_limit(const struct moe_planner *p, const struct moe_simulated_phase *decode)
{
    const struct moe_inventory *inv = p->inventory;
    uint32_t n_layers = inv->n_layers - inv->n_encoder; /* that a token goes through */
    double dense = inv->n_model_layers - inv->n_model_encoder - n_layers;
    double attend = p->pace->attend * (decode->positions / (double)decode->tokens);
    double layer = moe_pace_layer(p->pace, 0, inv->top_k) - p->pace->attend * p->pace->positions;
    double seconds = n_layers * (layer + attend) +
                     dense * (moe_pace_piece(p->pace, MOE_PIECE_DENSE, 1) + attend) + p->pace->head;
    return seconds * fmax(1, p->pace->loads.interruptions);
}

/* Parts of the trace that lie apart, for texts of one kind are often next to each other: each is
 * another text, judged with empty caches. Below 0 with fewer than two. Simulates beside them what
 * set_first asks for. */
static int set_error(const struct moe_planner *p, const struct moe_strategy *strategy,
                     const struct moe_trial_run *whole, struct moe_plan *plan, struct moe_err *err)
{
    uint64_t every = p->excerpt.every ? p->excerpt.every : 1;
    uint64_t n = (moe_trace_totals(p->trace)->sequences - p->excerpt.first + every - 1) / every;
    uint64_t tokens = whole->simulated.prefill.tokens + whole->simulated.decode.tokens;
    struct moe_planner part = *p;
    struct moe_trial parts[N_PARTS + 1];
    double sum = 0, squares = 0, n_judged = 0;
    part.lookups = NULL;
    part.excerpt.max_tokens = tokens / N_PARTS + 1;
    for (uint64_t i = 0; i < N_PARTS; i++) {
        parts[i] = moe_trial_of(&part, strategy, 0, 0);
        parts[i].excerpt.first = p->excerpt.first + i * n / N_PARTS * every;
    }
    parts[N_PARTS] = moe_trial_of(p, strategy, 0, 0);
    parts[N_PARTS].excerpt.cold = N_COLD;
    int status =
        n >= N_PARTS ? moe_trials_ahead(&part, parts, N_PARTS + 1, NULL, 0, 0, err) : MOE_OK;
    if (status != MOE_OK)
        return status;
    for (uint64_t i = 0; i < N_PARTS && n >= N_PARTS; i++) {
        struct moe_trial_run t;
        part.excerpt = parts[i].excerpt;
        status = moe_planner_try(&part, strategy, 0, 0, &t, NULL, err);
        if (status != MOE_OK)
            return status;
        double speed = moe_trial_tokens_per_second(&t);
        n_judged += speed > 0;
        sum += speed;
        squares += speed * speed;
    }
    if (n_judged >= 2)
        plan->expected.decode_error =
            sqrt(fmax(0, squares - sum * sum / n_judged) / (n_judged - 1));
    return MOE_OK;
}

/* What a first answer takes: texts of the trace, each with the cache as it is at the start. */
static int set_first(const struct moe_planner *p, const struct moe_strategy *strategy,
                     struct moe_plan *plan, struct moe_err *err)
{
    static const struct moe_simulated_phase no_prompt;
    struct moe_planner cold = *p;
    struct moe_trial_run t;
    cold.lookups = NULL;
    cold.excerpt.cold = N_COLD;
    MOE_TRY(moe_planner_try(&cold, strategy, 0, 0, &t, NULL, err));
    if (t.fitted.strategy.resident || t.simulated.decode.tokens == 0)
        return MOE_OK;
    set_expected(p, &t, &no_prompt, -1, &plan->first);
    return MOE_OK;
}

/* ---- Boundaries ---- */

/* Neighbours that are all so much slower than the best so far end the search. */
static const double HOPELESS = 0.95;

/* Fate 4.4's L by the accuracies of the statistics, or else of the simulation. */
static int set_boundary_by_accuracy(const struct moe_planner *p, struct moe_plan *plan,
                                    struct moe_err *err)
{
    if (p->statistics) {
        plan->boundary_accuracy = moe_boundary_of_statistics(p->statistics);
        return MOE_OK;
    }
    double *accuracy = moe_alloc(plan->n_layers, sizeof *accuracy, err);
    if (!accuracy)
        return MOE_ERR_MEMORY;
    uint32_t n_encoder = p->inventory->n_encoder;
    bool known = false;
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        accuracy[i] = plan->layers[i].accuracy;
        known |= i >= n_encoder && accuracy[i] >= 0;
    }
    plan->boundary_accuracy =
        known ? moe_boundary(accuracy + n_encoder, plan->n_layers - n_encoder) : UINT32_MAX;
    free(accuracy);
    return MOE_OK;
}

/* ... and by simulation, from 0 on as long as it is worth it: the L that decodes fastest under this
 * strategy; 0: equal shares. */
static int set_boundary_by_stall(const struct moe_planner *p, const struct moe_fitted *f,
                                 struct moe_plan *plan, struct moe_err *err)
{
    uint32_t most = planner_n_cached(&f->pools) / p->inventory->n_experts;
    uint32_t n_layers = plan->n_layers - p->inventory->n_encoder;
    double best = 0;
    plan->boundary_stall = UINT32_MAX;
    if (f->strategy.resident || !f->strategy.cache || n_layers == 0)
        return MOE_OK;
    if (most > n_layers - 1)
        most = n_layers - 1;
    struct moe_strategy strategies[MOST_BOUNDARIES + 1];
    struct moe_trial trials[MOST_BOUNDARIES + 1];
    uint32_t step = most / MOST_BOUNDARIES + 1, n = 0;
    for (uint32_t boundary = 0; boundary <= most; boundary += step, n++) {
        struct moe_strategy *s = &strategies[n];
        *s = f->strategy;
        s->alloc = boundary ? MOE_ALLOC_SHALLOW : MOE_ALLOC_PER_LAYER;
        s->boundary = boundary;
        s->boundary_from = MOE_DECIDED_BY_NAME;
        trials[n] = moe_trial_of(p, s, 0, 0);
    }
    bool goes = true;
    for (uint32_t i = 0, end; i < n && goes; i = end) {
        end = n - i < BOUNDARIES_AT_ONCE ? n : i + BOUNDARIES_AT_ONCE;
        MOE_TRY(moe_trials_ahead(p, &trials[i], end - i, NULL, 0, 0, err));
        for (goes = false; i < end; i++) {
            struct moe_trial_run t;
            MOE_TRY(moe_planner_try(p, &strategies[i], 0, 0, &t, NULL, err));
            const double speed = moe_trial_tokens_per_second(&t);
            if (speed > best) {
                best = speed;
                plan->boundary_stall = i * step;
            }
            goes |= speed > HOPELESS * best;
        }
    }
    return MOE_OK;
}

/* ---- Making ---- */

static void set_shape(const struct moe_planner *p, const struct moe_fitted *f,
                      struct moe_plan *plan)
{
    const struct moe_inventory *inv = p->inventory;
    const bool uses_low = moe_strategy_takes_low(&f->strategy);
    plan->n_repeated = inv->n_layers - moe_loop_owners(&inv->loop, inv->n_layers);
    plan->memory = f->memory;
    plan->host = f->host;
    plan->strategy = f->strategy;
    memcpy(plan->high, inv->variants[f->high], sizeof plan->high);
    memset(plan->low, 0, sizeof plan->low);
    if (uses_low && f->low != f->high)
        memcpy(plan->low, inv->variants[f->low], sizeof plan->low);
    memcpy(plan->variants, inv->variants, sizeof plan->variants);
    plan->pace = *p->pace;
    plan->layer_seconds = moe_pace_layer(p->pace, f->high, inv->top_k);
    plan->load_seconds = planner_load_seconds(p, p->pace, f->high);
    double n = plan->layer_seconds / plan->load_seconds;
    plan->slack_loads = n < UINT32_MAX ? (uint32_t)(n * (1 + 1e-9)) : UINT32_MAX;
}

static void set_evidence(const struct moe_planner *p, const struct moe_simulated *s,
                         struct moe_plan_evidence *e)
{
    e->trace_sequences = moe_trace_totals(p->trace)->sequences;
    e->trace_prompt_tokens = s->prefill.tokens;
    e->trace_tokens = s->prefill.tokens + s->decode.tokens;
    e->statistics_tokens = p->statistics ? p->statistics->totals[MOE_TOTAL_TOKENS] : 0;
}

static void add_loss(struct moe_plan *plan, const char *part, const struct moe_loss *l)
{
    struct moe_plan_loss *to = &plan->losses[plan->n_losses++];
    const bool spread = l->documents != 1; /* that errors are known from */
    *to = (struct moe_plan_loss){.tokens = l->tokens,
                                 .nll_percent = l->nll_percent,
                                 .nll_error = spread ? l->nll_error : -1,
                                 .top1_points = l->top1_points,
                                 .top1_error = spread ? l->top1_error : -1};
    snprintf(to->part, sizeof to->part, "%s", part);
}

/* What the way to load less loses, by all of its parts: "prefer-cached and --skip-below"; sets
 * whether that is on the map's checks. */
static void set_saving(const struct moe_planner *p, const struct moe_fitted *f,
                       struct moe_plan *plan, bool *on_checks)
{
    const struct moe_inventory *inv = p->inventory;
    const struct moe_loss *l =
        moe_calibration_saving(p->calibration->map, &f->strategy, planner_cache_bytes(p, &f->pools),
                               inv->variants[f->high], inv->variants[f->low], on_checks);
    char names[sizeof plan->losses[0].part] = "";
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        size_t n = strlen(names);
        if (moe_strategy_part_inexact(&f->strategy, part))
            snprintf(names + n, sizeof names - n, "%s%s", n ? " and --" : "",
                     moe_strategy_part_at(part)->name);
    }
    if (!l)
        return;
    plan->evidence.tolerance = p->calibration->tolerance;
    add_loss(plan, names, l);
}

/* The losses that the calibration measured for parts of this strategy, and on which texts. */
static int set_losses(const struct moe_planner *p, const struct moe_fitted *f,
                      struct moe_plan *plan, struct moe_err *err)
{
    const struct moe_inventory *inv = p->inventory;
    const struct moe_map *map = p->calibration ? p->calibration->map : NULL;
    struct moe_plan_evidence *e = &plan->evidence;
    struct moe_buf texts = {0};
    bool on_checks = false;
    plan->n_losses = 0;
    if (map && p->calibration->tolerance > 0)
        set_saving(p, f, plan, &on_checks);
    for (enum moe_finding which = 0;
         map && !(p->calibration->tolerance > 0) && which < MOE_N_FINDINGS; which++) {
        const struct moe_loss *l = moe_calibration_loss(
            map, which, &f->strategy, inv->variants[f->high], inv->variants[f->low]);
        if (l)
            add_loss(plan, moe_strategy_part_at(moe_finding_part(which))->name, l);
    }
    for (uint32_t i = 0; map && i < map->n_texts; i++)
        if (map->texts[i].check == on_checks)
            moe_buf_printf(&texts, "%s%s", texts.size ? ", " : "", map->texts[i].name);
    const uint64_t room = sizeof e->calibration_texts - 1;
    const uint64_t n = moe_utf8_complete(texts.data, texts.size < room ? texts.size : room);
    const int status = texts.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
    if (n)
        memcpy(e->calibration_texts, texts.data, n);
    e->calibration_texts[n] = 0;
    moe_buf_release(&texts);
    return status;
}

/* The plan itself, on all tokens of its excerpt or on those of other trials. */
struct judged {
    double speed, hits, bytes, prefill; /* tokens/s, share of activations, of a token, tokens/s */
};

static struct judged judge(const struct moe_trial_run *t, const struct moe_simulated_phase *prompt)
{
    const struct moe_simulated_phase *d = &t->simulated.decode;
    return (struct judged){
        .speed = moe_trial_tokens_per_second(t),
        .hits = moe_trial_hit_rate(t),
        .bytes = d->tokens ? (double)d->bytes / (double)d->tokens : 0,
        .prefill = prompt->seconds > 0 ? (double)prompt->tokens / prompt->seconds : 0,
    };
}

/* A figure of another trial on few tokens, as it would be on all; the plan's own becomes what it is
 * on all, and below 0, which is not known, stays. Texts differ by what they miss: `misses` are
 * those of the other trial, at most as many as the plan's, which are 1. */
static double scaled(double figure, double whole, double few, double misses)
{
    if (figure == few)
        return whole;
    return figure > 0 && few > 0 ? figure * (1 + misses * (whole / few - 1)) : figure;
}

/* Likewise several figures of a trial. bytes, prefill: NULL where there is no such figure. */
static void scale_trial(const struct judged *whole, const struct judged *few, double *speed,
                        double *hits, double *bytes, double *prefill)
{
    const double missed = 1 - *hits, missed_by_few = 1 - few->hits;
    *speed = scaled(*speed, whole->speed, few->speed,
                    missed < missed_by_few ? missed / missed_by_few : 1);
    if (missed_by_few > 0)
        *hits = *hits == few->hits ? whole->hits
                                   : fmax(0, 1 - missed * (1 - whole->hits) / missed_by_few);
    if (bytes)
        *bytes = scaled(*bytes, whole->bytes, few->bytes, 1);
    if (prefill)
        *prefill = scaled(*prefill, whole->prefill, few->prefill, 1);
}

/* Takes outlook, alternatives and doubts from few tokens to all. */
static void scale(const struct judged *whole, const struct judged *few, struct moe_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_memory_steps; i++) {
        struct moe_plan_step *s = &plan->memory_steps[i];
        scale_trial(whole, few, &s->decode_tokens_per_second, &s->hit_rate, NULL, NULL);
    }
    for (uint32_t i = 0; i < plan->n_rate_steps; i++) {
        struct moe_plan_step *s = &plan->rate_steps[i];
        scale_trial(whole, few, &s->decode_tokens_per_second, &s->hit_rate, NULL, NULL);
    }
    for (uint32_t i = 0; i < plan->n_alternatives; i++) {
        struct moe_plan_alternative *a = &plan->alternatives[i];
        if (a->decode_tokens_per_second >= 0)
            scale_trial(whole, few, &a->decode_tokens_per_second, &a->hit_rate, &a->bytes_per_token,
                        &a->prefill_tokens_per_second);
    }
    for (uint32_t i = 0; i < plan->n_doubts; i++) {
        double *speed = &plan->doubts[i].decode_tokens_per_second;
        *speed = scaled(*speed, whole->speed, few->speed, 1);
    }
}

int moe_planner_make(const struct moe_planner *planner, const struct moe_strategy *strategy,
                     struct moe_plan *plan, struct moe_err *err)
{
    struct moe_planner reporting = *planner, fewer;
    const struct moe_planner *p = &reporting, *f = &fewer;
    struct moe_trial_run t, part;
    struct moe_simulated_phase prompt, prompt_part;
    uint32_t ignored;
    struct moe_simulated_layer *layers = moe_alloc(plan->n_layers, sizeof *layers, err);
    uint64_t *placement = NULL;
    int status;
    MOE_STEP(layers ? MOE_OK : MOE_ERR_MEMORY);
    if (p->statistics)
        placement = moe_inventory_uses(p->inventory, moe_statistics_placement(p->statistics),
                                       plan->n_layers, err);
    MOE_STEP(placement || !p->statistics ? MOE_OK : MOE_ERR_MEMORY);
    reporting.shows_progress = true;
    planner_begin_step(p, PLANNER_PLAN);
    MOE_STEP(moe_planner_try(p, strategy, 0, 0, &t, layers, err));
    if (t.simulated.decode.tokens == 0)
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE, "the trace has no decoded token to plan by"));
    MOE_STEP(
        moe_planner_try_prompt(p, strategy, 0, 0, &t, &prompt, &plan->evidence.prompt_tokens, err));
    set_shape(p, &t.fitted, plan);
    set_layers(&t.simulated, layers, plan);
    set_expected(p, &t, &prompt, compute_limit(p, &t.simulated.decode), &plan->expected);
    set_evidence(p, &t.simulated, &plan->evidence);
    MOE_STEP(set_losses(p, &t.fitted, plan, err));
    reporting.any_loss = p->calibration && p->calibration->tolerance > 0;
    fewer = reporting;
    fewer.lookups = NULL;
    fewer.excerpt = planner_excerpt(p);
    planner_begin_step(p, PLANNER_TEXTS);
    MOE_STEP(set_error(p, strategy, &t, plan, err));
    MOE_STEP(set_first(p, strategy, plan, err));
    MOE_STEP(set_slots(p, &t.fitted, placement, plan, err));
    MOE_STEP(set_contents(p, &t.fitted, placement, plan, err));
    MOE_STEP(set_boundary_by_accuracy(p, plan, err));
    planner_begin_step(p, PLANNER_BOUNDARIES);
    MOE_STEP(moe_planner_try(f, strategy, 0, 0, &part, NULL, err));
    MOE_STEP(moe_planner_try_prompt(f, strategy, 0, 0, &part, &prompt_part, &ignored, err));
    MOE_STEP(set_boundary_by_stall(f, &t.fitted, plan, err));
    planner_begin_step(p, PLANNER_MEMORY);
    MOE_STEP(planner_set_outlook(f, &t.fitted, plan, err));
    planner_begin_step(p, PLANNER_ALTERNATIVES);
    MOE_STEP(planner_set_alternatives(f, &t.fitted, plan, err));
    planner_begin_step(p, PLANNER_DOUBTS);
    MOE_STEP(planner_set_doubts(f, &t.fitted, plan, err));
    const struct judged whole = judge(&t, &prompt), few = judge(&part, &prompt_part);
    if (few.speed > 0 && f->excerpt.max_tokens != p->excerpt.max_tokens)
        scale(&whole, &few, plan);
out:
    free(placement);
    free(layers);
    return status;
}

/* ---- The search for a batch, with the cache that it leaves ---- */

/* One batch: seconds of a prompt and of the trace's answers; 0: it cannot run. */
struct timed {
    double prompt, answers;
    double computing; /* of the prompt's */
    uint32_t n_prompt;
    struct moe_fitted fitted;
};

struct batch_search {
    struct moe_planner *planner; /* takes over the best so far */
    struct moe_planner now;      /* what is being tried, on few tokens */
    const struct moe_strategy *strategy;
    struct timed own; /* by the fitter's choice */
    double best;      /* the sum of both times over the fitter's */
};

/* 0: those of the trace. */
static uint32_t tokens_of_prompt(const struct moe_planner *p, const struct moe_fitted *f)
{
    uint32_t context = f->memory.context, n = p->prompt_tokens ? p->prompt_tokens : context;
    if (p->inventory->n_encoder)
        return 0;
    if (context && n > context)
        n = context;
    return n < MOE_PLANNER_PROMPT ? n : MOE_PLANNER_PROMPT;
}

int moe_planner_try_prompt(const struct moe_planner *p, const struct moe_strategy *strategy,
                           uint64_t bytes, double load_rate, const struct moe_trial_run *whole,
                           struct moe_simulated_phase *out, uint32_t *n_tokens, struct moe_err *err)
{
    struct moe_planner of_prompt = *p;
    struct moe_trial_run t;
    *out = whole->simulated.prefill;
    *n_tokens = of_prompt.excerpt.prompt = tokens_of_prompt(p, &whole->fitted);
    if (*n_tokens == 0)
        return MOE_OK;
    of_prompt.lookups = NULL;
    int status = moe_planner_try(&of_prompt, strategy, bytes, load_rate, &t, NULL, err);
    *out = t.simulated.prefill;
    return status;
}

static int time_trial(const struct moe_planner *p, const struct moe_strategy *strategy,
                      struct timed *out, struct moe_err *err)
{
    struct moe_trial_run t;
    struct moe_simulated_phase prompt;
    int status = moe_planner_try(p, strategy, 0, 0, &t, NULL, err);
    *out = (struct timed){0};
    if (status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE)
        return MOE_OK;
    if (status == MOE_OK)
        status = moe_planner_try_prompt(p, strategy, 0, 0, &t, &prompt, &out->n_prompt, err);
    if (status != MOE_OK)
        return status;
    out->prompt = prompt.seconds;
    out->answers = t.simulated.decode.seconds;
    out->computing = prompt.compute_seconds;
    out->fitted = t.fitted;
    return MOE_OK;
}

/* Times s->now's batch. */
static int time_batch(struct batch_search *s, struct timed *t, struct moe_err *err)
{
    struct moe_planner *p = &s->now;
    struct moe_trial trials[2];
    trials[0] = trials[1] = moe_trial_of(p, s->strategy, 0, 0);
    trials[1].excerpt.prompt = s->own.n_prompt;
    MOE_TRY(moe_trials_ahead(p, trials, 2, NULL, 0, 0, err));
    MOE_TRY(time_trial(p, s->strategy, t, err));
    double prompt = s->own.prompt > 0 ? t->prompt / s->own.prompt : 1;
    double answers = s->own.answers > 0 ? t->answers / s->own.answers : 1;
    if (t->prompt + t->answers > 0 && prompt <= 1 && answers <= 1 && prompt + answers < s->best) {
        s->best = prompt + answers;
        s->planner->batch = p->batch;
    }
    return moe_progress_stopped(p->progress) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped")
                                             : MOE_OK;
}

int moe_planner_search_batch(struct moe_planner *p, const struct moe_strategy *strategy,
                             struct moe_err *err)
{
    static const uint32_t batches[] = {16, 32, 64, 96, 128, 192, 256, 512};
    struct batch_search s = {.planner = p, .now = *p, .strategy = strategy, .best = 2};
    struct timed now;
    s.now.lookups = NULL;
    s.now.excerpt = planner_excerpt(p);
    s.now.shows_progress = true;
    planner_begin_step(p, PLANNER_BATCH);
    s.now.batch = p->batch = 0;
    if (p->batch_named)
        return MOE_OK;
    int status = time_trial(&s.now, strategy, &s.own, err);
    if (status != MOE_OK || s.own.prompt + s.own.answers <= 0 || !s.own.fitted.memory.total)
        return status;
    const uint32_t own = s.own.fitted.memory.batch, n = s.own.n_prompt;
    const uint32_t least = n && n < own ? n : own;
    double computing = s.own.computing;
    for (size_t i = 0; i <= sizeof batches / sizeof *batches; i++) {
        s.now.batch = i == 0 ? least : batches[i - 1];
        if (s.now.batch < least || s.now.batch == own || (i > 0 && s.now.batch == least))
            continue;
        MOE_TRY(time_batch(&s, &now, err));
        /* A prompt of one pass gains nothing from more room for it. */
        if (now.prompt + now.answers <= 0 || now.computing == computing)
            break;
        computing = now.computing;
    }
    return MOE_OK;
}

/* ---- Alternatives ---- */

enum { MOST_BITS = 2 /* other bitwidths that are tried */ };

/* ---- One alternative ---- */

void planner_begin_variation(struct planner_variation *v, const struct moe_planner *p,
                             const struct moe_fitted *f)
{
    *v = (struct planner_variation){.planner = *p, .pace = *p->pace, .strategy = &f->strategy};
    v->planner.pace = &v->pace;
}

static bool does_not_run(int status)
{
    return status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE;
}

/* What planning for another budget may choose: the fitter's own batch, or that of this plan. It
 * keeps no batch smaller than the fitter's, which would read prompts slower, unless a
 * prompt fits in it. */
enum { N_BATCHES = 2 };
static void trials_at(const struct moe_planner *p, const struct moe_strategy *s, uint64_t bytes,
                      struct moe_trial out[N_BATCHES])
{
    const struct moe_fit_room room = {.bytes = bytes};
    struct moe_fitted own;
    struct moe_err ignored;
    out[0] = out[1] = moe_trial_of(p, s, bytes, 0);
    out[0].batch = 0;
    if (p->fitter.fit(p->fitter.ctx, s, &room, &own, &ignored) == MOE_OK &&
        p->batch < own.memory.batch && p->batch < tokens_of_prompt(p, &own))
        out[1].batch = 0;
}

/* Tries one strategy and takes over what it finds, where that is faster than what is there. */
static int try_one(const struct planner_variation *v, const struct moe_strategy *strategy,
                   const char *name, struct moe_plan_alternative *a, struct moe_err *err)
{
    struct moe_trial_run t;
    struct moe_simulated_phase pre;
    uint32_t n_prompt;
    int status = moe_planner_try(&v->planner, strategy, v->bytes, v->load_rate, &t, NULL, err);
    if (status != MOE_OK || moe_trial_tokens_per_second(&t) <= a->decode_tokens_per_second)
        return status;
    status = moe_planner_try_prompt(&v->planner, strategy, v->bytes, v->load_rate, &t, &pre,
                                    &n_prompt, err);
    if (status != MOE_OK)
        return status;
    const struct moe_simulated_phase *d = &t.simulated.decode;
    a->decode_tokens_per_second = moe_trial_tokens_per_second(&t);
    a->prefill_tokens_per_second = pre.seconds > 0 ? (double)pre.tokens / pre.seconds : -1;
    a->hit_rate = moe_trial_hit_rate(&t);
    a->bytes_per_token = d->tokens ? (double)d->bytes / (double)d->tokens : -1;
    snprintf(a->strategy, sizeof a->strategy, "%s", name);
    return MOE_OK;
}

/* The same, in another budget with what planning may choose there. */
static int try_at(const struct planner_variation *v, const struct moe_strategy *strategy,
                  const char *name, struct moe_plan_alternative *a, struct moe_err *err)
{
    struct planner_variation there = *v;
    struct moe_trial batches[N_BATCHES];
    int status = MOE_OK;
    if (a->what != MOE_ALTERNATIVE_MEMORY)
        return try_one(v, strategy, name, a, err);
    trials_at(&v->planner, strategy, v->bytes, batches);
    for (int i = 0; i < N_BATCHES && (status == MOE_OK || does_not_run(status)); i++) {
        there.planner.batch = batches[i].batch;
        status = try_one(&there, strategy, name, a, err);
    }
    return status;
}

/* other: a strategy that is tried as well; NULL: none. */
static int add_alternative(const struct planner_variation *v, const char *other,
                           struct moe_plan_alternative a, struct moe_plan *plan,
                           struct moe_err *err)
{
    struct moe_strategy second;
    a.decode_tokens_per_second = a.prefill_tokens_per_second = a.hit_rate = a.bytes_per_token = -1;
    if (plan->n_alternatives == MOE_PLAN_MAX_ALTERNATIVES)
        return MOE_OK;
    int status = try_at(v, v->strategy, "", &a, err);
    if ((status == MOE_OK || does_not_run(status)) && other) {
        moe_strategy_find(other, &second);
        status = try_at(v, &second, other, &a, err);
    }
    if (status != MOE_OK && !does_not_run(status))
        return status;
    plan->alternatives[plan->n_alternatives++] = a;
    return MOE_OK;
}

/* ---- Memory, link, processor ---- */

/* The memory of the plan, of the process or of experts. */
static uint64_t present(const struct moe_fitted *f)
{
    const struct moe_plan_memory *m = &f->memory;
    return m->total ? m->total : f->named ? f->named : m->experts;
}

static int add_memory(const struct moe_planner *p, const struct moe_fitted *f, double times,
                      struct moe_plan *plan, struct moe_err *err)
{
    struct moe_plan_alternative a = {.what = MOE_ALTERNATIVE_MEMORY, .times = times};
    struct moe_planner_model model = {0};
    struct planner_variation v;
    planner_begin_variation(&v, p, f);
    v.bytes = (uint64_t)((double)present(f) * times);
    if (v.bytes && p->model_at)
        MOE_TRY(p->model_at(p->model_ctx, v.bytes, &model, err));
    if (model.inventory) {
        v.planner.inventory = model.inventory;
        v.planner.fitter = model.fitter;
        v.pace = *model.pace;
        memcpy(a.precision, model.precision, sizeof a.precision);
    }
    a.amount = (double)v.bytes;
    /* More may be enough for everything; of what was all in memory less needs a cache. */
    const bool resident = f->strategy.resident, differs = model.inventory != NULL;
    const char *other = (times > 1 || differs) && !resident  ? "resident"
                        : (times < 1 || differs) && resident ? "lru"
                                                             : NULL;
    return v.bytes ? add_alternative(&v, other, a, plan, err) : MOE_OK;
}

static int add_link(const struct moe_planner *p, const struct moe_fitted *f, double times,
                    struct moe_plan *plan, struct moe_err *err)
{
    struct planner_variation v;
    planner_begin_variation(&v, p, f);
    v.load_rate = p->pace->load_rate * times;
    return add_alternative(&v, NULL,
                           (struct moe_plan_alternative){
                               .what = MOE_ALTERNATIVE_LINK, .amount = v.load_rate, .times = times},
                           plan, err);
}

static int add_processor(const struct moe_planner *p, const struct moe_fitted *f, double times,
                         struct moe_plan *plan, struct moe_err *err)
{
    struct planner_variation v;
    planner_begin_variation(&v, p, f);
    moe_pace_stretch(&v.pace, 1 / times);
    return add_alternative(&v, NULL,
                           (struct moe_plan_alternative){
                               .what = MOE_ALTERNATIVE_PROCESSOR, .amount = times, .times = times},
                           plan, err);
}

/* ---- Context and batch ---- */

/* Half the context: what it leaves is for experts. */
static int add_context(const struct moe_planner *p, const struct moe_fitted *f,
                       struct moe_plan *plan, struct moe_err *err)
{
    const struct moe_plan_memory *m = &f->memory;
    const struct moe_plan_alternative a = {
        .what = MOE_ALTERNATIVE_CONTEXT, .amount = m->context / 2, .times = 0.5};
    struct planner_variation v;
    if (!m->total || m->context < 2 || m->kv_lent) /* it takes what texts take */
        return MOE_OK;
    planner_begin_variation(&v, p, f);
    v.bytes = m->total + m->kv / 2;
    return add_alternative(&v, NULL, a, plan, err);
}

static int add_batch(const struct moe_planner *p, const struct moe_fitted *f, double times,
                     struct moe_plan *plan, struct moe_err *err)
{
    uint32_t other = (uint32_t)((double)f->memory.batch * times);
    const struct moe_plan_alternative a = {
        .what = MOE_ALTERNATIVE_BATCH, .amount = other, .times = times};
    struct planner_variation v;
    if (!f->memory.total || other < 1)
        return MOE_OK;
    planner_begin_variation(&v, p, f);
    v.planner.batch = other;
    return add_alternative(&v, NULL, a, plan, err);
}

/* ---- Other bits ---- */

struct bits {
    char name[MOE_NAME_BYTES];
    double bytes; /* of an expert */
};

static bool is_known(const struct bits *all, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0)
            return true;
    return false;
}

/* How many times as large experts are here as their bits say: pages, other groups. */
static double size_here(const struct moe_planner *p, uint32_t high)
{
    const struct moe_inventory *inv = p->inventory;
    for (uint32_t i = 0; i < p->n_bits && i < MOE_PLANNER_BITS; i++)
        if (strcmp(p->bits[i].name, inv->variants[high]) == 0 && p->bits[i].bytes > 0)
            return (double)moe_inventory_mean_bytes(inv, high) / p->bits[i].bytes;
    return 1;
}

int moe_planner_set_bits(struct moe_planner *p, const struct moe_config *config,
                         struct moe_err *err)
{
    static const int widths[MOE_PLANNER_BITS] = {8, 4, 3, 2};
    enum { DENSE_BITS = 8, GROUP = 64 /* columns that share a scale, as moe-quantize has it */ };
    int status = MOE_OK;
    p->n_bits = 0;
    for (int i = 0; i < MOE_PLANNER_BITS && status == MOE_OK; i++) {
        struct moe_shape_bytes bytes;
        const struct moe_bits bits = {widths[i], widths[i]};
        status = moe_shape_bytes(&bytes, config, bits, DENSE_BITS, GROUP, err);
        if (status != MOE_OK)
            break;
        struct moe_planner_bits *to = &p->bits[p->n_bits++];
        snprintf(to->name, sizeof to->name, "%d", widths[i]);
        to->bytes = (double)bytes.expert;
    }
    return status;
}

/* The next lower bitwidths: what the model has them stored at, and what it could have; the largest
 * first. */
static uint32_t lower_bits(const struct moe_planner *p, uint32_t high, struct bits out[MOST_BITS])
{
    const struct moe_inventory *inv = p->inventory;
    double now = (double)moe_inventory_mean_bytes(inv, high), size = size_here(p, high);
    struct bits all[MOE_MAX_VARIANTS + MOE_PLANNER_BITS];
    uint32_t n = 0, kept = 0;
    for (uint32_t v = high + 1; v < inv->n_variants; v++) {
        memcpy(all[n].name, inv->variants[v], sizeof all[n].name);
        all[n++].bytes = (double)moe_inventory_mean_bytes(inv, v);
    }
    for (uint32_t i = 0; i < p->n_bits && i < MOE_PLANNER_BITS; i++) {
        if (is_known(all, n, p->bits[i].name) ||
            moe_inventory_variant(inv, p->bits[i].name) <= high)
            continue;
        memcpy(all[n].name, p->bits[i].name, sizeof all[n].name);
        all[n++].bytes = p->bits[i].bytes * size;
    }
    for (double below = 0.97 * now; kept < MOST_BITS; kept++) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++)
            if (all[i].bytes > 0 && all[i].bytes < below &&
                (best == n || all[i].bytes > all[best].bytes))
                best = i;
        if (best == n)
            break;
        out[kept] = all[best];
        below = all[best].bytes;
    }
    return kept;
}

/* What the map measured with all experts at these bits. */
static void set_loss(const struct moe_planner *p, struct moe_plan_alternative *a)
{
    const struct moe_map *map = p->calibration ? p->calibration->map : NULL;
    for (uint32_t i = 0; map && i < map->n_uniform; i++) {
        const struct moe_uniform *u = &map->uniform[i];
        if (strcmp(u->experts, a->precision) != 0 || u->dense_bits != map->pack_dense_bits)
            continue;
        a->loss_tokens = u->loss.tokens;
        a->loss_percent = u->loss.nll_percent;
        a->loss_error = u->loss.documents == 1 ? -1 : u->loss.nll_error;
    }
}

/* An inventory of the same layers whose experts all have the bytes of `bits`. */
static int other_inventory(const struct moe_inventory *inv, const struct bits *bits,
                           struct moe_inventory *out, struct moe_err *err)
{
    const uint64_t bytes = (uint64_t)bits->bytes;
    int status = moe_inventory_uniform(out, inv->n_layers, inv->n_experts, inv->top_k, &bits->name,
                                       &bytes, 1, err);
    if (status != MOE_OK)
        return status;
    memcpy(out->model_layer, inv->model_layer, inv->n_layers * sizeof *inv->model_layer);
    memcpy(out->is_static, inv->is_static, inv->n_layers * sizeof *inv->is_static);
    moe_inventory_set_loop(out, &inv->loop);
    out->routes_early = inv->routes_early;
    out->n_encoder = inv->n_encoder;
    out->n_model_layers = inv->n_model_layers;
    out->n_model_encoder = inv->n_model_encoder;
    return MOE_OK;
}

/* Experts of other bits take as long to compute as reading their bytes does, where the machine was
 * not measured with them. */
static int add_bits(const struct moe_planner *p, const struct moe_fitted *f,
                    const struct bits *bits, struct moe_plan *plan, struct moe_err *err)
{
    const struct moe_inventory *inv = p->inventory;
    double times = bits->bytes / (double)moe_inventory_mean_bytes(inv, f->high);
    struct moe_plan_alternative a = {
        .what = MOE_ALTERNATIVE_EXPERTS, .amount = bits->bytes, .times = times};
    struct moe_inventory other = {0};
    struct planner_variation v;
    int status = other_inventory(inv, bits, &other, err);
    if (status == MOE_OK) {
        struct moe_shape_fit shape = {
            .inventory = &other,
            .statistics = p->statistics,
            .has_host = p->pace->host_slowdown > 0,
            .exact = p->exact,
            .staging = f->staging,
            .expert_memory = f->named,
            .memory = f->memory,
            .kv = f->pools.loan,
        };
        shape.memory.kv += shape.memory.kv_lent;
        shape.memory.kv_lent = 0;
        uint32_t known = moe_inventory_variant(inv, bits->name);
        planner_begin_variation(&v, p, f);
        v.pace.n_variants = 1;
        v.pace.experts[0] = p->pace->experts[known < inv->n_variants ? known : f->high];
        if (known == inv->n_variants)
            moe_line_stretch(&v.pace.experts[0], times);
        v.planner.inventory = &other;
        v.planner.fitter = moe_fitter_of_shape(&shape);
        if (f->host.total)
            v.planner.host_bytes = f->host_bytes;
        v.planner.calibration = NULL; /* it speaks of the model's own precisions */
        snprintf(a.precision, sizeof a.precision, "%s", bits->name);
        set_loss(p, &a);
        status = add_alternative(&v, f->strategy.resident ? NULL : "resident", a, plan, err);
    }
    moe_inventory_release(&other);
    return status;
}

/* Those that need nothing but another size, rate, pace or batch, side by side, with the prompts of
 * all but other sizes, which are tried with two batches. */
static int simulate_ahead(const struct moe_planner *p, const struct moe_fitted *f,
                          struct moe_err *err)
{
    const struct moe_plan_memory *m = &f->memory;
    const struct moe_strategy *s = &f->strategy;
    struct planner_variation faster;
    struct moe_trial trials[2 * (2 * N_BATCHES + 5)];
    uint32_t n = 0;
    if (s->resident)
        return MOE_OK;
    planner_begin_variation(&faster, p, f);
    moe_pace_stretch(&faster.pace, 0.5);
    trials[n++] = moe_trial_of(&faster.planner, s, 0, 0);
    trials[n++] = moe_trial_of(p, s, 0, p->pace->load_rate * 2);
    if (m->total && m->batch > 1) {
        if (!m->kv_lent)
            trials[n++] = moe_trial_of(p, s, m->total + m->kv / 2, 0);
        trials[n] = trials[n + 1] = moe_trial_of(p, s, 0, 0);
        trials[n++].batch = m->batch / 2;
        trials[n++].batch = m->batch * 2;
    }
    for (uint32_t i = 0, prompt = tokens_of_prompt(p, f), n_answers = n; prompt && i < n_answers;
         i++) {
        trials[n] = trials[i];
        trials[n++].excerpt.prompt = prompt;
    }
    trials_at(p, s, 2 * present(f), &trials[n]);
    trials_at(p, s, (uint64_t)((double)present(f) * 0.5), &trials[n += N_BATCHES]);
    return moe_trials_ahead(p, trials, n + N_BATCHES, NULL, 0, 0, err);
}

int planner_set_alternatives(const struct moe_planner *p, const struct moe_fitted *f,
                             struct moe_plan *plan, struct moe_err *err)
{
    struct bits bits[MOST_BITS];
    uint32_t n_bits = lower_bits(p, f->high, bits);
    plan->n_alternatives = 0;
    MOE_TRY(simulate_ahead(p, f, err));
    MOE_TRY(add_memory(p, f, 2, plan, err));
    MOE_TRY(add_memory(p, f, 0.5, plan, err));
    if (!f->strategy.resident)
        MOE_TRY(add_link(p, f, 2, plan, err));
    MOE_TRY(add_processor(p, f, 2, plan, err));
    for (uint32_t i = 0; i < n_bits; i++)
        MOE_TRY(add_bits(p, f, &bits[i], plan, err));
    MOE_TRY(add_context(p, f, plan, err));
    MOE_TRY(add_batch(p, f, 0.5, plan, err));
    return add_batch(p, f, 2, plan, err);
}

/* What a plan takes for granted, and what becomes of its speed where that does not hold. */

/* By how much assumptions are taken to be off where nothing measured it. Shares of experts found:
 * routing of another model differs most, one drawn by a model's figures less, other texts least. */
static const double OFF_ROUTING = 0.1, OFF_FIGURES = 0.05, OFF_ALIKE = 0.03;
/* A spread of runs that were interrupted says no more than that. */
static const double MOST_QUIET = 1;
/* Longer computation where only memory bandwidth is known, and the part of a bus's stated rate
 * that transfers do not reach. */
static const double OFF_BANDWIDTH = 0.3, OFF_NOMINAL = 0.3;

/* By how much each assumption may be off; 0: it is none of this plan's, or has no figure. */
static void find_doubts(const struct moe_plan *plan, bool loads, double by[MOE_N_ASSUMPTIONS])
{
    const struct moe_plan_evidence *e = &plan->evidence;
    bool synthetic = !e->trace[0];
    double error = moe_plan_hit_rate_error(plan);
    memset(by, 0, MOE_N_ASSUMPTIONS * sizeof *by);
    if (!e->times_measured && !e->times_stated)
        by[MOE_ASSUME_BANDWIDTH] = OFF_BANDWIDTH;
    if (e->times_spread > MOE_QUIET_SPREAD)
        by[MOE_ASSUME_QUIET] = fmin(e->times_spread, MOST_QUIET);
    if (!loads)
        return;
    if (synthetic)
        by[e->manner_known ? MOE_ASSUME_FIGURES : MOE_ASSUME_ROUTING] =
            e->manner_known ? OFF_FIGURES : OFF_ROUTING;
    if (e->link_stated)
        by[MOE_ASSUME_NOMINAL] = OFF_NOMINAL;
    if (error > MOE_FEW_TOKENS_ERROR)
        by[MOE_ASSUME_FEW_TOKENS] = error;
    by[MOE_ASSUME_ALIKE] = OFF_ALIKE;
}

/* Fewer experts found make more loads of the same size: as if the link were slower by as much. */
static void set_doubt(struct planner_variation *v, const struct moe_plan *plan,
                      enum moe_assumption what, double by)
{
    double missed = 1 - plan->expected.hit_rate, rate = v->pace.load_rate;
    if (missed < 1e-6)
        missed = 1e-6;
    switch (what) {
    case MOE_ASSUME_BANDWIDTH:
        moe_pace_stretch(&v->pace, 1 + by);
        break;
    case MOE_ASSUME_NOMINAL:
        v->load_rate = rate * (1 - by);
        break;
    case MOE_ASSUME_QUIET:
        moe_pace_stretch(&v->pace, 1 + by);
        v->pace.loads.piece *= 1 + by;
        v->pace.loads.latency *= 1 + by;
        v->pace.loads.late *= 1 + by;
        v->load_rate = rate / (1 + by);
        break;
    default:
        v->load_rate = rate * missed / fmin(missed + by, 1);
        break;
    }
}

/* In order: what makes it slowest first. */
static void insert(struct moe_plan *plan, const struct moe_plan_doubt *d)
{
    uint32_t at = plan->n_doubts++;
    for (; at > 0 && plan->doubts[at - 1].decode_tokens_per_second > d->decode_tokens_per_second;
         at--)
        plan->doubts[at] = plan->doubts[at - 1];
    plan->doubts[at] = *d;
}

int planner_set_doubts(const struct moe_planner *p, const struct moe_fitted *f,
                       struct moe_plan *plan, struct moe_err *err)
{
    double by[MOE_N_ASSUMPTIONS];
    struct planner_variation all[MOE_N_ASSUMPTIONS];
    struct moe_trial trials[MOE_N_ASSUMPTIONS];
    uint32_t n = 0;
    plan->n_doubts = 0;
    find_doubts(plan, !f->strategy.resident, by);
    for (enum moe_assumption what = 0; what < MOE_N_ASSUMPTIONS; what++) {
        struct planner_variation *v = &all[what];
        if (by[what] <= 0)
            continue;
        planner_begin_variation(v, p, f);
        set_doubt(v, plan, what, by[what]);
        trials[n++] = moe_trial_of(&v->planner, v->strategy, 0, v->load_rate);
    }
    MOE_TRY(moe_trials_ahead(p, trials, n, NULL, 0, 0, err));
    for (enum moe_assumption what = 0; what < MOE_N_ASSUMPTIONS; what++) {
        const struct planner_variation *v = &all[what];
        struct moe_trial_run t;
        if (by[what] <= 0)
            continue;
        MOE_TRY(moe_planner_try(&v->planner, v->strategy, 0, v->load_rate, &t, NULL, err));
        insert(plan, &(struct moe_plan_doubt){what, by[what], moe_trial_tokens_per_second(&t)});
    }
    return MOE_OK;
}

/* ---- Other budgets ---- */

/* Adds the fastest of n_trials as a step, unless none of them can run. */
static int add_step(const struct moe_planner *p, const struct moe_trial *trials, uint32_t n_trials,
                    double amount, struct moe_plan_step *steps, uint32_t *n, struct moe_err *err)
{
    struct moe_plan_step fastest = {.amount = amount, .decode_tokens_per_second = -1};
    struct moe_planner there = *p;
    for (uint32_t i = 0; i < n_trials; i++) {
        const struct moe_trial *trial = &trials[i];
        struct moe_trial_run t;
        there.batch = trial->batch;
        int status =
            moe_planner_try(&there, trial->strategy, trial->bytes, trial->load_rate, &t, NULL, err);
        if (status != MOE_OK && !does_not_run(status))
            return status;
        if (status == MOE_OK && moe_trial_tokens_per_second(&t) > fastest.decode_tokens_per_second)
            fastest = (struct moe_plan_step){amount, moe_trial_tokens_per_second(&t),
                                             moe_trial_hit_rate(&t)};
    }
    if (fastest.decode_tokens_per_second >= 0)
        steps[(*n)++] = fastest;
    return MOE_OK;
}

/* The least from `bytes` on that three figures say exactly: a person who reads them and asks for as
 * much has enough. */
static uint64_t round_up_to_say(uint64_t bytes)
{
    double unit = 1, n = (double)bytes;
    for (; n >= 999.5; n /= 1024)
        unit *= 1024;
    const double parts = unit < 2 || n >= 99.95 ? 1 : n >= 9.995 ? 10 : 100;
    const uint64_t said = (uint64_t)(ceil(n * parts) / parts * unit);
    return said > bytes ? said : bytes;
}

/* Memory from the smallest that works up to the smallest in which everything fits, and is
 * resident. */
static int set_memory_steps(const struct moe_planner *p, const struct moe_fitted *f,
                            struct moe_plan *plan, struct moe_err *err)
{
    enum { STEPS = 10 };
    const struct moe_plan_memory *m = &f->memory;
    const struct moe_fit_room all = {.bytes = UINT64_MAX / 4};
    struct moe_fitted whole;
    struct moe_strategy resident;
    uint64_t now = m->total ? m->total : f->named ? f->named : m->experts;
    plan->n_memory_steps = 0;
    moe_strategy_find("resident", &resident);
    int status = p->fitter.fit(p->fitter.ctx, &resident, &all, &whole, err);
    if (status != MOE_OK)
        return status == MOE_ERR_USAGE ? MOE_OK : status;
    uint64_t most = m->total ? round_up_to_say(whole.memory.floor) : whole.memory.all;
    uint64_t least = m->total ? m->floor : m->token / 4;
    uint64_t step = most > least ? (most - least) / STEPS : 0;
    bool grows = step > 0 && now < most && !f->strategy.resident;
    struct moe_trial trials[STEPS * N_BATCHES + N_BATCHES];
    double sizes[STEPS + 1];
    uint32_t n_sizes = 0;
    /* The present size takes the place of a step near it. */
    for (uint32_t i = 0; grows && i < STEPS; i++) {
        struct moe_trial *batches = &trials[n_sizes * N_BATCHES];
        uint64_t bytes = least + i * step;
        if ((i == 0 || now >= bytes - step / 2) &&
            (i + 1 == STEPS || now < bytes + (step - step / 2)))
            bytes = now;
        sizes[n_sizes++] = (double)bytes;
        if (bytes == now)
            batches[0] = batches[1] = moe_trial_of(p, &f->strategy, 0, 0);
        else
            trials_at(p, &f->strategy, bytes, batches);
    }
    trials_at(p, &resident, most, &trials[n_sizes * N_BATCHES]);
    sizes[n_sizes++] = (double)most;
    status = moe_trials_ahead(p, trials, n_sizes * N_BATCHES, NULL, 0, 0, err);
    for (uint32_t i = 0; i < n_sizes && status == MOE_OK; i++)
        status = add_step(p, &trials[i * N_BATCHES], N_BATCHES, sizes[i], plan->memory_steps,
                          &plan->n_memory_steps, err);
    return status;
}

static int set_rate_steps(const struct moe_planner *p, const struct moe_fitted *f,
                          struct moe_plan *plan, struct moe_err *err)
{
    static const double times[] = {0.25, 0.5, 1, 2, 4, 8};
    enum { STEPS = sizeof times / sizeof times[0] };
    struct moe_trial trials[STEPS];
    plan->n_rate_steps = 0;
    for (size_t i = 0; i < STEPS; i++)
        trials[i] = moe_trial_of(p, &f->strategy, 0, p->pace->load_rate * times[i]);
    int status = moe_trials_ahead(p, trials, f->strategy.resident ? 0 : STEPS, NULL, 0, 0, err);
    for (size_t i = 0; i < STEPS && status == MOE_OK; i++) {
        if (!f->strategy.resident)
            status = add_step(p, &trials[i], 1, trials[i].load_rate, plan->rate_steps,
                              &plan->n_rate_steps, err);
    }
    return status;
}

int planner_set_outlook(const struct moe_planner *p, const struct moe_fitted *f,
                        struct moe_plan *plan, struct moe_err *err)
{
    MOE_TRY(set_memory_steps(p, f, plan, err));
    planner_begin_step(p, PLANNER_LINKS);
    return set_rate_steps(p, f, plan, err);
}
