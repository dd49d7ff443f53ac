/* One strategy in the simulator. */
#include "plan/planner_try.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/exactness.h"

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

int planner_prepare(const struct moe_planner *p, const struct moe_strategy *strategy,
                    uint64_t bytes, double load_rate, struct planner_prepared *out,
                    struct moe_err *err)
{
    out->run = (struct moe_trial_run){.optimal_hit_rate = -1};
    struct moe_fitted *f = &out->run.fitted;
    const struct moe_fit_room room = {bytes, p->batch, p->staging};
    int status = p->fitter.fit(p->fitter.ctx, strategy, &room, f, err);
    if (status == MOE_OK && p->exact) {
        const struct moe_terms terms = moe_terms_of(&f->strategy, p->inventory, f->high);
        status = moe_exactness_check(&terms, err);
    }
    if (status == MOE_OK && p->calibration)
        status =
            moe_calibration_check(p->calibration, &f->strategy, p->inventory, f->high, f->low, err);
    if (status != MOE_OK)
        return status;
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
