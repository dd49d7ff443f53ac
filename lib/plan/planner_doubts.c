/* What a plan takes for granted, and what becomes of its speed where that does not hold. */
#include <math.h>
#include <string.h>

#include "plan/planner_alternatives.h"

/* By how much assumptions are taken to be off where nothing measured it. Shares of experts found:
 * routing of another model differs most, one drawn by a model's figures less, other texts least. */
static const double OFF_ROUTING = 0.1, OFF_FIGURES = 0.05, OFF_ALIKE = 0.03;
/* A spread of runs that were interrupted says no more than that. */
static const double MOST_QUIET = 1;
/* Longer computation where memory bandwidth alone is known, and the part of a bus's stated rate
 * that transfers do not reach. */
static const double OFF_BANDWIDTH = 0.3, OFF_NOMINAL = 0.3;

static double hit_rate_error(const struct moe_plan *plan)
{
    double n = (double)plan->evidence.trace_tokens - (double)plan->evidence.trace_prompt_tokens;
    double h = plan->expected.hit_rate;
    return n > 0 && h >= 0 && h <= 1 ? 2 * sqrt(h * (1 - h) / n) : 1;
}

/* By how much each assumption may be off; 0: it is none of this plan's, or has no figure. */
static void find_doubts(const struct moe_plan *plan, bool loads, double by[MOE_N_ASSUMPTIONS])
{
    const struct moe_plan_evidence *e = &plan->evidence;
    bool synthetic = !e->trace[0];
    double error = hit_rate_error(plan);
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
        planner_scale_computation(&v->pace, 1 + by);
        break;
    case MOE_ASSUME_NOMINAL:
        v->load_rate = rate * (1 - by);
        break;
    case MOE_ASSUME_QUIET:
        planner_scale_computation(&v->pace, 1 + by);
        v->pace.loads.piece *= 1 + by;
        v->pace.loads.latency *= 1 + by;
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
    int status = MOE_OK;
    plan->n_doubts = 0;
    find_doubts(plan, !f->strategy.resident, by);
    for (enum moe_assumption what = 0; what < MOE_N_ASSUMPTIONS && status == MOE_OK; what++) {
        struct moe_trial_run t;
        struct planner_variation v;
        if (by[what] <= 0)
            continue;
        planner_begin_variation(&v, p, f);
        set_doubt(&v, plan, what, by[what]);
        status = moe_planner_try(&v.planner, v.strategy, 0, v.load_rate, &t, NULL, err);
        if (status == MOE_OK)
            insert(plan, &(struct moe_plan_doubt){what, by[what], moe_trial_tokens_per_second(&t)});
    }
    return status;
}
