/*
 * A plan made of one strategy. The search is in planner_search.c, one simulation in planner_try.c.
 */
#include "plan/planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "plan/planner_alternatives.h"
#include "plan/planner_outlook.h"
#include "plan/planner_try.h"
#include "plan/trials.h"
#include "sched/allocate.h"
#include "sched/boundary.h"

enum {
    MOST_BOUNDARIES = 16, /* tried; with more layers, not every one */
    N_PARTS = 4,          /* of the trace, to see how far texts differ */
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
        moe_allocate(f->strategy.alloc, f->strategy.boundary, pool->n_cache, inv->n_layers,
                     inv->n_encoder, inv->n_experts, frequency, pool->per_layer);
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
        uint32_t layer = keys[i] / inv->n_experts, expert = keys[i] % inv->n_experts;
        uint32_t v = moe_inventory_usable(inv, layer, expert, f->high);
        uint32_t c = inv->class_of[(uint64_t)keys[i] * inv->n_variants + v];
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
    uint32_t n_keys = inv->n_layers * inv->n_experts;
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
        .prefill_tokens_per_second = pre->seconds > 0 ? (double)pre->tokens / pre->seconds : 0,
        .hit_rate = moe_trial_hit_rate(t),
        .optimal_hit_rate = t->optimal_hit_rate,
        .accuracy = predicted ? (double)d->experts.predicted_right / (double)predicted : -1,
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

/* Seconds per token with every expert in memory: computation alone. */
static double compute_limit(const struct moe_planner *p, const struct moe_simulated_phase *decode)
{
    const struct moe_inventory *inv = p->inventory;
    uint32_t n_layers = inv->n_layers - inv->n_encoder; /* that a token goes through */
    double dense = inv->n_model_layers - inv->n_model_encoder - n_layers;
    double attend = p->pace->attend * (decode->positions / (double)decode->tokens);
    double layer = moe_pace_layer(p->pace, 0, inv->top_k) - p->pace->attend * p->pace->positions;
    return n_layers * (layer + attend) +
           dense * (moe_pace_piece(p->pace, MOE_PIECE_DENSE, 1) + attend) + p->pace->head;
}

/* Parts of the trace that lie apart, for texts of one kind are often next to each other: each is
 * another text, judged with empty caches. Below 0 with fewer than two. */
static int set_error(const struct moe_planner *p, const struct moe_strategy *strategy,
                     const struct moe_trial_run *whole, struct moe_plan *plan, struct moe_err *err)
{
    uint64_t every = p->excerpt.every ? p->excerpt.every : 1;
    uint64_t n = (moe_trace_totals(p->trace)->sequences - p->excerpt.first + every - 1) / every;
    uint64_t tokens = whole->simulated.prefill.tokens + whole->simulated.decode.tokens;
    struct moe_planner part = *p;
    struct moe_trial parts[N_PARTS];
    double sum = 0, squares = 0, n_judged = 0;
    part.lookups = NULL;
    part.excerpt.max_tokens = tokens / N_PARTS + 1;
    for (uint64_t i = 0; i < N_PARTS; i++) {
        parts[i] = moe_trial_of(&part, strategy, 0, 0);
        parts[i].excerpt.first = p->excerpt.first + i * n / N_PARTS * every;
    }
    int status = n >= N_PARTS ? moe_trials_ahead(&part, parts, N_PARTS, NULL, 0, 0, err) : MOE_OK;
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

/* ---- Boundaries ---- */

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

/* ... and by simulation: the L that decodes fastest under this strategy; 0: equal shares. */
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
        s->boundary_from = MOE_BOUNDARY_NAMED;
        trials[n] = moe_trial_of(p, s, 0, 0);
    }
    int status = moe_trials_ahead(p, trials, n, NULL, 0, 0, err);
    if (status != MOE_OK)
        return status;
    for (uint32_t i = 0; i < n; i++) {
        struct moe_trial_run t;
        status = moe_planner_try(p, &strategies[i], 0, 0, &t, NULL, err);
        if (status != MOE_OK)
            return status;
        if (moe_trial_tokens_per_second(&t) > best) {
            best = moe_trial_tokens_per_second(&t);
            plan->boundary_stall = i * step;
        }
    }
    return MOE_OK;
}

/* ---- Making ---- */

static void set_shape(const struct moe_planner *p, const struct moe_fitted *f,
                      struct moe_plan *plan)
{
    const struct moe_inventory *inv = p->inventory;
    bool uses_low = f->strategy.needs_low || f->strategy.prefill == MOE_PREFILL_HYBRID;
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

/* The losses that the calibration measured for parts of this strategy. */
static void set_losses(const struct moe_planner *p, const struct moe_fitted *f,
                       struct moe_plan *plan)
{
    const struct moe_inventory *inv = p->inventory;
    plan->n_losses = 0;
    for (enum moe_finding which = 0; p->calibration && which < MOE_N_FINDINGS; which++) {
        const struct moe_loss *l =
            moe_calibration_loss(p->calibration->map, which, &f->strategy, inv->variants[f->high],
                                 inv->variants[f->low]);
        struct moe_plan_loss *to = &plan->losses[plan->n_losses];
        if (!l)
            continue;
        *to = (struct moe_plan_loss){"",           l->tokens,      l->nll_percent,
                                     l->nll_error, l->top1_points, l->top1_error};
        snprintf(to->part, sizeof to->part, "%s",
                 moe_strategy_part_at(moe_finding_part(which))->name);
        plan->n_losses++;
    }
}

int moe_planner_make(const struct moe_planner *planner, const struct moe_strategy *strategy,
                     struct moe_plan *plan, struct moe_err *err)
{
    struct moe_planner reporting = *planner;
    const struct moe_planner *p = &reporting;
    struct moe_trial_run t;
    struct moe_simulated_phase prompt;
    struct moe_simulated_layer *layers = moe_alloc(plan->n_layers, sizeof *layers, err);
    const uint64_t *placement = p->statistics ? moe_statistics_placement(p->statistics) : NULL;
    int status = layers ? MOE_OK : MOE_ERR_MEMORY;
    reporting.what = "trying other budgets, links and settings";
    if (status == MOE_OK)
        status = moe_planner_try(p, strategy, 0, 0, &t, layers, err);
    if (status == MOE_OK && t.simulated.decode.tokens == 0)
        status = moe_fail(err, MOE_ERR_USAGE, "the trace has no decoded token to plan by");
    if (status == MOE_OK)
        status = moe_planner_try_prompt(p, strategy, 0, 0, &t, &prompt,
                                        &plan->evidence.prompt_tokens, err);
    if (status != MOE_OK)
        goto done;
    set_shape(p, &t.fitted, plan);
    set_layers(&t.simulated, layers, plan);
    set_expected(p, &t, &prompt, compute_limit(p, &t.simulated.decode), &plan->expected);
    set_evidence(p, &t.simulated, &plan->evidence);
    set_losses(p, &t.fitted, plan);
    status = set_error(p, strategy, &t, plan, err);
    if (status == MOE_OK)
        status = set_slots(p, &t.fitted, placement, plan, err);
    if (status == MOE_OK)
        status = set_contents(p, &t.fitted, placement, plan, err);
    if (status == MOE_OK)
        status = set_boundary_by_accuracy(p, plan, err);
    if (status == MOE_OK)
        status = set_boundary_by_stall(p, &t.fitted, plan, err);
    if (status == MOE_OK)
        status = planner_set_outlook(p, &t.fitted, plan, err);
    if (status == MOE_OK)
        status = planner_set_alternatives(p, &t.fitted, plan, err);
    if (status == MOE_OK)
        status = planner_set_doubts(p, &t.fitted, plan, err);
done:
    free(layers);
    return status;
}
