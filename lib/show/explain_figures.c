#include <math.h>

#include "show/explain.h"

/* `x` where it is known and above zero. */
static double known(double x)
{
    return x > 0 ? x : 0;
}

struct moe_plan_bounds moe_plan_bounds(const struct moe_plan *plan)
{
    const struct moe_plan_expected *e = &plan->expected;
    double total = known(e->compute_seconds) + known(e->stall_seconds) + known(e->host_seconds);
    double computation = fmin(known(e->compute_limit_seconds), total);
    double limit = fmin(fmax(known(e->link_limit_seconds), computation), total);
    struct moe_plan_bounds b = {
        .total = total,
        .seconds = {computation, limit - computation, total - limit},
    };
    for (enum moe_bound i = 0; i < MOE_N_BOUNDS; i++)
        if (b.seconds[i] > b.seconds[b.largest])
            b.largest = i;
    return b;
}

double moe_plan_hit_rate_error(const struct moe_plan *plan)
{
    const struct moe_plan_evidence *e = &plan->evidence;
    double h = plan->expected.hit_rate;
    if (e->trace_tokens <= e->trace_prompt_tokens || !(h >= 0 && h <= 1))
        return 1;
    return 2 * sqrt(h * (1 - h) / (double)(e->trace_tokens - e->trace_prompt_tokens));
}

const struct moe_plan_step *moe_plan_next_step(const struct moe_plan_step *steps, uint32_t n,
                                               double amount)
{
    for (uint32_t i = 0; i < n; i++)
        if (steps[i].amount > 1.001 * amount)
            return &steps[i];
    return NULL;
}

uint32_t moe_plan_assumptions(const struct moe_plan *plan,
                              enum moe_assumption out[MOE_N_ASSUMPTIONS])
{
    const struct moe_plan_evidence *e = &plan->evidence;
    bool synthetic = !e->trace[0];
    const bool holds[MOE_N_ASSUMPTIONS] = {
        [MOE_ASSUME_ROUTING] = synthetic && !e->manner_known,
        [MOE_ASSUME_BANDWIDTH] = !e->times_measured,
        [MOE_ASSUME_FIGURES] = synthetic && e->manner_known,
        [MOE_ASSUME_FEW_TOKENS] = moe_plan_hit_rate_error(plan) > MOE_FEW_TOKENS_ERROR,
        [MOE_ASSUME_NO_STATISTICS] = !e->statistics[0],
        [MOE_ASSUME_ALIKE] = true,
    };
    uint32_t n = 0;
    for (enum moe_assumption i = 0; i < MOE_N_ASSUMPTIONS; i++)
        if (holds[i])
            out[n++] = i;
    return n;
}
