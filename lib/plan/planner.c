/*
 * One strategy in the simulator, and a plan made of it. The search is in planner_search.c.
 */
#include "plan/planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "plan/boundary.h"
#include "plan/planner_outlook.h"
#include "sched/allocate.h"

enum { MOST_BOUNDARIES = 16 /* tried: of more layers not every one */ };

/* ---- Trying ---- */

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

/* Uses of each expert, [layer][expert]; NULL without statistics (or without memory). */
static uint64_t *frequencies(const struct moe_planner *p, struct moe_err *err)
{
    uint64_t n = p->inventory->n_experts, n_layers = p->inventory->n_layers;
    uint64_t *f = moe_alloc(n_layers * n, sizeof *f, err);
    for (uint32_t layer = 0; f && layer < n_layers; layer++)
        memcpy(f + layer * n, moe_series_at(p->statistics, MOE_S_ACTIVATIONS, layer),
               n * sizeof *f);
    return f;
}

static uint32_t n_cached(const struct moe_pools *pools)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < pools->n_classes; c++)
        n += pools->pools[c].n_cache;
    return n;
}

/* Seconds of a load when nothing is in its way, as Fate's t_expert. */
static double load_seconds(const struct moe_planner *p, const struct moe_pace *pace,
                           uint32_t variant)
{
    return moe_inventory_mean_load(p->inventory, variant) / pace->load_rate;
}

static int find_optimum(const struct moe_planner *p, struct moe_trial_run *t, struct moe_err *err)
{
    uint64_t hits, n = p->lookups ? moe_lookups_decoded(p->lookups) : 0;
    t->optimal_hit_rate = -1;
    if (n == 0)
        return MOE_OK;
    int status =
        moe_optimal_hits(p->lookups, n_cached(&t->fitted.pools) + t->fitted.staging, &hits, err);
    if (status == MOE_OK)
        t->optimal_hit_rate = (double)hits / (double)n;
    return status;
}

int moe_planner_try(const struct moe_planner *p, const struct moe_strategy *strategy,
                    uint64_t bytes, double load_rate, struct moe_trial_run *out,
                    struct moe_simulated_layer *layers, struct moe_err *err)
{
    *out = (struct moe_trial_run){.optimal_hit_rate = -1};
    struct moe_fitted *f = &out->fitted;
    int status = p->fitter.fit(p->fitter.ctx, strategy, bytes, f, err);
    if (status == MOE_OK && p->exact)
        status = moe_strategy_check_exact(&f->strategy, err);
    if (status == MOE_OK && p->calibration)
        status =
            moe_calibration_check(p->calibration, &f->strategy, p->inventory, f->high, f->low, err);
    if (status != MOE_OK)
        return status;
    struct moe_pace pace = *p->pace;
    struct moe_strategy simulated = f->strategy;
    struct moe_pools pools = f->pools;
    uint64_t *frequency = NULL;
    if (load_rate > 0)
        pace.load_rate = load_rate;
    if (f->strategy.resident)
        make_resident(p, &simulated, &pools);
    if (p->statistics && !(frequency = frequencies(p, err)))
        return MOE_ERR_MEMORY;
    const struct moe_simulation in = {
        .trace = p->trace,
        .excerpt = p->excerpt,
        .scheduler = {.inventory = p->inventory,
                      .strategy = &simulated,
                      .high = f->high,
                      .low = f->low,
                      .pools = &pools,
                      .frequency = frequency,
                      .layer_seconds = moe_pace_layer(&pace, f->high, p->inventory->top_k),
                      .load_seconds = load_seconds(p, &pace, f->high),
                      .seed = p->seed},
        .statistics = p->statistics,
        .pace = &pace,
        .batch = f->memory.batch ? f->memory.batch : 1,
        .progress = p->progress,
    };
    status = moe_simulate(&in, &out->simulated, layers, err);
    if (status == MOE_OK)
        status = find_optimum(p, out, err);
    free(frequency);
    return status;
}

/* ---- What is in the plan ---- */

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
                     inv->n_experts, frequency, pool->per_layer);
        pool->n_cache = 0; /* no layer takes more than it has experts */
        for (uint32_t layer = 0; layer < inv->n_layers; layer++)
            pool->n_cache += pool->per_layer[layer];
    }
    return MOE_OK;
}

/* Keeps of n keys, in their order, those that the slots have room for; returns how many. taken:
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
        uint32_t n = moe_initial(f->strategy.init, NULL, n_keys, inv->n_layers, inv->n_experts,
                                 frequency, plan->contents, order);
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

static void set_expected(const struct moe_planner *p, const struct moe_trial_run *t,
                         double compute_limit, struct moe_plan_expected *e)
{
    const struct moe_simulated_phase *d = &t->simulated.decode, *pre = &t->simulated.prefill;
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
        .stall_seconds = d->stall_seconds / n,
        .host_seconds = d->host_seconds / n,
        .link_seconds = d->link_seconds / n,
        .compute_limit_seconds = compute_limit,
        .link_limit_seconds = -1,
    };
    if (t->optimal_hit_rate >= 0)
        e->link_limit_seconds = (1 - t->optimal_hit_rate) * inv->top_k * inv->n_layers *
                                load_seconds(p, p->pace, t->fitted.high);
    if (t->fitted.strategy.resident)
        e->link_limit_seconds = 0;
}

/* Seconds per token with every expert in memory: computation and no more. */
static double compute_limit(const struct moe_planner *p)
{
    const struct moe_inventory *inv = p->inventory;
    double dense = inv->n_model_layers - inv->n_layers;
    return inv->n_layers * moe_pace_layer(p->pace, 0, inv->top_k) +
           dense * moe_pace_piece(p->pace, MOE_PIECE_DENSE, 1) + p->pace->head;
}

/* ---- Boundaries ---- */

/* Fate 4.4's L by the accuracies that statistics have, or else the simulation. */
static int set_boundary_by_accuracy(const struct moe_planner *p, struct moe_plan *plan,
                                    struct moe_err *err)
{
    double *accuracy = moe_alloc(plan->n_layers, sizeof *accuracy, err);
    if (!accuracy)
        return MOE_ERR_MEMORY;
    bool known = p->statistics != NULL;
    if (known)
        moe_layer_accuracies(p->statistics, MOE_PREDICT_GATE_1, accuracy);
    for (uint32_t i = 0; !p->statistics && i < plan->n_layers; i++) {
        accuracy[i] = plan->layers[i].accuracy;
        known |= accuracy[i] >= 0;
    }
    plan->boundary_accuracy = known ? moe_boundary(accuracy, plan->n_layers) : UINT32_MAX;
    free(accuracy);
    return MOE_OK;
}

/* ... and by trying: the L that decodes fastest under this strategy; 0: equal shares. */
static int set_boundary_by_stall(const struct moe_planner *p, const struct moe_fitted *f,
                                 struct moe_plan *plan, struct moe_err *err)
{
    uint32_t most = n_cached(&f->pools) / p->inventory->n_experts;
    double best = 0;
    plan->boundary_stall = UINT32_MAX;
    if (f->strategy.resident || !f->strategy.cache)
        return MOE_OK;
    if (most > plan->n_layers - 1)
        most = plan->n_layers - 1;
    uint32_t step = most / MOST_BOUNDARIES + 1;
    for (uint32_t boundary = 0; boundary <= most; boundary += step) {
        struct moe_trial_run t;
        struct moe_strategy s = f->strategy;
        s.alloc = boundary ? MOE_ALLOC_SHALLOW : MOE_ALLOC_PER_LAYER;
        s.boundary = boundary;
        int status = moe_planner_try(p, &s, 0, 0, &t, NULL, err);
        if (status != MOE_OK)
            return status;
        if (moe_trial_tokens_per_second(&t) > best) {
            best = moe_trial_tokens_per_second(&t);
            plan->boundary_stall = boundary;
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
    plan->strategy = f->strategy;
    memcpy(plan->high, inv->variants[f->high], sizeof plan->high);
    memset(plan->low, 0, sizeof plan->low);
    if (uses_low && f->low != f->high)
        memcpy(plan->low, inv->variants[f->low], sizeof plan->low);
    memcpy(plan->variants, inv->variants, sizeof plan->variants);
    plan->pace = *p->pace;
    plan->layer_seconds = moe_pace_layer(p->pace, f->high, inv->top_k);
    plan->load_seconds = load_seconds(p, p->pace, f->high);
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

/* What the calibration has measured of it. */
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

int moe_planner_make(const struct moe_planner *p, const struct moe_strategy *strategy,
                     struct moe_plan *plan, struct moe_err *err)
{
    struct moe_trial_run t;
    struct moe_simulated_layer *layers = moe_alloc(plan->n_layers, sizeof *layers, err);
    uint64_t *frequency = NULL;
    int status = layers ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_planner_try(p, strategy, 0, 0, &t, layers, err);
    if (status == MOE_OK && t.simulated.decode.tokens == 0)
        status = moe_fail(err, MOE_ERR_USAGE, "the trace has no decoded token to plan by");
    if (status == MOE_OK && p->statistics && !(frequency = frequencies(p, err)))
        status = MOE_ERR_MEMORY;
    if (status != MOE_OK)
        goto done;
    set_shape(p, &t.fitted, plan);
    set_layers(&t.simulated, layers, plan);
    set_expected(p, &t, compute_limit(p), &plan->expected);
    set_evidence(p, &t.simulated, &plan->evidence);
    set_losses(p, &t.fitted, plan);
    status = set_slots(p, &t.fitted, frequency, plan, err);
    if (status == MOE_OK)
        status = set_contents(p, &t.fitted, frequency, plan, err);
    if (status == MOE_OK)
        status = set_boundary_by_accuracy(p, plan, err);
    if (status == MOE_OK)
        status = set_boundary_by_stall(p, &t.fitted, plan, err);
    if (status == MOE_OK)
        status = planner_look_around(p, &t.fitted, plan, err);
done:
    free(layers);
    free(frequency);
    return status;
}
